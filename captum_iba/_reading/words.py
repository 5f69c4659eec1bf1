"""The words of a text in a list, with what their deletions say of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from captum_iba._reading.mask_state import has_hardly_any_bits, has_percentages, is_improbable, needs_hardly_anything
from captum_iba._reading.order import count_leading, has_neutral_statistics, importance_of, ranking
from captum_iba._reading.places import is_punctuation, place_in_texts, word_places
from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.rows import (
    CHANGES_PREDICTION,
    MATTERS_ALONE,
    RAISES_ALONE,
    SPEAKS_AGAINST,
    ListedPart,
    bar_of,
)
from captum_iba._reading.thresholds import NOTICEABLE, is_much_lower, rises_much
from captum_iba._reading.wording import visible

_AGAINST, _BESIDE, _MATTER = 3, 10, 10  # words against the target, others, and those that matter alone, in lists
_KNOWN = "_ranked_words"
_LEAST_SCALE = 0.5  # nats that have the full color at least


def counted(rows: Sequence[ListedPart], which: str = "") -> str:
    """Number of the words, and of punctuation marks: "3 other words and 2 punctuation marks" with which="other"."""
    n_words = sum(not row.is_punctuation for row in rows)
    n_marks, which = len(rows) - n_words, f"{which} " if which else ""
    words = f"{n_words} {which}word{'s' * (n_words != 1)}" if n_words else ""
    marks = f"{n_marks} {'' if n_words else which}punctuation mark{'s' * (n_marks != 1)}" if n_marks else ""
    return " and ".join(filter(None, [words, marks]))


def ranked_words(attribution: ExplainedText) -> tuple[list[ListedPart], list[ListedPart]]:
    """The leading words, the first of :func:`ranking`, and the others; where words were measured by their bars.

    Where the model needs hardly anything, no word is among the first; where there are hardly any bits, and a check
    finds that they matter, only those that it deletes. They are computed once for each result, which never changes.
    """
    known = vars(attribution)  # a page asks some forty times
    if _KNOWN not in known:
        known[_KNOWN] = _ranked_words(attribution)
    leading, others = known[_KNOWN]
    return list(leading), list(others)


def _ranked_words(attribution: ExplainedText) -> tuple[list[ListedPart], list[ListedPart]]:
    shares, spread, repeated = attribution.shares, attribution.shares_std, attribution.repeated_shares
    if has_neutral_statistics(attribution):
        spread = [math.nan] * len(shares)
    places = word_places(attribution)
    about = attribution.explained  # is never deleted
    effects_of = {i: effect for i, effect in enumerate(attribution.effects) if effect is not None}
    count = _count_listed(attribution)
    so_far = dict(zip(attribution.removal_order, attribution.without_first, strict=True)) if count else {}
    with_bits = {token.word for token in attribution.tokens if token.bits}
    is_open = [
        about is not None and i not in with_bits and about.holds(*place_in_texts(word))
        for i, word in enumerate(attribution.words)
    ]
    rows = []
    for i, word in enumerate(attribution.words):
        rows.append(
            ListedPart(
                visible(word.word),
                places[i],
                word.bits,
                float(shares[i]),
                spread=float(spread[i]),
                is_punctuation=is_punctuation(word.word),
                measure=_measure(attribution),
                number=i,
                effect=effects_of.get(i, math.nan),
                without_so_far=so_far.get(i, math.nan),
            )
        )
    order = ranking(attribution)
    for i, without in _without_each(attribution).items():
        rows[i] = rows[i]._replace(without=without)
    rows = _with_relations(attribution, rows, order, count)
    rows = [row._replace(importance=color) for row, color in zip(rows, _colors(attribution, rows), strict=True)]
    # The order of words whose effect was measured does not depend on repeats.
    same_order = [rows[i].is_measured or bool((repeated[:, i] > repeated[:, j]).all()) for i, j in pairwise(order)]
    rows = [rows[i]._replace(tied=not all(same_order[max(0, rank - 1) : rank + 1])) for rank, i in enumerate(order)]
    if not has_percentages(attribution):
        rows = [row._replace(in_percent=False) for row in rows]
    # What is explained, and stays open, is no word of the list.
    rows = [row for row, i in zip(rows, order, strict=True) if not is_open[i]]
    leading, others = rows[:count], rows[count:]
    if any(row.is_measured for row in rows):
        others.sort(key=lambda row: -row.importance)
    return leading, others


def listed_order(attribution: ExplainedText) -> list[int]:
    """Numbers of all words, in the order of pages and terminals; what is explained itself is last."""
    numbers = [row.number for rows in ranked_words(attribution) for row in rows]
    return [*numbers, *(i for i in ranking(attribution) if i not in numbers)]


def _measure(attribution: ExplainedText) -> str:
    about = attribution.explained
    return "closeness" if about is not None and about.kind == "value" else "probability"


def _count_listed(attribution: ExplainedText) -> int:
    """How many words lists show as leading."""
    if is_improbable(attribution):
        return 0  # what lowers next to nothing is no answer
    count = count_leading(attribution)
    if has_hardly_any_bits(attribution):
        check = attribution.check
        if needs_hardly_anything(attribution):
            return 0
        if check is not None and all(effect is None for effect in attribution.effects):
            return min(count, int(check.n_removed))
    return count


def _with_relations(
    attribution: ExplainedText, rows: list[ListedPart], order: Sequence[int], n_leading: int
) -> list[ListedPart]:
    """The words, by number, with what their deletions say of them."""
    check, whole, leading = attribution.check, attribution.target_probability, order[:n_leading]
    after = _decreases_after_others(attribution)
    strongest = min((rows[i].without for i in leading if rows[i].is_deleted), default=0.0)
    # The check has said what happens without those that it deletes first.
    tried = [] if check is None else [i for i in order if rows[i].is_deleted][check.n_removed :]
    alone = [] if is_improbable(attribution) else [i for i in tried if i not in leading]
    found = list(rows)
    for i, row in enumerate(rows):
        if not row.is_deleted:
            continue
        relation = ""
        # A leading word lowers it together with others.
        is_needed = i in leading and (row.effect > 0 or after.get(i, 0.0) > 0)
        if rises_much(whole, row.without) and not is_needed:
            relation = SPEAKS_AGAINST
        elif check is not None and i in alone and check.changes_alone(i):
            relation = CHANGES_PREDICTION
        elif check is not None and i in alone and is_much_lower(check.probability, row.without, strongest):
            relation = MATTERS_ALONE
        elif i in leading and row.without >= whole + NOTICEABLE:
            relation = RAISES_ALONE
        found[i] = row._replace(relation=relation, share_alone=_bar(row, whole, after)[1])
    return found


def _decrease_alone(row: ListedPart, whole: float) -> float:
    """The decrease in the log-odds (or the closeness) without a word alone; ``whole`` is the probability with it."""
    return _decrease_between(whole, row.without, row.measure)


def _decrease_between(before: float, after: float, measure: str) -> float:
    return _log_odds(before) - _log_odds(after) if measure == "probability" else before - after


def _decreases_after_others(attribution: ExplainedText) -> dict[int, float]:
    """The decrease without each leading word after the other leading ones, by number; empty of a single one."""
    if not attribution.without_first:
        return {}
    measure, without_all = _measure(attribution), attribution.without_first[-1]
    decreases = [_decrease_between(without, without_all, measure) for without in attribution.without_others]
    return dict(zip(attribution.removal_order, decreases, strict=False))


def _bar(row: ListedPart, whole: float, after: Mapping[int, float]) -> tuple[float, float]:
    return bar_of(_decrease_alone(row, whole), after.get(row.number, math.nan))


def _colors(attribution: ExplainedText, rows: Sequence[ListedPart]) -> list[float]:
    """What bars and colors show of each word, by number, from 0 to 1: its decrease, relative to the largest.

    The largest is at least 0.5 nats, so that small decreases have pale colors and short bars. Where no word was
    measured it is the importance.
    """
    if not any(row.is_measured for row in rows):
        importance = importance_of(attribution.shares, ()).tolist()
        return [0.0 if row.relation == SPEAKS_AGAINST else of for row, of in zip(rows, importance, strict=True)]
    after = _decreases_after_others(attribution)
    decreases = [_decrease(attribution, row, after) for row in rows]
    largest = max(*decreases, _LEAST_SCALE if rows[0].measure == "probability" else 1e-9)
    return [decrease / largest for decrease in decreases]


def _decrease(attribution: ExplainedText, row: ListedPart, after: Mapping[int, float]) -> float:
    """The length of the bar of a word before it is made relative; 0 if the word was not deleted.

    It is also 0 of a word that speaks against the target.
    """
    if row.relation == SPEAKS_AGAINST or not row.is_deleted:
        return 0.0
    return _bar(row, attribution.target_probability, after)[0]


def _log_odds(probability: float) -> float:
    within = min(max(probability, 1e-12), 1 - 1e-12)
    return math.log(within / (1 - within))


def standing_out(leading: Sequence[ListedPart], rest: Sequence[ListedPart]) -> list[ListedPart]:
    """The words that lists show beside the leading ones.

    They are those that matter alone, at most ten others whose bars stand out, in the order of their bars, and the
    strongest three against it, which are the last.
    """
    others, against = _beside(leading, rest)
    others = _first(others, _BESIDE + min(_MATTER, sum(row.matters_alone for row in others)))
    return [*others, *_first(against, _AGAINST)]


def not_listed(attribution: ExplainedText) -> str:
    """How many words would be in the list if it were longer (:func:`standing_out`); else empty."""
    leading, rest = ranked_words(attribution)
    others, against = _beside(leading, rest)
    listed = standing_out(leading, rest)
    n_others, n_against = (sum(row not in listed for row in rows) for rows in (others, against))
    label = " that matter alone or change the prediction," if any(row.matters_alone for row in others) else ""
    said = [f"{n_others} words{label} with a bar of at least 15% of the longest"] if n_others else []
    said += [f"{n_against} words that may speak against {attribution.target_label}"] if n_against else []
    return f"Not in the list: {' and '.join(said)}." if said else ""


def _beside(leading: Sequence[ListedPart], rest: Sequence[ListedPart]) -> tuple[list[ListedPart], list[ListedPart]]:
    """The words that do not lead and stand out or matter alone, and those against the target, the most first."""
    against = sorted((row for row in rest if row.relation == SPEAKS_AGAINST), key=lambda row: -row.without)
    others = [row for row in rest if row.matters_alone or (leading and row.stands_out)]
    others = [row for row in others if row.relation != SPEAKS_AGAINST]
    return sorted(others, key=lambda row: (not row.matters_alone, -row.importance)), against


def _first(rows: list[ListedPart], count: int) -> list[ListedPart]:
    """The first rows in the order of their bars; one more, if that is the last one: "1 more" hides no single one."""
    few = rows if len(rows) == count + 1 else rows[:count]
    return sorted(few, key=lambda row: -row.importance)


def word_records(attribution: ExplainedText) -> list[dict[str, Any]]:
    """What a file has of each word, in the order of the text: beside its own numbers its place, share, rank and
    label.

    ``without`` is the probability without this word alone, None if that was not checked; a share is None where pages
    show none, because no word has more than hardly any bits, or the mask removed too much.
    """
    order, shares, places = listed_order(attribution), attribution.shares, word_places(attribution)
    effects = attribution.effects or (None,) * len(order)
    rank, without = {number: at for at, number in enumerate(order, 1)}, _without_each(attribution)
    labels = {row.number: row.relation for rows in ranked_words(attribution) for row in rows}
    in_percent = has_percentages(attribution)
    return [
        {
            **dataclasses.asdict(word),
            "place": places[i],
            "share": float(shares[i]) if in_percent else None,
            "rank": rank[i],
            "effect": effects[i],
            "without": without.get(i),
            "label": labels.get(i, ""),
        }
        for i, word in enumerate(attribution.words)
    ]


def _without_each(attribution: ExplainedText) -> dict[int, float]:
    """The probability without each word alone, by number, as far as it was measured, or a check has deleted it."""
    of_check = () if attribution.check is None else attribution.check.without_each
    known = [*enumerate(attribution.without), *enumerate(of_check)]
    return {number: without for number, without in known if without is not None}
