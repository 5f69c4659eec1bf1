"""Attributions as self-contained HTML: inline styles, nothing fetched. Every text is escaped by jinja2."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from captum_iba._files import write_text
from captum_iba._reading.check_sentences import NOT_CONFIRMED, VERDICTS
from captum_iba._reading.codes import findings
from captum_iba._reading.decision import predicted_beside
from captum_iba._reading.findings import (
    findings_in_words,
    is_missed,
    missed_labels,
    not_judged,
    preset_note,
    qualifications,
    verdicts,
    what_bits_keep,
)
from captum_iba._reading.legend import Legend, about_bits, color_legend, merged_legend, word_legend
from captum_iba._reading.mask_state import is_improbable, is_measured
from captum_iba._reading.places import explained_words
from captum_iba._reading.protocols import Drawable, ExplainedText, ScoredText, is_scores
from captum_iba._reading.rows import SPEAKS_AGAINST, is_in_turn
from captum_iba._reading.text_parts import full_color
from captum_iba._reading.word_sentences import answer, bits_of_another, only_together, verdict, word_check
from captum_iba._reading.wording import format_number, format_probability, method_title, origin_line, visible
from captum_iba._reading.words import counted, ranked_words, standing_out
from captum_iba.visualization.color import Scale, color_class, colors
from captum_iba.visualization.colored_text import token_parts
from captum_iba.visualization.layer_names import layer_names, notes_of_beta

if TYPE_CHECKING:
    from captum.attr._utils.visualization import VisualizationDataRecord
    from jinja2 import Environment
    from markupsafe import Markup

_FRAME: Legend = {"dashed frame": "what is explained itself: it is never deleted"}
_MARKS = {
    "hidden_evidence": (
        "other words matter",
        "Words that do not lead matter: one alone, or those with the fewest bits together.",
    ),
    "opposing_words": (
        "words against",
        "Without some words the class is much more probable: one alone, or those with the fewest bits.",
    ),
    "other_order": (
        "other order alone",
        "Another leading word than the first lowers the probability most when it is deleted alone.",
    ),
    "unknown_words": ("unknown words", "The tokenizer does not know some of the words."),
    "partly_deleted": (
        "not all tried together",
        "Words that were not deleted together with the leading ones may matter, too.",
    ),
}
"""What a table says of some findings, and what that means."""
_MARKS_OF_CHECK = {
    "only together": "the probability falls without all leading words together, and not without any one of them alone",
}
_LONG = 150  # words of a text that a table folds
Labels = Sequence[str] | Mapping[int, str]
"""Names of classes by their number."""


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
    environment.filters.update(
        number=format_number, probability=format_probability, visible=visible, sortable=_sortable, origin=origin_line
    )
    environment.filters.update(color_class=color_class, counted=counted)
    environment.globals.update(color_rules=color_rules, answer=answer, word_legend=word_legend)
    environment.globals.update(
        findings_in_words=findings_in_words, qualifications=qualifications, bits_of_another=bits_of_another
    )
    environment.globals.update(word_check=word_check, is_measured=is_measured)
    environment.globals.update(about_bits=about_bits, what_bits_keep=what_bits_keep)
    environment.globals.update(standing_out=standing_out, is_in_turn=is_in_turn)
    environment.globals.update(predicted_beside=predicted_beside)
    return environment


def render_template(template: str, package: str = "captum_iba.visualization", **values: Any) -> str:
    """A template of a package as HTML, with texts escaped; it may include and extend those of this package."""
    return _environment(package).get_template(template).render(**values)


def color_rules(background: str) -> str:
    """Rules of the style sheet for every step of both scales, on a ``"light"`` or ``"dark"`` page."""
    return "\n".join(
        f".iba .{color_class(step, scale.signed)} {{ background: {filled}; color: {ink}; }}"
        for scale in (Scale(1.0), Scale(1.0, signed=True))
        for step, (filled, ink) in zip(scale.levels, colors(scale, background), strict=True)
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
    """One colored text as a piece of HTML, as a notebook shows it.

    Args:
        attribution (TextAttribution or Scores): Attribution to draw. Bits are colored from the floor, which a token
            ends with that is not needed; scores of other methods from 0, which is in the middle if they have signs.

    Returns:
        Html: A string: an element with its own style.

    Examples::

        >>> html = token_map(result)  # drawn where it is the last line of a notebook cell
        >>> html.count('class="w ')
        2
    """
    drawn = token_parts(attribution)
    if is_scores(attribution):
        return Html(
            render_template("notebook.html.jinja", item=None, method=method_title(attribution.method), map=drawn)
        )
    leading, rest = ranked_words(attribution)
    pale = verdict(attribution) == NOT_CONFIRMED
    return Html(
        render_template("notebook.html.jinja", item=attribution, map=drawn, leading=leading, rest=rest, pale=pale)
    )


def token_page(
    attributions: Sequence[ExplainedText],
    title: str | None = None,
    introduction: str = "",
    methods: Sequence[Sequence[ScoredText]] | None = None,
    layers: Sequence[Sequence[ExplainedText]] | None = None,
    gold_labels: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> str:
    """A self-contained page of explanations: each text colored, and the words that the decision needs.

    Several texts without other methods are a table, to be sorted by class or probability.

    Args:
        attributions (sequence of TextAttribution): Attributions. Each text has its own scale, up to its largest word.
        title (str, optional): Title of the page. Default: None, a question with the class.
        introduction (str): A sentence above the texts. Default: none.
        methods (sequence, optional): For every text the Scores of other methods, shown beside it. Default: None.
        layers (sequence, optional): For every text its attributions at single layers, shown last. Default: None.
        gold_labels (sequence of str, optional): The gold label of every text, shown beside the class. Default: None.
        ids (sequence of str, optional): The name of every text. Default: None.
        labels (sequence of str, optional): The names of the classes. A gold label that is one of them, and not the
            predicted one, is marked. Default: None, nothing is marked.

    Returns:
        str: An HTML document.

    Raises:
        TypeError: An attribution of another type.
        ValueError: No attributions, ``methods`` or ``layers`` for other texts or classes, or another number of
            ``gold_labels`` or ``ids``.

    Examples::

        >>> page = token_page([result], title="One film")
        >>> page.startswith("<!DOCTYPE html>"), "One film" in page
        (True, True)
    """
    if not attributions:
        raise ValueError("attributions is empty, expected at least one attribution")
    for number, item in enumerate(attributions):
        if not hasattr(item, "target_label"):
            raise TypeError(f"attributions[{number}] is a {type(item).__name__}, expected a TextAttribution")
    explained = [(item.text, item.pair, item.target) for item in attributions]
    scored = [[(item.encoded.text, item.encoded.pair, item.target) for item in row] for row in methods or []]
    layered = [[(item.text, item.pair, item.target) for item in row] for row in layers or []]
    for name, given, found in (("methods", methods, scored), ("layers", layers, layered)):
        if given is not None and [set(row) for row in found] != [{one} for one in explained]:
            raise ValueError(
                f"{name} has other texts or classes than attributions, expected the same in the same order"
            )
    for name, column in (("gold_labels", gold_labels), ("ids", ids)):
        if column is not None and len(column) != len(attributions):
            raise ValueError(f"{name} has {len(column)} entries, expected one for each of {len(attributions)} texts")
    others: dict[str, Any] = {"methods": []} if methods is None else _methods(methods, None)
    golds: Sequence[str | None] = [None] * len(attributions) if gold_labels is None else gold_labels
    names: Sequence[str | None] = [None] * len(attributions) if ids is None else ids
    betas, has_table = notes_of_beta(attributions), len(attributions) > 1 and methods is None
    rows = [text["rows"] for text in others.pop("texts", [])] or [[]] * len(attributions)
    texts = [
        {
            "item": item,
            "why": item.question
            if item.explained or not is_improbable(item)
            else f"How probable is {item.target_label}?",
            "map": token_parts(item),
            "rows": scores,
            "gold": None if gold is None else str(gold),
            "is_wrong": is_missed(item, gold, labels),
            "id": "" if name is None else str(name),
            "beta": beta,
            "verdict": verdict(item),
            "only_together": only_together(item),
            "not_judged": "" if verdict(item) else not_judged(item),
            "notes": [mark for code, mark in _MARKS.items() if code in findings(item)],
            "is_long": len(item.words) > _LONG,
            **dict(zip(("leading", "rest"), ranked_words(item), strict=True)),
        }
        for item, scores, gold, name, beta in zip(attributions, rows, golds, names, betas, strict=True)
    ]
    return render_template(
        "tokens.html.jinja",
        title=title or (texts[0]["why"] if len(texts) == 1 else "Why these decisions?"),
        introduction=introduction,
        texts=texts,
        layers=[_layer_rows(row) for row in layers or []],
        settings=list(
            dict.fromkeys(
                line for item in attributions for line in (_settings(item), origin_line(item.provenance)) if line
            )
        ),
        models=list(dict.fromkeys(item.model for item in attributions if item.model)),
        has_gold=gold_labels is not None,
        verdicts=verdicts(attributions, ids),
        of_all=[] if len(attributions) < 2 else _said_of_all(attributions),
        missed_labels=missed_labels(attributions, gold_labels, labels),
        possible_verdicts=VERDICTS,
        has_effects=any(item.effects for item in attributions),
        in_turn=any(len(item.removal_order) > 1 for item in attributions),
        relations={row.relation for text in texts for row in (*text["leading"], *text["rest"])} - {""},
        has_check=any(item.check is not None for item in attributions),
        sorting=sorting() if has_table else None,
        legend=merged_legend(
            [
                *(word_legend(item, page=True) for item in attributions),
                _color_legend(texts),
                *[_FRAME] * any(map(explained_words, attributions)),
                *[_marks(texts)] * has_table,
            ]
        ),
        quantity=_measured(attributions),
        **others,
    )


def _said_of_all(attributions: Sequence[ExplainedText]) -> list[str]:
    """Qualifications that at least half of the texts have, and two."""
    times = Counter(sentence for item in attributions for sentence in dict.fromkeys(qualifications(item)))
    n_texts = len(attributions)
    return [
        sentence if count == n_texts else f"{count} of the {n_texts} texts: {sentence[0].lower()}{sentence[1:]}"
        for sentence, count in times.items()
        if count > 1 and 2 * count >= n_texts
    ]


def _measured(attributions: Sequence[ExplainedText]) -> str:
    """What lists have of a word: "The probability of the class"; of a regression the closeness."""
    kinds = {"value" if item.explained is not None and item.explained.kind == "value" else "" for item in attributions}
    return "The closeness" if kinds == {"value"} else "The probability of the class"


def _color_legend(texts: Sequence[Mapping[str, Any]]) -> Legend:
    """The legend of colors, where words were measured."""
    if not any(row.is_measured for text in texts for row in text["leading"]):
        return {}
    return color_legend("word", any(row.relation == SPEAKS_AGAINST for text in texts for row in text["rest"]))


def _marks(texts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The marks in the table of a page of several texts, and what they mean."""
    checked = [text for text in texts if text["item"].check is not None]
    used = {mark for text in checked for mark, _ in text["notes"]}
    used |= {"only together" for text in checked if text["only_together"]}
    meanings = {**_MARKS_OF_CHECK, **dict(_MARKS.values())}
    return {mark: meaning for mark, meaning in meanings.items() if mark in used}


