"""What was found in a text, as sentences: repeats, unknown words, what was not tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from captum_iba._reading.check_sentences import MOST_LEAD, ONLY_ONE, summary
from captum_iba._reading.decision import is_predicted
from captum_iba._reading.mask_sentences import THESE_ALONE, remark, remark_on_bits, through_the_mask
from captum_iba._reading.mask_state import (
    averages_disagree,
    has_hardly_any_bits,
    has_percentages,
    is_improbable,
    is_measured,
    lost_prediction,
)
from captum_iba._reading.order import has_neutral_statistics, nearly_tied, ranking
from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.rows import ListedPart
from captum_iba._reading.thresholds import is_unexplained
from captum_iba._reading.word_sentences import (
    least_effect,
    named_words,
    not_tried,
    word_check,
)
from captum_iba._reading.wording import NEUTRAL_TEXTS, capitalized, enumerated, format_probability, visible
from captum_iba._reading.words import not_listed, ranked_words

_NAMED, _LONGEST = 5, 40


def notes(attribution: ExplainedText) -> list[str]:
    """Sentences on unknown words, repeats, and what was not tried, as far as there are such.

    Not among them are the doubt of the input, the answer and the check
    (:mod:`~captum_iba._reading.word_sentences`), and what is said of the bits (:func:`what_bits_keep`).
    """
    return [*findings_in_words(attribution), *qualifications(attribution)]


def findings_in_words(attribution: ExplainedText) -> list[str]:
    """The sentences of :func:`notes` that pages show above the list: on unknown words and repeats."""
    sentences = list(filter(None, [unknown_words(attribution), _least(attribution)]))
    if len(attribution.repeated_shares) and attribution.words:
        some_tied = any(row.tied for row in ranked_words(attribution)[0])
        tied = "≈: the order with a neighbor in the list differs between them" if some_tied else ""
        if has_neutral_statistics(attribution):
            leads = capitalized(_leader(attribution)) + (f" ({tied})" if tied else "")
            sentences.append(
                f"{leads}. The statistics are those of {NEUTRAL_TEXTS}, so no ± is shown: with statistics of texts "
                "like yours the leading words can change by more than between repeats."
            )
        else:
            legend = "; ".join(filter(None, [_spread(attribution), tied]))
            sentences.append(f"{capitalized(_leader(attribution))}{f' ({legend})' if legend else ''}.")
    elif close := close_words(attribution):
        of = "texts like yours" if has_neutral_statistics(attribution) else "other texts"
        named = named_words(close) if len(close) <= _NAMED else f"The first {len(close)} words of the list"
        sentences.append(f"{named} are close in bits. With statistics of {of} another of them may lead.")
    return sentences


def qualifications(attribution: ExplainedText) -> list[str]:
    """The sentences of :func:`notes` that pages show below the list: what was not tried, and the statistics."""
    sentences = list(filter(None, [not_listed(attribution), not_tried(attribution)]))
    if is_uncertain(attribution) and not close_words(attribution):
        sentences.append(
            f"The statistics are those of {NEUTRAL_TEXTS}. With statistics of texts like yours (estimate_statistics, "
            "--statistics-from) other words may lead, and the check may say otherwise."
        )
    return sentences


def notes_of_all(attributions: Sequence[ExplainedText]) -> list[str]:
    """The :func:`qualifications` that all of several texts have; none of a single one."""
    first, *others = [qualifications(one) for one in attributions] or [[]]
    return [said for said in first if all(said in of_one for of_one in others)] if others else []


def what_bits_keep(attribution: ExplainedText) -> str:
    """What the model gives through the mask, and what is wrong with the bits, for where these are shown."""
    through, wrong = through_the_mask(attribution), remark_on_bits(attribution)
    said = f"{capitalized(through)}." if through and THESE_ALONE not in wrong else ""
    return " ".join(filter(None, [said, "" if wrong and wrong == remark(attribution) else wrong]))


def _least(attribution: ExplainedText) -> str:
    """That the words with the fewest bits speak against the target, or matter, by their deletion; else empty."""
    effect, check = least_effect(attribution), attribution.check
    if check is None or not effect:
        return ""
    words, they = ("words", "they") if check.n_removed > 1 else ("word", "it")
    said = word_check(attribution)
    named, other = said.listed(check.least, any_number=True), said.other_of_fewest
    count = f"{check.n_removed} " * (check.n_removed > 1)
    which = f"the {count}{other}{words} with the fewest bits{f', {named},' * bool(named)}"
    says = f"may speak against {attribution.target_label}"
    if effect == "falls":
        says = f"matter{'s' * (check.n_removed == 1)}, too"
    chance = format_probability(check.without_least)
    return f"Without {which} {attribution.measured} {effect} to {chance}: {they} {says}."


def is_uncertain(attribution: ExplainedText) -> bool:
    """Whether other words may lead with other statistics than those of neutral texts."""
    leads = bool(ranked_words(attribution)[0])
    return leads and has_neutral_statistics(attribution) and not len(attribution.repeated_shares)


def close_words(attribution: ExplainedText) -> list[ListedPart]:
    """The leading words that other statistics may order otherwise; none where repeats have tried that."""
    close = ranked_words(attribution)[0][: len(nearly_tied(attribution))]
    return close if len(close) > 1 and not len(attribution.repeated_shares) else []


def unknown_words(attribution: ExplainedText) -> str:
    """Which words the tokenizer does not know; empty without such."""
    numbers = sorted({token.word for token in attribution.tokens if token.unknown and token.word is not None})
    if not numbers:
        return ""
    token = next(token.token for token in attribution.tokens if token.unknown)
    spelled = list(dict.fromkeys(visible(attribution.words[i].word) for i in numbers))
    quoted = [f'"{word if len(word) <= _LONGEST else word[: _LONGEST - 1] + "…"}"' for word in spelled[:_NAMED]]
    words = enumerated(quoted, max(len(spelled) - _NAMED, 0))
    are = "is" if len(spelled) == 1 else "are"
    return f"{words} {are} unknown to the tokenizer. The model reads {token}, as for every unknown word."


def _adds_little(attribution: ExplainedText) -> bool:
    """Whether average activations give the class about as much as the text; of an improbable one that says nothing."""
    is_said = averages_disagree(attribution)  # by the answer
    known = not (is_said or is_improbable(attribution) or lost_prediction(attribution))
    return known and is_unexplained(attribution.target_probability, attribution.closed_probability)


def verdicts(attributions: Sequence[ExplainedText], ids: Sequence[Any] | None = None) -> str:
    """What the checks of several texts say together, in one line; empty of fewer than two checks.

    Texts are named by their ``ids``. Default: their numbers from 1.
    """
    if sum(item.check is not None for item in attributions) < 2:
        return ""
    lost = [
        number
        for number, item in enumerate(attributions, 1)
        if not (item.check is not None and is_measured(item)) and lost_prediction(item)
    ]
    unexplained = [number for number, item in enumerate(attributions, 1) if _adds_little(item)]
    checks = [None if item.check is None else word_check(item) for item in attributions]
    sentences = [summary(checks, "" if all(item.explained is None for item in attributions) else "explanation")]
    if unexplained:
        named = _numbered(unexplained, ids)
        its = "their" if len(unexplained) > 1 else "its"
        gives = f"the model gives {its} class nearly as high a probability, or a higher one"
        sentences.append(f"With average activations in place of {named}, {gives}.")
    if lost:
        bits = f"{'its' if len(lost) == 1 else 'their'} bits are not shown as percentages"
        sentences.append(f"In {_numbered(lost, ids)} the mask removed too much, so {bits}.")
    return " ".join(sentences)


def _numbered(numbers: Sequence[int], ids: Sequence[Any] | None) -> str:
    """Texts by their numbers, "text 4", "texts 1, 3 and 2 more", or by their ids: "line 9"."""
    names = [str(number if ids is None else ids[number - 1]) for number in numbers[:_NAMED]]
    named = enumerated(names, max(0, len(numbers) - _NAMED))
    has_unit = ids is not None and all(name.startswith("line ") for name in names)
    return named if has_unit else f"text{'s' * (len(numbers) > 1)} {named}"


def not_judged(attribution: ExplainedText) -> str:
    """That a check says nothing of the leading words, and why; empty without a check."""
    why = "" if attribution.check is None else word_check(attribution).why_no_verdict
    nothing_left = (MOST_LEAD.format("word"), ONLY_ONE.format("word"))
    return f"{'not compared' if why in nothing_left else 'no verdict'}: {why}" if why else ""


def is_missed(attribution: ExplainedText, gold: str | None, labels: Sequence[str] | None) -> bool:
    """Whether a gold label is one of the model's classes, ``labels``, and not a predicted one."""
    predicted = {label for label, _ in attribution.other_labels}
    if is_predicted(attribution):
        predicted.add(attribution.target_label)
    elif not attribution.multi_label:
        predicted.add(attribution.predicted_label)
    return gold in (labels or ()) and gold not in predicted


