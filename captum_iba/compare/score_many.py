"""Many texts scored by a method beside the bottleneck, and kept as they are finished."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captum_iba.compare.explain_many import KeptResults
from captum_iba.methods.registry import attribute
from captum_iba.methods.task import Scores
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.json_result import JsonResult, json_number, json_safe

_CHUNK = 4


@dataclass(frozen=True)
class _KeptScores(JsonResult):
    """The numbers of :class:`captum_iba.methods.Scores`; the text is encoded anew."""

    tokens: list[float]
    words: list[float]
    signed: bool
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = json_safe(vars(self))
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> _KeptScores:
        numbers = {name: list(map(json_number, content[name])) for name in ("tokens", "words")}
        return cls(**{**content, **numbers})


def score_texts(
    name: str,
    explainer: TextExplainer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    targets: Sequence[int],
    *,
    layer: int | str | Sequence[int | str] | None = None,
    seed: int = 0,
    keep: str | os.PathLike[str] | None = None,
    on_texts: Callable[[int], object] = lambda _: None,
) -> list[Scores]:
    """Score texts by a method, as :func:`captum_iba.methods.attribute` does, a few at a time.

    Args:
        name (str): The method.
        explainer (TextExplainer): Model, and statistics for the methods that use them.
        texts, pairs, targets, layer, seed: As for ``attribute``.
        keep (path, optional): Folder for finished texts: the same call goes on where it stopped. Default: None.
        on_texts (Callable, optional): Called with the number of texts that are finished. Default: nothing is called.

    Returns:
        list of Scores: One per text, in their order.

    Raises:
        TypeError, ValueError: As ``attribute``.
        OSError: The folder cannot be written; what was kept before stays.
    """
    kept = None
    if keep is not None:
        parts = [*explainer.classifier.labels, str(explainer.classifier.max_length)]
        settings = {"method": name, "layer": layer, "seed": seed}
        kept = KeptResults(Path(keep), _KeptScores, explainer, None, settings, parts, explainer.statistics or ())
    found: list[Scores] = []
    for start in range(0, len(texts), _CHUNK):
        part = slice(start, start + _CHUNK)
        of_pairs = None if pairs is None else list(pairs[part])
        call = (list(texts[part]), of_pairs, list(targets[part]))
        results = None if kept is None else kept.read(call)
        if results is None:
            scores = attribute(name, explainer, *call, layer=layer, seed=seed)
            if kept is not None:
                lists = [(item.tokens.tolist(), item.words.tolist(), item.signed, item.seconds) for item in scores]
                kept.write([_KeptScores(*columns) for columns in lists], call)
        else:
            encoded = explainer.classifier.encode(call[0], of_pairs or [None] * len(call[0]))
            scores = [
                Scores(name, target, text, np.array(item.tokens), np.array(item.words), item.signed, item.seconds)
                for item, text, target in zip(results, encoded, call[2], strict=True)
            ]
        found += scores
        on_texts(len(found))
    return found
