"""Follow the module calls of one forward pass, to know what had finished before a layer ran."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from captum_iba.attr._model.nested import map_tensors, tensors_in


@dataclass(eq=False)
class Call:
    """One call of a module; ``output`` counts once it has finished."""

    module: Module
    finished: bool = False
    output: Any = None
    versions: list[int] = field(default_factory=list)
    children: list[Call] = field(default_factory=list)
    written: dict[int, Tensor] = field(default_factory=dict)
    """What the call wrote into tensors that it took, by their place among its positional arguments."""
    same: dict[int, int] = field(default_factory=dict)
    """Which tensors that it returned are tensors that it took: places among the returned and among the arguments."""

    @property
    def changed_in_place(self) -> bool:
        """Whether anything wrote into the output after the module returned it."""
        return [tensor._version for tensor in tensors_in(self.output)] != self.versions


@dataclass(frozen=True)
class Cut:
    """A moment in a pass: the outermost calls that had begun, in order, and how often each module had begun."""

    calls: tuple[Call, ...]
    begun: Counter[Module]


class CallTrace:
    """The tree of module calls of one pass.

    Args:
        keep_copies (bool): Keep copies of what modules return, not the tensors themselves: needed where the
            model writes into them afterwards.
    """

    def __init__(self, keep_copies: bool = False) -> None:
        self._keep_copies = keep_copies
        self._begun: Counter[Module] = Counter()
        # What calls that go on took, and which version it had then.
        self._taken: dict[Call, tuple[list[Tensor], list[int]]] = {}
        self._root = Call(Module(), children=[])
        self._open = [self._root]

    @contextmanager
    def following(self) -> Iterator[CallTrace]:
        """Follow the calls of this thread; the modules of other threads are not ours."""
        thread = threading.get_ident()

        def begins(module: Module, args: Any) -> None:
            if threading.get_ident() == thread:
                self._begin(module, args)

        def ends(module: Module, args: Any, output: Any) -> None:
            if threading.get_ident() == thread:
                self._end(module, output)

        first = register_module_forward_pre_hook(begins)
        try:
            # always_call: a model may catch an error of one of its modules and go on.
            last = register_module_forward_hook(ends, always_call=True)
            try:
                yield self
            finally:
                last.remove()
        finally:
            first.remove()

    def returned(self, module: Module, output: Any) -> None:
        """Count the innermost call of ``module`` that goes on as finished, before its hooks have run."""
        for call in reversed(self._open):
            if call.module is module and not call.finished:
                self._finish(call, output)
                return

    def _begin(self, module: Module, args: Any) -> None:
        call = Call(module)
        self._begun[module] += 1
        self._open[-1].children.append(call)
        self._open.append(call)
        taken = tensors_in(args)
        self._taken[call] = taken, [tensor._version for tensor in taken]

    def _end(self, module: Module, output: Any) -> None:
        while len(self._open) > 1:
            call = self._open.pop()
            if call.module is module:
                break
        else:
            return
        if not call.finished:
            self._finish(call, output)

    def _finish(self, call: Call, output: Any) -> None:
        taken, versions = self._taken.pop(call)
        for place, (tensor, version) in enumerate(zip(taken, versions, strict=True)):
            if tensor._version != version:
                call.written[place] = tensor.detach().clone()
            call.same.update((number, place) for number, other in enumerate(tensors_in(output)) if other is tensor)
        if self._keep_copies:
            output = map_tensors(lambda tensor: tensor.detach().clone(), output)
        call.finished, call.output = True, output
        call.versions = [tensor._version for tensor in tensors_in(output)]
        # Only outermost calls are replayed: what their children returned need not be kept.
        call.children = []

    def cut(self) -> Cut:
        """The calls up to now that are not part of a finished call."""

        def outermost(call: Call) -> Iterator[Call]:
            for child in call.children:
                if child.finished:
                    yield child
                else:
                    # A call that goes on will have finished when the cut is read.
                    yield Call(child.module)
                    yield from outermost(child)

        return Cut(tuple(outermost(self._root)), self._begun.copy())
