"""Settings that all tests share."""

import gc
import os
import signal
import tempfile

import hypothesis
import pytest
import torch

# Examples are the same in every run, and a slow machine is no failure.
hypothesis.settings.register_profile("repository", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repository")

# A job that a shell runs in the background ignores Ctrl-C, and hands that on to its children; some tests need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Statistics of neutral texts are kept in a cache: not in that of the person who runs the tests.
_CACHE = tempfile.TemporaryDirectory(prefix="captum_iba-tests-")
os.environ["CAPTUM_IBA_CACHE"] = _CACHE.name

# Models here are tiny: threads cost them more than they give.
torch.set_num_threads(1)

# A process whose Ray once asked for a token asks every other Ray for it; and a token would be left in the home folder.
os.environ["RAY_AUTH_MODE"] = "disabled"


# Files of few and long tests. They begin first, so that no process has one of them alone at the end.
LONG = ["test_cli", "test_parallel", "test_cluster", "test_resume", "test_benchmarks", "test_docs", "test_heads"]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_collection_finish():
    """What is imported by now stays to the end: without this, a fifth of the time is the search for garbage in it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    _CACHE.cleanup()  # worker processes of pytest-xdist end without atexit


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Random weights of a test are the same whatever ran before it in its process."""
    torch.manual_seed(0)
