import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from captum_iba.attr import FeatureStatistics
from captum_iba.compare import prepare, read_results, write_report
from captum_iba.compare.config import read_provenance
from captum_iba.compare.records import chunk_path, read_records, read_scores, read_texts
from captum_iba.methods import attribute, register_method, registry
from captum_iba.metrics import Delete, degradation
from captum_iba.text import Classifier, TextExplainer, find_layer
from captum_iba.text.classifier import load_classifier
from tests.compare.agreement import assert_agree
from tests.compare.conftest import write_lines

RUNS = ["iba", "leave_one_out", "random@seed=0", "random@seed=1"]


def all_records(folder, seconds=False):
    """Every file of records by its name, with or without the times."""
    return {
        path.relative_to(folder): [
            {name: value for name, value in vars(record).items() if seconds or name != "seconds"}
            for record in read_records(path)
        ]
        for path in sorted((folder / "records").rglob("*.parquet"))
    }


@pytest.fixture
def own_method():
    """Registers methods for one test."""
    added = []

    def add(name, function):
        register_method(name, function, signed=True, description="Of a test.")
        added.append(name)

    yield add
    for name in added:
        del registry.METHODS[name]


def by_length(task):
    return [np.array([len(token) for token in encoded.tokens], dtype=float) for encoded in task.encoded]


