"""Parts in order: first those whose removal was measured, by its effect, then the others by their bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


def shares_above(bits: Numbers, floors: Numbers, tolerance: float) -> Numbers:
    """Share of each part of the bits above its floor; they sum to 1, or are 0 if no part is above it.

    A part that is above its floor by at most ``tolerance`` of it counts as being there, and so does NaN or infinity.

    Examples::

        >>> shares_above(np.array([1.0, 4.0, 2.0]), np.array([1.0, 1.0, 1.0]), tolerance=0.01)
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