def missed_labels(
    attributions: Sequence[ExplainedText], golds: Sequence[str | None] | None, labels: Sequence[str] | None
) -> str:
    """Of how many texts the gold label is not predicted; empty for one text, and where no label is a class."""
    known = [pair for pair in zip(attributions, golds or (), strict=False) if pair[1] in (labels or ())]
    if len(known) < 2:
        return ""
    n_missed = sum(is_missed(item, gold, labels) for item, gold in known)
    if not n_missed:
        return f"The gold label is predicted for all {len(known)} texts."
    return f"The gold label is not predicted for {n_missed} of {len(known)} texts."


def percentage_note(attribution: ExplainedText) -> str:
    """Why there are no percentages, or what they are of where that is not what legends say; else empty."""
    if not has_percentages(attribution):
        if not attribution.words or not has_hardly_any_bits(attribution):
            return ""
        return "No word has many bits above the floor, so there are no percentages."
    of_words = not attribution.unneeded_bits and any(token.special and token.bits for token in attribution.tokens)
    return "Percentages are of the bits of all words, without special tokens." if of_words else ""


def preset_note(attribution: ExplainedText) -> str:
    """The preset; of the default with a smaller ``beta`` also why, and that its bits stand for themselves."""
    if not attribution.preset.startswith("default, beta"):
        return attribution.preset
    why = "the smallest that is tried" if lost_prediction(attribution) else "lowered, because the mask removed too much"
    return f"{attribution.preset} ({why}; its bits do not compare with those of another text)"


