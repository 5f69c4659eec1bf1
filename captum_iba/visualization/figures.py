"""What all figures share: where they are drawn, and how they are saved (needs ``captum-iba[plot]``)."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FORMATS = ("svg", "png", "pdf")

INK, SOFT, LINE = "#1c1f24", "#5b636e", "#d8dde3"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches.

    Raises:
        ModuleNotFoundError: matplotlib is missing; says what to install.
    """
    try:
        from captum_iba.visualization.notebook_figure import NotebookFigure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"figures need {error.name}: pip install 'captum-iba[plot]'", name=error.name
        ) from error
    return NotebookFigure(figsize=(width, height), layout="constrained")


def axes_on(ax: Axes | None, width: float, height: float) -> tuple[Figure | SubFigure, Axes]:
    """The axes that were given with their figure, or those of a new figure of this size, in inches."""
    if ax is not None:
        return ax.figure, ax
    figure = new_figure(width, height)
    return figure, figure.add_subplot()


def plain_axes(ax: Axes) -> None:
    """Only what is read: no frame above and to the right, and a faint grid below the lines."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    ax.set_axisbelow(True)


def save_figure(fig: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure to a file, whole or not at all.

    With the same fonts and version of matplotlib the same figure gives the same bytes: no date is written, and names
    inside an SVG are not random. Text stays text in SVG and PDF, so it can be searched and copied.

    Args:
        fig (matplotlib.figure.Figure): What to write.
        path (path): Where to; its suffix says the format: ``.svg``, ``.png`` (200 dots an inch) or ``.pdf``.

    Returns:
        Path: where it lies.

    Raises:
        ValueError: Another suffix.
        OSError: The folder is missing, or the disk is full.

    Examples::

        >>> fig, ax = plot_tokens(result)
        >>> save_figure(fig, "film.svg")
    """
    from captum_iba._files import write_bytes

    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise ValueError(f"path: expected a name that ends in .svg, .png or .pdf, got {os.fspath(path)!r}.")
    return write_bytes(path, figure_bytes(fig, suffix))


def figure_bytes(fig: Figure, kind: str) -> bytes:
    """A figure as the content of a file; ``kind`` is one of :data:`FORMATS`."""
    from matplotlib import rc_context

    options: dict[str, dict[str, Any]] = {
        "svg": {"metadata": {"Date": None}, "transparent": True},
        "pdf": {"metadata": {"CreationDate": None}},
        "png": {"dpi": 200, "facecolor": "white"},
    }
    content = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "captum_iba", "pdf.fonttype": 42}):
        fig.savefig(content, format=kind, **options[kind])
    return content.getvalue()


def svg(fig: Figure) -> str:
    """A figure as an ``<svg>`` element for a page, with text as text; the same for the same figure."""
    text = figure_bytes(fig, "svg").decode("utf-8")
    return text[text.index("<svg") :]
