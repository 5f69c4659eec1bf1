"""The same texts at one layer after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from captum_iba.text.explainer import TextExplainer
from captum_iba.text.result import TextAttribution


def explain_layers(
    explainers: Iterable[TextExplainer],
    texts: Sequence[str],
    on_layer: Callable[[], None] | None = None,
    **settings: Any,
) -> list[list[tuple[TextAttribution, TextAttribution]]]:
    """Explain texts at several layers, each before and after the bottleneck closes.

    Args:
        explainers (iterable of TextExplainer): One a layer, in the order wanted.
        texts (sequence of str): The texts.
        on_layer (callable or None): Called when a layer is done. Default: None.
        **settings: As for :meth:`TextExplainer.explain`, ``n_steps`` aside.

    Returns:
        list: for every text a list of layers, each a pair: bits of the open mask, and bits of the final one, as
        :func:`captum_iba.visualization.layer_page` draws them.
    """
    rows: list[list[tuple[TextAttribution, TextAttribution]]] = [[] for _ in texts]
    for explainer in explainers:
        before = explainer.explain(texts, **{**settings, "n_steps": 0})
        after = explainer.explain(texts, **settings)
        for row, pair in zip(rows, zip(before, after, strict=True), strict=True):
            row.append(pair)
        if on_layer is not None:
            on_layer()
    return rows
