"""A comparison in a few sentences."""

from __future__ import annotations

from typing import Any

from captum_iba.compare.measures import MEASURES, Measure
from captum_iba.compare.results import Results
from captum_iba.compare.tables import FEWEST, Cell, Table, say, say_interval


def describe(results: Results) -> str:
    """Model, data and how often the model is right, in one sentence or two."""
    configuration = results.configuration
    accuracy = "" if results.accuracy is None else f" It decides {results.accuracy:.1%} of them as the gold labels say."
    return (
        f"{len(results.common)} of {configuration['rows']} examples of {_place(configuration)}, decided by "
        f"{configuration['model']}.{accuracy} Every method explains the {configuration['target']} class."
    )


def findings(table: Table, results: Results) -> list[tuple[str, str]]:
    """For each measure its title and a sentence on who is first, and where the reference stands."""
    released = results.configuration["counted_as_released"]
    fair = {name: cells for name, cells in table.rows.items() if cells and name not in released}
    rows = fair or {name: cells for name, cells in table.rows.items() if cells}
    return [(measure.title, _finding(measure, column, rows, table)) for column, measure in enumerate(MEASURES)]


def failures(results: Results) -> list[str]:
    """A sentence for each method that failed on examples."""
    return [
        f"{row.name} failed on {row.failed} of {len(results.texts)} examples, the first time with: {row.error}"
        for row in results.rows
        if row.failed
    ]


def _finding(measure: Measure, column: int, rows: dict[str, list[Cell]], table: Table) -> str:
    reference = table.reference
    sign = -1 if measure.higher_is_better else 1
    order = sorted(rows, key=lambda name: sign * rows[name][column].interval.mean)
    if not measure.each:  # no contest: random scores take no time
        return f"{', '.join(f'{name} {say(rows[name][column].interval.mean)}' for name in order)}."
    first = order[0]
    said = f"{first} is first with {say_interval(rows[first][column])}"
    if reference is None or reference not in rows or len(rows) == 1:
        return f"{said}."
    if table.examples < FEWEST:
        return f"{said}; {table.examples} examples are too few to tell methods apart."
    if first != reference:
        verdict = "excludes" if rows[first][column].mark else "includes"
        place = order.index(reference) + 1
        own = f"{reference} is number {place} with {say_interval(rows[reference][column])}"
        return f"{said}; {own}, and the interval of their paired difference {verdict} 0."
    level = [name for name in order[1:] if not rows[name][column].mark]
    others = f"all but {', '.join(level)}" if level else "all others"
    if len(level) == len(order) - 1:
        return f"{said}; no paired difference to the others has an interval that excludes 0."
    return f"{said}; the intervals of its paired differences to {others} exclude 0."


def _place(configuration: dict[str, Any]) -> str:
    split = configuration["split"]
    return f"{configuration['data']}{'' if split is None else f' ({split})'}"
