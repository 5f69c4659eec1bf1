"""Runs the methods over the examples, chunk by chunk, and goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from captum_iba.benchmark.data import Example
from captum_iba.benchmark.records import TEXTS, Record, chunk_path, is_finished, write_records, write_texts
from captum_iba.benchmark.runs import Run
from captum_iba.benchmark.statistics import LayerStatistics, StatisticsError
from captum_iba.metrics import NINTHS, Degradation, Delete, degradation_both
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.inputs import batches_by_length
from captum_iba.text.methods import Scores, Task, scores_of


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


@dataclass(frozen=True)
class _Item:
    """An example, with its tokens or the reason why it has none."""

    example: Example
    encoded: EncodedText | str

    @property
    def length(self) -> int:
        return 0 if isinstance(self.encoded, str) else len(self.encoded)


class Comparison:
    """Examples, and methods to run over them.

    Every example is encoded once, and examples of like length make a chunk. For each chunk and run the records go
    into a file of their own (:mod:`captum_iba.benchmark.records`), which is written whole or not at all; those that
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
        for run in runs:
            self._check(run)
        items = [_Item(example, self._encode(example)) for example in examples]
        # Longest first: if memory runs out, it does so at once.
        self.chunks = [[items[i] for i in chunk] for chunk in batches_by_length([i.length for i in items], chunk_size)]
        self._items = items

    @property
    def tokens(self) -> int:
        """Tokens that every run has to go through."""
        return sum(item.length for item in self._items)

    def go(self) -> Iterator[Step]:
        """Compute what is missing, one step at a time.

        Raises:
            StatisticsError: A method asks for statistics, and there are no texts for them, or the disk is full.
            OSError: The disk is full. What was written before stays good.
        """
        if not (self.folder / TEXTS).is_file():
            write_texts(
                self.folder / TEXTS, [item.example for item in self._items], [item.encoded for item in self._items]
            )
        for number, chunk in enumerate(self.chunks):
            numbers = [item.example.number for item in chunk]
            tokens = sum(item.length for item in chunk)
            for run in self.runs:
                path = chunk_path(self.folder, run.name, number)
                if is_finished(path, numbers):
                    yield Step(run.name, tokens, 0, None, None)
                    continue
                start = time.perf_counter()
                records = self._records(run, chunk)
                write_records(path, records)
                errors = [record.error for record in records if record.error is not None]
                yield Step(run.name, tokens, len(errors), next(iter(errors), None), time.perf_counter() - start)

    def _check(self, run: Run) -> None:
        """A method without texts says what is wrong with its options, and computes nothing."""
        task = Task(self.classifier, [], [], run.seed, self.batch_size, run.layer)
        if run.layer is None and not run.options:
            return
        try:
            scores_of(run.method, task, **dict(run.options))
        except (TypeError, ValueError) as error:
            raise ValueError(f"methods: {run.row}: {error}") from error

    def _encode(self, example: Example) -> EncodedText | str:
        try:
            return self.classifier.encode([example.text], [example.pair])[0]
        except Exception as error:
            return _said(error)

    def _records(self, run: Run, items: Sequence[_Item]) -> list[Record]:
        """One record an item; those that cannot be had together are tried one by one."""
        sound = [(item.example, item.encoded) for item in items if not isinstance(item.encoded, str)]
        found: dict[int, Record] = {}
        try:
            found = {record.example: record for record in self._compute(run, sound)} if sound else {}
        except StatisticsError:
            raise
        except Exception:
            for example, encoded in sound:
                found[example.number] = self._compute_one(run, example, encoded)
        return [
            found.get(item.example.number)
            or Record(item.example.number, run.name, None, item.example.gold, error=str(item.encoded))
            for item in items
        ]

    def _compute_one(self, run: Run, example: Example, encoded: EncodedText) -> Record:
        try:
            return self._compute(run, [(example, encoded)])[0]
        except StatisticsError:
            raise
        except Exception as error:
            return Record(example.number, run.name, None, example.gold, error=_said(error))

    def _compute(self, run: Run, items: Sequence[tuple[Example, EncodedText]]) -> list[Record]:
        encoded = [tokens for _, tokens in items]
        targets = self._targets(items)
        task = Task(self.classifier, encoded, targets, run.seed, self.batch_size, run.layer, statistics=self.statistics)
        before = self.statistics.seconds
        scores = scores_of(run.method, task, **dict(run.options))
        elsewhere = (self.statistics.seconds - before) / len(items)
        morf, lerf = self._degrade(run, scores)
        if not (morf.probability.isfinite().all() and lerf.probability.isfinite().all()):
            raise ValueError("the model gives NaN or infinite logits for the text or a part of it")
        return [
            Record(
                example.number,
                run.name,
                target,
                example.gold,
                scores[row].tokens.tolist(),
                morf.share[row].tolist(),
                morf.probability[row].tolist(),
                morf.logit[row].tolist(),
                morf.decision[row].tolist(),
                lerf.probability[row].tolist(),
                lerf.logit[row].tolist(),
                lerf.decision[row].tolist(),
                scores[row].seconds - elsewhere,
            )
            for row, ((example, _), target) in enumerate(zip(items, targets, strict=True))
        ]

    def _targets(self, items: Sequence[tuple[Example, EncodedText]]) -> list[int]:
        if self.target == "gold":
            return [example.gold for example, _ in items if example.gold is not None]
        with self.classifier.padding_known():
            inputs = self.classifier.tensors([encoded for _, encoded in items])
            predicted: list[int] = self.classifier.probabilities(inputs).argmax(-1).tolist()
        return predicted

    def _degrade(self, run: Run, scores: Sequence[Scores]) -> tuple[Degradation, Degradation]:
        encoded = [item.encoded for item in scores]
        with self.classifier.padding_known():
            input_ids, *others = self.classifier.tensors(encoded).values()
            attributions = torch.zeros(input_ids.shape, dtype=torch.float64)
            removable = torch.zeros(input_ids.shape, dtype=torch.bool)
            for row, item in enumerate(scores):
                attributions[row, : len(item.tokens)] = torch.from_numpy(item.tokens)
                removable[row, : len(item.tokens)] = ~torch.tensor(item.encoded.special)
            return degradation_both(
                self.classifier.logits,
                input_ids,
                attributions.to(input_ids.device),
                target=_tensor([item.target for item in scores], input_ids),
                additional_forward_args=tuple(others) or None,
                removable_mask=removable.to(input_ids.device),
                operator=Delete(self.classifier.pad_id),
                shares=NINTHS,
                counting=run.counting,
            )


def _tensor(values: list[int], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device)


def _said(error: Exception) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
