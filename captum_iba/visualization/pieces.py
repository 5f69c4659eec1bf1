"""What is drawn: a text in parts, each with its number, for pages, figures and terminals alike."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from captum_iba.visualization.color import Scale, color_class
from captum_iba.visualization.drawable import Drawable, DrawableBits, is_scores

NEUTRAL_TEXTS = "neutral texts"
"""Origin of the statistics where no others are given."""

THESE_ALONE = "with these bits alone"
"""Begins what the model gives through the final mask."""
HARDLY_ANYTHING = "The model needs hardly anything of this text."
# A mask has lost a prediction with less than half of its probability, or a quarter of what the input adds to that
# through a closed mask. Half of that, too, would take 1.62 in place of 1.38 runs per text of IMDB, for a worse order.
_HALF, _QUARTER = 0.5, 0.25
LARGE_DROP = 0.1
"""Of a probability, by which the mask or a check contradicts that hardly anything is needed."""
# Of a probability, and of it relative to the whole, by which a text adds next to nothing to a closed mask.
_SMALL_DROP, _MOST = 0.05, 0.8
_NOTICEABLE, _KEPT = 0.01, 0.005
_DECREASED = 0.85  # of a probability: what a check finds is no small change
# A class that is not predicted and has less is not one that words can take away.
_RULED_OUT, _IMPROBABLE = 0.01, 0.05
_FLOORS = 10
_NEAR_FLOOR = 2  # floors above the floor
_PARTS = 4  # ten floors that are more than a quarter of an open token are no small number of bits
COVERED = 0.8
"""Share of the bits above the floor that the parts hold which a reader is shown first."""
_LEADING = 3

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

    ``depth`` is what is colored: the bits above the floor, or the score itself.
    """

    text: str
    kind: str
    value: float = 0.0
    depth: float = 0.0

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
        yield part(text[start:end], "word", value, n_tokens[number])
    yield from cut(1 if ends[1] else 0)


@dataclass(frozen=True)
class TokenMap:
    """A text in parts, in reading order, on a scale of color, as templates and terminals draw it."""

    parts: tuple[Part, ...]
    scale: Scale
    is_bits: bool
    hardly_anything: bool = False
    remark: str = ""

    def color(self, part: Part) -> str:
        """Class of the style sheet that colors a part."""
        level = self.level(part)
        return "na" if level is None else color_class(level, self.scale.signed)

    def level(self, part: Part) -> int | None:
        """Step of the scale of a part, the lowest where the model needs hardly anything; None for NaN and infinity."""
        return self.scale.level(0.0 if self.hardly_anything and math.isfinite(part.depth) else part.depth)

    def label(self, part: Part) -> str:
        """Number of a part with its unit; "n/a" where it is NaN or infinite."""
        return f"{format_number(part.value)} bits" if self.is_bits else format_number(part.value, "score")

    @property
    def leading(self) -> list[tuple[str, str]]:
        """The words with the largest numbers by magnitude, and these."""
        words = [part for part in self.parts if part.kind == "word" and math.isfinite(part.value) and part.value]
        ranked = sorted(words, key=lambda part: -abs(part.value))[:_LEADING]
        return [(part.text, self.label(part).replace("-", "\u2212")) for part in ranked]

    @property
    def note(self) -> str:
        """What a reader must know of a map without colors; empty otherwise."""
        words = [part for part in self.parts if part.kind == "word"]
        if not all(math.isfinite(part.value) for part in words):
            return f"hatched words have no {'number of bits' if self.is_bits else 'score'} (NaN or infinite)"
        if self.is_bits:
            return self.remark
        return "" if any(part.value for part in words) else "all scores are 0"


def token_parts(attribution: Drawable, scale: Scale | None = None) -> TokenMap:
    """The parts of an attribution on a scale, by default its own."""
    drawn, scale = tuple(parts(attribution)), scale or scale_of(attribution)
    if is_scores(attribution):
        return TokenMap(drawn, scale, False)
    return TokenMap(drawn, scale, True, needs_hardly_anything(attribution), remark(attribution))


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
        min(_FLOORS * bits, item.open_bits - bits) if item.open_bits else _FLOORS * bits
        for item, bits in zip(attributions, floors, strict=True)
    )
    return max(1.0, *least, *(_largest(tuple(parts(item, floor))) for item in attributions))


def _largest(drawn: Sequence[Part]) -> float:
    return max((part.depth for part in drawn if part.has_value and math.isfinite(part.value)), default=0.0)


