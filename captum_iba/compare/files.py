"""Reading a data set: from a file, a folder, or the Hugging Face hub, through ``datasets``."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import logging
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What reads a file, by its ending; one of a compression may follow it.
_READERS = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, "": open}

# Which part of a data set is taken when none is named.
_SPLITS = ("test", "validation", "dev", "train")


def open_table(source: str, subset: str | None = None, split: str | None = None) -> tuple[Any, str | None]:
    """A data set as a table on disk.

    Args:
        source (str): A file (JSON lines, CSV, parquet, or a text a line in ``.txt``; also compressed: ``.gz``,
            ``.bz2``, ``.xz``), a folder that ``datasets`` understands, or a name on the hub.
        subset (str or None): The configuration of a set on the hub that has several. Default: None.
        split (str or None): Which part; None takes the test part, else the validation part, else the only one.
            Default: None.

    Returns:
        tuple: the ``datasets.Dataset``, and the name of the part (None for a file, which has none).

    Raises:
        FileNotFoundError: There is no such file or name.
        ValueError: A file of another kind, an empty one, one that cannot be read (says the line where it can), or
            no such part.
        ModuleNotFoundError: ``datasets`` is not installed.
    """
    path = Path(source)
    if path.is_file():
        if subset is not None or split is not None:
            raise ValueError(f"data: {source} is a file and has no parts to choose from; leave subset and split out.")
        return _open_file(path), None
    if not path.is_dir() and (source.startswith((".", "/", "~")) or _kind(path) is not None):
        raise FileNotFoundError(f"data: there is no file {source}.")
    return _open_named(source, subset, split)


def _kind(path: Path) -> tuple[str, str] | None:
    """What reads the file, and its compression."""
    endings = [ending.lower() for ending in path.suffixes]
    packed = endings.pop() if endings and endings[-1] in _OPENERS else ""
    reader = _READERS.get(endings[-1]) if endings else None
    return None if reader is None else (reader, packed)


def _open_file(path: Path) -> Any:
    kind = _kind(path)
    if kind is None:
        raise ValueError(f"data: {path} has none of the endings {', '.join(_READERS)} (or these with .gz, .bz2, .xz).")
    if path.stat().st_size == 0:
        raise ValueError(f"data: {path} is empty.")
    reader, packed = kind
    try:
        with _quiet() as datasets:
            options = _as_written(path, datasets) if reader == "csv" else {}
            table = datasets.load_dataset(reader, data_files=str(path), split="train", **options)
    except (KeyboardInterrupt, ModuleNotFoundError):
        raise
    except Exception as error:
        if _is_full(error):
            raise
        raise ValueError(f"data: {path} cannot be read: {_reason(error, path, reader, packed)}") from error
    if len(table) == 0:
        raise ValueError(f"data: {path} has no rows.")
    return table


def _as_written(path: Path, datasets: Any) -> dict[str, Any]:
    """That every field of a table of text is read as it stands there: "None", "NA" and "007" are texts."""
    import pandas

    delimiter = "\t" if ".tsv" in [ending.lower() for ending in path.suffixes] else ","
    names = pandas.read_csv(path, sep=delimiter, nrows=0).columns
    features = datasets.Features({str(name): datasets.Value("string") for name in names})
    # Without an index: of rows with a comma too many pandas takes the first field for one, and shifts the rest.
    return {"delimiter": delimiter, "features": features, "keep_default_na": False, "index_col": False}


def _open_named(source: str, subset: str | None, split: str | None) -> tuple[Any, str]:
    with _quiet() as datasets:
        parts = datasets.load_dataset(source, subset)
    if split is None:
        split = next((name for name in _SPLITS if name in parts), next(iter(parts)))
    if split not in parts:
        raise ValueError(f"data: {source} has no part {split!r}; there are {', '.join(parts)}.")
    return parts[split], split


@contextmanager
def _quiet() -> Iterator[Any]:
    """``datasets`` without its bars and its log, which says before the exception what the exception says."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'data: {error.name} is not installed; run: pip install "captum-iba[benchmark]"', name=error.name
        ) from error
    log = logging.getLogger("datasets")
    before, bars = log.level, datasets.are_progress_bars_disabled()
    log.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield datasets
    finally:
        log.setLevel(before)
        if not bars:
            datasets.enable_progress_bars()


def _is_full(error: BaseException | None) -> bool:
    """Whether the disk was full, anywhere in the chain: ``datasets`` writes the table to its cache."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception, path: Path, reader: str, packed: str) -> str:
    if reader == "json" and (line := _broken_line(path, packed)) is not None:
        return line
    if isinstance(error, StopIteration):
        return "it has no rows."
    cause = error.__cause__ or error
    return " ".join(str(cause).split()) or type(cause).__name__


def _broken_line(path: Path, packed: str) -> str | None:
    """Where a file of JSON lines is broken: ``datasets`` counts from the block that it was reading."""
    try:
        with _OPENERS[packed](path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    return f"line {number} is not JSON ({error})."
                if not isinstance(row, dict):
                    return f"line {number} is no object with named fields."
    except (OSError, EOFError, lzma.LZMAError) as error:
        return f"{type(error).__name__}: {error}"
    return None
