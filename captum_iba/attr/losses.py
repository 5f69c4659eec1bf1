"""Losses of an attribution, one value per row of the model's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from captum_iba._compat import TargetType, _select_targets
from captum_iba.attr._model.nested import at_least_float32

LossFunction = Callable[[Tensor, Any], Tensor]
"""Takes the model's output and the target of every row (an int or a tuple for all rows), returns one value per row;
smaller is better."""

LOSSES = ("cross_entropy", "binary_cross_entropy", "nll", "probability", "negative_output")

SOFTMAX = "softmax"
"""Loss of outputs that were recognized as those of a softmax: as "probability", and classes compete."""


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
        return SOFTMAX if are_probabilities(output) else "cross_entropy"
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}, expected one of {', '.join(LOSSES)}, a function, or None")
    return loss


def are_probabilities(output: Tensor) -> bool:
    """Whether all rows of an output (B, C) lie in [0, 1] and sum to 1, as exactly as a softmax does."""
    coarse = next((d for d in (torch.bfloat16, torch.float16) if bool((output == output.to(d)).all())), None)
    if coarse is not None:
        tolerance = 2 * torch.finfo(coarse).eps  # of a model in half precision, whatever its output was cast to
    else:
        # Of float32, too, where the output is in float64: it may have been cast.
        tolerance = torch.finfo(torch.float32).eps * (16 + output.shape[1] / 8)
    wide = at_least_float32(output)
    return bool((wide >= 0).all() and (wide <= 1 + tolerance).all() and ((wide.sum(1) - 1).abs() <= tolerance).all())


class NoLogitsError(ValueError):
    """A classifier gives something else than logits; the message begins with what it is."""


def logits_of(output: Any, rows: int) -> tuple[Tensor, bool]:
    """Logits, (rows, C), of what a classifier returns, and whether it returned the probabilities of a softmax.

    Args:
        output (Any): A tensor, an object with it as ``logits``, as models of transformers return, or a tuple that
            begins with it. Of probabilities the logarithms are taken.
        rows (int): Number of inputs.

    Raises:
        NoLogitsError: Something else.

    Examples::

        >>> logits_of((torch.tensor([[0.5, -1.0]]), "hidden states"), rows=1)
        (tensor([[ 0.5000, -1.0000]]), False)
    """
    logits = getattr(output, "logits", output)
    if isinstance(logits, (tuple, list)) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[0] != rows or logits.shape[1] < 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise NoLogitsError(f"{found}, expected logits of two or more classes, ({rows}, C)")
    is_softmax = are_probabilities(logits.detach())
    return (logits.clamp_min(torch.finfo(logits.dtype).tiny).log() if is_softmax else logits), is_softmax


def may_be_probabilities(output: Tensor) -> bool:
    """Whether all of at least 10 values lie in [0, 1], as those of a sigmoid do; fewer logits may by chance."""
    return output.numel() >= 10 and bool((output >= 0).all() and (output <= 1).all())


def require_outputs(loss: str | LossFunction, output: Tensor) -> None:
    """Raise ValueError where the model's output does not fit a named loss."""
    if loss == "nll" and bool((output > 1e-3).any()):
        raise ValueError("loss is 'nll', but forward_func gives values above 0, expected log-probabilities")
    if loss == "probability" and bool(((output < -1e-3) | (output > 1 + 1e-2)).any()):
        raise ValueError("loss is 'probability', but forward_func gives values outside of [0, 1]")
    if loss == "cross_entropy" and (output.ndim < 2 or output.shape[-1] < 2):
        raise ValueError(
            f"loss is 'cross_entropy', but forward_func gives the shape {tuple(output.shape)}, expected logits "
            "(..., C) of at least 2 classes in the last dimension; for one logit per example 'binary_cross_entropy'"
        )


