"""LIME for text, by the ``lime`` package.

Ribeiro et al., "Why Should I Trust You?", KDD 2016, https://arxiv.org/abs/1602.04938.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from captum_iba._checks import check_flag, check_integer, check_number
from captum_iba.methods.task import AttributionTask, FloatArray, seed_of_text
from captum_iba.text.classifier import require_classes
from captum_iba.text.encoding import EncodedText, encode
from captum_iba.text.word_removal import keep_words, probabilities_of_texts

_REMOVED = "-"


def lime(
    task: AttributionTask, n_samples: int = 1000, bow: bool = False, kernel_width: float = 25.0
) -> list[FloatArray]:
    """Weights of a linear model of the target probability, fitted to the text with some of its words removed.

    ``LimeTextExplainer`` samples the words and fits the model. It gets a number for each word instead of the word, and
    the numbers that it keeps decide which tokens run. So LIME's words are those of :mod:`captum_iba.text.encoding`:
    every token belongs to one, also punctuation, emoji and the second text of a pair, and no text is tokenized again
    into other tokens.

    Args:
        n_samples (int): Number of versions of a text that run, itself included. Default: 1000.
        bow (bool): Whether words of the same spelling are removed together and get one weight, as by default in the
            package. Default: False.
        kernel_width (float): Width of the package's kernel, on 100 times the cosine distance. Default: 25, the
            package's.
    """
    check_integer("n_samples", n_samples, at_least=1)
    check_flag("bow", bow)
    check_number("kernel_width", kernel_width)
    scores = []
    for number, (encoded, target) in enumerate(zip(task.encoded, task.targets, strict=True)):
        scores.append(_explain(task, encoded, target, n_samples, bow, kernel_width))
        task.on_text(number)
    return scores


def _explain(
    task: AttributionTask, encoded: EncodedText, target: int, n_samples: int, bow: bool, kernel_width: float
) -> FloatArray:
    numbers, removable = _word_numbers(encoded, bow), encoded.removable_words

    def classify(versions: Sequence[str]) -> FloatArray:
        kept = [frozenset(int(number) for number in version.split() if number != _REMOVED) for version in versions]
        # A short text has fewer versions than LIME samples.
        row_of = {version: row for row, version in enumerate(dict.fromkeys(kept))}
        texts = [keep_words(encoded, {word for word in removable if numbers[word] in version}) for version in row_of]
        probabilities = probabilities_of_texts(task.classifier, texts, task.batch_size)
        per_version: FloatArray = probabilities[[row_of[version] for version in kept]].numpy()
        return per_version

    explainer = _lime_explainer(
        seed_of_text(task.seed, encoded),
        kernel_width=kernel_width,
        bow=bow,
        mask_string=_REMOVED,
        split_expression=r"\s+",
        feature_selection="none",
    )
    text = " ".join(str(numbers[word]) for word in removable)
    explanation = explainer.explain_instance(
        text, classify, labels=(target,), num_features=len(removable), num_samples=n_samples
    )
    weights = dict(explanation.local_exp[target])
    return np.array([0.0 if word is None else weights.get(numbers[word], 0.0) for word in encoded.words])


def _word_numbers(encoded: EncodedText, bow: bool) -> list[int]:
    """The number that LIME gets for each word; with ``bow``, words of the same spelling share one."""
    words = encoded.word_spans
    if not bow:
        return list(range(len(words)))
    # Byte-level tokenizers have other tokens for a word after a space, lower-casing ones the same tokens for several
    # spellings: words are the same if either agrees.
    ids = encoded.inputs["input_ids"]
    tokens = [tuple(ids[i] for i in word.positions) for word in words]
    spellings = [encoded.spelling(word.sequence, word.start, word.end) for word in words]
    groups = list(range(len(words)))
    for names in (tokens, spellings):
        first_with: dict[Any, int] = {}
        for i, name in enumerate(names):
            old, new = groups[i], groups[first_with.setdefault(name, i)]
            groups = [new if group == old else group for group in groups]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return [numbers[group] for group in groups]


def _lime_explainer(seed: int, **settings: Any) -> Any:
    try:
        from lime.lime_text import LimeTextExplainer
    except ImportError as error:
        raise ImportError('the package lime is missing; install it with pip install "captum-iba[text]".') from error
    return LimeTextExplainer(random_state=np.random.RandomState(seed), **settings)


# The published code joins the texts of a pair with this, which LIME does not remove.
_BETWEEN = " ****** "


def lime_as_released(task: AttributionTask) -> list[FloatArray]:
    """LIME as the paper's code uses it, handicaps included; for WordPiece tokenizers.

    It explains class 1 whatever the target, from 100 versions of the text (75 of a pair) with words removed, but not
    punctuation, and words of the same spelling together. A token has the weight of the word that it spells, alone or
    with the next token; all others, except special tokens, have the *highest* weight of all.
    """
    require_classes(task.classifier, "lime_as_released")
    return [_explain_as_released(task, encoded) for encoded in task.encoded]


def _explain_as_released(task: AttributionTask, encoded: EncodedText) -> FloatArray:
    text = encoded.text if encoded.pair is None else _BETWEEN.join([encoded.text, encoded.pair])
    if not re.search(r"\w", text):
        return np.zeros(len(encoded))  # no word to remove
    names = tuple(encoded.inputs)

    def classify(versions: Sequence[str]) -> FloatArray:
        texts = []
        for version in versions:
            first, _, second = version.partition(_BETWEEN)
            texts.append(
                encode(
                    task.classifier.tokenizer,
                    version if encoded.pair is None else first,
                    None if encoded.pair is None else second,
                    task.classifier.max_length,
                    names,
                )
            )
        probabilities: FloatArray = probabilities_of_texts(task.classifier, texts, task.batch_size).numpy()
        return probabilities

    explanation = _lime_explainer(seed_of_text(task.seed, encoded)).explain_instance(
        text, classify, labels=(1,), num_features=len(encoded), num_samples=100 if encoded.pair is None else 75
    )
    weights = {word.lower(): weight for word, weight in explanation.as_list(label=1)}
    return _matched_as_released(encoded.tokens, weights)


def _matched_as_released(tokens: Sequence[str], weights: dict[str, float]) -> FloatArray:
    """Weight of each token's word; the highest weight where no word matches."""
    scores = np.full(len(tokens), max(weights.values()))
    i = 0
    while i < len(tokens):
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        joined = tokens[i] + following.removeprefix("##")
        if tokens[i] in weights:
            scores[i] = weights[tokens[i]]
        elif following.startswith("##") and joined in weights:
            scores[i : i + 2] = weights[joined]
            i += 1
        i += 1
    return scores
