"""A part of a prompt, and what its removals say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from captum_iba.visualization.pieces import SPEAKS_AGAINST
from captum_iba.visualization.rows import bar_of

TOLERANCE = 0.05
"""Nats by which the removal of a part may change a log-probability, or log-odds, and count as no change."""


def label_of(alone: float, after: float | None = None) -> str:
    """Whether a part speaks against the response.

    That is so if its removal alone raises the log-probability by more than 0.05 nats, and where it was removed after
    the others, too, the mean of both does, and neither removal lowers it by more than that.

    Args:
        alone (float): Decrease in the log-probability, or the log-odds, without the part alone.
        after (float, optional): The same without the part, after the other measured parts. Default: None, not measured.

    Returns:
        str: "speaks against it" or "".

    Examples::

        >>> label_of(-1.11, 0.02), label_of(-1.11, 0.38), label_of(0.01, -0.3), label_of(-0.3)
        ('speaks against it', '', '', 'speaks against it')
    """
    both = (alone,) if after is None else (alone, after)
    is_raised = alone < -TOLERANCE and sum(both) / len(both) < -TOLERANCE
    return SPEAKS_AGAINST if is_raised and max(both) <= TOLERANCE else ""


@dataclass(frozen=True)
class PromptPart:
    """A token, word, sentence, paragraph or span of a prompt.

    Attributes:
        text (str): Its text.
        start, end (int): Its characters in the prompt.
        bits (float): Bits of it that the response needs.
        unneeded_bits (float): Bits that such a part ends with if the response does not need it.
        effect (float or None): Decrease in the log-probability per token without it, or with ``contrast`` in the
            log-odds of the choice, in nats (:func:`captum_iba.metrics.removal_effects`); None where it was not
            measured.
        effect_alone (float or None): The same without this part alone. ``effect`` is the mean of this and of the
            decrease without it after the other measured parts. With ``check`` all of up to 40 parts have it.
    """

    text: str
    start: int
    end: int
    bits: float
    unneeded_bits: float = 0.0
    effect: float | None = None
    effect_alone: float | None = None

    @property
    def effect_after(self) -> float | None:
        """The decrease without it after the other measured parts; None where it was not removed both ways."""
        return None if self.effect is None or self.effect_alone is None else 2 * self.effect - self.effect_alone

    @property
    def known_effect(self) -> float | None:
        """``effect``; ``effect_alone`` where only that was measured, or where it is above 0.05 nats with another sign.

        A part without which the response is more probable is not one that it needs, whatever the part does in a
        prompt without the others.
        """
        alone = self.effect_alone
        if self.effect is None or (alone is not None and abs(alone) > TOLERANCE and alone * self.effect < 0):
            return alone
        return self.effect

    @property
    def bar(self) -> tuple[float, float]:
        """The length of its bar in nats, and the share of it that is the decrease without it alone; 0 without any."""
        if self.effect_alone is None or self.speaks_against:
            return 0.0, 1.0
        return bar_of(self.effect_alone, math.nan if self.effect_after is None else self.effect_after)

    @property
    def label(self) -> str:
        """What its removals say of it (``label_of``); empty where it was not removed."""
        return "" if self.effect_alone is None else label_of(self.effect_alone, self.effect_after)

    @property
    def speaks_against(self) -> bool:
        """Whether the response is more probable without it, and no removal of it says otherwise (:attr:`label`)."""
        return self.label == SPEAKS_AGAINST
