"""Commands whose help lists the options in sections."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand

# Options by the names of their parameters, of all commands; what is not here is below "Options".
# fmt: off
_SECTIONS = {
    "Input": (
        "model", "weights", "images", "file", "data", "config", "subset", "split", "examples", "max_length", "pair",
        "text_column", "pair_column", "label_column", "prompt", "prompt_column", "response_column", "chat",
    ),
    "What is explained": (
        "target", "response", "span", "contrast", "by", "per_token", "include_system", "max_new_tokens", "superpixels",
        "tile",
    ),
    "Models with other heads than a classifier's": ("word", "entity", "question", "mask", "choice", "tolerance"),
    "Methods and settings": (
        "methods", "method_set", "preset", "layer", "granularity", "beta", "steps", "samples", "complement", "rerank",
        "repeats", "check", "seed", "random_seeds", "statistics", "statistics_from",
    ),
    "Results": ("details", "out", "html", "json_file", "figure", "keep"),
    "Execution": (
        "batch_size", "prompts_per_batch", "device", "dtype", "executor", "address", "workers", "quiet", "help",
    ),
}
# fmt: on
_SECTION_OF = {name: section for section, names in _SECTIONS.items() for name in names}
OPTIONS: ContextVar[Mapping[str, str]] = ContextVar("OPTIONS", default=MappingProxyType({}))
"""Options of the command that runs, by the names of their parameters."""
_TRUTH_VALUES = ("true", "false", "yes", "no", "on", "off", "0", "1")


class Command(TyperCommand):
    """A command with its options in sections: what it reads, what it explains, how, and what it writes."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each section that has options, in the order of the command's own options."""
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *_SECTIONS, "Options")}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            section = "Arguments" if is_argument else _SECTION_OF.get(parameter.name or "", "Options")
            if (record := parameter.get_help_record(ctx)) is not None:
                sections[section].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, whose options errors can name."""
        options = {item.name: item.opts[0] for item in self.params if item.name and item.opts[0].startswith("--")}
        before = OPTIONS.set(options)
        try:
            return super().invoke(ctx)
        finally:
            OPTIONS.reset(before)


class CommandWithTexts(Command):
    """A command that refuses ``--check false``, where "false" would be one more text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; BadParameter for a flag with a truth value after it."""
        flags = {name: item for item in self.params if getattr(item, "is_flag", False) for name in _names(item)}
        options = args[: args.index("--")] if "--" in args else args
        for name, value in pairwise(options):
            if name in flags and value.casefold() in _TRUTH_VALUES:
                expected = " or ".join(_names(flags[name]))
                raise typer.BadParameter(
                    f"{name} takes no value, got {value}; expected {expected} alone (texts can follow --)."
                )
        return super().parse_args(ctx, args)


def _names(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]
