"""What the commands share: options, paths, messages, a progress bar, errors in one line."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from enum import Enum
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from captum_iba.cli.command import OPTIONS
from captum_iba.cli.interrupts import interrupt_is_caught

if TYPE_CHECKING:
    from captum_iba.compare.parallel import Executor
    from captum_iba.text import TextAttribution
    from captum_iba.text.generation_result import GenerationAttribution
    from captum_iba.vision import ImageAttribution

_INTEGER = re.compile(r"-?\d+")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class Precision(str, Enum):
    """Precision of a model's weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class ExecutorName(str, Enum):
    """Where the work is done."""

    local = "local"
    ray = "ray"


PrecisionOption = Annotated[
    Precision | None,
    typer.Option(
        "--dtype", help="Precision of the model; bfloat16 is faster if the processor has it.", show_default="float32"
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Folder or hub name of a classifier.", show_default="the embedded one")
]
MINUTE = 60.0
_TOLD = 5  # inputs that pages name, which are not explained

DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Device of the model, for example cuda.", show_default="the CPU")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="Print the bits, the layers and the settings, too; pages have them.")
]
ExecutorOption = Annotated[
    ExecutorName,
    typer.Option("--executor", help="local: in this process; ray: by Ray workers, one per GPU or per few CPUs."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="Address of a Ray cluster, auto or host:6379.", show_default="start Ray on this machine"
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Number of Ray workers.", show_default="as many as fit")
]


def find_executor(name: ExecutorName, address: str | None, workers: int | None) -> Executor:
    """The executor that the options name; BadParameter for an option of Ray with the local executor."""
    from captum_iba.compare.parallel import LocalExecutor, RayExecutor

    if name is ExecutorName.ray:
        return RayExecutor(address, workers)
    for option, value in (("--address", address), ("--workers", workers)):
        if value is not None:
            raise typer.BadParameter(f"{option} is for --executor ray, the executor is {name.value}.")
    return LocalExecutor()


def quiet_workers(executor: Executor) -> AbstractContextManager[Any]:
    """Without what Ray prints to standard output of a worker's death, amid the results; a warning says so, too."""
    return redirect_stdout(StringIO()) if executor.remote else nullcontext()


def parse_layer(layer: str) -> list[int | str]:
    """Block numbers or module names: ``9``, ``1,2,3``, ``1+2+3`` or ``1..3``."""
    layers: list[int | str] = []
    for piece in (piece.strip() for piece in re.split(r"[,+]", layer)):
        if span := _RANGE.fullmatch(piece):
            if int(span[1]) > int(span[2]):
                raise typer.BadParameter(f"--layer: the range {piece} is empty, expected {span[2]}..{span[1]}.")
            layers += range(int(span[1]), int(span[2]) + 1)
        else:
            layers.append(number_or_name(piece))
    return layers


def number_or_name(text: str) -> int | str:
    """A layer or class as it is named on the command line: a number, if it is written as one."""
    return int(text) if _INTEGER.fullmatch(text) else text


def require_extra() -> None:
    """Raise ModuleNotFoundError, with what to install, unless the libraries of the extra ``compare`` are there."""
    for name in ("datasets", "pyarrow", "scipy", "matplotlib", "yaml"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f'{name} is not installed; run: pip install "captum-iba[compare]"', name=name)


def check_input(option: str, path: Path | str | None, expected: str, folder: bool = False) -> None:
    """FileNotFoundError that says what was expected, unless there is such a file (or, where it may be one, folder)."""
    if path is None or (Path(path).exists() and (folder or not Path(path).is_dir())):
        return
    what = "is a folder" if Path(path).is_dir() else "does not exist"
    raise FileNotFoundError(f"{option}: {path} {what}, expected {expected}.")


def check_model(model: str | None) -> None:
    """FileNotFoundError for a folder that is not there; another name may be one on the hub."""
    if model is not None and model.startswith((".", "/", "~")) and not Path(model).is_dir():
        raise FileNotFoundError(f"--model: there is no folder {model}, expected a folder with a model, or a hub name.")


@contextmanager
def named_model(model: str | None) -> Iterator[None]:
    """Where a model, or its statistics, cannot be loaded, the error names the option."""
    try:
        yield
    except (OSError, ValueError) as error:
        of_model = model is not None and str(error).startswith(f"model is {model},")
        if of_model or str(error).startswith("statistics"):
            raise type(error)(f"--{error}") from error
        raise


def print_result(
    result: TextAttribution, legend: bool = True, details: bool = False, once: Collection[str] = ()
) -> None:
    """Print a result: colored on a terminal, else plain lines that are never wrapped; without the notes in ``once``."""
    from captum_iba.visualization import terminal_text
    from captum_iba.visualization.printed_text import printed_text

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(terminal_text(result, legend, details, once))
    else:
        typer.echo("\n".join(printed_text(result, legend, details, once).lines))


def printed(
    results: Sequence[GenerationAttribution | ImageAttribution],
    details: bool,
    headings: Sequence[str] = (),
    quiet: bool = False,
) -> str:
    """Results one below the other, each with its heading if there are such, and one legend unless ``quiet``."""
    from captum_iba._reading.legend import legend_lines

    texts = [result.to_text(legend=False, details=details) for result in results]
    if headings:
        texts = [f"{heading}\n{text}" for heading, text in zip(headings, texts, strict=True)]
    legend = "" if quiet else "\n".join(legend_lines(result.legend(details) for result in results))
    between = "\n\n" if len(texts) > 1 else "\n"
    return between.join(filter(None, [*texts, legend]))


def check_output(option: str, path: Path | None) -> None:
    """BadParameter unless a file can be written there: known before the work, not after it."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise typer.BadParameter(f"{option}: {path} is a folder, expected a file.")
    if not path.suffix and not path.exists():  # a folder that is meant, more often than a file
        suffix = {"--json": "json", "--figure": "png"}.get(option, "html")
        raise typer.BadParameter(f"{option}: {path} has no suffix, expected a file, for example {path.name}.{suffix}.")
    if not folder.is_dir():
        raise typer.BadParameter(f"{option}: there is no folder {path.parent}.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise typer.BadParameter(f"{option}: {path} cannot be written.")


def check_results(html: Path | None, json_file: Path | None) -> None:
    """BadParameter unless a page and JSON can be written to two files; JSON may go to standard output."""
    if html is not None and str(html) == "-":
        raise typer.BadParameter("--html: expected a file; only --json goes to standard output.")
    if html is not None and json_file is not None and html.absolute() == json_file.absolute():
        raise typer.BadParameter(f"--html and --json: both are {html}, expected two files.")
    check_output("--html", html)
    check_output("--json", None if str(json_file) == "-" else json_file)


def deliver(
    entries: Callable[[], list[dict[str, Any]]],
    json_file: Path | None,
    html: Path | None,
    page: Callable[[], str],
    show: Callable[[], None],
    quiet: bool,
    figure: Callable[[], Path] | None = None,
) -> None:
    """Write results as JSON and as a page, show them unless JSON goes to standard output, and name the files."""
    from captum_iba._files import write_text

    written = []  # files first: who reads the output may close it before its end
    content = None
    if json_file is not None:
        content = json.dumps(entries(), ensure_ascii=False, allow_nan=False, indent=1)
        if str(json_file) != "-":
            written.append(write_text(json_file, f"{content}\n"))
    if html is not None:
        written.append(write_text(html, page()))
    if figure is not None:
        written.append(figure())
    if str(json_file) == "-":
        typer.echo(content)
    else:
        show()
    for path in written:
        note(f"wrote {path}", quiet)


def check_output_folder(option: str, path: Path | None) -> None:
    """BadParameter unless files can be written into a folder, which need not be there yet."""
    if path is None:
        return
    there = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise typer.BadParameter(f"{option}: {there} is a file, expected a folder.")
    if not os.access(there, os.W_OK):
        raise typer.BadParameter(f"{option}: the folder {there} cannot be written.")


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


def progress_bar(quiet: bool, *columns: ProgressColumn) -> Progress:
    """A bar on standard error, if that is a terminal, with columns around the time."""
    console = Console(stderr=True)
    before, after = columns[:1], columns[1:]
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *before,
        TimeElapsedColumn(),
        *after,
        console=console,
        disable=quiet or not console.is_terminal,
    )


@contextmanager
def every_minute(say: Callable[[], None], seconds: float = MINUTE) -> Iterator[None]:
    """Call a function every minute, from another thread."""
    ended = Event()

    def tell() -> None:
        while not ended.wait(seconds):
            say()

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def note(message: str, quiet: bool) -> None:
    """Print a line to standard error, unless quiet."""
    if not quiet:
        typer.echo(f"captum-iba: {message}", err=True)


class KeptWork:
    """How far a command with ``--keep`` is: for a line a minute, and for Ctrl-C."""

    def __init__(self, what: str, keep: Path | None, quiet: bool, done: str = "explained") -> None:
        self.total = self._finished = 0
        self._what, self._keep, self._quiet, self._done = what, keep, quiet, done
        self._before: list[str] = []

    def begin(self, name: str, said: str = "") -> None:
        """Go on with another method, which is told; what was done before is finished."""
        note(f"{name}: {self.total} {self._what[: -1 if self.total == 1 else None]}{said}", self._quiet)
        self._before.append(self._done)
        self._finished, self._done = 0, f"scored by {name}"

    def progressed(self, finished: int) -> None:
        """Take the number of finished texts or prompts into account."""
        self._finished = finished

    def found(self, count: int) -> None:
        """Say how many texts or prompts the folder has from before."""
        if count:
            note(f"{count:,} of {self.total:,} {self._what} are {self._done} already, in {self._keep}", self._quiet)

    def every_minute(self) -> AbstractContextManager[None]:
        """Context with a line a minute, where no bar shows the progress."""
        return nullcontext() if sys.stderr.isatty() else every_minute(self._say)

    def interrupted(self) -> str:
        """What Ctrl-C shows."""
        if self.total < 2 and not self._finished:
            return "interrupted"
        if self._keep is None:
            return "interrupted; nothing is kept without --keep"
        if self._before:
            before = ", ".join(self._before)
            return (
                f"interrupted; all {self._what} that are {before}, and {self._finished:,} of {self.total:,} that are "
                f"{self._done}, are kept in {self._keep}, and the same command goes on"
            )
        if not self._finished:
            return f"interrupted; none of the {self._what} was finished, and nothing is kept in {self._keep}"
        return f"interrupted; {self._count} are kept in {self._keep}, and the same command goes on"

    def _say(self) -> None:
        if self.total == 1:
            note(f"the {self._what.removesuffix('s')} is being {self._done}", self._quiet)
        elif not self._finished:  # a batch is finished as a whole
            note(f"{self.total or ''} {self._what} are being {self._done}".strip(), self._quiet)
        else:
            note(f"{self._count} {self._done}", self._quiet)

    @property
    def _count(self) -> str:
        """How much is finished, of how much where that is known."""
        of_all = f" of {self.total:,}" if self.total else ""
        return f"{self._finished:,}{of_all} {self._what}"


def print_error(message: str) -> None:
    """Print an error to standard error, in one line."""
    line = " ".join(str(message).split())
    typer.echo(f"captum-iba: error: {line}", err=True)


class Failures:
    """Texts, prompts or images that cannot be explained. The others are; the exit status is 1."""

    def __init__(self, what: str) -> None:
        self.numbers: set[int] = set()
        self._what = what
        self._said: list[str] = []

    def tell(self, number: int, name: str, error: Exception) -> None:
        """Say which one it is, and why."""
        said = " ".join(f"{name} is not explained: {_naming_option(str(error))}".split()).rstrip(".")
        self.numbers.add(number)
        self._said.append(said)
        print_error(said)

    @property
    def introduction(self) -> str:
        """What pages say above the others; empty where all are explained."""
        more = len(self._said) - _TOLD
        said = [*self._said[:_TOLD], *([f"{more} more of the {self._what} are not explained"] if more > 0 else [])]
        return "".join(f"{one}. " for one in said).strip()

    def exit(self, total: int) -> None:
        """Leave the command, after all is written, with the number of those that are not explained, if there are."""
        if self.numbers:
            print_error(f"{len(self.numbers):,} of {total:,} {self._what} are not explained")
            raise typer.Exit(1)


def _naming_option(message: str) -> str:
    """A message that begins with an argument's name with the name of the command's option for it."""
    named = re.match(r"(\w+)(?= is |: )", message)
    option = None if named is None else OPTIONS.get().get(named[1])
    return message if named is None or option is None else f"{option}{message[named.end() :]}"


@contextmanager
def loading() -> Iterator[None]:
    """For the imports and the model: transformers is quiet, and no garbage collected.

    A collection reads all objects that there are, and those of the imports stay: a third of the time until the first
    result. They are left out of later collections, too.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()


@contextmanager
def plain_errors(quiet: bool, interrupted: Callable[[], str] = lambda: "interrupted") -> Iterator[None]:
    """What goes wrong is one line on standard error, without a traceback; ``interrupted`` gives what Ctrl-C shows."""

    shown = set()

    def show(message: Any, *_: Any, **__: Any) -> None:
        if str(message) not in shown:  # who catches warnings makes the filter forget which were there
            shown.add(str(message))
            note(f"note: {message}", quiet)

    with warnings.catch_warnings():
        warnings.simplefilter("once", UserWarning)
        # Without statistics, what is used in their place has been said already.
        warnings.filterwarnings("ignore", "no statistics given")
        warnings.showwarning = show
        try:
            yield
        except KeyboardInterrupt:
            interrupt_is_caught()
            print_error(interrupted())
            raise typer.Exit(130) from None
        except (typer.Exit, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("CAPTUM_IBA_TRACEBACK"):
                raise
            expected = isinstance(error, (ValueError, TypeError, OSError, RuntimeError, ImportError, AssertionError))
            text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            text = _naming_option(re.sub(r"^\[Errno -?\d+\] ", "", text))
            print_error(text if expected else f"{type(error).__name__}: {text} (CAPTUM_IBA_TRACEBACK=1 shows more)")
            raise typer.Exit(1) from None
