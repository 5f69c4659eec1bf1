"""What a check by deletion says of a text, in words: of its leading words together, and of single words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from captum_iba._reading.change_sentences import change_sentence
from captum_iba._reading.check_sentences import CONFIRMING, CheckSentences, lowest_alone
from captum_iba._reading.decision import is_predicted
from captum_iba._reading.mask_sentences import averages_sentence
from captum_iba._reading.mask_state import has_percentages, is_improbable, is_lowered, needs_hardly_anything
from captum_iba._reading.order import ranking
from captum_iba._reading.places import is_punctuation, names_of_texts, place_in_texts, word_places
from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.removal_check import DeletionCheck
from captum_iba._reading.rows import SPEAKS_AGAINST, ListedPart
from captum_iba._reading.thresholds import ALL_DELETED_ALONE, LARGE_DROP, MANY_BITS, MOST, SAME
from captum_iba._reading.wording import enumerated, format_probability, printable, quantity, visible
from captum_iba._reading.words import ranked_words

_MOST_OPPOSING, _NAMED, _MANY = 3, 5, 8
_UNDECIDED = 0.1  # more than the second class has
_LITTLE = 0.1  # of the most probable class, answer or word


def answer(attribution: ExplainedText) -> str:
    """The probability without the leading words, and with a check what the model predicts then.

    What single words do is in the list. For a class that is not predicted the words that speak against it follow.
    Empty where there are none and no word leads, and where neither a check nor the order by removal has deleted any.
    """
    return " ".join(_answer(attribution))


def _answer(attribution: ExplainedText) -> list[str]:
    return list(filter(None, [_knows_no_word(attribution), *_said_of_words(attribution)]))


def _knows_no_word(attribution: ExplainedText) -> str:
    """That the tokenizer knows no word of the text; else empty."""
    unknown = {token.word for token in attribution.tokens if token.unknown}
    words = [i for i, word in enumerate(attribution.words) if not is_punctuation(word.word)]
    if not words or not unknown.issuperset(words):
        return ""
    token = next(token.token for token in attribution.tokens if token.unknown)
    return f"The tokenizer knows no word of this text: the model reads {token} for each."


def _said_of_words(attribution: ExplainedText) -> list[str]:
    check, none_leads = attribution.check, _none_leads(attribution)
    if check is None:
        return [none_leads] if none_leads else _without_check(attribution)
    said = word_check(attribution)
    sentences = [none_leads if said.none_leads else said.answer]
    if none_leads and check.without_leading < MOST * check.probability:
        sentences.append(said.answer)
    undecided = ""  # which is told first: there is little to explain
    if is_nearly_undecided(attribution):
        assert check.change is not None
        second = f"{printable(check.change.second_decision)} {format_probability(check.change.second_probability)}"
        first = f"{attribution.target_label} {format_probability(check.probability)}"
        undecided = f"The model is nearly undecided: {first}, {second}."
    if is_undecided(attribution):
        undecided = f"The model is undecided: nothing has more than {format_probability(check.probability)}."
    if only_together(attribution):
        sentences.append(f"None of them alone lowers {quantity(attribution.measured)} by 1% of its value.")
    if only_together(attribution) or _is_much_deleted(attribution, check):
        sentences.append("The text that is left may be unlike those that the model was trained on.")
    n_leading = len(ranked_words(attribution)[0])
    few = check.change is not None and n_leading > _MANY and 2 * len(check.change.parts) <= n_leading
    sentences.insert(0 if few else len(sentences), change_sentence(said))  # the few say more than the many
    sentences.insert(0, undecided)
    if not is_predicted(attribution):
        sentences.append(_against(attribution))
        if is_improbable(attribution) and attribution.target != attribution.predicted:
            which = "most probable label" if attribution.multi_label else "predicted class"
            sentences.append(f"To see which words decide, explain {attribution.predicted_label}, the {which}.")
    return list(filter(None, sentences))


def is_undecided(attribution: ExplainedText) -> bool:
    """Whether the most probable class, answer or word has less than 10%, and enough for an explanation."""
    about, is_low = attribution.explained, attribution.target_probability < _LITTLE
    is_one = about is None or about.kind in ("answer", "mask")  # of an entity it is a product over its words
    is_known = is_one and not attribution.multi_label and is_predicted(attribution)
    return is_low and is_known and not is_improbable(attribution)


def is_nearly_undecided(attribution: ExplainedText) -> bool:
    """Whether the second class has nearly as much, and a word that does not lead changes the prediction alone."""
    check = attribution.check
    if check is None or check.change is None or attribution.explained is not None:
        return False
    alone = dict(check.change.alone).keys()
    return check.probability - check.change.second_probability <= _UNDECIDED and not alone <= {*check.leading}


def _is_much_deleted(attribution: ExplainedText, check: DeletionCheck) -> bool:
    """Whether many words lead, at least a third of all, and the prediction changes without them."""
    n_leading = len(ranked_words(attribution)[0])
    changes = bool(check.decision) and check.decision != attribution.predicted_label
    return changes and n_leading > _MANY and 3 * n_leading >= len(_deletable(attribution))


def _without_the_first(attribution: ExplainedText, check: DeletionCheck) -> str:
    """The probability without the first of many leading words, that do half of what all of them do; else empty."""
    leading = ranked_words(attribution)[0]
    if len(leading) <= _NAMED or check.without_leading > SAME * check.probability:
        return ""
    halfway = (check.probability + check.without_leading) / 2
    count = next((n for n, row in enumerate(leading, 1) if row.without_so_far <= halfway), len(leading))
    # The sentence about those that change the prediction has the number of the other class.
    is_told = check.change is not None and {row.number for row in leading[:count]} == {*check.change.parts}
    if count > len(leading) // 2:
        if len(leading) <= _MANY:
            return ""
        spread = "What decides is spread over many words"
        if check.change is not None:  # the sentence about these has a number, too
            return f"{spread}."
        chance = format_probability(leading[count - 1].without_so_far)
        return f"{spread}: without the first {count} of them {attribution.measured} is still {chance}."
    if is_told:
        return ""
    which = f"the first {count} leading words" if count > 1 else "the first leading word alone"
    still = f"{attribution.measured} is still {format_probability(leading[count - 1].without_so_far)}"
    return f"Without {which} {still}."


def _none_leads(attribution: ExplainedText) -> str:
    """That words were deleted, and no small group of them leads; else empty."""
    is_measured = any(effect is not None for effect in attribution.effects)
    silent = is_improbable(attribution) or needs_hardly_anything(attribution)
    if not is_measured or silent or ranked_words(attribution)[0]:
        return ""
    n_measured = sum(effect is not None for effect in attribution.effects)
    if n_measured < 2:
        return ""
    group = f"no small group of the {n_measured} words that were deleted together"
    return f"No word leads: {group} lowers {quantity(attribution.measured)} by 1% of its value."


def _without_check(attribution: ExplainedText) -> list[str]:
    """The probability without the leading words by their removal; empty where none was removed."""
    leading, _ = ranked_words(attribution)
    if not leading or math.isnan(leading[-1].without_so_far) or is_improbable(attribution):
        return []
    before = format_probability(attribution.target_probability)
    after = format_probability(leading[-1].without_so_far)
    quoted = [f'"{row.name}"' for row in leading]
    named = enumerated(quoted[:_NAMED], max(len(quoted) - _NAMED, 0))
    changes = f"stays at {after}" if before == after else f"falls from {before} to {after}"
    return [f"Without {named} {attribution.measured} {changes} (not checked against other words)."]


def word_check(attribution: ExplainedText) -> CheckSentences:
    """The check of a text in words; it must have one."""
    check, deletable = attribution.check, _deletable(attribution)
    assert check is not None
    others, n_leading = deletable[check.n_removed :], len(ranked_words(attribution)[0])
    n_named = max(n_leading, check.n_removed)
    decision = check.decision if attribution.target_label == attribution.predicted_label else ""
    words = [visible(word.word) for word in attribution.words]
    marks = [is_punctuation(word.word) for word in attribution.words]
    n_words = sum(not marks[i] for i in deletable)
    n_leading_words = sum(not row.is_punctuation for row in ranked_words(attribution)[0])
    copies, places = Counter(words), word_places(attribution)
    texts = [names_of_texts(attribution)[word.sequence or 0] for word in attribution.words]
    predicts = "still predicts" if decision == attribution.predicted_label else "predicts"
    of_decision = check.decision_probability or 0.0
    # Of two classes the other probability says it.
    is_told = predicts == "predicts" and 0 < of_decision < SAME * (1 - check.without_leading)
    chance = f" ({format_probability(of_decision)})" if is_told else ""
    return CheckSentences(
        check,
        n_leading,
        len(deletable),
        attribution.measured,
        names=[visible(attribution.words[i].word) for i in deletable[:n_named]],
        places=[texts[i] for i in deletable[:n_named]] if attribution.pair is not None else (),
        where=[places[i] for i in deletable[:n_named]],
        copies=Counter(zip(words, texts, strict=True)) if attribution.pair is not None else Counter(words),
        is_improbable=is_improbable(attribution),
        doubt="the model may expect another number of texts" if attribution.doubt else "",
        caveat=averages_sentence(attribution, "this text"),
        is_opposed=bool(opposing(attribution)) or is_lowered(attribution),
        less=_without_the_first(attribution, check),
        then=f"{predicts} {_quoted_decision(attribution, decision)}{chance}" if decision else "",
        most_lead=2 * n_leading_words > n_words > 1,
        counted=f"{n_leading_words} of {n_words} without punctuation marks" * (n_words < len(deletable)),
        n_marks=max(0, check.n_removed - sum(not marks[i] for i in others)),
        spelled=[
            f'"{word}" ({place})' if copies[word] > 1 else f'"{word}"'
            for word, place in zip(words, places, strict=True)
        ],
        marks=marks,
        n_alone=sum(row.is_deleted for of in ranked_words(attribution) for row in of),
        other=lowest_alone([row for row in ranked_words(attribution)[1] if row.number in others]),
        shares=attribution.shares,
    )


def _quoted_decision(attribution: ExplainedText, decision: str) -> str:
    """What the model predicts: answers and words at a mask token in quotes."""
    about = attribution.explained
    is_text = about is not None and about.kind in ("answer", "mask") and decision != "no answer"
    return f'"{visible(decision)}"' if is_text else decision


def verdict(attribution: ExplainedText) -> str:
    """What a check says of the leading words, one of ``VERDICTS``; empty where it says nothing or there is none."""
    return "" if attribution.check is None else word_check(attribution).verdict


def only_together(attribution: ExplainedText) -> bool:
    """Whether the probability falls without the leading words, and without none of them alone."""
    leading, check = [row for row in ranked_words(attribution)[0] if row.is_deleted], attribution.check
    if check is None or word_check(attribution).verdict not in CONFIRMING:
        return False
    every = len(leading) == len(ranked_words(attribution)[0]) > 1
    return every and min(row.without for row in leading) >= SAME * check.probability


def has_other_order(attribution: ExplainedText) -> bool:
    """Whether another leading word than the first lowers the probability most when it is deleted alone."""
    leading, check = [row for row in ranked_words(attribution)[0] if row.is_deleted], attribution.check
    if check is None or len(leading) < 2:
        return False
    return bool(min(row.without for row in leading) <= min(MOST * leading[0].without, SAME * check.probability))


def opposing(attribution: ExplainedText) -> list[ListedPart]:
    """Words without which alone the probability is much higher, the most first, as far as they were deleted alone."""
    rows = [row for of in ranked_words(attribution) for row in of if row.relation == SPEAKS_AGAINST]
    return sorted(rows, key=lambda row: -row.without)


def _against(attribution: ExplainedText) -> str:
    """Words that speak against the target; empty without any."""
    every = opposing(attribution)
    if not every:
        return ""
    # "1 more" hides no single one.
    rows, label = every[: _MOST_OPPOSING + (len(every) == _MOST_OPPOSING + 1)], attribution.target_label
    named = enumerated([named_words([row], "to") for row in rows], len(every) - len(rows))
    which = ("it", "either")[len(every) - 1] if len(every) <= 2 else "any one of them"
    return f"{named} may speak against {label}: {attribution.measured} rises when {which} is deleted alone."


def hidden_evidence(attribution: ExplainedText) -> list[ListedPart]:
    """Words that do not lead, and without which alone much of the probability is lost; of short texts all are tried."""
    return [row for row in ranked_words(attribution)[1] if row.matters_alone]


def least_effect(attribution: ExplainedText) -> str:
    """Whether the probability "rises" or "falls" without the words with the fewest bits, where that says something."""
    check = attribution.check
    if check is None:
        return ""
    # Deletion of any words can raise it.
    rises = check.without_least >= max(check.probability + LARGE_DROP, check.without_random + LARGE_DROP / 2)
    falls = check.without_least <= MOST * min(check.probability, check.without_random)
    falls = falls and not is_improbable(attribution)
    leading = {row.number for row in ranked_words(attribution)[0]}
    # With few words some of the least lead, too.
    # One of them alone that speaks against the target is in the list.
    is_told = rises and any(row.number in check.least for row in opposing(attribution))
    are_others = leading.isdisjoint(check.least) and check.n_removed < len(_deletable(attribution))
    if is_told or not (rises or falls) or not are_others:
        return ""
    return "rises" if rises else "falls"


def bits_of_another(attribution: ExplainedText) -> str:
    """That the word with the most bits does not lead, and that its deletion lowers nothing; else empty."""
    leading, rest = ranked_words(attribution)
    row = max((*leading, *rest), key=lambda row: row.share, default=None)
    if row is None or not leading or row in leading or row.share < MANY_BITS or not has_percentages(attribution):
        return ""
    if is_improbable(attribution) or not row.without >= SAME * attribution.target_probability:  # NaN: not deleted
        return ""
    return (
        f"{named_words([row])} has the most bits ({row.share:.1%}), and its deletion alone does not lower "
        f"{attribution.measured} ({format_probability(row.without)} without it)."
    )


def not_tried(attribution: ExplainedText) -> str:
    """How few words a check deleted together, or alone, where others may matter, too; else empty.

    That is in a long text, and where the model makes the same prediction without the leading words.
    """
    if attribution.check is None or is_improbable(attribution):
        return ""
    deletable, decision = _deletable(attribution), attribution.check.decision
    n_words = len(deletable)
    n_together = sum(effect is not None for effect in attribution.effects)
    n_alone = sum(row.is_deleted for of in ranked_words(attribution) for row in of)
    others = [i for i in deletable if n_together and attribution.effects[i] is None]
    if not n_together or all(is_punctuation(attribution.words[i].word) for i in others):
        return ""
    is_long = n_words > ALL_DELETED_ALONE
    if not is_long and decision != attribution.target_label:
        return ""
    alone = f", and {n_alone} were deleted alone" * is_long
    of = f"{n_together} of the {n_words} words and punctuation marks were tried as leading words{alone}"
    chosen = f"{of}, chosen by bits{' and gradients' * is_long}"
    return f"{chosen}: others may matter, too (rerank, --rerank, measures more)."


def _deletable(attribution: ExplainedText) -> list[int]:
    """Numbers of the words that a check can delete, most bits first: what is explained is never deleted."""
    about, words = attribution.explained, attribution.words
    return [i for i in ranking(attribution) if about is None or not about.holds(*place_in_texts(words[i]))]


def named_words(rows: Sequence[ListedPart], to: str = "") -> str:
    """Words with their places, and with the probability without each alone after ``to``."""
    words = [
        f'"{row.name}" ({row.place}{f", {to} {format_probability(row.without)}" if to else ""})'
        for row in rows[:_NAMED]
    ]
    return enumerated(words, max(len(rows) - _NAMED, 0))
