"""Does an attribution see the model at all? Scores before and after its layers forget what they learned."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module


class Randomisation(NamedTuple):
    """How alike scores remain as layers are re-initialised one after the other.

    Args:
        layers (tuple of str): Names of the L layers, in the order in which they were re-initialised.
        correlation (Tensor): Rank correlation with the scores of the model as it is, (B, L), float64; column ``k``:
            layers 0 to ``k`` re-initialised.
    """

    layers: tuple[str, ...]
    correlation: Tensor


def cascading_randomisation(
    model: Module,
    explain_func: Callable[[Module], Tensor],
    layers: Sequence[str] | None = None,
    mask: Tensor | None = None,
    seed: int = 0,
) -> Randomisation:
    """
    Re-initialise layers from the output down, and compare the magnitudes of the scores with the original ones.

    Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018: scores that stay alike do not depend on what the
    model learned. Lower correlation is better, about 0 once everything is random.

    It happens on a copy of the model, and the global random state stays as it is. Modules are re-initialised by
    their own ``reset_parameters``; parameters of others are drawn from a normal distribution with their
    own mean and standard deviation.

    Args:

        model (Module): The model.
        explain_func (Callable): Takes a model, gives its scores of the same B examples, (B, ...). It has to look up
                    layers in the model that it gets.
        layers (sequence of str, optional): Names of modules, as ``named_modules`` has them, the first to be
                    re-initialised first.
                    Default: every module with parameters of its own, the last registered first
        mask (Tensor, optional): False for scores that do not count (padding, special tokens), shaped as the scores.
                    Default: all count
        seed (int, optional): Of the initialisation.
                    Default: 0

    Returns:
        *Randomisation*: **layers** and **correlation**.

    Raises:
        ValueError: a layer that the model does not have, or none.

    Examples::

        >>> def explain(model):
        ...     forward = lambda ids, mask: model(ids, attention_mask=mask).logits
        ...     return LayerGradientXActivation(forward, model.bert.embeddings).attribute(ids, 1, mask).sum(-1)
        >>> cascading_randomisation(model, explain, ["classifier", "bert.pooler", "bert.encoder.layer.11"])
    """
    own = [name for name, module in model.named_modules() if module._parameters and name]
    names = tuple(reversed(own) if layers is None else layers)
    known = dict(model.named_modules())
    if not names or not all(name in known for name in names):
        raise ValueError(f"layers is {list(names)}, expected names of the model's modules, such as {own[-3:]}")
    original = explain_func(model).detach().abs()
    changed = copy.deepcopy(model)
    columns = []
    for number, name in enumerate(names):
        _reinitialise(changed.get_submodule(name), seed + number)
        columns.append(rank_correlation(explain_func(changed).detach().abs(), original, mask))
    return Randomisation(names, torch.stack(columns, 1))


def rank_correlation(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """
    Spearman's rank correlation of two sets of scores, example by example; equal scores share their mean rank.

    Args:
        a (Tensor): (B, ...).
        b (Tensor): The same shape.
        mask (Tensor, optional): False where scores do not count, the same shape. Default: all count

    Returns:
        *Tensor*: (B,), float64, -1 to 1; NaN where either side is constant, has fewer than two scores, or holds NaN.

    Raises:
        ValueError: shapes that differ.

    Examples::

        >>> rank_correlation(torch.tensor([[1.0, 2, 3, 3]]), torch.tensor([[1.0, 5, 9, 7]]))
        tensor([0.9487], dtype=torch.float64)
    """
    if a.shape != b.shape or (mask is not None and mask.shape != a.shape):
        shapes = [tuple(one.shape) for one in (a, b, mask) if one is not None]
        raise ValueError(f"scores and mask have the shapes {shapes}, expected one shape, (B, ...)")
    found = []
    for i in range(len(a)):
        chosen = torch.ones_like(a[i], dtype=torch.bool) if mask is None else mask[i].bool().to(a.device)
        x, y = (_ranks(values[i].to(a.device)[chosen].cpu()) for values in (a, b))
        x, y = x - x.mean(), y - y.mean()
        found.append((x * y).sum() / (x.square().sum() * y.square().sum()).sqrt())
    return torch.stack(found)


def _ranks(values: Tensor) -> Tensor:
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).to(torch.float64) - (counts - 1) / 2
    shared: Tensor = ranks[inverse]
    return shared.where(~values.isnan().any(), torch.nan)


def _reinitialise(module: Module, seed: int) -> None:
    devices = {parameter.device.index for parameter in module.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
        torch.manual_seed(seed)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
                continue
            for parameter in part._parameters.values():
                if parameter is not None:
                    mean, std = parameter.float().mean(), parameter.float().std(correction=0)
                    parameter.copy_(torch.randn_like(parameter) * std + mean)
