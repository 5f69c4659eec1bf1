"""Attention rollout."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from captum_iba.attr._model.hooks import HookPoint, hooked
from captum_iba.attr._model.nested import split_activation
from captum_iba.methods.task import AttributionTask, FloatArray
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.layers import find_blocks
from captum_iba.text.model_properties import attention_implementation


def attention_rollout(task: AttributionTask) -> list[FloatArray]:
    """Attention weights multiplied through all blocks, from the tokens that the classification head reads.

    The weights of a block are averaged over its heads; half of them and half of the identity, for the residual
    connection, is normalized to rows of sum 1. The scores are the row of the product of all blocks for the token that
    the head reads: [CLS] in BERT, the last token in decoders. Where the head reads several (mean pooling), they are the
    mean of their rows. These are the positions of the last block at which the gradient of the logits is not 0. The
    scores do not depend on the target. A pass keeps the attention weights of all blocks; a smaller ``batch_size`` takes
    less memory.

    Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, https://arxiv.org/abs/2005.00928.

    Returns:
        list of array: Scores, (T,), one array per text; with those of special tokens their sum is 1.

    Raises:
        ValueError: An encoder-decoder, or a model that does not give the attention weights of every block, (texts,
            heads, tokens, tokens): some have none (Mamba, FNet), or weights of windows (Longformer).
    """
    classifier = task.classifier
    if getattr(classifier.model.config, "is_encoder_decoder", False):
        raise ValueError(
            f"model: {type(classifier.model).__name__} is an encoder-decoder, whose head reads the decoder; "
            "attention_rollout expects an encoder or a decoder alone"
        )
    scores: dict[int, FloatArray] = {}
    for batch in classifier.batches([len(encoded) for encoded in task.encoded], task.batch_size):
        rows = _rollout(classifier, [task.encoded[i] for i in batch]).cpu().double().numpy()
        for i, row in zip(batch, rows, strict=True):
            scores[i] = row[: len(task.encoded[i])]
            task.on_text(i)
    return [scores[i] for i in range(len(task.encoded))]


def _rollout(classifier: Classifier, encoded: list[EncodedText]) -> Tensor:
    """Rollout of texts that share a pass, (B, T)."""
    inputs = classifier.tensors([classifier.head.for_gradients(text) for text in encoded])
    try:
        last = find_blocks(classifier.model)[-1]
    except ValueError as error:
        raise ValueError(
            f"model: {type(classifier.model).__name__} has no list of transformer blocks, expected one: at the output "
            "of the last block attention_rollout finds the tokens that the classification head reads"
        ) from error
    leaves: list[Tensor] = []
    outputs: list[Any] = []

    def cut(layer: nn.Module, at_input: bool, call: int, value: Any, _: Any) -> Any:
        # The gradient stops here: only the head is differentiated. Of several calls (ALBERT) the last one counts.
        if (split := split_activation(value)) is None:
            return None
        activation, put = split
        leaves.append(activation.detach().requires_grad_())
        return put(leaves[-1])

    def keep(model: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)

    with ExitStack() as stack:
        stack.enter_context(attention_implementation(classifier.model, "eager", output_attentions=True))
        stack.enter_context(hooked([HookPoint(last.module, last.call)], cut))
        stack.callback(classifier.model.register_forward_hook(keep).remove)
        logits = classifier.logits(*inputs.values())
    attentions = _checked_attentions(classifier.model, outputs[-1], inputs["input_ids"].shape)
    row = _positions_read(classifier.model, logits, leaves[-1] if leaves else None, inputs["input_ids"].shape)
    return rolled_out(row, attentions)


def rolled_out(row: Tensor, attentions: Sequence[Tensor]) -> Tensor:
    """Weights of positions, (B, T), taken back through the attention of all blocks, (B, heads, T, T) each.

    Of each block it is the mean over heads and, for the residual connection, the identity; rows sum to 1.
    """
    for attention in reversed(attentions):
        weights = attention.detach().float().mean(1)
        weights = (weights + torch.eye(weights.shape[-1], device=weights.device)) / 2
        row = torch.einsum("bi,bij->bj", row, weights / weights.sum(-1, keepdim=True))
    return row


def _positions_read(model: nn.Module, logits: Tensor, activation: Tensor | None, shape: torch.Size) -> Tensor:
    """Positions that the head reads, (B, T), each with the weight 1 / their number."""
    if activation is None or activation.shape[:2] != shape:
        found = None if activation is None else tuple(activation.shape)
        raise ValueError(
            f"model: the last block of {type(model).__name__} returns {found}, expected (texts, tokens, features), "
            f"({shape[0]}, {shape[1]}, features), to find which tokens the classification head reads"
        )
    # Different weights: the gradient of the sum of log-probabilities or of mirrored classes may be 0.
    weights = torch.arange(1.0, logits.shape[1] + 1, device=logits.device, dtype=logits.dtype).expand_as(logits)
    gradient = torch.autograd.grad(logits, activation, weights, allow_unused=True)[0] if logits.requires_grad else None
    read = torch.zeros(shape, device=logits.device) if gradient is None else gradient.ne(0).any(-1).float()
    if not bool(read.any(-1).all()):
        raise ValueError(
            f"model: the logits of {type(model).__name__} have no gradient at the output of its last block, expected "
            "a head that reads tokens there"
        )
    return read / read.sum(-1, keepdim=True)


def _checked_attentions(model: Any, output: Any, shape: torch.Size) -> list[Tensor]:
    """The attention weights of all blocks, (B, heads, T, T) each."""
    attentions = getattr(output, "attentions", None)
    found = list(attentions) if isinstance(attentions, (list, tuple)) else []
    depth = getattr(model.config.get_text_config(), "num_hidden_layers", len(found))
    expected = (shape[0], shape[1], shape[1])
    shapes = [tuple(a.shape) if isinstance(a, Tensor) else None for a in found]
    if not found or len(found) != depth or any(s is None or (s[:1] + s[2:]) != expected for s in shapes):
        given = f"{len(found)}, of shapes {sorted(set(map(str, shapes)))}" if found else "none"
        raise ValueError(
            f"model: {type(model).__name__} gives other attention weights than attention_rollout needs: expected those "
            f"of {depth} blocks, ({shape[0]}, heads, {shape[1]}, {shape[1]}), got {given}"
        )
    return found
