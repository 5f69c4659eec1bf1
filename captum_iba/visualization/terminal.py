"""Lists for a terminal: the words of a text, the numbers of a check, and text without control characters."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from captum_iba.visualization.check_sentences import CheckSentences
from captum_iba.visualization.pieces import format_probability
from captum_iba.visualization.rows import ListedPart, is_in_turn, row_lines
from captum_iba.visualization.words import counted, standing_out

_LISTED, _LISTED_WITHOUT_LEADING = 20, 5
# These reorder what follows them on a terminal, beyond the word that they stand in.
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Text for a terminal: control characters and text-direction overrides are spelled out."""
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in ("Cc", "Cs") or character in _BIDI_CONTROLS
        else character
        for character in text
    )


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
