"""Texts: bits that were wrong, or models taken that cannot be explained, without a word."""

import copy
import json
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers
from transformers.modeling_outputs import SequenceClassifierOutput
from typer.testing import CliRunner

from captum_iba import FeatureStatistics, cli
from captum_iba._explain.fingerprint import tokenizer_fingerprint
from captum_iba.compare.explain_many import explain_texts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.methods import AttributionTask, attribute, score
from captum_iba.text import TextExplainer, cached_statistics, encoding, explain_layers
from captum_iba.text import bottleneck as bottleneck_module
from captum_iba.text.classifier import Classifier
from captum_iba.text.statistics import classifier_fingerprint

from .bag_of_tokens import BagConfig, bag_of_tokens
from .conftest import SIZE, build, built

TEXTS = ["the film was good", "a bad, dull plot!"]
QUICK = {"n_steps": 2, "n_samples": 1}
OTHER_MODEL = "statistics: those of layer .* were gathered with another model"


@pytest.fixture
def model(bert):
    """A model that a test may change."""
    return copy.deepcopy(bert)


def changed(model):
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.mul_(1.5)
    return model


def another_tokenizer(tokenizer):
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["dull plot"])
    return other


def test_two_models_in_memory_have_statistics_of_their_own(bert, model, wordpiece, tmp_path):
    first = TextExplainer(bert, wordpiece, layer=2)
    second = TextExplainer(changed(model), wordpiece, layer=2)
    paths = [cached_statistics(one, TEXTS, tmp_path) for one in (first, second)]
    assert [found for _, found in paths] == [False, False]
    assert not torch.equal(first.statistics[0].mean, second.statistics[0].mean)


def test_a_model_changed_in_memory_misses_the_cache(model, wordpiece, tmp_path):
    explainer = TextExplainer(model, wordpiece, layer=2)
    cached_statistics(explainer, TEXTS, tmp_path)
    assert cached_statistics(explainer, TEXTS, tmp_path)[1]
    model.bert.encoder.layer[0].output.dense.weight.data.mul_(1.5)  # no version counter sees this
    assert not cached_statistics(explainer, TEXTS, tmp_path)[1]


def test_another_tokenizer_or_precision_misses_the_cache(bert, model, wordpiece, tmp_path):
    cached_statistics(TextExplainer(bert, wordpiece, layer=2), TEXTS, tmp_path)
    for one, tokenizer in ((bert, another_tokenizer(wordpiece)), (model.bfloat16(), wordpiece)):
        assert not cached_statistics(TextExplainer(one, tokenizer, layer=2), TEXTS, tmp_path)[1]


def test_a_fingerprint_is_the_same_after_loading_and_calls(bert, wordpiece, tmp_path):
    explainer = TextExplainer(bert, wordpiece, layer=2, max_length=4)
    before = explainer.fingerprint()
    explainer.estimate_statistics(["the film was not good at all", "bad"])  # cuts, which the tokenizer remembers
    bert.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    assert explainer.fingerprint() == before == TextExplainer.from_pretrained(tmp_path).fingerprint()


def test_statistics_of_another_model_are_refused(bert, model, wordpiece, tmp_path):
    explainer, path = TextExplainer(bert, wordpiece, layer=2), tmp_path / "statistics.safetensors"
    explainer.estimate_statistics(TEXTS)
    explainer.save_statistics(path)
    assert FeatureStatistics.load(path).model == explainer.fingerprint()
    for one, tokenizer in ((changed(model), wordpiece), (bert, another_tokenizer(wordpiece))):
        other = TextExplainer(one, tokenizer, layer=2)
        with pytest.raises(ValueError, match=OTHER_MODEL):
            other.load_statistics(path)
        with pytest.raises(ValueError, match=OTHER_MODEL):
            other.statistics = explainer.statistics
        with pytest.raises(ValueError, match=OTHER_MODEL):
            TextExplainer(one, tokenizer, layer=2, statistics=path)


