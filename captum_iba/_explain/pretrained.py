"""Models of transformers, loaded from a folder or the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from captum_iba._explain.model import check_device


def load_pretrained(
    auto_class: Any, auto_reader: Any, name: str, device: str | int | torch.device | None = None, **options: Any
) -> tuple[Any, Any, list[str]]:
    """A model in evaluation mode, what makes its inputs, and the names of weights that its file lacks.

    transformers only logs a report of these, which is left out, and gives them random values.
    """
    from transformers.utils import logging

    check_device(device)
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise FileNotFoundError(f"model: there is no folder {name}.")
    if Path(name).is_dir() and not any(
        (Path(name) / file).is_file() for file in ("config.json", "adapter_config.json")
    ):
        raise FileNotFoundError(f"model: there is no config.json in {name}, expected a folder of save_pretrained.")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, loading = auto_class.from_pretrained(name, output_loading_info=True, **options)
        reader = auto_reader.from_pretrained(name)
    except Exception as error:
        if (damaged := _damaged_file(Path(name))) is not None:
            raise ValueError(
                f"model: {damaged} is damaged or not whole ({error}); save or download it again"
            ) from error
        if isinstance(error, OSError) and not Path(name).is_dir():
            raise OSError(f"model is {name}, which is no folder here, and not loaded from the hub: {error}") from error
        if isinstance(error, OSError) and name not in str(error):
            raise OSError(f"model is {name}, which cannot be loaded: {error}") from error
        raise
    finally:
        logging.set_verbosity(verbosity)
    model = model.eval() if device is None else model.eval().to(device)
    return model, reader, sorted(loading["missing_keys"])


def _damaged_file(folder: Path) -> Path | None:
    """The first file of a folder with a model that cannot be read: the errors of transformers do not name it."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return path
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError:
            return path
    return None
