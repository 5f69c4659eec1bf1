"""What is drawn: a text in parts, each with its number, for pages, figures and terminals alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from captum_iba._reading.check_sentences import NOT_CONFIRMED
from captum_iba._reading.mask_sentences import remark
from captum_iba._reading.mask_state import needs_hardly_anything
from captum_iba._reading.places import explained_words, names_of_texts, places_in_text
from captum_iba._reading.protocols import Drawable, is_scores
from captum_iba._reading.rows import SPEAKS_AGAINST, VISIBLE, ListedPart
from captum_iba._reading.text_parts import Part, full_color, parts
from captum_iba._reading.word_sentences import verdict
from captum_iba._reading.wording import format_number, format_probability
from captum_iba._reading.words import ranked_words, standing_out
from captum_iba.visualization.color import EFFECT, Scale, color_class


def scale_of(attribution: Drawable) -> Scale:
    """Scale of one attribution: linear, from the floor to the largest word, or for signed scores from both sides."""
    if not is_scores(attribution):
        return Scale(full_color([attribution]))
    sizes = [abs(float(score)) for score in attribution.words if math.isfinite(score)]
    return Scale(max(sizes, default=0.0) or 1.0, attribution.signed, "score")


_LEADING = 3
PALE = 0.35
"""Of a color, where a check does not confirm the leading words."""


@dataclass(frozen=True)
class TokenMap:
    """A text in parts, in reading order, on a scale of color, as templates and terminals draw it."""

    parts: tuple[Part, ...]
    scale: Scale
    is_bits: bool
    hardly_anything: bool = False
    remark: str = ""
    rows: Mapping[int | None, ListedPart] = field(default_factory=dict)
    leading: frozenset[int | None] = frozenset()
    against: frozenset[int | None] = frozenset()
    names: tuple[str, str] = ("", "")
    explained: frozenset[int | None] = frozenset()

    def color(self, part: Part) -> str:
        """Class of the style sheet that colors a part."""
        level = self.level(part)
        return "na" if level is None else color_class(level, self.scale.signed)

    def level(self, part: Part) -> int | None:
        """Step of the scale of a part, the lowest where the model needs hardly anything; None for NaN and infinity."""
        return self.scale.level(0.0 if self.hardly_anything and math.isfinite(part.depth) else part.depth)

    def label(self, part: Part) -> str:
        """Number of a part with its unit, "n/a" where it is NaN or infinite; and the probability without a word."""
        if not self.is_bits:
            return format_number(part.value, "score")
        row, bits = self.rows.get(part.word), f"{format_number(part.value)} bits"
        if row is None or not row.is_deleted:
            return bits
        return f"{row.measure} without it {format_probability(row.without)}, {bits}"

    def leads(self, part: Part) -> bool:
        """Whether a part is a word that leads by its removal, which pages underline."""
        return part.word in self.leading

    def opposes(self, part: Part) -> bool:
        """Whether a part is a word of the list that speaks against the target, which has a wavy line."""
        return part.word in self.against

    def is_explained(self, part: Part) -> bool:
        """Whether a part is a word that is explained itself, which pages frame."""
        return part.word in self.explained

    @property
    def largest(self) -> list[tuple[str, str]]:
        """The words with the largest numbers by magnitude, and these; with the place of a word that is there twice."""
        words = [part for part in self.parts if part.kind == "word"]
        ranked = sorted((part for part in words if math.isfinite(part.value)), key=lambda part: -abs(part.value))
        copies, places = Counter(part.text for part in words), self._places()
        return [
            (
                f"{part.text} ({places[part.word]})" if copies[part.text] > 1 else part.text,
                self.label(part).replace("-", "\u2212"),
            )
            for part in ranked[:_LEADING]
            if part.value
        ]

    def _places(self) -> dict[int | None, str]:
        """Where each word stands, by its number, as lists print it."""
        breaks = list(accumulate(part.kind == "break" for part in self.parts))
        places: dict[int | None, str] = {}
        for text in range(1 + max(breaks, default=0)):
            words = [part for part, of in zip(self.parts, breaks, strict=True) if of == text and part.kind == "word"]
            of_text = f"{self.names[text]}, " * (max(breaks) > 0)
            for part, place in zip(words, places_in_text([part.text for part in words]), strict=True):
                places[part.word] = f"{of_text}{place}"
        return places

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
    """The parts of an attribution on a scale, by default its own.

    Words whose deletion was measured are colored by that, and the others after them, unless a scale of bits is given.
    """
    drawn = tuple(parts(attribution))
    if is_scores(attribution):
        return TokenMap(drawn, scale or scale_of(attribution), False, names=names_of_texts(attribution))
    leading, rest = ranked_words(attribution)
    if scale is None and any(row.is_measured for row in (*leading, *rest)):
        scale = Scale(1.0, unit=EFFECT)
        # What matters only without other words, and raises the probability alone, would look like a reason.
        whole = attribution.target_probability
        shown = [*leading, *(row for row in rest if row.importance >= VISIBLE and not row.without > whole)]
        colors = {row.number: row.importance for row in shown}
        colors |= {row.number: max(row.importance, VISIBLE) for row in rest if row.matters_alone}
        strength = PALE if verdict(attribution) == NOT_CONFIRMED else 1.0
        drawn = tuple(
            part._replace(depth=0.0 if part.word is None else strength * colors.get(part.word, 0.0))
            if math.isfinite(part.depth)
            else part
            for part in drawn
        )
    return TokenMap(
        drawn,
        scale or scale_of(attribution),
        True,
        needs_hardly_anything(attribution),
        remark(attribution),
        {row.number: row for row in (*leading, *rest)},
        frozenset(row.number for row in leading if row.is_measured),
        frozenset(row.number for row in standing_out(leading, rest) if row.relation == SPEAKS_AGAINST),
        names_of_texts(attribution),
        frozenset(explained_words(attribution)),
    )
