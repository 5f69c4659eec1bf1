"""What results of explainers have in common: they are written as JSON, and read again."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captum_iba._files import write_text

if TYPE_CHECKING:
    from typing_extensions import Self


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
        """Read a file that :meth:`save` wrote.

        Raises:
            ValueError: The file is not a saved attribution.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"path is {os.fspath(path)}, which is not a saved attribution ({error})") from error
