"""What a check by deletion says: of the leading words together, and of single words."""

from __future__ import annotations

from collections.abc import Sequence

from captum_iba.visualization.drawable import DrawableBits, DrawableCheck
from captum_iba.visualization.mask_sentences import LARGE_DROP, RULED_OUT, is_improbable, is_lowered
from captum_iba.visualization.pieces import format_probability, visible
from captum_iba.visualization.words import (
    ALL_DELETED_ALONE,
    RankedWord,
    has_neutral_statistics,
    least_words,
    place_in_texts,
    ranked_words,
    ranking,
    word_places,
)

# Of the probability that is left: a smaller change is no finding of a check, and a smaller decrease a weak one.
_SAME, _MOST, _MUCH = 0.99, 0.85, 0.75
_MOST_OPPONENTS, _MOST_OPPOSING, _NAMED, _NOTICEABLE = 5, 3, 5, 0.03
_SMALL = 0.05  # of a probability: a smaller decrease is no evidence that bits miss
_SMALLEST = 0.005  # of a probability: a smaller change is none, unless a quarter of it is lost


def check_notes(attribution: DrawableBits, listed: int | None = None) -> list[str]:
    """Sentences on the check of a text, the one on the leading words first; empty without a check.

    ``listed`` is the number of words that the reader sees, by default all.
    """
    check, what = attribution.check, attribution.measured
    if check is None:
        return []
    sentence = check_sentence(
        check,
        check.n_words,
        what,
        "word",
        listed,
        can_contradict=bool(ranked_words(attribution)[0]),
        of_all=check.n_words == len(_deletable(attribution)),
        is_improbable=is_improbable(attribution),
        is_opposed=bool(opposing(attribution)) or is_lowered(attribution),
    )
    further = (_alone, hidden_evidence, _without_least, _not_tried)
    said = [f"{sentence}{_decision(attribution)}", *filter(None, (say(attribution) for say in further))]
    # Of a class that is not predicted, what speaks against it is the answer; else it comes after the leading words.
    against = list(filter(None, [_against(attribution)]))
    is_predicted = attribution.target_label == attribution.predicted_label
    return [said[0], *against, *said[1:]] if is_predicted else [*against, *said]


def check_sentence(
    check: DrawableCheck,
    count: int,
    what: str,
    noun: str,
    listed: int | None = None,
    can_contradict: bool = True,
    of_all: bool = False,
    is_improbable: bool = False,
    is_opposed: bool = False,
) -> str:
    """The check by deletion: the effect of the leading words first, then those of others, and what follows from it.

    Args:
        check (DrawableCheck): Probabilities.
        count (int): Number of words that are deleted.
        what (str): What has the probability: "the probability of positive".
        noun (str): What is deleted: "word".
        listed (int, optional): Number of words that the reader sees. Default: None, all.
        can_contradict (bool): Whether words lead, so that it is worth a sentence if random words lower the
            probability as much. Default: True.
        of_all (bool): Whether the deleted words are all that there are, so that there is nothing to compare with.
            Default: False.
        is_improbable (bool): Whether the model gives it little probability with all words, too. Default: False.
        is_opposed (bool): Whether the deletion of some word raises it by much, so that there is something to explain.
            Default: False.

    Returns:
        str: One or two sentences.

    Examples::

        >>> from captum_iba.text.result import DeletionCheck
        >>> check = DeletionCheck(2, 0.9, 0.2, 0.91, 0.8, 10)
        >>> check_sentence(check, check.n_words, "the probability", "word")[:71]
        'Check: without the leading 2 words the probability falls (90.0% to 20.0'
    """
    left = fraction_left(check)
    falls = "falls" if left <= _MOST else "falls a little"
    verb = falls if left <= _SAME else "rises" if left >= 1 / _SAME else "hardly changes"
    several = f"{count} " if count > 1 else ""
    words = f"{noun}s" if several else noun
    at_random = f"{several}other {words} at random" if several else f"another {noun} at random"
    mean = f" (mean of {check.n_random})"
    if check.n_random == 1:  # there is no other set
        at_random, mean = f"the {several}other {words}", ""
    probabilities = (check.probability, check.without_leading, check.without_random, check.without_least)
    whole, leading, random, least = map(format_probability, probabilities)
    deleted = f"the leading {several}{words}"
    if of_all:
        deleted = f"{'all' if several else 'the'} {several}{words}"
    elif not can_contradict:  # none leads
        deleted = f"the {several}{words} with the most bits"
    elif listed is not None and listed > count:  # at most half are deleted
        deleted = f"the first {several}of the {listed} listed {noun}s"
    elif listed is not None and listed < count:
        deleted += f" ({listed} of them listed)" if listed else " (not listed)"
    sentence = f"Check: without {deleted} {what} {verb} ({whole} to {leading})"
    if not of_all:
        sentence += f"; without {at_random} it is {random}{mean}"
        if check.n_random > 1 or random != least:  # else they are the same
            sentence += f", without the {several}{words} with the fewest bits {least}"
    sentence += "."
    if is_improbable:
        little = "" if is_opposed else ": there is little to explain"
        if check.probability < RULED_OUT:  # what changes there are no digits show
            nothing = f"next to nothing ({format_probability(check.probability)})"
            return f"Check: with all {noun}s, too, {what} is {nothing}{little}."
        return f"{sentence} With all {noun}s, too, {what} is small{little}."
    if of_all:
        return sentence
    if can_contradict and not confirms(check):
        others = at_random.removeprefix(several)
        if check.without_leading < check.without_random:
            others = f"the {words} with the fewest bits"
        sentence += (
            f" Deleting the leading {words} lowers it no more than deleting {others}: the check does not confirm the "
            f"leading {words}."
        )
    elif can_contradict and left > _SAME:
        why = f"the model does not depend on the leading {words} alone"
        if listed is not None and listed > count:
            why = f"it deletes at most half of all {noun}s, and the model does not need these"
        sentence += f" The check does not confirm the leading {words}: {why}."
    elif can_contradict and left > _MOST:
        sentence += f" The check confirms the leading {words} weakly: most of the probability is left without."
    return sentence


