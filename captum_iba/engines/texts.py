"""Many texts explained by the workers of an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from captum_iba._compat import progress
from captum_iba.engines.base import Engine, in_order
from captum_iba.engines.kept import KeptBatches
from captum_iba.text.arguments import batches_by_length, check_texts, targets_per_text
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.result import TextAttribution

_Call = tuple[list[str], list[str] | None, list[int | None], dict[str, Any]]
"""Texts, their pairs, targets, and settings."""


class _Explaining:
    """What a worker does."""

    def __init__(self, explainer: TextExplainer) -> None:
        self.explainer = explainer

    def move(self, device: str) -> None:
        self.explainer.classifier.model.to(device)

    def explain(
        self,
        texts: list[str],
        pairs: list[str] | None,
        targets: list[int | None],
        settings: dict[str, Any],
    ) -> list[TextAttribution]:
        return self.explainer.explain(texts, pairs, targets, batch_size=len(texts), **settings)


def explain_texts(
    engine: Engine,
    explainer: TextExplainer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    target: Any = None,
    *,
    device: str | None = None,
    batch_size: int = 8,
    show_progress: bool = False,
    keep: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> list[TextAttribution]:
    """What :meth:`captum_iba.text.TextExplainer.explain` gives for several texts, by the workers of an engine.

    A job is one of the batches that ``explain`` makes. So the numbers are the same on the same kind of processor with
    as many threads, and else within the tolerance of ``docs/scale.md``.

    Args:
        engine (Engine): Where the work is done.
        explainer (TextExplainer): With its statistics; it is sent to workers elsewhere.
        texts, pairs, target: As for ``explain``.
        device (str or None): Where the models of workers elsewhere run; None is the CPU. Default: None.
        batch_size (int): Texts at a time. Default: 8.
        show_progress (bool): A progress bar over the batches. Default: False.
        keep (path or None): A folder for finished batches: the same call with the same folder goes on where it
            stopped, by any engine. Default: None.
        **settings: All else that ``explain`` takes.

    Returns:
        list of TextAttribution: in the order of ``texts``.

    Raises:
        TypeError, ValueError: As ``explain``.
        EngineError: There are no workers, or they die over and over.
        OSError: The folder cannot be written; what was kept before stays.

    Examples::

        >>> results = explain_texts(Ray(workers=2), explainer, reviews, preset="paper")
    """
    each, others = check_texts(texts, pairs)
    targets = targets_per_text(target, len(each), explainer.classifier.labels)
    encoded = explainer.classifier.encode(each, others)
    batches = batches_by_length([len(item) for item in encoded], batch_size)
    calls: list[_Call] = [
        (
            [each[i] for i in batch],
            None if pairs is None else [other for i in batch if (other := others[i]) is not None],
            [targets[i] for i in batch],
            settings,
        )
        for batch in batches
    ]
    kept = None if keep is None else KeptBatches(keep, explainer, device, settings)
    results: dict[int, TextAttribution] = {}
    found = _explained(engine, explainer, device, calls, kept)
    bar = progress(total=len(batches), desc="Texts") if show_progress else None
    try:
        for number, batch_results in found:
            results.update(zip(batches[number], batch_results, strict=True))
            if bar is not None:
                bar.update(1)
    finally:
        if bar is not None:
            bar.close()
    return [results[i] for i in range(len(each))]


def _explained(
    engine: Engine, explainer: TextExplainer, device: str | None, calls: list[_Call], kept: KeptBatches | None
) -> Iterator[tuple[int, list[TextAttribution]]]:
    """The number and the results of every batch, those that were kept first."""
    missing = []
    for number, call in enumerate(calls):
        found = None if kept is None else kept.read(kept.path(*call[:3]), len(call[0]))
        if found is None:
            missing.append(number)
        else:
            yield number, found
    if not missing:
        return
    with engine.open(_Explaining(explainer), device) as pool:
        computed = in_order(pool, "explain", [calls[number] for number in missing])
        for number, results in zip(missing, computed, strict=True):
            if kept is not None:
                kept.write(kept.path(*calls[number][:3]), results)
            yield number, results
