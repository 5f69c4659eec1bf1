"""Texts without some of their tokens: their probabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.heads import TARGET_ROW, with_row


def probabilities_of_texts(
    classifier: Classifier,
    texts: Sequence[EncodedText],
    batch_size: int,
    on_rows: Callable[[int], object] | None = None,
) -> Tensor:
    """Probabilities of the classes for texts of any length, (rows, C), float64, on the CPU.

    They run sorted by length, so that little is padded. A text without any token, not even a special token, runs as a
    padding token, because models need one. ``on_rows`` is called with the number of rows after each forward pass.
    """
    texts = [text if len(text) else _padding_token_only(classifier, text) for text in texts]
    probabilities = torch.empty(len(texts), classifier.head.n_columns, dtype=torch.float64)
    with torch.no_grad():
        for batch in classifier.batches([len(text) for text in texts], batch_size):
            logits = classifier.logits(*classifier.tensors([texts[i] for i in batch]).values())
            probabilities[batch] = classifier.head.precise_probabilities(logits).cpu().double()
            if on_rows is not None:
                on_rows(len(batch))
    return probabilities


@dataclass(frozen=True)
class TextRemoval:
    """What a model says of a text without some of its words: their tokens are deleted.

    Args:
        classifier (Classifier): The model.
        encoded (EncodedText): The text.
        batch_size (int): Largest number of rows of a forward pass.
        on_rows (Callable, optional): Is called with the number of rows after each forward pass. Default: None.

    Each set of words runs once.
    """

    classifier: Classifier
    encoded: EncodedText
    batch_size: int
    on_rows: Callable[[int], object] | None = None
    _known: dict[frozenset[int], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def probabilities(self, kept: Sequence[Collection[int]]) -> Tensor:
        """Probabilities of the columns, (rows, C), float64, with the words of each row alone, by number."""
        sets = list(map(frozenset, kept))
        if new := [words for words in dict.fromkeys(sets) if words not in self._known]:
            self._known.update(zip(new, self._probabilities(new), strict=True))
        if not sets:
            return torch.zeros(0, self.classifier.head.n_columns, dtype=torch.float64)
        return torch.stack([self._known[words] for words in sets])

    @property
    def tried(self) -> list[frozenset[int]]:
        """The sets of words that were deleted, by number."""
        every = frozenset(range(len(self.encoded.word_spans)))
        return [every - kept for kept in self._known]

    def _probabilities(self, kept: Sequence[Collection[int]]) -> Tensor:
        classifier, encoded = self.classifier, self.encoded
        versions = [keep_words(encoded, words) for words in kept]
        if TARGET_ROW in encoded.inputs:
            row = encoded.inputs[TARGET_ROW][:1]
            versions = [
                text if len(text) else with_row(_padding_token_only(classifier, text), row) for text in versions
            ]
        return probabilities_of_texts(classifier, versions, self.batch_size, self.on_rows)


def keep_words(encoded: EncodedText, words: Collection[int]) -> EncodedText:
    """A text with the tokens of some words only, by number, its special tokens, and what is explained.

    Examples::

        >>> (encoded,) = classifier.encode(["A wonderful film."], [None])
        >>> keep_words(encoded, {1, 2}).tokens
        ('[CLS]', 'wonderful', 'film', '[SEP]')
    """
    stay = encoded.is_target or (False,) * len(encoded)
    kept = [i for i, word in enumerate(encoded.words) if stay[i] or word is None or word in words]
    return keep_positions(encoded, kept)


def keep_positions(encoded: EncodedText, positions: Sequence[int]) -> EncodedText:
    """A text with the tokens at some positions only."""
    return replace(
        encoded,
        inputs={name: tuple(row[i] for i in positions) for name, row in encoded.inputs.items()},
        tokens=tuple(encoded.tokens[i] for i in positions),
        spans=tuple(encoded.spans[i] for i in positions),
        sequences=tuple(encoded.sequences[i] for i in positions),
        special=tuple(encoded.special[i] for i in positions),
        words=tuple(encoded.words[i] for i in positions),
        is_target=tuple(encoded.is_target[i] for i in positions) if encoded.is_target else (),
    )


def _padding_token_only(classifier: Classifier, encoded: EncodedText) -> EncodedText:
    """A single padding token that the model attends to."""
    values = {"input_ids": classifier.pad_id, "attention_mask": 1}
    return replace(
        encoded,
        inputs={name: (values.get(name, 0),) for name in encoded.inputs},
        tokens=("",),
        spans=((0, 0),),
        sequences=(None,),
        special=(True,),
        words=(None,),
        is_target=(),
    )
