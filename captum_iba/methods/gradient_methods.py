"""Methods by gradients at the word embeddings or through a layer; Captum computes them.

Every method takes an :class:`captum_iba.methods.AttributionTask` and its options, and returns one array of scores per
text, (T,).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from captum.attr import InputXGradient, IntegratedGradients, LayerConductance, LayerGradCam, Saliency
from torch import Tensor, nn

from captum_iba._checks import check_integer
from captum_iba._warnings import warn_user
from captum_iba.attr._model.nested import split_activation
from captum_iba.methods.task import (
    AttributionTask,
    FloatArray,
    reference_texts,
    reference_token,
    seed_of_text,
)
from captum_iba.text.classifier import Classifier, require_classes
from captum_iba.text.encoding import EncodedText
from captum_iba.text.heads import ValueHead
from captum_iba.text.layers import Block, check_layers, find_layer

# Of the sum of the magnitudes of the scores; with 50 steps it is below 0.014 on the four datasets of the paper.
_LARGEST_PATH_ERROR = 0.05


def integrated_gradients(
    task: AttributionTask, n_steps: int = 50, baseline: str = "pad", output: str = "logit"
) -> list[FloatArray]:
    """Gradients along the path from a reference text to this one, times the difference (Layer Integrated Gradients).

    Sundararajan et al., "Axiomatic Attribution for Deep Networks", ICML 2017, https://arxiv.org/abs/1703.01365.

    Args:
        n_steps (int): Number of points on the path. Default: 50.
        baseline (str): Reference token of the reference text, ``"pad"`` or ``"mask"``; special tokens stay.
            Default: ``"pad"``.
        output (str): Output whose gradients are taken: the ``"logit"`` of the target, or its ``"probability"``.
            Default: ``"logit"``.

    Returns:
        list of array: Scores, (T,), one array per text; with enough steps, and a warning says where there are too few,
        their sum is the difference of the output between the text and one with the embeddings of the reference token,
        at the positions of the text: models that count positions without padding (RoBERTa) give another output for the
        reference text itself.
    """
    check_integer("n_steps", n_steps, at_least=1)
    if output not in ("logit", "probability"):
        raise ValueError(f"output is {output!r}, expected 'logit' or 'probability'")
    if output == "probability" and isinstance(task.classifier.head, ValueHead):
        raise ValueError("output is 'probability', expected 'logit' for a model of regression: its own output")
    reference_token(task.classifier, baseline)  # an unknown one is an error before anything runs

    def attribute(texts: EmbeddedTexts) -> Any:
        forward = texts.forward if output == "logit" else texts.probabilities
        gradients, error = IntegratedGradients(forward).attribute(
            texts.embeddings,
            baselines=texts.baseline(baseline),
            n_steps=n_steps,
            internal_batch_size=max(task.batch_size, len(texts.encoded)),
            return_convergence_delta=True,
            **texts.arguments,
        )
        scores = gradients.sum(-1)
        if bool((error.abs() > _LARGEST_PATH_ERROR * scores.abs().sum(-1)).any()):
            warn_user(
                f"ig: with n_steps={n_steps} the scores of a text do not sum to the difference of the output between "
                f"the text and the reference text (they are off by up to {float(error.abs().max()):.2g}); expected "
                "more steps, or baseline='mask': from embeddings of zeros, models that normalize them change at once"
            )
        return scores

    return scores_at_embeddings(task, n_steps, attribute)


def gradient_x_activation(task: AttributionTask) -> list[FloatArray]:
    """The gradient of the target's logit times the embedding (Layer Gradient X Activation).

    Where a LayerNorm follows the embedding at once (DeBERTa without absolute positions, ModernBERT), the output does
    not depend on the embedding's length, and all scores are about 0.
    """

    def attribute(texts: EmbeddedTexts) -> Any:
        return InputXGradient(texts.forward).attribute(texts.leaves(), **texts.arguments).sum(-1)

    return scores_at_embeddings(task, 1, attribute)


def saliency(task: AttributionTask) -> list[FloatArray]:
    """The norm of the gradient of the target's logit at each embedding."""

    def attribute(texts: EmbeddedTexts) -> Any:
        return Saliency(texts.forward).attribute(texts.leaves(), **texts.arguments).norm(dim=-1)

    return scores_at_embeddings(task, 1, attribute)


