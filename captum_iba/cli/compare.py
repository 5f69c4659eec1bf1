"""``captum-iba compare`` and ``captum-iba report``."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TaskProgressColumn, TextColumn

from captum_iba.cli.common import (
    MINUTE,
    AddressOption,
    DeviceOption,
    ExecutorName,
    ExecutorOption,
    ModelOption,
    PrecisionOption,
    QuietOption,
    WorkersOption,
    check_input,
    check_model,
    check_output_folder,
    every_minute,
    find_executor,
    loading,
    named_model,
    note,
    parse_layer,
    plain_errors,
    progress_bar,
    quiet_workers,
    require_extra,
)
from captum_iba.cli.text_files import LabelColumnOption, PairColumnOption, TextColumnOption, has_columns

if TYPE_CHECKING:
    from captum_iba.compare import Comparison, ComparisonConfig, FinishedChunk, Summary
    from captum_iba.compare.parallel import Executor

# Those of captum_iba.methods, whose import takes seconds; a test compares them.
METHOD_NAMES = (
    "iba, iba_reranked, iba_paper, iba_as_released, random, lime, ig, gradient_x_activation, gradient_shap, saliency, "
    "captum_lime, kernel_shap, leave_one_out, occlusion, conductance, grad_cam, attention_rollout, attn_lrp, "
    "ig_as_released, lime_as_released"
)

COMPARE_EXAMPLES = """\b
Examples:
  captum-iba compare --data reviews.csv --out results
  captum-iba compare --model FOLDER --data test.csv --examples 200 --methods iba,ig,leave_one_out --out results
"""


class MethodSet(str, Enum):
    """Methods that belong together."""

    paper = "paper"


class Target(str, Enum):
    """Which class is explained."""

    gold = "gold"
    predicted = "predicted"


def compare(
    out: Annotated[Path, typer.Option(help="Folder for the records, tables, curves and the report.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Dataset: JSON lines, CSV, parquet, .txt (also .gz), a folder, or a name on the hub.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with these options and with settings of the methods; the command line overrides it. Every "
            "comparison leaves one in its folder, comparison.yaml.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods with commas between them: {METHOD_NAMES}. NAME:abs takes the magnitude of the scores. A "
            "folder with other methods gets those that it lacks. Of the default ones a text costs iba 16 forward and "
            "backward passes, ig 50, lime 1000 forward passes, and random none; other numbers by --config.",
            show_default="iba,ig,lime,random",
        ),
    ] = None,
    method_set: Annotated[
        MethodSet | None,
        typer.Option(
            "--method-set",
            "--preset",
            help="The methods of the paper's table, fair and as released.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            help="Layer of iba: a block from 1, 1,3 or 1..3 for several with one mask, or all for its default. Give "
            "the option again for another run of iba.",
            show_default=False,
        ),
    ] = None,
    beta: Annotated[
        list[float] | None,
        typer.Option(
            help="Weight of the information in iba. Give the option again for another run.", show_default=False
        ),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Number of examples in the sample.", show_default="all rows")
    ] = None,
    target: Annotated[
        Target | None, typer.Option(help="Class to explain.", show_default="gold, if there are labels")
    ] = None,
    text_column: TextColumnOption = None,
    pair_column: PairColumnOption = None,
    label_column: LabelColumnOption = None,
    subset: Annotated[
        str | None, typer.Option(help="Subset of a dataset on the hub that has several.", show_default=False)
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of a folder or hub dataset.", show_default="test, else validation")
    ] = None,
    statistics_from: Annotated[
        str | None,
        typer.Option(
            help="Dataset whose texts give the statistics that iba needs.",
            show_default="500 rows, outside the sample if possible",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sample and of the methods.", show_default="0")] = None,
    random_seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds of random; its row is the mean.", show_default="5")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Largest number of rows in a forward pass.", show_default="32")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Length in tokens to truncate texts to.", show_default="as the model allows"),
    ] = None,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    executor: ExecutorOption = ExecutorName.local,
    address: AddressOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on a dataset: tables, curves and a report. If it is stopped, the same command goes on."""
    options = {**locals(), "layers": [_layer(text) for text in layer or ()] or None, "betas": beta or None}
    if data is None and config is None:
        raise typer.BadParameter("Missing option --data (or --config with a file that names the data).")

    def interrupted() -> str:
        if any((out / "records").glob("*/*.parquet")):
            return "interrupted; what is finished is kept, and the same command goes on where it stopped"
        return "interrupted; no chunk of texts was finished, so that nothing is kept"

    with plain_errors(quiet, interrupted):
        require_extra()
        _check_paths(data, config, model, statistics_from, out)
        with loading():
            from captum_iba._explain.model import check_device
            from captum_iba.compare import prepare, write_report

            where = find_executor(executor, address, workers)
            configuration = _config(config, options)
            _check_paths(configuration.data, None, configuration.model, configuration.statistics_from, out)
            if not where.remote:
                check_device(configuration.device, "--device")
            with named_model(configuration.model):
                comparison = prepare(configuration, out, lambda message: note(message, quiet), where)
        with quiet_workers(where):
            _compute(comparison, quiet)
        _deliver(write_report(out), quiet)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished comparison.")],
    quiet: QuietOption = False,
) -> None:
    """Draw the tables, curves and report of a comparison again, from its records."""
    with plain_errors(quiet):
        require_extra()
        from captum_iba.compare import write_report

        _deliver(write_report(folder), quiet)


