"""Arguments of explainers and methods: texts, targets and settings, checked, and texts in batches."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from torch import Tensor

from captum_iba._checks import check_integer, kind_of
from captum_iba._warnings import warn_user
from captum_iba.attr.settings import PRESETS, BottleneckSettings, SettingsOverrides, resolve_settings
from captum_iba.text.encoding import EncodedText

_SURROGATE = re.compile("[\ud800-\udfff]")

GRANULARITIES = ("token", "word", "feature")
"""Elements of a text that can share a mask value."""

PUBLISHED_PRESETS = ("paper", "as_released")
"""Presets that have one layer (:func:`captum_iba.text.layers.published_layer`) unless others are named."""


def check_texts(texts: Any, pairs: Any = None, labels: Sequence[str] = ()) -> tuple[list[str], list[str | None]]:
    """Texts and second texts as lists of one length, with None for each second text where there are no pairs.

    TypeError or ValueError names what is no text, empty (of a pair: both), or of another number. Second texts that are
    ``labels`` of the model are warned of: a target comes third.
    """
    first = _strings(texts, "texts")
    if isinstance(texts, tuple) and len(first) == 2 and pairs is None:
        warn_user("texts is a tuple of two strings, which is two texts; the second text of a pair goes into pairs")
    if pairs is None:
        for i, text in enumerate(first):
            if not text.strip():
                name = "texts" if isinstance(texts, str) else f"texts[{i}]"
                raise ValueError(f"{name} {blank_text(text)}, expected some text")
        return first, [None] * len(first)
    if isinstance(texts, str) != isinstance(pairs, str):
        raise TypeError(f"pairs is {kind_of(pairs)}, expected a string for one text, and a list of strings for a list")
    second = _strings(pairs, "pairs")
    if len(second) != len(first):
        raise ValueError(f"pairs has {len(second)} entries, expected one for each of the {len(first)} texts")
    for i, (text, pair) in enumerate(zip(first, second, strict=True)):
        if not (text.strip() or pair.strip()):
            what = "only white space" if text or pair else "empty"
            raise ValueError(f"texts[{i}] and pairs[{i}] are {what}, expected some text in one of them")
    halves = [f"texts[{i}] {blank_text(text)}" for i, text in enumerate(first) if not text.strip()]
    halves += [f"pairs[{i}] {blank_text(pair)}" for i, pair in enumerate(second) if not pair.strip()]
    if halves:
        more = f", and {len(halves) - 1} more" if len(halves) > 1 else ""
        warn_user(f"{halves[0]}{more}: of such a pair the model reads one text")
    if {pair.strip().lower() for pair in second} <= {label.lower() for label in labels}:
        warn_user(
            f"pairs is {second[0]!r}, which is a class of the model, and is read as the second text of a pair; a class "
            f"is given as target={second[0]!r}"
        )
    return first, list(second)


# Parts of names of classes of pairs of texts, and what classes without names are called.
_OF_PAIRS = re.compile(
    "entail|contra|equivalent|duplicate|paraphrase|similar|same|match|relevan|related|answer|support|refute|label_"
    r"|\b(yes|no|true|false|agree|disagree)\b",
    re.IGNORECASE,
)


def is_pair(text: str, pair: str | None) -> bool:
    """Whether there are two texts: an empty one is as if it were not given."""
    return pair is not None and bool(text.strip() and pair.strip())


def doubt_of_pairs(text: str, pair: str | None, labels: Sequence[str]) -> str:
    """Why the number of texts in an input may not be what the model was trained on, by its classes; or empty.

    An empty text of a pair is as if it were not given.
    """
    classes, paired = ", ".join(labels), is_pair(text, pair)
    if not paired and any("entail" in label.casefold() for label in labels):
        missing = "No second text is given (pairs, --pair)"
        if pair is not None:
            missing = "Both texts are empty" if not (text + pair).strip() else "The second text is empty"
            missing = "The first text is empty" if pair.strip() else missing
        return f"{missing}, but the classes {classes} are of pairs of texts, such as a premise and a hypothesis."
    if paired and len(labels) > 1 and not any(map(_OF_PAIRS.search, labels)):
        return (
            f"A second text is given (pairs, --pair), but the classes {classes} may be of single texts. Leave it out "
            "unless the model was trained on pairs."
        )
    return ""


def warn_of_special_tokens(encoded: Sequence[EncodedText]) -> None:
    """Warn of the first special token that a text spells out, such as "[SEP]"."""
    for i, text in enumerate(encoded):
        for is_special, sequence, (start, end) in zip(text.special, text.sequences, text.spans, strict=True):
            if is_special and start < end:
                warn_user(
                    f"{'pairs' if sequence else 'texts'}[{i}] has {text.spelling(sequence, start, end)!r}, which the "
                    "tokenizer reads as a special token: it is no word, has no bits and is never deleted"
                )
                return


def _strings(values: Any, name: str) -> list[str]:
    # A table gives the names of its columns, and a set has no order.
    no_list = isinstance(values, (bytes, Mapping, set, frozenset)) or hasattr(values, "columns")
    if no_list or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} is {kind_of(values)}, expected a string or a list of strings")
    # Of a column of NumPy, too, results have plain strings.
    every = [values] if isinstance(values, str) else values
    strings = [str(value) if isinstance(value, str) else value for value in every]
    if not strings:
        raise ValueError(f"{name} is empty, expected at least one text")
    for i, value in enumerate(strings):
        if not isinstance(value, str):
            hint = "; the second texts of pairs go into pairs" if isinstance(value, (tuple, list)) else ""
            raise TypeError(f"{name}[{i}] is {kind_of(value)}, expected a string{hint}")
        if (broken := broken_text(value)) is not None:
            raise ValueError(f"{name}[{i}] {broken}")
    return strings


def blank_text(text: str) -> str:
    """What a text without anything to read is, in words."""
    return "is only white space" if text else "is empty"


def broken_text(text: str) -> str | None:
    """What makes a string no text, in words: half of a surrogate pair has no place in UTF-8, and tokenizers fail."""
    if not text.isascii() and (found := _SURROGATE.search(text)) is not None:
        return f"has half of a surrogate pair, {found[0]!r}, as character {found.start()}, expected Unicode text"
    return None


class NoEntityError(ValueError):
    """An error of ``entity``: the model predicts no entity."""


class NumberError(ValueError):
    """An error that names numbers of words or entities, which count from 0.

    Its arguments are the pieces of the message, of which the integers are these numbers; of a word it is a pair, with
    its number as it is printed, from 1 and without punctuation marks.

    Examples::

        >>> error = NumberError("word is ", 9, ", expected ", 0, " or ", (3, 2))
        >>> str(error), error.counted_from(1)
        ('word is 9, expected 0 or 3', 'word is 10, expected 1 or 2')
    """

    def __str__(self) -> str:
        return self.counted_from(0)

    def counted_from(self, first: int) -> str:
        """The message with numbers that count from ``first``, 0 or 1."""
        both = ((part, part + 1) if isinstance(part, int) else part for part in self.args)
        return "".join(str(part[first]) if isinstance(part, tuple) else part for part in both)


def find_target(target: Any, labels: Sequence[str]) -> int:
    """The number of a class, from 0, by its number or by its label in any case; the error lists the classes."""
    classes = ", ".join(f"{i} ({label})" for i, label in enumerate(labels))
    if isinstance(target, str):
        if (equal := list(labels).count(target)) > 1:
            raise ValueError(
                f"target is {target!r}, the label of {equal} classes, expected a class by its number: {classes}"
            )
        if equal:
            return list(labels).index(target)
        matches = [i for i, label in enumerate(labels) if label.casefold() == target.strip().casefold()]
        if len(matches) == 1:
            return matches[0]
        close = difflib.get_close_matches(target.casefold(), [label.casefold() for label in labels], 1)
        meant = next((f" (did you mean {label!r}?)" for label in labels if close and label.casefold() == close[0]), "")
        if target.strip().isdecimal():
            meant = f", a string; a class by its number is {int(target)}"
        raise ValueError(f"target is {target!r}{meant}, expected one of the classes: {classes}")
    try:
        if isinstance(target, bool):
            raise TypeError
        number = operator.index(target)
    except TypeError:
        raise TypeError(f"target is {target!r}, expected a class number, a label or None") from None
    if not 0 <= number < len(labels):
        raise ValueError(f"target is {number}, expected 0 to {len(labels) - 1}, one of the classes: {classes}")
    return number


def targets_per_text(target: Any, count: int, labels: Sequence[str]) -> list[int | None]:
    """One class number per text, None for the predicted class, from one target for all texts or one for each."""
    if isinstance(target, Tensor) or (hasattr(target, "tolist") and not isinstance(target, str)):
        target = target.tolist()
    targets = list(target) if isinstance(target, (list, tuple)) else [target] * count
    if len(targets) != count:
        raise ValueError(f"target has {len(targets)} entries, expected one, or one for each of the {count} texts")
    return [None if entry is None else find_target(entry, labels) for entry in targets]


class ExplainOptions(SettingsOverrides, total=False):
    """Keyword arguments of :meth:`TextExplainer.explain`, with those that override single settings."""

    word: int | str | Sequence[int | str] | None
    token: int | Sequence[int] | None
    entity: int | str | Sequence[int | str] | None
    choices: Sequence[str] | Sequence[Sequence[str]] | None
    tolerance: float | None
    mask_target: bool
    preset: str | BottleneckSettings
    seed: int
    batch_size: int
    internal_batch_size: int | None
    return_trace: bool
    repeats: int
    rerank: int
    check: bool
    show_progress: bool


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """TypeError for a keyword that :meth:`TextExplainer.explain` does not take: all that it takes, and the closest."""
    known = ["texts", "pairs", "target", *ExplainOptions.__annotations__, *SettingsOverrides.__annotations__]
    known = list(dict.fromkeys(known))
    settings = {field.name for field in fields(BottleneckSettings)}
    for name in keywords:
        if name in ("method", "methods"):
            raise TypeError(
                f"{name!r} is no argument of explain, which runs the information bottleneck; expected "
                "captum_iba.methods.attribute(name, explainer.classifier, texts) for other methods"
            )
        if name in ("layer", "statistics", "max_length"):
            raise TypeError(f"{name!r} is no argument of explain; pass it to TextExplainer")
        if name not in known and name not in settings:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(f"{name!r} is no argument of explain, expected one of {', '.join(known)}{hint}")


def resolve_text_settings(
    preset: str | BottleneckSettings, overrides: SettingsOverrides
) -> tuple[str, str, BottleneckSettings]:
    """Name of a preset (``"custom"`` for settings without one), granularity, and settings of the bottleneck.

    The granularity may also be ``"word"``, which is a mask of the tokens and no setting of the bottleneck.
    """
    granularity = overrides.get("granularity")
    if granularity is None and isinstance(preset, BottleneckSettings):
        granularity = preset.granularity
    if granularity not in (None, *GRANULARITIES):
        raise ValueError(f"granularity is {granularity!r}, expected one of {', '.join(GRANULARITIES)}")
    without_words: SettingsOverrides = {**overrides, "granularity": None if granularity == "word" else granularity}
    settings = resolve_settings(preset, **without_words)
    names = [name for name, preset_settings in PRESETS.items() if preset in (name, preset_settings)]
    return names[0] if names else "custom", granularity or settings.granularity, settings


def batches_by_length(lengths: Sequence[int], batch_size: int, equal: bool = False) -> list[list[int]]:
    """Indices of texts in batches of similar length, longest first, so that little is padded.

    With ``equal``, all texts of a batch have the same length.
    """
    check_integer("batch_size", batch_size, at_least=1)
    # Longest first: if memory runs out, it does so at once.
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = [list(group) for _, group in groupby(order, key=lengths.__getitem__)] if equal else [order]
    return [group[start : start + batch_size] for group in groups for start in range(0, len(group), batch_size)]
