"""Many texts of models with other heads than that of a sequence classifier, in batches that are kept."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from captum_iba import cli
from captum_iba.compare.explain_many import explain_texts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.text import TextExplainer

from .conftest import built

QUICK = {"n_steps": 2}
TEXTS = ["the film was good", "a bad, dull plot!", "the unbelievable plot", "good film", "was the film bad?"]


def many(explainer, texts, *columns, **options):
    return explain_texts(LocalExecutor(), explainer, texts, *columns, batch_size=2, **QUICK, **options)


def test_words_and_entities_of_many_texts_are_those_of_one_call(entities, tmp_path):
    for asked in ({"word": [0, "dull", 1, "film", 2]}, {"entity": "all"}):
        together = entities.explain(TEXTS, **asked, **QUICK)
        found = []
        results = many(entities, TEXTS, **asked, keep=tmp_path, on_batch=found.append)
        for one, other in zip(results, together, strict=True):
            rounded = pytest.approx(other.explained.predicted_probability, rel=1e-5)  # of other batches
            assert one.explained.predicted_probability == rounded
            assert replace(one.explained, predicted_probability=0.0) == replace(
                other.explained, predicted_probability=0.0
            )
            assert one.bits == pytest.approx(other.bits, rel=1e-4, abs=1e-3)
        assert found == [2, 4, 5]
        kept = []
        assert many(entities, TEXTS, **asked, keep=tmp_path, on_kept=kept.append) == results
        assert kept == [len(TEXTS)]
    assert len({one.explained.text_number for one in results}) > 2


def test_texts_without_an_entity_have_no_result_and_errors_number_the_text(entities, monkeypatch):
    def one_entity(text, values, labels):
        return [[1]] if "dull" in text.text else []

    monkeypatch.setattr("captum_iba.text.head_targets.predicted_entities", one_entity)
    (result,) = many(entities, TEXTS, entity="all")
    assert result.explained.text_number == 1
    with pytest.raises(ValueError, match="entity: the model predicts no entity in any of the texts"):
        many(entities, [text for text in TEXTS if "dull" not in text], entity="all")
    with pytest.raises(ValueError, match=re.escape("word is 'plot', which is no word of texts[3]")):
        many(entities, TEXTS, word=[0, 0, 0, "plot", 0])
    with pytest.raises(ValueError, match="word has 2 entries, expected one, or one for each of the 5 texts"):
        many(entities, TEXTS, word=[0, 1])
    monkeypatch.setattr("captum_iba.text.head_targets.predicted_entities", lambda *_: [[1, 2]])
    with pytest.warns(UserWarning, match=re.escape("texts[3] is left out")):
        many(entities, TEXTS, entity="all")


def test_answers_choices_masks_and_values_of_many_texts(wordpiece, choosing):
    wordpiece.mask_token = "[MASK]"
    answers = TextExplainer(built("BertForQuestionAnswering"), wordpiece)
    masked = TextExplainer(built("BertForMaskedLM"), wordpiece)
    values = TextExplainer(built("BertForSequenceClassification", num_labels=1), wordpiece)
    gaps = [f"{text} [MASK]" for text in TEXTS[:3]]
    choices = [["good", "bad"], ["plot", "film"], ["good", "dull"]]
    calls = [
        (answers, (TEXTS[:3], TEXTS[1:4]), {}),
        (masked, (gaps,), {}),
        (choosing, (TEXTS[:3],), {"choices": choices}),
        (values, (TEXTS[:3],), {"tolerance": 0.5}),
    ]
    for explainer, columns, options in calls:
        together = explainer.explain(*columns, **options, **QUICK)
        for one, other in zip(many(explainer, *columns, **options), together, strict=True):
            assert (one.explained.label, one.explained.spans) == (other.explained.label, other.explained.spans)
            assert one.explained.text_number == other.explained.text_number
            assert one.bits == pytest.approx(other.bits, rel=1e-4, abs=1e-3)


def test_the_command_keeps_entities(entities, tmp_path):
    folder, file = tmp_path / "model", tmp_path / "texts.txt"
    entities.model.save_pretrained(folder)
    entities.classifier.tokenizer.save_pretrained(folder)
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    command = ["explain", "--model", str(folder), "--file", str(file), "--steps", "2", "--batch-size", "2"]
    first, again = (CliRunner().invoke(cli.app, [*command, "--keep", str(tmp_path / "kept")]) for _ in range(2))
    assert first.exit_code == 0 == again.exit_code, first.output + again.output
    assert first.stdout == again.stdout and "are explained already" in again.stderr


def test_texts_without_the_word_are_named_and_the_others_explained(entities, tmp_path):
    failed = []
    results = many(entities, TEXTS, word="film", on_error=lambda number, error: failed.append((number, str(error))))
    assert [result.explained.text_number for result in results] == [0, 3, 4]
    assert [number for number, _ in failed] == [1, 2]
    assert failed[1][1] == "word is 'film', which is no word of texts[2]; its words are 'the', 'unbelievable', 'plot'"
    with pytest.raises(ValueError, match=re.escape("word is 'film', which is no word of texts[1]")):
        many(entities, TEXTS, word="film")
    folder, file = tmp_path / "model", tmp_path / "texts.csv"
    entities.model.save_pretrained(folder)
    entities.classifier.tokenizer.save_pretrained(folder)
    file.write_text("id,text\n" + "\n".join(f'{i},"{text}"' for i, text in enumerate(TEXTS)), encoding="utf-8")
    command = ["explain", "--model", str(folder), "--file", str(file), "--steps", "2", "--word"]
    options = ["--methods", "leave_one_out", "--json", str(tmp_path / "out.json")]
    done = CliRunner().invoke(cli.app, [*command, "film", *options])
    assert done.exit_code == 1, done.output
    said = "text 3 is not explained: --word is 'film', which is no word of text 3"
    assert said in done.stderr and "2 of 5 texts are not explained" in done.stderr
    found = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert [(entry["id"], entry["text"], len(entry["methods"])) for entry in found] == [
        (str(i), TEXTS[i], 1) for i in (0, 3, 4)
    ]
    done = CliRunner().invoke(cli.app, [*command, "Oslo", "--json", str(tmp_path / "none.json")])
    assert done.exit_code == 1 and not (tmp_path / "none.json").exists()
    assert "5 of 5 texts are not explained" in done.stderr
