"""Attributions in a terminal: the text in color, and a bar per word (needs rich)."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from captum_iba.visualization.color import LEVELS, palette
from captum_iba.visualization.colored_text import token_parts
from captum_iba.visualization.drawable import DrawableBits

if TYPE_CHECKING:
    from rich.console import Group

_FAINT = LEVELS // 10  # so few bits get no color
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


def terminal_text(attribution: DrawableBits) -> Group:
    """The decision, the colored text, and the words that hold 80% of the bits, with a bar each.

    Args:
        attribution (TextAttribution): Attribution to show. Control characters in it are spelled out.

    Returns:
        rich.console.Group: For ``rich.console.Console.print``.

    Examples::

        >>> from rich.console import Console
        >>> Console(no_color=True, width=40).print(terminal_text(result))  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
        positive 75.0%
         [CLS] a film
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
    lines = str(attribution).split("\n")
    warning = [Text(lines.pop(0), style="bold yellow")] if attribution.tokens_truncated else []
    decision, _, *summary = lines
    return Group(*warning, Text(decision, style="bold"), line, Text("\n".join(summary)))
