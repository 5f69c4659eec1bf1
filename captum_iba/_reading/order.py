"""Parts in the order of their effects and bits, and which of them lead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.wording import NEUTRAL_TEXTS

Numbers = npt.NDArray[np.float64]

COVERED = 0.8
"""Share of the bits above the floor that the parts hold which a reader is shown first."""
_NEARLY_TIED, _WITH_NEUTRAL_STATISTICS = 0.8, 0.6


def shares_above_floor(bits: Numbers, floors: Numbers, tolerance: float) -> Numbers:
    """Share of each part of the bits above its floor; they sum to 1, or are 0 if no part is above it.

    A part that is above its floor by at most ``tolerance`` of it counts as being there, and so does NaN or infinity.

    Examples::

        >>> shares_above_floor(np.array([1.0, 4.0, 2.0]), np.array([1.0, 1.0, 1.0]), tolerance=0.01)
        array([0.  , 0.75, 0.25])
    """
    above = np.where(np.isfinite(bits) & (bits - floors > tolerance * floors), bits - floors, 0.0)
    total = above.sum()
    return above / total if total > 0 else np.zeros_like(above)


def importance_of(shares: Numbers, effects: Sequence[float | None]) -> Numbers:
    """What lists and colors show of each part, (P,), from 0 to 1.

    Of parts whose removal was measured it is the effect, relative to the largest, and 0 where it is not positive. The
    others come after them, by their shares; without any effect, also of an empty sequence, all go by these.

    Examples::

        >>> importance_of(np.array([0.4, 0.4, 0.2]), [0.2, 0.8, None])
        array([0.25 , 1.   , 0.125])
    """
    importance, values = np.zeros(len(shares)), np.full(len(shares), math.nan)
    values[: len(effects)] = [math.nan if effect is None else effect for effect in effects]
    measured, helps = np.isfinite(values), values > 0
    if helps.any():
        importance[helps] = values[helps] / values[helps].max()
        least, of_least = importance[helps].min(), shares[measured & (shares > 0)].min(initial=math.inf)
        importance[~measured] = least * np.minimum(1.0, shares[~measured] / of_least)
    elif not measured.any() and len(shares) and shares.max() > 0:
        importance = shares / shares.max()
    return importance


def estimated_effects(shares: Numbers, effects: Sequence[float | None]) -> Numbers:
    """Effect of each part, (P,): the measured one, and for the others their share at the measured parts' rate.

    The rate is the sum of the measured effects that are positive per share of the parts they are measured of. All are
    NaN where none was measured.

    Examples::

        >>> estimated_effects(np.array([0.5, 0.3, 0.2]), [1.5, -0.1, None])
        array([ 1.5  , -0.1  ,  0.375])
    """
    values = np.array([math.nan if effect is None else effect for effect in effects])
    measured = np.isfinite(values)
    share = float(shares[measured].sum())
    if not measured.any():
        return values
    rate = float(values[measured].clip(0).sum()) / share if share > 0 else 0.0
    return np.where(measured, values, rate * shares)


def order_of(
    bits: Numbers, shares: Numbers, importance: Numbers, effects: Sequence[float | None]
) -> npt.NDArray[np.intp]:
    """Numbers of the parts, the most important one first; those whose effect is not positive are the last.

    Examples::

        >>> shares, effects = np.array([0.5, 0.3, 0.2]), [-0.1, 0.8, None]
        >>> order_of(shares, shares, importance_of(shares, effects), effects)
        array([1, 2, 0])
    """
    harms = [effect is not None and effect <= 0 for effect in effects]
    return np.lexsort((-bits, -shares, -importance, np.array(harms, dtype=bool)))


def leading_of(order: npt.NDArray[np.intp], importance: Numbers, covered: float) -> list[int]:
    """The first parts of an order until they hold the fraction ``covered`` of the sum of the importance.

    Examples::

        >>> leading_of(np.array([1, 2, 0]), np.array([0.0, 1.0, 0.5]), covered=0.6)
        [1]
    """
    positive = [int(i) for i in order if importance[i] > 0]
    before = accumulate((float(importance[i]) for i in positive), initial=0.0)
    return [i for i, already in zip(positive, before, strict=False) if already < covered * float(importance.sum())]


def has_neutral_statistics(attribution: ExplainedText) -> bool:
    """Whether the statistics are those of the package's neutral texts.

    Statistics of other texts then change the percentages by more than repeats do.
    """
    return attribution.statistics.startswith(NEUTRAL_TEXTS)


def count_leading(attribution: ExplainedText) -> int:
    """How many words lead: those of ``removal_order``; with ``rerank=0`` those with 80% of the bits above the floor."""
    if attribution.effects:
        return len(attribution.removal_order)
    held = [share for i in ranking(attribution) if (share := float(attribution.shares[i])) > 0]
    before = accumulate(held, initial=0.0)
    return sum(already < COVERED * math.fsum(held) for already, _ in zip(before, held, strict=False))


def nearly_tied(attribution: ExplainedText) -> list[int]:
    """Numbers of the words that may lead with statistics of other texts: the first one, and those within 20% of it.

    None where their order was measured by removal. With statistics of 300 other texts like these, the word that leads
    then is one of them in at least 90% of texts (``python -m benchmarks.stability``). Statistics of neutral texts
    differ more, so there it is those within 40%.
    """
    if any(effect is not None for effect in attribution.effects):
        return []
    shares, order = attribution.shares, ranking(attribution)
    least = _WITH_NEUTRAL_STATISTICS if has_neutral_statistics(attribution) else _NEARLY_TIED
    return [i for i in order if shares[i] > 0 and shares[i] >= least * shares[order[0]]]


def ranking(attribution: ExplainedText) -> list[int]:
    """Numbers of the words: the leading ones in the order of their deletion, other measured ones, and those by bits.

    The measured ones are in the order of their effects, the largest first.
    """
    by_bits, leading = ranking_by_bits(attribution), attribution.removal_order
    measured = {i: effect for i, effect in enumerate(attribution.effects) if effect is not None}
    first = sorted((i for i in by_bits if i in measured and i not in leading), key=lambda i: -measured[i])
    return [*leading, *first, *(i for i in by_bits if i not in measured)]


def ranking_by_bits(attribution: ExplainedText) -> list[int]:
    """Numbers of the words in the order of the bits above the floor, then of all bits; NaN and infinity are last."""
    words, shares = attribution.words, attribution.shares
    return sorted(
        range(len(words)), key=lambda i: (not math.isfinite(words[i].bits), -float(shares[i]), -words[i].bits)
    )
