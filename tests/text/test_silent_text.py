"""Cases on the side of texts in which bits were wrong, or a model was taken that cannot be explained, without a word."""

import copy
import json

import pytest
import torch
from typer.testing import CliRunner

from captum_iba import FeatureStatistics, cli
from captum_iba.engines import Local
from captum_iba.engines.texts import explain_texts
from captum_iba.text import TextExplainer, cached_statistics, encoding
from captum_iba.text.identity import classifier_fingerprint

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


def test_statistics_of_an_unknown_model_are_taken(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece, layer=2)
    (one,) = explainer.estimate_statistics(TEXTS)
    one.model = None
    assert TextExplainer(bert, wordpiece, layer=2, statistics=one).statistics == (one,)


def test_kept_results_of_other_adapters_tokenizers_and_labels_are_not_taken(model, wordpiece, tmp_path):
    def kept(one, tokenizer):
        explainer = TextExplainer(one, tokenizer, layer=2, statistics=statistics)
        return explain_texts(Local(), explainer, TEXTS, keep=tmp_path, **QUICK), len(list(tmp_path.iterdir()))

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
    with pytest.raises(ValueError, match=r"another model .*\(weights, adapter, precision or tokenizer differ\)"):
        both.set_adapter("first")
        explainer.statistics = explainer.statistics
    both.set_adapter("second")
    with both.disable_adapter():
        assert explainer.fingerprint() not in prints
    both.set_adapter("first")
    assert explainer.fingerprint() == prints[0] and cached_statistics(explainer, TEXTS, tmp_path)[1]
    both.merge_adapter()
    assert explainer.fingerprint() not in prints


def test_a_fingerprint_reads_weights_that_accelerate_keeps_elsewhere(bert, model, wordpiece):
    accelerate = pytest.importorskip("accelerate")
    explainer = TextExplainer(bert, wordpiece)
    expected = explainer.fingerprint()
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert next(offloaded.parameters()).is_meta
    assert TextExplainer(offloaded, wordpiece).fingerprint() == expected


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
