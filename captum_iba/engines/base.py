"""What an engine is: something that opens a pool of workers, which all hold the same object and do jobs with it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class EngineError(RuntimeError):
    """Workers cannot be had, or die over and over. What was finished before is kept."""


class Worker(Protocol):
    """An object whose methods are the jobs. One that goes to another process is pickled."""

    def move(self, device: str) -> None:
        """Go to a device, after the arrival in another process."""


class Pool(Protocol):
    """Workers, and the jobs that they have been given."""

    def __len__(self) -> int:
        """Jobs whose results have not been taken yet."""

    @property
    def full(self) -> bool:
        """Whether every worker has a job, so that a result should be taken before another job is given."""

    def share(self, value: Any) -> Any:
        """Something to hand to many jobs as an argument, sent to each machine once."""

    def submit(self, tag: Hashable, method: str, *arguments: Any) -> None:
        """Give a job: a method of the worker and its arguments. The tag comes back with the result."""

    def next(self) -> tuple[Any, Any]:
        """The tag and result of a job that is done, in any order; waits for one.

        Raises:
            EngineError: No worker survives the job.
            Exception: What the method raised.
        """

    def forget(self) -> None:
        """Drop the jobs given so far: none is begun any more, and no result of theirs is taken."""


class Engine(Protocol):
    """Where the jobs are done.

    Attributes:
        apart (bool): Whether workers are other processes, with a model of their own and none of the driver's memory.
        workers (int or None): How many jobs are done at once; None: not known before the start.
    """

    @property
    def apart(self) -> bool:
        """As the class says."""

    @property
    def workers(self) -> int | None:
        """As the class says."""

    def open(self, worker: Worker, device: str | None = None) -> AbstractContextManager[Pool]:
        """A pool of workers.

        Args:
            worker (Worker): What every worker holds.
            device (str or None): Where it is moved to in another process; None leaves it on the CPU. Default: None.
        """


def in_order(pool: Pool, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """The results of a method for several arguments, in their order, by an empty pool.

    Args:
        pool (Pool): Has no job when this begins, and gets no other before it ends.
        method (str): Of the worker.
        calls (sequence of tuple): The arguments of each call.
    """
    waiting: dict[int, Any] = {}
    given = 0
    try:
        for number in range(len(calls)):
            while number not in waiting:
                while given < len(calls) and not pool.full:
                    pool.submit(given, method, *calls[given])
                    given += 1
                tag, result = pool.next()
                waiting[tag] = result
            yield waiting.pop(number)
    except Exception:
        pool.forget()  # no result of this call may come back to the next one
        raise
