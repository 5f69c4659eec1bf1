"""Legends of lists in a terminal: a term for each column, and what it means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from captum_iba._reading.check_sentences import NOT_CONFIRMED, VERDICTS, CheckSentences
from captum_iba._reading.findings import what_bits_keep
from captum_iba._reading.mask_sentences import averages_sentence, remark
from captum_iba._reading.mask_state import has_percentages
from captum_iba._reading.prompt_sentences import is_unsupported, leading_numbers, part_check, part_verdict
from captum_iba._reading.protocols import ExplainedResponse, ExplainedText
from captum_iba._reading.rows import (
    CHANGES_CHOICE,
    CHANGES_PREDICTION,
    MATTERS_ALONE,
    RAISES_ALONE,
    SPEAKS_AGAINST,
    ListedPart,
    is_in_turn,
)
from captum_iba._reading.thresholds import NOTICEABLE
from captum_iba._reading.word_sentences import verdict, word_check
from captum_iba._reading.wording import capitalized, quantity
from captum_iba._reading.words import ranked_words, standing_out

Legend = dict[str, str]
"""Meanings by their terms."""
_NO_BAR = "words without a bar were not deleted, or do not lower the probability"
_DRAWN, _SEEN = 0.01, 0.021  # of a full bar, that is drawn on a page, and seen in a terminal of 24 cells a bar
AVERAGES = "average activations"
_OF_TEXTS = "means over other texts, the same for each word: the model reads no word, and leans to a class all the same"
OF_IMAGES = "means over other images, the same at each place: the model sees nothing, and leans to a class all the same"
"""The term of what stands in place of an input through a closed mask, and what it is of an image."""
_COLUMNS = ("without it", "and those above", "of the bits", "bar")
_OF_BITS = "its share of the bits above the floor; the floor is about what an unneeded {unit} keeps"
_PART_DELETED = "this part is deleted, with the space before it (after the first part it stays)"
_MORE_PROBABLE = "without this part the response is more probable, by more than 10% of its probability"
_WITH_OTHERS = "and lower when it is deleted with other leading ones"
_HIGHER_ODDS = "without this part the odds of the choice are more than 10% higher"
_MUCH_LOWER = "does not lead; its deletion alone lowers the probability by much"
WORD_LABELS: Legend = {
    SPEAKS_AGAINST: "the probability is much higher without this word",
    MATTERS_ALONE: _MUCH_LOWER,
    CHANGES_PREDICTION: "does not lead; without this word alone the model predicts another class",
    RAISES_ALONE: f"the probability is higher without this word alone, {_WITH_OTHERS}",
}
"""What the deletions of a word say of it."""


def word_legend(attribution: ExplainedText, bits: bool = False, page: bool = False) -> Legend:
    """The terms in the list of a text; without percentages only those of deletions.

    Args:
        attribution (TextAttribution): The attribution.
        bits (bool): Whether the list has bits where words were measured, too. Default: False.
        page (bool): Whether it is for a page, which lists all words. Default: False.
    """
    leading, rest = ranked_words(attribution)
    rows, shown = [*leading, *rest], [*leading, *standing_out(leading, rest)]
    about = attribution.explained
    decreases = (
        "decrease" if about is not None and about.kind == "value" else "decrease in the log-odds, log(p / (1 - p)),"
    )
    terms = {}
    # Of a terminal that lists nothing, because words without percentages do not lead, there is nothing to say.
    is_listed = page or shown or any(row.in_percent or not row.is_deleted for row in rows)
    if is_listed and any(row.is_deleted for row in rows):
        terms["without it"] = f"{quantity(attribution.measured)} when this word is deleted"
    terms |= _steps_legend(rows, f"{quantity(attribution.measured)} when the words above it are deleted, too")
    is_folded = not bits and any(row.is_measured for row in rows)
    if has_percentages(attribution) and attribution.unneeded_bits and not is_folded:
        terms |= _bits_legend(rows, "token")
    relations = {row.relation for row in shown}
    if any(row.is_measured and row.importance > 0 for row in shown):
        terms["bar"] = _two_decreases(decreases, "word", rows if page else shown, "the other leading ones")
    terms |= _no_bar_legend(leading, "word")
    terms |= {label: meaning for label, meaning in WORD_LABELS.items() if label in relations}
    if not page and any(row.tied for row in shown):
        terms["≈"] = "repeats differ in the order of the bits of this word and one next to it"
    if averages_sentence(attribution, "this text") or AVERAGES in remark(attribution).lower():
        terms[AVERAGES] = _OF_TEXTS
    return (
        terms
        | _together_legend(leading, rows, "word")
        | verdict_legend(verdict(attribution), measured=quantity(attribution.measured))
        | check_legend(None if attribution.check is None else word_check(attribution), "word", terms)
    )


def about_bits(attribution: ExplainedText) -> str:
    """What a page says above the bits of all words: what their percentages are of, and what the bits keep."""
    share = _OF_BITS.format(unit="token") if has_percentages(attribution) and attribution.unneeded_bits else ""
    of_bits = f"Of the bits: {share}. " if share else ""
    leading, rest = ranked_words(attribution)
    if any(row.tied for row in (*leading, *rest)):
        of_bits += "≈: repeats differ in the order of this word and one next to it. "
    return f"{of_bits}{what_bits_keep(attribution)} {capitalized(_NO_BAR)}.".strip()


def part_labels(response: ExplainedResponse) -> Legend:
    """What the removal of a part of a prompt says of it."""
    more = _MORE_PROBABLE if response.contrast is None else _HIGHER_ODDS
    return {
        SPEAKS_AGAINST: more,
        RAISES_ALONE: f"leads, though {more}; {_WITH_OTHERS}",
        MATTERS_ALONE: _MUCH_LOWER,
        CHANGES_CHOICE: "does not lead; without this part alone the model prefers the other response",
    }


def part_legend(response: ExplainedResponse, bits: bool = False) -> Legend:
    """The terms in the list of a prompt; where no part was measured only that of its percentages.

    Args:
        response (GenerationAttribution): The attribution.
        bits (bool): Whether the list has bits where parts were measured, too. Default: False.
    """
    of_bits = _bits_legend(response.rows, "part")
    if not any(row.is_measured for row in response.rows):
        return of_bits
    of_bits = of_bits if bits else {}
    after = "all other measured parts" if response.check is None else "the other leading ones"
    of = "log-probability per token" if response.contrast is None else "log-odds of the choice"
    measured = "the probability per token" if response.contrast is not None else response.measured
    terms = {
        "without it": f"{measured} when {_PART_DELETED}",
        **_steps_legend(response.rows, "the same when the parts above it are deleted, too"),
        **of_bits,
        "bar": _two_decreases(f"decrease in the {of}", "part", response.rows, after),
    }
    if response.contrast is not None:
        terms["without it"] = f"the probability of the choice when {_PART_DELETED}"
        terms["choice"] = "p(response) / (p(response) + p(other response)), geometric means per token"
    relations = {row.relation for row in response.rows}
    what = "response" if response.contrast is None else "choice"
    labels = {label: meaning for label, meaning in part_labels(response).items() if label in relations}
    numbers = leading_numbers(response)
    leading = [row for row in response.rows if row.number in numbers]
    terms |= _no_bar_legend(leading, "part")
    return (
        terms
        | labels
        | _together_legend(leading, response.rows, "part")
        | ({"pale bar": "the prompt adds little to the response"} if is_unsupported(response) else {})
        | verdict_legend(part_verdict(response), what, "part")
        | check_legend(None if response.check is None else part_check(response), "part", terms)
    )


_OF_LARGEST = "as a share of the largest in this image (at least 10 points)"
BAR_ALONE = f"decrease in the probability without this region, {_OF_LARGEST}"
BAR_OF_SEVERAL = f"{BAR_ALONE}: solid, alone; hatched, after the other leading ones, if that is more"
BAR_IN_ORDER = f"decrease in the probability without this region after those above it, {_OF_LARGEST}"
"""What the bars of the regions of an image are."""


_REGION_LABELS: Legend = {
    SPEAKS_AGAINST: "the probability is much higher without this region",
    MATTERS_ALONE: "does not lead; its removal alone lowers the probability by more than 10 points",
    CHANGES_PREDICTION: "does not lead; without this region alone the model predicts another class",
}


def region_legend(
    rows: Sequence[ListedPart], bar: str, is_pale: bool = False, bits: bool = False, others: Sequence[ListedPart] = ()
) -> Legend:
    """The terms in the list of an image; where no region was removed only that of its percentages."""
    of_bits = _bits_legend(rows, "cell")
    if not any(row.is_deleted for row in rows):
        return of_bits
    terms = {
        "without it": "the probability when this region is removed: it gets the mean color of the image",
        **_steps_legend(rows, "the probability when the regions above it are removed, too"),
        **(of_bits if bits or not any(row.is_measured for row in rows) else {}),
    }
    if any(row.importance > _DRAWN for row in rows):
        terms["bar"] = bar
        labels = {row.relation for row in others}
        terms |= {label: meaning for label, meaning in _REGION_LABELS.items() if label in labels}
        if is_pale:
            terms["pale bar"] = "no check confirms the leading regions, or the class is improbable"
    return terms


def _bits_legend(rows: Sequence[ListedPart], unit: str) -> Legend:
    if not any(row.in_percent for row in rows):
        return {}
    without_bits = any(row.is_measured and row.is_zero and row.importance > _DRAWN for row in rows)
    by_removal = "; what has none here was found by removal alone" * without_bits
    return {"of the bits": f"{_OF_BITS.format(unit=unit)}{by_removal}"}


def _two_decreases(decrease: str, noun: str, rows: Sequence[ListedPart], others: str) -> str:
    if all(row.share_alone == 1 or not row.importance for row in rows):
        return f"{decrease} without this {noun}"
    return f"{decrease} without this {noun}: solid, alone; hatched, after {others}, if that is more"


def _no_bar_legend(leading: Sequence[ListedPart], noun: str) -> Legend:
    """Why a leading word has no bar that is seen, where that is so."""
    if not is_in_turn(leading) or all(row.importance > _SEEN for row in leading):
        return {}
    return {"no bar": f"a leading {noun} that lowers the probability only together with other leading ones"}


def _together_legend(leading: Sequence[ListedPart], rows: Sequence[ListedPart], noun: str) -> Legend:
    """That leading words are chosen together, where another one does more alone than one of them."""
    numbers = {row.number for row in leading}
    others = [row.without for row in rows if row.number not in numbers and row.is_deleted]
    alone = [row.without for row in leading if row.is_deleted]
    if len(leading) < 2 or not min(others, default=math.inf) < max(alone, default=-math.inf):
        return {}
    does = (
        f"a set found by trying: another or smaller set may do as much, and another {noun} alone more than one of these"
    )
    return {f"leading {noun}s": does}


def verdict_legend(
    said: str, what: str = "prediction", noun: str = "word", measured: str = "the probability"
) -> Legend:
    """What a verdict says of a prediction, a response or a choice; nothing where there is none."""
    if said == NOT_CONFIRMED:
        return {"pale bar": "the check does not confirm what leads"}
    least = "a quarter" if noun == "part" else "half"
    if said == VERDICTS[1]:
        blank = ", or an image of the mean color alone has more than half of it" * (noun == "region")
        less = f"less than {least} of its value, or other {noun}s alone do more than half as much{blank}"
        return {said: f"{measured} falls without what leads: by {less}; the title of the check says which"}
    falls = f"{measured} falls by at least {least} of its value, and twice as far as without others"
    return {said: f"{falls}: the model depends on what leads; the {what} may still be wrong"} if said else {}


def check_legend(check: CheckSentences | None, noun: str, terms: Legend) -> Legend:
    """What bits are, where a check speaks of them and the list does not."""
    is_said = check is not None and any("bits" in said for said in (check.title, *(row.what for row in check.rows)))
    if not is_said or "of the bits" in terms:
        return {}
    return {"bits": f"how much information of a {noun} the model needs, by noise in its layers"}


def _steps_legend(rows: Sequence[ListedPart], meaning: str) -> Legend:
    if not is_in_turn(rows):
        return {}
    return {"and those above": f"{meaning}{_where_it_rises(rows)}"}


def _where_it_rises(rows: Sequence[ListedPart]) -> str:
    """That one of the leading parts lowers the probability only with those after it, where that is so."""
    values = [row.without_so_far for row in rows if not math.isnan(row.without_so_far)]
    if all(after <= before + NOTICEABLE for before, after in pairwise(values)):
        return ""
    return "; where it rises, this one counts only together with other leading ones"


def color_legend(noun: str, has_opposing: bool) -> Legend:
    """What the colors and lines of a text or prompt are on a page."""
    wavy = f", {noun}s with a wavy line speak against it" * has_opposing
    none = f"other {noun}s of the list without color raise the probability when they are deleted alone, and so can a "
    none += f"leading {noun} with a hatched bar, which counts with others"
    return {"color": f"as the bar; underlined {noun}s lead{wavy}; {none}"}


def merged_legend(legends: Iterable[Legend]) -> list[tuple[str, str]]:
    """The terms of several legends and their meanings, each once; where these differ, a term is there several times.

    The columns come first. A meaning that is the beginning of another one of its term is left out.
    """
    every = dict.fromkeys(pair for legend in legends for pair in legend.items())
    pairs = [
        (term, meaning)
        for term, meaning in every
        if not any(other == term and longer.startswith((f"{meaning}: ", f"{meaning}; ")) for other, longer in every)
    ]
    return sorted(pairs, key=lambda pair: _COLUMNS.index(pair[0]) if pair[0] in _COLUMNS else len(_COLUMNS))


def legend_lines(legends: Iterable[Legend]) -> list[str]:
    """The terms of one or several legends, a line each (:func:`merged_legend`).

    Examples::

        >>> print("\\n".join(legend_lines([{"without it": "the probability", "bar": "decrease"}, {"bar": "decrease"}])))
        without it  the probability
        bar         decrease
    """
    terms = merged_legend(legends)
    width = max((len(term) for term, _ in terms), default=0)
    return [f"{term:<{width}}  {meaning}" for term, meaning in terms]
