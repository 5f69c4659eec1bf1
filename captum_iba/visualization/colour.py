"""A scale from few bits to many: one hue, even steps of lightness, so that colour blindness costs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = 20

# Light: white to navy. Dark: near black to pale yellow; more bits are further from the page in both.
_LIGHT = ("#ffffff", "#deebf7", "#b3d3e8", "#74b3d8", "#3b8bc2", "#135fa7", "#08306b")
_DARK = ("#15181d", "#16304c", "#1b4f7d", "#2a77a8", "#4fa3bd", "#96cfc0", "#f3f7c4")

# A terminal may be light or dark: middling grey to amber stands out from both.
_TERMINAL = ("#6b7684", "#a98a4a", "#ffb000")
_ANCHORS = {"light": _LIGHT, "dark": _DARK, "terminal": _TERMINAL}

Rgb = tuple[int, int, int]


def share(bits: float, most: float) -> float:
    """How far up the scale a number of bits is, 0 to 1.

    The scale is logarithmic, ``log(1 + bits)``: one decisive word has hundreds of bits and others have a few, and
    both are worth seeing.

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
    return round(LEVELS * share(bits, most)) if math.isfinite(bits) else None


def ticks(most: float) -> list[tuple[float, float]]:
    """Numbers to write at the scale and where, from 0 to 1: 0, powers of ten, and the top."""
    powers = (10.0**power for power in range(round(math.log10(max(1.0, most))) + 1))
    # One too near to the top would be written over it.
    between = [(bits, share(bits, most)) for bits in powers if share(bits, most) < 0.8]
    return [(0.0, 0.0), *between, (most, 1.0)]


def palette(background: str = "light") -> list[tuple[str, str]]:
    """For each step of the scale the background and a colour of text that can be read on it.

    Args:
        background (str): For a ``"light"`` or ``"dark"`` page, or for a ``"terminal"``, which may be either.
            Default: ``"light"``.

    Returns:
        list of (str, str): :data:`LEVELS` + 1 pairs of ``"#rrggbb"``.
    """
    anchors = [_rgb(colour) for colour in _ANCHORS[background]]
    backgrounds = [_between(anchors, step / LEVELS) for step in range(LEVELS + 1)]
    return [(_hex(background), _readable(background)) for background in backgrounds]


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
