"""Metrics for generated text: what the response loses in log-probability without parts of the prompt.

They take a function of the kept parts, which :meth:`captum_iba.text.GenerationExplainer.removal` makes, and the scores
of an attribution, one per part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from captum_iba._checks import check_choice, check_integer, check_number
from captum_iba.metrics.removal import NINTHS, counts_of_fractions
from captum_iba.metrics.sanity_checks import rank_correlation

LogProbability = Callable[[Tensor], Tensor]
"""Log-probabilities of the response, or log-odds of a choice, (N,), from the kept parts, (N, P), as booleans."""


class CachedRemoval:
    """A function of the kept parts that is computed once for each set of them.

    Args:
        value (Callable): Function of the kept parts, (N, P) booleans, that returns (N,).

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
        """Values, (N,), on the CPU, of the parts that are kept, (N, P) booleans."""
        rows = [tuple(row) for row in kept.tolist()]
        if new := [row for row in dict.fromkeys(rows) if row not in self._known]:
            self._known.update(zip(new, self._value(torch.tensor(new)).cpu(), strict=True))
        return torch.stack([self._known[row] for row in rows])


class PromptDegradation(NamedTuple):
    """Log-probabilities of a response without parts of its prompt.

    Attributes:
        counts (tuple of int): Numbers of parts that are removed.
        full (Tensor): Log-probability with the whole prompt, a scalar.
        log_probabilities (Tensor): Log-probability without so many parts, (K,).
    """

    counts: tuple[int, ...]
    full: Tensor
    log_probabilities: Tensor

    @property
    def drops(self) -> Tensor:
        """Decrease in log-probability, (K,)."""
        return self.full - self.log_probabilities


def prompt_degradation(
    log_probability: LogProbability,
    scores: Tensor | Sequence[float],
    counts: Sequence[int] | None = None,
    fractions: Sequence[float] = NINTHS,
    order: str = "morf",
) -> PromptDegradation:
    """
    Remove the parts of a prompt in the order of their scores.

    Args:
        log_probability (Callable): Function of the kept parts, (N, P) booleans, that returns (N,).
        scores (Tensor or sequence of float): One score per part, (P,).
        counts (sequence of int, optional): Numbers of parts to remove; more than there are count as all. Default: None,
            ``fractions`` of them.
        fractions (sequence of float): Fractions of the parts to remove, each at least one part. Default: 1/9, 2/9, ...
            1.
        order (str): ``"morf"``, the most relevant parts first, or ``"lerf"``, the least relevant first. Parts with the
            same score are removed from the first to the last. Default: "morf".

    Returns:
        PromptDegradation: Higher drops speak for the attribution in the order MoRF, lower ones in LeRF. The mean of the
        drops is the AOPC.

    Raises:
        ValueError: Scores that are not finite or not one-dimensional, counts or fractions out of range.

    Examples::

        >>> effects = torch.tensor([1.0, 3.0, 0.5])
        >>> prompt_degradation(lambda kept: kept.float() @ effects, scores=[0.2, 0.9, 0.1], counts=[1, 2]).drops
        tensor([3., 4.])
    """
    ranked = _check_scores(scores)
    check_choice("order", order, ("morf", "lerf"))
    n_parts = len(ranked)
    if counts is None:
        for fraction in fractions:
            check_number("fractions", fraction, accepts=lambda f: 0 < f <= 1, expected="numbers in (0, 1]")
        removed = counts_of_fractions(fractions, torch.tensor([n_parts]))[0, 1:].tolist()
    else:
        for count in counts:
            check_integer("counts", count, at_least=1)
        removed = [min(count, n_parts) for count in counts]
    ranks = torch.empty(n_parts, dtype=torch.long)
    ranks[ranked.argsort(descending=order == "morf", stable=True)] = torch.arange(n_parts)
    kept = torch.stack([torch.ones(n_parts, dtype=torch.bool), *(ranks >= count for count in removed)])
    values = log_probability(kept)
    return PromptDegradation(tuple(removed), values[0], values[1:])


def linear_datamodeling_score(
    log_probability: LogProbability,
    scores: Tensor | Sequence[float],
    n_removals: int = 64,
    kept_fraction: float = 0.5,
    seed: int = 0,
) -> float:
    """
    Rank correlation of what an attribution predicts for random removals and what they do (Park et al. 2023).

    The prediction is the sum of the scores of the kept parts; each part is kept with the same probability. This is the
    metric of ContextCite (Cohen-Wang et al. 2024).

    Args:
        log_probability (Callable): Function of the kept parts, (N, P) booleans, that returns (N,).
        scores (Tensor or sequence of float): One score per part, (P,).
        n_removals (int): Number of random removals. Default: 64.
        kept_fraction (float): Probability that a part is kept. Default: 0.5.
        seed (int): Seed of the removals. Default: 0.

    Returns:
        float: Spearman correlation, from -1 to 1; NaN where all sums or all log-probabilities are equal. Higher is
        better.

    Raises:
        ValueError: Scores that are not finite or not one-dimensional, arguments out of range.

    Examples::

        >>> effects = torch.tensor([1.0, 3.0, 0.5])
        >>> round(linear_datamodeling_score(lambda kept: kept.float() @ effects, scores=effects), 6)
        1.0
    """
    values = _check_scores(scores)
    check_integer("n_removals", n_removals, at_least=2)
    check_number("kept_fraction", kept_fraction, accepts=lambda f: 0 < f < 1, expected="a number between 0 and 1")
    kept = random_removals(len(values), n_removals, kept_fraction, seed)
    predicted = kept.double() @ values
    return float(rank_correlation(predicted.unsqueeze(0), log_probability(kept).cpu().double().unsqueeze(0)))


