"""The command line: ``captum-iba explain``, ``captum-iba demo``."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from captum_iba._version import __version__

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    for _name in ("jinja2", "transformers"):
        if find_spec(_name) is None:  # found out here, but imported only when needed: it takes seconds
            raise ModuleNotFoundError(name=_name)
except ModuleNotFoundError as missing:
    sys.exit(
        f"captum-iba: error: the command line needs {str(missing.name).partition('.')[0]}, which is not installed; "
        'run: pip install "captum-iba[text]"'
    )

if TYPE_CHECKING:
    from captum_iba.text import TextAttribution, TextExplainer


class Method(str, Enum):
    """What computes the bits."""

    iba = "iba"


class Preset(str, Enum):
    """Settings that belong together."""

    default = "default"
    paper = "paper"
    as_released = "as_released"


class Granularity(str, Enum):
    """What shares one value of the mask."""

    token = "token"
    word = "word"
    feature = "feature"


app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process: 0 if all went well, 1 for a failure, 2 for bad usage, 130 for Ctrl-C.

    Args:
        arguments (sequence of str or None): Without the program's name; None takes the process's own.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that is not UTF-8 shows "?" rather than ending the program.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    command = typer.main.get_command(app)
    try:
        given = None if arguments is None else list(arguments)
        sys.exit(command.main(given, prog_name="captum-iba", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        _error("interrupted")
        sys.exit(130)
    except Exception as error:
        # A usage error, of whichever parser this version of typer comes with.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _error(f"{message()} (captum-iba --help says more)")
        sys.exit(getattr(error, "exit_code", 2))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"captum-iba {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How many bits of each word a text classifier needs, by information bottlenecks."""


@app.command()
def explain(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to explain.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name of a classifier.", show_default="the embedded one")
    ] = None,
    pair: Annotated[list[str] | None, typer.Option(help="The second text of a pair; once for each text.")] = None,
    file: Annotated[str | None, typer.Option(help="Texts from a file, one a line; - is standard input.")] = None,
    layer: Annotated[
        str | None, typer.Option(help="Block from 1, or a module's name.", show_default="the middle one")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Class to explain: label or number.", show_default="the predicted one")
    ] = None,
    method: Annotated[Method, typer.Option(help="What computes the bits.")] = Method.iba,
    preset: Annotated[Preset, typer.Option(help="Settings that belong together.")] = Preset.default,
    granularity: Annotated[
        Granularity | None, typer.Option(help="What opens and closes as one.", show_default="the preset's")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(min=0, help="Weight of the information.", show_default="the preset's")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="Updates of the mask.", show_default="the preset's")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Noise draws a step.", show_default="the preset's")] = None,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    statistics: Annotated[
        Path | None, typer.Option(help="Statistics of the layer, as FeatureStatistics.save writes them.")
    ] = None,
    statistics_from: Annotated[
        Path | None, typer.Option(help="Texts, one a line, to estimate the statistics from; kept in a cache.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the coloured texts.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write a list of results as JSON; - is standard output.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts at a time.")] = 8,
    device: Annotated[
        str | None, typer.Option(help="Where the model runs, for example cuda.", show_default="the CPU")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
) -> None:
    """Explain texts: the words in colour, and how many bits the classifier needs of each."""
    with _plain_errors(quiet):
        given = _texts(texts, file)
        if pair and len(pair) != len(given):
            raise typer.BadParameter(f"--pair: expected one for each of the {len(given)} texts, got {len(pair)}.")
        if statistics is not None and statistics_from is not None:
            raise typer.BadParameter("--statistics and --statistics-from: expected one of them, got both.")
        explainer = _load(model, layer, statistics, device)
        if statistics is None and preset is not Preset.as_released:
            _find_statistics(explainer, model, statistics_from, quiet)
        results = explainer.explain(
            given,
            pair or None,
            target=_target(target, explainer.classifier.labels),
            granularity=None if granularity is None else granularity.value,
            preset=preset.value,
            beta=beta,
            n_steps=steps,
            n_samples=draws,
            seed=seed,
            batch_size=batch_size,
            show_progress=not quiet and sys.stderr.isatty(),
        )
        _deliver(results, html, json_file, quiet)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("captum-iba-demo.html"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the path of the page.")] = False,
) -> None:
    """Explain a few film reviews at all 12 layers of the embedded model, and write a page."""
    with _plain_errors(quiet):
        from captum_iba.text import (
            TextExplainer,
            demo_texts,
            embedded_model_path,
            embedded_statistics,
            explain_layers,
            find_blocks,
        )
        from captum_iba.text._files import write_text
        from captum_iba.text.classifier import load_classifier
        from captum_iba.visualization import layer_page

        _note("loading the embedded model", quiet)
        model, tokenizer = load_classifier(embedded_model_path())
        depth = len(find_blocks(model))
        with _one_thread(), _bar(quiet) as bar:
            task = bar.add_task("layers", total=depth)
            rows = explain_layers(
                (TextExplainer(model, tokenizer, layer, embedded_statistics(layer)) for layer in range(1, depth + 1)),
                demo_texts(),
                on_layer=lambda: bar.advance(task),
            )
        page = layer_page(
            rows,
            title="Where the words are needed: five film reviews, layer by layer",
            introduction="A 12-layer BERT for film reviews, embedded in captum_iba, decided on each text below.",
        )
        typer.echo(f"{'' if quiet else 'The report is at '}{write_text(out, page)}")


