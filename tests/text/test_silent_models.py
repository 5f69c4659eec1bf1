"""Models and tokenizers by which texts were explained wrongly without a word."""

import copy
import dataclasses

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from captum_iba.methods import attribute, register_method, registry
from captum_iba.methods.lime import _word_numbers
from captum_iba.text import TextExplainer, encoding
from captum_iba.text.classifier import Classifier
from captum_iba.text.layers import find_blocks
from captum_iba.text.statistics import classifier_fingerprint

from .conftest import SIZE, build

TEXTS = ["the film was good", "a bad, dull plot!"]
QUICK = {"n_steps": 2, "n_samples": 1}


@pytest.fixture
def model(bert):
    """A model that a test may change."""
    return copy.deepcopy(bert)


class Wrapped(torch.nn.Module):
    """Hands on whatever it gets."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.config = model, model.config

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()

    def forward(self, *arguments, **named):
        return self.inner(*arguments, **named)


def own_probabilities(model, tokenizer, *texts):
    """The user's own call."""
    with torch.no_grad():
        return model(**tokenizer(*texts, return_tensors="pt")).logits.softmax(-1)[0].numpy()


def wrappers():
    yield "own", Wrapped
    yield "compiled", lambda model: torch.compile(model, backend="eager")
    for kind in ("SEQ_CLS", None):

        def adapted(model, kind=kind):
            peft = pytest.importorskip("peft")
            return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"], task_type=kind)).eval()

        yield f"peft {kind}", adapted


@pytest.mark.parametrize(("name", "wrap"), list(wrappers()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrapped_model_gets_attention_mask_and_segments(model, wordpiece, name, wrap):
    expected = own_probabilities(model, wordpiece, "good film", "bad plot")
    classifier = Classifier(wrap(model), wordpiece)
    assert classifier.input_names == ("input_ids", "attention_mask", "token_type_ids")
    encoded = classifier.encode(["good film", "the film was not good at all"], ["bad plot", "dull"])
    assert classifier.probabilities(classifier.tensors(encoded))[0].numpy() == pytest.approx(expected, abs=1e-5)


SMALL = {"vocab_size": 400, "num_labels": 3, "pad_token_id": 0}
FOUR = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
PADDING_MATTERS = {
    "xlnet": lambda: transformers.XLNetConfig(d_model=16, n_layer=2, n_head=2, d_inner=32, **SMALL),
    "fnet": lambda: transformers.FNetConfig(**FOUR, **SMALL),
    "convbert": lambda: transformers.ConvBertConfig(embedding_size=16, **FOUR, **SMALL),
}


@pytest.mark.parametrize("family", PADDING_MATTERS)
def test_texts_of_other_lengths_share_no_pass_where_padding_matters(wordpiece, family):
    model = build(PADDING_MATTERS[family]())
    classifier = Classifier(model, wordpiece)
    assert classifier.padding_matters
    texts = ["bad film", "the film was not good, a dull plot", "good film"]
    for name in ("random", "lime", "leave_one_out"):
        options = {"n_samples": 30} if name == "lime" else {}
        together = attribute(name, classifier, texts, batch_size=16, **options)
        for text, scores in zip(texts, together, strict=True):
            alone = attribute(name, classifier, text, batch_size=1, **options)[0]
            assert scores.target == alone.target == own_probabilities(model, wordpiece, text).argmax()
            assert scores.tokens == pytest.approx(alone.tokens, abs=1e-5)


def test_padding_does_not_matter_to_bert(bert, wordpiece):
    assert not Classifier(bert, wordpiece).padding_matters


def test_a_bottleneck_and_gradients_are_alone_where_padding_matters(wordpiece):
    explainer = TextExplainer(build(PADDING_MATTERS["convbert"]()), wordpiece, layer=1)
    explainer.estimate_statistics(TEXTS)
    texts = ["bad film", "the film was not good, a dull plot"]
    for text, together in zip(texts, explainer.explain(texts, **QUICK), strict=True):
        assert together.bits == pytest.approx(explainer.explain(text, **QUICK).bits, rel=1e-4, abs=1e-4)
    for text, together in zip(texts, attribute("saliency", explainer.classifier, texts, target=1), strict=True):
        alone = attribute("saliency", explainer.classifier, text, target=1)[0]
        assert together.tokens == pytest.approx(alone.tokens, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    "texts", [["bad film"], ["bad film a", "good film b", "a film the", "not film bad", "a b film"]]
)
def test_gradients_of_a_model_that_transposes_its_ids_are_refused(wordpiece, texts):
    classifier = Classifier(build(PADDING_MATTERS["xlnet"]()), wordpiece)
    with pytest.raises(ValueError, match="XLNet.* does not embed the token ids as it gets them"):
        attribute("saliency", classifier, texts, target=1)


SEP = 3
BOTH = {"vocab_size": 400, "d_model": 16, "num_labels": 3, "pad_token_id": 0, "eos_token_id": SEP}
ENCODER_DECODERS = {
    "bart": lambda: transformers.BartConfig(
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        bos_token_id=2,
        decoder_start_token_id=SEP,
        scale_embedding=True,
        **BOTH,
    ),
    "t5": lambda: transformers.T5Config(
        d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0, dropout_rate=0.0, **BOTH
    ),
}


@pytest.mark.parametrize(
    ("family", "layer"),
    [
        ("bart", "model.decoder.layers.0"),
        ("bart", "model.decoder.embed_tokens"),
        ("bart", "model"),
        ("t5", "transformer.decoder.block.1"),
    ],
)
def test_layers_of_a_decoder_that_is_one_token_late_are_refused(wordpiece, family, layer):
    model = build(ENCODER_DECODERS[family]())
    classifier = Classifier(model, wordpiece)
    for method in ("iba", "grad_cam", "conductance"):
        with pytest.raises(ValueError, match=f"layer {layer} gives activations of the decoder.* layer of the encoder"):
            attribute(method, classifier, TEXTS, target=1, layer=layer)
    with pytest.raises(ValueError, match="activations of the decoder"):
        TextExplainer(model, wordpiece, layer=layer)
    name = "model.encoder" if family == "bart" else "transformer.encoder"
    attribute("grad_cam", classifier, TEXTS, target=1, layer=name)


@pytest.mark.parametrize("method", ["grad_cam", "conductance"])
def test_rows_that_are_no_tokens_are_refused(wordpiece, method):
    squeeze = transformers.SqueezeBertConfig(**{**SMALL, **FOUR}, embedding_size=16)
    convolution = PADDING_MATTERS["convbert"]()
    for config, layer in (
        (squeeze, "transformer.encoder.layers.1.attention.query"),  # (B, D, T)
        (squeeze, 1),
        (convolution, "convbert.encoder.layer.1.attention.self.key_conv_attn_layer"),
    ):
        with pytest.raises(ValueError, match="layer .* expected one row per token|layer .*.layers.0 is never called"):
            attribute(method, Classifier(build(config), wordpiece), TEXTS, target=1, layer=layer)


@pytest.mark.parametrize("method", ["grad_cam", "conductance"])
def test_virtual_tokens_of_prompt_tuning_are_no_tokens(model, wordpiece, method):
    peft = pytest.importorskip("peft")
    tuned = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4)).eval()
    with pytest.raises(ValueError, match=r"\(1, 8, 16\), expected one row per token, \(1, 4, features\)"):
        attribute(method, Classifier(tuned, wordpiece), TEXTS, target=1)


