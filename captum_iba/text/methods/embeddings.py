"""A classifier as a function of its word embeddings, which have gradients where token ids have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.inputs import batches_by_length
from captum_iba.text.methods.rows import probabilities
from captum_iba.text.methods.stand_in import empty_text
from captum_iba.text.methods.task import FloatArray, Task


@dataclass(frozen=True)
class EmbeddedTexts:
    """Some texts of a task, at the word embeddings.

    Attributes:
        classifier (Classifier): The model and its tokenizer.
        encoded (list of EncodedText): The texts.
        targets (Tensor): The class to explain, (B,).
        inputs (tuple of Tensor): The model's inputs, ids first, (B, T) each.
        embeddings (Tensor): Of the ids, (B, T, D).
    """

    classifier: Classifier
    encoded: list[EncodedText]
    targets: Tensor
    inputs: tuple[Tensor, ...]
    embeddings: Tensor

    @classmethod
    def of(cls, classifier: Classifier, encoded: list[EncodedText], targets: list[int]) -> EmbeddedTexts:
        """Embed texts."""
        inputs = tuple(classifier.tensors(encoded).values())
        wanted = torch.tensor(targets, device=inputs[0].device)
        return cls(classifier, encoded, wanted, inputs, embed(classifier, inputs[0]))

    def baseline(self, name: str) -> Tensor:
        """The embeddings of the same texts with a stand-in for every ordinary token, (B, T, D)."""
        return embed(self.classifier, empty_text(self.classifier, self.encoded, self.inputs[0], name))

    def leaves(self) -> Tensor:
        """The embeddings, to take gradients at."""
        return self.embeddings.clone().requires_grad_()

    @property
    def arguments(self) -> dict[str, Any]:
        """Of Captum's ``attribute``: what is explained, and the other arguments of :meth:`forward`."""
        return {"target": self.targets, "additional_forward_args": self.inputs}

    def forward(self, embeddings: Tensor, *inputs: Tensor) -> Tensor:
        """The model's output for embeddings that take the place of those of the ids, (rows, C)."""
        taken = False

        def put(module: Any, args: Any, output: Tensor) -> Tensor | None:
            nonlocal taken
            first, taken = not taken, True
            # Encoder-decoder models embed once more, for the decoder.
            return embeddings if first else None

        # Not by the argument inputs_embeds: without ids, decoders cannot tell where a text ends. Before other hooks,
        # so that layer methods may watch this module too.
        handle = self.classifier.model.get_input_embeddings().register_forward_hook(put, prepend=True)
        try:
            return self.classifier.logits(*inputs)
        finally:
            handle.remove()

    def probabilities(self, embeddings: Tensor, *inputs: Tensor) -> Tensor:
        """The same as probabilities of the classes, (rows, C)."""
        return probabilities(self.classifier, self.forward(embeddings, *inputs))


def embed(classifier: Classifier, ids: Tensor) -> Tensor:
    """What the model's table of word embeddings holds for ids, (B, T, D)."""
    with torch.no_grad():
        found: Tensor = classifier.model.get_input_embeddings()(ids)
    return found


def by_embeddings(task: Task, rows_per_text: int, attribute: Callable[[EmbeddedTexts], Tensor]) -> list[FloatArray]:
    """Scores of all texts, some at a time.

    Args:
        task (Task): The texts.
        rows_per_text (int): How many rows of a pass ``attribute`` would like for one text.
        attribute (callable): Gives for some texts a score a token, (B, T).

    Returns:
        list of array: (T,), one a text.
    """
    scores: dict[int, FloatArray] = {}
    size = max(1, task.batch_size // rows_per_text)
    for batch in batches_by_length([len(encoded) for encoded in task.encoded], size):
        texts = EmbeddedTexts.of(task.classifier, [task.encoded[i] for i in batch], [task.targets[i] for i in batch])
        found = attribute(texts).detach().cpu().double().numpy()
        scores.update((i, row[: len(task.encoded[i])]) for i, row in zip(batch, found, strict=True))
    return [scores[i] for i in range(len(task.encoded))]
