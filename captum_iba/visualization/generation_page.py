"""A page for a generated response: its prompt colored by part, for the whole response and for each token of it."""

# ruff: noqa: D102 - the properties of the protocol are documented where they are implemented

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from captum_iba._reading.check_sentences import summary
from captum_iba._reading.legend import Legend, color_legend, merged_legend, part_labels
from captum_iba._reading.prompt_sentences import (
    CUT_OFF,
    bits_of_prompt,
    is_pale,
    leading_numbers,
    part_check,
    probability_without,
)
from captum_iba._reading.rows import SPEAKS_AGAINST, ListedPart, is_in_turn
from captum_iba._reading.wording import format_number, format_probability
from captum_iba.visualization.color import Scale, color_class
from captum_iba.visualization.colored_text import PALE
from captum_iba.visualization.html import Html, render_template
from captum_iba.visualization.printed_response import PrintedResponse


class DrawableGeneration(PrintedResponse, Protocol):
    """What pages draw of a :class:`captum_iba.text.GenerationAttribution`."""

    @property
    def prompt(self) -> str: ...
    @property
    def span(self) -> tuple[int, int]: ...
    @property
    def bars(self) -> npt.NDArray[np.float64]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def provenance(self) -> Mapping[str, str]: ...
    def shares_of(self, bits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]: ...


# Parts in a list that were not removed, in all and of a token of the response; characters of a title.
_N_LISTED, _N_OF_TOKEN, _N_CHARACTERS = 12, 6, 80


@dataclass(frozen=True)
class _Piece:
    """A part of the prompt with its color, or text between parts, without one."""

    text: str
    color: str | None = None
    label: str = ""
    against: bool = False
    leads: bool = False


def generation_page(
    attribution: DrawableGeneration | Sequence[DrawableGeneration],
    title: str = "What the response needs from its prompt",
    ids: Sequence[str] | None = None,
    introduction: str = "",
) -> str:
    """A self-contained page: a click on a token of the response, or its key, colors the prompt for that token.

    It needs ``per_token`` for the tokens; without, the page has the whole span alone. There is no script.

    Args:
        attribution (DrawableGeneration or sequence): Attribution to draw, or several of one model and settings, of
            which all but the first are folded.
        title (str): Title of the page. Default: "What the response needs from its prompt".
        ids (sequence of str, optional): The name of every attribution. Default: None, their numbers from 1.
        introduction (str): A sentence above the prompts. Default: none.

    Returns:
        str: HTML.

    Raises:
        ValueError: No attributions, or another number of ``ids``.

    Examples::

        >>> generation_page(generated, title="A summary").count('class="prompt"')
        1
    """
    attributions = attribution if isinstance(attribution, Sequence) else [attribution]
    if not attributions:
        raise ValueError("attribution is empty, expected at least one")
    names = range(1, len(attributions) + 1) if ids is None else ids
    if len(names) != len(attributions):
        raise ValueError(f"ids has {len(names)} entries, expected one for each of {len(attributions)} attributions")
    drawn = [
        {**_drawn(item), "id": f"r{number}" if number else "", "name": str(name), "asked": asked(item)}
        for number, (item, name) in enumerate(zip(attributions, names, strict=True))
    ]
    relations = {row.relation for one in drawn for row in one["rows"]}
    template = "generation.html.jinja"
    values: dict[str, Any] = {
        "drawn": drawn,
        "relations": relations,
        "labels": part_labels(attributions[0]),
        "cut_off": CUT_OFF,
        "scale": Scale(1.0),
        "introduction": introduction,
        "summary": summary([None if item.check is None else part_check(item) for item in attributions]),
        "legend": merged_legend([*(item.legend() for item in attributions), _color_legend(attributions)]),
    }
    return render_template(template, title=title, sorting=None, **values)


def _color_legend(attributions: Sequence[DrawableGeneration]) -> Legend:
    """The legend of colors, where parts were measured."""
    if not any(row.is_measured for item in attributions for row in item.rows):
        return {}
    return color_legend("part", any(row.relation == SPEAKS_AGAINST for item in attributions for row in item.rows))