@pytest.mark.parametrize("method", ["grad_cam", "conductance"])
def test_padding_of_attention_windows_behind_the_tokens_is_none(wordpiece, method):
    config = transformers.LongformerConfig(**{**SIZE, **FOUR}, attention_window=4, sep_token_id=SEP)
    attribute(method, Classifier(build(config), wordpiece), TEXTS, target=1, layer=1)


def test_embeddings_in_a_tuple_are_refused(wordpiece):
    model = build(transformers.IBertConfig(**{**SIZE, **FOUR}))
    with pytest.raises(ValueError, match="IBert.* does not embed the token ids .* in one tensor"):
        attribute("ig", Classifier(model, wordpiece), TEXTS, target=1)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_gradients_of_encoder_decoders_go_through_both_embeddings(wordpiece, family):
    model = build(ENCODER_DECODERS[family]())
    classifier = Classifier(model, wordpiece)
    (encoded,) = classifier.encode(["the film was good"], [None])
    inputs = classifier.tensors([encoded])
    empty = inputs["input_ids"].clone()
    empty[:, ~torch.tensor(encoded.special)] = 0
    with torch.no_grad(), classifier.with_padding_token():
        whole, none = (classifier.logits(ids, inputs["attention_mask"])[0, 1] for ids in (inputs["input_ids"], empty))
    for name in ("ig", "conductance"):
        scores = attribute(name, classifier, encoded.text, target=1, n_steps=300, batch_size=512)[0].tokens
        assert (scores[1:-1] != 0).all()
        if name == "ig":  # conductance of the encoder's block leaves out what goes by the decoder
            assert scores.sum() == pytest.approx(float(whole - none), rel=0.02, abs=1e-3)


