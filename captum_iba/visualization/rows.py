"""The parts of an input in a list: the probability without each, its share of the bits, and a bar."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from captum_iba.visualization.pieces import format_number, format_probability
from captum_iba.visualization.pieces import visible as with_symbols

_SHOWN_AS_ZERO = 0.0005
VISIBLE = 0.15
"""Of the longest bar: a word with a shorter one is neither listed nor colored, unless it leads."""
_BAR_WIDTH = 24
SOLID, HATCHED, PALE = "█", "▒", "░"
"""Bars of a terminal: the decrease without a part alone, that after the others, and where nothing is confirmed."""


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
        effect (float): Decrease that its place in the list is by, of words and parts in nats; NaN if not measured.
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
        """Whether it was measured, and its bar stands out: lists show it, leading or not."""
        return self.is_measured and self.importance >= VISIBLE

    @property
    def is_zero(self) -> bool:
        """Whether its percentage is shown as 0.0%, though it has a number of bits."""
        return math.isfinite(self.bits) and self.share < _SHOWN_AS_ZERO and not self.spread >= _SHOWN_AS_ZERO


def bar_of(alone: float, after: float = math.nan) -> tuple[float, float]:
    """The length of a bar, the larger of two decreases, and the share of it that is the decrease without a part alone.

    Args:
        alone (float): The decrease without the part alone.
        after (float): The decrease without it after the other measured parts. Default: NaN, not known.

    Examples::

        >>> bar_of(1.0, 4.0), bar_of(2.0, 1.0), bar_of(-0.5, 2.0), bar_of(-1.0)
        ((4.0, 0.25), (2.0, 1.0), (2.0, 0.0), (0.0, 1.0))
    """
    length = max([0.0, *(decrease for decrease in (alone, after) if decrease > 0)])
    return length, min(1.0, max(0.0, alone) / length) if length else 1.0


def is_in_turn(rows: Sequence[ListedPart]) -> bool:
    """Whether several rows have a probability without them and those above them."""
    return sum(not math.isnan(row.without_so_far) for row in rows) > 1


def row_lines(
    rows: Sequence[ListedPart],
    others: Sequence[ListedPart] = (),
    unlisted: Sequence[tuple[float, str]] = (),
    pale: bool = False,
    bits: bool = True,
    titles: tuple[str, str] = ("", ""),
) -> list[str]:
    """A list of rows for a terminal, in columns, with a head where there are probabilities or percentages.

    The columns are the probability without each, that without it and those above it, its share of the bits above the
    floor, or its bits where no row was measured, a bar, and its name and place.

    Args:
        rows (sequence of ListedPart): What is listed.
        others (sequence of ListedPart, optional): What is listed below them, under a title. Default: none.
        unlisted (sequence of tuple, optional): Share and text of what is not listed. Default: none.
        pale (bool): Whether the bars are pale. Default: False.
        bits (bool): Whether there are bits where rows were measured or removed, too. Default: True.
        titles (tuple of str): Titles of both groups. Default: none.

    Returns:
        list of str: Lines; control characters are as they were given.

    Examples::

        >>> rows = [ListedPart("dull", "word 3", 100.0, 0.6, 1.0, 0.2), ListedPart("a", "word 1", 9.0, 0.1, 0.5, 0.85)]
        >>> print("\\n".join(row_lines(rows, unlisted=[(0.3, "in 4 other words")])))
        without it  of the bits             bits
             20.0%        60.0%       100.0 bits  ████████████████████████  dull (word 3)
             85.0%        10.0%        9.00 bits  ████████████              a (word 1)
                          30.0%  in 4 other words
    """
    every = [*rows, *others]
    deleted, measured = any(row.is_deleted for row in every), any(row.is_measured for row in every)
    in_turn = is_in_turn(every)
    has_bits = bits or not (measured or deleted)
    in_percent = any(row.in_percent for row in every) and has_bits
    first = max(10, *(len(_number(row.without)) for row in every), 0)
    wide = 15 if in_percent and not all(math.isnan(row.spread) for row in every) else 11
    # By removals a bar has a scale of its own, and is short where they change little.
    longest = 1.0 if measured or deleted else max((row.importance for row in every), default=0.0)

    def columns(without: str, so_far: str, share: str, of_bits: str) -> str:
        cells = (f"{without:>{first}}",) * deleted + (f"{so_far:>15}",) * in_turn + (f"{share:>{wide}}",) * in_percent
        return "  ".join((*cells, *(f"{of_bits:>15}",) * (has_bits and not measured)))

    def line(cells: str, bar: str, name: str) -> str:
        return f"{cells}  {bar:<{_BAR_WIDTH}}  {name}".rstrip()

    def lines_of(group: Sequence[ListedPart]) -> Iterator[str]:
        for row in group:
            share = f"{row.share:.1%}{'' if math.isnan(row.spread) else f' ± {row.spread:5.1%}'}"
            name = f"{row.name}{f' ({row.place})' if row.place else ''}{' ≈' * row.tied}"
            yield line(
                columns(_number(row.without), _number(row.without_so_far), share, f"{format_number(row.bits)} bits"),
                _bar(row, longest, pale) if longest else "",
                " · ".join(filter(None, [name, row.relation])),
            )

    head = line(columns("without it", "and those above", "of the bits", "bits"), "", titles[0] if rows else titles[1])
    lines = [head.rstrip()] if every and (deleted or in_percent or head.strip()) else []
    lines += lines_of(rows)
    if rows and others and titles[1]:
        lines.append(line(columns("", "", "", ""), "", titles[1]))
    lines += lines_of(others)
    return [*lines, *(f"{columns('', '', f'{share:.1%}', '').rstrip()}  {text}" for share, text in unlisted)]


def _number(probability: float) -> str:
    return "" if math.isnan(probability) else format_probability(probability)


def _bar(row: ListedPart, longest: float, pale: bool) -> str:
    width = round(_BAR_WIDTH * row.importance / longest)
    alone = round(width * row.share_alone)
    return PALE * width if pale else SOLID * alone + HATCHED * (width - alone)


def listed_name(text: str) -> str:
    """The text of a part in one line, without the space before it."""
    return with_symbols(text).strip()
