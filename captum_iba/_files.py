"""Files that are written atomically."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
"""Suffixes of the files that are images in a folder."""


def write_text(path: str | os.PathLike[str], content: str) -> Path:
    """As :func:`write_bytes`, of a text in UTF-8."""
    # A lone surrogate, as a command line in another encoding gives, must not lose the whole file.
    return write_bytes(path, content.encode("utf-8", "replace"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file atomically: to a temporary file beside it, which then replaces it. Returns the path without links.

    Raises:
        TypeError: A path that is neither a string nor a path.
        OSError: The disk is full, or the folder cannot be written; the message names the file. An existing file stays.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is {path!r}, expected a string or a path")
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist, so {target.name} cannot be written.")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder, a file was expected.")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # where nothing can be written, that error would hide the one above
            temporary.unlink(missing_ok=True)
    return target
