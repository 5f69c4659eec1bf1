"""CSV, JSON lines and plain text as tables of columns, by the standard library: every field as it is written."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What reads a file, by its ending; one of a compression may follow it.
READERS = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, "": open}

_DTYPES = {"str": "string", "int": "int64", "float": "float64", "bool": "bool"}


@dataclass(frozen=True)
class ColumnType:
    """What a column holds, as a feature of ``datasets`` says it."""

    dtype: str

    def __str__(self) -> str:
        return self.dtype


class FileTable:
    """A file as a table, with the part of the interface of ``datasets.Dataset`` that a comparison uses.

    ``lines`` are the lines of the file on which the rows begin, from 1; None where rows have no lines of their own.
    """

    def __init__(self, columns: dict[str, list[Any]], lines: Sequence[int] | None) -> None:
        self.column_names = list(columns)
        self.features = {name: _column_type(values) for name, values in columns.items()}
        self.lines = lines
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, key: int | str) -> Any:
        """A row as a dictionary, or a column as a list."""
        if isinstance(key, str):
            return self._columns[key]
        return {name: values[key] for name, values in self._columns.items()}

    def unique(self, name: str) -> list[Any]:
        """The values of a column, each once; 1 and True are two."""
        return list({(type(value), value): value for value in self._columns[name]}.values())


def kind_of_file(path: Path) -> tuple[str, str] | None:
    """What reads a file, by its ending, and its compression."""
    endings = [ending.lower() for ending in path.suffixes]
    packed = endings.pop() if endings and endings[-1] in OPENERS else ""
    reader = READERS.get(endings[-1]) if endings else None
    return None if reader is None else (reader, packed)


def read_table(path: Path, reader: str, packed: str) -> FileTable:
    """Read a file of CSV, JSON lines (or one JSON list of objects), or a text on each line; ValueError names the line.

    Between tabs a quotation mark is a character like others; between commas it quotes.
    """
    with OPENERS[packed](path, "rb") as file:
        content = decoded(file.read())
    if reader == "csv":
        # A carriage return alone ends lines of old files only. Elsewhere it is part of a field, in quotation marks.
        lines = io.StringIO(content, newline="\n" if "\n" in content else "")
        return _read_csv(lines, ".tsv" in [ending.lower() for ending in path.suffixes])
    if reader == "text":
        texts = split_lines(content)
        return FileTable({"text": texts}, range(1, len(texts) + 1))
    return _read_json(split_lines(content))


def decoded(content: bytes) -> str:
    """The text of UTF-8 bytes, without a byte order mark; ValueError says what is wrong with others."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError("it is UTF-16, as of a spreadsheet; expected UTF-8")
    halves = content[:64:2], content[1:64:2]
    if any(half.count(0) > len(half) / 2 for half in halves):
        raise ValueError("it has zero bytes, as UTF-16 without its mark has; expected UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if 0 in content[:1024]:
            raise ValueError("it has zero bytes, and is no text; expected UTF-8") from error
        how = "iconv -f LATIN1 -t UTF-8 converts a file in Latin-1"
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start}); {how}") from error


def split_lines(content: str) -> list[str]:
    """The lines of a text; ``str.splitlines`` would also split at form feeds and the like.

    A carriage return alone ends a line only where nothing else does.
    """
    end = "\n" if "\n" in content else "\r"
    return content.replace("\r\n", "\n").removesuffix(end).split(end) if content else []


def _read_csv(file: Iterable[str], tabs: bool) -> FileTable:
    """Raises ValueError for a row with more fields than names, and for open or misplaced quotation marks.

    Between tabs, where quotation marks hold no line together, a row with fewer fields is an error, too.
    """
    layout: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    limit = csv.field_size_limit(2**31 - 1)
    lines: list[int] = []
    rows: list[list[str | None]] = []
    names: list[str] | None = None
    reader = csv.reader(file, **layout)
    try:
        before = 0
        for fields in reader:
            line, before = before + 1, reader.line_num
            if not fields or (len(fields) == 1 and fields[0].isspace()):
                continue
            if names is None:
                names = _distinct(fields)
                if not tabs and len(names) == 1 and (other := re.search(r"[;\t|]", names[0])):
                    raise ValueError(
                        f"line {line} has {other[0]!r} between the names, expected commas (pandas: to_csv without sep)"
                    )
                continue
            # A blank field too many, of a comma at the end, is no loss.
            if any(field.strip() for field in fields[len(names) :]) or (tabs and len(fields) < len(names)):
                hint = "" if tabs else "; a field with a comma in it needs quotation marks"
                raise ValueError(f"line {line} has {len(fields)} fields, expected {len(names)}, as the first{hint}")
            rows.append([*fields[: len(names)], *[None] * (len(names) - len(fields))])
            lines.append(line)
    except csv.Error as error:
        raise ValueError(
            f"line {before + 1} is not CSV ({error}); a line break in a field needs quotation marks, and a quotation "
            f"mark in quotes is doubled{'; between the names there are commas' if names is None else ''}"
        ) from error
    finally:
        csv.field_size_limit(limit)
    columns = zip(*rows, strict=True) if rows else ([] for _ in names or ())
    return FileTable({name: list(values) for name, values in zip(names or (), columns, strict=True)}, lines)


def _distinct(names: Sequence[str]) -> list[str]:
    """The names of columns; one that is there again gets a number, as in pandas."""
    distinct: list[str] = []
    for position, name in enumerate(names):
        name = name or f"Unnamed: {position}"
        numbered = (name, *(f"{name}.{number}" for number in range(1, len(names) + 1)))
        distinct.append(next(candidate for candidate in numbered if candidate not in distinct))
    return distinct


def _read_json(content: Sequence[str]) -> FileTable:
    text = "\n".join(content)
    try:
        whole = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError:
        whole = None  # the lines say where it is broken
    lines: list[int] | None = None
    if isinstance(whole, list):
        rows = whole
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise ValueError(f"row {number} is no object with named fields")
    else:
        numbered = list(_json_lines(content))
        rows, lines = [row for _, row in numbered], [number for number, _ in numbered]
    names = dict.fromkeys(name for row in rows for name in row)
    return FileTable({name: [row.get(name) for row in rows] for name in names}, lines)


def _json_lines(content: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(content, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no object with named fields")
        yield number, row


def _column_type(values: Sequence[Any]) -> ColumnType | None:
    """The type of a column of plain values; None for lists and objects, which have no ``dtype``."""
    names = {type(value).__name__ for value in values if value is not None}
    if not all(isinstance(value, Hashable) for value in values):
        return None
    return ColumnType(" and ".join(sorted(_DTYPES[name] for name in names)) or "nothing")
