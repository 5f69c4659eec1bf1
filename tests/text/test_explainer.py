import copy
import itertools
import json
import threading
import warnings
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console
from torch import nn

from captum_iba import FeatureStatistics
from captum_iba._explain.model import model_name
from captum_iba._reading.codes import findings
from captum_iba._reading.findings import missed_labels
from captum_iba._reading.removal_check import DeletionCheck
from captum_iba.attr.settings import PRESETS, BottleneckSettings
from captum_iba.text import TextAttribution, TextExplainer
from captum_iba.text.classifier import load_classifier
from captum_iba.text.statistics import GroupedStatistics, neutral_texts
from captum_iba.visualization import terminal_text, token_page

from .conftest import SIZE, build

TEXTS = ["The film was not good", "bad", "a dull, unbelievable plot! don't like the plot", "good?"]
QUICK = {"n_steps": 3, "n_samples": 2}


def test_one_text_gives_one_result_and_several_a_list_in_order(explainer):
    one = explainer.explain(TEXTS[2], **QUICK)
    several = explainer.explain(TEXTS, batch_size=2, **QUICK)
    assert [result.text for result in several] == TEXTS
    assert np.allclose(one.bits, several[2].bits, atol=1e-4)
    assert one.words[2].word == ","
    assert [word.word for word in several[0].words] == ["The", "film", "was", "not", "good"]


def test_a_model_is_named_without_a_path_of_this_machine(bert, wordpiece, tmp_path, monkeypatch):
    folder = tmp_path / "reviews"
    bert.save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    explainer = TextExplainer.from_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = explainer.explain("good", **QUICK)
    assert result.model == "reviews" and str(tmp_path) not in str(result)
    monkeypatch.chdir(tmp_path)
    cached = "/home/me/.cache/huggingface/hub/models--org--name/snapshots/0a1b"
    for path, name in (
        ("./reviews", "reviews"),
        ("reviews", "reviews"),
        ("org/name", "org/name"),
        (cached, "org/name"),
    ):
        explainer.classifier.model.config._name_or_path = explainer.classifier.model.name_or_path = path
        assert model_name(explainer.classifier.model) == name
    assert model_name(nn.Linear(1, 1)) == "Linear"


@pytest.mark.parametrize("granularity", ["token", "word", "feature"])
@pytest.mark.parametrize("preset", ["default", "paper", "as_released"])
def test_a_result_does_not_depend_on_its_batch(explainer, preset, granularity):
    together = explainer.explain(TEXTS, preset=preset, granularity=granularity, **QUICK)
    for text, result in zip(TEXTS, together, strict=True):
        alone = explainer.explain(text, preset=preset, granularity=granularity, **QUICK)
        assert np.allclose(alone.bits, result.bits, rtol=1e-4, atol=1e-4)
        assert alone.target_probability == pytest.approx(result.target_probability, abs=1e-5)


def test_special_tokens_have_bits_only_as_released(explainer):
    usual, released = (explainer.explain(TEXTS[0], preset=p, **QUICK) for p in ("default", "as_released"))
    special = np.array([token.special for token in usual.tokens])
    assert (usual.bits[special] == 0).all() and (usual.bits[~special] > 0).all()
    assert (released.bits > 0).all()
    assert released.statistics == "the layer's own input (as released)"
    assert released.settings["n_steps"] == 3 and released.settings["beta"] == 1e-5


def test_settings_are_passed_on_as_they_are(explainer):
    settings = BottleneckSettings("token", beta=1.0, n_steps=3, n_samples=2)
    result = explainer.explain(TEXTS[0], preset=settings)
    assert result.preset == "custom" and result.settings["beta"] == 1.0 and result.settings["complement"] == 0.0
    assert (result.bits == explainer.explain(TEXTS[0], preset=settings, beta=1.0).bits).all()
    assert explainer.explain(TEXTS[0], preset=PRESETS["paper"], **QUICK) == explainer.explain(
        TEXTS[0], preset="paper", **QUICK
    )
    assert explainer.explain(TEXTS[0], preset=settings, granularity="word").granularity == "word"
    with pytest.raises(ValueError, match="granularity is 'channel', expected one of token, word, feature"):
        explainer.explain(TEXTS[0], preset=BottleneckSettings("channel", beta=1.0, n_steps=1, n_samples=1))
    expected = (
        "no argument of explain, expected one of texts, pairs, target, .*repeats, rerank, check, .*; did you mean"
    )
    for wrong, meant in (("betas", "beta"), ("repeat", "repeats"), ("targets", "target")):
        with pytest.raises(TypeError, match=rf"'{wrong}' is {expected} {meant}\?"):
            explainer.explain(TEXTS[0], **{wrong: 1})
    with pytest.raises(TypeError, match=r"'methods' is no argument of explain, .*captum_iba\.methods\.attribute\("):
        explainer.explain(TEXTS[0], methods=["lime"])


