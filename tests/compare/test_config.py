import copy
import json
import math
import shutil

import pytest
import torch

from captum_iba.attr.settings import PRESETS, resolve_settings
from captum_iba.compare import ComparisonConfig, prepare, read_results, write_report
from captum_iba.compare.config import PAPER_METHODS, differences, folder_name, read_provenance
from captum_iba.text.classifier import Classifier
from captum_iba.text.statistics import classifier_fingerprint
from tests.compare.conftest import rows_of_texts, write_lines


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 1}, "seed: was 0, is 1"),
        ({"random_seeds": 3}, "methods.random.runs: was random@seed=0,random@seed=1, is .*seed=2"),
        ({"examples": 7}, "examples: was 6, is 7"),
        ({"target": "predicted"}, "target: was gold, is predicted"),
        ({"max_length": 9}, "max_length: was 40, is 9"),
        ({"chunk_size": 3}, "chunk_size: was 2, is 3"),
        ({"batch_size": 8}, "batch_size: was 32, is 8"),
    ],
)
def test_changed_settings_are_refused(config_of, tmp_path, changes, says):
    prepare(config_of(), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match=f"holds a comparison with other settings: .*{says}"):
        prepare(config_of(**changes), tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def test_changed_data_and_models_are_refused_and_moved_ones_are_not(config_of, tmp_path, model_folder, bert):
    data = write_lines(tmp_path / "data.jsonl", rows_of_texts(10))
    out = tmp_path / "out"
    prepare(config_of(data=str(data)), out)
    shutil.copytree(model_folder, tmp_path / "model")
    moved = config_of(data=str(shutil.copy(data, tmp_path / "moved.jsonl")), model=str(tmp_path / "model"))
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
        prepare(config_of(data=str(data), model=str(tmp_path / "model")), out)


def test_another_default_is_refused(config_of, tmp_path, monkeypatch):
    prepare(config_of(), tmp_path)
    monkeypatch.setitem(PRESETS, "default", resolve_settings(n_steps=7))
    with pytest.raises(ValueError, match=r"presets\.default\.n_steps: was \d+, is 7"):
        prepare(config_of(), tmp_path)


def test_versions_count_and_the_machine_does_not():
    before = {"versions": {"torch": "2.6"}, "environment": {"threads": 1}, "seed": 0}
    assert differences(before, {**before, "environment": {"threads": 2}}) == []
    assert differences(before, {**before, "versions": {"torch": "2.7"}}) == ["versions.torch: was 2.6, is 2.7"]


def test_a_mistake_leaves_no_folder_behind(config_of, tmp_path):
    for changes in ({"methods": "nonsense"}, {"label_column": "nowhere"}, {"method_set": "paper"}, {"target": "best"}):
        with pytest.raises(ValueError, match="nonsense|nowhere|both given|is 'best'"):
            prepare(config_of(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gold_targets_need_labels(config_of, tmp_path):
    data = str(write_lines(tmp_path / "data.jsonl", [{"text": "a film"}, {"text": "dull"}]))
    with pytest.raises(ValueError, match="target is gold, expected predicted for data without labels"):
        prepare(config_of(data=data, target="gold"), tmp_path / "out")
    assert prepare(config_of(data=data), tmp_path / "out").target == "predicted"


def test_a_folder_of_something_else_is_left_alone(config_of, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no comparison"):
        prepare(config_of(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("content", "says"), [(None, "no config.json"), ("nonsense", "not the record"), ("{}", "expected the format")]
)
def test_no_configuration(tmp_path, content, says):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=says):
        read_provenance(tmp_path)


def test_the_record_says_what_was_done(config_of, tmp_path, bert, wordpiece):
    prepare(config_of(), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert content["methods"]["random"]["runs"] == ["random@seed=0", "random@seed=1"]
    assert [row for row, about in content["methods"].items() if about["signed"]] == ["leave_one_out"]
    assert {about["counting"] for about in content["methods"].values()} == {"removable"}
    assert content["columns"] == {"text": "text", "pair": None, "label": "label"} and content["rows"] == 30
    assert content["statistics"].startswith("30 texts of the data, the sample included (")
    assert content["model_fingerprint"] == classifier_fingerprint(Classifier(bert, wordpiece))
    assert {"torch", "captum"} <= set(content["versions"])


def test_a_folder_made_before_1_0_is_refused(config_of, tmp_path):
    record = {"format": "captum_iba.benchmark/1", "model": "m", "methods": {"iba": ["iba"]}, "signed": []}
    (tmp_path / "config.json").write_text(json.dumps(record), "utf-8")
    for use in (read_results, write_report, lambda folder: prepare(config_of(), folder)):
        with pytest.raises(ValueError, match="made before captum_iba 1.0, .*: compute it again in another folder"):
            use(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def runs(*methods, **settings):
    return ComparisonConfig("data", methods=list(methods), **settings).runs()


def names(*methods, **settings):
    return [run.name for run in runs(*methods, **settings)]


def test_methods_with_settings():
    settings = {"method": "conductance", "n_steps": 100, "layer": "bert.encoder", "baseline": "mask"}
    found = runs({"method": "iba", "layer": 3, "beta": 0.1}, "ig:abs", settings)
    labels = ["iba@layer=3,beta=0.1", "ig:abs", "conductance@n_steps=100,layer=bert.encoder,baseline=mask"]
    assert [run.name for run in found] == [run.row for run in found] == labels
    assert [run.method for run in found] == ["iba", "ig:abs", "conductance"]
    assert [run.layer for run in found] == [3, None, "bert.encoder"]
    assert [run.options for run in found] == [(("beta", 0.1),), (), (("n_steps", 100), ("baseline", "mask"))]
    assert ComparisonConfig("data", methods=" iba, ig:abs ").runs() == runs("iba", "ig:abs")
    assert [run.row for run in ComparisonConfig("data").runs()][:4] == ["iba", "ig", "lime", "random"]


def test_several_layers_with_one_mask():
    found = runs({"method": "iba", "layer": [1, 3, 6], "beta": 100.0}, {"method": "iba", "layer": ["bert.pooler", 2]})
    assert [(run.name, run.layer) for run in found] == [
        ("iba@layer=1+3+6,beta=100", (1, 3, 6)),
        ("iba@layer=bert.pooler+2", ("bert.pooler", 2)),
    ]
    assert names("iba", layers=[2, [1, 3]]) == ["iba@layer=2", "iba@layer=1+3"]


def test_variants_of_iba():
    assert names("iba", layers=["all"]) == ["iba"]
    assert names("iba", "ig", layers=[1, 2]) == ["iba@layer=1", "iba@layer=2", "ig"]
    assert names({"method": "iba"}, layers=["all", 2]) == ["iba", "iba@layer=2"]
    assert names("ig", "iba", layers=[1, 3], betas=[0.1, 1e-5, 1]) == [
        "ig",
        *(f"iba@layer={layer},beta={beta}" for layer in (1, 3) for beta in ("0.1", "1e-05", "1")),
    ]


def test_seeds():
    found = runs("random", seed=4, random_seeds=3)
    assert [(run.row, run.name, run.seed) for run in found] == [("random", f"random@seed={i}", i) for i in (4, 5, 6)]
    (single,) = runs({"method": "random", "seed": 9})
    assert (single.row, single.seed) == ("random@seed=9", 9)
    several = {"method": "iba", "beta": 1, "seed": 7, "seeds": 2}
    assert [(run.row, run.name, run.seed) for run in runs(several, {"method": "random", "seeds": 1})] == [
        ("iba@beta=1", "iba@beta=1,seed=7", 7),
        ("iba@beta=1", "iba@beta=1,seed=8", 8),
        ("random", "random@seed=0", 0),
    ]


def test_a_row_with_a_name():
    found = runs(
        {"method": "lime", "n_samples": 9, "name": "quick lime"}, {"method": "random", "name": "r", "seeds": 2}
    )
    assert [(run.row, run.name) for run in found] == [("quick lime",) * 2, ("r", "r@seed=0"), ("r", "r@seed=1")]
    assert found[0].options == (("n_samples", 9),)


def test_settings_behind_a_name_count(config_of, tmp_path):
    def config(samples):
        return config_of(methods=[{"method": "captum_lime", "n_samples": samples, "name": "lime"}])

    prepare(config(10), tmp_path)
    with pytest.raises(ValueError, match="methods.lime.options.n_samples: was 10, is 20"):
        prepare(config(20), tmp_path)


def test_the_rows_of_the_paper():
    found = ComparisonConfig("data", method_set="paper").runs()
    assert {run.counting for run in found if run.row in ("iba", "iba_paper", "ig", "lime", "random")} == {"removable"}
    released = ["iba_as_released", "ig_as_released", "lime_as_released", "random@counting=as_released"]
    assert list(dict.fromkeys(run.row for run in found if run.counting == "as_released")) == released
    assert len(found) == 7 + 2 * 5 and len(PAPER_METHODS) == 9
    assert found[-1].name == "random@counting=as_released,seed=4"


@pytest.mark.parametrize(
    ("methods", "settings", "says"),
    [
        ([], {}, "methods is empty, expected at least one"),
        (" , ", {}, "methods is empty, expected at least one"),
        (["ig", "ig"], {}, "ig is there more than once"),
        (["ig", {"method": "lime", "name": "IG"}], {}, "IG, ig is there more than once"),
        (["random", {"method": "random", "seed": 0}], {}, "random@seed=0 is there more than once"),
        (["i g"], {}, "methods has 'i g', expected NAME, NAME:abs, or in a YAML file"),
        (["ig@n_steps=3"], {}, r"expected NAME, .* \(--config\) also a mapping such as {method: lime, n_samples: 100}"),
        ([{"n_steps": 3}], {}, "methods has {'n_steps': 3}, expected"),
        ([7], {}, "methods has 7, expected NAME"),
        (["magic"], {}, "there is no 'magic'; the methods are iba"),
        (["LIM"], {}, r"there is no 'LIM' \(did you mean 'lime'\?\); the methods are iba"),
        ([{"method": "ig", "n_steps": [1]}], {}, r"n_steps of 'ig' is \[1\], expected a number, a text"),
        ([{"method": "ig", "steps": 1}], {}, "'ig' has no option 'steps'; its options are n_steps"),
        ([{"method": "ig", "counting": "best"}], {}, "counting of 'ig' is 'best', expected removable or as_released"),
        ([{"method": "lime", "seed": "x"}], {}, "seed of 'lime' is 'x', expected an integer"),
        ([{"method": "lime", "seeds": 0}], {}, "seeds of 'lime' is 0, expected an integer of at least 1"),
        ([{"method": "ig", "layer": []}], {}, r"layer of 'ig' is \[\], expected a block number"),
        ([{"method": "iba", "layer": [1, 0.5]}], {}, "expected a block number, a module name, or a list"),
        ([{"method": "ig", "name": "../out"}], {}, "name of 'ig' is '../out', expected letters"),
        (["ig"], {"layers": [1]}, "which is not among methods"),
        ([{"method": "iba", "n_steps": 3}], {"betas": [1.0]}, "which is not among methods"),
        (["iba"], {"betas": ["much"]}, "betas has 'much', expected numbers"),
        (["iba"], {"layers": 3}, "layers is 3, expected a list"),
        (["random"], {"random_seeds": 0}, "random_seeds is 0, expected at least 1"),
        (["ig"], {"method_set": "paper"}, "methods and method_set are both given"),
        (["ig"], {"method_set": "best"}, "method_set is 'best', expected paper"),
        (["ig"], {"examples": "many"}, "examples is 'many', expected an integer or nothing"),
        (["ig"], {"batch_size": True}, "batch_size is True, expected an integer"),
        (["ig"], {"dtype": "nn"}, "dtype is 'nn', expected the name of a type of torch"),
        (5, {}, "methods is 5, expected a list"),
    ],
)
def test_what_cannot_be_read(methods, settings, says):
    with pytest.raises((ValueError, TypeError), match=says):
        ComparisonConfig("data", methods=methods, **settings).runs()


def test_folders_suit_every_system_and_differ():
    given = ["ig:abs", "ig", "iba@layer=3,beta=0.1", "iba@layer=bert.encoder.0"]
    folders = [folder_name(name) for name in given]
    assert len(set(folders)) == 4 and not any(letter in folder for folder in folders for letter in ':/\\*?"<>|')


CONFIG = """
data: texts.csv
methods: [iba, {method: lime, n_samples: 100}, {method: iba, layer: [1, 3], beta: 1e-5}, {method: random, seeds: 2}]
layers: [all, 3, [6, 9]]
betas: [1, 1e-2]
examples: 4
target: predicted
"""


def test_a_file_says_all_that_the_class_can(tmp_path):
    path = tmp_path / "comparison.yaml"
    path.write_text(CONFIG, "utf-8")
    config = ComparisonConfig.from_yaml(path, seed=3, data="other.csv")
    assert (config.data, config.examples, config.target, config.seed) == ("other.csv", 4, "predicted", 3)
    variants = [f"iba@{layer}beta={beta}" for layer in ("", "layer=3,", "layer=6+9,") for beta in ("1", "0.01")]
    others = ["lime@n_samples=100", "iba@layer=1+3,beta=1e-05", "random@seed=3", "random@seed=4"]
    assert [run.name for run in config.runs()] == [*variants, *others]
    assert math.isclose(dict(config.runs()[7].options)["beta"], 1e-5)
    path.write_text(config.to_yaml(), "utf-8")
    assert ComparisonConfig.from_yaml(path).runs() == config.runs()
    assert ComparisonConfig.from_yaml(path) == config
    paper = ComparisonConfig.from_yaml(path, method_set="paper", layers=[], betas=[])
    assert paper.methods is None and len(paper.runs()) == 17
    path.write_text("data: other.csv\npreset: paper", "utf-8")  # its name before 1.0
    assert ComparisonConfig.from_yaml(path).method_set == "paper"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("data: a\nexampels: 4", "has the key 'exampels', expected one of data, model, methods"),
        ("- a", "holds list, expected keys among data, model"),
        ("", "holds NoneType, expected keys"),
        ("data: [", "is no YAML file: while parsing"),
        ("examples: 4", "does not name the data"),
        ("data: a\nexamples: four", "examples is 'four', expected an integer or nothing"),
        ("data: 3", "data is 3, expected a string"),
        ("data: a\nchunk_size: 0", "chunk_size is 0, expected at least 1"),
        ("data: !!python/object:os.system a", "is no YAML file: could not determine a constructor"),
    ],
)
def test_files_that_say_something_else(tmp_path, content, says):
    (tmp_path / "c.yaml").write_text(content, "utf-8")
    with pytest.raises((ValueError, TypeError), match=says):
        ComparisonConfig.from_yaml(tmp_path / "c.yaml")


def test_a_comparison_can_be_computed_again_from_its_folder(config_of, tmp_path, monkeypatch, model_folder, data_file):
    monkeypatch.chdir(data_file.parent)  # what is relative here is not so elsewhere
    methods = ["saliency", {"method": "occlusion", "window": 2, "name": "two"}]
    prepare(config_of(data=data_file.name, methods=methods), tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    config = ComparisonConfig.from_yaml(tmp_path / "first" / "comparison.yaml")
    assert (config.data, config.model) == (str(data_file), str(model_folder))
    prepare(config, tmp_path / "second")
    prepare(config, tmp_path / "first")  # the same as before, and goes on
    records = [read_provenance(tmp_path / name) for name in ("first", "second")]
    assert differences(*records) == [] and list(records[0]["methods"]) == ["saliency", "two"]
