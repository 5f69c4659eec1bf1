"""Whoever does the work, the records agree as docs/scale.md says under "The same records"."""

import json
import os
import pickle
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from captum_iba import cli
from captum_iba.attr.settings import PRESETS
from captum_iba.compare import parallel, prepare
from captum_iba.compare.explain_many import explain_texts
from captum_iba.compare.parallel import ExecutorError, LocalExecutor, RayExecutor
from captum_iba.compare.worker import LayerStatistics
from captum_iba.text import Classifier, TextExplainer, find_layer
from captum_iba.text.classifier import load_classifier
from tests.compare.agreement import assert_agree
from tests.compare.test_runner import all_records, by_length, own_method  # noqa: F401

METHODS = [{"method": "iba", "n_steps": 3}, "leave_one_out", "random"]


@pytest.fixture(scope="module")
def cluster():
    """Ray with two CPUs, for all tests of this file."""
    ray = pytest.importorskip("ray")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    for attempt in range(3):  # on a busy machine it may not start in the time that it allows itself
        try:
            ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
            break
        except Exception:
            ray.shutdown()
            if attempt == 2:
                raise
    yield ray
    ray.shutdown()


@pytest.fixture
def whole(config_of, tmp_path):
    """Runs a comparison here, and gives its folder."""

    def make(**changes):
        folder = tmp_path / "whole"
        list(prepare(config_of(**{"methods": METHODS, **changes}), folder).run())
        return folder

    return make


def statistics_of(folder):
    files = sorted((folder / "statistics").iterdir())
    return {path.name: {name: tensor.tolist() for name, tensor in load_file(path).items()} for path in files}


class Doubling:
    def twice(self, number):
        return 2 * number


def test_results_of_a_map():
    calls = [(label, (label,)) for label in range(5)]
    with LocalExecutor().open(Doubling()) as workers:
        assert list(workers.map("twice", calls)) == [(label, 2 * label) for label in range(5)]
        assert list(workers.map("twice", [])) == []


def test_an_error_of_a_job_loses_no_worker_and_leaves_no_result(cluster):
    class Picky:  # in here, so that it travels by value
        def take(self, number):
            if number == 1:
                raise ValueError("not one")
            return number

    with RayExecutor(workers=1).open(Picky()) as workers:
        with pytest.raises(ValueError, match="not one"):
            list(workers.map("take", [(number, (number,)) for number in range(6)]))
        for numbers in ([7, 8, 9], []):
            assert sorted(workers.map("take", [(number, (number,)) for number in numbers])) == [(n, n) for n in numbers]
        assert len(workers._free) + len(workers._busy) == 1


def test_workers_that_cannot_be_placed(cluster):
    with pytest.raises(ExecutorError, match="has a GPU"), RayExecutor(workers=1).open(Doubling(), "cuda"):
        pass


@pytest.mark.parametrize("layer", [2, "bert.embeddings"])
def test_statistics_of_parts_are_those_of_the_whole(config_of, tmp_path, layer):
    comparison = prepare(config_of(batch_size=5), tmp_path / "out")
    (texts, batch_size) = (comparison.worker.statistics._texts, comparison.worker.batch_size)
    assert len(texts) > 4 * batch_size
    block = find_layer(comparison.classifier.model, layer)
    for name in ("whole", "parts"):
        statistics = LayerStatistics(comparison.classifier, tmp_path / name / "statistics", texts, None, batch_size)
        if name == "whole":
            statistics(block)
        else:
            statistics.gather(block, lambda calls, own=statistics: [own.part(*call) for call in calls])
    assert statistics_of(tmp_path / "parts") == statistics_of(tmp_path / "whole")  # every bit: one process


def test_a_copy_elsewhere_has_its_weights_where_the_original_has(model_folder):
    """Or libraries may take other kernels there, which add in another order."""
    model, tokenizer = load_classifier(model_folder)
    for i, parameter in enumerate(model.parameters()):
        room = torch.empty(parameter.numel() + 32)
        skipped = (4 * (i % 16) - room.data_ptr()) % 64 // 4
        parameter.data = room[skipped : skipped + parameter.numel()].view(parameter.shape).copy_(parameter.data)
    there = pickle.loads(pickle.dumps(Classifier(model, tokenizer))).model
    assert {parameter.data_ptr() % 64 for parameter in model.parameters()} == set(range(0, 64, 4))
    for one, other in zip(model.parameters(), there.parameters(), strict=True):
        assert other.data_ptr() != one.data_ptr() and other.data_ptr() % 64 == one.data_ptr() % 64
        assert torch.equal(one, other) and other.requires_grad == one.requires_grad


def test_two_workers_give_the_records_of_one_process(cluster, config_of, whole, tmp_path, own_method):  # noqa: F811
    def picky(task):
        if any("unbelievable" in encoded.text for encoded in task.encoded):
            raise RuntimeError("cannot believe it")
        return by_length(task)

    own_method("picky", picky)  # nobody but this process knows it
    methods = [*METHODS, "picky:abs"]
    expected = whole(methods=methods)
    executor = RayExecutor()
    steps = list(prepare(config_of(methods=methods), tmp_path / "ray", executor=executor).run())
    assert executor.workers == 2 and len(steps) == 3 * 5
    assert sum(step.failed for step in steps if step.run == "picky:abs") > 0
    assert_agree(all_records(tmp_path / "ray"), all_records(expected))
    assert_agree(statistics_of(tmp_path / "ray"), statistics_of(expected))
    for name in ("config.json", "texts.parquet"):
        assert (tmp_path / "ray" / name).read_bytes() == (expected / name).read_bytes()


