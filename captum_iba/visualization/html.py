"""Attributions as HTML: inline styles, nothing fetched. Every text is escaped by jinja2."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from captum_iba.visualization.colour import Scale, colours
from captum_iba.visualization.pieces import colour_class, draw, full_colour, say, say_tick, scale_of, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from captum_iba.methods import Scores
    from captum_iba.text import TextAttribution
    from captum_iba.visualization.pieces import Drawable

Labels = Sequence[str] | Mapping[int, str]
"""Names of classes by their number."""


_TOP = 3


class Html(str):
    """A piece of HTML; a notebook shows it drawn.

    Examples::

        >>> token_map(result)  # as the last line of a cell
    """

    def _repr_html_(self) -> str:
        return str(self)


@cache
def _environment() -> Environment:
    # Not at the top: figures do without jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("captum_iba.visualization"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(say=say, visible=visible, sortable=_sortable, tick=say_tick, colour_class=colour_class)
    environment.globals.update(colour_rules=colour_rules)
    return environment


def colour_rules(background: str) -> str:
    """The rules of the style sheet for every step of both scales, on a ``"light"`` or ``"dark"`` page."""
    both = [(Scale(1.0), False), (Scale(1.0, signed=True), True)]
    return "\n".join(
        f".iba .{colour_class(step, signed)} {{ background: {filled}; color: {ink}; }}"
        for scale, signed in both
        for step, (filled, ink) in zip(scale.levels, colours(scale, background), strict=True)
    )


class Sorting(NamedTuple):
    """The one script of a page: it sorts a table by the column whose head is pressed.

    Args:
        script (Markup): For a ``<script>`` element.
        digest (str): Its SHA-256 in base 64, by which a content security policy lets it run, and nothing else.
    """

    script: Markup
    digest: str


@cache
def sorting() -> Sorting:
    """The script that sorts tables: a button in each head, ``data-first`` there and ``data-value`` in each cell."""
    from markupsafe import Markup

    script = (files("captum_iba.visualization") / "templates" / "sort.js").read_text(encoding="utf-8")
    return Sorting(Markup(script), base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def token_map(attribution: Drawable) -> Html:
    """One coloured text as a piece of HTML, as a notebook shows it.

    Args:
        attribution (TextAttribution or Scores): What to draw. Bits are on the sequential, logarithmic scale; the
            scores of other methods on a linear one, if they have signs with 0 in the middle.

    Returns:
        Html: a string: an element with its own style.
    """
    from captum_iba.text.result import TextAttribution

    scale = scale_of(attribution)
    item, method = (attribution, "") if isinstance(attribution, TextAttribution) else (None, attribution.method)
    found = _render("notebook.html.jinja", item=item, method=method, map=draw(attribution, scale), colours=scale)
    return Html(found)


def token_page(attributions: Sequence[TextAttribution], title: str = "Bits per word") -> str:
    """A self-contained page: every text coloured, with its words and their bits.

    Several texts are a table, to be sorted by class, probability or bits.

    Args:
        attributions (sequence of TextAttribution): Texts, all drawn on one scale.
        title (str): Title of the page. Default: ``"Bits per word"``.

    Returns:
        str: an HTML document.

    Raises:
        ValueError: There is no attribution.
    """
    if not attributions:
        raise ValueError("attributions: expected at least one, got none.")
    scale = Scale(full_colour(attributions))
    texts = []
    for item in attributions:
        texts.append({"item": item, "map": draw(item, scale), "rows": _ranked(item)})
    return _render(
        "tokens.html.jinja",
        title=title,
        texts=texts,
        colours=scale,
        shared=len({(item.layer_label, item.preset, item.statistics) for item in attributions}) == 1,
        sorting=sorting() if len(texts) > 1 else None,
    )


def layer_page(
    texts: Sequence[Sequence[tuple[TextAttribution, TextAttribution]]],
    title: str = "Where the information is, layer by layer",
    introduction: str = "",
    methods: Sequence[Sequence[Scores]] | None = None,
) -> str:
    """A self-contained page: a table of the texts, and for every text its layers before and after the bottleneck.

    A reader can sort the table, and choose one layer, one side, and methods.

    Args:
        texts (sequence): For every text a sequence of layers, each a pair of attributions: before
            (``n_steps=0``: the open mask) and after. All maps share one scale; bars compare the totals after.
        title (str): Title of the page.
        introduction (str): A sentence above the texts, of what they are. Default: none.
        methods (sequence, optional): For every text the Scores of other methods, to be drawn below its layers.
            Default: None.

    Returns:
        str: an HTML document.

    Raises:
        ValueError: There is no text, one has no layer, or ``methods`` are of other texts.
    """
    if not texts or not all(texts):
        raise ValueError("texts: expected at least one text with at least one layer.")
    own = [(layers[0][1].text, layers[0][1].pair) for layers in texts]
    if methods is not None and own != [(one[0].encoded.text, one[0].encoded.pair) if one else None for one in methods]:
        raise ValueError("methods: expected the scores of the same texts in the same order.")
    scale = Scale(full_colour([item for layers in texts for pair in layers for item in pair]))
    names = list(dict.fromkeys(_layer_name(after) for layers in texts for _, after in layers))
    others = {"methods": [], "signed": False} if methods is None else _methods(methods, None)
    return _render(
        "layers.html.jinja",
        title=title,
        introduction=introduction,
        sections=[_layer_section(layers, scale, names) for layers in texts],
        names=names,
        colours=scale,
        sorting=sorting(),
        **others,
    )


def _layer_section(
    layers: Sequence[tuple[TextAttribution, TextAttribution]], scale: Scale, names: Sequence[str]
) -> dict[str, Any]:
    totals = [after.total_bits for _, after in layers]
    known = [total for total in totals if math.isfinite(total)]
    longest = max(known, default=0.0)
    rows = [
        {
            "number": names.index(_layer_name(after)),
            "item": after,
            "before": draw(before, scale),
            "after": draw(after, scale),
            "kept": _share(before, after),
            "height": Scale(max(longest, 1.0)).place(after.total_bits) or 0.0,
        }
        for before, after in layers
    ]
    return {
        "item": layers[0][1],
        "rows": rows,
        "longest": longest,
        "sum": math.fsum(known) if len(known) == len(totals) else math.nan,
        "top": _most_needed([after for _, after in layers]),
    }


def _layer_name(attribution: TextAttribution) -> str:
    return attribution.layer if attribution.layer_index is None else str(attribution.layer_index)


def _most_needed(layers: Sequence[TextAttribution]) -> list[str]:
    """The words with most bits over all layers, at most :data:`_TOP`; none with less than a bit."""
    words = layers[0].words
    sums = [math.fsum(bits) for bits in zip(*([word.bits for word in one.words] for one in layers), strict=True)]
    ranked = sorted((i for i, total in enumerate(sums) if math.isfinite(total) and total >= 1), key=lambda i: -sums[i])
    return [visible(words[i].word) for i in ranked[:_TOP]]


def method_map(scores: Sequence[Scores], labels: Labels | None = None) -> Html:
    """One text coloured by several methods, one below the other, as a notebook shows it.

    Args:
        scores (sequence of Scores): What methods say of one text, one entry a method.
        labels (sequence or mapping, optional): Names of the classes by their number. Default: None, the number.

    Returns:
        Html: a string: an element with its own style.

    Raises:
        ValueError: No scores, or of different texts.

    Examples::

        >>> method_map([attribute(name, classifier, text)[0] for name in ("iba", "ig", "lime")])
    """
    found = _methods([scores], labels)
    return Html(_render("notebook_methods.html.jinja", text=found["texts"][0], **found))


def method_page(
    texts: Sequence[Sequence[Scores]],
    title: str = "Methods side by side",
    introduction: str = "",
    labels: Labels | None = None,
) -> str:
    """A self-contained page: every text coloured by several methods, which a reader can choose.

    Methods with signs are on a scale with 0 in the middle, the others on a sequential one. Each line is relative to
    its own largest word, for methods have no unit in common.

    Args:
        texts (sequence): For every text a sequence of Scores, one a method.
        title (str): Title of the page. Default: ``"Methods side by side"``.
        introduction (str): A sentence above the texts, of what they are. Default: none.
        labels (sequence or mapping, optional): Names of the classes by their number. Default: None, the number.

    Returns:
        str: an HTML document.

    Raises:
        ValueError: No texts, one without scores, or in one entry several texts or classes, or a method twice.

    Examples::

        >>> columns = [attribute(name, classifier, texts) for name in ("iba", "ig", "lime")]
        >>> page = method_page(list(zip(*columns)))
    """
    return _render(
        "methods.html.jinja", title=title, introduction=introduction, sorting=None, **_methods(texts, labels)
    )


def _methods(texts: Sequence[Sequence[Scores]], labels: Labels | None) -> dict[str, Any]:
    if not texts or not all(texts):
        raise ValueError("texts: expected at least one text with the scores of at least one method.")
    for scores in texts:
        if len({(one.encoded.text, one.encoded.pair) for one in scores}) != 1:
            raise ValueError("texts: expected the scores of one text in each entry, got those of several.")
        if len({one.target for one in scores}) != 1:
            explained = sorted({one.target for one in scores})
            raise ValueError(
                f"texts: expected scores that explain one class in each entry, got the classes {explained}."
            )
        if len({one.method for one in scores}) != len(scores):
            raise ValueError(f"texts: expected each method once a text, got {[one.method for one in scores]}.")
    names = list(dict.fromkeys(one.method for scores in texts for one in scores))
    every = [one for scores in texts for one in scores]
    return {
        "methods": names,
        "signed": any(one.signed for one in every),
        "unsigned": any(not one.signed for one in every),
        "signed_scale": Scale(1.0, signed=True, unit="score"),
        "unsigned_scale": Scale(1.0, unit="score"),
        "texts": [
            {
                "title": _title(scores[0]),
                "target": _label(scores[0].target, labels),
                "cut": scores[0].encoded.tokens_truncated,
                "rows": [
                    {"number": names.index(one.method), "name": one.method, "map": draw(one, scale_of(one))}
                    for one in scores
                ],
            }
            for scores in texts
        ],
    }


def _title(scores: Scores) -> str:
    pair = scores.encoded.pair
    return scores.encoded.text if pair is None else f"{scores.encoded.text} | {pair}"


def _label(target: int, labels: Labels | None) -> str:
    return str(target) if labels is None else labels[target]


def _sortable(value: float) -> str:
    """A number as the script that sorts reads it: nothing for what is none, which comes last."""
    return repr(float(value)) if math.isfinite(value) else ""


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
