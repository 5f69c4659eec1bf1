"""Sentences on the mask of an explanation: what it keeps, and what average activations alone give."""

from __future__ import annotations

from typing import Any

from captum_iba._reading.mask_state import (
    averages_disagree,
    is_improbable,
    is_measured,
    is_unfinished,
    lost_prediction,
    no_word_stands_out,
)
from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.text_parts import largest, parts
from captum_iba._reading.thresholds import (
    HALF,
    KEPT,
    LARGE_DROP,
    MOST,
    NOTICEABLE,
    SMALL_DROP,
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
_IN_PLACE = {what: f"with average activations in place of {what}" for what in ("this text", "this image")}


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
    few = no_word_stands_out(attribution)
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
    if is_unfinished(attribution):
        kept = f"{format_number(attribution.unneeded_bits)} of {format_number(attribution.open_bits)} bits"
        return (
            f"The optimization is not finished: a token that is not needed still keeps {kept}, so the percentages say "
            "little. Use more steps or a larger beta."
        )
    if masked is None or is_improbable(attribution) or not no_word_stands_out(attribution):
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


def averages_sentence(attribution: Any, what: str) -> str:
    """A sentence that average activations give the class, where :func:`averages_disagree`; else empty.

    ``what`` is "this text" or "this image".
    """
    if not averages_disagree(attribution):
        return ""
    closed = attribution.closed_probability
    more = f", more than with {what}" * (closed > attribution.target_probability)
    too = ", too" * (attribution.target == attribution.predicted)
    gives = f"the model gives {attribution.target_label}{too} ({format_probability(closed)}{more})"
    return f"{capitalized(_IN_PLACE[what])} {gives}."


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
        what (str): "this text" or "this image"; with ``alone`` any other.
        probability, closed (float): With the input, and through a closed mask.
        follows (str): What follows from it, where the input does not lower the probability.
        alone (str): What the model has then. Default: average activations in place of the input.
    """
    if not alone:
        alone = capitalized(_IN_PLACE[what])
    alone = f"{alone} {measured} is {format_probability(closed)}"
    given = format_probability(probability)
    if lowers_it(probability, closed):
        return f"{alone}, more than with {what} ({given}). {capitalized(what)} lowers it."
    as_much = "nearly as much as" if closed >= probability - SMALL_DROP else "not much less than"
    if closed >= probability:
        as_much = "more than" if closed > probability + NOTICEABLE else "no less than"
    return f"{alone}, {as_much} with {what} ({given}). {follows}."
