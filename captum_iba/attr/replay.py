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

from captum_iba.attr.guard import ModuleGuard
from captum_iba.attr.memory import out_of_memory
from captum_iba.attr.nested import map_tensors, tile
from captum_iba.attr.recording import Recording
from captum_iba.attr.sites import feature_of, hooked, replace_forward
from captum_iba.attr.trace import Cut

CallSequence = tuple[tuple[Module, bool, bool], ...]
"""The calls up to a site: module, whether it had finished, whether the model wrote into its output later."""

Checked = dict[CallSequence, float]
"""For sequences of calls whose replay was found right, by how much outputs of one model may differ with the number of
rows in a pass (relative)."""

# A model that makes modules in forward has another sequence in every pass.
_MOST_CHECKED = 16
_TOLERANCE = 1e-4


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
        checked: Checked | None = None,
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
        self._checked: Checked = {} if checked is None else checked
        self._recorded: _RecordedCalls | None = None
        self.reason = ""

    def __enter__(self) -> Passes:
        if self._replay:
            try:
                with torch.no_grad():
                    self._try_replay()
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

    def run(self, copies: int, replace: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The output of the model for ``copies`` times the inputs, with other features at the sites.

        Args:
            copies (int): How often the inputs are tiled; row ``c * rows + r`` is copy c of example r.
            replace (Callable): Takes the number of a site and the feature there, gives the feature instead.
                In a replayed pass the feature at site 0 is of the right shape only; it is the recorded one, tiled.
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
        # Noised features may take a model through modules that the recorded pass did not run.
        with self.guard.watching(), hooked(self._sites, visit):
            return self._recording.forward(copies)

    def _try_replay(self) -> None:
        output, first = self._recording.output, self.sightings[0]
        calls = zip(first.cut.calls, self._changed, strict=True)
        sequence = tuple((call.module, call.finished, written) for call, written in calls)
        # Two copies, because a tensor tiled by mistake then shows itself. The recorded feature alone does not tell
        # whether something remembers it, so where a model is new, the second copy has another one.
        features, expected = [first.feature, first.feature], torch.cat([output, output])
        tolerance = max(_TOLERANCE, 2 * self.guard.epsilon())
        known = self._checked.get(sequence)
        if known is None:
            features[1] = first.feature.lerp(first.feature.roll(1, -1), 0.5)
            try:
                expected = self.run(2, lambda number, feature: torch.cat(features) if number == 0 else feature)
                by_rows = _difference(expected[: len(output)], output, 1)
            except Exception as error:
                if out_of_memory(error):
                    raise
                self.reason = f"a pass with another feature fails with {type(error).__name__}: {error}"
                return
        else:
            by_rows = known
            tolerance = max(tolerance, 2 * known)
        replay = _RecordedCalls(first.cut, self._changed, self._rows, first.feature, self._undo)
        try:
            replay.install()
            self._recorded = replay
            found = self.run(2, lambda number, feature: feature if number > 0 else torch.cat(features))
            difference = _difference(found, expected, 2)
            self.reason = f"a replayed pass gives another output (relative difference {difference:.2g})"
        except Exception as error:
            if out_of_memory(error):
                raise
            difference = float("inf")
            self.reason = f"a replayed pass fails with {type(error).__name__}: {error}"
        if difference <= tolerance:
            while len(self._checked) >= _MOST_CHECKED:
                self._checked.pop(next(iter(self._checked)))
            self._checked[sequence] = by_rows
        else:
            self._recorded = None
            self._undo.close()


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
        self._tiled: dict[int, Any] = {}

    def install(self) -> None:
        """Replace the ``forward`` of every module with a finished call."""
        for module, numbers in self._of_module.items():
            if any(self._calls[number].finished for number in numbers):
                replace_forward(module, self._replaying(module), self._undo)

    def restart(self, copies: int) -> None:
        """Get ready for a pass with so many copies."""
        self._next.clear()
        if copies != self._copies:
            self._tiled.clear()
            self._copies = copies

    def _replaying(self, module: Module) -> Callable[..., Any]:
        forward, numbers, thread = module.forward, self._of_module[module], threading.get_ident()

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
            output = self._calls[number].output
            if output is self._feature and self._calls[number] is self._calls[-1]:
                return output[:1].expand(self._copies * self._rows, *output.shape[1:])
            self._tiled[number] = tile(output, self._rows, self._copies)
        tiled = self._tiled[number]
        return map_tensors(_copy, tiled) if self._changed[number] else tiled


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _difference(found: Tensor, expected: Tensor, copies: int) -> float:
    """Largest deviation of an output, relative to the largest value of each copy."""
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        raise ValueError(f"the output has the shape {tuple(getattr(found, 'shape', ()))}, not {tuple(expected.shape)}")
    # Not in float64, which not every device has.
    wide = torch.promote_types(expected.dtype, torch.float32)
    wanted = expected.to(wide).reshape(copies, -1)
    deviation = (found.to(wide).reshape(copies, -1) - wanted).abs().amax(1)
    return float((deviation / wanted.abs().amax(1).clamp_min(1e-3)).max())
