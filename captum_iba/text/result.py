"""The result of explaining a text: bits per token and per word, and how they were computed."""

from __future__ import annotations

import dataclasses
import html
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from captum_iba._checks import kind_of
from captum_iba._explain.json_result import JsonResult, json_number, json_safe
from captum_iba._reading.codes import findings
from captum_iba._reading.decision import predicted_beside
from captum_iba._reading.findings import notes, what_bits_keep
from captum_iba._reading.legend import Legend, word_legend
from captum_iba._reading.mask_sentences import remark
from captum_iba._reading.order import shares_above_floor
from captum_iba._reading.removal_check import DeletionCheck
from captum_iba._reading.rows import ListedPart
from captum_iba._reading.word_sentences import answer, verdict, word_check
from captum_iba._reading.wording import format_probability, printable
from captum_iba._reading.words import listed_order, ranked_words, word_records
from captum_iba.attr.optimizer import AT_FLOOR
from captum_iba.text.encoding import join_words, scores_per_word
from captum_iba.text.target import TextTarget
from captum_iba.text.tokens import TextTrace, Token, Word
from captum_iba.visualization.printed_text import printed_text

if TYPE_CHECKING:
    from captum.attr._utils.visualization import VisualizationDataRecord

_FORMAT = "captum_iba.TextAttribution/4"
_REPR_WIDTH = 60
_OF_REMOVAL = ("effects", "without", "removal_order", "without_first", "without_others")


