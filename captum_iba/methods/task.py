"""The task that every method gets, the scores that come of it, and tools that several methods use."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._checks import check_integer
from captum_iba._reading.wording import method_title, printable
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText, per_token
from captum_iba.text.layers import Block
from captum_iba.text.target import TextTarget
from captum_iba.visualization.colored_text import token_parts

FloatArray = npt.NDArray[np.float64]


def no_statistics(block: Block) -> None:
    """No dataset statistics, for any block."""


def no_progress(number: int) -> None:
    """Does nothing; the default callback."""


@dataclass(frozen=True)
class AttributionTask:
    """Texts of one classifier, and what a method shall explain of them.

    Attributes:
        classifier (Classifier): The model and its tokenizer.
        encoded (sequence of EncodedText): The texts, from :meth:`captum_iba.text.Classifier.encode`.
        targets (sequence of int): The class to explain of each text.
        seed (int): Seed of all that is random. Default: 0.
        batch_size (int): Largest number of rows of a forward pass: texts times steps, noise samples or perturbations.
            Default: 32.
        layer (int, str, sequence of them, or None): Block number from 1, or a module's name, for methods that use a
            layer; only ``iba`` takes several. Default: the method's own.
        statistics (callable): Function of a block that returns its dataset statistics, or None without.
            Default: none of any block.
        on_text (callable): Function that a method may call with the number of a text that it has scored, from 0, for a
            progress bar. Default: none.
        explained (sequence of TextTarget, optional): The target of each text, for heads other than a sequence
            classifier's. Default: None.

    Raises:
        ValueError: Another number of targets than of texts, or ``batch_size`` below 1.

    Examples::

        >>> AttributionTask(classifier, classifier.encode(["A wonderful film."], [None]), [1])
    """

    classifier: Classifier
    encoded: Sequence[EncodedText]
    targets: Sequence[int]
    seed: int = 0
    batch_size: int = 32
    layer: int | str | Sequence[int | str] | None = None
    statistics: Callable[[Block], FeatureStatistics | None] = no_statistics
    on_text: Callable[[int], None] = no_progress
    explained: Sequence[TextTarget] | None = None

    def __post_init__(self) -> None:
        if len(self.targets) != len(self.encoded):
            raise ValueError(
                f"targets has {len(self.targets)} entries, expected one for each of {len(self.encoded)} texts"
            )
        check_integer("batch_size", self.batch_size, at_least=1)


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one text.

    Attributes:
        method (str): Name of the method.
        target (int): The class that was explained; of other heads the column of ``Classifier.logits``.
        encoded (EncodedText): The text, with its tokens and words.
        tokens (array): Score of each token, (T,); 0 for special tokens, and for what is explained.
        words (array): Score of each word, (W,): the sum over its tokens, or for methods that score words (LIME) the
            score that all its tokens have.
        signed (bool): Whether negative scores mean that a token speaks against the target. Otherwise no score is
            negative.
        seconds (float): Time taken, the mean over the texts that were scored together.
        explained (TextTarget or None): The target of a head other than a sequence classifier's.
    """

    method: str
    target: int
    encoded: EncodedText
    tokens: FloatArray
    words: FloatArray
    signed: bool
    seconds: float
    explained: TextTarget | None = None

    def __str__(self) -> str:
        leading = ", ".join(f"{printable(word)} {score}" for word, score in token_parts(self).largest)
        return f"{method_title(self.method)}: {leading}"


def seed_of_text(seed: int, encoded: EncodedText) -> int:
    """Seed of one text, 32 bits: it follows from the task's seed and the text alone, whatever else is in the batch."""
    digest = hashlib.sha256(f"{seed}:{len(encoded.text)}:".encode())
    for part in (encoded.text, encoded.pair):
        digest.update(b"-" if part is None else part.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest()[:4], "big")


@contextmanager
def random_states_restored() -> Iterator[None]:
    """Context after which the global random states of Python and NumPy are as before; ModuleGuard restores torch's."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def seed_everything(seed: int) -> None:
    """Seed all global random states, which Captum uses; :func:`score` restores them."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def reference_token(classifier: Classifier, name: str = "mask") -> int:
    """Id of the token ``"pad"``, or ``"mask"`` ([MASK], or else the unknown token, or else padding), to replace others.

    Raises:
        ValueError: Another name, or no such token but the one that ends each text for the model.
    """
    if name not in ("mask", "pad"):
        raise ValueError(f"baseline is {name!r}, expected 'mask' or 'pad'")
    if name == "mask":
        for token_id in (classifier.tokenizer.mask_token_id, classifier.tokenizer.unk_token_id):
            if isinstance(token_id, int):
                return token_id
        if classifier.ends_in_padding:
            raise ValueError(
                "tokenizer: it has no [MASK] and no unknown token, and its padding token ends every text, so that the "
                "model would look for the end elsewhere; set tokenizer.unk_token, or choose a method that removes "
                "tokens, such as lime."
            )
    return classifier.pad_id


def reference_texts(classifier: Classifier, encoded: list[EncodedText], ids: Tensor, name: str = "mask") -> Tensor:
    """Ids of texts, (B, T), with the reference token at every removable position; special tokens and padding stay."""
    removable = per_token([text.removable for text in encoded], False, ids.device)
    return ids.masked_fill(removable, reference_token(classifier, name))


def random_baseline(task: AttributionTask) -> list[FloatArray]:
    """Uniform random numbers from 0 to 1, the baseline that every method must beat."""
    return [np.random.default_rng(seed_of_text(task.seed, encoded)).random(len(encoded)) for encoded in task.encoded]
