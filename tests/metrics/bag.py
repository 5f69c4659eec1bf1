"""A classifier whose every logit can be worked out by hand."""

import torch

PAD, CLS, SEP, MASK = 0, 1, 2, 3
"""Token ids; a token ``t`` above these is worth ``t`` tenths, the special ones nothing."""

WORTH = torch.arange(100) / 10
WORTH[:4] = 0


def bag(ids, mask=None, positions=None, segments=None):
    """Logits (rows, 2): 0 and the worth of all tokens; each is weighed by its mask, its position, its segment."""
    worth = WORTH[ids]
    if mask is not None:
        worth = worth * mask
    if positions is not None:
        worth = worth * (1 + positions)
    if segments is not None:
        worth = worth * (1 + 10 * segments)
    total = worth.sum(1)
    return torch.stack([torch.zeros_like(total), total], 1)
