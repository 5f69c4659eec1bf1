"""The command ``compare-texts``, with models of three heads."""

import json
from pathlib import Path

import pytest
import torch

from captum_iba.text import TextExplainer
from tests.test_cli import own_folders, run  # noqa: F401

from .conftest import built
from .test_heads import QUICK

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = ["the film was not good", "a dull plot was bad"]


def saved(name, wordpiece, **config):
    torch.manual_seed(1)
    built(name, **config).save_pretrained("model")
    wordpiece.save_pretrained("model")
    Path("texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return ["compare-texts", "--model", "model", "--file", "texts.txt", "--out", "out"]


def rows(folder="out"):
    return [json.loads(line) for line in Path(folder, "rows.jsonl").read_text("utf-8").splitlines()]


def test_a_regression_is_compared_and_goes_on(wordpiece):
    command = [*saved("BertForSequenceClassification", wordpiece, num_labels=1), "--methods", "leave_one_out,random"]
    done = run(*command)
    assert done.exit_code == 0, done.stderr
    assert "2 of 2 texts, 2 methods" in done.stderr and "wrote out/table.md" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["drop@1/9", "leave_one_out", "random"]
    assert len(rows()) == 4 and all(row["error"] is None for row in rows())
    before = Path("out/rows.jsonl").read_bytes()
    assert run(*command).stdout == done.stdout and Path("out/rows.jsonl").read_bytes() == before
    one = run(*command[:-4], "--out", "one", "--examples", "1", "--methods", "random")
    assert "1 of 2 texts, 1 method" in one.stderr and len(rows("one")) == 1
    other = run(*command, "--seed", "3")
    assert other.exit_code == 1 and "out has a comparison with another seed" in other.stderr


def test_every_entity_and_every_answer_is_a_target(wordpiece):
    command = [*saved("BertForTokenClassification", wordpiece, num_labels=3), "--methods", "random"]
    explainer = TextExplainer.from_pretrained("model")
    n_entities = len(explainer.explain(TEXTS, entity="all", **QUICK))
    assert run(*command).exit_code == 0
    assert len(rows()) == n_entities > 2
    command = saved("BertForQuestionAnswering", wordpiece)
    Path("qa.csv").write_text("question,context\nthe film was not good,a dull plot was bad\n", encoding="utf-8")
    columns = ["--text-column", "question", "--pair-column", "context"]
    done = run(*command[:3], "--file", "qa.csv", *columns, "--out", "answers", "--methods", "random")
    assert done.exit_code == 0 and len(rows("answers")) == 1, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "shap"], "shap"),
        (["--methods", ","], "--methods is empty, expected at least one"),
        (["--methods", "random,random"], "--methods is random, random, expected each once"),
        (["--file", "empty.txt"], "--file: no text in empty.txt"),
        (["--file", "none.txt"], "--file: none.txt does not exist"),
        (["--text-column", "text"], "has no columns"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_bad_usage(wordpiece, arguments, said):
    command = saved("BertForSequenceClassification", wordpiece, num_labels=1)
    Path("empty.txt").touch()
    done = run(*command, *arguments)
    assert done.exit_code and said in done.stderr and "Traceback" not in done.stderr
    assert "statistics" not in done.stderr  # before the model is loaded


def test_choices_are_for_python(wordpiece):
    done = run(*saved("BertForMultipleChoice", wordpiece))
    assert done.exit_code and "multiple choice, for which Python's compare_texts takes choices" in done.stderr
