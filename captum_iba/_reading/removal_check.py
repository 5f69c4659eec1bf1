"""The check of an attribution: what the model says without some parts of the input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Self

_COMPARED = ("without_least", "without_random")  # NaN where nothing is compared
_EARLIER_NAMES = {"n_words": "n_removed", "n_parts": "n_removed", "n_regions": "n_removed"}


@dataclass(frozen=True)
class PredictionChange:
    """The fewest parts of an input without which a model predicts another class, among the sets that were removed.

    Attributes:
        parts (tuple of int): Their numbers.
        decision (str): The class that is predicted without them.
        probability (float or None): Its probability; None of a token, an answer or a word at a mask token.
        n_sets (int): Number of sets of as many parts that were removed, and change the prediction. Default: 1.
        alone (tuple of (int, str)): Number of each part without which alone the prediction changes, as far as it was
            removed alone, and the class that is predicted then. Default: none is known.
        second_decision (str): The second most probable class, with all parts. Default: "", not known.
        second_probability (float): Its probability. Default: 0.0.
    """

    parts: tuple[int, ...]
    decision: str
    probability: float | None
    n_sets: int = 1
    alone: tuple[tuple[int, str], ...] = ()
    second_decision: str = ""
    second_probability: float = 0.0

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What ``dataclasses.asdict`` gave, also after JSON.

        Raises:
            TypeError: A field is missing, or unknown.
        """
        alone = tuple((int(part), str(decision)) for part, decision in content.get("alone", ()))
        return cls(**{**content, "parts": tuple(content["parts"]), "alone": alone})


@dataclass(frozen=True)
class RemovalCheck:
    """Probability of what is explained without some parts of the input: the degradation test of one attribution.

    The parts are the words of a text, the parts of a prompt, or the regions of an image.

    Attributes:
        n_removed (int): Number of parts that are removed: as many as lead; of a text one word in nine where none leads.
        probability (float): With all parts.
        without_leading (float): Without the leading parts, all of them.
        without_least (float): Without the parts with the fewest bits among the others. NaN if too few others are left.
        without_random (float): Without as many other parts at random, the mean of ``n_random`` draws. NaN if too few
            others are left.
        n_random (int): Number of these draws; 0 if too few others are left.
        without_rest (float or None): Without all parts that do not lead, where these are fewer than the leading ones.
        lowest_random (float or None): The lowest of these probabilities.
        leading (tuple of int): Numbers of the leading parts, in the order of their removal; where none leads, those of
            the parts that are removed in their place.
        without_first (tuple of float): Without the first k leading parts, for k from 1 to 16.
        without_others (tuple of float): Of each leading part, without all others of them; empty of a single one.
        least (tuple of int): Numbers of the parts with the fewest bits that are removed for comparison.
        lowest_set (tuple of int): Numbers of the parts of the draw with the lowest probability.
        decision (str): The most probable class without the leading parts; empty where the model chooses no class, and
            for several labels at once.
        decision_probability (float or None): Its probability.
        change (PredictionChange or None): What changes the prediction. None if no set of parts that was removed changes
            it, if another class than the predicted one is explained, and of a prompt without ``contrast``, for which no
            classes compete.
    """

    n_removed: int
    probability: float
    without_leading: float
    without_least: float
    without_random: float
    n_random: int
    _: KW_ONLY
    without_rest: float | None = None
    lowest_random: float | None = None
    leading: tuple[int, ...] = ()
    without_first: tuple[float, ...] = ()
    without_others: tuple[float, ...] = ()
    least: tuple[int, ...] = ()
    lowest_set: tuple[int, ...] = ()
    decision: str = ""
    decision_probability: float | None = None
    change: PredictionChange | None = None

    def changes_alone(self, number: int) -> bool:
        """Whether the prediction changes without this part alone, as far as that is known."""
        return self.change is not None and number in dict(self.change.alone)

    @property
    def added(self) -> npt.NDArray[np.float64]:
        """What each leading part adds where the other ones are removed, as probability; empty of a single one."""
        return np.array([kept - self.without_leading for kept in self.without_others])

    def to_dict(self) -> dict[str, Any]:
        """The check as plain Python for JSON."""
        found = {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }
        return found | {name: None for name in _COMPARED if math.isnan(getattr(self, name))}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """A check from :meth:`to_dict`; what an earlier version did not write has its default.

        Raises:
            TypeError: A probability is missing.

        Examples::

            >>> check = RemovalCheck(2, 0.9, 0.2, 0.9, 0.8, 10, leading=(3, 1))
            >>> RemovalCheck.from_dict(check.to_dict()) == check
            True
            >>> RemovalCheck(2, 0.9, 0.2, float("nan"), float("nan"), 0).to_dict()["without_least"] is None
            True
        """
        values = {_EARLIER_NAMES.get(name, name): value for name, value in content.items()}
        if (without_all := values.pop("without_all_leading", None)) is not None:  # an earlier name, too
            values["without_leading"] = without_all
        if values.get("change") is not None:
            values["change"] = PredictionChange.from_dict(values["change"])
        names = {item.name for item in dataclasses.fields(cls)} & values.keys()
        known: dict[str, Any] = {
            name: tuple(values[name]) if isinstance(values[name], list) else values[name] for name in names
        }
        return cls(**known | {name: math.nan for name in _COMPARED if known.get(name, math.nan) is None})


@dataclass(frozen=True)
class DeletionCheck(RemovalCheck):
    """The :class:`captum_iba.text.RemovalCheck` of a text, whose words are deleted.

    ``decision`` can also be an answer, or the word at a mask token.

    Attributes:
        without_each (tuple of float or None): Without each word alone, by its number: of a text with at most 60 words
            all but the words that are explained themselves, else the first eight leading ones. Of others it is None;
            empty where no word was deleted alone.
    """

    without_each: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class PromptCheck(RemovalCheck):
    """The :class:`captum_iba.text.RemovalCheck` of a response. Its probability is the geometric mean per token.

    With ``contrast`` it is the probability of the choice between both responses.

    Attributes:
        whole_without_leading (float or None): Of a choice, the probability of the response as a whole without the
            leading parts, relative to that of both; None without ``contrast``.
    """

    whole_without_leading: float | None = None


@dataclass(frozen=True)
class ImageCheck(RemovalCheck):
    """The :class:`captum_iba.text.RemovalCheck` of an image, whose regions get its mean color.

    Attributes:
        without_each (tuple of float): Without each region alone, by number; empty of more than 64 regions.
        changes_pixels (bool): Whether the removal of the leading regions changes the image.
        without_all (float or None): Without all regions: of an image of the mean color.
    """

    without_each: tuple[float, ...] = ()
    changes_pixels: bool = True
    without_all: float | None = None

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
