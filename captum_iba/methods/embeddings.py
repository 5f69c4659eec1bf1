"""A classifier as a function of its word embeddings, which have gradients where token ids have none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from captum_iba.methods.rows import probabilities
from captum_iba.methods.stand_in import empty_text
from captum_iba.methods.task import FloatArray, Task
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText

NOT_EMBEDDED = (
    "model: {} does not embed the token ids as it gets them, (texts, tokens), as XLNet, which turns them round; "
    "methods at the word embeddings cannot explain it. Choose one that replaces or leaves out tokens, such as lime or "
    "leave_one_out."
)


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
        """The model's output for embeddings that take the place of those of the ids, (rows, C).

        Encoder-decoders (BART, T5) embed the text once more for the decoder, moved by one: replaced there, too.

        Raises:
            ValueError: The model never embeds the ids as it gets them.
        """
        taken = False

        def put(module: Any, args: Any, output: Tensor) -> Tensor | None:
            nonlocal taken
            if (place := _place(args, inputs[0], self.classifier.pad_id)) is None:
                return None
            before, after = place
            kept = embeddings[:, : embeddings.shape[1] - before]
            if output[:, before : output.shape[1] - after].shape != kept.shape:
                return None
            taken = taken or not before
            return torch.cat([output[:, :before], kept, output[:, output.shape[1] - after :]], 1)

        with ExitStack() as hooks:
            # Not by the argument inputs_embeds: without ids, decoders cannot tell where a text ends. Before other
            # hooks, so that layer methods may watch this module too.
            for module in _candidates(self.classifier):
                hooks.callback(module.register_forward_hook(put, prepend=True).remove)
            output = self.classifier.logits(*inputs)
        if not taken:
            raise ValueError(NOT_EMBEDDED.format(type(self.classifier.model).__name__))
        return output

    def probabilities(self, embeddings: Tensor, *inputs: Tensor) -> Tensor:
        """The same as probabilities of the classes, (rows, C)."""
        return probabilities(self.classifier, self.forward(embeddings, *inputs))


def embed(classifier: Classifier, ids: Tensor) -> Tensor:
    """What the model's table of word embeddings holds for ids, (B, T, D)."""
    with torch.no_grad():
        found: Tensor = _table(classifier)(ids)
    return found


def _candidates(classifier: Classifier) -> list[nn.Module]:
    """The table of word embeddings, and others of its size: encoder-decoders have one that never runs."""
    first = classifier.model.get_input_embeddings()
    size = getattr(getattr(first, "weight", None), "shape", None)
    inside = set(first.modules())
    others = [one for one in classifier.model.modules() if isinstance(one, nn.Embedding) and one.weight.shape == size]
    return [first, *(one for one in others if one not in inside)]


def _table(classifier: Classifier) -> nn.Module:
    """The first of them that embeds the ids of a text, as a short text shows."""
    candidates = _candidates(classifier)
    if len(candidates) == 1 or (inputs := classifier.short_text()) is None:
        return candidates[0]
    ran: list[nn.Module] = []

    def see(module: nn.Module, args: Any, output: Tensor) -> None:
        place = _place(args, inputs["input_ids"], classifier.pad_id)
        if place is not None and not place[0]:
            ran.append(module)

    with ExitStack() as hooks:
        for module in candidates:
            hooks.callback(module.register_forward_hook(see).remove)
        classifier.probabilities(inputs)
    if not ran:
        raise ValueError(NOT_EMBEDDED.format(type(classifier.model).__name__))
    return ran[0]


def _place(args: Any, ids: Tensor, pad_id: int) -> tuple[int, int] | None:
    """How many positions lie before and behind the ids in what a module embeds; None if it embeds something else.

    Padding may be another token's there (:meth:`Classifier.logits`). Models of attention windows pad behind them;
    decoders of encoder-decoders put one before, and drop the last.
    """
    given = args[0] if args else None
    if not isinstance(given, Tensor) or given.ndim != 2 or len(given) != len(ids) or given.dtype != ids.dtype:
        return None
    length = ids.shape[1]
    for before in (0, 1):
        known = ids[:, : length - before]
        found = given[:, before:length]
        if found.shape == known.shape and bool(((found == known) | (known == pad_id)).all()):
            return before, given.shape[1] - length
    return None


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
    for batch in task.classifier.batches([len(encoded) for encoded in task.encoded], size):
        texts = EmbeddedTexts.of(task.classifier, [task.encoded[i] for i in batch], [task.targets[i] for i in batch])
        found = attribute(texts).detach().cpu().double().numpy()
        scores.update((i, row[: len(task.encoded[i])]) for i, row in zip(batch, found, strict=True))
    return [scores[i] for i in range(len(task.encoded))]
