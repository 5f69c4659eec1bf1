"""The leading parts of an input by their removal: of texts, prompts and images."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba.metrics.part_removal import RemovalSequence, first_to_cover, kept_without, removal_sequence

COVERED_DECREASE = 0.9
"""Fraction of the largest decrease in a value. No further part leads once the leading ones reach it."""
MOST_OF_DECREASE = 0.95
"""The same fraction of the decrease in the probability, where the value is its logarithm, which has no lower end."""
N_TRIED = 16
"""Leading parts up to which it is tried how few are enough."""
_N_FEW = 8  # leading parts that are all compared at each step of their order, and may give way to others
_N_NAMED = 5  # leading parts, of more of which those are first that add most, where the first ones do little
_N_COMPARED = 6  # of more leading parts, at each step
_N_EXCHANGED = 3  # leading parts that are exchanged at most
_N_TOGETHER = 4  # parts that lower a value together with others, and may take the place of a leading one
_N_KEPT = 4  # groups that are kept each time
_LOWERED, _LEAST_DROP = 0.9, 0.02  # of a probability without one part alone
_LEAST_OF_THE_WAY = 0.1  # that half of the largest group lowers a value, or no larger one is built


class GroupSearch(NamedTuple):
    """What is searched for a group of as many parts as lead, without which the value is lower (:func:`better_group`).

    Args:
        others (sequence of int): Numbers of parts that may take the place of a leading one, the most promising first.
        tried (sequence of int): Numbers of the parts that are removed together with the leading ones, to find more such
            parts, whatever they do alone.
        n_candidates (int): Number of parts that are tried in place of a leading one. Default: 24.
        n_begun (int): Number of parts from which groups are built. Default: 4.
        largest (int): Number of parts of the largest groups that are built. Default: 6.
        enough (float): Share of the decrease without the best group, at which a smaller group is taken.
            Default: 1.0, the whole.
        pairs (sequence of int): Numbers of the parts of which all pairs are tried, and triples that begin with the best
            ones. The best of these leads the order if none of its beginnings lowers the value as far. Default: none.
    """

    others: Sequence[int]
    tried: Sequence[int] = ()
    n_candidates: int = 24
    n_begun: int = 4
    largest: int = 6
    enough: float = 1.0
    pairs: Sequence[int] = ()


def leading_in_order(
    value: Callable[[Tensor], Tensor],
    order: npt.NDArray[np.intp],
    n_leading: int,
    tolerance: float,
    search: GroupSearch | None = None,
    n_tried: int = N_TRIED,
    n_parts: int | None = None,
    probabilities: Callable[[Tensor], Tensor] | None = None,
    known: Sequence[int] = (),
) -> tuple[list[int], list[float]]:
    """
    As few of the first parts of an order as are enough, in the order of their removal.

    First, the shortest prefix of the order is taken whose removal lowers the value by 90% of the largest decrease of
    any prefix; the first part where none lowers it. Of up to ``n_tried`` parts those are then left out that add at
    most ``tolerance`` to the others, and they are put in the order of their removal
    (:func:`captum_iba.metrics.removal_sequence`). With ``search`` up to eight give way to as many others without which
    the value is lower. With ``probabilities`` they end where the probability has fallen by 95%; as many parts as are
    left are searched for once more. Where more than five lead and the first half of them does less than half, none of
    them is the first to matter: they are sorted by what each adds to the others, or lowers alone if that is more.

    Args:
        value (Callable): Function of the kept parts, (rows, P) booleans, that returns (rows,).
        order (array): Numbers of the parts that can be removed, the most important one first.
        n_leading (int): How many of them may lead.
        tolerance (float): Difference of the value that counts as none.
        search (GroupSearch, optional): Parts that may take the place of others. Default: none may.
        n_tried (int): Where more than so many may lead, all of them do. Default: 16.
        n_parts (int, optional): Number of all parts, P. Default: all can be removed.
        probabilities (Callable, optional): Function of values, (N,), that returns their probabilities, (N,), where the
            value is a logarithm of it: that falls on where the probability has nothing more to lose. Default: None.
        known (sequence of int): Numbers of the leading parts in their order, if they are known: nothing is searched.
            Default: none.

    Returns:
        tuple: Numbers of the leading parts, and the value without the first k of them, for k up to ``n_tried``.

    Examples::

        >>> def value(kept): return (kept[:, 0] | kept[:, 2]).double()
        >>> leading_in_order(value, np.array([0, 1, 2, 3]), 3, tolerance=0.1)
        ([0, 2], [1.0, 0.0])
    """
    n_tried, n_parts = min(n_leading, n_tried), len(order) if n_parts is None else n_parts
    if known:
        return list(known), _values_in_turn(value, known, n_parts)
    values = value(_kept_without_first(order, n_tried, n_parts)).double()
    if search is not None and len(search.pairs) > 2:  # never are all parts removed
        best, lowest = _best_few(value, search.pairs, float(values[0]), n_parts)
        if float(values.min()) - lowest > tolerance:
            order = np.array([*best, *(i for i in order.tolist() if i not in best)])
            n_leading, n_tried = max(n_leading, len(best)), max(n_tried, len(best))
            values = value(_kept_without_first(order, n_tried, n_parts)).double()
    decreases = values[0] - values[1:]
    if n_tried == n_leading and n_tried:
        n_leading = n_tried = first_to_cover(decreases)
    leading = order[:n_leading].tolist()
    without = values[1 : 1 + n_tried].tolist()
    if 0 < n_leading == n_tried:
        n_compared = None if n_leading <= _N_FEW else _N_COMPARED
        found = removal_sequence(value, leading, n_parts, tolerance, n_compared=n_compared)
        n_enough = first_to_cover(values[0] - found.without, COVERED_DECREASE)
        if n_enough > _N_FEW:  # each one of many adds little, so that they end later
            n_enough = first_to_cover(values[0] - found.without, MOST_OF_DECREASE)
        found = first_needed(value, found, n_enough, n_parts, tolerance)
        if search is not None and len(found.parts) <= _N_FEW:
            group = better_group(value, found.parts, search, n_parts, tolerance)
            if group != found.parts:
                found = removal_sequence(value, group, n_parts, tolerance)
                n_enough = first_to_cover(values[0] - found.without, COVERED_DECREASE)
                found = first_needed(value, found, n_enough, n_parts, tolerance)
        leading, without = list(found.parts), found.without.tolist()
    if not leading or len(without) != len(leading):
        return leading, without
    if probabilities is None:
        return _sorted_if_spread(value, leading, without, torch.tensor([float(values[0]), *without]), n_parts)
    chances = probabilities(values.new_tensor([float(values[0]), *without]))
    n_leading = first_to_cover(chances[0] - chances[1:], MOST_OF_DECREASE)
    if search is not None and 1 < n_leading < len(leading) and n_leading <= _N_FEW:
        again = search._replace(tried=())  # they were tried together with more parts
        group = better_group(value, leading[:n_leading], again, n_parts, tolerance)
        if {*group} != {*leading[:n_leading]}:
            found = removal_sequence(value, group, n_parts, tolerance)
            chances = probabilities(torch.cat([values[:1], found.without]))
            leading, without = list(found.parts), found.without.tolist()
            n_leading = first_to_cover(chances[0] - chances[1:], MOST_OF_DECREASE)
    if n_leading < len(leading):
        whole_sequence = RemovalSequence(tuple(leading), values.new_tensor(without))
        found = first_needed(value, whole_sequence, n_leading, n_parts, tolerance)
        leading, without = list(found.parts), found.without.tolist()
        chances = probabilities(values.new_tensor([float(values[0]), *without]))
    return _sorted_if_spread(value, leading, without, chances, n_parts)


def first_needed(
    value: Callable[[Tensor], Tensor], found: RemovalSequence, count: int, n_parts: int, tolerance: float
) -> RemovalSequence:
    """The first parts of a sequence, without those that add at most a tolerance to the others of them.

    A part that adds to all parts of a sequence may add nothing, or the contrary, to the first ones.

    Examples::

        >>> def value(kept): return kept[:, 0] + (kept[:, 1] | kept[:, 2]).double() - 0.5 * kept[:, 2]
        >>> found = RemovalSequence((0, 2, 1), torch.tensor([0.5, 1.0, 0.0]))  # the second one adds to all three
        >>> first_needed(value, found, 2, n_parts=3, tolerance=0.1).parts
        (0,)
    """
    if count >= len(found.parts):
        return found
    n_compared = None if count <= _N_FEW else _N_COMPARED
    return removal_sequence(value, found.parts[:count], n_parts, tolerance, n_compared=n_compared)


def _sorted_if_spread(
    value: Callable[[Tensor], Tensor], leading: list[int], without: list[float], levels: Tensor, n_parts: int
) -> tuple[list[int], list[float]]:
    """The leading parts by what each adds to the others or lowers alone, if the first half does less than half."""
    if len(leading) <= _N_NAMED or 2 * float(levels[len(leading) // 2]) <= float(levels[0] + levels[-1]):
        return leading, without
    whole, *alone = _values_without(value, n_parts, [(), *([i] for i in leading)]).tolist()
    with_one = value(kept_with_one(leading, n_parts)).double().tolist()
    added = [of_one - without[-1] for of_one in with_one]
    largest = [max(whole - one, of_others) for one, of_others in zip(alone, added, strict=True)]
    order = [leading[at] for at in sorted(range(len(leading)), key=lambda at: -largest[at])]
    return order, _values_in_turn(value, order, n_parts)


def better_group(
    value: Callable[[Tensor], Tensor], leading: Sequence[int], search: GroupSearch, n_parts: int, tolerance: float
) -> tuple[int, ...]:
    """
    As many parts as lead, or fewer, without which the value is lower by more than a tolerance; else the leading ones.

    Up to three of the leading parts are exchanged for candidates, one at a time. Groups of two to ``search.largest``
    parts are also built from each of ``search.n_begun`` parts on, where each time the four groups with the lowest
    values are kept. The smallest of them is returned that lowers the value by the share ``search.enough`` of what the
    best group does.
    Candidates are the parts in ``search.others``, and up to four each that lower the value most together with the
    leading ones, with the first of them, and alone.

    Args:
        value (Callable): Function of the kept parts, (rows, P) booleans, that returns (rows,).
        leading (sequence of int): Numbers of the leading parts.
        search (GroupSearch): Parts that may take their place.
        n_parts (int): Number of all parts, P.
        tolerance (float): Difference of the value that counts as none.

    Returns:
        tuple of int: Numbers of as many parts, or of fewer.

    Examples::

        >>> def value(kept): return (kept[:, 0] | kept[:, 2]).double()
        >>> better_group(value, [0, 1], GroupSearch([2, 3]), n_parts=4, tolerance=0.1)
        (0, 2)
        >>> better_group(value, [0, 1], GroupSearch([1], tried=range(4)), n_parts=4, tolerance=0.1)
        (0, 2)
        >>> better_group(value, [1, 3], GroupSearch([0, 2]), n_parts=4, tolerance=0.1)  # no single exchange helps
        (2, 0)
    """

    without = partial(_values_without, value, n_parts)
    found = tuple(leading)
    lowest = float(without([found]))
    candidates = [i for i in _lowering_together(without, found, search.tried, tolerance) if i not in search.others]
    candidates = [i for i in (*candidates, *search.others) if i not in found][: search.n_candidates]
    pool = [*found, *candidates]
    for _ in range(_N_EXCHANGED):
        free = [i for i in pool if i not in found]
        sets = [(*found[:at], other, *found[at + 1 :]) for at in range(len(found)) for other in free]
        values = without(sets) if sets else torch.tensor([lowest])
        if not lowest - float(values.min()) > tolerance:
            break
        lowest, found = float(values.min()), sets[int(values.argmin())]
    if len(found) < 2 or (len(found) > search.largest and search.enough == 1):
        return found
    groups: list[tuple[int, ...]] = [()]
    best: list[tuple[float, tuple[int, ...]]] = []  # of each size
    for size in range(1, min(len(found), search.largest) + 1):
        larger = {frozenset((*group, i)): (*group, i) for group in groups for i in pool if i not in group}
        groups = list(larger.values())
        values = without(groups)
        groups = [groups[i] for i in values.argsort(stable=True)[: search.n_begun if size == 1 else _N_KEPT].tolist()]
        best.append((float(values.min()), groups[0]))
    if len(best) == len(found) and lowest - best[-1][0] > tolerance:
        lowest, found = best[-1]
    whole = float(without([()]))
    fewer = best[: len(found) - 1]
    return next((group for value, group in fewer if whole - value >= search.enough * (whole - lowest)), found)


def larger_group(
    value: Callable[[Tensor], Tensor],
    parts: Sequence[int],
    enough: float,
    n_parts: int,
    tolerance: float,
    n_candidates: int = 24,
    largest: int = 12,
) -> list[int]:
    """
    Parts without which a value is at most ``enough``, or as low as it gets, in the order of their removal.

    A group is built part by part: the best one with each part, and the next three with those parts that lower the value
    most beside the best one. After each step the four best groups are kept. It ends at ``enough``, at ``largest`` parts
    or half of all, or at half of these if the value has fallen by less than a tenth of the way.

    Args:
        value (Callable): Function of the kept parts, (rows, P) booleans, that returns (rows,).
        parts (sequence of int): Numbers of the parts that can be removed.
        enough (float): Value at which no further part is removed.
        n_parts (int): Number of all parts, P.
        tolerance (float): Difference of the value that counts as none.
        n_candidates (int): Number of parts that are tried with each of the next three groups. Default: 24.
        largest (int): Number of parts of the largest group. Default: 12.

    Returns:
        list of int: Their numbers, without those that add nothing; empty if the value has hardly fallen.

    Examples::

        >>> def value(kept): return 1 - 0.3 * (~kept[:, :3]).sum(1)
        >>> sorted(larger_group(value, range(8), 0.2, n_parts=8, tolerance=0.1))
        [0, 1, 2]
        >>> larger_group(value, range(3, 8), 0.2, n_parts=8, tolerance=0.1)
        []
    """
    without = partial(_values_without, value, n_parts)
    whole, largest = float(without([()])), min(largest, len(parts) // 2)
    groups: list[tuple[int, ...]] = [()]
    for size in range(1, largest + 1):
        best, *others = groups
        larger = {frozenset((*best, i)): (*best, i) for i in parts if i not in best}
        of_best = without(list(larger.values())).tolist()
        # What lowers the value beside the best group may do nothing alone.
        lowering = sorted(zip(of_best, larger.values(), strict=True))
        pool = [group[-1] for _, group in lowering[:n_candidates]]
        further = {frozenset((*group, i)): (*group, i) for group in others for i in pool if i not in group}
        sets = [group for key, group in further.items() if key not in larger]
        lowering += zip(without(sets).tolist() if sets else (), sets, strict=True)
        lowering.sort()
        groups = [group for _, group in lowering[:_N_KEPT]]
        lowest = lowering[0][0]
        if lowest <= enough:
            break
        if 2 * size >= largest and whole - lowest < _LEAST_OF_THE_WAY * (whole - enough):
            return []
    return list(removal_sequence(value, groups[0], n_parts, tolerance).parts)


def _values_in_turn(value: Callable[[Tensor], Tensor], leading: Sequence[int], n_parts: int) -> list[float]:
    """The value without the first k of the leading parts, for k from 1, float64."""
    return _values_without(value, n_parts, [leading[:k] for k in range(1, len(leading) + 1)]).tolist()


def _values_without(value: Callable[[Tensor], Tensor], n_parts: int, sets: Sequence[Collection[int]]) -> Tensor:
    """Values without each of some sets of parts, (N,), float64; infinity where a model gives NaN."""
    return value(kept_without(sets, n_parts)).double().nan_to_num(nan=math.inf)


def _best_few(
    value: Callable[[Tensor], Tensor], parts: Sequence[int], whole: float, n_parts: int
) -> tuple[tuple[int, ...], float]:
    """The pair of parts, or a triple that does more, without which a value is lowest, and this value.

    Each of two parts can raise the value alone, and both lower it: "not" and "bad".
    """
    groups: list[tuple[int, ...]] = list(combinations(parts, 2))
    found = []
    for _ in range(2 if len(parts) > 3 else 1):
        values = _values_without(value, n_parts, groups)
        best = [groups[i] for i in values.argsort(stable=True)[:_N_KEPT].tolist()]
        found.append((best[0], float(values.min())))
        larger = {frozenset((*group, i)): (*group, i) for group in best for i in parts if i not in group}
        groups = list(larger.values())
    pair, *triples = found
    return next((one for one in triples if COVERED_DECREASE * (whole - one[1]) > whole - pair[1]), pair)


def _lowering_together(
    without: Callable[[Sequence[Sequence[int]]], Tensor],
    leading: tuple[int, ...],
    tried: Sequence[int],
    tolerance: float,
) -> list[int]:
    """Numbers of the parts that lower a value most together with the leading ones, with their first, and alone."""
    others = [i for i in tried if i not in leading]
    found = []
    for group in dict.fromkeys((leading, leading[:1], ())):
        before, *after = without([group, *((*group, i) for i in others)]).tolist()
        lowering = sorted((value, i) for value, i in zip(after, others, strict=True) if before - value > tolerance)
        found += [i for _, i in lowering[:_N_TOGETHER]]
    return list(dict.fromkeys(found))


def fewest_to_change(margin: Callable[[Tensor], Tensor], tried: Iterable[frozenset[int]], n_parts: int) -> list[int]:
    """
    The fewest parts, among sets that were removed, without which a model predicts another class.

    Of the sets of at most half of all parts it is the smallest one, less the parts that are not needed for it; of
    equally small ones the one with the lowest margin.

    Args:
        margin (Callable): Function of the kept parts, (rows, P) booleans, that returns the probability of the predicted
            class less the largest other one, (rows,).
        tried (iterable of frozenset of int): Sets of removed parts, by number.
        n_parts (int): Number of all parts, P.

    Returns:
        list of int: Their numbers; empty if no set changes the prediction.

    Examples::

        >>> def margin(kept): return kept[:, :2].sum(1) - 0.5  # one of the first two parts is enough
        >>> fewest_to_change(margin, map(frozenset, [{0}, {0, 1, 2}, {0, 1, 2, 3}]), n_parts=6)
        [0, 1]
    """

    def margins(sets: Sequence[frozenset[int]]) -> list[float]:
        return _values_without(margin, n_parts, sets).tolist()

    small = sorted({one for one in tried if 0 < len(one) <= n_parts // 2}, key=sorted)
    changing = [(len(one), left, one) for one, left in zip(small, margins(small), strict=True) if left < 0]
    if not changing:
        return []
    _, _, found = min(changing, key=lambda one: one[:2])
    while len(found) > 1:
        fewer = [found - {part} for part in sorted(found)]
        left = margins(fewer)
        if min(left) >= 0:
            break
        found = fewer[left.index(min(left))]
    return sorted(found)


def most_without_one(probability: float) -> float:
    """The probability without a part alone at or below which the part is measured, too.

    Examples::

        >>> most_without_one(0.5), most_without_one(0.1)
        (0.45, 0.08)
    """
    return min(_LOWERED * probability, probability - _LEAST_DROP)


def kept_with_one(leading: Sequence[int], n_parts: int) -> Tensor:
    """The parts that stay with each leading one and without the other ones, (N, n_parts) booleans."""
    kept = torch.ones(len(leading), n_parts, dtype=torch.bool)
    kept[:, list(leading)] = torch.eye(len(leading), dtype=torch.bool)
    return kept


def _kept_without_first(order: npt.NDArray[np.intp], count: int, n_parts: int) -> Tensor:
    """The parts that stay without the first k of an order, for k from 0 to ``count``, (1 + count, n_parts)."""
    return kept_without([order[:number].tolist() for number in range(1 + count)], n_parts)
