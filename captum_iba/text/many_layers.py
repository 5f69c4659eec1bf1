"""Texts at several layers, and statistics of an explainer from the cache."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captum_iba._reading.mask_state import lost_prediction
from captum_iba._warnings import LostPredictionWarning
from captum_iba.attr.settings import SMALLER_BETAS
from captum_iba.text import statistics as layer_statistics
from captum_iba.text.arguments import ExplainOptions, check_texts, resolve_text_settings
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.result import TextAttribution

if TYPE_CHECKING:
    from typing_extensions import Unpack


def cached_statistics(
    explainer: TextExplainer,
    texts: Sequence[str],
    folder: str | os.PathLike[str] | None = None,
    show_progress: bool = False,
    pairs: Sequence[str] | None = None,
    source: str | None = None,
) -> tuple[Path, bool]:
    """Have an explainer use the statistics of its layers over texts, from the cache if they are there.

    The key has the model (weights, adapters, precision), tokenizer, layers, ``max_length`` and texts, but not where the
    model was loaded from.

    Args:
        explainer (TextExplainer): The explainer.
        texts (sequence of str): The texts.
        folder (path or None): The cache. Default: :func:`cache_folder`.
        show_progress (bool): Whether to show a progress bar while they are estimated. Default: False.
        pairs (sequence of str or None): The second text of each. Default: None.
        source (str, optional): What results call the texts. Default: their number.

    Returns:
        tuple of Path and bool: The file (a folder of files for several layers), and whether it was there already.

    Examples::

        >>> path, was_cached = cached_statistics(explainer, training_texts)
    """
    if isinstance(texts, str):
        raise TypeError("texts is one string, expected several texts")
    check_texts(texts, pairs)
    statistics, path, was_cached = layer_statistics.cached(
        explainer.classifier, explainer.layers, texts, pairs, folder, show_progress
    )
    explainer.use_statistics(statistics, source=source or layer_statistics.source_of(texts))
    return path, was_cached


def explain_layers(
    explainers: Iterable[TextExplainer],
    texts: Sequence[str],
    **options: Unpack[ExplainOptions],
) -> list[list[tuple[TextAttribution, TextAttribution]]]:
    """Explain texts at several layers, each before and after the optimization of the mask.

    All have one ``beta``, so that layers can be compared: where the default's mask loses the prediction of a text at
    one of them, it is 3 or 1 in place of 10 for all, unless ``beta`` is given.

    Args:
        explainers (iterable of TextExplainer): One per layer, in order.
        texts (sequence of str): The texts.
        **options: Options of :meth:`TextExplainer.explain`, except ``n_steps``.

    Returns:
        list: For every text, or entity of ``entity="all"``, a list of layers, each a pair of results: bits of the
        initial mask, and of the optimized one, as :func:`captum_iba.visualization.plot_before_after` draws them.

    Examples::

        >>> rows = explain_layers([explainer], ["A wonderful film.", "A dull one."])
        >>> len(rows), len(rows[0])
        (2, 1)
    """
    if isinstance(texts, str):
        raise TypeError("texts is a string, expected a sequence of texts")
    texts, explainers = list(texts), list(explainers)
    options = {"rerank": 0, **options}  # what is drawn are bits
    initial: ExplainOptions = {**options, "n_steps": 0}
    before = [explainer.explain(texts, **initial) for explainer in explainers]
    name, _, settings = resolve_text_settings(options.get("preset", "default"), {})
    given = options.get("beta")
    betas = [settings.beta, *SMALLER_BETAS] if name == "default" and given is None else [given]
    for beta in betas:
        of_beta: ExplainOptions = {**options, "beta": beta}
        with warnings.catch_warnings():
            if beta != betas[-1]:
                warnings.simplefilter("ignore", LostPredictionWarning)
            after = [explainer.explain(texts, **of_beta) for explainer in explainers]
        if not any(lost_prediction(result) for of_layer in after for result in of_layer):
            break
    count = len(before[0]) if before else 0  # of entity="all" one per entity
    return [[(first[i], second[i]) for first, second in zip(before, after, strict=True)] for i in range(count)]
