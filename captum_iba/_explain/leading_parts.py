"""The leading parts of an input by their removal: of texts, prompts and images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba.metrics.part_removal import RemovalSequence, first_to_cover, removal_sequence

COVERED_DECREASE = 0.9
"""Fraction of the largest decrease in a value. No further part leads once the leading ones reach it."""
MOST_OF_DECREASE = 0.95
"""The same fraction of the decrease in the probability, where the value is its logarithm, which has no lower end."""
N_TRIED = 16
"""Leading parts up to which it is tried how few are enough."""
N_PRUNED = 8
"""Leading parts up to which superfluous ones are left out, or some exchanged: of more it takes too many passes."""
_N_EXCHANGED = 3  # leading parts that are exchanged at most
_LOWERED, _LEAST_DROP = 0.9, 0.02  # of a probability without one part alone


def leading_in_order(
    value: Callable[[Tensor], Tensor],
    order: npt.NDArray[np.intp],
    n_leading: int,
    tolerance: float,
    others: Sequence[int] = (),
    n_tried: int = N_TRIED,
    n_pruned: int = N_PRUNED,
) -> tuple[list[int], list[float]]:
    """
    As few of the first parts of an order as are enough, in the order of their removal.

    First, the shortest prefix of the order is taken whose removal lowers the value by 90% of the largest decrease of
    any prefix. Of up to ``n_pruned`` parts those are then left out that add at most ``tolerance`` to the others, and
    they are put in the order of their removal (:func:`captum_iba.metrics.removal_sequence`). Of up to eight, some are
    exchanged (:func:`exchange_parts`).

    Args:
        value (Callable): Function of the kept parts, (rows, P) booleans, that returns (rows,).
        order (array): Numbers of all parts, (P,), the most important one first.
        n_leading (int): How many of them may lead.
        tolerance (float): Difference of the value that counts as none.
        others (sequence of int, optional): Numbers of parts that may take the place of one of these. Default: none.
        n_tried (int): Where more than so many may lead, all of them do. Default: 16.
        n_pruned (int): Where more than so many lead, none is left out or exchanged. Default: 8.

    Returns:
        tuple: Numbers of the leading parts, and the value without the first k of them, for k up to ``n_tried``.

    Examples::

        >>> def value(kept): return (kept[:, 0] | kept[:, 2]).double()
        >>> leading_in_order(value, np.array([0, 1, 2, 3]), 3, tolerance=0.1)
        ([0, 2], [1.0, 0.0])
    """
    n_tried = min(n_leading, n_tried)
    values = value(kept_without_first(order.tolist(), n_tried, len(order))).double()
    decreases = values[0] - values[1:]
    if n_tried == n_leading and n_tried and float(decreases.max()) > 0:
        n_leading = n_tried = first_to_cover(decreases)
    leading = order[:n_leading].tolist()
    if not 0 < n_leading <= n_pruned:
        return leading, values[1 : 1 + n_tried].tolist()
    found = _exchanged_sequence(value, leading, others, len(order), tolerance)
    return list(found.parts), found.without.tolist()


def _exchanged_sequence(
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


def most_without_one(probability: float) -> float:
    """The probability without a part alone at or below which the part is measured, too.

    Examples::

        >>> most_without_one(0.5), most_without_one(0.1)
        (0.45, 0.08)
    """
    return min(_LOWERED * probability, probability - _LEAST_DROP)


def kept_without_first(order: Sequence[int], count: int, n_parts: int) -> Tensor:
    """The parts that stay without the first k of an order, for k from 0 to ``count``, (1 + count, n_parts)."""
    kept = torch.ones(1 + count, n_parts, dtype=torch.bool)
    for number, row in enumerate(kept):
        row[list(order[:number])] = False
    return kept
