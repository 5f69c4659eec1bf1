"""The statistics of layers that the bottleneck needs, estimated when first asked for and kept with the comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from captum_iba.attr.statistics import FeatureStatistics
from captum_iba.benchmark.data import Example
from captum_iba.text.classifier import Classifier
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.layers import Block


class StatisticsError(RuntimeError):
    """A method asked for statistics, and there are no texts to estimate them from, or no place to keep them."""


class LayerStatistics:
    """Gives the statistics of any block of a classifier.

    Args:
        classifier (Classifier): The model.
        folder (Path): Where they are kept, one file a layer.
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
        folder: Path,
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
        start = time.perf_counter()
        if block.key not in self._found:
            try:
                self._found[block.key] = self._find(block)
            except OSError as error:
                raise StatisticsError(f"statistics: {self._folder} cannot be written or read: {error}") from error
        self.seconds += time.perf_counter() - start
        return self._found[block.key]

    def _find(self, block: Block) -> FeatureStatistics:
        if self._known is not None and block.index is not None:
            return self._known(block.index)
        if (found := self._load(block)) is not None:
            return found
        # One pass through the texts is enough for all blocks, and a method that asks for one may ask for more.
        layers = None if block.index is not None else block.name
        explainer = self._estimate(layers)
        self._folder.mkdir(parents=True, exist_ok=True)
        for one, statistics in zip(explainer.layers, explainer.statistics or (), strict=True):
            statistics.save(self._path(one))
            self._found[one.key] = statistics
        return self._found[block.key]

    def _path(self, block: Block) -> Path:
        return self._folder / f"{quote(block.key, safe='')}.safetensors"

    def _load(self, block: Block) -> FeatureStatistics | None:
        """From the folder; None where there are none, or damaged ones."""
        try:
            return FeatureStatistics.load(self._path(block), layer=block.key)
        except (FileNotFoundError, ValueError):
            return None

    def _estimate(self, layer: str | None) -> TextExplainer:
        if not self._texts:
            raise StatisticsError(
                "statistics: the method needs the statistics of a layer, and all rows of the data are in the sample; "
                "take a smaller sample, or name a file of other texts for them."
            )
        classifier = self._classifier
        explainer = TextExplainer(classifier.model, classifier.tokenizer, layer, max_length=classifier.max_length)
        texts = [text for text in self._texts if self._has_tokens(text)]
        if not texts:
            raise StatisticsError("statistics: none of the texts to estimate them from has a token but special ones.")
        pairs = [text.pair for text in texts if text.pair is not None]
        explainer.estimate_statistics([text.text for text in texts], pairs or None, batch_size=self._batch_size)
        return explainer

    def _has_tokens(self, text: Example) -> bool:
        """Not so of a text of control characters, say; among the examples it would be one that fails."""
        try:
            self._classifier.encode([text.text], [text.pair])
        except ValueError:
            return False
        return True
