"""Killed at a random moment, a comparison goes on to the same records as one that ran through."""

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from captum_iba.compare import ComparisonConfig, prepare, read_results, write_report
from tests.compare.agreement import assert_agree
from tests.compare.test_runner import all_records

ROOT = Path(__file__).parents[2]

GO_ON = """
import sys
from pathlib import Path
import torch
from captum_iba.compare import ComparisonConfig, prepare
torch.set_num_threads(1)
methods = [{"method": "iba", "n_steps": 3}, "leave_one_out", "random"]
config = ComparisonConfig(sys.argv[1], sys.argv[2], methods, examples=16, random_seeds=2, chunk_size=2)
for step in prepare(config, Path(sys.argv[3])).run():
    print(step.run, step.seconds, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_killed(model_folder, data_file, config_of, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    config = config_of(methods=[{"method": "iba", "n_steps": 3}, "leave_one_out", "random"], examples=16)
    steps = list(prepare(config, whole).run())
    chance = random.Random(0)
    process = subprocess.Popen(
        [sys.executable, "-c", GO_ON, str(data_file), str(model_folder), str(killed)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(chance.randint(1, 9)):
        process.stdout.readline()
    time.sleep(chance.random() * 0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    finished = list(all_records(killed))
    assert 0 < len(finished) < len(steps)
    again = list(prepare(config, killed).run())
    assert sum(step.seconds is None for step in again) == len(finished)
    assert_agree(all_records(killed), all_records(whole))
    assert (killed / "texts.parquet").read_bytes() == (whole / "texts.parquet").read_bytes()
    assert write_report(killed).lines[0] == write_report(whole).lines[0]


def test_a_comparison_does_not_go_on_with_another_tokenizer(config_of, model_folder, wordpiece, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    prepare(config_of(model=str(folder)), tmp_path / "out")
    other = copy.deepcopy(wordpiece)
    other.add_tokens(["dull plot"])
    other.save_pretrained(folder)
    with pytest.raises(ValueError, match="model_fingerprint"):
        prepare(config_of(model=str(folder)), tmp_path / "out")


def test_methods_are_added_to_a_comparison(config_of, tmp_path):
    random_twice = {"method": "random", "name": "chance", "seeds": 2}
    first = ["leave_one_out", random_twice]
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    list(prepare(config_of(methods=[*first, "saliency"]), whole).run())
    list(prepare(config_of(methods=first), grown).run())
    steps = list(prepare(config_of(methods=["leave_one_out", "saliency"]), grown).run())
    assert {step.run for step in steps if step.seconds is not None} == {"saliency"}  # nothing is computed again
    assert_agree(all_records(grown), all_records(whole))
    assert [row.name for row in read_results(grown).rows] == ["leave_one_out", "chance", "saliency"]
    # The configuration is that of all of them.
    config = ComparisonConfig.from_yaml(grown / "comparison.yaml")
    assert [run.name for run in config.runs()] == ["leave_one_out", "chance@seed=0", "chance@seed=1", "saliency"]
    assert all(step.seconds is None for step in prepare(config, grown).run())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 1}, "seed: was 0, is 1"),
        ({"target": "predicted"}, "target: was gold, is predicted"),
        ({"methods": [{"method": "captum_lime", "n_samples": 9, "name": "one"}]}, "methods.one.options.n_samples"),
        ({"methods": [{"method": "saliency", "name": "ONE"}]}, "methods: was one, is ONE"),
    ],
)
def test_methods_are_added_only_to_the_same_comparison(config_of, tmp_path, change, says):
    prepare(config_of(methods=[{"method": "captum_lime", "n_samples": 8, "name": "one"}]), tmp_path / "out")
    with pytest.raises(ValueError, match=says):
        prepare(config_of(**{"methods": ["saliency"], **change}), tmp_path / "out")


def test_a_method_that_was_not_finished_is_left_out_and_said(config_of, tmp_path):
    for _, _ in zip(range(2), prepare(config_of(methods=["leave_one_out"]), tmp_path).run(), strict=False):
        pass
    list(prepare(config_of(methods=["saliency"]), tmp_path).run())
    assert [row.name for row in read_results(tmp_path).rows] == ["saliency"]
    assert write_report(tmp_path).lines[-1].startswith("Not finished, and left out: leave_one_out;")
    steps = list(prepare(config_of(methods=["leave_one_out"]), tmp_path).run())
    assert 0 < sum(step.seconds is None for step in steps) < len(steps)  # what it had is kept
    assert [row.name for row in read_results(tmp_path).rows] == ["leave_one_out", "saliency"]


def test_progress_by_text(config_of, tmp_path):
    heard = []
    settings = [{"method": "iba", "n_steps": 1}, {"method": "lime", "n_samples": 5}, {"method": "ig", "n_steps": 2}]
    comparison = prepare(config_of(methods=[*settings, "leave_one_out"]), tmp_path)
    for step in comparison.run(lambda run, tokens: heard.append((run, tokens))):
        assert sum(tokens for run, tokens in heard if run == step.run) == step.tokens
        assert len(heard) > 1  # by text, not by chunk
        heard.clear()
