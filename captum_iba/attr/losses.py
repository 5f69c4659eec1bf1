"""Losses of an attribution, one value a row: what the prediction needs, as a function of the model's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from captum_iba._compat import TargetType, _select_targets

LossFunction = Callable[[Tensor, Any], Tensor]
"""Takes the model's output and the target of every row (an int or a tuple as it was given, for all rows), gives one
value a row; smaller is better."""

LOSSES = ("cross_entropy", "binary_cross_entropy", "nll", "probability", "negative_output")

# By how much probabilities that a model gives may miss a sum of 1.
_SUM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}


def resolve_loss(loss: str | LossFunction | None, output: Tensor) -> str | LossFunction:
    """The loss for an output.

    None gives cross-entropy for logits (B, C), ``"probability"`` for probabilities (B, C), which are recognized, and
    ``"negative_output"`` for all else. Log-probabilities are logits: their log-softmax is what they are.

    Raises:
        ValueError: an unknown name.
    """
    if loss is None:
        if output.ndim != 2 or output.shape[1] == 1:
            return "negative_output"
        return "probability" if are_probabilities(output) else "cross_entropy"
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}, expected one of {', '.join(LOSSES)}, a function, or None")
    return loss


def are_probabilities(output: Tensor) -> bool:
    """Whether all rows of an output (B, C) lie in [0, 1] and sum to 1."""
    tolerance = _SUM_TOLERANCE.get(output.dtype, 1e-2)
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    return bool((wide >= 0).all() and (wide <= 1 + tolerance).all() and ((wide.sum(1) - 1).abs() <= tolerance).all())


def may_be_probabilities(output: Tensor) -> bool:
    """Whether all of at least 16 values lie in [0, 1], as those of a sigmoid do; fewer logits may by chance."""
    return output.numel() >= 16 and bool((output >= 0).all() and (output <= 1).all())


def row_losses(loss: str | LossFunction, output: Tensor, target: TargetType) -> Tensor:
    """The loss of every row, (rows,), float32 at least.

    Raises:
        AssertionError: a target that does not fit the output, as everywhere in Captum.
        ValueError: a loss function that does not give one value a row, or ``"binary_cross_entropy"`` of several.
    """
    if loss == "binary_cross_entropy":
        return row_losses("cross_entropy", _no_and_yes(output), target)
    if callable(loss):
        values = loss(output, _of_every_row(target, output.shape[0]))
        if not isinstance(values, Tensor) or values.shape != output.shape[:1]:
            raise ValueError(
                f"loss must give one value a row, a tensor of shape {(output.shape[0],)}, got "
                f"{tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__}"
            )
        return values
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    if loss == "probability":
        return -_selected(wide, target).clamp_min(torch.finfo(wide.dtype).tiny).log()
    return -_selected(wide.log_softmax(-1) if loss == "cross_entropy" else wide, target)


def knows_probability(loss: str | LossFunction) -> bool:
    """Whether the loss is minus the logarithm of a probability, so that its opposite has a bound."""
    return not callable(loss) and loss != "negative_output"


def probability(loss: str | LossFunction, losses: Tensor) -> Tensor:
    """Probability of the target in every row; where the loss knows none, minus the loss (the selected output)."""
    return losses.neg().exp() if knows_probability(loss) else losses.neg()


def losses_held_back(loss: str | LossFunction, output: Tensor, target: TargetType) -> Tensor:
    """What the rows of a complement lose by still giving the target, (rows,): :math:`-\\log(1 - p)`.

    With logits it is taken from the other classes, :math:`\\log \\sum_c e^{z_c} - \\log \\sum_{c \\ne t} e^{z_c}`: from
    :math:`p`, which rounds to 1, no gradient would lead back. Where the loss knows no probability, the loss itself is
    to rise.

    Args:
        loss, output, target: As for :func:`row_losses`, which raises the same.

    Returns:
        Tensor: smaller is better.
    """
    if loss == "binary_cross_entropy":
        return losses_held_back("cross_entropy", _no_and_yes(output), target)
    if loss == "probability":
        return _losses_of_other_probabilities(output, target)
    if loss == "cross_entropy":
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        chosen = _selected(torch.arange(wide.numel(), device=wide.device).view_as(wide), target)
        others = wide.flatten().index_fill(0, chosen, float("-inf")).view_as(wide)
        held_back = wide.logsumexp(-1) - others.logsumexp(-1)
        return held_back.flatten()[chosen // wide.shape[-1]]
    losses = row_losses(loss, output, target)
    if not knows_probability(loss):
        return losses.neg()
    return -torch.log(-torch.expm1(-losses.clamp_min(torch.finfo(losses.dtype).tiny)))


def _losses_of_other_probabilities(output: Tensor, target: TargetType) -> Tensor:
    """:math:`-\\log(1 - p)`; where a row sums to 1, from the other classes, since :math:`1 - p` rounds to 0."""
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    chosen = _selected(torch.arange(wide.numel(), device=wide.device).view_as(wide), target)
    rest = 1 - _selected(wide, target)
    if wide.ndim == 2 and are_probabilities(output.detach()):
        rest = wide.flatten().index_fill(0, chosen, 0.0).view_as(wide).sum(1)
    return -rest.clamp_min(torch.finfo(wide.dtype).tiny).log()


def _no_and_yes(output: Tensor) -> Tensor:
    """The logits of classes 0 and 1, (rows, 2), where one logit decides between them."""
    if output.shape[1:].numel() != 1:
        raise ValueError(
            f"loss is 'binary_cross_entropy', but the output has the shape {tuple(output.shape)}; expected one logit "
            "an example"
        )
    logit = output.reshape(-1)
    return torch.stack([torch.zeros_like(logit), logit], -1)


def _of_every_row(target: TargetType, rows: int) -> TargetType:
    """What a loss function is given. Captum leaves one target of one example alone, however many rows there are."""
    if isinstance(target, Tensor) and target.numel() == 1:
        return target.reshape(1).expand(rows)
    return target * rows if isinstance(target, list) and len(target) == 1 else target


def _selected(output: Tensor, target: TargetType) -> Tensor:
    if target is None and output.shape[1:].numel() != 1:
        raise AssertionError(
            f"target is None, but the output has the shape {tuple(output.shape)}: "
            "expected a target that selects one value an example"
        )
    try:
        chosen = _select_targets(output, target)
    except (IndexError, RuntimeError) as error:
        raise AssertionError(
            f"target {target!r} is out of range for an output of shape {tuple(output.shape)}"
        ) from error
    if chosen.shape[1:].numel() != 1:
        raise AssertionError(
            f"target {target!r} selects {tuple(chosen.shape[1:])} values an example of an output of shape "
            f"{tuple(output.shape)}, expected one"
        )
    selected: Tensor = chosen.reshape(output.shape[0])
    return selected