def gradient_shap(task: AttributionTask, n_samples: int = 50) -> list[FloatArray]:
    """Expected gradients: gradients at random points between two reference texts and this one, times the difference.

    The reference texts are of padding tokens and of [MASK] tokens. Lundberg and Lee, "A Unified Approach to
    Interpreting Model Predictions", NeurIPS 2017, https://arxiv.org/abs/1705.07874.

    Args:
        n_samples (int): Number of points. Default: 50.
    """
    check_integer("n_samples", n_samples, at_least=1)
    scores = []
    for number, (encoded, target) in enumerate(zip(task.encoded, task.targets, strict=True)):
        scores.append(_expected_gradients(task, encoded, target, n_samples))
        task.on_text(number)
    return scores


def _expected_gradients(task: AttributionTask, encoded: EncodedText, target: int, n_samples: int) -> FloatArray:
    texts = EmbeddedTexts.of(task.classifier, [encoded], [target])
    baselines = torch.cat([texts.baseline("pad"), texts.baseline("mask")])
    # All points are sampled before any runs: the number of rows of a pass changes nothing.
    generator = np.random.default_rng(seed_of_text(task.seed, encoded))
    choices = torch.from_numpy(generator.integers(len(baselines), size=n_samples)).to(baselines.device)
    fractions = torch.from_numpy(generator.random(n_samples)).to(baselines)[:, None, None]
    total = torch.zeros_like(texts.embeddings)
    for part in torch.split(torch.arange(n_samples, device=baselines.device), task.batch_size):
        start = baselines[choices[part]]
        difference = texts.embeddings - start
        gradients = Saliency(texts.forward).attribute(
            (start + fractions[part] * difference).requires_grad_(),
            target=target,
            abs=False,
            additional_forward_args=tuple(tensor.expand(len(part), -1) for tensor in texts.inputs),
        )
        total += (difference * gradients).sum(0)
    scores: FloatArray = (total / n_samples)[0].sum(-1).cpu().double().numpy()
    return scores


def ig_as_released(task: AttributionTask) -> list[FloatArray]:
    """Integrated gradients as the paper's code computes them: of class 0 whatever the target, in 10 steps."""
    require_classes(task.classifier, "ig_as_released")
    return integrated_gradients(replace(task, targets=[0] * len(task.targets)), 10, "pad", "probability")


def conductance(
    task: AttributionTask, layer: int | str | None = None, n_steps: int = 50, baseline: str = "pad"
) -> list[FloatArray]:
    """Change of the target's logit from a reference text to this one that passes through each token of a layer.

    Dhamdhere et al., "How Important Is a Neuron", ICLR 2019, https://arxiv.org/abs/1805.12233.

    Args:
        layer (int, str or None): Block number from 1, or a module's name. Default: the task's, or else
            :func:`captum_iba.text.default_layer`.
        n_steps (int): Number of steps, one half of them from the reference text, the other half back to it.
            Default: 50.
        baseline (str): As for :func:`integrated_gradients`. Default: ``"pad"``.
    """
    check_integer("n_steps", n_steps, at_least=1)
    one_way = (n_steps + 1) // 2
    reference_token(task.classifier, baseline)  # an unknown one is an error before anything runs
    block = _block(task, layer)

    def attribute(texts: EmbeddedTexts) -> Any:
        probe = _ActivationProbe(block, texts)
        reference = texts.baseline(baseline)

        def between(start: Tensor, end: Tensor) -> Tensor:
            change: Tensor = LayerConductance(probe.run, probe).attribute(
                end,
                baselines=start,
                n_steps=one_way,
                # The other rules omit the ends of the path, and the change there.
                method="riemann_trapezoid",
                internal_batch_size=max(task.batch_size, 2 * len(texts.encoded)),
                **texts.arguments,
            )
            return change.sum(1)

        # Captum takes the gradient at the beginning of each step. There and back, their mean is that of both ends.
        return (between(reference, texts.embeddings) - between(texts.embeddings, reference)) / 2

    return scores_at_embeddings(task, one_way + 1, attribute)


def grad_cam(task: AttributionTask, layer: int | str | None = None) -> list[FloatArray]:
    """Activations of a layer at each token, weighted by their mean gradient over the text.

    Selvaraju et al., "Grad-CAM", ICCV 2017, https://arxiv.org/abs/1610.02391, with tokens in place of pixels, and
    without the last step, which sets negative scores to 0.

    Args:
        layer (int, str or None): As for :func:`conductance`.
    """
    block = _block(task, layer)

    def attribute(texts: EmbeddedTexts) -> Any:
        probe = _ActivationProbe(block, texts)
        scores: Tensor = LayerGradCam(probe.run, probe).attribute(texts.leaves(), **texts.arguments)
        # Captum's mean includes the padding, where the gradient is 0.
        lengths = torch.tensor([len(encoded) for encoded in texts.encoded], device=scores.device)
        return scores[:, 0] * scores.shape[-1] / lengths[:, None]

    return scores_at_embeddings(task, 1, attribute)


