"""Attributions in a terminal: the text in color (needs rich), and a bar per word."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from captum_iba.visualization.color import LEVELS, palette
from captum_iba.visualization.colored_text import token_parts
from captum_iba.visualization.drawable import DrawableBits
from captum_iba.visualization.rows import ListedPart, row_lines
from captum_iba.visualization.words import counted, standing_out

if TYPE_CHECKING:
    from rich.console import Group

_FAINT = LEVELS // 10  # so little gets no color
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


def word_lines(leading: Sequence[ListedPart], rest: Sequence[ListedPart], pale: bool = False) -> list[str]:
    """The words of an explanation, a line each: the leading ones, and of the others those that stand out.

    Args:
        leading (sequence of ListedPart): The leading words, in order.
        rest (sequence of ListedPart): The others.
        pale (bool): Whether the bars are pale, because the check does not confirm the leading words. Default: False.
    """
    beside = standing_out(leading, rest)
    known = [row for row in rest if row.in_percent or not row.is_deleted]
    most = [row for row in known if not row.is_zero and row not in beside][:_LISTED_WITHOUT_LEADING]
    shown = list(leading[:_LISTED] or most)
    not_shown = [[row for row in rows if row not in (*shown, *beside)] for rows in (leading, rest)]
    others = [
        (math.fsum(row.share for row in rows), f"{'in' if rows[0].in_percent else 'and'} {counted(rows, which)}")
        for rows, which in zip(not_shown, ("leading", "other"), strict=True)
        if rows and (shown or beside)
    ]
    if not leading:
        shown = [row._replace(importance=0.0) for row in shown]
    shown += [row._replace(relation=row.relation or "does not lead") for row in beside]
    return row_lines([row._replace(name=printable(row.name)) for row in shown], others, pale)


def terminal_text(attribution: DrawableBits, legend: bool = True) -> Group:
    """The decision, the colored text, and the leading words, with a bar each.

    Args:
        attribution (TextAttribution): Attribution to show. Control characters in it are spelled out.
        legend (bool): Whether what the columns of the list are is the last of it. Default: True.

    Returns:
        rich.console.Group: For ``rich.console.Console.print``.

    Examples::

        >>> from rich.console import Console
        >>> Console(no_color=True, width=40).print(terminal_text(result))  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
        positive 75.0%
        a film
        ...
    """
    # Not at the top: figures do without rich.
    from rich.console import Group
    from rich.text import Text

    colors = palette("terminal")
    line = Text()
    token_map = token_parts(attribution)
    for part in token_map.parts:
        level = token_map.level(part)
        if part.kind == "break":
            line.append("\n")
        elif part.kind == "gap":
            line.append(" " if part.text.isspace() else printable(part.text))
        elif part.kind == "special":
            if level != 0:  # without bits it says nothing of the text
                line.append(f" {printable(part.text)} ", style="dim")
        elif level is None:
            line.append(printable(part.text), style="strike")
        elif level <= _FAINT or token_map.hardly_anything:
            line.append(printable(part.text), style="underline" if token_map.leads(part) else "")
        else:
            background, ink = colors[level]
            underlined = "underline " * token_map.leads(part)
            line.append(printable(part.text), style=f"{underlined}{ink} on {background}")
    # The text itself is drawn in color; a warning may stand above the decision.
    lines = attribution.to_text(legend).split("\n")
    warning = [Text(lines.pop(0), style="bold yellow")] if attribution.tokens_truncated else []
    decision, _, *summary = lines
    return Group(*warning, Text(decision, style="bold"), line, Text("\n".join(summary)))
