"""Files of the statistics of one or several layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from captum_iba.attr.feature_statistics import FeatureStatistics


def check_model(statistics: Sequence[FeatureStatistics], fingerprint: str, name: str) -> None:
    """Raise ValueError if statistics were gathered with another model than the one of ``fingerprint`` and ``name``.

    Those of an unknown model pass.
    """
    for feature_statistics in statistics:
        if feature_statistics.model not in (None, fingerprint):
            raise ValueError(
                f"statistics: those of layer {feature_statistics.layer!r} were gathered with another model than {name} "
                "as it is now (weights, adapter, configuration, precision or tokenizer differ): their fingerprint is "
                f"{feature_statistics.model[:12]}, expected {fingerprint[:12]}. Gather them again with this model "
                "(estimate_statistics, or captum-iba explain --statistics-from TEXTS)."
            )


def save(path: str | os.PathLike[str], layers: Sequence[str], statistics: Sequence[FeatureStatistics]) -> None:
    """Write the statistics of one layer to the file ``path``, of several, by name, to files in the folder ``path``.

    An interruption never leaves files of two estimates: the new ones replace the old ones when all are written.
    ValueError for a folder with files of other layers, which would be of another estimate.
    """
    if len(layers) > 1:
        Path(path).mkdir(parents=True, exist_ok=True)
    files = _files(path, layers)
    if Path(path).is_dir() and (others := sorted({*Path(path).glob("*.safetensors")} - {*files})):
        raise ValueError(
            f"path is the folder {os.fspath(path)}, which holds {others[0].name} of other statistics, expected a new "
            "folder"
        )
    try:
        with TemporaryDirectory(prefix=".statistics-", dir=files[0].parent) as folder:
            new_files = [Path(folder) / file.name for file in files]
            for new_file, feature_statistics in zip(new_files, statistics, strict=True):
                feature_statistics.save(new_file)
            for file in files if len(files) > 1 else ():
                file.unlink(missing_ok=True)
            for new_file, file in zip(new_files, files, strict=True):
                os.replace(new_file, file)
    except OSError as error:  # which names the temporary folder
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise type(error)(error.errno, f"statistics: {os.fspath(path)} cannot be written: {reason}") from error


def load(
    path: str | os.PathLike[str], layers: Sequence[str], kind: type[FeatureStatistics]
) -> tuple[FeatureStatistics, ...]:
    """Read the files that :func:`save` wrote.

    FileNotFoundError if one is missing, ValueError for other files, those of another layer, or of different numbers of
    positions.
    """
    if len(layers) > 1 and Path(path).is_file():
        raise ValueError(
            f"statistics is {os.fspath(path)}, one file, expected a folder of one for each of {len(layers)} layers, "
            "as save_statistics writes it; or name the layer of the file"
        )
    files = _files(path, layers)
    if Path(path).is_dir() and not any(file.is_file() for file in files):
        raise FileNotFoundError(
            f"statistics is the folder {os.fspath(path)}, which holds no statistics of the layers ({files[0].name}), "
            "expected one that save_statistics has written"
        )
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"statistics is {file}, which does not exist, expected a file of statistics")
    statistics = tuple(kind.load(file, layer=layer) for file, layer in zip(files, layers, strict=True))
    if len(counts := {feature_statistics.count for feature_statistics in statistics}) > 1:
        raise ValueError(
            f"statistics is {os.fspath(path)!r}, whose files are of {min(counts)} to {max(counts)} positions, expected "
            "those of one estimate; gather them again"
        )
    return statistics


def _files(path: str | os.PathLike[str], layers: Sequence[str]) -> list[Path]:
    if len(layers) == 1 and not Path(path).is_dir():
        return [Path(path)]
    return [Path(path) / f"{quote(layer, safe='')}.safetensors" for layer in layers]