def test_explain_refuses_a_file_of_statistics_of_another_model(bert, model, wordpiece, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, one in zip(folders, (bert, changed(model)), strict=True):
        one.save_pretrained(folder)
        wordpiece.save_pretrained(folder)
    explainer, path = TextExplainer.from_pretrained(folders[0], layer=2), tmp_path / "statistics.safetensors"
    explainer.estimate_statistics(TEXTS)
    explainer.save_statistics(path)
    command = ["explain", "good film", "--layer", "2", "--steps", "1", "--statistics", str(path), "--model"]
    assert CliRunner().invoke(cli.app, [*command, str(folders[0])]).exit_code == 0
    refused = CliRunner().invoke(cli.app, [*command, str(folders[1])])
    assert refused.exit_code == 1
    said = " ".join(refused.stderr.split())
    assert "were gathered with another model" in said and "--statistics-from" in said


def test_statistics_of_an_unknown_model_are_accepted(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece, layer=2)
    (one,) = explainer.estimate_statistics(TEXTS)
    one.model = None
    assert TextExplainer(bert, wordpiece, layer=2, statistics=one).statistics == (one,)


def test_saved_results_of_other_adapters_tokenizers_and_labels_are_not_used(model, wordpiece, tmp_path):
    def kept(one, tokenizer):
        explainer = TextExplainer(one, tokenizer, layer=2, statistics=statistics)
        return explain_texts(LocalExecutor(), explainer, TEXTS, keep=tmp_path, **QUICK), len(list(tmp_path.iterdir()))

    (statistics,) = TextExplainer(model, wordpiece, layer=2).estimate_statistics(TEXTS)
    statistics.model = None
    assert [kept(model, wordpiece)[1], kept(model, wordpiece)[1]] == [1, 1]
    assert kept(model, another_tokenizer(wordpiece))[1] == 2
    model.config.id2label = {0: "A", 1: "B", 2: "C"}
    found, files = kept(model, wordpiece)
    assert files == 3 and found[0].target_label in "ABC"


def test_adapters_have_statistics_of_their_own(model, wordpiece, tmp_path):
    peft = pytest.importorskip("peft")
    configuration = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    both = peft.get_peft_model(model, configuration, adapter_name="first").eval()
    explainer = TextExplainer(both, wordpiece, layer="base_model.model.bert.encoder.layer.1")
    alone = explainer.fingerprint()
    both.add_adapter("second", configuration)
    assert explainer.fingerprint() == alone  # what is loaded and not active does not count
    for name, weight in both.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5 if "first" in name else 1.0)
    prints, means = [], []
    for name in ("first", "second"):
        both.set_adapter(name)
        assert not cached_statistics(explainer, TEXTS, tmp_path)[1], name
        prints.append(explainer.fingerprint())
        means.append(explainer.statistics[0].mean)
    assert not torch.equal(*means)
    with pytest.raises(ValueError, match=r"another model .*\(weights, adapter, .* differ\)"):
        both.set_adapter("first")
        explainer.statistics = explainer.statistics
    with pytest.warns(UserWarning, match="have changed since they were gathered"):
        explainer.explain(TEXTS, **QUICK)
    both.set_adapter("second")
    with both.disable_adapter():
        assert explainer.fingerprint() not in prints
    both.set_adapter("first")
    assert explainer.fingerprint() == prints[0] and cached_statistics(explainer, TEXTS, tmp_path)[1]
    both.merge_adapter()
    assert explainer.fingerprint() not in prints


def test_a_fingerprint_reads_weights_that_accelerate_offloads(bert, model, wordpiece):
    accelerate = pytest.importorskip("accelerate")
    explainer = TextExplainer(bert, wordpiece)
    expected = explainer.fingerprint()
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert next(offloaded.parameters()).is_meta
    elsewhere = TextExplainer(offloaded, wordpiece)
    assert elsewhere.fingerprint() == expected
    elsewhere.estimate_statistics(TEXTS)


def test_old_files_of_statistics_are_read(explainer, tmp_path):
    from safetensors import safe_open

    explainer.statistics[0].model = None
    explainer.save_statistics(tmp_path / "old.safetensors")
    with safe_open(tmp_path / "old.safetensors", framework="pt") as file:
        assert "model" not in json.loads(json.dumps(file.metadata()))
    assert explainer.load_statistics(tmp_path / "old.safetensors")[0].model is None
    assert classifier_fingerprint(explainer.classifier) == explainer.fingerprint()


