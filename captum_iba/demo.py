"""The small classifier of film reviews that comes with the package, and its statistics."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from captum_iba.attr.feature_statistics import FeatureStatistics

__all__ = ["demo_texts", "embedded_model_path", "embedded_statistics"]


def _assets() -> Path:
    # A folder of its own on disk is what transformers can load; a package in a zip file has none.
    return Path(str(files("captum_iba") / "assets"))


def embedded_model_path() -> Path:
    """Where the embedded model lies: a folder that ``from_pretrained`` takes.

    A 12-layer BERT, 128 wide, that tells negative from positive film reviews; its model card is the README.md
    in that folder.

    Raises:
        FileNotFoundError: The package was installed without it.
    """
    path = _assets() / "imdb_bert"
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"the embedded model is missing: {path} has no config.json; reinstall captum-iba.")
    return path


def embedded_statistics(layer: int) -> FeatureStatistics:
    """The statistics of a block of the embedded model over film reviews.

    Args:
        layer (int): Block from 1 to 12.

    Raises:
        FileNotFoundError: There are none for this block.
    """
    path = embedded_model_path() / "statistics" / f"layer-{layer:02d}.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"the embedded model has no statistics of layer {layer}: {path} is missing.")
    from captum_iba.text.statistics import GroupedStatistics  # which needs transformers

    return GroupedStatistics.load(path)


def demo_texts() -> list[str]:
    """The few short film reviews, written for this package, that the demo explains."""
    texts: list[str] = json.loads((_assets() / "demo_texts.json").read_text(encoding="utf-8"))["texts"]
    return texts
