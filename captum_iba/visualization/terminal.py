"""An attribution in a terminal: the text in colour, and a bar a word (needs rich)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from captum_iba.visualization.colour import LEVELS, palette
from captum_iba.visualization.pieces import draw, scale_of

if TYPE_CHECKING:
    from rich.console import Group

    from captum_iba.text import TextAttribution

_FAINT = LEVELS // 10  # so few bits get no colour


def terminal_text(attribution: TextAttribution) -> Group:
    """The coloured text, and below it the summary with a bar a word.

    Args:
        attribution (TextAttribution): What to show. Control characters in it are spelled out.

    Returns:
        rich.console.Group: for ``rich.console.Console.print``.
    """
    # Not at the top: figures do without rich.
    from rich.console import Group
    from rich.text import Text

    from captum_iba.text.result import printable

    colours = palette("terminal")
    line = Text()
    for piece in draw(attribution, scale_of(attribution)).pieces:
        if piece.kind == "break":
            line.append("\n")
        elif piece.kind == "gap":
            line.append(" " if piece.text.isspace() else printable(piece.text))
        elif piece.kind == "special":
            line.append(f" {printable(piece.text)} ", style="dim")
        elif piece.level is None:
            line.append(printable(piece.text), style="strike")
        elif piece.level <= _FAINT:
            line.append(printable(piece.text))
        else:
            background, ink = colours[piece.level]
            line.append(printable(piece.text), style=f"{ink} on {background}")
    # The first line of the summary is the text itself.
    summary = str(attribution).split("\n", 1)[1]
    return Group(line, Text(summary, no_wrap=False))
