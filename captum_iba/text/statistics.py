"""Statistics of a classifier's layers over texts, their cache, and the fingerprint of their classifier."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files as package_files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import platformdirs
import torch
from torch import Tensor

from captum_iba._explain import statistics_files
from captum_iba._explain.fingerprint import (
    adapters_of,
    add_part,
    computed_entries,
    model_fingerprint,
    tokenizer_fingerprint,
    weights_mark,
)
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.text.arguments import batches_by_length
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.layers import Block

BATCH_SIZE = 32
"""Number of texts per pass while statistics are estimated."""

N_GROUPS = 8
"""Number of groups of texts whose own statistics are kept."""


class GroupedStatistics(FeatureStatistics):
    """Statistics that keep those of groups of texts, too: a sample of groups stands for a sample of other texts."""

    def __init__(self, layer: str | None = None, min_std: float = 0.01, feature_dim: int | None = None) -> None:
        super().__init__(layer, min_std, feature_dim)
        self.groups = [FeatureStatistics(layer, min_std, feature_dim) for _ in range(N_GROUPS)]
        self.neutral_pairs: bool | None = None
        """Whether the texts are neutral ones in pairs (True) or alone (False); None for other texts."""

    def update(self, features: Tensor, mask: Tensor | None = None) -> GroupedStatistics:
        """Take one batch into account; its texts go to all groups in turn."""
        # Groups begin elsewhere in every batch, since batches may have one text each.
        shift = self._batches
        super().update(features, mask)
        for number, group in enumerate(self.groups):
            rows = slice((number - shift) % N_GROUPS, None, N_GROUPS)
            group.feature_dim = self.feature_dim
            if len(features[rows]):
                group.update(features[rows], None if mask is None else mask[rows])
        return self

    @property
    def has_groups(self) -> bool:
        """Whether several groups have data: one text is in one group, and files of earlier versions have none."""
        return sum(group.count > 0 for group in self.groups) > 1

    def resampled(self, seed: int) -> FeatureStatistics:
        """Statistics of as many groups, drawn with replacement: a bootstrap sample of the texts."""
        groups = [group for group in self.groups if group.count]
        sample = FeatureStatistics(self.layer, self.min_std, self.feature_dim)
        sample.model, sample.at_input, sample.call = self.model, self.at_input, self.call
        for number in torch.randint(len(groups), (len(groups),), generator=torch.Generator().manual_seed(seed)):
            sample._combine(groups[number].count, *groups[number]._require())
        return sample

    def further_tensors(self) -> dict[str, Tensor]:
        """The statistics of the groups, and whether they are of neutral texts."""
        neutral = {} if self.neutral_pairs is None else {"neutral_pairs": torch.tensor(self.neutral_pairs)}
        groups = [group for group in self.groups if group.count]
        if not groups:
            return neutral
        data = zip(*(group._require() for group in groups), strict=True)
        means, squares = (torch.stack(tensors).cpu().float() for tensors in data)
        counts = torch.tensor([group.count for group in groups])
        return {"group_counts": counts, "group_means": means, "group_squares": squares, **neutral}

    def _take_further(self, *parts: FeatureStatistics) -> None:
        """The groups of both; each text stays in the group that it is in."""
        grouped = [part for part in parts if isinstance(part, GroupedStatistics)]
        if len(grouped) < len(parts):
            return  # of some texts no group is known
        kinds = {part.neutral_pairs for part in grouped}
        self.neutral_pairs = kinds.pop() if len(kinds) == 1 else None
        for number, group in enumerate(self.groups):
            for part in grouped:
                if part.groups[number].count:
                    group._combine(part.groups[number].count, *part.groups[number]._require())

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        if "neutral_pairs" in tensors:
            self.neutral_pairs = bool(tensors["neutral_pairs"])
        columns = (tensors.get(f"group_{name}", torch.zeros(0)) for name in ("counts", "means", "squares"))
        for group, count, mean, squares in zip(self.groups, *columns, strict=False):
            group._combine(int(count), mean.double(), squares.double())


def estimate(
    classifier: Classifier,
    layers: Sequence[Block],
    encoded: Sequence[EncodedText],
    batch_size: int,
    show_progress: bool,
    grouped: bool = True,
) -> tuple[FeatureStatistics, ...]:
    """Estimate the statistics of layers over texts, all in the same passes; padding does not count.

    ``grouped`` keeps those of groups of texts, too.
    """
    lengths, masked = [len(item) for item in encoded], "attention_mask" in encoded[0].inputs
    batches = [
        classifier.tensors([encoded[i] for i in batch], whole_windows=True)
        # Without a mask, texts of one length share a pass, so that nothing is padded.
        for batch in (
            classifier.batches(lengths, batch_size) if masked else batches_by_length(lengths, batch_size, equal=True)
        )
    ]
    with classifier.with_padding_token():
        statistics: list[FeatureStatistics] = (GroupedStatistics if grouped else FeatureStatistics).estimate(
            classifier.model,
            [block.module for block in layers],
            batches,
            mask_func=lambda batch: batch["attention_mask"] if masked else torch.ones_like(batch["input_ids"]),
            layer_call=[block.call for block in layers],
            show_progress=show_progress,
            feature_dim=-1,
        )
    for feature_statistics, block in zip(statistics, layers, strict=True):
        feature_statistics.layer = block.key  # with the call, where one module runs several times
    return tuple(statistics)


def one_per_layer(
    statistics: FeatureStatistics | Sequence[FeatureStatistics], layers: Sequence[Block]
) -> tuple[FeatureStatistics, ...]:
    """Statistics as one per layer, by position; ValueError for another number of them, or those of other layers."""
    per_layer = (statistics,) if isinstance(statistics, FeatureStatistics) else tuple(statistics)
    if len(per_layer) != len(layers):
        raise ValueError(f"statistics has {len(per_layer)} entries, expected those of {len(layers)} layers")
    for feature_statistics, block in zip(per_layer, layers, strict=True):
        if feature_statistics.layer not in (None, block.key):
            raise ValueError(f"statistics is of layer {feature_statistics.layer!r}, expected {block.key!r}")
    return per_layer


def cache_folder() -> Path:
    """Folder of cached statistics: the environment variable ``CAPTUM_IBA_CACHE``, or the user's cache folder."""
    if folder := os.environ.get("CAPTUM_IBA_CACHE"):
        return Path(folder)
    return platformdirs.user_cache_path("captum_iba", appauthor=False)


