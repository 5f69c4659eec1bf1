"""Peak memory of a procedure, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import sys

from benchmarks.procedures import load_model, procedures


def peak_memory(model_path: str | None, layer: int, length: int, name: str | None) -> float:
    """MiB of the largest resident set of a process that runs one procedure once.

    Args:
        model_path (str, optional): As for :func:`benchmarks.procedures.load_model`.
        layer (int): Layer with the bottleneck, from 1.
        length (int): Tokens of the text.
        name (str, optional): Of the procedure; None for the process that only loads the model.
    """
    # Not forked: a child would inherit the parent's memory, and torch's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (model_path, layer, length, name))


def _run(model_path: str | None, layer: int, length: int, name: str | None) -> float:
    for procedure in procedures(load_model(model_path), layer, length):
        if procedure.name == name:
            procedure.run()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
