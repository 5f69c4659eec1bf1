"""Columns of the tables: metrics of the registry, and the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_iba.compare.results import Outcome, Row
from captum_iba.metrics import METRICS, mean_over_seeds


@dataclass(frozen=True)
class Measure:
    """A column.

    Attributes:
        name (str): Name in ``table.csv``.
        title (str): Title in the tables.
        function (callable): From a run's outcome to one value per example, (B,).
        higher_is_better (bool): Whether higher values speak for the method.
        meaning (str): The formula in words, and its source.
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
        """Values of a row, (B,), float64: the mean over its seeds."""
        return mean_over_seeds([self.function(outcome) for outcome in row.outcomes])


def _of_metric(name: str) -> Measure:
    metric = METRICS[name]
    return Measure(
        name,
        metric.title,
        lambda outcome: metric(outcome.morf, outcome.lerf),
        metric.higher_is_better,
        f"{metric.formula} ({metric.source}).",
    )


MEASURES = (
    *map(_of_metric, ("probability_drop", "aopc", "comprehensiveness", "sufficiency", "area_between")),
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
