"""Curves: degradation, a sweep over a setting, and an optimization trace (needs ``captum-iba[plot]``)."""

# ruff: noqa: D102 - the properties of the protocols are documented where they are implemented

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from captum_iba._bootstrap import Interval, paired_bootstrap
from captum_iba.visualization.figures import axes_on, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D

# Okabe and Ito's colors, told apart by color-blind eyes too; without their yellow, which is too pale for a line.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777")
_MARKERS = "osv^DPX<>*"
_LINES = ("-", "--", ":", "-.")
_RESAMPLES = 999  # enough for a figure
_MOST_TICKS = 16


class DrawableDegradation(Protocol):
    """Target probability and removed fraction at each step, (B, S + 1): a :class:`captum_iba.metrics.Degradation`."""

    @property
    def probability(self) -> Tensor: ...
    @property
    def fraction(self) -> Tensor: ...


class DrawableTrace(Protocol):
    """Information in bits and target probability at each step: a trace of one example."""

    @property
    def information(self) -> Any: ...
    @property
    def probability(self) -> Any: ...


DrawableCurve = DrawableDegradation | Tensor
"""A degradation, or target probabilities (B, S + 1) at evenly spaced fractions from 0 to 1."""


class Band(NamedTuple):
    """A line over removed fractions, or values of a setting: means, and the ends of their 95% intervals."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def degradation_bands(curves: Mapping[str, DrawableCurve], normalized: bool = False) -> dict[str, Band]:
    """Means over the examples at every step with 95% bootstrap intervals, as :func:`plot_degradation` draws them.

    With ``normalized``, 1 is the mean of the complete texts of the first curve and 0 the lowest mean of fully degraded
    ones among all, held fixed for the intervals. ValueError if these leave nothing to normalize by, or for wrong ones.
    """
    if not curves:
        raise ValueError("curves is empty, expected at least one curve")
    probabilities = {name: _probabilities(name, curve) for name, curve in curves.items()}
    floor = min(float(values[:, -1].mean()) for values in probabilities.values())
    span = float(next(iter(probabilities.values()))[:, 0].mean()) - floor
    if normalized and span <= 0:
        raise ValueError(
            f"normalized is True, but the mean of the complete texts is {floor + span:.3g} and the floor {floor:.3g}, "
            "expected a decrease; draw these curves with normalized=False"
        )
    bands = {}
    for name, values in probabilities.items():
        intervals = torch.tensor([_interval(step) for step in values.T], dtype=torch.float64)
        scaled = (intervals - floor) / span if normalized else intervals
        bands[name] = Band(_fractions(curves[name]), *scaled.T.tolist())
    return bands


def plot_degradation(
    curves: Mapping[str, DrawableCurve], ax: Axes | None = None, normalized: bool = False
) -> tuple[Figure | SubFigure, Axes]:
    """Degradation curves: mean target probability as features are removed, with 95% intervals.

    Intervals are by bootstrap over the examples (:func:`captum_iba.metrics.paired_bootstrap`). That two bands overlap
    does not say that methods are alike: for that, take the interval of their paired difference.

    Args:
        curves (mapping of str to Degradation or Tensor): Per name the result of :func:`captum_iba.metrics.degradation`,
            drawn at the mean removed fraction, or probabilities (B, S + 1) at evenly spaced fractions.
        ax (matplotlib Axes, optional): Axes to draw on. Default: None, a new figure.
        normalized (bool): Whether 1 is the mean of the complete texts and 0 the lowest mean of fully degraded ones, as
            in the figures of Jiang et al. (2020). Default: False.

    Returns:
        tuple: Figure and axes.

    Raises:
        ValueError: No curves; curves of a wrong shape or not finite; or, if ``normalized``, complete texts that are no
            more probable than degraded ones.
        ModuleNotFoundError: matplotlib or scipy is missing.

    Examples::

        >>> iba, ig = torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.3, 0.1]]), torch.tensor([[0.9, 0.5, 0.1], [0.8, 0.4, 0.1]])
        >>> fig, ax = plot_degradation({"iba": iba, "ig": ig}, normalized=True)
        >>> ax.get_ylabel()
        'normalized probability'
    """
    bands = degradation_bands(curves, normalized)
    per_row = 2
    is_new = ax is None
    figure, ax = axes_on(ax, 4.8, 3.3 + 0.2 * -(-len(bands) // per_row))
    lines = {name: _draw_band(ax, band, name, number) for number, (name, band) in enumerate(bands.items())}
    steps = len(next(iter(bands.values())).x) - 1
    if steps == 9:
        ax.set_xticks([k / 9 for k in range(10)], ["0", *(f"{k}/9" for k in range(1, 9)), "1"])
    ax.set_xlim(0, max(band.x[-1] for band in bands.values()))
    ax.axhline(0, color="#888888", linewidth=0.8)
    ax.set_xlabel("fraction of the features removed")
    ax.set_ylabel("normalized probability" if normalized else "mean probability")
    plain_axes(ax)
    _legend(figure, ax, is_new, min(per_row, len(bands)), lines)
    return figure, ax


def plot_sweep(
    points: Mapping[float, Tensor | Sequence[float]],
    xlabel: str,
    ax: Axes | None = None,
    log: bool = False,
    ylabel: str = "drop at 1/9",
    reference: Mapping[str, Tensor | Sequence[float]] | None = None,
) -> tuple[Figure | SubFigure, Axes]:
    """A metric over the values of a setting, such as layer or beta: means and 95% intervals.

    Args:
        points (mapping of float to Tensor): Per value of the setting one value per example, (B,).
        xlabel (str): Name of the setting.
        ax (matplotlib Axes, optional): Axes to draw on. Default: None, a new figure.
        log (bool): Whether the setting is on a logarithmic axis. Default: False.
        ylabel (str): Name of the metric. Default: ``"drop at 1/9"``.
        reference (mapping of str to Tensor, optional): Methods without the setting, (B,) each: horizontal lines
            with their intervals. Default: None.

    Returns:
        tuple: Figure and axes.

    Raises:
        ValueError: No points, numbers that are not finite, or values not above 0 on a logarithmic axis.
        ModuleNotFoundError: matplotlib or scipy is missing.

    Examples::

        >>> drops = {1: [0.1, 0.3, 0.2], 6: [0.4, 0.5, 0.3], 12: [0.2, 0.2, 0.4]}
        >>> fig, ax = plot_sweep(drops, "layer", reference={"ig": [0.2, 0.3, 0.1]})
        >>> ax.get_xlabel()
        'layer'
    """
    if not points:
        raise ValueError("points is empty, expected at least one value of the setting")
    settings = sorted(points)
    if log and settings[0] <= 0:
        raise ValueError(f"points has the value {settings[0]} on a logarithmic axis, expected values above 0")
    references = {name: _interval(values) for name, values in (reference or {}).items()}
    intervals = [_interval(points[setting]) for setting in settings]
    is_new = ax is None
    figure, ax = axes_on(ax, 4.8, 3.3 + 0.2 * len(references))
    means, lows, highs = (list(ends) for ends in zip(*intervals, strict=True))
    _draw_band(ax, Band([float(setting) for setting in settings], means, lows, highs), "", 0)
    lines = {}
    for number, (name, (mean, low, high)) in enumerate(references.items(), 1):
        color = COLOURS[number % len(COLOURS)]
        ax.axhspan(low, high, color=color, alpha=0.1, linewidth=0)
        style = _LINES[1 + (number - 1) % 3]
        lines[name] = ax.axhline(mean, color=color, linestyle=style, linewidth=1.4, label=name)
    if log:
        ax.set_xscale("log")
    if len(settings) <= _MOST_TICKS and (log or all(float(setting).is_integer() for setting in settings)):
        ax.set_xticks(settings, [f"{setting:g}" for setting in settings])
        ax.set_xticks([], minor=True)
    ax.set_xlabel(xlabel, parse_math=False)
    ax.set_ylabel(ylabel, parse_math=False)
    plain_axes(ax)
    if references:
        _legend(figure, ax, is_new, 2, lines)
    return figure, ax


def plot_trace(trace: DrawableTrace, ax: Axes | None = None) -> tuple[Figure | SubFigure, Axes]:
    """Optimization of a mask: information in bits and target probability against the step.

    Args:
        trace (TextTrace or BottleneckTrace): Trace of one example, n_steps + 1 values each: that of a text, or one row
            of a :class:`captum_iba.BottleneckTrace` (``BottleneckTrace(*(part[0] for part in trace))``).
        ax (matplotlib Axes, optional): Axes to draw on. Default: None, a new figure.

    Returns:
        tuple: Figure and axes of the information; the probability is on the right, on a twin of them.

    Raises:
        ValueError: The trace is of several examples.
        ModuleNotFoundError: matplotlib is missing.

    Examples::

        >>> from captum_iba import BottleneckTrace
        >>> trace = BottleneckTrace(*torch.tensor([[1.0, 0.5], [9.0, 3.5], [0.5, 0.8]]), torch.tensor(0.1))
        >>> fig, ax = plot_trace(trace)
        >>> ax.get_ylabel()
        'information (bits)'
    """
    lines = [
        torch.as_tensor(part, dtype=torch.float64).detach().cpu() for part in (trace.information, trace.probability)
    ]
    if any(line.ndim == 2 and len(line) == 1 for line in lines):
        lines = [line.reshape(-1) for line in lines]
    if any(line.ndim != 1 for line in lines):
        raise ValueError(
            f"trace has values of the shape {tuple(lines[0].shape)}, expected those of one example; "
            "select a row: BottleneckTrace(*(part[0] for part in trace))"
        )
    figure, ax = axes_on(ax, 4.8, 3.2)
    from matplotlib.ticker import MaxNLocator

    right = ax.twinx()
    # A loss that knows no probability gives the selected output in its place.
    known = bool(((lines[1] >= 0) & (lines[1] <= 1)).all())
    other = "probability" if known else "minus the loss"
    for axes, line, label, number in ((ax, lines[0], "information (bits)", 0), (right, lines[1], other, 1)):
        axes.plot(
            range(len(line)),
            line.tolist(),
            color=COLOURS[number],
            marker=_MARKERS[number],
            markersize=4,
            linewidth=1.6,
            clip_on=False,
        )
        axes.set_ylabel(label, color=COLOURS[number])
    ax.set_xlabel("step")
    most = float(lines[0].max())
    ax.set_ylim(0, 1.05 * most if most > 0 else 1)
    if known:
        right.set_ylim(0, 1.02)
    plain_axes(ax)
    right.spines["top"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter("{x:,g}")
    return figure, ax


def _draw_band(ax: Axes, band: Band, label: str, number: int) -> Line2D:
    color = COLOURS[number % len(COLOURS)]
    ax.fill_between(band.x, band.low, band.high, color=color, alpha=0.12, linewidth=0)
    (line,) = ax.plot(
        band.x,
        band.mean,
        color=color,
        linestyle=_LINES[number // len(COLOURS) % len(_LINES)],
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=4.5,
        linewidth=1.6,
        clip_on=False,
        label=label,
    )
    return line


def _legend(figure: Any, ax: Axes, is_new: bool, columns: int, lines: Mapping[str, Line2D]) -> None:
    """Below the axes in a new figure; inside the axes of a caller's figure, which is not ours to arrange.

    Named ``lines`` are in it whatever their names, and what else the axes have by matplotlib's own rule.
    """
    others = [pair for pair in zip(*ax.get_legend_handles_labels(), strict=True) if pair[0] not in lines.values()]
    handles, names = zip(*others, *((line, name) for name, line in lines.items()), strict=True)
    if is_new:
        legend = figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    else:
        legend = ax.legend(handles, names, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _interval(values: Tensor | Sequence[float]) -> Interval:
    return paired_bootstrap(values, n_resamples=_RESAMPLES)


def _probabilities(name: str, curve: DrawableCurve) -> Tensor:
    values = torch.as_tensor(getattr(curve, "probability", curve)).detach()
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise ValueError(f"curves has {name!r} of the shape {tuple(values.shape)}, expected (examples, steps + 1)")
    if not bool(values.isfinite().all()):
        raise ValueError(f"curves has {name!r} with NaN or infinite probabilities, expected finite ones")
    return values.cpu().double()


def _fractions(curve: DrawableCurve) -> list[float]:
    if hasattr(curve, "fraction"):
        return [float(fraction) for fraction in curve.fraction.double().mean(0)]
    return [k / (curve.shape[1] - 1) for k in range(curve.shape[1])]
