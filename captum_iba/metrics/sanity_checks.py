"""Sanity checks of attributions: does a method depend on the model, and does it rank known ground truth first?"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba._bootstrap import scipy_stats


class Randomization(NamedTuple):
    """Similarity of scores as layers are re-initialized one after the other.

    Args:
        layers (tuple of str): Names of the L layers, in the order in which they were re-initialized.
        correlation (Tensor): Rank correlation with the scores of the original model, (B, L), float64; column ``k``:
            layers 0 to ``k`` re-initialized.
    """

    layers: tuple[str, ...]
    correlation: Tensor


def cascading_randomization(
    model: Module,
    explain_func: Callable[[Module], Tensor],
    layers: Sequence[str] | None = None,
    mask: Tensor | None = None,
    seed: int = 0,
) -> Randomization:
    """
    Re-initialize layers from the output down, and compare the magnitudes of the scores with the original ones.

    Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018: scores that stay similar do not depend on what the
    model learned. Lower correlation is better, about 0 once everything is random.

    It works on a copy of the model, and the global random state stays as it is. Modules are re-initialized by
    their own ``reset_parameters``; parameters of other modules, and those that weights are computed from (pruning,
    ``weight_norm``, ``spectral_norm``), are sampled from a normal distribution with their own mean and standard
    deviation, a single number from one with mean 0 and itself (1 if it is 0) as deviation.

    Args:
        model (Module): Model.
        explain_func (Callable): Takes a model, returns its scores of the same B examples, (B, ...). It has to look up
            layers in the model that it is called with.
        layers (sequence of str, optional): Names of modules, as in ``named_modules``, the first to be re-initialized
            first. Default: None, every module with parameters of its own, the last registered first; the model itself,
            ``""``, comes last.
        mask (Tensor, optional): False at scores that do not count (padding, special tokens), of the scores' shape.
            Default: None, all count.
        seed (int, optional): Seed of the initialisation. Default: 0.

    Returns:
        *Randomization*: **layers** and **correlation**.

    Raises:
        ValueError: A layer that the model does not have, or no layers.
        ModuleNotFoundError: scipy is missing.

    Examples::

        >>> model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        >>> inputs = torch.randn(3, 5)
        >>> def explain(model):
        ...     x = inputs.clone().requires_grad_()
        ...     return torch.autograd.grad(model(x)[:, 1].sum(), x)[0]
        >>> result = cascading_randomization(model, explain)
        >>> result.layers, result.correlation.shape
        (('2', '0'), torch.Size([3, 2]))
    """
    modules = dict(model.named_modules())
    with_parameters = [
        name
        for name, module in modules.items()
        if any(parameter is not None for parameter in module._parameters.values())
    ]
    names = tuple(reversed(with_parameters) if layers is None else layers)
    if not names or not all(name in modules for name in names):
        raise ValueError(
            f"layers is {list(names)}, expected names of the model's modules, such as {with_parameters[-3:]}"
        )
    randomized = copy.deepcopy(model)
    original = explain_func(randomized).detach().abs()
    columns = []
    for number, name in enumerate(names):
        _reinitialize(randomized.get_submodule(name), seed + number)
        columns.append(rank_correlation(explain_func(randomized).detach().abs(), original, mask))
    return Randomization(names, torch.stack(columns, 1))


def rank_correlation(a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
    """
    Spearman's rank correlation of two sets of scores, per example, by ``scipy.stats.spearmanr``.

    Args:
        a (Tensor): Scores, (B, ...).
        b (Tensor): Scores of the same shape.
        mask (Tensor, optional): False at scores that do not count, of the same shape. Default: None, all count

    Returns:
        *Tensor*: (B,), float64, -1 to 1; NaN where either side is constant, has fewer than two scores, or holds NaN.

    Raises:
        ValueError: Shapes that differ.
        ModuleNotFoundError: scipy is missing.

    Examples::

        >>> rank_correlation(torch.tensor([[1.0, 2, 3, 3]]), torch.tensor([[1.0, 5, 9, 7]]))
        tensor([0.9487], dtype=torch.float64)
    """
    if a.shape != b.shape or (mask is not None and mask.shape != a.shape):
        shapes = [tuple(tensor.shape) for tensor in (a, b, mask) if tensor is not None]
        raise ValueError(f"scores and mask have the shapes {shapes}, expected one shape, (B, ...)")
    stats = scipy_stats("rank_correlation")
    counted = torch.ones(a.shape, dtype=torch.bool) if mask is None else mask.bool().cpu()
    scores = [values.detach().cpu().double() for values in (a, b)]
    correlations = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant scores, whose correlation is NaN
        for x, y, included in zip(*scores, counted, strict=True):
            # Two scores at least: for fewer scipy raises an error or warns, depending on its version.
            several = int(included.sum()) > 1
            correlations.append(
                stats.spearmanr(x[included].numpy(), y[included].numpy()).statistic if several else torch.nan
            )
    return torch.tensor(correlations, dtype=torch.float64)


def ground_truth_precision(attributions: Tensor, ground_truth: Tensor, removable_mask: Tensor | None = None) -> Tensor:
    """
    Fraction of the top-scored positions that are ground truth, with as many top positions as there are of these.

    For synthetic ground-truth tokens: tokens that are put into texts and decide by construction, and a model that is
    trained on these texts. 1 says that exactly the ground-truth positions have the highest scores. A tie between a
    ground-truth and another position counts against, and so does NaN on a ground-truth one, so that equal scores earn
    nothing. Higher is better.

    Args:
        attributions (Tensor): Scores, (B, T), or (B, T, D), summed over D.
        ground_truth (Tensor): True at ground-truth positions, (B, T).
        removable_mask (Tensor, optional): False where a score does not count: special tokens, padding; (B, T).
                    Default: None, all count

    Returns:
        *Tensor*: (B,), float32; NaN for an example without ground truth.

    Raises:
        ValueError: Shapes that do not fit.

    Examples::

        >>> ground_truth_precision(torch.tensor([[0.1, 0.9, 0.3]]), torch.tensor([[False, True, False]]))
        tensor([1.])
    """
    scores = attributions.detach().to("cpu", torch.float64)  # integers without a sign have no negative
    scores = scores.sum(-1) if attributions.ndim == ground_truth.ndim + 1 else scores
    masks = [mask.cpu() for mask in (ground_truth, removable_mask) if mask is not None]
    if ground_truth.ndim != 2 or any(mask.shape != scores.shape for mask in masks):
        shapes = [tuple(tensor.shape) for tensor in (attributions, *masks)]
        raise ValueError(f"attributions and masks have the shapes {shapes}, expected (B, T) or (B, T, D), and (B, T)")
    counted = torch.ones_like(masks[0], dtype=torch.bool) if removable_mask is None else masks[1].bool()
    precisions = []
    for row, is_true, included in zip(scores, masks[0].bool() & counted, counted, strict=True):
        # Other positions stand first among equals; an ascending sort puts NaN last.
        others, own = row[included & ~is_true], row[is_true]
        top = torch.sort(-torch.cat([others, own]), stable=True).indices[: len(own)]
        precisions.append((top >= len(others)).float().mean())
    return torch.stack(precisions)


def _reinitialize(module: Module, seed: int) -> None:
    devices = {parameter.device.index for parameter in module.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
        torch.manual_seed(seed)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            # A weight that a hook computes in every pass is a plain tensor, which reset_parameters would write to.
            if callable(reset) and not any(isinstance(value, Tensor) for value in vars(part).values()):
                reset()
                continue
            for parameter in part._parameters.values():
                if parameter is not None:
                    mean, std = parameter.float().mean(), parameter.float().std(correction=0)
                    if parameter.numel() == 1:
                        mean, std = torch.zeros_like(mean), mean.abs().where(mean != 0, torch.ones_like(mean))
                    parameter.copy_(torch.randn_like(parameter) * std + mean)
