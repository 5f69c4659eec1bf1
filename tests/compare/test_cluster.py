"""On a cluster of several machines: Ray's own test cluster, a raylet a machine, all on this one."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from captum_iba.compare import prepare
from captum_iba.compare.parallel import ExecutorError, RayExecutor
from tests.compare.agreement import assert_agree
from tests.compare.test_runner import all_records, by_length, own_method  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture
def address(monkeypatch):
    """Of two machines of one CPU each, and one without, where the driver is."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the workers, whose directory is not this one
    # A machine is lost after 5 checks without an answer; half a second, and not 3, lies between two.
    settings = {"USAGE_STATS_ENABLED": "0", "worker_niceness": "0", "health_check_period_ms": "500"}
    for name, value in settings.items():
        monkeypatch.setenv(f"RAY_{name}", value)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.skipif(sys.platform == "win32", reason="Ray has no clusters there")
def test_a_machine_lost_in_the_middle(address, config_of, tmp_path, own_method):  # noqa: F811
    lost = tmp_path / "lost"

    def unlucky(task):
        if task.encoded and not lost.exists():
            lost.touch()
            os.kill(os.getppid(), signal.SIGKILL)  # the raylet, whose end is the end of its machine
            signal.pause()
        return by_length(task)

    own_method("unlucky", unlucky)
    config = config_of(methods=[{"method": "iba", "n_steps": 2}, "unlucky"], chunk_size=1)
    lost.touch()
    list(prepare(config, tmp_path / "here").run())
    comparison = prepare(config, tmp_path / "there", executor=RayExecutor(address=address, workers=2))
    lost.unlink()
    with pytest.warns(UserWarning, match=r"a worker died; chunk \d of unlucky is done again"):
        steps = list(comparison.run())
    assert lost.exists() and len(steps) == 12 and not any(step.failed for step in steps)
    assert_agree(all_records(tmp_path / "there"), all_records(tmp_path / "here"))


def test_an_address_that_is_none(config_of, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ExecutorError, match="^address is 'nowhere', where no Ray cluster lets this .*RAY_AUTH_MODE"):
        list(prepare(config_of(), tmp_path / "a", executor=RayExecutor(address="nowhere")).run())
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ExecutorError, match=f"^address is '{address}', where nothing answers"):
            list(prepare(config_of(), tmp_path / "b", executor=RayExecutor(address=address)).run())
