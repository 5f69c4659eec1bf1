"""The parts of an input in a list: the probability without each, its share of the bits, and a bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from captum_iba._reading.wording import visible as with_symbols

_SHOWN_AS_ZERO = 0.0005
VISIBLE = 0.15
"""Of the longest bar: a word with a shorter one is neither listed nor colored, unless it leads."""


class ListedPart(NamedTuple):
    """A word of a text, a part of a prompt or a region of an image, as lists show it.

    Attributes:
        name (str): What it is called.
        place (str): Where it stands; empty if the name says it.
        bits (float): Its bits.
        share (float): Its share of the bits above the floor.
        importance (float): Length of its bar (:func:`bar_of`), from 0 to 1.
        without (float): Probability (or closeness, as ``measure`` says) without it alone; NaN if that was not measured.
        without_so_far (float): Probability without it and those above it in the list; NaN if that was not measured.
        effect (float): The decrease that orders the list, in nats for words and parts; NaN if it was not measured.
        relation (str): What its removals say of it and the other measured ones, where they do not agree.
        measure (str): What ``without`` is.
        in_percent (bool): Whether its share is shown: not of next to nothing, and not where the mask removed too much.
        spread (float): Standard deviation of the share over repeats; NaN where it is not shown.
        tied (bool): Whether repeats differ in the order of it and the one before or after it.
        is_punctuation (bool): Whether it has no letter, digit or symbol.
        number (int): Its number in the input, from 0.
        share_alone (float): Share of its bar that is the decrease without it alone, from 0 to 1.

    Examples::

        >>> row = ListedPart("dull", "word 3", bits=100.0, share=0.6, importance=1.0, without=0.2)
        >>> row.is_deleted, row.is_measured
        (True, False)
    """

    name: str
    place: str
    bits: float
    share: float
    importance: float = 0.0
    without: float = math.nan
    effect: float = math.nan
    relation: str = ""
    measure: str = "probability"
    in_percent: bool = True
    spread: float = math.nan
    tied: bool = False
    is_punctuation: bool = False
    number: int = -1
    without_so_far: float = math.nan
    share_alone: float = 1.0

    @property
    def is_measured(self) -> bool:
        """Whether its place in the list is by its removal."""
        return not math.isnan(self.effect)

    @property
    def is_deleted(self) -> bool:
        """Whether it was removed alone."""
        return not math.isnan(self.without)

    @property
    def stands_out(self) -> bool:
        """Whether it was removed, and its bar stands out: lists show it, leading or not."""
        return self.is_deleted and self.importance >= VISIBLE

    @property
    def matters_alone(self) -> bool:
        """Whether it does not lead, and its removal alone lowers the probability by much or changes the prediction."""
        return self.relation in (MATTERS_ALONE, CHANGES_PREDICTION, CHANGES_CHOICE)

    @property
    def is_zero(self) -> bool:
        """Whether its percentage is shown as 0.0%, though it has a number of bits."""
        return math.isfinite(self.bits) and self.share < _SHOWN_AS_ZERO and not self.spread >= _SHOWN_AS_ZERO


def bar_of(alone: float, after: float = math.nan) -> tuple[float, float]:
    """The length of a bar, the larger of two decreases, and the share of it that is the decrease without a part alone.

    Args:
        alone (float): The decrease without the part alone.
        after (float): The decrease without it after other parts: of a leading one after the other leading ones; NaN
            where it is not known.

    Examples::

        >>> bar_of(1.0, 4.0), bar_of(2.0, 1.0), bar_of(-0.5, 2.0), bar_of(-1.0)
        ((4.0, 0.25), (2.0, 1.0), (2.0, 0.0), (0.0, 1.0))
    """
    length = max([0.0, *(decrease for decrease in (alone, after) if decrease > 0)])
    return length, min(1.0, max(0.0, alone) / length) if length else 1.0


def is_in_turn(rows: Sequence[ListedPart]) -> bool:
    """Whether several rows have a probability without them and those above them."""
    return sum(not math.isnan(row.without_so_far) for row in rows) > 1


def listed_name(text: str) -> str:
    """The text of a part in one line, without the space before it."""
    return with_symbols(text).strip()


SPEAKS_AGAINST = "speaks against it"
"""What lists say of a part without which the output is more probable."""
RAISES_ALONE = "raises it alone"
"""What lists say of a leading part that lowers a probability with others, and raises it when it is removed alone."""
MATTERS_ALONE = "matters alone"
"""What lists say of a word that does not lead, and whose deletion alone lowers the probability by much."""
CHANGES_PREDICTION, CHANGES_CHOICE = "changes the prediction", "changes the choice"
"""What lists say of a word that does not lead, and whose deletion alone changes the prediction, or a choice."""
