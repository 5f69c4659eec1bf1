"""What all methods have in common, on tiny models with random weights."""

import itertools
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import LayerGradientXActivation, LayerIntegratedGradients
from transformers import AlbertConfig, GPT2Config

from captum_iba.attr.settings import SettingsOverrides
from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.methods import AttributionTask, Method, attribute, find_method, method_names, register_method, score
from captum_iba.methods import registry as registry_module
from captum_iba.text import Classifier, TextExplainer, find_blocks
from captum_iba.text.classifier import load_classifier
from captum_iba.text.word_removal import keep_words, probabilities_of_texts
from captum_iba.visualization.colored_text import token_parts
from tests.text.conftest import SIZE, build

ROOT = Path(__file__).parents[2]
TEXTS = ["The film was not good", "bad", "a dull, unbelievable plot! don't like the plot"]
PAIRS = ["the plot", "good film, a good plot", "not"]
# Words that are left out one by one differ from draw to draw; few draws are enough here.
FEW = {
    **{name: {"n_samples": 40} for name in ("lime", "captum_lime", "kernel_shap", "gradient_shap")},
    **{name: {"n_steps": 4} for name in ("ig", "conductance", "iba", "iba_reranked", "iba_paper", "iba_as_released")},
}
BUILT_IN = [
    *("iba", "iba_reranked", "iba_paper", "iba_as_released", "random", "lime", "ig", "gradient_x_activation"),
    *(
        "gradient_shap",
        "saliency",
        "captum_lime",
        "kernel_shap",
        "leave_one_out",
        "occlusion",
        "conductance",
        "grad_cam",
    ),
    *("attention_rollout", "attn_lrp", "ig_as_released", "lime_as_released"),
]
EACH = pytest.mark.parametrize("name", BUILT_IN)


@pytest.fixture(scope="module")
def classifier(bert, wordpiece):
    return Classifier(bert, wordpiece)


@pytest.fixture(scope="module")
def decoder(byte_level):
    config = GPT2Config(vocab_size=320, n_embd=16, n_layer=3, n_head=2, n_positions=64, num_labels=3)
    return Classifier(build(config), byte_level)


@pytest.fixture(scope="module")
def statistics(bert, wordpiece, decoder):
    """Of the blocks of both models, by the model's module."""
    found = {}
    for model, tokenizer in ((bert, wordpiece), (decoder.model, decoder.tokenizer)):
        explainer = TextExplainer(model, tokenizer, [block.index for block in find_blocks(model)])
        for block, one in zip(explainer.layers, explainer.estimate_statistics([*TEXTS, *PAIRS]), strict=True):
            found[block.module] = one
    return lambda block: found[block.module]


def run(name, classifier, texts, pairs=None, target=0, **options):
    return attribute(name, classifier, texts, pairs, target, **{**FEW.get(name.removesuffix(":abs"), {}), **options})


def test_these_are_the_methods():
    assert method_names() == BUILT_IN


def test_import_loads_no_library_that_only_one_method_needs():
    code = "import sys, captum_iba.methods; print({'lime', 'sklearn', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=400)
    assert (done.stdout.strip(), done.returncode) == ("set()", 0), done.stderr


@EACH
@pytest.mark.parametrize("model", ["encoder", "decoder"])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["single", "pairs"])
def test_one_finite_score_per_token_whatever_is_in_the_batch(classifier, decoder, statistics, name, model, pairs):
    classifier = classifier if model == "encoder" else decoder
    together = run(name, classifier, TEXTS, pairs, statistics=statistics)
    for i, scores in enumerate(together):
        encoded = scores.encoded
        assert (encoded.text, encoded.pair) == (TEXTS[i], pairs and pairs[i])
        assert scores.tokens.shape == (len(encoded),) and scores.tokens.dtype == np.float64
        assert np.isfinite(scores.tokens).all()
        assert (scores.tokens[np.array(encoded.special)] == 0).all()
        for number, word in enumerate(scores.words):
            of_word = [t for t, w in zip(scores.tokens, encoded.words, strict=True) if w == number]
            if find_method(name).word_level:
                assert of_word == pytest.approx([word] * len(of_word))
            elif find_method(name).score_words is None or len(of_word) == 1:
                assert word == pytest.approx(sum(of_word))
        assert scores.signed == find_method(name).signed and (scores.signed or (scores.tokens >= 0).all())
        alone = run(name, classifier, TEXTS[i], pairs and pairs[i], statistics=statistics)[0]
        scale = abs(scores.tokens).max() + 1e-9
        assert np.allclose(scores.tokens / scale, alone.tokens / scale, atol=1e-4)


