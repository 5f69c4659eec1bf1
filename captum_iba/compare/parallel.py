"""Executors: the same work done in this process, or by Ray actors on this machine or on a cluster.

The work is a map over chunks of texts: :func:`captum_iba.compare.prepare` takes an executor, and so do the functions of
:mod:`captum_iba.compare.explain_many`. This module needs neither the extra ``compare`` nor, without
:class:`RayExecutor`, the extra ``ray``.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import warnings
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from captum_iba._explain.json_result import library_versions
from captum_iba._warnings import warn_user

RETRIES = 3
"""How often a job is done again after its worker died."""


class ExecutorError(RuntimeError):
    """Workers cannot be started, or die over and over. Results that were finished before are kept."""


class Worker(Protocol):
    """An object whose methods are the jobs. It is pickled on its way to another process."""

    def move(self, device: str) -> None:
        """Move the model to a device, after the arrival in another process."""


class Workers(Protocol):
    """Running workers, each with a copy of the same :class:`Worker`."""

    def share(self, value: Any) -> Any:
        """Something to pass to many jobs as an argument, sent to each machine once."""

    def map(self, method: str, calls: Iterable[tuple[Hashable, tuple[Any, ...]]]) -> Iterator[tuple[Any, Any]]:
        """Call a method of the workers for several arguments, each with a label that messages show.

        Gives label and result of each job as it is finished. ExecutorError if no worker survives a job.
        """


class Executor(Protocol):
    """Where the work is done.

    ``remote``: workers are other processes, each with its own model and device. ``workers``: the number of jobs done at
    once, or None if it is not known before the start.
    """

    remote: bool
    workers: int | None

    def open(self, worker: Worker, device: str | None = None) -> AbstractContextManager[Workers]:
        """Start workers, each a copy of this one moved to the device (None: the CPU), and end them with the context."""


class LocalExecutor:
    """Does the jobs in this process, one after the other, in their order."""

    remote = False
    workers: int | None = 1

    @contextmanager
    def open(self, worker: Worker, device: str | None = None) -> Iterator[Workers]:
        """Use the worker itself; it stays on its device."""
        yield _LocalWorkers(worker)


@dataclass(frozen=True)
class _LocalWorkers:
    worker: Worker

    def share(self, value: Any) -> Any:
        return value

    def map(self, method: str, calls: Iterable[tuple[Hashable, tuple[Any, ...]]]) -> Iterator[tuple[Any, Any]]:
        for label, arguments in calls:
            yield label, getattr(self.worker, method)(*arguments)


class RayExecutor:
    """Does the jobs by Ray actors: one per GPU if the device is ``cuda``, else one per as many CPUs as it has threads.

    An actor gets the model from this process once, so the machines need no common disk, and as many threads as torch
    has here, because their number can change the last digit (so can another kind of processor: ``docs/scale.md`` has
    the tolerance). ``OMP_NUM_THREADS=1`` gives the most workers. If an actor dies, which Ray also prints to standard
    output, a free one does its job again and a new one is started; if a whole machine is lost, the others go on.

    Args:
        address (str, optional): Address of a running cluster: ``"auto"`` for the cluster of this machine, or
            ``"host:6379"``; None starts Ray on this machine alone. A process that is connected to Ray already stays
            with that cluster. Default: None.
        workers (int, optional): Number of actors; None is as many as GPUs or CPUs allow. Default: None.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: ``workers`` is below 1.
    """

    remote = True

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}, expected at least 1.")
        try:
            self._ray = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError('ray is not installed; run: pip install "captum-iba[ray]"', name="ray") from error
        self.address = address
        self.workers = workers

    @contextmanager
    def open(self, worker: Worker, device: str | None = None) -> Iterator[Workers]:
        """Start actors, on Ray as it is or started here, and end what was started.

        ValueError for a device with a number: ``"cuda"`` is a GPU of Ray's choice. ExecutorError without a cluster, or
        without a machine that has room for a worker.
        """
        if device is not None and torch.device(device).index is not None:
            raise ValueError(f"device is {device!r}, expected cpu or cuda: Ray chooses among the GPUs.")
        on_gpu = device is not None and torch.device(device).type == "cuda"
        threads = torch.get_num_threads()
        started_here = not self._ray.is_initialized()
        actors = None
        try:
            if started_here:
                self._start(None if self.workers is None or on_gpu else self.workers * threads)
            room = self._room(on_gpu, threads)  # raises where there is none at all, for which Ray would wait
            self.workers = self.workers or room
            resources = {"num_cpus": 1, "num_gpus": 1} if on_gpu else {"num_cpus": threads}
            actors = _RayWorkers(self._ray, worker, (device, threads, library_versions()), resources, self.workers)
            yield actors
        finally:
            if actors is not None:
                actors.kill()
            if started_here:
                self._ray.shutdown()

    def _start(self, cpus: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use to its makers, unless told not to
        options: dict[str, Any] = {"address": self.address or "local"}
        if self.address is None:
            options |= {"include_dashboard": False} | ({} if cpus is None else {"num_cpus": cpus})
        else:
            _require_listener(self.address)
        try:
            self._ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            # A ConnectionError is an OSError, which the caller would take for one of its disk.
            if self.address is None:
                raise ExecutorError(f"executor: Ray does not start here: {one_line(error)}") from error
            raise ExecutorError(
                f"address is {self.address!r}, where no Ray cluster lets this process in: {one_line(error)}. If the "
                "cluster asks for a token, set RAY_AUTH_MODE=token here, and have its token in ~/.ray/auth_token."
            ) from error

    def _room(self, on_gpu: bool, threads: int) -> int:
        """How many workers the machines have room for."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        resource, need = ("GPU", 1) if on_gpu else ("CPU", threads)
        room = sum(int(machine.get(resource, 0)) // need for machine in machines)
        if not room:
            missing = "a GPU" if on_gpu else f"{threads} CPUs, the threads of a worker (OMP_NUM_THREADS)"
            raise ExecutorError(f"executor: none of the {len(machines)} machines of the Ray cluster has {missing}.")
        return room


class _Actor:
    """The process of a worker: holds the object, and calls its methods."""

    def load(self, worker: Worker, device: str | None, threads: int, versions: dict[str, str]) -> None:
        if versions != (own := library_versions()):
            raise ExecutorError(f"executor: a worker has the versions {own}, expected those of the driver, {versions}.")
        torch.set_num_threads(threads)
        if device is not None:
            worker.move(device)
        self._worker = worker

    def call(self, method: str, *arguments: Any) -> tuple[Any, list[tuple[str, type[Warning]]]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("once")
            result = getattr(self._worker, method)(*arguments)
        return result, [(str(warning.message), warning.category) for warning in caught]


@dataclass
class _Job:
    label: Hashable
    arguments: tuple[Any, ...]
    deaths: int = 0
    abandoned: bool = False  # nobody waits for its result any more


class _RayWorkers:
    """The actors, and the jobs that they do.

    Not by ``ray.util.ActorPool``, which does not tell which job a dead actor had and starts no other; and not by
    Ray's own ``max_restarts`` and ``max_task_retries``, which bind a job to its actor: on a lost machine it would wait
    for a place that never comes, while other actors are free.
    """

    def __init__(self, ray: Any, worker: Worker, setup: tuple[Any, ...], resources: dict[str, int], count: int) -> None:
        self._ray = ray
        self._loading = (ray.put(worker), *setup)
        self._resources = resources
        self._count = count
        self._failed_starts = 0
        self._free: list[Any] = []
        self._busy: dict[Any, tuple[Any, _Job | None]] = {}  # reference to the actor and its job; None: it loads
        for _ in range(count):
            self._launch()

    def share(self, value: Any) -> Any:
        return self._ray.put(value)

    def map(self, method: str, calls: Iterable[tuple[Hashable, tuple[Any, ...]]]) -> Iterator[tuple[Any, Any]]:
        jobs = [_Job(label, arguments) for label, arguments in calls]
        waiting, unfinished = deque(jobs), len(jobs)
        try:
            while unfinished:
                while waiting and self._free:
                    actor, next_job = self._free.pop(), waiting.popleft()
                    self._busy[actor.call.remote(method, *next_job.arguments)] = actor, next_job
                (reference,), _ = self._ray.wait(list(self._busy), num_returns=1)
                job, result = self._collect(reference)
                if job is None or job.abandoned:
                    continue
                if result is None:
                    waiting.appendleft(job)
                    continue
                for message, category in result[1]:
                    warn_user(message, category)
                unfinished -= 1
                yield job.label, result[0]
        finally:
            for job in jobs:
                job.abandoned = True

    def kill(self) -> None:
        for actor in [*self._free, *(actor for actor, _ in self._busy.values())]:
            self._ray.kill(actor)

    def _launch(self) -> None:
        actor = self._ray.remote(_Actor).options(**self._resources).remote()
        self._busy[actor.load.remote(*self._loading)] = actor, None

    def _collect(self, reference: Any) -> tuple[_Job | None, Any]:
        """The job that ended and its result; None: the actor had loaded, or died, and the job is to be done again."""
        actor, job = self._busy.pop(reference)
        try:
            result = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:  # raised by the job, and the actor lives on
            self._free.append(actor)
            if job is not None and job.abandoned:
                return None, None
            raise error.cause if isinstance(error.cause, Exception) else ExecutorError(str(error)) from error
        except self._ray.exceptions.RayError as error:
            self._ray.kill(actor)  # it may be alive, out of reach
            self._launch()
            if job is None:
                self._failed_starts += 1
                if self._failed_starts > RETRIES * self._count:
                    raise ExecutorError(
                        f"executor: workers die while they load the model: {one_line(error)}"
                    ) from error
            elif not job.abandoned:
                job.deaths += 1
                if job.deaths > RETRIES:
                    raise ExecutorError(
                        f"executor: {job.label}: its worker died, {job.deaths} times in all, the last time with: "
                        f"{one_line(error)}"
                    ) from error
                warn_user(f"a worker died; {job.label} is done again")
            return job, None
        if job is None:
            self._failed_starts = 0
        self._free.append(actor)
        return job, result


def _require_listener(address: str) -> None:
    """Raise ExecutorError where nothing listens, which Ray finds out in minutes. Other forms of addresses are Ray's."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ExecutorError(f"address is {address!r}, where nothing answers: {error}.") from error


def one_line(error: Exception) -> str:
    """The message of an exception in one line, which is not too long to print."""
    return " ".join(str(error).split())[:500]
