"""Numbers and names as they stand in sentences, lists and tables."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence

NEUTRAL_TEXTS = "neutral texts"
"""Origin of the statistics where no others are given."""
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


def has_characters(text: str) -> bool:
    """Whether a text has more than white space and what normalizers drop: marks without width, and U+FFFD."""
    return any(not c.isspace() and c != "\ufffd" and unicodedata.category(c) not in ("Cf", "Cc", "Mn") for c in text)


def format_probability(probability: float) -> str:
    """A probability in percent, with two digits below 0.1%; "n/a" for NaN."""
    if math.isnan(probability):
        return "n/a"
    if probability >= 9.995e-4 or probability == 0:
        return f"{probability:.1%}"
    return f"{100 * probability:.2g}%" if probability >= 1e-6 else "less than 0.0001%"


def in_points(difference: float) -> str:
    """A difference of probabilities in percentage points, whole or at least 0.1: "12 points", "0.1 points"."""
    points = round(100 * difference)
    if points < 1:
        return f"{max(0.1, 100 * difference):.1f} points"
    return f"{points} point{'s' * (points > 1)}"


_LONGEST = 60  # characters of a text in a sentence
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


def brief(text: str) -> str:
    """Text in quotes in a sentence, or the beginning of it.

    Examples::

        >>> brief(" a film"), len(brief("a film, " * 20))
        ('a film', 61)
    """
    text = printable(visible(text).strip())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()}…"


# These reorder what follows them on a terminal, beyond the word that they stand in.
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Text for a terminal: control characters and text-direction overrides are spelled out."""
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in ("Cc", "Cs") or character in _BIDI_CONTROLS
        else character
        for character in text
    )
