"""Heat maps of images: as pixels, and as a figure (which needs ``captum-iba[plot]``)."""

# ruff: noqa: D102 - the properties of the protocol are documented where they are implemented

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from captum_iba._reading.check_sentences import CheckSentences
from captum_iba._reading.image_sentences import decision
from captum_iba._reading.protocols import ExplainedImage
from captum_iba._reading.region_effects import is_of_mean_color, largest_decrease, lowering, opposing
from captum_iba._reading.rows import ListedPart
from captum_iba._reading.thresholds import LARGE_DROP
from captum_iba._reading.wording import in_points
from captum_iba.visualization.color import LEVELS, palette
from captum_iba.visualization.figures import new_figure

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
    def original_size(self) -> tuple[int, int] | None: ...
    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def checked(self) -> CheckSentences | None: ...
    @property
    def is_pale(self) -> bool: ...
    def legend(self, details: bool = False) -> dict[str, str]: ...
    @property
    def provenance(self) -> Any: ...
    @property
    def rows(self) -> list[ListedPart]: ...
    @property
    def other_rows(self) -> list[ListedPart]: ...
    def top_mask(self, count: int | None = None) -> npt.NDArray[np.bool_]: ...
    def headline(self) -> str: ...
    def setting(self) -> str: ...
    @property
    def answer(self) -> str: ...


Pixels = npt.NDArray[np.uint8]

_GREY = np.array([0.299, 0.587, 0.114])  # luma, ITU-R BT.601
_OPACITY = 0.7
_OUTLIERS = 98.0
_PALE = 0.4  # brightness of the bits of a class that the model rules out, and of removals that are a poor test
_KEY = 70  # characters of a line below a figure


