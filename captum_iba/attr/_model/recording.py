"""One whole pass through a model, and what it saw at the layers that are asked about."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr._model.hooks import Site, feature_of, hooked
from captum_iba.attr._model.nested import map_tensors, split_feature
from captum_iba.attr._model.trace import CallTrace, Cut
from captum_iba.attr.feature_dim import Origin


@dataclass(frozen=True)
class Sighting:
    """What a recorded pass saw at a site.

    Args:
        number (int): Of the site, as given.
        feature (Tensor): The feature.
        structure (Any): All that the layer gave (or took), the feature in it.
        layer_input (Tensor or None): The feature that the layer took.
        call (int): Which call of the layer this was, from 0.
        origin (Origin): Where the feature comes from, as far as it says which dimension holds the features.
        cut (Cut): Which module calls had begun and finished by then.
        versions (list of int): Of the feature and the input, at that moment.
        calls (int): How often the layer ran in the whole pass. Default: 1
    """

    number: int
    feature: Tensor
    structure: Any
    layer_input: Tensor | None
    call: int
    origin: Origin
    cut: Cut
    versions: list[int]
    calls: int = 1

    @property
    def changed_in_place(self) -> bool:
        """Whether the model wrote into the feature, or the layer's input, afterwards."""
        return _versions(self.feature, self.layer_input) != self.versions


@dataclass(frozen=True)
class Recording:
    """One whole pass, without gradients.

    Args:
        forward (Callable): What ran: takes a number of copies ``n`` and returns the output of the model, a tensor, for
            the inputs tiled ``n`` times.
        sites (sequence of Site): Where it was watched.
        output (Tensor): Of the model.
        sightings (tuple of Sighting): What was seen, in the order in which the sites were passed.
        changed (tuple): For each of them, and for every call up to it, whether the model wrote into what the call
            had returned.
        guard (ModuleGuard): Took the modules that ran.
        stateful (bool): Whether modules were left in another state, so that every pass has to begin from the first.
    """

    forward: Callable[[int], Tensor]
    sites: Sequence[Site]
    output: Tensor
    sightings: tuple[Sighting, ...]
    changed: tuple[tuple[bool, ...], ...]
    guard: ModuleGuard
    stateful: bool


def record(forward: Callable[[int], Tensor], sites: Sequence[Site], guard: ModuleGuard) -> Recording:
    """Run a model once.

    Args:
        forward, sites: As for :class:`Recording`.
        guard (ModuleGuard): Takes the modules that run.

    Raises:
        ValueError: A layer did not run, or not as often as a site wants.
        TypeError: A layer or the model gave no floating-point tensor.
    """
    with torch.no_grad():
        output, sightings = _observe(forward, sites, guard, keep_copies=False)
        changed = tuple(
            tuple(call.finished and call.changed_in_place for call in sighting.cut.calls) for sighting in sightings
        )
        guard.require_no_new_modules()
        stateful = guard.rewind()
        if stateful or any(map(any, changed)) or any(sighting.changed_in_place for sighting in sightings):
            # The model wrote into what was to be kept: once more, keeping copies.
            output, sightings = _observe(forward, sites, guard, keep_copies=True)
            guard.rewind()
    return Recording(forward, sites, output, tuple(sightings), changed, guard, stateful)


def _observe(
    forward: Callable[[int], Tensor], sites: Sequence[Site], guard: ModuleGuard, keep_copies: bool
) -> tuple[Tensor, list[Sighting]]:
    trace = CallTrace(keep_copies)
    runs: Counter[tuple[Module, bool]] = Counter()
    # For a call counted from the last, as many sightings as may still be the one.
    seen: list[deque[tuple[int, Sighting]]] = [deque(maxlen=-site.call if site.call < 0 else 1) for site in sites]

    def visit(layer: Module, at_input: bool, call: int, value: Any, layer_input: Any) -> None:
        runs[layer, at_input] += 1
        if not at_input:
            trace.returned(layer, value)
        for number, site in enumerate(sites):
            if site.layer is layer and site.at_input is at_input and (site.call < 0 or site.call == call):
                seen_feature, entered = feature_of(value, layer)[0], split_feature(layer_input)
                origin = Origin.of(
                    guard.last_leaf, layer, seen_feature, None if entered is None else entered[0], at_input
                )
                if keep_copies:
                    value, layer_input = map_tensors(_copy, (value, layer_input))
                feature, _ = feature_of(value, layer)
                entered = split_feature(layer_input)
                source = None if entered is None else entered[0]
                moment, versions = trace.cut(), _versions(feature, source)
                sighting = Sighting(number, feature, value, source, call, origin, moment, versions)
                seen[number].append((sum(runs.values()), sighting))

    with guard.watching(), hooked(sites, visit), trace.following():
        output = forward(1)
    if not isinstance(output, Tensor):
        raise TypeError(
            f"forward_func must return a tensor, got {type(output).__name__}; "
            "to take a tensor from a model output, wrap it: lambda *args: model(*args).logits"
        )
    for site in sites:
        site.require(runs[site.layer, site.at_input])
    passed = [sighting for _, sighting in sorted((those[0] for those in seen), key=_order)]
    keys = [(sites[sighting.number].layer, sites[sighting.number].at_input) for sighting in passed]
    return output, [replace(one, calls=runs[key]) for one, key in zip(passed, keys, strict=True)]


def _order(found: tuple[int, Sighting]) -> int:
    return found[0]


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _versions(*tensors: Tensor | None) -> list[int]:
    return [tensor._version for tensor in tensors if tensor is not None]
