"""A text in parts, each with its number: words, special tokens, and what stands between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from captum_iba._reading.protocols import Drawable, ExplainedText, is_scores
from captum_iba._reading.wording import has_characters, visible

FLOORS = 10
"""Floors above the floor from which a word is colored fully."""


class Part(NamedTuple):
    """A word, a special token, the gap between words or the break between a text and its pair, with its number.

    ``depth`` is what is colored: the bits above the floor, or the score itself; ``word`` is the number of a word.
    """

    text: str
    kind: str
    value: float = 0.0
    depth: float = 0.0
    word: int | None = None

    @property
    def has_value(self) -> bool:
        """Whether it is a word or a special token."""
        return self.kind in ("word", "special")


def parts(attribution: Drawable, floor: float | None = None) -> Iterator[Part]:
    """A text word by word, sub-words joined, special tokens between them.

    ``floor`` is what a token ends with that is not needed, by default what the attribution says.
    """
    # Words by number: value, start, end, sequence.
    words: dict[int | None, tuple[float, int, int, int]] = {}
    tokens: Iterable[tuple[str, float, bool, int | None, tuple[int, int], int | None]]
    if is_scores(attribution):
        floor, source = None, attribution.encoded
        columns = (source.special, source.words, source.spans, source.sequences)
        tokens = zip(source.tokens, map(float, attribution.tokens), *columns, strict=True)
        for number, (start, end), sequence in zip(source.words, source.spans, source.sequences, strict=True):
            if number is not None:
                _, first, last, _ = words.get(number, (0.0, start, end, 0))
                words[number] = (float(attribution.words[number]), min(first, start), max(last, end), sequence or 0)
    else:
        source, floor = attribution, attribution.unneeded_bits if floor is None else floor
        tokens = [
            (token.token, token.bits, token.special, token.word, (token.start, token.end), token.sequence)
            for token in attribution.tokens
        ]
        words = {i: (word.bits, word.start, word.end, word.sequence) for i, word in enumerate(attribution.words)}
    tokens = list(tokens)
    n_tokens = Counter(number for _, _, _, number, _, _ in tokens)

    def part(text: str, kind: str, value: float, n: int) -> Part:
        has_floor = floor is not None and math.isfinite(value)
        return Part(visible(text), kind, value, max(0.0, value - n * (floor or 0.0)) if has_floor else value)

    ends = {0: 0, 1: 0}

    def gap(sequence: int, start: int) -> list[Part]:
        text = ((source.pair or "") if sequence else source.text)[ends[sequence] : start]
        # What is truncated at the end of a text is not drawn either.
        unread = not ends[sequence] and source.tokens_truncated and has_characters(text)
        return [Part("… " if unread else text, "gap")] if text else []

    def cut(sequence: int) -> list[Part]:
        rest = ((source.pair or "") if sequence else source.text)[ends[sequence] :]
        truncated = ends[sequence] and source.tokens_truncated and has_characters(rest)
        return [Part(" …", "gap")] if truncated else []

    for name, bits, special, number, (first, last), of_text in tokens:
        if special:
            if of_text is not None:  # written in the text
                yield from gap(of_text, first)
                ends[of_text] = max(last, ends[of_text])
            yield part(name, "special", bits, 1)
        # The first token of a word draws it; tokens without a word, spaces for example, are part of a gap.
        if special or number not in words:
            continue
        value, start, end, sequence = words.pop(number)
        text = (source.pair or "") if sequence else source.text
        if sequence == 1 and ends[1] == 0:
            yield from cut(0)
            yield Part("", "break")
        yield from gap(sequence, start)
        start = max(start, ends[sequence])  # no character is drawn twice
        ends[sequence] = max(end, ends[sequence])
        yield part(text[start:end], "word", value, n_tokens[number])._replace(word=number)
    yield from cut(1 if ends[1] else 0)


def full_color(attributions: Sequence[ExplainedText], floor: float | None = None) -> float:
    """Bits above the floor of full color: the most of a word or special token, and at least ten floors, or 1 bit.

    Less than that is next to nothing: without it a text in which no word matters would be all dark. Ten floors may be
    more than a token holds, where the optimization is short; then a token that stays open is enough.
    """
    floors = [item.unneeded_bits if floor is None else floor for item in attributions]
    least = (
        min(FLOORS * bits, item.open_bits - bits) if item.open_bits else FLOORS * bits
        for item, bits in zip(attributions, floors, strict=True)
    )
    return max(1.0, *least, *(largest(tuple(parts(item, floor))) for item in attributions))


def largest(drawn: Sequence[Part]) -> float:
    """The largest depth of a word or token; 0 without any."""
    return max((part.depth for part in drawn if part.has_value and math.isfinite(part.value)), default=0.0)
