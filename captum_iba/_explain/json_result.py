"""What results of explainers have in common: where they come from; they are written as JSON, and read again."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captum_iba._files import write_text
from captum_iba._version import __version__

if TYPE_CHECKING:
    from typing_extensions import Self

_LIBRARIES = ("torch", "captum", "transformers", "tokenizers", "lime", "numpy", "scikit-learn")


@cache
def _library_versions() -> tuple[tuple[str, str], ...]:
    versions = [("captum_iba", __version__)]
    for name in _LIBRARIES:
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(versions)


def library_versions() -> dict[str, str]:
    """The versions of this package and of the installed libraries that can change a digit of a result."""
    return dict(_library_versions())


def provenance(model: Any, fingerprint: str | None = None) -> dict[str, str]:
    """What a result is computed with: versions, device and precision, and the model's fingerprint if it is known."""
    parameter = next(iter(model.parameters()))
    known = {} if fingerprint is None else {"model_fingerprint": fingerprint}
    return {**library_versions(), "device": str(parameter.device), "dtype": str(parameter.dtype), **known}


class JsonResult(ABC):
    """A result that is a dictionary of plain Python, by :meth:`to_dict` and :meth:`from_dict`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python for JSON."""

    @classmethod
    @abstractmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """A result from :meth:`to_dict`."""

    def to_json(self, indent: int | None = None) -> str:
        """:meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent, allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_json` to a file, atomically; returns its path."""
        return write_text(path, self.to_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that :meth:`save` wrote, or the command line (``--json``) for a single input.

        Raises:
            ValueError: The file is not a saved attribution, or holds several.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if isinstance(content, list) and len(content) == 1:
                (content,) = content
            return cls.from_dict(content)
        except ValueError as error:
            raise ValueError(f"path is {os.fspath(path)}, which is not a saved attribution ({error})") from error


def json_safe(value: Any) -> Any:
    """A value as JSON has it: NaN becomes None, infinity "inf" or "-inf"."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def json_number(value: Any) -> float:
    """A number of :func:`json_safe`."""
    return float("nan") if value is None else float(value)