def _spread(attribution: ExplainedText) -> str:
    """What repeats do to the percentages: the largest ± where lists begin with words that were measured."""
    if all(effect is None for effect in attribution.effects):
        return "±: standard deviation over them"
    if not has_percentages(attribution):
        return ""
    largest = float(attribution.shares_std.max())
    return f"percentages of the bits have a standard deviation of {100 * largest:.1f} points or less over them"


def _leading_in_repeats(attribution: ExplainedText) -> str:
    """Which words lead in each repeat, and which in some of them."""
    leading = [row.number for row in ranked_words(attribution)[0]]
    of_repeats = attribution.repeated_leading
    times = Counter(number for repeat in of_repeats for number in repeat)
    n_repeats, n_leading = len(of_repeats), len(leading)
    if not leading or not times:
        n_some = sum(map(bool, of_repeats))
        return f"{'some word leads' if n_some else 'no word leads'} in {n_some or n_repeats} of {n_repeats} repeats"
    always = [i for i in leading if times[i] == n_repeats]
    others = [i for i in dict.fromkeys([*leading, *(i for i, _ in times.most_common())]) if i not in always]
    if not others:
        same = {1: "the leading word leads", 2: "both leading words lead"}
        these = same.get(n_leading, f"all {n_leading} leading words lead")
        return f"{these} in each of {n_repeats} repeats, and no other word"
    if len(always) + len(others) > _NAMED:
        new = sum(i not in leading for i in others)
        further = f", and {new} other word{'s' if new > 1 else ''} in some of them" if new else ""
        return f"{len(always)} of the {n_leading} leading words lead in each of {n_repeats} repeats{further}"
    spelled = [f'"{visible(attribution.words[i].word)}"' for i in (*always, *others)]
    said = []
    if always:
        leads = "lead" if len(always) > 1 else "leads"
        said.append(f"{enumerated(spelled[: len(always)])} {leads} in each of {n_repeats} repeats")
    in_some = [
        f"{word} in {times[i]}{'' if always or rank else f' of {n_repeats} repeats'}"
        for rank, (word, i) in enumerate(zip(spelled[len(always) :], others, strict=True))
    ]
    first, *rest = in_some
    said.append(enumerated([first if always else first.replace(" in ", " leads in ", 1), *rest]))
    return ", ".join(said)


def _leader(attribution: ExplainedText) -> str:
    """In how many repeats the first word of the list leads, and in how many no word has bits above the floor."""
    first, repeated = ranking(attribution)[0], attribution.repeated_shares
    if attribution.repeated_leading:
        return _leading_in_repeats(attribution)
    if any(effect is not None for effect in attribution.effects):  # of a file without them
        return f"the percentages are means over {len(repeated)} repeats"
    without = sum(not shares.any() for shares in repeated)
    if not attribution.shares[first] > 0:
        return f"no word leads in {without} of {len(repeated)} repeats"
    leads = sum(bool(shares[first] > 0 and shares[first] == shares.max()) for shares in repeated)
    return (
        f'"{visible(attribution.words[first].word)}" leads in {leads} of {len(repeated)} repeats'
        f"{f', no word in {without}' if without else ''}"
    )
