"""What a reader is told of a text: words without a name, numbers of words, and claims that no bits bear out."""

import copy
import warnings

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from captum_iba._reading.mask_sentences import HARDLY_ANYTHING
from captum_iba._reading.text_parts import full_color, parts
from captum_iba._reading.words import ranked_words
from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.methods import attribute
from captum_iba.text import TextAttribution, TextExplainer, cached_statistics
from captum_iba.text.bottleneck import NEUTRAL_STATISTICS, tokens_with_bits
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import encode
from captum_iba.visualization import token_map
from tests.visualization.examples import attribution

from .conftest import SIZE

TEXTS = ["the film was good", "a bad, dull plot!", "not unbelievable"]
LONG = "the film was good . the plot was bad"
QUICK = {"n_steps": 2, "n_samples": 1}


# In a wide model paper's own beta leaves the mask as open as this one does here.
@pytest.mark.parametrize("settings", [{"preset": "paper", "beta": 1e-7}, {"learning_rate": 0.5}, {"n_steps": 3}])
def test_a_mask_that_is_not_closed_does_not_say_that_hardly_anything_is_needed(explainer, settings, tmp_path):
    """Ten floors were more than any token holds, so every text was said to need hardly anything."""
    for result in explainer.explain(TEXTS, **settings):
        assert result.open_bits == pytest.approx(7.17 * SIZE["hidden_size"], rel=0.01)
        assert 40 * result.unneeded_bits > result.open_bits
        assert HARDLY_ANYTHING not in str(result) and HARDLY_ANYTHING not in token_map(result)
        largest = max(part.depth for part in parts(result) if part.has_value)
        least = min(10 * result.unneeded_bits, result.open_bits - result.unneeded_bits)
        assert full_color([result]) == pytest.approx(max(1.0, largest, least))
        assert TextAttribution.load(result.save(tmp_path / "result.json")) == result


def test_a_mask_that_is_closed_says_so():
    result = attribution("a b", bits=[2.0, 3.0], unneeded_bits=1.0, open_bits=100.0)
    assert HARDLY_ANYTHING in str(result) and full_color([result]) == 10.0
    old = result.to_dict()
    del old["open_bits"]
    assert TextAttribution.from_dict(old).open_bits == 0.0


@pytest.mark.parametrize("granularity", ["token", "word", "feature"])
def test_what_is_not_needed_ends_with_the_unneeded_bits_in_every_granularity(bert, wordpiece, granularity):
    model = copy.deepcopy(bert)
    with torch.no_grad():
        model.classifier.weight.zero_()  # the decision needs nothing
    explainer = TextExplainer(model, wordpiece, layer=2)
    explainer.estimate_statistics(TEXTS * 4)
    result = explainer.explain("a bad, unbelievable film !", target=0, preset="paper", granularity=granularity)
    bits = [token.bits for token in result.tokens if not token.special]
    assert np.mean(bits) == pytest.approx(result.unneeded_bits, rel=0.25)