@pytest.mark.parametrize("pairs", [None, ["an unbelievable plot", "good", "unbelievable"]])
def test_leave_one_out_deletes_whole_words(classifier, pairs):
    """Sums over pieces contradicted the list: more than the whole probability, or of another sign."""
    n_several = 0
    for scores in run("leave_one_out", classifier, TEXTS, pairs, target=1):
        encoded = scores.encoded
        for number, word in enumerate(scores.words):
            others = {*range(len(encoded.word_spans))} - {number}
            whole, without = probabilities_of_texts(classifier, [encoded, keep_words(encoded, others)], 2)[:, 1]
            assert word == pytest.approx(float(whole - without), abs=1e-7)
            n_several += len(encoded.word_spans[number].positions) > 1
    assert n_several
    by_magnitude = run("leave_one_out:abs", classifier, TEXTS, pairs, target=1)
    signed = run("leave_one_out", classifier, TEXTS, pairs, target=1)
    for scores, of_signs in zip(by_magnitude, signed, strict=True):
        assert scores.words == pytest.approx(np.abs(of_signs.words))
    masked = run("leave_one_out", classifier, TEXTS[2], None, target=1, removal="mask")[0]
    several = [number for number, word in enumerate(masked.encoded.word_spans) if len(word.positions) > 1]
    ids = classifier.tensors([masked.encoded])["input_ids"]
    for number in several:
        hidden = ids.clone()
        hidden[0, list(masked.encoded.word_spans[number].positions)] = classifier.tokenizer.mask_token_id
        with torch.no_grad():
            whole, without = (classifier.model(one).logits.softmax(-1)[0, 1] for one in (ids, hidden))
        assert masked.words[number] == pytest.approx(float(whole - without), abs=1e-6)


@EACH
def test_the_size_of_a_pass_does_not_matter(classifier, statistics, name):
    texts = [TEXTS[0], TEXTS[2]]
    small, large = (run(name, classifier, texts, statistics=statistics, batch_size=size) for size in (7, 64))
    for one, other in zip(small, large, strict=True):
        scale = abs(one.tokens).max()
        assert np.allclose(one.tokens / scale, other.tokens / scale, atol=1e-4)


@pytest.mark.parametrize("name", ["random", "lime", "gradient_shap", "captum_lime", "kernel_shap", "iba"])
def test_the_seed_decides_what_is_random(classifier, statistics, name):
    options = {"n_samples": 1} if name == "iba" else {}
    first, again, other = (
        run(name, classifier, TEXTS[2], statistics=statistics, seed=seed, **options)[0].tokens for seed in (5, 5, 6)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_the_default_of_the_bottleneck_has_no_random_numbers(classifier, statistics):
    first, other = (run("iba", classifier, TEXTS[2], statistics=statistics, seed=seed)[0].tokens for seed in (5, 6))
    assert np.array_equal(first, other)


@pytest.mark.parametrize("removal", ["delete", "mask"])
def test_leave_one_out_runs_the_text_without_each_token(classifier, removal):
    (encoded,) = classifier.encode(["the film was not good"], [None])
    (ids,) = classifier.tensors([encoded])["input_ids"]

    def probability(tokens):
        with torch.no_grad():
            return float(classifier.model(input_ids=tokens[None]).logits.double().softmax(-1)[0, 1])

    def without(position):
        if removal == "delete":
            return torch.cat([ids[:position], ids[position + 1 :]])
        return ids.index_fill(0, torch.tensor([position]), classifier.tokenizer.mask_token_id)

    expected = [0.0 if s else probability(ids) - probability(without(i)) for i, s in enumerate(encoded.special)]
    scores = attribute("leave_one_out", classifier, encoded.text, target=1, removal=removal)[0]
    assert scores.tokens == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="removal is 'gone', expected one of delete, mask"):
        attribute("leave_one_out", classifier, encoded.text, removal="gone")


