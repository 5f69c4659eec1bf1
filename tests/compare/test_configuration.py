import copy
import json
import shutil

import pytest
import torch

from captum_iba.attr.settings import PRESETS, resolve_settings
from captum_iba.compare import prepare
from captum_iba.compare.configuration import differences, read_configuration
from captum_iba.text.classifier import Classifier
from captum_iba.text.statistics import classifier_fingerprint
from tests.compare.conftest import rows_of_texts, write_lines


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"methods": "iba,random"}, "methods.leave_one_out: was leave_one_out, is none"),
        ({"seed": 1}, "seed: was 0, is 1"),
        ({"random_seeds": 3}, "methods.random: was random@seed=0,random@seed=1, is .*seed=2"),
        ({"examples": 7}, "examples: was 6, is 7"),
        ({"target": "predicted"}, "target: was gold, is predicted"),
        ({"max_length": 9}, "max_length: was 40, is 9"),
        ({"chunk_size": 3}, "chunk_size: was 2, is 3"),
        ({"batch_size": 8}, "batch_size: was 32, is 8"),
    ],
)
def test_changed_settings_are_refused(request_of, tmp_path, changes, says):
    prepare(request_of(), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match=f"holds a comparison with other settings: .*{says}"):
        prepare(request_of(**changes), tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def test_changed_data_and_models_are_refused_and_moved_ones_are_not(request_of, tmp_path, model_folder, bert):
    data = write_lines(tmp_path / "data.jsonl", rows_of_texts(10))
    out = tmp_path / "out"
    prepare(request_of(data=str(data)), out)
    shutil.copytree(model_folder, tmp_path / "model")
    moved = request_of(data=str(shutil.copy(data, tmp_path / "moved.jsonl")), model=str(tmp_path / "model"))
    prepare(moved, out)
    rows = rows_of_texts(10)
    for row in rows:
        row["text"] += " a"
    write_lines(tmp_path / "moved.jsonl", rows)
    with pytest.raises(ValueError, match="data_fingerprint: was"):
        prepare(moved, out)
    other = copy.deepcopy(bert)
    other.config.id2label[0] = "bad"
    with torch.no_grad():
        next(iter(other.parameters()))[0, 0] += 1
    other.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="model_fingerprint: was .*labels: was Negative,.* is bad,"):
        prepare(request_of(data=str(data), model=str(tmp_path / "model")), out)


def test_another_default_is_refused(request_of, tmp_path, monkeypatch):
    prepare(request_of(), tmp_path)
    monkeypatch.setitem(PRESETS, "default", resolve_settings(n_steps=7))
    with pytest.raises(ValueError, match=r"presets\.default\.n_steps: was \d+, is 7"):
        prepare(request_of(), tmp_path)


def test_versions_count_and_the_machine_does_not():
    before = {"versions": {"torch": "2.6"}, "environment": {"threads": 1}, "seed": 0}
    assert differences(before, {**before, "environment": {"threads": 2}}) == []
    assert differences(before, {**before, "versions": {"torch": "2.7"}}) == ["versions.torch: was 2.6, is 2.7"]


def test_a_mistake_leaves_no_folder_behind(request_of, tmp_path):
    for changes in ({"methods": "nonsense"}, {"label_column": "nowhere"}, {"preset": "paper"}, {"target": "best"}):
        with pytest.raises(ValueError, match="nonsense|nowhere|got both|got 'best'"):
            prepare(request_of(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gold_targets_need_labels(request_of, tmp_path):
    data = str(write_lines(tmp_path / "data.jsonl", [{"text": "a film"}, {"text": "dull"}]))
    with pytest.raises(ValueError, match="expected predicted for data without labels"):
        prepare(request_of(data=data, target="gold"), tmp_path / "out")
    assert prepare(request_of(data=data), tmp_path / "out").target == "predicted"


def test_a_folder_of_something_else_is_left_alone(request_of, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no comparison"):
        prepare(request_of(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("content", "says"), [(None, "no config.json"), ("nonsense", "not a configuration"), ("{}", "expected the format")]
)
def test_no_configuration(tmp_path, content, says):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=says):
        read_configuration(tmp_path)


def test_the_configuration_says_what_was_done(request_of, tmp_path, bert, wordpiece):
    prepare(request_of(), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert content["methods"]["random"] == ["random@seed=0", "random@seed=1"]
    assert content["signed"] == ["leave_one_out"] and content["counted_as_released"] == []
    assert content["columns"] == {"text": "text", "pair": None, "label": "label"} and content["rows"] == 30
    assert content["statistics"].startswith("30 texts of the data, the sample included (")
    assert content["model_fingerprint"] == classifier_fingerprint(Classifier(bert, wordpiece))
    assert {"torch", "captum"} <= set(content["versions"])
