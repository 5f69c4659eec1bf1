"""Which features go first, and how many at each step: the bookkeeping of the degradation test, on plain tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ORDERS = ("morf", "lerf")
COUNTINGS = ("removable", "as_released")
NINTHS = tuple(k / 9 for k in range(1, 10))
"""The shares of the paper's table and figure: 1/9, 2/9, ... 1."""

NEVER = torch.iinfo(torch.int64).max
"""The rank of a feature that no step removes."""


def feature_grid(inputs: Tensor) -> tuple[int, ...]:
    """How the features of an example lie: (T,) for ids, tables and embeddings, (H, W) for images.

    Raises:
        ValueError: fewer than two dimensions.
    """
    if inputs.ndim < 2:
        raise ValueError(f"inputs has the shape {tuple(inputs.shape)}, expected (B, T), (B, T, D) or (B, C, H, W)")
    return tuple(inputs.shape[2:]) if inputs.ndim >= 4 else tuple(inputs.shape[1:2])


def feature_scores(attributions: Tensor, inputs: Tensor) -> Tensor:
    """One score a feature, (B, N), float64 on the CPU; hidden features and channels are summed.

    Args:
        attributions (Tensor): (B, T) or (B, T, D) for inputs (B, T) or (B, T, D'); (B, H, W) or (B, C', H, W) for
            inputs (B, C, H, W).
        inputs (Tensor): What features are removed from.

    Raises:
        ValueError: attributions of another shape.
    """
    grid, rows = feature_grid(inputs), inputs.shape[0]
    attributions = torch.as_tensor(attributions)  # NumPy's arrays will do
    shape = tuple(attributions.shape)
    scores = attributions.detach().to("cpu", torch.float64)
    if shape != (rows, *grid):
        channels_first = len(grid) > 1
        if len(shape) != len(grid) + 2 or (rows, *grid) != (shape[:1] + shape[2:] if channels_first else shape[:2]):
            raise ValueError(
                f"attributions has the shape {shape}, expected {(rows, *grid)}, one score a feature of inputs "
                f"{tuple(inputs.shape)}, or one more dimension to sum over"
            )
        scores = scores.sum(1 if channels_first else -1)
    return scores.flatten(1)


def per_feature(mask: Tensor, name: str, inputs: Tensor) -> Tensor:
    """A mask with one value a feature, (B, N), on the CPU; one row serves all examples.

    Raises:
        ValueError: a mask of another shape.
    """
    grid, rows = feature_grid(inputs), inputs.shape[0]
    given = mask.detach().to("cpu")
    if given.ndim == len(grid) + 2 and given.shape[1] == 1:
        given = given.squeeze(1)  # (B, 1, H, W), as Captum's masks of images are
    if given.shape[1:] != grid or given.shape[0] not in (1, rows):
        raise ValueError(f"{name} has the shape {tuple(mask.shape)}, expected {(rows, *grid)} or {(1, *grid)}")
    return given.expand(rows, *grid).flatten(1)


def rank_features(scores: Tensor, groups: Tensor, removable: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """The place of every feature in the order of removal.

    Ties go by position, the earlier first; NaN goes last in both orders. So least relevant first is most relevant
    first of the negated scores, always.

    Args:
        scores (Tensor): (B, N).
        groups (Tensor): Integers, (B, N); what shares one is removed as one, its score the sum over its removable
            members, its position that of the first of them.
        removable (Tensor): False where nothing is ever removed, (B, N).
        order (str): ``"morf"``, highest score first; ``"lerf"``, lowest first.

    Returns:
        tuple of Tensor: ranks from 0, (B, N), :data:`NEVER` where nothing is removed; and how many groups can be
        removed of each example, (B,).
    """
    ranks = torch.full(scores.shape, NEVER)
    available = torch.zeros(len(scores), dtype=torch.int64)
    for i, chosen in enumerate(removable):
        _, members = torch.unique(groups[i][chosen], return_inverse=True)
        n = int(members.max()) + 1 if len(members) else 0
        sums = torch.zeros(n, dtype=scores.dtype).index_add(0, members, scores[i][chosen])
        first = torch.full((n,), len(chosen)).scatter_reduce(0, members, torch.arange(len(members)), "amin")
        by_position = first.argsort()
        removal = by_position[_order(sums[by_position], order)]
        ranks[i, chosen] = removal.argsort()[members]
        available[i] = n
    return ranks, available


def rank_as_released(scores: Tensor, removable: Tensor, real: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """The same as the published code has it: the last-ranked of all tokens, special ones too, is never removed.

    Args:
        scores, removable, order: As in :func:`rank_features`, without groups.
        real (Tensor): False for padding, (B, N).

    Returns:
        tuple of Tensor: ranks, (B, N), and how many features can be removed of each example, (B,).
    """
    ranks = torch.full(scores.shape, NEVER)
    available = torch.zeros(len(scores), dtype=torch.int64)
    for i, chosen in enumerate(removable):
        tokens = real[i].nonzero()[:, 0]
        removal = tokens[_order(scores[i][tokens], order)][:-1]
        removal = removal[chosen[removal]]
        ranks[i, removal] = torch.arange(len(removal))
        available[i] = len(removal)
    return ranks, available


def _order(scores: Tensor, order: str) -> Tensor:
    # An ascending sort puts NaN last, whatever its sign.
    return torch.sort(-scores if order == "morf" else scores, stable=True).indices


def counts_of_shares(shares: Sequence[float], available: Tensor) -> Tensor:
    """How many features are removed at each step, (B, S + 1), the first step none.

    A share of ``n`` features is ``share * n`` rounded, halves up; at least 1 for a share above 0 (if there is one).
    """
    # As numbers of Python: a tensor's product with one is float32, in which 0.65 * 90 is below 58.5.
    sizes = available.tolist()
    rows = [[_half_up(share * n) if share == 0 else max(1, _half_up(share * n)) for share in shares] for n in sizes]
    return _with_nothing(rows, len(shares)).minimum(available[:, None])


def _half_up(number: float) -> int:
    # 0.145 * 100 is 14.499999999999998.
    return math.floor(number + 0.5 + 1e-9)


def counts_as_released(shares: Sequence[float], lengths: Tensor, available: Tensor) -> Tensor:
    """The same as the published code counts: of the whole length, special tokens included, halves to even.

    Where two steps of a short text would remove as many, the second is left out, and the last step is repeated at
    the end instead; so ``k`` ninths is not always column ``k``.

    Args:
        shares (sequence of float): In rising order.
        lengths (Tensor): Tokens of each example without padding, (B,).
        available (Tensor): How many can be removed, (B,).
    """
    rows = []
    for length in lengths.tolist():
        steps = list(dict.fromkeys([0, *(round(share * length) for share in shares)]))
        rows.append([*steps[1:], *[steps[-1]] * (len(shares) + 1 - len(steps))])
    return _with_nothing(rows, len(shares)).minimum(available[:, None])


def _with_nothing(rows: list[list[int]], steps: int) -> Tensor:
    counts = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), steps)
    return torch.cat([torch.zeros(len(rows), 1, dtype=torch.int64), counts], 1)
