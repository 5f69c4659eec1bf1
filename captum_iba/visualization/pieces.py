"""What is drawn: a text in parts, each with its number, for pages, figures and terminals alike."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from captum_iba.visualization.color import Scale
from captum_iba.visualization.drawable import Drawable, DrawableBits, is_scores

NEUTRAL_TEXTS = "neutral texts"
"""Origin of the statistics where no others are given."""

FLOORS = 10
"""Floors above the floor from which a word is colored fully."""
SPEAKS_AGAINST = "speaks against it"
"""What lists say of a part without which the output is more probable."""
MATTERS_ALONE = "matters alone"
"""What lists say of a word that does not lead, and whose deletion alone lowers the probability by much."""
COVERED = 0.8
"""Share of the bits above the floor that the parts hold which a reader is shown first."""

_METHOD_TITLES = {
    "iba": "Information bottleneck",
    "ig": "Integrated Gradients",
    "lime": "LIME",
    "leave_one_out": "Leave one out",
    "attn_lrp": "AttnLRP",
    "kernel_shap": "Kernel SHAP",
    "gradient_shap": "Gradient SHAP",
    "deep_lift": "DeepLift",
    "random": "Random",
}


def method_title(name: str) -> str:
    """Name of a method for readers."""
    return _METHOD_TITLES.get(name, name)


def check_same_text(attributions: Sequence[DrawableBits], name: str) -> None:
    """Raise ValueError, which names the argument, unless attributions are of one text (or pair) and one class of it."""
    if len({(item.text, item.pair) for item in attributions}) != 1:
        raise ValueError(f"{name} has attributions of several texts, expected those of one text")
    if len(targets := {item.target for item in attributions}) != 1:
        raise ValueError(f"{name} has attributions of the classes {sorted(targets)}, expected those of one class")


def layer_names(attributions: Sequence[DrawableBits]) -> list[str]:
    """Number or name of the layer of each, with ``beta`` where that differs: bits of different ones do not compare."""
    names = [item.layer if item.layer_index is None else str(item.layer_index) for item in attributions]
    betas = notes_of_beta(attributions)
    return [f"{name} ({beta})" if beta else name for name, beta in zip(names, betas, strict=True)]


def notes_of_beta(attributions: Sequence[DrawableBits]) -> list[str]:
    """``"beta 3"`` for each where they are not all equal, else empty."""
    betas = [item.settings.get("beta") for item in attributions]
    return ["" if beta is None or len({*betas}) == 1 else f"beta {beta:g}" for beta in betas]


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


def scale_of(attribution: Drawable) -> Scale:
    """Scale of one attribution: linear, from the floor to the largest word, or for signed scores from both sides."""
    if not is_scores(attribution):
        return Scale(full_color([attribution]))
    sizes = [abs(float(score)) for score in attribution.words if math.isfinite(score)]
    return Scale(max(sizes, default=0.0) or 1.0, attribution.signed, "score")


def full_color(attributions: Sequence[DrawableBits], floor: float | None = None) -> float:
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


def has_characters(text: str) -> bool:
    """Whether a text has more than white space and what normalizers drop: marks without width, and U+FFFD."""
    return any(not c.isspace() and c != "\ufffd" and unicodedata.category(c) not in ("Cf", "Cc", "Mn") for c in text)


def format_probability(probability: float) -> str:
    """A probability in percent, with two digits below 0.1%."""
    if probability >= 9.995e-4 or probability == 0:
        return f"{probability:.1%}"
    return f"{100 * probability:.2g}%" if probability >= 1e-6 else "less than 0.0001%"


def in_points(difference: float) -> str:
    """A difference of probabilities in percentage points, whole or at least 0.1: "12 points", "0.1 points"."""
    points = round(100 * difference)
    if points < 1:
        return f"{max(0.1, 100 * difference):.1f} points"
    return f"{points} point{'s' * (points > 1)}"


_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_number(value: float, style: str = "bits") -> str:
    """A number for readers, "n/a" for NaN and infinity.

    ``"bits"`` shows three digits or so; ``"score"`` three significant digits, since scores without a unit may be small;
    ``"tick"`` few letters, for scales (5, 4.2k, 13M).
    """
    if not math.isfinite(value):
        return "n/a"
    if style == "score":
        return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"
    size = abs(value)
    if style == "bits":
        return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    sign = "−" if value < 0 else ""
    unit, letter = next((pair for pair in _LARGE if size >= pair[0]), (1.0, ""))
    return f"{sign}{size / unit:.2g}{letter}" if size < 99 * unit else f"{sign}{size / unit:.0f}{letter}"


def quantity(measured: str) -> str:
    """What is measured, without what it is of: "the probability", or "the closeness" of a regression.

    Examples::

        >>> quantity("the probability of positive"), quantity("the closeness to 3.2")
        ('the probability', 'the closeness')
    """
    return " ".join(measured.split()[:2])


def enumerated(names: Sequence[str], more: int = 0) -> str:
    """Names as they stand in a sentence: "a", "a and b", "a, b and c", and with ``more`` "a, b and 2 more".

    Examples::

        >>> enumerated(["dull", "boring"]), enumerated(["dull"], more=2)
        ('dull and boring', 'dull and 2 more')
    """
    names = [*names, f"{more} more"] if more else list(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def origin_line(provenance: Mapping[str, str]) -> str:
    """What a result was computed with, in one line, with the first 16 digits of fingerprints.

    Examples::

        >>> origin_line({"torch": "2.13.0", "device": "cpu", "model_fingerprint": "0e24a935" * 8})
        'torch 2.13.0, device cpu, fingerprint of the model 0e24a9350e24a935'
    """
    known = dict(provenance)
    fingerprints = {name: known.pop(f"{name}_fingerprint", "") for name in ("model", "statistics")}
    parts = [" ".join(pair) for pair in known.items()]
    return ", ".join([*parts, *(f"fingerprint of the {name} {d[:16]}" for name, d in fingerprints.items() if d)])


def capitalized(text: str) -> str:
    """A text as the beginning of a sentence; unlike :meth:`str.capitalize` it leaves the other letters as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def visible(word: str) -> str:
    """A word; one of white space only, which would be drawn as nothing, is spelled by symbols."""
    return word if word.strip() else "".join({"\n": "↵", "\t": "⇥"}.get(character, "␣") for character in word)
