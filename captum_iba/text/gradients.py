"""Which words may speak for or against the target, by gradients: one pass where deletions take one per word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba.attr._model.hooks import HookPoint, hooked
from captum_iba.attr._model.nested import split_activation
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.heads import LOG_ODDS_EPS
from captum_iba.text.layers import Block


def gradient_x_activation_of_words(
    classifier: Classifier, encoded: EncodedText, blocks: Sequence[Block], column: int
) -> npt.NDArray[np.float64]:
    """Gradient of the target's log-odds times the activation, summed over layers and the tokens of each word.

    To a first approximation this is what the log-odds lose without the activations of the word (Ancona et al.,
    "Towards better understanding of gradient-based attribution methods", 2018).

    Args:
        classifier (Classifier): The model.
        encoded (EncodedText): A text of T tokens and W words.
        blocks (sequence of Block): The layers.
        column (int): The column of the probabilities that is explained.

    Returns:
        array: One number per word, (W,): negative where the word may speak against the target.

    Examples::

        >>> from captum_iba.text.layers import find_blocks
        >>> (encoded,) = classifier.encode(["A wonderful film."], [None])
        >>> gradient_x_activation_of_words(classifier, encoded, find_blocks(classifier.model), 1).shape
        (4,)
    """
    activations: list[Tensor] = []

    def visit(layer: Any, at_input: bool, call: int, output: Any, _: Any) -> Any:
        if (split := split_activation(output)) is None:
            return None
        activation, with_activation = split
        if not activation.requires_grad:
            activation = activation.detach().requires_grad_()
        activations.append(activation)
        return with_activation(activation.clone())  # layers may change their input in place

    with torch.enable_grad(), hooked([HookPoint(block.module, block.call) for block in blocks], visit):
        logits = classifier.logits(*classifier.tensors([encoded]).values())
        log_odds = classifier.head.precise_probabilities(logits)[0, column].logit(eps=LOG_ODDS_EPS)
        gradients = torch.autograd.grad(log_odds, activations, allow_unused=True)
    of_tokens = np.zeros(len(encoded))
    for activation, gradient in zip(activations, gradients, strict=True):
        if gradient is not None and activation.ndim == 3:
            of_tokens += (gradient * activation).sum(-1)[0, : len(encoded)].detach().cpu().double().numpy()
    words = np.zeros(len(encoded.word_spans))
    for word, value in zip(encoded.words, of_tokens, strict=True):
        if word is not None:
            words[word] += value
    return words
