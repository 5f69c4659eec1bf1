"""The fewest words, regions or parts without which a model predicts another class, in words."""

from __future__ import annotations

from captum_iba._reading.check_sentences import CheckSentences
from captum_iba._reading.removal_check import PredictionChange
from captum_iba._reading.wording import enumerated, format_probability, printable

_FIRST, _MOST_NAMED, _FEW_ALONE, _MANY = 5, 12, 3, 8


def change_sentence(said: CheckSentences) -> str:
    """The fewest words that change the prediction, and those that change it alone; empty where nothing else does.

    The leading words are not told again: the answer says what the model predicts without them.

    Examples::

        >>> from captum_iba._reading.removal_check import DeletionCheck
        >>> change = PredictionChange((0,), "negative", 0.6)
        >>> check = DeletionCheck(2, 0.9, 0.2, 0.9, 0.8, 10, leading=(1, 2), change=change)
        >>> change_sentence(CheckSentences(check, 2, 7, "the probability", spelled=['"dull"', '"a"', '"film"']))
        'Without "dull" alone the model predicts negative (60.0%).'
    """
    check = said.check
    if check.change is None or not said.spelled:
        return ""
    leading = {*check.leading} if said.n_leading else set()
    fewest = "" if {*check.change.parts} == leading else _fewest(said, check.change)
    return f"{fewest} {_alone(said, check.change)}".strip()


def _fewest(said: CheckSentences, change: PredictionChange) -> str:
    named, to = [said.spelled[i] for i in change.parts], printable(change.decision)
    chance = "" if change.probability is None else f" {format_probability(change.probability)}"
    if len(named) == 1:
        predicts = f'prefers "{to}"' if said.noun == "part" else f"predicts {to}"
        return f"Without {named[0]} alone the model {predicts}{f' ({chance[1:]})' * bool(chance)}."
    these = enumerated(named[:_MOST_NAMED], max(len(named) - _MOST_NAMED, 0))
    if len(named) > _FIRST and {*change.parts} == {*said.check.leading[: len(named)]}:
        these = f"the first {len(named)} leading {said.noun}s"
    as_many = change.n_sets - 1
    others = f"; at least {as_many} other set{'s' * (as_many > 1)} of as many {'do' if as_many > 1 else 'does'}, too"
    found = f"The fewest {said.noun}s found that change the {_choice(said)}: {these} ({to}{chance})"
    likely = f" With so many {said.noun}s a smaller set is likely." * (len(named) > _MANY)
    return f"{found}{others * (as_many > 0)}.{likely}"


def _alone(said: CheckSentences, change: PredictionChange) -> str:
    """The words that change the prediction alone, besides a single one that is told already."""
    told = (change.parts, said.check.leading if said.n_leading else ())
    others = [i for i, _ in change.alone if (i,) not in told]
    if not others:
        return ""
    if len(others) <= _FEW_ALONE:
        these = " alone, or without ".join(said.spelled[i] for i in others)
        return f"Without {these} alone, the {_choice(said)} changes, too{_to_other_classes(said, change)}."
    n_leading = len({*others} & {*said.check.leading})
    lead = "all" if n_leading == len(others) else n_leading
    which = f", {lead} of them leading," if n_leading else ""
    kinds = said.kinds if any(said.marks[i] for i in others if said.marks) else f"{said.noun}s"
    is_partly_tried = 0 < said.n_alone < said.n_words
    tried = f" ({said.n_alone} of {said.n_words} were deleted alone)" * is_partly_tried
    return f"Each of {len(others)} {kinds}{which} changes the {_choice(said)} alone, too{tried}."


def _to_other_classes(said: CheckSentences, change: PredictionChange) -> str:
    """To which classes single words change the prediction, where they are others than those told."""
    classes = dict.fromkeys(printable(to) for i, to in change.alone if (i,) != change.parts)
    is_told = {change.decision, said.check.decision}.issuperset(classes) and len(classes) == 1
    return "" if is_told else f", to {enumerated(list(classes))}"


def _choice(said: CheckSentences) -> str:
    return "choice" if said.noun == "part" else "prediction"
