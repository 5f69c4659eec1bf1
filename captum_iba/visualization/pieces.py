"""An attribution as the pieces of a drawing: words with their colour, and the text between them as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from captum_iba.visualization.colour import level

if TYPE_CHECKING:
    from captum_iba.text import TextAttribution


@dataclass(frozen=True)
class Piece:
    """Something to draw.

    Attributes:
        text (str): What to write.
        kind (str): ``"word"``, ``"special"`` (a special token), ``"gap"`` (between words) or ``"break"``
            (between a text and its pair).
        bits (str): The bits as text, "n/a" where they are no number; empty for a gap.
        level (int or None): Step of the colour scale; None where bits are no number.
    """

    text: str
    kind: str
    bits: str = ""
    level: int | None = 0


@dataclass(frozen=True)
class Map:
    """A text, ready to draw.

    Attributes:
        pieces (tuple of Piece): In reading order.
        largest (str): The most bits of a word, as text.
        total (str): All bits, as text.
        note (str): What a reader must know of a map without colours; empty otherwise.
    """

    pieces: tuple[Piece, ...]
    largest: str
    total: str
    note: str


def say(bits: float) -> str:
    """Bits as text, with three digits or so; "n/a" for what is no number."""
    if not math.isfinite(bits):
        return "n/a"
    return f"{bits:,.0f}" if abs(bits) >= 1000 else f"{bits:.1f}" if abs(bits) >= 10 else f"{bits:.2f}"


def say_short(bits: float) -> str:
    """A number for a scale, in few letters: 5, 4.2k, 13M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bits >= size:
            return f"{bits / size:.2g}{letter}" if bits < 99 * size else f"{bits / size:.0f}{letter}"
    return f"{bits:.2g}" if bits < 99 else f"{bits:.0f}"


def full_colour(attributions: Sequence[TextAttribution]) -> float:
    """What full colour stands for: the largest finite bits of a word or special token, and at least 1 bit.

    Less than a bit is next to nothing: without this floor a text in which no word matters would be all dark.
    """
    return max(1.0, *map(_largest, attributions))


def _largest(attribution: TextAttribution) -> float:
    bits = [word.bits for word in attribution.words]
    bits += [token.bits for token in attribution.tokens if token.special]
    return max((number for number in bits if math.isfinite(number)), default=0.0)


def draw(attribution: TextAttribution, most: float) -> Map:
    """The pieces of one attribution, word by word; ``most`` bits have the full colour."""
    pieces: list[Piece] = []
    ends = {0: 0, 1: 0}
    drawn: set[int] = set()
    for token in attribution.tokens:
        if token.special:
            pieces.append(Piece(token.token, "special", say(token.bits), level(token.bits, most)))
            continue
        if token.word is None or token.word in drawn:
            continue
        drawn.add(token.word)
        word = attribution.words[token.word]
        if word.sequence == 1 and ends[1] == 0:
            pieces.append(Piece("", "break"))
        source = (attribution.pair or "") if word.sequence else attribution.text
        if gap := source[ends[word.sequence] : word.start]:
            pieces.append(Piece(gap, "gap"))
        ends[word.sequence] = max(word.end, ends[word.sequence])
        pieces.append(Piece(_visible(word.word), "word", say(word.bits), level(word.bits, most)))
    return Map(tuple(pieces), say(_largest(attribution)), say(attribution.total_bits), _note(attribution))


def _visible(word: str) -> str:
    """White space that is a word of its own would be drawn as nothing."""
    return word.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") if not word.strip() else word


def _note(attribution: TextAttribution) -> str:
    bits = [word.bits for word in attribution.words]
    if any(not math.isfinite(number) for number in bits):
        return "hatched words have no number of bits (NaN or infinite)"
    return "" if any(number > 0 for number in bits) else "no word has any bits"
