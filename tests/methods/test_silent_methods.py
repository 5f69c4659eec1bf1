"""Scores that depended on what else was computed, without a word."""

import warnings

import pytest
import torch
from transformers import BigBirdConfig, DebertaV2Config

from captum_iba.methods import attribute
from captum_iba.text.classifier import Classifier
from tests.text.conftest import SIZE, build

TEXTS = ["the film was good , the plot was bad", "not good", "a bad film"]


@pytest.mark.parametrize("name", ["kernel_shap", "captum_lime"])
@pytest.mark.filterwarnings("ignore:Some keys")
def test_scores_do_not_depend_on_the_other_texts_where_the_first_pass_draws_random_numbers(wordpiece, name):
    """BigBird makes layers anew, with random weights, at the first text that is short for it."""
    size = {**SIZE, "num_hidden_layers": 2}
    model = build(BigBirdConfig(**size, block_size=4, num_random_blocks=1, attention_type="block_sparse"))
    classifier = Classifier(model, wordpiece)
    together = attribute(name, classifier, TEXTS, target=0, n_samples=40)
    for text, scores in zip(TEXTS, together, strict=True):
        torch.manual_seed(0)
        (alone,) = attribute(name, classifier, text, target=0, n_samples=40)
        assert alone.tokens.tolist() == scores.tokens.tolist()


def test_too_few_steps_of_integrated_gradients_are_warned_of(wordpiece):
    """From embeddings of zeros, a normalization before all else changes its output at once."""
    model = build(DebertaV2Config(**{**SIZE, "num_hidden_layers": 2}, position_biased_input=False))
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = 0
    classifier = Classifier(model, wordpiece)
    with pytest.warns(UserWarning, match=r"ig: with n_steps=50 .* \(they are off by up to"):
        attribute("ig", classifier, TEXTS[0], target=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attribute("ig", classifier, TEXTS[0], target=0, baseline="mask")
