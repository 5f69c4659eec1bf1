"""Attributions and scores made by hand."""

import numpy as np

from captum_iba._reading.order import ranking
from captum_iba.methods import Scores
from captum_iba.text import EncodedText, TextAttribution, Token


def attribution(text, bits=None, pair=None, layer=1, **changes):
    """One token a word, words parted by single spaces, [CLS] before."""
    tokens = [Token("[CLS]", 0.0, 0, 0, None, True, None)]
    for sequence, source in enumerate((text, pair)):
        start = 0
        for word in (source or "").split(" "):
            if source is not None:
                number = len(tokens) - 1
                value = float(number) if bits is None else bits[number]
                tokens.append(Token(word, value, start, start + len(word), sequence, False, number))
            start += len(word) + 1
    values = {
        "target": 1,
        "target_label": "positive",
        "target_probability": 0.75,
        "predicted": int(changes.get("predicted_label", "positive") == "positive"),
        "predicted_label": "positive",
        "predicted_probability": 0.75,
        "layer": f"encoder.{layer - 1}",
        "layer_index": layer,
        "method": "iba",
        "preset": "default",
        "granularity": "token",
        "statistics": "a dataset of 10 positions",
    }
    return TextAttribution(text=text, pair=pair, tokens=tuple(tokens), **{**values, **changes})


def scores(text, words, method="ig", signed=True, pieces=None):
    """Scores of the words of a text, parted by single spaces, [CLS] before; ``pieces``: the tokens of each word."""
    pieces = pieces or [[word] for word in text.split(" ")]
    tokens, spans, numbers, values = ["[CLS]"], [(0, 0)], [None], [0.0]
    start = 0
    for number, of_word in enumerate(pieces):
        for piece in of_word:
            length = len(piece.removeprefix("##"))
            tokens.append(piece)
            spans.append((start, start + length))
            numbers.append(number)
            values.append(words[number] / len(of_word))
            start += length
        start += 1
    sequences = [None] + [0] * (len(tokens) - 1)
    special = [True] + [False] * (len(tokens) - 1)
    encoded = EncodedText(
        text, None, {}, tuple(tokens), tuple(spans), tuple(sequences), tuple(special), tuple(numbers), 0
    )
    return Scores(method, 1, encoded, np.array(values), np.array(words, dtype=float), signed, 0.0)


def by_rank(result, *values):
    """Values of the words in the order of lists, by the numbers of the words."""
    each = [None] * len(result.words)
    for number, value in zip(ranking(result), values, strict=False):
        each[number] = value
    return tuple(each)
