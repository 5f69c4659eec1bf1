"""Scores by chance: what every method must be better than."""

from __future__ import annotations

import numpy as np

from captum_iba.methods.randomness import seed_of
from captum_iba.methods.task import FloatArray, Task


def by_chance(task: Task) -> list[FloatArray]:
    """Uniform numbers from 0 to 1, which follow from the task's seed and the text alone.

    Args:
        task (Task): The texts.

    Returns:
        list of array: (T,), one a text.
    """
    return [np.random.default_rng(seed_of(task.seed, encoded)).random(len(encoded)) for encoded in task.encoded]
