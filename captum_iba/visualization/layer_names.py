"""Attributions of one text at several layers: whether they belong together, and what each is called."""

from __future__ import annotations

from collections.abc import Sequence

from captum_iba._reading.protocols import ExplainedText


def check_same_text(attributions: Sequence[ExplainedText], name: str) -> None:
    """Raise ValueError, which names the argument, unless attributions are of one text (or pair) and one class of it."""
    if len({(item.text, item.pair) for item in attributions}) != 1:
        raise ValueError(f"{name} has attributions of several texts, expected those of one text")
    if len(targets := {item.target for item in attributions}) != 1:
        raise ValueError(f"{name} has attributions of the classes {sorted(targets)}, expected those of one class")


def layer_names(attributions: Sequence[ExplainedText]) -> list[str]:
    """Number or name of the layer of each, with ``beta`` where that differs: bits of different ones do not compare."""
    names = [item.layer if item.layer_index is None else str(item.layer_index) for item in attributions]
    betas = notes_of_beta(attributions)
    return [f"{name} ({beta})" if beta else name for name, beta in zip(names, betas, strict=True)]


def notes_of_beta(attributions: Sequence[ExplainedText]) -> list[str]:
    """``"beta 3"`` for each where they are not all equal, else empty."""
    betas = [item.settings.get("beta") for item in attributions]
    return ["" if beta is None or len({*betas}) == 1 else f"beta {beta:g}" for beta in betas]
