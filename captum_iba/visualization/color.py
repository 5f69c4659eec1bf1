"""Color scales: sequential in one hue, diverging in two; ordered by lightness, so readable for color-blind eyes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVELS = 20
EFFECT = "relative effect of deletion"
"""Unit of a scale of what the deletion of a word changes."""

_ANCHORS = {
    # White to navy, and near black to pale yellow: more bits are further from the page in both.
    "light": ("#ffffff", "#deebf7", "#b3d3e8", "#74b3d8", "#3b8bc2", "#135fa7", "#08306b"),
    "dark": ("#15181d", "#16304c", "#1b4f7d", "#2a77a8", "#4fa3bd", "#96cfc0", "#f3f7c4"),
    # A terminal may be light or dark: middling grey to amber stands out from both.
    "terminal": ("#6b7684", "#a98a4a", "#ffb000"),
    # Signed scores: ColorBrewer's purple and orange, which every kind of color blindness tells apart, and which
    # are not the blue of bits.
    "light against": ("#ffffff", "#d8daeb", "#b2abd2", "#8073ac", "#542788"),
    "light for": ("#ffffff", "#fee0b6", "#fdb863", "#e08214", "#8f4606"),
    "dark against": ("#15181d", "#342a5c", "#5a4896", "#8f7fd0", "#d3cbf8"),
    "dark for": ("#15181d", "#4a2c0c", "#8a4f10", "#d98a2b", "#ffdfae"),
}

Rgb = tuple[int, int, int]


@dataclass(frozen=True)
class Scale:
    """Positions of numbers on a linear scale of color, full at ``maximum``; a signed one has 0 in the middle.

    Bits are those above the floor, that a token ends with which is not needed.
    """

    maximum: float
    signed: bool = False
    unit: str = "bits above the floor"

    def position(self, value: float) -> float | None:
        """Position on the scale: 0 to 1, or -1 to 1 if it is signed; None where the value is NaN or infinite."""
        if not math.isfinite(value):
            return None
        return max(-1.0 if self.signed else 0.0, min(1.0, value / self.maximum))

    def level(self, value: float) -> int | None:
        """Step of the scale: 0 to :data:`LEVELS`, below 0 for negative scores; None for NaN and infinity."""
        position = self.position(value)
        return None if position is None else round(LEVELS * position)

    def ticks(self) -> list[tuple[float, float]]:
        """Numbers to write at the scale and where, from 0 (its left end) to 1."""
        low = -self.maximum if self.signed else 0.0
        return [(low, 0.0), ((low + self.maximum) / 2, 0.5), (self.maximum, 1.0)]

    @property
    def ends(self) -> tuple[str, str]:
        """What the colors at both ends say of a word."""
        if self.signed:
            return "against the class", "for the class"
        return ("no effect", "largest effect in its text") if self.unit == EFFECT else ("not needed", "most needed")

    @property
    def levels(self) -> range:
        """Steps from left to right."""
        return range(-LEVELS if self.signed else 0, LEVELS + 1)


def color_class(level: int, signed: bool) -> str:
    """Class of the style sheet for a step of a scale: q0 to q20, or n20 to n1 and p0 to p20."""
    return f"q{level}" if not signed else f"n{-level}" if level < 0 else f"p{level}"


def palette(background: str = "light") -> list[tuple[str, str]]:
    """For each step of the scale a background, and a color of text that can be read on it, both ``"#rrggbb"``.

    ``background`` is a ``"light"`` or ``"dark"`` page, or a ``"terminal"``, which may be either; with ``" against"`` or
    ``" for"`` appended to a page's it is one side of the signed scale.
    """
    anchors = [_rgb(color) for color in _ANCHORS[background]]
    backgrounds = [_between(anchors, step / LEVELS) for step in range(LEVELS + 1)]
    return [(_hex(background), _readable(background)) for background in backgrounds]


def colors(scale: Scale, background: str = "light") -> list[tuple[str, str]]:
    """The same for the steps of a scale, from left to right."""
    if not scale.signed:
        return palette(background)
    return [*palette(f"{background} against")[:0:-1], *palette(f"{background} for")]


def contrast(left: Rgb, right: Rgb) -> float:
    """Contrast of two colors after WCAG 2: 1 (none) to 21 (black and white); 4.5 is readable."""
    darker, lighter = sorted((_luminance(left), _luminance(right)))
    return (lighter + 0.05) / (darker + 0.05)


def _readable(background: Rgb) -> str:
    black, white = (0, 0, 0), (255, 255, 255)
    return _hex(max(black, white, key=lambda color: contrast(color, background)))


def _luminance(color: Rgb) -> float:
    channels = [part / 255 for part in color]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _between(anchors: Sequence[Rgb], position: float) -> Rgb:
    along = position * (len(anchors) - 1)
    left = min(int(along), len(anchors) - 2)
    weight = along - left
    mixed = [round(a + (b - a) * weight) for a, b in zip(anchors[left], anchors[left + 1], strict=True)]
    return mixed[0], mixed[1], mixed[2]


def _rgb(color: str) -> Rgb:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _hex(color: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)
