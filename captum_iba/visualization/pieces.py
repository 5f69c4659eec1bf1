"""What is drawn: a text in parts, each with its number, for pages, figures and terminals alike."""

# ruff: noqa: D102 - the properties of the protocols are documented where they are implemented

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from captum_iba.visualization.colour import Scale, colour_class

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class DrawableBits(Protocol):
    """Bits per token and word of a text: a :class:`captum_iba.text.TextAttribution`."""

    @property
    def text(self) -> str: ...
    @property
    def pair(self) -> str | None: ...
    @property
    def tokens(self) -> Sequence[Any]: ...
    @property
    def words(self) -> Sequence[Any]: ...
    @property
    def target(self) -> int: ...
    @property
    def total_bits(self) -> float: ...
    @property
    def layer(self) -> str: ...
    @property
    def layer_index(self) -> int | None: ...
    @property
    def layer_label(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def tokens_truncated(self) -> int: ...
    @property
    def statistics(self) -> str: ...
    def to_captum_record(self) -> Any: ...


class DrawableScores(Protocol):
    """Scores per token and word of an encoded text by any method: a :class:`captum_iba.methods.Scores`."""

    @property
    def method(self) -> str: ...
    @property
    def target(self) -> int: ...
    @property
    def encoded(self) -> Any: ...
    @property
    def tokens(self) -> Any: ...
    @property
    def words(self) -> Any: ...
    @property
    def signed(self) -> bool: ...


Drawable = DrawableBits | DrawableScores
"""What can be drawn as a token map."""


def is_scores(attribution: Drawable) -> TypeIs[DrawableScores]:
    """Whether it is scores of a method, not bits."""
    return hasattr(attribution, "encoded")


def check_same_text(attributions: Sequence[DrawableBits], name: str) -> None:
    """Raise ValueError, which names the argument, unless attributions are of one text (or pair) and one class of it."""
    if len({(item.text, item.pair) for item in attributions}) != 1:
        raise ValueError(f"{name} has attributions of several texts, expected those of one text")
    if len(targets := {item.target for item in attributions}) != 1:
        raise ValueError(f"{name} has attributions of the classes {sorted(targets)}, expected those of one class")


class Part(NamedTuple):
    """A word, a special token, the gap between words or the break between a text and its pair, with its number."""

    text: str
    kind: str
    value: float = 0.0

    @property
    def has_value(self) -> bool:
        """Whether it is a word or a special token."""
        return self.kind in ("word", "special")


def parts(attribution: Drawable) -> Iterator[Part]:
    """A text word by word, sub-words joined, special tokens between them."""
    # Words by number: value, start, end, sequence.
    words: dict[int | None, tuple[float, int, int, int]] = {}
    tokens: Iterable[tuple[str, float, bool, int | None, tuple[int, int], int | None]]
    if is_scores(attribution):
        source = attribution.encoded
        columns = (source.special, source.words, source.spans, source.sequences)
        tokens = zip(source.tokens, map(float, attribution.tokens), *columns, strict=True)
        for number, (start, end), sequence in zip(source.words, source.spans, source.sequences, strict=True):
            if number is not None:
                _, first, last, _ = words.get(number, (0.0, start, end, 0))
                words[number] = (float(attribution.words[number]), min(first, start), max(last, end), sequence or 0)
    else:
        source = attribution
        tokens = (
            (token.token, token.bits, token.special, token.word, (token.start, token.end), token.sequence)
            for token in attribution.tokens
        )
        words = {i: (word.bits, word.start, word.end, word.sequence) for i, word in enumerate(attribution.words)}
    ends = {0: 0, 1: 0}
    for name, bits, special, number, (first, last), of_text in tokens:
        if special:
            if of_text is not None:  # written in the text
                if gap := ((source.pair or "") if of_text else source.text)[ends[of_text] : first]:
                    yield Part(gap, "gap")
                ends[of_text] = max(last, ends[of_text])
            yield Part(visible(name), "special", bits)
        # The first token of a word draws it; tokens without a word, spaces for example, are part of a gap.
        if special or number not in words:
            continue
        value, start, end, sequence = words.pop(number)
        text = (source.pair or "") if sequence else source.text
        if sequence == 1 and ends[1] == 0:
            yield Part("", "break")
        if gap := text[ends[sequence] : start]:
            yield Part(gap, "gap")
        start = max(start, ends[sequence])  # no character is drawn twice
        ends[sequence] = max(end, ends[sequence])
        yield Part(visible(text[start:end]), "word", value)


@dataclass(frozen=True)
class TokenMap:
    """A text in parts, in reading order, on a scale of colour, as templates and terminals draw it."""

    parts: tuple[Part, ...]
    scale: Scale

    def colour(self, part: Part) -> str:
        """Class of the style sheet that colours a part."""
        level = self.scale.level(part.value)
        return "na" if level is None else colour_class(level, self.scale.signed)

    def label(self, part: Part) -> str:
        """Number of a part with its unit; "n/a" where it is NaN or infinite."""
        return self._number(part.value) + (" bits" if self.scale.unit == "bits" else "")

    @property
    def largest(self) -> str:
        """Largest number of a word or special token, by magnitude."""
        return self._number(_largest(self.parts))

    @property
    def total(self) -> str:
        """Sum of all numbers."""
        values = [part.value for part in self.parts]
        return self._number(math.fsum(values) if all(map(math.isfinite, values)) else math.nan)

    @property
    def note(self) -> str:
        """What a reader must know of a map without colours; empty otherwise."""
        values, bits = [part.value for part in self.parts if part.kind == "word"], self.scale.unit == "bits"
        if not all(map(math.isfinite, values)):
            return f"hatched words have no {'number of bits' if bits else 'score'} (NaN or infinite)"
        if any(values) and (not bits or max(values) > 0):
            return ""
        return "no word has any bits" if bits else "all scores are 0"

    def _number(self, value: float) -> str:
        return format_number(value, self.scale.unit)


def token_parts(attribution: Drawable, scale: Scale | None = None) -> TokenMap:
    """The parts of an attribution on a scale, by default its own."""
    return TokenMap(tuple(parts(attribution)), scale or scale_of(attribution))


def scale_of(attribution: Drawable) -> Scale:
    """Scale of one attribution: of bits logarithmic, of other scores linear, from 0 or both sides of 0."""
    if not is_scores(attribution):
        return Scale(full_colour([attribution]))
    sizes = [abs(float(score)) for score in attribution.words if math.isfinite(score)]
    return Scale(max(sizes, default=0.0) or 1.0, attribution.signed, "score")


def full_colour(attributions: Sequence[Drawable]) -> float:
    """Bits of full colour: the largest finite bits of a word or special token, and at least 1 bit.

    Less than a bit is next to nothing: without this floor a text in which no word matters would be all dark.
    """
    return max(1.0, *(_largest(tuple(parts(attribution))) for attribution in attributions))


def _largest(drawn: Sequence[Part]) -> float:
    numbers = [part.value for part in drawn if part.has_value and math.isfinite(part.value)]
    return max(numbers, key=abs, default=0.0)


_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_number(value: float, style: str = "bits") -> str:
    """A number for readers, "n/a" for NaN and infinity.

    ``"bits"`` shows three digits or so; ``"score"`` three significant digits, since scores without a unit may be small;
    ``"tick"`` few letters, for scales (5, 4.2k, 13M).
    """
    if not math.isfinite(value):
        return "n/a"
    if style == "score":
        return f"{value:.3g}"
    size = abs(value)
    if style == "bits":
        return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    sign = "−" if value < 0 else ""
    unit, letter = next((pair for pair in _LARGE if size >= pair[0]), (1.0, ""))
    return f"{sign}{size / unit:.2g}{letter}" if size < 99 * unit else f"{sign}{size / unit:.0f}{letter}"


def visible(word: str) -> str:
    """A word; one of white space only, which would be drawn as nothing, is spelled by symbols."""
    return word.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") if not word.strip() else word
