"""A running model, prepared for attribution and given back as it was."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

ONE_AT_A_TIME = threading.RLock()
"""Attributions run one at a time in a process, on different models too. The fast path of attention, the stance of
torch.compile and torch's default generator belong to the process: of two threads that change and restore them at
once, one would restore what the other changed."""


class ModuleGuard:
    """Takes modules into evaluation mode, without gradients to their parameters, and gives them back.

    In training mode dropout would blur every attribution and batch normalization would learn from it; gradients
    to the parameters are never needed. On leaving the context, also by an exception, these are what they were:

    - training flags and ``requires_grad`` of every module that ran, and the contents of its buffers;
    - of modules that are taken before they run (:meth:`take`), also the attributes that ``forward`` writes: numbers,
      tensors, buffers and their contents, hooks, and the items of lists, dictionaries and sets;
    - torch's global random state, on the CPU and on accelerators.

    What ``forward`` writes into other objects (a cache, a configuration) is not given back, nor are attributes of a
    model that writes into its own parameters.

    Args:
        function (Callable, optional): What is going to run: the modules that it is, is bound to, closes over or names
            are taken at once. Default: None
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function
        self._undo = ExitStack()
        self._taken: dict[int, Module] = {}
        self._flagged: set[int] = set()
        self._attributes: list[_AttributesOf] = []
        self.last_leaf: Module | None = None
        """The module with parameters and without submodules that began last while :meth:`watching`."""

    def __enter__(self) -> ModuleGuard:
        with ExitStack() as undo:
            undo.enter_context(ONE_AT_A_TIME)
            _keep_random_states(undo)
            # The fast path of torch.nn.TransformerEncoder skips submodules and turns padded texts into nested tensors.
            undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
            if "torch._dynamo" in sys.modules:
                # Compiled code keeps the hooks, or the lack of them, that it was compiled with.
                undo.enter_context(torch.compiler.set_stance("force_eager"))
            undo.callback(self._restore_attributes)
            self._undo = undo.pop_all()
        try:
            if self._function is not None:
                for module in modules_of(self._function):
                    self.take(module)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._undo.close()
        finally:
            self._taken.clear()
            self._flagged.clear()
            self._attributes.clear()
            self.last_leaf = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take every module that begins to run on this thread, whatever function calls it."""
        thread = threading.get_ident()

        def begins(module: Module, args: Any) -> None:
            if threading.get_ident() == thread:
                self._take_running(module)
                if module._parameters and not module._modules:
                    self.last_leaf = module

        handle = register_module_forward_pre_hook(begins)
        try:
            yield
        finally:
            handle.remove()

    def take(self, module: Module) -> None:
        """Prepare one module (not its children) that does not run at the moment; a second time does nothing.

        Raises:
            ValueError: A module whose parameters are not initialized yet.
        """
        if id(module) in self._taken:
            return
        for name, parameter in module._parameters.items():
            if parameter is not None and is_lazy(parameter):
                raise ValueError(
                    f"the parameter {name!r} of {type(module).__name__} is not initialized yet; "
                    "expected a model that has run once"
                )
        if not type(module).__module__.startswith(("torch.distributed", "deepspeed")):
            # Those keep state of their communication beside the module, which cannot be turned back by half.
            self._attributes.append(_AttributesOf(module))
        self._take_running(module)

    def epsilon(self) -> float:
        """The coarsest machine epsilon among the parameters of the modules that were taken; float32's at least."""
        dtypes = {p.dtype for m in self._taken.values() for p in m._parameters.values() if p is not None}
        dtypes |= {torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
        return max([torch.finfo(torch.float32).eps, *(torch.finfo(d).eps for d in dtypes if d.is_floating_point)])

    def quantized(self) -> Module | None:
        """A quantized module among those that were taken: no gradient flows back through it."""
        names = ("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.intrinsic.quantized")
        return next((m for m in self._taken.values() if type(m).__module__.startswith(names)), None)

    def _restore_attributes(self) -> None:
        # A model that writes into its weights (RWKV scales them in its first pass) remembers that in an attribute:
        # weights are not given back, so neither are attributes.
        if not any(attributes.weights_changed for attributes in self._attributes):
            for attributes in self._attributes:
                attributes.restore()

    def _take_running(self, module: Module) -> None:
        if id(module) in self._taken:
            return
        self._taken[id(module)] = module
        # Each undo is registered before its change, so that an interrupt in between loses nothing.
        if isinstance(module, nn.RNNBase):
            # cuDNN has no backward pass in evaluation mode, and dropout is all that the mode is about.
            self._undo.callback(setattr, module, "training", module.training)
            self._undo.callback(setattr, module, "dropout", module.dropout)
            module.dropout, module.training = 0.0, True
        elif module.training:
            self._undo.callback(setattr, module, "training", True)
            module.training = False
        for name, parameter in module._parameters.items():
            # What torch.func puts in a parameter's place is no leaf, and belongs to somebody else's graph.
            if parameter is None or not parameter.is_leaf or parameter.is_inference():
                continue
            # A parameter that two modules share has lost its flag when the second is taken.
            if parameter.requires_grad or id(parameter) in self._flagged:
                # By name: libraries that offload weights put new objects in the place of parameters.
                self._undo.callback(_require_grad, module, name)
                self._flagged.add(id(parameter))
                parameter.requires_grad_(False)
        for buffer in module._buffers.values():
            if buffer is not None:
                self._undo.callback(_restore_content, buffer, buffer.detach().clone())


_CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)


