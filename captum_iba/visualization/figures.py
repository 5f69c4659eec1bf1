"""Figures: token maps of one text, and of one text at several layers (needs ``captum-iba[plot]``)."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captum_iba._reading.protocols import Drawable, ExplainedText
from captum_iba._reading.text_parts import Part, full_color, parts
from captum_iba._reading.wording import format_number
from captum_iba.visualization.color import Scale, colors
from captum_iba.visualization.colored_text import TokenMap, token_parts
from captum_iba.visualization.layer_names import check_same_text, layer_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Without a date, so that the same figure gives the same bytes.
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}, "transparent": True},
    "pdf": {"metadata": {"CreationDate": None}},
    "png": {"dpi": 200, "facecolor": "white"},
}

INK, SOFT, LINE = "#1c1f24", "#5b636e", "#d8dde3"

_SIZE = 10.0  # of the letters, in points
_LINE_HEIGHT = 19.0
_SCALE_HEIGHT = 30.0
_WIDTH = 468.0
_POINTS = 72.0


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; ModuleNotFoundError says what to install where matplotlib is missing."""
    try:
        from captum_iba.visualization.notebook_figure import NotebookFigure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"figures need {error.name}: pip install 'captum-iba[plot]'", name=error.name
        ) from error
    return NotebookFigure(figsize=(width, height), layout="constrained")


def axes_on(ax: Axes | None, width: float, height: float) -> tuple[Figure | SubFigure, Axes]:
    """``ax`` and its figure, or the axes of a new figure of this size, in inches."""
    if ax is not None:
        return ax.figure, ax
    figure = new_figure(width, height)
    return figure, figure.add_subplot()


def plain_axes(ax: Axes) -> None:
    """Axes without a frame above and to the right, with a faint grid below the lines."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    ax.set_axisbelow(True)


def save_figure(fig: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure to a file, atomically.

    With the same fonts and version of matplotlib the same figure gives the same bytes: no date is written, and names
    inside an SVG are not random. Text stays text in SVG and PDF, so it can be searched and copied.

    Args:
        fig (matplotlib.figure.Figure): Figure.
        path (path): Path of the file; its suffix is the format: ``.svg``, ``.png`` (200 dots per inch) or ``.pdf``.

    Returns:
        Path: Path of the file.

    Raises:
        ValueError: Another suffix.
        OSError: The folder is missing, or the disk is full.

    Examples::

        >>> fig, ax = plot_tokens(result)
        >>> save_figure(fig, "film.svg").name
        'film.svg'
    """
    from captum_iba._files import write_bytes

    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in _SAVE_OPTIONS:
        raise ValueError(f"path is {os.fspath(path)!r}, expected a name that ends in .svg, .png or .pdf")
    return write_bytes(path, figure_bytes(fig, suffix))


