"""Texts from files, for the commands about classifiers; plain text also for the others."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from captum_iba.cli.common import note

if TYPE_CHECKING:
    from captum_iba.compare.data import LabelNames

TextColumnOption = Annotated[
    str | None,
    typer.Option(
        help="Column with the texts, of a table.",
        show_default="text, sentence, sentence1, premise, question, question1, review or content",
    ),
]
PairColumnOption = Annotated[
    str | None,
    typer.Option(
        help="Column with the second texts, of a table.",
        show_default="hypothesis, sentence2, question2, text_pair or the like",
    ),
]
LabelColumnOption = Annotated[
    str | None,
    typer.Option(
        help="Column with the gold labels, of a table.",
        show_default="label, class, target, sentiment, category or the like",
    ),
]

_NAMED = 5  # rows that are left out
_TABLE = re.compile(r"\.(jsonl?|ndjson|[ct]sv|parquet)(\.(gz|bz2|xz))?$", re.IGNORECASE)


def has_columns(source: str) -> bool:
    """Whether a file's ending is that of a table, not of plain lines."""
    return _TABLE.search(source) is not None


class FileOfTexts(NamedTuple):
    """Texts, and of a table the second texts, gold labels and ids, as far as there are such columns.

    ``labels`` are as they are written; ``names_of_labels`` takes the names of a model's classes, and returns the
    labels by their names (:class:`captum_iba.compare.data.LabelNames`).
    ``columns`` says what is read of which column, and ``unread`` are the names of the others. ``blank`` are the rows
    without a text, which are left out.
    """

    first: list[str]
    second: list[str] | None = None
    labels: list[str] | None = None
    ids: list[str] | None = None
    names_of_labels: Callable[[Sequence[str]], LabelNames] | None = None
    unread: Sequence[str] = ()
    columns: str = ""
    blank: Sequence[str] = ()

    def of_rows(self, rows: Sequence[int]) -> FileOfTexts:
        """The texts, labels and ids of some rows, each any number of times."""

        def picked(column: list[str] | None) -> list[str] | None:
            return None if column is None else [column[row] for row in rows]

        first = [self.first[row] for row in rows]
        second, labels, ids = map(picked, (self.second, self.labels, self.ids))
        return self._replace(first=first, second=second, labels=labels, ids=ids, names_of_labels=None)