class _AttributesOf:
    """The attributes of a module at a moment: what they are, and what is in them."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._values = dict(vars(module))
        # Parameters stay as they are: libraries that offload weights put new objects in their place in every pass.
        self._items = {
            name: copy.copy(value)
            for name, value in self._values.items()
            if name != "_parameters" and type(value) in _CONTAINERS
        }
        self._tensors = {
            name: value.detach().clone()
            for name, value in self._values.items()
            if type(value) is Tensor and not value.is_inference()
        }

        self._versions = {parameter: parameter._version for parameter in self._own_parameters()}

    @property
    def weights_changed(self) -> bool:
        """Whether anything wrote into the module's parameters."""
        return any(self._versions.get(one, one._version) != one._version for one in self._own_parameters())

    def _own_parameters(self) -> list[Tensor]:
        values = self._module._parameters.values()
        return [one for one in values if one is not None and not one.is_inference()]

    def restore(self) -> None:
        """Put back every attribute that is another one now, or holds something else."""
        now = vars(self._module)
        for name in [name for name in now if name not in self._values]:
            del now[name]
        for name, value in self._values.items():
            if now.get(name, self) is not value:
                now[name] = value
        for name, items in self._items.items():
            value = self._values[name]
            if not _same_items(value, items):
                value.clear()
                value.extend(items) if isinstance(value, (list, deque)) else value.update(items)
        for name, content in self._tensors.items():
            _restore_content(self._values[name], content)


def _keep_random_states(undo: ExitStack) -> None:
    """Put torch's default generators back when ``undo`` is closed: a model may draw from them."""
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        undo.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    if torch.backends.mps.is_available():
        undo.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())


def _same_items(value: Any, items: Any) -> bool:
    if len(value) != len(items):
        return False
    if isinstance(value, dict):
        return all(a == c and b is d for (a, b), (c, d) in zip(value.items(), items.items(), strict=True))
    if isinstance(value, set):
        return bool(value == items)
    return all(one is other for one, other in zip(value, items, strict=True))


def _require_grad(module: Module, name: str) -> None:
    parameter = getattr(module, name, None)  # a scripted module has no dictionary of them
    if isinstance(parameter, Tensor) and parameter.is_leaf:
        parameter.requires_grad_(True)


def _restore_content(tensor: Tensor, content: Tensor) -> None:
    if tensor.device.type == "meta":
        return
    if tensor.shape != content.shape or not tensor.equal(content):
        tensor.detach().resize_(content.shape).copy_(content)


def modules_of(function: Callable[..., Any]) -> list[Module]:
    """The modules that a callable is, is bound to, closes over or names, with all their submodules."""
    found: dict[int, Module] = {}
    seen: set[int] = set()
    queue: deque[tuple[Any, int]] = deque([(function, 0)])
    while queue:
        value, depth = queue.popleft()
        if id(value) in seen or depth > 3:
            continue
        seen.add(id(value))
        if isinstance(value, Module):
            found.update((id(module), module) for module in value.modules())
        else:
            queue.extend((held, depth + 1) for held in _held_by(value, at_top=depth == 0))
    return list(found.values())


def _held_by(value: Any, at_top: bool) -> list[Any]:
    """What a function, method, partial or container refers to, and what a callable object has as attributes."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        own = value.__self__
        return [value.__func__, own, *getattr(own, "__dict__", {}).values()]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        named = [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
        return [
            *cells,
            *(one for one in named if isinstance(one, Module) or inspect.isfunction(one)),
            *_defaults(value),
        ]
    if isinstance(value, (list, tuple, dict)) and len(value) <= 100:
        return list(value.values() if isinstance(value, dict) else value)
    # The instance of a class with __call__.
    return list(vars(value).values()) if at_top and hasattr(value, "__dict__") else []


def _defaults(function: Any) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