def fraction_left(check: DrawableCheck) -> float:
    """Fraction of the probability that is left without the leading words; 1 where the change is small by itself."""
    if check.probability <= 0:
        return 1.0
    left = check.without_leading / check.probability
    is_small = abs(check.without_leading - check.probability) < _SMALLEST and left > _MUCH
    return 1.0 if is_small else left


def confirms(check: DrawableCheck) -> bool:
    """Whether the probability is lower without the leading words than without others, at random or the least."""
    return check.without_leading < min(check.without_random, check.without_least)


VERDICTS = ("falls", "falls a little", "not confirmed")
"""What the probability does without the leading words: the last, no more than without others, or not by 1%."""


def verdict(attribution: DrawableBits) -> str:
    """One of :data:`VERDICTS`; empty where a check says nothing of the order.

    That is where there is none, where no word leads or all are deleted, and for a class of little probability.
    """
    check = attribution.check
    if check is None or is_improbable(attribution) or not ranked_words(attribution)[0]:
        return ""
    if check.n_words == len(_deletable(attribution)):
        return ""
    left = fraction_left(check)
    if not confirms(check) or left > _SAME:
        return VERDICTS[2]
    return VERDICTS[1] if left > _MOST else VERDICTS[0]


def only_together(attribution: DrawableBits) -> bool:
    """Whether the probability falls without the leading words, and without none of them alone."""
    leading = [row for row in ranked_words(attribution)[0] if row.alone]
    falls = verdict(attribution) in VERDICTS[:2]
    all_tried = len(leading) == len(ranked_words(attribution)[0]) > 1
    return falls and all_tried and sum(map(len, _without_effect_alone(attribution))) == len(leading)