def _texts(arguments: list[str] | None, file: str | None) -> list[str]:
    if arguments and file is not None:
        raise typer.BadParameter("TEXT and --file: expected one of them, got both.")
    if arguments:
        return arguments
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("no text: expected TEXT, --file, or texts on standard input.")
    source = "-" if file is None else file
    texts = _lines(source)
    if not texts:
        raise typer.BadParameter(f"no text in {'standard input' if source == '-' else source}.")
    return texts


def _lines(source: str) -> list[str]:
    """The lines of a file that hold something."""
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        # Only line ends split: str.splitlines would also split at form feeds and the like.
        lines = raw.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not a UTF-8 text file ({error.reason} at byte {error.start}).") from error
    return [line for line in lines if line.strip()]


def _load(model: str | None, layer: str | None, statistics: Path | None, device: str | None) -> TextExplainer:
    from captum_iba.text import TextExplainer, embedded_model_path

    return TextExplainer.from_pretrained(
        embedded_model_path() if model is None else model,
        layer=int(layer) if layer is not None and layer.lstrip("-").isdecimal() else layer,
        statistics=statistics,
        device=device,
    )


def _target(target: str | None, labels: Sequence[str]) -> int | str | None:
    """A number is a class's number, unless a label is called so."""
    if target is None or target in labels or not target.lstrip("-").isdecimal():
        return target
    return int(target)


def _find_statistics(explainer: TextExplainer, model: str | None, source: Path | None, quiet: bool) -> None:
    from captum_iba.text import cached_statistics, embedded_statistics

    if source is not None:
        path, found = cached_statistics(explainer, _lines(str(source)), show_progress=not quiet and sys.stderr.isatty())
        _note(f"statistics of {source} {'found' if found else 'estimated and kept'} at {path}", quiet)
    elif model is None and explainer.layer.index is not None:
        explainer.statistics = embedded_statistics(explainer.layer.index)
        _note("statistics: those of the embedded model, over film reviews", quiet)
    else:
        _note(
            "no statistics: each text's own stand in, which is less faithful; "
            "--statistics-from FILE estimates them from texts",
            quiet,
        )


def _deliver(results: list[TextAttribution], html: Path | None, json_file: Path | None, quiet: bool) -> None:
    from captum_iba.text._files import write_text
    from captum_iba.visualization import terminal_text, token_page

    content = None
    if json_file is not None:
        content = json.dumps([result.to_dict() for result in results], ensure_ascii=False, allow_nan=False, indent=1)
    if str(json_file) == "-":
        typer.echo(content)
    else:
        console = Console(highlight=False)
        for number, result in enumerate(results):
            if number:
                typer.echo()
            if console.is_terminal:
                console.print(terminal_text(result))
            else:  # never wrapped, never coloured
                typer.echo(str(result))
        if json_file is not None and content is not None:
            _note(f"wrote {write_text(json_file, content + chr(10))}", quiet)
    if html is not None:
        _note(f"wrote {write_text(html, token_page(results))}", quiet)


@contextmanager
def _one_thread() -> Iterator[None]:
    """For the embedded model: its matrices are so small that a second thread waits more than it works."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bar(quiet: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )


def _note(message: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(f"captum-iba: {message}", err=True)


def _error(message: str) -> None:
    line = " ".join(str(message).split())
    typer.echo(f"captum-iba: error: {line}", err=True)


@contextmanager
def _plain_errors(quiet: bool) -> Iterator[None]:
    """What goes wrong is one line on standard error, without a traceback."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    def show(message: Any, *_: Any, **__: Any) -> None:
        _note(f"note: {message}", quiet)

    with warnings.catch_warnings():
        warnings.simplefilter("once", UserWarning)
        # Without statistics, what stands in for them has been said already.
        warnings.filterwarnings("ignore", "no statistics given")
        warnings.showwarning = show
        try:
            yield
        except KeyboardInterrupt:
            _error("interrupted")
            raise typer.Exit(130) from None
        except (typer.Exit, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("CAPTUM_IBA_TRACEBACK"):
                raise
            expected = isinstance(error, (ValueError, TypeError, OSError, RuntimeError, ImportError, AssertionError))
            text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            _error(text if expected else f"{type(error).__name__}: {text} (CAPTUM_IBA_TRACEBACK=1 shows more)")
            raise typer.Exit(1) from None