def needs_hardly_anything(attribution: Drawable) -> bool:
    """Whether no word or token is far above the floor, and a closed mask gives the target not much less.

    A check that finds much less probability without the leading words contradicts it.
    """
    if is_scores(attribution):
        return has_hardly_any_bits(attribution)
    if not _has_few_bits(attribution):
        return False
    closed = attribution.closed_probability
    needs_none = closed is None or is_unexplained(attribution.target_probability, closed, few=True)
    return not lost_prediction(attribution) and (needs_none or is_improbable(attribution))


def _has_few_bits(attribution: DrawableBits) -> bool:
    """Whether no word or token is far above the floor, and no check has found that the first words matter."""
    check = attribution.check
    matter = check is not None and check.without_leading < _DECREASED * check.probability
    return has_hardly_any_bits(attribution) and not matter


def lost_prediction(attribution: DrawableBits) -> bool:
    """Whether the probability through the final mask is known, and the mask :func:`has lost it <is_lost>`."""
    masked, closed = attribution.masked_probability, attribution.closed_probability
    return masked is not None and is_lost(attribution.target_probability, masked, closed)


def is_lost(probability: float, masked: float, closed: float | None = None) -> bool:
    """Whether a mask has lost a prediction.

    That is where through it a class has less than half of its probability, or where it is lower by more than 0.1 and
    below one half in place of above, or has less than a quarter of what the input adds to that through a closed mask.

    Examples::

        >>> is_lost(0.95, 0.56, closed=0.55), is_lost(0.95, 0.56, closed=0.10)
        (True, False)
    """
    if masked < _HALF * probability:
        return True
    if masked >= probability - LARGE_DROP:
        return False
    if masked < _HALF <= probability:
        return True
    return closed is not None and closed < probability and masked < closed + _QUARTER * (probability - closed)


def is_improbable(attribution: DrawableBits) -> bool:
    """Whether the target has so little probability with all words that there is little to explain."""
    return is_little(attribution.target_probability, attribution.target_label == attribution.predicted_label)


def is_little(probability: float, is_predicted: bool) -> bool:
    """Whether a class has so little probability that there is little to explain; a predicted one below 1%."""
    return probability < (_RULED_OUT if is_predicted else _IMPROBABLE)


def through_the_mask(attribution: DrawableBits) -> str:
    """What the model gives through the final mask, and through a closed one; empty where that is not known."""
    probability, masked = attribution.target_probability, attribution.masked_probability
    closed = attribution.closed_probability
    if masked is None:
        return ""
    through = f"{THESE_ALONE} {attribution.measured} is {format_probability(masked)}"
    if closed is None:
        return through
    through += f", and without any {format_probability(closed)}"
    if masked > max(probability, closed) + LARGE_DROP:
        return f"{through}: what the mask removed lowers it"
    if lost_prediction(attribution) or not keeps_little(probability, masked, closed):
        return through
    kept = "little" if masked > closed + _KEPT else "nothing"
    return (
        f"{through}: the bits keep {kept} of what the text adds, so they rank its words, but do not explain the "
        "probability"
    )


def keeps_little(probability: float, masked: float, closed: float) -> bool:
    """Whether a mask keeps less than a quarter of what an input adds to a closed one, where that is more than 0.05."""
    return closed < probability - _SMALL_DROP and masked < closed + _QUARTER * (probability - closed)


def remark(attribution: DrawableBits) -> str:
    """A sentence on hardly any bits, or on a mask that has not closed or lost the prediction; empty for others."""
    masked, through = attribution.masked_probability, through_the_mask(attribution)
    probability, closed = attribution.target_probability, attribution.closed_probability
    beta = attribution.settings.get("beta")
    is_least = beta is not None and beta <= 1  # the default has tried no smaller one
    if lost_prediction(attribution):
        advice = (
            f"Even beta {beta:g} keeps too little, so do not rely on the percentages; statistics from texts like this "
            "may help."
            if is_least
            else "A smaller beta, or statistics from texts like this, help."
        )
        return f"The mask closes too much: {through}, and bits may be too few. {advice}"
    if 0 < attribution.open_bits < _PARTS * attribution.unneeded_bits:
        kept = f"{format_number(attribution.unneeded_bits)} of {format_number(attribution.open_bits)} bits"
        return (
            f"The mask has hardly closed: where only the information counts, a token keeps {kept}, so percentages say "
            "little. More steps, or a larger beta, help."
        )
    few = _has_few_bits(attribution)
    if masked is None:
        return HARDLY_ANYTHING if few else ""
    if is_improbable(attribution):
        if closed is not None and lowers_it(probability, closed):
            return unexplained(attribution.measured, "this text", probability, closed, "")
        return "" if attribution.check is not None else f"The model gives {attribution.target_label} next to nothing."
    if few and (masked < probability - LARGE_DROP or masked < _HALF <= probability):
        advice = "" if is_least else " A smaller beta keeps more of them."
        return f"Hardly any bits above the floor pass the mask: {through}.{advice}"
    if few and closed is None:
        return HARDLY_ANYTHING
    if is_unexplained(probability, closed, few):
        assert closed is not None
        return _unexplained(attribution, closed, few)
    if few and _largest(tuple(parts(attribution))) < _NEAR_FLOOR * attribution.unneeded_bits:
        floor = format_number(attribution.unneeded_bits)
        return f"No word has clearly more bits than the floor, {floor} bits per token: the percentages say little."
    return ""


