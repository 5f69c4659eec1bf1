"""Attributions in a terminal: the text in color (needs rich), and a bar per word."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from captum_iba.visualization.color import LEVELS, palette
from captum_iba.visualization.colored_text import token_parts
from captum_iba.visualization.drawable import DrawableBits
from captum_iba.visualization.pieces import format_probability
from captum_iba.visualization.words import RankedWord, counted

if TYPE_CHECKING:
    from rich.console import Group

_FAINT = LEVELS // 10  # so little gets no color
_LISTED, _LISTED_WITHOUT_LEADING = 20, 5
_BAR_WIDTH = 24
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


def word_lines(leading: Sequence[RankedWord], rest: Sequence[RankedWord]) -> list[str]:
    """The words of an explanation, a line each, in columns with a head where words were deleted alone.

    The columns are the probability without the word, its share of the bits above the floor, its bits where no word was
    measured, a bar, and its name and place.

    Args:
        leading (sequence of RankedWord): The leading words, in order.
        rest (sequence of RankedWord): The others, of which only those are listed that stand out.
    """
    shown = list(leading[:_LISTED] or [word for word in rest if not word.is_zero][:_LISTED_WITHOUT_LEADING])
    shown += [word for word in rest if leading and word.stands_out]
    deleted, measured = any(word.is_deleted for word in shown), any(word.is_measured for word in shown)
    in_percent = any(word.in_percent for word in shown)
    has_spread = in_percent and not all(math.isnan(word.spread) for word in shown)
    wide = max(11 if deleted else 6, 15 if has_spread else 0)

    def columns(without: str, share: str, bits: str) -> str:
        cells = (f"{without:>10}",) * deleted + (f"{share:>{wide}}",) * in_percent
        return "  ".join((*cells, *(f"{bits:>15}",) * (not measured)))

    lines = [columns("without it", "of the bits", "").rstrip()] if deleted else []
    longest = max((word.importance for word in shown), default=0.0) if leading else 0.0
    for word in shown:
        without = format_probability(word.without) if word.is_deleted else ""
        share = f"{word.share:.1%}{'' if math.isnan(word.spread) else f' ± {word.spread:5.1%}'}"
        bar = "█" * round(_BAR_WIDTH * word.importance / longest) if longest else ""
        said = [word.relation, "does not lead" if leading and word in rest else ""]
        name = f"{printable(word.word)} ({word.place}){' ≈' * word.tied}"
        lines.append(
            f"{columns(without, share, f'{word.bits:,.2f} bits')}  {bar:<{_BAR_WIDTH}}  "
            f"{', '.join(filter(None, [name, *said]))}"
        )
    for words, which in ((leading, "leading"), (rest, "other")):
        if others := [word for word in words if word not in shown]:
            share = f"{math.fsum(word.share for word in others):.1%}"
            lines.append(f"{columns('', share, '').rstrip()}  in {counted(others, which)}")
    return lines


def terminal_text(attribution: DrawableBits) -> Group:
    """The decision, the colored text, and the leading words, with a bar each.

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
