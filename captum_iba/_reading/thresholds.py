"""Thresholds: how large a change of a probability must be before a sentence mentions it, and how much is tried."""

from __future__ import annotations

import math

from captum_iba._reading.removal_check import RemovalCheck

NEARLY_ALL = 0.8
"""Of the decrease without the leading parts of a prompt, at which the first of them are enough."""
N_RANDOM = 10
"""Number of draws of random words in a check; where there are at most so many sets, each is taken once."""
ALL_DELETED_ALONE = 60
"""Number of words of a text up to which a check deletes every one alone."""
NO_EFFECT = 0.005
"""Effect of a part, in nats, that is shown as 0.00."""
LARGE_DROP = 0.1
"""Decrease in a probability that is large by itself."""
MOST, MUCH = 0.85, 0.75
"""Fractions of a probability: if less than the first is left, the change is not small; less than the second, large."""
SAME = 0.99
"""Fraction of a probability: if at least so much is left, a check has found no change."""
RULED_OUT = 0.01
"""Probability of a class below which there is little to explain."""
_IMPROBABLE = 0.05  # the same for a class that is not predicted
_SMALLEST = 0.005  # a smaller change of a probability is none, unless a quarter of it is lost
_SMALL = 0.05  # a smaller decrease in a probability is no evidence that the bits miss a word
# A mask has lost a prediction with less than half of its probability, or a quarter of what the input adds to that
# through a closed mask. Half of that, too, would take 1.62 in place of 1.38 runs per text of IMDB, for a worse order.
HALF, QUARTER = 0.5, 0.25
MANY_BITS = 0.1
"""Share of the bits above the floor, from which on a word is named where bits are shown."""
SMALL_DROP, NEARLY_AS_MUCH = 0.05, 0.8
"""Decrease in a probability, and fraction of it that is left, up to which an input adds next to nothing."""
NOTICEABLE, KEPT = 0.01, 0.005
"""Increases in a probability: the smallest that a sentence calls more, and the smallest that a mask keeps."""


def is_lost(probability: float, masked: float, closed: float | None = None) -> bool:
    """Whether a mask has lost a prediction.

    That is where through it a class has less than half of its probability, or where it is lower by more than 0.1 and
    below one half in place of above, or has less than a quarter of what the input adds to that through a closed mask.

    Examples::

        >>> is_lost(0.95, 0.56, closed=0.55), is_lost(0.95, 0.56, closed=0.10)
        (True, False)
    """
    if masked < HALF * probability:
        return True
    if masked >= probability - LARGE_DROP:
        return False
    if masked < HALF <= probability:
        return True
    return closed is not None and closed < probability and masked < closed + QUARTER * (probability - closed)


def is_little(probability: float, is_predicted: bool) -> bool:
    """Whether a class has so little probability that there is little to explain; a predicted one below 1%."""
    return probability < (RULED_OUT if is_predicted else _IMPROBABLE)


def rises_much(probability: float, without: float) -> bool:
    """Whether a probability rises by more than 0.1, or by more than half of that and the odds by a factor of e."""
    if without <= probability + LARGE_DROP / 2:
        return False
    odds = probability / max(1 - probability, 1e-12), without / max(1 - without, 1e-12)
    return without > probability + LARGE_DROP or odds[1] > math.e * odds[0]


def is_much_lower(probability: float, without: float, strongest: float = 0.0) -> bool:
    """Whether a word matters when it is deleted alone: more than a quarter of the probability is lost, and 0.05.

    15% or 0.05 is enough where the probability is below ``strongest``, the lowest one without a leading word alone.

    Examples::

        >>> is_much_lower(0.93, 0.866), is_much_lower(0.93, 0.866, strongest=0.874)
        (False, True)
    """
    if without < strongest and without <= max(MOST * probability, probability - _SMALL):
        return True
    return without <= min(MUCH * probability, probability - _SMALL)


def keeps_little(probability: float, masked: float, closed: float) -> bool:
    """Whether a mask keeps less than a quarter of what an input adds to a closed one, where that is more than 0.05."""
    return closed < probability - SMALL_DROP and masked < closed + QUARTER * (probability - closed)


def is_unexplained(probability: float, closed: float | None, few: bool = False) -> bool:
    """Whether a closed mask gives the target as much as the input does, less at most a fifth.

    Unless ``few`` parts have bits, it is at most 0.05 less, too.
    """
    if closed is None or closed < NEARLY_AS_MUCH * probability:
        return False
    return few or closed >= probability - SMALL_DROP


def lowers_it(probability: float, closed: float) -> bool:
    """Whether an input lowers what average activations give, by more than 0.1 or from one half to below."""
    return closed > probability + LARGE_DROP or closed >= HALF > probability


def fraction_left(check: RemovalCheck) -> float:
    """Fraction of the probability that is left without the leading words; 1 where the change is small by itself."""
    probability, without = check.probability, check.without_leading
    if probability <= 0:
        return 1.0
    left = without / probability
    is_small = abs(without - probability) < _SMALLEST and left > MUCH
    return 1.0 if is_small else left
