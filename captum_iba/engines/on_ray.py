"""The engine of Ray: one actor a worker, on this machine or a cluster (needs ``captum-iba[ray]``)."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import warnings
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from captum_iba.engines.base import EngineError, Pool, Worker
from captum_iba.engines.versions import versions

RETRIES = 3
"""How often a job is done again after its worker died."""


class Ray:
    """Jobs are done by Ray actors: one a GPU where the device is ``cuda``, else one for so many CPUs as it has threads.

    A worker gets the object that it works with from the driver once (so the machines need no disk in common), and as
    many threads as the driver's torch has, because their number can change the last digit (so can another kind of
    processor: ``docs/scale.md`` has the tolerance); ``OMP_NUM_THREADS=1`` gives the most workers. When one dies, its
    job goes to the next that is free, and a new worker is asked for; when a whole machine is lost, the others go on.
    Ray places, starts and watches the processes.

    Args:
        address (str or None): Of a running cluster: ``"auto"`` for the one that this machine belongs to, or
            ``"host:6379"``; None starts Ray on this machine alone. Where this process is connected to a Ray already, it
            is that one. Default: None.
        workers (int or None): How many; None is as many as the GPUs or CPUs allow. Default: None.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: Less than one worker.
    """

    apart = True

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers: expected at least 1, got {workers}.")
        self._ray = _load_ray()
        self.address = address
        self.workers = workers

    @contextmanager
    def open(self, worker: Worker, device: str | None = None) -> Iterator[Pool]:
        """A pool of actors, which start with the first job and end with the pool.

        Args:
            worker (Worker): What is sent to every actor.
            device (str or None): Where it is moved to there: ``"cuda"`` for a GPU of Ray's choice; None leaves it on
                the CPU. Default: None.

        Raises:
            ValueError: A device with a number.
        """
        if device is not None and torch.device(device).index is not None:
            raise ValueError(f"device: Ray chooses among the GPUs; expected cpu or cuda, got {device!r}.")
        pool = _RayPool(self._ray, self, worker, device)
        try:
            yield pool
        finally:
            pool.close()


@dataclass
class _Job:
    tag: Hashable
    method: str
    arguments: tuple[Any, ...]
    deaths: int = 0
    forgotten: bool = False


class _Actor:
    """The other end: holds the object, and calls its methods."""

    def load(self, worker: Worker, device: str | None, threads: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        if device is not None:
            worker.move(device)
        self._worker = worker
        return versions()

    def call(self, method: str, *arguments: Any) -> tuple[Any, list[tuple[str, type[Warning]]]]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("once")
            result = getattr(self._worker, method)(*arguments)
        return result, [(str(one.message), one.category) for one in said]


class _RayPool:
    def __init__(self, ray: Any, engine: Ray, worker: Worker, device: str | None) -> None:
        self._ray = ray
        self._engine = engine
        self._worker = worker
        self._device = device
        self._threads = torch.get_num_threads()
        self._on_gpu = device is not None and torch.device(device).type == "cuda"
        self._begun = False
        self._ours = False  # whether Ray was started here, and ends here
        self._state: Any = None
        self._waiting: deque[_Job] = deque()
        self._starting: dict[Any, Any] = {}  # what load() promises, to the actor
        self._free: list[Any] = []
        self._busy: dict[Any, tuple[Any, _Job]] = {}  # what call() promises, to the actor and its job
        self._failed_starts = 0

    def __len__(self) -> int:
        return len(self._waiting) + sum(not job.forgotten for _, job in self._busy.values())

    @property
    def full(self) -> bool:
        self._begin()
        return len(self) >= (self._engine.workers or 1)

    def share(self, value: Any) -> Any:
        self._begin()
        return self._ray.put(value)

    def submit(self, tag: Hashable, method: str, *arguments: Any) -> None:
        self._begin()
        self._waiting.append(_Job(tag, method, arguments))
        self._hand_out()

    def next(self) -> tuple[Any, Any]:
        while True:
            self._hand_out()
            if not self._busy and not self._starting:
                raise EngineError("engine: no worker is left.")
            (promise,), _ = self._ray.wait([*self._busy, *self._starting], num_returns=1)
            if promise in self._starting:
                self._arrived(promise)
                continue
            actor, job = self._busy.pop(promise)
            try:
                result, said = self._get(promise)
            except self._ray.exceptions.RayError as error:
                self._lost(actor, job, error)
                continue
            except Exception:  # the job's own, which the worker survives
                self._free.append(actor)
                if job.forgotten:
                    continue
                raise
            self._free.append(actor)
            if job.forgotten:
                continue
            for message, category in said:
                warnings.warn(message, category, stacklevel=3)
            return job.tag, result

    def forget(self) -> None:
        self._waiting.clear()
        for _, job in self._busy.values():
            job.forgotten = True

    def close(self) -> None:
        """Ends the actors, and Ray if it was started here."""
        if not self._begun:
            return
        for actor in [*self._free, *self._starting.values(), *(actor for actor, _ in self._busy.values())]:
            self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()
            self._hush(False)

    def _begin(self) -> None:
        if self._begun:
            return
        address, workers = self._engine.address, self._engine.workers
        if not self._ray.is_initialized():
            # Ray reports its use to its makers, unless told not to.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            here: dict[str, Any] = {"include_dashboard": False}
            if workers is not None and not self._on_gpu:
                here["num_cpus"] = workers * self._threads
            _require_listener(address)
            try:
                self._ray.init(
                    address=address or "local",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **(here if address is None else {}),
                )
            except (ConnectionError, ValueError) as error:
                # A ConnectionError is an OSError, which the caller would take for one of its disk.
                if address is None:
                    raise EngineError(f"engine: Ray does not start here: {_line(error)}") from error
                raise EngineError(
                    f"address: no Ray cluster lets this process in at {address!r}: {_line(error)}. If the cluster asks "
                    "for a token, set RAY_AUTH_MODE=token here, and have its token in ~/.ray/auth_token."
                ) from error
            self._ours = True
            self._hush(True)
        self._begun = True
        room = self._room()  # raises where there is none at all, for which Ray would wait
        if workers is None:
            workers = self._engine.workers = room
        self._state = self._ray.put(self._worker)
        for _ in range(workers):
            self._launch()

    def _hush(self, on: bool) -> None:
        """Ray says of a worker's death on standard output, amid the results; a warning says so here."""
        # There is no public switch. Where this private one is gone, Ray only says more.
        if (private := getattr(getattr(self._ray, "_private", None), "worker", None)) is not None:
            private._worker_logs_enabled = not on

    def _room(self) -> int:
        """How many workers the machines have room for."""
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if self._on_gpu:
            room = sum(int(machine.get("GPU", 0)) for machine in machines)
        else:
            room = sum(int(machine.get("CPU", 0)) // self._threads for machine in machines)
        if not room:
            missing = "a GPU" if self._on_gpu else f"{self._threads} CPUs, the threads of a worker (OMP_NUM_THREADS)"
            raise EngineError(f"engine: none of the {len(machines)} machines of the Ray cluster has {missing}.")
        return room

    def _launch(self) -> None:
        resources = {"num_cpus": 1, "num_gpus": 1} if self._on_gpu else {"num_cpus": self._threads}
        actor = self._ray.remote(_Actor).options(**resources).remote()
        self._starting[actor.load.remote(self._state, self._device, self._threads)] = actor

    def _arrived(self, promise: Any) -> None:
        actor = self._starting.pop(promise)
        try:
            there = self._get(promise)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts > RETRIES * (self._engine.workers or 1):
                raise EngineError(f"engine: workers die while they load the model: {_line(error)}") from error
            self._launch()
            return
        if there != (here := versions()):
            raise EngineError(f"engine: a worker has other versions, {there}, than the driver, {here}.")
        self._failed_starts = 0
        self._free.append(actor)

    def _hand_out(self) -> None:
        while self._waiting and self._free:
            actor, job = self._free.pop(), self._waiting.popleft()
            self._busy[actor.call.remote(job.method, *job.arguments)] = actor, job

    def _lost(self, actor: Any, job: _Job, error: Exception) -> None:
        self._ray.kill(actor)  # it may be alive, out of reach
        if job.forgotten:
            self._launch()
            return
        job.deaths += 1
        if job.deaths > RETRIES:
            said = f"engine: {job.tag}: its worker died, {job.deaths} times in all, the last time with: {_line(error)}"
            raise EngineError(said) from error
        warnings.warn(f"a worker died; {job.tag} is done again", UserWarning, stacklevel=4)
        self._waiting.appendleft(job)
        self._launch()

    def _get(self, promise: Any) -> Any:
        """The result; what the actor's own code raised is raised here as it was, all else is a RayError."""
        try:
            return self._ray.get(promise)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else EngineError(str(error)) from error


def _load_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('ray is not installed; run: pip install "captum-iba[ray]"', name="ray") from error


def _require_listener(address: str | None) -> None:
    """Raise EngineError where nothing listens, which Ray finds out in minutes. Addresses of other forms are Ray's."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise EngineError(f"address: nothing answers at {address!r}: {error}.") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
