"""Methods that replace tokens by a stand-in and look at the probability of the target.

They see the ordinary tokens of one text at a time; special tokens stay where they are. Their rows all have one
length, so nothing is padded and a pass is always full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from captum.attr import FeatureAblation, Occlusion
from torch import Tensor

from captum_iba.methods.checks import check_count
from captum_iba.methods.rows import probabilities
from captum_iba.methods.stand_in import stand_in
from captum_iba.methods.task import FloatArray, Task
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText


@dataclass(frozen=True)
class OrdinaryTokens:
    """The ordinary tokens of one text, as input of a function that Captum can explain.

    Attributes:
        ids (Tensor): What stands there, (1, N).
        stand_ins (Tensor): What replaces it, (1, N).
        positions (Tensor): Where it stands in the text, (N,).
        words (Tensor): The number of the word that each belongs to, from 0, (1, N).
        probability (callable): Ids (rows, N) to the probability of the target, (rows,).
    """

    ids: Tensor
    stand_ins: Tensor
    positions: Tensor
    words: Tensor
    probability: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, classifier: Classifier, encoded: EncodedText, target: int) -> OrdinaryTokens:
        """Take them out of a text."""
        input_ids, *others = classifier.tensors([encoded]).values()
        numbered = [(i, word) for i, word in enumerate(encoded.words) if word is not None]
        positions, words = (torch.tensor(column, device=input_ids.device) for column in zip(*numbered, strict=True))
        ids = input_ids[:, positions]

        def probability(rows: Tensor) -> Tensor:
            whole = input_ids.repeat(len(rows), 1)
            whole[:, positions] = rows
            with torch.no_grad():
                logits = classifier.logits(whole, *(other.expand(len(rows), -1) for other in others))
            return probabilities(classifier, logits)[:, target]

        return cls(ids, torch.full_like(ids, stand_in(classifier)), positions, words[None], probability)

    def spread(self, scores: Tensor, length: int) -> FloatArray:
        """Scores (1, N) of the ordinary tokens as scores of all, 0 for special ones."""
        whole = np.zeros(length)
        whole[self.positions.cpu().numpy()] = scores[0].cpu().double().numpy()
        return whole


def leave_one_out(task: Task) -> list[FloatArray]:
    """How much less probable the target is with a token replaced by [MASK] (Captum's FeatureAblation).

    Args:
        task (Task): The texts.

    Returns:
        list of array: differences of probability, (T,), one a text.
    """

    def attribute(encoded: EncodedText, tokens: OrdinaryTokens) -> Tensor:
        scores: Tensor = FeatureAblation(tokens.probability).attribute(
            tokens.ids, tokens.stand_ins, perturbations_per_eval=task.batch_size
        )
        return scores

    return attribute_each(task, attribute)


def occlusion(task: Task, window: int = 3) -> list[FloatArray]:
    """How much less probable the target is without the tokens around each (Captum's Occlusion).

    Args:
        task (Task): The texts.
        window (int): How many neighbouring tokens are replaced by [MASK] at a time; a token's score is the mean
            over the windows that it is in. Default: 3.

    Returns:
        list of array: differences of probability, (T,), one a text.
    """
    check_count("window", window)

    def attribute(encoded: EncodedText, tokens: OrdinaryTokens) -> Tensor:
        size = min(window, tokens.ids.shape[1])
        scores: Tensor = Occlusion(tokens.probability).attribute(
            tokens.ids, (size,), baselines=tokens.stand_ins, perturbations_per_eval=task.batch_size
        )
        return scores

    return attribute_each(task, attribute)


def attribute_each(task: Task, attribute: Callable[[EncodedText, OrdinaryTokens], Tensor]) -> list[FloatArray]:
    """Scores of each text by a function of it and its ordinary tokens that gives (1, N)."""
    scores = []
    for encoded, target in zip(task.encoded, task.targets, strict=True):
        tokens = OrdinaryTokens.of(task.classifier, encoded, target)
        scores.append(tokens.spread(attribute(encoded, tokens), len(encoded)))
    return scores
