"""The leading parts of an input by their removal, and the parts that a check removes: of texts, prompts and images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._reading.thresholds import N_RANDOM
from captum_iba.metrics.part_removal import RemovalSequence, first_to_cover, removal_sequence

COVERED_DECREASE = 0.9
"""Fraction of the largest decrease in a value. No further part leads once the leading ones reach it."""
MOST_OF_DECREASE = 0.95
"""The same fraction of the decrease in the probability, where the value is its logarithm, which has no lower end."""
N_PRUNED = 8
"""Leading parts up to which superfluous ones are left out, or some exchanged: of more it takes too many passes."""
_N_EXCHANGED = 3  # leading parts that are exchanged at most
_N_FIRST = 16  # leading parts that a check removes one after the other
_HALF, _LESS = 0.5, 0.1  # of the probability
_LOWERED, _LEAST_DROP = 0.9, 0.02  # of a probability without one part alone

Explained = TypeVar("Explained")


def leading_in_order(
    value: Callable[[Tensor], Tensor],
    order: npt.NDArray[np.intp],
    n_leading: int,
    tolerance: float,
    others: Sequence[int] = (),
) -> tuple[list[int], list[float]]:
    """
    As few of the first parts of an order as are enough, in the order of their removal.

    First, the shortest prefix of the order is taken whose removal lowers the value by 90% of the largest decrease of
    any prefix (:func:`without_first`). Of up to eight parts those are then left out that add at most ``tolerance`` to
    the others, some are exchanged (:func:`exchange_parts`), and they are put in the order of their removal
    (:func:`captum_iba.metrics.removal_sequence`).

    Args:
        value (Callable): Function of the kept parts, (rows, P) booleans, that returns (rows,).
        order (array): Numbers of all parts, (P,), the most important one first.
        n_leading (int): How many of them may lead.
        tolerance (float): Difference of the value that counts as none.
        others (sequence of int, optional): Numbers of parts that may take the place of one of these. Default: none.

    Returns:
        tuple: Numbers of the leading parts, and the value without the first k of them, for k up to 16.

    Examples::

        >>> def value(kept): return (kept[:, 0] | kept[:, 2]).double()
        >>> leading_in_order(value, np.array([0, 1, 2, 3]), 3, tolerance=0.1)
        ([0, 2], [1.0, 0.0])
    """
    n_leading, first = without_first(value, order, n_leading)
    leading = order[:n_leading].tolist()
    if not 0 < n_leading <= N_PRUNED:
        return leading, first
    found = exchanged_sequence(value, leading, others, len(order), tolerance)
    return list(found.parts), found.without.tolist()


def exchanged_sequence(
    value: Callable[[Tensor], Tensor], leading: Sequence[int], others: Sequence[int], n_parts: int, tolerance: float
) -> RemovalSequence:
    """The leading parts in the order of their removal, some exchanged for others if the value is lower without these.

    The arguments are those of :func:`exchange_parts`. Of more than eight none is exchanged.
    """
    found = removal_sequence(value, leading, n_parts, tolerance, COVERED_DECREASE)
    if len(found.parts) > N_PRUNED:
        return found
    exchanged = exchange_parts(value, found.parts, others, n_parts, tolerance)
    if exchanged == found.parts:
        return found
    return removal_sequence(value, exchanged, n_parts, tolerance, COVERED_DECREASE)


def exchange_parts(
    value: Callable[[Tensor], Tensor], leading: Sequence[int], others: Sequence[int], n_parts: int, tolerance: float
) -> tuple[int, ...]:
    """
    The leading parts, with up to three of them exchanged for others without which the value is lower.

    Args:
        value (Callable): Function of the kept parts, (rows, P) booleans, that returns (rows,).
        leading (sequence of int): Numbers of the leading parts.
        others (sequence of int): Numbers of parts that may take the place of one of these.
        n_parts (int): Number of all parts, P.
        tolerance (float): Difference of the value that counts as none.

    Returns:
        tuple of int: Numbers of as many parts. The search takes at most ``3 * len(leading) * len(others) + 1`` forward
        passes.

    Examples::

        >>> def value(kept): return (kept[:, 0] | kept[:, 2]).double()
        >>> exchange_parts(value, [0, 1], [2, 3], n_parts=4, tolerance=0.1)
        (0, 2)
    """

    def without(sets: Sequence[Sequence[int]]) -> Tensor:
        return value(torch.tensor([[i not in one for i in range(n_parts)] for one in sets]))

    found = tuple(leading)
    if not found or not others:
        return found
    lowest = float(without([found]))
    for _ in range(_N_EXCHANGED):
        free = [i for i in others if i not in found]
        sets = [(*found[:at], other, *found[at + 1 :]) for at in range(len(found)) for other in free]
        values = without(sets).nan_to_num(nan=math.inf) if sets else torch.tensor([lowest])
        if not lowest - float(values.min()) > tolerance:
            break
        lowest, found = float(values.min()), sets[int(values.argmin())]
    return found


def without_first(
    value: Callable[[Tensor], Tensor], order: npt.NDArray[np.intp], n_leading: int
) -> tuple[int, list[float]]:
    """How few of the leading parts are enough, and the value without the first k of these, for k from 1 to 16.

    Enough are the first ones without which the value falls by 90% of what it falls by at most. Where more than 16 lead,
    all of them stay, for not all are tried. Never are all parts removed.
    """
    n_tried = max(0, min(n_leading, _N_FIRST, len(order) - 1))
    values = value(kept_without_first(order.tolist(), n_tried, len(order))).double()
    decreases = values[0] - values[1:]
    if n_tried and n_tried >= min(n_leading, len(order) - 1) and float(decreases.max()) > 0:
        n_leading = n_tried = min(n_tried, first_to_cover(decreases))
    return n_leading, values[1 : 1 + n_tried].tolist()


def most_without_one(probability: float) -> float:
    """The probability without a part alone at or below which the part is measured, too.

    Examples::

        >>> most_without_one(0.5), most_without_one(0.1)
        (0.45, 0.08)
    """
    return min(_LOWERED * probability, probability - _LEAST_DROP)


def with_more_measured(
    found: Explained,
    more: Callable[[], Explained],
    left: Callable[[Explained], float],
    probability: float,
    all_lead: bool = False,
) -> Explained:
    """An explanation, or one for which more parts were measured, where it is the better one.

    More parts are measured where the leading ones leave more than half of the probability, or a tenth if all measured
    ones lead. They count if the leading ones among them leave less, by a tenth of the probability.

    Args:
        found (Explained): The explanation with its check.
        more (Callable): Returns it with more measured parts, and their check.
        left (Callable): The probability without the leading parts of such an explanation.
        probability (float): The probability with all parts.
        all_lead (bool): Whether all measured parts lead, and others are not measured. Default: False.

    Examples::

        >>> with_more_measured(0.8, lambda: 0.3, left=float, probability=0.9)
        0.3
        >>> with_more_measured(0.4, lambda: 0.3, left=float, probability=0.9)
        0.4
        >>> with_more_measured(0.4, lambda: 0.3, left=float, probability=0.9, all_lead=True)
        0.3
    """
    before = left(found)
    if before <= (_LESS if all_lead else _HALF) * probability:
        return found
    further = more()
    return further if left(further) <= before - _LESS * probability else found


def kept_without_first(order: Sequence[int], count: int, n_parts: int) -> Tensor:
    """The parts that stay without the first k of an order, for k from 0 to ``count``, (1 + count, n_parts)."""
    kept = torch.ones(1 + count, n_parts, dtype=torch.bool)
    for number, row in enumerate(kept):
        row[list(order[:number])] = False
    return kept


def kept_in_check(
    order: npt.NDArray[np.intp],
    n_leading: int,
    seed: int,
    by_bits: npt.NDArray[np.intp] | None = None,
    marks: npt.NDArray[np.bool_] | None = None,
    n_single: int = N_RANDOM,
) -> npt.NDArray[np.bool_]:
    """The parts that a check keeps: all, all but the leading ones, all but the least, and all but others at random.

    As many parts are removed as lead, but at most half of all; one in nine if none leads. The least and the random ones
    are taken from the parts that do not lead, so that no leading part is removed on both sides of the comparison.

    Args:
        order (array): Numbers of all parts, (P,), the most important one first.
        n_leading (int): How many of them lead.
        seed (int): Seed of the random draws.
        by_bits (array, optional): Numbers of all parts, (P,), that with the most bits first; the least parts are the
            last of these. Default: ``order``.
        marks (array, optional): True for punctuation, (P,), which is drawn only if too few words are left.
            Default: none.
        n_single (int): Up to so many other parts, each of them is removed alone if a single part leads. Default: 10.

    Returns:
        array: Booleans, (3 + R, P). R is 10, or the number of different sets of other parts if that is less.
    """
    n_words = len(order)
    n_deleted = max(1, min(n_leading, n_words // 2) if n_leading else round(n_words / 9))
    generator = np.random.default_rng(seed)
    others = order[n_deleted:] if n_words > 1 else order
    marks = np.zeros(n_words, dtype=bool) if marks is None else marks
    by_bits = order if by_bits is None else by_bits
    least = by_bits[np.isin(by_bits, others)]
    least = least[np.argsort(~marks[least], kind="stable")]  # punctuation before the words
    deleted = [order[:0], order[:n_deleted], least[-n_deleted:]]
    words, rest = others[~marks[others]], others[marks[others]]
    always, drawn = (words[:0], words) if len(words) >= n_deleted else (words, rest)
    n_drawn = n_deleted - len(always)
    if math.comb(len(drawn), n_drawn) <= (n_single if n_deleted == 1 else N_RANDOM):
        sets: Iterable[Any] = combinations(drawn.tolist(), n_drawn)
    else:
        sets = (generator.permutation(drawn)[:n_drawn] for _ in range(N_RANDOM))
    deleted += [np.concatenate([always, np.array(one, dtype=order.dtype)]) for one in sets]
    kept = np.ones((len(deleted), n_words), dtype=bool)
    for row, words in zip(kept, deleted, strict=True):
        row[words] = False
    return kept


def kept_without_leading(
    kept: npt.NDArray[np.bool_], order: npt.NDArray[np.intp], n_leading: int
) -> npt.NDArray[np.bool_]:
    """The parts that stay without all leading ones, (1, P), if :func:`kept_in_check` removes fewer; else (0, P)."""
    rows = np.ones((int((~kept[1]).sum() < n_leading <= len(order)), len(order)), dtype=bool)
    rows[:, order[:n_leading]] = False
    return rows
