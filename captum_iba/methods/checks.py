"""Checks of what users give to methods."""

from __future__ import annotations

import math
from typing import Any


def check_count(name: str, value: Any) -> None:
    """Raise ValueError unless an option is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError unless an option is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a number above 0, got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """Raise ValueError unless an option is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected True or False, got {value!r}.")
