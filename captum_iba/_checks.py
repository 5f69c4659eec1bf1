"""Checks of arguments. Each raises an error that names the argument, what it was and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor


def check_integer(name: str, value: Any, at_least: int | None = None, kind: type[int] | type[Integral] = int) -> None:
    """An integer, of at least ``at_least``; True is none. The kind ``Integral`` has NumPy's integers, too."""
    if isinstance(value, bool) or not isinstance(value, kind) or (at_least is not None and value < at_least):
        expected = "an integer" if at_least is None else f"an integer of at least {at_least}"
        raise ValueError(f"{name} is {value!r}, expected {expected}")


def check_number(
    name: str,
    value: Any,
    accepts: Callable[[float], bool] = lambda number: number > 0,
    expected: str = "a positive number",
) -> None:
    """A finite number that is accepted; by default a positive one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not accepts(value):
        raise ValueError(f"{name} is {value!r}, expected {expected}")


def check_flag(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, expected True or False")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """One of several names."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(choices)}")


def kind_of(value: Any) -> str:
    """The type of a value in an error message, with its article.

    Examples::

        >>> kind_of(3), kind_of("3"), kind_of(None)
        ('an int', 'a str', 'None')
    """
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def as_tensors(inputs: Any) -> tuple[Tensor, ...]:
    """Inputs of a model, a tensor or a tuple of them, as a tuple."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TypeError(f"inputs is {kind_of(inputs)}, expected a tensor or a tuple of tensors")
    return tensors


def per_layer(name: str, value: Any, n_layers: int) -> list[Any]:
    """The entry of each layer: a sequence has one for each, anything else is that of all."""
    entries = list(value) if isinstance(value, Sequence) else [value] * n_layers
    if len(entries) != n_layers:
        raise ValueError(f"{name} has {len(entries)} entries, expected one per layer, {n_layers}")
    return entries
