"""The curves of the degradation test, as the paper draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captum_iba.compare.results import Results
from captum_iba.metrics import Degradation, degraded_floor, mean_over_seeds
from captum_iba.visualization import plot_degradation, save_figure

_LEAST_SPAN = 0.1


@dataclass(frozen=True)
class Curves:
    """The curves of a comparison.

    Attributes:
        degradations (mapping of str to Degradation): Per method the probability of the explained class as tokens are
            removed, most relevant first, and the shares that really were: short texts have no ninths. Of several seeds
            the mean.
        normalised (bool): Whether they are drawn with 1 for the mean of the whole texts and 0 for the floor: the
            lowest mean of the fully degraded texts among the methods. Not so where the floor is hardly lower than
            the whole texts (a model that takes an empty text for the explained class): the scale would blow up noise.
    """

    degradations: Mapping[str, Degradation]
    normalised: bool


def make_curves(results: Results) -> Curves:
    """The curve of every row that has one, all on the same scale."""
    degradations = {
        row.name: row.outcomes[0].morf._replace(
            probability=_mean([one.morf.probability for one in row.outcomes]),
            fraction=_mean([one.morf.fraction for one in row.outcomes]),
        )
        for row in results.rows
        if row.outcomes
    }
    whole = float(next(iter(degradations.values())).probability[:, 0].mean())
    return Curves(degradations, whole - degraded_floor(degradations.values()) >= _LEAST_SPAN)


def _mean(runs: list[Tensor]) -> Tensor:
    return torch.stack([mean_over_seeds([run[:, step] for run in runs]) for step in range(runs[0].shape[1])], 1)


def draw_curves(curves: Curves) -> tuple[Any, Any]:
    """Draw curves with their 95 % intervals, by bootstrap over the examples.

    Args:
        curves (Curves): What to draw.

    Returns:
        tuple: the matplotlib figure and its axes.
    """
    return plot_degradation(curves.degradations, normalised=curves.normalised)


def write_curves(figure: Any, folder: Path) -> list[Path]:
    """Write ``curves.svg`` and ``curves.png``; returns where."""
    return [save_figure(figure, folder / f"curves.{kind}") for kind in ("svg", "png")]
