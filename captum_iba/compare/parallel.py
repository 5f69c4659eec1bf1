"""Executors: the same work done in this process, or by Ray actors on this machine or on a cluster.

The work is a map over chunks of texts: :func:`captum_iba.compare.prepare` takes an executor, and so does
:func:`explain_texts`, the form of :meth:`captum_iba.text.TextExplainer.explain` for many texts. This module needs
neither the extra ``compare`` nor, without :class:`RayExecutor`, the extra ``ray``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import re
import socket
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from captum_iba._compat import progress
from captum_iba._files import write_text
from captum_iba._warnings import warn_user
from captum_iba.attr.settings import PRESETS, preset_values
from captum_iba.text.arguments import batches_by_length, check_texts, resolve_text_settings, targets_per_text
from captum_iba.text.bottleneck import MASK_LOST_PREDICTION
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.json_result import library_versions
from captum_iba.text.result import TextAttribution
from captum_iba.text.statistics import add_part
from captum_iba.visualization.pieces import lost_prediction

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


class _Explaining:
    """The worker of :func:`explain_texts`."""

    def __init__(self, explainer: TextExplainer, settings: dict[str, Any]) -> None:
        self.explainer = explainer
        self.settings = settings

    def move(self, device: str) -> None:
        self.explainer.classifier.model.to(device)

    def explain(self, texts: list[str], pairs: list[str] | None, targets: list[int | None]) -> list[TextAttribution]:
        return self.explainer.explain(texts, pairs, targets, batch_size=len(texts), **self.settings)


def explain_texts(
    executor: Executor,
    explainer: TextExplainer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    target: Any = None,
    *,
    device: str | None = None,
    batch_size: int = 8,
    show_progress: bool = False,
    keep: str | os.PathLike[str] | None = None,
    on_batch: Callable[[int], object] = lambda _: None,
    **settings: Any,
) -> list[TextAttribution]:
    """Explain many texts by the workers of an executor, as :meth:`captum_iba.text.TextExplainer.explain` does here.

    A job is one of the batches that ``explain`` makes. So the numbers are the same on the same kind of processor with
    as many threads, and else within the tolerance of ``docs/scale.md``.

    Args:
        executor (Executor): Where the work is done.
        explainer (TextExplainer): Model, layers and their statistics; remote workers get a copy.
        texts, pairs, target: As for ``explain``.
        device (str, optional): Device of the models of remote workers; None is the CPU. Default: None.
        batch_size (int, optional): Number of texts in a batch. Default: 8.
        show_progress (bool, optional): Whether to show a progress bar over the batches. Default: False.
        keep (path, optional): Folder for finished batches: the same call with the same folder goes on where it
            stopped, by any executor. Default: None.
        on_batch (Callable, optional): Called with the number of texts that are finished. Default: nothing is called.
        **settings: All other arguments of ``explain``.

    Returns:
        list of TextAttribution: One result per text, in the order of ``texts``.

    Raises:
        TypeError, ValueError: As ``explain``.
        ExecutorError: There are no workers, or they die over and over.
        OSError: The folder cannot be written; what was kept before stays.

    Examples::

        >>> results = explain_texts(RayExecutor(workers=2), explainer, reviews, preset="paper")
    """
    first, second = check_texts(texts, pairs)
    targets = targets_per_text(target, len(first), explainer.classifier.labels)
    batches = batches_by_length([len(item) for item in explainer.classifier.encode(first, second)], batch_size)
    calls = [
        (
            [first[i] for i in batch],
            None if pairs is None else [pair for i in batch if (pair := second[i]) is not None],
            [targets[i] for i in batch],
        )
        for batch in batches
    ]
    preset = settings.get("preset", "default")
    overrides: Any = {name: settings[name] for name in settings if hasattr(PRESETS["default"], name)}
    if not resolve_text_settings(preset, overrides)[2].noise_around_input:
        explainer._find_statistics(pairs is not None, show_progress)  # once, and not by every worker
    kept = None if keep is None else _KeptBatches(Path(keep), explainer, device, settings)
    results: dict[int, TextAttribution] = {}
    explained: Iterable[Any] = _explained(executor, _Explaining(explainer, settings), device, calls, kept)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", re.escape(MASK_LOST_PREDICTION))  # once for all batches, new and kept
        for number, batch_results in progress(explained, "Texts", len(batches)) if show_progress else explained:
            results.update(zip(batches[number], batch_results, strict=True))
            on_batch(len(results))
    if any(map(lost_prediction, results.values())):
        warn_user(MASK_LOST_PREDICTION)
    return [results[i] for i in range(len(first))]


def _explained(
    executor: Executor, worker: _Explaining, device: str | None, calls: list[Any], kept: _KeptBatches | None
) -> Iterator[tuple[int, list[TextAttribution]]]:
    """Number and results of every batch, those that were kept first."""
    missing = []
    for number, call in enumerate(calls):
        results = None if kept is None else kept.read(*call)
        if results is None:
            missing.append((number, call))
        else:
            yield number, results
    if not missing:
        return
    with executor.open(worker, device) as workers:
        for number, results in workers.map("explain", missing):
            if kept is not None:
                kept.write(results, *calls[number])
            yield number, results


class _KeptBatches:
    """A folder with one file per finished batch, which is its texts, pairs and targets.

    A file is named by the digest of all that its results depend on: model, layers, statistics, device, versions of
    the libraries, presets, settings, texts. What was computed with anything else is not found, so nothing ever mixes.
    """

    def __init__(self, folder: Path, explainer: TextExplainer, device: str | None, settings: dict[str, Any]) -> None:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"keep: {folder} is a file, expected a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._digest = hashlib.sha256()
        classifier, bottleneck = explainer.classifier, explainer._bottleneck_of(settings.get("preset", "default"))
        parts = [
            explainer.fingerprint(),
            *classifier.labels,
            str(classifier.multi_label),
            *(block.key for block in bottleneck.layers),
            f"{len(bottleneck.layers)} {classifier.max_length}",
            device or str(next(iter(classifier.model.parameters())).device),
            json.dumps([library_versions(), preset_values(), settings], sort_keys=True, default=str),
        ]
        for part in parts:
            add_part(self._digest, part)
        for statistics in bottleneck.statistics or ():
            for tensor in (statistics.mean, statistics.std, *statistics.further_tensors().values()):
                self._digest.update(tensor.cpu().contiguous().numpy().tobytes())

    def read(self, *batch: Any) -> list[TextAttribution] | None:
        """The results of a batch; None where there are none, or a damaged file."""
        try:
            content = json.loads(self._path(*batch).read_text(encoding="utf-8"))
            results = [TextAttribution.from_dict(item) for item in content]
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return results if len(results) == len(batch[0]) else None

    def write(self, results: list[TextAttribution], *batch: Any) -> None:
        content = json.dumps([result.to_dict() for result in results], ensure_ascii=False, allow_nan=False)
        try:
            write_text(self._path(*batch), content)
        except OSError as error:
            reason = f"keep: {error.strerror or error}; the batches that were finished before are kept"
            raise OSError(error.errno, reason) from error

    def _path(self, texts: list[str], pairs: list[str] | None, targets: list[int | None]) -> Path:
        digest = self._digest.copy()
        for part in (json.dumps([pairs is None, targets]), *texts, *(pairs or ())):
            add_part(digest, part)
        return self._folder / f"{digest.hexdigest()[:32]}.json"