@EACH
def test_targets_are_respected(classifier, statistics, name):
    one, other = (run(name, classifier, TEXTS[2], target=target, statistics=statistics)[0] for target in (0, 1))
    assert (one.target, other.target) == (0, 1)
    blind = name in ("random", "attention_rollout", "ig_as_released", "lime_as_released")
    assert np.array_equal(one.tokens, other.tokens) == blind


@EACH
def test_model_and_global_randomness_stay_as_they_were(bert, wordpiece, statistics, name):
    bert.train()
    bert.classifier.weight.requires_grad_(False)
    weights = {key: value.clone() for key, value in bert.state_dict().items()}
    torch.manual_seed(3)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        run(name, Classifier(bert, wordpiece), TEXTS, statistics=statistics)
        assert all(module.training for module in bert.modules())
        assert all(p.requires_grad != (p is bert.classifier.weight) for p in bert.parameters())
        assert all(p.grad is None for p in bert.parameters())
    finally:
        bert.eval()
        bert.classifier.weight.requires_grad_(True)
    assert all(torch.equal(value, weights[key]) for key, value in bert.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in bert.modules())
    assert torch.equal(states[0], torch.get_rng_state())
    assert all(np.array_equal(a, b) for a, b in zip(states[1], np.random.get_state(), strict=True))
    assert states[2] == random.getstate()


@pytest.mark.parametrize("name", ["ig", "lime", "grad_cam", "iba", "attention_rollout", "attn_lrp"])
def test_works_without_gradients_and_in_inference_mode(classifier, statistics, name):
    expected = run(name, classifier, TEXTS[0], statistics=statistics)[0].tokens
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = run(name, classifier, TEXTS[0], statistics=statistics)[0].tokens
        assert np.allclose(found, expected, atol=1e-6)


ODD = ["bad\u00a0\u2003film \t\n  good\r\n", "a 👍🏽 film 🎬!", "good\u200bfilm", "don't… “like”", "!", "日本 plot"]


@pytest.mark.parametrize("model", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["lime", "captum_lime", "kernel_shap", "lime_as_released"])
def test_every_token_of_odd_texts_belongs_to_a_word_with_a_weight(classifier, decoder, name, model):
    classifier = classifier if model == "encoder" else decoder
    for scores in run(name, classifier, ODD):
        assert np.isfinite(scores.tokens).all()
        if name in ("lime", "kernel_shap"):
            ordinary = ~np.array(scores.encoded.special)
            assert (scores.tokens[ordinary] != 0).all()


