"""The methods on a trained model: a word that decides is found."""

import numpy as np
import pytest

from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.methods import attribute, find_method
from captum_iba.text import Classifier
from captum_iba.text.classifier import load_classifier

TEXT = "We went to see this film on a Friday evening, and it was terrible."
SENSIBLE = [
    *("iba", "lime", "ig", "gradient_shap", "captum_lime", "kernel_shap", "leave_one_out", "conductance"),
    *("attention_rollout", "attn_lrp"),
]


@pytest.fixture(scope="module")
def classifier():
    return Classifier(*load_classifier(embedded_model_path()))


def rank(scores, word):
    """How many words score higher."""
    encoded = scores.encoded
    spelled = {}
    for number, (start, end), sequence in zip(encoded.words, encoded.spans, encoded.sequences, strict=True):
        if number is not None:
            spelled[number] = spelled.get(number, "") + encoded.spelling(sequence, start, end)
    number = next(number for number, spelling in spelled.items() if spelling == word)
    return int((scores.words > scores.words[number]).sum())


@pytest.mark.parametrize("name", SENSIBLE)
def test_the_word_that_decides_has_the_highest_score(classifier, name):
    few = {"n_samples": 300} if name in ("lime", "captum_lime", "kernel_shap") else {}
    scores = attribute(
        name,
        classifier,
        TEXT,
        target="negative",
        layer=1 if find_method(name).uses_layer else None,
        statistics=lambda block: embedded_statistics(block.index),
        **few,
    )
    assert rank(scores[0], "terrible") == 0


def test_the_random_baseline_does_not_find_it(classifier):
    ranks = [rank(attribute("random", classifier, TEXT, seed=seed)[0], "terrible") for seed in range(20)]
    assert np.mean(ranks) > 3


@pytest.mark.parametrize("name", ["ig", "leave_one_out", "lime"])
def test_what_speaks_for_one_class_speaks_against_the_other(classifier, name):
    few = {"n_samples": 300} if name == "lime" else {}
    one, other = (attribute(name, classifier, TEXT, target=target, **few)[0] for target in (0, 1))
    assert np.corrcoef(one.words, other.words)[0, 1] < -0.9