def heat_positions(heat_map: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A map from 0 to 1: relative to its 98th percentile, as Captum's figures are, so that a few pixels do not hide all
    others; to its largest value where that percentile is 0."""
    top = np.percentile(heat_map, _OUTLIERS)
    top = top if top > 0 else heat_map.max()
    positions: npt.NDArray[np.float64] = np.clip(heat_map / top, 0.0, 1.0) if top > 0 else np.zeros_like(heat_map)
    return positions


def removal_map(attribution: DrawableImage) -> npt.NDArray[np.float64] | None:
    """
    What the removal of each region does, as a map that is drawn.

    It is the decrease in the probability without the region alone. Of a leading region it is the decrease without it
    where the other leading ones are removed, too, if that is larger. 1 is the largest decrease, at least 0.1. Of a
    region that may speak against the class it is the increase, as a negative number, relative to the largest increase
    or decrease.

    Args:
        attribution (ImageAttribution): Attribution to draw.

    Returns:
        array or None: Values from -1 to 1, (H, W). None if no check removed each region alone.

    Examples::

        >>> removal_map(explained) is None
        True
    """
    check = attribution.check
    if check is None or not check.without_each:
        return None
    is_opposing = np.isin(np.arange(attribution.n_regions), opposing(check))
    decreases = np.where(is_opposing, check.decreases, check.decreases.clip(0))
    largest = largest_decrease(check)
    of_region: npt.NDArray[np.float64] = decreases / np.where(decreases < 0, max(-decreases.min(), largest), largest)
    return of_region[attribution.regions]


def heat_over_image(attribution: DrawableImage) -> Pixels:
    """The map of an attribution over the grey image, (H, W, 3), 8-bit: from dark, not needed, to pale yellow.

    With a check that removed each region alone it is :func:`removal_map`, else the heat map.
    """
    positions = removal_map(attribution)
    if positions is None:
        positions = heat_positions(attribution.heat_map) * (_PALE if attribution.is_improbable else 1.0)
    # What speaks against the class is seen, however small it is beside the largest decrease.
    positions = np.where(positions < 0, (positions - 1) / 2, positions)
    if _is_muted(attribution):
        positions = _PALE * positions
    levels = (LEVELS * positions).round().astype(int)
    against, needed = _shades("dark against")[-levels.clip(max=0)], _shades("dark")[levels.clip(0)]
    colors = np.where(levels[..., None] < 0, against, needed)
    grey = (attribution.image @ _GREY)[..., None]
    mixed: Pixels = (_OPACITY * colors + (1 - _OPACITY) * grey).round().astype(np.uint8)
    return mixed


def _is_muted(attribution: DrawableImage) -> bool:
    """Whether removals are drawn dark: they leave the mean color, which has the class, too, or most regions lead."""
    check = attribution.check
    if check is None:
        return False
    return is_of_mean_color(check.probability, check.without_all) or _most_lead(attribution)


def _most_lead(attribution: DrawableImage) -> bool:
    return 2 * len(attribution.leading) > attribution.n_regions > 1


def _shades(name: str) -> npt.NDArray[np.float64]:
    return np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color, _ in palette(name)], dtype=float)


def color_bar(attribution: DrawableImage) -> tuple[Pixels, float] | None:
    """The colors of :func:`removal_map` from 0 on, (1, levels, 3), and the largest decrease; None without one."""
    check = attribution.check
    if check is None or removal_map(attribution) is None or _is_muted(attribution):
        return None
    return _shades("dark")[None].astype(np.uint8), largest_decrease(check)


def map_title(attribution: DrawableImage) -> str:
    """What the colors of :func:`heat_over_image` say."""
    drawn, check = removal_map(attribution), attribution.check
    if drawn is None or check is None:
        return "dark: there is little to explain" if attribution.is_improbable else "pale yellow: needed most"
    largest, rises = check.decreases.max(), max(check.without_each) - check.probability
    several = ", alone or after the other leading regions" * bool(check.without_others)
    said = f"pale yellow: without it the probability falls by {in_points(largest)}{several}"
    if not check.changes_pixels:
        said = "drawn dark, because the removal of the region with the most bits changes no pixel"
    elif _is_muted(attribution):
        dark = "drawn dark, because the mean color, which removed regions get, is evidence for the class"
        if not is_of_mean_color(check.probability, check.without_all):
            dark = "drawn dark, because most regions lead"
        said = f"{dark}: without the palest region the probability falls by at most {in_points(largest)}{several}"
    elif largest < LARGE_DROP:
        said = f"no region lowers the probability by more than {in_points(largest)}{several}"
    return said + f"; purple: without it the probability rises, by up to {in_points(rises)}" * bool(drawn.min() < 0)


def leading_regions(attribution: DrawableImage, count: int | None = None) -> Pixels:
    """The image with its most important regions alone, the others in a pale grey, (H, W, 3), 8-bit."""
    pale = (230 + 0.1 * (attribution.image @ _GREY - 230))[..., None]
    mask = attribution.top_mask(count)[..., None]
    shown: Pixels = np.where(mask, attribution.image, pale).round().astype(np.uint8)
    return shown


def plot_image(
    attribution: DrawableImage, ax: Axes | None = None, count: int | None = None
) -> tuple[Figure | SubFigure, Axes]:
    """The map over the image, as pages draw it, with the outlines of the most important regions.

    Args:
        attribution (ImageAttribution): Attribution to draw.
        ax (matplotlib.axes.Axes, optional): Axes to draw on. Default: those of a new figure, beside the image itself,
            and with a color bar where the map is of removals.
        count (int, optional): Number of regions that are outlined. Default: the leading ones.

    Returns:
        tuple: Figure and axes.

    Examples::

        >>> fig, ax = plot_image(explained)
        >>> ax.get_title()
        'dog 90.0% · confirmed'
    """
    height, width = attribution.regions.shape
    lines = [line for said in map_title(attribution).split("; ") for line in textwrap.wrap(said, _KEY)]
    bar = None
    if ax is None:
        bar = color_bar(attribution)
        figure = new_figure(8.0 + 0.7 * (bar is not None), 4.0 * height / width + 0.5 + 0.13 * len(lines))
        whole, ax = figure.subplots(1, 2)
        whole.imshow(attribution.image, interpolation="nearest")
        whole.set_title("the image, as the model saw it", fontsize=10)
        whole.set_axis_off()
    fig = ax.figure
    if bar is not None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize

        colors = ScalarMappable(Normalize(0, 100 * bar[1]), ListedColormap(bar[0][0] / 255))
        fig.colorbar(colors, ax=ax, fraction=0.046, pad=0.03).set_label("decrease without it, points", fontsize=7)
    ax.imshow(heat_over_image(attribution), interpolation="nearest")
    mask = attribution.top_mask(count)
    is_idle = attribution.check is not None and not attribution.check.changes_pixels
    outlined = mask.any() and not mask.all() and not attribution.is_improbable and not is_idle
    if outlined:
        _outline(ax, np.where(mask, attribution.regions, -1))
        _number(ax, attribution, range(len(attribution.leading)) if count is None else [])
    ax.set_title(_title(attribution), fontsize=10, parse_math=False)
    key = "outlined, in this order: leading regions" if count is None and outlined else ""
    ax.set_xlabel("\n".join(filter(None, [*lines, key])), fontsize=6.5)
    ax.set_xticks([])
    ax.set_yticks([])
    return fig, ax


def _outline(ax: Axes, numbers: npt.NDArray[np.int64]) -> None:
    """Lines between pixels of different numbers: a contour would cut corners."""
    for row, column in np.argwhere(numbers[:, 1:] != numbers[:, :-1]):
        ax.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color="white", linewidth=1.2)
    for row, column in np.argwhere(numbers[1:] != numbers[:-1]):
        ax.plot([column - 0.5, column + 0.5], [row + 0.5] * 2, color="white", linewidth=1.2)


def _number(ax: Axes, attribution: DrawableImage, places: Sequence[int]) -> None:
    """The place of each leading region in their order, in its center."""
    box: dict[str, Any] = {"boxstyle": "round,pad=0.2", "facecolor": "black", "edgecolor": "none", "alpha": 0.7}
    for place in places:
        rows, columns = np.nonzero(attribution.regions == attribution.leading[place])
        where: dict[str, Any] = {"ha": "center", "va": "center", "color": "white", "fontsize": 7, "bbox": box}
        ax.text(float(columns.mean()), float(rows.mean()), str(place + 1), **where)


def _title(attribution: DrawableImage) -> str:
    """The decision, and what the check says of it."""
    title, said = decision(attribution), ""
    if attribution.is_improbable:
        said = "little to explain"
    elif attribution.check is not None:
        others = len(lowering(attribution, attribution.check))
        also = f", {others} other{'s' * (others > 1)} alone, too" * bool(others and attribution.verdict)
        said = f"{attribution.verdict or 'no verdict'}{also}"
    between = " · " if len(title) + len(said) < _KEY // 2 else "\n"
    return between.join(filter(None, [title, said]))
