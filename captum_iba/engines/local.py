"""The engine that needs nothing: jobs are done here, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from captum_iba.engines.base import Pool, Worker


class Local:
    """Jobs are done in this process, each when its result is asked for."""

    apart = False
    workers = 1

    @contextmanager
    def open(self, worker: Worker, device: str | None = None) -> Iterator[Pool]:
        """A pool of this process alone; the worker stays where it is."""
        yield _LocalPool(worker)


class _LocalPool:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._jobs: deque[tuple[Hashable, str, tuple[Any, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def full(self) -> bool:
        return bool(self._jobs)

    def share(self, value: Any) -> Any:
        return value

    def submit(self, tag: Hashable, method: str, *arguments: Any) -> None:
        self._jobs.append((tag, method, arguments))

    def forget(self) -> None:
        self._jobs.clear()

    def next(self) -> tuple[Any, Any]:
        tag, method, arguments = self._jobs.popleft()
        return tag, getattr(self._worker, method)(*arguments)
