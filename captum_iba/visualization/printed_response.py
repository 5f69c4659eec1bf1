"""The explanation of a response as ``print`` shows it."""

# ruff: noqa: D102 - the properties of the protocol are documented where they are implemented

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from captum_iba._reading.legend import Legend, legend_lines
from captum_iba._reading.prompt_sentences import CUT_OFF, bits_of_prompt, is_pale, leading_numbers, part_check
from captum_iba._reading.protocols import ExplainedResponse
from captum_iba._reading.rows import ListedPart, listed_name
from captum_iba._reading.wording import format_number, format_probability, printable
from captum_iba.visualization.terminal import check_lines, row_lines

_N_OF_TOKEN = 3  # parts that a line names for one token of the response


class PrintedResponse(ExplainedResponse, Protocol):
    """What is printed: a :class:`captum_iba.text.GenerationAttribution`."""

    @property
    def model(self) -> str: ...
    @property
    def response(self) -> str: ...
    @property
    def is_mean(self) -> bool: ...
    @property
    def cut_off(self) -> bool: ...
    @property
    def granularity(self) -> str: ...
    @property
    def total_bits(self) -> float: ...
    @property
    def verdict(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def notes(self) -> list[str]: ...
    def legend(self, details: bool = False) -> Legend: ...
    def unlisted(self, listed: Sequence[Any]) -> str: ...
    def rows_of_token(self, token: Any, count: int) -> list[ListedPart]: ...


def printed_response(response: PrintedResponse, legend: bool = True, details: bool = False) -> list[str]:
    """The explanation of a response in lines; control characters are spelled out.

    Args:
        response (GenerationAttribution): The explanation.
        legend (bool): Whether the legend is the last of it. Default: True.
        details (bool): Whether it has the bits, too. They are shown in any case where no part was deleted.
            Default: False.
    """
    rows = [row._replace(name=printable(row.name)) for row in response.rows]
    has_bits = details or not any(row.is_measured for row in rows)
    numbers = leading_numbers(response)
    leading = [row for row in rows if row.number in numbers]
    others = [row for row in rows if row.number not in numbers]
    titles = (f"leading part{'s' * (len(leading) > 1)}", f"other part{'s' * (len(others) > 1)}")
    lines = [*_headline(response), *filter(None, [response.answer])]
    if not response.leading:
        lines.append("No part speaks for it." if response.shares.any() else "No part has bits above the floor.")
    lines += row_lines(leading, others, (), is_pale(response), has_bits, titles)
    if has_bits:
        lines += filter(None, [response.unlisted([part for part, _ in response.listed])])
    lines += [] if response.check is None else check_lines(part_check(response))
    lines += [*map(printable, _bits_of_tokens(response)), *response.notes]
    if has_bits:
        in_parts = f"{len(response.parts)} part{'s' * (len(response.parts) != 1)} ({response.granularity})"
        lines += [*filter(None, [bits_of_prompt(response)]), f"{format_number(response.total_bits)} bits in {in_parts}"]
    return [*lines, *legend_lines([response.legend(details)] if legend else [])]


def _headline(response: PrintedResponse) -> list[str]:
    """The response, what of it is explained, and its probability."""
    whole = visible_part(response.response)
    return [
        f"{printable(response.model)}: {whole}" if response.model else whole,
        *([f"explained of it: {visible_part(response.explained)}"] if response.explained != response.response else []),
        *([f"rather than: {visible_part(response.contrast)}"] if response.contrast is not None else []),
        *([CUT_OFF] if response.cut_off else []),
        f"{response.measured.removeprefix('the ')} {format_probability(response.probability)}"
        f"{' (geometric mean)' * response.is_mean}",
    ]


def _bits_of_tokens(response: PrintedResponse) -> list[str]:
    """Of each token with bits of its own the parts with the most of them, in a line."""
    lines = []
    for token in response.tokens:
        if token.bits:
            named = [f"{row.name} {row.share:.1%}" for row in response.rows_of_token(token, _N_OF_TOKEN)]
            most = "; ".join(named) or "no part has bits above the floor"
            lines.append(f"{visible_part(token.text)} ({format_probability(token.probability)}), most bits: {most}")
    return [*lines, "Bits of single tokens have no sign, and are not checked by removal."] if lines else []


def visible_part(text: str) -> str:
    """Text for one line of a terminal, without the space before a token."""
    return printable(listed_name(text))