def _alone(attribution: DrawableBits) -> str:
    """What the leading words do when each is deleted alone, where that is not their order."""
    check, every = attribution.check, ranked_words(attribution)[0]
    leading = [row for row in every if row.alone]
    if check is None or len(leading) < 2:  # of one the check has said it
        return ""
    raising, idle = _without_effect_alone(attribution)
    against = opposing(attribution)
    milder = [row for row in raising if row not in against]  # the others have a sentence of their own
    strongest = min(leading, key=lambda row: row.without)
    said = []
    if has_other_order(attribution):
        said.append(
            f"{named_words([strongest])} lowers the probability most, to {format_probability(strongest.without)}"
        )
    if len(leading) > 1 and strongest.without <= _MUCH * check.without_leading < _MUCH * _SAME * check.probability:
        together = "all of them" if check.n_words >= len(every) else f"the first {check.n_words}"
        said = [f"{named_words([strongest], 'to')} lowers the probability more than {together} together"]
    raised = check.without_leading >= _SAME * check.probability
    if raised and not said and strongest.without <= _MUCH * check.probability:
        said.append(f"{named_words([strongest], 'to')} lowers the probability")
    if milder:
        said.append(f"{named_words(milder, 'to')} raise{'s' * (len(milder) == 1)} the probability")
    which = "leading" if check.n_words >= len(every) else "listed"  # as the sentence of the check calls them
    number = f"{'first ' * (len(leading) < len(every))}{len(leading)} {which} word{'s' * (len(leading) > 1)}"
    if len(raising) + len(idle) == len(leading) > 1:
        raised = f": {said[-1]}" if milder else ""
        # More may lead than the check deletes, and more may be deleted than were tried alone.
        several = f"{'all' if check.n_words > len(leading) else 'the first'} {check.n_words} together"
        together = "together they" if len(leading) == check.n_words else several
        together = f"; {together} lower the probability" if check.without_leading < _SAME * check.probability else ""
        lowers = "lowers the probability by more than 1% of its value"
        return f"Deleted alone, none of the {number} {lowers}{raised}{together}."
    if idle:
        said.append(f"{named_words(idle)} change{'s' * (len(idle) == 1)} the probability by less than 1% of its value")
    if not said:
        return ""
    each = f"Of the {number}, each deleted alone," if len(leading) > 1 else "Deleted alone,"
    sentence = f"{each} {'; '.join(said)}."
    if strongest.without <= _MOST * leading[0].without and not len(attribution.repeated_shares):
        sentence += (
            " Statistics of texts like yours (estimate_statistics, --statistics-from) can give another order."
            if has_neutral_statistics(attribution)
            else " With repeats (repeats=5, --repeats 5) you see whether their order depends on the statistics."
        )
    return sentence


def has_other_order(attribution: DrawableBits) -> bool:
    """Whether another leading word than the first lowers the probability most when it is deleted alone."""
    leading, check = [row for row in ranked_words(attribution)[0] if row.alone], attribution.check
    if check is None or len(leading) < 2:
        return False
    return bool(min(row.without for row in leading) <= min(_MOST * leading[0].without, _SAME * check.probability))


def _without_effect_alone(attribution: DrawableBits) -> tuple[list[RankedWord], list[RankedWord]]:
    """The leading words that raise the probability when they are deleted alone, and those that hardly change it."""
    leading = [row for row in ranked_words(attribution)[0] if row.alone]
    kept = [row for row in leading if row.without >= _SAME * attribution.check.probability]
    raising = [row for row in kept if row.without > attribution.check.probability / _SAME]
    return raising, [row for row in kept if row not in raising]


def opposing(attribution: DrawableBits) -> list[RankedWord]:
    """Words without which alone the probability is higher by more than 0.1, the most first, as far as a check tried."""
    check = attribution.check
    rows = [row for of in ranked_words(attribution) for row in of if row.alone]
    raising = [row for row in rows if check is not None and row.without > check.probability + LARGE_DROP]
    return sorted(raising, key=lambda row: -row.without)


def _against(attribution: DrawableBits) -> str:
    """Words that speak against the target, whether they lead or not."""
    every = opposing(attribution)
    if not every:
        return ""
    # Those that lead first: they are in the list.
    leading = {row.place for row in ranked_words(attribution)[0]}
    every = sorted(every, key=lambda row: row.place not in leading)
    rows, label = every[:_MOST_OPPOSING], attribution.target_label
    if len(every) == 1:
        (row,) = rows
        rises = f"{attribution.measured} rises to {format_probability(row.without)}"
        return f'Without "{row.word}" ({row.place}) alone {rises}: "{row.word}" may speak against {label}.'
    named = [f'"{row.word}" ({row.place}, {format_probability(row.without)})' for row in rows]
    if more := len(every) - len(rows):
        named.append("another" if more == 1 else f"one of {more} others")
    without = f"{', '.join(named[:-1])} or {named[-1]}"
    return f"Without {without} alone {attribution.measured} rises: each may speak against {label}."


