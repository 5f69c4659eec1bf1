"""``captum-iba explain --methods``: scores of other methods beside the bottleneck."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from captum_iba.cli.common import KeptWork

if TYPE_CHECKING:
    from captum_iba.methods import Scores
    from captum_iba.text import TextExplainer


def listed(methods: str) -> list[str]:
    """The names in a list with commas.

    Examples::

        >>> listed("iba, lime,")
        ['iba', 'lime']
    """
    return [name.strip() for name in methods.split(",") if name.strip()]


def check_known(names: Sequence[str], known: Iterable[str]) -> None:
    """Refuse methods that do not exist."""
    for name in names:
        if name not in known:
            expected = ", ".join(known)
            raise typer.BadParameter(f"--methods: there is no method {name!r}, expected some of {expected}.")


def sample(count: int, examples: int | None, seed: int) -> list[int]:
    """Numbers of a sample of ``examples`` out of ``count``, in order; of all without, or with too few."""
    if examples is None or examples >= count:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), examples))


def check_methods(names: Sequence[str], layers: list[int | str] | None) -> None:
    """Refuse methods that do not exist, or cannot use the layers, before anything is loaded."""
    from captum_iba.methods import find_method

    for name in names:
        try:
            find_method(name)
        except ValueError as error:
            raise typer.BadParameter(f"--methods: {str(error).removeprefix('method: ')}") from error
        if name == "iba_as_released" and layers is not None and len(layers) > 1:
            raise typer.BadParameter(f"--methods: {name} has one layer, --layer names {len(layers)}.")


def scores_by_methods(
    names: Sequence[str],
    layers: Sequence[int | str] | None,
    explainer: TextExplainer,
    columns: Mapping[str, Any],
    seed: int,
    keep: Path | None,
    work: KeptWork,
) -> list[list[Scores]]:
    """For every result its scores by other methods, of the same target; at the layer asked for, if they use one.

    ``columns`` are the texts, the pairs, and what is asked of each text.
    """
    from captum_iba.compare.score_many import score_texts

    further = dict(columns)
    texts, pairs, targets = further.pop("texts"), further.pop("pairs"), further.pop("target", None)
    by_method = []
    for name in names:
        own, said = _layer_of_method(name, layers)
        work.begin(name, said)
        by_method.append(
            score_texts(
                name,
                explainer,
                texts,
                pairs,
                targets,
                layer=own,
                seed=seed,
                keep=keep,
                on_texts=work.progressed,
                **further,
            )
        )
    return [list(scores) for scores in zip(*by_method, strict=True)]


def _layer_of_method(
    name: str, layers: Sequence[int | str] | None
) -> tuple[int | str | Sequence[int | str] | None, str]:
    """The layer of ``--layer`` for a method that looks at one, and what a note says of it; only iba takes several."""
    from captum_iba.methods import find_method

    if layers is None or not find_method(name).uses_layer:
        return None, ""
    if len(layers) > 1 and not name.startswith("iba"):
        return None, ", at its default layer: it takes one, and --layer names several"
    return layers[0] if len(layers) == 1 else layers, f", at layer {', '.join(map(str, layers))}"
