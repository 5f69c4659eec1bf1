"""Metrics for generated text: what the response loses in log-probability without parts of the prompt.

They take a function of the kept parts, which :meth:`captum_iba.text.GenerationExplainer.removal` makes, and the scores
of an attribution, one per part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from captum_iba._checks import check_choice, check_integer, check_number
from captum_iba.metrics.part_removal import LogProbability
from captum_iba.metrics.removal import NINTHS, counts_of_fractions
from captum_iba.metrics.sanity_checks import rank_correlation


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


def random_removals(n_parts: int, n_removals: int, kept_fraction: float, seed: int) -> Tensor:
    """Parts that are kept, (n_removals, n_parts), each with the same probability."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n_removals, n_parts, generator=generator) < kept_fraction


def _check_scores(scores: Tensor | Sequence[float]) -> Tensor:
    given = scores.detach().cpu() if isinstance(scores, Tensor) else scores
    values = torch.as_tensor(given, dtype=torch.float64)
    if values.ndim != 1 or not len(values) or not bool(values.isfinite().all()):
        raise ValueError(f"scores has the shape {tuple(values.shape)}, expected one finite number per part, (P,)")
    return values
