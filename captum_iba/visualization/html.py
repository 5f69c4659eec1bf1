"""Attributions as HTML: inline styles, no script, nothing fetched. Every text is escaped by jinja2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from captum_iba.visualization.colour import LEVELS, palette, ticks
from captum_iba.visualization.pieces import draw, full_colour, say, say_short

if TYPE_CHECKING:
    from captum_iba.text import TextAttribution


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("captum_iba.visualization"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(say=say, say_short=say_short)
    environment.globals.update(ticks=ticks, light=palette(), dark=palette("dark"), levels=LEVELS)
    return environment


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def token_map(attribution: TextAttribution) -> str:
    """One coloured text as a piece of HTML, as a notebook shows it.

    Args:
        attribution (TextAttribution): What to draw.

    Returns:
        str: an element with its own style.
    """
    most = full_colour([attribution])
    return _render("notebook.html.jinja", item=attribution, map=draw(attribution, most), most=most)


def token_page(attributions: Sequence[TextAttribution], title: str = "Bits per word") -> str:
    """A self-contained page: every text coloured, with its words and their bits below.

    Args:
        attributions (sequence of TextAttribution): Texts, each drawn on a scale of its own.
        title (str): Title of the page. Default: ``"Bits per word"``.

    Returns:
        str: an HTML document.

    Raises:
        ValueError: There is no attribution.
    """
    if not attributions:
        raise ValueError("attributions: expected at least one, got none.")
    texts = []
    for item in attributions:
        most = full_colour([item])
        texts.append({"item": item, "map": draw(item, most), "most": most, "rows": _ranked(item)})
    return _render("tokens.html.jinja", title=title, texts=texts)


def layer_page(
    texts: Sequence[Sequence[tuple[TextAttribution, TextAttribution]]],
    title: str = "Where the information is, layer by layer",
    introduction: str = "",
) -> str:
    """A self-contained page: for every text a table of layers, before and after the bottleneck.

    Args:
        texts (sequence): For every text a sequence of layers, each a pair of attributions: before
            (``n_steps=0``: the open mask) and after. All maps share one scale; bars compare the totals after.
        title (str): Title of the page.
        introduction (str): A sentence above the texts, of what they are. Default: none.

    Returns:
        str: an HTML document.

    Raises:
        ValueError: There is no text, or one has no layer.
    """
    if not texts or not all(texts):
        raise ValueError("texts: expected at least one text with at least one layer.")
    most = full_colour([item for layers in texts for pair in layers for item in pair])
    sections = []
    for layers in texts:
        rows = [
            {"item": after, "before": draw(before, most), "after": draw(after, most), "kept": _share(before, after)}
            for before, after in layers
        ]
        totals = [after.total_bits for _, after in layers if math.isfinite(after.total_bits)]
        sections.append({"item": layers[0][1], "rows": rows, "longest": max(totals, default=0.0)})
    return _render("layers.html.jinja", title=title, introduction=introduction, sections=sections, most=most)


def _share(before: TextAttribution, after: TextAttribution) -> str:
    if not (math.isfinite(before.total_bits) and math.isfinite(after.total_bits)) or before.total_bits <= 0:
        return "n/a"
    share = after.total_bits / before.total_bits
    return f"{share:.1%}" if share >= 0.0005 or share == 0 else "less than 0.1%"


def _ranked(attribution: TextAttribution) -> list[dict[str, Any]]:
    """The words, most bits first, with the share of the longest bar; those without a number last."""
    words = [word for word in attribution.words if math.isfinite(word.bits)]
    strange = [word for word in attribution.words if not math.isfinite(word.bits)]
    most = max((word.bits for word in words), default=0.0)
    rows = [
        {"word": word, "share": max(0.0, word.bits / most) if most > 0 else 0.0}
        for word in sorted(words, key=lambda word: -word.bits)
    ]
    return rows + [{"word": word, "share": 0.0} for word in strange]
