"""The curves of the degradation test, as the paper draws them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from captum_iba.benchmark.results import Results
from captum_iba.metrics import NINTHS, degraded_floor, mean_over_seeds, paired_bootstrap
from captum_iba.text._files import write_bytes, write_text

# Okabe and Ito's colours, told apart by colour-blind eyes too; without their yellow, which is too pale for a line.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777")
_MARKERS = "osv^DPX<>*"
_LINES = ("-", "--", ":", "-.")
_RESAMPLES = 999  # for the eye
_LEAST_SPAN = 0.1


@dataclass(frozen=True)
class Curve:
    """The mean probability of a method at every step, and its 95 % interval.

    Attributes:
        name (str): The method.
        middle, low, high (list of float): At 0/9 to 9/9 removed.
    """

    name: str
    middle: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Curves:
    """The curves of a comparison.

    Attributes:
        lines (tuple of Curve): One a method.
        normalised (bool): Whether 1 is the mean of the whole texts and 0 the floor: the lowest mean of the fully
            degraded texts among the methods. Not so where the floor is hardly lower than the whole texts (a model
            that takes an empty text for the explained class): the scale would blow up noise.
    """

    lines: tuple[Curve, ...]
    normalised: bool


def make_curves(results: Results) -> Curves:
    """The curve of every row that has one, most relevant first, all on the same scale.

    Intervals are by bootstrap over the examples, with whole texts and floor held fixed.
    """
    rows = [row for row in results.rows if row.outcomes]
    floor = degraded_floor(outcome.morf for row in rows for outcome in row.outcomes)
    span = float(rows[0].outcomes[0].morf.probability[:, 0].mean()) - floor
    normalised = span >= _LEAST_SPAN
    curves = []
    for row in rows:
        steps = [
            mean_over_seeds([outcome.morf.probability[:, k] for outcome in row.outcomes])
            for k in range(len(NINTHS) + 1)
        ]
        intervals = torch.tensor([paired_bootstrap(step, n_resamples=_RESAMPLES) for step in steps])
        scaled = (intervals - floor) / span if normalised else intervals
        middle, low, high = scaled.T.tolist()
        curves.append(Curve(row.name, middle, low, high))
    return Curves(tuple(curves), normalised)


def draw_curves(curves: Curves) -> tuple[Any, Any]:
    """Draw curves with their intervals.

    Args:
        curves (Curves): What to draw.

    Returns:
        tuple: the matplotlib figure and its axes.
    """
    # Not pyplot, which would choose a window system and keep every figure.
    from matplotlib.figure import Figure

    per_row = 2
    legend_rows = -(-len(curves.lines) // per_row)
    figure = Figure(figsize=(4.8, 3.3 + 0.2 * legend_rows), layout="constrained")
    axes = figure.add_subplot()
    shares = [0.0, *NINTHS]
    for number, curve in enumerate(curves.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        axes.fill_between(shares, curve.low, curve.high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(
            shares,
            curve.middle,
            color=colour,
            linestyle=_LINES[number // len(_COLOURS) % len(_LINES)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4.5,
            linewidth=1.6,
            clip_on=False,
            label=curve.name,
        )
    axes.set_xticks(shares, ["0", *(f"{k}/9" for k in range(1, 9)), "1"])
    axes.set_xlim(0, 1)
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.set_xlabel("share of the tokens removed, most relevant first")
    axes.set_ylabel("normalised probability" if curves.normalised else "mean probability")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(per_row, len(curves.lines)), frameon=False)
    return figure, axes


def svg(figure: Any) -> str:
    """A figure as SVG, the same for the same figure: an ``<svg>`` element with text as text."""
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "captum_iba"}):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    text = content.getvalue()
    return text[text.index("<svg") :]


def write_curves(figure: Any, folder: Path) -> list[Path]:
    """Write ``curves.svg`` and ``curves.png``; returns where."""
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=200, facecolor="white")
    return [
        write_text(folder / "curves.svg", '<?xml version="1.0" encoding="utf-8"?>\n' + svg(figure)),
        write_bytes(folder / "curves.png", pixels.getvalue()),
    ]
