"""Hook points of a model: where an activation is read and replaced, and one recorded forward pass."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from captum_iba._checks import check_integer, kind_of, per_layer
from captum_iba.attr._model.guard import ModuleGuard, on_this_thread
from captum_iba.attr._model.nested import copy_tensor, map_tensors, split_activation, tensors_in
from captum_iba.attr.feature_dim import Origin, dim_from_memory


@dataclass(frozen=True)
class HookPoint:
    """One call of a layer, by number from 0 (negative ones count from the last), at its output or its input."""

    layer: Module
    call: int = -1
    at_input: bool = False

    def __str__(self) -> str:
        return f"{type(self.layer).__name__} ({'input' if self.at_input else 'output'})"

    def require(self, n_calls: int) -> None:
        """Raise ValueError unless a forward pass in which the layer ran ``n_calls`` times has this call."""
        name = f"layer {type(self.layer).__name__}"
        if n_calls == 0 and isinstance(self.layer, torch.jit.ScriptModule):
            raise ValueError(
                f"layer is {kind_of(self.layer)} of TorchScript that did not run by itself in this forward "
                "pass: scripted code calls its parts without their hooks; expected a layer of the model before "
                "torch.jit.script or torch.jit.trace, and that model in forward_func"
            )
        if n_calls == 0:
            raise ValueError(
                f"{name} did not run in this forward pass; expected a module that forward_func calls on these inputs, "
                "on the thread that called it (give a DataParallel itself as forward_func, not a function that calls "
                "one over several devices)"
            )
        if not -n_calls <= self.call < n_calls:
            raise ValueError(
                f"layer_call is {self.call}, but {name} ran {n_calls} times in this pass: "
                f"expected -{n_calls} to {n_calls - 1}"
            )


def hook_points(layers: Sequence[Module], layer_call: int | Sequence[int], at_input: bool) -> list[HookPoint]:
    """One call of each layer, of the numbers in ``layer_call``; ValueError for no integers, or too few or many."""
    calls = per_layer("layer_call", layer_call, len(layers))
    for call in calls:
        check_integer("layer_call", call, kind=Integral)
    return [HookPoint(layer, call, at_input) for layer, call in zip(layers, calls, strict=True)]


Visit = Callable[[Module, bool, int, Any, Any], Any]
"""Takes the layer, whether at its input, the number of the call, the input or output of the layer, and the result of
``entering`` for its input; returns a replacement of the input or output, or None."""


@contextmanager
def hooked(
    points: Sequence[HookPoint], visit: Visit, entering: Callable[[Any], Any] = lambda value: value
) -> Iterator[Counter[tuple[Module, bool]]]:
    """Let ``visit`` see and replace the inputs or outputs of layers, for one forward pass on this thread.

    An output is replaced where ``forward`` returns and an input before any other hook of the layer runs. So other
    hooks, those by which transformers collects hidden states among them, see what the model sees. ``entering`` takes
    ``(args, kwargs)`` of a layer before it runs. The context gives the number of calls so far, by layer and side.
    """
    calls: Counter[tuple[Module, bool]] = Counter()

    def visited(layer: Module, at_input: bool, value: Any, entered: Any) -> Any:
        call = calls[layer, at_input]
        calls[layer, at_input] += 1
        return visit(layer, at_input, call, value, entered)

    def before(layer: Module, args: Any, kwargs: Any) -> Any:
        return visited(layer, True, (args, kwargs), entering((args, kwargs)))

    def returning(layer: Module) -> Callable[..., Any]:
        forward = layer.forward

        def visited_forward(*args: Any, **kwargs: Any) -> Any:
            entered = entering((args, kwargs))
            output = forward(*args, **kwargs)
            replacement = visited(layer, False, output, entered)
            return output if replacement is None else replacement

        return on_this_thread(visited_forward, forward)

    hook = on_this_thread(before)
    with ExitStack() as undo:
        for layer, at_input in dict.fromkeys((point.layer, point.at_input) for point in points):
            if at_input:
                undo.callback(layer.register_forward_pre_hook(hook, prepend=True, with_kwargs=True).remove)
            else:
                replace_forward(layer, returning(layer), undo)
        yield calls


def replace_forward(module: Module, forward: Callable[..., Any], undo: ExitStack) -> None:
    """Give a module another ``forward`` until ``undo`` is closed."""
    undo.callback(_restore_forward, module, module.__dict__.get("forward"))  # the instance's own, nearly always None
    module.forward = forward


def _restore_forward(module: Module, own: Any) -> None:
    if own is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = own


def activation_of(value: Any, layer: Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The activation in the input or output of a layer, and how to replace it; TypeError where there is none."""
    activation = split_activation(value)
    if activation is None:
        raise TypeError(
            f"layer {type(layer).__name__} has no floating-point tensor here, got {type(value).__name__}; "
            "expected a tensor, or a tuple, list or model output with one"
        )
    return activation