def test_encoding_goes_through_the_words_a_fixed_number_of_times(wordpiece, monkeypatch):
    """Looking for each word among all of them takes 4 s for 16,000 tokens, the tokenizer 0.07 s."""

    class Watched(tuple):
        rounds = 0

        def __iter__(self):
            Watched.rounds += 1
            return super().__iter__()

        def __contains__(self, word):
            Watched.rounds += 1
            return super().__contains__(word)

        def count(self, word):
            Watched.rounds += 1
            return super().count(word)

        def index(self, *arguments):
            Watched.rounds += 1
            return super().index(*arguments)

    real = encoding._number_words
    monkeypatch.setattr(encoding, "_number_words", lambda *arguments: Watched(real(*arguments)))
    rounds = []
    for length in (10, 200):
        Watched.rounds = 0
        encoding.encode(wordpiece, "unbelievable film " * length, None, 10**6, ["input_ids"])
        rounds.append(Watched.rounds)
    assert rounds[0] == rounds[1] < 5


HEADS = {
    "BertLMHeadModel": r"causal language model.*logits\[:, -1\]",
    "BertModel": "a base model without a head",
}


@pytest.mark.parametrize("name", HEADS)
def test_what_is_no_sequence_classifier_is_refused_at_construction(name, wordpiece):
    model = getattr(transformers, name)(transformers.BertConfig(**SIZE, is_decoder=name == "BertLMHeadModel"))
    says = f"model: {name} is not a sequence classifier: .*{HEADS[name]}.*"
    with pytest.raises(ValueError, match=says) as caught:
        TextExplainer(model, wordpiece)
    assert "InformationBottleneckAttribution explains it" in str(caught.value)
    with pytest.raises(ValueError, match="is not a sequence classifier"):
        Classifier(model, wordpiece)