def test_the_logit_of_several_labels_is_no_log_probability(model, wordpiece):
    model.config.problem_type = "multi_label_classification"
    classifier = Classifier(model, wordpiece)
    (encoded,) = classifier.encode(["the film was good"], [None])
    inputs = classifier.tensors([encoded])
    with torch.no_grad():
        raw = model(**inputs).logits
        assert torch.equal(classifier.logits(*inputs.values()), raw)
    assert classifier.probabilities(inputs).numpy() == pytest.approx(raw.sigmoid().numpy())
    ids = inputs["input_ids"].masked_fill(~torch.tensor([encoded.special]), 0)
    with torch.no_grad():
        change = float(raw[0, 1] - model(**{**inputs, "input_ids": ids}).logits[0, 1])
    found = attribute("ig", classifier, encoded.text, target=1, n_steps=300, batch_size=512)[0].tokens
    assert found.sum() == pytest.approx(change, rel=0.01, abs=1e-3)


def decoder_with(tokenizer_settings, pad_in_configuration, ends_text):
    """A decoder whose padding token is its end-of-text token, and a tokenizer that puts it behind texts or does not."""
    words = ["<end>", "<start>", "<unk>", *["a", "good", "bad", "film", "very", "this", "is", "not", "really", "plot"]]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends_text:
        core.post_processor = processors.TemplateProcessing(
            single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 0)]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<end>",
        pad_token="<end>",
        model_input_names=["input_ids", "attention_mask"],
        **tokenizer_settings,
    )
    config = transformers.Qwen2Config(
        **{**FOUR, "vocab_size": len(words), "num_labels": 3, "num_key_value_heads": 2},
        pad_token_id=pad_in_configuration,
        eos_token_id=0,
    )
    return build(config), tokenizer


@pytest.mark.parametrize("pad_in_configuration", [None, 0])
def test_a_text_that_ends_in_the_padding_token_is_read_as_by_the_model_itself(pad_in_configuration):
    model, tokenizer = decoder_with({"unk_token": "<unk>"}, pad_in_configuration, ends_text=True)
    classifier = Classifier(model, tokenizer)
    encoded = classifier.encode(["this is not a good film", "bad"], [None, None])
    with classifier.with_padding_token():
        together = classifier.probabilities(classifier.tensors(encoded)).numpy()
    for one, probabilities in zip(encoded, together, strict=True):
        assert probabilities == pytest.approx(own_probabilities(model, tokenizer, one.text), abs=1e-5)
    assert model.config.pad_token_id == pad_in_configuration
    for name in ("saliency", "lime", "leave_one_out"):
        both = attribute(name, classifier, ["this is not a good film", "bad"], target=1)
        alone = attribute(name, classifier, "bad", target=1)[0]
        assert both[1].tokens == pytest.approx(alone.tokens, rel=1e-4, abs=1e-5)


def test_a_reference_token_that_is_the_padding_token_is_not_the_end_of_the_text():
    model, tokenizer = decoder_with({}, 0, ends_text=False)
    classifier = Classifier(model, tokenizer)
    text = "this is not a good film"
    ids = tokenizer(text, return_tensors="pt").input_ids

    def probability(ids):
        with torch.no_grad():
            hidden = model.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            return float(model.score(hidden[:, -1]).softmax(-1)[0, 1])

    expected = []
    for i in range(ids.shape[1]):
        without = ids.clone()
        without[0, i] = 0
        expected.append(probability(ids) - probability(without))
    scores = attribute("leave_one_out", classifier, text, target=1, removal="mask")[0]
    assert scores.tokens == pytest.approx(expected, abs=1e-5)


def test_a_reference_token_that_ends_every_text_is_refused():
    classifier = Classifier(*decoder_with({}, 0, ends_text=True))
    with pytest.raises(ValueError, match="no unknown token, and its padding token ends every text"):
        attribute("leave_one_out", classifier, "good film", target=1, removal="mask")
    attribute("leave_one_out", classifier, "good film", target=1)  # which deletes, and needs no such token


def test_another_activation_or_number_of_heads_is_another_model(bert, wordpiece):
    expected = classifier_fingerprint(Classifier(bert, wordpiece))
    for change in ({"hidden_act": "relu"}, {"num_attention_heads": 4}):
        other = build(transformers.BertConfig(**{**SIZE, **change}, num_labels=3))
        other.load_state_dict(bert.state_dict())
        assert classifier_fingerprint(Classifier(other, wordpiece)) != expected
    same = build(transformers.BertConfig(**SIZE, num_labels=3))
    same.load_state_dict(bert.state_dict())
    assert classifier_fingerprint(Classifier(same, wordpiece)) == expected  # labels are only names


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused(bert, wordpiece, value):
    register_method(
        "broken", lambda task: [[value] * len(one) for one in task.encoded], signed=False, description="Broken."
    )
    try:
        with pytest.raises(ValueError, match="'broken' gave NaN or infinite scores for the text 'good film'"):
            attribute("broken", Classifier(bert, wordpiece), "good film")
    finally:
        registry.METHODS.pop("broken")