class RemovalEffects(NamedTuple):
    """What :func:`removal_effects` finds.

    Args:
        whole (Tensor): Log-probability with the whole prompt, a scalar, float64.
        effects (Tensor): Effect of each part, (N,), float64.
        alone (Tensor): Decrease in the log-probability without the part alone, (N,), float64.
    """

    whole: Tensor
    effects: Tensor
    alone: Tensor


def removal_effects(log_probability: LogProbability, parts: Sequence[int], n_parts: int) -> RemovalEffects:
    """
    Decrease in the log-probability of a response without each of some parts of its prompt.

    It is the mean of two decreases: without the part alone, and without all these parts in comparison to without the
    others of them. The first misses a part that another one repeats; the second has it. They are the first and the last
    term of a Shapley value among these parts.

    Args:
        log_probability (Callable): Function of the kept parts, (N, P) booleans, that returns (N,).
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
    value: LogProbability, parts: Sequence[int], n_parts: int, tolerance: float = 0.05, covered: float = 1.0
) -> RemovalSequence:
    """
    Some parts of an input in the order of their removal, without those that add nothing to the others.

    First, parts are left out, one at a time, as long as the value without the others of them is higher by at most
    ``tolerance``. The first of those that are left is the part whose removal lowers the value most, and each next one
    lowers it most after those before it; of parts that lower it as much, within ``tolerance``, it is the first one in
    ``parts``. The order ends where the value has fallen by a share, ``covered``, of what it falls by at most.

    Args:
        value (Callable): Function of the kept parts, (N, P) booleans, that returns (N,): log-odds of a class.
        parts (sequence of int): Numbers of N parts.
        n_parts (int): Number of all parts, P.
        tolerance (float): Difference that counts as none. Default: 0.05.
        covered (float): Share of the largest decrease, above 0 and at most 1, that the first parts hold which are
            returned. Default: 1.0, all of it.

    Returns:
        RemovalSequence: In at most N (N + 1) forward passes.

    Raises:
        ValueError: A number that is no part, or one that is twice among them, or another ``covered``.

    Examples::

        >>> def value(kept): return kept[:, :2].any(1).float() + 0.4 * kept[:, 2]
        >>> found = removal_sequence(value, [0, 1, 2, 3], n_parts=4)
        >>> found.parts, found.without.tolist()
        ((2, 0, 1), [1.0, 1.0, 0.0])
    """
    _check_parts(parts, n_parts)
    check_number("covered", covered, lambda number: 0 < number <= 1, "a number above 0 and at most 1")
    cached = CachedRemoval(value)

    def without(removed: Iterable[Sequence[int]]) -> Tensor:
        return cached(torch.tensor([[part not in one for part in range(n_parts)] for one in removed])).double()

    needed = list(parts)
    while len(needed) > 1:
        values = without([part for part in needed if part != one] for one in needed)
        if float(values.min() - without([needed])) > tolerance:
            break
        needed.pop(int((values == values.min()).nonzero()[-1]))  # of equal ones the last
    order = list[int]()
    while rest := [part for part in needed if part not in order]:
        values = without([*order, part] for part in rest)
        order.append(rest[int((values <= values.min() + tolerance).nonzero()[0])])
    if not order:
        return RemovalSequence((), torch.zeros(0, dtype=torch.float64))
    whole, *left = without(order[:count] for count in range(len(order) + 1))
    count = first_to_cover(whole - torch.stack(left), covered)
    return RemovalSequence(tuple(order[:count]), torch.stack(left[:count]))


def first_to_cover(decreases: Tensor, covered: float = 0.9) -> int:
    """Number of the first decreases up to one that is a share of the largest; 1 where none is positive.

    Examples::

        >>> first_to_cover(torch.tensor([0.5, 1.9, 2.0]), 0.9)
        2
    """
    return int((decreases >= covered * decreases.max()).nonzero()[0]) + 1 if float(decreases.max()) > 0 else 1


def random_removals(n_parts: int, n_removals: int, kept_fraction: float, seed: int) -> Tensor:
    """Parts that are kept, (n_removals, n_parts), each with the same probability."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n_removals, n_parts, generator=generator) < kept_fraction


def _check_parts(parts: Sequence[int], n_parts: int) -> None:
    check_integer("n_parts", n_parts, at_least=1)
    if len({*parts}) < len(parts) or not {*parts} <= {*range(n_parts)}:
        raise ValueError(f"parts has {list(parts)}, expected different numbers from 0 to {n_parts - 1}")


def _check_scores(scores: Tensor | Sequence[float]) -> Tensor:
    given = scores.detach().cpu() if isinstance(scores, Tensor) else scores
    values = torch.as_tensor(given, dtype=torch.float64)
    if values.ndim != 1 or not len(values) or not bool(values.isfinite().all()):
        raise ValueError(f"scores has the shape {tuple(values.shape)}, expected one finite number per part, (P,)")
    return values
