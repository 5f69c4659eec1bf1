"""The examples that are compared: a dataset from a file or through ``datasets``, columns and labels, the sample."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from captum_iba.compare.table_files import READERS, kind_of_file, read_table
from captum_iba.text.arguments import find_target

# The names of the columns in well-known datasets: a text and its pair, or a text alone.
_TEXTS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("text", "text_pair"),
    ("text", None),
    ("sentence", None),
    ("question", None),
    ("review", None),
    ("content", None),
)
_SECOND = ("hypothesis", "sentence2", "question2", "text_pair")
_LABELS = ("label", "labels", "coarse_label", "gold_label", "class", "target", "sentiment", "category")

# Which split is taken when none is named, in this order.
_SPLITS = ("test", "validation", "dev", "train")


@dataclass(frozen=True)
class Columns:
    """Names of the columns with the texts, the second texts and the gold labels."""

    text: str
    pair: str | None
    label: str | None


@dataclass(frozen=True)
class Example:
    """A row of a dataset, numbered from 0, with the index of its gold class where the dataset has labels.

    ``error`` says what the row lacks: its text, or the second one of a pair.
    """

    number: int
    text: str
    pair: str | None
    gold: int | None
    error: str | None = None


@dataclass(frozen=True)
class Data:
    """The split of a dataset that is used, its number of rows, and the sample, in the order of the rows.

    ``others`` are rows outside the sample, without their labels, for the statistics of a layer. ``unread`` says why a
    column that has a name for labels is not read.
    """

    split: str | None
    columns: Columns
    rows: int
    examples: tuple[Example, ...]
    others: tuple[Example, ...]
    unread: str | None = None


def load_data(
    source: str,
    labels: Sequence[str] | None,
    *,
    subset: str | None = None,
    split: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    examples: int | None = None,
    others: int = 0,
    seed: int = 0,
    labels_required: bool = True,
) -> Data:
    """Read a dataset and take a random sample of it: the same for the same arguments, on every machine.

    ``labels`` are the model's, in the order of its outputs; None leaves gold labels unread. Columns that are not
    named are found by well-known names, a pair only if its text is looked for, too. Where labels are not required,
    rows without one have None, and a column with others than the model's is only read if it is named.
    """
    if examples is not None and examples < 1:
        raise ValueError(f"examples: expected at least 1, got {examples}.")
    table, split = open_table(source, subset, split)
    columns = find_columns(table.column_names, text_column, pair_column, label_column)
    for name in (columns.text, columns.pair):
        if name is not None and getattr(table.features[name], "dtype", None) not in ("string", "large_string"):
            raise ValueError(
                f"data: the column {name!r} holds {table.features[name] or 'lists or objects'}, expected texts."
            )
    order = list(range(len(table)))
    random.Random(seed).shuffle(order)
    count = len(order) if examples is None else min(examples, len(order))
    sample, rest = sorted(order[:count]), sorted(order[count : count + others])
    gold: dict[int, int | None] = {}
    unread = None
    if labels is not None and columns.label is not None:
        try:
            gold = _GoldLabels(table, columns.label, labels).of_rows(sample, labels_required)
        except ValueError as error:
            if labels_required or label_column is not None:
                raise
            columns, unread = replace(columns, label=None), str(error)
    return Data(
        split,
        columns,
        len(table),
        tuple(_example(table, columns, number, gold.get(number)) for number in sample),
        tuple(_example(table, columns, number, None) for number in rest),
        unread,
    )


def find_columns(
    names: Sequence[str], text: str | None = None, pair: str | None = None, label: str | None = None
) -> Columns:
    """Find the columns that are not named by well-known names; ValueError lists those there are."""
    listed = ", ".join(map(repr, names)) or "none"
    for what, name in (("text", text), ("pair", pair), ("label", label)):
        if name is not None and name not in names:
            raise ValueError(f"data: there is no column {name!r} for the {what}; the columns are {listed}.")
    spelled = {
        name.strip().casefold(): name for name in reversed(names)
    }  # of names that differ in case only, the first
    if text is None:
        known = (pair_names for pair_names in _TEXTS if all(name is None or name in spelled for name in pair_names))
        first = next(known, None)
        if first is None:
            raise ValueError(
                "data: no column has a name known for texts; name it by text_column (--text-column), and labels by "
                f"label_column (--label-column); the columns are {listed}."
            )
        text, second = spelled[first[0]], None if first[1] is None else spelled[first[1]]
        # Beside a first text of another name, too, these are second ones.
        pair = pair or second or next((spelled[name] for name in _SECOND if name in spelled), None)
    return Columns(text, pair, label or next((spelled[name] for name in _LABELS if name in spelled), None))


def fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 of the rows, as hexadecimal digits: other texts, labels or row numbers give another one."""
    digest = hashlib.sha256()
    for example in examples:
        row = [example.number, example.text, example.pair, example.gold]
        digest.update(json.dumps(row if example.error is None else [*row, example.error]).encode() + b"\n")
    return digest.hexdigest()


