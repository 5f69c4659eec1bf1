"""Peak memory of a piece of work, as the system counts it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def peak_resident() -> Iterator[list[float]]:
    """Gives a list that holds, after the context, MiB of memory at the peak above what was held before.

    It stays empty where the system does not let a process set its own peak back (only Linux with glibc does).
    """
    found: list[float] = []
    try:
        # Memory that was freed may still be the process's own, and would hide what is taken anew.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
        before = _mib("VmRSS")
    except (OSError, AttributeError, TypeError):
        yield found
        return
    yield found
    found.append(_mib("VmHWM") - before)


def _mib(entry: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(entry + ":"))
    return int(line.split()[1]) / 1024
