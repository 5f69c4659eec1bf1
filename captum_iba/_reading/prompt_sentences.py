"""What is said of an explained response: of the check by removal, the mask, and the choice between two responses."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from captum_iba._reading.change_sentences import change_sentence
from captum_iba._reading.check_sentences import CONFIRMING, NOT_CONFIRMED, CheckSentences, lowest_alone
from captum_iba._reading.mask_sentences import through_mask, unexplained
from captum_iba._reading.protocols import ExplainedResponse
from captum_iba._reading.removal_check import PromptCheck
from captum_iba._reading.rows import SPEAKS_AGAINST
from captum_iba._reading.thresholds import (
    LARGE_DROP,
    MOST,
    NEARLY_ALL,
    NEARLY_AS_MUCH,
    NOTICEABLE,
    SAME,
    fraction_left,
    is_lost,
    is_unexplained,
    lowers_it,
    rises_much,
)
from captum_iba._reading.wording import brief, capitalized, enumerated, format_probability, printable, quantity
from captum_iba._reading.wording import visible as with_symbols

_NAMED = 3
_HALF, _EACH = 0.5, "Each of them alone"
_EVEN = 0.45  # of a choice, up to one half: it prefers neither response
_CANCEL = "The parts for and against the response cancel out"
_DISAGREE = "Two measures disagree"
CUT_OFF = "Generation stopped at the largest number of new tokens (max_new_tokens): the response may be incomplete."
SYSTEM = "The system message is not explained: it has no parts (include_system, --include-system)."
LEAST_PROBABILITY, UNLIKELY = 1e-3, 1e-2
"""Per token. Models give a response in other words, or without the space before it, less than the second; of the first
there is little to explain."""


def answer(response: ExplainedResponse) -> str:
    """The answer of the check: the probability without the leading parts; without a check nothing of these.

    Of a choice between responses of several tokens it has the probabilities of the wholes, too. A system message
    that is not explained is told here, because it may be what the response needs most.
    """
    said, wholes = "" if response.check is None else part_check(response).answer, _whole_responses(response)
    sentences = [wholes, said] if wholes.startswith(_DISAGREE) else [_preferred(response), said, wholes]
    change = "" if response.check is None else change_sentence(part_check(response))
    lowered, together = _unexplained(response) if lowers_response(response) else "", _only_together(response)
    if is_unsupported(response):
        sentences.insert(0, _unexplained(response))
    beside = [
        together,
        change,
        "" if together.startswith(_EACH) else _risen(response),
        _risen_without_others(response),
        _next_to_response(response),
        lowered,
        _unlikely(response),
        SYSTEM * bool(response.system),
    ]
    return " ".join(filter(None, [*sentences, *beside]))


def is_unsupported(response: ExplainedResponse) -> bool:
    """Whether a response has nearly as much with all parts masked, and no check confirms its leading parts."""
    is_said = gives_as_much(response) and not lowers_response(response)
    return is_said and response.check is not None and part_verdict(response) not in CONFIRMING


def is_pale(response: ExplainedResponse) -> bool:
    """Whether bars and colors are pale: a check does not confirm the leading parts, or the prompt adds little."""
    return part_verdict(response) == NOT_CONFIRMED or is_unsupported(response)


def lowers_response(response: ExplainedResponse) -> bool:
    """Whether the prompt lowers the probability that a response has with all parts masked."""
    return gives_as_much(response) and lowers_it(response.probability, response.closed_probability)


def _only_together(response: ExplainedResponse) -> str:
    """That no leading part lowers the probability alone; else empty."""
    leading = () if response.check is None else response.check.leading
    alone = [probability_without(response, response.parts[i]) for i in leading]
    if response.check is None or len(alone) < 2 or not min(alone) >= SAME * response.probability:
        return ""
    if fraction_left(response.check) > SAME:
        return ""
    if min(alone) > response.probability + NOTICEABLE:
        return f"{_EACH} raises it, to {enumerated(list(map(format_probability, alone)))}."
    return f"None of them alone lowers {quantity(response.measured)} by 1% of its value."


def _risen(response: ExplainedResponse) -> str:
    """Without which part alone the probability rises most, if it is a leading one or changes the choice; else empty."""
    alone = [probability_without(response, part) for part in response.parts]
    known = [i for i, chance in enumerate(alone) if not math.isnan(chance)]
    if not known or response.check is None:
        return ""
    most = max(known, key=alone.__getitem__)
    changes = response.contrast is not None and response.probability < _HALF < alone[most]
    leads = response.parts[most] in response.leading
    if not (changes or leads) or not rises_much(response.probability, alone[most]):
        return ""
    prefers = f', and the model prefers "{printable(with_symbols(response.explained).strip())}"' * changes
    chance = format_probability(alone[most])
    return f"Without {_quoted(response, response.parts[most])} alone it rises to {chance}{prefers}."


def _risen_without_others(response: ExplainedResponse) -> str:
    """That the probability rises much without all parts that do not lead; else empty."""
    check = response.check
    if check is None or not response.leading:
        return ""
    n_others = len(response.parts) - len(response.leading)
    is_rest = n_others == check.n_removed == len(check.least)
    left = check.without_rest if check.without_rest is not None else check.without_least if is_rest else None
    if left is None or not rises_much(check.probability, left):
        return ""
    others = f"{n_others} other parts" if n_others > 1 else "other part"
    return f"Without the {others} it rises to {format_probability(left)}."


def _next_to_response(response: ExplainedResponse) -> str:
    """That a leading word stands directly before the response, which may then no longer follow; else empty."""
    last = response.parts[-1]
    is_last = not response.prompt[last.end :].strip() and response.granularity in ("token", "word")
    if not is_last or len(response.parts) < 2 or last not in response.leading or response.check is None:
        return ""
    return f"{_quoted(response, last)} stands directly before the response: without it other words may come next."


def _preferred(response: ExplainedResponse) -> str:
    """That the model prefers the other response of a choice; else empty."""
    if response.contrast is None or response.probability >= 0.5:
        return ""
    return f"The model {_prefers_other(response)} ({format_probability(1 - response.probability)})."


def _preferred_without(response: ExplainedResponse, check: PromptCheck) -> str:
    """What a model does with a choice without the leading parts, where it prefers another response; else empty."""
    if response.contrast is None or not check.without_leading < 0.5 <= response.probability:
        return ""
    return "is undecided" if check.without_leading >= _EVEN else _prefers_other(response)


def _prefers_other(response: ExplainedResponse) -> str:
    return f'prefers "{printable(with_symbols(response.contrast or "").strip())}"'


def part_verdict(response: ExplainedResponse) -> str:
    """What the check says of the leading parts, one of ``VERDICTS``; empty where it says nothing or there is none."""
    return "" if response.check is None else part_check(response).verdict


def prompt_notes(response: ExplainedResponse) -> list[str]:
    """Sentences beside the answer and the check: on parts that were not removed, the choice, and the prompt."""
    lost = _lost(response) if response.check is None else ""
    said = [
        _least(response),
        lost,
        "" if lowers_response(response) or is_unsupported(response) else _unexplained(response),
    ]
    return list(filter(None, [*said, _cut(response)]))


def is_unlikely(response: ExplainedResponse) -> bool:
    """Whether the model gives a response so little per token that it would hardly say it."""
    return _of_response(response) < UNLIKELY


def _of_response(response: ExplainedResponse) -> float:
    """The probability per token of what is explained, also of a choice: a geometric mean."""
    if response.contrast is None:
        return response.probability
    chances = [max(token.probability, 1e-300) for token in response.tokens if token.explained]
    return math.exp(math.fsum(map(math.log, chances)) / len(chances)) if chances else 1.0


def _unlikely(response: ExplainedResponse) -> str:
    """That the model would hardly give the response; else empty, as where the answer says that it is improbable."""
    is_said = response.check is not None and response.contrast is None and response.probability < LEAST_PROBABILITY
    if is_said or not is_unlikely(response):
        return ""
    return f"The model would hardly give this response: {format_probability(_of_response(response))} per token."


def _cut(response: ExplainedResponse) -> str:
    """How many parts are not in the list; else empty."""
    n_parts, n_listed = len(response.parts), len(response.rows)
    if n_listed == n_parts or not any(row.is_measured for row in response.rows):
        return ""
    listed = {row.number for row in response.rows}
    cut = [probability_without(response, part) for i, part in enumerate(response.parts) if i not in listed]
    known = sorted(chance for chance in cut if not math.isnan(chance))
    low, high = (format_probability(known[at]) for at in (0, -1)) if known else ("", "")
    which = [f"without {'it' if len(known) == 1 else 'a single one of them'} it is {low}"] if known else []
    if high != low:
        which[0] += f" to {high}"
    if n_left := len(cut) - len(known):
        which.append(f"{n_left if known else 'they'} {'was' if n_left == 1 and known else 'were'} not removed")
    return f"Not in the list: {n_parts - n_listed} of the {n_parts} parts ({'; '.join(which)})."


def gives_as_much(response: ExplainedResponse) -> bool:
    """Whether the model gives the response as much with every part masked (:func:`is_unexplained`).

    Of a choice the log-odds are those of the whole responses, too: most tokens of both are often the same, and their
    mean hides what differs.
    """
    probability, closed = response.probability, response.closed_probability
    if not is_unexplained(probability, closed):
        return False
    if response.contrast is None or closed is None:
        return True
    n_tokens = max(response.contrast_tokens, sum(token.explained for token in response.tokens))
    odds = [max(p, 1e-12) / max(1 - p, 1e-12) for p in (probability, closed)]
    is_same_choice = (probability < 0.5) == (closed < 0.5)
    return is_same_choice and n_tokens * math.log(odds[0] / odds[1]) <= -math.log(NEARLY_AS_MUCH)


def leading_numbers(response: ExplainedResponse) -> set[int]:
    """Numbers of the leading parts."""
    leading = set(response.leading)
    return {number for number, part in enumerate(response.parts) if part in leading}


def part_check(response: ExplainedResponse) -> CheckSentences:
    """The check of a prompt in words; it must have one."""
    check = response.check
    assert check is not None
    n_named = max(check.n_removed, len(response.leading))
    return CheckSentences(
        check,
        len(response.leading),
        len(response.parts),
        response.measured,
        "part",
        [brief(response.parts[i].text) for i in (-response.scores).argsort()[:n_named]],
        copies=Counter(brief(part.text) for part in response.parts),
        where=[response.place_of(response.parts[i]) for i in (-response.scores).argsort()[:n_named]],
        is_improbable=response.contrast is None and response.probability < LEAST_PROBABILITY,
        then=_preferred_without(response, check),
        less=_without_the_first(response, check),
        spelled=[_quoted(response, part) for part in response.parts],
        other=lowest_alone([row for row in response.rows if row.number not in leading_numbers(response)]),
        shares=response.shares.tolist(),
    )


def _without_the_first(response: ExplainedResponse, check: PromptCheck) -> str:
    """What the first leading parts do, where too many lead to be compared with others; else empty."""
    n_leading, first = len(response.leading), check.without_first
    if 2 * n_leading <= len(response.parts) or len(first) != n_leading:
        return ""
    enough = check.probability - NEARLY_ALL * (check.probability - check.without_leading)
    count = next((n for n, left in enumerate(first, 1) if left <= enough), n_leading)
    if count == n_leading:
        return ""
    which = f"{count} leading parts" if count > 1 else "leading part alone"
    return f"Without the first {which} it is {format_probability(first[count - 1])}."


def _whole_responses(response: ExplainedResponse) -> str:
    """The choice between both responses as wholes, where one has several tokens; else empty."""
    chances = [token.probability for token in response.tokens if token.explained]
    check, n_other = response.check, response.contrast_tokens
    if response.contrast is None or len(chances) == n_other == 1:
        return ""
    of_contrast = n_other * math.log(max(response.contrast_probability, 1e-300))
    whole = _logistic(math.fsum(math.log(max(chance, 1e-300)) for chance in chances) - of_contrast)
    counts = f"{n_other}" if len(chances) == n_other else f"{len(chances)} and {n_other}"
    wholes = f"the explained response has {format_probability(whole)} of the probability of both"
    begins = "These percentages compare mean log-probabilities per token. By"
    if (whole < 0.5) != (response.probability < 0.5):
        one, other = ("explained", "other") if whole < 0.5 else ("other", "explained")
        begins = f"{_DISAGREE}: per token the model prefers the {one} response, and as a whole the {other} one. The "
        begins += "percentages and the list are per token; responses of the same number of tokens have one measure. By"
    if check is not None and check.whole_without_leading is not None:
        several = "s" * (max(check.n_removed, len(response.leading)) > 1)
        wholes += f", and {format_probability(check.whole_without_leading)} without the leading part{several}"
    return f"{begins} the sums of log-probabilities, over {counts} tokens, {wholes}."


def measures_disagree(response: ExplainedResponse) -> bool:
    """Whether the means per token and the sums of log-probabilities prefer different responses of a choice."""
    return _whole_responses(response).startswith(_DISAGREE)


def _logistic(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0


def probability_without(response: ExplainedResponse, part: Any) -> float:
    """Probability without a part alone; NaN where that was not measured."""
    if part.effect_alone is None or not 0 < response.probability < 1:
        return math.nan
    if response.contrast is None:
        return min(1.0, response.probability * math.exp(-part.effect_alone))
    return _logistic(math.log(response.probability / (1 - response.probability)) - part.effect_alone)


def _least(response: ExplainedResponse) -> str:
    """What the parts with the fewest bits say, where the check finds that they matter; else empty."""
    check = response.check
    if check is None or check.n_removed < len(response.leading) or check.n_removed == len(response.parts):
        return ""
    least = [response.parts[i] for i in check.least]
    # The list says it of parts that were removed.
    against = [_quoted(response, part) for part in least if part.known_effect is None]
    if check.without_least < max(check.probability, check.without_random) + LARGE_DROP or not against:
        return ""
    named = f"{', '.join(against[:_NAMED])}{', …' if len(against) > _NAMED else ''}"
    return (
        f"Without the part{'s' * (len(least) > 1)} with the fewest bits {response.measured} rises to "
        f"{format_probability(check.without_least)}. {named} may speak against the response."
    )


def bits_of_prompt(response: ExplainedResponse) -> str:
    """What the model gives through the mask, for where bits are shown; empty where :func:`prompt_notes` say it."""
    probability, masked, closed = response.probability, response.masked_probability, response.closed_probability
    if lost := _lost(response):
        return "" if response.check is None else lost
    through = through_mask(response.measured, probability, masked, closed, "prompt")
    return "" if gives_as_much(response) else f"{capitalized(through)}."


def _lost(response: ExplainedResponse) -> str:
    """That the mask has lost the response; else empty."""
    probability, masked, closed = response.probability, response.masked_probability, response.closed_probability
    if not is_lost(probability, masked, closed):
        return ""
    through = through_mask(response.measured, probability, masked, closed, "prompt")
    return f"The mask removed too much: {through}. The bits may be too few. Use a smaller beta."


def _unexplained(response: ExplainedResponse) -> str:
    """That the model gives the response without the parts nearly as much; else empty."""
    probability, masked, closed = response.probability, response.masked_probability, response.closed_probability
    if is_lost(probability, masked, closed) or not gives_as_much(response):
        return ""
    follows, check = "The parts together add little to it", response.check
    if check is not None and check.without_leading < MOST * min(probability, closed):
        against = any(row.relation == SPEAKS_AGAINST for row in response.rows)
        follows = "The leading parts matter only beside the others" if not against else _CANCEL
    alone = "With all parts masked"
    return unexplained(response.measured, "this prompt", probability, closed, follows, alone)


def _quoted(response: ExplainedResponse, part: Any) -> str:
    """A part in quotes, with its place where others have its name."""
    place = response.place_of(part)
    return f'"{brief(part.text)}"{f" ({place})" if place else ""}'
