"""What an attribution of a text gives: bits per token and per word, and everything needed to read them."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from captum_iba._files import write_text
from captum_iba.visualization.terminal import printable

if TYPE_CHECKING:
    from captum.attr._utils.visualization import VisualizationDataRecord

_FORMAT = "captum_iba.TextAttribution/1"
_SHOWN = 20
_BAR = 24


@dataclass(frozen=True)
class Token:
    """One token of a text.

    Attributes:
        token (str): As the vocabulary spells it ("##able", "Ġfilm").
        bits (float): The information that the model needs of it.
        start, end (int): Its characters in the original text, [start, end).
        sequence (int or None): 0 if it is of the text, 1 of the pair, None if the tokenizer added it.
        special (bool): Whether it is a special token.
        word (int or None): The number of its word in :attr:`TextAttribution.words`.
    """

    token: str
    bits: float
    start: int
    end: int
    sequence: int | None
    special: bool
    word: int | None


@dataclass(frozen=True)
class Word:
    """One word: the tokens that the tokenizer made of it, together.

    Attributes:
        word (str): As the original text spells it.
        bits (float): The sum of the bits of its tokens.
        start, end (int): Its characters in the original text, [start, end).
        sequence (int): 0 if it is of the text, 1 of the pair.
    """

    word: str
    bits: float
    start: int
    end: int
    sequence: int


@dataclass(frozen=True)
class Trace:
    """How the optimisation went: entry k is after k updates.

    Attributes:
        loss (tuple of float): The loss, in nats.
        information (tuple of float): What the bottleneck let through, in bits.
        probability (tuple of float): Probability of the target through the bottleneck.
    """

    loss: tuple[float, ...]
    information: tuple[float, ...]
    probability: tuple[float, ...]


@dataclass(frozen=True)
class TextAttribution:
    """The attribution of one text, or pair of texts.

    ``print`` shows the words with most bits; a notebook draws the whole text.

    Attributes:
        text (str): The text that was explained.
        pair (str or None): The second text of a pair.
        tokens (tuple of Token): All tokens in order, special ones included.
        target (int), target_label (str), target_probability (float): The class that was explained, and how
            probable the model holds it (without a bottleneck).
        predicted (int), predicted_label (str), predicted_probability (float): The most probable class.
        layer (str), layer_index (int or None): Where the bottleneck was: module name and block number from 1.
        method (str), preset (str), granularity (str): How the bits were computed.
        settings (dict): beta, number of steps and draws, learning rate and seed.
        statistics (str): What the bottleneck's noise was fitted to.
        tokens_cut (int): How many tokens, beyond what the model takes, it never saw.
        trace (Trace or None): How the optimisation went, if it was asked for.

    Examples::

        >>> result = explainer.explain("A wonderful film.")
        >>> result.words[1].word, round(result.words[1].bits, 1)
        ('wonderful', 12.3)
        >>> result.save("result.json")
    """

    text: str
    pair: str | None
    tokens: tuple[Token, ...]
    target: int
    target_label: str
    target_probability: float
    predicted: int
    predicted_label: str
    predicted_probability: float
    layer: str
    layer_index: int | None
    method: str
    preset: str
    granularity: str
    statistics: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokens_cut: int = 0
    trace: Trace | None = None

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """The words in order, special tokens left out."""
        pieces: dict[int, list[Token]] = {}
        for token in self.tokens:
            if token.word is not None:
                pieces.setdefault(token.word, []).append(token)
        return tuple(self._word(pieces[number]) for number in sorted(pieces))

    def _word(self, pieces: list[Token]) -> Word:
        start, end = min(piece.start for piece in pieces), max(piece.end for piece in pieces)
        sequence = pieces[0].sequence or 0
        source = (self.pair or "") if sequence else self.text
        return Word(source[start:end], math.fsum(p.bits for p in pieces), start, end, sequence)

    @property
    def bits(self) -> npt.NDArray[np.float64]:
        """Bits per token, special ones included: array of shape (T,)."""
        return np.array([token.bits for token in self.tokens])

    @property
    def word_bits(self) -> npt.NDArray[np.float64]:
        """Bits per word: array of shape (W,)."""
        return np.array([word.bits for word in self.words])

    @property
    def total_bits(self) -> float:
        """Bits of all tokens together."""
        return float(self.bits.sum())

    @property
    def layer_label(self) -> str:
        """The layer in words, for example ``"layer 9 (bert.encoder.layer.8)"``."""
        return self.layer if self.layer_index is None else f"layer {self.layer_index} ({self.layer})"

    def __str__(self) -> str:
        lines = [f"{printable(self.text)}{'' if self.pair is None else ' | ' + printable(self.pair)}"]
        lines.append(self.headline())
        ranked = sorted(self.words, key=lambda word: -finite(word.bits))
        top = max((finite(word.bits) for word in ranked), default=0.0)
        for word in ranked[:_SHOWN]:
            bar = "█" * round(_BAR * finite(word.bits) / top) if top > 0 else ""
            lines.append(f"{word.bits:12,.2f}  {bar:<{_BAR}}  {printable(word.word)}")
        if rest := ranked[_SHOWN:]:
            lines.append(f"{math.fsum(word.bits for word in rest):12,.2f}  in {len(rest)} more words")
        return "\n".join(lines)

    def headline(self) -> str:
        """One line: class, probability, layer, statistics, total, and what was cut."""
        parts = [f"{printable(self.target_label)} {self.target_probability:.3f}"]
        if self.target != self.predicted:
            parts[0] += f" (predicted: {printable(self.predicted_label)} {self.predicted_probability:.3f})"
        parts += [
            self.layer_label,
            f"{self.preset}, statistics of {self.statistics}",
            f"{self.total_bits:,.2f} bits",
        ]
        if self.tokens_cut:
            parts.append(f"{self.tokens_cut} tokens were cut off and not read")
        return " · ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain Python, safe for JSON: NaN becomes None, infinity "inf" or "-inf", and words come along."""
        content = dataclasses.asdict(self)
        content["settings"] = dict(self.settings)
        content["words"] = [dataclasses.asdict(word) for word in self.words]
        content["total_bits"] = self.total_bits
        return {"format": _FORMAT, **_json_safe(content)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TextAttribution:
        """The reverse of :meth:`to_dict`.

        Raises:
            ValueError: The content is not such a dictionary.
        """
        if not isinstance(content, Mapping) or content.get("format") != _FORMAT:
            raise ValueError(f"content: expected a dictionary with the format {_FORMAT!r}.")
        known = {item.name for item in dataclasses.fields(cls)}
        try:
            values = {name: content[name] for name in known}
            values["tokens"] = tuple(Token(**{**t, "bits": _number(t["bits"])}) for t in content["tokens"])
            for name in ("target_probability", "predicted_probability"):
                values[name] = _number(values[name])
            if values["trace"] is not None:
                values["trace"] = Trace(**{k: tuple(map(_number, v)) for k, v in values["trace"].items()})
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"content: not a whole attribution, {error} is missing or wrong.") from error

    def to_json(self, indent: int | None = None) -> str:
        """:meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent, allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_json` to a file, whole or not at all; gives where it lies."""
        return write_text(path, self.to_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TextAttribution:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: The file holds something else.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"path: {os.fspath(path)} is not a saved attribution ({error})") from error

    def to_captum_record(self, true_class: str = "") -> VisualizationDataRecord:
        """The words as a record for ``captum.attr.visualization.visualize_text``.

        Captum writes words and labels into its HTML as they are, so they are escaped here; it draws from -1
        to 1, so bits are divided by their largest, and draws NaN as the highest value, so NaN becomes 0.

        Args:
            true_class (str): What Captum shows as the true label. Default: nothing.

        Returns:
            VisualizationDataRecord: words, with the total bits as the attribution score.
        """
        from captum.attr import visualization

        bits = torch.tensor([finite(word.bits) for word in self.words])
        return visualization.VisualizationDataRecord(
            word_attributions=bits / bits.max() if bits.numel() and bits.max() > 0 else bits,
            pred_prob=self.predicted_probability,
            pred_class=html.escape(self.predicted_label),
            true_class=html.escape(true_class),
            attr_class=html.escape(self.target_label),
            attr_score=self.total_bits,
            raw_input_ids=[html.escape(word.word) for word in self.words],
            convergence_score=float("nan"),
        )

    def _repr_html_(self) -> str:
        from captum_iba.visualization import token_map

        return token_map(self)

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained page with the coloured text and its words; gives where it lies."""
        from captum_iba.visualization import token_page

        return write_text(path, token_page([self]))


def finite(bits: float) -> float:
    """The number itself, or 0 where it is NaN or infinite."""
    return bits if math.isfinite(bits) else 0.0


def _json_safe(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
