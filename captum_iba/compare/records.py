"""Records in parquet files, each written atomically; and those of a finished comparison read back, side by side."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from captum_iba._files import write_bytes
from captum_iba.compare.config import folder_name, read_provenance
from captum_iba.compare.data import Example
from captum_iba.methods.task import FloatArray
from captum_iba.metrics import NINTHS, Degradation
from captum_iba.text.encoding import EncodedText

TEXTS = "texts.parquet"
"""The file of the texts, in the folder of a comparison."""
RECORDS = "records"
"""The folder of the records, in that folder."""

_NUMBERS = pa.list_(pa.float64())
_INTEGERS = pa.list_(pa.int32())

_RECORD = pa.schema(
    [
        ("example", pa.int64()),
        ("run", pa.string()),
        ("target", pa.int32()),
        ("gold", pa.int32()),
        ("scores", _NUMBERS),
        ("fraction", _NUMBERS),
        ("morf_probability", _NUMBERS),
        ("morf_logit", _NUMBERS),
        ("morf_decision", _INTEGERS),
        ("lerf_probability", _NUMBERS),
        ("lerf_logit", _NUMBERS),
        ("lerf_decision", _INTEGERS),
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
        ("truncated", pa.int32()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class Record:
    """The kept row of one example and one run: the scores of the method, and what became of the decision.

    ``scores`` has a number per token, 0 for special tokens; ``fraction``, probability and logit of the target, and the
    most probable class (decision) have one per step of the degradation test, in which the tokens with the highest
    (``morf``) or lowest (``lerf``) scores are removed first. With an ``error``, all that depends on the method is None.
    """

    example: int
    run: str
    target: int | None
    gold: int | None
    scores: list[float] | None = None
    fraction: list[float] | None = None
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
    return folder / RECORDS / folder_name(run) / f"{chunk:05d}.parquet"


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write records; an older file there is replaced, folders are made.

    OSError if the disk is full, or the folder cannot be written; nothing is lost of what is there.
    """
    _write_table(path, pa.Table.from_pylist([asdict(record) for record in records], _RECORD))


def read_records(path: Path, columns: Sequence[str] | None = None) -> list[Record]:
    """Read what :func:`write_records` wrote; ValueError for another file.

    ``columns`` are read besides ``example``, ``run``, ``target`` and ``gold``, and the rest is None then.
    """
    names = None if columns is None else ["example", "run", "target", "gold", *columns]
    return [Record(**row) for row in _read_rows(path, _RECORD, names)]


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

    In place of its tokens, a string says why a text has none.
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
                "truncated": item.tokens_truncated,
            }
        rows.append(row)
    _write_table(path, pa.Table.from_pylist(rows, _TEXT))


def read_texts(path: Path) -> list[dict[str, Any]]:
    """The rows that :func:`write_texts` wrote, in their order; ValueError for another file."""
    return _read_rows(path, _TEXT)


@dataclass(frozen=True)
class Outcome:
    """Degradation of one run over the examples that all methods have in common, and seconds per example, (n,)."""

    morf: Degradation
    lerf: Degradation
    seconds: FloatArray


@dataclass(frozen=True)
class Row:
    """A row of the tables, with an outcome per seed; none where the method failed on every example.

    ``about`` is what the provenance says of it (``method``, ``counting``, ``runs``, whether it is ``signed`` or
    ``word_level``); ``error`` is what went wrong with the first of the examples that failed. ``same_leading`` is how
    often two seeds give the highest score to the same token, special ones aside, a fraction of the examples;
    None for a single seed.
    """

    name: str
    about: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    failed: int
    error: str | None
    same_leading: float | None = None


@dataclass(frozen=True)
class Results:
    """A comparison, read back.

    Attributes:
        folder (Path): Where it lies.
        provenance (dict): All that its records depend on.
        texts (list of dict): Its examples, as :func:`read_texts` gives them.
        rows (tuple of Row): Its methods, in the order of the configuration.
        common (list of int): Row numbers of the examples that no method failed on (one that failed on all aside);
            all numbers of tables and curves are over these.
        targets (dict): For each of these the class that was explained.
        accuracy (float or None): Fraction of them that the model decides as the gold labels say.
        left_out (tuple of str): Methods of earlier calls that were not finished, and which the last did not ask for.
    """

    folder: Path
    provenance: dict[str, Any]
    texts: list[dict[str, Any]]
    rows: tuple[Row, ...]
    common: list[int]
    targets: dict[int, int]
    accuracy: float | None
    left_out: tuple[str, ...] = ()


