"""What a worker of a comparison does: records of a chunk, and parts of the statistics. It writes no files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.compare.data import Example
from captum_iba.compare.records import Record
from captum_iba.compare.runs import Run
from captum_iba.compare.statistics import LayerStatistics, StatisticsError
from captum_iba.methods import AttributionTask, Method, Scores, method_names, register_method, score
from captum_iba.metrics import NINTHS, Degradation, Delete, degradation_both
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText


@dataclass(frozen=True)
class Item:
    """An example, with its tokens or the reason why it has none."""

    example: Example
    encoded: EncodedText | str

    @property
    def length(self) -> int:
        """Tokens, 0 where there are none."""
        return 0 if isinstance(self.encoded, str) else len(self.encoded)


def encode(classifier: Classifier, example: Example) -> Item:
    """An example with its tokens; what goes wrong is kept, and becomes a record."""
    try:
        return Item(example, classifier.encode([example.text], [example.pair])[0])
    except Exception as error:
        return Item(example, _said(error))


class Computation:
    """Runs methods and the degradation test over chunks of examples.

    It is sent to workers elsewhere as it is: with the model, the methods that are not of this package, and texts for
    statistics, but without the folder.

    Args:
        classifier (Classifier): The model.
        statistics (LayerStatistics): For methods that ask for statistics of a layer.
        target (str): ``"gold"`` or ``"predicted"``: the class that is explained.
        batch_size (int): Rows of one pass of the model.
        methods (sequence of Method): Those that are run.
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

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process."""
        return {**vars(self), "statistics": self.statistics.without_folder()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """There, methods that only the driver knows are made known."""
        vars(self).update(state)
        for method in self.methods:
            if method.name not in method_names():
                register_method(
                    method.name,
                    method.function,
                    signed=method.signed,
                    description=method.description,
                    word_level=method.word_level,
                    **method.options,
                )

    def move(self, device: str) -> None:
        """Take the model to a device."""
        self.classifier.model.to(device)

    def statistics_part(self, layer: str | None, encoded: Sequence[EncodedText]) -> tuple[FeatureStatistics, ...]:
        """As :meth:`LayerStatistics.part`."""
        return self.statistics.part(layer, encoded)

    def records(
        self, run: Run, items: Sequence[Item], statistics: Mapping[str, FeatureStatistics] | None = None
    ) -> tuple[list[Record], float]:
        """One record an item, in their order, and the seconds it took.

        Args:
            run (Run): The method with its settings.
            items (sequence of Item): The examples.
            statistics (mapping or None): Of layers by their key, where they are known. Default: None.

        Raises:
            StatisticsError: The method asks for statistics, and there are no texts for them, or the disk is full.
        """
        start = time.perf_counter()
        if statistics is not None:
            self.statistics.take(statistics)
        return self._all(run, items), time.perf_counter() - start

    def _all(self, run: Run, items: Sequence[Item]) -> list[Record]:
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
        task = AttributionTask(
            self.classifier, encoded, targets, run.seed, self.batch_size, run.layer, statistics=self.statistics
        )
        before = self.statistics.seconds
        scores = score(run.method, task, **dict(run.options))
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
                morf.fraction[row].tolist(),
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
            predicted: dict[int, int] = {}
            for batch in self.classifier.batches([len(encoded) for _, encoded in items], len(items)):
                inputs = self.classifier.tensors([items[i][1] for i in batch])
                predicted.update(zip(batch, self.classifier.probabilities(inputs).argmax(-1).tolist(), strict=True))
        return [predicted[i] for i in range(len(items))]

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
                perturbation=Delete(self.classifier.pad_id, self.classifier.padding_matters),
                fractions=NINTHS,
                counting=run.counting,
            )


def _tensor(values: list[int], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device)


def _said(error: Exception) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
