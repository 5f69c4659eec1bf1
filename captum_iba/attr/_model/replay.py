"""Run a model once, then only from a layer on.

Up to the layer, all passes of an attribution are the same. One pass is recorded; in later ones every outermost
module that had finished before the layer returns what it returned then, and does not run. The page "Replay" of
the documentation has the idea, the traps, and which models fall back to whole passes.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr._model.hooks import feature_of, hooked, replace_forward
from captum_iba.attr._model.nested import map_tensors, tensors_in, tile
from captum_iba.attr._model.recording import Recording
from captum_iba.attr._model.trace import Cut
from captum_iba.attr.memory import out_of_memory

_TOLERANCE = 1e-4
# Masked logits (-1e9, the least number) tell nothing of the others.
_LARGEST_LOGIT = 1e4


class Passes:
    """Passes through one model on the same inputs with other features at its sites.

    They are replayed from the first site on if that gives the same output, which is tried on entering the context. On
    leaving it, hooks and ``forward`` methods are as before.

    Args:
        recording (Recording): A pass over the inputs, whose :class:`ModuleGuard` is still entered.
        rows (int): Examples in the inputs.
        numbers (sequence of int): Which sites get other features.
        replay (bool): False runs every pass whole. Default: True.

    Attributes:
        sightings (list of Sighting): Those of the sites, in the order in which they were passed; :meth:`run` counts
            the sites in that order too.
        reason (str): Why passes are not replayed, if so.
        coupled (float): By how much the output of an example changes with the other rows of a pass, relatively.
    """

    def __init__(
        self,
        recording: Recording,
        rows: int,
        numbers: Sequence[int],
        replay: bool = True,
    ) -> None:
        sites = recording.sites
        self._recording = recording
        self._rows = rows
        self._sites = [sites[number] for number in numbers]
        places = [place for place, sighting in enumerate(recording.sightings) if sighting.number in numbers]
        self._changed = recording.changed[places[0]]
        self.sightings = [recording.sightings[place] for place in places]
        self._wanted = {
            (sites[sighting.number].layer, sites[sighting.number].at_input, sighting.call): order
            for order, sighting in enumerate(self.sightings)
        }
        self._undo = ExitStack()
        self._replay = replay
        self._recorded: _RecordedCalls | None = None
        self.reason = ""
        self.coupled = 0.0

    def __enter__(self) -> Passes:
        try:
            with torch.no_grad():
                self._check()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def guard(self) -> ModuleGuard:
        """Took the modules that run."""
        return self._recording.guard

    @property
    def replays(self) -> bool:
        """Whether passes run only from the first site on."""
        return self._recorded is not None

    @property
    def tolerance(self) -> float:
        """By how much outputs may differ that should be the same: other numbers of rows round otherwise."""
        return max(_TOLERANCE, 2 * self.guard.epsilon())

    def run(self, copies: int, replace: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The output of the model for ``copies`` times the inputs, with other features at the sites.

        Args:
            copies (int): How often the inputs are tiled; row ``c * rows + r`` is copy c of example r.
            replace (Callable): Takes the number of a site and the feature there, gives the feature instead.
                In a replayed pass the feature at site 0 is of the right shape only; it is the recorded one, tiled.

        Raises:
            ValueError: The output has other rows than the inputs.
        """
        try:
            output = self._require_rows(copies, self._run(copies, replace))
        except Exception as error:
            if self._recorded is None or out_of_memory(error):
                raise
            # Something that only these features do, and recorded tensors do not take; whole, it works or says why.
            self._fall_back(f"a replayed pass fails with {type(error).__name__}: {error}")
            output = self._require_rows(copies, self._run(copies, replace))
        return output

    def _require_rows(self, copies: int, output: Tensor) -> Tensor:
        expected = (copies * self._rows, *self._recording.output.shape[1:])
        if tuple(output.shape) != expected:
            raise ValueError(
                f"forward_func gives the shape {tuple(output.shape)} for {copies} copies of the inputs, expected "
                f"{expected}; further arguments whose first dimension counts the examples are tiled with them"
            )
        return output

    def _run(self, copies: int, replace: Callable[[int, Tensor], Tensor]) -> Tensor:
        # A replayed pass skips the calls inside the modules that it does not run.
        skipped = self._recorded.skipped if self._recorded else Counter[Module]()
        wanted = {(layer, at, call - skipped[layer]): n for (layer, at, call), n in self._wanted.items()}

        def visit(layer: Module, at_input: bool, call: int, value: Any, layer_input: Any) -> Any:
            number = wanted.get((layer, at_input, call))
            if number is None:
                return None
            feature, rebuild = feature_of(value, layer)
            return rebuild(replace(number, feature))

        if self._recorded:
            self._recorded.restart(copies)
        if self._recording.stateful:
            self.guard.rewind()
        # Noised features may take a model through modules that the recorded pass did not run.
        try:
            with self.guard.watching(), hooked(self._sites, visit):
                return self._recording.forward(copies)
        except Exception:
            self.guard.rewind()  # what the pass would have put right at its end
            raise

    def _check(self) -> None:
        """Find out whether rows of a pass are independent, and whether passes can be replayed."""
        output, first = self._recording.output, self.sightings[0]
        # Two copies, because a tensor tiled by mistake then shows itself. The recorded feature alone does not tell
        # whether something remembers it, so the second copy has another one.
        features = torch.cat([first.feature, _another(first.feature)])

        def replaced(number: int, feature: Tensor) -> Tensor:
            if number:
                return feature
            if self._recorded is None:
                self.coupled = _difference(feature, torch.cat([first.feature, first.feature]))
            return features

        try:
            expected = self.run(2, replaced)
        except Exception as error:
            if out_of_memory(error):
                raise
            self.reason = f"a pass with another feature fails with {type(error).__name__}: {error}"
            return
        self.coupled = max(self.coupled, _difference(expected[: len(output)], output))
        if not self._replay:
            return
        try:
            self._recorded = _RecordedCalls(first.cut, self._changed, self._rows, first.feature, self._undo)
            difference = _difference(self._run(2, replaced), expected)
        except Exception as error:
            if out_of_memory(error):
                raise
            self._fall_back(f"a replayed pass fails with {type(error).__name__}: {error}")
        else:
            if not difference <= self.tolerance:
                self._fall_back(f"a replayed pass gives another output (relative difference {difference:.2g})")

    def _fall_back(self, reason: str) -> None:
        self._recorded = None
        self._undo.close()
        self.reason = reason


