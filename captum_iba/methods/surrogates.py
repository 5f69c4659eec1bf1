"""Captum's methods that fit a linear model to the text with some of its words replaced by a stand-in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from captum.attr import KernelShap, Lime
from torch import Tensor

from captum_iba.methods.ablation import OrdinaryTokens, attribute_each
from captum_iba.methods.checks import check_count
from captum_iba.methods.randomness import plant, seed_of
from captum_iba.methods.task import FloatArray, Task
from captum_iba.text.encoding import EncodedText

# The lime package's: its distance is 100 times this one, its width 25.
_KERNEL_WIDTH = 0.25


def captum_lime(task: Task, n_samples: int = 1000) -> list[FloatArray]:
    """The weights of a linear model of the target's probability, with words replaced by [MASK] (Captum's Lime).

    Each word is replaced with probability 1/2. Kernel and ridge regression are those of the ``lime`` package:
    Captum's own kernel compares token ids as if they were quantities, and its Lasso gives most words 0.

    Args:
        task (Task): The texts.
        n_samples (int): How many versions of a text run. Default: 1000.

    Returns:
        list of array: for each token the weight of its word, (T,).
    """
    check_count("n_samples", n_samples)

    def attribute(encoded: EncodedText, tokens: OrdinaryTokens) -> Tensor:
        plant(seed_of(task.seed, encoded))
        explainer = Lime(tokens.probability, interpretable_model=_Ridge(), similarity_func=_similarity)
        weights: Tensor = explainer.attribute(tokens.ids, **_arguments(task, tokens, n_samples))
        return weights

    return attribute_each(task, attribute)


def kernel_shap(task: Task, n_samples: int = 1000) -> list[FloatArray]:
    """Shapley values of the words for the target's probability, with words replaced by [MASK] (Captum's KernelShap).

    Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017,
    https://arxiv.org/abs/1705.07874.

    Args:
        task (Task): The texts.
        n_samples (int): How many versions of a text run; fewer than it has words give no reliable values.
            Default: 1000.

    Returns:
        list of array: for each token the value of its word, (T,).
    """
    check_count("n_samples", n_samples)

    def attribute(encoded: EncodedText, tokens: OrdinaryTokens) -> Tensor:
        if int(tokens.words.max()) == 0:
            # Captum has no sizes of subsets to draw from; the one word has it all.
            difference = tokens.probability(tokens.ids) - tokens.probability(tokens.stand_ins)
            return difference[:, None].expand_as(tokens.ids)
        plant(seed_of(task.seed, encoded))
        values: Tensor = KernelShap(tokens.probability).attribute(tokens.ids, **_arguments(task, tokens, n_samples))
        return values

    return attribute_each(task, attribute)


class _Ridge:
    """The linear model as Captum's Lime wants it."""

    def __init__(self) -> None:
        self._weights = torch.zeros(0)

    def fit(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Fit to kept words, probabilities and weights."""
        from sklearn.linear_model import Ridge

        kept, outputs, weights = (torch.cat(column).cpu().numpy() for column in zip(*batches, strict=True))
        self._weights = torch.from_numpy(Ridge(alpha=1.0).fit(kept, outputs, sample_weight=weights).coef_)

    def representation(self) -> Tensor:
        """A weight for each word."""
        return self._weights


def _similarity(original: Tensor, changed: Tensor, kept: Tensor, **_: Any) -> float:
    """How much a version with these words (1, W) counts, by its cosine distance from the whole text."""
    distance = 1.0 - math.sqrt(float(kept.float().mean()))
    return math.exp(-(distance**2) / (2 * _KERNEL_WIDTH**2))


def _arguments(task: Task, tokens: OrdinaryTokens, n_samples: int) -> dict[str, Any]:
    return {
        "baselines": tokens.stand_ins,
        "feature_mask": tokens.words,
        "n_samples": n_samples,
        "perturbations_per_eval": task.batch_size,
    }