def _block(task: AttributionTask, layer: int | str | None) -> Block:
    chosen = task.layer if layer is None else layer
    if chosen is not None and not isinstance(chosen, (int, str)):
        raise TypeError(f"layer is {chosen!r}, expected a number or a module's name; only iba takes several")
    block = find_layer(task.classifier.model, chosen)
    checked: set[Block] = task.classifier.method_state.setdefault("checked layers", set())
    if task.encoded and block not in checked:
        check_layers(task.classifier, [block])
        checked.add(block)
    return block


class _ActivationProbe(nn.Module):
    """An identity module that the activation of a layer passes through, for Captum to hook.

    The activation is a single tensor, whatever else the layer returns, has the shape (rows, D, T), which Captum's
    Grad-CAM expects of channels and pixels, and is of the right call where one layer runs several times.
    """

    def __init__(self, block: Block, texts: EmbeddedTexts) -> None:
        super().__init__()
        self._block, self._texts, self._calls = block, texts, 0

    def run(self, embeddings: Tensor, *inputs: Tensor) -> Tensor:
        """The model's output for embeddings, (rows, C)."""
        self._calls = 0
        handle = self._block.module.register_forward_hook(self._hook)
        try:
            return self._texts.forward(embeddings, *inputs)
        finally:
            handle.remove()

    def forward(self, activation: Tensor) -> Tensor:
        return activation

    def _hook(self, layer: nn.Module, args: Any, output: Any) -> Any:
        self._calls += 1
        # Captum keeps the last of several calls.
        if self._block.call not in (-1, self._calls - 1):
            return None
        split = split_activation(output)
        if split is None or split[0].ndim != 3:
            raise ValueError(
                f"layer {self._block.name} returns no such activation, expected the shape (texts, tokens, features)"
            )
        activation, with_activation = split
        return with_activation(self(activation.transpose(1, 2)).transpose(1, 2))


_NOT_EMBEDDED = (
    "model: {} does not embed the token ids as it gets them, (texts, tokens), in one tensor, as XLNet, which "
    "transposes them, and I-BERT, which quantizes; "
    "methods at the word embeddings cannot explain it. Choose one that replaces or removes tokens, such as lime or "
    "leave_one_out."
)


@dataclass(frozen=True)
class EmbeddedTexts:
    """Texts as a function of their word embeddings, which have gradients where token ids have none.

    Attributes:
        classifier, encoded: As of :class:`AttributionTask`.
        targets (Tensor): The class to explain of each text, (B,).
        inputs (tuple of Tensor): The model's inputs, ids first, (B, T) each.
        embeddings (Tensor): Word embeddings of the ids, (B, T, D).
    """

    classifier: Classifier
    encoded: list[EncodedText]
    targets: Tensor
    inputs: tuple[Tensor, ...]
    embeddings: Tensor

    @classmethod
    def of(cls, classifier: Classifier, encoded: list[EncodedText], targets: list[int]) -> EmbeddedTexts:
        """Embed texts."""
        encoded = [classifier.head.for_gradients(text) for text in encoded]
        inputs = tuple(classifier.tensors(encoded).values())
        classes = torch.tensor(targets, device=inputs[0].device)
        return cls(classifier, encoded, classes, inputs, _embed(classifier, inputs[0]))

    def baseline(self, name: str) -> Tensor:
        """Embeddings of the same texts with the reference token at every removable position, (B, T, D)."""
        return _embed(self.classifier, reference_texts(self.classifier, self.encoded, self.inputs[0], name))

    def leaves(self) -> Tensor:
        """The embeddings, as a leaf that gets gradients."""
        return self.embeddings.clone().requires_grad_()

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of Captum's ``attribute``: the targets, and the other arguments of :meth:`forward`."""
        return {"target": self.targets, "additional_forward_args": self.inputs}

    def forward(self, embeddings: Tensor, *inputs: Tensor) -> Tensor:
        """The model's output for embeddings in place of those of the ids, (rows, C).

        Encoder-decoders (BART, T5) embed the text again for the decoder, shifted by one: replaced there, too.

        Raises:
            ValueError: The model never embeds the ids as it gets them.
        """
        replaced = False

        def replace_embeddings(module: Any, args: Any, output: Tensor) -> Tensor | None:
            nonlocal replaced
            if (offsets := _offsets_of_ids(args, inputs[0], self.classifier.pad_id)) is None:
                return None
            before, after = offsets
            new = embeddings[:, : embeddings.shape[1] - before]
            if output[:, before : output.shape[1] - after].shape != new.shape:
                return None
            replaced = replaced or not before
            return torch.cat([output[:, :before], new, output[:, output.shape[1] - after :]], 1)

        with ExitStack() as hooks:
            # Not by the argument inputs_embeds: without ids, decoders cannot tell where a text ends. Before other
            # hooks, so that layer methods may use this module, too.
            for module in _embedding_tables(self.classifier):
                hooks.callback(module.register_forward_hook(replace_embeddings, prepend=True).remove)
            output = self.classifier.logits(*inputs)
        if not replaced:
            raise ValueError(_NOT_EMBEDDED.format(type(self.classifier.model).__name__))
        return output

    def probabilities(self, embeddings: Tensor, *inputs: Tensor) -> Tensor:
        """The model's output for embeddings as probabilities of the classes, (rows, C)."""
        return self.classifier.head.precise_probabilities(self.forward(embeddings, *inputs))


