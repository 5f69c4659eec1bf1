"""Run a model once in full, then only from a layer on.

Up to the layer, all forward passes of an attribution are the same. One pass is recorded; in later ones every outermost
module call that had finished before the layer (the cached prefix) returns its recorded output and does not run. The
page "Replay" of the documentation has the idea, the traps, and the models that fall back to full forward passes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba.attr._model.guard import ModuleGuard, on_this_thread
from captum_iba.attr._model.hooks import HookPoint, Prefix, RecordedPass, activation_of, hooked, replace_forward
from captum_iba.attr._model.nested import at_least_float32, copy_tensor, map_tensors, tensors_in, tile

_TOLERANCE = 1e-4
# Larger logits are masked ones (-1e9, the least number), which are no scale for the others.
_LARGEST_LOGIT = 1e4


class ForwardPasses:
    """Forward passes of one model on the same inputs, with other activations at its hook points.

    They are replayed from the first hook point on if that gives the same output, which is checked on entering the
    context. On leaving it, hooks and ``forward`` methods are as before.

    Args:
        recorded (RecordedPass): A forward pass on the inputs, whose :class:`ModuleGuard` is still entered.
        rows (int): Number of examples in the inputs.
        numbers (sequence of int): Hook points that get other activations.
        replay (bool): False runs every pass in full. Default: True

    Attributes:
        captured (list of CapturedActivation): Those of the hook points, in the order in which they were passed;
            :meth:`run` numbers the hook points in that order too.
        reason (str): Why passes are not replayed, if so.
        coupled (float): Relative change of the output of an example with the other rows of a pass.
    """

    def __init__(self, recorded: RecordedPass, rows: int, numbers: Sequence[int], replay: bool = True) -> None:
        points = recorded.points
        self._recorded = recorded
        self._rows = rows
        self._points = [points[number] for number in numbers]
        positions = [i for i, captured in enumerate(recorded.captured) if captured.number in numbers]
        self._changed = recorded.changed[positions[0]]
        self.captured = [recorded.captured[i] for i in positions]
        passed = [(points[captured.number], captured.call) for captured in self.captured]
        self._order = {(point.layer, point.at_input, call): order for order, (point, call) in enumerate(passed)}
        if len(self._order) < len(self.captured):
            raise ValueError("layer_call names the same call of a layer twice, expected each once with share_mask")
        self._undo = ExitStack()
        self._replay = replay
        self._cached: _CachedPrefix | None = None
        self.reason = ""
        self.coupled = 0.0

    def __enter__(self) -> ForwardPasses:
        try:
            with torch.no_grad():
                self._check()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def guard(self) -> ModuleGuard:
        """Guards the modules that run."""
        return self._recorded.guard

    @property
    def tolerance(self) -> float:
        """Relative difference of outputs that counts as equal."""
        return relative_tolerance(self.guard)

    def run(self, copies: int, replace: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The output of the model for ``copies`` times the inputs, with other activations at the hook points.

        Args:
            copies (int): How often the inputs are tiled; row ``c * rows + r`` is copy c of example r.
            replace (Callable): Takes the number of a hook point and the activation there, returns another activation.
                In a replayed pass the activation at hook point 0 has the right shape only; it is the recorded one,
                tiled.

        Raises:
            ValueError: The output has another number of rows than the inputs.
        """
        try:
            return self._require_rows(copies, self._run(copies, replace))
        except Exception as error:
            if self._cached is None or out_of_memory(error):
                raise
            # Something that only noised activations do, and recorded tensors do not allow. A full pass does it, or
            # says why not.
            self._fall_back(f"a replayed pass fails with {type(error).__name__}: {error}")
        return self._require_rows(copies, self._run(copies, replace))

    def _require_rows(self, copies: int, output: Tensor) -> Tensor:
        expected = (copies * self._rows, *self._recorded.output.shape[1:])
        if tuple(output.shape) != expected:
            raise RowsError(
                f"forward_func gives the shape {tuple(output.shape)} for {copies} copies of the inputs, expected "
                f"{expected}; further arguments whose first dimension counts the examples are tiled with them"
            )
        return output

    def _run(self, copies: int, replace: Callable[[int, Tensor], Tensor]) -> Tensor:
        # A replayed pass skips the calls inside the modules that it does not run.
        skipped = self._cached.skipped if self._cached else Counter[Module]()
        numbers = {(layer, at, call - skipped[layer]): n for (layer, at, call), n in self._order.items()}

        def visit(layer: Module, at_input: bool, call: int, value: Any, entered: Any) -> Any:
            number = numbers.get((layer, at_input, call))
            if number is None:
                return None
            activation, rebuild = activation_of(value, layer)
            if activation.ndim and activation.shape[0] != copies * self._rows:
                raise RowsError(
                    f"layer {HookPoint(layer, call, at_input)} has the shape {tuple(activation.shape)} for {copies} "
                    f"copies of {self._rows} examples, expected one row for each of them"
                )
            return rebuild(replace(number, activation))

        if self._cached:
            self._cached.restart(copies)
        # Also where the recorded pass left the state alone: other activations may take the model elsewhere.
        self.guard.restore_state()
        # Noised activations may take a model through modules that the recorded pass did not run.
        try:
            with self.guard.watching(), hooked(self._points, visit):
                return self._recorded.forward(copies)
        except Exception:
            self.guard.restore_state()  # what the pass would have restored at its end
            raise

    def _check(self) -> None:
        """Find out whether rows of a pass are independent, and whether passes can be replayed."""
        output, first = self._recorded.output, self.captured[0]
        # Two copies, because a tensor that is tiled by mistake is seen then. The recorded activation alone does not
        # tell whether something remembers it, so rows of the first copy have another one. The other rows are compared
        # with the recorded pass: what is not repeated with the examples, as a list, misses there, and rows that depend
        # on their neighbors (pairs, choices, frames) change.
        perturbed = _perturbed_rows(self._rows).to(first.activation.device)
        rows = perturbed.view(-1, *[1] * (first.activation.ndim - 1))
        activations = torch.cat([torch.where(rows, _perturbed(first.activation), first.activation), first.activation])

        def replaced(number: int, activation: Tensor) -> Tensor:
            if number:
                return activation
            if self._cached is None:
                self.coupled = largest_difference(activation, torch.cat([first.activation, first.activation]))
            return activations.clone()  # what follows the layer may write into it

        try:
            expected = self.run(2, replaced)
        except RowsError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            self.reason = f"a pass with another activation fails with {type(error).__name__}: {error}"
            return
        as_recorded = torch.cat([~perturbed, torch.ones_like(perturbed)]).to(output.device)
        self.coupled = max(
            self.coupled, largest_difference(expected[as_recorded], torch.cat([output, output])[as_recorded])
        )
        if not self._replay:
            return
        try:
            self._cached = _CachedPrefix(first.prefix, self._changed, self._rows, first.activation, self._undo)
            difference = largest_difference(self._run(2, replaced), expected)
        except Exception as error:
            if out_of_memory(error):
                raise
            self._fall_back(f"a replayed pass fails with {type(error).__name__}: {error}")
        else:
            if not difference <= self.tolerance:
                self._fall_back(f"a replayed pass gives another output (relative difference {difference:.2g})")

    def _fall_back(self, reason: str) -> None:
        self._cached = None
        self._undo.close()
        self.reason = reason


