"""An attribution as the pieces of a drawing: words with their colour, and the text between them as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Union

from captum_iba.visualization.colour import Scale

if TYPE_CHECKING:
    from captum_iba.methods import Scores
    from captum_iba.text import TextAttribution

Drawable = Union["TextAttribution", "Scores"]
"""What can be drawn as a token map: bits, or the scores of any method."""


class Part(NamedTuple):
    """A word, a special token or what is between them, with its number.

    Args:
        text (str): As the original text spells it.
        kind (str): ``"word"``, ``"special"`` (a special token), ``"gap"`` (between words) or ``"break"``
            (between a text and its pair).
        value (float): Bits or score; 0 for a gap.
    """

    text: str
    kind: str
    value: float = 0.0


@dataclass(frozen=True)
class Piece:
    """Something to draw.

    Attributes:
        text (str): What to write.
        kind (str): As of :class:`Part`.
        said (str): The number with its unit, as text, "n/a" where it is none; empty for a gap.
        level (int or None): Step of the colour scale; None where there is no number.
        signed (bool): Whether the scale has two sides.
    """

    text: str
    kind: str
    said: str = ""
    level: int | None = 0
    signed: bool = False

    @property
    def colour(self) -> str:
        """The class of the style sheet that colours it."""
        return "na" if self.level is None else colour_class(self.level, self.signed)


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


def colour_class(level: int, signed: bool) -> str:
    """The class of the style sheet for a step of a scale: q0 to q20, or n20 to n1 and p0 to p20."""
    return f"q{level}" if not signed else f"n{-level}" if level < 0 else f"p{level}"


def say(bits: float) -> str:
    """Bits as text, with three digits or so; "n/a" for what is no number."""
    if not math.isfinite(bits):
        return "n/a"
    return f"{bits:,.0f}" if abs(bits) >= 1000 else f"{bits:.1f}" if abs(bits) >= 10 else f"{bits:.2f}"


def say_score(score: float) -> str:
    """A score without a unit as text: it may be small."""
    return f"{score:.3g}" if math.isfinite(score) else "n/a"


def say_short(bits: float) -> str:
    """A number for a scale, in few letters: 5, 4.2k, 13M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bits >= size:
            return f"{bits / size:.2g}{letter}" if bits < 99 * size else f"{bits / size:.0f}{letter}"
    return f"{bits:.2g}" if bits < 99 else f"{bits:.0f}"


def say_tick(value: float) -> str:
    """The same with a sign."""
    return f"−{say_short(-value)}" if value < 0 else say_short(value)


def full_colour(attributions: Sequence[Drawable]) -> float:
    """What full colour stands for: the largest finite bits of a word or special token, and at least 1 bit.

    Less than a bit is next to nothing: without this floor a text in which no word matters would be all dark.
    """
    return max(1.0, *map(_largest, attributions))


def scale_of(attribution: Drawable) -> Scale:
    """The scale of one attribution: of bits logarithmic, of other scores from 0, or both sides of 0, to the largest."""
    from captum_iba.text.result import TextAttribution

    if isinstance(attribution, TextAttribution):
        return Scale(full_colour([attribution]))
    sizes = [abs(float(score)) for score in attribution.words if math.isfinite(score)]
    return Scale(max(sizes, default=0.0) or 1.0, attribution.signed, "score")


def parts(attribution: Drawable) -> Iterator[Part]:
    """A text word by word, sub-words joined, special tokens between them.

    Args:
        attribution (TextAttribution or Scores): What is to be drawn.
    """
    ends = {0: 0, 1: 0}
    drawn: set[int] = set()
    words = _words(attribution)
    text, pair = _texts(attribution)
    for name, value, special, number in _tokens(attribution):
        if special:
            yield Part(name, "special", value)
            continue
        if number is None or number in drawn:
            continue
        drawn.add(number)
        word = words[number]
        if word.sequence == 1 and ends[1] == 0:
            yield Part("", "break")
        source = (pair or "") if word.sequence else text
        if gap := source[ends[word.sequence] : word.start]:
            yield Part(gap, "gap")
        ends[word.sequence] = max(word.end, ends[word.sequence])
        yield Part(source[word.start : word.end], "word", word.value)


def draw(attribution: Drawable, scale: Scale) -> Map:
    """The pieces of one attribution, word by word, on a scale."""
    found = list(parts(attribution))
    values = [part.value for part in found if part.kind == "word"]
    unit, said = (" bits", say) if scale.unit == "bits" else ("", say_score)
    pieces = tuple(
        Piece(visible(part.text), part.kind, said(part.value) + unit, scale.level(part.value), scale.signed)
        if part.kind in ("word", "special")
        else Piece(part.text, part.kind)
        for part in found
    )
    total = math.fsum(part.value for part in found) if _all_finite(found) else math.nan
    return Map(pieces, said(_largest(attribution)), said(total), _note(values, scale))


def visible(word: str) -> str:
    """White space that is a word of its own would be drawn as nothing."""
    return word.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") if not word.strip() else word


class _Word(NamedTuple):
    value: float
    start: int
    end: int
    sequence: int


def _texts(attribution: Drawable) -> tuple[str, str | None]:
    from captum_iba.text.result import TextAttribution

    source = attribution if isinstance(attribution, TextAttribution) else attribution.encoded
    return source.text, source.pair


def _tokens(attribution: Drawable) -> Iterator[tuple[str, float, bool, int | None]]:
    """Per token: as the vocabulary spells it, its number, whether it is special, and which word it is of."""
    from captum_iba.text.result import TextAttribution

    if isinstance(attribution, TextAttribution):
        for token in attribution.tokens:
            yield token.token, token.bits, token.special, token.word
        return
    encoded = attribution.encoded
    yield from zip(encoded.tokens, map(float, attribution.tokens), encoded.special, encoded.words, strict=True)


def _words(attribution: Drawable) -> list[_Word]:
    from captum_iba.text.result import TextAttribution

    if isinstance(attribution, TextAttribution):
        return [_Word(word.bits, word.start, word.end, word.sequence) for word in attribution.words]
    spans: dict[int, tuple[int, int, int]] = {}
    encoded = attribution.encoded
    for word, (start, end), sequence in zip(encoded.words, encoded.spans, encoded.sequences, strict=True):
        if word is not None:
            first, last, _ = spans.get(word, (start, end, 0))
            spans[word] = (min(first, start), max(last, end), sequence or 0)
    return [_Word(float(attribution.words[number]), *spans[number]) for number in sorted(spans)]


def _largest(attribution: Drawable) -> float:
    """The most of a word or special token, by size; 0 where there is no number."""
    numbers = [part.value for part in parts(attribution) if part.kind in ("word", "special")]
    return max((number for number in numbers if math.isfinite(number)), key=abs, default=0.0)


def _all_finite(found: Sequence[Part]) -> bool:
    return all(math.isfinite(part.value) for part in found)


def _note(values: Sequence[float], scale: Scale) -> str:
    what = "number of bits" if scale.unit == "bits" else "score"
    if not all(map(math.isfinite, values)):
        return f"hatched words have no {what} (NaN or infinite)"
    if any(values) and (scale.unit != "bits" or max(values) > 0):
        return ""
    return "no word has any bits" if scale.unit == "bits" else "all scores are 0"
