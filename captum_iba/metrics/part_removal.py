"""Removal of parts of an input: of words of a text, parts of a prompt and regions of an image.

The functions take a function of the kept parts, (N, P) booleans, which returns a value, (N,).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from captum_iba._checks import check_integer, check_number

_LEFT_OUT = 0.2  # of the decrease in the value, by which the parts that are left out of an order raise it at most
LogProbability = Callable[[Tensor], Tensor]
"""Log-probabilities of the response, or log-odds of a choice, (N,), from the kept parts, (N, P), as booleans."""


class CachedRemoval:
    """A function of the kept parts that is computed once for each set of them.

    Args:
        value (Callable): Function of the kept parts, (N, P) booleans, that returns (N,) or (N, C).

    Raises:
        ValueError: In a call where the value is NaN.

    Examples::

        >>> rows = []
        >>> cached = CachedRemoval(lambda kept: rows.extend(kept) or kept.sum(1).float())
        >>> cached(torch.ones(2, 3, dtype=torch.bool)).tolist(), len(rows)
        ([3.0, 3.0], 1)
    """

    def __init__(self, value: LogProbability) -> None:
        self._value = value
        self._known: dict[tuple[bool, ...], Tensor] = {}

    def __call__(self, kept: Tensor) -> Tensor:
        """Values, (N,) or (N, C), on the CPU, of the parts that are kept, (N, P) booleans."""
        rows = [tuple(row) for row in kept.tolist()]
        if new := [row for row in dict.fromkeys(rows) if row not in self._known]:
            values = self._value(torch.tensor(new)).cpu()
            if bool(values.isnan().any()):
                removed = [part for part, kept in enumerate(new[int(values.isnan().nonzero()[0, 0])]) if not kept]
                raise ValueError(f"value is NaN without the parts {removed}, expected a number")
            self._known.update(zip(new, values, strict=True))
        return torch.stack([self._known[row] for row in rows])

    @property
    def tried(self) -> list[frozenset[int]]:
        """The sets of parts that were removed, by number."""
        return [frozenset(part for part, kept in enumerate(row) if not kept) for row in self._known]


class RemovalEffects(NamedTuple):
    """What :func:`removal_effects` finds.

    Args:
        whole (Tensor): Value with all parts, a scalar, float64.
        effects (Tensor): Effect of each part, (N,), float64.
        alone (Tensor): Decrease in the value without the part alone, (N,), float64.
    """

    whole: Tensor
    effects: Tensor
    alone: Tensor


def kept_without(sets: Iterable[Collection[int]], n_parts: int) -> Tensor:
    """The parts that stay without each of some sets, (N, P) booleans.

    Examples::

        >>> kept_without([(), (0, 2)], n_parts=3).tolist()
        [[True, True, True], [False, True, False]]
    """
    removed = list(sets)
    kept = torch.ones(len(removed), n_parts, dtype=torch.bool)
    for row, parts in zip(kept, removed, strict=True):
        row[list(parts)] = False
    return kept


def removal_effects(log_probability: LogProbability, parts: Sequence[int], n_parts: int) -> RemovalEffects:
    """
    Decrease in a value without each of some parts of an input.

    The value is the log-odds of a class, or the log-probability of a response. The effect is the mean of two decreases:
    without the part alone, and without all these parts in comparison to without the others of them. The first misses a
    part that another one repeats; the second has it. They are the first and the last term of a Shapley value among
    these parts.

    Args:
        log_probability (Callable): Function of the kept parts, (N, P) booleans, that returns the value, (N,).
        parts (sequence of int): Numbers of N parts.
        n_parts (int): Number of all parts, P.

    Returns:
        RemovalEffects: In 2 N + 2 forward passes at most.

    Raises:
        ValueError: A number that is no part, or one that is twice among them.

    Examples::

        >>> found = removal_effects(lambda kept: kept[:, :2].any(1).float() + kept[:, 2], [0, 1, 2], n_parts=4)
        >>> found.whole.item(), found.effects.tolist(), found.alone.tolist()
        (2.0, [0.5, 0.5, 1.0], [0.0, 0.0, 1.0])
    """
    _check_parts(parts, n_parts)
    every, chosen = frozenset(range(n_parts)), frozenset(parts)
    wanted = [every, every - chosen, *(every - {part} for part in parts), *(every - chosen | {part} for part in parts)]
    rows = list(dict.fromkeys(wanted))
    kept = torch.tensor([[part in row for part in range(n_parts)] for row in rows])
    found = dict(zip(rows, log_probability(kept).cpu().double(), strict=True))
    if not parts:
        return RemovalEffects(found[every], *torch.zeros(2, 0, dtype=torch.float64))
    alone = torch.stack([found[every] - found[every - {part}] for part in parts])
    last = torch.stack([found[every - chosen | {part}] - found[every - chosen] for part in parts])
    return RemovalEffects(found[every], (alone + last) / 2, alone)


class RemovalSequence(NamedTuple):
    """The result of :func:`removal_sequence`.

    Args:
        parts (tuple of int): Numbers of the parts, in the order of their removal.
        without (Tensor): Value without the first k of them, for k from 1, (N,), float64.
    """

    parts: tuple[int, ...]
    without: Tensor


def removal_sequence(
    value: LogProbability,
    parts: Sequence[int],
    n_parts: int,
    tolerance: float = 0.05,
    covered: float = 1.0,
    n_compared: int | None = None,
) -> RemovalSequence:
    """
    Some parts of an input in the order of their removal, without those that add nothing to the others.

    First, parts are left out, one at a time, as long as the value without the others of them is higher by at most
    ``tolerance``; all that are left out together raise it by at most twice ``tolerance``, or a fifth of the whole
    decrease if that is more. The first of those that are left is the part whose removal lowers the value most, and each
    next one lowers it most after those before it; of parts that lower it as much, within ``tolerance``, it is the first
    one in ``parts``. The order ends where the value has fallen by a share, ``covered``, of what it falls by at most.

    Args:
        value (Callable): Function of the kept parts, (N, P) booleans, that returns (N,): log-odds of a class.
        parts (sequence of int): Numbers of N parts.
        n_parts (int): Number of all parts, P.
        tolerance (float): Difference that counts as none. Default: 0.05.
        covered (float): Share of the largest decrease, above 0 and at most 1, that the first parts hold which are
            returned. Default: 1.0, all of it.
        n_compared (int, optional): Number of parts that are compared at each step after the first one: those that added
            least, or lowered the value most, when they were compared last. Of many parts this takes fewer passes, and
            gives nearly the same order. Default: None, all parts.

    Returns:
        RemovalSequence: In at most N (N + 1) forward passes, or 2 N (1 + ``n_compared``).

    Raises:
        ValueError: A number that is no part, or one that is twice among them, or another ``covered`` or ``n_compared``.

    Examples::

        >>> def value(kept): return kept[:, :2].any(1).float() + 0.4 * kept[:, 2]
        >>> found = removal_sequence(value, [0, 1, 2, 3], n_parts=4)
        >>> found.parts, found.without.tolist()
        ((2, 0, 1), [1.0, 1.0, 0.0])
    """
    _check_parts(parts, n_parts)
    check_number("covered", covered, lambda number: 0 < number <= 1, "a number above 0 and at most 1")
    if n_compared is not None:
        check_integer("n_compared", n_compared, at_least=1)
    cached = CachedRemoval(value)

    def without(removed: Iterable[Sequence[int]]) -> Tensor:
        return cached(kept_without(removed, n_parts)).double()

    needed = list(parts)
    whole, least = without([(), needed]).tolist()
    allowed = max(2 * tolerance, _LEFT_OUT * (whole - least))  # many that add little add much together
    before, adds = least, dict[int, float]()
    while len(needed) > 1:
        few = _smallest(needed, adds, n_compared)
        values = without([part for part in needed if part != one] for one in few)
        adds.update(zip(few, (values - before).tolist(), strict=True))
        if float(values.min() - before) > tolerance or float(values.min()) - least > allowed:
            break
        needed.remove(few[int((values == values.min()).nonzero()[-1])])  # of equal ones the last
        before = float(values.min())
    order = list[int]()
    before, changes = whole, dict[int, float]()
    while rest := [part for part in needed if part not in order]:
        few = _smallest(rest, changes, n_compared)
        values = without([*order, part] for part in few)
        changes.update(zip(few, (values - before).tolist(), strict=True))
        at = int((values <= values.min() + tolerance).nonzero()[0])
        order.append(few[at])
        before = float(values[at])
    if not order:
        return RemovalSequence((), torch.zeros(0, dtype=torch.float64))
    whole, *left = without(order[:count] for count in range(len(order) + 1))
    count = first_to_cover(whole - torch.stack(left), covered)
    return RemovalSequence(tuple(order[:count]), torch.stack(left[:count]))


def _smallest(parts: Sequence[int], known: Mapping[int, float], count: int | None) -> list[int]:
    """The parts with the smallest known numbers, in their order; all where a number is missing, or without a count."""
    if count is None or not known.keys() >= {*parts}:
        return list(parts)
    few = sorted(parts, key=known.__getitem__)[:count]
    return [part for part in parts if part in few]


def first_to_cover(decreases: Tensor, covered: float = 0.9) -> int:
    """Number of the first decreases up to one that is a share of the largest; 1 where none is positive.

    Examples::

        >>> first_to_cover(torch.tensor([0.5, 1.9, 2.0]), 0.9)
        2
    """
    return int((decreases >= covered * decreases.max()).nonzero()[0]) + 1 if float(decreases.max()) > 0 else 1


def _check_parts(parts: Sequence[int], n_parts: int) -> None:
    check_integer("n_parts", n_parts, at_least=1)
    if len({*parts}) < len(parts) or not {*parts} <= {*range(n_parts)}:
        raise ValueError(f"parts has {list(parts)}, expected different numbers from 0 to {n_parts - 1}")