def loss_warning(named: str | LossFunction | None, loss: str | LossFunction, output: Tensor) -> tuple[str, str] | None:
    """Key and text of a warning where the loss for an output, named by the user or not, may be a mistake."""
    if named == "binary_cross_entropy" and bool(((output >= 0) & (output <= 1)).all()):
        return (
            "logits between 0 and 1",
            "loss is 'binary_cross_entropy', which expects logits, and forward_func gives values between 0 and 1 "
            "only; if they are probabilities (a sigmoid), return the logits before it, or pass "
            "loss='probability' and target=0 (the only column) for what makes the probability large",
        )
    if named == "cross_entropy" and output.ndim >= 4:
        return (
            "classes in the last dimension",
            f"loss is 'cross_entropy', and the classes of the outputs, of shape {tuple(output.shape)}, are taken "
            f"from the last dimension: {output.shape[-1]} of them; for (B, C, H, W) pass a forward_func that gives "
            "model(x).movedim(1, -1), with the class at the end of the target",
        )
    if named is not None:
        return None
    if output.shape[1:].numel() == 1:
        return (
            "one value",
            "forward_func gives one value per example, and the bottleneck keeps what makes it large; for a "
            "classifier of one logit pass loss='binary_cross_entropy' and the class, 0 or 1, as target, for a "
            "regression a function of the distance as loss, and loss='negative_output' if large is what you mean",
        )
    if loss == SOFTMAX:
        return (
            "probabilities",
            "forward_func gives probabilities: every row is in [0, 1] and sums to 1. loss='probability' is "
            "used, minus the logarithm of the target probability; pass loss='cross_entropy' if these are logits",
        )
    if loss == "cross_entropy" and may_be_probabilities(output):
        return (
            "between 0 and 1",
            "forward_func gives values between 0 and 1 only, which are used as logits; if they are probabilities "
            "of independent classes (a sigmoid), pass loss='probability', if they are logits loss='cross_entropy'",
        )
    return None


def row_losses(loss: str | LossFunction, output: Tensor, target: TargetType) -> Tensor:
    """Loss of every row, (rows,), at least float32.

    Raises:
        AssertionError: a target that does not fit the output, as everywhere in Captum.
        ValueError: a loss function that does not return one value per row, or ``"binary_cross_entropy"`` of several.
    """
    if loss == "binary_cross_entropy":
        return row_losses("cross_entropy", *_as_two_classes(output, target))
    if callable(loss):
        values = loss(output, _target_per_row(target, output.shape[0]))
        if not isinstance(values, Tensor) or values.shape != output.shape[:1]:
            raise ValueError(
                f"loss must return one value per row, a tensor of shape {(output.shape[0],)}, got "
                f"{tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__}"
            )
        return values
    wide = at_least_float32(output)
    if loss in ("probability", SOFTMAX):
        return -_selected(wide, target).clamp_min(torch.finfo(wide.dtype).tiny).log()
    return -_selected(wide.log_softmax(-1) if loss == "cross_entropy" else wide, target)


def has_probability(loss: str | LossFunction) -> bool:
    """Whether the loss is minus the logarithm of a probability, so that its complement has a bound."""
    return not callable(loss) and loss != "negative_output"


def target_probability(loss: str | LossFunction, losses: Tensor) -> Tensor:
    """Target probability of every row; minus the loss (the target output) where the loss has no probability."""
    return losses.neg().exp() if has_probability(loss) else losses.neg()


