"""Methods that follow gradients to the word embeddings; Captum computes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from captum.attr import InputXGradient, IntegratedGradients, Saliency
from torch import Tensor

from captum_iba.methods.checks import check_count
from captum_iba.methods.embeddings import EmbeddedTexts, by_embeddings
from captum_iba.methods.randomness import seed_of
from captum_iba.methods.stand_in import stand_in
from captum_iba.methods.task import FloatArray, Task
from captum_iba.text.encoding import EncodedText


def integrated_gradients(
    task: Task, n_steps: int = 50, baseline: str = "pad", output: str = "logit"
) -> list[FloatArray]:
    """Gradients on the way from an empty text to this one, times the way (Layer Integrated Gradients).

    Sundararajan et al., "Axiomatic Attribution for Deep Networks", ICML 2017, https://arxiv.org/abs/1703.01365.

    Args:
        task (Task): The texts.
        n_steps (int): Points on the way. Default: 50.
        baseline (str): What stands for every ordinary token of the empty text, ``"pad"`` or ``"mask"``; special
            tokens stay. Default: ``"pad"``.
        output (str): What the gradients are of: the ``"logit"`` of the target, or its ``"probability"``.
            Default: ``"logit"``.

    Returns:
        list of array: (T,); with many steps their sum is the difference of the output between text and empty text.
    """
    check_count("n_steps", n_steps)
    if output not in ("logit", "probability"):
        raise ValueError(f"output: expected 'logit' or 'probability', got {output!r}.")
    stand_in(task.classifier, baseline)  # another one is said before anything runs

    def attribute(texts: EmbeddedTexts) -> Tensor:
        forward = texts.forward if output == "logit" else texts.probabilities
        scores: Tensor = IntegratedGradients(forward).attribute(
            texts.embeddings,
            baselines=texts.baseline(baseline),
            n_steps=n_steps,
            internal_batch_size=max(task.batch_size, len(texts.encoded)),
            **texts.arguments,
        )
        return scores.sum(-1)

    return by_embeddings(task, n_steps, attribute)


def gradient_x_activation(task: Task) -> list[FloatArray]:
    """The gradient of the target's logit times the embedding (Layer Gradient X Activation), (T,) a text."""

    def attribute(texts: EmbeddedTexts) -> Tensor:
        scores: Tensor = InputXGradient(texts.forward).attribute(texts.leaves(), **texts.arguments)
        return scores.sum(-1)

    return by_embeddings(task, 1, attribute)


def saliency(task: Task) -> list[FloatArray]:
    """The length of the gradient of the target's logit at each embedding, (T,) a text."""

    def attribute(texts: EmbeddedTexts) -> Tensor:
        gradients = Saliency(texts.forward).attribute(texts.leaves(), **texts.arguments)
        lengths: Tensor = gradients.norm(dim=-1)
        return lengths

    return by_embeddings(task, 1, attribute)


def gradient_shap(task: Task, n_samples: int = 50) -> list[FloatArray]:
    """Gradients at random points on the ways from two empty texts, times the way: expected gradients.

    The empty texts are of padding tokens and of [MASK] tokens. Lundberg and Lee, "A Unified Approach to
    Interpreting Model Predictions", NeurIPS 2017, https://arxiv.org/abs/1705.07874.

    Args:
        task (Task): The texts.
        n_samples (int): Points. Default: 50.

    Returns:
        list of array: (T,), one a text.
    """
    check_count("n_samples", n_samples)
    return [
        _expected_gradients(task, encoded, target, n_samples)
        for encoded, target in zip(task.encoded, task.targets, strict=True)
    ]


def _expected_gradients(task: Task, encoded: EncodedText, target: int, n_samples: int) -> FloatArray:
    texts = EmbeddedTexts.of(task.classifier, [encoded], [target])
    empty = torch.cat([texts.baseline("pad"), texts.baseline("mask")])
    # All are drawn before any runs: how many rows a pass takes changes nothing.
    random = np.random.default_rng(seed_of(task.seed, encoded))
    kinds = torch.from_numpy(random.integers(len(empty), size=n_samples)).to(empty.device)
    shares = torch.from_numpy(random.random(n_samples)).to(empty)[:, None, None]
    total = torch.zeros_like(texts.embeddings)
    for part in torch.split(torch.arange(n_samples, device=empty.device), task.batch_size):
        start = empty[kinds[part]]
        way = texts.embeddings - start
        gradients = Saliency(texts.forward).attribute(
            (start + shares[part] * way).requires_grad_(),
            target=target,
            abs=False,
            additional_forward_args=tuple(one.expand(len(part), -1) for one in texts.inputs),
        )
        total += (way * gradients).sum(0)
    scores: FloatArray = (total / n_samples)[0].sum(-1).cpu().double().numpy()
    return scores


def ig_as_released(task: Task) -> list[FloatArray]:
    """Integrated gradients as the paper's code computes them: of class 0 whatever the target, in 10 steps."""
    return integrated_gradients(replace(task, targets=[0] * len(task.targets)), 10, "pad", "probability")