class RowsError(ValueError):
    """An output or activation whose rows are not the examples."""


class _CachedPrefix:
    """The calls of a prefix; those that had finished return their recorded outputs, until ``undo`` is closed.

    Args:
        changed (sequence of bool): Calls whose output the model writes into; they return a new copy every time.
        rows (int): Number of examples in the recorded pass.
        activation (Tensor): What :meth:`ForwardPasses.run` replaces before anything else sees it: it need not be tiled.
    """

    def __init__(self, prefix: Prefix, changed: Sequence[bool], rows: int, activation: Tensor, undo: ExitStack) -> None:
        self._calls = prefix.calls
        self._changed = changed
        self._rows = rows
        self._activation = activation
        self._undo = undo
        self.skipped = prefix.n_calls - Counter(call.module for call in prefix.calls)
        """How often each module was called inside calls that are not run."""
        self._of_module: dict[Module, list[int]] = defaultdict(list)
        for number, call in enumerate(self._calls):
            self._of_module[call.module].append(number)
        self._copies = 1
        self._next: Counter[Module] = Counter()
        self._tiled: dict[int, tuple[Any, list[int]]] = {}
        for module, numbers in self._of_module.items():
            if any(self._calls[number].finished for number in numbers):
                replace_forward(module, self._replaying(module), self._undo)

    def restart(self, copies: int) -> None:
        """Get ready for a pass with so many copies."""
        self._next.clear()
        if copies != self._copies:
            self._tiled.clear()
            self._copies = copies
        # Outputs that a branch, which only some activations take, wrote into are tiled again.
        for number, (tiled, versions) in list(self._tiled.items()):
            if [tensor._version for tensor in tensors_in(tiled)] != versions:
                del self._tiled[number]

    def _replaying(self, module: Module) -> Callable[..., Any]:
        forward, numbers = module.forward, self._of_module[module]

        def replayed(*args: Any, **kwargs: Any) -> Any:
            position = self._next[module]
            self._next[module] += 1
            if position < len(numbers) and self._calls[numbers[position]].finished:
                return self._output(numbers[position], tensors_in(args))
            return forward(*args, **kwargs)

        return on_this_thread(replayed, forward)

    def _output(self, number: int, inputs: list[Tensor]) -> Any:
        """The recorded output of a call; what the call wrote in place into its inputs is written into these, too."""
        call = self._calls[number]
        for position, content in call.written.items():
            inputs[position].copy_(tile(content, self._rows, self._copies))
        if call is self._calls[-1] and call.output is self._activation:
            return self._activation[:1].expand(self._copies * self._rows, *self._activation.shape[1:])
        if number not in self._tiled:
            copied = self._copies == 1
            tiled = map_tensors(copy_tensor, call.output) if copied else tile(call.output, self._rows, self._copies)
            self._tiled[number] = tiled, [tensor._version for tensor in tensors_in(tiled)]
        output, _ = self._tiled[number]
        if self._changed[number]:
            output = map_tensors(copy_tensor, output)
        if call.aliases:
            numbers = count()

            def aliased(tensor: Tensor) -> Tensor:
                position = call.aliases.get(next(numbers))
                return tensor if position is None else inputs[position]

            output = map_tensors(aliased, output)
        return output


