"""From a configuration to records: model and data are loaded, the folder claimed, and what is missing computed."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from captum_iba._explain.json_result import library_versions
from captum_iba._explain.model import model_name
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.settings import preset_values
from captum_iba.compare.code_digest import code_digest
from captum_iba.compare.config import ComparisonConfig, MethodRun, claim_folder
from captum_iba.compare.data import Data, Example, fingerprint, load_data
from captum_iba.compare.parallel import Executor, ExecutorError, LocalExecutor, Workers
from captum_iba.compare.records import RECORDS, TEXTS, chunk_path, is_finished, write_records, write_texts
from captum_iba.compare.worker import ComparisonWorker, LayerStatistics, StatisticsError, encode
from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.methods import find_method
from captum_iba.metrics import NINTHS
from captum_iba.text.arguments import batches_by_length
from captum_iba.text.classifier import Classifier, load_classifier, require_classes
from captum_iba.text.encoding import EncodedText
from captum_iba.text.statistics import classifier_fingerprint

STATISTICS_TEXTS = 500
"""How many texts the statistics of a layer are estimated from."""

FEWEST_OTHERS = 50
"""With fewer rows outside the sample, those in the sample count, too; statistics do not look at labels."""


def prepare(
    config: ComparisonConfig,
    out: Path,
    note: Callable[[str], None] = lambda message: None,
    executor: Executor | None = None,
) -> Comparison:
    """Load model and data, and claim the folder.

    Args:
        config (ComparisonConfig): What to compare.
        out (Path): Folder of the comparison: new, empty, or with the same comparison begun.
        note (callable, optional): Function that gets lines about what happens. Default: nobody.
        executor (Executor, optional): Where the work is done (:mod:`captum_iba.compare.parallel`); None does it here.
            Which one it is changes no record, so a comparison can go on by another. Default: None.

    Returns:
        Comparison: The comparison; :meth:`Comparison.run` computes what is left of it.

    Raises:
        TypeError: An option that a method does not have.
        ValueError: Unknown methods, columns, labels or settings, an option out of range; another comparison in the
            folder (names the differences); a directory that is no model, data that cannot be read; a classifier whose
            classes do not compete.
        OSError: There is no such model or file, or the folder cannot be written.
    """
    runs = config.runs()  # what is unknown is said before anything is loaded
    note("loading the model" if config.model else "loading the embedded model")
    # Remote workers have devices of their own; here the model then only reads texts.
    here = None if executor is not None and executor.remote else config.device
    model, tokenizer = load_classifier(config.model or embedded_model_path(), here, getattr(torch, config.dtype))
    classifier = Classifier(model, tokenizer, config.max_length)
    require_classes(classifier, "a comparison")
    if classifier.multi_label:
        raise ValueError("model: its classes have probabilities of their own; one whose classes compete is needed.")
    data = load_data(
        config.data,
        classifier.labels,
        subset=config.subset,
        split=config.split,
        text_column=config.text_column,
        pair_column=config.pair_column,
        label_column=config.label_column,
        examples=config.examples,
        others=STATISTICS_TEXTS,
        seed=config.seed,
        labels_required=config.target != "predicted",
    )
    if data.unread is not None:
        note(f"labels are not read: {data.unread.removeprefix('data: ')}")
    target = config.target or ("predicted" if data.columns.label is None else "gold")
    if target == "gold" and data.columns.label is None:
        raise ValueError("target is gold, expected predicted for data without labels.")
    known, texts, origin = _statistics_source(config, data)
    statistics = LayerStatistics(classifier, out / "statistics", texts, known, config.batch_size)
    methods = {base: find_method(base) for base in (run.method.partition(":")[0] for run in runs)}
    worker = ComparisonWorker(classifier, statistics, target, config.batch_size, list(methods.values()))
    for run in runs:
        worker.check(run)
    comparison = Comparison(
        worker, data.examples, runs, out, config.chunk_size, executor or LocalExecutor(), config.device
    )
    # Last, so that a mistake above leaves no folder behind.
    resumed = claim_folder(out, _provenance(config, comparison, data, origin), config)
    read = ", ".join(f"{what} in {name!r}" for what, name in asdict(data.columns).items() if name is not None)
    note(f"columns: {read}; explained: the {target} class; statistics: {origin}")
    going_on = resumed and any((out / RECORDS).glob("*/*.parquet"))
    rows = len({run.row for run in runs})
    of_rows = f"{rows} method{'s' * (rows > 1)}" + (f" in {len(runs)} runs" if len(runs) > rows else "")
    note(f"{len(data.examples)} of {data.rows} examples, {of_rows}{', going on' if going_on else ''}")
    return comparison


def _provenance(config: ComparisonConfig, comparison: Comparison, data: Data, statistics: str) -> dict[str, Any]:
    """All that the records depend on; ``statistics`` says where those of the layers come from."""
    classifier = comparison.classifier
    return {
        "model": model_name(classifier.model) if config.model else "the embedded model",
        "model_fingerprint": classifier_fingerprint(classifier),
        "labels": classifier.labels,
        "max_length": classifier.max_length,
        "device": comparison.device_of_records,
        "dtype": str(next(classifier.model.parameters()).dtype).removeprefix("torch."),
        "data": config.data,
        "split": data.split,
        "columns": asdict(data.columns),
        "rows": data.rows,
        "examples": len(data.examples),
        "data_fingerprint": fingerprint(data.examples),
        "target": comparison.target,
        "methods": _methods_provenance(comparison.runs),
        "seed": config.seed,
        "fractions": list(NINTHS),
        "chunk_size": config.chunk_size,
        "batch_size": config.batch_size,
        "statistics": statistics,
        "presets": preset_values(),
        "versions": library_versions(),
        "environment": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "threads": torch.get_num_threads(),
        },
    }


def _methods_provenance(runs: Sequence[MethodRun]) -> dict[str, dict[str, Any]]:
    """Per row of the tables all that its records depend on, and what a reader of the records needs to know of it."""
    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        method = find_method(run.method)
        row = rows.setdefault(
            run.row,
            {
                "method": run.method,
                "layer": list(run.layer) if isinstance(run.layer, tuple) else run.layer,
                "options": dict(run.options),
                "counting": run.counting,
                "signed": method.signed,
                "word_level": method.word_level,
                "code": code_digest(method.function, method.options),
                "seeds": [],
                "runs": [],
            },
        )
        row["seeds"].append(run.seed)
        row["runs"].append(run.name)
    return rows


def _statistics_source(
    config: ComparisonConfig, data: Data
) -> tuple[Callable[[int], FeatureStatistics] | None, Sequence[Example], str]:
    """Statistics that are known, texts to estimate others from, and where they come from, in words."""
    if config.statistics_from is not None:
        examples = load_data(
            config.statistics_from,
            None,
            text_column=config.text_column,
            pair_column=config.pair_column,
            examples=STATISTICS_TEXTS,
            seed=config.seed,
        ).examples
        source = "another dataset"
    elif config.model is None:
        return embedded_statistics, (), "those of the embedded model"
    elif len(data.others) >= FEWEST_OTHERS:
        examples, source = data.others, "rows outside the sample"
    else:
        rows = [*data.others, *data.examples]
        rows = random.Random(config.seed).sample(rows, min(len(rows), STATISTICS_TEXTS))
        examples, source = tuple(sorted(rows, key=lambda row: row.number)), "the data, the sample included"
    whole = [text for text in examples if text.error is None]
    texts = [text for text in whole if text.text.strip() and (text.pair is None or text.pair.strip())]
    if (data.columns.pair is not None) != any(text.pair is not None for text in texts) and texts:
        raise ValueError("statistics_from: expected pairs as in the data (or single texts as in the data).")
    return None, texts, f"{len(texts)} texts of {source} ({fingerprint(texts)[:16]})"


@dataclass(frozen=True)
class FinishedChunk:
    """A finished chunk of one run.

    Attributes:
        run (str): Name of the run.
        tokens (int): Number of tokens in the chunk.
        failed (int): Number of its examples that failed.
        error (str or None): What went wrong with the first of them.
        seconds (float or None): Time taken in seconds, all in all; None where the records were there already.
    """

    run: str
    tokens: int
    failed: int
    error: str | None
    seconds: float | None


@dataclass(frozen=True)
class _Unit:
    """The unit of work: a run and a chunk of the examples, whose records are one file."""

    run: MethodRun
    chunk: int

    def __str__(self) -> str:
        return f"chunk {self.chunk} of {self.run.name}"


class Comparison:
    """Examples, and methods to run over them; made by :func:`prepare`.

    Every example is encoded once, and examples of like length make a chunk. For each chunk and run the records go
    into a file of their own (:mod:`captum_iba.compare.records`), which is written atomically; those that are there
    already are left as they are. So a comparison can be stopped at any moment.

    Args:
        worker (ComparisonWorker): Model, statistics and methods.
        examples (sequence of Example): The texts.
        runs (sequence of MethodRun): The methods with their settings.
        folder (Path): Where the records go.
        chunk_size (int): Number of examples in a chunk.
        executor (Executor): Where the work is done.
        device (str or None): Device of the models of remote workers; None is the CPU.
    """

    def __init__(
        self,
        worker: ComparisonWorker,
        examples: Sequence[Example],
        runs: Sequence[MethodRun],
        folder: Path,
        chunk_size: int,
        executor: Executor,
        device: str | None,
    ) -> None:
        self.worker = worker
        self.classifier = worker.classifier
        self.target = worker.target
        self.runs = runs
        self.folder = folder
        self.executor = executor
        self.device = device
        self._items = [encode(self.classifier, example) for example in examples]
        # Longest first: if memory runs out, it does so at once.
        chunks = batches_by_length([item.length for item in self._items], chunk_size)
        self.chunks = [[self._items[i] for i in chunk] for chunk in chunks]

    @property
    def tokens(self) -> int:
        """Number of tokens that every run has to go through."""
        return sum(item.length for item in self._items)

    @property
    def device_of_records(self) -> str:
        """Where the records are computed; each remote worker sees one accelerator, the first."""
        if not self.executor.remote or self.device is None:
            return str(self.classifier.device)
        kind = torch.device(self.device).type
        return kind if kind == "cpu" else f"{kind}:0"

    def run(self, on_tokens: Callable[[str, int], None] | None = None) -> Iterator[FinishedChunk]:
        """Compute what is missing, one step at a time; first come the steps that were finished before.

        Only here are files written, wherever the work is done: atomically, and as soon as a chunk is finished.

        Args:
            on_tokens (callable, optional): Function that gets the name of a run and the number of tokens of each text
                that its method has scored, before the chunk is finished; remote workers do not call it. Default: None.

        Raises:
            StatisticsError: A method needs statistics, and there are no texts for them, or the disk is full.
            ExecutorError: There are no workers, or they die over and over. What was written before stays good.
            OSError: The disk is full. What was written before stays good.
        """
        if not (self.folder / TEXTS).is_file():
            write_texts(
                self.folder / TEXTS, [item.example for item in self._items], [item.encoded for item in self._items]
            )
        missing: list[_Unit] = []
        for number, chunk in enumerate(self.chunks):
            for run in self.runs:
                unit = _Unit(run, number)
                if is_finished(self._path(unit), [item.example.number for item in chunk]):
                    yield FinishedChunk(run.name, self._tokens(unit), 0, None, None)
                else:
                    missing.append(unit)
        if not missing:
            return
        with self.executor.open(self.worker, self.device) as workers:
            statistics = workers.share(self._gather_statistics(workers)) if self.executor.remote else None

            def calls() -> Iterator[tuple[_Unit, tuple[Any, ...]]]:
                for unit in missing:
                    if on_tokens is not None and not self.executor.remote:
                        self.worker.on_tokens = partial(on_tokens, unit.run.name)
                    yield unit, (unit.run, self.chunks[unit.chunk], statistics)

            for unit, (records, seconds) in workers.map("records", calls()):
                write_records(self._path(unit), records)
                errors = [record.error for record in records if record.error is not None]
                yield FinishedChunk(unit.run.name, self._tokens(unit), len(errors), next(iter(errors), None), seconds)

    def _path(self, unit: _Unit) -> Path:
        return chunk_path(self.folder, unit.run.name, unit.chunk)

    def _tokens(self, unit: _Unit) -> int:
        return sum(item.length for item in self.chunks[unit.chunk])

    def _gather_statistics(self, workers: Workers) -> dict[str, FeatureStatistics]:
        """The statistics that the methods will ask for, estimated by all workers together and merged here.

        A method that asks only when it sees texts gets the same ones from its worker, estimated there.
        """

        def estimate_parts(
            calls: Sequence[tuple[str | None, Sequence[EncodedText]]],
        ) -> list[tuple[FeatureStatistics, ...]]:
            parts = dict(workers.map("statistics_part", enumerate(calls)))
            return [parts[number] for number in range(len(calls))]

        statistics: dict[str, FeatureStatistics] = {}
        for block in dict.fromkeys(block for run in self.runs for block in self.worker.layers_with_statistics(run)):
            try:
                statistics[block.key] = self.worker.statistics.gather(block, estimate_parts)
            except (StatisticsError, ExecutorError):
                raise
            except Exception:
                # Activations that are no numbers, say: the worker that needs them finds so too, and records it.
                continue
        return statistics
