"""The check of an image attribution: what the model says without some regions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from captum_iba._explain.json_result import check_of_file

_SEVERAL = ("without_each", "leading", "without_first", "without_others")


@dataclass(frozen=True)
class ImageCheck:
    """Probability of the target without some regions of the image, which get its mean color.

    Attributes:
        n_regions (int): Number of regions that are removed together: as many as lead, at most half of all regions.
        probability (float): With all regions.
        without_leading (float): Without the leading regions.
        without_least (float): Without those with the fewest bits among the others.
        without_random (float): Without as many other regions at random, the mean over ``n_random`` draws.
        n_random (int): Number of these draws.
        without_each (tuple of float): Without each region alone, by number; empty of more than 64 regions.
        lowest_random (float or None): The lowest of the probabilities without regions at random.
        leading (tuple of int): Numbers of the leading regions (:func:`captum_iba.vision.leading_by_removal`).
        without_first (tuple of float): Without the first k leading regions, for k from 1 to 16.
        without_others (tuple of float): Of each leading region, without all others of them; empty of a single one.
        changes_pixels (bool): Whether the removal of the leading regions changes the image.
        decision (str): The most probable class without the leading regions; empty for several labels at once.
        decision_probability (float or None): Its probability.
        without_all (float or None): Without all regions: of an image of the mean color.
    """

    n_regions: int
    probability: float
    without_leading: float
    without_least: float
    without_random: float
    n_random: int
    without_each: tuple[float, ...] = ()
    lowest_random: float | None = None
    leading: tuple[int, ...] = ()
    without_first: tuple[float, ...] = ()
    without_others: tuple[float, ...] = ()
    changes_pixels: bool = True
    decision: str = ""
    decision_probability: float | None = None
    without_all: float | None = None

    @property
    def added(self) -> npt.NDArray[np.float64]:
        """What each leading region adds where the other ones are removed, as probability; empty of a single one."""
        return np.array([kept - self.without_leading for kept in self.without_others])

    @property
    def decreases(self) -> npt.NDArray[np.float64]:
        """The decrease in the probability without each region alone, (R,), or what it :attr:`added`, if that is more.

        Empty if the regions were not removed alone.
        """
        decreases = self.probability - np.array(self.without_each)
        if len(decreases) and self.without_others:
            leading = list(self.leading)
            decreases[leading] = np.maximum(decreases[leading], self.added)
        return decreases

    def to_dict(self) -> dict[str, Any]:
        """The check as plain Python for JSON."""
        return {**dataclasses.asdict(self), **{name: list(getattr(self, name)) for name in _SEVERAL}}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ImageCheck:
        """A check from :meth:`to_dict`; what an earlier version did not write has its default.

        Raises:
            TypeError: A probability is missing.
        """
        content = check_of_file(content)
        known = {item.name: content[item.name] for item in dataclasses.fields(cls) if item.name in content}
        return cls(**{**known, **{name: tuple(known.get(name, ())) for name in _SEVERAL}})
