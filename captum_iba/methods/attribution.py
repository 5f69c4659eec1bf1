"""Texts in, scores out, for any method."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.methods.randomness import own_randomness
from captum_iba.methods.registry import find
from captum_iba.methods.task import FloatArray, Scores, Task, no_statistics
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.identity import classifier_fingerprint
from captum_iba.text.inputs import check_texts
from captum_iba.text.layer_statistics import check_model
from captum_iba.text.layers import Block
from captum_iba.text.targets import spread_targets

StatisticsSource = FeatureStatistics | Sequence[FeatureStatistics] | Callable[[Block], FeatureStatistics | None]


def attribute(
    name: str,
    classifier: Classifier,
    texts: str | Sequence[str],
    pairs: str | Sequence[str] | None = None,
    target: Any = None,
    *,
    layer: int | str | Sequence[int | str] | None = None,
    statistics: StatisticsSource | None = None,
    seed: int = 0,
    batch_size: int = 32,
    **options: Any,
) -> list[Scores]:
    """Score the tokens and words of texts by a method.

    What a text gets does not depend on the texts beside it. The model and the global random states stay as they
    are.

    Args:
        name (str): The method: one of :func:`names`, with ``:abs`` behind it by magnitude.
        classifier (Classifier): The model and its tokenizer.
        texts (str or sequence of str): One text, or several.
        pairs (str, sequence of str or None): The second text of each. Default: None.
        target (int, str, None, or one per text): The class to explain, by number or label; None is the predicted
            class. Default: None.
        layer (int, str, sequence of them, or None): For methods that look into the model: block number from 1, or
            a module's name; only ``iba`` takes several. None leaves it to the method. Default: None.
        statistics (FeatureStatistics, sequence of them, callable or None): Of the layers over a data set, for
            ``iba``, or a function that gives them for a :class:`captum_iba.text.Block`. Default: None.
        seed (int): Of all that is random. Default: 0.
        batch_size (int): The most rows of one pass of the model, texts times steps, draws or perturbations.
            Default: 32.
        **options: The method's own.

    Returns:
        list of Scores: one a text, in their order.

    Raises:
        ValueError: No such method, text, class, layer or option out of range; the message names it.
        TypeError: Something that is not a string, or an option that the method does not have.

    Examples::

        >>> classifier = Classifier(model, tokenizer)
        >>> scores = attribute("ig", classifier, ["A wonderful film."], target="positive")[0]
        >>> dict(zip(scores.encoded.tokens, scores.tokens))
    """
    find(name)  # an unknown method is said before anything runs
    each, others = check_texts(texts, pairs)
    encoded = classifier.encode(each, others)
    task = Task(
        classifier,
        encoded,
        _targets(classifier, encoded, spread_targets(target, len(each), classifier.labels), batch_size),
        seed,
        batch_size,
        layer,
        _lookup(statistics, classifier),
    )
    return scores_of(name, task, **options)


def scores_of(name: str, task: Task, **options: Any) -> list[Scores]:
    """Score the tokens and words of encoded texts by a method.

    Args:
        name (str): As for :func:`attribute`.
        task (Task): The texts and their targets; without texts, only the options are checked.
        **options: The method's own.

    Returns:
        list of Scores: one a text, in their order.

    Raises:
        ValueError: No such method, an option out of range, or a method that gives something else than one finite
            number a token, or negative ones though it has no sign.
        TypeError: An option that the method does not have.
    """
    method = find(name)
    classifier = task.classifier
    start = time.perf_counter()
    with (
        ModuleGuard() as guard,
        own_randomness(classifier.device),
        torch.inference_mode(False),
        torch.enable_grad(),
        classifier.padding_known(),
    ):
        for module in classifier.model.modules():
            guard.take(module)
        found = method(task, **options)
    seconds = (time.perf_counter() - start) / max(len(task.encoded), 1)
    if len(found) != len(task.encoded):
        raise ValueError(f"method: {name!r} gave scores of {len(found)} texts, expected {len(task.encoded)}.")
    scores = []
    for encoded, target, values in zip(task.encoded, task.targets, found, strict=True):
        tokens = _of_ordinary(name, encoded, values)
        if not method.signed and (tokens < 0).any():
            raise ValueError(f"method: {name!r} gave negative scores, but is registered with signed=False.")
        scores.append(
            Scores(name, target, encoded, tokens, _of_words(encoded, tokens, method.of_words), method.signed, seconds)
        )
    return scores


def _of_ordinary(name: str, encoded: EncodedText, values: Any) -> FloatArray:
    tokens = np.array(values, dtype=np.float64)
    if tokens.shape != (len(encoded),):
        raise ValueError(
            f"method: {name!r} gave scores of shape {tokens.shape}, expected ({len(encoded)},), one a token."
        )
    tokens[list(encoded.special)] = 0.0
    if not np.isfinite(tokens).all():
        raise ValueError(f"method: {name!r} gave NaN or infinite scores for the text {encoded.text[:60]!r}.")
    return tokens


def _of_words(encoded: EncodedText, tokens: FloatArray, alike: bool) -> FloatArray:
    """The sum over the tokens of each word, or their common score if they are ``alike``."""
    numbers = [(word, i) for i, word in enumerate(encoded.words) if word is not None]
    words, positions = (list(column) for column in zip(*numbers, strict=True))
    sums: FloatArray = np.bincount(words, weights=tokens[positions]).astype(np.float64)
    return sums / np.bincount(words) if alike else sums


def _targets(
    classifier: Classifier, encoded: Sequence[EncodedText], wanted: Sequence[int | None], batch_size: int
) -> list[int]:
    """The classes wanted, and the predicted ones where none is."""
    targets = {i: target for i, target in enumerate(wanted) if target is not None}
    open_ones = [i for i, target in enumerate(wanted) if target is None]
    with classifier.padding_known():
        for batch in classifier.batches([len(encoded[i]) for i in open_ones], batch_size):
            rows = [open_ones[i] for i in batch]
            predicted = classifier.probabilities(classifier.tensors([encoded[i] for i in rows])).argmax(-1)
            targets.update(zip(rows, predicted.tolist(), strict=True))
    return [targets[i] for i in range(len(wanted))]


def _lookup(statistics: StatisticsSource | None, classifier: Classifier) -> Callable[[Block], FeatureStatistics | None]:
    if statistics is None:
        return no_statistics
    if callable(statistics):
        return statistics
    given = [statistics] if isinstance(statistics, FeatureStatistics) else list(statistics)
    if any(one.model is not None for one in given):
        check_model(given, classifier_fingerprint(classifier), classifier.name)

    def of_block(block: Block) -> FeatureStatistics:
        for one in given:
            if one.layer in (None, block.key):
                return one
        raise ValueError(f"statistics: none are of layer {block.key!r}, only of {[one.layer for one in given]}.")

    return of_block
