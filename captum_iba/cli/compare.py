"""``captum-iba compare`` and ``captum-iba report``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from captum_iba.cli.common import Precision, PrecisionOption, note, plain_errors, require_extra
from captum_iba.cli.engines import AddressOption, EngineName, EngineOption, WorkersOption, find_engine

if TYPE_CHECKING:
    from captum_iba.compare import Comparison, Summary

_INTERRUPTED = "interrupted; what is finished is kept, and the same command goes on where it stopped"


class Preset(str, Enum):
    """Methods that belong together."""

    paper = "paper"


class Target(str, Enum):
    """What is explained."""

    gold = "gold"
    predicted = "predicted"


def compare(
    data: Annotated[
        str,
        typer.Option(help="JSON lines, CSV, parquet, .txt (also .gz), a folder, or a data set's name on the hub."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for records, tables, curves and the report.")],
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name of a classifier.", show_default="the embedded one")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with commas between them; NAME:abs by magnitude, NAME@key=value,key=value with settings.",
            show_default="iba,ig,lime,random",
        ),
    ] = None,
    preset: Annotated[
        Preset | None, typer.Option(help="The rows of the paper's table, fair and as released.", show_default=False)
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Blocks, 1..12 or 1,3 or all: iba at each; 1+3: one mask.", show_default=False)
    ] = None,
    betas: Annotated[
        str | None, typer.Option(help="Numbers with commas between them: iba with each of them.", show_default=False)
    ] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Size of the sample.", show_default="all rows")] = None,
    target: Annotated[
        Target | None, typer.Option(help="The class that is explained.", show_default="gold, if there are labels")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Of the texts.", show_default="found by its name")] = None,
    pair_column: Annotated[
        str | None, typer.Option(help="Of the second texts.", show_default="found by its name")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Of the gold labels.", show_default="found by its name")
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="Configuration of a set on the hub that has several.", show_default=False)
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Part of a folder or set on the hub.", show_default="test, else validation")
    ] = None,
    statistics_from: Annotated[
        str | None,
        typer.Option(
            help="Data whose texts give the statistics that iba needs.",
            show_default="500 rows, outside the sample if possible",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sample and of the methods.")] = 0,
    random_seeds: Annotated[int, typer.Option(min=1, help="How many times random runs; its row is the mean.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of one pass of the model.")] = 32,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Where texts are cut, in tokens.", show_default="as the model allows")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where the model runs, for example cuda.", show_default="the CPU")
    ] = None,
    dtype: PrecisionOption = Precision.float32,
    engine: EngineOption = EngineName.local,
    address: AddressOption = None,
    workers: WorkersOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the findings and errors.")] = False,
) -> None:
    """Compare methods on a data set: tables, curves and a report. Stopped, it goes on where it was."""
    with plain_errors(quiet, _INTERRUPTED):
        require_extra()
        from captum_iba.compare import Request, prepare, write_report

        where = find_engine(engine, address, workers)
        request = Request(
            data=data,
            model=model,
            methods=methods,
            preset=None if preset is None else preset.value,
            layers=layers,
            betas=betas,
            examples=examples,
            subset=subset,
            split=split,
            text_column=text_column,
            pair_column=pair_column,
            label_column=label_column,
            target=None if target is None else target.value,
            statistics_from=statistics_from,
            seed=seed,
            random_seeds=random_seeds,
            batch_size=batch_size,
            max_length=max_length,
            device=device,
            dtype=dtype.value,
        )
        _go(prepare(request, out, lambda message: note(message, quiet), where), quiet)
        _deliver(write_report(out), quiet)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished comparison.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the findings and errors.")] = False,
) -> None:
    """Draw the tables, curves and report of a comparison again, from its records."""
    with plain_errors(quiet):
        require_extra()
        from captum_iba.compare import write_report

        _deliver(write_report(folder), quiet)


def _go(comparison: Comparison, quiet: bool) -> None:
    from captum_iba.compare import TimeLeft

    left = TimeLeft((run.name for run in comparison.runs), comparison.tokens)
    failing: set[str] = set()
    with _bar(quiet) as bar:
        task = bar.add_task("", total=comparison.tokens * len(comparison.runs), left="")
        for step in comparison.go():
            left.add(step)
            seconds = left.seconds()
            if seconds is not None and comparison.engine.workers:
                seconds /= comparison.engine.workers
            bar.update(task, advance=step.tokens, description=step.run, left=_duration(seconds))
            if step.error is not None and step.run not in failing:
                failing.add(step.run)
                note(f"{step.run} fails on examples, which is recorded; the first time with {step.error}", quiet)


def _bar(quiet: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        disable=quiet or not console.is_terminal,
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min left" if hours else f"{minutes} min {rest} s left" if minutes else f"{rest} s left"


def _deliver(summary: Summary, quiet: bool) -> None:
    for line in summary.lines:
        typer.echo(line)
    for path in summary.files[:-1]:
        note(f"wrote {path}", quiet)
    typer.echo(f"The report is at {summary.files[-1]}")
