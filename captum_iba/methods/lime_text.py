"""LIME for text, by the ``lime`` package.

Ribeiro et al., "Why Should I Trust You?", KDD 2016, https://arxiv.org/abs/1602.04938.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from captum_iba.methods.checks import check_count, check_flag, check_positive
from captum_iba.methods.randomness import seed_of
from captum_iba.methods.rows import keep_words, run
from captum_iba.methods.task import FloatArray, Task
from captum_iba.text.encoding import EncodedText, encode

_REMOVED = "-"


def lime(task: Task, n_samples: int = 1000, bow: bool = False, kernel_width: float = 25.0) -> list[FloatArray]:
    """The weights of a linear model of the target's probability, fitted to the text with words left out.

    ``LimeTextExplainer`` draws the words and fits the model. It is shown a number for each word instead of the word,
    and the numbers that it keeps say which tokens run. So LIME's words are those of
    :mod:`captum_iba.text.encoding`, found by the tokens' characters in the text: every token belongs to one, also
    punctuation, emoji and the second text of a pair, and no text is tokenised anew with its words in other pieces.

    Args:
        task (Task): The texts.
        n_samples (int): How many versions of a text run, itself included. Default: 1000.
        bow (bool): Whether words spelled the same are left out together and get one weight, as the package does
            unless told otherwise. Default: False, each by itself.
        kernel_width (float): Of the package's kernel, on 100 times the cosine distance. Default: 25, the package's.

    Returns:
        list of array: for each token the weight of its word, (T,).
    """
    check_count("n_samples", n_samples)
    check_flag("bow", bow)
    check_positive("kernel_width", kernel_width)
    return [
        _explain(task, encoded, target, n_samples, bow, kernel_width)
        for encoded, target in zip(task.encoded, task.targets, strict=True)
    ]


def _explain(
    task: Task, encoded: EncodedText, target: int, n_samples: int, bow: bool, kernel_width: float
) -> FloatArray:
    kinds = _kinds(encoded, bow)

    def classify(versions: Sequence[str]) -> FloatArray:
        shown = [frozenset(int(number) for number in version.split() if number != _REMOVED) for version in versions]
        # Of a short text there are fewer versions than LIME draws.
        different = {kept: row for row, kept in enumerate(dict.fromkeys(shown))}
        rows = [keep_words(encoded, {word for word, kind in enumerate(kinds) if kind in kept}) for kept in different]
        found = run(task.classifier, rows, task.batch_size)
        each: FloatArray = found[[different[kept] for kept in shown]].numpy()
        return each

    explainer = _explainer(
        seed_of(task.seed, encoded),
        kernel_width=kernel_width,
        bow=bow,
        mask_string=_REMOVED,
        split_expression=r"\s+",
        feature_selection="none",
    )
    text = " ".join(map(str, kinds))
    found = explainer.explain_instance(text, classify, labels=(target,), num_features=len(kinds), num_samples=n_samples)
    weights = dict(found.local_exp[target])
    return np.array([0.0 if word is None else weights[kinds[word]] for word in encoded.words])


def _kinds(encoded: EncodedText, bow: bool) -> list[int]:
    """For each word the number that stands for it; words spelled the same share one if ``bow``."""
    pieces: dict[int, list[int]] = {}
    for i, word in enumerate(encoded.words):
        if word is not None:
            pieces.setdefault(word, []).append(i)
    if not bow:
        return list(range(len(pieces)))
    ids = encoded.inputs["input_ids"]
    # Byte-level tokenizers have other tokens for a word behind a space, lower-casing ones the same for other spellings.
    names: list[tuple[tuple[int, ...], str]] = []
    for word in sorted(pieces):
        first, last = pieces[word][0], pieces[word][-1]
        spelled = encoded.spelling(encoded.sequences[first], encoded.spans[first][0], encoded.spans[last][1])
        names.append((tuple(ids[i] for i in pieces[word]), spelled))
    kinds = list(range(len(names)))
    for place in (0, 1):
        first_of: dict[Any, int] = {}
        for i, name in enumerate(names):
            kind, wanted = kinds[i], kinds[first_of.setdefault(name[place], i)]
            kinds = [wanted if one == kind else one for one in kinds]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return [numbers[kind] for kind in kinds]


def _explainer(seed: int, **settings: Any) -> Any:
    try:
        from lime.lime_text import LimeTextExplainer
    except ImportError as error:
        raise ImportError('the package lime is missing; install it with pip install "captum-iba[text]".') from error
    return LimeTextExplainer(random_state=np.random.RandomState(seed), **settings)


# What the published code puts between the texts of a pair, which LIME then leaves alone.
_BETWEEN = " ****** "


def lime_as_released(task: Task) -> list[FloatArray]:
    """LIME as the paper's code uses it, handicaps included; for WordPiece tokenizers.

    It explains class 1 whatever the target, from 100 versions of the text (75 of a pair), without words but with
    punctuation, words spelled the same together. A token has the weight of the word that it spells, or that it
    spells with the one token behind it; all others, special ones aside, have the *highest* weight of all.

    Args:
        task (Task): The texts.

    Returns:
        list of array: (T,), one a text.
    """
    return [_explain_as_released(task, encoded) for encoded in task.encoded]


def _explain_as_released(task: Task, encoded: EncodedText) -> FloatArray:
    text = encoded.text if encoded.pair is None else _BETWEEN.join([encoded.text, encoded.pair])
    if not re.search(r"\w", text):
        return np.zeros(len(encoded))  # no word to leave out
    names = tuple(encoded.inputs)

    def classify(versions: Sequence[str]) -> FloatArray:
        rows = []
        for version in versions:
            first, _, second = version.partition(_BETWEEN)
            rows.append(
                encode(
                    task.classifier.tokenizer,
                    version if encoded.pair is None else first,
                    None if encoded.pair is None else second,
                    task.classifier.max_length,
                    names,
                )
            )
        found: FloatArray = run(task.classifier, rows, task.batch_size).numpy()
        return found

    explanation = _explainer(seed_of(task.seed, encoded)).explain_instance(
        text, classify, labels=(1,), num_features=len(encoded), num_samples=100 if encoded.pair is None else 75
    )
    weights = {word.lower(): weight for word, weight in explanation.as_list(label=1)}
    return _matched_as_released(encoded.tokens, weights)


def _matched_as_released(tokens: Sequence[str], weights: dict[str, float]) -> FloatArray:
    """For each token the weight of its word; the highest weight where no word matches."""
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