def test_several_quantities_are_no_classes(model, wordpiece):
    model.config.problem_type = "regression"
    explainer = TextExplainer(model, wordpiece)
    with pytest.raises(ValueError, match="target is None, expected one of the outputs of the model: 0 "):
        explainer.explain("good film")
    with pytest.raises(ValueError, match="target is None, expected one of the outputs of the model: 0 "):
        attribute("random", explainer, "good film")


def test_a_label_of_two_classes_is_no_target(model, wordpiece):
    model.config.id2label = {0: "other", 1: "good", 2: "other"}
    with pytest.raises(ValueError, match=r"target is 'other', the label of 2 classes, .* by its number: 0 \(other\)"):
        TextExplainer(model, wordpiece, layer=1).explain("good film", target="other", **QUICK)
    assert TextExplainer(model, wordpiece, layer=1).explain("good film", target=2, **QUICK).target == 2


def test_the_points_of_gradient_shap_do_not_depend_on_the_size_of_a_pass(bert, wordpiece):
    classifier = Classifier(bert, wordpiece)
    found = [
        attribute("gradient_shap", classifier, TEXTS, target=1, batch_size=size, n_samples=20) for size in (1, 7, 64)
    ]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert two.tokens == pytest.approx(one.tokens, rel=1e-4, abs=1e-6)


def test_a_length_without_room_for_special_tokens_is_refused(bert, wordpiece):
    with pytest.raises(ValueError, match="max_length: 1 leaves no room beside the special tokens"):
        TextExplainer(bert, wordpiece, layer=1, max_length=1).explain("good film", **QUICK)


def test_bow_takes_words_together_that_byte_level_tokens_spell_in_two_ways(byte_level, wordpiece):
    def kinds(tokenizer, text):
        return _word_numbers(encoding.encode(tokenizer, text, None, 99, ["input_ids"]), True)

    assert kinds(byte_level, "film was film was the film") == [0, 1, 0, 1, 2, 0]
    assert kinds(wordpiece, "Good film good FILM") == [0, 1, 0, 1]


def test_a_combining_mark_belongs_to_its_word():
    core = Tokenizer(models.WordLevel({"cafe": 0, "fin": 1, "?": 2}, unk_token="?"))
    core.normalizer = normalizers.BertNormalizer(strip_accents=True)
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?", pad_token="?")
    text = "cafe\u0301 fin"
    encoded = encoding.encode(tokenizer, text, None, 99, ["input_ids"])
    assert [encoded.spelling(0, *span) for span in encoded.spans] == ["cafe\u0301", "fin"]


def test_an_infinite_value_is_read_back_as_it_was(explainer, tmp_path):
    result = explainer.explain("good film", **QUICK)
    values = [float("inf"), float("-inf")]
    tokens = [dataclasses.replace(token, bits=bits) for token, bits in zip(result.tokens, values, strict=False)]
    cut = dataclasses.replace(result, tokens=tuple(tokens), effects=(), without=(), removal_order=(), without_first=())
    path = cut.save(tmp_path / "result.json")
    assert [token.bits for token in type(result).load(path).tokens] == values


def test_a_text_that_begins_with_the_padding_token_does_not_end_in_it(wordpiece):
    """GPT-2's one special token begins a text where the tokenizer adds it, and is the padding token, too."""
    number = wordpiece.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=SIZE["vocab_size"],
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=64,
            pad_token_id=number,
            num_labels=2,
        )
        model = transformers.GPT2ForSequenceClassification(config).eval()
    for template, ends in ((f"{wordpiece.pad_token} $A", False), (f"$A {wordpiece.pad_token}", True)):
        tokenizer = copy.deepcopy(wordpiece)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=template, pair=template + " $B", special_tokens=[(wordpiece.pad_token, number)]
        )
        assert Classifier(model, tokenizer).ends_in_padding is ends


def test_blocks_in_lists_of_their_parts_are_no_blocks():
    """The attentions of XLM were taken for its blocks, and what passes beside them for noise."""
    config = transformers.XLMConfig(vocab_size=30, emb_dim=16, n_layers=3, n_heads=2)
    with pytest.raises(ValueError, match="spread over transformer.attentions, .*transformer.layer_norm2, expected one"):
        find_blocks(transformers.XLMForSequenceClassification(config))
