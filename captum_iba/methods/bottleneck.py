"""The information bottleneck, as one method among others."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from captum_iba.methods.task import FloatArray, Task
from captum_iba.text.explainer import read_settings
from captum_iba.text.layers import check_layers, find_blocks, find_layers, published_layer
from captum_iba.text.run import NO_STATISTICS, Call, Place


def information_bottleneck(
    task: Task,
    preset: str = "default",
    layer: int | str | Sequence[int | str] | None = None,
    granularity: str | None = None,
    beta: float | None = None,
    n_steps: int | None = None,
    n_samples: int | None = None,
    complement: float | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    antithetic: bool | None = None,
    alternate: bool | None = None,
) -> list[FloatArray]:
    """Bits of every token (:class:`captum_iba.InformationBottleneckAttribution`).

    Args:
        task (Task): The texts. Its statistics are asked for the layers.
        preset (str): ``"default"``, ``"paper"`` or ``"as_released"``. Default: ``"default"``.
        layer (int, str, sequence of them, or None): Block number from 1, or a module's name; None takes the task's, and
            if that is None too, all blocks with one mask, but for the published settings one block at three
            quarters of the depth: 9 of 12. Default: None.
        granularity, beta, n_steps, n_samples, complement, learning_rate, momentum, antithetic, alternate: As for
            :meth:`captum_iba.text.TextExplainer.explain`. Default: the preset's.

    Returns:
        list of array: bits, (T,), one a text.
    """
    changes: dict[str, Any] = {
        "granularity": granularity,
        "beta": beta,
        "n_steps": n_steps,
        "n_samples": n_samples,
        "complement": complement,
        "learning_rate": learning_rate,
        "momentum": momentum,
        "antithetic": antithetic,
        "alternate": alternate,
    }
    used = read_settings(preset, **changes)
    place = _place(task, task.layer if layer is None else layer, preset, used.noise_around_input)
    if task.encoded and place.statistics is None and not used.noise_around_input:
        warnings.warn(NO_STATISTICS, UserWarning, stacklevel=2)
    call = Call(place, preset, granularity or used.granularity, used, task.seed, task.batch_size, False)
    rows_of_text = used.samples_per_step * used.rows_per_sample
    results = call.explain_all(task.encoded, list(task.targets), max(1, task.batch_size // rows_of_text), False)
    return [np.asarray(result.bits) for result in results]


def _place(task: Task, layer: int | str | Sequence[int | str] | None, preset: str, noise_around_input: bool) -> Place:
    """Where the bottlenecks go: for all parts of a data set the same object, which remembers what it has checked."""
    classifier = task.classifier
    if layer is None and preset != "default":
        layer = published_layer(len(find_blocks(classifier.model)))
    blocks = find_layers(classifier.model, layer)
    if task.encoded and not any(blocks == known for known, _ in classifier.places):
        check_layers(classifier, blocks)
    found = [None] if noise_around_input else [task.statistics(block) for block in blocks]
    statistics = None if None in found else tuple(one for one in found if one is not None)
    key = (blocks, statistics is None)
    place = classifier.places.get(key)
    if place is None or list(map(id, place.statistics or ())) != list(map(id, statistics or ())):
        place = classifier.places[key] = Place.of(classifier, blocks, statistics)
    assert isinstance(place, Place)
    return place
