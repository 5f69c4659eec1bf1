"""Records in parquet files, each written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from captum_iba._files import write_bytes
from captum_iba.compare.data import Example
from captum_iba.compare.runs import folder_name
from captum_iba.text.encoding import EncodedText

TEXTS = "texts.parquet"
"""The file of the texts, in the folder of a comparison."""

_NUMBERS = pa.list_(pa.float64())
_CLASSES = pa.list_(pa.int32())
_INTEGERS = pa.list_(pa.int32())

_RECORD = pa.schema(
    [
        ("example", pa.int64()),
        ("run", pa.string()),
        ("target", pa.int32()),
        ("gold", pa.int32()),
        ("scores", _NUMBERS),
        ("share", _NUMBERS),
        ("morf_probability", _NUMBERS),
        ("morf_logit", _NUMBERS),
        ("morf_decision", _CLASSES),
        ("lerf_probability", _NUMBERS),
        ("lerf_logit", _NUMBERS),
        ("lerf_decision", _CLASSES),
        ("seconds", pa.float64()),
        ("error", pa.string()),
    ]
)

_TEXT = pa.schema(
    [
        ("example", pa.int64()),
        ("text", pa.string()),
        ("pair", pa.string()),
        ("gold", pa.int32()),
        ("tokens", pa.list_(pa.string())),
        ("starts", _INTEGERS),
        ("ends", _INTEGERS),
        ("sequences", _INTEGERS),
        ("words", _INTEGERS),
        ("cut", pa.int32()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class Record:
    """One example and one run: what the method said, and what became of the decision.

    Attributes:
        example (int): Row number of the example.
        run (str): The method with its settings and seed.
        target (int or None): The class that was explained.
        gold (int or None): The gold class.
        scores (list of float or None): One a token; 0 for special tokens.
        share (list of float or None): The share of the tokens removed at each step, 0 first.
        morf_probability, morf_logit, morf_decision (list or None): Of the target, and the most probable class, at
            each step, the tokens with the highest scores removed first.
        lerf_probability, lerf_logit, lerf_decision (list or None): The same, those with the lowest removed first.
        seconds (float or None): Time that the scores took.
        error (str or None): What went wrong; then all that depends on the method is None.
    """

    example: int
    run: str
    target: int | None
    gold: int | None
    scores: list[float] | None = None
    share: list[float] | None = None
    morf_probability: list[float] | None = None
    morf_logit: list[float] | None = None
    morf_decision: list[int] | None = None
    lerf_probability: list[float] | None = None
    lerf_logit: list[float] | None = None
    lerf_decision: list[int] | None = None
    seconds: float | None = None
    error: str | None = None


def chunk_path(folder: Path, run: str, chunk: int) -> Path:
    """Where the records of a run and chunk of examples lie."""
    return folder / "records" / folder_name(run) / f"{chunk:05d}.parquet"


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write records; an older file there is replaced, folders are made.

    Raises:
        OSError: The disk is full, or the folder cannot be written; nothing is lost of what is there.
    """
    _write_table(path, pa.Table.from_pylist([asdict(record) for record in records], _RECORD))


def read_records(path: Path, columns: Sequence[str] | None = None) -> list[Record]:
    """Read what :func:`write_records` wrote.

    Args:
        path (Path): The file.
        columns (sequence of str or None): What is wanted besides ``example``, ``run``, ``target`` and ``gold``; the
            rest is None then. Default: None, all of it.

    Raises:
        ValueError: Not such a file.
    """
    always = ["example", "run", "target", "gold"]
    wanted = None if columns is None else [*always, *columns]
    return [Record(**row) for row in _read_rows(path, _RECORD, wanted)]


def is_finished(path: Path, examples: Sequence[int]) -> bool:
    """Whether a file holds the records of just these examples; a damaged one does not."""
    if not path.is_file():
        return False
    try:
        return [record.example for record in read_records(path, [])] == list(examples)
    except ValueError:
        return False


def write_texts(path: Path, examples: Sequence[Example], encoded: Sequence[EncodedText | str]) -> None:
    """Write the texts with their tokens and words, so that they can be drawn without the model.

    Args:
        path (Path): The file.
        examples (sequence of Example): The texts.
        encoded (sequence of EncodedText or str): Their tokens; a string says why there are none.
    """
    rows = []
    for example, item in zip(examples, encoded, strict=True):
        row: dict[str, Any] = {
            "example": example.number,
            "text": _storable(example.text),
            "pair": None if example.pair is None else _storable(example.pair),
            "gold": example.gold,
        }
        if isinstance(item, str):
            row["error"] = item
        else:
            row |= {
                "tokens": [_storable(token) for token in item.tokens],
                "starts": [start for start, _ in item.spans],
                "ends": [end for _, end in item.spans],
                "sequences": list(item.sequences),
                "words": list(item.words),
                "cut": item.tokens_truncated,
            }
        rows.append(row)
    _write_table(path, pa.Table.from_pylist(rows, _TEXT))


def read_texts(path: Path) -> list[dict[str, Any]]:
    """The rows that :func:`write_texts` wrote, in their order; ValueError for another file."""
    return _read_rows(path, _TEXT)


def _storable(text: str) -> str:
    """Half of a surrogate pair, as broken JSON escapes give it, has no place in UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _write_table(path: Path, table: Any) -> None:
    # By way of memory, so that a full disk shows as what it is.
    content = io.BytesIO()
    parquet.write_table(table, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.getvalue())


def _read_rows(path: Path, schema: Any, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    content = path.read_bytes()
    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        names = file.schema_arrow.names
        if names != schema.names:
            raise ValueError(f"{path} has the columns {', '.join(names)}; expected {', '.join(schema.names)}.")
        rows: list[dict[str, Any]] = file.read(columns).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a parquet file that can be read: {error}") from error
    return rows