def figure_bytes(fig: Figure, kind: str) -> bytes:
    """A figure as the content of an ``svg``, ``png`` or ``pdf`` file."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "captum_iba", "pdf.fonttype": 42}):
        fig.savefig(content, format=kind, **_SAVE_OPTIONS[kind])
    return content.getvalue()


def svg(fig: Figure) -> str:
    """A figure as an ``<svg>`` element for a page, with text as text; the same for the same figure."""
    text = figure_bytes(fig, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def plot_tokens(attribution: Drawable, ax: Axes | None = None) -> tuple[Figure | SubFigure, Axes]:
    """One text as a token map: words on their color, special tokens dimmed, NaN and infinity hatched.

    Words run from left to right, whatever their script; in the HTML of :func:`token_map` a text runs in its own
    direction.

    Args:
        attribution (TextAttribution or Scores): Attribution to draw. Bits are colored from the floor, which a token
            ends with that is not needed; scores of other methods from 0, which is in the middle if they have signs.
        ax (matplotlib Axes, optional): Axes to draw on; lines are broken at its width. Default: None, a new figure as
            high as the text needs.

    Returns:
        tuple: Figure and axes.

    Raises:
        ModuleNotFoundError: matplotlib is missing.

    Examples::

        >>> fig, ax = plot_tokens(result)
        >>> [text.get_text() for text in ax.texts][:3]
        ['[CLS]', 'a', 'film']
    """
    drawn = token_parts(attribution)
    width = _WIDTH if ax is None else ax.get_window_extent().width / ax.figure.dpi * _POINTS
    lines = _lines(drawn.parts, width)
    height = len(lines) * _LINE_HEIGHT + _SCALE_HEIGHT
    figure, ax = axes_on(ax, (width + 12) / _POINTS, (height + 12) / _POINTS)
    # One unit is one point, unless the axes are too low for the text.
    available = ax.get_window_extent().height / figure.dpi * _POINTS
    ax.set(xlim=(0, width), ylim=(max(height, available), 0))
    ax.set_axis_off()
    for number, line in enumerate(lines):
        for part, left, wide in line:
            _draw_word(ax, part, left, wide, number * _LINE_HEIGHT, drawn)
    _draw_scale(ax, min(width, 200.0), len(lines) * _LINE_HEIGHT + 10, drawn.scale)
    return figure, ax


def plot_layers(attributions: Sequence[ExplainedText], ax: Axes | None = None) -> tuple[Figure | SubFigure, Axes]:
    """One short text at several layers: a row per layer, a column per word, as Figure 3 of Jiang et al. (2020).

    For long texts pass them to :func:`token_page` as ``layers``.

    Args:
        attributions (sequence of TextAttribution): Attributions of one text, one per layer, the first on top, on one
            scale.
        ax (matplotlib Axes, optional): Axes to draw on. Default: None, a new figure.

    Returns:
        tuple: Figure and axes.

    Raises:
        ValueError: No attributions, or those of different texts or classes.
        ModuleNotFoundError: matplotlib is missing.

    Examples::

        >>> fig, ax = plot_layers(layers)
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['1', '2']
    """
    columns = _columns(attributions, "attributions")
    figure, ax = axes_on(ax, _matrix_width(columns), _matrix_height(columns, len(attributions)))
    floor, scale = _floor_and_scale(attributions)
    _draw_matrix(ax, attributions, columns, scale, floor)
    _color_bar(figure, [ax], scale)
    return figure, ax


def plot_before_after(
    pairs: Sequence[tuple[ExplainedText, ExplainedText]],
) -> tuple[Figure, tuple[Axes, Axes]]:
    """One short text at several layers, side by side before and after the bottleneck, on one scale.

    Args:
        pairs (sequence of pairs of TextAttribution): Attributions of one text, one pair per layer: before
            (``n_steps=0``: the open mask) and after, as a row of :func:`captum_iba.text.explain_layers`.

    Returns:
        tuple: Figure, and the axes before and after.

    Raises:
        ValueError: No pairs, or those of different texts or classes.
        ModuleNotFoundError: matplotlib is missing.

    Examples::

        >>> fig, (before, after) = plot_before_after([(layers[0], layers[0]), (layers[1], layers[1])])
        >>> before.get_title(), after.get_title()
        ('before the bottleneck', 'after')
    """
    attributions = [attribution for pair in pairs for attribution in pair]
    columns = _columns(attributions, "pairs")
    figure = new_figure(2 * _matrix_width(columns) - 0.6, _matrix_height(columns, len(pairs)) + 0.3)
    left, right = figure.subplots(1, 2, sharey=True)
    floor, scale = _floor_and_scale(attributions)
    for ax, side, title in ((left, 0, "before the bottleneck"), (right, 1, "after")):
        _draw_matrix(ax, [pair[side] for pair in pairs], columns, scale, floor)
        ax.set_title(title, fontsize=_SIZE, color=INK)
    right.set_ylabel("")
    _color_bar(figure, [left, right], scale)
    return figure, (left, right)


def _lines(drawn: Sequence[Part], width: float) -> list[list[tuple[Part, float, float]]]:
    """Words with where they begin and how wide they are, in points, broken into lines."""
    lines: list[list[tuple[Part, float, float]]] = [[]]
    left = 0.0
    space = _text_width("n", _SIZE) * 0.6
    for part in drawn:
        if part.kind == "break" or (part.kind == "gap" and "\n" in part.text):
            lines.append([])
            left = 0.0
        elif part.kind == "gap":
            left += space if part.text.isspace() else 0.0
        elif part.kind == "special" and lines[-1]:
            left += 3
        if part.kind in ("break", "gap") and not part.text.strip():
            continue
        for piece in _split(part, width):
            wide = _text_width(piece.text, _font_size(piece)) + (2 if piece.kind == "gap" else 5)
            if left + wide > width and lines[-1]:
                lines.append([])
                left = 0.0
            lines[-1].append((piece, left, wide))
            left += wide + (3 if piece.kind == "special" else 0.5)
    return lines if lines[-1] else lines[:-1] or [[]]


def _split(part: Part, width: float) -> list[Part]:
    """A word that is longer than a line in pieces that are not."""
    text = part.text.strip() if part.kind == "gap" else part.text
    most = max(1, int(len(text) * (width - 5) / max(_text_width(text, _font_size(part)), 1.0)))
    if most >= len(text):
        return [part._replace(text=text)]
    return [part._replace(text=text[start : start + most]) for start in range(0, len(text), most)]


def _font_size(part: Part) -> float:
    return 0.75 * _SIZE if part.kind == "special" else _SIZE


def _text_width(text: str, size: float) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(width)


def _draw_word(ax: Axes, part: Part, left: float, wide: float, top: float, drawn: TokenMap) -> None:
    from matplotlib.patches import Rectangle

    filled, ink = "none", INK
    style: dict[str, Any] = {"edgecolor": "none"}
    level = drawn.level(part) if part.kind != "gap" else 0
    if level is None:
        style = {"edgecolor": SOFT, "hatch": "////", "linewidth": 0.6, "facecolor": "white"}
    elif level != 0:
        filled, ink = colors(drawn.scale)[level - drawn.scale.levels[0]]
    if part.kind == "special":
        ink = SOFT if level in (0, None) else ink
        style = {"edgecolor": LINE, "linestyle": "--", "linewidth": 0.6, **({"hatch": "////"} if level is None else {})}
    ax.add_patch(Rectangle((left, top + 2), wide, _LINE_HEIGHT - 4, **{"facecolor": filled, **style}))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85} if level is None else None
    ax.text(
        left + wide / 2,
        top + _LINE_HEIGHT / 2,
        part.text,
        size=_font_size(part),
        color=ink,
        ha="center",
        va="center_baseline",
        bbox=box,
        parse_math=False,
        in_layout=False,  # the axes have the size that the words need
    )


def _draw_scale(ax: Axes, width: float, top: float, scale: Scale) -> None:
    """The legend: a strip of the scale with its numbers, in points."""
    from matplotlib.patches import Rectangle

    shades = colors(scale)
    step = (width - 30) / len(shades)
    for number, (filled, _) in enumerate(shades):
        ax.add_patch(Rectangle((2 + number * step, top), step * 1.02, 8, facecolor=filled, edgecolor="none"))
    ax.add_patch(Rectangle((2, top), width - 30, 8, facecolor="none", edgecolor=LINE, linewidth=0.6))
    style: dict[str, Any] = {"size": 0.7 * _SIZE, "color": SOFT, "va": "top", "in_layout": False}
    for value, position in scale.ticks():
        side = "left" if position == 0 else "right" if position == 1 else "center"
        ax.text(2 + position * (width - 30), top + 10, format_number(value, "tick"), ha=side, **style)
    ax.text(width - 24, top + 10, scale.unit, ha="left", **style)


def _columns(attributions: Sequence[ExplainedText], name: str) -> list[Part]:
    """The words and special tokens that the columns are, the same for all."""
    if not attributions:
        raise ValueError(f"{name} is empty, expected at least one attribution")
    check_same_text(attributions, name)
    columns = [[part for part in parts(attribution) if part.has_value] for attribution in attributions]
    if len({tuple((part.text, part.kind) for part in row) for row in columns}) != 1:
        raise ValueError(f"{name} has attributions of different tokens, expected those of one tokenizer")
    return columns[0]


def _floor_and_scale(attributions: Sequence[ExplainedText]) -> tuple[float, Scale]:
    """One scale for all; the open mask's own floor is what it lets through, so the lowest counts."""
    floor = min(item.unneeded_bits for item in attributions)
    return floor, Scale(full_color(attributions, floor))


