"""Rows of a comparison, one per example and method: the file that keeps them, their passes, and their table."""

from __future__ import annotations

import json
import math
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from captum_iba._bootstrap import Interval, paired_bootstrap
from captum_iba._files import write_text
from captum_iba.compare.code_digest import code_digest
from captum_iba.compare.tables import FEWEST, MARKS

COSTS = ("passes", "seconds")
"""Columns without an interval."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class RowTable(ABC):
    """The rows of a comparison; ``print`` shows its table. A kind of examples has a subclass.

    Attributes:
        methods (tuple of str): Names of the methods; the others are compared with the first.
        rows (tuple): One per example and method, each with ``method``, ``values`` and ``error``.
    """

    methods: tuple[str, ...]
    rows: tuple[Any, ...]

    example: ClassVar[str]
    """What an example is; the name of the attribute of a row with its number."""
    measured: ClassVar[tuple[str, ...]]
    """Columns of the metrics."""
    meaning: ClassVar[str]
    """What these columns are, in a sentence."""
    lower_is_better: ClassVar[tuple[str, ...]] = ()
    digits: ClassVar[int] = 2

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metrics and costs."""
        return (*self.measured, *COSTS)

    def values(self, method: str, column: str) -> Tensor:
        """Values of a column where no method failed, (N,), float64; NaN where there is none."""
        failed = {self._number(row) for row in self.rows if row.error is not None}
        rows = sorted((row for row in self.rows if row.method == method), key=self._number)
        found = [row.values[column] for row in rows if self._number(row) not in failed]
        return torch.tensor([float("nan") if value is None else value for value in found], dtype=torch.float64)

    def difference(self, method: str, column: str) -> Interval | None:
        """The first method minus another, in pairs, with its 95% interval; None of fewer than 20 examples."""
        first, other = self.values(self.methods[0], column), self.values(method, column)
        known = first.isfinite() & other.isfinite()
        return paired_bootstrap(first[known], other[known]) if int(known.sum()) >= FEWEST else None

    def to_markdown(self) -> str:
        """The table in Markdown: means, and in brackets the first method minus the other, with its 95% interval."""
        lines = [f"| {' | '.join(['method', *self.columns])} |", "|---" * (len(self.columns) + 1) + "|"]
        for method in self.methods:
            cells = [self._cell(method, column) for column in self.columns]
            lines.append(f"| {' | '.join([method, *cells])} |")
        return "\n".join([*lines, "", *self.notes()])

    def notes(self, with_intervals: bool = True) -> list[str]:
        """What a reader of the table, with or without the intervals, has to know."""
        first, n_examples = self.methods[0], len({self._number(row) for row in self.rows})
        failed = sorted({self._number(row) for row in self.rows if row.error is not None})
        *others, last = (*self.lower_is_better, *COSTS)
        lower = f"{', '.join(others)} and {last}"
        lines = [
            f"{n_examples} {self.example}{'s' * (n_examples != 1)}; higher is better but for {lower}.",
            self.meaning,
        ]
        if failed:
            row = next(row for row in self.rows if row.error is not None)
            examples = f"{len(failed)} {self.example}{'s' * (len(failed) != 1)}"
            lines.append(f"Left out, because a method failed: {examples}; the first, {row.method} by {row.error}")
        if len(self.methods) > 1 and n_examples - len(failed) < FEWEST:
            lines.append(f"There are no intervals for fewer than {FEWEST} {self.example}s.")
        elif len(self.methods) > 1 and with_intervals:
            lines.append(f"In brackets: {first} minus the method, 95% interval; ▲ the method is better, ▼ worse.")
        return lines

    def _number(self, row: Any) -> int:
        return int(getattr(row, self.example))

    def _cell(self, method: str, column: str) -> str:
        values = self.values(method, column)
        mean = values[values.isfinite()].mean()
        if column in COSTS:
            return f"{mean:.{self.digits - 1}f}" if column == "seconds" else f"{mean:.0f}"
        difference = None if method == self.methods[0] else self.difference(method, column)
        digits = self.digits
        if difference is None:
            return f"{mean:.{digits}f}"
        first_is_better = (difference.mean > 0) != (column in self.lower_is_better)
        mark = MARKS["" if not difference.excludes_zero else "worse" if first_is_better else "better"]
        ends = f"{difference.low:+.{digits}f}, {difference.high:+.{digits}f}"
        return " ".join(filter(None, [f"{mean:.{digits}f}", f"({difference.mean:+.{digits}f} [{ends}])", mark]))

    def __str__(self) -> str:
        """The means, in columns."""
        width = max(map(len, self.methods)) + 2
        wide = [max(9, len(column) + 2) for column in self.columns]
        head = "".join(column.rjust(size) for column, size in zip(self.columns, wide, strict=True))
        lines = ["".ljust(width) + head]
        for method in self.methods:
            cells = [self.values(method, column) for column in self.columns]
            means = [f"{values[values.isfinite()].mean():{size}.2f}" for values, size in zip(cells, wide, strict=True)]
            lines.append(method.ljust(width) + "".join(means))
        return "\n".join([*lines, *self.notes(with_intervals=False)])


