"""Where in a model a feature is read and replaced, and the hooks that do it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from captum_iba.attr.nested import split_feature


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
    """Let ``visit`` see and replace what the layers of ``sites`` take or give, for one forward pass on this thread."""
    thread = threading.get_ident()
    calls: Counter[tuple[Module, bool]] = Counter()

    def visited(layer: Module, at_input: bool, value: Any, layer_input: Any) -> Any:
        if threading.get_ident() != thread:
            return None
        call = calls[layer, at_input]
        calls[layer, at_input] += 1
        return visit(layer, at_input, call, value, layer_input)

    def before(layer: Module, args: Any, kwargs: Any) -> Any:
        return visited(layer, True, (args, kwargs), (args, kwargs))

    def after(layer: Module, args: Any, kwargs: Any, output: Any) -> Any:
        return visited(layer, False, output, (args, kwargs))

    with ExitStack() as hooks:
        for layer, at_input in dict.fromkeys((site.layer, site.at_input) for site in sites):
            handle = (
                layer.register_forward_pre_hook(before, with_kwargs=True)
                if at_input
                else layer.register_forward_hook(after, with_kwargs=True)
            )
            hooks.callback(handle.remove)
        yield


def feature_of(value: Any, layer: Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The feature in what a layer takes or gives, and how to replace it; TypeError where there is none."""
    found = split_feature(value)
    if found is None:
        raise TypeError(
            f"layer {type(layer).__name__} has no floating-point tensor here, got {type(value).__name__}; "
            "expected a tensor, or a tuple, list or model output with one"
        )
    return found