def roberta_tokens():
    """As of RoBERTa: bytes, and spans without the white space."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    core = Tokenizer(models.BPE({token: i for i, token in enumerate([*special, *alphabet])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize(
    ("text", "blank", "drawn"),
    [("a  b", " ", "␣"), ("a \n b", None, None), ("a\u00a0b", "\u00a0", "␣"), ("a\u3000 b", "\u3000", "␣")],
)
def test_a_word_of_white_space_has_a_name(byte_level, trims, text, blank, drawn):
    encoded = encode(roberta_tokens() if trims else byte_level, text, None, 40, ["input_ids"])
    names = [text[word.start : word.end] for word in encoded.word_spans]
    assert "" not in names and "".join(names).replace(" ", "") == text.replace(" ", "")
    ends = [0]
    for word in encoded.word_spans:
        assert word.start >= ends[-1]  # no character is in two words
        ends.append(word.end)
    if blank is not None:
        assert blank in names
        bits = np.zeros(len(encoded)).tolist()
        result = attribution(text)
        drawn_parts = parts(type(result)(**{**vars(result), "tokens": tokens_with_bits(encoded, bits, None)}))
        assert drawn in [part.text for part in drawn_parts if part.kind == "word"]


def left(tokenizer):
    other = copy.deepcopy(tokenizer)
    other.truncation_side = "left"
    return other


def test_words_before_which_a_text_is_truncated_have_no_number_in_it(bert, wordpiece):
    explainer = TextExplainer(bert, left(wordpiece), layer=2, max_length=6)
    explainer.estimate_statistics(TEXTS)
    result = explainer.explain(LONG, **QUICK)
    assert [word.word for word in result.words] == ["the", "plot", "was", "bad"]
    places = {word.name: word.place for words in ranked_words(result) for word in words}
    assert places["plot"] == "word 2 of those read" and "of those read)" in str(result)
    pair = explainer.explain(LONG, "good", **QUICK)
    places = {word.name: word.place for words in ranked_words(pair) for word in words}
    assert places == {
        "was": "first text, word 1 of those read",
        "bad": "first text, word 2 of those read",
        "good": "second text, word 1",
    }
    right = TextExplainer(bert, wordpiece, layer=2, max_length=6)
    right.estimate_statistics(TEXTS)
    assert "of those read" not in str(right.explain(LONG, **QUICK))
    assert "of those read" not in str(explainer.explain("  " + TEXTS[0], **QUICK))


def test_what_is_truncated_before_the_words_is_not_drawn(bert, wordpiece):
    classifier = Classifier(bert, left(wordpiece), max_length=6)
    (scores,) = attribute("random", classifier, LONG)
    explainer = TextExplainer(bert, left(wordpiece), layer=2, max_length=6)
    explainer.estimate_statistics(TEXTS)
    for drawn in (scores, explainer.explain(LONG, **QUICK)):
        assert "".join(part.text for part in parts(drawn) if part.kind != "special") == "… the plot was bad"


def test_statistics_of_one_string_are_refused(explainer, tmp_path):
    """Its characters were the texts."""
    with pytest.raises(TypeError, match="texts is one string, expected several texts"):
        cached_statistics(explainer, "the film was good", tmp_path)


@pytest.mark.parametrize(
    "layer", [[3, 1], ["bert.encoder.layer.2", 1], ["bert.encoder.layer.1", "bert.encoder.layer.1.attention"]]
)
def test_layers_that_are_not_in_the_order_in_which_they_run_are_refused(bert, wordpiece, layer):
    with pytest.raises(ValueError, match=r"layer has bert.encoder.layer.\d before .*, which runs first"):
        TextExplainer(bert, wordpiece, layer)
    assert len(TextExplainer(bert, wordpiece, layer[::-1]).layers) == 2
    with pytest.raises(ValueError, match="which runs first"):
        attribute("iba", Classifier(bert, wordpiece), TEXTS[0], layer=layer, **QUICK)


@pytest.mark.parametrize("names", [{1: "neg", 2: "neutral", 3: "pos"}, {"0": "neg", "1": "neutral", "2": "pos"}])
def test_labels_of_other_numbers_than_the_outputs_are_refused(bert, wordpiece, names):
    model = copy.deepcopy(bert)
    model.config.id2label = names
    with pytest.raises(ValueError, match=r"config.id2label .* has the key .*, expected the numbers of its 3 outputs"):
        TextExplainer(model, wordpiece)


@pytest.mark.parametrize("layer", [2, None])
def test_neutral_statistics_that_are_loaded_do_not_serve_pairs_or_lose_their_name(
    bert, wordpiece, layer, tmp_path, monkeypatch
):
    monkeypatch.setenv("CAPTUM_IBA_CACHE", str(tmp_path / "cache"))
    first = TextExplainer(bert, wordpiece, layer)
    neutral = first.use_neutral_statistics()
    expected = first.explain(TEXTS[0], **QUICK)
    expected_pair = first.explain(TEXTS[0], "good", **QUICK)
    first.use_neutral_statistics()
    first.save_statistics(tmp_path / "statistics")
    loaded = TextExplainer(bert, wordpiece, layer, statistics=tmp_path / "statistics")
    assert loaded.explain(TEXTS[0], **QUICK) == expected and "neutral texts" in expected.statistics
    with pytest.warns(UserWarning, match=NEUTRAL_STATISTICS[:24]):
        assert loaded.explain(TEXTS[0], "good", **QUICK) == expected_pair
    assert "neutral texts" in TextExplainer(bert, wordpiece, layer, neutral).explain(TEXTS[0], **QUICK).statistics
    loaded.estimate_statistics(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "neutral" not in loaded.explain(TEXTS[0], "good", **QUICK).statistics


def test_one_character_of_several_tokens_is_one_word():
    """NFKC makes four words of U+FDFA, which had one name, a quarter of the bits each, and were deleted in part."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    text = "\u0642\u0627\u0644 \u0627\u0644\u0646\u0628\u064a \ufdfa \u062e\u064a\u0631"
    core.train_from_iterator([text] * 20, trainers.UnigramTrainer(vocab_size=60, special_tokens=["<unk>", "<pad>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>")
    encoded = encode(tokenizer, text, None, 99, ["input_ids"])
    assert [text[word.start : word.end] for word in encoded.word_spans] == text.split()


@pytest.mark.parametrize("text", ["ab ba", "a b a b"])
def test_tokens_that_end_in_a_space_end_a_word(text):
    vocabulary = {token: number for number, token in enumerate(["a", "b", "\u0120", "b\u0120", "a\u0120"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[("b", "\u0120"), ("a", "\u0120")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoded = encode(PreTrainedTokenizerFast(tokenizer_object=core), text, None, 99, ["input_ids"])
    assert [text[word.start : word.end] for word in encoded.word_spans] == text.split()


def test_marks_without_width_are_no_truncated_text():
    explainer = TextExplainer.from_pretrained(embedded_model_path(), 9, embedded_statistics(9), max_length=8)
    text = "A dreadful, boring film that never ends."
    plain, marked = (explainer.explain(start + text, n_steps=2) for start in ("", "\ufeff"))
    assert plain.tokens_truncated and str(marked).replace("\ufeff", "") == str(plain)
    assert "\u2026 " not in token_map(marked)
