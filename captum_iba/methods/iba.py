"""The information bottleneck, as one method among others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import Unpack

from captum_iba._checks import check_integer
from captum_iba._reading.order import ranking
from captum_iba._warnings import warn_user
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.settings import BottleneckSettings, SettingsOverrides
from captum_iba.methods.task import AttributionTask, FloatArray
from captum_iba.text import statistics as layer_statistics
from captum_iba.text.arguments import PUBLISHED_PRESETS, is_pair, resolve_text_settings
from captum_iba.text.bottleneck import NEUTRAL_STATISTICS, ClassifierBottleneck
from captum_iba.text.layers import check_layers, embedding_layer, find_blocks, find_layers, published_layer
from captum_iba.text.result import TextAttribution
from captum_iba.text.word_check import rerank_by_removal
from captum_iba.text.word_removal import TextRemoval


def information_bottleneck(
    task: AttributionTask,
    preset: str | BottleneckSettings = "default",
    layer: int | str | Sequence[int | str] | None = None,
    **overrides: Unpack[SettingsOverrides],
) -> list[FloatArray]:
    """Bits of every token (:class:`captum_iba.InformationBottleneckAttribution`).

    Args:
        preset (str or BottleneckSettings): As for :meth:`captum_iba.text.TextExplainer.explain`.
            Default: ``"default"``.
        layer (int, str, sequence of them, or None): Block number from 1, or a module's name. Default: the task's; if
            it has none, all blocks with one mask, the word embeddings where the head reads tokens of the text (token
            classification, question answering), and for the published presets the block at three quarters of the
            depth, 9 of 12.
        **overrides: Settings, as for :meth:`captum_iba.text.TextExplainer.explain`.
    """
    return [np.asarray(result.bits) for result in _attributions(task, preset, layer, overrides)]


def reranked_bottleneck(
    task: AttributionTask,
    preset: str | BottleneckSettings = "default",
    layer: int | str | Sequence[int | str] | None = None,
    rerank: int = 8,
    **overrides: Unpack[SettingsOverrides],
) -> list[FloatArray]:
    """Scores of every token in the order of :meth:`captum_iba.text.TextExplainer.explain`, and of its bits.

    First come the tokens of the words whose order is settled by removal, then the others by their bits. Only the order
    of the scores has a meaning, of words (the sums over their tokens), too.

    Args:
        preset, layer, **overrides: As of method ``iba``.
        rerank (int): Number of words with the most bits whose order is settled by removal. Default: 8.
    """
    check_integer("rerank", rerank, at_least=0)
    results = _attributions(task, preset, layer, overrides)
    with task.classifier.with_padding_token():
        ordered = [
            rerank_by_removal(TextRemoval(task.classifier, encoded, task.batch_size), result, rerank)
            for encoded, result in zip(task.encoded, results, strict=True)
        ]
    return [_ordered_scores(result) for result in ordered]


def _ordered_scores(result: TextAttribution) -> FloatArray:
    """Fractions of the bits, and above them powers of a number that is larger than the tokens of any word."""
    measured = [word for word in ranking(result) if result.effects and result.effects[word] is not None]
    base = 1.0 + max(Counter(token.word for token in result.tokens).values(), default=0)
    powers: dict[int | None, float] = {word: base ** (len(measured) - rank) for rank, word in enumerate(measured)}
    total = max(result.total_bits, np.finfo(float).tiny)
    return np.array([powers.get(token.word, token.bits / total) for token in result.tokens])


def _attributions(
    task: AttributionTask,
    preset: str | BottleneckSettings,
    layer: int | str | Sequence[int | str] | None,
    overrides: SettingsOverrides,
) -> list[TextAttribution]:
    name, granularity, settings = resolve_text_settings(preset, overrides)

    def explained(own: Sequence[int], paired: bool) -> list[TextAttribution]:
        return _bottleneck(task, task.layer if layer is None else layer, name, settings, paired).explain(
            [task.encoded[i] for i in own],
            [task.targets[i] for i in own],
            settings,
            preset=name,
            granularity=granularity,
            seed=task.seed,
            batch_size=max(1, task.batch_size // (settings.samples_per_step * settings.rows_per_sample)),
            internal_batch_size=task.batch_size,
            on_text=lambda number: task.on_text(own[number]),
            explained=None if task.explained is None else [task.explained[i] for i in own],
        )

    # Neutral statistics are those of single texts, or of pairs.
    of_pairs = [i for i, text in enumerate(task.encoded) if is_pair(text.text, text.pair)]
    others = [i for i in range(len(task.encoded)) if i not in {*of_pairs}]
    found = dict(zip(others, explained(others, paired=False), strict=True)) if others or not of_pairs else {}
    if of_pairs:
        found |= zip(of_pairs, explained(of_pairs, paired=True), strict=True)
    return [found[i] for i in range(len(task.encoded))]


def _bottleneck(
    task: AttributionTask,
    layer: int | str | Sequence[int | str] | None,
    preset: str,
    settings: BottleneckSettings,
    paired: bool,
) -> ClassifierBottleneck:
    """The same object for all chunks of a dataset: it remembers what it has warned of and checked."""
    classifier = task.classifier
    if layer is None and preset in PUBLISHED_PRESETS:
        layer = published_layer(len(find_blocks(classifier.model)))
    elif layer is None and classifier.head.has_target_words:
        layer = embedding_layer(classifier.model)
    blocks = find_layers(classifier.model, layer)
    bottlenecks: dict[Any, tuple[ClassifierBottleneck, Any]] = classifier.method_state.setdefault("iba", {})
    if task.encoded and not any(blocks == checked for checked, _ in bottlenecks):
        check_layers(classifier, blocks)
    given = [block_statistics for block in blocks if (block_statistics := task.statistics(block)) is not None]
    statistics: Sequence[FeatureStatistics] | None = given if len(given) == len(blocks) else None
    used: Any = [id(block_statistics) for block_statistics in given]
    kind = "released" if settings.noise_around_input else "given"
    if kind == "given" and task.encoded and statistics is None:
        kind, used = f"neutral, pairs: {paired}", layer_statistics.change_mark(classifier)
    bottleneck, used_before = bottlenecks.get((blocks, kind), (None, None))
    if bottleneck is None or used != used_before:
        if kind.startswith("neutral"):
            warn_user(NEUTRAL_STATISTICS)
            statistics = layer_statistics.neutral(classifier, blocks, paired)
        bottleneck = ClassifierBottleneck(classifier, blocks, statistics)
        bottlenecks[blocks, kind] = bottleneck, used
    return bottleneck
