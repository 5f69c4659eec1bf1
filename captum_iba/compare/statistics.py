"""The statistics of layers that the bottleneck needs, estimated when first asked for and kept with the comparison."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.compare.data import Example
from captum_iba.text import statistics as layer_statistics
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.layers import Block, find_layers
from captum_iba.text.statistics import classifier_fingerprint

Parts = Callable[[Sequence[tuple[str | None, Sequence[EncodedText]]]], Sequence[tuple[FeatureStatistics, ...]]]
"""Calls :meth:`LayerStatistics.part` for each of several arguments, wherever, and gives the results in their order."""


class StatisticsError(RuntimeError):
    """A method asked for statistics, and there are no texts to estimate them from, or no place to keep them."""


class LayerStatistics:
    """Gives the statistics of any block of a classifier.

    Args:
        classifier (Classifier): The model.
        folder (Path or None): Where they are kept, one file a layer; None keeps them in memory alone.
        texts (sequence of Example): What they are estimated from.
        known (callable or None): Gives those of a block by its number from 1, where they are known beforehand (of the
            embedded model). Default: None.
        batch_size (int): Texts a pass. Default: 32.

    Attributes:
        seconds (float): Time spent here so far, which is none of the method's.

    Raises:
        StatisticsError: When called without texts, or when the folder cannot be written.
    """

    def __init__(
        self,
        classifier: Classifier,
        folder: Path | None,
        texts: Sequence[Example],
        known: Callable[[int], FeatureStatistics] | None = None,
        batch_size: int = 32,
    ) -> None:
        self.seconds = 0.0
        self._classifier = classifier
        self._folder = folder
        self._texts = texts
        self._known = known
        self._batch_size = batch_size
        self._found: dict[str, FeatureStatistics] = {}

    def __call__(self, block: Block) -> FeatureStatistics:
        """The statistics of a block, from memory, from the folder, or estimated."""
        return self._get(block, self._estimate)

    def gather(self, block: Block, parts: Parts) -> FeatureStatistics:
        """The statistics of a block; where they have to be estimated, from parts that may be estimated elsewhere.

        A part is a batch of the texts, and the parts are merged in their order. That is what an estimate in one
        piece does with its batches, so equal parts give equal statistics, to the last bit.

        Args:
            block (Block): Of the classifier.
            parts (callable): Has the parts estimated.
        """

        def estimate(layer: str | None) -> tuple[FeatureStatistics, ...]:
            texts = self._usable()
            batches = self._classifier.batches([len(text) for text in texts], self._batch_size)
            found = parts([(layer, [texts[i] for i in batch]) for batch in batches])
            return tuple(reduce(FeatureStatistics.merge, of_layer) for of_layer in zip(*found, strict=True))

        return self._get(block, estimate)

    def part(self, layer: str | None, encoded: Sequence[EncodedText]) -> tuple[FeatureStatistics, ...]:
        """The statistics over one batch of texts, on the CPU.

        Args:
            layer (str or None): A module's name; None takes every block.
            encoded (sequence of EncodedText): At most as many as a pass takes.

        Returns:
            tuple of FeatureStatistics: one a layer.
        """
        classifier = self._classifier
        layers = find_layers(classifier.model, layer)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "batches: the statistics of layer")  # they are few, for a part
            found = layer_statistics.estimate(classifier, layers, encoded, len(encoded), False)
        with TemporaryDirectory() as folder:  # files are of no device
            path = Path(folder) / "part"
            return tuple(_by_way_of(path, statistics) for statistics in found)

    def take(self, statistics: Mapping[str, FeatureStatistics]) -> None:
        """Use statistics, by the keys of their layers, that were gathered elsewhere."""
        self._found.update(statistics)

    def without_folder(self) -> LayerStatistics:
        """The same for another process, which has no part in the folder."""
        return LayerStatistics(self._classifier, None, self._texts, self._known, self._batch_size)

    def _get(self, block: Block, estimate: Callable[[str | None], Sequence[FeatureStatistics]]) -> FeatureStatistics:
        start = time.perf_counter()
        if block.key not in self._found:
            try:
                self._found[block.key] = self._find(block, estimate)
            except OSError as error:
                raise StatisticsError(f"statistics: {self._folder} cannot be written or read: {error}") from error
        self.seconds += time.perf_counter() - start
        return self._found[block.key]

    def _find(self, block: Block, estimate: Callable[[str | None], Sequence[FeatureStatistics]]) -> FeatureStatistics:
        if self._known is not None and block.index is not None:
            return self._known(block.index)
        if (found := self._load(block)) is not None:
            return found
        # One pass through the texts is enough for all blocks, and a method that asks for one may ask for more.
        layer = None if block.index is not None else block.name
        estimated = estimate(layer)
        fingerprint = classifier_fingerprint(self._classifier)
        for one, statistics in zip(find_layers(self._classifier.model, layer), estimated, strict=True):
            statistics.model = fingerprint
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                statistics.save(self._path(self._folder, one))
            self._found[one.key] = statistics
        return self._found[block.key]

    def _path(self, folder: Path, block: Block) -> Path:
        return folder / f"{quote(block.key, safe='')}.safetensors"

    def _load(self, block: Block) -> FeatureStatistics | None:
        """From the folder; None where there are none, or damaged ones."""
        if self._folder is None:
            return None
        try:
            return FeatureStatistics.load(self._path(self._folder, block), layer=block.key)
        except (FileNotFoundError, ValueError):
            return None

    def _estimate(self, layer: str | None) -> tuple[FeatureStatistics, ...]:
        classifier = self._classifier
        layers = find_layers(classifier.model, layer)
        return layer_statistics.estimate(classifier, layers, self._usable(), self._batch_size, False)

    def _usable(self) -> list[EncodedText]:
        """The texts that have a token but special ones; a text of control characters, say, has none."""
        if not self._texts:
            raise StatisticsError(
                "statistics: the method needs the statistics of a layer, and there are no texts to estimate them from."
            )
        texts = []
        for text in self._texts:
            with suppress(ValueError):  # among the examples it would be one that fails
                texts += self._classifier.encode([text.text], [text.pair])
        if not texts:
            raise StatisticsError("statistics: none of the texts to estimate them from has a token but special ones.")
        return texts


def _by_way_of(path: Path, statistics: FeatureStatistics) -> FeatureStatistics:
    statistics.save(path)
    return FeatureStatistics.load(path)
