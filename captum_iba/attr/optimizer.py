"""Find the mask that lets through only what the prediction needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_iba._compat import ExpansionTypes, TargetType, _expand_target
from captum_iba.attr._model.replay import Passes
from captum_iba.attr.bottleneck import open_bottleneck, standard_noise
from captum_iba.attr.losses import LossFunction, losses_held_back, probability, row_losses
from captum_iba.attr.mask import InformationMeter, MaskLayout
from captum_iba.attr.settings import INITIAL_MASK_LOGIT, BottleneckSettings


class NoGradientError(ValueError):
    """No gradient flows from the loss back to the mask."""


@dataclass(frozen=True)
class Bottleneck:
    """One bottleneck (shared by several sites, maybe) in a model that runs on a few examples.

    Args:
        passes (Passes): Recorded passes through the model.
        feature (Tensor): What passes the first site, (B, ...).
        mean, std (sequence of Tensor): Of the noise at each site, broadcastable to the feature there.
        layout (MaskLayout): What shares a mask value.
        meter (InformationMeter): Counts the information at the first site.
        loss (str or Callable): One value a row.
        target (TargetType): Of the examples.
        seed (int): Of the noise.
        n_samples (int): Draws of the noise a step; 0 puts its mean in the place of draws.
        antithetic (bool): Every second draw, counted through all steps, is the one before it, turned round.
    """

    passes: Passes
    feature: Tensor
    mean: Sequence[Tensor]
    std: Sequence[Tensor]
    layout: MaskLayout
    meter: InformationMeter
    loss: str | LossFunction
    target: TargetType
    seed: int
    n_samples: int
    antithetic: bool

    @property
    def rows(self) -> int:
        """How many examples there are."""
        return self.feature.shape[0]

    def losses(self, values: Tensor, step: int, draws: range, sides: Sequence[int]) -> Tensor:
        """The loss for some draws of the noise of a step, (sides, draws, B).

        Side 0 is what the mask lets through; side 1 is its complement, what the mask holds back, with the
        same noise, and its loss is that of still giving the target.
        """
        lam = torch.stack([self.layout.openness(-values if side else values) for side in sides]).unsqueeze(1)
        copies = len(sides) * len(draws)

        def replaced(number: int, live: Tensor) -> Tensor:
            shape = live.shape[1:]
            if live.shape[0] != copies * self.rows:
                raise ValueError(
                    f"a layer has the shape {tuple(live.shape)} in a pass of {copies} copies, expected one row for "
                    f"each of {self.rows} examples and each copy"
                )
            noise = self.mean[number]
            if self.n_samples:
                drawn = [self._standard_noise(tuple(shape), number, step, draw, live) for draw in draws]
                noise = noise + self.std[number] * torch.stack(drawn).unsqueeze(1)
            feature = self.feature if number == 0 else live.reshape(len(sides), len(draws), self.rows, *shape)
            # Layers that share a mask may lie on several devices.
            return open_bottleneck(feature, noise, lam.to(live.device)).flatten(0, 2)

        output = self.passes.run(copies, replaced)
        target = _expand_target(self.target, len(draws), expansion_type=ExpansionTypes.repeat)
        found = [
            (losses_held_back if side else row_losses)(self.loss, rows, target)
            for side, rows in zip(sides, output.chunk(len(sides)), strict=True)
        ]
        return torch.stack(found).reshape(len(sides), len(draws), self.rows)

    def _standard_noise(self, shape: tuple[int, ...], number: int, step: int, draw: int, like: Tensor) -> Tensor:
        # Of what the two draws of a pair do to the loss, all that is odd in the noise cancels: half the
        # draws are as good. A pair may fall into two steps, for Adam averages over those.
        turned = self.antithetic and (step * self.n_samples + draw) % 2 == 1
        if turned:
            step, draw = divmod(step * self.n_samples + draw - 1, self.n_samples)
        noise = standard_noise(shape, (self.seed, number, step, draw), like.device)
        return -noise if turned else noise


def optimize_mask(
    bottleneck: Bottleneck,
    chosen: BottleneckSettings,
    draws_per_pass: int,
    traced: bool,
    done: Callable[[int], object],
) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Adam on the mask, from open, with fresh noise every step.

    Losses are summed over examples, never averaged, and noise is the same for every example: what is found
    for one does not depend on the others.

    Args:
        bottleneck (Bottleneck): What to minimise.
        chosen (BottleneckSettings): What to optimize with.
        draws_per_pass (int): Draws of the noise that go through the model together.
        traced (bool): The history is wanted: what does not count in a step runs too, and there is one more pass,
            with the mask that was found.
        done (Callable): Called after every pass that counts, with the number of its draws.

    Returns:
        tuple: the values of the mask, and if ``traced`` for every step and the final pass loss, information (nats) and
        probability of each example, (B,).

    Raises:
        ValueError: where the loss does not depend on the bottleneck, or is not finite.
    """
    dtype = torch.promote_types(bottleneck.feature.dtype, torch.float32)
    values = bottleneck.layout.start(INITIAL_MASK_LOGIT, dtype)
    adam = torch.optim.Adam([values], lr=chosen.learning_rate, betas=(chosen.momentum, 0.999))
    passes = [
        range(i, min(i + draws_per_pass, chosen.samples_per_step))
        for i in range(0, chosen.samples_per_step, draws_per_pass)
    ]
    history = []
    for step in range(chosen.n_steps + traced):
        updates = step < chosen.n_steps
        gradient = torch.zeros_like(values)
        loss = torch.zeros(bottleneck.rows, dtype=dtype, device=values.device)
        chance = torch.zeros_like(loss)
        noise_step = step // 2 if chosen.alternates else step  # two turns have the same noise
        turns = [(sides, weight if updates else 0.0) for sides, weight in chosen.masks_of_step(step)]
        for number, (sides, weight) in enumerate(turn for turn in turns if turn[1] or traced):
            for draws in passes:
                with torch.set_grad_enabled(weight > 0):
                    losses = bottleneck.losses(values, noise_step, draws, sides)
                    weights = losses.new_tensor([chosen.complement if side else 1.0 for side in sides])
                    total = (weights[:, None, None] * losses).sum((0, 1))
                    if weight:
                        gradient += weight * _gradient(total.sum() / chosen.samples_per_step, values)
                loss += total.detach().to(loss) / chosen.samples_per_step
                if 0 in sides:
                    chance += probability(bottleneck.loss, losses[0].detach()).sum(0).to(loss) / chosen.samples_per_step
                if number == 0:
                    done(len(draws))
        if not bool(loss.isfinite().all()):
            raise ValueError(
                f"the loss is not finite at step {step}: {loss.tolist()}; "
                "expected finite outputs of forward_func for noised features"
            )
        with torch.set_grad_enabled(updates):
            mean = bottleneck.meter.mean(values)
            if updates:
                gradient += _gradient(chosen.beta * mean.sum(), values)
        mean = mean.detach()
        if traced:
            history.append((loss + chosen.beta * mean, mean * bottleneck.meter.elements, chance))
        if updates:
            values.grad = gradient
            adam.step()
    return values.detach(), history


def _gradient(loss: Tensor, values: Tensor) -> Tensor:
    found = torch.autograd.grad(loss, values, allow_unused=True)[0] if loss.requires_grad else None
    if found is None:
        raise NoGradientError(
            "the loss does not depend on the layer: expected a layer whose output forward_func uses, and neither "
            "torch.no_grad nor torch.utils.checkpoint (use_reentrant=True) around or after it"
        )
    return found
