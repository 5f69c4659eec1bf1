"""A run over many texts that was stopped goes on where it was."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from captum_iba import cli
from captum_iba.attr.settings import PRESETS, resolve_settings
from captum_iba.cli import common
from captum_iba.cli.common import every_minute
from captum_iba.compare import score_many
from captum_iba.compare.explain_many import explain_prompts, explain_texts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.text import GenerationExplainer, TextExplainer

TEXTS = ["good film", "a bad film", "dull", "not a good film at all", "what a joy it is", "fine"]
QUICK = {"n_steps": 2, "batch_size": 2}


@pytest.fixture
def explainer():
    return TextExplainer.from_pretrained(embedded_model_path(), 9, embedded_statistics(9))


@pytest.fixture
def batches(monkeypatch):
    """Lists the batches that are computed."""
    seen = []
    real = TextExplainer.explain

    def explain(self, texts, *rest, **settings):
        seen.append(texts)
        return real(self, texts, *rest, **settings)

    monkeypatch.setattr(TextExplainer, "explain", explain)
    return seen


def test_what_was_stopped_goes_on(explainer, batches, tmp_path, monkeypatch):
    expected = explainer.explain(TEXTS, return_trace=True, **QUICK)
    counted, watched = TextExplainer.explain, batches

    def stopped(self, *rest, **settings):
        if len(watched) == 3:  # the whole run, and two batches
            raise KeyboardInterrupt
        return counted(self, *rest, **settings)

    def again(**changes):
        return explain_texts(LocalExecutor(), explainer, TEXTS, keep=tmp_path / "kept", **{**QUICK, **changes})

    monkeypatch.setattr(TextExplainer, "explain", stopped)
    with pytest.raises(KeyboardInterrupt):
        again(return_trace=True)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    monkeypatch.setattr(TextExplainer, "explain", counted)
    watched.clear()
    assert again(return_trace=True) == expected
    assert len(watched) == 1
    watched.clear()
    assert again(return_trace=True) == expected
    assert watched == []


def test_results_of_other_settings_are_not_used(explainer, batches, tmp_path, monkeypatch):
    def again(**changes):
        batches.clear()
        found = explain_texts(LocalExecutor(), explainer, TEXTS[:2], **{**QUICK, "keep": tmp_path, **changes})
        return len(batches), found

    assert again()[0] == 1
    assert again()[0] == 0
    for changes in ({"seed": 1}, {"n_steps": 1}, {"target": 0}, {"pairs": ["a", "b"]}, {"preset": "paper"}):
        assert again(**changes)[0] == 1, changes
        assert again(**changes)[0] == 0, changes
    with monkeypatch.context() as patched:
        patched.setitem(PRESETS, "default", resolve_settings(momentum=0.6))
        assert again()[0] == 1
    explainer.estimate_statistics(TEXTS)
    assert again()[0] == 1
    with torch.no_grad():
        explainer.classifier.model.classifier.bias += 1
    assert again()[0] == 1
    explainer.classifier.model.to(torch.bfloat16)
    assert again()[0] == 1


@pytest.mark.parametrize("damage", ["", "[", "{}", '[{"format": "another"}]', "[1]"])
def test_a_damaged_file_is_made_again(explainer, batches, tmp_path, damage):
    def again():
        return explain_texts(LocalExecutor(), explainer, TEXTS[:2], keep=tmp_path, **QUICK)

    expected = again()
    (file,) = tmp_path.iterdir()
    file.write_text(damage, encoding="utf-8")
    assert again() == expected
    assert len(batches) == 2
    assert len(json.loads(file.read_text(encoding="utf-8"))) == 2


def test_from_the_command_line(batches, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    command = ["explain", "--file", str(tmp_path / "texts.txt"), "--steps", "2", "--layer", "9", "--quiet"]
    command += ["--keep", str(tmp_path / "kept"), "--batch-size", "4", "--json", "-"]
    first = CliRunner().invoke(cli.app, command)
    assert first.exit_code == 0 and len(batches) == 2, first.stderr
    second = CliRunner().invoke(cli.app, command)
    assert len(batches) == 2
    assert json.loads(second.stdout) == json.loads(first.stdout)
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(cli.app, [*command, "--keep", str(tmp_path / "file")])
    words = " ".join(refused.stderr.replace("│", " ").split())  # the box is broken where the path ends
    assert refused.exit_code == 2 and "is a file" in words


def test_results_of_repeats_with_other_groups_of_texts_are_not_used(explainer, tmp_path, monkeypatch):
    """The same texts in another order: the same mean and standard deviation, other groups."""
    texts = ["the film was good", "a dull plot, not good", "unbelievable", "I like the plot", "good", "bad!"] * 4
    kept = {}
    for name, order in (("first", texts), ("again", texts), ("other", texts[1:] + texts[:1])):
        explainer.estimate_statistics(order)
        explain_texts(LocalExecutor(), explainer, ["the film was good"], keep=tmp_path, repeats=2, n_steps=2)
        kept[name] = len(list(tmp_path.glob("*.json")))
    assert kept == {"first": 1, "again": 1, "other": 2}


def test_progress_and_interruption_are_told(tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:3]), encoding="utf-8")
    command = ["explain", "--file", str(tmp_path / "texts.txt"), "--steps", "2", "--batch-size", "1", "--no-check"]
    monkeypatch.setattr(common, "every_minute", lambda say: every_minute(say, 0.01))
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0 and " of 3 texts explained" in done.stderr, done.output
    real, calls = TextExplainer.explain, []

    def interrupted(self, *args, **settings):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *args, **settings)

    monkeypatch.setattr(TextExplainer, "explain", interrupted)
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 130 and "interrupted; nothing is kept without --keep" in done.stderr
    calls.clear()
    kept = CliRunner().invoke(cli.app, [*command, "--keep", str(tmp_path / "kept")])
    assert kept.exit_code == 130 and f"interrupted; 1 of 3 texts are kept in {tmp_path / 'kept'}, and" in kept.stderr
    calls[:] = [None]
    empty = CliRunner().invoke(cli.app, [*command, "--keep", str(tmp_path / "empty")])
    assert empty.exit_code == 130 and "none of the texts was finished, and nothing is kept" in empty.stderr


def test_settings_that_do_not_tell_results_apart_are_refused(llama, wordpiece, tmp_path):
    """Of a function the address was taken, which Python uses again: the response of another one came back."""
    gen_args = {"max_new_tokens": 2, "do_sample": False, "prefix_allowed_tokens_fn": lambda batch, ids: [7]}
    with pytest.raises(TypeError, match="keep is given, and a setting has a function"):
        explain_prompts(
            LocalExecutor(), GenerationExplainer(llama, wordpiece), ["the film"], keep=tmp_path, gen_args=gen_args
        )


def test_scores_of_other_methods_are_kept(explainer, tmp_path, monkeypatch):
    seen, real = [], score_many.attribute

    def watched(name, explainer, texts, *rest, **options):
        seen.append((name, len(texts)))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(name, explainer, texts, *rest, **options)

    targets, finished = [0] * len(TEXTS), []
    expected = real("leave_one_out", explainer, TEXTS, None, targets)
    again = partial(score_many.score_texts, "leave_one_out", explainer, TEXTS, None, targets, keep=tmp_path)
    monkeypatch.setattr(score_many, "attribute", watched)
    with pytest.raises(KeyboardInterrupt):
        again(on_texts=finished.append)
    assert finished == [4] and len(list(tmp_path.iterdir())) == 1
    for found in (again(), again()):
        assert len(seen) == 3  # the rest, and nothing more
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.words, other.words, atol=1e-5)
            assert (one.encoded, one.method, one.signed) == (other.encoded, other.method, other.signed)
    again(seed=1)
    assert len(seen) == 5  # of another seed nothing is kept


def test_an_interruption_says_which_methods_are_kept(tmp_path):
    work = common.KeptWork("texts", tmp_path, quiet=True)
    work.total = 6
    work.progressed(6)
    work.begin("ig")
    work.progressed(2)
    assert work.interrupted() == (
        f"interrupted; all texts that are explained, and 2 of 6 that are scored by ig, are kept in {tmp_path}, and the "
        "same command goes on"
    )
