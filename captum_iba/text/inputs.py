"""The texts that a user gives, checked, and put into batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any


def check_texts(texts: Any, pairs: Any = None) -> tuple[list[str], list[str | None]]:
    """Texts and second texts as lists of the same length.

    Args:
        texts (str or sequence of str): One text, or several.
        pairs (str, sequence of str or None): The second text of each.

    Returns:
        tuple of two lists: the texts, and per text its second one or None.

    Raises:
        TypeError: Something that is not a string; says which.
        ValueError: An empty text (of a pair, both of them), no text at all, or another number of pairs than of texts.
    """
    each = _strings(texts, "texts")
    if pairs is None:
        for i, text in enumerate(each):
            if not text.strip():
                raise ValueError(f"texts[{i}] is empty; expected some text.")
        return each, [None] * len(each)
    if isinstance(texts, str) != isinstance(pairs, str):
        raise TypeError("pairs: expected one string beside one text, and a list of them beside a list.")
    others = _strings(pairs, "pairs")
    if len(others) != len(each):
        raise ValueError(f"pairs: expected one for each of the {len(each)} texts, got {len(others)}.")
    for i, (text, other) in enumerate(zip(each, others, strict=True)):
        if not (text.strip() or other.strip()):
            raise ValueError(f"texts[{i}] and pairs[{i}] are empty; expected some text in one of them.")
    return each, list(others)


def _strings(values: Any, name: str) -> list[str]:
    if isinstance(values, (bytes, dict)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name}: expected a string or a list of strings, got {type(values).__name__}.")
    strings = [values] if isinstance(values, str) else list(values)
    if not strings:
        raise ValueError(f"{name}: expected at least one, got none.")
    for i, value in enumerate(strings):
        if not isinstance(value, str):
            hint = "; the second texts of pairs go into pairs" if isinstance(value, (tuple, list)) else ""
            raise TypeError(f"{name}[{i}]: expected a string, got {type(value).__name__}{hint}.")
    return strings


def batches_by_length(lengths: Sequence[int], batch_size: int, equal: bool = False) -> list[list[int]]:
    """The numbers of the texts in batches of like length, longest first, so that little is padded.

    Args:
        lengths (sequence of int): Tokens of each text.
        batch_size (int): Texts in a batch, at least 1.
        equal (bool): Whether all texts of a batch must have the same length. Default: False.

    Returns:
        list of list of int: every number from 0 once.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: expected an integer of at least 1, got {batch_size!r}.")
    # Longest first: if memory runs out, it does so at once.
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = [list(group) for _, group in groupby(order, key=lengths.__getitem__)] if equal else [order]
    return [group[start : start + batch_size] for group in groups for start in range(0, len(group), batch_size)]
