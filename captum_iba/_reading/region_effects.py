"""The regions of an image that matter beside the leading ones, by the removal of each alone."""

from __future__ import annotations

from captum_iba._reading.protocols import ExplainedImage
from captum_iba._reading.removal_check import ImageCheck
from captum_iba._reading.thresholds import LARGE_DROP, MOST, rises_much

N_LOWERING, N_OPPOSING = 5, 3
"""Regions that do not lead and are listed at most: those that matter alone, and those that may speak against."""
_ROUNDING = 1e-4  # of a probability


def is_of_mean_color(probability: float, without_all: float | None) -> bool:
    """Whether the mean color of an image, which removed regions get, is itself evidence for the class.

    That is where an image of this color alone has at least 85% of the class's probability.
    """
    return without_all is not None and without_all >= max(MOST * probability, LARGE_DROP)


def opposing(check: ImageCheck) -> list[int]:
    """Numbers of the regions whose removal alone raises the probability by much, the most first.

    None where the mean color, which a removed region gets, is itself evidence for the class.
    """
    if is_of_mean_color(check.probability, check.without_all):
        return []
    each = check.without_each
    return sorted((i for i, p in enumerate(each) if rises_much(check.probability, p)), key=lambda i: -each[i])


def lowering(image: ExplainedImage, check: ImageCheck) -> list[int]:
    """Numbers of the regions that do not lead, and whose removal alone lowers the probability by more than 0.1."""
    return [i for i in other_regions(image, check) if check.probability - check.without_each[i] > LARGE_DROP]


def listed_others(image: ExplainedImage, check: ImageCheck) -> list[int]:
    """Numbers of the regions that are listed below the leading ones, because they matter alone, at most five.

    Without them the probability falls by more than 0.1, or further than without all leading ones.
    """
    lowers = lowering(image, check)
    others = other_regions(image, check)
    least = check.without_leading - _ROUNDING
    return [i for i in others if i in lowers or check.without_each[i] < least][:N_LOWERING]


def other_regions(image: ExplainedImage, check: ImageCheck) -> list[int]:
    """Numbers of the regions that do not lead and were removed alone, by the probability without them."""
    others = [i for i in range(len(check.without_each)) if i not in image.leading]
    return sorted(others, key=lambda i: check.without_each[i])


def largest_decrease(check: ImageCheck) -> float:
    """The decrease in the probability that 1 is in :func:`removal_map`: the largest, at least 0.1."""
    return max(float(check.decreases.max()), LARGE_DROP)
