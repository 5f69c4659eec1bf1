"""Text classifiers, and models with other heads, explained: texts in, bits per token and word out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

import torch

from captum_iba._checks import check_flag, check_integer
from captum_iba._explain import statistics_files
from captum_iba._explain.progress import removal_progress
from captum_iba._reading.mask_state import lost_prediction
from captum_iba._reading.wording import NEUTRAL_TEXTS
from captum_iba._warnings import warn_user
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.settings import BottleneckSettings, SettingsOverrides, with_smaller_betas
from captum_iba.text import statistics as layer_statistics
from captum_iba.text.arguments import (
    PUBLISHED_PRESETS,
    ExplainOptions,
    check_keywords,
    check_texts,
    doubt_of_pairs,
    is_pair,
    resolve_text_settings,
    targets_per_text,
    warn_of_special_tokens,
)
from captum_iba.text.bottleneck import (
    NEUTRAL_STATISTICS,
    ClassifierBottleneck,
    explain_repeats,
    warn_of_lost_predictions,
)
from captum_iba.text.classifier import Classifier, load_classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.head_targets import check_asked, encode_targets, with_held_scale
from captum_iba.text.heads import ValueHead
from captum_iba.text.layers import check_layers, embedding_layer, find_layers, published_layer
from captum_iba.text.result import TextAttribution
from captum_iba.text.target import TextTarget
from captum_iba.text.word_check import settle_by_removal
from captum_iba.text.word_removal import TextRemoval

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TextExplainer:
    """Explains a text classifier: how many bits of each token, and word, its decision needs.

    A bottleneck of noise at the layers of the model lets through as little information as possible while the decision
    stays the same (:class:`captum_iba.InformationBottleneckAttribution`).

    Args:
        model (PreTrainedModel): A sequence classifier of ``transformers``, or a model of token classification,
            question answering, masked language modeling, multiple choice or regression. It is left as it was.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer, a fast one.
        layer (int, str, sequence of them, or None): Block number from 1, or a module's name. Several layers share one
            mask, and information is measured at the first of them. Default: all blocks, and for the published presets
            the one at three quarters of the depth, 9 of 12; for heads that read single positions the word embeddings,
            since their first block reads other words into the position of the target, which stays open.
        statistics (FeatureStatistics, sequence of them, path or None): Dataset statistics of each layer, or the path
            of a file or folder from :meth:`save_statistics`. Default: :meth:`use_neutral_statistics`, of English
            sentences; for texts unlike these call :meth:`estimate_statistics`.
        max_length (int, optional): Number of tokens that texts are truncated to. Default: the largest number that
            model and tokenizer allow.

    Raises:
        ValueError: A model with another head, a slow tokenizer, no padding token, no such
            layer, layers in another order than they run in, or statistics of another layer or model.

    Examples::

        >>> explainer = TextExplainer.from_pretrained("path/to/classifier", layer=9)
        >>> statistics = explainer.estimate_statistics(training_texts)
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
        if layer is None and self.classifier.head.has_target_words:
            layer = embedding_layer(model)
        self.layers = find_layers(model, layer)
        check_layers(self.classifier, self.layers)
        self._all_blocks = layer is None
        self._warned = self._warned_of_pairs = False
        if isinstance(statistics, (str, os.PathLike)):
            self.load_statistics(statistics)
        else:
            self.statistics = statistics

    def __repr__(self) -> str:
        first, last = self.layers[0].key, self.layers[-1].key
        layers = first if len(self.layers) == 1 else f"{len(self.layers)} layers, {first} to {last}"
        origin = "None" if self._statistics is None else f"{self._statistics[0].count:,} tokens"
        return f"TextExplainer(model={self.classifier.name!r}, layer={layers}, statistics={origin})"

    @property
    def statistics(self) -> tuple[FeatureStatistics, ...] | None:
        """Dataset statistics of each layer, which give the noise its mean and standard deviation; None without."""
        return self._statistics

    @statistics.setter
    def statistics(self, statistics: FeatureStatistics | Sequence[FeatureStatistics] | None) -> None:
        self.use_statistics(statistics)

    @property
    def model(self) -> Any:
        """The classifier, as it was given."""
        return self.classifier.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, as it was given."""
        return self.classifier.tokenizer

    def fingerprint(self) -> str:
        """Digest of the model, its weights and active adapters, and of the tokenizer; computed anew."""
        return layer_statistics.classifier_fingerprint(self.classifier)

    def use_statistics(
        self,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | None,
        fingerprint: str | None = None,
        source: str = "a dataset",
    ) -> None:
        """Use other dataset statistics, as setting :attr:`statistics` does.

        Args:
            statistics (FeatureStatistics, sequence of them, or None): One per layer.
            fingerprint (str, optional): The result of :meth:`fingerprint`, if it was computed just before.
                Default: computed where it is needed.
            source (str): What results call the texts that they are of. Default: "a dataset".

        Raises:
            ValueError: Statistics of another number of layers, of other layers, or gathered with another model.
        """
        per_layer = None if statistics is None else layer_statistics.one_per_layer(statistics, self.layers)
        if any(feature_statistics.model is not None for feature_statistics in per_layer or ()):
            self._fingerprint: str | None = fingerprint or self.fingerprint()
            statistics_files.check_model(per_layer or (), self._fingerprint, self.classifier.name)
            self._change_mark: Any = layer_statistics.change_mark(self.classifier)
        else:
            self._fingerprint = None
        self._outdated = False
        self._statistics = per_layer
        self._neutral_pairs = layer_statistics.neutral_pairs(per_layer)
        self._bottleneck = self._published_bottleneck = ClassifierBottleneck(self.classifier, self.layers, per_layer)
        if self._all_blocks:
            number = published_layer(len(self.layers))
            part = slice(number - 1, number)
            self._published_bottleneck = ClassifierBottleneck(
                self.classifier, self.layers[part], None if per_layer is None else per_layer[part]
            )
        source = source if self._neutral_pairs is None else NEUTRAL_TEXTS
        self._bottleneck.source = self._published_bottleneck.source = source

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        layer: int | str | Sequence[int | str] | None = None,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | str | os.PathLike[str] | None = None,
        device: str | int | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        max_length: int | None = None,
    ) -> TextExplainer:
        """Load a classifier, or a model with another head, and its tokenizer, from a folder or the Hugging Face hub.

        The configuration's ``architectures`` say which head it has.

        Args:
            name_or_path (str or path): A folder, or a name on the hub.
            layer, statistics, max_length: As for the class.
            device (str, int, torch.device or None): Device of the model; a number is a CUDA device. Default: the CPU.
            dtype (torch.dtype): Precision of the weights. Default: ``torch.float32``.

        Raises:
            ValueError: The checkpoint has no classification head, or as the class.
            OSError: There is no such folder or name.
        """
        model, tokenizer = load_classifier(name_or_path, device, dtype)
        return cls(model, tokenizer, layer, statistics, max_length)

    @overload  # a string is a sequence of strings, too
    def explain(  # type: ignore[overload-overlap]
        self, texts: str, pairs: str | None = None, target: Any = None, **options: Unpack[ExplainOptions]
    ) -> TextAttribution: ...

    @overload
    def explain(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        target: Any = None,
        **options: Unpack[ExplainOptions],
    ) -> list[TextAttribution]: ...

    @with_held_scale
    def explain(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        target: Any = None,
        *,
        word: int | str | Sequence[int | str] | None = None,
        token: int | Sequence[int] | None = None,
        entity: int | str | Sequence[int | str] | None = None,
        choices: Sequence[str] | Sequence[Sequence[str]] | None = None,
        tolerance: float | None = None,
        mask_target: bool = False,
        preset: str | BottleneckSettings = "default",
        seed: int = 0,
        batch_size: int = 8,
        internal_batch_size: int | None = None,
        return_trace: bool = False,
        repeats: int = 1,
        rerank: int = 8,
        check: bool = False,
        show_progress: bool = False,
        **overrides: Unpack[SettingsOverrides],
    ) -> TextAttribution | list[TextAttribution]:
        """Attribute the model's decision on texts to their tokens and words.

        The result of a text does not depend on the other texts.

        Args:
            texts (str or sequence of str): One text, or several.
            pairs (str, sequence of str or None): The second text of each, for a classifier of pairs; of question
                answering the context. Default: None.
            target (int, str, None, or one per text): The class to explain, by number or by label in any case; of
                question answering the answer, as the context spells it or as its characters (start, end); of a
                masked language model the word; of multiple choice the choice; of a regression of several outputs the
                output. Default: the predicted one.
            word, token, entity (int, str, or a list with one per text): Token classification: a word by its number or
                text, a token by its number, a predicted entity by its number or text, all from 0. ``entity="all"``
                gives a list, of all entities of all texts in order. Default: None.
            choices (list of str, or one such list per text): Multiple choice: the choices. Default: None.
            tolerance (float, optional): Regression: the distance from the prediction, in the unit of the output, that
                counts as one; from 1.2 of them on, the prediction is lost. Default: the standard deviation of the
                output over neutral texts.
            mask_target (bool): Whether the word, answer or mask token that is explained has a bottleneck, too. It is
                where the head reads, and stays open otherwise, as ``[CLS]`` does; it then has no bits. Default: False.
            preset (str or BottleneckSettings): ``"default"``, ``"paper"``, ``"as_released"`` (which also masks special
                tokens), or settings. Where the mask of ``"default"`` loses the prediction, ``beta`` is 3 in place of
                10, or then 1, unless ``beta`` is given; ``result.preset`` says so. Default: ``"default"``.
            seed (int): Seed of the noise. Default: 0.
            batch_size (int): Number of texts per batch. Default: 8.
            internal_batch_size (int, optional): Largest number of rows of a forward pass: texts times noise samples,
                and texts without some of their words. Default: no limit for the first, ``2 * batch_size`` for the
                others.
            return_trace (bool): Whether to keep the optimization step by step, in ``result.trace``. Default: False.
            repeats (int): Number of explanations whose mean is the result, each with other noise (``seed + 1`` and so
                on) and with the statistics of a bootstrap sample of the texts that they were estimated from.
                ``result.repeated_leading`` has the leading words of each, settled as those of the result. Their
                spread measures the effect of this sampling and of the noise. Statistics of other texts can change the
                result by more, above all in place of the neutral texts. Default: 1.
            rerank (int): Number of words with the most bits whose order is settled by removal, in two forward passes
                per word and two more, and some for the order of the leading ones; their bits stay as they are. Of a
                text with no more words all are. 0 for the order of the bits alone. Default: 8.
            check (bool): Whether to delete the leading words, those with the fewest bits, and random ones, and to keep
                the probabilities in ``result.check``. More words can be measured then, so others may
                lead than without a check. Default: False.
            show_progress (bool): Whether to show a progress bar, over batches or the steps of a single one, and one
                over the texts without some of their words. Default: False.
            **overrides: Fields of :class:`captum_iba.attr.BottleneckSettings` that override the preset's.
                ``granularity`` may also be ``"word"``: the tokens of a word share one mask value.

        Returns:
            TextAttribution, or list of TextAttribution: One for one text, a list in their order for several.

        Raises:
            TypeError: A text that is not a string, or a keyword that is no option.
            ValueError: An empty text, or one of special tokens only (the message names it), pairs or targets of
                another number, an argument that the head does not have, a target that is not in the text or truncated
                away, an unknown label, class, granularity or preset, or a setting out of range.

        Examples::

            >>> explainer.explain("A wonderful film.", granularity="word", beta=5.0).word_bits
        """
        check_keywords(overrides)
        first, second = check_texts(texts, pairs, self.classifier.labels)
        check_integer("seed", seed, kind=Integral)
        check_integer("repeats", repeats, at_least=1)
        check_integer("rerank", rerank, at_least=0)
        check_flag("check", check)
        name, granularity, settings = resolve_text_settings(preset, overrides)
        asked = {"word": word, "token": token, "entity": entity, "choices": choices, "tolerance": tolerance}
        asked["mask_target"] = mask_target
        check_asked(self.classifier.head, asked)
        several = not isinstance(texts, str) or (isinstance(entity, (str, list)) and entity in ("all", ["all"]))
        about: list[TextTarget] | None = None
        if self.classifier.head.has_classes:
            targets = targets_per_text(target, len(first), self.classifier.labels)
            encoded = self.classifier.encode(first, second)
        else:
            single = isinstance(texts, str)
            found = encode_targets(self.classifier, first, second, target, batch_size, asked, single)
            encoded, targets = [item.encoded for item in found], [item.column for item in found]
            about = [item.about for item in found]
        doubts = [doubt_of_pairs(item.text, item.pair, self.classifier.labels) for item in encoded]
        if (doubt := max(doubts, key=bool)) and not self._warned_of_pairs:
            self._warned_of_pairs = True
            warn_user(f"pairs: {doubt[0].lower()}{doubt[1:]}")
        warn_of_special_tokens(encoded)
        groups = self._groups(encoded, preset, repeats, settings, show_progress)

        def explained(numbers: Sequence[int], settings: BottleneckSettings, named: str) -> list[TextAttribution]:
            found: dict[int, TextAttribution] = {}
            for of_group, bottlenecks in groups:
                own = [i for i in numbers if i in of_group]
                attributions = explain_repeats(
                    bottlenecks,
                    [encoded[i] for i in own],
                    [targets[i] for i in own],
                    settings,
                    seed,
                    # The probability through the final mask says whether the bits can be trusted.
                    return_trace or "final",
                    preset=named,
                    granularity=granularity,
                    batch_size=batch_size,
                    internal_batch_size=internal_batch_size,
                    show_progress=show_progress,
                    fingerprint=self._fingerprint,
                    explained=None if about is None else [about[i] for i in own],
                )
                found.update(zip(own, attributions, strict=True))
            return [found[i] for i in numbers]

        results = explained(range(len(encoded)), settings, name)
        if name == "default" and overrides.get("beta") is None:
            results = with_smaller_betas(
                results,
                lost_prediction,
                lambda numbers, beta: explained(numbers, replace(settings, beta=beta), f"{name}, beta {beta:g}"),
            )
        if isinstance(head := self.classifier.head, ValueHead) and head.scale is not None:
            scale = head.scale.tolist()
            results = [replace(one, settings={**one.settings, "tolerance": scale[one.target]}) for one in results]
        rows = internal_batch_size or 2 * batch_size
        with (
            ModuleGuard(self.classifier.model),
            self.classifier.with_padding_token(),
            removal_progress(show_progress and (rerank > 0 or check), "texts") as on_rows,
        ):
            for i, text in enumerate(encoded):
                removal = TextRemoval(self.classifier, text, rows, on_rows)
                results[i] = settle_by_removal(removal, results[i], rerank, self.layers if check else None)
        results = [
            replace(one, doubt=doubt, settings={**one.settings, "rerank": rerank})
            for one, doubt in zip(results, doubts, strict=True)
        ]
        warn_of_lost_predictions(results)
        return results if several else results[0]

    def _bottleneck_of(self, preset: str | BottleneckSettings) -> ClassifierBottleneck:
        """The layers, with their statistics, that :meth:`explain` uses with a preset."""
        name, _, _ = resolve_text_settings(preset, {})
        return self._published_bottleneck if name in PUBLISHED_PRESETS else self._bottleneck

    def _groups(
        self,
        encoded: Sequence[EncodedText],
        preset: str | BottleneckSettings,
        repeats: int,
        settings: BottleneckSettings,
        show_progress: bool,
    ) -> list[tuple[set[int], list[ClassifierBottleneck]]]:
        """Numbers of texts and their bottlenecks: neutral statistics are those of single texts, or of pairs."""
        every, needs_statistics = {*range(len(encoded))}, not settings.noise_around_input
        has_own = self._statistics is not None and self._neutral_pairs is None
        of_pairs = {i for i in every if is_pair(encoded[i].text, encoded[i].pair)}
        kinds = {False: every - of_pairs, True: of_pairs} if needs_statistics and not has_own else {False: every}
        groups = []
        for pairs, numbers in kinds.items():
            if needs_statistics and numbers:
                self._find_statistics(pairs, show_progress)
            if numbers:
                self._check_statistics(warn=needs_statistics)
                groups.append((numbers, self._bottleneck_of(preset).repeated(repeats, settings)))
        return groups

    def _find_statistics(self, pairs: bool, show_progress: bool) -> None:
        """Use neutral statistics, with a warning once, unless there are others."""
        if self._statistics is not None and self._neutral_pairs in (None, pairs):
            return
        self.use_neutral_statistics(pairs, show_progress)
        if not self._warned:
            self._warned = True
            warn_user(NEUTRAL_STATISTICS)

    def _check_statistics(self, warn: bool) -> None:
        """Compute the fingerprint again if the model has changed, and warn, once, if its statistics are of before."""
        statistics = self._statistics or ()
        models = {feature_statistics.model for feature_statistics in statistics if feature_statistics.model is not None}
        # The mark is cheap; the fingerprint reads all weights. Results have it, whatever the statistics know.
        mark = layer_statistics.change_mark(self.classifier)
        if self._fingerprint is None or self._change_mark != mark:
            self._change_mark, self._fingerprint = mark, self.fingerprint()
            self._outdated = bool(models) and models != {self._fingerprint}
        if warn and self._outdated:
            self._outdated = False
            warn_user(
                "statistics: weights, adapters, configuration or tokenizer of the model have changed since they were "
                "gathered, and bits rest on the wrong noise; call estimate_statistics again"
            )

    def use_neutral_statistics(self, pairs: bool = False, show_progress: bool = False) -> tuple[FeatureStatistics, ...]:
        """Use the statistics of the layers over neutral texts in the package, as :meth:`explain` does without others.

        They are estimated once per model, and kept in the cache.

        Args:
            pairs (bool): Whether pairs of texts are to be explained. Default: False.
            show_progress (bool): Whether to show a progress bar while they are estimated. Default: False.

        Returns:
            tuple of FeatureStatistics: One per layer; also in ``explainer.statistics``.
        """
        statistics = layer_statistics.neutral(self.classifier, self.layers, pairs, show_progress)
        self.use_statistics(statistics, statistics[0].model)
        return statistics

    def estimate_statistics(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        batch_size: int = layer_statistics.BATCH_SIZE,
        show_progress: bool = False,
    ) -> tuple[FeatureStatistics, ...]:
        """Estimate the dataset statistics of the layers over texts like those to be explained, and use them.

        A few hundred texts suffice. Padding does not count; special tokens do, as in the paper.

        Args:
            texts (sequence of str): The texts.
            pairs (sequence of str or None): The second text of each. Default: None.
            batch_size (int): Number of texts per pass. Default: 32.
            show_progress (bool): Whether to show a progress bar. Default: False.

        Returns:
            tuple of FeatureStatistics: One per layer; also in ``explainer.statistics``.

        Raises:
            TypeError: One string instead of several texts, or a text that is not a string.
            ValueError: An empty text, or one of special tokens only.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one string, expected several texts")
        encoded = self.classifier.encode(*check_texts(texts, pairs))
        statistics = layer_statistics.estimate(self.classifier, self.layers, encoded, batch_size, show_progress)
        fingerprint = self.fingerprint()
        for feature_statistics in statistics:
            feature_statistics.model = fingerprint
        self.use_statistics(statistics, fingerprint, layer_statistics.source_of(texts))
        return statistics

    def save_statistics(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics as safetensors: of one layer to the file ``path``, of several to files in the folder.

        An interruption never leaves files of two estimates in a folder.

        Raises:
            ValueError: There are none.
        """
        if self.statistics is None:
            raise ValueError("statistics is None, expected statistics to save; call estimate_statistics first")
        statistics_files.save(path, [block.key for block in self.layers], self.statistics)

    def load_statistics(self, path: str | os.PathLike[str]) -> tuple[FeatureStatistics, ...]:
        """Use statistics from files that :meth:`save_statistics` wrote.

        Raises:
            FileNotFoundError: There is no such file, or the folder has none of a layer.
            ValueError: Not a file of statistics, statistics of another layer or model, or files of several estimates.
        """
        keys = [block.key for block in self.layers]
        self.statistics = statistics = statistics_files.load(path, keys, layer_statistics.GroupedStatistics)
        return statistics
