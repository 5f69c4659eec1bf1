"""What is explained in a text, by the head of its model: found, checked, and put beside the text's token ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from captum_iba._checks import check_flag
from captum_iba._reading.places import printed_numbers
from captum_iba._warnings import warn_user
from captum_iba.attr._model.guard import ONE_AT_A_TIME
from captum_iba.text.answers import TargetedText, find_answer, find_mask, mask_position, refuse_truncated
from captum_iba.text.arguments import NoEntityError, NumberError, find_target
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.heads import TARGET_ROW, AnswerHead, ChoiceHead, Head, MaskHead, ValueHead, with_row
from captum_iba.text.statistics import change_mark, neutral_texts
from captum_iba.text.target import TextTarget

NOT_COUNTED = ("o", "-100", "ignore", "ignored", "pad", "[pad]", "<pad>")
"""Classes of tokens, in any case, that make no entity."""

_LISTED = 8
Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


ASKED = ("word", "token", "entity", "choices", "tolerance", "mask_target")
"""Arguments that say what is explained, beside ``target``."""


def encode_targets(
    classifier: Classifier,
    texts: Sequence[str],
    pairs: Sequence[str | None],
    target: Any,
    batch_size: int,
    asked: dict[str, Any],
    single: bool = False,
) -> list[TargetedText]:
    """Texts as a model with another head than that of a sequence classifier takes them, each with what is explained.

    Args:
        classifier, target, batch_size: As for :func:`find_targets`.
        texts, pairs (sequence): As :func:`captum_iba.text.arguments.check_texts` returns them.
        asked (dict): The arguments :data:`ASKED`, as the user gave them.
        single (bool): Whether the user gave one text, which has one list of choices. Default: False.

    Raises:
        TypeError, ValueError: As :func:`find_targets`, or a text without a word beside the one that is explained.
    """
    if (choices := asked["choices"]) is not None:
        if any(pair is not None for pair in pairs):
            raise ValueError(
                "pairs is given, expected None with choices, which are the second texts; a question goes into texts, "
                "after its context"
            )
        per_text_choices = check_choices(choices, single, len(texts))
        asked = {**asked, "choices": per_text_choices}
        texts = [text for text, of_text in zip(texts, per_text_choices, strict=True) for _ in of_text]
        pairs = [choice for of_text in per_text_choices for choice in of_text]
    found = find_targets(classifier, classifier.encode(texts, pairs), target, batch_size, asked)
    return found if asked["mask_target"] else [replace(item, encoded=_with_target(item)) for item in found]


def _with_target(item: TargetedText) -> EncodedText:
    """The text whose tokens that are explained are marked: what the head reads out stays, as [CLS] of a classifier."""
    text, about = item.encoded, item.about
    if not about.spans:
        return text
    read = {at for at, value in enumerate(text.inputs[TARGET_ROW]) if value}
    held = zip(text.sequences, text.spans, strict=True)
    read |= {at for at, (sequence, span) in enumerate(held) if about.holds(sequence, *span)}
    # Of SentencePiece a word can begin with a token of no characters.
    words = {text.words[at] for at in read} - {None}
    read |= {at for at, (start, end) in enumerate(text.spans) if start == end and text.words[at] in words}
    marked = replace(text, is_target=tuple(at in read for at in range(len(text))))
    if not any(marked.removable):
        raise ValueError(
            f"texts has {text.text!r}, which has no other word than what is explained; mask_target=True masks it"
        )
    return marked


def check_asked(head: Head, asked: Mapping[str, Any]) -> None:
    """ValueError for arguments that the head does not have, or that are missing."""
    check_flag("mask_target", asked["mask_target"])
    for name, value in asked.items():
        if name != "mask_target" and value is not None and name not in head.keywords:
            raise ValueError(f"{name} is {value!r}, expected None for a model of {head.kind}")
    if "choices" in head.keywords and asked["choices"] is None:
        raise ValueError(f"choices is None, expected a list of texts for a model of {head.kind}")
    if asked["mask_target"] and (head.has_classes or not head.has_target_words):
        raise ValueError(f"mask_target is True, expected False for a model of {head.kind}: it explains no word")


@contextmanager
def holding_scale(head: Head) -> Iterator[None]:
    """Context for one thread at a time where the head keeps the tolerance of a call."""
    with ONE_AT_A_TIME if isinstance(head, ValueHead) else nullcontext():
        yield


def with_held_scale(explain: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Explain in one thread at a time where the head keeps the tolerance of a call."""

    @wraps(explain)
    def explain_alone(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        explainer: Any = args[0]
        with holding_scale(explainer.classifier.head):
            return explain(*args, **kwargs)

    return explain_alone


def find_targets(
    classifier: Classifier, encoded: Sequence[EncodedText], target: Any, batch_size: int, asked: dict[str, Any]
) -> list[TargetedText]:
    """What is explained in each text; of ``entity="all"`` any number for a text, in order.

    Args:
        classifier (Classifier): A model with another head than that of a sequence classifier.
        encoded (sequence of EncodedText): The texts; for multiple choice one of each choice, text by text.
        target (object): The label, answer, word or choice, one for all texts or one for each; None for the predicted.
        batch_size (int): Number of texts per pass.
        asked (dict): The other arguments: word, token, entity, choices, tolerance, mask_target.

    Raises:
        TypeError, ValueError: An argument that the head does not have, or that is not in the text.
    """
    head = classifier.head
    if isinstance(head, ChoiceHead):
        return _numbered(_choices(classifier, encoded, target, batch_size, asked["choices"]))
    count = len(encoded)
    if isinstance(head, ValueHead):
        targets = per_text("target", target, count)
        return _numbered(_values(classifier, encoded, targets, batch_size, asked["tolerance"]))
    if isinstance(head, MaskHead):
        find: Any = find_mask
    elif isinstance(head, AnswerHead):
        find = find_answer
    else:
        return _tokens(classifier, encoded, target, batch_size, asked)
    targets = per_text("target", target, count)
    if isinstance(head, MaskHead):
        for i, text in enumerate(encoded):
            mask_position(classifier, text, i)  # before the model runs
    found: dict[int, TargetedText] = {}
    for i, values in classifier.values(encoded, batch_size):
        found[i] = find(classifier, encoded[i], values, targets[i], i)
    return _numbered([found[i] for i in range(count)])


def _numbered(found: Sequence[TargetedText]) -> list[TargetedText]:
    """One target per text, with the number of its text."""
    return [replace(item, about=replace(item.about, text_number=i)) for i, item in enumerate(found)]


def per_text(name: str, value: Any, count: int) -> list[Any]:
    """One entry per text, from one for all or a list with one for each; a tuple is one answer, (start, end)."""
    value = value.tolist() if isinstance(value, Tensor) or hasattr(value, "tolist") else value
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} entries, expected one, or one for each of the {count} texts")
    return value


