"""What a generated response needs of its prompt: the result of :class:`captum_iba.text.GenerationExplainer`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from captum_iba._files import write_text
from captum_iba.visualization.pieces import format_number
from captum_iba.visualization.pieces import visible as with_symbols
from captum_iba.visualization.terminal import printable

_FORMAT = "captum-iba generation/1"
_SHOWN = 0.8
"""Share of the bits above the floor that the parts have which a reader is shown."""


@dataclass(frozen=True)
class PromptPart:
    """A token, word, sentence, paragraph or span of a prompt.

    Attributes:
        text (str): Its text.
        start, end (int): Its characters in the prompt.
        bits (float): Bits of it that the response needs.
        unneeded_bits (float): Bits that such a part ends with if the response does not need it.
    """

    text: str
    start: int
    end: int
    bits: float
    unneeded_bits: float = 0.0


@dataclass(frozen=True)
class ResponseToken:
    """A token of a response.

    Attributes:
        text (str): Its text, with the space before it.
        start, end (int): Its characters in the response.
        probability (float): Its probability after the whole prompt and the tokens before it.
        explained (bool): Whether it is part of the span that is explained.
        bits (tuple of float): Bits of each part of the prompt for this token alone; empty without ``per_token``.
    """

    text: str
    start: int
    end: int
    probability: float
    explained: bool = True
    bits: tuple[float, ...] = ()


@dataclass(frozen=True)
class PromptCheck:
    """Probability of a response without some parts of its prompt; a geometric mean per token, or of the choice.

    Attributes:
        n_parts (int): Number of parts that are deleted: those that a reader is shown, at most half.
        probability (float): With all parts.
        without_leading (float): Without the parts with the most bits.
        without_least (float): Without the parts with the fewest bits.
        without_random (float): Without random parts, the geometric mean over ``n_random`` draws.
        n_random (int): Number of these draws.
    """

    n_parts: int
    probability: float
    without_leading: float
    without_least: float
    without_random: float
    n_random: int


@dataclass(frozen=True)
class GenerationAttribution:
    """The attribution of a generated response to the parts of its prompt.

    ``print`` shows the parts that hold 80% of the bits; a notebook shows the whole prompt in color.

    Attributes:
        prompt (str): The prompt as the model gets it, a chat template included.
        parts (tuple of PromptPart): The parts that have a score, in order.
        response (str): The response.
        tokens (tuple of ResponseToken): Its tokens.
        span (tuple of int): Start and end of the characters of the response that are explained.
        granularity (str): ``"token"``, ``"word"``, ``"sentence"``, ``"paragraph"``, or ``"spans"``.
        probability (float): Probability of the span, the geometric mean per token; with ``contrast`` the probability of
            the choice between both.
        masked_probability (float): The same through the final mask.
        contrast (str or None): The response that it is compared with.
        settings (dict): Settings of the bottleneck.
        check (PromptCheck or None): The probability without the leading parts.
        model (str): Name of the model, without a path.
    """

    prompt: str
    parts: tuple[PromptPart, ...]
    response: str
    tokens: tuple[ResponseToken, ...]
    span: tuple[int, int]
    granularity: str
    probability: float
    masked_probability: float
    contrast: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    check: PromptCheck | None = None
    model: str = ""

    @property
    def bits(self) -> npt.NDArray[np.float64]:
        """Bits per part, (P,)."""
        return np.array([part.bits for part in self.parts], dtype=np.float64)

    @property
    def token_bits(self) -> npt.NDArray[np.float64]:
        """Bits per explained token of the response and part, (R, P); (0, P) without ``per_token``."""
        rows = [token.bits for token in self.tokens if token.bits]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.parts))

    @property
    def total_bits(self) -> float:
        """Sum of the bits of all parts."""
        return float(self.bits.sum())

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Share of each part of the bits above the floor, (P,); they sum to 1, or are 0 if no part is above it."""
        return self.shares_of(self.bits)

    def shares_of(self, bits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Shares of one row of bits, as :attr:`token_bits` has them."""
        above = np.clip(bits - np.array([part.unneeded_bits for part in self.parts]), 0, None)
        total = above.sum()
        return above / total if total > 0 else np.zeros(len(self.parts))

    def ranked(self, share: float = 1.0) -> list[PromptPart]:
        """Parts above the floor, the one with the most bits first, until they hold a share of the bits."""
        shares = self.shares
        order = np.lexsort((np.arange(len(shares)), -shares))
        before = np.concatenate([[0.0], shares[order].cumsum()[:-1]])
        return [self.parts[i] for i, sum_before in zip(order, before, strict=True) if shares[i] and sum_before < share]

    @property
    def explained(self) -> str:
        """The explained characters of the response."""
        return self.response[slice(*self.span)]

    def __repr__(self) -> str:
        leading = self.ranked(_SHOWN)[:1]
        named = f", {_visible(leading[0].text)!r} leads" if leading else ""
        return f"GenerationAttribution({_visible(self.explained)!r}, {len(self.parts)} parts{named})"

    def __str__(self) -> str:
        what = "the choice" if self.contrast is not None else "a token"
        lines = [
            f"{printable(self.model)}: {_visible(self.explained)}" if self.model else _visible(self.explained),
            *([f"rather than: {_visible(self.contrast)}"] if self.contrast is not None else []),
            f"probability of {what} {self.probability:.1%}, through the mask {self.masked_probability:.1%}; "
            f"{format_number(self.total_bits)} bits in {len(self.parts)} parts ({self.granularity})",
        ]
        shares = dict(zip(self.parts, self.shares, strict=True))
        lines += [
            f"{shares[part]:6.1%}  {format_number(part.bits):>8} bits  {_visible(part.text)}"
            for part in self.ranked(_SHOWN)
        ]
        if len(lines) == 2 + (self.contrast is not None):
            lines.append("no part has bits above the floor")
        if self.check is not None:
            lines.append(self.check_sentence())
        return "\n".join(lines)

    def check_sentence(self) -> str:
        """The check by deletion in words."""
        check = self.check
        if check is None:
            return ""
        several = "part" if check.n_parts == 1 else f"{check.n_parts} parts"
        lowered = "" if check.without_leading < check.without_random else " It lowers it no more than random parts do."
        return (
            f"Check: without the leading {several} the probability goes from {check.probability:.1%} to "
            f"{check.without_leading:.1%}; without random ones it is {check.without_random:.1%} (mean of "
            f"{check.n_random}), without those with the fewest bits {check.without_least:.1%}.{lowered}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python for JSON, with the share of each part."""
        content = dataclasses.asdict(self)
        content["settings"] = dict(self.settings)
        for part, share in zip(content["parts"], self.shares.tolist(), strict=True):
            part["share"] = share
        return {"format": _FORMAT, **content}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> GenerationAttribution:
        """A result from :meth:`to_dict`.

        Raises:
            ValueError: The content is not such a dictionary.
        """
        found = content.get("format") if isinstance(content, Mapping) else None
        if found != _FORMAT:
            raise ValueError(f"content has the format {found!r}, expected {_FORMAT!r} of to_dict")
        try:
            values = {item.name: content[item.name] for item in dataclasses.fields(cls)}
            values["parts"] = tuple(
                PromptPart(**{name: value for name, value in part.items() if name != "share"})
                for part in values["parts"]
            )
            values["tokens"] = tuple(
                ResponseToken(**{**token, "bits": tuple(token["bits"])}) for token in values["tokens"]
            )
            values["span"] = tuple(values["span"])
            if values["check"] is not None:
                values["check"] = PromptCheck(**values["check"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"content is not a whole attribution, {error} is missing or wrong") from error

    def to_json(self, indent: int | None = None) -> str:
        """:meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent, allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_json` to a file, atomically; returns its path."""
        return write_text(path, self.to_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GenerationAttribution:
        """Read a file that :meth:`save` wrote.

        Raises:
            ValueError: The file is not a saved attribution.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page on which a click on a token of the response shows its parts; atomically; returns its path."""
        from captum_iba.visualization.generation_page import generation_page

        return write_text(path, generation_page(self))

    def _repr_html_(self) -> str:
        from captum_iba.visualization.generation_page import generation_map

        return generation_map(self)


def _visible(text: str) -> str:
    """Text for one line of a terminal."""
    return printable(with_symbols(text))
