"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_text(path: str | os.PathLike[str], content: str) -> Path:
    """Write a UTF-8 file by way of a temporary one beside it, so that nobody ever sees half of it.

    Args:
        path (path): Where to; an older file there is replaced, its folder must exist.
        content (str): The whole content.

    Returns:
        Path: where it lies, without links.

    Raises:
        OSError: As :func:`write_bytes`.
    """
    # A lone surrogate, as a command line in another encoding gives, must not lose the whole file.
    return write_bytes(path, content.encode("utf-8", "replace"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """The same of bytes.

    Args:
        path (path): Where to; an older file there is replaced, its folder must exist.
        content (bytes): The whole content.

    Returns:
        Path: where it lies, without links.

    Raises:
        OSError: The disk is full, or the folder cannot be written; says which file, and nothing there is lost.
    """
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
        reason = f"{target} cannot be written: {error.strerror or error}; what was finished before is kept"
        raise OSError(error.errno, reason) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
