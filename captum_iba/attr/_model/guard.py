"""Prepare a running model for attribution, and restore it afterwards."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from operator import is_
from types import ModuleType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy

from captum_iba.attr.feature_dim import TensorLayout, leaf_after

ONE_AT_A_TIME = threading.RLock()
"""Attributions run one at a time in a process, on different models too. The fast path of attention, the stance of
torch.compile and torch's default generator belong to the process: of two threads that change and restore them at
once, one would restore what the other changed."""


def on_this_thread(function: Callable[..., Any], otherwise: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
    """A hook that calls ``function`` on the thread that made it, and ``otherwise`` on others."""
    thread = threading.get_ident()

    def called(*args: Any, **kwargs: Any) -> Any:
        return (function if threading.get_ident() == thread else otherwise)(*args, **kwargs)

    return called


class ModuleGuard:
    """Puts modules into evaluation mode, without gradients to their parameters, and restores them.

    In training mode dropout would change every attribution and batch normalization would learn from it; gradients
    to the parameters are never needed. On leaving the context, also by an exception, these are restored:

    - training flags and ``requires_grad`` of every module that ran, and the contents of its buffers;
    - of the modules of ``function``, also the attributes that ``forward`` writes: numbers, tensors, buffers, hooks, and
      which items are in lists, dictionaries and sets (not what is inside of these items);
    - torch's global random state, on the CPU and on accelerators.

    What ``forward`` writes into other objects (a cache, a configuration) is not restored, nor are attributes of a
    model that writes into its own parameters.

    Args:
        function (Callable, optional): The function that is going to run: modules that it is, is bound to, closes over
            or names are guarded at once. Others are guarded when they begin to run (:meth:`watching`).
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function
        self._undo = ExitStack()
        self._guarded: dict[int, Module] = {}
        self._flagged: set[int] = set()
        self._states: list[_State] = []
        self.last_leaf: TensorLayout | None = None
        """Output of the last module that tells the feature dimension, while :meth:`watching` with ``leaves``."""

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
            undo.callback(self.restore_state)
            self._undo = undo.pop_all()
        try:
            if self._function is not None:
                for module in modules_of(self._function):
                    self._keep_state(module)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._undo.close()
        finally:
            self._guarded.clear()
            self._flagged.clear()
            self._states.clear()
            self.last_leaf = None

    @contextmanager
    def watching(self, leaves: bool = False) -> Iterator[None]:
        """Guard every module that begins to run on this thread; with ``leaves``, follow :attr:`last_leaf`."""

        def begins(module: Module, args: Any) -> None:
            _require_initialized(module)
            self._guard(module)

        def finished(module: Module, args: Any, output: Any) -> None:
            self.last_leaf = leaf_after(self.last_leaf, module, args, output)

        self.last_leaf = None
        with ExitStack() as hooks:
            hooks.callback(register_module_forward_pre_hook(on_this_thread(begins)).remove)
            if leaves:
                hooks.callback(register_module_forward_hook(on_this_thread(finished)).remove)
            yield

    def _keep_state(self, module: Module) -> None:
        """Guard a module (not its children) that does not run at the moment, with the attributes that it has."""
        # Those keep the state of their communication beside the module; restoring a half of it would break it.
        has_own_state = not type(module).__module__.startswith(("torch.distributed", "deepspeed"))
        if has_own_state:
            ignored = (*_NOT_STATE, "dropout") if _runs_on_cudnn(module) else _NOT_STATE
            self._states.append(_State(module, ignored))
        self._guard(module, keep_buffers=not has_own_state)

    def restore_state(self) -> bool:
        """Restore the state that modules had on entering, for another pass; returns whether it had changed."""
        # A model that writes into its weights (RWKV scales them in its first pass) remembers that in an attribute:
        # weights are not restored, so neither are attributes.
        changed = [state for state in self._states if state.changed]
        if changed and not any(state.weights_changed for state in self._states):
            for state in changed:
                state.restore()
        return bool(changed)

    def require_no_new_modules(self) -> None:
        """Raise ValueError where a pass has made submodules, which have other weights in every pass."""
        for state in self._states:
            if state.has_new_modules:
                name = type(state.module).__name__
                raise ValueError(
                    f"{name} makes submodules in its first forward pass; expected a model that has run once"
                )

    def epsilon(self) -> float:
        """The largest machine epsilon among the parameters of the guarded modules, at least that of float32."""
        parameters = [p for m in self._guarded.values() for p in m._parameters.values() if p is not None]
        dtypes = {parameter.dtype for parameter in parameters}
        dtypes |= {torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
        tf32_allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
        if tf32_allowed and any(parameter.is_cuda for parameter in parameters):
            dtypes.add(torch.float16)  # TensorFloat-32 has as many digits
        return max([torch.finfo(torch.float32).eps, *(torch.finfo(d).eps for d in dtypes if d.is_floating_point)])

    def quantized(self) -> Module | None:
        """A quantized module among the guarded ones: no gradient flows back through it."""
        names = ("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.intrinsic.quantized")
        return next((m for m in self._guarded.values() if type(m).__module__.startswith(names)), None)

    def _guard(self, module: Module, keep_buffers: bool = True) -> None:
        """Evaluation mode and no gradients for a module; a second time does nothing."""
        if id(module) in self._guarded:
            return
        self._guarded[id(module)] = module
        # Each undo is registered before its change, so that an interrupt in between loses nothing.
        if _runs_on_cudnn(module):
            # cuDNN has no backward pass in evaluation mode, and dropout is all that the mode is about.
            self._undo.callback(setattr, module, "training", module.training)
            self._undo.callback(setattr, module, "dropout", module.dropout)
            module.dropout, module.training = 0.0, True
        else:
            # Also where it is False: the model's forward may set it.
            self._undo.callback(setattr, module, "training", module.training)
            module.training = False
        for name, parameter in module._parameters.items():
            # What torch.func puts in a parameter's place is no leaf, and belongs to somebody else's graph.
            if parameter is None or is_lazy(parameter) or not parameter.is_leaf or parameter.is_inference():
                continue
            # A parameter that two modules share has lost its flag when the second is guarded.
            if parameter.requires_grad or id(parameter) in self._flagged:
                # By name: libraries that offload weights put new objects in the place of parameters.
                self._undo.callback(_require_grad, module, name)
                self._flagged.add(id(parameter))
                parameter.requires_grad_(False)
        for content in _contents_of(module._buffers) if keep_buffers else ():
            self._undo.callback(content.restore)


_CONTAINERS = frozenset({dict, OrderedDict, defaultdict, list, set, deque})
# What the guard and replay change themselves, and what libraries that offload weights change in every pass.
_NOT_STATE = ("training", "forward", "_parameters")

_Weights = tuple[Tensor, int, Tensor]
"""A parameter, its version, and a few of its numbers."""


class _State:
    """The attributes of a module at a moment, and the contents of their containers and tensors."""

    def __init__(self, module: Module, ignored: tuple[str, ...]) -> None:
        self.module = module
        self._ignored = ignored
        self._values = vars(module).copy()
        for name in ignored:
            self._values.pop(name, None)
        containers = [value for value in self._values.values() if type(value) in _CONTAINERS]
        # Most are the empty ones of hooks, and a large model has tens of thousands.
        self._empty = [value for value in containers if not value]
        self._filled = [(value, value.copy()) for value in containers if value]
        self._contents = [*_contents_of(module._buffers), *_contents_of(self._values)]
        self._weights = self._sampled_weights()

    @property
    def has_new_modules(self) -> bool:
        """Whether it has a submodule, with parameters, where it had none (BigBird replaces one, and copies weights)."""
        children = self._values.get("_modules")
        before: dict[str, Module] = next((items for value, items in self._filled if value is children), {})
        return any(
            module is not None and before.get(name) is None and any(True for _ in module.parameters())
            for name, module in self.module._modules.items()
        )

    @property
    def changed(self) -> bool:
        """Whether any attribute has been replaced, or its content has changed."""
        now = vars(self.module)
        return (
            len(now) - sum(name in now for name in self._ignored) != len(self._values)
            or not now.keys() >= self._values.keys()
            or not all(map(is_, map(now.get, self._values), self._values.values()))
            or any(self._empty)
            or not all(_same_items(value, items) for value, items in self._filled)
            or any(content.changed for content in self._contents)
        )

    @property
    def weights_changed(self) -> bool:
        """Whether the module has other parameters by name, or anything wrote into them (``.data`` has no version)."""
        before, now = self._weights, self._sampled_weights()
        return list(before) != list(now) or any(_is_written(before[name], now[name]) for name in now)

    def restore(self) -> None:
        """Restore what has changed."""
        now = vars(self.module)
        for name in [name for name in now if name not in self._values and name not in self._ignored]:
            del now[name]
        for name, value in self._values.items():
            if now.get(name, self) is not value:
                now[name] = value
        for value in self._empty:
            value.clear()
        for value, items in self._filled:
            if not _same_items(value, items):
                value.clear()
                value.extend(items) if isinstance(value, (list, deque)) else value.update(items)
        for content in self._contents:
            content.restore()

    def _sampled_weights(self) -> dict[str, _Weights]:
        return {
            name: (weights, weights._version, weights.detach().reshape(-1)[:: max(1, weights.numel() // 16)].clone())
            for name, weights in self.module._parameters.items()
            if weights is not None and not is_lazy(weights) and not weights.is_inference() and _is_plain(weights)
        }


def _is_written(before: _Weights, now: _Weights) -> bool:
    (weights, version, sample), (weights_now, version_now, sample_now) = before, now
    return weights is weights_now and (version != version_now or not _equal(sample, sample_now))


class _Content:
    """The content of a tensor at a moment."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._version = tensor._version
        self._in_graph = tensor.grad_fn is not None
        self._copy = tensor.detach().clone()

    @property
    def changed(self) -> bool:
        """Whether anything wrote into it. Some kernels (batch normalization) write without a new version."""
        tensor = self._tensor
        return (
            tensor._version != self._version
            or (tensor.grad_fn is not None) != self._in_graph
            or tensor.shape != self._copy.shape
            or not _equal(tensor, self._copy)
        )

    def restore(self) -> None:
        """Write the content back."""
        if self.changed:
            if not self._in_graph:
                with suppress(RuntimeError):  # a view cannot leave the graph of its base
                    self._tensor.detach_()
            self._tensor.detach().resize_(self._copy.shape).copy_(self._copy)
            self._version = self._tensor._version


# Larger integer buffers are quantized weights, which nobody writes into.
_LARGE = 2**20


def _contents_of(values: Mapping[str, Any]) -> list[_Content]:
    contents = []
    for value in values.values():
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or not _is_plain(value):
            continue
        if value.is_inference() or not (value.is_floating_point() or value.numel() < _LARGE):
            continue
        with suppress(NotImplementedError):  # types of less than a byte
            contents.append(_Content(value))
    return contents


def _is_plain(tensor: Tensor) -> bool:
    """Whether its content can be kept and compared: no sparse, nested or quantized tensor, none on the meta device."""
    known = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and not tensor.is_nested
    return known and tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized


def _equal(a: Tensor, b: Tensor) -> bool:
    try:
        return a.equal(b) or bool(((a == b) | (a != a) & (b != b)).all())
    except (NotImplementedError, RuntimeError):  # types that cannot be compared: bits and halves of bytes
        return True


def _same_items(value: Any, items: Any) -> bool:
    if len(value) != len(items):
        return False
    if isinstance(value, dict):
        return all((a is c or a == c) and b is d for (a, b), (c, d) in zip(value.items(), items.items(), strict=True))
    if isinstance(value, set):
        return bool(value == items)
    return all(a is b for a, b in zip(value, items, strict=True))


def _runs_on_cudnn(module: Module) -> TypeGuard[nn.RNNBase]:
    # A subclass may do more in training mode than these do.
    if type(module) not in (nn.RNN, nn.LSTM, nn.GRU):
        return False
    return any(parameter is not None and parameter.is_cuda for parameter in module._parameters.values())


def _require_initialized(module: Module) -> None:
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise ValueError(
            f"the parameters of {type(module).__name__} are not initialized yet; expected a model that has run once"
        )


def _keep_random_states(undo: ExitStack) -> None:
    """Restore torch's default generators when ``undo`` is closed: a model may use them."""
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        undo.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    if torch.backends.mps.is_available():
        undo.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())


def _require_grad(module: Module, name: str) -> None:
    parameter = getattr(module, name, None)  # a scripted module has no dictionary of them
    if isinstance(parameter, Tensor) and parameter.is_leaf:
        parameter.requires_grad_(True)


def modules_of(function: Callable[..., Any]) -> list[Module]:
    """The modules that a callable is, is bound to, closes over or names, or that such objects have, with submodules."""
    modules: dict[int, Module] = {}
    seen: set[int] = set()
    queue: deque[tuple[Any, int]] = deque([(function, 0)])
    while queue:
        value, depth = queue.popleft()
        if id(value) in seen or depth > 4:
            continue
        seen.add(id(value))
        if isinstance(value, Module):
            modules.update((id(module), module) for module in value.modules())
        else:
            queue.extend((held, depth + 1) for held in _held_by(value))
    return list(modules.values())


def _held_by(value: Any) -> list[Any]:
    """What a function, method, partial or container refers to, and what another object has as attributes."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        return [value.__func__, value.__self__]
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        named = [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
        return [
            *cells,
            *named,
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
        ]
    if isinstance(value, (list, tuple, dict)) and len(value) <= 100:
        return list(value.values() if isinstance(value, dict) else value)
    # An application's object with a model, and not a library with all that is in it.
    return [] if isinstance(value, (type, ModuleType)) else list(getattr(value, "__dict__", {}).values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
