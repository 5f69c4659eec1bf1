"""What the commands share: messages, a bar, errors in one line."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

# The endings of captum_iba.compare.files, which is not there without its extra; a test compares them.
_TABLE = re.compile(r"\.(jsonl?|ndjson|[ct]sv|parquet)(\.(gz|bz2|xz))?$", re.IGNORECASE)


class Precision(str, Enum):
    """Of a model's weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


PrecisionOption = Annotated[
    Precision, typer.Option("--dtype", help="Precision of the model; bfloat16 is faster where the processor has it.")
]


def has_columns(source: str) -> bool:
    """Whether a file's ending is that of a table, not of plain lines."""
    return _TABLE.search(source) is not None


def read_texts(source: str, text_column: str | None, pair_column: str | None) -> tuple[list[str], list[str] | None]:
    """The texts of a file, and their second texts: of a table its columns, else the lines that hold something."""
    if not has_columns(source):
        if text_column is not None or pair_column is not None:
            raise ValueError(f"{source} is read line by line and has no columns; expected CSV, JSON lines or parquet.")
        return read_lines(source), None
    require_extra()
    from captum_iba.compare.data import find_columns
    from captum_iba.compare.files import open_table

    table, _ = open_table(source)
    columns = find_columns(table.column_names, text_column, pair_column)
    pairs = None if columns.pair is None else [_text(one) for one in table[columns.pair]]
    return [_text(one) for one in table[columns.text]], pairs


def _text(value: Any) -> str:
    """A missing text is an empty one."""
    return "" if value is None else str(value)


def require_extra() -> None:
    """Raise ModuleNotFoundError, with what to install, unless what reading data sets and comparing take is there."""
    for name in ("datasets", "pyarrow", "scipy", "matplotlib"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f'{name} is not installed; run: pip install "captum-iba[benchmark]"', name=name)


def read_lines(source: str) -> list[str]:
    """The lines of a file that hold something."""
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        # Only line ends split: str.splitlines would also split at form feeds and the like.
        lines = raw.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not a UTF-8 text file ({error.reason} at byte {error.start}).") from error
    return [line for line in lines if line.strip()]


@contextmanager
def one_thread() -> Iterator[None]:
    """For the embedded model: its matrices are so small that a second thread waits more than it works."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def note(message: str, quiet: bool) -> None:
    """A line on standard error, unless quiet."""
    if not quiet:
        typer.echo(f"captum-iba: {message}", err=True)


def complain(message: str) -> None:
    """An error, in one line on standard error."""
    line = " ".join(str(message).split())
    typer.echo(f"captum-iba: error: {line}", err=True)


@contextmanager
def plain_errors(quiet: bool, interrupted: str = "interrupted") -> Iterator[None]:
    """What goes wrong is one line on standard error, without a traceback; ``interrupted`` is what Ctrl-C shows."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def show(message: Any, *_: Any, **__: Any) -> None:
        note(f"note: {message}", quiet)

    with warnings.catch_warnings():
        warnings.simplefilter("once", UserWarning)
        # Without statistics, what stands in for them has been said already.
        warnings.filterwarnings("ignore", "no statistics given")
        warnings.showwarning = show
        try:
            yield
        except KeyboardInterrupt:
            complain(interrupted)
            raise typer.Exit(130) from None
        except (typer.Exit, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("CAPTUM_IBA_TRACEBACK"):
                raise
            expected = isinstance(error, (ValueError, TypeError, OSError, RuntimeError, ImportError, AssertionError))
            text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            complain(text if expected else f"{type(error).__name__}: {text} (CAPTUM_IBA_TRACEBACK=1 shows more)")
            raise typer.Exit(1) from None
