"""The information bottleneck, as one method among others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from captum_iba.text.explainer import TextExplainer, read_settings
from captum_iba.text.layers import find_blocks, find_layers, published_layer
from captum_iba.text.methods.task import FloatArray, Task


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
    classifier = task.classifier
    layer = task.layer if layer is None else layer
    if layer is None and preset != "default":
        layer = published_layer(len(find_blocks(classifier.model)))
    blocks = find_layers(classifier.model, layer)
    found = [task.statistics(block) for block in blocks] if not used.own_input else [None]
    explainer = TextExplainer(
        classifier.model,
        classifier.tokenizer,
        [block.index or block.name for block in blocks],
        None if None in found else [one for one in found if one is not None],
        classifier.max_length,
    )
    rows_of_text = used.draws * used.sides
    scores: dict[int, FloatArray] = {}
    for paired in (False, True):
        rows = [i for i, encoded in enumerate(task.encoded) if (encoded.pair is not None) == paired]
        if not rows:
            continue
        texts = [task.encoded[i] for i in rows]
        results = explainer.explain(
            [encoded.text for encoded in texts],
            [encoded.pair or "" for encoded in texts] if paired else None,
            [task.targets[i] for i in rows],
            preset=preset,
            seed=task.seed,
            batch_size=max(1, task.batch_size // rows_of_text),
            internal_batch_size=task.batch_size,
            **changes,
        )
        scores.update((i, np.asarray(result.bits)) for i, result in zip(rows, results, strict=True))
    return [scores[i] for i in range(len(task.encoded))]
