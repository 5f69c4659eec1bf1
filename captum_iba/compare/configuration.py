"""What a comparison was computed with, kept beside its records, so that records of two settings never mix."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from captum_iba._files import write_text
from captum_iba.attr.settings import preset_values
from captum_iba.engines.versions import versions

FILE = "config.json"
_FORMAT = "captum_iba.compare/1"

# The same model or data elsewhere is no change (their fingerprints tell), and neither is another machine.
_MAY_DIFFER = ("model", "data", "environment")


def _environment() -> dict[str, Any]:
    return {"python": platform.python_version(), "system": platform.platform(), "threads": torch.get_num_threads()}


@dataclass(frozen=True)
class Configuration:
    """All that the records of a comparison depend on.

    Attributes:
        model (str): Folder or name of the classifier.
        model_fingerprint (str): SHA-256 of its weights, adapters, configuration and tokenizer
            (:func:`captum_iba.text.statistics.classifier_fingerprint`).
        labels (list of str): Its classes.
        max_length (int): Where texts are cut, in tokens.
        device, dtype (str): Where it runs and in which precision.
        data (str): File, folder or name of the data set.
        split (str or None): Which part of it.
        columns (dict): Which columns were read, by ``"text"``, ``"pair"`` and ``"label"``.
        rows (int): How many rows the part has.
        examples (int): How many of them are compared.
        data_fingerprint (str): SHA-256 of those rows.
        target (str): ``"gold"`` or ``"predicted"``: the class that all methods explain.
        methods (dict): The rows of the tables, each with its runs: a method with its settings, by seed.
        signed (list of str): The rows whose scores have a sign.
        counted_as_released (list of str): The rows that are counted as in the published code.
        seed (int): Of the sample, and of methods that name none.
        shares (list of float): Shares of the tokens that the degradation test removes.
        chunk_size (int): Examples that are scored together.
        batch_size (int): Rows of one pass of the model.
        statistics (str): Where the statistics of layers come from.
        presets (dict): What each preset of the bottleneck stands for.
        versions (dict): Of the libraries that compute.
        environment (dict): The machine; may differ when a comparison goes on.
    """

    model: str
    model_fingerprint: str
    labels: list[str]
    max_length: int
    device: str
    dtype: str
    data: str
    split: str | None
    columns: dict[str, str | None]
    rows: int
    examples: int
    data_fingerprint: str
    target: str
    methods: dict[str, list[str]]
    signed: list[str]
    counted_as_released: list[str]
    seed: int
    shares: list[float]
    chunk_size: int
    batch_size: int
    statistics: str
    presets: dict[str, Any] = field(default_factory=preset_values)
    versions: dict[str, str] = field(default_factory=versions)
    environment: dict[str, Any] = field(default_factory=_environment)


def claim_folder(folder: Path, configuration: Configuration) -> bool:
    """Make a folder that of a configuration, or find that it is already.

    Args:
        folder (Path): Where the comparison is kept; made if it is not there.
        configuration (Configuration): What is to be computed.

    Returns:
        bool: whether the folder held this configuration already, so that the comparison goes on.

    Raises:
        ValueError: The folder holds another configuration (names every difference), or other files.
    """
    if (folder / FILE).is_file():
        if different := differences(read_configuration(folder), asdict(configuration)):
            raise ValueError(
                f"out: {folder} holds a comparison with other settings: {'; '.join(different)}. "
                "Choose another folder, or the same settings."
            )
        return True
    if folder.exists() and (not folder.is_dir() or any(not path.name.startswith(".") for path in folder.iterdir())):
        raise ValueError(f"out: {folder} is not empty and holds no comparison; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    content = {"format": _FORMAT, **asdict(configuration)}
    write_text(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return False


def read_configuration(folder: Path) -> dict[str, Any]:
    """The configuration of a folder.

    Raises:
        ValueError: There is none, or of another format.
    """
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no comparison: there is no {FILE} in it.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a configuration: {error}.") from None
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise ValueError(f"{path} is not a configuration of this version: expected the format {_FORMAT!r}.")
    return content


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed from one configuration to another, as ``"name: was X, is Y"``."""
    return list(_differences("", before, now))


def _differences(prefix: str, before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*before, *now]):
        if not prefix and name in _MAY_DIFFER:
            continue
        was, is_now = before.get(name), now.get(name)
        if isinstance(was, dict) and isinstance(is_now, dict):
            yield from _differences(f"{prefix}{name}.", was, is_now)
        elif was != is_now:
            yield f"{prefix}{name}: was {_short(was)}, is {_short(is_now)}"


def _short(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ",".join(map(_short, value))
    return str(value) if not isinstance(value, float) else f"{value:.4g}"
