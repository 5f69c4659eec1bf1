"""Gradients choose the words of a long text that a check deletes alone."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import LayerGradientXActivation

from captum_iba._reading.rows import SPEAKS_AGAINST
from captum_iba._reading.thresholds import ALL_DELETED_ALONE
from captum_iba._reading.words import ranked_words
from captum_iba.text.gradients import gradient_x_activation_of_words
from captum_iba.text.word_check import _with_single_deletions, with_check_by_removal
from captum_iba.text.word_removal import TextRemoval

LONG = "The story is dull, the acting is bad and the plot is a mess that bored me for two hours. " * 4
OPPOSED = f"{LONG} And yet it is a wonderful and touching film. {LONG}"


def test_they_are_those_of_captum_summed_over_layers_and_the_tokens_of_a_word(film_explainer):
    classifier, blocks = film_explainer.classifier, film_explainer.layers
    (encoded,) = classifier.encode(["An unwatchably dull film, and yet touching."], [None])
    assert len(encoded) > len(encoded.word_spans) + 2  # some word has several tokens
    by_captum = LayerGradientXActivation(
        lambda *inputs: classifier.logits(*inputs).double().softmax(-1)[:, 0].logit(),
        [block.module for block in blocks],
    ).attribute(tuple(classifier.tensors([encoded]).values()))
    of_tokens = sum((one[0] if isinstance(one, tuple) else one)[0].double().sum(-1) for one in by_captum).detach()
    expected = np.zeros(len(encoded.word_spans))
    for word, value in zip(encoded.words, of_tokens.tolist(), strict=True):
        if word is not None:
            expected[word] += value
    found = gradient_x_activation_of_words(classifier, encoded, blocks, 0)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5) and np.abs(found).max() > 0.01


def test_they_leave_the_model_as_it_was(film_explainer):
    classifier = film_explainer.classifier
    (encoded,) = classifier.encode(["A dull film."], [None])
    before = copy.deepcopy(classifier.model.state_dict())
    frozen = [parameter.requires_grad for parameter in classifier.model.parameters()]
    with torch.no_grad():
        once = gradient_x_activation_of_words(classifier, encoded, film_explainer.layers, 0)
    for parameter in classifier.model.parameters():
        parameter.requires_grad_(False)
    try:
        again = gradient_x_activation_of_words(classifier, encoded, film_explainer.layers, 0)
    finally:
        for parameter, was in zip(classifier.model.parameters(), frozen, strict=True):
            parameter.requires_grad_(was)
    assert once == pytest.approx(again, rel=1e-5)
    assert all(parameter.grad is None for parameter in classifier.model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in classifier.model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in classifier.model.modules())


def test_a_word_against_the_class_is_found_in_a_long_text(film_explainer):
    """ "not", without which 52.6% became 78.7%, was in no list: a text of 78 words was too long to try it."""
    result = film_explainer.explain(OPPOSED, target="negative", check=True)
    (encoded,) = film_explainer.classifier.encode([OPPOSED], [None])
    rows = [row for of in ranked_words(result) for row in of]
    deleted = [row for row in rows if row.is_deleted]
    assert len(rows) > 2 * ALL_DELETED_ALONE and ALL_DELETED_ALONE <= len(deleted) <= ALL_DELETED_ALONE + 8
    names = {row.name for row in deleted}
    assert {"wonderful", "touching", "yet", "dull"} <= names
    every = set(range(len(rows)))
    removal = TextRemoval(film_explainer.classifier, encoded, 8)
    for row in deleted[:3] + deleted[-3:]:
        (probability,) = removal.probabilities([every - {row.number}])
        assert row.without == pytest.approx(float(probability[result.target]), abs=1e-6)
    highest = max(deleted, key=lambda row: row.without)
    assert highest.name in ("wonderful", "touching", "yet", "film")
    restored = type(result).from_dict(result.to_dict())
    assert restored.without == result.without and str(restored) == str(result)


def test_short_texts_and_known_probabilities_need_no_gradients(film_explainer):
    classifier, blocks = film_explainer.classifier, film_explainer.layers
    short = film_explainer.explain("A dull film.")
    (encoded,) = classifier.encode(["A dull film."], [None])
    assert _with_single_deletions(TextRemoval(classifier, encoded, 8), short, blocks) is short
    # What the order by removal has measured is not deleted again, and kept.
    long = film_explainer.explain(OPPOSED, target="negative")
    (encoded,) = classifier.encode([OPPOSED], [None])
    marked = replace(long, without=tuple(None if value is None else -1.0 for value in long.without))
    removal = TextRemoval(classifier, encoded, 8)
    found = _with_single_deletions(removal, marked, blocks)
    measured = [i for i, value in enumerate(long.without) if value is not None]
    assert measured and all(found.without[i] == -1.0 for i in measured)
    # Without an order, too.
    bits = film_explainer.explain(OPPOSED, target="negative", rerank=0)
    tried = with_check_by_removal(removal, bits, 0, blocks)
    assert sum(value is not None for value in tried.without) == ALL_DELETED_ALONE and not tried.removal_order
    assert SPEAKS_AGAINST not in {row.relation for row in ranked_words(bits)[1]}
