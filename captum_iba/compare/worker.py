"""What one process does for a comparison: the records of a chunk, and statistics of layers. It writes no records."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import torch

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.compare.config import MethodRun
from captum_iba.compare.data import Example
from captum_iba.compare.parallel import one_line
from captum_iba.compare.records import Record
from captum_iba.methods import AttributionTask, Method, Scores, score
from captum_iba.methods.registry import METHODS
from captum_iba.methods.task import no_progress
from captum_iba.metrics import NINTHS, Degradation, Delete, degradation_both
from captum_iba.text import statistics as layer_statistics
from captum_iba.text.classifier import Classifier, predicted_classes
from captum_iba.text.encoding import EncodedText, per_token
from captum_iba.text.layers import Block, find_layers
from captum_iba.text.statistics import classifier_fingerprint

EstimateParts = Callable[[Sequence[tuple[str | None, Sequence[EncodedText]]]], Sequence[tuple[FeatureStatistics, ...]]]
"""Calls :meth:`LayerStatistics.part` for each of several arguments, wherever, and gives the results in their order."""


class StatisticsError(RuntimeError):
    """A method needs statistics, and there are no texts to estimate them from, or no place to keep them."""


@dataclass(frozen=True)
class Item:
    """An example, with its tokens or the reason why it has none."""

    example: Example
    encoded: EncodedText | str

    @property
    def length(self) -> int:
        """Number of tokens, 0 where there are none."""
        return 0 if isinstance(self.encoded, str) else len(self.encoded)


def encode(classifier: Classifier, example: Example) -> Item:
    """An example with its tokens; what goes wrong is kept, and becomes a record."""
    if example.error is not None:
        return Item(example, example.error)
    try:
        return Item(example, classifier.encode([example.text], [example.pair])[0])
    except Exception as error:
        return Item(example, _error_of_record(error))


class ComparisonWorker:
    """Runs methods and the degradation test over chunks of examples, at most ``batch_size`` rows in a forward pass.

    It is sent to remote workers as it is: with the model, the methods that are not of this package, and texts for
    statistics, but without the folder.
    """

    def __init__(
        self,
        classifier: Classifier,
        statistics: LayerStatistics,
        target: str,
        batch_size: int,
        methods: Sequence[Method],
    ) -> None:
        self.classifier = classifier
        self.statistics = statistics
        self.target = target
        self.batch_size = batch_size
        self.methods = tuple(methods)
        self.on_tokens: Callable[[int], None] = no_progress
        """Function that gets the number of tokens of each text that a method has scored, in this process."""

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process."""
        return {**vars(self), "statistics": self.statistics.without_folder(), "on_tokens": no_progress}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """There, methods that only the driver knows are registered."""
        vars(self).update(state)
        for method in self.methods:
            METHODS.setdefault(method.name, method)

    def move(self, device: str) -> None:
        """Move the model to a device."""
        self.classifier.model.to(device)

    def statistics_part(self, layer: str | None, encoded: Sequence[EncodedText]) -> tuple[FeatureStatistics, ...]:
        """As :meth:`LayerStatistics.part`."""
        return self.statistics.part(layer, encoded)

    def check(self, run: MethodRun) -> None:
        """ValueError for a layer or option out of range: the method runs without texts, and computes nothing."""
        if run.layer is None and not run.options:
            return
        try:
            self._score(run, [], [], lambda block: None)
        except (TypeError, ValueError) as error:
            raise ValueError(f"methods: {run.row}: {error}") from error

    def layers_with_statistics(self, run: MethodRun) -> list[Block]:
        """The layers whose statistics a method asks for before it looks at texts."""
        asked: list[Block] = []
        try:
            self._score(run, [], [], asked.append)
        except Exception:  # an own method that cannot do without texts
            return []
        return asked

    def records(
        self, run: MethodRun, items: Sequence[Item], statistics: Mapping[str, FeatureStatistics] | None = None
    ) -> tuple[list[Record], float]:
        """One record per item, in their order, and the time it took in seconds.

        ``statistics`` are those of layers by their key, where they are known. StatisticsError if others are needed, and
        there are no texts for them, or the disk is full.
        """
        start = time.perf_counter()
        if statistics is not None:
            self.statistics.add(statistics)
        encoded = [(item.example, item.encoded) for item in items if not isinstance(item.encoded, str)]
        records: dict[int, Record] = {}
        try:
            records = {record.example: record for record in self._compute(run, encoded)} if encoded else {}
        except StatisticsError:
            raise
        except Exception:  # those that cannot be had together are tried one by one
            for example, tokens in encoded:
                records[example.number] = self._compute_alone(run, example, tokens)
        in_order = [
            records.get(item.example.number)
            or Record(item.example.number, run.name, None, item.example.gold, error=str(item.encoded))
            for item in items
        ]
        return in_order, time.perf_counter() - start

    def _score(
        self,
        run: MethodRun,
        encoded: Sequence[EncodedText],
        targets: Sequence[int],
        statistics: Callable[[Block], FeatureStatistics | None],
    ) -> list[Scores]:
        task = AttributionTask(
            self.classifier,
            encoded,
            targets,
            run.seed,
            self.batch_size,
            run.layer,
            statistics=statistics,
            on_text=lambda number: self.on_tokens(len(encoded[number])),
        )
        return score(run.method, task, **dict(run.options))

    def _compute_alone(self, run: MethodRun, example: Example, encoded: EncodedText) -> Record:
        try:
            return self._compute(run, [(example, encoded)])[0]
        except StatisticsError:
            raise
        except Exception as error:
            return Record(example.number, run.name, None, example.gold, error=_error_of_record(error))

    def _compute(self, run: MethodRun, items: Sequence[tuple[Example, EncodedText]]) -> list[Record]:
        encoded = [tokens for _, tokens in items]
        targets = self._targets(items)
        before = self.statistics.seconds
        scores = self._score(run, encoded, targets, self.statistics)
        for_statistics = (self.statistics.seconds - before) / len(items)
        morf, lerf = self._degrade(run, scores)
        if not (morf.probability.isfinite().all() and lerf.probability.isfinite().all()):
            raise ValueError("the model gives NaN or infinite logits for the text or a part of it")
        return [
            Record(
                example=example.number,
                run=run.name,
                target=target,
                gold=example.gold,
                scores=scores[row].tokens.tolist(),
                fraction=morf.fraction[row].tolist(),
                morf_probability=morf.probability[row].tolist(),
                morf_logit=morf.logit[row].tolist(),
                morf_decision=morf.decision[row].tolist(),
                lerf_probability=lerf.probability[row].tolist(),
                lerf_logit=lerf.logit[row].tolist(),
                lerf_decision=lerf.decision[row].tolist(),
                seconds=scores[row].seconds - for_statistics,
            )
            for row, ((example, _), target) in enumerate(zip(items, targets, strict=True))
        ]

    def _targets(self, items: Sequence[tuple[Example, EncodedText]]) -> list[int]:
        if self.target == "gold":
            return [example.gold for example, _ in items if example.gold is not None]
        return predicted_classes(self.classifier, [encoded for _, encoded in items], len(items))

    def _degrade(self, run: MethodRun, scores: Sequence[Scores]) -> tuple[Degradation, Degradation]:
        with self.classifier.with_padding_token():
            input_ids, *others = self.classifier.tensors([item.encoded for item in scores]).values()
            device, length = input_ids.device, input_ids.shape[1]
            attributions = torch.zeros(input_ids.shape, dtype=torch.float64)
            for row, item in enumerate(scores):
                attributions[row, : len(item.tokens)] = torch.from_numpy(item.tokens)
            return degradation_both(
                self.classifier.logits,
                input_ids,
                attributions.to(device),
                target=torch.tensor([item.target for item in scores], device=device),
                additional_forward_args=tuple(others) or None,
                removable_mask=per_token([item.encoded.removable for item in scores], False, device, length),
                perturbation=Delete(self.classifier.pad_id, self.classifier.padding_matters_up_to(length)),
                fractions=NINTHS,
                counting=run.counting,
            )