def chosen_methods(
    methods: Sequence[str] | Mapping[str, Function], known: Mapping[str, Function]
) -> dict[str, Function]:
    """The functions of methods by name, in their order; ValueError for an unknown name, one twice, or none."""
    if isinstance(methods, Mapping):
        functions = dict(methods)
    else:
        names = [methods] if isinstance(methods, str) else list(methods)
        for name in names:
            if name not in known:
                raise ValueError(f"methods has {name!r}, expected names among {', '.join(known)}")
        functions = {name: known[name] for name in names}
        if len(functions) < len(names):
            raise ValueError(f"methods is {', '.join(names)}, expected each once")
    if not functions:
        raise ValueError("methods is empty, expected at least one")
    return functions


def finite_or_none(values: Mapping[str, float]) -> dict[str, float | None]:
    """Values as JSON has them: None where one is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


@contextmanager
def counted_passes(model: Any) -> Iterator[list[float]]:
    """Counts rows of forward passes, twice where a backward pass may follow, into the only item of a list."""
    count = [0.0]

    def add(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim > 1]
        count[0] += max((len(tensor) for tensor in tensors), default=1) * (2 if torch.is_grad_enabled() else 1)

    handle = model.register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()


class KeptRows:
    """The rows of a comparison in a folder: ``rows.jsonl``, and ``comparison.json`` with what they depend on.

    Args:
        folder (Path): The folder; made if it is not there.
        about (dict): Everything that rows depend on but their method: the same as before, or ValueError.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"folder: {folder} is a file, expected a folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._path = folder, folder / "rows.jsonl"
        described = folder / "comparison.json"
        if described.exists():
            before = json.loads(described.read_text(encoding="utf-8"))
            for name, value in about.items():
                if before.get(name) != value:
                    raise ValueError(
                        f"folder: {folder} has a comparison with another {name} (was {before.get(name)}, is {value}); "
                        "expected the same, or another folder"
                    )
        else:
            write_text(described, json.dumps(about, indent=1))

    def contents(self) -> list[dict[str, Any]]:
        """All rows that were kept, each with the ``code`` of its method; a line that was cut is not there."""
        if not self._path.exists():
            return []
        content, _, cut = self._path.read_bytes().rpartition(b"\n")
        whole = content.decode("utf-8")
        if cut:  # the process was killed in the middle of a line, or of a character
            write_text(self._path, f"{whole}\n" if whole else "")
        return [json.loads(line) for line in filter(None, whole.split("\n"))]

    def rows(self, functions: Mapping[str, Callable[..., Any]]) -> list[dict[str, Any]]:
        """Rows of these methods, without their ``code``: not those that failed, nor those of another of this name."""
        own = {name: code_digest(function, {}) for name, function in functions.items()}
        found = [row for row in self.contents() if row["error"] is None and own.get(row["method"]) == row["code"]]
        return [{name: value for name, value in row.items() if name != "code"} for row in found]

    def add(self, row: Any, function: Callable[..., Any]) -> None:
        """Append a row, with a digest of the method's code: rows of another method of this name are not used."""
        content = {**vars(row), "code": code_digest(function, {})}
        line = json.dumps(content, ensure_ascii=False, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def write_table(self, table: RowTable) -> None:
        """Write ``table.md``."""
        write_text(self.folder / "table.md", f"{table.to_markdown()}\n")