def test_the_repr_names_model_layers_and_statistics(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece)
    assert repr(explainer) == (
        f"TextExplainer(model={explainer.classifier.name!r}, layer={len(explainer.layers)} layers, "
        f"{explainer.layers[0].key} to {explainer.layers[-1].key}, statistics=None)"
    )
    explainer = TextExplainer(bert, wordpiece, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few positions
        explainer.estimate_statistics(TEXTS)
    n_positions = explainer.statistics[0].count
    assert repr(explainer).endswith(f"layer={explainer.layers[0].key}, statistics={n_positions:,} tokens)")


def test_words_share_a_mask_value(explainer):
    """Each token's bits follow from one value, so at the start (open) words and tokens agree, later they do not."""
    begin = [explainer.explain(TEXTS[2], granularity=g, n_steps=0).bits for g in ("token", "word")]
    assert np.allclose(*begin)
    end = [explainer.explain(TEXTS[2], granularity=g, beta=1e-3, **QUICK).bits for g in ("token", "word")]
    assert not np.allclose(*end, atol=1e-3)


def test_bits_of_a_word_are_those_of_its_tokens(explainer):
    result = explainer.explain("unbelievable", **QUICK)
    assert len(result.words) == 1 and len(result.tokens) == 5
    assert result.word_bits[0] == pytest.approx(result.bits.sum()) == pytest.approx(result.total_bits)


def test_a_layer_of_another_type_is_an_error(bert, wordpiece):
    with pytest.raises(TypeError, match=r"layer is a BertLayer, expected a block from 1, a module's name"):
        TextExplainer(bert, wordpiece, layer=bert.bert.encoder.layer[1])


def test_targets(explainer):
    predicted = explainer.explain(TEXTS[0], **QUICK)
    assert predicted.target == predicted.predicted
    for target in (2, "POSITIVE", "positive", [2], torch.tensor([2]), np.int64(2)):
        result = explainer.explain(TEXTS[0], target=target, n_steps=0)
        assert (result.target, result.target_label) == (2, "positive")
    each = explainer.explain(TEXTS, target=[0, "neutral", None, 2], n_steps=0)
    assert [result.target for result in each] == [0, 1, each[2].predicted, 2]
    other = (predicted.target + 1) % 3
    assert explainer.explain(TEXTS[0], target=other, **QUICK).total_bits != predicted.total_bits


@pytest.mark.parametrize("target", [3, -1, "great", "", [0, 1]])
def test_a_target_that_is_not_there_is_an_error(explainer, target):
    with pytest.raises(ValueError, match=r"target (is|has) .*, expected "):
        explainer.explain(TEXTS[0], target=target)


def test_an_unknown_label_lists_the_labels(explainer):
    with pytest.raises(ValueError, match=r"0 \(Negative\), 1 \(neutral\), 2 \(positive\)"):
        explainer.explain(TEXTS[0], target="great")


@pytest.mark.parametrize("target", [1.0, True, object()])
def test_a_target_of_another_type_is_an_error(explainer, target):
    with pytest.raises(TypeError, match="target"):
        explainer.explain(TEXTS[0], target=target)


@pytest.mark.parametrize(
    ("texts", "pairs", "error", "says"),
    [
        ("", None, ValueError, r"texts is empty"),
        (["good", " \n"], None, ValueError, r"texts\[1\] is only white space"),
        ([], None, ValueError, "at least one"),
        (["good", "[SEP][CLS]"], None, ValueError, r"texts\[1\] is .*nothing to attribute"),
        ("\u200b", None, ValueError, "nothing to attribute"),
        (["good", 3], None, TypeError, r"texts\[1\] is an int, expected a string"),
        (b"good", None, TypeError, "texts is a bytes"),
        (None, None, TypeError, "texts is None"),
        (["good", "bad"], ["film"], ValueError, "pairs has 1 entries, expected one for each of the 2 texts"),
        ("good", ["film"], TypeError, "pairs"),
        (["good"], [None], TypeError, r"pairs\[0\]"),
    ],
)
def test_bad_texts(explainer, texts, pairs, error, says):
    with pytest.raises(error, match=says):
        explainer.explain(texts, pairs)


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": -1.0},
        {"beta": float("nan")},
        {"n_steps": -1},
        {"n_samples": -1},
        {"learning_rate": 0.0},
        {"preset": "best"},
        {"granularity": "sentence"},
        {"batch_size": 0},
        {"batch_size": 2.0},
    ],
)
def test_bad_settings(explainer, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        explainer.explain("good", **settings)


def test_pairs(explainer):
    result = explainer.explain("the film", "the plot", **QUICK)
    assert [(word.word, word.sequence) for word in result.words] == [
        ("the", 0),
        ("film", 0),
        ("the", 1),
        ("plot", 1),
    ]
    assert result.words[3].start == 4
    several = explainer.explain(["bad", "the film"], ["good", "the plot"], **QUICK)
    assert np.allclose(several[1].bits, result.bits, atol=1e-4)


def test_a_pair_may_lack_one_half(explainer):
    first, second = explainer.explain(["", "the film"], ["the plot", " "], **QUICK)
    assert [word.word for word in first.words] == ["the", "plot"]
    assert [word.word for word in second.words] == ["the", "film"]
    with pytest.raises(ValueError, match=r"texts\[0\] and pairs\[0\] are only white space"):
        explainer.explain("", " ")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_several_threads(name, wordpiece):
    explainer = TextExplainer(build(family(name)), wordpiece)
    explainer.estimate_statistics(TEXTS)
    before = explainer.classifier.model.config.pad_token_id
    expected = [explainer.explain(text, **QUICK).bits for text in TEXTS]
    found = {}

    def work(number):
        for turn in range(3):
            found[number, turn] = explainer.explain(TEXTS[number], **QUICK).bits

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(TEXTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 * len(TEXTS)
    assert all(np.array_equal(bits, expected[number]) for (number, _), bits in found.items())
    assert explainer.classifier.model.config.pad_token_id == before


def test_in_inference_mode(explainer):
    with torch.inference_mode():
        found = explainer.explain(TEXTS[0], **QUICK)
    assert found == explainer.explain(TEXTS[0], **QUICK)


def test_truncation_is_in_the_result(bert, wordpiece):
    short = TextExplainer(bert, wordpiece, max_length=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = short.explain("the film was not good at all", **QUICK)
    total = result.tokens_truncated + len(result.tokens)
    assert result.tokens_truncated > 0 and str(result).splitlines()[:3] == [
        f"Warning: {result.tokens_truncated} of {total} tokens were truncated and not read.",
        result.headline(),
        "the film was not …",
    ]
    console = Console(no_color=True, width=200, file=StringIO())
    console.print(terminal_text(result))
    drawn = console.file.getvalue().splitlines()
    assert drawn[:2] == str(result).splitlines()[:2]


def test_published_presets_have_one_layer_unless_several_are_named(bert, wordpiece):
    every, named = TextExplainer(bert, wordpiece), TextExplainer(bert, wordpiece, layer=[1, 2])
    for explainer in (every, named):
        explainer.estimate_statistics(TEXTS)
    third = TextExplainer(bert, wordpiece, layer=3)
    third.use_statistics(every.statistics[2], source=f"{len(TEXTS)} texts")
    for preset in ("paper", "as_released"):
        found = every.explain(TEXTS[0], preset=preset, **QUICK)
        assert found == third.explain(TEXTS[0], preset=preset, **QUICK)
        assert found.layer_index == 3  # of four: 9 of 12
    assert named.explain(TEXTS[0], preset="paper", **QUICK).layer.startswith("2 layers")
    with pytest.raises(ValueError, match="layer names 2 layers, expected one for the preset as_released"):
        named.explain(TEXTS[0], preset="as_released", **QUICK)
    assert every.explain(TEXTS[0], **QUICK).layer.startswith("4 layers")


def test_trace(explainer):
    result = explainer.explain(TEXTS[0], return_trace=True, **QUICK)
    assert len(result.trace.loss) == len(result.trace.information) == len(result.trace.probability) == 4
    assert result.trace.information[-1] == pytest.approx(result.total_bits, rel=1e-4)
    assert all(0 <= chance <= 1 for chance in result.trace.probability)


def test_seed(explainer):
    first, again, other = (explainer.explain(TEXTS[0], seed=seed, beta=1e-3, **QUICK).bits for seed in (0, 0, 1))
    assert (first == again).all() and not np.allclose(first, other)


def test_statistics_are_saved_checked_and_named_in_results(explainer, bert, wordpiece, tmp_path):
    path = tmp_path / "layer-02.safetensors"
    explainer.save_statistics(path)
    again = TextExplainer(bert, wordpiece, layer=2, statistics=path)
    assert torch.equal(again.statistics[0].mean, explainer.statistics[0].mean)
    text = explainer.explain("good", **QUICK)
    assert text.statistics == f"3 texts ({explainer.statistics[0].count} tokens)"
    assert (again.explain("good", **QUICK).bits == text.bits).all()
    with pytest.raises(ValueError, match="layer"):
        TextExplainer(bert, wordpiece, layer=3, statistics=path)
    with pytest.raises(ValueError, match=r"bert\.encoder\.layer\.1.*bert\.encoder\.layer\.2"):
        TextExplainer(bert, wordpiece, layer=3, statistics=explainer.statistics)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TextExplainer(bert, wordpiece, statistics=tmp_path / "nowhere")


def test_groups_of_texts_are_merged_with_their_statistics():
    first, second = (
        GroupedStatistics("a").update(torch.randn(16, 5, 4, generator=torch.Generator().manual_seed(i)))
        for i in range(2)
    )
    merged = first.merge(second)
    assert merged.has_groups and sum(group.count for group in merged.groups) == merged.count == 160
    both = torch.cat([first.groups[3].mean * 10, second.groups[3].mean * 10]).view(2, 4).sum(0) / 20
    torch.testing.assert_close(merged.groups[3].mean, both)
    assert not merged.merge(FeatureStatistics("a").update(torch.randn(9, 4))).has_groups


def test_statistics_are_not_saved_among_those_of_other_layers(explainer, bert, wordpiece, tmp_path):
    several = TextExplainer(bert, wordpiece, layer=[1, 3])
    several.estimate_statistics(TEXTS)
    several.save_statistics(tmp_path)
    several.save_statistics(tmp_path)
    with pytest.raises(ValueError, match=r"holds bert.encoder.layer.0.safetensors of other statistics"):
        explainer.save_statistics(tmp_path)


def test_layers_with_one_mask(bert, wordpiece, tmp_path):
    explainer = TextExplainer(bert, wordpiece, layer=[1, 3])
    first, third = explainer.estimate_statistics(TEXTS)
    assert (first.layer, third.layer) == ("bert.encoder.layer.0", "bert.encoder.layer.2")
    result = explainer.explain(TEXTS[0], **QUICK)
    assert result.layer == "2 layers with one mask, bert.encoder.layer.0 to bert.encoder.layer.2"
    assert result.layer_index is None and result.layer_label == result.layer
    # The information is that of the first layer, where both masks are open.
    alone = TextExplainer(bert, wordpiece, layer=1, statistics=first)
    bare = {**QUICK, "n_steps": 0}
    assert np.allclose(explainer.explain(TEXTS[0], **bare).bits, alone.explain(TEXTS[0], **bare).bits)
    assert not np.array_equal(result.bits, alone.explain(TEXTS[0], **QUICK).bits)
    explainer.save_statistics(tmp_path / "folder")
    again = TextExplainer(bert, wordpiece, layer=[1, 3], statistics=tmp_path / "folder")
    assert (again.explain(TEXTS[0], **QUICK).bits == result.bits).all()
    assert TextExplainer(bert, wordpiece, layer=3, statistics=tmp_path / "folder").statistics[0].layer == third.layer
    with pytest.raises(FileNotFoundError, match=r"bert\.encoder\.layer\.1\.safetensors"):
        TextExplainer(bert, wordpiece, layer=2, statistics=tmp_path / "folder")
    with pytest.raises(ValueError, match="statistics has 1 entries, expected those of 2 layers"):
        TextExplainer(bert, wordpiece, layer=[1, 3], statistics=first)
    for layers in ([], [1, "bert.encoder.layer.0"]):
        with pytest.raises(ValueError, match="layer is .*, expected one or more different layers"):
            TextExplainer(bert, wordpiece, layer=layers)


def test_statistics_do_not_depend_on_batches(explainer):
    (one,) = explainer.estimate_statistics(TEXTS, batch_size=1)
    (all_at_once,) = explainer.estimate_statistics(TEXTS, batch_size=4)
    assert one.count == all_at_once.count
    assert torch.allclose(one.mean, all_at_once.mean, atol=1e-5)
    assert isinstance(one, FeatureStatistics)
    with pytest.raises(TypeError, match="texts is one string"):
        explainer.estimate_statistics("one text")


def test_without_statistics_those_of_neutral_texts_are_used(bert, wordpiece, tmp_path, monkeypatch):
    monkeypatch.setenv("CAPTUM_IBA_CACHE", str(tmp_path / "cache"))
    bare = TextExplainer(bert, wordpiece)
    with pytest.raises(ValueError, match="expected statistics to save"):
        bare.save_statistics("anywhere")
    with pytest.warns(UserWarning, match="those of neutral texts in the package are used") as caught:
        result = bare.explain(TEXTS, batch_size=1, **QUICK)
        bare.explain(TEXTS[0], **QUICK)
    assert len(caught) == 1
    assert result[0].statistics == f"neutral texts ({bare.statistics[0].count:,} tokens)"
    by_hand = TextExplainer(bert, wordpiece)
    by_hand.estimate_statistics(neutral_texts(paired=False)[0])
    np.testing.assert_array_equal(by_hand.explain(TEXTS[0], **QUICK).bits, result[0].bits)
    # Pairs have statistics of their own, and a second explainer of the model finds both in the cache.
    bare.explain(TEXTS[0], TEXTS[1], **QUICK)
    assert bare.statistics[0].count > by_hand.statistics[0].count
    kept = list((tmp_path / "cache").rglob("*.safetensors"))
    again = TextExplainer(bert, wordpiece)
    again.use_neutral_statistics()
    assert len(kept) == 8 and kept == list((tmp_path / "cache").rglob("*.safetensors"))
    first, second = neutral_texts(paired=True)  # of models of pairs: unrelated, the same, and contradictory ones
    texts = neutral_texts(paired=False)[0]
    assert set(zip(first, second, strict=True)) >= {*itertools.pairwise(texts), *((text, text) for text in texts)}
    assert sum(text.startswith("It is not true that") for text in second) == len(texts)
    # Statistics of one's own stay, for pairs too.
    by_hand.explain(TEXTS[0], TEXTS[1], **QUICK)
    assert by_hand.statistics[0].count < bare.statistics[0].count


def test_neutral_statistics_need_no_cache(bert, wordpiece, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAPTUM_IBA_CACHE", str(tmp_path / "file"))
    assert TextExplainer(bert, wordpiece).use_neutral_statistics()[0].count > 1000


def test_progress_is_shown_over_steps_and_texts_without_some_words(explainer, capsys):
    explainer.explain(TEXTS[0], show_progress=True, **QUICK)
    shown = capsys.readouterr().err
    assert "Bottleneck Attribution" in shown and "Removal: " in shown and "texts/s" in shown
    explainer.explain(TEXTS[0], show_progress=True, rerank=0, **QUICK)
    assert "Removal" not in capsys.readouterr().err
    explainer.explain(TEXTS[0], **QUICK)
    assert capsys.readouterr().err == ""


def test_the_model_stays_as_it_was(bert, wordpiece):
    model = copy.deepcopy(bert).train()
    model.config.pad_token_id = None
    state = copy.deepcopy(model.state_dict())
    explainer = TextExplainer(model, wordpiece)
    explainer.estimate_statistics(TEXTS)
    explainer.explain(TEXTS, **QUICK)
    with pytest.raises(ValueError, match="target"):
        explainer.explain(TEXTS, target=9)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.config.pad_token_id is None


def family(name, **changes):
    """A small configuration of a family of models."""
    size = {**SIZE, **changes}
    t5 = {"vocab_size": 400, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 4, "num_heads": 2}
    special = {
        "electra": {"embedding_size": 16, **size},
        "albert": {"embedding_size": 8, **size},
        "distilbert": {
            "vocab_size": 400,
            "dim": 16,
            "hidden_dim": 32,
            "n_layers": 4,
            "n_heads": 2,
            "max_position_embeddings": 40,
        },
        "modernbert": {"eos_token_id": 3, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 3, **size},
        "gpt2": {"vocab_size": 400, "n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 40},
        "gpt_neox": {"bos_token_id": 2, "eos_token_id": 3, **size},
        "qwen3": {"head_dim": 8, "num_key_value_heads": 2, **size},
        "t5": {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0, **t5},
        "umt5": {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0, **t5},
    }
    return transformers.AutoConfig.for_model(name, **special.get(name, size))


FAMILIES = ["bert", "roberta", "electra", "distilbert", "albert", "modernbert", "deberta-v2", "gpt2", "llama"]


@pytest.mark.filterwarnings("ignore:.*not replayed")
@pytest.mark.parametrize("layer", [3, None], ids=["one layer", "all layers"])
@pytest.mark.parametrize("name", [*FAMILIES, "qwen3", "gpt_neox", "t5", "umt5"])
def test_families(name, layer, wordpiece):
    explainer = TextExplainer(build(family(name)), wordpiece, layer=layer)
    assert [block.index for block in explainer.layers] == ([3] if layer else [1, 2, 3, 4])
    explainer.estimate_statistics(TEXTS)
    together = explainer.explain(TEXTS[:2], **QUICK)
    alone = explainer.explain(TEXTS[1], **QUICK)
    assert np.allclose(together[1].bits, alone.bits, rtol=1e-4, atol=1e-4)
    special = np.array([token.special for token in together[0].tokens])
    assert (together[0].bits[~special] > 0).all() and (together[0].bits[special] == 0).all()


def test_blocks_of_a_shared_module_differ(wordpiece):
    model = build(family("albert"))
    found = []
    for layer in (1, 4):
        explainer = TextExplainer(model, wordpiece, layer=layer)
        explainer.estimate_statistics(TEXTS)
        found.append(explainer)
    assert not torch.allclose(found[0].statistics[0].mean, found[1].statistics[0].mean)
    with pytest.raises(ValueError, match="#0"):
        found[1].statistics = found[0].statistics
    bits = [explainer.explain(TEXTS[0], n_steps=0).bits for explainer in found]
    assert not np.allclose(*bits)


def test_byte_level_decoder_without_special_tokens(byte_level):
    explainer = TextExplainer(build(family("gpt2")), byte_level, layer=1)
    explainer.estimate_statistics(["the film was good", "dull plot"])
    first, second = explainer.explain(["the film 😀 was good", "dull"], **QUICK)
    assert [word.word for word in first.words] == ["the", "film", "😀", "was", "good"]
    assert np.allclose(second.bits, explainer.explain("dull", **QUICK).bits, atol=1e-4)


def test_no_padding_token_at_all(byte_level):
    tokenizer = copy.deepcopy(byte_level)
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match=r"padding token; set tokenizer\.pad_token"):
        TextExplainer(build(family("gpt2")), tokenizer)


def test_several_labels_at_once(wordpiece):
    config = family("bert")
    config.problem_type = "multi_label_classification"
    config.num_labels = 3
    explainer = TextExplainer(build(config), wordpiece)
    explainer.estimate_statistics(TEXTS)
    result = explainer.explain(TEXTS[0], target=1, return_trace=True, **QUICK)
    with torch.no_grad():
        inputs = wordpiece(TEXTS[0], return_tensors="pt")
        chance = explainer.classifier.model(**inputs).logits.sigmoid()[0, 1].item()
    assert result.target_probability == pytest.approx(chance, abs=1e-5)
    assert result.trace.probability[0] == pytest.approx(chance, abs=0.1)
    with torch.no_grad():
        explainer.classifier.model.classifier.bias.copy_(torch.tensor([2.0, 0.0, 4.0]))
        explainer.estimate_statistics(TEXTS)
        chances = explainer.classifier.model(**inputs).logits.sigmoid()[0].tolist()
    biased = explainer.explain(TEXTS[0], target=1, **QUICK)
    assert biased.other_labels == (
        ("LABEL_2", pytest.approx(chances[2], abs=1e-5)),
        ("LABEL_0", pytest.approx(chances[0], abs=1e-5)),
    )
    golds, labels = ["LABEL_2", "LABEL_0"], explainer.classifier.labels
    assert missed_labels([biased] * 2, golds, labels) == "The gold label is predicted for all 2 texts."
    with torch.no_grad():
        explainer.classifier.model.classifier.bias.copy_(torch.tensor([-2.0, -3.0, -4.0]))
        explainer.estimate_statistics(TEXTS)
    none = explainer.explain(TEXTS[0], **QUICK)
    assert none.multi_label and none.predicted == 0 and "(no label is predicted)" in none.headline()
    assert missed_labels([none] * 2, ["LABEL_0"] * 2, labels) == "The gold label is not predicted for 2 of 2 texts."
    other = explainer.explain(TEXTS[0], target=1, check=True, **QUICK)
    assert "(no label is predicted; the most probable one: LABEL_0 " in other.headline()
    assert "predicted class" not in other.answer


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        (0.6, [("A", 0.9)], "B 60.0% (also predicted: A 90.0%)"),
        (0.3, [("A", 0.9), ("C", 0.8)], "B 30.0% (predicted: A 90.0%, C 80.0%)"),
        (0.6, [(name, 0.9) for name in "ACDEF"], "B 60.0% (also predicted: A 90.0%, C 90.0%, D 90.0% and 2 more)"),
        (0.9, [], "B 90.0%"),
    ],
)
def test_other_predicted_labels_are_named(explainer, own, others, said):
    result = explainer.explain(TEXTS[0], **QUICK)
    best = 1 if not others else 0
    result = replace(
        result,
        target=1,
        target_label="B",
        target_probability=own,
        predicted=best,
        other_labels=tuple(others),
        multi_label=True,
    )
    assert result.headline().startswith(f"{said} · ")
    assert said.partition("(")[2].rstrip(")") in token_page([result])
    assert TextAttribution.from_dict(json.loads(result.to_json())) == result
    assert "To see which words decide" not in str(replace(result, target_probability=0.6))


def test_what_is_not_a_classifier(wordpiece):
    with pytest.raises(ValueError, match="Linear is not a sequence classifier"):
        TextExplainer(nn.Linear(2, 2), wordpiece)
    single = build(family("bert", num_labels=1))
    single.config.problem_type = "single_label_classification"
    with pytest.raises(ValueError, match="1 output, and its problem_type is 'single_label_classification'; expected"):
        TextExplainer(single, wordpiece)
    plain = transformers.BertModel(transformers.BertConfig(**SIZE))
    with pytest.raises(ValueError, match="BertModel is not a sequence classifier: expected logits"):
        TextExplainer(plain, wordpiece)


def test_a_layer_whose_activation_is_no_sequence(bert, wordpiece):
    with pytest.raises(ValueError, match=r"bert\.pooler returns an activation of shape \(1, 16\)"):
        TextExplainer(bert, wordpiece, layer="bert.pooler")


def test_from_pretrained(bert, wordpiece, tmp_path, explainer):
    bert.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    explainer.save_statistics(tmp_path / "statistics.safetensors")
    loaded = TextExplainer.from_pretrained(tmp_path, layer=2, statistics=tmp_path / "statistics.safetensors")
    assert not loaded.classifier.model.training
    assert np.allclose(loaded.explain(TEXTS[0], **QUICK).bits, explainer.explain(TEXTS[0], **QUICK).bits, atol=1e-4)
    half = TextExplainer.from_pretrained(tmp_path, layer=2, dtype=torch.bfloat16)
    half.estimate_statistics(TEXTS)
    assert np.isfinite(half.explain(TEXTS[0], **QUICK).bits).all()
    with pytest.raises(FileNotFoundError, match="no folder"):
        TextExplainer.from_pretrained(tmp_path / "nowhere")


def test_a_checkpoint_without_a_head_is_an_error(bert, wordpiece, tmp_path):
    bert.bert.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="not a trained classifier, its file lacks classifier"):
        load_classifier(tmp_path)


def test_a_checkpoint_without_a_tokenizer_is_an_error(bert, tmp_path):
    bert.save_pretrained(tmp_path)
    with pytest.raises((ValueError, OSError), match="tokenizer"):
        TextExplainer.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "config.json"])
