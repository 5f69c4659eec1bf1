"""Methods on a classifier whose attributions can be worked out on paper."""

import itertools
import math

import numpy as np
import pytest
from lime.lime_text import LimeTextExplainer

from captum_iba.methods import AttributionTask, attribute, find_method, score
from captum_iba.methods.lime import _matched_as_released
from captum_iba.methods.task import seed_of_text
from captum_iba.text import Classifier
from tests.text.bag_of_tokens import WORTH, bag_of_tokens

TEXTS = ["the film was good", "not good, dull plot", "unbelievable"]


@pytest.fixture(scope="module")
def classifier(wordpiece):
    return Classifier(bag_of_tokens(), wordpiece)


def probability(worth, target=1):
    """Of a class, for tokens that are worth this much together."""
    return 1 / (1 + math.exp(-1.5 * worth if target == 1 else 1.5 * worth))


def worths(tokens):
    return np.array([WORTH.get(token, 0.0) for token in tokens])


@pytest.mark.parametrize(("target", "share"), [(1, 1.0), (0, -0.5)])
@pytest.mark.parametrize("name", ["ig", "gradient_x_activation", "gradient_shap", "conductance", "grad_cam"])
def test_gradient_methods_give_each_token_what_it_adds_to_the_logit(classifier, name, target, share):
    layer = 1 if find_method(name).uses_layer else None
    for scores in attribute(name, classifier, TEXTS, target=target, layer=layer):
        assert np.allclose(scores.tokens, share * worths(scores.encoded.tokens), atol=1e-5)
        assert scores.target == target and scores.signed


def test_saliency_is_the_length_of_the_gradient(classifier):
    scores = attribute("saliency", classifier, TEXTS[0], target=1)[0]
    assert scores.tokens == pytest.approx([0, 1, 1, 1, 1, 0], rel=1e-5, abs=0)


def test_ig_as_released_explains_class_0_whatever_the_target(classifier):
    """Its output is the probability: from an empty text (1/2) to this one, all by the one token that counts."""
    for target in (0, 1):
        scores = attribute("ig_as_released", classifier, "the film was good", target=target)[0]
        assert np.allclose(scores.tokens[1:4], 0)
        assert scores.tokens[4] == pytest.approx(probability(1.5, 0) - 0.5, abs=1e-3)


@pytest.mark.parametrize("target", [0, 1])
def test_leave_one_out(classifier, target):
    scores = attribute("leave_one_out", classifier, "not good, dull plot", target=target)[0]
    tokens = worths(scores.encoded.tokens)
    expected = [probability(tokens.sum(), target) - probability(tokens.sum() - worth, target) for worth in tokens]
    assert np.allclose(scores.tokens, expected, atol=1e-6)


def test_leave_one_out_tells_tokens_apart_where_the_model_is_all_but_certain(classifier):
    """In float32 the probability is 1, whichever token is gone."""
    scores = attribute("leave_one_out", classifier, "good " * 12 + "like", target=1)[0]
    assert 0 < scores.tokens[-2] < scores.tokens[1]


def test_occlusion_is_the_mean_over_the_windows_around_a_token(classifier):
    scores = attribute("occlusion", classifier, "the film was good", target=1)[0]
    # Windows: the film was; film was good.
    lost = probability(1.5) - 0.5
    assert np.allclose(scores.tokens, [0, 0, lost / 2, lost / 2, lost, 0], atol=1e-6)


@pytest.mark.parametrize("text", ["good", "good film"])
def test_a_text_shorter_than_the_window_is_one_window(classifier, text):
    scores = attribute("occlusion", classifier, text, target=1)[0]
    assert np.allclose(scores.tokens[1:-1], probability(1.5) - 0.5, atol=1e-6)


def test_kernel_shap_gives_shapley_values(classifier):
    scores = attribute("kernel_shap", classifier, "not good, dull plot", target=1, n_samples=3000)[0]
    words = np.array([WORTH.get(word, 0.0) for word in ("not", "good", ",", "dull", "plot")])
    expected = np.zeros(5)
    orders = list(itertools.permutations(range(5)))
    for order in orders:
        for i, word in enumerate(order):
            before, after = words[list(order[:i])].sum(), words[list(order[: i + 1])].sum()
            expected[word] += (probability(after) - probability(before)) / len(orders)
    assert np.allclose(scores.words, expected, atol=0.02)
    assert scores.words.sum() == pytest.approx(probability(words.sum()) - 0.5, abs=1e-3)


