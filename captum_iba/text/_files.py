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
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist, so {target.name} cannot be written.")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder, a file was expected.")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        # A lone surrogate, as a command line in another encoding gives, must not lose the whole file.
        temporary.write_text(content, encoding="utf-8", errors="replace")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
