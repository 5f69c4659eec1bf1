"""Which classes a model predicts beside the one that is explained."""

from __future__ import annotations

from collections.abc import Sequence

from captum_iba._reading.protocols import Decision
from captum_iba._reading.wording import format_probability

PREDICTED = 0.5
"""Least probability of a predicted label, where each label has a probability of its own."""
_NAMED = 3


def labels_beside(labels: Sequence[str], probabilities: Sequence[float], target: int) -> tuple[tuple[str, float], ...]:
    """The labels that a multi-label model predicts beside the target, with their probabilities, the highest first.

    Examples::

        >>> labels_beside(["sport", "war", "film"], [0.9, 0.2, 0.6], target=1)
        (('sport', 0.9), ('film', 0.6))
    """
    others = [pair for number, pair in enumerate(zip(labels, probabilities, strict=True)) if number != target]
    return tuple(sorted((pair for pair in others if pair[1] >= PREDICTED), key=lambda pair: -pair[1]))


def is_predicted(result: Decision) -> bool:
    """Whether the class is the most probable one, or of a multi-label model a label of at least 0.5."""
    return result.target_probability >= PREDICTED if result.multi_label else result.target == result.predicted


def predicted_beside(result: Decision) -> str:
    """The predicted classes beside the explained one: "predicted: cat 90.0%", "also predicted: cat 90.0%"; or empty.

    Of a multi-label model that predicts none it is that, and the most probable label if another one is explained.
    """
    if result.other_labels:
        named = [f"{label} {format_probability(chance)}" for label, chance in result.other_labels[:_NAMED]]
        more = len(result.other_labels) - len(named)
        also = "also " if is_predicted(result) else ""
        return f"{also}predicted: {', '.join(named)}" + (f" and {more} more" if more else "")
    if result.multi_label and result.target_probability < PREDICTED:
        most = f"{result.predicted_label} {format_probability(result.predicted_probability)}"
        return "no label is predicted" + f"; the most probable one: {most}" * (result.target != result.predicted)
    if is_predicted(result):
        return ""
    return f"predicted: {result.predicted_label} {format_probability(result.predicted_probability)}"