def read_results(folder: Path) -> Results:
    """Read what a comparison has left in its folder.

    Raises:
        ValueError: There is no comparison, it is not finished, or every method failed on every example.
    """
    provenance = read_provenance(folder)
    every: dict[str, dict[str, Any]] = provenance["methods"]
    if not (folder / TEXTS).is_file():
        raise ValueError(f"{folder}: the comparison has not begun; run the command that made it once more.")
    texts = read_texts(folder / TEXTS)
    asked = provenance.get("asked", every)
    all_records = {
        run: _read_run(folder, run, damaged_is_missing=row not in asked)
        for row, about in every.items()
        for run in about["runs"]
    }
    finished = {row: all(len(all_records[run]) == len(texts) for run in every[row]["runs"]) for row in every}
    methods = {row: every[row] for row in every if finished[row] or row in asked}
    records = {run: all_records[run] for about in methods.values() for run in about["runs"]}
    missing = sum(len(texts) - len(run_records) for run_records in records.values())
    if missing:
        raise ValueError(
            f"{folder}: the comparison is not finished, {missing} of {len(texts) * len(records)} records are missing; "
            "run the command that made it once more, and it goes on."
        )
    numbers = [text["example"] for text in texts]
    errors = {row: _errors(numbers, [records[run] for run in about["runs"]]) for row, about in methods.items()}
    usable = [row for row in methods if len(errors[row]) < len(numbers)]
    common = [number for number in numbers if not any(number in errors[row] for row in usable)]
    if not usable or not common:
        first = next(error for failed in errors.values() for error in failed.values())
        raise ValueError(f"{folder}: no example is left that all methods could do; the first error was: {first}")
    words = {text["example"]: text["words"] for text in texts if text["example"] in set(common)}
    rows = tuple(
        Row(
            row,
            about,
            tuple(_outcome([records[run][i] for i in common]) for run in about["runs"]) if row in usable else (),
            len(errors[row]),
            next(iter(errors[row].values()), None),
            _same_leading(folder, about["runs"], words) if row in usable else None,
        )
        for row, about in methods.items()
    )
    first_run = [records[methods[usable[0]]["runs"][0]][number] for number in common]
    targets = {record.example: record.target or 0 for record in first_run}
    left_out = tuple(row for row in every if row not in methods)
    return Results(folder, provenance, texts, rows, common, targets, _accuracy(first_run), left_out)


def read_scores(folder: Path, run: str, examples: Sequence[int]) -> dict[int, list[float]]:
    """The scores of a run for some examples, by row number; those that failed are not there."""
    numbers = set(examples)
    return {
        record.example: record.scores
        for path in _record_files(folder, run)
        for record in read_records(path, ["scores"])
        if record.example in numbers and record.scores is not None
    }


def _same_leading(folder: Path, runs: Sequence[str], words: Mapping[int, Sequence[int | None]]) -> float | None:
    """How often two runs lead with the same token, of those with a word: special tokens are never removed."""
    leading = []
    for run in runs if len(runs) > 1 else ():
        scores = read_scores(folder, run, list(words))
        ranked = [np.where([word is None for word in words[number]], -np.inf, scores[number]) for number in words]
        leading.append([int(np.argmax(values)) for values in ranked])
    return float(np.mean([np.equal(*pair) for pair in combinations(leading, 2)])) if leading else None


def _record_files(folder: Path, run: str) -> list[Path]:
    return sorted((folder / RECORDS / folder_name(run)).glob("*.parquet"))


def _read_run(folder: Path, run: str, damaged_is_missing: bool = False) -> dict[int, Record]:
    columns = [name for name in _RECORD.names if name.startswith(("morf_", "lerf_"))]
    columns += ["fraction", "seconds", "error"]
    records: dict[int, Record] = {}
    for path in _record_files(folder, run):
        try:
            records |= {record.example: record for record in read_records(path, columns)}
        except ValueError:
            if not damaged_is_missing:
                raise
    return records


def _errors(numbers: Sequence[int], runs: Sequence[dict[int, Record]]) -> dict[int, str]:
    """For each example that failed in any of the runs the first error."""
    first = {number: next((run[number].error for run in runs if run[number].error), None) for number in numbers}
    return {number: error for number, error in first.items() if error is not None}


def _outcome(records: Sequence[Record]) -> Outcome:
    def degradation(order: str) -> Degradation:
        values = {
            name: torch.tensor([getattr(record, f"{order}_{name}") for record in records])
            for name in ("probability", "logit", "decision")
        }
        fraction = torch.tensor([record.fraction for record in records])
        requested = torch.tensor([0.0, *NINTHS]).repeat(len(records), 1)  # the steps of every comparison
        return Degradation(**values, fraction=fraction, requested=requested)

    seconds = np.array([record.seconds for record in records], dtype=np.float64)
    return Outcome(degradation("morf"), degradation("lerf"), seconds)


def _accuracy(records: Sequence[Record]) -> float | None:
    correct = [record.morf_decision[0] == record.gold for record in records if record.morf_decision is not None]
    return None if any(record.gold is None for record in records) else sum(correct) / len(correct)


def _storable(text: str) -> str:
    """Half of a surrogate pair, as broken JSON escapes give it, has no place in UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _write_table(path: Path, table: Any) -> None:
    # By way of memory, so that a full disk shows as what it is.
    content = io.BytesIO()
    parquet.write_table(table, content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.getvalue())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror or error}; what was finished before is kept") from error


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
