"""What the mask of an explanation did: whether it lost the prediction, and what average activations alone give."""

from __future__ import annotations

from typing import Any

from captum_iba._reading.decision import is_predicted
from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.text_parts import FLOORS, full_color, largest, parts
from captum_iba._reading.thresholds import (
    KEPT,
    MOST,
    NEARLY_AS_MUCH,
    is_little,
    is_lost,
    is_unexplained,
    keeps_little,
    lowers_it,
)

_PARTS = 4  # ten floors that are more than a quarter of an open token are no small number of bits


def needs_hardly_anything(attribution: ExplainedText) -> bool:
    """Whether no word or token is far above the floor, and a closed mask gives the target not much less.

    A check that finds much less probability without the leading words contradicts it.
    """
    if not no_word_stands_out(attribution):
        return False
    closed = attribution.closed_probability
    needs_none = closed is None or is_unexplained(attribution.target_probability, closed, few=True)
    return not lost_prediction(attribution) and (needs_none or is_improbable(attribution))


def no_word_stands_out(attribution: ExplainedText) -> bool:
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


def is_measured(attribution: ExplainedText) -> bool:
    """Whether words were measured by their deletion, so that lists do without the bits."""
    return any(effect is not None for effect in attribution.effects)


def averages_disagree(attribution: Any) -> bool:
    """Whether average activations keep the class, and the text or image without what leads does not."""
    check, closed = attribution.check, attribution.closed_probability
    if check is None or closed is None or closed < NEARLY_AS_MUCH * attribution.target_probability:
        return False
    return bool(check.without_leading < MOST * min(closed, check.probability))


def is_lowered(attribution: ExplainedText) -> bool:
    """Whether the text lowers what average activations give the target; False where that is not known."""
    closed = attribution.closed_probability
    return closed is not None and lowers_it(attribution.target_probability, closed)


def is_unfinished(attribution: ExplainedText) -> bool:
    """Whether the optimization has not closed the mask: the floor is a large part of an open token."""
    return 0 < attribution.open_bits < _PARTS * attribution.unneeded_bits


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
