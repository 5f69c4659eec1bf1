"""The records of a finished comparison, read back and put side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from captum_iba.compare.configuration import read_configuration
from captum_iba.compare.records import TEXTS, Record, read_records, read_texts
from captum_iba.compare.runs import folder_name
from captum_iba.metrics import Degradation

FloatArray = npt.NDArray[np.float64]

_CURVES = [f"{order}_{value}" for order in ("morf", "lerf") for value in ("probability", "logit", "decision")]


@dataclass(frozen=True)
class Outcome:
    """One run over the examples that all methods have in common.

    Attributes:
        morf, lerf (Degradation): Most and least relevant first.
        seconds (array): Per example, (n,).
    """

    morf: Degradation
    lerf: Degradation
    seconds: FloatArray


@dataclass(frozen=True)
class Row:
    """A row of the tables.

    Attributes:
        name (str): The method with its settings.
        outcomes (tuple of Outcome): One a seed; empty where the method failed on every example.
        failed (int): On how many examples it failed.
        error (str or None): What went wrong with the first of them.
    """

    name: str
    outcomes: tuple[Outcome, ...]
    failed: int
    error: str | None


@dataclass(frozen=True)
class Results:
    """A comparison, read back.

    Attributes:
        folder (Path): Where it lies.
        configuration (dict): What it was computed with.
        texts (list of dict): Its examples, as :func:`captum_iba.compare.records.read_texts` gives them.
        rows (tuple of Row): Its methods, in the order in which they were named.
        common (list of int): The row numbers of the examples that no method failed on (one that failed on all aside);
            all numbers of tables and curves are over these.
        targets (dict): Of each of these the class that was explained.
        accuracy (float or None): Share of them that the model decides as the gold labels say.
    """

    folder: Path
    configuration: dict[str, Any]
    texts: list[dict[str, Any]]
    rows: tuple[Row, ...]
    common: list[int]
    targets: dict[int, int]
    accuracy: float | None


def read_results(folder: Path) -> Results:
    """Read what a comparison has left in its folder.

    Raises:
        ValueError: There is no comparison, it is not finished, or every method failed on every example.
    """
    configuration = read_configuration(folder)
    methods: dict[str, list[str]] = configuration["methods"]
    if not (folder / TEXTS).is_file():
        raise ValueError(f"{folder}: the comparison has not begun; run the command that made it once more.")
    texts = read_texts(folder / TEXTS)
    found = {run: _read_run(folder, run) for runs in methods.values() for run in runs}
    missing = sum(len(texts) - len(records) for records in found.values())
    if missing:
        raise ValueError(
            f"{folder}: the comparison is not finished, {missing} of {len(texts) * len(found)} records are missing; "
            "run the command that made it once more, and it goes on."
        )
    numbers = [text["example"] for text in texts]
    errors = {row: _errors(numbers, [found[run] for run in runs]) for row, runs in methods.items()}
    usable = [row for row in methods if len(errors[row]) < len(numbers)]
    common = [number for number in numbers if not any(number in errors[row] for row in usable)]
    if not usable or not common:
        first = next(error for failed in errors.values() for error in failed.values())
        raise ValueError(f"{folder}: no example is left that all methods could do; the first error was: {first}")
    rows = tuple(
        Row(
            row,
            tuple(_outcome([found[run][number] for number in common]) for run in runs) if row in usable else (),
            len(errors[row]),
            next(iter(errors[row].values()), None),
        )
        for row, runs in methods.items()
    )
    first_run = found[methods[usable[0]][0]]
    return Results(
        folder,
        configuration,
        texts,
        rows,
        common,
        {number: first_run[number].target or 0 for number in common},
        _accuracy([first_run[number] for number in common]),
    )


def read_scores(folder: Path, run: str, examples: Sequence[int]) -> dict[int, list[float]]:
    """The scores of a run for some examples, by row number; those that failed are not there."""
    wanted = set(examples)
    return {
        record.example: record.scores
        for path in _files(folder, run)
        for record in read_records(path, ["scores"])
        if record.example in wanted and record.scores is not None
    }


def _files(folder: Path, run: str) -> list[Path]:
    return sorted((folder / "records" / folder_name(run)).glob("*.parquet"))


def _read_run(folder: Path, run: str) -> dict[int, Record]:
    columns = ["share", *_CURVES, "seconds", "error"]
    return {record.example: record for path in _files(folder, run) for record in read_records(path, columns)}


def _errors(numbers: Sequence[int], runs: Sequence[dict[int, Record]]) -> dict[int, str]:
    """For each example that failed in any of the runs the first error."""
    found = {}
    for number in numbers:
        error = next((run[number].error for run in runs if run[number].error is not None), None)
        if error is not None:
            found[number] = error
    return found


def _outcome(records: Sequence[Record]) -> Outcome:
    def of(order: str) -> Degradation:
        values = {
            name: torch.tensor([getattr(record, f"{order}_{name}") for record in records])
            for name in ("probability", "logit", "decision")
        }
        return Degradation(**values, fraction=torch.tensor([record.share for record in records]))

    return Outcome(of("morf"), of("lerf"), np.array([record.seconds for record in records], dtype=np.float64))


def _accuracy(records: Sequence[Record]) -> float | None:
    decided = [record.morf_decision[0] == record.gold for record in records if record.morf_decision is not None]
    return None if any(record.gold is None for record in records) else sum(decided) / len(decided)
