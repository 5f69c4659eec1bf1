"""Where the words of a text stand, as it is printed."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from captum_iba._reading.protocols import ExplainedText
from captum_iba._reading.wording import has_characters

_TEXTS, _OF_KINDS = ("first text", "second text"), {"answer": ("question", "context"), "choice": ("text", "choice")}


def names_of_texts(attribution: Any) -> tuple[str, str]:
    """What both texts of a pair are called: "first text" and "second text", "question" and "context" of an answer."""
    about = getattr(attribution, "explained", None)
    return _TEXTS if about is None else _OF_KINDS.get(about.kind, _TEXTS)


def explained_words(attribution: ExplainedText) -> list[int]:
    """Numbers of the words that are explained themselves: a named entity, or an answer in its context."""
    about = attribution.explained
    return (
        [] if about is None else [i for i, word in enumerate(attribution.words) if about.holds(*place_in_texts(word))]
    )


def is_punctuation(word: str) -> bool:
    """Whether a word has no character that is a letter, a digit or a symbol."""
    categories = map(unicodedata.category, word)
    return all(category[0] in "PZ" or category in ("Cc", "Cf") for category in categories)


def word_places(attribution: ExplainedText) -> list[str]:
    """Where each word stands, as it is printed: "word 2"; punctuation has no number, "after word 2"."""
    of_text = [[word.word for word in attribution.words if (word.sequence or 0) == sequence] for sequence in (0, 1)]
    places = [place for words in of_text for place in places_in_text(words)]
    sources = (attribution.text, attribution.pair or "")
    for sequence in (0, 1):
        starts = [word.start for word in attribution.words if (word.sequence or 0) == sequence]
        # Of words that are truncated before the others, the number is not known.
        if attribution.tokens_truncated and starts and has_characters(sources[sequence][: min(starts)]):
            is_of_text = [(word.sequence or 0) == sequence for word in attribution.words]
            places = [f"{place} of those read" if of else place for place, of in zip(places, is_of_text, strict=True)]
    names = names_of_texts(attribution)
    of_pair = [f"{names[word.sequence or 0]}, {place}" for word, place in zip(attribution.words, places, strict=True)]
    return places if attribution.pair is None else of_pair


def printed_numbers(words: Sequence[str]) -> list[int]:
    """The number of each word as it is printed, from 1; a punctuation mark has that of the word before it.

    Examples::

        >>> printed_numbers(["dull", ",", "boring"]), printed_numbers(["!", "?"])
        ([1, 1, 2], [1, 2])
    """
    marks = [is_punctuation(word) for word in words]
    return list(accumulate(int(not mark or all(marks)) for mark in marks))


def places_in_text(words: Sequence[str]) -> list[str]:
    """Where each word of one text stands, as it is printed.

    Examples::

        >>> places_in_text(["dull", ",", "boring"])
        ['word 1', 'after word 1', 'word 2']
    """
    marks = [is_punctuation(word) for word in words]
    places = []
    for mark, number in zip(marks, printed_numbers(words), strict=True):
        of_mark = f"after word {number}" if number else "before word 1"
        places.append(of_mark if mark and not all(marks) else f"word {number}")
    several, before = Counter(places), Counter[str]()
    for i, place in enumerate(places):
        before[place] += 1
        if several[place] > 1:  # marks after one word
            places[i] = f"mark {before[place]} {place}"
    return places


def place_in_texts(word: Any) -> tuple[int, int, int]:
    """Text, and characters in it, of a word."""
    return word.sequence, word.start, word.end
