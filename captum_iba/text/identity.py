"""What tells one classifier from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from captum_iba.text.explainer import TextExplainer


def model_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 of the names, shapes, types and values of a model's weights and buffers, as hexadecimal digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def model_identity(explainer: TextExplainer) -> Iterator[str]:
    """What tells a classifier from others: its class, name or folder, files with age and size, and precision."""
    name, model = explainer.classifier.name, explainer.classifier.model
    yield type(model).__name__
    yield str(getattr(model.config, "_commit_hash", None))
    yield str(next(iter(model.parameters())).dtype)
    if not Path(name).is_dir():
        yield name
        return
    yield str(Path(name).resolve())
    for file in sorted(Path(name).iterdir()):
        if file.is_file():
            # Weights may be gigabytes, so their age and size stand for them.
            state = file.stat()
            yield f"{file.name} {state.st_size} {state.st_mtime_ns}"
