"""Find the mask that lets through only the information that the prediction needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from captum_iba.attr.losses import LossFunction, target_probability
from captum_iba.attr.objective import NATS_PER_BIT, Information, MaskLayout, information
from captum_iba.attr.settings import CLOSED_MASK_LOGIT, INITIAL_MASK_LOGIT, BottleneckSettings


class MaskObjective(Protocol):
    """Loss and information of the masks of a few examples.

    Of a layer's mask it is an :class:`~captum_iba.attr.objective.Objective`.
    """

    @property
    def activation(self) -> Tensor:
        """What the mask is for, (B, ...)."""

    @property
    def layout(self) -> MaskLayout:
        """Which elements share a mask value."""

    @property
    def information(self) -> Information:
        """Information that a mask lets through."""

    @property
    def settings(self) -> BottleneckSettings:
        """Settings of the optimization."""

    @property
    def loss(self) -> str | LossFunction:
        """The loss, which says whether there is a target probability."""

    def losses(self, alpha: Tensor, step: int, samples: range, masks: Sequence[int], /) -> Tensor:
        """Losses of some noise samples of a step, (masks, samples, B)."""


class NoGradientError(ValueError):
    """No gradient flows from the loss back to the mask."""


def optimize_mask(
    objective: MaskObjective,
    samples_per_pass: int,
    return_trace: bool | Literal["final"],
    on_pass: Callable[[int], object],
) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]], Tensor | None]:
    """Adam on the mask logits, from an open mask, with new noise in every step.

    Losses are summed over examples, never averaged, and the noise is the same for every example: the mask of one
    example does not depend on the others.

    Args:
        samples_per_pass (int): Number of noise samples that go through the model together.
        return_trace (bool or "final"): Whether the history is needed. Then masks without weight in a step are evaluated
            too, and the final and a closed mask in one more pass each. "final" is these two alone, without the
            complement.
        on_pass (Callable): Called with the number of noise samples after every forward pass that counts.

    Returns:
        tuple: mask logits, and with ``return_trace`` for every step and the final pass the objective, the information
        in nats and the target probability of each example, (B,); and the target probability through a closed mask,
        (B,), or None.

    Raises:
        NoGradientError: The loss does not depend on the mask.
        ValueError: The loss is not finite.
    """
    settings = objective.settings
    dtype = torch.promote_types(objective.activation.dtype, torch.float32)
    alpha = objective.layout.initial_alpha(INITIAL_MASK_LOGIT, dtype)
    adam = torch.optim.Adam([alpha], lr=settings.learning_rate, betas=(settings.momentum, 0.999))
    n_samples = settings.samples_per_step
    passes = [range(i, min(i + samples_per_pass, n_samples)) for i in range(0, n_samples, samples_per_pass)]
    history = []
    average = torch.zeros_like(alpha)
    for step in range(settings.n_steps + bool(return_trace)):
        updates = step < settings.n_steps
        traced = return_trace is True or (return_trace == "final" and not updates)
        gradient = torch.zeros_like(alpha)
        loss = torch.zeros(len(objective.activation), dtype=dtype, device=alpha.device)
        probability = torch.zeros_like(loss)
        noise_step = step // 2 if settings.alternates else step  # a step and its complement have the same noise
        evaluations = [(masks, weight if updates else 0.0) for masks, weight in settings.masks_of_step(step)]
        if not traced:
            evaluations = [(masks, weight) for masks, weight in evaluations if weight]
        elif return_trace == "final":
            evaluations = [((0,), 0.0)]
        for number, (masks, weight) in enumerate(evaluations):
            for samples in passes:
                with torch.set_grad_enabled(weight > 0):
                    losses = objective.losses(alpha, noise_step, samples, masks)
                    weights = losses.new_tensor([settings.complement if mask else 1.0 for mask in masks])
                    total = (weights[:, None, None] * losses).sum((0, 1))
                    if weight:
                        gradient += weight * _gradient(total.sum() / n_samples, alpha)
                loss += total.detach().to(loss) / n_samples
                if 0 in masks:
                    probabilities = target_probability(objective.loss, losses[0].detach())
                    probability += probabilities.sum(0).to(loss) / n_samples
                if number == 0:
                    on_pass(len(samples))
        if not bool(loss.isfinite().all()):
            raise ValueError(
                f"the loss is not finite at step {step}: {loss.tolist()}; "
                "expected finite outputs of forward_func for noised activations"
            )
        with torch.set_grad_enabled(updates):
            mean = objective.information.mean(alpha)
            if updates:
                gradient += _gradient(settings.beta * mean.sum(), alpha)
        mean = mean.detach()
        # Adam squares the gradient.
        if not bool((mean + gradient.square().flatten(1).sum(1)).isfinite().all()):
            raise ValueError(
                f"the information or its gradient is not finite at step {step}: the activation is up to "
                f"{float(objective.activation.abs().max()):.2g}; expected statistics of such activations, or a "
                "bottleneck_mask that leaves out the elements that mark padding"
            )
        if traced:
            history.append((loss + settings.beta * mean, mean * objective.information.n_elements, probability))
        if updates:
            alpha.grad = gradient
            adam.step()
            average += _share_of_average(settings, step) * alpha.detach()
            if step == settings.n_steps - 1:
                alpha = average
    if not return_trace:
        return alpha.detach(), history, None
    closed = torch.full_like(alpha, CLOSED_MASK_LOGIT)
    return alpha.detach(), history, _probability(objective, closed, noise_step, passes, on_pass)


def _probability(
    objective: MaskObjective, alpha: Tensor, step: int, passes: Sequence[range], on_pass: Callable[[int], object]
) -> Tensor:
    """Target probability through a mask, the mean over the noise samples of a step, (B,)."""
    probability = torch.zeros(len(objective.activation), dtype=alpha.dtype, device=alpha.device)
    for samples in passes:
        with torch.no_grad():
            losses = objective.losses(alpha, step, samples, (0,))
        probability += target_probability(objective.loss, losses[0]).sum(0).to(probability)
        on_pass(len(samples))
    return probability / objective.settings.samples_per_step


AT_FLOOR = 0.01
"""Bits that are above the floor by less than this fraction of it are those of an element that is not needed."""


def unneeded_bits(settings: BottleneckSettings, n_mask_values: int) -> float:
    """Bits per element that a mask value ends with where the loss does not depend on it, for the average activation.

    Adam follows the information alone there. ``n_mask_values`` is the number of maskable ones of the example.
    """
    alpha = torch.tensor([INITIAL_MASK_LOGIT], dtype=torch.float64)
    adam = torch.optim.Adam([alpha], lr=settings.learning_rate, betas=(settings.momentum, 0.999))
    average = torch.zeros_like(alpha)
    for step in range(settings.n_steps):
        lam = alpha.sigmoid()
        # The derivative of the information at the square 1 of a standardized activation.
        alpha.grad = settings.beta / max(1, n_mask_values) * lam.square() * (3 - 2 * lam)
        adam.step()
        average += _share_of_average(settings, step) * alpha
    final = average if settings.n_steps else alpha
    return float(information(final, torch.ones_like(final))) / NATS_PER_BIT


def _share_of_average(settings: BottleneckSettings, step: int) -> float:
    """Weight in the final mask logits of those after an update."""
    return 1 / settings.averaged_steps if step >= settings.n_steps - settings.averaged_steps else 0.0


def _gradient(loss: Tensor, alpha: Tensor) -> Tensor:
    gradient = torch.autograd.grad(loss, alpha, allow_unused=True)[0] if loss.requires_grad else None
    if gradient is None:
        raise NoGradientError(
            "the loss does not depend on the layer: expected a layer whose output forward_func uses, and neither "
            "torch.no_grad nor torch.utils.checkpoint (use_reentrant=True) around or after it"
        )
    return gradient
