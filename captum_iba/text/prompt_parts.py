"""A part of a prompt, and what its removals say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from captum_iba._reading.rows import SPEAKS_AGAINST, bar_of

TOLERANCE = 0.05
"""Nats by which the removal of a part may change a log-probability, or log-odds, and count as no change."""
_AGAINST = 0.1  # nats by which the response is more probable without a part that speaks against it


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
        """The length of its bar without a check, in nats, and the share of it that is the decrease without it alone.

        It is the larger of the decreases without it alone and after the other measured parts; 0 without any.
        """
        if self.effect_alone is None:
            return 0.0, 1.0
        return bar_of(self.effect_alone, math.nan if self.effect_after is None else self.effect_after)

    @property
    def label(self) -> str:
        """ "speaks against it" (:attr:`speaks_against`) or "". Lists show it of parts that do not lead."""
        return SPEAKS_AGAINST if self.speaks_against else ""

    @property
    def speaks_against(self) -> bool:
        """Whether its removal alone raises the log-probability, or the log-odds, by more than 0.1 nats."""
        return self.effect_alone is not None and self.effect_alone < -_AGAINST
