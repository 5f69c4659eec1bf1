"""Banzhaf values of the parts of an input: the mean decrease in a value without each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from captum_iba._checks import check_integer, check_number

_PRIOR_ROWS = 2.0  # per part, that a prior counts as


def banzhaf_values(
    value: Callable[[Tensor], Tensor],
    n_parts: int,
    prior: Tensor | Sequence[float] | None = None,
    *,
    n_rows: int = 64,
    prior_rows: float | None = None,
    seed: int = 0,
) -> Tensor:
    """
    Estimate the Banzhaf value of each part of an input by ridge regression.

    The Banzhaf value of a part is the mean of what it adds to a value, over all sets of the other parts (Banzhaf,
    1965). These are the coefficients of the linear function of the kept parts that is nearest to the value over all
    sets (Hammer and Holzman, 1992). Here the function is fitted to antithetic pairs of sets: each part is kept with
    probability 1/2 in the one, and otherwise in the other. Its coefficients are drawn towards a prior.

    Args:
        value (Callable): Function of the kept parts, (N, P) booleans, that returns (N,): the probability of a class.
        n_parts (int): Number of parts, P.
        prior (Tensor or sequence of float, optional): What is expected of each part, (P,). Default: 0 of each.
        n_rows (int): Number of sets, an even one. Default: 64.
        prior_rows (float, optional): How many sets the prior counts as; 0 for least squares. Default: ``2 * n_parts``.
        seed (int): Seed of the sets. Default: 0.

    Returns:
        Tensor: Values, (P,), float64, in ``n_rows`` forward passes.

    Raises:
        ValueError: No parts, an odd number of sets, a prior of another length, or a negative ``prior_rows``.

    Examples::

        >>> def value(kept): return 0.5 * kept[:, 0] + 0.25 * kept[:, 1] + 0.125 * kept[:, 2]
        >>> banzhaf_values(value, n_parts=3, prior_rows=0).round(decimals=4)
        tensor([0.5000, 0.2500, 0.1250], dtype=torch.float64)
    """
    check_integer("n_parts", n_parts, at_least=1)
    check_integer("n_rows", n_rows, at_least=2)
    check_integer("seed", seed)
    if n_rows % 2:
        raise ValueError(f"n_rows is {n_rows}, expected an even number: each set has its complement")
    expected = torch.zeros(n_parts) if prior is None else torch.as_tensor(prior)
    if expected.shape != (n_parts,):
        raise ValueError(f"prior has the shape {tuple(expected.shape)}, expected {(n_parts,)}, one number per part")
    weight = _PRIOR_ROWS * n_parts if prior_rows is None else prior_rows
    check_number("prior_rows", weight, lambda number: number >= 0, "a number of at least 0")
    kept = _antithetic_halves(n_parts, n_rows, seed)
    values = value(kept).cpu().double()
    # A row and its complement sum to zero, so that the intercept is the mean.
    signs, residuals = kept.double() - 0.5, values - values.mean()
    if weight == 0:
        fitted: Tensor = torch.linalg.lstsq(signs, residuals[:, None], driver="gelsd").solution[:, 0]
        return fitted
    expected = expected.cpu().double()
    penalty = weight / 4 * torch.eye(n_parts, dtype=torch.float64)  # a part has a variance of 1/4 in each row
    shift: Tensor = torch.linalg.solve(signs.T @ signs + penalty, signs.T @ (residuals - signs @ expected))
    return expected + shift


def _antithetic_halves(n_parts: int, n_rows: int, seed: int) -> Tensor:
    """Whether each part is kept, (N, P): in one row of two at random, with probability 1/2, in the other not."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    half = torch.rand(n_rows // 2, n_parts, generator=generator) < 0.5
    return torch.stack([half, ~half], 1).flatten(0, 1)
