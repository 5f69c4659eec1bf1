"""Checks of what users give to methods."""

from __future__ import annotations

from typing import Any


def check_count(name: str, value: Any) -> None:
    """Raise ValueError unless an option is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}.")
