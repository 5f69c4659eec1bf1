"""Comparisons that took other labels or texts than the data has, mixed two models, or drew what was not there."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
import transformers

from captum_iba.cli.text_files import read_columns
from captum_iba.compare import ComparisonConfig, prepare, write_report
from captum_iba.compare.code_digest import code_digest
from captum_iba.compare.data import load_data
from captum_iba.compare.records import read_results
from captum_iba.compare.report import make_curves
from captum_iba.compare.run import _statistics_source
from captum_iba.methods import register_method, registry
from captum_iba.visualization.curves import degradation_bands
from tests.compare.conftest import LABELS, rows_of_texts, write_lines
from tests.text.conftest import build, wordpiece  # noqa: F401


def golds(path, labels):
    return [labels[example.gold] for example in load_data(str(path), labels).examples]


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def write_classes(path, names, values):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    rows = [{"text": "a", "label": value} for value in values]
    datasets.Dataset.from_list(rows, features=features).to_parquet(path)
    return path


@pytest.mark.parametrize("labels", [["1", "0"], ["5", "1", "0"]])
def test_a_label_that_is_spelled_as_a_number_is_its_class_in_every_kind_of_file(tmp_path, labels):
    rows = [{"text": "good", "label": 1}, {"text": "bad", "label": 0}]
    as_texts = [{**row, "label": str(row["label"])} for row in rows]
    assert golds(write_lines(tmp_path / "numbers.jsonl", rows), labels) == ["1", "0"]
    assert golds(write_lines(tmp_path / "texts.jsonl", as_texts), labels) == ["1", "0"]
    assert golds(write(tmp_path / "table.csv", "text,label\ngood,1\nbad,0\n"), labels) == ["1", "0"]


def test_stars_are_their_names(tmp_path):
    path = write(tmp_path / "stars.csv", "text,label\nawful,1\nmeh,3\ngood,5\n")
    assert golds(path, ["1", "2", "3", "4", "5"]) == ["1", "3", "5"]


def test_a_data_set_with_some_of_the_classes_of_the_model_goes_by_their_names(tmp_path):
    path = write_classes(tmp_path / "data.parquet", ["negative", "positive"], [0, 1])
    assert golds(path, ["positive", "neutral", "negative"]) == ["negative", "positive"]


def test_a_label_that_is_one_class_by_name_and_another_by_number_is_refused(tmp_path):
    path = write(tmp_path / "stars.csv", "text,label\nawful,0\nmeh,2\n")
    with pytest.raises(ValueError, match=r"line 3 has the label '2' \(2\) .* class 1 by its name and 2 by its number"):
        load_data(str(path), ["1", "2", "3"])
    path = write_classes(tmp_path / "data.parquet", ["positive", "odd"], [0])
    with pytest.raises(ValueError, match=r"the label 0 \(positive\) .* class 1 by its name and 0 by its number"):
        load_data(str(path), ["negative", "positive"])


def test_numbers_that_are_no_names_stay_numbers(tmp_path):
    path = write_classes(tmp_path / "data.parquet", ["bad", "good"], [0, 1])
    assert golds(path, ["LABEL_0", "LABEL_1"]) == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    "names, labels",
    [
        (["entailment", "not_entailment"], ["entailment", "neutral", "contradiction"]),
        (["World", "Sports", "Business", "Sci/Tech"], ["World", "Sports", "Business", "Science"]),
    ],
)
def test_a_name_that_the_model_does_not_have_is_no_number(tmp_path, names, labels):
    path = write_classes(tmp_path / "data.parquet", names, range(len(names)))
    with pytest.raises(ValueError, match=f"\\({names[-1]}\\) in .* a name that the model does not have"):
        load_data(str(path), labels)


def test_true_and_false_are_labels(tmp_path):
    labels = ["False", "True"]
    assert golds(write(tmp_path / "data.csv", "text,label\ngood,True\nbad,False\n"), labels) == ["True", "False"]
    lines = [{"text": "good", "label": True}, {"text": "bad", "label": False}]
    assert golds(write_lines(tmp_path / "data.jsonl", lines), labels) == ["True", "False"]


def test_texts_of_a_table_are_read_as_they_are_written(tmp_path):
    words = ["None", "NA", "null", "nan", "007", "1e5", "0", ""]
    path = write(tmp_path / "data.csv", "".join(f"{row}\n" for row in ["text,text_pair", *(f"a,{w}" for w in words)]))
    assert [example.pair for example in load_data(str(path), None).examples] == words
    assert read_columns(str(path), None, None)[:2] == (["a"] * len(words), words)
    path = write(tmp_path / "data.tsv", "text\tlabel\n007\t0\nNone\t1\n")
    assert [example.text for example in load_data(str(path), LABELS).examples] == ["007", "None"]


def test_numbers_of_a_table_are_texts_for_explain(tmp_path):
    path = write_lines(tmp_path / "data.jsonl", [{"text": 0}, {"text": 7}])
    assert read_columns(str(path), None, None)[:2] == (["0", "7"], None)


def test_the_row_without_a_label_is_named(tmp_path):
    path = write(tmp_path / "data.csv", "text,label\ngood,1\nbad,\n")
    with pytest.raises(ValueError, match="line 3 has no label in the column 'label'"):
        load_data(str(path), LABELS)


def test_a_comparison_does_not_go_on_with_another_configuration_of_the_model(tmp_path, model_folder, config_of):
    folder, out = shutil.copytree(model_folder, tmp_path / "model"), tmp_path / "out"
    config = config_of(model=str(folder), methods="random", random_seeds=1)
    steps = prepare(config, out).run()
    next(steps)
    steps.close()
    configuration = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**configuration, "hidden_act": "relu"}))
    with pytest.raises(ValueError, match="model_fingerprint"):
        prepare(config, out)
    (folder / "config.json").write_text(json.dumps({**configuration, "transformers_version": "9.9.9"}))
    prepare(config, out)


def test_a_method_that_gives_no_numbers_is_one_that_failed(tmp_path, config_of):
    def broken(task):
        return [np.full(len(one), np.nan if one.text.startswith("the") else 1.0) for one in task.encoded]

    register_method("broken", broken, signed=False, description="Broken.")
    try:
        for _ in prepare(config_of(methods="broken,random", random_seeds=1), tmp_path).run():
            pass
    finally:
        registry.METHODS.pop("broken")
    row = read_results(tmp_path).rows[0]
    assert row.failed > 0 and "'broken' gave NaN or infinite scores for the text 'the" in row.error


def test_curves_stand_where_tokens_were_removed(tmp_path, model_folder):
    path = write_lines(tmp_path / "short.jsonl", [{"text": text, "label": 0} for text in ("good film", "a plot", "a")])
    methods = ["saliency", {"method": "saliency", "counting": "as_released"}]
    for _ in prepare(ComparisonConfig(str(path), str(model_folder), methods), tmp_path / "out").run():
        pass
    results = read_results(tmp_path / "out")
    bands = degradation_bands(make_curves(results))
    for row in results.rows:
        share = row.outcomes[0].morf.fraction.double().mean(0).tolist()
        assert bands[row.name].x == pytest.approx(share)
    assert bands[results.rows[0].name].x[1] == pytest.approx((0.5 + 0.5 + 1) / 3)


def test_a_comparison_with_a_model_to_which_padding_matters_does_not_depend_on_the_texts_beside(tmp_path, wordpiece):  # noqa: F811
    config = transformers.XLNetConfig(
        vocab_size=400, d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=0, num_labels=3
    )
    build(config).save_pretrained(tmp_path / "model")
    wordpiece.save_pretrained(tmp_path / "model")
    data = write_lines(tmp_path / "data.jsonl", rows_of_texts(6))
    found = []
    for size in (1, 6):
        config = ComparisonConfig(
            str(data), str(tmp_path / "model"), "leave_one_out,saliency,iba", chunk_size=size, target="predicted"
        )
        for _ in prepare(config, tmp_path / str(size)).run():
            pass
        found.append(read_results(tmp_path / str(size)))
    alone, together = (one.rows[0].outcomes[0] for one in found)
    for order in ("morf", "lerf"):
        one, other = getattr(alone, order), getattr(together, order)
        assert torch.allclose(one.probability, other.probability, atol=1e-5)
    assert found[0].targets == found[1].targets
    assert "does not embed the token ids" in found[1].rows[1].error
    assert "the positions come first" in found[1].rows[2].error


def test_labels_with_blanks_and_signs_and_rows_with_a_comma_too_many(tmp_path):
    path = write(tmp_path / "blanks.csv", 'text,label\n"good", 1\n"bad", 0\n"fine",+1\n')
    assert golds(path, ["negative", "positive"]) == ["positive", "negative", "positive"]
    path = write(tmp_path / "comma.csv", "text,pair\ngood,better,\nbad,worse,\n")
    assert read_columns(str(path), "text", "pair")[:2] == (["good", "bad"], ["better", "worse"])


def test_labels_that_count_from_1_are_refused_whatever_is_sampled(tmp_path):
    path = write(tmp_path / "data.csv", "text,label\n" + "".join(f"a text,{1 + row % 14}\n" for row in range(280)))
    for seed in range(5):
        with pytest.raises(ValueError, match=r"line 15 has the label '14' .* the model does not have"):
            load_data(str(path), [f"LABEL_{number}" for number in range(14)], examples=2, seed=seed)
    path = write_classes(tmp_path / "data.parquet", ["one", "two", "three"], [0, 1, 2])
    with pytest.raises(ValueError, match="row 3 has the label 2"):
        load_data(str(path), ["LABEL_0", "LABEL_1"], examples=1)


@pytest.mark.parametrize("name", ["data.jsonl", "data.csv"])
def test_a_row_that_data_sets_mark_as_without_a_label_is_no_error_outside_the_sample(tmp_path, name):
    rows = [{"text": "good", "label": 1}, {"text": "unclear", "label": -1}, {"text": "bad", "label": 0}]
    path = tmp_path / name
    write_lines(path, rows) if name.endswith("jsonl") else write(path, "text,label\ngood,1\nunclear,-1\nbad,0\n")
    sampled = [_error_or_gold(path, seed) for seed in range(12)]
    assert set(sampled) == {"LABEL_0", "LABEL_1", "the label"}


def test_a_first_class_that_is_minus_one_is_refused(tmp_path):
    """-1 and 1 of two classes: the negative class was taken for rows without a label."""
    path = write_lines(tmp_path / "data.jsonl", [{"text": "good", "label": 1}, {"text": "bad", "label": -1}] * 3)
    with pytest.raises(ValueError, match="labels -1 to 1, and the model the classes 0 to 1.*it is the first class"):
        load_data(str(path), ["negative", "positive"])
    names, problem, are_classes = read_columns(str(path), None, None).names_of_labels(["negative", "positive"])
    assert names == ["1", "-1"] * 3 and "it is the first class" in problem and not are_classes


def _error_or_gold(path, seed):
    try:
        return f"LABEL_{load_data(str(path), ['LABEL_0', 'LABEL_1'], examples=1, seed=seed).examples[0].gold}"
    except ValueError as error:
        return "the label" if re.search("line [1-4] has no label", str(error)) else str(error)


@pytest.mark.parametrize("read", [lambda path: load_data(path, None), lambda path: read_columns(path, None, None)])
def test_a_comma_without_quotation_marks_is_an_error_every_time(tmp_path, read):
    path = write(tmp_path / "data.csv", "label,text\n1,a fine, long film\n0,a bad, dull film\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="line 2 has 3 fields, expected 2.*quotation marks"):
            read(str(path))


def test_a_long_text_with_commas_in_quotation_marks_is_read(tmp_path):
    long = "a film, " * 20_000
    path = write(tmp_path / "data.csv", f'text,label\n"{long}",1\n"he said ""no"",\nand left",0\n')
    assert [example.text for example in load_data(str(path), None).examples] == [long, 'he said "no",\nand left']


def test_quotation_marks_between_tabs_lose_no_rows(tmp_path):
    texts = ["a fine film", '"a masterpiece, they say', "dull", "bad plot", 'he said "no" and left', '"good"']
    path = write(tmp_path / "dev.tsv", "sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))
    assert [example.text for example in load_data(str(path), ["a", "b"]).examples] == texts
    path = write(tmp_path / "quoted.tsv", 'sentence\tlabel\n"a\nb"\t1\n')
    with pytest.raises(ValueError, match="line 2 has 1 fields, expected 2"):
        load_data(str(path), ["a", "b"])


def test_a_row_without_its_second_text_fails_and_explain_names_it(tmp_path, config_of):
    rows = [{"premise": "the film was good", "hypothesis": "a plot", "label": 0}] * 2
    rows[1] = {**rows[1], "hypothesis": None}
    path = write_lines(tmp_path / "data.jsonl", rows)
    for _ in prepare(config_of(data=str(path), methods="leave_one_out"), tmp_path / "out").run():
        pass
    row = read_results(tmp_path / "out").rows[0]
    assert row.failed == 1 and row.error == "ValueError: the row has no text in the column 'hypothesis'"
    with pytest.raises(ValueError, match="line 2 has no text in the column 'hypothesis'"):
        read_columns(str(path), None, None)
    path = write_lines(tmp_path / "texts.jsonl", [{"text": None}, {"text": "a"}])
    with pytest.raises(ValueError, match="line 1 has no text in the column 'text'"):
        read_columns(str(path), None, None)


@pytest.mark.parametrize("name", ["data.csv", "data.jsonl", "data.txt", "folder"])
def test_a_file_that_is_written_anew_with_its_old_time_is_read_anew(tmp_path, name):
    path = tmp_path / name / "test.jsonl" if name == "folder" else tmp_path / name
    path.parent.mkdir(exist_ok=True)
    for text in ("old text", "quite another one"):
        content = {".csv": f"text\n{text}\n", ".txt": f"{text}\n"}
        write(path, content.get(path.suffix, json.dumps({"text": text}) + "\n"))
        os.utime(path, (1, 1))
        assert load_data(str(tmp_path / name), None).examples[0].text == text


def test_the_mark_of_utf_8_is_no_part_of_the_first_text(tmp_path):
    (tmp_path / "data.txt").write_bytes(b"\xef\xbb\xbfa film\nb film\n")
    assert [example.text for example in load_data(str(tmp_path / "data.txt"), None).examples] == ["a film", "b film"]


def by_position(sign):
    return lambda task: [sign * np.arange(len(one), dtype=float) for one in task.encoded]


def rank(values):
    return WORTH * values


WORTH = 1.0


def test_records_of_the_old_code_of_a_method_are_not_mixed_with_those_of_the_new(tmp_path, config_of, monkeypatch):
    config = config_of(methods="mine")

    def begin(function, **settings):
        registry.METHODS.pop("mine", None)
        register_method("mine", function, signed=True, description="Mine.", **settings)
        steps = prepare(config, tmp_path).run()
        next(steps)
        steps.close()

    try:
        begin(by_position(1.0))
        begin(by_position(1.0))
        for function, settings in (
            (by_position(-1.0), {}),
            (lambda task: [np.arange(len(one)) for one in task.encoded], {}),
            (by_position(1.0), {"option": 3}),
        ):
            with pytest.raises(ValueError, match=r"methods\.mine\.code: was [0-9a-f]{16}, is"):
                begin(function, **settings)
        with pytest.raises(ValueError, match=r"methods\.mine\.word_level"):
            begin(by_position(1.0), word_level=True)
    finally:
        registry.METHODS.pop("mine", None)


def test_the_digest_of_a_method_sees_what_its_function_uses(monkeypatch):
    def calls_itself(task, weights=(1, 2)):
        return calls_itself(rank(task)) if task else {"a", "b"}

    before = code_digest(calls_itself, {})
    assert code_digest(calls_itself, {}) == before
    assert code_digest(functools.partial(calls_itself, weights=1), {}) != before
    monkeypatch.setattr(sys.modules[__name__], "WORTH", 2.0)
    assert code_digest(calls_itself, {}) != before
    scorer = SimpleNamespace(layer=torch.nn.Linear(1, 1))
    before = code_digest(calls_itself, {"scorer": scorer})
    scorer.layer.weight.data.neg_()
    assert code_digest(calls_itself, {"scorer": scorer}) != before
    code = (
        "from captum_iba.compare.code_digest import code_digest; "
        "print(code_digest(lambda task: task in {'a', 'b', 'c'}, {'x': {'p', 'q'}}))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        for seed in ("1", "2")
    ]
    assert len(runs[0].stdout) == 17 and runs[0].stdout == runs[1].stdout


def test_a_report_drawn_again_where_a_method_is_unknown_shows_the_same_words(tmp_path, config_of):
    def of_words(task):
        return [np.array([0.0 if word is None else 1.0 + word for word in one.words]) for one in task.encoded]

    register_method("mine", of_words, signed=True, word_level=True, description="Mine.")
    try:
        for _ in prepare(config_of(methods="mine"), tmp_path).run():
            pass
        write_report(tmp_path)
    finally:
        registry.METHODS.pop("mine")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"method": "ig", "layer": 3}, "layer is 3, expected None: the method 'ig' looks at no layer"),
        ({"method": "lime:abs", "layer": [1, 2]}, r"layer is \(1, 2\), expected None: the method 'lime:abs'"),
        ({"method": "ig", "seed": 0}, "seed of 'ig' is 0, expected none: nothing is random in it"),
        ({"method": "grad_cam", "seeds": 2}, "seeds of 'grad_cam' is 2, expected none"),
    ],
)
def test_a_layer_or_seed_that_a_method_does_not_use_is_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        ComparisonConfig("data", methods=[entry]).runs()


def test_truncated_texts_are_said(tmp_path, config_of):
    for _ in prepare(config_of(methods="leave_one_out", max_length=6), tmp_path).run():
        pass
    summary = write_report(tmp_path)
    results = read_results(tmp_path)
    number = sum(bool(text["truncated"]) for text in results.texts)
    line = f"{number} of 6 texts were truncated to 6 tokens, and what was left out counts for nothing."
    assert number > 0 and line in summary.lines
    assert f"- {line}" in (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert line in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_statistics_of_a_whole_file_are_a_sample_of_it(tmp_path, model_folder):
    """They were its first rows, of one class where the file is sorted."""
    rows = [{"text": "good film", "label": 1}] * 600 + [{"text": "bad film", "label": 0}] * 600
    path = write_lines(tmp_path / "data.jsonl", rows)
    config = ComparisonConfig(str(path), str(model_folder), ["random"])
    _, texts, _ = _statistics_source(config, load_data(str(path), LABELS, others=500))
    assert len(texts) == 500 and 150 < sum(text.text == "good film" for text in texts) < 350


@pytest.mark.parametrize("value", [["good", "film"], {"0": "good"}])
def test_lists_and_objects_are_no_texts_for_explain(tmp_path, value):
    """pandas writes a table as one object of objects; explained were their Python spellings."""
    path = write_lines(tmp_path / "data.jsonl", [{"text": "good"}, {"text": value}])
    with pytest.raises(ValueError, match=r'line 2 has an? (list|object) in place of a text.*orient="records", lines=T'):
        read_columns(str(path), None, None)
    pairs = write_lines(tmp_path / "pairs.jsonl", [{"text": "good", "text_pair": value}])
    with pytest.raises(ValueError, match="line 1 has an? (list|object) in place of a text"):
        read_columns(str(pairs), None, None)


def test_a_number_that_is_none_is_a_missing_text(tmp_path):
    path = write(tmp_path / "data.jsonl", '{"text": 1.5}\n{"text": true}\n{"text": NaN}\n')
    with pytest.raises(ValueError, match="line 3 has no text in the column 'text'; leave the row out"):
        read_columns(str(path), None, None)
    write(path, '{"text": 1.5}\n{"text": true}\n')
    assert read_columns(str(path), None, None)[:2] == (["1.5", "True"], None)


@pytest.mark.parametrize("added", ["base@seed=0", "BASE@seed=1"])
def test_a_method_that_is_added_does_not_take_the_records_of_another(tmp_path, config_of, added):
    list(prepare(config_of(methods=[{"method": "random", "name": "base", "seeds": 2}]), tmp_path).run())
    with pytest.raises(ValueError, match=f"{added} was a run of base, is one of {added}"):
        prepare(config_of(methods=[{"method": "saliency", "name": added}]), tmp_path)
    list(prepare(config_of(methods=[{"method": "saliency", "name": "other"}]), tmp_path).run())
    assert [row.name for row in read_results(tmp_path).rows] == ["base", "other"]


@pytest.mark.parametrize("spelled", [int, str])
def test_labels_that_count_from_minus_1_are_refused_whatever_is_sampled(tmp_path, spelled):
    rows = [{"text": "good", "label": spelled(label)} for label in [0, 1] * 20 + [-1]]
    path = write_lines(tmp_path / "data.jsonl", rows)
    for seed in range(3):
        with pytest.raises(ValueError, match="the column 'label' has the labels -1 to 1, and the model the classes 0"):
            load_data(str(path), LABELS, examples=2, seed=seed)
    rows.append({"text": "bad", "label": spelled(2)})  # then -1 is no class
    write_lines(path, rows)
    assert [example.gold in (0, 1, 2) for example in load_data(str(path), LABELS, examples=2, seed=1).examples]
    named = write_classes(tmp_path / "named.parquet", LABELS, [0, 1, 0, 1, -1])
    assert load_data(str(named), LABELS, examples=1, seed=1).examples[0].gold in (0, 1)


def test_damaged_records_of_a_method_that_was_not_asked_for_leave_it_out(tmp_path, config_of):
    list(prepare(config_of(methods=["leave_one_out"]), tmp_path).run())
    list(prepare(config_of(methods=["saliency"]), tmp_path).run())
    chunk = sorted((tmp_path / "records" / "leave_one_out").iterdir())[0]
    content = chunk.read_bytes()
    chunk.write_bytes(content[: len(content) // 2])
    results = read_results(tmp_path)
    assert [row.name for row in results.rows] == ["saliency"] and results.left_out == ("leave_one_out",)
    chunk.rename(tmp_path / "records" / "saliency" / chunk.name)
    with pytest.raises(ValueError, match="is not a parquet file that can be read"):
        read_results(tmp_path)