# Token classification


def _tokens(
    classifier: Classifier, encoded: Sequence[EncodedText], target: Any, batch_size: int, asked: dict[str, Any]
) -> list[TargetedText]:
    given = [name for name in ("word", "token", "entity") if asked[name] is not None]
    if len(given) != 1:
        raise ValueError(
            f"model: a model of token classification needs one of word, token and entity, got "
            f"{' and '.join(given) or 'none'}; entity='all' explains all entities of a text"
        )
    (name,) = given
    if name == "entity" and target is not None:
        raise ValueError(f"target is {target!r}, expected None with entity: its labels are the predicted ones")
    wanted, targets = (
        per_text(key, list(value) if isinstance(value, tuple) else value, len(encoded))
        for key, value in ((name, asked[name]), ("target", target))
    )
    classes = [None if entry is None else find_target(entry, classifier.labels) for entry in targets]
    positions: dict[str, Callable[[int], list[int]]] = {
        "word": lambda i: [word_positions(encoded[i], wanted[i], i)[0]],
        "token": lambda i: [_token_position(encoded[i], wanted[i], i)],
        "entity": lambda i: [],
    }
    chosen = [positions[name](i) for i in range(len(encoded))]  # before the model runs
    found: dict[int, list[TargetedText]] = {}
    for i, values in classifier.values(encoded, batch_size):
        if name == "entity":
            entities = predicted_entities(encoded[i], values, classifier.labels)
            kept = _chosen_entities(encoded[i], entities, wanted[i], i, len(encoded))
            if wanted[i] == "all" and not asked["mask_target"]:
                kept = _with_other_words(encoded[i], kept, i)
            found[i] = [_labelled(classifier, encoded[i], values, entity, None, name) for entity in kept]
        else:
            found[i] = [_labelled(classifier, encoded[i], values, chosen[i], classes[i], name)]
    results = [
        replace(item, about=replace(item.about, text_number=i)) for i in range(len(encoded)) for item in found[i]
    ]
    if not results:
        raise NoEntityError("entity: the model predicts no entity in any of the texts; give a word (word, --word)")
    return results


