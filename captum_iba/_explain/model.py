"""A model for its explainer: its name, its device, hooks that move its weights."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
from torch import nn


def model_name(model: Any) -> str:
    """Name of a model for readers: on the hub, or of its folder, without the path on this machine; else its class."""
    name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    if cached := re.search(r"models--(.+?)--(.+?)[/\\]snapshots", name):
        return f"{cached[1]}/{cached[2]}"
    is_path = os.path.isabs(name) or name.startswith(".") or os.path.isdir(name)
    return os.path.basename(os.path.abspath(name)) if is_path else name


def check_device(device: str | int | torch.device | None, name: str = "device") -> None:
    """ValueError that says which devices there are, unless torch has this one here; ``name`` is the argument's."""
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    there += ["mps"] * torch.backends.mps.is_available()
    given = "cpu" if device is None else f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, _, number = given.partition(":")
    known = [one.partition(":")[0] for one in there]
    if kind in ("cpu", "cuda", "mps"):
        if kind in known and (not number or kind != "cuda" or given in there):
            return
        raise ValueError(f"{name} is {given}, which torch does not find here, expected one of {', '.join(there)}.")
    try:
        torch.device(given)
    except RuntimeError as error:
        raise ValueError(f"{name} is {given}, which is no device, expected one of {', '.join(there)}.") from error


def accelerate_hooks(module: nn.Module) -> tuple[Any, ...]:
    """Hooks of a module by which accelerate offloads its weights."""
    hook = getattr(module, "_hf_hook", None)
    return tuple(getattr(hook, "hooks", (hook,)))
