"""Heads that gave a wrong answer without a word."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner

from captum_iba import cli
from captum_iba._reading.word_sentences import verdict
from captum_iba.text import TextExplainer, explain_layers
from captum_iba.text.head_targets import predicted_entities

from .conftest import built
from .test_heads import QUICK, TEXT

pytestmark = pytest.mark.filterwarnings("ignore:no statistics", "ignore:the final mask")


@pytest.fixture
def values(wordpiece):
    return TextExplainer(built("BertForSequenceClassification", num_labels=1), wordpiece)


@pytest.fixture(scope="module")
def sentencepiece():
    """A vocabulary in which a word of its own begins with a token without characters."""
    vocabulary = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "▁", "▁the", "▁film", "good", "was", "bad"]
    tokenizer = Tokenizer(models.Unigram([(token, -1.0 - i / 100) for i, token in enumerate(vocabulary)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", mask_token="<mask>", model_max_length=32
    )


def test_choices_of_several_texts(choosing):
    found = choosing.explain(["the film", "a plot"], choices=["good", "bad"], **QUICK)
    alone = [choosing.explain(text, choices=["good", "bad"], **QUICK) for text in ("the film", "a plot")]
    assert [result.pair for result in found] == [result.pair for result in alone]
    assert {result.pair for result in found} <= {"good", "bad"}


def test_pairs_beside_choices_are_refused(choosing):
    with pytest.raises(ValueError, match="pairs is given, expected None with choices"):
        choosing.explain("the film", "was it good?", choices=["good", "bad"])


def test_tolerances_of_two_threads_do_not_mix(values):
    settings = [0.05, 50.0] * 4
    expected = [values.explain(TEXT, tolerance=tolerance, check=True, **QUICK) for tolerance in settings]
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda tolerance: values.explain(TEXT, tolerance=tolerance, check=True, **QUICK), settings)]
    for one, other in zip(found, expected, strict=True):
        assert one.check.without_leading == pytest.approx(other.check.without_leading, abs=1e-5)
        assert one.total_bits == pytest.approx(other.total_bits, rel=1e-3)
        assert one.settings["tolerance"] == pytest.approx(other.settings["tolerance"])
    assert [result.settings["tolerance"] for result in found[:2]] == pytest.approx([0.05, 50.0])


def test_the_tolerance_follows_the_weights(values):
    before = values.explain(TEXT, **QUICK).settings["tolerance"]
    with torch.no_grad():
        values.model.classifier.weight.mul_(20)
    values.estimate_statistics(["the film was good", "a bad plot"])
    assert values.explain(TEXT, **QUICK).settings["tolerance"] == pytest.approx(20 * before, rel=0.01)


def test_entities_of_several_texts_and_layers(entities, monkeypatch):
    monkeypatch.setattr("captum_iba.text.head_targets.predicted_entities", lambda *_: [[1], [2]])
    texts = [TEXT, "a bad plot"]
    results = entities.explain(texts, entity="all", **QUICK)
    assert [(result.text, result.explained.text_number) for result in results] == [
        (text, i) for i, text in enumerate(texts) for _ in range(2)
    ]
    rows = explain_layers([entities], texts, entity="all")
    assert [row[0][1].explained for row in rows] == [result.explained for result in results]
    assert len(entities.explain(TEXT, entity=["all"], **QUICK)) == 2


def test_rows_of_a_table_keep_their_names(entities, tmp_path):
    entities.model.save_pretrained(tmp_path / "model")
    entities.classifier.tokenizer.save_pretrained(tmp_path / "model")
    texts = [TEXT, "a bad plot", "the film was not good"]
    lines = [json.dumps({"text": text, "id": f"id {i}"}) for i, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    command = ["explain", "--model", str(tmp_path / "model"), "--file", str(tmp_path / "texts.jsonl"), "--json", "-"]
    found = CliRunner().invoke(cli.app, [*command, "--steps", "2", "--no-check", "-q"])
    assert found.exit_code == 0, found.output
    content = json.loads(found.stdout)
    assert len(content) > 3 or len({entry["text"] for entry in content}) < 3
    assert all(entry["id"] == f"id {texts.index(entry['text'])}" for entry in content)


def test_numbers_as_targets_on_the_command_line(choosing, entities, wordpiece, tmp_path):
    for name, explainer in (("choices", choosing), ("entities", entities)):
        explainer.model.save_pretrained(tmp_path / name)
        explainer.classifier.tokenizer.save_pretrained(tmp_path / name)
    command = ["explain", "--json", "-", "-q", "--steps", "2", "--no-check", "--model"]

    def run(*arguments):
        found = CliRunner().invoke(cli.app, [*command, *arguments])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)[0]

    choices = ["--choice", "3", "--choice", "2", "--choice", "1"]
    assert run(str(tmp_path / "choices"), "good film", *choices, "--target", "2")["target_label"] == "2"
    assert run(str(tmp_path / "choices"), "good film", *choices, "--target", "0")["target_label"] == "3"
    assert run(str(tmp_path / "entities"), "film 2024 was good", "--word", "2024")["explained"]["text"] == "2024"
    assert run(str(tmp_path / "entities"), "film 2024 was good", "--word", "3")["explained"]["text"] == "was"


@pytest.mark.parametrize("seed", range(3))
def test_what_sentencepiece_reads_stays_open(sentencepiece, seed):
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(seed)
    tagging = TextExplainer(transformers.BertForTokenClassification(config).eval(), sentencepiece)
    result = tagging.explain("the film was bad", word="was", **QUICK)
    own = [token for token in result.tokens if token.word == 2]
    assert [token.token for token in own] == ["▁", "was"] and not any(token.bits for token in own)
    assert any(token.bits for token in result.tokens)
    answering = TextExplainer(transformers.BertForQuestionAnswering(config).eval(), sentencepiece)
    result = answering.explain("the film", "was good the bad", target="good", check=True, **QUICK)
    own = [token for token in result.tokens if token.sequence == 1 and token.word == 3]
    assert [token.token for token in own] == ["▁", "good"] and not any(token.bits for token in own)
    predicted = answering.explain("the film", "was good the bad", check=True, **QUICK)
    assert predicted.target_label == predicted.target_label.strip()
    assert predicted.check is None or predicted.check.probability == pytest.approx(predicted.target_probability)


def test_schemes_of_entities(entities):
    (encoded,) = entities.classifier.encode(["good film was bad the plot a"], [None])

    def found(labels, names):
        numbers = torch.tensor([labels.index(name) for name in ("O", *names, "O")])
        return predicted_entities(encoded, torch.nn.functional.one_hot(numbers, len(labels)), labels)

    under = ["O", "B_PER", "I_PER"]
    assert found(under, ["B_PER", "I_PER", "B_PER", "O", "O", "I_PER", "O"]) == [[1, 2], [3], [6]]
    suffix = ["O", "PER-B", "PER-I"]
    assert found(suffix, ["PER-B", "PER-I", "O", "PER-B", "PER-B", "O", "O"]) == [[1, 2], [4], [5]]
    ends = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    assert found(ends, ["B-PER", "E-PER", "I-PER", "E-PER", "S-PER", "S-PER", "O"]) == [[1, 2], [3, 4], [5], [6]]
    vitamins = ["O", "VITAMIN-B", "VITAMIN-E"]
    assert found(vitamins, ["VITAMIN-B", "VITAMIN-E", "O", "O", "O", "O", "O"]) == [[1], [2]]


def test_an_entity_of_all_words_is_left_out_with_a_warning(entities, monkeypatch):
    every = [[1], [2]]
    monkeypatch.setattr(
        "captum_iba.text.head_targets.predicted_entities",
        lambda text, values, labels: every if len(text.word_spans) > 2 else [[1, 2]],
    )
    with pytest.warns(UserWarning, match=r"texts\[1\] is left out"):
        found = entities.explain(["the good film", "bad plot"], entity="all", **QUICK)
    assert [result.text for result in found] == ["the good film"] * 2


def test_the_embeddings_of_an_encoder_of_t5_run(sentencepiece):
    config = transformers.T5Config(vocab_size=11, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, num_labels=3)
    torch.manual_seed(0)
    explainer = TextExplainer(transformers.T5ForTokenClassification(config).eval(), sentencepiece)
    assert explainer.layers[0].name == "transformer.encoder.embed_tokens"
    assert explainer.explain("the film was bad", word="bad", **QUICK).total_bits > 0


def test_words_that_speak_against_an_answer_are_those_that_were_deleted(sentencepiece):
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    explainer = TextExplainer(transformers.BertForQuestionAnswering(config).eval(), sentencepiece)
    result = explainer.explain("the film", "was good the bad", target="good", check=True, **QUICK)
    check = replace(result.check, n_removed=1, probability=0.5, without_least=0.9)
    probable = replace(result, check=check, target_probability=0.5)
    assert '"good" (' not in " ".join(probable.sentences)
    improbable = replace(result, check=replace(check, probability=1e-6))
    assert "is next to nothing" in str(improbable) and not verdict(improbable)
