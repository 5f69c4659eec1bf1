"""Methods compared on texts of a model with any head: what its answer loses without the words that each ranks first."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captum_iba._checks import check_integer, kind_of
from captum_iba._compat import progress
from captum_iba._explain.fingerprint import statistics_fingerprint
from captum_iba._explain.json_result import library_versions
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.compare.kept_rows import KeptRows, RowTable, chosen_methods, counted_passes, finite_or_none
from captum_iba.methods.registry import attribution_task, find_method, score
from captum_iba.methods.task import AttributionTask
from captum_iba.metrics.prompt_removal import prompt_degradation
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.head_targets import holding_scale
from captum_iba.text.word_removal import TextRemoval

DEFAULT_METHODS_FOR_TEXTS = ("iba", "ig", "leave_one_out", "random")
"""The methods of a comparison that names none."""


@dataclass(frozen=True)
class TextRow:
    """One method on one target of a text.

    Attributes:
        target (int): Number of the target, from 0: of one per text the number of the text.
        method (str): Name of the method.
        label (str): What is explained: a class, "B-PER for Anna", an answer.
        scores (tuple of float): Score of each word.
        values (dict): Each metric (:attr:`TextComparison.columns`) with its value; empty where the method failed.
        error (str or None): Why it failed.
    """

    target: int
    method: str
    label: str
    scores: tuple[float, ...]
    values: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class TextComparison(RowTable):
    """
    The rows of a comparison on texts; ``print`` shows its table.

    The columns are the decrease in the probability of the target without the ninth of the words that a method ranks
    first (``drop@1/9``), the mean of that decrease over ninths of the words (``aopc``), the area between the curves of
    least and most relevant first (``lerf-morf``), the number of forward passes per target, of which one with a
    backward pass counts twice, and the seconds.

    Attributes:
        methods (tuple of str): Names of the methods; the others are compared with the first.
        rows (tuple of TextRow): One per target and method.
    """

    methods: tuple[str, ...]
    rows: tuple[TextRow, ...]

    example = "target"
    measured = ("drop@1/9", "aopc", "lerf-morf")
    digits = 3
    meaning = (
        "drop@1/9: decrease in the probability of what is explained without the first ninth of the words; aopc: its "
        "mean over ninths; lerf-morf: area between the curves of least and most relevant first. Words are deleted."
    )


def compare_texts(
    explainer: TextExplainer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    target: Any = None,
    methods: Sequence[str] = DEFAULT_METHODS_FOR_TEXTS,
    *,
    batch_size: int = 32,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    on_row: Callable[[int], object] = lambda _: None,
    show_progress: bool = False,
    **asked: Any,
) -> TextComparison:
    """
    Compare methods by deletion of the words that each ranks first, for a model with any head.

    What is explained itself, a word, an entity or an answer, is never deleted, and no method scores it.

    Args:
        explainer (TextExplainer): The model; its statistics are those of ``iba``.
        texts (sequence of str): The texts.
        pairs (sequence of str, optional): The second text of each; of question answering the context. Default: None.
        target (optional): As for :meth:`captum_iba.text.TextExplainer.explain`. Default: None, the predicted one.
        methods (sequence of str): Names of :func:`captum_iba.methods.method_names`, with ``:abs`` for magnitudes. The
            others are compared with the first. Default: :data:`DEFAULT_METHODS_FOR_TEXTS`.
        batch_size (int): Largest number of rows of a forward pass. Default: 32.
        seed (int): Seed of methods with random numbers. Default: 0.
        folder (path, optional): Folder for the rows (``rows.jsonl``) and the table (``table.md``): the same call goes
            on where it stopped, tries again what failed, and one with more methods adds them. Default: None.
        on_row (Callable, optional): Called with the number of rows that are finished. Default: nothing is called.
        show_progress (bool): Whether to show a progress bar over targets. Default: False.
        **asked: ``word``, ``token``, ``entity``, ``choices``, ``tolerance`` or ``mask_target``, as for ``explain``;
            with ``entity="all"`` every entity of every text is a target.

    Returns:
        TextComparison: A method that fails on a target is recorded there, and the target does not count.

    Raises:
        TypeError, ValueError: As ``explain``, or a method that is unknown, or a folder with other texts or settings.

    Examples::

        >>> result = compare_texts(explainer, ["A wonderful film.", "A dull film."], methods=["iba", "random"])
        >>> [(row.target, row.method, len(row.scores)) for row in result.rows]
        [(0, 'iba', 4), (0, 'random', 4), (1, 'iba', 4), (1, 'random', 4)]
    """
    if not isinstance(explainer, TextExplainer):
        raise TypeError(f"explainer is {kind_of(explainer)}, expected a TextExplainer")
    if isinstance(texts, str):
        raise TypeError("texts is one string, expected a sequence of strings")
    names = [methods] if isinstance(methods, str) else list(methods)
    functions = chosen_methods(names, {name: find_method(name).function for name in names})
    check_integer("seed", seed)
    classifier = explainer.classifier
    with holding_scale(classifier.head):
        task = attribution_task(explainer, texts, pairs, target, seed=seed, batch_size=batch_size, **asked)
        kept, rows = None, []
        if folder is not None:
            kept = KeptRows(Path(folder), _about(explainer, task))
            rows = [TextRow(**{**row, "scores": tuple(row["scores"])}) for row in kept.rows(functions)]
        done = {(row.target, row.method) for row in rows}
        numbers = range(len(task.encoded))
        for number in progress(numbers, "Targets", len(numbers)) if show_progress else numbers:
            missing = [name for name in functions if (number, name) not in done]
            for name in missing:
                row = _measured(number, name, task)
                rows.append(row)
                if kept is not None:
                    kept.add(row, functions[name])
                on_row(len(rows))
    order = list(functions)
    rows.sort(key=lambda row: (row.target, order.index(row.method)))
    comparison = TextComparison(tuple(functions), tuple(rows))
    if kept is not None:
        kept.write_table(comparison)
    return comparison


def _measured(number: int, name: str, task: AttributionTask) -> TextRow:
    encoded, column = task.encoded[number], task.targets[number]
    about = None if task.explained is None else task.explained[number]
    label = task.classifier.labels[column] if about is None else about.name
    alone = replace(task, encoded=[encoded], targets=[column], explained=None if about is None else [about])
    began = time.perf_counter()
    try:
        with counted_passes(task.classifier.model) as passes:
            (found,) = score(name, alone)
        seconds = time.perf_counter() - began
        words = encoded.removable_words
        scores = torch.from_numpy(found.words[list(words)])

        def probability(kept: Tensor) -> Tensor:
            versions = [{word for word, stays in zip(words, row, strict=True) if stays} for row in kept.tolist()]
            with ModuleGuard(task.classifier.model), task.classifier.with_padding_token():
                return TextRemoval(task.classifier, encoded, task.batch_size).probabilities(versions)[:, column]

        morf, lerf = (prompt_degradation(probability, scores, order=order).drops for order in ("morf", "lerf"))
    except Exception as error:
        return TextRow(number, name, label, (), {}, f"{type(error).__name__}: {error}")
    measured = (float(morf[0]), float(morf.mean()), float((morf - lerf).mean()))
    values = dict(zip(TextComparison.measured, measured, strict=True))
    values |= {"passes": passes[0], "seconds": seconds}
    return TextRow(number, name, label, tuple(found.words.tolist()), finite_or_none(values))


def _about(explainer: TextExplainer, task: AttributionTask) -> dict[str, Any]:
    """What all rows of a folder depend on."""
    texts = [(text.text, text.pair, text.inputs, text.is_target) for text in task.encoded]
    scale = getattr(task.classifier.head, "scale", None)  # of a regression: the tolerance
    scales = [] if scale is None else scale.tolist()
    parts = [texts, list(task.targets), scales, statistics_fingerprint(explainer.statistics or ())]
    return {
        "seed": task.seed,
        "versions": library_versions(),
        "model": explainer.fingerprint(),
        "texts": hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
    }