def _labelled(
    classifier: Classifier, text: EncodedText, values: Tensor, positions: Sequence[int], wanted: int | None, kind: str
) -> TargetedText:
    """A target of the tokens at some positions: their own most probable classes, or one that is wanted."""
    probabilities = values.double().softmax(-1)
    row = [0] * len(text)
    for position in positions:
        row[position] = 1 + (int(values[position].argmax()) if wanted is None else wanted)
    first = positions[0]
    number, predicted = row[first] - 1, int(values[first].argmax())
    of_words = kind != "token"
    words = [
        text.word_spans[number] for number in dict.fromkeys(text.words[at] for at in positions) if number is not None
    ]
    sequence = text.sequences[first] or 0
    if of_words:
        spans = tuple((word.sequence, word.start, word.end) for word in words)
        spelled = text.spelling(sequence, words[0].start, words[-1].end)
    else:
        spans, spelled = ((sequence, *text.spans[first]),), text.spelling(sequence, *text.spans[first])
    chance = 1.0
    for position in positions:
        chance *= float(probabilities[position].max())
    about = TextTarget(
        kind=kind,
        label=classifier.labels[number],
        number=number,
        predicted=predicted,
        predicted_label=classifier.labels[predicted],
        predicted_probability=chance,
        text=spelled,
        spans=spans,
    )
    return TargetedText(with_row(text, row), 1, about)


def word_positions(text: EncodedText, word: Any, i: int) -> tuple[int, ...]:
    """Positions of the tokens of a word, by its number from 0 or as the text spells it, if that is there once."""
    spelled = [text.spelling(span.sequence, span.start, span.end) for span in text.word_spans]
    if isinstance(word, str):
        numbers = [number for number, one in enumerate(spelled) if one == word]
        numbers = numbers or [number for number, one in enumerate(spelled) if one.casefold() == word.casefold()]
        if len(numbers) > 1:
            printed = printed_numbers(spelled)
            raise _ambiguous("word", word, [(number, printed[number]) for number in numbers], i)
        if not numbers:
            refuse_truncated("word", word, text, i)
            listed = ", ".join(map(repr, spelled[:_LISTED])) + (", ..." if len(spelled) > _LISTED else "")
            raise ValueError(f"word is {word!r}, which is no word of texts[{i}]; its words are {listed}")
        return text.word_spans[numbers[0]].positions
    return text.word_spans[_number("word", word, len(spelled), i, text)].positions


def _token_position(text: EncodedText, token: Any, i: int) -> int:
    position = _number("token", token, len(text), i, text)
    if text.special[position]:
        raise ValueError(
            f"token is {position}, the special token {text.tokens[position]} of texts[{i}]; expected a word's"
        )
    return position


def _number(name: str, value: Any, count: int, i: int, text: EncodedText) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        text_or = " or its text" if name != "token" else ""
        raise TypeError(f"{name} is {value!r}, expected its number{text_or}")
    if not 0 <= int(value) < count:
        lost = f"; {text.tokens_truncated} tokens were truncated" if text.tokens_truncated else ""
        expected = (0, *((" to ", count - 1) if count > 1 else ())) if count else ("none, there is no such",)
        raise NumberError(f"{name} is ", int(value), ", expected ", *expected, f", for texts[{i}]{lost}")
    return int(value)


def _ambiguous(name: str, wanted: str, numbers: Sequence[int | tuple[int, int]], i: int) -> NumberError:
    """The error of a word or entity that a text has several times."""
    listed = [part for number in numbers for part in (", ", number)][1:]
    times = f"{name} is {wanted!r}, which texts[{i}] has {len(numbers)} times"
    return NumberError(f"{times}; expected the number of the {name}, one of ", *listed, " (from ", 0, ")")


