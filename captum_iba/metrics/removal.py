"""Which features the degradation test removes first, and how many at each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

NINTHS = tuple(k / 9 for k in range(1, 10))
"""Fractions of the paper's table and figures: 1/9, 2/9, ... 1."""

NEVER = torch.iinfo(torch.int64).max
"""Rank of a feature that no step removes."""


def feature_grid(inputs: Tensor) -> tuple[int, ...]:
    """Shape of the features of an example: (T,) for token ids, tables and embeddings, (H, W) for images."""
    if inputs.ndim < 2:
        raise ValueError(f"inputs has the shape {tuple(inputs.shape)}, expected (B, T), (B, T, D) or (B, C, H, W)")
    return tuple(inputs.shape[2:]) if inputs.ndim >= 4 else tuple(inputs.shape[1:2])


def feature_scores(attributions: Tensor, inputs: Tensor) -> Tensor:
    """One score per feature, (B, N), float64 on the CPU; hidden dimensions and channels are summed.

    Attributions are (B, T) or (B, T, D) for inputs (B, T) or (B, T, D'), (B, H, W) or (B, C', H, W) for (B, C, H, W).
    """
    grid, rows = feature_grid(inputs), inputs.shape[0]
    attributions = torch.as_tensor(attributions)  # NumPy arrays are accepted
    shape = tuple(attributions.shape)
    scores = attributions.detach().to("cpu", torch.float64)
    if shape != (rows, *grid):
        channels_first = len(grid) > 1
        if len(shape) != len(grid) + 2 or (rows, *grid) != (shape[:1] + shape[2:] if channels_first else shape[:2]):
            raise ValueError(
                f"attributions has the shape {shape}, expected {(rows, *grid)}, one score per feature of inputs "
                f"{tuple(inputs.shape)}, or one more dimension to sum over"
            )
        scores = scores.sum(1 if channels_first else -1)
    return scores.flatten(1)


def expand_mask(mask: Tensor, name: str, inputs: Tensor) -> Tensor:
    """A mask with one value per feature, (B, N), on the CPU; one row serves all examples."""
    grid, rows = feature_grid(inputs), inputs.shape[0]
    values = mask.detach().to("cpu")
    if values.ndim == len(grid) + 2 and values.shape[1] == 1:
        values = values.squeeze(1)  # (B, 1, H, W), as Captum's feature masks of images
    if values.shape[1:] != grid or values.shape[0] not in (1, rows):
        raise ValueError(f"{name} has the shape {tuple(mask.shape)}, expected {(rows, *grid)} or {(1, *grid)}")
    return values.expand(rows, *grid).flatten(1)


def rank_features(scores: Tensor, groups: Tensor, removable: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """Rank of every feature in the order of removal, as :func:`captum_iba.metrics.degradation` describes it.

    Args:
        scores (Tensor): Scores, (B, N).
        groups (Tensor): Integers, (B, N). Features of one group are removed together: its score is the sum over its
            removable members, its position that of the first of them.
        removable (Tensor): False where nothing is ever removed, (B, N).

    Returns:
        tuple of Tensor: Ranks from 0, (B, N), :data:`NEVER` where nothing is removed; and the number of removable
        groups of each example, (B,).
    """
    size = scores.shape[1]
    # Groups are numbered from 0 within each example, so that one column per group is enough for any numbering.
    ordered, index = groups.sort(1)
    is_new = torch.zeros_like(index)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    members = torch.empty_like(index).scatter_(1, index, is_new.cumsum(1))
    sums = torch.zeros_like(scores).scatter_add(1, members, scores.where(removable, 0))
    positions = torch.arange(size).expand_as(index).where(removable, size)
    first = torch.full_like(index, size).scatter_reduce(1, members, positions, "amin")
    # An ascending sort puts NaN last, whatever its sign; groups without members, which have the last positions, follow.
    by_position = first.argsort(1)
    keys = (-sums if order == "morf" else sums).where(first < size, torch.nan).gather(1, by_position)
    removal = by_position.gather(1, keys.sort(stable=True, dim=1).indices)
    ranks = removal.argsort(1).gather(1, members).masked_fill(~removable, NEVER)
    return ranks, (first < size).sum(1)


def rank_as_released(scores: Tensor, removable: Tensor, real: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """As :func:`rank_features`, as in the published code: the last of all tokens, special ones too, is never removed.

    ``real`` is False at padding, (B, N).
    """
    single = torch.arange(scores.shape[1]).expand_as(scores)
    ranks, lengths = rank_features(scores, single, real, order)
    return rank_features(ranks.double(), single, removable & real & (ranks < lengths[:, None] - 1), "lerf")


def counts_of_fractions(fractions: Sequence[float], available: Tensor) -> Tensor:
    """Number of features removed at each step, (B, S + 1), 0 at the first.

    A fraction of ``n`` features is ``fraction * n`` rounded, halves up; at least 1 for a fraction above 0 (if there is
    one).
    """
    # As Python numbers: a tensor's product with a float is float32, in which 0.65 * 90 is below 58.5.
    rows = [[max(int(f > 0), _half_up(float(f), n)) for f in fractions] for n in available.tolist()]
    return _with_nothing(rows, len(fractions)).minimum(available[:, None])


def _half_up(fraction: float, n: int) -> int:
    # Exact, because 0.145 * 100 is 14.499999999999998, and fractions may come from float32.
    return math.floor(Fraction(fraction).limit_denominator(max(10**5, 10 * n)) * n + Fraction(1, 2))


def counts_as_released(fractions: Sequence[float], lengths: Tensor, available: Tensor) -> Tensor:
    """Number of features removed at each step as in the published code: fractions of the whole length, halves to even.

    Where two steps of a short text would remove as many, the second is left out, and the last step is repeated at the
    end instead; so ``k`` ninths is not always column ``k``. ``lengths``, (B,), count special tokens, but no padding.
    """
    rows = []
    for length in lengths.tolist():
        steps = list(dict.fromkeys([0, *(round(fraction * length) for fraction in fractions)]))
        rows.append([*steps[1:], *[steps[-1]] * (len(fractions) + 1 - len(steps))])
    return _with_nothing(rows, len(fractions)).minimum(available[:, None])


def _with_nothing(rows: list[list[int]], steps: int) -> Tensor:
    counts = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), steps)
    return torch.cat([torch.zeros(len(rows), 1, dtype=torch.int64), counts], 1)