def cache_path(
    classifier: Classifier,
    fingerprint: str,
    layers: Sequence[Block],
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Path:
    """Path of the cached statistics of layers over texts, which need not exist: a file, or a folder for several layers.

    It follows from all that the statistics depend on, and from nothing else.
    """
    digest = hashlib.sha256()
    for part in (
        fingerprint,
        *(block.key for block in layers),
        str(classifier.max_length),
        f"{len(layers)} layers, {N_GROUPS} groups, {len(texts)} texts, {'no' if pairs is None else len(pairs)} pairs",
        *texts,
        *(pairs or ()),
    ):
        add_part(digest, part)
    suffix = ".safetensors" if len(layers) == 1 else ""
    return Path(cache_folder() if folder is None else folder) / f"statistics-{digest.hexdigest()[:24]}{suffix}"


def cached(
    classifier: Classifier,
    layers: Sequence[Block],
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    show_progress: bool = False,
) -> tuple[tuple[FeatureStatistics, ...], Path, bool]:
    """Statistics of layers over texts, their path in the cache, and whether they were there; else they are kept now."""
    fingerprint = classifier_fingerprint(classifier)
    path = cache_path(classifier, fingerprint, layers, texts, pairs, folder)
    with suppress(FileNotFoundError, ValueError):  # missing, incomplete or damaged: estimated below
        statistics = statistics_files.load(path, [block.key for block in layers], GroupedStatistics)
        statistics_files.check_model(statistics, fingerprint, classifier.name)
        return statistics, path, True
    encoded = classifier.encode(texts, pairs or [None] * len(texts))
    statistics = estimate(classifier, layers, encoded, BATCH_SIZE, show_progress)
    for feature_statistics in statistics:
        feature_statistics.model = fingerprint
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        statistics_files.save(path, [block.key for block in layers], statistics)
    except OSError as error:
        reason = (
            f"the cache, {path.parent}, cannot be written ({error.strerror}); CAPTUM_IBA_CACHE names another folder"
        )
        raise OSError(error.errno, reason) from error
    return statistics, path, False


def neutral_texts(paired: bool) -> tuple[list[str], list[str] | None]:
    """Texts of several kinds and lengths in the package, written for it.

    With pairs each stands beside the next, beside itself, and beside its negation: models of pairs compute otherwise
    where one text follows from the other, or contradicts it.
    """
    content = (package_files("captum_iba") / "assets" / "neutral_texts.txt").read_text(encoding="utf-8")
    texts = content.splitlines()
    if not paired:
        return texts, None
    negated = [f"It is not true that {text[0].lower()}{text[1:]}" for text in texts]
    return [*texts[:-1], *texts, *texts], [*texts[1:], *texts, *negated]


def neutral(
    classifier: Classifier, layers: Sequence[Block], paired: bool, show_progress: bool = False
) -> tuple[FeatureStatistics, ...]:
    """Statistics of layers over :func:`neutral_texts`, from the cache if they are there."""
    texts, pairs = neutral_texts(paired)
    try:
        statistics = cached(classifier, layers, texts, pairs, show_progress=show_progress)[0]
    except OSError:  # a cache that cannot be written
        with TemporaryDirectory() as folder:
            statistics = cached(classifier, layers, texts, pairs, folder, show_progress)[0]
    for feature_statistics in statistics:
        if isinstance(feature_statistics, GroupedStatistics):
            feature_statistics.neutral_pairs = paired
    return statistics


def source_of(texts: Sequence[str]) -> str:
    """The name that results have for the texts of statistics: "300 texts"."""
    return f"{len(texts):,} text{'s' * (len(texts) != 1)}"


def neutral_pairs(statistics: Sequence[FeatureStatistics] | None) -> bool | None:
    """Whether statistics are of neutral texts in pairs or alone; None for those of others."""
    kinds = {getattr(feature_statistics, "neutral_pairs", None) for feature_statistics in statistics or ()}
    return kinds.pop() if len(kinds) == 1 else None


def classifier_fingerprint(classifier: Classifier) -> str:
    """SHA-256 of all that a classifier's outputs depend on: model, tokenizer and padding token, in hexadecimal digits.

    It is computed anew by every call, because weights can change in memory at any time.
    """
    # The inputs that the model reads: a tokenizer that is loaded again may give more.
    names = " ".join(classifier.input_names)
    parts = [model_fingerprint(classifier.model), tokenizer_fingerprint(classifier.tokenizer), names]
    # The configuration's padding token, which passes replace: the tokenizer's has been counted.
    if classifier.ends_in_padding or classifier.pad_id != classifier.tokenizer.pad_token_id:
        parts.append(f"padding {classifier.pad_id} {classifier.ends_in_padding}")
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def change_mark(classifier: Classifier) -> tuple[Any, ...]:
    """A value, cheap to compute, that changes with weights, adapters, configuration and settings of the tokenizer."""
    model, tokenizer = classifier.model, classifier.tokenizer
    config = json.dumps(computed_entries(model.config.to_dict()), sort_keys=True, default=str)
    read = (len(tokenizer), str(tokenizer.special_tokens_map), getattr(tokenizer, "truncation_side", "right"))
    return (
        adapters_of(model),
        config,
        id(tokenizer),
        read,
        weights_mark(model),
    )
