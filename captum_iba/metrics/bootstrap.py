"""How sure a mean over examples is: the bootstrap, paired between methods."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Differences of so little of the numbers themselves are none.
_ROUNDING = 8 * torch.finfo(torch.float64).eps

Values = Tensor | Sequence[float]
"""One value an example, (B,)."""


class Interval(NamedTuple):
    """A mean and its confidence interval.

    Args:
        mean (float): Over the examples.
        low (float): Lower end of the interval.
        high (float): Upper end.
    """

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside: of a difference, whether two methods differ."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    a: Values, b: Values | None = None, confidence: float = 0.95, n_resamples: int = 9999, seed: int = 0
) -> Interval:
    """
    The mean over examples, or the mean difference of two methods on the same examples, with its interval.

    Examples are drawn with replacement, and both methods keep the same draws: the pairs are resampled, which for
    a mean is the same as resampling their differences. The interval is bias-corrected and accelerated (BCa; Efron,
    1987), by ``scipy.stats.bootstrap``. Values that are all equal, or a single one, vary in no resample: low and high
    are the mean, which for a single one says nothing.

    Args:
        a (Tensor or sequence of float): One value an example, (B,).
        b (Tensor or sequence of float, optional): Of another method, (B,), in the same order; ``a - b`` is taken.
                    Default: None, the mean of ``a``
        confidence (float): Of the interval, between 0 and 1. Default: 0.95
        n_resamples (int): How many draws. Default: 9999
        seed (int): Of the draws. The global random state is not touched. Default: 0

    Returns:
        *Interval*: **mean**, **low** and **high**.

    Raises:
        ValueError: no values, NaN or infinity among them, or as many of ``b`` as there are not of ``a``.
        ModuleNotFoundError: scipy is missing.

    Examples::

        >>> paired_bootstrap(aopc(iba), aopc(ig)).excludes_zero
    """
    values = _values(a, "a")
    if b is not None:
        other = _values(b, "b")
        if len(other) != len(values):
            raise ValueError(f"b has {len(other)} values, expected as many as a, {len(values)}")
        largest = torch.maximum(values.abs(), other.abs())
        values = values - other
        # Rounding: sums that should be equal differ by a last digit, and all to the same side.
        values = values.where(values.abs() > _ROUNDING * largest, 0.0)
    mean = float(values.mean())
    # A spread of rounding errors, as of equal differences, is none.
    if float(values.max() - values.min()) <= 1e-12 * max(1.0, float(values.abs().max())):
        return Interval(mean, mean, mean)
    low, high = _interval(values, confidence, n_resamples, seed, "BCa")
    if not low <= high:  # NaN: BCa breaks down on few values that are nearly all equal
        low, high = _interval(values, confidence, n_resamples, seed, "percentile")
    return Interval(mean, low, high)


def mean_over_seeds(runs: Sequence[Values]) -> Tensor:
    """
    Each example's mean over repeated runs of a random method, so that its luck does not count.

    A metric first, then the mean: metrics such as the flip rate are not linear.

    Args:
        runs (sequence of Tensor): Values of the examples, (B,), one entry a seed; five or more are advised.

    Returns:
        *Tensor*: (B,), float64.

    Raises:
        ValueError: no runs, or runs of different lengths.

    Examples::

        >>> mean_over_seeds([aopc(result) for result in results_of_seeds])
    """
    tensors = [_values(run, f"runs[{i}]") for i, run in enumerate(runs)]
    if len({len(tensor) for tensor in tensors}) != 1:
        raise ValueError(
            f"runs have {[len(tensor) for tensor in tensors]} values, expected one or more of equal length"
        )
    return torch.stack(tensors).mean(0)


def _values(values: Values, name: str) -> Tensor:
    tensor = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    if tensor.ndim != 1 or len(tensor) == 0:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, expected (B,) with at least one example")
    if not bool(tensor.isfinite().all()):
        wrong = (~tensor.isfinite()).nonzero()[:, 0].tolist()
        raise ValueError(f"{name} is NaN or infinite at {wrong[:5]}, expected finite values; leave these examples out")
    return tensor


def _interval(values: Tensor, confidence: float, n_resamples: int, seed: int, method: str) -> tuple[float, float]:
    try:
        import numpy
        from scipy import stats
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "paired_bootstrap needs scipy: pip install 'captum-iba[plot]'", name=error.name
        ) from error
    settings: dict[str, Any] = {"confidence_level": confidence, "n_resamples": n_resamples, "method": method}
    # Resamples are drawn in parts: all at once they are n_resamples times B numbers.
    settings["batch"] = max(1, 10**6 // len(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # DegenerateDataWarning: handled by the caller
        found = stats.bootstrap(
            (values.numpy(),), numpy.mean, random_state=numpy.random.default_rng(seed), **settings
        ).confidence_interval
    return float(found.low), float(found.high)
