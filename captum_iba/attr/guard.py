"""Modules as attribution needs them, and afterwards as they were."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook

ONE_AT_A_TIME = threading.RLock()
"""Flags, ``forward`` methods, configurations and switches of torch are shared by all threads: of two that change and
restore them at once, one would restore what the other changed."""


class ModuleGuard:
    """Takes modules into evaluation mode, without gradients to their parameters, and gives them back.

    In training mode dropout would blur every attribution and batch normalisation would learn from it; gradients
    to the parameters are never needed. On leaving the context, also by an exception, the training flags,
    ``requires_grad`` and the contents of the buffers of every module taken are what they were.
    """

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._taken: set[int] = set()

    def __enter__(self) -> ModuleGuard:
        self._undo.enter_context(ONE_AT_A_TIME)
        # The fast path of torch.nn.TransformerEncoder skips submodules and turns padded texts into nested tensors.
        self._undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:
            # Compiled code keeps the hooks, or the lack of them, that it was compiled with.
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()
        self._taken.clear()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take every module that begins to run on this thread, whatever function calls it."""
        thread = threading.get_ident()

        def begins(module: Module, args: Any) -> None:
            if threading.get_ident() == thread:
                self.take(module)

        handle = register_module_forward_pre_hook(begins)
        try:
            yield
        finally:
            handle.remove()

    def take(self, module: Module) -> None:
        """Prepare one module (not its children); a second time does nothing."""
        if id(module) in self._taken:
            return
        self._taken.add(id(module))
        # Each undo is registered before its change, so that an interrupt in between loses nothing.
        if module.training:
            self._undo.callback(setattr, module, "training", True)
            module.training = False
        for parameter in module._parameters.values():
            # What torch.func puts in a parameter's place is no leaf, and belongs to somebody else's graph.
            if parameter is not None and parameter.requires_grad and parameter.is_leaf and not parameter.is_inference():
                self._undo.callback(parameter.requires_grad_, True)
                parameter.requires_grad_(False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                self._undo.callback(_restore_buffer, module, name, buffer, buffer.detach().clone())


def _restore_buffer(module: Module, name: str, buffer: Tensor, content: Tensor) -> None:
    if buffer.shape != content.shape or not buffer.equal(content):
        buffer.detach().resize_(content.shape).copy_(content)
    module._buffers[name] = buffer
