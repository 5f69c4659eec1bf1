"""Many rows of one text through the model: shortened, replaced or rewritten."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from captum_iba.methods.stand_in import stand_in
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText


def probabilities(classifier: Classifier, logits: Tensor) -> Tensor:
    """Probabilities of the classes, (rows, C), precise enough to tell decisions apart that are all but certain."""
    # Apple's GPUs have no float64.
    precise = logits.float() if logits.device.type == "mps" else logits.double()
    return precise.sigmoid() if classifier.multi_label else precise.softmax(-1)


def run(classifier: Classifier, rows: Sequence[EncodedText], batch_size: int) -> Tensor:
    """Probabilities of the classes for texts of any length.

    Args:
        classifier (Classifier): The model and its tokenizer.
        rows (sequence of EncodedText): The texts; they run sorted by length, so that little is padded. One without
            any token, not even a special one, runs as a padding token, because models need one.
        batch_size (int): The most rows of a pass.

    Returns:
        Tensor: (rows, C), float64, on the CPU.
    """
    rows = [row if len(row) else _blank(classifier, row) for row in rows]
    found = torch.empty(len(rows), len(classifier.labels), dtype=torch.float64)
    with torch.no_grad():
        for batch in classifier.batches([len(row) for row in rows], batch_size):
            logits = classifier.logits(*classifier.tensors([rows[i] for i in batch]).values())
            found[batch] = probabilities(classifier, logits).double().cpu()
    return found


def keep_words(encoded: EncodedText, words: Collection[int]) -> EncodedText:
    """A text with the tokens of some words only, and its special tokens.

    Args:
        encoded (EncodedText): The text.
        words (collection of int): The numbers of its words that stay.

    Returns:
        EncodedText: shorter, and otherwise the same.
    """
    return _pick(encoded, [i for i, word in enumerate(encoded.words) if word is None or word in words])


def _pick(encoded: EncodedText, positions: Sequence[int]) -> EncodedText:
    return replace(
        encoded,
        inputs={name: [row[i] for i in positions] for name, row in encoded.inputs.items()},
        tokens=tuple(encoded.tokens[i] for i in positions),
        spans=tuple(encoded.spans[i] for i in positions),
        sequences=tuple(encoded.sequences[i] for i in positions),
        special=tuple(encoded.special[i] for i in positions),
        words=tuple(encoded.words[i] for i in positions),
    )


def _blank(classifier: Classifier, encoded: EncodedText) -> EncodedText:
    """A single padding token that the model attends to."""
    ids = {"input_ids": stand_in(classifier, "pad"), "attention_mask": 1}
    return replace(
        encoded,
        inputs={name: [ids.get(name, 0)] for name in encoded.inputs},
        tokens=("",),
        spans=((0, 0),),
        sequences=(None,),
        special=(True,),
        words=(None,),
    )
