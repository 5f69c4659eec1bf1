"""Methods that look at a layer inside the model; Captum computes them."""

from __future__ import annotations

from typing import Any

import torch
from captum.attr import LayerConductance, LayerGradCam
from torch import Tensor, nn

from captum_iba.attr._model.nested import split_activation
from captum_iba.methods.checks import check_count
from captum_iba.methods.embeddings import EmbeddedTexts, by_embeddings
from captum_iba.methods.stand_in import stand_in
from captum_iba.methods.task import FloatArray, Task
from captum_iba.text.layers import Block, find_layer


def conductance(
    task: Task, layer: int | str | None = None, n_steps: int = 50, baseline: str = "pad"
) -> list[FloatArray]:
    """How much of the change in the target's logit from an empty text to this one passes through a layer, by token.

    Dhamdhere et al., "How Important Is a Neuron", ICLR 2019, https://arxiv.org/abs/1805.12233.

    Args:
        task (Task): The texts.
        layer (int, str or None): Block number from 1, or a module's name; None takes the task's, and if that is
            None too, :func:`captum_iba.text.default_layer`. Default: None.
        n_steps (int): Steps from the empty text. Default: 50.
        baseline (str): As for integrated gradients. Default: ``"pad"``.

    Returns:
        list of array: (T,), one a text.
    """
    check_count("n_steps", n_steps)
    stand_in(task.classifier, baseline)  # another one is said before anything runs
    block = _layer(task, layer)

    def attribute(texts: EmbeddedTexts) -> Tensor:
        watch = _Watch(block, texts)
        scores: Tensor = LayerConductance(watch.run, watch).attribute(
            texts.embeddings,
            baselines=texts.baseline(baseline),
            n_steps=n_steps,
            # The other rules leave out the ends of the way, and with them what changes there.
            method="riemann_trapezoid",
            internal_batch_size=max(task.batch_size, 2 * len(texts.encoded)),
            **texts.arguments,
        )
        return scores.sum(1)

    return by_embeddings(task, n_steps + 1, attribute)


def grad_cam(task: Task, layer: int | str | None = None) -> list[FloatArray]:
    """The features of a layer at each token, weighed by their mean gradient over the text.

    Selvaraju et al., "Grad-CAM", ICCV 2017, https://arxiv.org/abs/1610.02391, without its last step, which drops
    negative scores. A text's tokens are what an image's pixels are there.

    Args:
        task (Task): The texts.
        layer (int, str or None): As for :func:`conductance`.

    Returns:
        list of array: (T,), one a text.
    """
    block = _layer(task, layer)

    def attribute(texts: EmbeddedTexts) -> Tensor:
        watch = _Watch(block, texts)
        scores: Tensor = LayerGradCam(watch.run, watch).attribute(texts.leaves(), **texts.arguments)
        # Captum's mean takes in the padding, where the gradient is 0: undone.
        lengths = torch.tensor([len(encoded) for encoded in texts.encoded], device=scores.device)
        return scores[:, 0] * scores.shape[-1] / lengths[:, None]

    return by_embeddings(task, 1, attribute)


def _layer(task: Task, layer: int | str | None) -> Block:
    wanted = task.layer if layer is None else layer
    if wanted is not None and not isinstance(wanted, (int, str)):
        raise TypeError(f"layer: expected a number or a module's name, got {wanted!r}; only iba takes several.")
    return find_layer(task.classifier.model, wanted)


class _Watch(nn.Module):
    """A module that sees the feature of a layer and gives it on, for Captum to hook.

    It is alone, whatever the layer returns beside it, has the shape (rows, D, T), as Captum's Grad-CAM wants
    channels and pixels, and is of the right call where one layer runs several times.
    """

    def __init__(self, block: Block, texts: EmbeddedTexts) -> None:
        super().__init__()
        self._block, self._texts, self._calls = block, texts, 0

    def run(self, embeddings: Tensor, *inputs: Tensor) -> Tensor:
        """The model's output for embeddings, (rows, C)."""
        self._calls = 0
        handle = self._block.module.register_forward_hook(self._after)
        try:
            return self._texts.forward(embeddings, *inputs)
        finally:
            handle.remove()

    def forward(self, feature: Tensor) -> Tensor:
        """What it is given."""
        return feature

    def _after(self, layer: nn.Module, args: Any, output: Any) -> Any:
        self._calls += 1
        # Of several calls Captum keeps what it sees last.
        if self._block.call not in (-1, self._calls - 1):
            return None
        found = split_activation(output)
        if found is None or found[0].ndim != 3:
            raise ValueError(f"layer: {self._block.name} gives no feature of shape (texts, tokens, features).")
        feature, put = found
        return put(self(feature.transpose(1, 2)).transpose(1, 2))
