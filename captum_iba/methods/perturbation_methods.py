"""Methods that delete tokens, or replace tokens or words by the reference token; Captum computes the latter.

Every method takes an :class:`captum_iba.methods.AttributionTask` and its options, and returns one array of scores per
text, (T,); those that replace words give each token the score of its word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from captum.attr import FeatureAblation, KernelShap, Lime, Occlusion
from torch import Tensor

from captum_iba._checks import check_choice, check_integer
from captum_iba.methods.task import (
    AttributionTask,
    FloatArray,
    reference_token,
    seed_everything,
    seed_of_text,
)
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText, scores_per_word
from captum_iba.text.word_removal import keep_positions, probabilities_of_texts

# Width of the lime package's kernel: 25, on 100 times this distance.
_KERNEL_WIDTH = 0.25


def leave_one_out(task: AttributionTask, removal: str = "delete") -> list[FloatArray]:
    """Decrease in the target probability without a token; of words, :func:`leave_one_word_out`.

    Args:
        removal (str): ``"delete"``, the others move together, or ``"mask"``, [MASK] takes its place (Captum's
            FeatureAblation). Default: ``"delete"``, which is the more faithful one by the degradation test.
    """
    check_choice("removal", removal, ("delete", "mask"))

    def attribute(tokens: RemovableTokens) -> Any:
        if removal == "delete":
            return tokens.without_each(task.batch_size)
        return FeatureAblation(tokens.probability).attribute(
            tokens.ids, tokens.references, perturbations_per_eval=task.batch_size
        )

    return _scores_of_each(task, attribute)


def leave_one_word_out(
    task: AttributionTask, scores: Sequence[FloatArray], removal: str = "delete"
) -> list[FloatArray]:
    """Decrease in the target probability without each word, (W,), which is not the sum of those without its tokens.

    Args:
        scores (sequence of array): Those of :func:`leave_one_out`, which words of one token keep.
        removal (str): As for :func:`leave_one_out`.
    """
    found = []
    for encoded, target, of_tokens in zip(task.encoded, task.targets, scores, strict=True):
        words = np.array(scores_per_word(encoded.word_spans, of_tokens.tolist()))
        columns = [[i for i in word.positions if encoded.removable[i]] for word in encoded.word_spans]
        several = [number for number, positions in enumerate(columns) if len(positions) > 1]
        if several:
            tokens = RemovableTokens(task.classifier, encoded, target)
            sets = [columns[number] for number in several]
            decrease = tokens.without_sets if removal == "delete" else tokens.masked_sets
            words[several] = decrease(sets, task.batch_size)[0].numpy()
        found.append(words)
    return found


def occlusion(task: AttributionTask, window: int = 3) -> list[FloatArray]:
    """Decrease in the target probability with neighboring tokens replaced by [MASK] (Captum's Occlusion).

    Args:
        window (int): Number of neighboring tokens of one text (of a pair, one of both) that are replaced together; a
            token's score is the mean over the windows that contain it. Default: 3.
    """
    check_integer("window", window, at_least=1)

    def attribute(tokens: RemovableTokens) -> Any:
        return torch.cat(
            [
                Occlusion(partial(tokens.probability_with, columns)).attribute(
                    tokens.ids[:, columns],
                    (min(window, len(columns)),),
                    baselines=tokens.references[:, columns],
                    perturbations_per_eval=task.batch_size,
                )
                for columns in tokens.columns_of_sequences
            ],
            1,
        )

    return _scores_of_each(task, attribute)


def captum_lime(task: AttributionTask, n_samples: int = 1000) -> list[FloatArray]:
    """Weights of a linear model of the target probability, with words replaced by [MASK] (Captum's Lime).

    Each word is replaced with probability 1/2. Kernel and ridge regression are those of the ``lime`` package:
    Captum's own kernel compares token ids as if they were quantities, and its Lasso gives most words 0.

    Args:
        n_samples (int): Number of versions of a text that run. Default: 1000.
    """
    check_integer("n_samples", n_samples, at_least=1)

    def attribute(tokens: RemovableTokens) -> Any:
        explainer = Lime(tokens.probability, interpretable_model=RidgeRegression(), similarity_func=similarity_of_kept)
        return explainer.attribute(tokens.ids, **tokens.arguments(n_samples, task.batch_size))

    return _scores_of_each(task, attribute)


def kernel_shap(task: AttributionTask, n_samples: int = 1000) -> list[FloatArray]:
    """Shapley values of the words for the target probability, with words replaced by [MASK] (Captum's KernelShap).

    Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017,
    https://arxiv.org/abs/1705.07874.

    Args:
        n_samples (int): Number of versions of a text that run; fewer than its words give no reliable values.
            Default: 1000.
    """
    check_integer("n_samples", n_samples, at_least=1)

    def attribute(tokens: RemovableTokens) -> Any:
        if int(tokens.words.max()) == 0:
            # Captum has no sizes of subsets to sample; the one word has the whole difference.
            difference = tokens.probability(tokens.ids) - tokens.probability(tokens.references)
            return difference[:, None].expand_as(tokens.ids)
        return KernelShap(tokens.probability).attribute(tokens.ids, **tokens.arguments(n_samples, task.batch_size))

    return _scores_of_each(task, attribute)


class RemovableTokens:
    """The removable tokens of one text, as input of a function that Captum can explain.

    Special tokens stay, and what is explained. All rows have one length, so that nothing is padded and passes are full.

    Attributes:
        ids (Tensor): Token ids, (1, N).
        positions (Tensor): Positions in the text, (N,).
        words (Tensor): Number of each token's word, from 0, (1, N).
        columns_of_sequences (list of Tensor): Numbers, from 0 to N - 1, of the tokens of the text, and of its pair.
    """

    def __init__(self, classifier: Classifier, encoded: EncodedText, target: int) -> None:
        self._classifier, self._encoded, self._target = classifier, encoded, target
        self._input_ids, *self._others = classifier.tensors([encoded]).values()
        device = self._input_ids.device
        self.positions = torch.tensor(encoded.removable, device=device).nonzero()[:, 0]
        number_of = {word: number for number, word in enumerate(encoded.removable_words)}
        self.words = torch.tensor([[number_of[encoded.words[i] or 0] for i in self.positions]], device=device)
        self.ids = self._input_ids[:, self.positions]
        in_pair = torch.tensor([encoded.sequences[i] == 1 for i in self.positions], device=device)
        columns_of_both = (selected.nonzero()[:, 0] for selected in (~in_pair, in_pair))
        self.columns_of_sequences = [columns for columns in columns_of_both if len(columns)]

    @cached_property
    def references(self) -> Tensor:
        """Ids of the reference tokens, which replace the others, (1, N)."""
        return torch.full_like(self.ids, reference_token(self._classifier))

    def probability(self, rows: Tensor) -> Tensor:
        """Target probability, (rows,), of the text with other token ids, (rows, N)."""
        ids = self._input_ids.repeat(len(rows), 1)
        ids[:, self.positions] = rows
        # The first pass of a text that is short for BigBird makes layers anew, with random weights.
        devices = [ids.device] if ids.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices):
            logits = self._classifier.logits(ids, *(other.expand(len(rows), -1) for other in self._others))
        return self._classifier.head.precise_probabilities(logits)[:, self._target]

    def without_each(self, batch_size: int) -> Tensor:
        """Decrease in the target probability with each token deleted, (1, N)."""
        return self.without_sets([[position] for position in self.positions.tolist()], batch_size)

    def without_sets(self, sets: Sequence[Collection[int]], batch_size: int) -> Tensor:
        """Decrease in the target probability with each of some sets of positions deleted, (1, N)."""
        rest = [[i for i in range(len(self._encoded)) if i not in removed] for removed in [(), *sets]]
        texts = [keep_positions(self._encoded, positions) for positions in rest]
        whole, *others = probabilities_of_texts(self._classifier, texts, batch_size)[:, self._target].tolist()
        return torch.tensor([[whole - other for other in others]], dtype=torch.float64)

    def masked_sets(self, sets: Sequence[Collection[int]], batch_size: int) -> Tensor:
        """Decrease in the target probability with reference tokens at each of some sets of positions, (1, N)."""
        masked = torch.stack([torch.isin(self.positions, self.positions.new_tensor([*removed])) for removed in sets])
        rows = torch.cat([self.ids, torch.where(masked, self.references, self.ids)])
        whole, *others = torch.cat([self.probability(part) for part in torch.split(rows, batch_size)]).tolist()
        return torch.tensor([[whole - other for other in others]], dtype=torch.float64)

    def probability_with(self, columns: Tensor, rows: Tensor) -> Tensor:
        """Target probability, (rows,), of the text with other token ids in some of the N columns, (rows, M)."""
        ids = self.ids.repeat(len(rows), 1)
        ids[:, columns] = rows
        return self.probability(ids)

    def arguments(self, n_samples: int, batch_size: int) -> dict[str, Any]:
        """Arguments of ``attribute`` of Captum's methods that replace words at random."""
        return {
            "baselines": self.references,
            "feature_mask": self.words,
            "n_samples": n_samples,
            "perturbations_per_eval": batch_size,
        }


def _scores_of_each(task: AttributionTask, attribute: Callable[[RemovableTokens], Any]) -> list[FloatArray]:
    """Scores of all tokens of each text, by a function that gives those of its removable tokens, (1, N)."""
    scores = []
    for number, (encoded, target) in enumerate(zip(task.encoded, task.targets, strict=True)):
        tokens = RemovableTokens(task.classifier, encoded, target)
        seed_everything(seed_of_text(task.seed, encoded))
        scores_of_text = np.zeros(len(encoded))
        scores_of_text[tokens.positions.cpu().numpy()] = attribute(tokens)[0].cpu().double().numpy()
        scores.append(scores_of_text)
        task.on_text(number)
    return scores


class RidgeRegression:
    """Ridge regression with the interface of Captum's interpretable models."""

    def __init__(self) -> None:
        self._weights = torch.zeros(0)

    def fit(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Fit the model to batches of what is kept, of probabilities and of weights."""
        from sklearn.linear_model import Ridge

        kept_words, outputs, weights = (torch.cat(column).cpu().numpy() for column in zip(*batches, strict=True))
        self._weights = torch.from_numpy(Ridge(alpha=1.0).fit(kept_words, outputs, sample_weight=weights).coef_)

    def representation(self) -> Tensor:
        """Weights of the words or regions."""
        return self._weights


def similarity_of_kept(original: Tensor, changed: Tensor, kept: Tensor, **_: Any) -> float:
    """Weight of a version with some words or regions kept, (1, W), by its cosine distance from the whole."""
    distance = 1.0 - math.sqrt(float(kept.float().mean()))
    return math.exp(-(distance**2) / (2 * _KERNEL_WIDTH**2))
