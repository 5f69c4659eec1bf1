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
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba.attr.memory import out_of_memory
from captum_iba.attr.nested import map_tensors, tile
from captum_iba.attr.recording import Recording
from captum_iba.attr.sites import feature_of, hooked
from captum_iba.attr.trace import Call, Cut

CallSequence = tuple[tuple[Module, bool, bool], ...]
"""The calls up to a site: module, whether it had finished, whether the model wrote into its output later."""


class Passes:
    """Passes through one model on the same inputs with other features at its sites.

    They are replayed from the first site on if that gives the same output, which is tried on entering the context. On
    leaving it, hooks and ``forward`` methods are as before.

    Args:
        recording (Recording): A pass over the inputs, whose :class:`ModuleGuard` is still entered.
        rows (int): Examples in the inputs.
        numbers (sequence of int): Which sites get other features.
        replay (bool): False runs every pass whole. Default: True.
        checked (dict or None): What earlier passes through the same model have found out, by the sequence of module
            calls up to the first site; a sequence in it gets a shorter check. Default: None.

    Attributes:
        sightings (list of Sighting): Those of the sites, in the order in which they were passed; :meth:`run` counts
            the sites in that order too.
        reason (str): Why passes are not replayed, if so.
    """

    def __init__(
        self,
        recording: Recording,
        rows: int,
        numbers: Sequence[int],
        replay: bool = True,
        checked: dict[CallSequence, bool] | None = None,
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
        self._checked = {} if checked is None else checked
        self._recorded: _RecordedCalls | None = None
        self.reason = ""

    def __enter__(self) -> Passes:
        if self._replay:
            with torch.no_grad():
                self._try_replay()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def replays(self) -> bool:
        """Whether passes run only from the first site on."""
        return self._recorded is not None

    def run(self, copies: int, replace: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The output of the model for ``copies`` times the inputs, with other features at the sites.

        Args:
            copies (int): How often the inputs are tiled; row ``c * rows + r`` is copy c of example r.
            replace (Callable): Takes the number of a site and the feature there, gives the feature instead.
                In a replayed pass the feature at site 0 is a placeholder; it is the recorded one, tiled.
        """
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
        with hooked(self._sites, visit):
            return self._recording.forward(copies)

    def _try_replay(self) -> None:
        output, first, changed = self._recording.output, self.sightings[0], self._changed
        calls = zip(first.cut.calls, changed, strict=True)
        sequence = tuple((call.module, call.finished, written) for call, written in calls)
        # Two copies, because a tensor tiled by mistake then shows itself. The recorded feature alone does not tell
        # whether something remembers it, so where a model is new, the second copy has another one.
        other, expected = first.feature, [output, output]
        if sequence not in self._checked:
            try:
                other = first.feature.lerp(first.feature.roll(1, -1), 0.5)
                expected[1] = self.run(1, lambda number, feature: other.clone() if number == 0 else feature)
            except Exception as error:
                if out_of_memory(error):
                    raise
                self.reason = f"a pass with another feature fails with {type(error).__name__}: {error}"
                return

        # Most models read a hidden state once, in the next block. So in a first try not-a-number stands in for
        # every output of the feature's shape, which keeps none of them, and the result tells if one was read.
        tries = [self._checked[sequence]] if sequence in self._checked else [False, True]
        if any(call.module._forward_hooks or call.module._forward_pre_hooks for call in first.cut.calls):
            tries = [True]  # hooks of others read them
        for keep in tries:
            replay = _RecordedCalls(first.cut, changed, self._rows, None if keep else first.feature.shape)
            if self._agrees(replay, [first.feature, other], expected):
                self._checked[sequence] = keep
                self._undo.callback(replay.remove)
                return

    def _agrees(self, calls: _RecordedCalls, features: list[Tensor], expected: list[Tensor]) -> bool:
        """Whether a replayed pass over these features gives these outputs; if so, later passes are replayed."""

        def given(number: int, feature: Tensor) -> Tensor:
            return feature if number > 0 else torch.cat(features)

        try:
            calls.install()
            self._recorded = calls
            difference = _difference(self.run(len(features), given), expected)
            self.reason = f"a replayed pass gives another output (relative difference {difference:.2g})"
        except Exception as error:
            if out_of_memory(error):
                self._recorded = None
                calls.remove()
                raise
            difference = float("inf")
            self.reason = f"a replayed pass fails with {type(error).__name__}: {error}"
        except BaseException:
            calls.remove()
            raise
        if difference <= _tolerance(expected[0].dtype):
            return True
        self._recorded = None
        calls.remove()
        return False


class _RecordedCalls:
    """The calls up to a cut; while installed, those that had finished return what they returned then.

    Args:
        cut (Cut): The moment of the recorded pass up to which is replayed.
        changed (sequence of bool): A call whose output the model writes into returns a fresh copy every time.
        rows (int): Examples in the recorded pass.
        unread (torch.Size or None): Outputs of this shape are not kept; not-a-number stands in for them.
    """

    def __init__(self, cut: Cut, changed: Sequence[bool], rows: int, unread: torch.Size | None) -> None:
        self._calls = cut.calls
        self._changed = changed
        self._rows = rows
        self._unread = unread
        self.skipped = cut.begun - Counter(call.module for call in cut.calls)
        """How often each module was called inside calls that are not run."""
        self._of_module: dict[Module, list[int]] = defaultdict(list)
        for number, call in enumerate(self._calls):
            self._of_module[call.module].append(number)
        self._copies = 1
        self._next: Counter[Module] = Counter()
        self._tiled: dict[int, Any] = {}
        self._undo = ExitStack()

    def install(self) -> None:
        """Replace the ``forward`` of every module with a finished call."""
        thread = threading.get_ident()
        try:
            for module, numbers in self._of_module.items():
                if any(self._calls[number].finished for number in numbers):
                    self._undo.callback(_restore_forward, module, module.__dict__.get("forward"))
                    module.forward = self._replaying(module, module.forward, thread)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Give the modules their own ``forward`` again."""
        self._undo.close()

    def restart(self, copies: int) -> None:
        """Get ready for a pass with so many copies."""
        self._next.clear()
        if copies != self._copies:
            self._tiled.clear()
            self._copies = copies

    def _replaying(self, module: Module, forward: Callable[..., Any], thread: int) -> Callable[..., Any]:
        numbers = self._of_module[module]

        def replayed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return forward(*args, **kwargs)
            position = self._next[module]
            self._next[module] += 1
            if position < len(numbers) and self._calls[numbers[position]].finished:
                return self._output(numbers[position])
            return forward(*args, **kwargs)

        return replayed

    def _output(self, number: int) -> Any:
        if number not in self._tiled:
            kept = self._calls[number].output
            if self._stands_in(self._calls[number]):
                kept = kept.new_full((), float("nan")).expand(kept.shape)
                self._tiled[number] = kept[:1].expand(self._copies * self._rows, *kept.shape[1:])
            else:
                self._tiled[number] = tile(kept, self._rows, self._copies)
        tiled = self._tiled[number]
        return map_tensors(_copy, tiled) if self._changed[number] else tiled

    def _stands_in(self, call: Call) -> bool:
        output = call.output
        return isinstance(output, Tensor) and output.shape == self._unread and output.is_floating_point()


def _restore_forward(module: Module, own: Any) -> None:
    """``own`` is what the instance itself had as ``forward``; nearly always nothing."""
    if own is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = own


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _difference(replayed: Tensor, expected: list[Tensor]) -> float:
    """Largest deviation from what whole passes gave, relative to the largest output of each."""
    wanted = torch.stack(expected).double()
    if not isinstance(replayed, Tensor) or replayed.shape != wanted.flatten(0, 1).shape:
        raise ValueError(f"the output for {len(expected)} copies has the shape {tuple(getattr(replayed, 'shape', ()))}")
    deviation = (replayed.double().reshape(wanted.shape) - wanted).abs().flatten(1).amax(1)
    return float((deviation / wanted.abs().flatten(1).amax(1).clamp_min(1e-3)).max())


def _tolerance(dtype: torch.dtype) -> float:
    return 2e-2 if torch.finfo(dtype).bits == 16 else 1e-4
