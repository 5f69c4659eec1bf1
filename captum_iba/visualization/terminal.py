"""Lists and checks for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from captum_iba._reading.check_sentences import CheckSentences
from captum_iba._reading.rows import ListedPart, is_in_turn
from captum_iba._reading.thresholds import MANY_BITS
from captum_iba._reading.wording import format_number, format_probability, printable
from captum_iba._reading.words import counted, standing_out

_BAR_WIDTH = 24
SOLID, HATCHED, PALE = "█", "▒", "░"
"""Bars of a terminal: the decrease without a part alone, that after the others, and where nothing is confirmed."""


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


_LISTED, _LISTED_WITHOUT_LEADING = 20, 5


def word_lines(
    leading: Sequence[ListedPart], rest: Sequence[ListedPart], pale: bool = False, bits: bool = True
) -> list[str]:
    """The words of an explanation, a line each: the leading ones, and of the others those that stand out.

    Args:
        leading (sequence of ListedPart): The leading words, in order.
        rest (sequence of ListedPart): The others.
        pale (bool): Whether the bars are pale, because the check does not confirm the leading words. Default: False.
        bits (bool): Whether their bits are shown where words were measured, too. Default: True.
    """
    beside = standing_out(leading, rest)
    if bits:  # what the bits have and deletion has not, too
        beside += [row for row in rest if row.in_percent and row.share >= MANY_BITS and row not in beside]
    known = [row for row in rest if row.in_percent or not row.is_deleted]
    most = [row for row in known if not row.is_zero and row not in beside][:_LISTED_WITHOUT_LEADING]
    # What counts is the last number of those that were removed in turn; by their bits many words can lead.
    shown = list(leading if is_in_turn(leading) else leading[:_LISTED] or most)
    is_by_removal = any(row.is_measured for row in (*leading, *rest)) or (bool(beside) and not shown)
    has_bits = bits or not is_by_removal
    not_shown = [[row for row in rows if row not in (*shown, *beside)] for rows in (leading, rest)]
    others = [
        (math.fsum(row.share for row in rows), f"{'in' if rows[0].in_percent else 'and'} {counted(rows, which)}")
        for rows, which in zip(not_shown, ("leading", "other"), strict=True)
        if rows and (shown or beside) and has_bits
    ]
    titles = (f"leading word{'s' * (len(leading) > 1)}", f"other word{'s' * (len(beside) > 1)}")
    if not leading:
        shown, beside, titles = [*(row._replace(importance=0.0) for row in shown), *beside], [], ("", "")
    listed, below = ([row._replace(name=printable(row.name)) for row in rows] for rows in (shown, beside))
    return row_lines(listed, below, others, pale, has_bits, titles)


def check_lines(check: CheckSentences) -> list[str]:
    """A check, a line for each of its probabilities below its title; none where it compares nothing."""
    shown = [f"{format_probability(row.probability):>10}  {row.what}" for row in check.rows]
    return [check.title, *shown] if shown else []