def _matrix_width(columns: Sequence[Part]) -> float:
    return 1.3 + max(2.4, 0.26 * len(columns))


def _matrix_height(columns: Sequence[Part], rows: int) -> float:
    longest = max(_text_width(part.text, 0.85 * _SIZE) for part in columns)
    return 0.9 + 0.24 * rows + longest / _POINTS


def _draw_matrix(ax: Axes, rows: Sequence[ExplainedText], columns: Sequence[Part], scale: Scale, floor: float) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    values = [[part.depth for part in parts(row, floor) if part.has_value] for row in rows]
    positions = [[math.nan if (p := scale.position(value)) is None else p for value in row] for row in values]
    shades = ListedColormap([filled for filled, _ in colors(scale)]).with_extremes(bad="white")
    ax.imshow(positions, cmap=shades, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    for y, row in enumerate(positions):
        for x, position in enumerate(row):
            if math.isnan(position):
                ax.add_patch(
                    Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="white", edgecolor=SOFT, hatch="////", linewidth=0.0)
                )
    ax.set_xticks(range(len(columns)), [part.text for part in columns], rotation=90, fontsize=0.85 * _SIZE)
    for label, part in zip(ax.get_xticklabels(), columns, strict=True):
        label.set_parse_math(False)
        label.set_color(SOFT if part.kind == "special" else INK)
        label.set_alpha(0.7 if part.kind == "special" else 1.0)
    names = layer_names(rows)
    ax.set_yticks(range(len(rows)), names, fontsize=0.85 * _SIZE)
    ax.set_ylabel("layer")
    ax.tick_params(length=0)
    ax.set_xticks([x + 0.5 for x in range(len(columns) - 1)], minor=True)
    ax.set_yticks([y + 0.5 for y in range(len(rows) - 1)], minor=True)
    ax.grid(which="minor", color="white", linewidth=1.0)
    ax.tick_params(which="minor", length=0)
    ax.spines[:].set_color(LINE)


def _color_bar(figure: Any, axes: Sequence[Axes], scale: Scale) -> None:
    """The legend: a strip of the scale below the axes, with its numbers."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    shades = ListedColormap([filled for filled, _ in colors(scale)])
    bar = figure.colorbar(
        ScalarMappable(Normalize(0.0, 1.0), shades),
        ax=list(axes),
        orientation="horizontal",
        fraction=0.05,
        aspect=45,
        shrink=0.6,
        pad=0.02,
        label=scale.unit,
    )
    values, positions = zip(*scale.ticks(), strict=True)
    bar.set_ticks(positions, labels=[format_number(value, "tick") for value in values])
    bar.ax.tick_params(length=2, labelsize=0.75 * _SIZE, color=LINE, labelcolor=SOFT)
    bar.set_label(scale.unit, size=0.75 * _SIZE, color=SOFT)
    bar.outline.set_edgecolor(LINE)
