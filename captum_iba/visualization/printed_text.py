"""The explanation of a text as ``print`` shows it, and in color on a terminal (needs rich)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from captum_iba._reading.check_sentences import NOT_CONFIRMED
from captum_iba._reading.findings import notes, percentage_note, preset_note, what_bits_keep
from captum_iba._reading.legend import legend_lines, word_legend
from captum_iba._reading.mask_sentences import remark
from captum_iba._reading.mask_state import is_measured
from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.word_sentences import answer, bits_of_another, verdict, word_check
from captum_iba._reading.wording import format_number, has_characters, printable
from captum_iba._reading.words import ranked_words
from captum_iba.visualization.color import LEVELS, palette
from captum_iba.visualization.colored_text import token_parts
from captum_iba.visualization.terminal import check_lines, word_lines

if TYPE_CHECKING:
    from rich.console import Group

_FAINT = LEVELS // 10  # so little gets no color


class PrintedText(NamedTuple):
    """An explanation in lines.

    Attributes:
        warning (list of str): That tokens were truncated; empty if none were.
        decision (list of str): Class, probability and model; and a doubt of the input, if there is one.
        text (str): The text, or the pair.
        rest (list of str): The answer, the list, the check, and the legend.
    """

    warning: list[str]
    decision: list[str]
    text: str
    rest: list[str]

    @property
    def lines(self) -> list[str]:
        """All of it."""
        return [*self.warning, *self.decision, self.text, *self.rest]


def printed_text(
    attribution: ExplainedText, legend: bool = True, details: bool = False, once: Collection[str] = ()
) -> PrintedText:
    """The explanation of a text in lines; control characters are spelled out.

    Args:
        attribution (TextAttribution): The explanation.
        legend (bool): Whether the legend is the last of it. Default: True.
        details (bool): Whether it has the bits, the layers and the settings, too. Default: False.
        once (collection of str): Notes that are left out, because they are printed once for several texts.
            Default: none.
    """
    warning, n_truncated = list[str](), attribution.tokens_truncated
    if n_truncated:
        total = len(attribution.tokens) + n_truncated
        warning.append(f"Warning: {n_truncated:,} of {total:,} tokens were truncated and not read.")
    texts = [_as_read(attribution, number) for number in range(1 + (attribution.pair is not None))]
    rows = ranked_words(attribution)
    listed = word_lines(*rows, pale=verdict(attribution) == NOT_CONFIRMED, bits=details)
    is_by_bits = bool(listed) and not is_measured(attribution) and not any(row.is_deleted for of in rows for row in of)
    has_bits = details or is_by_bits
    check = [] if attribution.check is None else check_lines(word_check(attribution))
    rest = [
        *filter(None, [attribution.open_words, answer(attribution), remark(attribution)]),
        *listed,
        *filter(None, [percentage_note(attribution) if has_bits else ""]),
        *check,
        *(note for note in notes(attribution) if note not in once),
        *(_details(attribution) if has_bits else []),
        *legend_lines([word_legend(attribution, bits=details)] if legend else []),
    ]
    return PrintedText(
        warning,
        [attribution.headline(), *filter(None, [attribution.doubt])],
        " | ".join(map(printable, texts)),
        [printable(line) for line in rest],
    )


def _details(attribution: ExplainedText) -> list[str]:
    """What the bits keep, and the layers, settings and statistics."""
    floor = f", floor {format_number(attribution.unneeded_bits)} per token"
    floor *= bool(attribution.unneeded_bits and attribution.words)
    preset, of = preset_note(attribution), f"statistics of {attribution.statistics}"
    setting = f"{attribution.layer_label} · {preset}, {of} · {attribution.total_bits:,.2f} bits{floor}"
    return [*filter(None, [bits_of_another(attribution), what_bits_keep(attribution)]), setting]


def _as_read(attribution: ExplainedText, sequence: int) -> str:
    """The text, or the second of a pair, with an ellipsis where it is truncated."""
    source = (attribution.pair or "") if sequence else attribution.text
    read = [token for token in attribution.tokens if token.sequence == sequence and token.end > token.start]
    if not attribution.tokens_truncated or not read:
        return source
    start, end = min(token.start for token in read), max(token.end for token in read)
    before = "… " if has_characters(source[:start]) else source[:start]
    return before + source[start:end] + (" …" if has_characters(source[end:]) else source[end:])


def terminal_text(
    attribution: ExplainedText, legend: bool = True, details: bool = False, once: Collection[str] = ()
) -> Group:
    """The decision, the colored text, and the leading words, with a bar each.

    Args:
        attribution (TextAttribution): Attribution to show. Control characters in it are spelled out.
        legend (bool): Whether what the columns of the list are is the last of it. Default: True.
        details (bool): Whether it has the bits, the layers and the settings, too. Default: False.
        once (collection of str): Notes that are left out, because they are printed once for several texts.
            Default: none.

    Returns:
        rich.console.Group: For ``rich.console.Console.print``.

    Examples::

        >>> from rich.console import Console
        >>> Console(no_color=True, width=40).print(terminal_text(result))  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
        positive 75.0%
        a film
        ...
    """
    # Not at the top: figures do without rich.
    from rich.console import Group
    from rich.text import Text

    colors = palette("terminal")
    line = Text()
    token_map = token_parts(attribution)
    for part in token_map.parts:
        level = token_map.level(part)
        if part.kind == "break":
            line.append("\n")
        elif part.kind == "gap":
            line.append(" " if part.text.isspace() else printable(part.text))
        elif part.kind == "special":
            if level != 0:  # without bits it says nothing of the text
                line.append(f" {printable(part.text)} ", style="dim")
        elif level is None:
            line.append(printable(part.text), style="strike")
        elif level <= _FAINT or token_map.hardly_anything:
            line.append(printable(part.text), style="underline" if token_map.leads(part) else "")
        else:
            background, ink = colors[level]
            underlined = "underline " * token_map.leads(part)
            line.append(printable(part.text), style=f"{underlined}{ink} on {background}")
    printed = printed_text(attribution, legend, details, once)
    warning = [Text(of_truncation, style="bold yellow") for of_truncation in printed.warning]
    decision = Text("\n".join(printed.decision), style="bold")
    return Group(*warning, decision, line, Text("\n".join(printed.rest)))
