"""What a generated response needs of its prompt: the result of :class:`captum_iba.text.GenerationExplainer`."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from captum_iba._explain.json_result import JsonResult, json_number, json_safe
from captum_iba._files import write_text
from captum_iba._reading.codes import prompt_findings
from captum_iba._reading.legend import Legend, part_legend
from captum_iba._reading.order import (
    COVERED,
    estimated_effects,
    importance_of,
    leading_of,
    order_of,
    shares_above_floor,
)
from captum_iba._reading.prompt_sentences import (
    answer,
    bits_of_prompt,
    part_check,
    part_verdict,
    probability_without,
    prompt_notes,
)
from captum_iba._reading.removal_check import PromptCheck
from captum_iba._reading.rows import (
    CHANGES_CHOICE,
    MATTERS_ALONE,
    RAISES_ALONE,
    VISIBLE,
    ListedPart,
    bar_of,
    listed_name,
)
from captum_iba._reading.thresholds import MUCH, NO_EFFECT, is_much_lower
from captum_iba._reading.wording import brief, format_probability
from captum_iba.attr.optimizer import AT_FLOOR
from captum_iba.text.prompt_parts import PromptPart
from captum_iba.visualization.printed_response import printed_response, visible_part

_FORMAT = "captum-iba generation/3"  # 2 had no numbers of the contrast

# Nats that a part which only the check removed needs for a line, where the others on the list have less.
_NOTICEABLE = 0.1
_N_ALONE = 10  # others that are listed because their removal alone takes much of the probability
_N_LISTED = 8  # parts that are listed whatever their effect, of those that were removed both ways


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
class GenerationAttribution(JsonResult):
    """The attribution of a generated response to the parts of its prompt.

    ``print`` shows the leading parts; a notebook shows the whole prompt in color.

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
        contrast_tokens (int), contrast_probability (float): Number of its tokens, and its probability, the geometric
            mean per token; 0 without ``contrast``.
        settings (dict): Settings of the bottleneck, ``rerank``, and ``generated_with``: the arguments of ``generate``,
            None of a response that was given.
        check (PromptCheck or None): The probability without the leading parts; None where there are none.
        system (str): The system message, if it has no parts and so is not explained; else empty.
        cut_off (bool): Whether the response was generated, and ended because it reached ``max_new_tokens``.
        model (str): Name of the model, without a path.
        provenance (dict): Versions of the libraries, device and precision, and the model's fingerprint
            (:meth:`GenerationExplainer.fingerprint`).
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
    contrast_tokens: int = 0
    contrast_probability: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    check: PromptCheck | None = None
    cut_off: bool = False
    system: str = ""
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
        return shares_above_floor(bits, floors, AT_FLOOR)

    @property
    def importance(self) -> npt.NDArray[np.float64]:
        """How important each part is, (P,), from 0 to 1: what :attr:`ranked` goes by.

        Of parts whose removal was measured it is the decrease in log-probability (:attr:`PromptPart.known_effect`),
        relative to the largest, and 0 where the removal raises it. The others come after them, by their bits above the
        floor.
        """
        return importance_of(self.shares, self._effects)

    @property
    def estimated_effects(self) -> npt.NDArray[np.float64]:
        """Decrease in the log-probability without each part, or in the log-odds of the choice, in nats, (P,).

        It is measured for the parts with the most bits (``part.effect``), and for those that a check removed alone
        (``part.effect_alone``). Of the others it is estimated from their shares; NaN without any measured one. Sums
        predict what the removal of several parts does.
        """
        means = [part.effect_alone if part.effect is None else part.effect for part in self.parts]
        return estimated_effects(self.shares, means)

    @property
    def ranked(self) -> tuple[PromptPart, ...]:
        """Parts with bits above the floor, or an effect, the most important ones first.

        The order is that of the list (:attr:`listed`). Parts that are not in it come before those that are listed last,
        whose effect is negative, in the order of :attr:`importance`.
        """
        shares, (first, others, against) = self.shares, self._listed
        rest = [i for i in self._order.tolist() if i not in {*first, *others, *against}]
        order = [*first, *others, *rest, *against]
        shown = [i for i in order if shares[i] > 0 or abs(self._effects[i] or 0.0) > NO_EFFECT]
        return tuple(self.parts[i] for i in shown)

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """Number of parts that are ranked below each, (P,), as scores for metrics of the ranking."""
        scores = np.empty(len(self.parts))
        scores[self._order] = np.arange(len(self.parts))[::-1]
        return scores

    @property
    def _order(self) -> npt.NDArray[np.intp]:
        order = order_of(self.bits, self.shares, self.importance, self._effects)
        leading = [] if self.check is None else list(self.check.leading)
        return np.array([*leading, *(i for i in order.tolist() if i not in leading)], dtype=np.intp)

    @property
    def _effects(self) -> list[float | None]:
        known = [part.known_effect for part in self.parts]
        if any((effect or 0.0) > 0 for effect in known):
            return known
        # No part is needed beside the others: what counts is whether they are needed together.
        return [part.effect_alone if part.effect is None else part.effect for part in self.parts]

    @property
    def leading(self) -> tuple[PromptPart, ...]:
        """The first of :attr:`ranked`, until they hold 80% of the sum of :attr:`importance`.

        None of them raises the log-probability when it is removed alone, unless all do. With a check they are the
        measured parts up to where the removal of the first ones lowers the log-probability by 90% of the largest
        decrease of any beginning. Of up to eight those are then left out that add at most 0.1 nats to the others. The
        first one lowers it most, and each next one lowers it most after those before it, until the probability has
        fallen by 95% of what it falls by.
        """
        return tuple(self.parts[i] for i in self._leading)

    @property
    def listed(self) -> list[tuple[PromptPart, float]]:
        """The parts that terminals and pages list, and their shares: the leading ones, and others by what they lower.

        The others are those that were removed both alone and after the others, and of those that a check removed alone
        the ones that change the log-probability by at least as much as the least of these lowers it, or 0.1 nats. Of
        more than eight that were removed both ways only those are listed that have a bar of at least 15% of the
        longest, at most ten others whose removal alone takes a quarter of the probability, and those that change a
        choice alone. All that speak against the response are listed. Negative effects are last, the strongest first.
        """
        shares = self.shares
        return [(self.parts[i], float(shares[i])) for group in self._listed for i in group]

    @property
    def _listed(self) -> tuple[list[int], list[int], list[int]]:
        """Numbers of the parts in the list: the leading ones, others that lower the log-probability, and the rest."""
        effects, leading, lowers = self._effects, set(self._leading), self._bars[0].tolist()
        both = [part.effect for part in self.parts if part.effect is not None]
        alone = {i: probability_without(self, part) for i, part in enumerate(self.parts) if i not in leading}
        much = sorted((i for i in alone if alone[i] <= MUCH * self.probability), key=alone.__getitem__)[:_N_ALONE]
        least = max(_NOTICEABLE, min((effect for effect in both if effect > NO_EFFECT), default=0.0))

        def is_shown(i: int) -> bool:
            if i in much or (self.check is not None and self.check.changes_alone(i)):
                return True
            if self.parts[i].effect is None:
                return abs(effects[i] or 0.0) >= least or self.parts[i].speaks_against
            stands_out = self.parts[i].speaks_against or 0 < lowers[i] >= VISIBLE * max(lowers)
            return stands_out or len(both) <= _N_LISTED

        shown = [i for i in self._order.tolist() if i in leading or is_shown(i)]
        in_turn = () if self.check is None else self.check.leading  # these stay in the order of their removal
        against = [i for i in shown if (effects[i] or 0.0) < -NO_EFFECT and i not in in_turn]
        against = [i for i in against if i in leading or lowers[i] < _NOTICEABLE]
        against.sort(key=lambda i: of if (of := self.parts[i].effect_alone) is not None else effects[i] or 0.0)
        first = [i for i in shown if i in leading and i not in against]
        others = sorted((i for i in shown if i not in leading and i not in against), key=lambda i: -lowers[i])
        return first, others, against

    @property
    def bars(self) -> npt.NDArray[np.float64]:
        """Bars and colors of the parts, (P,): decreases without them relative to the largest, 0 without importance.

        They are :attr:`importance` itself where no part was removed.
        """
        if all(part.effect_alone is None for part in self.parts):
            return self.importance
        lengths, _ = self._bars
        return lengths / (lengths.max() or 1.0)

    @property
    def _bars(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Lengths of the bars in nats, (P,), 0 of parts without importance, and what share is without a part alone."""
        if self.check is None:
            bars = [part.bar if of > 0 else (0.0, 1.0) for part, of in zip(self.parts, self.importance, strict=True)]
        else:
            after = self._decreases_after_others
            bars = [bar_of(part.effect_alone or 0.0, after.get(i, math.nan)) for i, part in enumerate(self.parts)]
        lengths, shares_alone = np.array(bars).reshape(-1, 2).T
        return lengths, shares_alone

    @property
    def _decreases_after_others(self) -> dict[int, float]:
        """The decrease without each leading part after the other leading ones, in nats; empty of a single one."""
        if self.check is None:
            return {}
        chances = np.array([*self.check.without_others, self.check.without_leading]).clip(1e-12, 1 - 1e-12)
        values = np.log(chances) if self.contrast is None else np.log(chances / (1 - chances))
        return dict(zip(self.check.leading, (values[:-1] - values[-1]).tolist(), strict=False))

    @property
    def rows(self) -> list[ListedPart]:
        """:attr:`listed` as terminals and pages show it."""
        bars, numbers = self.bars, {part: number for number, part in enumerate(self.parts)}
        so_far = {} if self.check is None else dict(zip(self._order.tolist(), self.check.without_first, strict=False))
        _, shares_alone = self._bars
        return [
            ListedPart(
                listed_name(part.text),
                self.place_of(part),
                part.bits,
                share,
                float(bars[numbers[part]]),
                probability_without(self, part),
                math.nan if part.known_effect is None else part.known_effect,
                self._label(part),
                number=numbers[part],
                without_so_far=so_far.get(numbers[part], math.nan),
                share_alone=float(shares_alone[numbers[part]]),
            )
            for part, share in self.listed
        ]

    def rows_of_token(self, token: ResponseToken, count: int) -> list[ListedPart]:
        """The parts with the most bits for one token of the response, at most ``count``, as pages show them."""
        shares = self.shares_of(np.array(token.bits))
        order = [i for i in np.argsort(-shares, kind="stable")[:count].tolist() if shares[i] > 0]
        longest = float(shares.max())
        return [
            ListedPart(
                listed_name(self.parts[i].text),
                self.place_of(self.parts[i]),
                token.bits[i],
                float(shares[i]),
                float(shares[i]) / longest,
            )
            for i in order
        ]

    @property
    def _leading(self) -> list[int]:
        if self.check is not None and self.check.leading:
            return list(self.check.leading)
        leading = leading_of(self._order, self.importance, COVERED)
        # What raises the probability alone is needed only without the others.
        return [i for i in leading if (self.parts[i].effect_alone or 0.0) >= -NO_EFFECT] or leading

    def unlisted(self, listed: Sequence[PromptPart]) -> str:
        """What the parts that are not listed hold: "23.0% of the bits in 9 other parts; 2 more are at the floor"."""
        shares = [share for part, share in zip(self.parts, self.shares.tolist(), strict=True) if part not in listed]
        above = [share for share in shares if share > 0]
        at_floor = len(shares) - len(above)
        said = [f"{sum(above):.1%} of the bits in {len(above)} other part{'s' * (len(above) > 1)}"] if above else []
        if at_floor:
            which = "more" if above else f"other part{'s' * (at_floor > 1)}"
            said.append(f"{at_floor} {which} {'is' if at_floor == 1 else 'are'} at the floor")
        return "; ".join(said)

    def place_of(self, part: PromptPart) -> str:
        """Which of several parts of one name it is: "word 4"; empty where the name says it."""
        same = [number for number, other in enumerate(self.parts, 1) if other.text.strip() == part.text.strip()]
        noun = "part" if self.granularity == "spans" else self.granularity
        return f"{noun} {self.parts.index(part) + 1}" if len(same) > 1 else ""

    @property
    def explained(self) -> str:
        """The explained characters of the response."""
        return self.response[slice(*self.span)]

    def __repr__(self) -> str:
        leading = self.leading
        named = f", {visible_part(leading[0].text)!r} leads" if leading else ""
        return f"GenerationAttribution({visible_part(self.explained)!r}, {len(self.parts)} parts{named})"

    @property
    def verdict(self) -> str:
        """What the check says: "confirmed", "weakly confirmed" or "not confirmed"; empty where it says nothing.

        It is about the probability without the leading parts (:attr:`check`).
        """
        return part_verdict(self)

    def legend(self, details: bool = False) -> Legend:
        """What the columns and bars of :meth:`to_text` are, by their names."""
        return part_legend(self, bits=details)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, legend: bool = True, details: bool = False) -> str:
        """What ``print`` shows: the response, the answer, the leading parts, the check, and the legend of the list.

        Args:
            legend (bool): Whether the legend is the last of it; of several results one is enough. Default: True.
            details (bool): Whether it has the bits, too. They are shown in any case where no part was deleted.
                Default: False.
        """
        return "\n".join(printed_response(self, legend, details))

    @property
    def sentences(self) -> list[str]:
        """What the page and ``print`` say: the answer of the check first."""
        comparison = "" if self.check is None else part_check(self).comparison
        return list(filter(None, [self.answer, comparison, *self.notes, bits_of_prompt(self)]))

    @property
    def findings(self) -> list[str]:
        """Codes of what :attr:`sentences` say, such as "not_confirmed", which do not change with their wording."""
        return prompt_findings(self)

    @property
    def answer(self) -> str:
        """The probability without the leading parts, in words; empty without a check."""
        return answer(self)

    def _label(self, part: PromptPart) -> str:
        """What lists say of a part: that it matters alone, or of a leading one that it raises the probability alone.

        A leading part lowers it with others. Nothing is said of one where both probabilities are printed alike.
        """
        leads = part in self.leading
        if leads and not part.speaks_against:
            return ""
        if not leads:
            without, check = probability_without(self, part), self.check
            if check is not None and check.changes_alone(self.parts.index(part)):
                return CHANGES_CHOICE
            return MATTERS_ALONE if check is not None and is_much_lower(check.probability, without) else part.label
        is_seen = format_probability(probability_without(self, part)) != format_probability(self.probability)
        return RAISES_ALONE if is_seen else ""

    @property
    def notes(self) -> list[str]:
        """What is said beside the answer and the check: on parts that were not removed, the choice, the prompt."""
        return prompt_notes(self)

    @property
    def measured(self) -> str:
        """What the probabilities are of: "the probability per token", of the choice, or of a span by its text."""
        is_choice, is_span = self.contrast is not None, self.explained.strip() != self.response.strip()
        of_span = f' of "{brief(self.explained)}"' * (is_span and not is_choice)
        return f"the probability{' of the choice' * is_choice}{' per token' * self.is_mean}{of_span}"

    @property
    def is_mean(self) -> bool:
        """Whether the probability is a geometric mean over several tokens."""
        n_explained = sum(token.explained for token in self.tokens)
        return n_explained != 1 or (self.contrast is not None and self.contrast_tokens > 1)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python for JSON, with shares and ranks, numbers of the leading parts, and sentences."""
        content = dataclasses.asdict(self)
        content["settings"], content["provenance"] = dict(self.settings), dict(self.provenance)
        ranks = {part: rank for rank, part in enumerate(self.ranked, 1)}
        leading = self.leading
        for part, own, share in zip(content["parts"], self.parts, self.shares.tolist(), strict=True):
            part |= {"share": share, "rank": ranks.get(own), "effect_after": own.effect_after}
            part["speaks_against"] = own.speaks_against and own not in leading
            part["label"] = self._label(own)
            part["without"] = probability_without(self, own)
        content["leading"] = [self.parts.index(part) for part in leading]
        content |= {"answer": self.answer, "verdict": self.verdict}
        content |= {"findings": self.findings, "sentences": self.sentences}
        return {"format": _FORMAT, **json_safe(content)}

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
            values = {item.name: content[item.name] for item in dataclasses.fields(cls) if item.name != "system"}
            values["system"] = content.get("system", "")  # earlier versions did not write it
            names = [item.name for item in dataclasses.fields(PromptPart)]
            values["parts"] = tuple(_part_of_file({name: part[name] for name in names}) for part in values["parts"])
            values["tokens"] = tuple(
                ResponseToken(**{**token, "bits": tuple(map(json_number, token["bits"]))}) for token in values["tokens"]
            )
            values["span"] = tuple(values["span"])
            if (check := values["check"]) is not None:
                values["check"] = PromptCheck.from_dict(check)
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


def _part_of_file(content: Mapping[str, Any]) -> PromptPart:
    """A part of :meth:`GenerationAttribution.to_json`; an effect that is None was not measured."""
    effects = {name: content[name] and json_number(content[name]) for name in ("effect", "effect_alone")}
    return PromptPart(**{**content, **effects, "bits": json_number(content["bits"])})
