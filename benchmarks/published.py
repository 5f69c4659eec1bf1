"""The published procedure, as a yardstick: what attribution by a bottleneck costs without replay.

Written from its description (Jiang et al., 2020; Schulz et al., 2020), not taken from any code. It is plain
on purpose: one text at a time, the bottleneck is a module behind the layer, the text is repeated once per
noise draw, every pass runs the whole model, the formulas are those of a textbook, and ``loss.backward()``
reaches the mask and all weights. The statistics are those of the one text: the mean is the input of the
layer, the standard deviation sqrt(1e-5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STD = math.sqrt(1e-5)
INITIAL_MASK = 5.0


class Bottleneck(nn.Module):
    """Replaces a part of each feature by noise; ``loss`` is the mean information of the last pass, nats."""

    def __init__(self, mean: Tensor, std: float) -> None:
        super().__init__()
        self.mean, self.std = mean, std
        self.alpha = nn.Parameter(torch.full_like(mean, INITIAL_MASK))
        self.features = mean
        self.loss = torch.zeros(())

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance of what passes, both in units of the statistics."""
        mask = torch.sigmoid(self.alpha)
        return mask * (features - self.mean) / self.std, 2 * torch.log(1 - mask)

    def information(self, features: Tensor) -> Tensor:
        """Kullback-Leibler divergence of what passes from the noise, nats of every feature."""
        mu, log_variance = self.moments(features)
        return -0.5 * (1 + log_variance - mu**2 - log_variance.exp())

    def forward(self, features: Tensor) -> Tensor:
        """Mix the features with noise drawn anew for every row of the batch."""
        self.features = features.detach()[:1]
        self.loss = self.information(features).mean()
        mu, log_variance = self.moments(features)
        noised = mu + torch.exp(0.5 * log_variance) * torch.randn_like(mu)
        return noised * self.std + self.mean


class WithBottleneck(nn.Module):
    """The layer with the bottleneck appended."""

    def __init__(self, layer: nn.Module, bottleneck: Bottleneck) -> None:
        super().__init__()
        self.layer, self.bottleneck = layer, bottleneck

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer, then the bottleneck on its hidden states."""
        output = self.layer(*args, **kwargs)
        if isinstance(output, tuple):
            return (self.bottleneck(output[0]), *output[1:])
        return self.bottleneck(output)


@contextmanager
def appended(model: nn.Module, layer_name: str, bottleneck: Bottleneck) -> Iterator[None]:
    """Put the bottleneck behind the layer while the context lasts."""
    parent_name, _, child_name = layer_name.rpartition(".")
    parent = model.get_submodule(parent_name)
    layer = parent.get_submodule(child_name)
    setattr(parent, child_name, WithBottleneck(layer, bottleneck))
    try:
        yield
    finally:
        setattr(parent, child_name, layer)


def layer_input(model: nn.Module, layer_name: str, inputs: Mapping[str, Tensor]) -> Tensor:
    """What the layer takes in for this text, shape (1, T, D)."""
    seen: list[Tensor] = []
    hook = model.get_submodule(layer_name).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with hook, torch.no_grad():
        model(**inputs)
    return seen[0].detach()


def published_attribution(
    model: nn.Module,
    layer_name: str,
    inputs: Mapping[str, Tensor],
    target: int,
    beta: float = 1e-5,
    n_steps: int = 10,
    n_samples: int = 10,
    learning_rate: float = 1.0,
    on_step: Callable[[float], None] | None = None,
) -> Tensor:
    """Attribute the target's logit to the features behind a layer, the published way.

    Args:
        model (Module): A classifier from transformers; its parameters require gradients.
        layer_name (str): Name of the layer in the model, for example "bert.encoder.layer.8" (layer 9).
        inputs (mapping): The keyword arguments of the model for one text, tensors of shape (1, T).
        target (int): The class to explain.
        beta (float): Weight of the mean information (nats) in the loss. Default: 1e-5.
        n_steps (int): Passes, at least 1, each with an update of the mask. Default: 10.
        n_samples (int): Noise draws an update. Default: 10.
        learning_rate (float): Of Adam. Default: 1.0.
        on_step (Callable, optional): Called with the loss of every step.

    Returns:
        Tensor: bits of every feature, shape (T, D); a token's score is the sum over its features.
    """
    bottleneck = Bottleneck(layer_input(model, layer_name, inputs), STD)
    batch = {name: tensor.repeat(n_samples, 1) for name, tensor in inputs.items()}
    targets = torch.full((n_samples,), target)
    optimizer = torch.optim.Adam([bottleneck.alpha], lr=learning_rate)
    with appended(model, layer_name, bottleneck):
        for _ in range(n_steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(**batch).logits, targets) + beta * bottleneck.loss
            # Read off the pass, so the last update counts for nothing.
            information = bottleneck.information(bottleneck.features)[0].detach()
            loss.backward()
            optimizer.step()
            if on_step is not None:
                on_step(loss.item())
    model.zero_grad(set_to_none=True)
    return information / math.log(2)
