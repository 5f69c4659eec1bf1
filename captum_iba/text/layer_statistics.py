"""Statistics of a classifier's layers over texts: gathered, and kept in files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.layers import Block


def estimate(
    classifier: Classifier,
    layers: Sequence[Block],
    encoded: Sequence[EncodedText],
    batch_size: int,
    show_progress: bool,
) -> tuple[FeatureStatistics, ...]:
    """Gather the statistics of layers, all in the same passes; padding does not count.

    Args:
        classifier (Classifier): The model and its tokenizer.
        layers (sequence of Block): Its layers.
        encoded (sequence of EncodedText): The texts.
        batch_size (int): Texts a pass.
        show_progress (bool): A progress bar.

    Returns:
        tuple of FeatureStatistics: one a layer.
    """
    batches = [
        classifier.tensors([encoded[i] for i in batch], whole_windows=True)
        for batch in classifier.batches([len(item) for item in encoded], batch_size)
    ]
    with classifier.padding_known():
        statistics: list[FeatureStatistics] = FeatureStatistics.estimate(
            classifier.model,
            [block.module for block in layers],
            batches,
            mask_func=itemgetter("attention_mask") if "attention_mask" in batches[0] else None,
            layer_call=[block.call for block in layers],
            show_progress=show_progress,
            feature_dim=-1,
        )
    for one, block in zip(statistics, layers, strict=True):
        one.layer = block.key  # with the call, where one module runs several times
    return tuple(statistics)


def check_model(statistics: Sequence[FeatureStatistics], fingerprint: str, name: str) -> None:
    """Raise ValueError where statistics were gathered with another model; those of an unknown one pass.

    Args:
        statistics (sequence of FeatureStatistics): One per layer.
        fingerprint (str): Of the model that they are meant for.
        name (str): Its name, for the message.
    """
    for one in statistics:
        if one.model not in (None, fingerprint):
            raise ValueError(
                f"statistics: those of layer {one.layer!r} were gathered with another model than {name} as it is now "
                "(weights, adapter, configuration, precision or tokenizer differ): their fingerprint is "
                f"{one.model[:12]}, expected {fingerprint[:12]}. Gather them again with this model "
                "(estimate_statistics, or captum-iba explain --statistics-from TEXTS)."
            )


def save(path: str | os.PathLike[str], layers: Sequence[Block], statistics: Sequence[FeatureStatistics]) -> None:
    """Write those of one layer to the file ``path``, of several to files in the folder ``path``."""
    if len(layers) > 1:
        Path(path).mkdir(parents=True, exist_ok=True)
    for file, one in zip(_files(path, layers), statistics, strict=True):
        one.save(file)


def load(path: str | os.PathLike[str], layers: Sequence[Block]) -> tuple[FeatureStatistics, ...]:
    """Read what :func:`save` wrote.

    Raises:
        FileNotFoundError: There is no such file, or a layer's is not in the folder.
        ValueError: Not a file of statistics, or of another layer.
    """
    files = _files(path, layers)
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"statistics: there is no file {file}.")
    return tuple(FeatureStatistics.load(file, layer=block.key) for file, block in zip(files, layers, strict=True))


def _files(path: str | os.PathLike[str], layers: Sequence[Block]) -> list[Path]:
    if len(layers) == 1 and not Path(path).is_dir():
        return [Path(path)]
    return [Path(path) / f"{quote(block.key, safe='')}.safetensors" for block in layers]
