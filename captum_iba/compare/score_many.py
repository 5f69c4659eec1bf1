"""Many texts scored by a method beside the bottleneck, and kept as they are finished."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from captum_iba._explain.json_result import JsonResult, json_number, json_safe
from captum_iba.compare.explain_many import KeptResults, columns_per_text
from captum_iba.methods.registry import attribute
from captum_iba.methods.task import Scores
from captum_iba.text.arguments import NoEntityError
from captum_iba.text.encoding import EncodedText
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.head_targets import ASKED, encode_targets, holding_scale
from captum_iba.text.target import TextTarget

_CHUNK, _BATCH = 4, 32


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
    targets: Sequence[Any] | None,
    *,
    layer: int | str | Sequence[int | str] | None = None,
    seed: int = 0,
    keep: str | os.PathLike[str] | None = None,
    on_texts: Callable[[int], object] = lambda _: None,
    **asked: Any,
) -> list[Scores]:
    """Score texts by a method, as :func:`captum_iba.methods.attribute` does, a few at a time.

    Args:
        name (str): The method.
        explainer (TextExplainer): Model, and statistics for the methods that use them.
        texts, pairs, targets, layer, seed: As for ``attribute``, ``targets`` one per text, or None.
        keep (path, optional): Folder for finished texts: the same call goes on where it stopped. Default: None.
        on_texts (Callable, optional): Called with the number of texts that are finished. Default: nothing is called.
        **asked: The arguments of ``attribute`` that name the target of a head other than a sequence classifier's:
            ``word``, ``token``, ``entity``, ``choices``, ``tolerance``, ``mask_target``.

    Returns:
        list of Scores: One per text, in their order; of ``entity="all"`` one per entity.

    Raises:
        TypeError, ValueError: As ``attribute``.
        OSError: The folder cannot be written; what was kept before stays.
    """
    classifier = explainer.classifier
    has_classes = classifier.head.has_classes
    columns = {"target": list(targets or [None] * len(texts))}
    if not has_classes:
        columns = columns_per_text(targets, asked, len(texts))
    kept = None
    if keep is not None:
        parts = [*classifier.labels, str(classifier.max_length)]
        settings = {"method": name, "layer": layer, "seed": seed, **asked}
        kept = KeptResults(
            Path(keep), _KeptScores, explainer, None, settings, parts, explainer.statistics or (), has_classes
        )
    found: list[Scores] = []
    for start in range(0, len(texts), _CHUNK):
        part = slice(start, start + _CHUNK)
        of_pairs = None if pairs is None else list(pairs[part])
        of_part = {column: values[part] for column, values in columns.items()}
        call = (list(texts[part]), of_pairs, of_part["target"] if has_classes else of_part)
        results = None if kept is None else kept.read(call)
        given = {**of_part, **asked}
        if results is None:
            scores = _attribute(name, explainer, call[0], of_pairs, layer, seed, given)
            if kept is not None:
                lists = [(item.tokens.tolist(), item.words.tolist(), item.signed, item.seconds) for item in scores]
                kept.write([_KeptScores(*values) for values in lists], call)
        else:
            encoded = _encoded(explainer, call[0], of_pairs, given) if results else []
            scores = [
                Scores(name, column, text, np.array(one.tokens), np.array(one.words), one.signed, one.seconds, about)
                for one, (text, column, about) in zip(results, encoded, strict=True)
            ]
        found += scores
        on_texts(min(start + _CHUNK, len(texts)))
    return found


def _attribute(
    name: str,
    explainer: TextExplainer,
    texts: list[str],
    pairs: list[str] | None,
    layer: int | str | Sequence[int | str] | None,
    seed: int,
    given: Mapping[str, Any],
) -> list[Scores]:
    """The scores of some texts, none where the model predicts no entity in any; explaining them has given warnings."""
    of_all_entities = all(entity == "all" for entity in given.get("entity", [None]))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"texts\[")
            return attribute(name, explainer, texts, pairs, layer=layer, seed=seed, **given)
    except NoEntityError:
        if of_all_entities:
            return []
        raise


def _encoded(
    explainer: TextExplainer, texts: list[str], pairs: list[str] | None, given: Mapping[str, Any]
) -> list[tuple[EncodedText, int, TextTarget | None]]:
    """Texts as :func:`captum_iba.methods.attribute` encodes them, with column and target."""
    classifier = explainer.classifier
    second: list[str | None] = [None] * len(texts) if pairs is None else [*pairs]
    if classifier.head.has_classes:
        encoded = classifier.encode(texts, second)
        return [(text, target, None) for text, target in zip(encoded, given["target"], strict=True)]
    asked = {name: given.get(name) for name in ASKED} | {"mask_target": given.get("mask_target", False)}
    with holding_scale(classifier.head), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"texts\[")
        items = encode_targets(classifier, texts, second, given.get("target"), _BATCH, asked)
    return [(item.encoded, item.column, item.about) for item in items]