def complement_losses(loss: str | LossFunction, output: Tensor, target: TargetType) -> Tensor:
    """Complement loss of every row, (rows,): :math:`-\\log(1 - p)`.

    With logits it is taken from the other classes, :math:`\\log \\sum_c e^{z_c} - \\log \\sum_{c \\ne t} e^{z_c}`: no
    gradient would flow back from :math:`p` where it rounds to 1. Where the loss has no probability, it is minus the
    loss. It raises what :func:`row_losses` raises.
    """
    if loss == "binary_cross_entropy":
        return complement_losses("cross_entropy", *_as_two_classes(output, target))
    wide = at_least_float32(output)
    if loss in ("probability", SOFTMAX):
        # Where classes compete, from the others: 1 - p rounds to 0.
        rest = _without_target(wide, target, 0.0)[0].sum(1) if loss == SOFTMAX else 1 - _selected(wide, target)
        return -rest.clamp_min(torch.finfo(wide.dtype).tiny).log()
    if loss == "cross_entropy":
        others, positions = _without_target(wide, target, float("-inf"))
        all_losses = wide.logsumexp(-1) - others.logsumexp(-1)
        return all_losses.flatten()[positions // wide.shape[-1]]
    losses = row_losses(loss, output, target)
    if not has_probability(loss):
        return losses.neg()
    return -torch.log(-torch.expm1(-losses.clamp_min(torch.finfo(losses.dtype).tiny)))


def _without_target(output: Tensor, target: TargetType, value: float) -> tuple[Tensor, Tensor]:
    """The output with another value for the target of every row, and the position of these in the flat output."""
    positions = _selected(torch.arange(output.numel(), device=output.device).view_as(output), target)
    return output.flatten().index_fill(0, positions, value).view_as(output), positions


def _as_two_classes(output: Tensor, target: TargetType) -> tuple[Tensor, TargetType]:
    """The logits of classes 0 and 1, (rows, 2), where one logit decides between them; and the target, checked."""
    if output.shape[1:].numel() != 1:
        raise ValueError(
            f"loss is 'binary_cross_entropy', but the output has the shape {tuple(output.shape)}; expected one logit "
            "per example"
        )
    values = target.flatten().tolist() if isinstance(target, Tensor) else target
    values = values if isinstance(values, list) else [values]
    classes = [value[0] if isinstance(value, tuple) and len(value) == 1 else value for value in values]
    if not all(value in (0, 1) for value in classes):  # a negative index would count classes from the last
        raise AssertionError(f"target is {target!r}, expected 0 or 1 for loss 'binary_cross_entropy'")
    logit = output.reshape(-1)
    if isinstance(target, Tensor):  # torch's loss takes them as floating-point numbers, (B,) or (B, 1)
        target = target.flatten().long()
    return torch.stack([torch.zeros_like(logit), logit], -1), target


def _target_per_row(target: TargetType, rows: int) -> TargetType:
    """Targets for a loss function. Captum does not repeat the target of a single example for all rows."""
    if isinstance(target, Tensor) and target.numel() == 1:
        return target.reshape(1).expand(rows)
    return target * rows if isinstance(target, list) and len(target) == 1 else target


def _selected(output: Tensor, target: TargetType) -> Tensor:
    if target is None and output.shape[1:].numel() != 1:
        raise AssertionError(
            f"target is None, but the output has the shape {tuple(output.shape)}: "
            "expected a target that selects one value per example"
        )
    try:
        selected = _select_targets(output, target)
    except (IndexError, RuntimeError) as error:
        raise AssertionError(
            f"target {target!r} is out of range for an output of shape {tuple(output.shape)}"
            f"{_expected_target(output, target)}"
        ) from error
    if selected.shape[1:].numel() != 1:
        raise AssertionError(
            f"target {target!r} selects {tuple(selected.shape[1:])} values per example of an output of shape "
            f"{tuple(output.shape)}, expected one{_expected_target(output, target)}"
        )
    rows: Tensor = selected.reshape(output.shape[0])
    return rows


def _expected_target(output: Tensor, target: TargetType) -> str:
    """What was expected, where one index is the target of an output that needs several."""
    if output.ndim < 3 or isinstance(target, (tuple, list)):
        return ""
    if output.ndim > 3:
        return f"; expected a tuple of {output.ndim - 1} indices"
    return f"; expected (position, class), for example (-1, {target if isinstance(target, int) else 0})"