def relative_tolerance(guard: ModuleGuard) -> float:
    """Relative difference of outputs that counts as equal: other numbers of rows are rounded in another way."""
    return max(_TOLERANCE, 2 * guard.epsilon())


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory ran out, on a CPU or an accelerator."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # A CPU's allocator has no exception of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _perturbed_rows(rows: int) -> Tensor:
    """Rows with an odd number of ones in binary: half of the rows of groups of any power of two; one row alone."""
    return torch.tensor([row.bit_count() % 2 == 1 for row in range(rows)]) if rows > 1 else torch.ones(1).bool()


def _perturbed(activation: Tensor) -> Tensor:
    """The activation with noise of half its standard deviation, always the same."""
    wide = at_least_float32(activation)
    generator = torch.Generator(activation.device).manual_seed(0)
    noise = torch.randn(activation.shape, generator=generator, device=activation.device, dtype=wide.dtype)
    scale = wide.std() if activation.numel() > 1 else wide.new_ones(())
    return (wide + 0.5 * torch.where(scale > 0, scale, 1.0) * noise).to(activation.dtype)


def largest_difference(output: Tensor, expected: Tensor) -> float:
    """Largest deviation of an output, relative to the largest value that is no masked logit."""
    if not isinstance(output, Tensor) or output.shape != expected.shape:
        raise ValueError(f"the output has the shape {tuple(getattr(output, 'shape', ()))}, not {tuple(expected.shape)}")
    # Not in float64, which not every device has.
    wide = torch.promote_types(expected.dtype, torch.float32)
    actual, reference = output.to(wide), expected.to(wide)
    size = reference.abs()
    usual = size <= _LARGEST_LOGIT
    scale = torch.where(usual, size, 0.0).max().clamp_min(1e-3)
    deviation = torch.where(actual == reference, 0.0, (actual - reference).abs() / torch.where(usual, scale, size))
    return float(deviation.max())
