"""Heat maps of images: as pixels, and as a figure (which needs ``captum-iba[plot]``)."""

# ruff: noqa: D102 - the properties of the protocol are documented where they are implemented

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from captum_iba.visualization.color import LEVELS, palette
from captum_iba.visualization.figures import axes_on
from captum_iba.visualization.image_sentences import ExplainedImage
from captum_iba.visualization.pieces import format_probability
from captum_iba.visualization.rows import ListedPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


class DrawableImage(ExplainedImage, Protocol):
    """What figures and pages draw of a :class:`captum_iba.vision.ImageAttribution`."""

    @property
    def image(self) -> npt.NDArray[np.uint8]: ...
    @property
    def heat_map(self) -> npt.NDArray[np.float64]: ...
    @property
    def regions(self) -> npt.NDArray[np.int64]: ...
    @property
    def region_shares(self) -> npt.NDArray[np.float64]: ...
    @property
    def name(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def provenance(self) -> Any: ...
    @property
    def rows(self) -> list[ListedPart]: ...
    def top_mask(self, count: int | None = None) -> npt.NDArray[np.bool_]: ...
    def headline(self) -> str: ...
    def setting(self) -> str: ...
    def answer(self) -> str: ...
    def check_sentence(self) -> str: ...


Pixels = npt.NDArray[np.uint8]

_GREY = np.array([0.299, 0.587, 0.114])  # luma, ITU-R BT.601
_OPACITY = 0.7
_OUTLIERS = 98.0


def heat_positions(heat_map: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A map from 0 to 1: relative to its 98th percentile, as Captum's figures are, so that a few pixels do not hide all
    others; to its largest value where that percentile is 0."""
    top = np.percentile(heat_map, _OUTLIERS)
    top = top if top > 0 else heat_map.max()
    positions: npt.NDArray[np.float64] = np.clip(heat_map / top, 0.0, 1.0) if top > 0 else np.zeros_like(heat_map)
    return positions


def heat_over_image(attribution: DrawableImage) -> Pixels:
    """The heat map over the grey image, (H, W, 3), 8-bit: from dark, not needed, to pale yellow, most needed."""
    shades = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color, _ in palette("dark")], dtype=float)
    levels = (LEVELS * heat_positions(attribution.heat_map)).round().astype(int)
    grey = (attribution.image @ _GREY)[..., None]
    mixed: Pixels = (_OPACITY * shades[levels] + (1 - _OPACITY) * grey).round().astype(np.uint8)
    return mixed


def leading_regions(attribution: DrawableImage, count: int | None = None) -> Pixels:
    """The image with its most important regions alone, the others in a pale grey, (H, W, 3), 8-bit."""
    pale = (230 + 0.1 * (attribution.image @ _GREY - 230))[..., None]
    mask = attribution.top_mask(count)[..., None]
    shown: Pixels = np.where(mask, attribution.image, pale).round().astype(np.uint8)
    return shown


def plot_image(
    attribution: DrawableImage, ax: Axes | None = None, count: int | None = None
) -> tuple[Figure | SubFigure, Axes]:
    """The heat map over the image, with the outline of the most important regions.

    Args:
        attribution (ImageAttribution): Attribution to draw.
        ax (matplotlib.axes.Axes, optional): Axes to draw on. Default: those of a new figure.
        count (int, optional): Number of regions that are outlined. Default: the leading ones.

    Returns:
        tuple: Figure and axes.

    Examples::

        >>> fig, ax = plot_image(explained)
        >>> ax.get_title()
        'dog 90.0%'
    """
    height, width = attribution.regions.shape
    fig, ax = axes_on(ax, 4.0, 4.0 * height / width + 0.4)
    ax.imshow(heat_over_image(attribution), interpolation="nearest")
    mask = attribution.top_mask(count)
    if mask.any() and not mask.all():
        # Lines between pixels: a contour of the mask would cut corners.
        for row, column in np.argwhere(mask[:, 1:] != mask[:, :-1]):
            ax.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color="white", linewidth=1.2)
        for row, column in np.argwhere(mask[1:] != mask[:-1]):
            ax.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color="white", linewidth=1.2)
    chance = format_probability(attribution.target_probability)
    ax.set_title(f"{attribution.target_label} {chance}", fontsize=10, parse_math=False)
    ax.set_xticks([])
    ax.set_yticks([])
    return fig, ax
