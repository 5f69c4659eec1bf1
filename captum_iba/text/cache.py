"""Statistics of a layer, estimated once and found again."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captum_iba.text import layer_statistics
from captum_iba.text.identity import add_part

if TYPE_CHECKING:
    from captum_iba.text.explainer import TextExplainer


def cache_folder() -> Path:
    """Where statistics are kept: ``CAPTUM_IBA_CACHE``, or a folder in the user's cache."""
    if own := os.environ.get("CAPTUM_IBA_CACHE"):
        return Path(own)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "captum_iba"


def cached_statistics(
    explainer: TextExplainer,
    texts: Sequence[str],
    folder: str | os.PathLike[str] | None = None,
    show_progress: bool = False,
    pairs: Sequence[str] | None = None,
) -> tuple[Path, bool]:
    """Give an explainer the statistics of its layers over texts, from the cache if they are there.

    They are found again for the same model (weights, adapters, precision), tokenizer, layers, greatest length and
    texts, wherever the model came from.

    Args:
        explainer (TextExplainer): What gets them.
        texts (sequence of str): The texts.
        folder (path or None): The cache; None takes :func:`cache_folder`. Default: None.
        show_progress (bool): A progress bar while they are estimated. Default: False.
        pairs (sequence of str or None): The second text of each. Default: None.

    Returns:
        tuple of Path and bool: the file (of several layers a folder of files), and whether it was there already.
    """
    digest = hashlib.sha256()
    fingerprint = explainer.fingerprint()
    for part in (
        fingerprint,
        *(block.key for block in explainer.layers),
        str(explainer.classifier.max_length),
        *texts,
        *(() if pairs is None else ("and pairs", *pairs)),
    ):
        add_part(digest, part)
    suffix = ".safetensors" if len(explainer.layers) == 1 else ""
    path = Path(cache_folder() if folder is None else folder) / f"statistics-{digest.hexdigest()[:24]}{suffix}"
    try:
        explainer.use_statistics(layer_statistics.load(path, explainer.layers), fingerprint)
    except (FileNotFoundError, ValueError):
        pass  # not there, not all there, or damaged: made anew below
    else:
        return path, True
    explainer.estimate_statistics(texts, pairs, show_progress=show_progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    explainer.save_statistics(path)
    return path, False
