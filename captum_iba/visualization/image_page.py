"""Pages of image attributions: the image, its heat map, and the regions that the decision needs most."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from captum_iba._reading.check_sentences import summary
from captum_iba._reading.image_sentences import decision
from captum_iba._reading.legend import merged_legend
from captum_iba._reading.rows import is_in_turn
from captum_iba._reading.thresholds import SAME, fraction_left
from captum_iba._reading.wording import capitalized, in_points
from captum_iba.visualization.color import Scale
from captum_iba.visualization.html import Html, render_template
from captum_iba.visualization.image_figures import (
    DrawableImage,
    Pixels,
    color_bar,
    heat_over_image,
    leading_regions,
    map_title,
    removal_map,
)

_SMALLEST = 224  # pixels of a side below which a small image is enlarged


def image_page(attributions: Sequence[DrawableImage], title: str | None = None, introduction: str = "") -> str:
    """A self-contained page of explained images, without a script.

    Args:
        attributions (sequence of ImageAttribution): Attributions.
        title (str, optional): Title of the page. Default: a question with the class.
        introduction (str): A sentence above the images. Default: none.

    Returns:
        str: HTML.

    Raises:
        ValueError: No attributions.

    Examples::

        >>> image_page([explained]).count("<figure>")
        3
    """
    if not attributions:
        raise ValueError("attributions is empty, expected at least one")
    if title is None:
        labels = {item.target_label for item in attributions}
        title = f"Why {labels.pop()}?" if len(labels) == 1 else "Why these decisions?"
    return render_template(
        "image.html.jinja",
        title=title,
        sorting=None,
        drawn=[_drawn(item) for item in attributions],
        scale=Scale(1.0),
        introduction=introduction,
        summary=summary([item.checked for item in attributions]),
        legend=merged_legend(item.legend() for item in attributions),
    )


def image_map(attribution: DrawableImage) -> Html:
    """Image and heat map as a piece of HTML, as a notebook shows it.

    Args:
        attribution (ImageAttribution): Attribution to draw.

    Returns:
        Html: A string: an element with its own style.

    Examples::

        >>> image_map(explained).count("<img")
        3
    """
    return Html(render_template("notebook_image.html.jinja", one=_drawn(attribution)))


def _says_something(attribution: DrawableImage) -> bool:
    """Whether the leading regions are drawn alone: not where the probability is small or hardly falls without them."""
    check = attribution.check
    return not attribution.is_improbable and (check is None or fraction_left(check) <= SAME)


def _drawn(attribution: DrawableImage) -> dict[str, Any]:
    height, width = attribution.regions.shape
    scale = max(1, -(-_SMALLEST // max(height, width)))
    return {
        "item": attribution,
        "decision": decision(attribution).removeprefix(attribution.target_label),
        "width": width * scale,
        "height": height * scale,
        "image": _data(attribution.image),
        "heat": _data(heat_over_image(attribution)),
        "by_removal": removal_map(attribution) is not None,
        "bar": "" if (bar := color_bar(attribution)) is None else _data(bar[0]),
        "bar_end": "" if bar is None else in_points(bar[1]),
        "image_title": f"The image, as the model saw it{_resized(attribution)}",
        "map_title": capitalized(map_title(attribution)),
        "top": _data(leading_regions(attribution)) if _says_something(attribution) else "",
        "in_turn": is_in_turn(attribution.rows),
        "pale": attribution.is_pale,
        "bar_meaning": attribution.legend().get("bar", ""),
        "rows": attribution.rows,
        "numbers": [_center(attribution, row.number) for row in (*attribution.rows, *attribution.other_rows)],
        "others": attribution.other_rows,
    }


def _center(attribution: DrawableImage, region: int) -> tuple[int, int]:
    """Where the number of a region stands in the picture, in percent from the left and the top."""
    rows, columns = np.nonzero(attribution.regions == region)
    height, width = attribution.regions.shape
    return round(100 * (columns.mean() + 0.5) / width), round(100 * (rows.mean() + 0.5) / height)


def _resized(attribution: DrawableImage) -> str:
    """The size of the image before the transform, where that is another than that of the model's input."""
    original, (height, width) = attribution.original_size, attribution.regions.shape
    if original is None or original == (height, width):
        return ""
    return f": {width} x {height} pixels (before the transform {original[1]} wide and {original[0]} high)"


def _data(pixels: Pixels) -> str:
    """An image as the address of its own content."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