def layer_input_of(value: Any, guard: ModuleGuard) -> tuple[Tensor | None, int | None]:
    """The activation at the input of a layer that begins to run, and the dimension of its features if it is known."""
    split = split_activation(value)
    layer_input = None if split is None else split[0]
    return layer_input, dim_from_memory(guard.last_leaf, layer_input)


@dataclass(eq=False)
class ModuleCall:
    """One call of a module; ``output`` is valid once it has finished."""

    module: Module
    finished: bool = False
    output: Any = None
    versions: list[int] = field(default_factory=list)
    children: list[ModuleCall] = field(default_factory=list)
    written: dict[int, Tensor] = field(default_factory=dict)
    """What the call wrote in place into its inputs, by their position among the positional arguments."""
    aliases: dict[int, int] = field(default_factory=dict)
    """Which outputs are the very tensors of inputs: positions among the outputs and among the arguments."""

    @property
    def changed_in_place(self) -> bool:
        """Whether anything wrote into the output after the module returned it."""
        return [tensor._version for tensor in tensors_in(self.output)] != self.versions


@dataclass(frozen=True)
class Prefix:
    """What of a forward pass came before a moment: the outermost calls that had begun, and counts of all calls."""

    calls: tuple[ModuleCall, ...]
    n_calls: Counter[Module]


class CallTrace:
    """The tree of module calls of one forward pass; with copies of outputs where the model writes into them."""

    def __init__(self, keep_copies: bool) -> None:
        self._keep_copies = keep_copies
        self._n_calls: Counter[Module] = Counter()
        # The inputs of unfinished calls, and their versions when the calls began.
        self._inputs: dict[ModuleCall, tuple[list[Tensor], list[int]]] = {}
        self._root = ModuleCall(Module())
        self._open = [self._root]

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the calls of this thread."""
        with ExitStack() as undo:
            undo.callback(register_module_forward_pre_hook(on_this_thread(self._begin)).remove)
            # always_call: a model may catch an error of one of its modules and go on.
            undo.callback(register_module_forward_hook(on_this_thread(self._end), always_call=True).remove)
            yield

    def returned(self, module: Module, output: Any) -> None:
        """Finish the innermost unfinished call of ``module`` before its hooks have run."""
        for call in reversed(self._open):
            if call.module is module and not call.finished:
                self._finish(call, output)
                return

    def prefix(self) -> Prefix:
        """The calls up to now that are not part of a finished call."""

        def outermost(call: ModuleCall) -> Iterator[ModuleCall]:
            for child in call.children:
                if child.finished:
                    yield child
                else:
                    # An unfinished call will have finished when the prefix is read.
                    yield ModuleCall(child.module)
                    yield from outermost(child)

        return Prefix(tuple(outermost(self._root)), self._n_calls.copy())

    def _begin(self, module: Module, args: Any) -> None:
        call = ModuleCall(module)
        self._n_calls[module] += 1
        self._open[-1].children.append(call)
        self._open.append(call)
        inputs = tensors_in(args)
        self._inputs[call] = inputs, _versions(*inputs)

    def _end(self, module: Module, args: Any, output: Any) -> None:
        while len(self._open) > 1:
            call = self._open.pop()
            if call.module is module:
                break
        else:
            return
        if not call.finished:
            self._finish(call, output)

    def _finish(self, call: ModuleCall, output: Any) -> None:
        inputs, versions = self._inputs.pop(call)
        for position, (tensor, version) in enumerate(zip(inputs, versions, strict=True)):
            if tensor._version != version:
                call.written[position] = copy_tensor(tensor)
            call.aliases.update((i, position) for i, other in enumerate(tensors_in(output)) if other is tensor)
        if self._keep_copies:
            output = map_tensors(copy_tensor, output)
        call.finished, call.output = True, output
        call.versions = _versions(*tensors_in(output))
        # Only outermost calls are replayed: outputs of their children need not be kept.
        call.children = []


@dataclass(frozen=True)
class CapturedActivation:
    """What a recorded forward pass had at a hook point.

    Args:
        number (int): Number of the hook point, as passed.
        structure (Any): The whole output (or input) of the layer, with the activation in it.
        layer_input (Tensor or None): The activation at the layer's input.
        call (int): Number of the call of the layer, from 0.
        versions (list of int): Versions of the activation when it was captured, and of the input before the layer ran.
        n_calls (int): How often the layer ran in the whole pass.
    """

    number: int
    activation: Tensor
    structure: Any
    layer_input: Tensor | None
    call: int
    origin: Origin
    prefix: Prefix
    versions: list[int]
    n_calls: int = 1

    @property
    def changed_in_place(self) -> bool:
        """Whether the model wrote into the activation, or into the layer's input, afterwards."""
        return _versions(self.activation, self.layer_input) != self.versions


