"""Answers of question answering, and words of masked language models: found in a text, and checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.heads import END, START, with_row
from captum_iba.text.target import TextTarget

MOST_ANSWER_TOKENS = 30
"""Length of the longest predicted answer, in tokens."""


@dataclass(frozen=True)
class TargetedText:
    """A text with the row of its target, the column that the loss keeps, and what it is."""

    encoded: EncodedText
    column: int
    about: TextTarget


def refuse_truncated(name: str, value: str, text: EncodedText, i: int) -> None:
    """ValueError that says so where the characters are in the part of a text that the model does not read."""
    source = f"{text.text} {text.pair or ''}"
    if text.tokens_truncated and value.casefold() in source.casefold():
        raise ValueError(
            f"{name} is {value!r}, which is truncated away: texts[{i}] has {text.tokens_truncated} tokens more than "
            f"the {len(text)} that the model reads; expected a larger max_length, or a part of the text"
        )


def find_answer(classifier: Classifier, text: EncodedText, values: Tensor, wanted: Any, i: int) -> TargetedText:
    """The answer that is wanted of text ``i``, or the predicted one, from the logits of starts and ends, (T, 2)."""
    if text.pair is None:
        raise ValueError(
            f"pairs is None, expected the context of texts[{i}]: explain(question, context), or --question with the "
            "context as TEXT"
        )
    log_p = values.double().log_softmax(0)
    context = _context(text)
    if not context:
        raise ValueError(f"pairs[{i}] has no token that the model reads, expected a context with the answer")
    first, last, _ = _best_span(log_p, context)
    best, p, predicted_label = best_answer(text, log_p)
    if wanted is not None:
        first, last = _span_of(text, context, wanted, i, log_p)
    row = [0] * len(text)
    row[first] += START
    row[last] += END
    start, end = _characters(text, first, last)
    # SentencePiece can read an answer off at the beginning of the next word, which is then part of the target.
    ends = {text.words[at] for at in (first, last) if text.spans[at][0] == text.spans[at][1]} - {None}
    words = [text.word_spans[number] for number in ends if number is not None]
    further = tuple((word.sequence, word.start, word.end) for word in words if word.end <= start or word.start >= end)
    about = TextTarget(
        kind="answer",
        label=_spelled(text, first, last),
        number=first,
        predicted=-1 if best[0] == first and best[1] != last else best[0],
        predicted_label=predicted_label,
        predicted_probability=math.exp(p),
        spans=((1, start, end), *further),
    )
    return TargetedText(with_row(text, row), 1, about)


def best_answer(text: EncodedText, log_p: Tensor) -> tuple[tuple[int, int], float, str]:
    """The predicted answer: its first and last token, the logarithm of its probability, and as it is spelled.

    Words that are not in ``text`` are left out of it.
    """
    first, last, p = _best_span(log_p, context) if (context := _context(text)) else (0, 0, float("-inf"))
    # Models that may leave a question without an answer point at the first token.
    if not context or (text.special[0] and float(log_p[0].sum()) > p):
        return (0, 0), float(log_p[0].sum()), "no answer"
    numbers = [number for number in dict.fromkeys(text.words[first : last + 1]) if number is not None]
    if numbers and len(numbers) <= numbers[-1] - numbers[0]:
        words = [text.word_spans[number] for number in numbers]
        return (first, last), p, " ".join(text.spelling(1, word.start, word.end) for word in words)
    return (first, last), p, _spelled(text, first, last)


def _context(text: EncodedText) -> list[int]:
    """Positions of the tokens of the context."""
    return [at for at, sequence in enumerate(text.sequences) if sequence == 1 and not text.special[at]]


def _best_span(log_p: Tensor, context: Sequence[int]) -> tuple[int, int, float]:
    """First and last token of the most probable answer, and the logarithm of its probability."""
    starts, ends = log_p[context, 0], log_p[context, 1]
    scores = starts[:, None] + ends[None, :]
    allowed = torch.ones_like(scores, dtype=torch.bool).triu().tril(MOST_ANSWER_TOKENS - 1)
    best = int(scores.masked_fill(~allowed, float("-inf")).argmax())
    first, last = divmod(best, len(context))
    return context[first], context[last], float(scores[first, last])


def _characters(text: EncodedText, first: int, last: int) -> tuple[int, int]:
    """Start and end of the characters of some tokens of the context, without spaces around them."""
    start, end = text.spans[first][0], text.spans[last][1]
    inner = (text.pair or "")[start:end]
    if not inner.strip():
        return start, end
    return start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())


def _spelled(text: EncodedText, first: int, last: int) -> str:
    return text.spelling(1, *_characters(text, first, last))


def _span_of(text: EncodedText, context: Sequence[int], wanted: Any, i: int, log_p: Tensor) -> tuple[int, int]:
    """First and last token of an answer, by its characters (start, end) in the context, or as the context spells it.

    Of several places with the same words the one that the model thinks most probable.
    """
    source = text.pair or ""
    if isinstance(wanted, str):
        answer = wanted.strip()
        starts = [at for at in range(len(source)) if answer and source.startswith(answer, at)]
        if not starts:
            raise ValueError(
                f"target is {wanted!r}, an answer that is not in pairs[{i}]; expected a part of the context"
            )
        places = [(at, at + len(answer)) for at in starts]
    elif isinstance(wanted, tuple) and len(wanted) == 2 and all(isinstance(at, Integral) for at in wanted):
        if not 0 <= wanted[0] < wanted[1] <= len(source):
            raise ValueError(f"target is {wanted}, expected characters (start, end) in pairs[{i}], 0 to {len(source)}")
        places = [(int(wanted[0]), int(wanted[1]))]
    else:
        raise TypeError(f"target is {wanted!r}, expected an answer as the context spells it, or (start, end)")
    found = []
    for start, end in places:
        inside = [at for at in context if text.spans[at][0] < end and text.spans[at][1] > start]
        whole = inside and text.spans[inside[0]][0] == start and text.spans[inside[-1]][1] == end
        if inside and (whole or (text.spans[inside[0]][0] <= start and text.spans[inside[-1]][1] >= end)):
            found.append((float(log_p[inside[0], 0] + log_p[inside[-1], 1]), whole, inside[0], inside[-1]))
    if not found:
        raise ValueError(
            f"target is {wanted!r}, which is truncated away: the model reads {len(context)} tokens of pairs[{i}]; "
            "expected a larger max_length, or a part of the context"
        )
    if not any(whole for _, whole, _, _ in found):
        raise ValueError(
            f"target is {wanted!r}, which begins or ends inside a token of pairs[{i}]; expected whole tokens, such as "
            f"{_spelled(text, *found[0][2:])!r}"
        )
    _, _, first, last = max(one for one in found if one[1])
    return first, last


def mask_position(classifier: Classifier, text: EncodedText, i: int) -> int:
    """Position of the mask token of text ``i``, if there is one."""
    tokenizer = classifier.tokenizer
    if (mask := tokenizer.mask_token_id) is None:
        raise ValueError(f"tokenizer: {type(tokenizer).__name__} has no mask token, expected that of the model")
    places = [at for at, number in enumerate(text.inputs["input_ids"]) if number == mask]
    if len(places) != 1:
        if not places:
            refuse_truncated("mask", tokenizer.mask_token, text, i)
        raise ValueError(
            f"texts[{i}] has the mask token {tokenizer.mask_token} {len(places)} times, expected it once, in the place "
            "of the word to explain"
        )
    return places[0]


def find_mask(classifier: Classifier, text: EncodedText, values: Tensor, wanted: Any, i: int) -> TargetedText:
    """The word that is wanted at the mask token of text ``i``, or the predicted one, from logits (T, vocabulary)."""
    position = mask_position(classifier, text, i)
    logits = values[position]
    best = int(logits.argmax())
    number = best if wanted is None else _vocabulary_number(classifier, wanted, len(logits))
    row = [0] * len(text)
    row[position] = 1 + number
    sequence = text.sequences[position] or 0
    about = TextTarget(
        kind="mask",
        label=entry_of(classifier, number),
        number=number,
        predicted=best,
        predicted_label=entry_of(classifier, best),
        predicted_probability=float(logits.double().softmax(-1)[best]),
        text=text.spelling(sequence, *text.spans[position]),
        spans=((sequence, *text.spans[position]),),
    )
    return TargetedText(with_row(text, row), 1, about)


def entry_of(classifier: Classifier, number: int) -> str:
    """An entry of the vocabulary, as text."""
    spelled = classifier.tokenizer.decode([number]).strip() or classifier.tokenizer.convert_ids_to_tokens(number)
    return str(spelled or f"entry {number}")  # models can have more entries than their tokenizer


def _vocabulary_number(classifier: Classifier, word: Any, size: int) -> int:
    if isinstance(word, Integral) and not isinstance(word, bool):
        if not 0 <= int(word) < size:
            raise ValueError(f"target is {word}, expected 0 to {size - 1}, an entry of the vocabulary")
        return int(word)
    if not isinstance(word, str) or not word.strip():
        raise TypeError(f"target is {word!r}, expected a word for the mask token, or its number in the vocabulary")
    tokenizer = classifier.tokenizer
    pieces: list[int] = []
    for spelled in (f" {word.strip()}", word.strip()):  # byte-level vocabularies have the space before a word
        pieces = tokenizer(spelled, add_special_tokens=False, verbose=False)["input_ids"]
        if len(pieces) == 1 and pieces[0] != tokenizer.unk_token_id:
            return int(pieces[0])
    said = " ".join(tokenizer.convert_ids_to_tokens(pieces))
    n_tokens = f"{len(pieces)} token{'s' * (len(pieces) != 1)}"
    raise ValueError(f"target is {word!r}, which is {n_tokens} ({said}), expected a word that is one known token")
