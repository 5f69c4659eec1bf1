"""What a generated response needs of its prompt: the result of :class:`captum_iba.text.GenerationExplainer`."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from captum_iba._files import write_text
from captum_iba._ranking import estimated_effects, importance_of, leading_of, order_of, shares_above
from captum_iba.attr.optimizer import AT_FLOOR
from captum_iba.text.json_result import JsonResult
from captum_iba.visualization.check_sentences import check_sentence
from captum_iba.visualization.pieces import COVERED, format_number
from captum_iba.visualization.pieces import visible as with_symbols
from captum_iba.visualization.sentences import NO_EFFECT
from captum_iba.visualization.terminal import printable

_CUT_OFF = "The response was cut off: it reached the largest number of new tokens."
_FORMAT = "captum-iba generation/1"
_NAMED, _NOTICEABLE = 5, 0.1  # parts in a sentence; nats


@dataclass(frozen=True)
class PromptPart:
    """A token, word, sentence, paragraph or span of a prompt.

    Attributes:
        text (str): Its text.
        start, end (int): Its characters in the prompt.
        bits (float): Bits of it that the response needs.
        unneeded_bits (float): Bits that such a part ends with if the response does not need it.
        effect (float or None): Decrease in the log-probability per token, or of the choice, without it
            (:func:`captum_iba.metrics.removal_effects`); None where it was not measured.
        effect_alone (float or None): The same without this part alone. ``effect`` is the mean of this and of the
            decrease without it after the other measured parts. With ``check`` all of up to 40 parts have it.
    """

    text: str
    start: int
    end: int
    bits: float
    unneeded_bits: float = 0.0
    effect: float | None = None
    effect_alone: float | None = None

    @property
    def speaks_against(self) -> bool:
        """Whether the response is more probable without it, both alone and on average."""
        decreases = [self.effect, self.effect if self.effect_alone is None else self.effect_alone]
        return all(decrease is not None and decrease < -NO_EFFECT for decrease in decreases)


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
    """Probability of a response without some parts of its prompt: the geometric mean per token.

    With ``contrast`` it is the probability of the choice between both responses.

    Attributes:
        n_parts (int): Number of parts that are deleted: those that a reader is shown, at most half.
        probability (float): With all parts.
        without_leading (float): Without the leading parts.
        without_least (float): Without the parts with the fewest bits among the others.
        without_random (float): Without as many other parts at random, the mean over ``n_random`` draws.
        n_random (int): Number of these draws.
    """

    n_parts: int
    probability: float
    without_leading: float
    without_least: float
    without_random: float
    n_random: int


@dataclass(frozen=True)
class GenerationAttribution(JsonResult):
    """The attribution of a generated response to the parts of its prompt.

    ``print`` shows the parts that hold 80% of the bits; a notebook shows the whole prompt in color.

    Attributes:
        prompt (str): The prompt as the model gets it, a chat template included.
        parts (tuple of PromptPart): The parts that have a score, in order.
        response (str): The response.
        tokens (tuple of ResponseToken): Its tokens, up to the last one that is explained.
        span (tuple of int): Start and end of the characters of the response that are explained.
        granularity (str): ``"token"``, ``"word"``, ``"sentence"``, ``"paragraph"``, or ``"spans"``.
        probability (float): Probability of the span, the geometric mean per token; with ``contrast`` the probability of
            the choice between both.
        masked_probability (float), closed_probability (float): The same through the final mask, and through a closed
            one, which leaves next to nothing of the parts.
        contrast (str or None): The response that it is compared with.
        settings (dict): Settings of the bottleneck.
        check (PromptCheck or None): The probability without the leading parts; None where there are none.
        cut_off (bool): Whether the response was generated, and ended because it reached ``max_new_tokens``.
        model (str): Name of the model, without a path.
        provenance (dict): Versions of the libraries, device and precision.
    """

    prompt: str
    parts: tuple[PromptPart, ...]
    response: str
    tokens: tuple[ResponseToken, ...]
    span: tuple[int, int]
    granularity: str
    probability: float
    masked_probability: float
    closed_probability: float
    contrast: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    check: PromptCheck | None = None
    cut_off: bool = False
    model: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

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
        floors = np.array([part.unneeded_bits for part in self.parts])
        return shares_above(bits, floors, AT_FLOOR)

    @property
    def importance(self) -> npt.NDArray[np.float64]:
        """What lists and colors show of each part, (P,), from 0 to 1.

        Of parts whose removal was measured it is the decrease in log-probability, relative to the largest, and 0 where
        the removal raises it. The others come after them, by their bits above the floor.
        """
        return importance_of(self.shares, self._effects)

    @property
    def estimated_effects(self) -> npt.NDArray[np.float64]:
        """Decrease in the log-probability without each part, in nats, (P,).

        It is measured for the parts with the most bits (``part.effect``), and estimated from the shares of the others;
        NaN without any measured one. Sums predict what the removal of several parts does.
        """
        return estimated_effects(self.shares, self._effects)

    @property
    def ranked(self) -> list[tuple[PromptPart, float]]:
        """Parts with bits above the floor, or an effect, and their shares, the most important ones first.

        The order is that of :attr:`importance`.
        """
        shown = [i for i in self._order if self.shares[i] > 0 or abs(self.parts[i].effect or 0.0) > NO_EFFECT]
        return [(self.parts[i], float(self.shares[i])) for i in shown]

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """Number of parts that are ranked below each, (P,), as scores for metrics of the ranking."""
        scores = np.empty(len(self.parts))
        scores[self._order] = np.arange(len(self.parts))[::-1]
        return scores

    @property
    def _order(self) -> npt.NDArray[np.intp]:
        return order_of(self.bits, self.shares, self.importance, self._effects)

    @property
    def _effects(self) -> list[float | None]:
        return [part.effect for part in self.parts]

    @property
    def leading(self) -> list[tuple[PromptPart, float]]:
        """The first of :attr:`ranked`, until they hold 80% of the sum of :attr:`importance`."""
        leading = leading_of(self._order, self.importance, COVERED)
        return [(self.parts[i], float(self.shares[i])) for i in leading]

    def place_of(self, part: PromptPart) -> str:
        """Which of several parts of one name it is: " (word 4)"; empty where the name says it."""
        same = [number for number, other in enumerate(self.parts, 1) if other.text == part.text]
        noun = "part" if self.granularity == "spans" else self.granularity
        number = next(number for number, other in enumerate(self.parts, 1) if other is part)
        return f" ({noun} {number})" if len(same) > 1 else ""

    @property
    def explained(self) -> str:
        """The explained characters of the response."""
        return self.response[slice(*self.span)]

    def __repr__(self) -> str:
        leading = self.leading
        named = f", {_visible(leading[0][0].text)!r} leads" if leading else ""
        return f"GenerationAttribution({_visible(self.explained)!r}, {len(self.parts)} parts{named})"

    def __str__(self) -> str:
        what = "of the choice" if self.contrast is not None else "per token"
        lines = [
            f"{printable(self.model)}: {_visible(self.explained)}" if self.model else _visible(self.explained),
            *([f"rather than: {_visible(self.contrast)}"] if self.contrast is not None else []),
            *([_CUT_OFF] if self.cut_off else []),
            f"probability {what} {self.probability:.1%}; {format_number(self.total_bits)} bits in {len(self.parts)} "
            f"part{'s' * (len(self.parts) != 1)} ({self.granularity}); with these bits alone "
            f"{self.masked_probability:.1%}, without any {self.closed_probability:.1%}",
        ]
        lines += [
            f"{effect_of(part)}{share:6.1%}  {format_number(part.bits):>8} bits  {_visible(part.text)}"
            f"{self.place_of(part)}"
            for part, share in self.leading
        ] or ["no part speaks for it" if self.shares.any() else "no part has bits above the floor"]
        against = sorted((p for p, _ in self.ranked if (p.effect or 0) < -NO_EFFECT), key=lambda part: part.effect or 0)
        lines += [
            f"{effect_of(part)}{self.shares[self.parts.index(part)]:6.1%}  "
            f"{'speaks against it' if part.speaks_against else 'depends on the other parts'}: "
            f"{_visible(part.text)}{self.place_of(part)}"
            for part in against
        ]
        listed = {id(part) for part in (*against, *(part for part, _ in self.leading))}
        if others := [share for part, share in self.ranked if id(part) not in listed]:
            plural = "s" if len(others) > 1 else ""
            lines.append(f"{sum(others):6.1%} of the bits in {len(others)} other part{plural}")
        if any(part.effect is not None for part, _ in self.ranked):
            lines.append(
                f"nats: decrease in the log-probability {what}, the mean of the removal of the part alone and after "
                "the other measured parts; the list is sorted by it. %: share of the bits above the floor"
            )
        return "\n".join([*lines, *self.sentences])

    @property
    def sentences(self) -> list[str]:
        """What the page and ``print`` say of the check, and of evidence that the list does not show."""
        return list(filter(None, [self.check_sentence(), self.hidden_sentence()]))

    def hidden_sentence(self) -> str:
        """Parts with few bits whose removal alone matters as much as that of a leading part; empty without such."""
        leading = [part for part, _ in self.leading]
        least = min((part.effect for part in leading if part.effect is not None), default=math.inf)
        hidden = [part for part in self.parts if part not in leading and (part.effect or 0.0) >= -NO_EFFECT]
        hidden = [part for part in hidden if (part.effect_alone or 0.0) >= max(_NOTICEABLE, least)]
        hidden = sorted(hidden, key=lambda part: -(part.effect_alone or 0.0))
        if not hidden:
            return ""
        named = [f"{_visible(part.text)}{self.place_of(part)} {part.effect_alone:.2f} nats" for part in hidden]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        matter = "matters" if len(named) == 1 else "matter"
        return (
            f"Removed alone, {', '.join(named[:_NAMED])}{more} {matter} as much as a listed part: the list does not "
            "show all the evidence."
        )

    def check_sentence(self) -> str:
        """The check by deletion in words."""
        if self.check is None:
            return ""
        count = self.check.n_parts
        can_contradict, of_all = bool(self.leading), count == len(self.parts)
        return check_sentence(self.check, count, "the probability", "part", None, can_contradict, of_all)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python for JSON, with the share and rank of each part, and the sentences."""
        content = dataclasses.asdict(self)
        content["settings"], content["provenance"] = dict(self.settings), dict(self.provenance)
        ranks = {id(part): rank for rank, (part, _) in enumerate(self.ranked, 1)}
        for part, own, share in zip(content["parts"], self.parts, self.shares.tolist(), strict=True):
            part |= {"share": share, "rank": ranks.get(id(own)), "speaks_against": own.speaks_against}
        return {"format": _FORMAT, **content, "sentences": self.sentences}

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
            names = [item.name for item in dataclasses.fields(PromptPart)]
            values["parts"] = tuple(PromptPart(**{name: part[name] for name in names}) for part in values["parts"])
            values["tokens"] = tuple(
                ResponseToken(**{**token, "bits": tuple(token["bits"])}) for token in values["tokens"]
            )
            values["span"] = tuple(values["span"])
            if values["check"] is not None:
                values["check"] = PromptCheck(**values["check"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"content is not a whole attribution, {error} is missing or wrong") from error

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page on which a click on a token of the response shows its parts; atomically; returns its path."""
        from captum_iba.visualization.generation_page import generation_page

        return write_text(path, generation_page(self))

    def _repr_html_(self) -> str:
        from captum_iba.visualization.generation_page import generation_map

        return generation_map(self)


def effect_of(part: PromptPart) -> str:
    """The effect of a part in a column of text; empty where it was not measured."""
    if part.effect is None:
        return ""
    alone = "" if part.effect_alone is None else f" (alone {round(part.effect_alone, 2) + 0.0:5.2f})"
    return f"{round(part.effect, 2) + 0.0:5.2f} nats{alone}  "


def _visible(text: str) -> str:
    """Text for one line of a terminal."""
    return printable(with_symbols(text))