@pytest.mark.parametrize("left", [0, 0.5])
def test_a_file_of_a_model_that_is_not_whole_is_named(tmp_path, bert, wordpiece, name, left):
    bert.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * left)])
    with pytest.raises(ValueError, match=f"model: {tmp_path / name} is damaged or not whole"):
        load_classifier(tmp_path)


def test_a_model_of_images_is_named(tmp_path, wordpiece):
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **size)).save_pretrained(
        tmp_path
    )
    wordpiece.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds ViTForImageClassification, expected a model of texts"):
        TextExplainer.from_pretrained(tmp_path)


def test_model_and_tokenizer_in_the_other_order_are_named(bert, wordpiece):
    with pytest.raises(
        TypeError, match="tokenizer is a BertForSequenceClassification, a model; expected the model first"
    ):
        TextExplainer(wordpiece, bert)
    assert TextExplainer(bert, wordpiece).model is bert


def test_one_file_is_no_statistics_of_several_layers(bert, wordpiece, tmp_path):
    (tmp_path / "film.json").write_text("{}")
    with pytest.raises(ValueError, match=r"film.json, one file, expected a folder of one for each of 4 layers"):
        TextExplainer(bert, wordpiece, statistics=tmp_path / "film.json")


def test_a_single_text_for_a_classifier_of_pairs_is_warned_of_once(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece, layer=2)
    explainer.classifier.labels = ["entailment", "neutral", "contradiction"]
    explainer.estimate_statistics(["the film was good"])
    with pytest.warns(UserWarning, match="no second text is given .* the classes entailment, neutral, contradiction"):
        explainer.explain("the film", n_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = explainer.explain("the film", n_steps=1)
        of_pair = explainer.explain("the film", "a plot", n_steps=1)
    with pytest.warns(UserWarning, match=r"pairs\[1\] is empty: of such a pair the model reads one text"):
        whole, half = explainer.explain(["the film", "the film"], ["a plot", ""], n_steps=1)
    # An empty second text was no doubt.
    assert half.doubt == again.doubt.replace("No second text is given (pairs, --pair)", "The second text is empty")
    assert half.doubt != again.doubt and not whole.doubt
    # Warnings come once, and a page of any text says so.
    assert "doubted_input" in findings(again) and "doubted_input" not in findings(of_pair)
    assert again.sentences.count(again.doubt) == 1 and not of_pair.doubt
    # An answer to another question than the model was trained on is not confirmed.
    surely = replace(again, check=DeletionCheck(1, 0.9, 0.1, 0.9, 0.9, 10), target_probability=0.9)
    assert surely.verdict == "" and "No verdict, because the model may expect another number of texts." in str(surely)
    assert "another number of texts" not in str(replace(surely, doubt=""))
    assert TextAttribution.from_dict(again.to_dict()) == again


def test_a_pair_for_a_classifier_of_single_texts_is_doubted_once(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece, layer=2)
    explainer.estimate_statistics(["the film was good"])
    doubt = "classes world, sports, business may be of single texts"
    for labels, doubted in (["world", "sports", "business"], True), (["LABEL_0", "LABEL_1", "LABEL_2"], False):
        explainer.classifier.labels = labels
        for expected in (doubted, False):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                explainer.explain("the film", "a plot", n_steps=1)
            assert any(doubt in str(warning.message) for warning in caught) == expected


def test_provenance_has_the_fingerprint_of_the_model_as_it_is(bert, wordpiece):
    explainer = TextExplainer(copy.deepcopy(bert), wordpiece, layer=2)
    explainer.estimate_statistics(["the film was good"])
    before = explainer.explain("the film", n_steps=1).provenance["model_fingerprint"]
    assert before == explainer.fingerprint()
    with torch.no_grad():
        explainer.model.classifier.weight.mul_(3)
    released = explainer.explain("the film", n_steps=1, preset="as_released")  # it does not use the statistics
    with pytest.warns(UserWarning, match="have changed since they were gathered"):
        results = [explainer.explain("the film", n_steps=1)]
    results += [explainer.explain("the film", n_steps=1), released]
    assert {result.provenance["model_fingerprint"] for result in results} == {explainer.fingerprint()} != {before}
    tokenizer = copy.deepcopy(wordpiece)
    changes = (
        lambda: setattr(explainer.classifier.tokenizer, "truncation_side", "left"),
        lambda: setattr(explainer.model.config, "hidden_act", "relu"),
        lambda: explainer.model.classifier.weight.data.neg_(),
    )
    explainer = TextExplainer(explainer.model, tokenizer)
    explainer.estimate_statistics(["the film was good"] * 8)
    for change in changes:
        change()
        with pytest.warns(UserWarning, match="configuration or tokenizer of the model have changed"):
            result = explainer.explain("the film", n_steps=1)
        assert result.provenance["model_fingerprint"] == explainer.fingerprint()
        explainer.estimate_statistics(["the film was good"] * 8)


def test_special_tokens_that_a_text_spells_out_are_told(bert, wordpiece):
    """ "[SEP]" in a text was read as one, silently."""
    explainer = TextExplainer(bert, wordpiece)
    with pytest.warns(UserWarning, match=r"texts\[1\] has '\[SEP\]', which the tokenizer reads as a special"):
        results = explainer.explain(["a good film", "a [SEP] bad film"], n_steps=1, n_samples=1)
    assert "[SEP]" not in [word.word for word in results[1].words]
    with pytest.warns(UserWarning, match=r"pairs\[0\] has '\[SEP\]'"):
        explainer.explain("a good film", "a [SEP] bad film", n_steps=1, n_samples=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain("a good film", n_steps=1, n_samples=1)