def predicted_entities(text: EncodedText, values: Tensor, labels: Sequence[str]) -> list[list[int]]:
    """Entities that a model predicts: of each the positions of the first tokens of its words.

    The first token of a word decides, as in training. ``B-``, ``S-`` and ``U-`` begin an entity, and ``E-``, ``L-``,
    ``S-`` and ``U-`` end one; another class of the same type after it goes on with it. Classes of :data:`NOT_COUNTED`
    make none. ``B_PER`` and ``PER-B`` are read, too, where there is such a class with ``I``.
    """
    schemes = _schemes(labels)
    entities: list[list[int]] = []
    before: tuple[str, int] | None = None
    for word in text.word_spans:
        position = word.positions[0]
        label = labels[int(values[position].argmax())]
        part, kind = _part_and_kind(label, schemes)
        if label.casefold() in NOT_COUNTED:
            before = None
            continue
        if before == (kind, word.sequence) and part not in ("B", "S", "U"):
            entities[-1].append(position)
        else:
            entities.append([position])
        before = None if part in ("E", "L", "S", "U") else (kind, word.sequence)
    return entities


_PREFIX_DASH, _PREFIX, _SUFFIX = (
    re.compile(r"(?P<part>[BIESULM])-(?P<kind>.+)", re.IGNORECASE),
    re.compile(r"(?P<part>[BIESULM])_(?P<kind>.+)", re.IGNORECASE),
    re.compile(r"(?P<kind>.+)[-_](?P<part>[BIESULM])", re.IGNORECASE),
)


def _schemes(labels: Sequence[str]) -> list[re.Pattern[str]]:
    """How labels name the part of an entity: ``B-PER``, and what some label has both with B and with I."""
    found = [_PREFIX_DASH]
    for scheme in (_PREFIX, _SUFFIX):
        parts = [(match["part"].upper(), match["kind"]) for label in labels if (match := scheme.fullmatch(label))]
        if any(part == "B" and ("I", kind) in parts for part, kind in parts):
            found.append(scheme)
    return found


def _part_and_kind(label: str, schemes: Sequence[re.Pattern[str]]) -> tuple[str, str]:
    """Part of an entity, "" without, and its type."""
    for scheme in schemes:
        if match := scheme.fullmatch(label):
            return match["part"].upper(), match["kind"]
    return "", label


def _with_other_words(text: EncodedText, entities: list[list[int]], i: int) -> list[list[int]]:
    """The entities beside which the text has other words to explain them by; a warning names the others."""
    kept = [entity for entity in entities if len({text.words[at] for at in entity}) < len(text.word_spans)]
    if len(kept) < len(entities):
        warn_user(
            f"texts[{i}] is left out: its entity takes all of its words, and there is no other word to explain it by; "
            "mask_target=True masks it"
        )
    return kept


def _chosen_entities(text: EncodedText, entities: list[list[int]], wanted: Any, i: int, count: int) -> list[list[int]]:
    spelled = []
    for entity in entities:
        words = [text.word_spans[number] for number in (text.words[at] for at in entity) if number is not None]
        spelled.append(text.spelling(words[0].sequence, words[0].start, words[-1].end))
    there = f"it predicts {', '.join(spelled[:_LISTED])}" if spelled else "it predicts none there"
    if wanted == "all":
        if not entities and count == 1:
            raise NoEntityError(f"entity: the model predicts no entity in texts[{i}]; give a word (word, --word)")
        return entities
    if isinstance(wanted, str):
        numbers = [number for number, one in enumerate(spelled) if one.casefold() == wanted.strip().casefold()]
        if len(numbers) > 1:
            raise _ambiguous("entity", wanted, numbers, i)
        if not numbers:
            refuse_truncated("entity", wanted, text, i)
            raise ValueError(f"entity is {wanted!r}, which the model does not predict in texts[{i}]: {there}")
        return [entities[numbers[0]]]
    if not entities:
        raise NoEntityError(f"entity is a number, and the model predicts no entity in texts[{i}]; expected a word")
    return [entities[_number("entity", wanted, len(entities), i, text)]]


# Multiple choice


