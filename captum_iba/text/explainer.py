"""A text classifier, explained: texts in, bits per token and word out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, overload

import torch

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.settings import BottleneckSettings, resolve_settings
from captum_iba.text import layer_statistics
from captum_iba.text.classifier import Classifier, load_classifier
from captum_iba.text.identity import change_mark, classifier_fingerprint
from captum_iba.text.inputs import check_texts
from captum_iba.text.layers import check_layers, find_layers, published_layer
from captum_iba.text.result import TextAttribution
from captum_iba.text.run import NO_STATISTICS, Call, Place
from captum_iba.text.targets import spread_targets

GRANULARITIES = ("token", "word", "feature")


def read_settings(preset: str, granularity: str | None, **changes: Any) -> BottleneckSettings:
    """The settings of a preset with changes, where words may share a value, too (by a feature mask, not by settings).

    Args:
        preset, granularity: As for :meth:`TextExplainer.explain`.
        **changes: Other settings; None leaves the preset's.

    Raises:
        ValueError: An unknown granularity or preset, or a value out of range.
    """
    if granularity not in (None, *GRANULARITIES):
        raise ValueError(f"granularity: expected one of {', '.join(GRANULARITIES)}, got {granularity!r}.")
    return resolve_settings(preset, granularity=None if granularity == "word" else granularity, **changes)


class TextExplainer:
    """Says how many bits of each token, and word, a text classifier needs for its decision.

    A bottleneck of noise goes behind the blocks of the model and closes wherever the decision does not suffer;
    what it must let through is counted (:class:`captum_iba.InformationBottleneckAttribution`).

    Args:
        model (PreTrainedModel): A sequence classifier of ``transformers``. It is left as it was.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer, a fast one.
        layer (int, str, sequence of them, or None): Block number from 1, or a module's name. Several layers share
            one mask, and information is counted at the first of them. None takes every block, and for the published
            presets the one at three quarters of the depth: 9 of 12. Default: None.
        statistics (FeatureStatistics, sequence of them, path or None): Mean and standard deviation of each layer
            over a data set, or where :meth:`save_statistics` wrote them. Without, each text's own stand in,
            which is less faithful; :meth:`estimate_statistics` mends it. Default: None.
        max_length (int or None): Where texts are cut, in tokens; None takes what model and tokenizer allow.
            Default: None.

    Raises:
        ValueError: Not a classifier of two or more classes, a slow tokenizer, no padding token, no such
            layer, or statistics of another layer or model.

    Examples::

        >>> explainer = TextExplainer.from_pretrained("path/to/classifier", layer=9)
        >>> explainer.estimate_statistics(training_texts)
        >>> print(explainer.explain("A wonderful film."))
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        layer: int | str | Sequence[int | str] | None = None,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | str | os.PathLike[str] | None = None,
        max_length: int | None = None,
    ) -> None:
        self.classifier = Classifier(model, tokenizer, max_length)
        self.layers = find_layers(model, layer)
        check_layers(self.classifier, self.layers)
        self._every_block = layer is None
        self._warned = False
        if isinstance(statistics, (str, os.PathLike)):
            self.load_statistics(statistics)
        else:
            self.statistics = statistics

    @property
    def statistics(self) -> tuple[FeatureStatistics, ...] | None:
        """What the bottleneck's noise is like: mean and standard deviation of each layer over a data set."""
        return self._statistics

    @statistics.setter
    def statistics(self, statistics: FeatureStatistics | Sequence[FeatureStatistics] | None) -> None:
        self.use_statistics(statistics)

    def fingerprint(self) -> str:
        """What tells this model, with its weights, active adapters and tokenizer, from others; computed anew."""
        return classifier_fingerprint(self.classifier)

    def use_statistics(
        self, statistics: FeatureStatistics | Sequence[FeatureStatistics] | None, fingerprint: str | None = None
    ) -> None:
        """Use statistics from now on, as setting :attr:`statistics` does.

        Args:
            statistics (FeatureStatistics, sequence of them, or None): One per layer.
            fingerprint (str or None): What :meth:`fingerprint` gave just now; None has it computed where it is needed.
                Default: None.

        Raises:
            ValueError: Statistics of another number of layers, of other layers, or gathered with another model.
        """
        given = (statistics,) if isinstance(statistics, FeatureStatistics) else statistics
        if given is not None and len(given) != len(self.layers):
            raise ValueError(f"statistics: expected those of {len(self.layers)} layers, got {len(given)}.")
        for one, block in zip(given or (), self.layers, strict=False):
            if one.layer not in (None, block.key):
                raise ValueError(f"statistics: they are of layer {one.layer!r}, expected {block.key!r}.")
        if any(one.model is not None for one in given or ()):
            layer_statistics.check_model(given or (), fingerprint or self.fingerprint(), self.classifier.name)
            self._mark: Any = change_mark(self.classifier.model)
        self._statistics = None if given is None else tuple(given)
        # Objects for all calls, because they say once what is amiss.
        self._place = self._published = Place.of(self.classifier, self.layers, self._statistics)
        if self._every_block:
            number = published_layer(len(self.layers))
            part = slice(number - 1, number)
            of_one = None if self._statistics is None else self._statistics[part]
            self._published = Place.of(self.classifier, self.layers[part], of_one)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        layer: int | str | Sequence[int | str] | None = None,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        max_length: int | None = None,
    ) -> TextExplainer:
        """Load a classifier and its tokenizer, from a folder or the Hugging Face hub.

        Args:
            name_or_path (str or path): A folder, or a name on the hub.
            layer, statistics, max_length: As for the class.
            device (str, torch.device or None): Where the model goes. Default: None, the CPU.
            dtype (torch.dtype): Precision of the weights. Default: ``torch.float32``.

        Raises:
            ValueError: The checkpoint has no classification head, and what the class raises.
            OSError: There is no such folder or name.
        """
        model, tokenizer = load_classifier(name_or_path, device, dtype)
        return cls(model, tokenizer, layer, statistics, max_length)

    @overload
    def explain(self, texts: str, pairs: str | None = None, target: Any = None, **settings: Any) -> TextAttribution: ...

    @overload
    def explain(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, target: Any = None, **settings: Any
    ) -> list[TextAttribution]: ...

    # The overloads only say what comes out; the keywords are these.
    def explain(  # type: ignore[misc]
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        target: Any = None,
        *,
        granularity: str | None = None,
        preset: str = "default",
        beta: float | None = None,
        n_steps: int | None = None,
        n_samples: int | None = None,
        complement: float | None = None,
        learning_rate: float | None = None,
        momentum: float | None = None,
        antithetic: bool | None = None,
        alternate: bool | None = None,
        seed: int = 0,
        batch_size: int = 8,
        internal_batch_size: int | None = None,
        return_trace: bool = False,
        show_progress: bool = False,
    ) -> TextAttribution | list[TextAttribution]:
        """Attribute the model's decision on texts to their tokens and words.

        What a text gets does not depend on the texts beside it.

        Args:
            texts (str or sequence of str): One text, or several.
            pairs (str, sequence of str or None): The second text of each, for a classifier of pairs.
            target (int, str, None, or one per text): The class to explain, by number or by label in any case;
                None is the predicted class. Default: None.
            granularity (str or None): What shares one value of the mask: all features of a ``"token"``, of a
                ``"word"`` (its tokens together), or nothing (``"feature"``). Default: the preset's.
            preset (str): ``"default"``, ``"paper"`` or ``"as_released"``; the last also puts noise into
                special tokens. Default: ``"default"``.
            beta, n_steps, n_samples, complement, learning_rate, momentum, antithetic, alternate: As for
                ``InformationBottleneckAttribution.attribute``. Default: the preset's.
            seed (int): Of the noise. Default: 0.
            batch_size (int): Texts at a time. Default: 8.
            internal_batch_size (int or None): The most rows (texts times noise draws) of one pass; None: no
                limit. Default: None.
            return_trace (bool): Keep how the optimisation went, in ``result.trace``. Default: False.
            show_progress (bool): A progress bar, over batches or the steps of a single one. Default: False.

        Returns:
            TextAttribution for one text, or a list of them in the order of ``texts``.

        Raises:
            TypeError: Something that is not a string.
            ValueError: An empty text, or one of special tokens only (says which), pairs or targets of another
                number, an unknown label, class, granularity or preset, or a setting out of range.
        """
        each, others = check_texts(texts, pairs)
        used = read_settings(
            preset,
            granularity,
            beta=beta,
            n_steps=n_steps,
            n_samples=n_samples,
            complement=complement,
            learning_rate=learning_rate,
            momentum=momentum,
            antithetic=antithetic,
            alternate=alternate,
        )
        targets = spread_targets(target, len(each), self.classifier.labels)
        encoded = self.classifier.encode(each, others)
        place = self._place if preset == "default" else self._published
        if place.statistics is None and not used.noise_around_input and not self._warned:
            self._warned = True
            warnings.warn(NO_STATISTICS, UserWarning, stacklevel=2)
        if place.statistics is not None and not used.noise_around_input:
            self._warn_if_changed(place.statistics)
        call = Call(place, preset, granularity or used.granularity, used, seed, internal_batch_size, return_trace)
        results = call.explain_all(encoded, targets, batch_size, show_progress)
        return results[0] if isinstance(texts, str) else results

    def _warn_if_changed(self, statistics: Sequence[FeatureStatistics]) -> None:
        """Say it where weights or adapters have changed since the statistics were gathered; weights are rarely read."""
        known = {one.model for one in statistics if one.model is not None}
        if not known or self._mark == (mark := change_mark(self.classifier.model)):
            return
        self._mark = mark
        if known != {self.fingerprint()}:
            warnings.warn(
                "statistics: weights, adapters, configuration or tokenizer of the model have changed since they were "
                "gathered, and bits rest on the wrong noise; call estimate_statistics again",
                UserWarning,
                stacklevel=3,
            )

    def estimate_statistics(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        batch_size: int = 32,
        show_progress: bool = False,
    ) -> tuple[FeatureStatistics, ...]:
        """Gather the statistics of the layers over texts like those to be explained, and use them from now on.

        A few hundred texts do. Padding does not count; special tokens do, as in the paper.

        Args:
            texts (sequence of str): The texts.
            pairs (sequence of str or None): The second text of each. Default: None.
            batch_size (int): Texts a pass. Default: 32.
            show_progress (bool): A progress bar. Default: False.

        Returns:
            tuple of FeatureStatistics: one a layer; also in ``explainer.statistics``.
        """
        if isinstance(texts, str):
            raise TypeError("texts: expected several texts, got one string.")
        each, others = check_texts(texts, pairs)
        encoded = self.classifier.encode(each, others)
        found = layer_statistics.estimate(self.classifier, self.layers, encoded, batch_size, show_progress)
        fingerprint = self.fingerprint()
        for one in found:
            one.model = fingerprint
        self.use_statistics(found, fingerprint)
        return found

    def save_statistics(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics as safetensors: of one layer to the file ``path``, of several to files in the folder.

        Each file is written whole or not at all.

        Raises:
            ValueError: There are none.
        """
        if self.statistics is None:
            raise ValueError("there are no statistics to save; call estimate_statistics first.")
        layer_statistics.save(path, self.layers, self.statistics)

    def load_statistics(self, path: str | os.PathLike[str]) -> tuple[FeatureStatistics, ...]:
        """Use statistics that :meth:`save_statistics` wrote from now on.

        Raises:
            FileNotFoundError: There is no such file, or a layer's is not in the folder.
            ValueError: Not a file of statistics, or of another layer or model.
        """
        found = layer_statistics.load(path, self.layers)
        self.statistics = found
        return found