@dataclass(frozen=True)
class RecordedPass:
    """One full forward pass, without gradients.

    Args:
        forward (Callable): Takes a number of copies ``n`` and returns the output of the model, a tensor, for the inputs
            tiled ``n`` times.
        captured (tuple of CapturedActivation): The activations, in the order in which the hook points were passed.
        changed (tuple): For each of them, and for every call of its prefix, whether the model wrote into the output.
    """

    forward: Callable[[int], Tensor]
    points: Sequence[HookPoint]
    output: Tensor
    captured: tuple[CapturedActivation, ...]
    changed: tuple[tuple[bool, ...], ...]
    guard: ModuleGuard


def record(forward: Callable[[int], Tensor], points: Sequence[HookPoint], guard: ModuleGuard) -> RecordedPass:
    """Run a model once and capture its activations; twice where it writes into what is captured.

    Raises:
        ValueError: A layer did not run, or not as often as a hook point says.
        TypeError: A layer or the model returned no floating-point tensor.
    """
    with torch.no_grad():
        output, activations = _observe(forward, points, guard, keep_copies=False)
        changed = tuple(
            tuple(call.finished and call.changed_in_place for call in captured.prefix.calls) for captured in activations
        )
        guard.require_no_new_modules()
        written = any(map(any, changed)) or any(captured.changed_in_place for captured in activations)
        if guard.restore_state() or written:
            # The model wrote into tensors that are needed later: run it again and keep copies.
            output, activations = _observe(forward, points, guard, keep_copies=True)
            guard.restore_state()
    return RecordedPass(forward, points, output, tuple(activations), changed, guard)


def _observe(
    forward: Callable[[int], Tensor], points: Sequence[HookPoint], guard: ModuleGuard, keep_copies: bool
) -> tuple[Tensor, list[CapturedActivation]]:
    trace = CallTrace(keep_copies)
    # In the order in which they are passed. For a call counted from the last, as many as may still be it.
    candidates: list[deque[tuple[int, CapturedActivation]]] = [
        deque(maxlen=-point.call if point.call < 0 else 1) for point in points
    ]

    def entering(value: Any) -> Any:
        # Before the layer runs: it may write into its input.
        layer_input, dim = layer_input_of(value, guard)
        kept = copy_tensor(layer_input) if keep_copies and layer_input is not None else layer_input
        return layer_input, dim, kept, _versions(layer_input)

    def visit(layer: Module, at_input: bool, call: int, value: Any, entered: Any) -> None:
        if not at_input:
            trace.returned(layer, value)
        for number, point in enumerate(points):
            if point.layer is layer and point.at_input is at_input and (point.call < 0 or point.call == call):
                original_input, input_dim, layer_input, versions = entered
                original = activation_of(value, layer)[0]
                origin = Origin.of(guard.last_leaf, layer, original, original_input, input_dim, at_input)
                structure = map_tensors(copy_tensor, value) if keep_copies else value
                activation, _ = activation_of(structure, layer)
                captured = CapturedActivation(
                    number=number,
                    activation=activation,
                    structure=structure,
                    layer_input=layer_input,
                    call=call,
                    origin=origin,
                    prefix=trace.prefix(),
                    versions=[*_versions(activation), *versions],
                )
                candidates[number].append((sum(n_calls.values()), captured))

    with guard.watching(leaves=True), hooked(points, visit, entering) as n_calls, trace.following():
        output = forward(1)
    if not isinstance(output, Tensor):
        raise TypeError(
            f"forward_func must return a tensor, got {type(output).__name__}; "
            f"to take a tensor from a model output, wrap it: lambda *args: model(*args){_tensor_of(output)}"
        )
    for point in points:
        point.require(n_calls[point.layer, point.at_input])
    in_order = [captured for _, captured in sorted((queue[0] for queue in candidates), key=lambda entry: entry[0])]
    passed = [points[captured.number] for captured in in_order]
    return output, [
        replace(captured, n_calls=n_calls[point.layer, point.at_input])
        for captured, point in zip(in_order, passed, strict=True)
    ]


def _versions(*tensors: Tensor | None) -> list[int]:
    return [tensor._version for tensor in tensors if tensor is not None]


def _tensor_of(output: Any) -> str:
    """How a tensor is taken from a model's output: its logits, or the first that it has."""
    if isinstance(output, (tuple, list)):
        return "[0]"
    names = [name for name, value in output.items() if isinstance(value, Tensor)] if isinstance(output, Mapping) else []
    if not names or "logits" in names:
        return ".logits" if not isinstance(output, dict) or hasattr(output, "logits") else "['logits']"
    if not hasattr(output, names[0]):
        return f"[{names[0]!r}]"
    return ".start_logits, or .end_logits" if "start_logits" in names else f".{names[0]}"