def test_either_goes_on_where_the_other_stopped(cluster, config_of, whole, tmp_path):
    config, expected, out = config_of(methods=METHODS), whole(), tmp_path / "out"

    def go_on(executor, steps):
        """Until so many are there; gives which were there already."""
        work = prepare(config, out, executor=executor).run()
        found = [next(work).seconds is None for _ in range(steps)]
        work.close()
        return found

    assert go_on(None, 3) == [False] * 3
    before = all_records(out, seconds=True)
    assert go_on(RayExecutor(workers=1), 6) == [True] * 3 + [False] * 3
    assert sum(go_on(None, 12)) == 6
    after = all_records(out, seconds=True)
    assert {path: after[path] for path in before} == before
    assert_agree(all_records(out), all_records(expected))


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_a_worker_killed_in_the_middle(cluster, config_of, whole, tmp_path, own_method):  # noqa: F811
    killed = tmp_path / "killed"

    def mortal(task):
        if task.encoded and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return by_length(task)

    own_method("mortal", mortal)
    killed.touch()
    expected = whole(methods="random,mortal")
    comparison = prepare(config_of(methods="random,mortal"), tmp_path / "ray", executor=RayExecutor(workers=1))
    killed.unlink()
    with pytest.warns(UserWarning, match=r"a worker died; chunk \d of mortal is done again"):
        steps = list(comparison.run())
    assert killed.exists() and len(steps) == 9
    assert_agree(all_records(tmp_path / "ray"), all_records(expected))


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
@pytest.mark.filterwarnings("ignore:a worker died")
def test_a_chunk_that_nobody_survives(cluster, config_of, tmp_path, own_method, monkeypatch):  # noqa: F811
    here = os.getpid()

    def deadly(task):
        if task.encoded and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return by_length(task)

    own_method("deadly", deadly)
    monkeypatch.setattr(parallel, "RETRIES", 0)
    config = config_of(methods="deadly", examples=2)
    with pytest.raises(ExecutorError, match="chunk 0 of deadly: its worker died, 1 times in all"):
        list(prepare(config, tmp_path, executor=RayExecutor(workers=1)).run())
    assert [step.failed for step in prepare(config, tmp_path).run()] == [0]


def test_settings_without_statistics_gather_none(model_folder, monkeypatch):
    explainer = TextExplainer(*load_classifier(model_folder), layer=1)
    monkeypatch.setattr(TextExplainer, "use_neutral_statistics", lambda *_: pytest.fail("statistics were gathered"))
    expected = explain_texts(LocalExecutor(), explainer, ["a film"], preset="paper", noise_around_input=True)
    found = explain_texts(
        LocalExecutor(), explainer, ["a film"], preset=replace(PRESETS["paper"], noise_around_input=True)
    )
    assert_agree([one.to_dict() for one in found], [one.to_dict() | {"preset": "custom"} for one in expected])


def test_texts_without_any_for_the_statistics(cluster, config_of, tmp_path):
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text('{"text": " "}\n', encoding="utf-8")
    config = config_of(methods="iba", statistics_from=str(nothing))
    with pytest.raises(RuntimeError, match="^statistics: .* there are no texts to estimate them from"):
        list(prepare(config, tmp_path / "out", executor=RayExecutor(workers=1)).run())


def test_a_device_is_not_a_number(config_of, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match="device is 'cuda:1', expected cpu or cuda: Ray chooses"):
        next(prepare(config_of(device="cuda:1"), tmp_path, executor=RayExecutor(workers=1)).run())
    with pytest.raises(ValueError, match="workers is 0, expected at least 1"):
        RayExecutor(workers=0)


@pytest.mark.parametrize("command", [["compare", "--data", "x", "--out", "o"], ["explain", "A film."]])
def test_the_options(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for option in (["--address", "auto"], ["--workers", "2"]):
        done = CliRunner().invoke(cli.app, [*command, *option])
        assert done.exit_code == 2 and f"{option[0]} is for --executor ray" in done.stderr
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(cli.app, [*command, "--executor", "ray"])
    assert done.exit_code == 1 and 'ray is not installed; run: pip install "captum-iba[ray]"' in done.stderr
    assert not Path("o").exists()


def test_kept_texts_go_on_by_another_executor_from_the_command_line(cluster, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    texts = ["A wonderful film.", "Dull.", "", "Not even funny, and far too long."]
    Path("all.txt").write_text("\n".join(texts), encoding="utf-8")
    Path("first.txt").write_text(texts[0], encoding="utf-8")
    quick = ["explain", "--steps", "2", "--samples", "1", "--batch-size", "1", "--json", "-"]
    whole = CliRunner().invoke(cli.app, [*quick, "--file", "all.txt"])
    CliRunner().invoke(cli.app, [*quick, "--file", "first.txt", "--keep", "kept"])
    before = {path: path.stat().st_mtime_ns for path in Path("kept").iterdir()}
    by_ray = ["--executor", "ray", "--workers", "1"]
    there = CliRunner().invoke(cli.app, [*quick, "--file", "all.txt", "--keep", "kept", *by_ray])
    assert there.exit_code == 0, there.output
    assert_agree(json.loads(there.stdout), json.loads(whole.stdout))
    assert "wonderful" in whole.stdout
    assert len(before) == 1 and len(list(Path("kept").iterdir())) == 3
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
