"""Other heads by other methods: values by hand, what is explained stays, comparisons, errors, and the command line."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from markupsafe import escape
from typer.testing import CliRunner

from captum_iba import cli
from captum_iba._reading.words import ranked_words
from captum_iba.compare import compare_texts
from captum_iba.compare.explain_many import explain_texts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.compare.score_many import score_texts
from captum_iba.methods import attribute, attribution_task, register_method
from captum_iba.methods.registry import METHODS
from captum_iba.text import TextExplainer
from captum_iba.text.arguments import NumberError
from captum_iba.visualization import token_page

from .conftest import LABELS, built

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
import planted_heads

TEXT = "the unbelievable film was good."
TEXTS = ["the film was good", "a bad, dull plot!", "the unbelievable plot", "good film", "was the film bad?"]
PIECES = [[0], [1, 2, 3], [4], [5], [6], [7]]  # tokens of each word, without [CLS]


def probability(explainer, text, label, place):
    """Of a class at a token, by transformers alone; ``text`` is a list of pieces."""
    tokenizer = explainer.classifier.tokenizer
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", *text, "[SEP]"])
    with torch.no_grad():
        logits = explainer.model(
            input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)
        )
    return float(logits.logits[0, place].double().softmax(-1)[label])


def test_leave_one_out_of_a_word_by_hand(entities):
    (scores,) = attribute("leave_one_out", entities, TEXT, word="film", target="B-LOC")
    pieces = entities.classifier.tokenizer.tokenize(TEXT)
    at, label = pieces.index("film"), LABELS.index("B-LOC")
    whole = probability(entities, pieces, label, 1 + at)
    for i in range(len(pieces)):
        if i != at:
            without = probability(entities, pieces[:i] + pieces[i + 1 :], label, 1 + at - (i < at))
            assert scores.tokens[1 + i] == pytest.approx(whole - without, abs=1e-6)
    assert scores.tokens[1 + at] == 0 and scores.explained.name == "B-LOC for film"


def test_the_bits_are_those_of_explain(entities):
    entities.estimate_statistics(["the film was good.", "a dull plot"])
    result = entities.explain(TEXT, word="film", n_steps=3)
    (scores,) = attribute("iba", entities, TEXT, word="film", n_steps=3)
    np.testing.assert_allclose(scores.words, result.word_bits, rtol=1e-6)
    every = attribute("random", entities, TEXTS, entity="all")
    explained = [result.explained for result in entities.explain(TEXTS, entity="all", n_steps=1)]
    assert [item.explained for item in every] == explained
    for item in every:
        scored = {number for number, score in enumerate(item.words) if score}
        assert scored == {*item.encoded.removable_words} and len(scored) < len(item.words)
    masked = attribute("leave_one_out", entities, TEXT, word="film", mask_target=True)[0]
    assert len(masked.encoded.removable_words) == 6


@pytest.mark.parametrize(
    "name", ["lime", "captum_lime", "kernel_shap", "occlusion", "ig", "grad_cam", "attention_rollout"]
)
def test_no_method_scores_what_is_explained(entities, name):
    options = {"n_samples": 20} if name in ("lime", "captum_lime", "kernel_shap") else {}
    (scores,) = attribute(name, entities, TEXT, word="unbelievable", **options)
    assert not scores.tokens[2:5].any() and np.count_nonzero(scores.words) > 1
    assert attribute(name, entities, TEXT, word="unbelievable", **options)[0].words.tolist() == scores.words.tolist()


def test_gradients_explain_the_output_of_a_regression(wordpiece):
    values = TextExplainer(built("BertForSequenceClassification", num_labels=1), wordpiece)
    (scores,) = attribute("ig", values, TEXT, n_steps=200, tolerance=1.0)
    (padding,) = (values.classifier.pad_id,)
    inputs = wordpiece(TEXT, return_tensors="pt")
    reference = inputs["input_ids"].clone()
    reference[0, 1:-1] = padding
    with torch.no_grad():
        outputs = [
            float(values.model(**{**inputs, "input_ids": ids}).logits) for ids in (inputs["input_ids"], reference)
        ]
    assert scores.tokens.sum() == pytest.approx(outputs[0] - outputs[1], rel=0.02)
    assert np.count_nonzero(attribute("saliency", values, TEXT)[0].words) == 6
    assert np.count_nonzero(attribute("attention_rollout", values, TEXT)[0].words) == 6
    with pytest.raises(ValueError, match="output is 'probability', expected 'logit' for a model of regression"):
        attribute("ig", values, TEXT, output="probability")
    # Deletion measures the closeness to the prediction: 1, less what is lost without the first word.
    with torch.no_grad():
        ids = torch.cat([inputs["input_ids"][:, :1], inputs["input_ids"][:, 2:]], 1)
        other = float(values.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)
    closeness = np.exp(-((outputs[0] - other) ** 2) / 2)
    assert attribute("leave_one_out", values, TEXT, tolerance=1.0)[0].words[0] == pytest.approx(1 - closeness, abs=1e-5)


def test_choices_and_masks_have_scores(choosing, wordpiece):
    (scores,) = attribute("leave_one_out", choosing, TEXT, choices=["good", "a dull plot"], target="good")
    assert scores.encoded.pair == "good" and np.count_nonzero(scores.words) == 7
    wordpiece.mask_token = "[MASK]"
    masked = TextExplainer(built("BertForMaskedLM"), wordpiece)
    (scores,) = attribute("leave_one_out", masked, "a [MASK] film", target="good")
    assert scores.explained.label == "good" and scores.words[1] == 0 and scores.words[0] != 0


def test_what_methods_of_heads_refuse(entities, bert, wordpiece):
    for name in ("lime_as_released", "ig_as_released"):
        with pytest.raises(
            ValueError, match=f"{name} needs a sequence classifier, got a model of token classification"
        ):
            attribute(name, entities, TEXT, word="film")
    with pytest.raises(ValueError, match="needs one of word, token and entity, got none"):
        attribute("ig", entities, TEXT)
    with pytest.raises(ValueError, match="word is 'film', expected None for a model of sequence classification"):
        attribute("ig", TextExplainer(bert, wordpiece, layer=1), TEXT, word="film")
    with pytest.raises(TypeError, match="'words' is no argument, expected one of word, token, entity"):
        attribution_task(entities, TEXT, words="film")


def test_a_comparison_deletes_the_words_that_come_first(entities, tmp_path):
    rows = []
    compared = compare_texts(
        entities,
        [TEXT],
        word="film",
        target="B-LOC",
        methods=["leave_one_out", "random"],
        folder=tmp_path,
        on_row=rows.append,
    )
    assert rows == [1, 2] and [row.label for row in compared.rows] == ["B-LOC for film"] * 2
    for row in compared.rows:
        pieces = entities.classifier.tokenizer.tokenize(TEXT)
        label, words = LABELS.index("B-LOC"), [number for number in range(6) if number != 2]

        def kept(numbers, pieces=pieces, label=label):
            stay = [i for number in sorted(numbers) for i in PIECES[number]]
            return probability(entities, [pieces[i] for i in stay], label, 1 + stay.index(4))

        ranked = sorted(words, key=lambda number: -row.scores[number])
        whole = kept(range(6))
        counts = [-(-len(words) * k // 9) for k in range(1, 10)]
        rounded = [max(1, round(len(words) * k / 9)) for k in range(1, 10)]
        curves = []
        for order in (ranked, ranked[::-1]):
            curve = [whole - kept({*range(6)} - {*order[:count]}) for count in rounded]
            curves.append(curve)
        assert counts[-1] == rounded[-1] == 5
        assert row.values["drop@1/9"] == pytest.approx(curves[0][0], abs=1e-6)
        assert row.values["aopc"] == pytest.approx(np.mean(curves[0]), abs=1e-6)
        assert row.values["lerf-morf"] == pytest.approx(np.mean(curves[0]) - np.mean(curves[1]), abs=1e-6)
    again = compare_texts(
        entities,
        [TEXT],
        word="film",
        target="B-LOC",
        methods=["leave_one_out", "random", "ig"],
        folder=tmp_path,
        on_row=rows.append,
    )
    assert rows == [1, 2, 3] and again.rows[:2] == compared.rows and "| ig |" in (tmp_path / "table.md").read_text()
    with pytest.raises(ValueError, match="has a comparison with another texts"):
        compare_texts(entities, [TEXT], word="good", methods=["random"], folder=tmp_path)


def test_a_method_that_fails_on_a_target_is_recorded(entities):
    def failing(task):
        if task.explained[0].text == "film":
            raise RuntimeError("no such word")
        return [np.ones(len(text)) for text in task.encoded]

    register_method("failing", failing, signed=False, description="Fails on a film.")
    try:
        compared = compare_texts(entities, [TEXT, TEXT], word=["film", "good"], methods=["random", "failing"])
    finally:
        METHODS.pop("failing")
    assert [row.error for row in compared.rows] == [None, "RuntimeError: no such word", None, None]
    assert "Left out, because a method failed: 1 target" in str(compared)
    for arguments, error, says in (
        ((entities.model, [TEXT]), TypeError, "explainer is a BertForTokenClassification, expected a TextExplainer"),
        ((entities, TEXT), TypeError, "texts is one string, expected a sequence"),
        ((entities, [TEXT], None, None, ["lie"]), ValueError, "there is no 'lie'"),
    ):
        with pytest.raises(error, match=says):
            compare_texts(*arguments, word="film")


def test_classifiers_are_compared_by_the_same_call(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece, layer=1)
    explainer.estimate_statistics(["the film was good.", "a dull plot"])
    compared = compare_texts(explainer, [TEXT, "good film"], methods=["iba", "random"])
    assert [len(row.scores) for row in compared.rows] == [6, 6, 2, 2]
    assert {row.label for row in compared.rows} <= set(explainer.classifier.labels)


def test_a_planted_cue_decides_the_comparison():
    explainer = TextExplainer(*planted_heads.token_classifier(steps=150))
    planted_heads.cue_statistics(explainer, paired=False)
    draw = planted_heads.random.Random(5)
    texts = [" ".join(planted_heads.entity_sentence(draw)[0]) for _ in range(8)]
    compared = compare_texts(explainer, texts, entity="all", methods=["iba", "leave_one_out", "random"])
    first, other, random = (compared.values(name, "drop@1/9").mean() for name in compared.methods)
    assert first > 0.9 and other > 0.9 and random < 0.6


def test_the_command_line_shows_other_methods_of_heads(entities, tmp_path):
    entities.model.save_pretrained(tmp_path / "model")
    entities.classifier.tokenizer.save_pretrained(tmp_path / "model")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    command = ["explain", "--model", str(tmp_path / "model"), "--file", str(texts), "--steps", "1", "--no-check"]
    command += ["--methods", "leave_one_out", "--keep", str(tmp_path / "kept"), "--json", str(tmp_path / "r.json")]
    content = []
    for _ in range(2):  # the second time all is kept
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 0, done.output
        content.append(json.loads((tmp_path / "r.json").read_text(encoding="utf-8")))
    assert content[0] == content[1]
    for entry in content[0]:
        expected = attribute("leave_one_out", entities, entry["text"], entity="all")
        same = [
            item
            for item in expected
            if item.explained.name == f"{entry['target_label']} for {entry['explained']['text']}"
        ]
        np.testing.assert_allclose(entry["methods"]["leave_one_out"], same[0].words, atol=1e-6)


def test_scores_of_texts_without_an_entity_are_none(entities, monkeypatch, tmp_path):
    def of_dull(text, values, labels):
        return [[1]] if "dull" in text.text else []

    monkeypatch.setattr("captum_iba.text.head_targets.predicted_entities", of_dull)
    for _ in range(2):
        (scores,) = score_texts(
            "leave_one_out", entities, ["good film", *TEXTS], None, None, entity="all", keep=tmp_path
        )
        assert scores.encoded.text == TEXTS[1] and scores.words[0] == 0
    assert score_texts("random", entities, ["good film"], None, None, entity="all") == []


def test_the_command_counts_words_from_one(entities, tmp_path):
    entities.model.save_pretrained(tmp_path)
    entities.classifier.tokenizer.save_pretrained(tmp_path)
    for option, number, says in (
        ("--word", "9", "--word is 9, expected 1 to 5, for TEXT 1"),
        ("--word", "0", "--word is 0, expected a number from 1, or its text."),
        ("--entity", "7", "--entity is 7, expected 1 to "),
    ):
        command = ["explain", TEXTS[1] if option == "--entity" else TEXT, "--model", str(tmp_path), option, number]
        done = CliRunner().invoke(cli.app, [*command, "--steps", "1", "--quiet"])
        assert done.exit_code and says in " ".join(done.stderr.split()), done.stderr
    page = token_page([entities.explain(TEXT, word="film", n_steps=1)])
    assert "itself is what is explained: it is never deleted, and has no bits." in page


def test_numbers_of_words_that_are_there_twice_count_as_the_option_does(entities, tmp_path):
    """ "One of 0, 3 (from 0)" was said of --word, which counts from 1: 3 explained another word."""
    text = "film was good film"
    with pytest.raises(NumberError, match=r"one of 0, 3 \(from 0\)$") as caught:
        entities.explain(text, word="film", n_steps=1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # an error may come from a worker
    # Of many texts, those before it are counted.
    with pytest.raises(NumberError, match=r"which texts\[2\] has 2 times; .* one of 0, 3 \(from 0\)$"):
        explain_texts(LocalExecutor(), entities, ["good film", "film was", text], word="film", batch_size=1, n_steps=1)
    entities.model.save_pretrained(tmp_path)
    entities.classifier.tokenizer.save_pretrained(tmp_path)
    done = CliRunner().invoke(cli.app, ["explain", text, "--model", str(tmp_path), "--word", "film"])
    assert done.exit_code == 1 and "expected the number of the word, one of 1, 4 (from 1)" in done.stderr


def test_the_command_counts_words_as_they_are_printed(entities, tmp_path):
    """ "good (word 3)" was --word 4, and --word 3 explained the comma before it."""
    text = "the film, good film"
    entities.model.save_pretrained(tmp_path)
    entities.classifier.tokenizer.save_pretrained(tmp_path)
    command = ["explain", text, "--model", str(tmp_path), "--steps", "1", "--word"]
    assert 'for "good"?' in CliRunner().invoke(cli.app, [*command, "3"]).stdout
    done = CliRunner().invoke(cli.app, [*command, "film"])
    assert "expected the number of the word, one of 2, 4 (from 1)" in done.stderr
    assert entities.explain(text, word=3, n_steps=1).explained.text == "good"


def test_texts_without_an_entity_are_told(entities, monkeypatch, tmp_path):
    """They vanished from JSON and page, also with --quiet."""
    monkeypatch.setattr(
        "captum_iba.text.head_targets.predicted_entities",
        lambda text, values, labels: [[1]] if "dull" in text.text else [],
    )
    entities.model.save_pretrained(tmp_path / "model")
    entities.classifier.tokenizer.save_pretrained(tmp_path / "model")
    command = ["explain", "good film", TEXTS[1], "--model", str(tmp_path / "model"), "--json", "-", "--quiet"]
    done = CliRunner().invoke(cli.app, [*command, "--steps", "1"])
    assert done.exit_code == 0 and "text 1 is not explained: the model predicts no entity in it" in done.stderr
    (entry,) = json.loads(done.stdout)
    assert entry["text"] == TEXTS[1] and entry["explained"]["text_number"] == 1


def test_what_is_explained_is_no_other_word_and_a_table_names_it(entities):
    """ "5 other words" were those of a text of five, of which one was the target."""
    one, other = (entities.explain(TEXT, word=word, n_steps=1, check=True) for word in ("film", "good"))
    rows = [row for of in ranked_words(one) for row in of]
    assert len(rows) == len(one.words) - 1 and "film" not in {row.name for row in rows}
    page = token_page([one, other])
    assert one.question != other.question and all(escape(of.question) in page for of in (one, other))


def test_a_regression_has_a_closeness(wordpiece):
    """ "1.36 100.0%" stood above its text, and sentences spoke of a probability."""
    values = TextExplainer(built("BertForSequenceClassification", num_labels=1), wordpiece)
    result = values.explain(TEXT, check=True, n_steps=1)
    check = replace(result.check, probability=1.0, without_leading=0.9, without_least=0.5, without_random=0.5)
    for without_each in ((0.9,) * 6, (0.2, *[1.0] * 5)):
        said = " ".join(replace(result, check=replace(check, without_each=without_each)).sentences)
        assert "closeness" in said and "probability" not in said
    decision = token_page([result]).partition('<p class="decision">')[2].partition("</p>")[0]
    assert result.target_label in decision and "%" not in decision


def test_rows_of_another_tolerance_are_not_used(wordpiece, tmp_path):
    values = TextExplainer(built("BertForSequenceClassification", num_labels=1), wordpiece)
    compared = compare_texts(values, [TEXT], methods=["leave_one_out"], tolerance=1.0, folder=tmp_path)
    with pytest.raises(ValueError, match="has a comparison with another texts"):
        compare_texts(values, [TEXT], methods=["leave_one_out"], tolerance=0.1, folder=tmp_path)
    again = compare_texts(values, [TEXT], methods=["leave_one_out"], tolerance=1.0, folder=tmp_path)
    assert again.rows == compared.rows


def test_single_words_that_change_what_another_head_says_are_labelled(entities):
    """The answer said that "Captain" decides, and each of three words changed the class of "Jordan"."""
    tokenizer, found = entities.tokenizer, 0
    for word in range(5):
        result = entities.explain("the unbelievable film was good.", word=word, n_steps=1, check=True)
        if result.target_label != result.predicted_label or result.check.change is None:
            continue
        change, label = result.check.change, result.explained.number
        assert change.probability is None and {*change.parts} <= dict(change.alone).keys()
        own = [i for i, one in enumerate(result.words) if result.explained.holds(one.sequence, one.start, one.end)]
        for i, decision in change.alone:
            kept = [token for token in result.tokens if token.word != i]
            at = next(place for place, token in enumerate(kept) if token.word in own)
            ids = torch.tensor([tokenizer.convert_tokens_to_ids([token.token for token in kept])])
            with torch.no_grad():
                predicted = int(entities.model(input_ids=ids).logits[0, at].argmax())
            assert predicted != label and LABELS[predicted] == decision
            found += 1
        labels = {row.number: row.relation for rows in ranked_words(result) for row in rows}
        others = [i for i, _ in change.alone if i not in result.check.leading]
        assert all(labels[i] == "changes the prediction" for i in others)
    assert found