@dataclass(frozen=True)
class TextAttribution(JsonResult):
    """The attribution of one text, or pair of texts.

    ``print`` shows the leading words; a notebook shows the whole text in color.

    Attributes:
        text (str): The text that was explained.
        pair (str or None): The second text of a pair.
        tokens (tuple of Token): All tokens in order, special tokens included.
        target (int), target_label (str), target_probability (float): The class that was explained, and its
            probability without a bottleneck.
        predicted (int), predicted_label (str), predicted_probability (float): The most probable class.
        layer (str), layer_index (int or None): Module name and block number, from 1, of the layer with the bottleneck.
        method (str), preset (str), granularity (str): Method, preset (``"custom"`` for settings without a name,
            ``"default, beta 3"`` where the default's own ``beta`` lost the prediction), and the elements that share a
            mask value.
        settings (dict): Settings of the bottleneck, and the seed.
        statistics (str): Origin of the noise's mean and standard deviation.
        tokens_truncated (int): Number of tokens beyond ``max_length``, which the model did not see.
        unneeded_bits (float): Bits that an average token ends with if the prediction does not need it: the optimization
            stops before it reaches 0.
        open_bits (float): Bits of an average token before the optimization; 0 where that is not known.
        model (str): Name of the model, without a path.
        trace (TextTrace or None): The optimization step by step, with ``return_trace``; of the first repeat.
        repeats (tuple of tuple of float): With ``repeats``, bits per token of each repeat; the bits are their mean.
        repeated_leading (tuple of tuple of int): With ``repeats`` and ``rerank``, numbers of the leading words of each
            repeat, as :attr:`removal_order`.
        check (DeletionCheck or None): With ``check``, the target probability without the leading words.
        provenance (dict): Versions of the libraries, device and precision, and the model's fingerprint
            (:meth:`TextExplainer.fingerprint`) if the statistics have it.
        masked_probability, closed_probability (float or None): Target probability through the final mask, of the first
            repeat, and through a closed one; None in results of method ``iba``.
        explained (TextTarget or None): The target of a head other than a sequence classifier's.
        doubt (str): Why the number of texts may not be what the model was trained on; empty where that is not doubted.
        effects (tuple of float or None): Decrease in the log-odds of the target without each word, in nats: the mean of
            two removals, of the word alone and of the word after the other measured ones. None for words that were not
            measured, empty with ``rerank=0``. Of a regression it is the decrease in the closeness.
        without (tuple of float or None): Probability of the target without each word alone: without each measured one,
            and with ``check`` without each one of a text of up to 60 words. None for others.
        removal_order (tuple of int): Numbers of the leading words: each lowers the probability most after those before
            it. Empty with ``rerank=0``.
        without_first (tuple of float): Probability of the target without the first k of them, for k from 1.
        without_others (tuple of float): Of each of them, without all others of them; empty of a single one.
        other_labels (tuple): Of a multi-label model the other labels of at least 0.5, (label, probability).
        multi_label (bool): Whether each label has a probability of its own, so that several or none are predicted.

    Examples::

        >>> result = explainer.explain("A wonderful film.")
        >>> result.words[1].word
        'wonderful'
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
    tokens_truncated: int = 0
    unneeded_bits: float = 0.0
    model: str = ""
    trace: TextTrace | None = None
    repeats: tuple[tuple[float, ...], ...] = ()
    check: DeletionCheck | None = None
    open_bits: float = 0.0
    masked_probability: float | None = None
    closed_probability: float | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    explained: TextTarget | None = None
    doubt: str = ""
    effects: tuple[float | None, ...] = ()
    without: tuple[float | None, ...] = ()
    removal_order: tuple[int, ...] = ()
    without_first: tuple[float, ...] = ()
    without_others: tuple[float, ...] = ()
    repeated_leading: tuple[tuple[int, ...], ...] = ()
    other_labels: tuple[tuple[str, float], ...] = ()
    multi_label: bool = False

    @property
    def question(self) -> str:
        """The question that the attribution answers, for example ``'Why B-PER for "Anna"?'``."""
        about = self.explained
        if about is None:
            return f"Why {self.target_label}?"
        own = [i for i, word in enumerate(self.words, 1) if about.holds(word.sequence, word.start, word.end)]
        same = [word.word for word in self.words].count(about.text) > 1 and len(own) == 1
        return f"{about.question[:-1]} (word {own[0]})?" if same else about.question

    @property
    def measured(self) -> str:
        """What the probabilities are of: ``"the probability of positive"``, ``"the closeness to 3.2"``."""
        if self.explained is not None and self.explained.kind == "value":
            return f"the closeness to {self.target_label}"
        is_answer = self.explained is not None and self.explained.kind == "answer" and self.target_label != "no answer"
        return f'the probability of "{self.target_label}"' if is_answer else f"the probability of {self.target_label}"

    @property
    def open_words(self) -> str:
        """A sentence on the words of the target, where they have no bottleneck; empty without such."""
        about = self.explained
        own = [] if about is None else [t for t in self.tokens if about.holds(t.sequence, t.start, t.end)]
        if about is None or not own or any(token.bits for token in own):
            return ""
        return f'"{about.text or about.label}" itself is what is explained: it is never deleted, and has no bits.'

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """The words in order, without special tokens."""
        bits = scores_per_word(self._joined, [token.bits for token in self.tokens])
        return tuple(
            Word(
                ((self.pair or "") if word.sequence else self.text)[word.start : word.end],
                word_bits,
                word.start,
                word.end,
                word.sequence,
            )
            for word, word_bits in zip(self._joined, bits, strict=True)
        )

    @property
    def verdict(self) -> str:
        """What :attr:`check` says of the leading words: "confirmed", "weakly confirmed", "not confirmed", or ""."""
        return verdict(self)

    @property
    def answer(self) -> str:
        """The probability without the leading words, in words; where none leads, what else is said first."""
        return answer(self) or remark(self)

    @property
    def sentences(self) -> list[str]:
        """What pages and terminals say: the answer and numbers of the check, and on repeats, near ties and the bits."""
        comparison = "" if self.check is None else word_check(self).comparison
        said = [self.doubt, self.answer, remark(self), comparison, *notes(self), what_bits_keep(self)]
        return list(dict.fromkeys(filter(None, said)))

    @property
    def findings(self) -> list[str]:
        """Codes of what :attr:`sentences` say, such as "not_confirmed", which do not change with their wording."""
        return findings(self)

    @property
    def rows(self) -> list[ListedPart]:
        """What lists show of each word, in the order of :attr:`ranked`: its place, and the probability without it."""
        return [row for rows in ranked_words(self) for row in rows]

    @property
    def leading(self) -> tuple[Word, ...]:
        """The leading words, in the order of pages and terminals."""
        return tuple(self.words[row.number] for row in ranked_words(self)[0])

    @property
    def ranked(self) -> tuple[Word, ...]:
        """The words in the order of pages and terminals: the leading ones, then by bars and by bits."""
        return tuple(self.words[number] for number in listed_order(self))

    @cached_property
    def _joined(self) -> Any:
        """The tokens of each word."""
        tokens = self.tokens
        spans = [(token.start, token.end) for token in tokens]
        return join_words([token.word for token in tokens], spans, [token.sequence for token in tokens])

    @property
    def bits(self) -> npt.NDArray[np.float64]:
        """Bits per token, special tokens included, (T,)."""
        return np.array([token.bits for token in self.tokens])

    @property
    def word_bits(self) -> npt.NDArray[np.float64]:
        """Bits per word, (W,)."""
        return np.array([word.bits for word in self.words])

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Fraction of each word in the bits above :attr:`unneeded_bits`, (W,): they sum to 1, or to 0 without any.

        Bits grow with the width of the layer; these fractions can be compared between models.
        """
        return self._shares(self.word_bits)

    @property
    def importance(self) -> npt.NDArray[np.float64]:
        """What pages and terminals draw as bars, and color, of each word, from 0 to 1, (W,).

        It is the decrease in the log-odds without the word: alone, after the other measured words, or of a leading word
        after those above it, whichever is the largest. It is relative to the largest of all words, or to 0.5 nats if
        that is more. It is 0 of words that were not deleted, and of those that speak against the target. Where no word
        was measured it goes by :attr:`shares`.
        """
        leading, others = ranked_words(self)
        importance = np.zeros(len(self.words))
        for row in (*leading, *others):
            importance[row.number] = row.importance
        return importance

    def _shares(self, word_bits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        n_tokens = Counter(token.word for token in self.tokens if token.word is not None)
        floors = self.unneeded_bits * np.array([n_tokens[number] for number in range(len(self.words))])
        return shares_above_floor(word_bits, floors, AT_FLOOR)

    @property
    def repeated_shares(self) -> npt.NDArray[np.float64]:
        """:attr:`shares` of each repeat, (R, W)."""
        shares = [self._shares(np.array(scores_per_word(self._joined, bits))) for bits in self.repeats]
        return np.array(shares).reshape(len(self.repeats), len(self.words))

    @property
    def shares_std(self) -> npt.NDArray[np.float64]:
        """Standard deviation of :attr:`shares` over the repeats, (W,); NaN with less than two."""
        if len(self.repeats) < 2:
            return np.full(len(self.words), np.nan)
        spread: npt.NDArray[np.float64] = self.repeated_shares.std(0, ddof=1)
        return spread

    @property
    def total_bits(self) -> float:
        """Sum of the bits of all tokens."""
        return float(self.bits.sum())

    @property
    def layer_label(self) -> str:
        """Description of the layer, for example ``"layer 9 (bert.encoder.layer.8)"``."""
        return self.layer if self.layer_index is None else f"layer {self.layer_index} ({self.layer})"

    def __repr__(self) -> str:
        parts = [f"text={_shortened(self.text)!r}"]
        if self.pair is not None:
            parts.append(f"pair={_shortened(self.pair)!r}")
        parts.append(f"target={self.target} ({self.target_label} {self.target_probability:.3f})")
        if leading := ranked_words(self)[0]:
            more = f" and {len(leading) - 3} more" if len(leading) > 3 else ""
            parts.append(f"leading={', '.join(repr(row.name) for row in leading[:3])}{more}")
        return f"TextAttribution({', '.join(parts)})"

    def legend(self, details: bool = False) -> Legend:
        """What the columns and bars of :meth:`to_text` are, by their names."""
        return word_legend(self, bits=details)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, legend: bool = True, details: bool = False) -> str:
        """What ``print`` shows: the decision, the answer, the leading words, the check, and the legend of the list.

        Args:
            legend (bool): Whether the legend is the last of it; of several results one is enough. Default: True.
            details (bool): Whether it has the bits, the layers and the settings, too. Bits are shown in any case where
                no word was deleted. Default: False.
        """
        return "\n".join(printed_text(self, legend, details).lines)

    def headline(self) -> str:
        """One line: class, probability and model."""
        parts = [f"{printable(self.target_label)} {format_probability(self.target_probability)}"]
        if self.explained is not None:
            if self.explained.kind == "value":
                parts[0] = printable(self.target_label)
            parts.insert(0, printable(self.question))
        if beside := predicted_beside(self):
            parts[-1] += f" ({printable(beside)})"
        if self.model:
            parts.append(printable(self.model))
        return " · ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python for JSON: NaN becomes None, infinity "inf" or "-inf".

        It has what pages and terminals show, too: of each word its ``place`` ("word 2"), ``share`` and ``rank`` from 1,
        the numbers of the ``leading`` words, the ``verdict`` of the check, ``sentences``, and their codes as
        ``findings``.
        """
        content = dataclasses.asdict(self)
        content["settings"], content["provenance"] = dict(self.settings), dict(self.provenance)
        content["words"], content["total_bits"] = word_records(self), self.total_bits
        content |= {
            "answer": self.answer,
            "verdict": self.verdict,
            "leading": [row.number for row in ranked_words(self)[0]],
        }
        content |= {"findings": self.findings, "sentences": self.sentences}
        if self.explained is not None:
            content["explained"]["question"] = self.question
        return {"format": _FORMAT, **json_safe(content)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TextAttribution:
        """A result from :meth:`to_dict`.

        Raises:
            ValueError: The content is not such a dictionary.
        """
        if not isinstance(content, Mapping):
            several = "; from_dict reads each entry of a list" if isinstance(content, list) else ""
            raise ValueError(f"content is {kind_of(content)}, expected a dictionary of to_dict{several}")
        if "format" not in content:
            raise ValueError("content is a dictionary without the key 'format', expected one of to_dict")
        if (found := content["format"]) != _FORMAT:
            again = "; explain again" if str(found).startswith(_FORMAT.partition("/")[0]) else ""
            raise ValueError(f"content has the format {found!r}, expected {_FORMAT!r}{again}")
        known = {item.name for item in dataclasses.fields(cls)}
        try:
            # Not in files of earlier versions.
            newer = {"repeats", "check", "open_bits", "masked_probability", "closed_probability"}
            newer |= {
                "provenance",
                "explained",
                "doubt",
                "other_labels",
                "multi_label",
                "repeated_leading",
                *_OF_REMOVAL,
            }
            values = {name: content[name] for name in known if name in content or name not in newer}
            values["tokens"] = tuple(Token(**{**t, "bits": json_number(t["bits"])}) for t in content["tokens"])
            for name in ("target_probability", "predicted_probability"):
                values[name] = json_number(values[name])
            if values["trace"] is not None:
                values["trace"] = TextTrace(**{k: tuple(map(json_number, v)) for k, v in values["trace"].items()})
            values |= {name: tuple(content.get(name, ())) for name in _OF_REMOVAL}
            values["other_labels"] = tuple(map(tuple, content.get("other_labels", ())))
            values["repeats"] = tuple(tuple(map(json_number, row)) for row in content.get("repeats", ()))
            values["repeated_leading"] = tuple(map(tuple, content.get("repeated_leading", ())))
            if (check := content.get("check")) is not None:
                values["check"] = DeletionCheck.from_dict(check)
            if (about := content.get("explained")) is not None:
                of_target: Any = {key: value for key, value in about.items() if key != "question"}
                values["explained"] = TextTarget(**of_target | {"spans": tuple(map(tuple, about["spans"]))})
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"content is not a whole attribution, {error} is missing or wrong") from error

    def to_captum_record(self, true_class: str = "") -> VisualizationDataRecord:
        """The words as a record for ``captum.attr.visualization.visualize_text``.

        Captum writes words and labels into its HTML as they are, so they are escaped here. It draws values from -1 to
        1, so bits are divided by their maximum, and NaN as the highest value, so NaN becomes 0.

        Args:
            true_class (str): The true label. Default: empty.

        Returns:
            VisualizationDataRecord: Words, with the total bits as the attribution score.

        Examples::

            >>> from captum.attr import visualization
            >>> visualization.visualize_text([result.to_captum_record()])
        """
        from captum.attr import visualization

        bits = torch.tensor([_finite(word.bits) for word in self.words])
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
        """Write a self-contained page with the colored text and its words; returns its path."""
        from captum_iba.visualization import save_token_page

        return save_token_page([self], path)


def _finite(bits: float) -> float:
    """The value itself, or 0 if it is NaN or infinite."""
    return bits if math.isfinite(bits) else 0.0


def _shortened(text: str) -> str:
    return text if len(text) <= _REPR_WIDTH else text[: _REPR_WIDTH - 1] + "…"