def _embed(classifier: Classifier, ids: Tensor) -> Tensor:
    """Word embeddings of token ids, (B, T, D)."""
    with torch.no_grad():
        embeddings = _table_in_use(classifier)(ids)
    if not isinstance(embeddings, Tensor):  # I-BERT adds their scale
        raise ValueError(_NOT_EMBEDDED.format(type(classifier.model).__name__))
    return embeddings


def _embedding_tables(classifier: Classifier) -> list[nn.Module]:
    """The table of word embeddings, and others of its size: encoder-decoders have one that never runs."""
    first = classifier.model.get_input_embeddings()
    size = getattr(getattr(first, "weight", None), "shape", None)
    inside = set(first.modules())
    tables = [m for m in classifier.model.modules() if isinstance(m, nn.Embedding) and m.weight.shape == size]
    return [first, *(table for table in tables if table not in inside)]


def _table_in_use(classifier: Classifier) -> nn.Module:
    """The first of them that embeds the ids of a text, which is tried with a short text."""
    tables = _embedding_tables(classifier)
    if len(tables) == 1 or (inputs := classifier.short_text()) is None:
        return tables[0]
    ran: list[nn.Module] = []

    def record(module: nn.Module, args: Any, output: Tensor) -> None:
        offsets = _offsets_of_ids(args, inputs["input_ids"], classifier.pad_id)
        if offsets is not None and not offsets[0]:
            ran.append(module)

    with ExitStack() as hooks:
        for module in tables:
            hooks.callback(module.register_forward_hook(record).remove)
        classifier.probabilities(inputs)
    if not ran:
        raise ValueError(_NOT_EMBEDDED.format(type(classifier.model).__name__))
    return ran[0]


def _offsets_of_ids(args: Any, ids: Tensor, pad_id: int) -> tuple[int, int] | None:
    """Numbers of positions before and after the ids in the input of a module; None if it embeds something else.

    Padding may be another token there (:meth:`Classifier.logits`). Models of attention windows pad after the ids;
    decoders of encoder-decoders put one position before, and drop the last.
    """
    embedded = args[0] if args else None
    if not isinstance(embedded, Tensor) or embedded.ndim != 2:
        return None
    if len(embedded) != len(ids) or embedded.dtype != ids.dtype:
        return None
    length = ids.shape[1]
    for before in (0, 1):
        expected = ids[:, : length - before]
        part = embedded[:, before:length]
        if part.shape == expected.shape and bool(((part == expected) | (expected == pad_id)).all()):
            return before, embedded.shape[1] - length
    return None


def scores_at_embeddings(
    task: AttributionTask, rows_per_text: int, attribute: Callable[[EmbeddedTexts], Any]
) -> list[FloatArray]:
    """Scores of all texts by a function of their word embeddings, in batches.

    Args:
        task (AttributionTask): The texts.
        rows_per_text (int): Number of rows of a pass that one text takes.
        attribute (callable): Takes some of the texts, and returns the scores of their tokens, (B, T).

    Returns:
        list of array: Scores, (T,), one array per text.
    """
    scores: dict[int, FloatArray] = {}
    size = max(1, task.batch_size // rows_per_text)
    for batch in task.classifier.batches([len(encoded) for encoded in task.encoded], size):
        texts = EmbeddedTexts.of(task.classifier, [task.encoded[i] for i in batch], [task.targets[i] for i in batch])
        rows = attribute(texts).detach().cpu().double().numpy()
        for i, row in zip(batch, rows, strict=True):
            scores[i] = row[: len(task.encoded[i])]
            task.on_text(i)
    return [scores[i] for i in range(len(task.encoded))]
