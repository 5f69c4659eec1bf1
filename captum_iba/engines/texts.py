"""Many texts explained by the workers of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from captum_iba._compat import progress
from captum_iba.engines.base import Engine, in_order
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.inputs import batches_by_length, check_texts
from captum_iba.text.result import TextAttribution
from captum_iba.text.targets import spread_targets


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
    **settings: Any,
) -> list[TextAttribution]:
    """What :meth:`captum_iba.text.TextExplainer.explain` gives for several texts, by the workers of an engine.

    A job is one of the batches that ``explain`` makes, so that the numbers are the same to the last bit.

    Args:
        engine (Engine): Where the work is done.
        explainer (TextExplainer): With its statistics; it is sent to workers elsewhere.
        texts, pairs, target: As for ``explain``.
        device (str or None): Where the models of workers elsewhere run; None is the CPU. Default: None.
        batch_size (int): Texts at a time. Default: 8.
        show_progress (bool): A progress bar over the batches. Default: False.
        **settings: All else that ``explain`` takes.

    Returns:
        list of TextAttribution: in the order of ``texts``.

    Raises:
        TypeError, ValueError: As ``explain``.
        EngineError: There are no workers, or they die over and over.

    Examples::

        >>> results = explain_texts(Ray(workers=2), explainer, reviews, preset="paper")
    """
    each, others = check_texts(texts, pairs)
    targets = spread_targets(target, len(each), explainer.classifier.labels)
    encoded = explainer.classifier.encode(each, others)
    batches = batches_by_length([len(item) for item in encoded], batch_size)
    calls = [
        (
            [each[i] for i in batch],
            None if pairs is None else [others[i] for i in batch],
            [targets[i] for i in batch],
            settings,
        )
        for batch in batches
    ]
    results: dict[int, TextAttribution] = {}
    with engine.open(_Explaining(explainer), device) as pool:
        found = in_order(pool, "explain", calls)
        for batch, batch_results in zip(
            progress(batches, desc="Texts") if show_progress else batches, found, strict=True
        ):
            results.update(zip(batch, batch_results, strict=True))
    return [results[i] for i in range(len(each))]
