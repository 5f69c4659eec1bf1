"""Confidence of a mean over examples: bootstrap intervals, paired between methods, and means over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captum_iba._bootstrap import Interval, Values, check_values, paired_bootstrap

__all__ = ["Interval", "mean_over_seeds", "paired_bootstrap"]


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
