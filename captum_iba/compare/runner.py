"""Has the methods run over the examples, chunk by chunk, and goes on where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.compare.computation import Computation, encode
from captum_iba.compare.data import Example
from captum_iba.compare.records import TEXTS, Record, chunk_path, is_finished, write_records, write_texts
from captum_iba.compare.runs import Run
from captum_iba.compare.statistics import LayerStatistics, StatisticsError
from captum_iba.engines import Engine, EngineError, Local, Pool, in_order
from captum_iba.methods import AttributionTask, find_method, score
from captum_iba.text.arguments import batches_by_length
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.layers import Block


@dataclass(frozen=True)
class Unit:
    """The unit of work: a run and a chunk of the examples, whose records are one file.

    Attributes:
        run (Run): The method with its settings.
        chunk (int): Number of the chunk.
    """

    run: Run
    chunk: int

    def __str__(self) -> str:
        return f"chunk {self.chunk} of {self.run.name}"


@dataclass(frozen=True)
class Step:
    """A chunk of examples that a run is through with.

    Attributes:
        run (str): Its name.
        tokens (int): Tokens of the chunk.
        failed (int): How many of its examples failed.
        error (str or None): What went wrong with the first of them.
        seconds (float or None): Time taken, all in all; None where the records were there already.
    """

    run: str
    tokens: int
    failed: int
    error: str | None
    seconds: float | None


class Comparison:
    """Examples, and methods to run over them.

    Every example is encoded once, and examples of like length make a chunk. For each chunk and run the records go
    into a file of their own (:mod:`captum_iba.compare.records`), which is written whole or not at all; those that
    are there already are left as they are. So a comparison can be stopped at any moment.

    Args:
        classifier (Classifier): The model.
        examples (sequence of Example): The texts.
        runs (sequence of Run): The methods.
        statistics (LayerStatistics): For methods that ask for statistics of a layer.
        folder (Path): Where the records go.
        target (str): What all methods explain: the ``"gold"`` or the ``"predicted"`` class. Default: ``"gold"``.
        chunk_size (int): Examples of a chunk. Default: 16.
        batch_size (int): Rows of one pass of the model. Default: 32.
        engine (Engine or None): Where the work is done; None does it here. Default: None.
        device (str or None): Where the models of workers elsewhere run; None is the CPU. Default: None.

    Raises:
        ValueError: A target that is neither, gold targets without gold labels, or a classifier whose classes do not
            compete (which has no probability to lose); a layer, or an option of a method, out of range.
    """

    def __init__(
        self,
        classifier: Classifier,
        examples: Sequence[Example],
        runs: Sequence[Run],
        statistics: LayerStatistics,
        folder: Path,
        target: str = "gold",
        chunk_size: int = 16,
        batch_size: int = 32,
        engine: Engine | None = None,
        device: str | None = None,
    ) -> None:
        if target not in ("gold", "predicted"):
            raise ValueError(f"target: expected gold or predicted, got {target!r}.")
        if target == "gold" and any(example.gold is None for example in examples):
            raise ValueError("target: expected predicted for data without labels, got gold.")
        if classifier.multi_label:
            raise ValueError("model: its classes have probabilities of their own; one whose classes compete is needed.")
        self.classifier = classifier
        self.runs = runs
        self.statistics = statistics
        self.folder = folder
        self.target = target
        self.batch_size = batch_size
        self.engine = engine or Local()
        self.device = device
        for run in runs:
            self._check(run)
        methods = {base: find_method(base) for base in (run.method.partition(":")[0] for run in runs)}
        self._computation = Computation(classifier, statistics, target, batch_size, list(methods.values()))
        items = [encode(classifier, example) for example in examples]
        # Longest first: if memory runs out, it does so at once.
        self.chunks = [[items[i] for i in chunk] for chunk in batches_by_length([i.length for i in items], chunk_size)]
        self._items = items

    @property
    def tokens(self) -> int:
        """Tokens that every run has to go through."""
        return sum(item.length for item in self._items)

    def go(self) -> Iterator[Step]:
        """Compute what is missing, one step at a time.

        Only here are files written, wherever the work is done: whole, and as soon as a chunk is finished.

        Raises:
            StatisticsError: A method asks for statistics, and there are no texts for them, or the disk is full.
            EngineError: There are no workers, or they die over and over. What was written before stays good.
            OSError: The disk is full. What was written before stays good.
        """
        if not (self.folder / TEXTS).is_file():
            write_texts(
                self.folder / TEXTS, [item.example for item in self._items], [item.encoded for item in self._items]
            )
        known: Any = None
        with self.engine.open(self._computation, self.device) as pool:
            for number, chunk in enumerate(self.chunks):
                for run in self.runs:
                    unit = Unit(run, number)
                    if is_finished(self._path(unit), [item.example.number for item in chunk]):
                        yield Step(run.name, self._tokens(unit), 0, None, None)
                        continue
                    if self.engine.apart and known is None:
                        known = pool.share(self._statistics_by(pool))
                    pool.submit(unit, "records", run, chunk, known)
                    if pool.full:
                        yield self._finish(*pool.next())
            while len(pool):
                yield self._finish(*pool.next())

    def _finish(self, unit: Unit, result: tuple[list[Record], float]) -> Step:
        records, seconds = result
        write_records(self._path(unit), records)
        errors = [record.error for record in records if record.error is not None]
        return Step(unit.run.name, self._tokens(unit), len(errors), next(iter(errors), None), seconds)

    def _path(self, unit: Unit) -> Path:
        return chunk_path(self.folder, unit.run.name, unit.chunk)

    def _tokens(self, unit: Unit) -> int:
        return sum(item.length for item in self.chunks[unit.chunk])

    def _statistics_by(self, pool: Pool) -> dict[str, FeatureStatistics]:
        """The statistics that the methods will ask for, estimated by all workers together and merged here.

        A method that asks only when it sees texts gets the same ones from its worker, estimated there.
        """

        def parts(calls: Sequence[tuple[str | None, Sequence[EncodedText]]]) -> list[tuple[FeatureStatistics, ...]]:
            return list(in_order(pool, "statistics_part", calls))

        found: dict[str, FeatureStatistics] = {}
        for block in dict.fromkeys(block for run in self.runs for block in self._asked_for(run)):
            try:
                found[block.key] = self.statistics.gather(block, parts)
            except (StatisticsError, EngineError):
                raise
            except Exception:
                # Features that are no numbers, say: the worker that needs them finds so too, and records it.
                continue
        return found

    def _asked_for(self, run: Run) -> list[Block]:
        """The layers whose statistics a method asks for before it looks at texts."""
        asked: list[Block] = []
        task = AttributionTask(self.classifier, [], [], run.seed, self.batch_size, run.layer, statistics=asked.append)
        try:
            score(run.method, task, **dict(run.options))
        except Exception:  # an own method that cannot do without texts
            return []
        return asked

    def _check(self, run: Run) -> None:
        """A method without texts says what is wrong with its options, and computes nothing."""
        task = AttributionTask(self.classifier, [], [], run.seed, self.batch_size, run.layer)
        if run.layer is None and not run.options:
            return
        try:
            score(run.method, task, **dict(run.options))
        except (TypeError, ValueError) as error:
            raise ValueError(f"methods: {run.row}: {error}") from error