def test_a_model_that_generates_text_is_refused_at_construction(wordpiece):
    config = transformers.T5Config(vocab_size=400, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is not .*generates text"):
        TextExplainer(transformers.T5ForConditionalGeneration(config), wordpiece)


def test_a_classifier_by_any_name_is_accepted_and_left_as_it_was(wordpiece):
    class MyCausalLMThing(type(bag_of_tokens())):
        pass

    model = MyCausalLMThing(BagConfig(num_labels=2, pad_token_id=0)).train()
    before = torch.random.get_rng_state()
    explainer = TextExplainer(model, wordpiece)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert explainer.classifier.labels == ["LABEL_0", "LABEL_1"]


def test_a_classifier_of_other_classes_than_it_says_is_refused(wordpiece):
    class Wrong(type(bag_of_tokens())):
        def forward(self, input_ids, attention_mask):
            return SequenceClassifierOutput(logits=torch.zeros(len(input_ids), 5))

    class Tuples(type(bag_of_tokens())):
        def forward(self, input_ids, attention_mask):
            return (torch.zeros(len(input_ids), 2),)

    config = BagConfig(num_labels=2, pad_token_id=0)
    with pytest.raises(ValueError, match=r"expected logits of shape \(1, 2\), got \(1, 5\)"):
        Classifier(Wrong(config), wordpiece)
    with pytest.raises(ValueError, match=r"gives a tuple, .*return_dict = True"):
        Classifier(Tuples(config), wordpiece)
    reader = built("BertForQuestionAnswering")
    reader.config.return_dict = False
    with pytest.raises(ValueError, match=r"BertForQuestionAnswering gives a tuple, .*return_dict = True$"):
        Classifier(reader, wordpiece)


def test_layers_with_the_positions_first_are_refused_at_construction(wordpiece):
    config = transformers.XLNetConfig(d_model=16, n_layer=2, n_head=2, d_inner=32, vocab_size=400)
    with pytest.raises(
        ValueError, match=r"layer transformer\.layer\.0 .*positions come first, \(T, B, D\), as in XLNet"
    ):
        TextExplainer(build(config), wordpiece)


def longformer():
    return build(transformers.LongformerConfig(**{**SIZE, "max_position_embeddings": 64}, attention_window=4))


def test_padding_that_longformer_adds_inside_does_not_count(wordpiece):
    model, texts = longformer(), ["the film was good", "bad"]  # 6 and 3 tokens, in windows of 4
    explainer = TextExplainer(model, wordpiece, layer=2)
    (found,) = explainer.estimate_statistics(texts)
    rows, seen = [], []
    hook = model.longformer.encoder.layer[1].register_forward_hook(lambda *a: seen.append(a[2][0]))
    for text in texts:
        with torch.no_grad():
            length = model(**wordpiece(text, return_tensors="pt")).logits is not None and len(wordpiece(text).input_ids)
        rows.append(seen.pop()[0, :length])
    hook.remove()
    assert found.count == sum(map(len, rows))
    torch.testing.assert_close(found.mean, torch.cat(rows).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*not replayed")
def test_longformer_is_explained_whatever_is_beside_a_text(wordpiece):
    explainer = TextExplainer(longformer(), wordpiece)
    explainer.estimate_statistics(TEXTS)
    texts = ["the film was good, not bad", "dull"]
    for text, together in zip(texts, explainer.explain(texts, **QUICK), strict=True):
        alone = explainer.explain(text, **QUICK)
        assert len(alone.bits) == len(wordpiece(text).input_ids)
        assert alone.bits == pytest.approx(together.bits, rel=1e-3, abs=1e-3)


def test_iba_in_a_comparison_tokenises_once_and_keeps_one_explainer(bert, wordpiece, monkeypatch):
    made, encoded = [], []
    real, real_encode = bottleneck_module.InformationBottleneckAttribution, Classifier.encode

    class Counted(real):
        def __init__(self, *arguments, **others):
            super().__init__(*arguments, **others)
            made.append(self)

    def encode(self, texts, pairs):
        encoded.extend(texts)
        return real_encode(self, texts, pairs)

    classifier = Classifier(bert, wordpiece)
    layers = TextExplainer(bert, wordpiece)
    statistics = dict(zip((b.key for b in layers.layers), layers.estimate_statistics(TEXTS), strict=True))
    monkeypatch.setattr(bottleneck_module, "InformationBottleneckAttribution", Counted)
    monkeypatch.setattr(Classifier, "encode", encode)
    chunks = [classifier.encode(chunk, [None] * 2) for chunk in (TEXTS, ["good", "not bad"])]
    for chunk in chunks:
        task = AttributionTask(classifier, chunk, [0, 1], statistics=lambda block: statistics[block.key])
        score("iba", task, **{"n_steps": 2})
    assert len(made) == 1 and encoded == [*TEXTS, "good", "not bad"]
    # Other statistics, or none, are another explainer.
    other = {key: copy.deepcopy(one) for key, one in statistics.items()}
    score("iba", AttributionTask(classifier, chunks[0], [0, 1], statistics=lambda block: other[block.key]), n_steps=1)
    assert len(made) == 2


def test_iba_as_a_method_gives_the_bits_of_the_explainer_for_texts_and_pairs_mixed(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece)
    explainer.estimate_statistics(TEXTS)
    for pairs in (None, ["the plot", "good"]):
        expected = explainer.explain(TEXTS, pairs, target=[0, 1], n_steps=2)
        found = attribute(
            "iba", Classifier(bert, wordpiece), TEXTS, pairs, [0, 1], statistics=explainer.statistics, n_steps=2
        )
        for scores, result in zip(found, expected, strict=True):
            assert scores.tokens == pytest.approx(result.bits, rel=1e-4, abs=1e-4)


def test_statistics_of_another_model_are_refused_by_a_method(bert, model, wordpiece):
    statistics = TextExplainer(bert, wordpiece).estimate_statistics(TEXTS)
    with pytest.raises(ValueError, match=OTHER_MODEL):
        attribute("iba", Classifier(changed(model), wordpiece), "good", statistics=statistics)


def test_a_step_of_a_fused_optimizer_is_a_change(model, wordpiece):
    """It raises no version of the weights."""
    explainer = TextExplainer(model, wordpiece, layer=2)
    explainer.estimate_statistics(TEXTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(torch.tensor([[2, 5, 6, 3]])).logits.sum().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="have changed since they were gathered"):
        explainer.explain(TEXTS, **QUICK)


def test_special_tokens_that_are_split_are_another_tokenizer(wordpiece):
    other = copy.deepcopy(wordpiece)
    other.split_special_tokens = True
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(wordpiece)


def test_methods_cannot_change_the_texts_of_others(bert, wordpiece):
    (encoded,) = Classifier(bert, wordpiece).encode(["the film"], [None])
    with pytest.raises(TypeError, match="item assignment"):
        encoded.inputs["input_ids"][1] = 0


def test_a_seed_of_numpy_is_saved(bert, wordpiece):
    result = TextExplainer(bert, wordpiece, layer=2).explain("the film", seed=np.int64(3), **QUICK)
    assert '"seed": 3' in result.to_json()


def test_layers_of_one_string_are_refused(bert, wordpiece):
    with pytest.raises(TypeError, match="texts is a string"):
        explain_layers([TextExplainer(bert, wordpiece, layer=2)], "the film")


def test_a_model_changed_after_its_statistics_were_gathered_is_warned_of(model, wordpiece):
    explainer = TextExplainer(model, wordpiece, layer=2)
    explainer.estimate_statistics(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(TEXTS, **QUICK)
        model.train()
        explainer.explain(TEXTS, **QUICK)
    changed(model)
    with pytest.warns(UserWarning, match="have changed since they were gathered") as caught:
        explainer.explain(TEXTS, **QUICK)
        explainer.explain(TEXTS, **QUICK)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(TEXTS, preset="as_released", **QUICK)  # has no use for statistics
    explainer.estimate_statistics(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(TEXTS, **QUICK)


@pytest.mark.filterwarnings("ignore:.*not replayed")
def test_bigbird_keeps_its_attention_and_its_inner_padding_does_not_count(wordpiece):
    size = {**SIZE, "max_position_embeddings": 128, "num_hidden_layers": 2}
    model = build(transformers.BigBirdConfig(**size, block_size=4, num_random_blocks=1, attention_type="block_sparse"))
    explainer = TextExplainer(model, wordpiece)
    assert model.bert.attention_type == model.bert.encoder.attention_type == "block_sparse"
    texts = ["the film was good " * 10, "bad " * 33]  # 42 and 35 tokens, more than 28
    found = explainer.estimate_statistics(texts)
    assert [one.count for one in found] == [77, 77]
    assert [len(result.bits) for result in explainer.explain([*texts, "bad"], batch_size=2, **QUICK)] == [42, 35, 3]
    assert model.bert.attention_type == "block_sparse"


class GivesProbabilities(transformers.BertForSequenceClassification):
    """BERT with a softmax at its end."""

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None):
        logits = super().forward(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits
        return SequenceClassifierOutput(logits=logits.softmax(-1))


def test_probabilities_of_a_model_are_not_softmaxed_again(bert, wordpiece):
    model = GivesProbabilities(bert.config).eval()
    model.load_state_dict(bert.state_dict())
    with pytest.warns(UserWarning, match="GivesProbabilities gives probabilities, expected logits"):
        classifier = Classifier(model, wordpiece)
    by_logits = Classifier(bert, wordpiece)
    inputs = classifier.tensors(classifier.encode(TEXTS, [None] * 2))
    with torch.no_grad():
        torch.testing.assert_close(classifier.probabilities(inputs), model(**inputs).logits)
    for name in ("leave_one_out", "ig_as_released"):
        scores = [attribute(name, of_model, TEXTS, target=1) for of_model in (classifier, by_logits)]
        for of_text, expected in zip(*scores, strict=True):
            assert of_text.tokens == pytest.approx(expected.tokens, rel=1e-3, abs=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bits = [TextExplainer(of_model, wordpiece).explain(TEXTS[0], **QUICK).bits for of_model in (model, bert)]
    assert bits[0] == pytest.approx(bits[1], rel=1e-3)


def test_logits_are_not_taken_for_probabilities(wordpiece):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Classifier(bag_of_tokens(), wordpiece).gives_probabilities


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (transformers.YosoConfig(**{**SIZE, "max_position_embeddings": 12}, use_expectation=True), 12),
        (transformers.IBertConfig(**{**SIZE, "max_position_embeddings": 12, "pad_token_id": 1}), 10),
    ],
    ids=["yoso", "ibert"],
)
def test_texts_are_truncated_to_the_positions_of_the_model(config, positions, wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    classifier = Classifier(build(config), tokenizer)
    assert classifier.max_length == positions
    (encoded,) = classifier.encode(["the film was good, " * 9], [None])
    assert len(encoded) == positions
    assert classifier.probabilities(classifier.tensors([encoded])).isfinite().all()


def test_saved_results_of_the_published_layer_are_not_those_of_all_layers(bert, wordpiece, tmp_path):
    of_none = TextExplainer(bert, wordpiece)
    statistics = of_none.estimate_statistics(TEXTS)
    of_all = TextExplainer(bert, wordpiece, [1, 2, 3, 4], statistics)
    of_third = TextExplainer(bert, wordpiece, 3, statistics[2])
    options = {"preset": "paper", **QUICK}
    for explainer, files in ((of_none, 1), (of_all, 2), (of_third, 2)):
        results = explain_texts(LocalExecutor(), explainer, TEXTS, keep=tmp_path, **options)
        assert [result.layer for result in results] == [result.layer for result in explainer.explain(TEXTS, **options)]
        assert len(list(tmp_path.iterdir())) == files
    explain_texts(LocalExecutor(), of_all, TEXTS, keep=tmp_path, **QUICK)
    explain_texts(LocalExecutor(), of_none, TEXTS, keep=tmp_path, **QUICK)
    assert len(list(tmp_path.iterdir())) == 3  # without the preset both have all layers


def test_statistics_without_the_name_of_a_layer_go_by_position(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece)
    statistics = explainer.estimate_statistics(TEXTS)
    expected = explainer.explain(TEXTS[0], **QUICK).bits
    for of_layer in statistics:
        of_layer.layer = of_layer.model = None
    assert TextExplainer(bert, wordpiece, statistics=statistics).explain(TEXTS[0], **QUICK).bits == pytest.approx(
        expected
    )

    def bits(of_layers, **options):
        return attribute("iba", Classifier(bert, wordpiece), TEXTS[0], statistics=of_layers, **QUICK, **options)[
            0
        ].tokens

    removable = [not special for special in explainer.classifier.encode(TEXTS[:1], [None])[0].special]
    assert bits(statistics)[removable] == pytest.approx(expected[removable])
    bits_of_two = bits(statistics[1::2], layer=[2, 4])[removable]
    assert bits_of_two == pytest.approx(
        TextExplainer(bert, wordpiece, [2, 4], statistics[1::2]).explain(TEXTS[0], **QUICK).bits[removable]
    )
    assert bits(statistics[1], layer=2).any()
    for of_layers, layer, count in ((statistics[0], None, 1), (statistics[:2], None, 2), (statistics, [1, 2], 4)):
        with pytest.raises(ValueError, match=f"statistics has {count} entries, expected those of . layers"):
            bits(of_layers, layer=layer)


def test_two_statistics_of_one_layer_are_refused(bert, wordpiece):
    (of_layer,) = TextExplainer(bert, wordpiece, 2).estimate_statistics(TEXTS)
    with pytest.raises(ValueError, match="expected those of layer 'bert.encoder.layer.1', once"):
        attribute("iba", Classifier(bert, wordpiece), TEXTS[0], statistics=[of_layer] * 2, layer=2, **QUICK)


def test_the_padding_token_of_the_configuration_counts_in_the_fingerprint(model, wordpiece, tmp_path):
    explainer = TextExplainer(model, wordpiece, 2)
    explain_texts(LocalExecutor(), explainer, TEXTS, keep=tmp_path, **QUICK)
    before = explainer.fingerprint()
    model.config.pad_token_id = 20
    assert explainer.fingerprint() == before  # it has its padding token still
    changed_explainer = TextExplainer(model, wordpiece, 2)
    assert changed_explainer.fingerprint() != before
    explain_texts(LocalExecutor(), changed_explainer, TEXTS, keep=tmp_path, **QUICK)
    assert len(list(tmp_path.iterdir())) == 2


def test_where_a_decoder_looks_for_the_end_counts_in_the_fingerprint(wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [PAD]", pair="$A $B [PAD]", special_tokens=[("[PAD]", 0)]
    )
    model = build(transformers.GPT2Config(vocab_size=400, n_embd=16, n_layer=2, n_head=2, pad_token_id=None))
    prints = [classifier_fingerprint(Classifier(model, tokenizer))]
    model.config.pad_token_id = 0
    prints.append(classifier_fingerprint(Classifier(model, tokenizer)))
    assert prints[0] != prints[1]


class FindsPadding(type(bag_of_tokens())):
    """A bag of tokens without an attention mask: it finds the padding by its id."""

    def __init__(self, config):
        super().__init__(config)
        torch.nn.init.normal_(self.table.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, input_ids):
        return super().forward(input_ids, (input_ids != self.config.pad_token_id).float())


def test_padding_does_not_count_without_an_attention_mask(wordpiece):
    explainer = TextExplainer(FindsPadding(BagConfig(num_labels=2, pad_token_id=0)).eval(), wordpiece, layer=1)
    assert not explainer.classifier.padding_matters
    texts = ["good", "the film was good, the plot was not dull", "not bad", "a bad film", "like"]
    (together,), (alone,) = (explainer.estimate_statistics(texts, batch_size=size) for size in (8, 1))
    assert together.count == alone.count == sum(len(wordpiece(text).input_ids) for text in texts)
    torch.testing.assert_close(together.mean, alone.mean)
    torch.testing.assert_close(together.std, alone.std)


def test_a_padding_token_that_is_a_word_is_no_special_token(bert, wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.pad_token = "!"
    encoded = encoding.encode(tokenizer, "a good film!", None, 40, ["input_ids"])
    assert encoded.special == (True, False, False, False, False, True)
    assert encoding.encode(wordpiece, "a good [PAD] film", None, 40, ["input_ids"]).special[3]
    scores = attribute("leave_one_out", Classifier(bert, tokenizer), "a good film!", target=0)[0]
    assert scores.tokens[4] != 0 and len(scores.words) == 4


HINDI = "यह हिन्दी फिल्म cafe\u0301 שָׁלוֹם"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def splits_marks(name):
    """A byte-level tokenizer whose words end before a combining mark, as GPT-2 and Qwen split texts."""
    core = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(QWEN), "isolated")] if name == "qwen" else []
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)
    core.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        [HINDI] * 4, trainers.BpeTrainer(vocab_size=390, special_tokens=["<pad>", "<end>"], initial_alphabet=alphabet)
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")


@pytest.mark.parametrize("name", ["gpt2", "qwen"])
@pytest.mark.parametrize("max_length", [400, 9])
def test_words_are_whole_and_share_no_character_where_a_combining_mark_begins_a_token(name, max_length):
    words = encoding.encode(splits_marks(name), HINDI, None, max_length, ["input_ids"]).word_spans
    assert all(left.end <= right.start for left, right in pairwise(words))
    *whole, last = (HINDI[word.start : word.end] for word in words)
    expected = HINDI.split()
    assert whole == expected[: len(whole)] and expected[len(whole)].startswith(last)  # the last one may be truncated
    if max_length == 400:
        assert [*whole, last] == expected


def test_a_mark_that_the_tokenizer_drops_still_belongs_to_its_word(wordpiece):
    encoded = encoding.encode(wordpiece, "cafe\u0301 good", None, 40, ["input_ids"])
    assert encoded.spelling(0, *encoded.word_spans[0][2:]) == "cafe\u0301"


def test_statistics_of_two_estimates_are_never_in_one_folder(bert, wordpiece, tmp_path, monkeypatch):
    explainer, folder = TextExplainer(bert, wordpiece), tmp_path / "statistics"
    explainer.estimate_statistics(TEXTS)
    explainer.save_statistics(folder)
    count, names = explainer.statistics[0].count, sorted(path.name for path in folder.iterdir())
    explainer.estimate_statistics(["not bad", "a dull film"])
    real, calls = FeatureStatistics.save, []

    def interrupted(self, path):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(self, path)

    monkeypatch.setattr(FeatureStatistics, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        explainer.save_statistics(folder)
    assert [of_layer.count for of_layer in explainer.load_statistics(folder)] == [count] * 4
    monkeypatch.undo()
    assert sorted(path.name for path in folder.iterdir()) == names
    explainer.estimate_statistics(["not bad", "a dull film"])
    explainer.save_statistics(tmp_path / "others")
    (tmp_path / "others" / names[1]).replace(folder / names[1])
    with pytest.raises(ValueError, match="whose files are of .* positions, expected those of one estimate"):
        explainer.load_statistics(folder)


def test_texts_and_pairs_have_statistics_of_their_own_in_the_cache(bert, wordpiece, tmp_path):
    explainer = TextExplainer(bert, wordpiece, 1)
    assert not cached_statistics(explainer, ["good", "and pairs", "a bad plot"], tmp_path)[1]
    assert not cached_statistics(explainer, ["good"], tmp_path, pairs=["a bad plot"])[1]
    assert cached_statistics(explainer, ["good"], tmp_path, pairs=["a bad plot"])[1]


@pytest.mark.parametrize("make", [lambda pandas: pandas.DataFrame({"text": TEXTS}), lambda pandas: set(TEXTS)])
def test_tables_and_sets_are_no_texts(make, explainer):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="texts is a (DataFrame|set), expected a string or a list of strings"):
        explainer.explain(make(pandas), **QUICK)
    assert len(explainer.explain(pandas.Series(TEXTS), **QUICK)) == 2


def test_windows_of_occlusion_do_not_run_over_the_end_of_a_text(bert, wordpiece):
    classifier = Classifier(bert, wordpiece)
    text, pair, window = "the film was good", "a dull plot", 3
    (scores,) = attribute("occlusion", classifier, text, pair, target=2)
    inputs = classifier.tensors([scores.encoded])

    def probability(positions):
        ids = inputs["input_ids"].clone()
        ids[0, positions] = wordpiece.mask_token_id
        return float(classifier.probabilities({**inputs, "input_ids": ids})[0, 2])

    total, count = torch.zeros(len(scores.tokens)), torch.zeros(len(scores.tokens))
    for sequence in (0, 1):
        positions = [i for i, of_token in enumerate(scores.encoded.sequences) if of_token == sequence]
        for start in range(len(positions) - window + 1):
            windowed = positions[start : start + window]
            total[windowed] += probability([]) - probability(windowed)
            count[windowed] += 1
    assert scores.tokens == pytest.approx((total / count.clamp(min=1)).numpy(), abs=1e-6)


def test_a_pair_with_an_empty_text_gets_the_statistics_of_single_texts(bert, wordpiece):
    """The model read the same tokens, and gave 18.8% and 48.7% with average activations."""
    single, half = (TextExplainer(bert, wordpiece).explain("the film was good", pair, n_steps=2) for pair in (None, ""))
    assert single.statistics == half.statistics
    assert [word.bits for word in half.words] == pytest.approx([word.bits for word in single.words], rel=1e-4)


def test_an_empty_second_text_is_told_once_by_its_number_among_all(model, wordpiece):
    """ "pairs[9] is empty" was followed by "pairs[2] is empty", its number among those that share a pass."""
    explainer = TextExplainer(model, wordpiece, 2)
    explainer.estimate_statistics(TEXTS, TEXTS)
    pairs = ["the film was good"] * 5 + [""]
    texts = [f"the film was {'not ' * i}good" for i in range(6)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explain_texts(LocalExecutor(), explainer, texts, pairs, batch_size=2, **QUICK)
    told = [str(one.message) for one in caught if "is empty" in str(one.message)]
    assert told == ["pairs[5] is empty: of such a pair the model reads one text"]


def test_a_special_token_is_told_once_by_the_number_of_its_text_among_all(model, wordpiece):
    explainer = TextExplainer(model, wordpiece, 2)
    explainer.estimate_statistics(TEXTS)
    texts = [*[f"the film was {'not ' * i}good" for i in range(5)], "a dull film [SEP] not a good film , a bad plot !"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explain_texts(LocalExecutor(), explainer, texts, batch_size=2, **QUICK)
    told = [str(one.message) for one in caught if "special token" in str(one.message)]
    assert len(told) == 1 and told[0].startswith("texts[5] has '[SEP]', which the tokenizer reads as a special token")