def generation_map(attribution: DrawableGeneration) -> Html:
    """The prompt, colored for the whole span, as a piece of HTML, as a notebook shows it.

    Args:
        attribution (GenerationAttribution): Attribution to draw.

    Returns:
        Html: A string: an element with its own style.

    Examples::

        >>> generation_map(generated).count('class="w ')
        2
    """
    return Html(render_template("notebook_generation.html.jinja", cut_off=CUT_OFF, **_drawn(attribution)))


def asked(attribution: DrawableGeneration) -> str:
    """The beginning of what the parts of a prompt say, in one line, with "…" for a template or text between them."""
    text, place = "", None
    for part in attribution.parts:
        between = "" if place is None else attribution.prompt[place : part.start]
        text += f" … {part.text}" if between.strip() else f"{between}{part.text}"
        place = part.end
    text = " ".join(text.split())
    return text if len(text) <= _N_CHARACTERS else f"{text[:_N_CHARACTERS].rstrip()}…"


def _drawn(attribution: DrawableGeneration) -> dict[str, Any]:
    tokens = []
    for number, token in enumerate(attribution.tokens):
        pieces, rows = None, list[ListedPart]()
        if token.bits:
            shares = attribution.shares_of(np.array(token.bits))
            pieces = _pieces(attribution, token.bits, shares.tolist(), shares.tolist())
            rows = attribution.rows_of_token(token, _N_OF_TOKEN)
        tokens.append({"number": number, "token": token, "pieces": pieces, "rows": rows})
    bits, shares = attribution.bits, attribution.shares
    listed = [row for place, row in enumerate(attribution.rows) if place < _N_LISTED or row.is_measured]
    leading = leading_numbers(attribution)
    end = attribution.tokens[-1].end if attribution.tokens else 0
    return {
        "item": attribution,
        "tokens": tokens,
        "after": attribution.response[end:],
        "whole": _pieces(attribution, bits.tolist(), shares.tolist(), attribution.bars.tolist(), True),
        "rows": listed,
        "leading": [row for row in listed if row.number in leading],
        "others": [row for row in listed if row.number not in leading],
        "check": None if attribution.check is None else part_check(attribution),
        "about_bits": bits_of_prompt(attribution),
        "in_turn": is_in_turn(listed),
        "pale": is_pale(attribution),
        "unlisted": attribution.unlisted([attribution.parts[row.number] for row in listed]),
        "measured": any(row.is_measured for row in listed),
    }


def _pieces(
    attribution: DrawableGeneration,
    bits: Sequence[float],
    shares: Sequence[float],
    bars: Sequence[float],
    with_effect: bool = False,
) -> list[_Piece]:
    """The prompt in order: parts, each colored as its bar up to the largest one, and what is between them."""
    largest = max(bars) or 1.0
    # Where the check does not confirm the leading parts, colors are pale.
    is_muted = with_effect and is_pale(attribution)
    scale, pieces, place = Scale(largest / PALE if is_muted else largest), [], 0
    leading = leading_numbers(attribution) if with_effect else set()
    relations = {row.number: row.relation for row in attribution.rows} if with_effect else {}
    for number, (part, of_part, share, depth) in enumerate(zip(attribution.parts, bits, shares, bars, strict=True)):
        if part.start > place:
            pieces.append(_Piece(attribution.prompt[place : part.start]))
        start = max(part.start, place)  # no character is drawn twice, though it may have several tokens
        relation = relations.get(number, "")
        alone = probability_without(attribution, part) if with_effect else math.nan
        without = "" if math.isnan(alone) else f"without it {format_probability(alone)}"
        bits_of_part = f"{share:.1%} of the bits, {format_number(of_part)} bits"
        label = ", ".join(filter(None, (without, bits_of_part, relation)))
        # What matters only without other parts, and raises the probability alone, would look like a reason.
        raises = number not in leading and alone > attribution.probability
        color = color_class(scale.level(0.0 if raises else depth) or 0, False)
        against = relation == SPEAKS_AGAINST
        pieces.append(_Piece(attribution.prompt[start : part.end], color, label, against, number in leading))
        place = max(place, part.end)
    if place < len(attribution.prompt):
        pieces.append(_Piece(attribution.prompt[place:]))
    return pieces
