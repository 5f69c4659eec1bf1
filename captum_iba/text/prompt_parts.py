"""A part of a prompt, and what its removals say of it."""

from __future__ import annotations

from dataclasses import dataclass

from captum_iba.visualization.pieces import (
    AGAINST_ALONE,
    AGAINST_WITHOUT_OTHERS,
    NEEDED_ALONE,
    SPEAKS_AGAINST,
)
from captum_iba.visualization.rows import share_alone

TOLERANCE = 0.05
"""Nats by which the removal of a part may change a log-probability, or log-odds, and count as no change."""

_LARGE = 0.2  # nats: two smaller changes that do not agree are none


def label_of(alone: float, after: float | None = None) -> str:
    """What the removal of a part says of it: it speaks for or against the response, or each in turn.

    It speaks against the response if its removal raises the log-probability by more than 0.05 nats, on average where
    it was removed both ways, and neither removal lowers it by more than that. It is for the response while the others
    are there if its removal alone lowers it by more than that, and the removal after the others raises it by more, one
    of them by more than 0.2 nats. Against it while the others are there is the reverse. It speaks against it only
    without the other parts if its removal alone does not change it by more than that, and the removal after the others
    raises it.

    Args:
        alone (float): Decrease in the log-probability, or the log-odds, without the part alone.
        after (float, optional): The same without the part, after the other measured parts. Default: None, not measured.

    Returns:
        str: "speaks against it", "speaks against it only without the other parts", "for it while the others are there",
        "against it while the others are there", or "".

    Examples::

        >>> label_of(-1.11, 0.02), label_of(-1.11, 0.38), label_of(0.01, -0.03), label_of(-0.3)
        ('speaks against it', 'against it while the others are there', '', 'speaks against it')
    """
    both = (alone,) if after is None else (alone, after)
    if min(both) < -TOLERANCE and max(both) > TOLERANCE and max(map(abs, both)) > _LARGE:
        return NEEDED_ALONE if alone > 0 else AGAINST_ALONE
    if max(both) > TOLERANCE:
        return ""
    if sum(both) / len(both) >= -TOLERANCE:
        return ""
    return SPEAKS_AGAINST if alone < -TOLERANCE else AGAINST_WITHOUT_OTHERS


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
    def share_alone(self) -> float:
        """Share of the decrease without it alone in both decreases, as lists draw it; 1 where it has only this one."""
        after = self.effect_after
        return 1.0 if after is None or self.effect_alone is None else share_alone(self.effect_alone, after)

    @property
    def label(self) -> str:
        """What its removals say of it (``label_of``); empty where it was not removed."""
        return "" if self.effect_alone is None else label_of(self.effect_alone, self.effect_after)

    @property
    def speaks_against(self) -> bool:
        """Whether the response is more probable without it, and no removal of it says otherwise (:attr:`label`)."""
        return self.label == SPEAKS_AGAINST