class LayerStatistics:
    """Gives the statistics of any block of a classifier, estimated when first asked for and kept with the comparison.

    They are estimated from ``texts`` and kept in ``folder``, one file per layer; None keeps them in memory alone.
    ``known`` gives those of a block by its number from 1 where they are known beforehand (of the embedded model).
    ``seconds`` is the time spent here so far, which is none of the method's.
    """

    def __init__(
        self,
        classifier: Classifier,
        folder: Path | None,
        texts: Sequence[Example],
        known: Callable[[int], FeatureStatistics] | None,
        batch_size: int,
    ) -> None:
        self.seconds = 0.0
        self._classifier = classifier
        self._folder = folder
        self._texts = texts
        self._known = known
        self._batch_size = batch_size
        self._statistics: dict[str, FeatureStatistics] = {}

    def __call__(self, block: Block) -> FeatureStatistics:
        """The statistics of a block, from memory, from the folder, or estimated."""

        def estimate(layer: str | None) -> tuple[FeatureStatistics, ...]:
            layers = find_layers(self._classifier.model, layer)
            return layer_statistics.estimate(self._classifier, layers, self._encoded(), self._batch_size, False, False)

        return self._get(block, estimate)

    def gather(self, block: Block, estimate_parts: EstimateParts) -> FeatureStatistics:
        """The statistics of a block; where they have to be estimated, from parts that remote workers estimate.

        A part is a batch of the texts, and the parts are merged in their order. That is what an estimate in one
        piece does with its batches, so equal parts give equal statistics, to the last bit.
        """

        def estimate(layer: str | None) -> tuple[FeatureStatistics, ...]:
            texts = self._encoded()
            batches = self._classifier.batches([len(text) for text in texts], self._batch_size)
            parts = estimate_parts([(layer, [texts[i] for i in batch]) for batch in batches])
            return tuple(reduce(FeatureStatistics.merge, layer_parts) for layer_parts in zip(*parts, strict=True))

        return self._get(block, estimate)

    def part(self, layer: str | None, encoded: Sequence[EncodedText]) -> tuple[FeatureStatistics, ...]:
        """The statistics of a layer, or of every block, over texts that fit into one forward pass, on the CPU."""
        layers = find_layers(self._classifier.model, layer)
        with warnings.catch_warnings():  # a part has few
            warnings.filterwarnings("ignore", "few observations: the statistics of (a )?layer")
            estimated = layer_statistics.estimate(self._classifier, layers, encoded, len(encoded), False, False)
        with TemporaryDirectory() as folder:  # files are of no device
            path = Path(folder) / "part"
            return tuple(_through_file(path, statistics) for statistics in estimated)

    def add(self, statistics: Mapping[str, FeatureStatistics]) -> None:
        """Use statistics, by the keys of their layers, that remote workers have estimated."""
        self._statistics.update(statistics)

    def without_folder(self) -> LayerStatistics:
        """The same for another process, which has no part in the folder."""
        return LayerStatistics(self._classifier, None, self._texts, self._known, self._batch_size)

    def _get(self, block: Block, estimate: Callable[[str | None], Sequence[FeatureStatistics]]) -> FeatureStatistics:
        start = time.perf_counter()
        if block.key not in self._statistics:
            try:
                self._statistics[block.key] = self._load_or_estimate(block, estimate)
            except OSError as error:
                raise StatisticsError(f"statistics: {self._folder} cannot be written or read: {error}") from error
        self.seconds += time.perf_counter() - start
        return self._statistics[block.key]

    def _load_or_estimate(
        self, block: Block, estimate: Callable[[str | None], Sequence[FeatureStatistics]]
    ) -> FeatureStatistics:
        if self._known is not None and block.index is not None:
            return self._known(block.index)
        if self._folder is not None:
            with suppress(FileNotFoundError, ValueError):  # there are none, or damaged ones
                return FeatureStatistics.load(self._path(self._folder, block), layer=block.key)
        # One pass through the texts is enough for all blocks, and a method that asks for one may ask for more.
        layer = None if block.index is not None else block.name
        estimated = estimate(layer)
        fingerprint = classifier_fingerprint(self._classifier)
        for estimated_block, statistics in zip(find_layers(self._classifier.model, layer), estimated, strict=True):
            statistics.model = fingerprint
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                statistics.save(self._path(self._folder, estimated_block))
            self._statistics[estimated_block.key] = statistics
        return self._statistics[block.key]

    def _path(self, folder: Path, block: Block) -> Path:
        return folder / f"{quote(block.key, safe='')}.safetensors"

    def _encoded(self) -> list[EncodedText]:
        """The texts that have a token but special ones; a text of control characters, say, has none."""
        if not self._texts:
            raise StatisticsError(
                "statistics: the method needs the statistics of a layer, and there are no texts to estimate them from."
            )
        encoded: list[EncodedText] = []
        for text in self._texts:
            with suppress(ValueError):  # among the examples it would be one that fails
                encoded += self._classifier.encode([text.text], [text.pair])
        if not encoded:
            raise StatisticsError("statistics: none of the texts to estimate them from has a token but special ones.")
        return encoded


def _through_file(path: Path, statistics: FeatureStatistics) -> FeatureStatistics:
    statistics.save(path)
    return FeatureStatistics.load(path)


def _error_of_record(error: Exception) -> str:
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
