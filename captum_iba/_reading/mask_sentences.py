"""What the mask of an explanation says: whether it lost the prediction, and what average activations alone give."""

from __future__ import annotations

from typing import Any

from captum_iba._reading.decision import is_predicted
from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.text_parts import FLOORS, full_color, largest, parts
from captum_iba._reading.thresholds import (
    HALF,
    KEPT,
    LARGE_DROP,
    MOST,
    NEARLY_AS_MUCH,
    NOTICEABLE,
    SMALL_DROP,
    is_little,
    is_lost,
    is_unexplained,
    keeps_little,
    lowers_it,
)
from captum_iba._reading.wording import capitalized, format_number, format_probability

THESE_ALONE = "with the information in the bits alone"
"""Begins what the model gives through the final mask."""
HARDLY_ANYTHING = "The model needs hardly anything of this text."
_NEAR_FLOOR = 2  # floors above the floor
_PARTS_OF = {"text": "words", "prompt": "parts"}
_PARTS = 4  # ten floors that are more than a quarter of an open token are no small number of bits


def needs_hardly_anything(attribution: ExplainedText) -> bool:
    """Whether no word or token is far above the floor, and a closed mask gives the target not much less.

    A check that finds much less probability without the leading words contradicts it.
    """
    if not _has_few_bits(attribution):
        return False
    closed = attribution.closed_probability
    needs_none = closed is None or is_unexplained(attribution.target_probability, closed, few=True)
    return not lost_prediction(attribution) and (needs_none or is_improbable(attribution))


def _has_few_bits(attribution: ExplainedText) -> bool:
    """Whether no word or token is far above the floor, and no removal has found that words matter."""
    check = attribution.check
    matter = False
    if check is not None:
        matter = check.without_leading < MOST * check.probability
    alone = [without for without in attribution.without if without is not None]
    matter = matter or min(alone, default=1.0) < MOST * attribution.target_probability
    # Without a check, words that decide where the others are gone may matter together.
    effects = [effect for effect in attribution.effects if effect is not None]
    matter = matter or (check is None and max(effects, default=0.0) >= 1)
    return has_hardly_any_bits(attribution) and not matter


def lost_prediction(attribution: ExplainedText) -> bool:
    """Whether the probability through the final mask is known, and the mask :func:`has lost it <is_lost>`."""
    masked, closed = attribution.masked_probability, attribution.closed_probability
    return masked is not None and is_lost(attribution.target_probability, masked, closed)


def is_improbable(attribution: ExplainedText) -> bool:
    """Whether the target has so little probability with all words that there is little to explain."""
    return is_little(attribution.target_probability, is_predicted(attribution))


def through_the_mask(attribution: ExplainedText) -> str:
    """What the model gives through the final mask, and through a closed one; empty where that is not known."""
    masked, closed = attribution.masked_probability, attribution.closed_probability
    if masked is None:
        return ""
    if closed is None:
        return f"{THESE_ALONE} {attribution.measured} is {format_probability(masked)}"
    return through_mask(attribution.measured, attribution.target_probability, masked, closed)


def through_mask(measured: str, probability: float, masked: float, closed: float, what: str = "text") -> str:
    """What the model gives through a mask, and through a closed one, and whether the bits keep what the input adds.

    Args:
        measured (str): "the probability of positive".
        probability, masked, closed (float): With the input, through the mask, and through a closed one.
        what (str): The input. Default: "text".

    Returns:
        str: A clause that begins with :data:`THESE_ALONE`.

    Examples::

        >>> through_mask("the probability", 0.9, 0.8, 0.1)
        'with the information in the bits alone the probability is 80.0%, and with none of it 10.0%'
    """
    through = f"{THESE_ALONE} {measured} is {format_probability(masked)}"
    through += f", and with none of it {format_probability(closed)}"
    if masked > max(probability, closed) + LARGE_DROP:
        whole, parts_of = format_probability(probability), _PARTS_OF[what]
        more = f"{format_probability(masked)} is more than with the whole {what} ({whole})"
        return f"{through}. {more}: the mask hides {parts_of} that lower it"
    if is_lost(probability, masked, closed) or not keeps_little(probability, masked, closed):
        return through
    kept, hence = ("little", "") if masked > closed + KEPT else ("nothing", ", so there are no percentages")
    hence *= what == "text"
    return (
        f"{through}. The bits keep {kept} of what the {what} adds: they rank its {_PARTS_OF[what]}, but they do not "
        f"explain the probability{hence}"
    )


def remark(attribution: ExplainedText) -> str:
    """A sentence where the model needs hardly anything of a text, or average activations give the class as much.

    Without a check of measured words it is :func:`remark_on_bits`, if there is such a sentence. Empty for others.
    """
    on_bits = remark_on_bits(attribution)
    if on_bits:
        return "" if attribution.check is not None and is_measured(attribution) else on_bits
    probability, closed = attribution.target_probability, attribution.closed_probability
    few = _has_few_bits(attribution)
    if attribution.masked_probability is None:
        return HARDLY_ANYTHING if few else ""
    if is_improbable(attribution):
        if closed is not None and lowers_it(probability, closed):
            return unexplained(attribution.measured, "this text", probability, closed, "")
        return "" if attribution.check is not None else f"The model gives {attribution.target_label} next to nothing."
    if few and closed is None:
        return HARDLY_ANYTHING
    if is_unexplained(probability, closed, few):
        assert closed is not None
        is_said = averages_disagree(attribution) and not attribution.layer_index  # by the answer
        return "" if is_said else _unexplained(attribution, closed, few)
    return ""


def is_measured(attribution: ExplainedText) -> bool:
    """Whether words were measured by their deletion, so that lists do without the bits."""
    return any(effect is not None for effect in attribution.effects)