def hidden_evidence(attribution: DrawableBits) -> str:
    """Words that do not lead, and without which alone much of the probability is lost; of short texts all are tried."""
    leading, others = ranked_words(attribution)
    # The check has said what happens without those that it deletes first.
    tried = [row for row in (*leading, *others) if row.alone][attribution.check.n_words :]
    most = min(_MUCH * attribution.check.probability, attribution.check.probability - _SMALL)
    hidden = [row for row in tried if row in others and row.without <= most]
    if not hidden or is_improbable(attribution):
        return ""
    hidden = sorted(hidden, key=lambda row: row.without)
    has, lower = ("has", "lowers") if len(hidden) == 1 else ("have", "lower")
    return (
        f"{named_words(hidden, 'to')} {has} fewer bits, and {lower} the probability by more than a quarter of its "
        "value when deleted alone: the bits do not show all the evidence."
    )


def least_effect(attribution: DrawableBits) -> str:
    """Whether the probability "rises" or "falls" without the words with the fewest bits, where that says something."""
    check = attribution.check
    if check is None:
        return ""
    # Deletion of any words can raise it.
    rises = check.without_least >= max(check.probability, check.without_random) + _NOTICEABLE
    falls = check.without_least <= _MOST * check.probability and not is_improbable(attribution)
    deletable = _deletable(attribution)
    numbers = least_words(attribution, deletable, check.n_words)
    if not (rises or falls) or not numbers or check.n_words == len(deletable):
        return ""
    leading = {row.place for row in ranked_words(attribution)[0]}
    if not leading.isdisjoint(word_places(attribution)[i] for i in numbers):
        return ""  # with few words some of them lead, too
    return "rises" if rises else "falls"


def _without_least(attribution: DrawableBits) -> str:
    """What it means if the words with the fewest bits raise the probability, or lower it, when they are deleted."""
    check, effect = attribution.check, least_effect(attribution)
    numbers = least_words(attribution, _deletable(attribution), check.n_words)
    said = opposing(attribution) if effect == "rises" else len(numbers) == 1 and hidden_evidence(attribution)
    if not effect or said:  # of single words it has been said
        return ""
    least = [attribution.words[i].word for i in numbers]
    named = ", ".join(f'"{visible(word)}"' for word in least[::-1][:_MOST_OPPONENTS])
    more = ", …" if len(least) > _MOST_OPPONENTS else ""
    words_with_fewest = f"the word{'s' * (len(least) > 1)} with the fewest bits ({named}{more})"
    if effect == "falls":
        their = "their" if len(least) > 1 else "its"
        return f"Without {words_with_fewest} it falls, too: the model needs more than {their} bits say."
    rises_to = f"the probability rises to {format_probability(check.without_least)}"
    together = "together they may speak" if len(least) > 1 else f'"{visible(least[0])}" may speak'
    return f"Without {words_with_fewest} {rises_to}: {together} against {attribution.target_label}."


def _not_tried(attribution: DrawableBits) -> str:
    """That words which do not lead were not deleted alone, of a text of many words."""
    n_words, check = len(_deletable(attribution)), attribution.check
    if n_words <= ALL_DELETED_ALONE:
        return ""
    n_others = n_words - max(len(check.without_each), check.n_words)
    return f"The text is long: its other {n_others:,} words and marks were not all deleted one by one."


def _decision(attribution: DrawableBits) -> str:
    """Whether the model still predicts the class without the leading words; empty where that is not known."""
    decision = attribution.check.decision
    if not decision or attribution.target_label != attribution.predicted_label:
        return ""
    leading = ranked_words(attribution)[0]
    words = "the leading word" if attribution.check.n_words == 1 else "the leading words"
    if len(leading) != attribution.check.n_words:
        words = "the deleted words" if attribution.check.n_words > 1 else "the deleted word"
    still = "still " * (decision == attribution.predicted_label)
    return f" Without {words} the model {still}predicts {decision}."


def _deletable(attribution: DrawableBits) -> list[int]:
    """Numbers of the words that a check can delete, most bits first: what is explained is never deleted."""
    about, words = attribution.explained, attribution.words
    return [i for i in ranking(attribution) if about is None or not about.holds(*place_in_texts(words[i]))]


def named_words(rows: Sequence[RankedWord], to: str = "") -> str:
    """Words with their places, and with the probability without each alone after ``to``."""
    words = ", ".join(
        f'"{row.word}" ({row.place}{f", {to} {format_probability(row.without)}" if to else ""})'
        for row in rows[:_NAMED]
    )
    return words if len(rows) <= _NAMED else f"{words} and {len(rows) - _NAMED} more"
