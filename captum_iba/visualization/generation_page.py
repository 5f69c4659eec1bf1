"""A page for a generated response: its prompt colored by part, for the whole response and for each token of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from captum_iba.visualization.colour import Scale, colour_class
from captum_iba.visualization.html import Html, render_template
from captum_iba.visualization.pieces import format_number

if TYPE_CHECKING:
    from captum_iba.text.generation_result import GenerationAttribution


@dataclass(frozen=True)
class _Piece:
    """A part of the prompt with its color, or text between parts, without one."""

    text: str
    colour: str | None = None
    label: str = ""


def generation_page(attribution: GenerationAttribution, title: str = "What the response needs of its prompt") -> str:
    """A self-contained page: a click on a token of the response, or its key, colors the prompt for that token.

    It needs ``per_token`` for the tokens; without, the page has the whole span alone. There is no script.

    Args:
        attribution (GenerationAttribution): Attribution to draw.
        title (str): Title of the page. Default: "What the response needs of its prompt".

    Examples::

        >>> page = generation_page(generated, title="A summary")
        >>> "<h1>A summary</h1>" in page
        True
    """
    return render_template("generation.html.jinja", title=title, sorting=None, **_drawn(attribution))


def generation_map(attribution: GenerationAttribution) -> Html:
    """The same for the whole span as a piece of HTML, as a notebook shows it.

    Args:
        attribution (GenerationAttribution): Attribution to draw.
    """
    return Html(render_template("notebook_generation.html.jinja", **_drawn(attribution)))


def _drawn(attribution: GenerationAttribution) -> dict[str, Any]:
    rows = iter(attribution.token_bits)
    tokens = []
    for token in attribution.tokens:
        row = next(rows) if token.bits else None
        shares = None if row is None else attribution.shares_of(row)
        pieces = None if row is None or shares is None else _pieces(attribution, row.tolist(), shares.tolist())
        tokens.append(
            {"text": token.text, "probability": token.probability, "pieces": pieces, "inside": token.explained}
        )
    shares = attribution.shares.tolist()
    ranked = sorted(zip(shares, range(len(shares)), attribution.parts, strict=True), key=lambda row: (-row[0], row[1]))
    end = attribution.tokens[-1].end if attribution.tokens else 0
    return {
        "item": attribution,
        "tokens": tokens,
        "after": attribution.response[end:],
        "whole": _pieces(attribution, attribution.bits.tolist(), shares),
        "ranked": [{"part": part, "share": share} for share, _, part in ranked if share > 0],
        "scale": Scale(1.0),
    }


def _pieces(attribution: GenerationAttribution, bits: Sequence[float], shares: Sequence[float]) -> list[_Piece]:
    """The prompt in order: parts, each colored by its share up to the largest one, and what is between them."""
    scale, pieces, place = Scale(max(shares) or 1.0), [], 0
    for part, of_part, share in zip(attribution.parts, bits, shares, strict=True):
        if part.start > place:
            pieces.append(_Piece(attribution.prompt[place : part.start]))
        label = f"{share:.1%}, {format_number(of_part)} bits"
        pieces.append(
            _Piece(attribution.prompt[part.start : part.end], colour_class(scale.level(share) or 0, False), label)
        )
        place = max(place, part.end)
    if place < len(attribution.prompt):
        pieces.append(_Piece(attribution.prompt[place:]))
    return pieces