# What transformers calls the classes of a model without names.
_UNNAMED = re.compile(r"LABEL_\d+")


_WHOLE = re.compile(r"\s*(-?\d+)\.0+\s*")


class _GoldLabels:
    """From what the column of labels holds to the numbers of the model's classes.

    Where every label that the column holds, or every name that the dataset has for its own numbers, is a label of the
    model, these decide: the set may count its classes in another order, and number only some. Else its numbers are
    the model's, unless both have names for them that differ.
    """

    def __init__(self, table: Any, column: str, labels: Sequence[str]) -> None:
        self.table = table
        self.column = column
        self.labels = labels
        self.names = getattr(table.features[column], "names", None)
        # No list, which is no label.
        values = table.unique(column) if hasattr(table.features[column], "dtype") else []
        every = [_without_fraction(value, labels) for value in values if not _is_empty(value)]
        # Datasets mark a row without a label by -1.
        values = [value for value in every if value not in (-1, "-1")]
        self.by_name = all(_named(name, labels) is not None for name in self.names or map(str, values))
        numbers = [self._numbered(value) for value in values]
        highest = max((number for number in numbers if number is not None), default=len(labels))
        counts_from_minus_one = highest + 2 <= len(labels) or (0 not in numbers and highest + 1 == len(labels))
        if not self.by_name and self.names is None and len(values) < len(every) and counts_from_minus_one:
            raise ValueError(
                f"data: the column {column!r} has the labels -1 to {highest}, and the model the classes 0 to "
                f"{len(labels) - 1}: either -1 marks rows without a label, or it is the first class; leave the "
                "rows out, or count classes from 0."
            )
        # All of them, also outside the sample: labels 1 to N, say, look like those of a model that counts from 0,
        # as long as N is not among them.
        for value in values:
            if self._problem(value) is not None:
                self(value, [_without_fraction(other, labels) for other in table[column]].index(value))

    def of_rows(self, rows: Sequence[int], required: bool) -> dict[int, int | None]:
        """The class of each row; None where it has no label, which is an error if labels are required."""
        values = [_without_fraction(self.table[row][self.column], self.labels) for row in rows]
        lacking = [_is_empty(value) or (value in (-1, "-1") and self._problem(value) is not None) for value in values]
        if required and any(lacking):
            first = lacking.index(True)
            more = f", nor do {sum(lacking) - 1} others of {len(rows)} rows" if sum(lacking) > 1 else ""
            raise ValueError(
                f"data: {row_name(self.table, rows[first])} has no label in the column {self.column!r} (it holds "
                f"{values[first]!r}){more}; leave them out, or explain the predicted class (--target predicted)."
            )
        items = zip(rows, values, lacking, strict=True)
        return {row: None if without else self(value, row) for row, value, without in items}

    def __call__(self, value: Any, row: int) -> int:
        if (problem := self._problem(value)) is not None:
            raise ValueError(f"data: {row_name(self.table, row)} has the label {value!r} {problem}.")
        named = _named(_spelled(value, self.names), self.labels)
        index = self._numbered(value) if named is None else named
        assert index is not None
        return index

    def _problem(self, value: Any) -> str | None:
        """Why a label is no class of the model, or not for certain."""
        spelled = _spelled(value, self.names)
        named, number = _named(spelled, self.labels), self._numbered(value)
        classes = ", ".join(f"{i} ({label})" for i, label in enumerate(self.labels))
        if named is None and number is None:
            return f"in the column {self.column!r}, which the model does not have; its classes are {classes}"
        if named is None and spelled != str(value) and not all(map(_UNNAMED.fullmatch, self.labels)):
            return (
                f"({spelled}) in the column {self.column!r}, a name that the model does not have; its classes are "
                f"{classes}; expected their names, or numbers without names"
            )
        if self.by_name or named is None or number in (None, named):
            return None
        return (
            f"({spelled}) in the column {self.column!r}, which is class {named} by its name and {number} by its "
            f"number, and other labels there are no names of classes; expected only names of the model's classes, "
            f"{classes}, or only their numbers"
        )

    def _numbered(self, value: Any) -> int | None:
        if isinstance(value, str) and (digits := value.strip().removeprefix("+")).isdecimal():
            value = int(digits)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and 0 <= value < len(self.labels) else None


def _spelled(label: Any, names: Sequence[str] | None) -> str:
    """The name that the dataset has for a label, or the label as it is."""
    known = names is not None and isinstance(label, int) and 0 <= label < len(names)
    return str(names[label] if known and names is not None else label)


def _without_fraction(label: Any, labels: Sequence[str]) -> Any:
    """1.0, as pandas writes 1 where other rows have no label, as 1; unless a class is called so."""
    if isinstance(label, float) and label.is_integer() and str(label) not in labels:
        return int(label)
    if isinstance(label, str) and label not in labels and (whole := _WHOLE.fullmatch(label)):
        return whole[1]
    return label


def _is_empty(label: Any) -> bool:
    return label is None or label == "" or label != label  # NaN


