"""Killed at random moments, a comparison goes on to the same records as one that ran through."""

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

from captum_iba.compare import prepare, write_report
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
def test_killed_twice(model_folder, data_file, config_of, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    config = config_of(methods=[{"method": "iba", "n_steps": 3}, "leave_one_out", "random"], examples=16)
    steps = list(prepare(config, whole).run())
    chance = random.Random(0)
    finished = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", GO_ON, str(data_file), str(model_folder), str(killed)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(len(finished) + chance.randint(1, 5)):
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