def test_ig_is_captums_layer_integrated_gradients(classifier):
    """On token ids and the module of the word embeddings, as Captum's tutorials have it."""
    encoded = classifier.encode([TEXTS[2]], [PAIRS[0]])
    ids, *others = classifier.tensors(encoded).values()
    pad, layer = classifier.tokenizer.pad_token_id, classifier.model.get_input_embeddings()
    baseline = ids.where(torch.tensor([encoded[0].special]), pad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Captum's, of ids that have no gradient
        expected = LayerIntegratedGradients(classifier.logits, layer).attribute(
            ids, baseline, target=2, additional_forward_args=tuple(others), n_steps=50
        )
        product = LayerGradientXActivation(classifier.logits, layer).attribute(
            ids, target=2, additional_forward_args=tuple(others)
        )
    found = attribute("ig", classifier, TEXTS[2], PAIRS[0], 2)[0]
    assert np.allclose(found.tokens, expected[0].sum(-1).detach(), atol=1e-5)
    ordinary = ~np.array(encoded[0].special)
    found = attribute("gradient_x_activation", classifier, TEXTS[2], PAIRS[0], 2)[0]
    assert np.allclose(found.tokens[ordinary], product[0].sum(-1).detach()[ordinary], atol=1e-5)


def test_ig_sums_to_the_change_of_the_logit(classifier):
    scores = attribute("ig", classifier, TEXTS[0], target=1, n_steps=200)[0]
    ids, *others = classifier.tensors([scores.encoded]).values()
    empty = ids.where(torch.tensor([scores.encoded.special]), classifier.tokenizer.pad_token_id)
    with torch.no_grad():
        change = (classifier.logits(ids, *others) - classifier.logits(empty, *others))[0, 1]
    assert scores.tokens.sum() == pytest.approx(float(change), abs=0.02)


def test_conductance_at_the_word_embeddings_is_ig(classifier):
    layer = "bert.embeddings.word_embeddings"
    through = attribute("conductance", classifier, TEXTS, target=1, layer=layer, n_steps=200, batch_size=512)
    for one, other in zip(through, attribute("ig", classifier, TEXTS, target=1, n_steps=400), strict=True):
        assert np.allclose(one.tokens, other.tokens, atol=0.02 * abs(other.tokens).max())


def test_conductance_sums_to_the_change_of_the_logit(classifier):
    """Captum's sum of steps from their beginnings is 15% off with its 50 steps, on a trained model."""
    scores = attribute("conductance", classifier, TEXTS[0], target=1, layer=1, n_steps=40)[0]
    ids, *others = classifier.tensors([scores.encoded]).values()
    empty = ids.where(torch.tensor([scores.encoded.special]), classifier.tokenizer.pad_token_id)
    with torch.no_grad():
        change = (classifier.logits(ids, *others) - classifier.logits(empty, *others))[0, 1]
    layer = classifier.model.bert.encoder.layer[0]
    kept, expected = [], 0
    start, end = (classifier.model.get_input_embeddings()(tokens).detach() for tokens in (empty, ids))
    names = [name for name in classifier.input_names if name != "input_ids"]
    with layer.register_forward_hook(lambda *call: kept.append(call[2])):
        points = []
        for step in range(401):
            embedded = (start + step / 400 * (end - start)).requires_grad_()
            logit = classifier.model(inputs_embeds=embedded, **dict(zip(names, others, strict=True))).logits[0, 1]
            points.append((torch.autograd.grad(logit, kept[-1])[0], kept[-1].detach()))
    for (gradient, value), (next_gradient, next_value) in itertools.pairwise(points):
        expected = expected + ((gradient + next_gradient) / 2 * (next_value - value)).sum(-1)[0]
    assert expected.sum().item() == pytest.approx(float(change), abs=1e-3)
    assert np.allclose(scores.tokens[1:-1], expected[1:-1].numpy(), atol=0.02 * abs(expected).max().item())


def test_grad_cam_by_hand(classifier):
    encoded = classifier.encode([TEXTS[0]], [None])
    inputs = classifier.tensors(encoded)
    kept = []
    handle = classifier.model.bert.encoder.layer[1].register_forward_hook(lambda *call: kept.append(call[2]))
    with handle:
        logits = classifier.logits(*inputs.values())
    gradient = torch.autograd.grad(logits[0, 2], kept[0])[0]
    expected = (kept[0] * gradient.mean(1, keepdim=True)).sum(-1)[0].detach().numpy()
    found = attribute("grad_cam", classifier, TEXTS[0], target=2, layer=2)[0].tokens
    assert np.allclose(found[1:-1], expected[1:-1], atol=1e-6)


@pytest.mark.parametrize("name", ["grad_cam", "conductance"])
def test_layers_that_share_a_module_differ(wordpiece, name):
    model = build(AlbertConfig(**SIZE, embedding_size=8, num_labels=2))
    found = [run(name, Classifier(model, wordpiece), TEXTS[0], layer=layer)[0].tokens for layer in (1, 2, 3)]
    assert not np.allclose(found[0], found[1]) and not np.allclose(found[1], found[2])


def test_the_task_names_the_layer_unless_the_option_does(classifier, statistics):
    for name in ("iba", "grad_cam", "conductance"):
        by_task, by_option, other = (
            run(name, classifier, TEXTS[0], statistics=statistics, layer=layer)[0].tokens for layer in (1, 1, 3)
        )
        task = AttributionTask(classifier, classifier.encode([TEXTS[0]], [None]), [0], layer=3, statistics=statistics)
        chosen = find_method(name)(task, layer=1, **FEW.get(name, {}))[0]
        assert np.allclose(by_task, by_option) and np.allclose(chosen[1:-1], by_task[1:-1], atol=1e-6)
        assert not np.allclose(by_task, other)


def test_statistics_are_found_by_their_layer(classifier, statistics):
    blocks = find_blocks(classifier.model)
    given = [statistics(block) for block in reversed(blocks)]
    expected = run("iba", classifier, TEXTS[0], statistics=statistics, layer=[2, 3])[0].tokens
    assert np.array_equal(run("iba", classifier, TEXTS[0], statistics=given, layer=[2, 3])[0].tokens, expected)
    with pytest.raises(ValueError, match=f"statistics are of layers .*, expected those of layer '{blocks[2].key}'"):
        run("iba", classifier, TEXTS[0], statistics=given[2], layer=[2, 3])
    with pytest.raises(TypeError, match=r"layer is \[1, 2\], expected .*; only iba takes several"):
        run("grad_cam", classifier, TEXTS[0], layer=[1, 2])


def test_a_word_that_is_there_twice_is_printed_with_its_place(classifier):
    """Of a pair nobody could tell which of the two "film" had the score."""
    (alone,) = attribute("leave_one_out", classifier, ["good film"])
    assert re.fullmatch(r"Leave one out: (good|film) \S+, (good|film) \S+", str(alone)), str(alone)
    (twice,) = attribute("leave_one_out", classifier, ["film , film"])
    assert re.search(r"film \(word 1\) .*film \(word 2\)|film \(word 2\) .*film \(word 1\)", str(twice)), str(twice)
    (pair,) = attribute("leave_one_out", classifier, ["film"], ["film"])
    named = [word for word, _ in token_parts(pair).largest]
    assert sorted(named) == ["film (first text, word 1)", "film (second text, word 1)"]


def test_by_magnitude(classifier):
    signed, by_magnitude = (run(name, classifier, TEXTS[2])[0] for name in ("ig", "ig:abs"))
    assert (signed.tokens < 0).any() and signed.signed and not by_magnitude.signed
    assert np.array_equal(abs(signed.tokens), by_magnitude.tokens) and by_magnitude.method == "ig:abs"


@pytest.mark.parametrize("name", ["iba:abs", "random:abs", "saliency:abs"])
def test_what_has_no_sign_is_not_read_by_magnitude(name):
    with pytest.raises(ValueError, match=f"'{name[:-4]}' has no signs"):
        find_method(name)


@pytest.mark.parametrize("name", ["shap", "", ":abs", "IG", "ig:Abs"])
def test_an_unknown_method_lists_the_methods(classifier, name):
    with pytest.raises(ValueError, match=r"method: there is no .* the methods are iba, iba_reranked, .*, random, lime"):
        attribute(name, classifier, TEXTS)


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(registry_module, "METHODS", dict(registry_module.METHODS))


def test_an_own_method(own, classifier):
    def longest(task, scale=1.0):
        return [scale * np.array([len(token) for token in text.tokens]) for text in task.encoded]

    method = register_method("longest", longest, signed=False, description="Long tokens first.", scale=2.0)
    assert isinstance(method, Method) and method == find_method("longest") and method_names()[-1] == "longest"
    scores = attribute("longest", classifier, "the film")[0]
    assert scores.tokens.tolist() == [0, 6, 8, 0]
    assert attribute("longest", classifier, "the film", scale=3.0)[0].words.tolist() == [9, 12]


def test_the_options_of_iba_are_the_settings():
    assert find_method("iba").option_names() == ["preset", "layer", *SettingsOverrides.__annotations__]
    assert find_method("ig:abs").option_names() == ["n_steps", "baseline", "output"]
    find_method("iba").check_options(["beta", "granularity"])


def test_a_function_of_any_options_takes_any(own):
    register_method("any", lambda task, **options: [], signed=False, description="").check_options(["whatever"])


@pytest.mark.parametrize("name", ["ig", "ig:abs", "iba@layer=3", "", "my method"])
def test_a_name_that_cannot_be_registered(own, name):
    with pytest.raises(ValueError, match="name is .*, expected "):
        register_method(name, lambda task: [], signed=False, description="")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda task: [], "'mine' gave scores of 0 texts, expected 1"),
        (lambda task: [np.zeros(3)], r"'mine' gave scores of shape \(3,\), expected \(4,\), one per token"),
        (lambda task: [np.zeros((4, 2))], r"shape \(4, 2\)"),
    ],
)
def test_an_own_method_that_gives_something_else(own, classifier, function, says):
    register_method("mine", function, signed=False, description="")
    with pytest.raises(ValueError, match=says):
        attribute("mine", classifier, "the film")


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("ig", {"n_steps": 0}, ValueError, "n_steps"),
        ("ig", {"baseline": "zero"}, ValueError, "baseline is 'zero', expected 'mask' or 'pad'"),
        ("ig", {"output": "loss"}, ValueError, "output is 'loss', expected 'logit' or 'probability'"),
        ("ig", {"steps": 3}, TypeError, "'ig' has no option 'steps'; its options are n_steps, baseline, output"),
        ("lime", {"n_samples": 1.5}, ValueError, "n_samples"),
        ("gradient_shap", {"n_samples": True}, ValueError, "n_samples"),
        ("kernel_shap", {"n_samples": -1}, ValueError, "n_samples"),
        ("occlusion", {"window": 0}, ValueError, "window"),
        ("grad_cam", {"layer": 9}, ValueError, "layer is 9, expected a block from 1 to 4"),
        ("grad_cam", {"layer": "classifier"}, ValueError, "layer classifier returns an activation of shape"),
        ("iba", {"beta": -1.0}, ValueError, "beta"),
        (
            "iba",
            {"granularity": "channel"},
            ValueError,
            "granularity is 'channel', expected one of token, word, feature",
        ),
        (
            "iba",
            {"betas": 1.0},
            TypeError,
            "'iba' has no option 'betas'; its options are preset, layer, granularity, beta",
        ),
        ("ig", {"target": 3}, ValueError, "target"),
        ("ig", {"batch_size": 0}, ValueError, "batch_size is 0, expected an integer of at least 1"),
    ],
)
def test_bad_options(classifier, statistics, name, options, error, says):
    with pytest.raises(error, match=says):
        attribute(name, classifier, TEXTS[0], **{"target": 0, "statistics": statistics, **options})