def _unexplained(attribution: DrawableBits, closed: float, few: bool) -> str:
    """What is said where a closed mask gives the target (nearly) as much as the text; the check may say more."""
    check, what = attribution.check, "this text"
    least = math.inf
    if check is not None:
        tried = (check.without_leading, check.without_random, check.without_least, *check.without_each)
        least = min(tried) / check.probability if check.probability > 0 else math.inf
    follows = "the bits rank its words, but do not explain it"
    if attribution.layer_index:
        follows = (
            "at this layer special tokens, which have no bottleneck, have read the other words already, and the mask "
            "cannot tell which words are needed"
        )
    elif few:
        follows = f"the model needs hardly anything of {what}"
        if least < _DECREASED:
            follows = "no word has many bits, and they do not explain it"
    sentence = unexplained(attribution.measured, what, attribution.target_probability, closed, follows)
    if least >= _DECREASED:
        return sentence
    how = "further" if lowers_it(attribution.target_probability, closed) else "all the same"
    # Single words that raise it have a sentence of their own.
    deleted = "the leading words" if check.without_leading < _DECREASED * check.probability else "some words"
    raises = check.without_least > check.probability + LARGE_DROP
    other = ", deleting those with the fewest bits raises it" if raises else ""
    return f"{sentence} Deleting {deleted} lowers it {how}{other}: see the check."


def is_unexplained(probability: float, closed: float | None, few: bool = False) -> bool:
    """Whether a closed mask gives the target as much as the input does, less at most a fifth.

    Unless ``few`` parts have bits, it is at most 0.05 less, too.
    """
    if closed is None or closed < _MOST * probability:
        return False
    return few or closed >= probability - _SMALL_DROP


def lowers_it(probability: float, closed: float) -> bool:
    """Whether an input lowers what average activations give, by more than 0.1 or from one half to below."""
    return closed > probability + LARGE_DROP or closed >= _HALF > probability


def is_lowered(attribution: DrawableBits) -> bool:
    """Whether the text lowers what average activations give the target; False where that is not known."""
    closed = attribution.closed_probability
    return closed is not None and lowers_it(attribution.target_probability, closed)


def unexplained(measured: str, what: str, probability: float, closed: float, follows: str) -> str:
    """A sentence where average activations alone give the target (nearly) as much as the input.

    Args:
        measured (str): "the probability of positive".
        what (str): "this text" or "this image".
        probability, closed (float): With the input, and through a closed mask.
        follows (str): What follows from it, where the input does not lower the probability.
    """
    alone = f"With average activations alone {measured} is {format_probability(closed)}"
    given = format_probability(probability)
    if lowers_it(probability, closed):
        return f"{alone}, more than with {what} ({given}): {what} lowers it."
    as_much = "nearly as much as" if closed >= probability - _SMALL_DROP else "not much less than"
    if closed >= probability:
        as_much = "more than" if closed > probability + _NOTICEABLE else "no less than"
    return f"{alone}, {as_much} with {what} ({given}): {follows}."


def has_hardly_any_bits(attribution: Drawable) -> bool:
    """Whether no word or token is far above the floor.

    That is not known where the floor itself is a large part of an open token: the optimization has not closed the mask.
    """
    if not is_scores(attribution) and 0 < attribution.open_bits < _PARTS * _FLOORS * attribution.unneeded_bits:
        return False
    return _largest(tuple(parts(attribution))) < scale_of(attribution).maximum


def has_characters(text: str) -> bool:
    """Whether a text has more than white space and what normalizers drop: marks without width, and U+FFFD."""
    return any(not c.isspace() and c != "\ufffd" and unicodedata.category(c) not in ("Cf", "Cc", "Mn") for c in text)


def format_probability(probability: float) -> str:
    """A probability in percent, with two digits where it would be 0.0%."""
    if probability >= 5e-4 or probability == 0:
        return f"{probability:.1%}"
    return f"{100 * probability:.2g}%" if probability >= 1e-6 else "less than 0.0001%"


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


def visible(word: str) -> str:
    """A word; one of white space only, which would be drawn as nothing, is spelled by symbols."""
    return word if word.strip() else "".join({"\n": "↵", "\t": "⇥"}.get(character, "␣") for character in word)