def _check_paths(data: str | None, config: Path | None, model: str | None, statistics: str | None, out: Path) -> None:
    """Refuse paths that cannot be read or written, before anything is loaded; other names may be on the hub."""
    check_input("--config", config, "a YAML file, such as the comparison.yaml of a comparison")
    for option, source in (("--data", data), ("--statistics-from", statistics)):
        is_path = source is not None and (
            source.startswith((".", "/", "~")) or source.endswith(".txt") or has_columns(source)
        )
        check_input(
            option, source if is_path else None, "a file of JSON lines, CSV, parquet or .txt, or a folder", True
        )
    check_model(model)
    check_output_folder("--out", out)


def _config(path: Path | None, options: dict[str, Any]) -> ComparisonConfig:
    """The configuration of a file, overridden by the options that have the names of its fields."""
    from captum_iba.compare import ComparisonConfig

    names = {field.name for field in fields(ComparisonConfig)}
    overrides = {
        name: value.value if isinstance(value, Enum) else value
        for name, value in options.items()
        if name in names and value is not None
    }
    return ComparisonConfig(**overrides) if path is None else ComparisonConfig.from_yaml(path, **overrides)


def _layer(text: str) -> int | str | list[int | str]:
    layers = parse_layer(text)
    return layers if len(layers) > 1 else layers[0]


def _compute(comparison: Comparison, quiet: bool) -> None:
    from captum_iba._reading.wording import format_number

    left = TimeLeft((run.name for run in comparison.runs), comparison.tokens, comparison.executor)
    tokens_per_text = comparison.tokens / max(sum(map(len, comparison.chunks)), 1)
    total = comparison.tokens * len(comparison.runs)
    failing: set[str] = set()
    with progress_bar(quiet, TaskProgressColumn(), TextColumn("{task.fields[left]}")) as bar:
        task = bar.add_task("", total=total, left="")
        so_far = 0  # tokens of the chunk at hand that the bar shows already

        def advance(run: str, tokens: int) -> None:
            bar.update(task, advance=tokens, description=run, left=_left(left))

        def on_tokens(run: str, tokens: int) -> None:
            nonlocal so_far
            so_far += tokens
            left.begin(run, so_far)
            advance(run, tokens)

        def say() -> None:
            state = bar.tasks[task]
            known = [f"{run} {format_number(pace * tokens_per_text, 'score')}" for run, pace in left.paces().items()]
            parts = [
                f"{state.completed / total:.0%}",
                f"at {state.description}" if state.description else "no text is scored yet",
                _left(left),
                f"seconds per example: {', '.join(known)}" if known else "",
            ]
            note(", ".join(filter(None, parts)), quiet)

        with every_minute(say) if bar.disable else nullcontext():
            for step in comparison.run(on_tokens):
                first = left.add(step)
                advance(step.run, step.tokens - so_far)
                so_far = 0
                if first and (seconds := left.seconds_of(step.run)) > MINUTE:
                    note(f"{step.run}: about {seconds / 60:.0f} min", quiet)
                if step.error is not None and step.run not in failing:
                    failing.add(step.run)
                    note(f"{step.run} fails on examples, which is recorded; the first time with {step.error}", quiet)


class TimeLeft:
    """Estimate of the time that a comparison still takes: each run goes on at its own pace, in seconds per token."""

    def __init__(self, runs: Iterable[str], tokens: int, executor: Executor | None = None) -> None:
        self._left = dict.fromkeys(runs, tokens)
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._begun: dict[str, float] = {}  # paces of runs before their first chunk is finished
        self._start = time.perf_counter()
        self._executor = executor

    def begin(self, run: str, tokens: int) -> None:
        """Take into account that a run has scored some tokens of a chunk."""
        self._begun[run] = (time.perf_counter() - self._start) / tokens

    def add(self, step: FinishedChunk) -> bool:
        """Take a step into account; whether it is the first of its run that took time."""
        first = step.seconds is not None and not self._tokens[step.run]
        self._left[step.run] -= step.tokens
        self._start = time.perf_counter()
        if step.seconds is not None:
            self._tokens[step.run] += step.tokens
            self._seconds[step.run] += step.seconds
        return first

    def seconds(self) -> float | None:
        """Seconds left of the runs that have begun; None before anything is known."""
        paces = self.paces()
        if not paces:
            return 0.0 if not any(self._left.values()) else None
        return sum(self._left[run] * pace for run, pace in paces.items()) / self._workers()

    def not_begun(self) -> int:
        """Number of runs of which nothing is known: another method may take a hundred times as long."""
        paces = self.paces()
        return sum(bool(left) and run not in paces for run, left in self._left.items())

    def seconds_of(self, run: str) -> float:
        """Seconds left of a run that has finished a step."""
        return self._left[run] * self.paces()[run] / self._workers()

    def paces(self) -> dict[str, float]:
        """Seconds per token of the runs that have begun."""
        finished = {run: self._seconds[run] / tokens for run, tokens in self._tokens.items() if tokens}
        return {**self._begun, **finished}

    def _workers(self) -> int:
        return (self._executor.workers if self._executor else None) or 1


def _left(left: TimeLeft) -> str:
    """The time left, which is not known before every run has begun."""
    if left.seconds() is not None and (not_begun := left.not_begun()):
        return f"{not_begun} run{'s' * (not_begun > 1)} not begun"
    return _duration(left.seconds())


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