@contextmanager
def naming_data(option: str) -> Iterator[None]:
    """Errors of the file that ``compare`` reads as ``--data`` name another option."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        said = str(error)
        if not said.startswith("data: "):
            raise
        raise type(error)(f"{option}: {said.removeprefix('data: ')}") from error


def read_columns(
    source: str,
    text_column: str | None,
    pair_column: str | None,
    label_column: str | None = None,
    option: str = "--file",
) -> FileOfTexts:
    """The texts of a file: columns of a table, or the lines; those that are not blank. ValueError names the line."""
    if not has_columns(source):
        if any(column is not None for column in (text_column, pair_column, label_column)):
            raise ValueError(f"{source} is read line by line and has no columns; expected CSV, JSON lines or parquet.")
        return _lines_of(source)
    from captum_iba.compare.data import find_columns, missing_text, names_of_labels, open_table, row_name
    from captum_iba.text.arguments import blank_text, broken_text

    with naming_data(option):
        table, _ = open_table(source)
        columns = find_columns(table.column_names, text_column, pair_column, label_column)
    names = [name for name in (columns.text, columns.pair) if name is not None]
    rows = list(zip(*(table[name] for name in names), strict=True))
    blank, problems = [], []
    for number, row in enumerate(rows):
        if (lacking := missing_text(columns, dict(zip(names, row, strict=True)))) is not None:
            problems.append((row_name(table, number), f"has {lacking}; leave the row out, or write an empty text"))
        elif problem := next(filter(None, map(_no_text, row)), None):
            problems.append((row_name(table, number), problem))
        elif not any(str(value).strip() for value in row):
            blank.append(number)
        elif problem := next(filter(None, map(broken_text, map(str, row))), None):
            problems.append((row_name(table, number), f"has a text that {problem}; leave the row out"))
    refuse_rows(source, problems)
    first, pairs = (None if name is None else list(map(str, table[name])) for name in (columns.text, columns.pair))
    if first and len(blank) == len(first):
        raise ValueError(f"{source}: every text in {columns.text} {blank_text('')}, expected at least one text.")
    identifier = next((name for name in table.column_names if name.casefold() == "id" and name not in names), None)
    labels, ids = (
        None if name is None or name in names else ["" if value is None else str(value) for value in table[name]]
        for name in (columns.label, identifier)
    )
    if blank and ids is None:
        ids = [row_name(table, number) for number in range(len(table))]
    without_text = set(blank)
    kept = [number for number in range(len(table)) if number not in without_text]

    def of_classes(classes: Sequence[str]) -> LabelNames:
        return names_of_labels(table, str(columns.label), classes).of_rows(kept)

    unread = [name for name in table.column_names if name not in (*names, columns.label, identifier)]
    read = {"text": columns.text, "second text": columns.pair, "gold label": columns.label, "id": identifier}
    said = ", ".join(f"{name} ({what})" for what, name in read.items() if name is not None)
    every = FileOfTexts(first or [], pairs, labels, ids, None, unread, said, [row_name(table, row) for row in blank])
    return every.of_rows(kept)._replace(names_of_labels=None if labels is None else of_classes)


def read_texts(
    arguments: list[str] | None,
    file: str | None,
    text_column: str | None,
    pair_column: str | None,
    label_column: str | None,
) -> FileOfTexts:
    """The texts of ``explain``: arguments, or those of a file or of standard input."""
    if arguments:
        return FileOfTexts(arguments)
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("no text: expected TEXT, --file, or texts on standard input.")
    source = "-" if file is None else file
    read = read_columns(source, text_column, pair_column, label_column)
    if not read.first:
        raise typer.BadParameter(
            f"no text in {'standard input; write it after explain, or name a --file' if source == '-' else source}."
        )
    return read


def pairs_of(read: FileOfTexts, pair: list[str] | None) -> list[str] | None:
    """The second texts, of the file or of ``--pair``."""
    if not pair:
        return read.second
    if read.second:
        raise typer.BadParameter("--pair: the second texts are in the file already.")
    if len(pair) != (count := len(read.first)):
        each = "one" if count == 1 else f"one for each of the {count} texts"
        raise typer.BadParameter(f"--pair: expected {each}, got {len(pair)}.")
    return pair


def _no_text(value: Any) -> str | None:
    """What a row has that is no text, in words; a number or a truth value is one."""
    if isinstance(value, (str, int, float)):
        return None
    kind = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else type(value).__name__
    return (
        f'has {kind} in place of a text; expected a text or a number (of pandas: to_json(orient="records", lines=True))'
    )


def refuse_rows(source: str, problems: Sequence[tuple[str, str]]) -> None:
    """ValueError for the rows of a table that cannot be read, each with what it has: all are named."""
    if not problems:
        return
    from captum_iba._reading.wording import enumerated

    (row, problem), *others = problems
    listed = enumerated([name for name, _ in others[:_NAMED]], max(0, len(others) - _NAMED)) if others else ""
    more = f"; {listed} cannot be read either" if others else ""
    raise ValueError(f"{source}: {row} {problem}{more}.")


def left_out(read: FileOfTexts) -> str:
    """A sentence on the rows that are left out, because they have no text; else empty."""
    from captum_iba._reading.wording import enumerated

    if not read.blank:
        return ""
    rows = enumerated(list(read.blank[:_NAMED]), max(0, len(read.blank) - _NAMED))
    return f"Left out, because the text is blank: {rows}."


def note_blank(read: FileOfTexts, source: str) -> None:
    """Say which rows of a table are left out, also of a quiet command: they are in no output."""
    if said := left_out(read):
        note(f"{source}: {said[0].lower()}{said[1:-1]}", False)


def gold_labels(read: FileOfTexts, labels: Sequence[str], quiet: bool) -> LabelNames | None:
    """The gold labels, as far as there are such, with a note on those that are not compared."""
    gold = None if read.names_of_labels is None else read.names_of_labels(labels)
    if gold is not None and gold.problem:
        what = "labels that are no classes" if gold.are_classes else "labels"
        reason = gold.problem.removeprefix("data: ").rstrip(".")
        note(f"{what} are shown as they are, and not compared with the predicted classes: {reason}", quiet)
    no_gold = "; none has a name known for gold labels (--label-column)" if gold is None else ""
    how = " (--pair-column reads second texts)" if read.second is None else ""
    unread = f"{no_gold}; not read: {', '.join(read.unread)}{how}" if read.unread else ""
    note(f"columns: {read.columns}{unread}", quiet or not read.columns)
    return gold


def note_single_words(texts: Sequence[str] | None, quiet: bool) -> None:
    """A note that doubts several texts of one word each on the command line."""
    if texts is not None and len(texts) > 1 and all(len(text.split()) == 1 for text in texts):
        note(f"{len(texts)} texts of one word each; quotes make one text of several words", quiet)


@contextmanager
def naming_arguments(texts: Sequence[str] | None) -> Iterator[None]:
    """Errors count texts, words and entities from 1, as the command line does."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise counted_from_one(error, texts) from error


def counted_from_one(error: Exception, texts: Sequence[str] | None) -> Exception:
    """An error whose texts, words and entities are counted from 1; ``texts`` are those on the command line."""
    from captum_iba.text.arguments import NumberError

    said = error.counted_from(1) if isinstance(error, NumberError) else str(error)
    named = "TEXT" if texts else "text"
    said = re.sub(r"texts\[(\d+)\]", lambda match: f"{named} {int(match[1]) + 1}", said)
    if texts:
        said = re.sub(r"^texts\b", named, said)
    return TypeError(said) if isinstance(error, TypeError) else ValueError(said)


def _lines_of(source: str) -> FileOfTexts:
    """The lines of a file that are not blank; with their numbers as ids if blank ones are between them."""
    from captum_iba.compare.table_files import split_lines

    named = [(line, f"line {number}") for number, line in enumerate(split_lines(read_text(source)), 1)]
    while named and not named[-1][0].strip():  # those at the end are nobody's text
        named.pop()
    blank = [name for line, name in named if not line.strip()]
    texts, names = [line for line, _ in named if line.strip()], [name for line, name in named if line.strip()]
    return FileOfTexts(texts, ids=names if blank else None, blank=blank)


def read_text(source: str) -> str:
    """The text of a file, or of standard input."""
    from captum_iba.compare.table_files import decoded

    raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    try:
        return decoded(raw)
    except ValueError as error:
        raise ValueError(f"{source} cannot be read: {error}.") from error
