"""What every method gets, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.methods.checks import check_count
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.layers import Block

FloatArray = npt.NDArray[np.float64]


def no_statistics(block: Block) -> None:
    """The answer where no data set was looked at, whatever the block."""


@dataclass(frozen=True)
class Task:
    """Texts of one classifier, and what about them is to be explained.

    Attributes:
        classifier (Classifier): The model and its tokenizer.
        encoded (sequence of EncodedText): The texts, as :meth:`Classifier.encode` gives them.
        targets (sequence of int): For each text the class that is explained, by every method alike.
        seed (int): Of all that is random. Default: 0.
        batch_size (int): The most rows of one pass of the model, texts times steps, draws or perturbations.
            Default: 32.
        layer (int, str, sequence of them, or None): For methods that look into the model: block number from 1, or
            a module's name; only ``iba`` takes several. None leaves it to the method. Default: None.
        statistics (callable): Gives the statistics over a data set of a block, or None where there are none.
            Default: none of any block.

    Raises:
        ValueError: Another number of targets than of texts, or ``batch_size`` below 1.
    """

    classifier: Classifier
    encoded: Sequence[EncodedText]
    targets: Sequence[int]
    seed: int = 0
    batch_size: int = 32
    layer: int | str | Sequence[int | str] | None = None
    statistics: Callable[[Block], FeatureStatistics | None] = no_statistics

    def __post_init__(self) -> None:
        if len(self.targets) != len(self.encoded):
            raise ValueError(
                f"targets: expected one for each of the {len(self.encoded)} texts, got {len(self.targets)}."
            )
        check_count("batch_size", self.batch_size)


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one text.

    Attributes:
        method (str): The name of the method.
        target (int): The class that was explained.
        encoded (EncodedText): The text, with its tokens and words.
        tokens (array): A score for each token, (T,); 0 for special tokens.
        words (array): A score for each word, (W,): the sum over its tokens, or for methods that score words (LIME)
            the score that all its tokens have.
        signed (bool): Whether negative scores say that a token speaks against the target. Otherwise no score is
            negative, and they say only how much a token matters.
        seconds (float): Time taken, the mean over the texts that were scored together.
    """

    method: str
    target: int
    encoded: EncodedText
    tokens: FloatArray
    words: FloatArray
    signed: bool
    seconds: float
