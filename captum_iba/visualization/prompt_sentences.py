"""What is said of an explained response: of the check by removal, the mask, and the choice between two responses."""

# ruff: noqa: D102 - the properties of the protocol are documented where they are implemented

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from captum_iba.visualization.check_sentences import CheckSentences
from captum_iba.visualization.mask_sentences import LARGE_DROP, MOST, is_lost, is_unexplained, of_mask, unexplained
from captum_iba.visualization.pieces import capitalized, format_probability
from captum_iba.visualization.pieces import visible as with_symbols
from captum_iba.visualization.terminal import printable

_LONGEST_NAME, _NAMED = 60, 3
LEAST_PROBABILITY = 1e-3
"""Per token; models give a response in other words, or without the space before it, less."""


class ExplainedResponse(Protocol):
    """What the sentences are about: a :class:`captum_iba.text.GenerationAttribution`."""

    @property
    def parts(self) -> Sequence[Any]: ...
    @property
    def tokens(self) -> Sequence[Any]: ...
    @property
    def leading(self) -> Sequence[Any]: ...
    @property
    def bits(self) -> npt.NDArray[np.float64]: ...
    @property
    def shares(self) -> npt.NDArray[np.float64]: ...
    @property
    def scores(self) -> npt.NDArray[np.float64]: ...
    @property
    def measured(self) -> str: ...
    @property
    def probability(self) -> float: ...
    @property
    def masked_probability(self) -> float: ...
    @property
    def closed_probability(self) -> float: ...
    @property
    def explained(self) -> str: ...
    @property
    def contrast(self) -> str | None: ...
    @property
    def contrast_tokens(self) -> int: ...
    @property
    def contrast_probability(self) -> float: ...
    @property
    def check(self) -> Any: ...


def answer(response: ExplainedResponse) -> str:
    """The answer of the check: the probability without the leading parts; empty without a check.

    Of a choice between responses of several tokens it has the probabilities of the wholes, too.
    """
    check = response.check
    said = "" if check is None else _check_sentences(response).answer
    n_tokens = response.contrast_tokens
    if n_tokens != len(_chances(response)):
        return " ".join(filter(None, [said, _of_wholes(response)]))
    if check is None or n_tokens < 2:
        return said
    # With as many tokens the log-odds of the wholes are those per token, so many times.
    whole, without = (_logistic(n_tokens * _log_odds(p)) for p in (check.probability, check.without_leading))
    them = "it" if check.n_parts == 1 else "them"
    return (
        f"{said} As a whole, of {n_tokens} tokens, the explained response has {format_probability(whole)} of the "
        f"probability of both, and without {them} {format_probability(without)}."
    )


def prompt_notes(response: ExplainedResponse) -> list[str]:
    """Sentences beside the answer: on the choice, the check and the mask."""
    comparison = "" if response.check is None else _check_sentences(response).comparison
    return list(filter(None, [comparison, _least(response), _of_mask(response)]))


def legend(of_choice: bool) -> str:
    """What the numbers of a list are."""
    of = "log-odds of the choice" if of_choice else "log-probability per token"
    divides = "the odds" if of_choice else "the probability per token, a geometric mean,"
    return (
        f"nats: decrease in the {of} without the part, mean of two removals: the part alone, and the part after the "
        f"other measured parts. alone: only the first removal. 1 nat divides {divides} by 2.7. %: share of the bits "
        "above the floor"
    )


def _check_sentences(response: ExplainedResponse) -> CheckSentences:
    count = response.check.n_parts
    return CheckSentences(
        response.check,
        count,
        len(response.leading),
        len(response.parts),
        response.measured,
        "part",
        [_name(response.parts[i]) for i in (-response.scores).argsort()[:count]],
        is_improbable=response.contrast is None and response.probability < LEAST_PROBABILITY,
    )


def _of_wholes(response: ExplainedResponse) -> str:
    """The choice between both responses as wholes, where they have different numbers of tokens; else empty."""
    chances = _chances(response)
    if response.contrast is None or len(chances) == response.contrast_tokens:
        return ""
    of_contrast = response.contrast_tokens * math.log(max(response.contrast_probability, 1e-300))
    difference = math.fsum(math.log(max(chance, 1e-300)) for chance in chances) - of_contrast
    tokens = f"{len(chances)} and {response.contrast_tokens} tokens"
    whole = _logistic(difference)
    wholes = f"the explained one has {format_probability(whole)} of the probability of both"
    if (whole < 0.5) != (response.probability < 0.5):
        preferred = "other" if whole < 0.5 else "explained"
        wholes = f"the model prefers the {preferred} one: {wholes}"
    return f"The responses have {tokens}, and the numbers compare their means per token. As wholes, {wholes}."


def _chances(response: ExplainedResponse) -> list[float]:
    """Probabilities of the explained tokens."""
    return [token.probability for token in response.tokens if token.explained]


def _log_odds(probability: float) -> float:
    return math.log(max(probability, 1e-300)) - math.log(max(1 - probability, 1e-16))


def _logistic(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0


def _least(response: ExplainedResponse) -> str:
    """What the parts with the fewest bits say, where the check finds that they matter; else empty."""
    check = response.check
    if check is None or check.n_parts < len(response.leading) or check.n_parts == len(response.parts):
        return ""
    if check.without_least < MOST * check.without_random:
        return "The parts with the fewest bits matter more than others. The bits do not show all the evidence."
    deleted = {*(-response.scores).argsort()[: check.n_parts].tolist()}
    by_bits = [i for i in np.lexsort((-response.bits, -response.shares)).tolist() if i not in deleted]
    least = [response.parts[i] for i in by_bits[-check.n_parts :]][::-1]
    against = [f'"{_name(part)}"' for part in least if part.speaks_against or part.known_effect is None]
    if check.without_least < max(check.probability, check.without_random) + LARGE_DROP or not against:
        return ""
    named = f"{', '.join(against[:_NAMED])}{', …' if len(against) > _NAMED else ''}"
    return (
        f"Without the part{'s' * (len(least) > 1)} with the fewest bits {response.measured} rises to "
        f"{format_probability(check.without_least)}. {named} may speak against the response."
    )


def _of_mask(response: ExplainedResponse) -> str:
    """What the model gives through the mask, and that the bits do not explain it where that is so."""
    probability, masked, closed = response.probability, response.masked_probability, response.closed_probability
    through = of_mask(response.measured, probability, masked, closed, "prompt")
    if is_lost(probability, masked, closed):
        return f"The mask removed too much: {through}. The bits may be too few. Use a smaller beta."
    if not is_unexplained(probability, closed):
        return f"{capitalized(through)}."
    follows = "The bits rank the parts, but they do not explain the response"
    check = response.check
    if check is not None and check.without_leading < MOST * min(probability, closed):
        follows = "The parts for and against the response cancel out"
    return unexplained(response.measured, "this prompt", probability, closed, follows, "Without any bits of the parts")


def _name(part: Any) -> str:
    """A part in a sentence: its text, or the beginning of it."""
    text = printable(with_symbols(part.text).strip())
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME].rstrip()}…"