def _choices(
    classifier: Classifier, encoded: Sequence[EncodedText], target: Any, batch_size: int, choices: list[list[str]]
) -> list[TargetedText]:
    head = classifier.head
    logits = torch.empty(len(encoded), dtype=torch.float64)
    trial = [head.trial(text) for text in encoded]
    for i, values in classifier.values(trial, batch_size):
        logits[i] = float(values[0])
    results, start = [], 0
    for of_text, wanted in zip(choices, per_text("target", target, len(choices)), strict=True):
        of_choices = logits[start : start + len(of_text)]
        best = int(of_choices.argmax())
        number = best if wanted is None else find_target(wanted, of_text)
        others = float(torch.cat([of_choices[:number], of_choices[number + 1 :]]).logsumexp(0))
        text = encoded[start + number]
        about = TextTarget(
            kind="choice",
            label=of_text[number],
            number=number,
            predicted=best,
            predicted_label=of_text[best],
            predicted_probability=float(of_choices.softmax(0)[best]),
        )
        results.append(TargetedText(with_row(text, [others] * len(text)), 1, about))
        start += len(of_text)
    return results


def check_choices(choices: Any, single: bool, count: int) -> list[list[str]]:
    """The choices of each text: two or more strings; TypeError or ValueError says what is wrong."""
    if choices is None or isinstance(choices, str):
        raise TypeError(f"choices is {choices!r}, expected a list of strings for a model of multiple choice")
    of_all = single or all(isinstance(choice, str) for choice in choices)
    per_text = [list(choices) for _ in range(count)] if of_all else [list(of_text) for of_text in choices]
    if len(per_text) != count:
        raise ValueError(f"choices has {len(per_text)} entries, expected a list for each of the {count} texts")
    for i, of_text in enumerate(per_text):
        if len(of_text) < 2 or not all(isinstance(choice, str) and choice.strip() for choice in of_text):
            raise ValueError(f"choices of texts[{i}] are {of_text!r}, expected two or more texts")
    return per_text


# Regression


def _values(
    classifier: Classifier, encoded: Sequence[EncodedText], targets: Sequence[Any], batch_size: int, tolerance: Any
) -> list[TargetedText]:
    head = classifier.head
    assert isinstance(head, ValueHead)
    if tolerance is not None:
        if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0 < float(tolerance) < float("inf"):
            raise ValueError(f"tolerance is {tolerance!r}, expected a number above 0, in the unit of the output")
        head.scale = torch.full((head.n_columns,), float(tolerance))
    else:
        head.scale = _spread(classifier, encoded[0].pair is not None, batch_size)
    found: dict[int, TargetedText] = {}
    for i, values in classifier.values(encoded, batch_size):
        if targets[i] is None and head.n_columns > 1:
            listed = ", ".join(f"{number} ({label})" for number, label in enumerate(head.labels))
            raise ValueError(f"target is None, expected one of the outputs of the model: {listed}")
        number = 0 if targets[i] is None else find_target(targets[i], head.labels)
        value = float(values[number])
        label = f"{value:.4g}" if head.n_columns == 1 else f"{head.labels[number]} {value:.4g}"
        about = TextTarget("value", label, number, number, label, 1.0)
        found[i] = TargetedText(with_row(encoded[i], [value] * len(encoded[i])), number, about)
    return [found[i] for i in range(len(encoded))]


def _spread(classifier: Classifier, paired: bool, batch_size: int) -> Tensor:
    """Standard deviation of the outputs over neutral texts in the package; once for the weights of a classifier."""
    key, mark = ("spread of values", paired), change_mark(classifier)
    if classifier.method_state.get(key, (None,))[0] != mark:
        texts, pairs = neutral_texts(paired)
        encoded = classifier.encode(texts, pairs or [None] * len(texts))
        values = torch.stack([of_text for _, of_text in classifier.values(encoded, max(batch_size, 32))])
        spread = values.double().std(0)
        if not bool((spread > 0).all()):
            raise ValueError(
                "tolerance is None, and an output of the model is the same for all neutral texts in the package, so "
                "that it has no scale; expected a tolerance in the unit of the output"
            )
        classifier.method_state[key] = mark, spread.float()
    spread_of_outputs: Tensor = classifier.method_state[key][1]
    return spread_of_outputs