class _RecordedCalls:
    """The calls up to a cut; while installed, those that had finished return what they returned then.

    Args:
        cut (Cut): The moment of the recorded pass up to which is replayed.
        changed (sequence of bool): A call whose output the model writes into returns a fresh copy every time.
        rows (int): Examples in the recorded pass.
        feature (Tensor): What :meth:`Passes.run` replaces before anything else sees it: it need not be tiled.
        undo (ExitStack): Gives the modules their own ``forward`` again.
    """

    def __init__(self, cut: Cut, changed: Sequence[bool], rows: int, feature: Tensor, undo: ExitStack) -> None:
        self._calls = cut.calls
        self._changed = changed
        self._rows = rows
        self._feature = feature
        self._undo = undo
        self.skipped = cut.begun - Counter(call.module for call in cut.calls)
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
        # What a branch that only some features take wrote into is tiled anew.
        for number, (tiled, versions) in list(self._tiled.items()):
            if [tensor._version for tensor in tensors_in(tiled)] != versions:
                del self._tiled[number]

    def _replaying(self, module: Module) -> Callable[..., Any]:
        forward, numbers, thread = module.forward, self._of_module[module], threading.get_ident()

        def replayed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return forward(*args, **kwargs)
            position = self._next[module]
            self._next[module] += 1
            if position < len(numbers) and self._calls[numbers[position]].finished:
                return self._output(numbers[position], tensors_in(args))
            return forward(*args, **kwargs)

        return replayed

    def _output(self, number: int, taken: list[Tensor]) -> Any:
        """What a call returned, after what it wrote into the tensors that it took is written into these, too."""
        call = self._calls[number]
        for place, content in call.written.items():
            taken[place].copy_(tile(content, self._rows, self._copies))
        if call is self._calls[-1] and call.output is self._feature:
            return self._feature[:1].expand(self._copies * self._rows, *self._feature.shape[1:])
        if number not in self._tiled:
            tiled = (
                map_tensors(_copy, call.output) if self._copies == 1 else tile(call.output, self._rows, self._copies)
            )
            self._tiled[number] = tiled, [tensor._version for tensor in tensors_in(tiled)]
        output, _ = self._tiled[number]
        if self._changed[number]:
            output = map_tensors(_copy, output)
        if call.same:
            numbers = count()

            def the_same(tensor: Tensor) -> Tensor:
                place = call.same.get(next(numbers))
                return tensor if place is None else taken[place]

            output = map_tensors(the_same, output)
        return output


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _another(feature: Tensor) -> Tensor:
    """The feature with noise of half its standard deviation, always the same."""
    wide = feature.to(torch.promote_types(feature.dtype, torch.float32))
    generator = torch.Generator(feature.device).manual_seed(0)
    noise = torch.randn(feature.shape, generator=generator, device=feature.device, dtype=wide.dtype)
    scale = wide.std() if feature.numel() > 1 else wide.new_ones(())
    return (wide + 0.5 * torch.where(scale > 0, scale, 1.0) * noise).to(feature.dtype)


def _difference(found: Tensor, expected: Tensor) -> float:
    """Largest deviation of an output, relative to the largest value but for those that mask others."""
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        raise ValueError(f"the output has the shape {tuple(getattr(found, 'shape', ()))}, not {tuple(expected.shape)}")
    # Not in float64, which not every device has.
    wide = torch.promote_types(expected.dtype, torch.float32)
    one, other = found.to(wide), expected.to(wide)
    size = other.abs()
    usual = size <= _LARGEST_LOGIT
    scale = torch.where(usual, size, 0.0).max().clamp_min(1e-3)
    deviation = torch.where(one == other, 0.0, (one - other).abs() / torch.where(usual, scale, size))
    return float(deviation.max())