def save_token_page(attributions: Sequence[ExplainedText], path: str | os.PathLike[str], **options: Any) -> Path:
    """Write :func:`token_page` of several texts to a file, whole or not at all.

    Args:
        attributions (sequence of TextAttribution): Attributions, in the order of the page.
        path (str or path): The file.
        **options: Keyword arguments of :func:`token_page`.

    Returns:
        Path: The file.

    Raises:
        ValueError: As :func:`token_page`.
        OSError: The file cannot be written.

    Examples::

        >>> import os, tempfile
        >>> save_token_page([result], os.path.join(tempfile.mkdtemp(), "films.html")).name
        'films.html'
    """
    return write_text(path, token_page(attributions, **options))


def _settings(item: ExplainedText) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in item.settings.items() if value is not None)
    return f"{item.layer_label} · {preset_note(item)} ({settings}), statistics of {item.statistics}"


def _layer_rows(attributions: Sequence[ExplainedText]) -> list[dict[str, Any]]:
    scale = Scale(full_color(attributions))
    return [
        {
            "item": item,
            "name": name,
            "map": token_parts(item, scale),
        }
        for item, name in zip(attributions, layer_names(attributions), strict=True)
    ]


def method_map(scores: Sequence[ScoredText], labels: Labels | None = None) -> Html:
    """One text colored by several methods, one below the other, as a notebook shows it.

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
    texts: Sequence[Sequence[ScoredText]],
    title: str = "Methods side by side",
    introduction: str = "",
    labels: Labels | None = None,
) -> str:
    """A self-contained page: every text colored by several methods, which a reader can select.

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


def _methods(texts: Sequence[Sequence[ScoredText]], labels: Labels | None) -> dict[str, Any]:
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
        "methods": list(map(method_title, names)),
        "signed": True in signs,
        "unsigned": False in signs,
        "signed_scale": Scale(1.0, signed=True, unit="score"),
        "unsigned_scale": Scale(1.0, unit="score"),
        "texts": [
            {
                "encoded": scores[0].encoded,
                "target": scores[0].target if labels is None else labels[scores[0].target],
                "rows": [
                    {
                        "number": names.index(item.method),
                        "name": method_title(item.method),
                        "map": token_parts(item),
                    }
                    for item in scores
                ],
            }
            for scores in texts
        ],
    }


def _sortable(value: float) -> str:
    """A number as the script that sorts reads it: nothing for NaN and infinity, which come last."""
    return repr(float(value)) if math.isfinite(value) else ""


def visualization_records(attributions: Sequence[ExplainedText]) -> list[VisualizationDataRecord]:
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
