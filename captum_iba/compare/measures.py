"""What the columns of the tables are: each a number for every example and method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_iba.compare.records import Outcome, Row
from captum_iba.metrics import (
    aopc,
    area_between,
    comprehensiveness,
    mean_over_seeds,
    probability_drop,
    sufficiency,
)

_TO_HALF = tuple(k / 9 for k in range(1, 5))


@dataclass(frozen=True)
class Measure:
    """A column.

    Attributes:
        name (str): For machines.
        title (str): For readers.
        function (callable): From a run's outcome to one number per example, (B,).
        higher_is_better (bool): Whether more speaks for the method.
        meaning (str): In a sentence, with the source of the formula.
        each (bool): Whether examples are measured one by one. Otherwise, as the time of those that are scored together,
            there is no interval over examples. Default: True.
    """

    name: str
    title: str
    function: Callable[[Outcome], Tensor]
    higher_is_better: bool
    meaning: str
    each: bool = True

    def of(self, row: Row) -> Tensor:
        """The numbers of a row, (B,), float64: the mean over its seeds."""
        return mean_over_seeds([self.function(outcome) for outcome in row.outcomes])


MEASURES = (
    Measure(
        "drop",
        "drop at 1/9",
        lambda outcome: probability_drop(outcome.morf),
        True,
        "how far the probability of the explained class falls without the top ninth of the tokens "
        "(Jiang et al. 2020, table 1).",
    ),
    Measure(
        "aopc",
        "AOPC",
        lambda outcome: aopc(outcome.morf),
        True,
        "the mean fall over all steps, from 0/9 to 9/9 removed (Samek et al. 2017).",
    ),
    Measure(
        "comprehensiveness",
        "comprehensiveness",
        lambda outcome: comprehensiveness(outcome.morf, over=_TO_HALF),
        True,
        "the mean fall without the top 1/9 to 4/9 (ERASER, DeYoung et al. 2020, whose shares end at one half).",
    ),
    Measure(
        "sufficiency",
        "sufficiency",
        lambda outcome: sufficiency(outcome.lerf, over=_TO_HALF),
        False,
        "the mean fall with only the top 1/9 to 4/9 kept (ERASER).",
    ),
    Measure(
        "lerf_minus_morf",
        "LeRF−MoRF",
        lambda outcome: area_between(outcome.morf, outcome.lerf),
        True,
        "the area between the curves of least and most relevant first (Schulz et al. 2020, not scaled); 0 is chance.",
    ),
    Measure(
        "seconds",
        "s/example",
        lambda outcome: torch.from_numpy(outcome.seconds),
        False,
        "seconds per example for the scores, on the machine of the comparison; the test itself is not counted. "
        "Examples are scored together, so there is no interval.",
        each=False,
    ),
)
