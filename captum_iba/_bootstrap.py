"""Confidence of a mean over examples: bootstrap intervals, paired between methods, and means over seeds.

The metrics compute them, and the figures draw them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Differences smaller than this fraction of the values themselves are rounding errors.
_ROUNDING = 8 * torch.finfo(torch.float64).eps

# Values are equal if they differ by less than this fraction of the largest.
_EQUAL = 1e-12

Values = Tensor | Sequence[float]
"""One value per example, (B,)."""


class Interval(NamedTuple):
    """A mean with its confidence interval.

    Args:
        mean (float): Mean over the examples.
        low (float): Lower end of the interval.
        high (float): Upper end of the interval.
    """

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside of the interval: of a difference, whether two methods differ."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    a: Values, b: Values | None = None, confidence: float = 0.95, n_resamples: int = 9999, seed: int = 0
) -> Interval:
    """
    Mean over examples, or mean difference of two methods on the same examples, with its bootstrap interval.

    Examples are resampled with replacement in pairs, which for a mean is the same as resampling their differences. The
    interval is bias-corrected and accelerated (BCa; Efron, 1987), by ``scipy.stats.bootstrap``. Where all values are
    equal, or there is a single one, low and high are the mean, which for a single one says nothing.

    Args:
        a (Tensor or sequence of float): One value per example, (B,).
        b (Tensor or sequence of float, optional): Values of another method, (B,), in the same order; ``a - b`` is
                    taken. Default: None, the mean of ``a``
        confidence (float): Confidence level, between 0 and 1. Default: 0.95
        n_resamples (int): Number of resamples. Default: 9999
        seed (int): Seed of the resamples. The global random state is not touched. Default: 0

    Returns:
        *Interval*: **mean**, **low** and **high**.

    Raises:
        ValueError: No values, NaN or infinity among them, ``a`` and ``b`` of different lengths, or ``confidence`` out
            of range.
        ModuleNotFoundError: scipy is missing.

    Examples::

        >>> interval = paired_bootstrap([0.9, 0.7, 0.8, 0.6], [0.4, 0.5, 0.1, 0.2])
        >>> round(interval.mean, 3), interval.excludes_zero
        (0.45, True)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence!r}, expected a number between 0 and 1, such as 0.95")
    values = check_values(a, "a")
    if b is not None:
        other = check_values(b, "b")
        if len(other) != len(values):
            raise ValueError(f"b has {len(other)} values, expected as many as a, {len(values)}")
        largest = torch.maximum(values.abs(), other.abs())
        values = values - other
        # Sums that should be equal differ by a last digit, and all to the same side.
        values = values.where(values.abs() > _ROUNDING * largest, 0.0)
    mean = float(values.mean())
    # A spread of rounding errors, as of equal differences, is none.
    if float(values.max() - values.min()) <= _EQUAL * float(values.abs().max()):
        return Interval(mean, mean, mean)
    low, high = _interval(values, confidence, n_resamples, seed, "BCa")
    if not low <= high:  # NaN: BCa breaks down on few values that are nearly all equal
        low, high = _interval(values, confidence, n_resamples, seed, "percentile")
    return Interval(mean, low, high)


def mean_over_seeds(runs: Sequence[Values]) -> Tensor:
    """
    Mean of each example over repeated runs of a random method.

    Compute the metric of every run first, then the mean: metrics such as the flip rate are not linear.

    Args:
        runs (sequence of Tensor): Values of the examples, (B,), one entry per seed; five or more are advised.

    Returns:
        *Tensor*: (B,), float64.

    Raises:
        ValueError: No runs, or runs of different lengths.

    Examples::

        >>> mean_over_seeds([[0.0, 1.0], [1.0, 1.0]])
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    values = [check_values(run, f"runs[{i}]") for i, run in enumerate(runs)]
    lengths = [len(run) for run in values]
    if len(set(lengths)) != 1:
        raise ValueError(f"runs have {lengths} values, expected one or more of equal length")
    return torch.stack(values).mean(0)


def check_values(values: Values, name: str) -> Tensor:
    """One finite value per example, (B,), float64 on the CPU; ValueError for anything else."""
    tensor = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    if tensor.ndim != 1 or len(tensor) == 0:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, expected (B,) with at least one example")
    if not bool(tensor.isfinite().all()):
        wrong = (~tensor.isfinite()).nonzero()[:, 0].tolist()
        raise ValueError(f"{name} is NaN or infinite at {wrong[:5]}, expected finite values; leave these examples out")
    return tensor


def scipy_stats(function: str) -> Any:
    """``scipy.stats``, imported where it is needed; where it is missing, the error names ``function``."""
    try:
        from scipy import stats
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{function} needs scipy: pip install 'captum-iba[plot]'", name=error.name) from error
    return stats


def _interval(values: Tensor, confidence: float, n_resamples: int, seed: int, method: str) -> tuple[float, float]:
    stats = scipy_stats("paired_bootstrap")
    import numpy

    mean = float(values.mean())
    scale = float((values - mean).abs().max())

    def rounded_mean(deviations: Any, axis: int) -> Any:
        # Resamples with the mean of all values are neither above nor below it, which the correction counts.
        return numpy.round(numpy.mean(deviations, axis=axis), 12)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # DegenerateDataWarning: handled by the caller
        interval = stats.bootstrap(
            (((values - mean) / scale).numpy(),),
            rounded_mean,
            confidence_level=confidence,
            n_resamples=n_resamples,
            method=method,
            # Resamples are taken in parts: all at once they are n_resamples times B numbers.
            batch=max(1, 10**6 // len(values)),
            random_state=numpy.random.default_rng(seed),
        ).confidence_interval
    low, high = (mean + scale * float(end) for end in (interval.low, interval.high))
    return 0.0 if abs(low) <= _EQUAL * scale else low, 0.0 if abs(high) <= _EQUAL * scale else high
