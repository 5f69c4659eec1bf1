"""Whether the tokens of an activation lie in the order of the image's cells, row by row after class tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr._model.nested import split_activation

N_TRIED = 8
"""Number of cells whose place is tried."""
_FEWEST, _FRACTION = 4, 0.25  # of chance alone a cell in as many as there are is in its place

_in_order: WeakKeyDictionary[nn.Module, set[Any]] = WeakKeyDictionary()


def tokens_in_order(
    model: nn.Module,
    forward: Callable[[Tensor], Any],
    images: Tensor,
    shapes: Mapping[str, tuple[int, ...]],
    n_extra: int,
    size: tuple[int, int],
) -> bool:
    """Whether the tokens of a grid depend most on the pixels of their own cells.

    Gradients say so, at the first module with so many tokens: later ones gather what they need from everywhere.

    Args:
        model (nn.Module): The model.
        forward (Callable): Gives the logits.
        images (Tensor): Inputs, (B, 3, H, W); the first one is tried.
        shapes (mapping): The shape of every module's output by its name, in the order in which they run.
        n_extra (int): Number of tokens before the patches.
        size (tuple of int): Height and width of the grid of patches.

    Returns:
        bool: True as well where there is no gradient that could tell.
    """
    key = (n_extra, size, tuple(images.shape[1:]))
    if key in _in_order.get(model, ()):
        return True
    n_cells = math.prod(size)
    names = [name for name, shape in shapes.items() if len(shape) == 3 and shape[1] == n_extra + n_cells]
    generator = torch.Generator().manual_seed(0)
    cells = torch.randperm(n_cells, generator=generator)[:N_TRIED]
    energy = _gradients(model, forward, images, dict(model.named_modules())[names[0]], cells + n_extra, generator)
    if energy is not None:
        found = F.adaptive_avg_pool2d(energy.unsqueeze(1), size).flatten(1)
        told = (found > 0).any(1)
        hits = (found.argmax(1).cpu() == cells)[told.cpu()]
        if len(hits) >= _FEWEST and float(hits.float().mean()) < _FRACTION:
            return False
    _in_order.setdefault(model, set()).add(key)
    return True


def _gradients(
    model: nn.Module,
    forward: Callable[[Tensor], Any],
    images: Tensor,
    module: nn.Module,
    tokens: Tensor,
    generator: torch.Generator,
) -> Tensor | None:
    """Magnitude of the gradient of one token per row at the pixels, (rows, H, W); None without a gradient."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        split = split_activation(output)
        if split is not None and not kept:
            kept.append(split[0])

    with ModuleGuard(model) as guard, guard.watching(), torch.inference_mode(False), torch.enable_grad():
        pixels = images[:1].detach().clone().expand(len(tokens), -1, -1, -1).clone().requires_grad_()
        hook = module.register_forward_hook(keep)
        try:
            forward(pixels)
        finally:
            hook.remove()
        if not kept or not kept[0].requires_grad or kept[0].shape[0] != len(tokens):
            return None
        # A sum over features would be constant behind a normalization.
        weights = torch.randn(kept[0].shape[-1], generator=generator).to(kept[0])
        chosen = (kept[0][torch.arange(len(tokens)), tokens.to(kept[0].device)] * weights).sum()
        (gradients,) = torch.autograd.grad(chosen, pixels, allow_unused=True)
    return None if gradients is None else gradients.abs().sum(1)
