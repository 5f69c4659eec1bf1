"""Where in a model a feature is read and replaced, and the hooks that do it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba.attr._model.nested import split_feature


@dataclass(frozen=True)
class Site:
    """One call of a layer, at its output or its input.

    Args:
        layer (Module): The layer.
        call (int): Which of its calls in a pass, from 0; negative ones count from the last. Default: -1.
        at_input (bool): The input of the layer, not its output. Default: False.
    """

    layer: Module
    call: int = -1
    at_input: bool = False

    def require(self, calls: int) -> None:
        """Raise ValueError unless a pass in which the layer ran ``calls`` times has this call."""
        name = f"layer {type(self.layer).__name__}"
        if calls == 0 and isinstance(self.layer, torch.jit.ScriptModule):
            raise ValueError(
                f"layer is a {type(self.layer).__name__} of TorchScript that did not run by itself in this forward "
                "pass: scripted code calls its parts without their hooks; expected a layer of the model before "
                "torch.jit.script or torch.jit.trace, and that model in forward_func"
            )
        if calls == 0:
            raise ValueError(
                f"{name} did not run in this forward pass; expected a module that forward_func calls on these inputs, "
                "on the thread that called it (give a DataParallel itself as forward_func, not a function that calls "
                "one over several devices)"
            )
        if not -calls <= self.call < calls:
            raise ValueError(
                f"layer_call is {self.call}, but {name} ran {calls} times in this pass: "
                f"expected -{calls} to {calls - 1}"
            )


Visit = Callable[[Module, bool, int, Any, Any], Any]
"""Takes the layer, whether at its input, the number of the call, what the layer takes or gives, and what it took;
gives what to put in its place, or None."""


@contextmanager
def hooked(sites: Sequence[Site], visit: Visit) -> Iterator[None]:
    """Let ``visit`` see and replace what the layers of ``sites`` take or give, for one forward pass on this thread.

    An output is replaced where ``forward`` returns and an input before any other hook of the layer runs, so that
    hooks of others, those by which transformers collects hidden states among them, see what the model sees.
    """
    thread = threading.get_ident()
    calls: Counter[tuple[Module, bool]] = Counter()

    def visited(layer: Module, at_input: bool, value: Any, layer_input: Any) -> Any:
        call = calls[layer, at_input]
        calls[layer, at_input] += 1
        return visit(layer, at_input, call, value, layer_input)

    def before(layer: Module, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return None
        return visited(layer, True, (args, kwargs), (args, kwargs))

    def returning(layer: Module) -> Callable[..., Any]:
        forward = layer.forward

        def visited_forward(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if threading.get_ident() != thread:
                return output
            replacement = visited(layer, False, output, (args, kwargs))
            return output if replacement is None else replacement

        return visited_forward

    with ExitStack() as undo:
        for layer, at_input in dict.fromkeys((site.layer, site.at_input) for site in sites):
            if at_input:
                undo.callback(layer.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
            else:
                replace_forward(layer, returning(layer), undo)
        yield


def replace_forward(module: Module, forward: Callable[..., Any], undo: ExitStack) -> None:
    """Give a module another ``forward``, until ``undo`` is closed."""
    # What the instance itself has; nearly always nothing.
    undo.callback(_restore_forward, module, module.__dict__.get("forward"))
    module.forward = forward


def _restore_forward(module: Module, own: Any) -> None:
    if own is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = own


def feature_of(value: Any, layer: Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The feature in what a layer takes or gives, and how to replace it; TypeError where there is none."""
    found = split_feature(value)
    if found is None:
        raise TypeError(
            f"layer {type(layer).__name__} has no floating-point tensor here, got {type(value).__name__}; "
            "expected a tensor, or a tuple, list or model output with one"
        )
    return found
