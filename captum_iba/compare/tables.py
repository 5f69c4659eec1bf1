"""The table of a comparison: means with intervals, where a method differs from the bottleneck, and the findings."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from captum_iba._files import write_text
from captum_iba.compare.records import Outcome, Results, Row
from captum_iba.metrics import METRICS, Interval, mean_over_seeds, paired_bootstrap

FEWEST = 20
"""Of fewer examples an interval by bootstrap is too narrow to tell methods apart."""

_FEWEST_LABELS = 30
_AGREEMENT = 0.2  # of the model with the labels, beyond chance, which is slight at most

MARKS = {"better": "▲", "worse": "▼", "": ""}
_TEX_MARKS = {"better": r"$^{+}$", "worse": r"$^{-}$", "": ""}
_TEX_ESCAPES = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "→": r"$\to$", "−": "$-$", "\\": ""}


@dataclass(frozen=True)
class MetricColumn:
    """A column of the table: a function from the outcome of a run to one value per example, (B,), and what it means.

    Values that are not ``per_example``, as the time of examples that are scored together, have no interval.
    """

    name: str
    title: str
    function: Callable[[Outcome], Tensor]
    higher_is_better: bool
    meaning: str
    per_example: bool = True

    def values(self, row: Row) -> Tensor:
        """Values of a row, (B,), float64: the mean over its seeds."""
        return mean_over_seeds([self.function(outcome) for outcome in row.outcomes])

    def __str__(self) -> str:
        """The title, with an arrow to the better side."""
        return f"{self.title} {'↑' if self.higher_is_better else '↓'}"


def _column_of_metric(name: str) -> MetricColumn:
    metric = METRICS[name]
    return MetricColumn(
        name,
        metric.title,
        lambda outcome: metric(outcome.morf, outcome.lerf),
        metric.higher_is_better,
        f"{metric.formula} ({metric.source}).",
    )


COLUMNS = (
    *map(_column_of_metric, ("probability_drop", "aopc", "comprehensiveness", "sufficiency", "area_between")),
    MetricColumn(
        "seconds",
        "s/example",
        lambda outcome: torch.from_numpy(outcome.seconds),
        False,
        "seconds per example for the scores, on the machine of the comparison; the test itself is not counted. "
        "Examples are scored together, so there is no interval.",
        per_example=False,
    ),
)


@dataclass(frozen=True)
class Cell:
    """A method by a metric: the mean with its 95% bootstrap interval, NaN where there is none.

    ``difference`` is the reference minus this method, example by example; None for the reference itself. ``mark`` is
    ``"better"`` or ``"worse"`` than the reference if that excludes 0, for at least :data:`FEWEST` examples.
    """

    interval: Interval
    difference: Interval | None
    mark: str

    @property
    def has_interval(self) -> bool:
        """Whether there is more than a mean."""
        return not math.isnan(self.interval.low)

    def __str__(self) -> str:
        """The mean, and its interval where it has one."""
        mean, low, high = map(say, self.interval)
        return f"{mean} [{low}, {high}]" if self.has_interval else mean


@dataclass(frozen=True)
class Table:
    """For each method a cell per metric (:data:`COLUMNS`), none where it failed on every example.

    ``reference`` is the row that the others are compared with: ``iba``, else its first variant, else none.
    """

    rows: dict[str, list[Cell]]
    reference: str | None
    examples: int


def make_table(results: Results) -> Table:
    """Compute the table of a comparison: intervals by bootstrap over the examples, the same on every call."""
    variants = [row for row in results.rows if row.outcomes and row.about["method"] == "iba"]
    reference = next((row for row in variants if row.name == "iba"), variants[0] if variants else None)
    rows = {row.name: _cells(row, reference) if row.outcomes else [] for row in results.rows}
    return Table(rows, None if reference is None else reference.name, len(results.common))


def _cells(row: Row, reference: Row | None) -> list[Cell]:
    others = [None if reference is None or row is reference else column.values(reference) for column in COLUMNS]
    return [_cell(column, column.values(row), other) for column, other in zip(COLUMNS, others, strict=True)]


def _cell(column: MetricColumn, values: Tensor, reference_values: Tensor | None) -> Cell:
    if not column.per_example:
        return Cell(Interval(float(values.mean()), math.nan, math.nan), None, "")
    interval = paired_bootstrap(values)
    if reference_values is None:
        return Cell(interval, None, "")
    # Equal scores give probabilities that are rounded otherwise in passes of other shapes.
    equal = torch.isclose(reference_values, values, rtol=1e-6, atol=1e-6)
    difference = paired_bootstrap(reference_values.where(~equal, values), values)
    mark = ""
    if difference.excludes_zero and len(values) >= FEWEST:
        mark = "worse" if (difference.low > 0) == column.higher_is_better else "better"
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
    value = round(value, 3) + 0.0  # no -0.000
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def markdown(table: Table, results: Results) -> str:
    """The table for a reader, with what its columns mean."""
    lines = [["method", *map(str, COLUMNS)], ["---", *["---:"] * len(COLUMNS)]]
    first = best(table, results)
    for name, cells in table.rows.items():
        shown = [
            f"{f'**{cell}**' if name in names else cell} {MARKS[cell.mark]}".rstrip()
            for cell, names in zip(cells, first, strict=bool(cells))
        ]
        lines.append([name, *(shown or ["failed"] * len(COLUMNS))])
    listed = [f"- {note}" for note in notes(table, results)]
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", *listed, ""])


def best(table: Table, results: Results) -> list[set[str]]:
    """For each column the methods with the best mean, which are bold; none for time, or with few examples.

    Those that are counted as in the published code are no competitors of the others.
    """
    rows = _fair(table, results)
    names: list[set[str]] = []
    for index, column in enumerate(COLUMNS):
        means = {
            name: cells[index].interval.mean * (1 if column.higher_is_better else -1) for name, cells in rows.items()
        }
        contest = column.per_example and table.examples >= FEWEST and len(set(means.values())) > 1
        names.append({name for name, mean in means.items() if contest and mean == max(means.values())})
    return names


def notes(table: Table, results: Results) -> list[str]:
    """What a reader of the table must know, one sentence or two each."""
    lines = [
        f"Means over {table.examples} examples, with 95% bootstrap intervals over the examples. Explained: the "
        f"{results.provenance['target']} class."
    ]
    if table.reference is not None:
        lines.append(
            f"{MARKS['better']} better, {MARKS['worse']} worse than {table.reference}: the interval of the paired "
            "difference excludes 0."
            if table.examples >= FEWEST
            else f"{table.examples} examples are too few to tell methods apart: nothing is marked."
        )
    if table.examples >= FEWEST:
        lines.append("Bold: the best mean of a column.")
    lines += truncations(results) + doubtful_labels(results)
    lines += [f"{column}: {column.meaning}" for column in COLUMNS]
    if released := _counted_as_released(results):
        lines.append(
            f"Counted as in the published code (special tokens count, the last-ranked token stays), so not quite "
            f"comparable with the rest: {', '.join(released)}."
        )
    if several := [row for row in results.rows if row.same_leading is not None]:
        lines.append(f"Means over seeds: {', '.join(f'{row.name} ({len(row.outcomes)} seeds)' for row in several)}.")
    # The scores of random agree by chance only.
    if same := [f"{row.name} {row.same_leading:.0%}" for row in several if row.about["method"] != "random"]:
        lines.append(f"Examples in which two seeds have the same leading token: {', '.join(same)}.")
    for row, failed in _failures(results):
        consequence = f"which count for {'no method' if row.outcomes else 'this method only'}"
        lines.append(f"{failed}, {consequence}; the first error: {row.error}")
    return lines


def comma_separated(table: Table) -> str:
    """The table for machines, one line per method and metric, in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["mean", "low", "high"]
    writer.writerow(
        ["method", "measure", *names, *(f"reference_minus_method_{name}" for name in names), "mark", "examples"]
    )
    for row, cells in table.rows.items():
        for column, cell in zip(COLUMNS, cells, strict=bool(cells)):
            interval = cell.interval if cell.has_interval else (cell.interval.mean, "", "")
            difference = ("", "", "") if cell.difference is None else cell.difference
            writer.writerow([row, column.name, *interval, *difference, cell.mark, table.examples])
    return text.getvalue()


