"""Does an attribution find what is known to decide?"""

from __future__ import annotations

import torch
from torch import Tensor


def planted_token_precision(attributions: Tensor, planted: Tensor, removable_mask: Tensor | None = None) -> Tensor:
    """
    The share of the top-scored positions that were planted, with as many top positions as were planted.

    Tokens that decide by construction are put into texts, and a model is trained on them. 1 says that exactly the
    planted positions have the highest scores. A tie between a planted and another position counts against, and so does
    NaN on a planted one, so that equal scores earn nothing. Higher is better.

    Args:
        attributions (Tensor): (B, T), or (B, T, D), summed over D.
        planted (Tensor): True at planted positions, (B, T).
        removable_mask (Tensor, optional): False where a score does not count: special tokens, padding; (B, T).
                    Default: all count

    Returns:
        *Tensor*: (B,), float32; NaN for an example with nothing planted.

    Raises:
        ValueError: shapes that do not fit.

    Examples::

        >>> planted_token_precision(torch.tensor([[0.1, 0.9, 0.3]]), torch.tensor([[False, True, False]]))
        tensor([1.])
        >>> (planted_token_precision(scores, planted) == 1).float().mean()  # share of examples
    """
    scores = attributions.detach().sum(-1) if attributions.ndim == planted.ndim + 1 else attributions.detach()
    masks = [planted] if removable_mask is None else [planted, removable_mask]
    if planted.ndim != 2 or any(mask.shape != scores.shape for mask in masks):
        shapes = [tuple(one.shape) for one in (attributions, *masks)]
        raise ValueError(f"attributions and masks have the shapes {shapes}, expected (B, T) or (B, T, D), and (B, T)")
    wanted = planted.bool() if removable_mask is None else planted.bool() & removable_mask.bool()
    counts = torch.ones_like(wanted) if removable_mask is None else removable_mask.bool()
    found = []
    for score, is_planted, counted in zip(scores, wanted, counts, strict=True):
        # Positions that were not planted stand first among equals; an ascending sort puts NaN last.
        others, own = score[counted & ~is_planted], score[is_planted]
        top = torch.sort(-torch.cat([others, own]), stable=True).indices[: len(own)]
        found.append((top >= len(others)).float().mean())
    return torch.stack(found).cpu()