def test_records_say_what_method_and_test_give(config_of, tmp_path, model_folder):
    steps = list(prepare(config_of(), tmp_path).run())
    assert [step.run for step in steps] == RUNS * 3 and not any(step.failed for step in steps)
    classifier = Classifier(*load_classifier(model_folder))
    texts = {row["example"]: row for row in read_texts(tmp_path / "texts.parquet")}
    assert len(texts) == 6
    records = [record for k in range(3) for record in read_records(chunk_path(tmp_path, "leave_one_out", k))]
    assert sorted(record.example for record in records) == sorted(texts)
    for record in records:
        row = texts[record.example]
        assert record.target == record.gold == row["gold"] == record.example % 3
        scores = attribute("leave_one_out", classifier, row["text"], target=record.target)[0]
        np.testing.assert_allclose(record.scores, scores.tokens, atol=1e-5)
        assert row["tokens"] == list(scores.encoded.tokens)
        ids, *others = classifier.tensors([scores.encoded]).values()
        for order in ("morf", "lerf"):
            expected = degradation(
                classifier.logits,
                ids,
                torch.tensor([record.scores]),
                target=record.target,
                additional_forward_args=tuple(others),
                removable_mask=~torch.tensor([scores.encoded.special]),
                perturbation=Delete(0),
                order=order,
            )
            np.testing.assert_allclose(getattr(record, f"{order}_probability"), expected.probability[0], atol=1e-5)
            np.testing.assert_allclose(getattr(record, f"{order}_logit"), expected.logit[0], atol=1e-4)
            assert getattr(record, f"{order}_decision") == expected.decision[0].tolist()
            np.testing.assert_allclose(record.fraction, expected.fraction[0], atol=1e-6)
        assert record.seconds > 0 and record.error is None


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        (
            {"method": "iba", "betta": 1},
            TypeError,
            "method: 'iba' has no option 'betta'; its options are preset, .*, beta, n_steps, ",
        ),
        ({"method": "iba_paper", "return_trace": 1}, TypeError, "no option 'return_trace'"),
        (
            {"method": "ig:abs", "steps": 3},
            TypeError,
            "no option 'steps'; its options are n_steps, baseline, output",
        ),
        ({"method": "random", "n": 3}, TypeError, "'random' has no option 'n'; it has none"),
        (
            {"method": "iba", "beta": -1},
            ValueError,
            "methods: iba@beta=-1: beta is -1, expected a number",
        ),
        ({"method": "iba", "beta": float("nan")}, ValueError, "beta is nan"),
        ({"method": "iba", "n_steps": 1.5}, ValueError, "n_steps is 1.5"),
        (
            {"method": "iba", "granularity": "letter"},
            ValueError,
            "granularity is 'letter', expected one of token, word, feature",
        ),
        ({"method": "iba", "layer": 5}, ValueError, "methods: iba@layer=5: layer is 5, expected a block from 1 to 4"),
        ({"method": "iba", "layer": [1, 1]}, ValueError, "one or more different layers"),
        ({"method": "grad_cam", "layer": [1, 2]}, ValueError, "only iba takes several"),
        ({"method": "conductance", "baseline": "zero"}, ValueError, "baseline is 'zero', expected 'mask' or 'pad'"),
        ({"method": "ig:abs", "baseline": "zero"}, ValueError, "baseline is 'zero', expected 'mask' or 'pad'"),
        (
            {"method": "lime", "n_samples": 0},
            ValueError,
            "methods: lime@n_samples=0: n_samples is 0, expected an integer",
        ),
        ({"method": "lime", "bow": "perhaps"}, ValueError, "bow is 'perhaps', expected True or False"),
        ({"method": "lime", "kernel_width": 0}, ValueError, "kernel_width is 0, expected a positive number"),
        ({"method": "kernel_shap", "n_samples": "many"}, ValueError, "n_samples"),
        ({"method": "occlusion", "window": 0}, ValueError, "window"),
    ],
)
def test_options_are_refused_before_anything_is_computed(config_of, tmp_path, settings, error, says):
    with pytest.raises(error, match=says):
        prepare(config_of(methods=["saliency", settings]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_own_method_that_takes_any_option_is_let_do_so(config_of, tmp_path, own_method):
    own_method("liberal", lambda task, **options: by_length(task))
    (step,) = prepare(config_of(methods=[{"method": "liberal", "anything": 1}], examples=2), tmp_path).run()
    assert not step.failed


def test_several_layers_with_one_mask(config_of, tmp_path, model_folder):
    list(prepare(config_of(methods=[{"method": "iba", "layer": [1, 3], "n_steps": 2}], examples=2), tmp_path).run())
    (found,) = all_records(tmp_path).values()
    explainer = TextExplainer(*load_classifier(model_folder), layer=[1, 3])
    explainer.load_statistics(tmp_path / "statistics")
    texts = {row["example"]: row["text"] for row in read_texts(tmp_path / "texts.parquet")}
    for record in found:
        bits = explainer.explain(texts[record["example"]], target=record["target"], n_steps=2).bits
        np.testing.assert_allclose(record["scores"][1:-1], bits[1:-1], rtol=1e-3, atol=1e-4)


def test_a_model_of_several_labels_is_refused(config_of, tmp_path, model_folder):
    model, tokenizer = load_classifier(model_folder)
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="one whose classes compete is needed"):
        prepare(config_of(model=str(tmp_path / "model")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_probability_that_is_no_number_is_a_failure_of_the_example(config_of, tmp_path):
    comparison = prepare(config_of(methods="leave_one_out,random", random_seeds=1), tmp_path)
    embedding = comparison.classifier.model.get_input_embeddings()
    (unlucky,) = comparison.classifier.tokenizer("unlike", add_special_tokens=False)["input_ids"][:1]
    with torch.no_grad():
        embedding.weight[unlucky] = float("nan")
    assert sum(step.failed for step in comparison.run()) > 0
    results = read_results(tmp_path)
    failed = {text["example"] for text in results.texts if "unbelievable" in text["text"]}
    assert failed and failed == {text["example"] for text in results.texts} - set(results.common)
    assert "NaN or infinite" in results.rows[0].error
    write_report(tmp_path)


def test_texts_without_tokens_give_no_statistics(config_of, tmp_path):
    other = write_lines(tmp_path / "other.jsonl", [{"text": "[SEP]"}, {"text": "the film was good"}])
    steps = list(prepare(config_of(methods="iba", statistics_from=str(other)), tmp_path / "out").run())
    assert not any(step.failed for step in steps)
    none = write_lines(tmp_path / "none.jsonl", [{"text": "[SEP]"}])
    with pytest.raises(RuntimeError, match="none of the texts to estimate them from has a token"):
        list(prepare(config_of(methods="iba", statistics_from=str(none)), tmp_path / "no").run())


def test_the_longest_come_first_and_chunks_are_full(config_of, tmp_path):
    comparison = prepare(config_of(examples=7, chunk_size=3), tmp_path)
    lengths = [[item.length for item in chunk] for chunk in comparison.chunks]
    assert [len(chunk) for chunk in lengths] == [3, 3, 1]
    flat = [length for chunk in lengths for length in chunk]
    assert flat == sorted(flat, reverse=True)
    assert comparison.tokens == sum(flat)


def test_nothing_is_computed_twice(config_of, tmp_path):
    prepared = prepare(config_of(), tmp_path)
    first = [next(iter(prepared.run())) for _ in range(2)]
    assert first[0].seconds is not None and first[1].seconds is None
    before = all_records(tmp_path, seconds=True)
    steps = list(prepare(config_of(), tmp_path).run())
    assert [step.seconds is None for step in steps] == [True] + [False] * 11
    for path, rows in before.items():
        assert all_records(tmp_path, seconds=True)[path] == rows
    assert all(step.seconds is None for step in prepare(config_of(), tmp_path).run())


def test_a_damaged_file_is_computed_anew(config_of, tmp_path):
    list(prepare(config_of(), tmp_path).run())
    before = all_records(tmp_path)
    path = chunk_path(tmp_path, "iba", 1)
    path.write_bytes(path.read_bytes()[:-20])
    assert sum(step.seconds is not None for step in prepare(config_of(), tmp_path).run()) == 1
    assert_agree(all_records(tmp_path), before)


def test_predicted_targets(config_of, tmp_path):
    list(prepare(config_of(methods="saliency", target="predicted"), tmp_path).run())
    records = [record for rows in all_records(tmp_path).values() for record in rows]
    assert len(records) == 6 and all(record["target"] == record["morf_decision"][0] for record in records)


def test_a_failing_example_is_recorded_and_the_run_goes_on(config_of, tmp_path, own_method):
    def picky(task):
        if any("unbelievable" in encoded.text for encoded in task.encoded):
            raise RuntimeError("cannot\n  believe it")
        return by_length(task)

    own_method("picky", picky)
    rows = [{"text": text, "label": 0} for text in ("the film", "not unbelievable", "a plot was good", "dull plot")]
    data = write_lines(tmp_path / "data.jsonl", [*rows, {"text": " ", "label": 1}, {"text": "[SEP]", "label": 1}])
    out = tmp_path / "out"
    config = config_of(data=str(data), methods=["picky", {"method": "random", "seed": 0}], examples=None, chunk_size=6)
    steps = list(prepare(config, out).run())
    assert [step.failed for step in steps] == [3, 2]
    assert "RuntimeError: cannot believe it" in [record.error for record in read_records(chunk_path(out, "picky", 0))]
    results = read_results(out)
    assert results.common == [0, 2, 3]
    assert [(row.name, row.failed) for row in results.rows] == [("picky", 3), ("random@seed=0", 2)]
    assert sorted(read_scores(out, "picky", range(6))) == [0, 2, 3]
    lines = write_report(out).lines
    assert any(line.startswith("picky failed on 3 of 6 examples") for line in lines)
    assert "picky failed on 3 of 6 examples, which count for no method" in (out / "table.md").read_text("utf-8")


def test_a_method_that_always_fails_does_not_spoil_the_rest(config_of, tmp_path, own_method):
    own_method("hopeless", lambda task: [])
    list(prepare(config_of(methods="hopeless,random"), tmp_path).run())
    results = read_results(tmp_path)
    assert len(results.common) == 6 and results.rows[0].outcomes == ()
    write_report(tmp_path)
    assert "| hopeless | failed |" in (tmp_path / "table.md").read_text("utf-8")
    assert "failed" in (tmp_path / "report.html").read_text("utf-8")


def test_nothing_left_is_an_error(config_of, tmp_path, own_method):
    own_method("hopeless", lambda task: [])
    list(prepare(config_of(methods="hopeless"), tmp_path).run())
    with pytest.raises(ValueError, match="no example is left .*gave scores of 0 texts"):
        write_report(tmp_path)


def test_time_for_statistics_is_not_the_methods(config_of, tmp_path, own_method):
    def asks(task):
        task.statistics(find_layer(task.classifier.model, 2))
        task.statistics.seconds += 6e6  # as if they had taken so long
        return by_length(task)

    own_method("asks", asks)
    list(prepare(config_of(methods="asks", chunk_size=6), tmp_path).run())
    (records,) = all_records(tmp_path, seconds=True).values()
    assert records[0]["seconds"] == pytest.approx(-1e6, rel=1e-3)  # taken off, a sixth from each text
    assert len(list((tmp_path / "statistics").iterdir())) == 4  # those of all blocks come in one pass


def test_statistics_of_the_sample_where_there_is_nothing_else(config_of, tmp_path):
    said = []
    comparison = prepare(config_of(methods=[{"method": "iba", "n_steps": 2}], examples=None), tmp_path, said.append)
    assert not any(step.failed for step in comparison.run())
    assert read_provenance(tmp_path)["statistics"].startswith("30 texts of the data, the sample included (")
    assert "columns: text in 'text', label in 'label'; explained: the gold class; statistics: 30 texts" in said[1]


def test_statistics_from_rows_outside_the_sample_or_another_file(config_of, tmp_path, data_file, monkeypatch):
    monkeypatch.setattr(sys.modules["captum_iba.compare.run"], "FEWEST_OTHERS", 26)
    outside = config_of(methods="iba", examples=4)
    other = config_of(methods="iba", examples=4, statistics_from=str(data_file))
    list(prepare(outside, tmp_path / "outside").run())
    list(prepare(other, tmp_path / "other").run())
    a, b = (next(iter(all_records(tmp_path / name).values())) for name in ("outside", "other"))
    assert [row["example"] for row in a] == [row["example"] for row in b] and a[0]["scores"] != b[0]["scores"]


def test_statistics_that_are_damaged_are_made_anew(config_of, tmp_path):
    list(prepare(config_of(methods="iba"), tmp_path).run())
    before = all_records(tmp_path)
    file = min((tmp_path / "statistics").iterdir())
    file.write_bytes(b"nonsense")
    chunk_path(tmp_path, "iba", 0).unlink()
    list(prepare(config_of(methods="iba"), tmp_path).run())
    assert_agree(all_records(tmp_path), before)
    assert len(FeatureStatistics.load(file).mean) == 16


def test_pairs(config_of, tmp_path):
    rows = [{"premise": "the film was good", "hypothesis": text, "label": 0} for text in ("a film", "dull", "bad")]
    data = str(write_lines(tmp_path / "data.jsonl", rows))
    out = tmp_path / "out"
    list(prepare(config_of(data=data, methods="iba,random", examples=2), out).run())
    write_report(out)
    page = (out / "report.html").read_text("utf-8")
    assert page.count('<div class="map" dir="auto">') == 2 * 2 and 'good</span></div><div class="map"' in page


@contextmanager
def full_disk():
    """Meanwhile no file can grow beyond 100 bytes."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ("leave_one_out,random", "00000.parquet cannot be written.*too large; what was finished before is kept"),
        ("leave_one_out,iba", "statistics cannot be written.*too large"),  # which is no failure of the examples
    ],
)
def test_a_full_disk_loses_nothing(config_of, tmp_path, methods, says):
    whole, out = tmp_path / "whole", tmp_path / "out"
    config = config_of(methods=methods)
    list(prepare(config, whole).run())
    steps = prepare(config, out).run()
    next(steps)
    with full_disk(), pytest.raises((OSError, RuntimeError), match=says):
        list(steps)
    assert len(all_records(out)) == 1 and not list(out.rglob("*.tmp"))
    list(prepare(config, out).run())
    assert_agree(all_records(out), all_records(whole))
