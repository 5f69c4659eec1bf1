"""The tables: means with their intervals, and where a method differs from the bottleneck."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from captum_iba._files import write_text
from captum_iba.compare.measures import MEASURES, Measure
from captum_iba.compare.results import Results
from captum_iba.compare.runs import reference
from captum_iba.metrics import Interval, paired_bootstrap

FEWEST = 20
"""Of fewer examples an interval by bootstrap is too narrow to tell methods apart."""

MARKS = {"better": "▲", "worse": "▼", "": ""}
_TEX_MARKS = {"better": r"$^{+}$", "worse": r"$^{-}$", "": ""}
_TEX_ESCAPES = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "→": r"$\to$", "−": "$-$", "\\": ""}


@dataclass(frozen=True)
class Cell:
    """A method by a measure.

    Attributes:
        interval (Interval): Mean over the examples, with its 95 % bootstrap interval; NaN where there is none.
        difference (Interval or None): The reference minus this method, example by example; None for the reference
            itself and where there is none.
        mark (str): ``"better"`` or ``"worse"`` than the reference where the difference's interval excludes 0, else
            empty; so too with fewer than :data:`FEWEST` examples.
    """

    interval: Interval
    difference: Interval | None
    mark: str

    @property
    def has_interval(self) -> bool:
        """Whether there is more than a mean."""
        return not math.isnan(self.interval.low)


@dataclass(frozen=True)
class Table:
    """All methods by all measures.

    Attributes:
        rows (dict): Per method a cell for each of :data:`captum_iba.compare.measures.MEASURES`; empty where it
            failed on every example.
        reference (str or None): The row that the others are compared with.
        examples (int): Over how many examples.
    """

    rows: dict[str, list[Cell]]
    reference: str | None
    examples: int


def make_table(results: Results) -> Table:
    """Compute the table of a comparison: intervals by bootstrap over the examples, the same on every call."""
    against = reference(row.name for row in results.rows if row.outcomes)
    of_reference = next((row for row in results.rows if row.name == against), None)
    rows: dict[str, list[Cell]] = {}
    for row in results.rows:
        rows[row.name] = []
        for measure in MEASURES if row.outcomes else ():
            values = measure.of(row)
            other = None if of_reference is None or row is of_reference else measure.of(of_reference)
            rows[row.name].append(_cell(measure, values, other))
    return Table(rows, against, len(results.common))


def _cell(measure: Measure, values: Tensor, reference_values: Tensor | None) -> Cell:
    if not measure.each:
        mean = float(values.mean())
        return Cell(Interval(mean, math.nan, math.nan), None, "")
    interval = paired_bootstrap(values)
    if reference_values is None:
        return Cell(interval, None, "")
    difference = paired_bootstrap(reference_values, values)
    mark = ""
    if difference.excludes_zero and len(values) >= FEWEST:
        mark = "worse" if (difference.low > 0) == measure.higher_is_better else "better"
    return Cell(interval, difference, mark)


def write_tables(table: Table, results: Results, folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.csv`` and ``table.tex``; returns where."""
    return [
        write_text(folder / "table.md", markdown(table, results)),
        write_text(folder / "table.csv", comma_separated(table)),
        write_text(folder / "table.tex", tex(table)),
    ]


def say(value: float) -> str:
    """A number of the table: three decimals, or three digits where it is large."""
    if not math.isfinite(value):
        return "n/a"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def say_interval(cell: Cell) -> str:
    """A mean, and its interval where it has one."""
    mean, low, high = map(say, cell.interval)
    return f"{mean} [{low}, {high}]" if cell.has_interval else mean


def markdown(table: Table, results: Results) -> str:
    """The table for a reader, with what its columns mean."""
    head = ["method", *(f"{measure.title} {_arrow(measure)}" for measure in MEASURES)]
    lines = [_row(head), _row(["---", *["---:"] * len(MEASURES)])]
    for name, cells in table.rows.items():
        shown = [f"{say_interval(cell)} {MARKS[cell.mark]}".rstrip() for cell in cells] or ["failed"] * len(MEASURES)
        lines.append(_row([f"**{name}**" if name == table.reference else name, *shown]))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(table, results)), ""])


def notes(table: Table, results: Results) -> list[str]:
    """What a reader of the table must know, one sentence or two each."""
    found = [
        f"Means over {table.examples} examples, with 95 % bootstrap intervals over the examples. Explained: the "
        f"{results.configuration['target']} class."
    ]
    if table.reference is not None:
        found.append(
            f"{MARKS['better']} better, {MARKS['worse']} worse than {table.reference}: the interval of the paired "
            "difference excludes 0."
            if table.examples >= FEWEST
            else f"{table.examples} examples are too few to tell methods apart: nothing is marked."
        )
    found += [f"{measure.title} {_arrow(measure)}: {measure.meaning}" for measure in MEASURES]
    if released := results.configuration["counted_as_released"]:
        found.append(
            f"Counted as in the published code (special tokens count, the last-ranked token stays), so not quite "
            f"comparable with the rest: {', '.join(released)}."
        )
    several = [f"{row.name} ({len(row.outcomes)})" for row in results.rows if len(row.outcomes) > 1]
    if several:
        found.append(f"Mean over several seeds: {', '.join(several)}.")
    found += [
        f"{row.name} failed on {row.failed} of {len(results.texts)} examples, which count for "
        f"{'no method' if row.outcomes else 'this method only'}; the first error: {row.error}"
        for row in results.rows
        if row.failed
    ]
    return found


def comma_separated(table: Table) -> str:
    """The table for machines, one line a method and measure, in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["mean", "low", "high"]
    writer.writerow(
        ["method", "measure", *names, *(f"reference_minus_method_{name}" for name in names), "mark", "examples"]
    )
    for row, cells in table.rows.items():
        for measure, cell in zip(MEASURES, cells, strict=bool(cells)):
            interval = cell.interval if cell.has_interval else (cell.interval.mean, "", "")
            difference = ("", "", "") if cell.difference is None else cell.difference
            writer.writerow([row, measure.name, *interval, *difference, cell.mark, table.examples])
    return text.getvalue()


def tex(table: Table) -> str:
    """The table for a paper, with the commands of ``booktabs``."""
    lines = [
        "% needs \\usepackage{booktabs}; + and -: better and worse than the reference, paired 95 % interval",
        rf"\begin{{tabular}}{{l{'r' * len(MEASURES)}}}",
        r"\toprule",
        " & ".join(["method", *(_escape(measure.title) for measure in MEASURES)]) + r" \\",
        r"\midrule",
    ]
    for row, cells in table.rows.items():
        shown = [f"{say_interval(cell)}{_TEX_MARKS[cell.mark]}" for cell in cells] or ["failed"] * len(MEASURES)
        lines.append(" & ".join([_escape(row), *shown]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _arrow(measure: Measure) -> str:
    return "↑" if measure.higher_is_better else "↓"


def _escape(text: str) -> str:
    return "".join(_TEX_ESCAPES.get(letter, letter) for letter in text)