def test_a_task_has_one_target_per_text(classifier):
    with pytest.raises(ValueError, match="targets has 1 entries, expected one for each of 2 texts"):
        AttributionTask(classifier, classifier.encode(TEXTS[:2], [None] * 2), [0])


def test_a_layer_for_a_method_that_looks_at_none_is_refused(classifier):
    with pytest.raises(ValueError, match="layer is 3, expected None: the method 'ig' looks at no layer"):
        attribute("ig", classifier, TEXTS[0], layer=3)
    with pytest.raises(ValueError, match="the method 'saliency' looks at no layer"):
        score("saliency", AttributionTask(classifier, classifier.encode([TEXTS[0]], [None]), [0], layer="bert"))


def test_statistics_of_an_explainer_are_those_of_its_method(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPTUM_IBA_CACHE", str(tmp_path))
    model, tokenizer = load_classifier(embedded_model_path())
    explainer = TextExplainer(model, tokenizer)
    explainer.statistics = [embedded_statistics(block.index) for block in find_blocks(model)]
    text = "A good film with a dull ending."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = attribute("iba", explainer, text)[0]
    np.testing.assert_allclose(scores.tokens, explainer.explain(text).bits, rtol=1e-6)
    bare = TextExplainer(model, tokenizer)
    bare.use_neutral_statistics()
    with pytest.warns(UserWarning, match="those of neutral texts"):
        attribute("iba", bare, text)


def test_a_class_in_the_place_of_a_second_text_is_warned_of():
    explainer = TextExplainer(*load_classifier(embedded_model_path()))
    with pytest.warns(UserWarning, match="pairs is 'Negative', which is a class of the model.* target='Negative'"):
        attribute("saliency", explainer, "A dull film.", "Negative")
    with pytest.warns(UserWarning, match="pairs is 'negative', which is a class"):
        explainer.explain("A dull film.", "negative", n_steps=1)