def remark_on_bits(attribution: ExplainedText) -> str:
    """A sentence where the mask has lost the prediction or has not closed, or no word is far above the floor."""
    masked, through = attribution.masked_probability, through_the_mask(attribution)
    probability, beta = attribution.target_probability, attribution.settings.get("beta")
    is_least = beta is not None and beta <= 1  # the default has tried no smaller one
    if lost_prediction(attribution):
        advice = (
            f"Even beta {beta:g} keeps too little. Statistics from texts like this one, about as long, may help."
            if is_least
            else "Use a smaller beta, or statistics from texts like this one, about as long."
        )
        return f"The mask removed too much, so the bits are not shown as percentages: {through}. {advice}"
    if 0 < attribution.open_bits < _PARTS * attribution.unneeded_bits:
        kept = f"{format_number(attribution.unneeded_bits)} of {format_number(attribution.open_bits)} bits"
        return (
            f"The optimization is not finished: a token that is not needed still keeps {kept}, so the percentages say "
            "little. Use more steps or a larger beta."
        )
    if masked is None or is_improbable(attribution) or not _has_few_bits(attribution):
        return ""
    if masked < probability - LARGE_DROP or masked < HALF <= probability:
        advice = "" if is_least else " A smaller beta keeps more of them."
        return f"The mask keeps hardly any bits above the floor: {through}.{advice}"
    closed = attribution.closed_probability
    is_near = largest(tuple(parts(attribution))) < _NEAR_FLOOR * attribution.unneeded_bits
    if closed is None or is_unexplained(probability, closed, few=True) or not is_near:
        return ""
    floor = format_number(attribution.unneeded_bits)
    return f"No word has clearly more bits than the floor ({floor} bits per token), so the percentages say little."


def _unexplained(attribution: ExplainedText, closed: float, few: bool) -> str:
    """What is said where a closed mask gives the target (nearly) as much as the text."""
    follows, check = "The bits rank its words, but they do not explain the probability", attribution.check
    if is_measured(attribution):
        follows = "The text as a whole adds little to it"
    no_other = check is None or min(check.without_random, check.without_least) >= MOST * check.probability
    if attribution.layer_index:
        follows = (
            "At this layer the special tokens, which have no bottleneck, have already read the other words, so the "
            "mask cannot tell which words are needed"
        )
    elif few and no_other:
        follows = "The model needs hardly anything of this text"
    return unexplained(attribution.measured, "this text", attribution.target_probability, closed, follows)


def averages_disagree(attribution: Any) -> bool:
    """Whether average activations keep the class, and the text or image without what leads does not."""
    check, closed = attribution.check, attribution.closed_probability
    if check is None or closed is None or closed < NEARLY_AS_MUCH * attribution.target_probability:
        return False
    return bool(check.without_leading < MOST * min(closed, check.probability))


def caveat(attribution: Any, what: str) -> tuple[str, str]:
    """Why a verdict is weak where :func:`averages_disagree`, and the sentence that says so; else empty.

    ``what`` is "this text" or "this image".
    """
    if not averages_disagree(attribution):
        return "", ""
    closed = attribution.closed_probability
    more = ", more than with it" * (closed > attribution.target_probability)
    gives = f"With average activations in place of {what} the model gives {attribution.target_label}, too"
    return "average activations give it as well", f"{gives}: {format_probability(closed)}{more}."


def is_lowered(attribution: ExplainedText) -> bool:
    """Whether the text lowers what average activations give the target; False where that is not known."""
    closed = attribution.closed_probability
    return closed is not None and lowers_it(attribution.target_probability, closed)


def unexplained(
    measured: str,
    what: str,
    probability: float,
    closed: float,
    follows: str,
    alone: str = "",
) -> str:
    """A sentence where average activations alone give the target (nearly) as much as the input.

    Args:
        measured (str): "the probability of positive".
        what (str): "this text" or "this image".
        probability, closed (float): With the input, and through a closed mask.
        follows (str): What follows from it, where the input does not lower the probability.
        alone (str): What the model has then. Default: average activations in place of the input.
    """
    alone = alone or f"With average activations (from the statistics) in place of {what}"
    alone = f"{alone} {measured} is {format_probability(closed)}"
    given = format_probability(probability)
    if lowers_it(probability, closed):
        return f"{alone}, more than with {what} ({given}). {capitalized(what)} lowers it."
    as_much = "nearly as much as" if closed >= probability - SMALL_DROP else "not much less than"
    if closed >= probability:
        as_much = "more than" if closed > probability + NOTICEABLE else "no less than"
    return f"{alone}, {as_much} with {what} ({given}). {follows}."


def has_percentages(attribution: ExplainedText) -> bool:
    """Whether bits are shown as percentages: not of next to nothing, and not where the mask kept too little."""
    return not (has_hardly_any_bits(attribution) or lost_prediction(attribution) or _keeps_nothing(attribution))


def _keeps_nothing(attribution: ExplainedText) -> bool:
    """Whether the bits keep nothing of what the input adds to average activations."""
    probability, masked = attribution.target_probability, attribution.masked_probability
    closed = attribution.closed_probability
    if masked is None or closed is None:
        return False
    return keeps_little(probability, masked, closed) and masked <= closed + KEPT


def has_hardly_any_bits(attribution: ExplainedText) -> bool:
    """Whether no word or token is far above the floor.

    That is not known where the floor itself is a large part of an open token: the optimization has not closed the mask.
    """
    if 0 < attribution.open_bits < _PARTS * FLOORS * attribution.unneeded_bits:
        return False
    return largest(tuple(parts(attribution))) < full_color([attribution])
