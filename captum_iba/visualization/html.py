"""Attributions as self-contained HTML: inline styles, nothing fetched. Every text is escaped by jinja2."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from captum_iba.visualization.colour import Scale, colour_class, colours
from captum_iba.visualization.pieces import (
    Drawable,
    DrawableBits,
    DrawableScores,
    check_same_text,
    format_number,
    full_colour,
    is_scores,
    token_parts,
    visible,
)

if TYPE_CHECKING:
    from captum.attr._utils.visualization import VisualizationDataRecord
    from jinja2 import Environment
    from markupsafe import Markup

Labels = Sequence[str] | Mapping[int, str]
"""Names of classes by their number."""

_TOP_WORDS = 3


class Html(str):
    """A piece of HTML that a notebook draws.

    Examples::

        >>> Html("<b>a film</b>")._repr_html_()
        '<b>a film</b>'
    """

    def _repr_html_(self) -> str:
        return str(self)


@cache
def _environment(package: str) -> Environment:
    # Not at the top: figures do without jinja2.
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, __package__))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=format_number, visible=visible, sortable=_sortable, colour_class=colour_class)
    environment.globals.update(colour_rules=colour_rules)
    return environment


def render_template(template: str, package: str = "captum_iba.visualization", **values: Any) -> str:
    """A template of a package as HTML, with texts escaped; it may include and extend those of this package."""
    return _environment(package).get_template(template).render(**values)


def colour_rules(background: str) -> str:
    """Rules of the style sheet for every step of both scales, on a ``"light"`` or ``"dark"`` page."""
    return "\n".join(
        f".iba .{colour_class(step, scale.signed)} {{ background: {filled}; color: {ink}; }}"
        for scale in (Scale(1.0), Scale(1.0, signed=True))
        for step, (filled, ink) in zip(scale.levels, colours(scale, background), strict=True)
    )


class Sorting(NamedTuple):
    """The script of a page, which sorts a table by the column whose head is pressed, and its SHA-256 in base 64.

    By the digest a content security policy lets this script run, and nothing else.
    """

    script: Markup
    digest: str


@cache
def sorting() -> Sorting:
    """The script that sorts tables: a button in each head, ``data-first`` there and ``data-value`` in each cell."""
    from markupsafe import Markup

    script = (files("captum_iba.visualization") / "templates" / "sort.js").read_text(encoding="utf-8")
    return Sorting(Markup(script), base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())


def token_map(attribution: Drawable) -> Html:
    """One coloured text as a piece of HTML, as a notebook shows it.

    Args:
        attribution (TextAttribution or Scores): Attribution to draw. Bits are on the sequential, logarithmic scale; the
            scores of other methods on a linear one, with 0 in the middle if they have signs.

    Returns:
        Html: A string: an element with its own style.

    Examples::

        >>> html = token_map(result)  # drawn where it is the last line of a notebook cell
        >>> html.count('class="w ')
        2
    """
    item, method = (None, attribution.method) if is_scores(attribution) else (attribution, "")
    return Html(render_template("notebook.html.jinja", item=item, method=method, map=token_parts(attribution)))


def token_page(attributions: Sequence[DrawableBits], title: str = "Bits per word") -> str:
    """A self-contained page: every text coloured, with its words and their bits.

    Several texts are a table, to be sorted by class, probability or bits.

    Args:
        attributions (sequence of TextAttribution): Attributions, all drawn on one scale.
        title (str): Title of the page. Default: ``"Bits per word"``.

    Returns:
        str: An HTML document.

    Raises:
        ValueError: No attributions.

    Examples::

        >>> page = token_page([result], title="One film")
        >>> page.startswith("<!DOCTYPE html>"), "One film" in page
        (True, True)
    """
    if not attributions:
        raise ValueError("attributions is empty, expected at least one attribution")
    scale = Scale(full_colour(attributions))
    texts = [{"item": item, "map": token_parts(item, scale), "rows": _ranked(item)} for item in attributions]
    return render_template(
        "tokens.html.jinja",
        title=title,
        texts=texts,
        colours=scale,
        shared=len({(item.layer_label, item.preset, item.statistics) for item in attributions}) == 1,
        sorting=sorting() if len(texts) > 1 else None,
    )


def layer_page(
    texts: Sequence[Sequence[tuple[DrawableBits, DrawableBits]]],
    title: str = "Where the information is, layer by layer",
    introduction: str = "",
    methods: Sequence[Sequence[DrawableScores]] | None = None,
) -> str:
    """A self-contained page: a table of the texts, and for every text its layers before and after the bottleneck.

    A reader can sort the table, and select one layer, before or after, and methods.

    Args:
        texts (sequence): For every text a sequence of layers, each a pair of attributions: before
            (``n_steps=0``: the open mask) and after. All maps are on one scale; bars compare the totals after.
        title (str): Title of the page.
        introduction (str): A sentence above the texts that describes them. Default: none.
        methods (sequence, optional): For every text the Scores of other methods, drawn below its layers.
            Default: None.

    Returns:
        str: An HTML document.

    Raises:
        ValueError: No texts, a text without layers, layers of several texts or classes in one entry, or ``methods``
            for other texts or classes.

    Examples::

        >>> page = layer_page([[(layers[0], layers[0]), (layers[1], layers[1])]])
        >>> page.startswith("<!DOCTYPE html>")
        True
    """
    if not texts or not all(texts):
        raise ValueError("texts has no text or one without layers, expected at least one text with at least one layer")
    for i, layers in enumerate(texts):
        check_same_text([item for pair in layers for item in pair], f"texts[{i}]")
    explained = [(layers[0][1].text, layers[0][1].pair) for layers in texts]
    if methods is not None:
        scored = [(scores[0].encoded.text, scores[0].encoded.pair) if scores else None for scores in methods]
        if explained != scored:
            raise ValueError("methods has scores of other texts, expected those of the same texts in the same order")
        targets = [layers[0][1].target for layers in texts]
        if targets != (scored_targets := [scores[0].target for scores in methods]):
            raise ValueError(f"methods has scores of the classes {scored_targets}, expected those of {targets}")
    scale = Scale(full_colour([item for layers in texts for pair in layers for item in pair]))
    totals = [after.total_bits for layers in texts for _, after in layers]
    heights = Scale(max([1.0, *filter(math.isfinite, totals)]))
    names = list(dict.fromkeys(_layer_name(after) for layers in texts for _, after in layers))
    others = {"methods": [], "signed": False} if methods is None else _methods(methods, None)
    return render_template(
        "layers.html.jinja",
        title=title,
        introduction=introduction,
        sections=[_layer_section(layers, scale, heights, names) for layers in texts],
        names=names,
        colours=scale,
        sorting=sorting(),
        **others,
    )


def _layer_section(
    layers: Sequence[tuple[DrawableBits, DrawableBits]], scale: Scale, heights: Scale, names: Sequence[str]
) -> dict[str, Any]:
    totals = [after.total_bits for _, after in layers]
    known = [total for total in totals if math.isfinite(total)]
    rows = [
        {
            "number": names.index(_layer_name(after)),
            "item": after,
            "before": token_parts(before, scale),
            "after": token_parts(after, scale),
            "remaining": _remaining(before, after),
            "height": heights.position(after.total_bits) or 0.0,
        }
        for before, after in layers
    ]
    return {
        "item": layers[0][1],
        "rows": rows,
        "longest": max(known, default=0.0),
        "sum": math.fsum(known) if len(known) == len(totals) else math.nan,
        "top": _most_needed([after for _, after in layers]),
    }


def _layer_name(attribution: DrawableBits) -> str:
    return attribution.layer if attribution.layer_index is None else str(attribution.layer_index)


def _most_needed(layers: Sequence[DrawableBits]) -> list[str]:
    """The words with most bits over all layers, at most :data:`_TOP_WORDS`; none with less than a bit."""
    words = layers[0].words
    sums = [math.fsum(bits) for bits in zip(*([word.bits for word in layer.words] for layer in layers), strict=True)]
    ranked = sorted((i for i, total in enumerate(sums) if math.isfinite(total) and total >= 1), key=lambda i: -sums[i])
    return [visible(words[i].word) for i in ranked[:_TOP_WORDS]]


def method_map(scores: Sequence[DrawableScores], labels: Labels | None = None) -> Html:
    """One text coloured by several methods, one below the other, as a notebook shows it.

    Args:
        scores (sequence of Scores): Scores of one text, one entry per method.
        labels (sequence or mapping, optional): Names of the classes by their number. Default: None, the number.

    Returns:
        Html: A string: an element with its own style.

    Raises:
        ValueError: No scores, or scores of different texts.

    Examples::

        >>> html = method_map([scores], labels=["negative", "positive"])
        >>> "positive" in html
        True
    """
    values = _methods([scores], labels)
    return Html(render_template("notebook_methods.html.jinja", text=values["texts"][0], **values))


def method_page(
    texts: Sequence[Sequence[DrawableScores]],
    title: str = "Methods side by side",
    introduction: str = "",
    labels: Labels | None = None,
) -> str:
    """A self-contained page: every text coloured by several methods, which a reader can select.

    Methods with signs are on a scale with 0 in the middle, the others on a sequential one. Each line is relative to
    its own largest word, for methods have no unit in common.

    Args:
        texts (sequence): For every text a sequence of Scores, one per method.
        title (str): Title of the page. Default: ``"Methods side by side"``.
        introduction (str): A sentence above the texts that describes them. Default: none.
        labels (sequence or mapping, optional): Names of the classes by their number. Default: None, the number.

    Returns:
        str: An HTML document.

    Raises:
        ValueError: No texts, a text without scores, or in one entry several texts or classes, or a method twice.

    Examples::

        >>> page = method_page([[scores]])
        >>> page.startswith("<!DOCTYPE html>")
        True
    """
    return render_template(
        "methods.html.jinja", title=title, introduction=introduction, sorting=None, **_methods(texts, labels)
    )


def _methods(texts: Sequence[Sequence[DrawableScores]], labels: Labels | None) -> dict[str, Any]:
    if not texts or not all(texts):
        raise ValueError("texts has no text or one without scores, expected at least one text and one method")
    for scores in texts:
        if len({(item.encoded.text, item.encoded.pair) for item in scores}) != 1:
            raise ValueError("texts has scores of several texts in one entry, expected those of one text")
        if len({item.target for item in scores}) != 1:
            targets = sorted({item.target for item in scores})
            raise ValueError(f"texts has scores of the classes {targets} in one entry, expected those of one class")
        methods = [item.method for item in scores]
        if len(set(methods)) != len(methods):
            raise ValueError(f"texts has the methods {methods} in one entry, expected each once")
    names = list(dict.fromkeys(item.method for scores in texts for item in scores))
    signs = {item.signed for scores in texts for item in scores}
    return {
        "methods": names,
        "signed": True in signs,
        "unsigned": False in signs,
        "signed_scale": Scale(1.0, signed=True, unit="score"),
        "unsigned_scale": Scale(1.0, unit="score"),
        "texts": [
            {
                "encoded": scores[0].encoded,
                "target": scores[0].target if labels is None else labels[scores[0].target],
                "rows": [
                    {"number": names.index(item.method), "name": item.method, "map": token_parts(item)}
                    for item in scores
                ],
            }
            for scores in texts
        ],
    }


def _sortable(value: float) -> str:
    """A number as the script that sorts reads it: nothing for NaN and infinity, which come last."""
    return repr(float(value)) if math.isfinite(value) else ""


def _remaining(before: DrawableBits, after: DrawableBits) -> str:
    if not (math.isfinite(before.total_bits) and math.isfinite(after.total_bits)) or before.total_bits <= 0:
        return "n/a"
    fraction = after.total_bits / before.total_bits
    return f"{fraction:.1%}" if fraction >= 0.0005 or fraction == 0 else "less than 0.1%"


def _ranked(attribution: DrawableBits) -> list[dict[str, Any]]:
    """Words, most bits first, with their fraction of the longest bar; those that are NaN or infinite last."""
    words = sorted(attribution.words, key=lambda word: -word.bits if math.isfinite(word.bits) else math.inf)
    most = max((word.bits for word in words if math.isfinite(word.bits)), default=0.0)
    return [
        {"word": word, "fraction": max(0.0, word.bits / most) if most > 0 and math.isfinite(word.bits) else 0.0}
        for word in words
    ]


def visualization_records(attributions: Sequence[DrawableBits]) -> list[VisualizationDataRecord]:
    """Records for ``captum.attr.visualization.visualize_text``, one per text.

    Words and labels are escaped and NaN becomes 0, since Captum does neither; see
    :meth:`captum_iba.text.TextAttribution.to_captum_record`.

    Args:
        attributions (sequence of TextAttribution): Attributions.

    Returns:
        list of VisualizationDataRecord: In their order.

    Examples::

        >>> from captum.attr import visualization
        >>> records = visualization_records([result])  # for visualization.visualize_text(records)
        >>> records[0].raw_input_ids
        ['a', 'film']
    """
    return [attribution.to_captum_record() for attribution in attributions]
