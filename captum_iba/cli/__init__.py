"""The command line: ``captum-iba explain``, ``explain-response``, ``explain-image``, ``compare`` and others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated, Any

from captum_iba._version import __version__

try:
    import typer

    for _name in ("rich", "jinja2", "transformers"):
        if find_spec(_name) is None:  # found out here, but imported only when needed: it takes seconds
            raise ModuleNotFoundError(name=_name)
except ModuleNotFoundError as missing:
    sys.exit(
        f"captum-iba: error: the command line needs {str(missing.name).partition('.')[0]}, which is not installed; "
        'run: pip install "captum-iba[text]"'
    )

from captum_iba.cli.command import Command, CommandWithTexts
from captum_iba.cli.common import print_error
from captum_iba.cli.compare import COMPARE_EXAMPLES, compare, report
from captum_iba.cli.compare_images import COMPARE_IMAGES_EXAMPLES, compare_images
from captum_iba.cli.compare_responses import COMPARE_RESPONSES_EXAMPLES, compare_responses
from captum_iba.cli.compare_texts import COMPARE_TEXTS_EXAMPLES, compare_texts
from captum_iba.cli.demo import demo
from captum_iba.cli.explain import EXPLAIN_EXAMPLES, explain
from captum_iba.cli.explain_image import EXPLAIN_IMAGE_EXAMPLES, explain_image
from captum_iba.cli.explain_response import EXPLAIN_RESPONSE_EXAMPLES, explain_response
from captum_iba.cli.interrupts import repeated_interrupts

# Help without frames is half as long on 80 columns.
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
add_command = partial(app.command, cls=Command)
app.command(cls=CommandWithTexts, epilog=EXPLAIN_EXAMPLES, short_help="Explain a classifier's decisions.")(explain)
add_command(epilog=EXPLAIN_RESPONSE_EXAMPLES, short_help="Explain a language model's responses.")(explain_response)
add_command(epilog=EXPLAIN_IMAGE_EXAMPLES, short_help="Explain an image classifier's decisions.")(explain_image)
add_command(epilog=COMPARE_EXAMPLES, short_help="Compare methods on a dataset.")(compare)
add_command(epilog=COMPARE_RESPONSES_EXAMPLES, short_help="Compare methods on a language model's responses.")(
    compare_responses
)
add_command(epilog=COMPARE_IMAGES_EXAMPLES, short_help="Compare methods on images.")(compare_images)
add_command(epilog=COMPARE_TEXTS_EXAMPLES, short_help="Compare methods on a model of any head.")(compare_texts)
add_command(short_help="Draw a comparison's report again.")(report)
add_command(short_help="Explain film reviews with the embedded model.")(demo)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process: 0 if all went well, 1 for a failure, 2 for bad usage, 130 for Ctrl-C.

    Args:
        arguments (sequence of str or None): Without the program's name; None takes the process's own.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that is not UTF-8 shows "?" rather than ending the program.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    command = typer.main.get_command(app)
    words = None if arguments is None else list(arguments)
    try:
        with repeated_interrupts():
            sys.exit(command.main(words, prog_name="captum-iba", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(130)
    except Exception as failure:
        # A usage error, of whichever parser this version of typer comes with.
        message = getattr(failure, "format_message", None)
        if message is None:
            raise
        if type(failure).__name__ == "NoArgsIsHelpError":
            typer.echo(message(), err=True)  # the help itself
        else:
            given = sys.argv[1:] if words is None else words
            named = next(iter(given), "")
            known = named in command.commands  # type: ignore[attr-defined]
            said = message().replace("Value error, ", "")  # of pydantic
            print_error(
                f"{said}{_value_of(failure, given)}{_commands_with(failure, command)} "
                f"(captum-iba {f'{named} ' if known else ''}--help says more)"
            )
        sys.exit(getattr(failure, "exit_code", 2))


def _value_of(failure: Exception, given: Sequence[str]) -> str:
    """What was given for the option that a usage error is of, where its message does not say so."""
    options = getattr(getattr(failure, "param", None), "opts", ())
    values = [value for option, value in pairwise(given) if option in options]
    return "" if len(values) != 1 or values[0] in str(failure) else f", got {values[0]!r}"


def _commands_with(failure: Exception, app: Any) -> str:
    """The commands that have the option that another one does not have."""
    if type(failure).__name__ != "NoSuchOption":  # but one that lacks its value
        return ""
    option = getattr(failure, "option_name", None)
    names = [name for name, command in app.commands.items() if any(option in item.opts for item in command.params)]
    return f"; {option} is an option of {', '.join(names)}" if names else ""


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
    """Attribution by information bottlenecks: which words, parts or regions a model needs, in bits."""
