"""Which class is explained: by number, by label, or the predicted one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def find_target(target: Any, labels: Sequence[str]) -> int:
    """The number of a class.

    Args:
        target (int or str): Its number from 0, or its label in any case.
        labels (sequence of str): All labels.

    Returns:
        int: from 0.

    Raises:
        ValueError: There is no such class; the message lists them.
        TypeError: ``target`` is neither a number nor a label.
    """
    listed = ", ".join(f"{i} ({label})" for i, label in enumerate(labels))
    if isinstance(target, str):
        if (same := list(labels).count(target)) > 1:
            raise ValueError(f"target: {same} labels are {target!r}, name the class by its number; they are {listed}.")
        if same:
            return list(labels).index(target)
        alike = [i for i, label in enumerate(labels) if label.casefold() == target.strip().casefold()]
        if len(alike) == 1:
            return alike[0]
        raise ValueError(f"target: no label is {target!r}; the classes are {listed}.")
    try:
        if isinstance(target, bool):
            raise TypeError
        number = operator.index(target)
    except TypeError:
        raise TypeError(f"target must be a class number, a label or None, not {target!r}.") from None
    if not 0 <= number < len(labels):
        raise ValueError(f"target: expected 0 to {len(labels) - 1}, got {number}; the classes are {listed}.")
    return number


def spread_targets(target: Any, count: int, labels: Sequence[str]) -> list[int | None]:
    """One class number per text, None for the predicted class.

    Args:
        target (int, str, None, or a sequence of them): One for all texts, or one per text.
        count (int): How many texts there are.
        labels (sequence of str): All labels.

    Raises:
        ValueError: A sequence of another length than ``count``, or no such class.
    """
    if isinstance(target, Tensor) or (hasattr(target, "tolist") and not isinstance(target, str)):
        target = target.tolist()
    each = list(target) if isinstance(target, (list, tuple)) else [target] * count
    if len(each) != count:
        raise ValueError(f"target: expected one, or one for each of the {count} texts, got {len(each)}.")
    return [None if one is None else find_target(one, labels) for one in each]