def test_kernel_shap_of_a_single_word_is_all_of_the_difference(classifier):
    scores = attribute("kernel_shap", classifier, "unbelievable", target=1)[0]
    assert scores.words == pytest.approx([probability(0.0) - 0.5], abs=1e-5)
    scores = attribute("kernel_shap", classifier, "good", target=1)[0]
    assert scores.words == pytest.approx([probability(1.5) - 0.5], abs=1e-5)


@pytest.mark.parametrize("name", ["lime", "captum_lime", "kernel_shap"])
def test_tokens_of_a_word_have_its_weight(classifier, name):
    """As the words were left out whole; the model alone tells their tokens apart."""
    scores = attribute(name, classifier, "unlike good", target=1, n_samples=200)[0]
    pieces = [i for i, word in enumerate(scores.encoded.words) if word == 0]
    assert len(pieces) > 1
    assert np.allclose(scores.tokens[pieces], scores.words[0])


def test_lime_is_that_of_the_package(classifier):
    """Where LIME's words are the tokenizer's, the package alone, on the text itself, finds the same weights."""
    text = "the good film was dull, not bad"
    scores = attribute("lime", classifier, text, target=1, n_samples=300, bow=True, seed=3)[0]
    plain = text.replace(",", "")
    unpunctuated = attribute("lime", classifier, plain, target=1, n_samples=300, bow=True, seed=3)[0]

    def classify(versions):
        return np.array([[probability(w, 0), probability(w)] for w in (worths(v.split()).sum() for v in versions)])

    random_state = np.random.RandomState(seed_of_text(3, unpunctuated.encoded))
    explanation = LimeTextExplainer(random_state=random_state).explain_instance(
        plain, classify, labels=(1,), num_features=7, num_samples=300
    )
    package = dict(explanation.as_list(label=1))
    assert np.allclose(unpunctuated.words, [package[word] for word in plain.split()], atol=1e-5)
    assert len(scores.words) == 8  # the comma has a score too


def test_lime_and_repeated_words(classifier):
    text = "bad film, bad plot"
    each = attribute("lime", classifier, text, target=0)[0].words
    assert each[0] == pytest.approx(each[3], rel=0.2) and each[0] != each[3]
    together = attribute("lime", classifier, text, target=0, bow=True)[0].words
    assert together[0] == together[3]
    assert all(abs(word) < 0.05 < each[0] for word in (*each[[1, 2, 4]], *together[[1, 2, 4]]))


def test_lime_as_released_explains_class_1_whatever_the_target(classifier):
    for target in (0, 1):
        scores = attribute("lime_as_released", classifier, "the film was good, not dull", target=target)[0]
        tokens = dict(zip(scores.encoded.tokens, scores.tokens, strict=True))
        assert tokens["good"] > 0 > tokens["dull"]
        assert tokens[","] == tokens["good"]  # the highest, since LIME has no punctuation


def test_matching_as_released():
    tokens = ["[CLS]", "a", "un", "##able", "don", "'", "un", "##believ", "##able", "[SEP]"]
    weights = {"a": 0.1, "unable": -0.3, "don": 0.2}
    assert _matched_as_released(tokens, weights).tolist() == [0.2, 0.1, -0.3, -0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]


def test_random_scores_follow_from_seed_and_text_alone(classifier):
    first = attribute("random", classifier, TEXTS, target=1)
    assert np.array_equal(first[1].tokens, attribute("random", classifier, TEXTS[1], target=0)[0].tokens)
    assert not np.array_equal(first[1].tokens, attribute("random", classifier, TEXTS[1], target=0, seed=1)[0].tokens)
    pairs = attribute("random", classifier, ["good", "good"], ["film", "plot"])
    assert not np.array_equal(pairs[0].tokens, pairs[1].tokens)


def test_words_are_sums_over_tokens(classifier):
    scores = attribute("ig", classifier, "unlike, good", target=1)[0]
    assert scores.encoded.tokens[1:3] == ("un", "##l")
    assert scores.words.tolist() == pytest.approx([-0.25, 0.0, 1.5])


def test_the_predicted_class_is_the_default(classifier):
    scores = attribute("ig", classifier, ["good", "bad"])
    assert [item.target for item in scores] == [1, 0]


def test_scores_of_encoded_texts(classifier):
    encoded = classifier.encode(TEXTS, [None] * 3)
    scores = score("leave_one_out", AttributionTask(classifier, encoded, [1, 1, 0], batch_size=2))
    expected = attribute("leave_one_out", classifier, TEXTS, target=[1, 1, 0])
    for one, other in zip(scores, expected, strict=True):
        assert np.allclose(one.tokens, other.tokens, atol=1e-5)  # passes of 2 rows and of more
        assert one.seconds > 0 and one.method == "leave_one_out"
    assert score("ig", AttributionTask(classifier, [], [])) == []
