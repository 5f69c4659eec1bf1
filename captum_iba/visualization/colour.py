"""Scales: few to many in one hue, against to for in two; by lightness, so that colour blindness costs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVELS = 20

# Light: white to navy. Dark: near black to pale yellow; more bits are further from the page in both.
_LIGHT = ("#ffffff", "#deebf7", "#b3d3e8", "#74b3d8", "#3b8bc2", "#135fa7", "#08306b")
_DARK = ("#15181d", "#16304c", "#1b4f7d", "#2a77a8", "#4fa3bd", "#96cfc0", "#f3f7c4")

# Of signed scores: ColorBrewer's purple and orange, which every kind of colour blindness tells apart, and which
# are not the blue of bits.
_LIGHT_AGAINST = ("#ffffff", "#d8daeb", "#b2abd2", "#8073ac", "#542788")
_LIGHT_FOR = ("#ffffff", "#fee0b6", "#fdb863", "#e08214", "#8f4606")
_DARK_AGAINST = ("#15181d", "#342a5c", "#5a4896", "#8f7fd0", "#d3cbf8")
_DARK_FOR = ("#15181d", "#4a2c0c", "#8a4f10", "#d98a2b", "#ffdfae")

# A terminal may be light or dark: middling grey to amber stands out from both.
_TERMINAL = ("#6b7684", "#a98a4a", "#ffb000")
_ANCHORS = {
    "light": _LIGHT,
    "dark": _DARK,
    "terminal": _TERMINAL,
    "light against": _LIGHT_AGAINST,
    "light for": _LIGHT_FOR,
    "dark against": _DARK_AGAINST,
    "dark for": _DARK_FOR,
}

Rgb = tuple[int, int, int]


@dataclass(frozen=True)
class Scale:
    """Where numbers stand on a scale of colour.

    Bits are on a logarithmic scale, ``log(1 + bits)``: one decisive word has hundreds of bits and others have a few,
    and both are worth seeing. The scores of other methods are on a linear one: they have no unit, so nothing is known
    of what is small.

    Attributes:
        most (float): What has the full colour, finite and above 0.
        signed (bool): Whether there are two sides with 0 in the middle. Default: False.
        unit (str): ``"bits"``, or ``"score"``. Default: ``"bits"``.
    """

    most: float
    signed: bool = False
    unit: str = "bits"

    def place(self, value: float) -> float | None:
        """How far up the scale: 0 to 1, or -1 to 1 if it is signed; None where the value is NaN or infinite."""
        if not math.isfinite(value):
            return None
        if self.unit == "bits":
            return share(value, self.most)
        return max(-1.0 if self.signed else 0.0, min(1.0, value / self.most))

    def level(self, value: float) -> int | None:
        """The step of the scale: 0 to :data:`LEVELS`, below 0 for what speaks against; None for what is no number."""
        place = self.place(value)
        return None if place is None else round(LEVELS * place)

    def ticks(self) -> list[tuple[float, float]]:
        """Numbers to write at the scale and where, from 0 (its left end) to 1."""
        if self.unit == "bits":
            return ticks(self.most)
        if self.signed:
            return [(-self.most, 0.0), (0.0, 0.5), (self.most, 1.0)]
        return [(0.0, 0.0), (self.most / 2, 0.5), (self.most, 1.0)]

    @property
    def levels(self) -> range:
        """The steps from left to right."""
        return range(-LEVELS if self.signed else 0, LEVELS + 1)


def share(bits: float, most: float) -> float:
    """How far up the logarithmic scale a number of bits is, 0 to 1.

    Args:
        bits (float): What is shown, finite; below 0 counts as 0.
        most (float): What is at the top, finite and above 0.
    """
    return min(1.0, math.log1p(max(0.0, bits)) / math.log1p(most))


def level(bits: float, most: float) -> int | None:
    """The step of the scale for a number of bits.

    Args:
        bits (float): What is shown; below 0 counts as 0.
        most (float): What has the full colour.

    Returns:
        int or None: 0 to :data:`LEVELS`; None where ``bits`` is NaN or infinite, which has no place on it.
    """
    return Scale(most).level(bits)


def ticks(most: float) -> list[tuple[float, float]]:
    """Numbers to write at the logarithmic scale and where, from 0 to 1: 0, powers of ten, and the top."""
    powers = (10.0**power for power in range(round(math.log10(max(1.0, most))) + 1))
    # One too near to the top would be written over it.
    between = [(bits, share(bits, most)) for bits in powers if share(bits, most) < 0.8]
    return [(0.0, 0.0), *between, (most, 1.0)]


def palette(background: str = "light") -> list[tuple[str, str]]:
    """For each step of the scale the background and a colour of text that can be read on it.

    Args:
        background (str): For a ``"light"`` or ``"dark"`` page, or for a ``"terminal"``, which may be either; with
            ``" against"`` or ``" for"`` behind a page's, one side of the signed scale. Default: ``"light"``.

    Returns:
        list of (str, str): :data:`LEVELS` + 1 pairs of ``"#rrggbb"``.
    """
    anchors = [_rgb(colour) for colour in _ANCHORS[background]]
    backgrounds = [_between(anchors, step / LEVELS) for step in range(LEVELS + 1)]
    return [(_hex(background), _readable(background)) for background in backgrounds]


def colours(scale: Scale, background: str = "light") -> list[tuple[str, str]]:
    """The same for the steps of a scale, from left to right."""
    if not scale.signed:
        return palette(background)
    return [*palette(f"{background} against")[:0:-1], *palette(f"{background} for")]


def contrast(left: Rgb, right: Rgb) -> float:
    """The contrast of two colours after WCAG 2: 1 (none) to 21 (black and white); 4.5 can be read."""
    darker, lighter = sorted((_luminance(left), _luminance(right)))
    return (lighter + 0.05) / (darker + 0.05)


def _readable(background: Rgb) -> str:
    black, white = (0, 0, 0), (255, 255, 255)
    return _hex(max(black, white, key=lambda colour: contrast(colour, background)))


def _luminance(colour: Rgb) -> float:
    shares = [part / 255 for part in colour]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _between(anchors: Sequence[Rgb], share: float) -> Rgb:
    place = share * (len(anchors) - 1)
    left = min(int(place), len(anchors) - 2)
    weight = place - left
    mixed = [round(a + (b - a) * weight) for a, b in zip(anchors[left], anchors[left + 1], strict=True)]
    return mixed[0], mixed[1], mixed[2]


def _rgb(colour: str) -> Rgb:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _hex(colour: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
