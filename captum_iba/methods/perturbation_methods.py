"""Methods that replace tokens or words by the reference token; Captum computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from captum.attr import FeatureAblation, KernelShap, Lime, Occlusion
from torch import Tensor

from captum_iba.methods.task import (
    AttributionTask,
    FloatArray,
    check_count,
    class_probabilities,
    reference_token,
    seed_everything,
    seed_of_text,
)
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText

# Width of the lime package's kernel: 25, on 100 times this distance.
_KERNEL_WIDTH = 0.25


def leave_one_out(task: AttributionTask) -> list[FloatArray]:
    """Decrease in the target probability with a token replaced by [MASK] (Captum's FeatureAblation).

    Args:
        task (AttributionTask): The texts.

    Returns:
        list of array: Decreases in probability, (T,), one array per text.
    """

    def attribute(encoded: EncodedText, tokens: RemovableTokens) -> Tensor:
        scores: Tensor = FeatureAblation(tokens.probability).attribute(
            tokens.ids, tokens.references, perturbations_per_eval=task.batch_size
        )
        return scores

    return _scores_of_each(task, attribute)


def occlusion(task: AttributionTask, window: int = 3) -> list[FloatArray]:
    """Decrease in the target probability with neighbouring tokens replaced by [MASK] (Captum's Occlusion).

    Args:
        task (AttributionTask): The texts.
        window (int): Number of neighbouring tokens that are replaced together; a token's score is the mean over the
            windows that contain it. Default: 3.

    Returns:
        list of array: Decreases in probability, (T,), one array per text.
    """
    check_count("window", window)

    def attribute(encoded: EncodedText, tokens: RemovableTokens) -> Tensor:
        size = min(window, tokens.ids.shape[1])
        scores: Tensor = Occlusion(tokens.probability).attribute(
            tokens.ids, (size,), baselines=tokens.references, perturbations_per_eval=task.batch_size
        )
        return scores

    return _scores_of_each(task, attribute)


def captum_lime(task: AttributionTask, n_samples: int = 1000) -> list[FloatArray]:
    """Weights of a linear model of the target probability, with words replaced by [MASK] (Captum's Lime).

    Each word is replaced with probability 1/2. Kernel and ridge regression are those of the ``lime`` package:
    Captum's own kernel compares token ids as if they were quantities, and its Lasso gives most words 0.

    Args:
        task (AttributionTask): The texts.
        n_samples (int): Number of versions of a text that run. Default: 1000.

    Returns:
        list of array: Weight of each token's word, (T,), one array per text.
    """
    check_count("n_samples", n_samples)

    def attribute(encoded: EncodedText, tokens: RemovableTokens) -> Tensor:
        seed_everything(seed_of_text(task.seed, encoded))
        explainer = Lime(tokens.probability, interpretable_model=_Ridge(), similarity_func=_similarity)
        weights: Tensor = explainer.attribute(tokens.ids, **_arguments(task, tokens, n_samples))
        return weights

    return _scores_of_each(task, attribute)


def kernel_shap(task: AttributionTask, n_samples: int = 1000) -> list[FloatArray]:
    """Shapley values of the words for the target probability, with words replaced by [MASK] (Captum's KernelShap).

    Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017,
    https://arxiv.org/abs/1705.07874.

    Args:
        task (AttributionTask): The texts.
        n_samples (int): Number of versions of a text that run; fewer than its words give no reliable values.
            Default: 1000.

    Returns:
        list of array: Value of each token's word, (T,), one array per text.
    """
    check_count("n_samples", n_samples)

    def attribute(encoded: EncodedText, tokens: RemovableTokens) -> Tensor:
        if int(tokens.words.max()) == 0:
            # Captum has no sizes of subsets to sample; the one word has the whole difference.
            difference = tokens.probability(tokens.ids) - tokens.probability(tokens.references)
            return difference[:, None].expand_as(tokens.ids)
        seed_everything(seed_of_text(task.seed, encoded))
        values: Tensor = KernelShap(tokens.probability).attribute(tokens.ids, **_arguments(task, tokens, n_samples))
        return values

    return _scores_of_each(task, attribute)


@dataclass(frozen=True)
class RemovableTokens:
    """The removable tokens of one text, as input of a function that Captum can explain.

    Special tokens stay. All rows have one length, so that nothing is padded and passes are full.

    Attributes:
        ids (Tensor): Token ids, (1, N).
        references (Tensor): Ids of the reference tokens, which replace them, (1, N).
        positions (Tensor): Positions in the text, (N,).
        words (Tensor): Number of each token's word, from 0, (1, N).
        probability (callable): Function of ids, (rows, N), that gives the target probability, (rows,).
    """

    ids: Tensor
    references: Tensor
    positions: Tensor
    words: Tensor
    probability: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, classifier: Classifier, encoded: EncodedText, target: int) -> RemovableTokens:
        """The removable tokens of a text."""
        input_ids, *others = classifier.tensors([encoded]).values()
        positions = torch.tensor(encoded.removable, device=input_ids.device).nonzero()[:, 0]
        words = torch.tensor([word for word in encoded.words if word is not None], device=input_ids.device)
        ids = input_ids[:, positions]

        def probability(rows: Tensor) -> Tensor:
            ids_of_rows = input_ids.repeat(len(rows), 1)
            ids_of_rows[:, positions] = rows
            with torch.no_grad():
                logits = classifier.logits(ids_of_rows, *(other.expand(len(rows), -1) for other in others))
            return class_probabilities(classifier, logits)[:, target]

        return cls(ids, torch.full_like(ids, reference_token(classifier)), positions, words[None], probability)

    def expand(self, scores: Tensor, length: int) -> FloatArray:
        """Scores of the removable tokens, (1, N), as scores of all tokens, (T,), 0 for special tokens."""
        of_all = np.zeros(length)
        of_all[self.positions.cpu().numpy()] = scores[0].cpu().double().numpy()
        return of_all


def _scores_of_each(
    task: AttributionTask, attribute: Callable[[EncodedText, RemovableTokens], Tensor]
) -> list[FloatArray]:
    """Scores of each text by a function of it and its removable tokens that gives their scores, (1, N)."""
    scores = []
    for encoded, target in zip(task.encoded, task.targets, strict=True):
        tokens = RemovableTokens.of(task.classifier, encoded, target)
        scores.append(tokens.expand(attribute(encoded, tokens), len(encoded)))
    return scores


class _Ridge:
    """Ridge regression with the interface of Captum's interpretable models."""

    def __init__(self) -> None:
        self._weights = torch.zeros(0)

    def fit(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Fit the model to batches of kept words, probabilities and weights."""
        from sklearn.linear_model import Ridge

        kept, outputs, weights = (torch.cat(column).cpu().numpy() for column in zip(*batches, strict=True))
        self._weights = torch.from_numpy(Ridge(alpha=1.0).fit(kept, outputs, sample_weight=weights).coef_)

    def representation(self) -> Tensor:
        """Weights of the words."""
        return self._weights


def _similarity(original: Tensor, changed: Tensor, kept: Tensor, **_: Any) -> float:
    """Weight of a version with the words ``kept``, (1, W), by its cosine distance from the text."""
    distance = 1.0 - math.sqrt(float(kept.float().mean()))
    return math.exp(-(distance**2) / (2 * _KERNEL_WIDTH**2))


def _arguments(task: AttributionTask, tokens: RemovableTokens, n_samples: int) -> dict[str, Any]:
    return {
        "baselines": tokens.references,
        "feature_mask": tokens.words,
        "n_samples": n_samples,
        "perturbations_per_eval": task.batch_size,
    }