class LabelNames(NamedTuple):
    """What a column of gold labels has in each row: the name of the model's class, "" for no label.

    ``problem`` says why a label is no class of the model, or not for certain, and is empty where all are classes. Rows
    with such a label have it as it is written. Where ``are_classes`` is false, no row's label is one for certain.
    """

    names: list[str]
    problem: str = ""
    are_classes: bool = True

    def of_rows(self, rows: Sequence[int]) -> LabelNames:
        """Those of some rows, each any number of times."""
        return self._replace(names=[self.names[row] for row in rows])


def names_of_labels(table: Any, column: str, labels: Sequence[str]) -> LabelNames:
    """The gold labels of a column by the names of the model's classes."""
    rows = range(len(table))
    try:
        gold = _GoldLabels(table, column, labels).of_rows(rows, required=False)
    except ValueError as error:
        names = getattr(table.features[column], "names", None)
        written = ["" if value is None else _spelled(value, names) for value in table[column]]
        # Numbers are no names: of 1 to N, say, all are other classes than they seem, and not only N.
        numbers = [_named(name, labels) for name in written]
        if any(map(_is_number, written)) or not any(number is not None for number in numbers):
            return LabelNames(written, str(error), are_classes=False)
        pairs = zip(written, numbers, strict=True)
        return LabelNames([name if number is None else labels[number] for name, number in pairs], str(error))
    return LabelNames(["" if (number := gold[row]) is None else labels[number] for row in rows])


def _named(name: str, labels: Sequence[str]) -> int | None:
    try:
        return find_target(name, labels)
    except ValueError:
        return None


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _example(table: Any, columns: Columns, number: int, gold: int | None) -> Example:
    row = table[number]
    lacking = missing_text(columns, row)
    # Recorded as an example that failed.
    error = None if lacking is None else f"ValueError: the row has {lacking}"
    text, pair = ("" if name is None or row[name] is None else row[name] for name in (columns.text, columns.pair))
    return Example(number, text, None if columns.pair is None else pair, gold, error)


def missing_text(columns: Columns, row: Mapping[str, Any]) -> str | None:
    """Which text a row lacks, in words; an empty text is none that it lacks."""
    for name in (columns.text, columns.pair):
        if name is not None and (row[name] is None or row[name] != row[name]):  # NaN is no text either
            return f"no text in the column {name!r}"
    return None


def open_table(source: str, subset: str | None = None, split: str | None = None) -> tuple[Any, str | None]:
    """Open a dataset as a table, with the name of its split; None for a file, which has none.

    ``source`` is a file (JSON lines, CSV, parquet, or one text per line in ``.txt``; also compressed), a folder that
    ``datasets`` understands, or a name on the hub; without ``split`` it is test, else validation, else the only one.
    Files but parquet are read without ``datasets``.
    """
    path = Path(source)
    if path.is_file():
        if subset is not None or split is not None:
            raise ValueError(f"data: {source} is a file and has no parts to choose from; leave subset and split out.")
        return _open_file(path), None
    if not path.is_dir() and (source.startswith((".", "/", "~")) or kind_of_file(path) is not None):
        raise FileNotFoundError(f"data: there is no file {source}.")
    return _open_named(source, subset, split)


def row_name(table: Any, number: int) -> str:
    """Where a row, numbered from 0, is found: its line in the file, or its number from 1."""
    lines = getattr(table, "lines", None)
    return f"row {number + 1}" if lines is None else f"line {lines[number]}"


def _open_file(path: Path) -> Any:
    kind = kind_of_file(path)
    if kind is None:
        raise ValueError(f"data: {path} has none of the endings {', '.join(READERS)} (or these with .gz, .bz2, .xz).")
    if path.stat().st_size == 0:
        raise ValueError(f"data: {path} is empty.")
    try:
        table = _open_parquet(path) if kind[0] == "parquet" else read_table(path, *kind)
    except (KeyboardInterrupt, ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:
        if _is_full(error):
            raise
        cause = error.__cause__ or error if kind[0] == "parquet" else error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise ValueError(f"data: {path} cannot be read: {reason}") from error
    if len(table) == 0:
        raise ValueError(f"data: {path} has no rows.")
    return table


def _open_parquet(path: Path) -> Any:
    with _quiet() as datasets:
        cache = _cache_of([path], datasets)
        return datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=cache)


def _cache_of(paths: Sequence[Path], datasets: Any) -> str:
    """A cache for files of this content: ``datasets`` goes by the time of a file, which a copy may keep."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return str(Path(datasets.config.HF_DATASETS_CACHE) / "captum_iba" / digest.hexdigest()[:32])


def _open_named(source: str, subset: str | None, split: str | None) -> tuple[Any, str]:
    with _quiet() as datasets:
        folder = Path(source)
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        parts = datasets.load_dataset(source, subset, cache_dir=_cache_of(files, datasets) if files else None)
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
            f'data: {error.name} is not installed; run: pip install "captum-iba[compare]"', name=error.name
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