def tex(table: Table) -> str:
    """The table for a paper, with the commands of ``booktabs``."""
    lines = [
        "% needs \\usepackage{booktabs}; + and -: better and worse than the reference, paired 95% interval",
        rf"\begin{{tabular}}{{l{'r' * len(COLUMNS)}}}",
        r"\toprule",
        " & ".join(["method", *(_escape(column.title) for column in COLUMNS)]) + r" \\",
        r"\midrule",
    ]
    for row, cells in table.rows.items():
        shown = [f"{cell}{_TEX_MARKS[cell.mark]}" for cell in cells] or ["failed"] * len(COLUMNS)
        lines.append(" & ".join([_escape(row), *shown]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _escape(text: str) -> str:
    return "".join(_TEX_ESCAPES.get(letter, letter) for letter in text)


def _counted_as_released(results: Results) -> list[str]:
    return [row.name for row in results.rows if row.about["counting"] == "as_released"]


def describe(results: Results) -> str:
    """Model, data and how often the model is right, in one sentence or two."""
    provenance = results.provenance
    name = provenance["data"]
    name = Path(name).name if Path(name).suffix else name  # of a file, without the path on this machine
    data = name if provenance["split"] is None else f"{name} ({provenance['split']})"
    accuracy = "" if results.accuracy is None else f" Accuracy: {results.accuracy:.1%}."
    return (
        f"{len(results.common)} of {provenance['rows']} examples of {data}, decided by {provenance['model']}."
        f"{accuracy} Every method explains the {provenance['target']} class."
    )


def findings(table: Table, results: Results, numbers: bool = True) -> list[tuple[str, str]]:
    """For each metric its title and a sentence on which methods the reference is better than, and which not.

    That is where the interval of the paired difference excludes 0. With few examples, all values instead. Without
    ``numbers``, beside a table that has them, only what follows from them.
    """
    rows = _fair(table, results)
    too_few = table.examples < FEWEST and len(rows) > 1
    few = [("Examples", f"{table.examples}, too few to tell methods apart.")] if too_few else []
    said = [
        (column.title if column.per_example else "seconds per example", _finding(column, index, rows, table, numbers))
        for index, column in enumerate(COLUMNS)
        if numbers or (column.per_example and table.examples >= FEWEST and len(rows) > 1)
    ]
    return said + few


def _fair(table: Table, results: Results) -> dict[str, list[Cell]]:
    """The rows that are counted alike: those counted as in the published code only if there are no others."""
    released = _counted_as_released(results)
    rows = {name: cells for name, cells in table.rows.items() if cells}
    return {name: cells for name, cells in rows.items() if name not in released} or rows


def failures(results: Results) -> list[str]:
    """A sentence for each method that failed on examples."""
    return [f"{failed}, the first time with: {row.error}" for row, failed in _failures(results)]


def _failures(results: Results) -> list[tuple[Row, str]]:
    """The methods that failed on examples, each with the beginning of a sentence that says on how many."""
    count = len(results.texts)
    return [(row, f"{row.name} failed on {row.failed} of {count} examples") for row in results.rows if row.failed]


def truncations(results: Results) -> list[str]:
    """A sentence on the texts of the tables that were truncated, if any were."""
    common = set(results.common)
    number = sum(bool(text["truncated"]) for text in results.texts if text["example"] in common)
    if not number:
        return []
    length = results.provenance["max_length"]
    return [
        f"{number} of {len(common)} texts were truncated to {length} tokens, and what was left out counts for nothing."
    ]


def doubtful_labels(results: Results) -> list[str]:
    """A sentence if the model is right no more often than the most frequent label is, and hardly more than by chance.

    Labels 0 and 1 of film reviews, say, are classes of a model of news with four topics, too.
    """
    common = set(results.common)
    gold = [text["gold"] for text in results.texts if text["example"] in common] if results.accuracy is not None else []
    if results.accuracy is None or len(gold) < _FEWEST_LABELS or len(set(gold)) == 1:
        return []
    outcome = next(row.outcomes[0] for row in results.rows if row.outcomes)
    labels, decided = Counter(gold), Counter(outcome.morf.decision[:, 0].tolist())
    by_chance = sum(labels[number] * decided[number] for number in labels) / len(gold) ** 2
    most, count = labels.most_common(1)[0]
    kappa = (results.accuracy - by_chance) / (1 - by_chance)  # Cohen's
    if results.accuracy > count / len(gold) or kappa > _AGREEMENT:
        return []
    names = results.provenance["labels"]
    classes = ", ".join(f"{number} ({names[number]})" for number in sorted(labels))
    return [
        f"Warning: the model is right for {results.accuracy:.1%} of the examples, and {count / len(gold):.1%} have the "
        f"label {names[most]}. Are these labels the classes of this model? They were read as {classes}."
    ]


def _finding(column: MetricColumn, index: int, rows: dict[str, list[Cell]], table: Table, numbers: bool) -> str:
    reference = table.reference
    sign = -1 if column.higher_is_better else 1
    order = sorted(rows, key=lambda name: sign * rows[name][index].interval.mean)
    if not column.per_example:  # no contest: random scores take no time
        return f"{', '.join(f'{name} {say(rows[name][index].interval.mean)}' for name in order)}."
    if table.examples < FEWEST:
        return f"{', '.join(f'{name} {rows[name][index]}' for name in order)}."
    first = order[0]
    if reference is None or reference not in rows or len(rows) == 1:
        return f"{first} is first{f' ({rows[first][index]})' if numbers else ''}."
    said = []
    for mark, words in (("worse", "clearly better than"), ("", "level with"), ("better", "clearly worse than")):
        names = [name for name in order if name != reference and rows[name][index].mark == mark]
        if names:
            said.append(f"{words} {', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]}")
    return f"{reference} is {'; '.join(said)}{f' ({rows[reference][index]})' if numbers else ''}."
