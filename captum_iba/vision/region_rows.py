"""The regions of an image as terminals and pages list them: the leading ones, and others that matter alone."""

# ruff: noqa: D102 - the properties of the protocol are documented where they are implemented

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from captum_iba._reading.legend import AVERAGES, BAR_ALONE, BAR_IN_ORDER, BAR_OF_SEVERAL, OF_IMAGES, Legend
from captum_iba._reading.protocols import ExplainedImage
from captum_iba._reading.region_effects import N_OPPOSING, largest_decrease, listed_others, lowering, opposing
from captum_iba._reading.rows import CHANGES_PREDICTION, MATTERS_ALONE, SPEAKS_AGAINST, ListedPart, bar_of
from captum_iba._reading.thresholds import LARGE_DROP
from captum_iba.vision.regions import sum_per_region


class RemovedRegions(ExplainedImage, Protocol):
    """What rows are made of: a :class:`captum_iba.vision.ImageAttribution`."""

    @property
    def bits(self) -> npt.NDArray[np.float64]: ...
    @property
    def ranked(self) -> tuple[int, ...]: ...
    @property
    def importance(self) -> npt.NDArray[np.float64]: ...
    @property
    def measured(self) -> tuple[int, ...]: ...
    @property
    def effects(self) -> tuple[float, ...]: ...
    @property
    def n_in_turn(self) -> int: ...
    @property
    def rows(self) -> list[ListedPart]: ...
    @property
    def other_rows(self) -> list[ListedPart]: ...
    @property
    def answer(self) -> str: ...
    def remark(self) -> str: ...
    def probability_without(self, region: int) -> float | None: ...
    def decrease_of(self, region: int) -> float | None: ...


def leading_rows(image: RemovedRegions) -> list[ListedPart]:
    """The leading regions, in the order of their removal.

    With a check, bars are relative to the largest decrease in the probability without a region, at least 0.1. None of
    an improbable class: what lowers next to nothing is no answer.
    """
    if image.is_improbable or not image.leading:
        return []
    bars, longest = _bars(image)
    so_far = dict(zip(image.leading, _without_first(image), strict=False))
    return [
        _row(image, number)._replace(
            importance=length / longest if longest > 0 else 0.0,
            share_alone=share,
            without_so_far=so_far.get(number, math.nan),
        )
        for number, (length, share) in zip(image.leading, bars, strict=True)
    ]


def other_rows(image: RemovedRegions) -> list[ListedPart]:
    """The regions that do not lead and matter alone, and those whose removal raises the probability by much.

    These are at most five of the first (:func:`listed_others`), and three of the second. None without a check.
    """
    check = image.check
    if check is None or not check.without_each:
        return []
    longest = largest_decrease(check)
    lowers, rows = lowering(image, check), []
    for i in [] if image.is_improbable else listed_others(image, check):
        label = CHANGES_PREDICTION if check.changes_alone(i) else MATTERS_ALONE * (i in lowers)
        rows.append(_row(image, i)._replace(importance=float(check.decreases[i]) / longest, relation=label))
    against = [i for i in opposing(check) if i not in image.leading]
    return [*rows, *(_row(image, i)._replace(relation=SPEAKS_AGAINST) for i in against[:N_OPPOSING])]


def bar_meaning(image: RemovedRegions) -> str:
    """What the bars of :func:`leading_rows` are."""
    if image.check is None or not image.check.leading:
        return BAR_IN_ORDER
    return BAR_OF_SEVERAL if len(image.leading) > 1 else BAR_ALONE


def _bars(image: RemovedRegions) -> tuple[list[tuple[float, float]], float]:
    """The bar of each leading region (:func:`captum_iba._reading.rows.bar_of`), and the longest of any region."""
    leading, check = image.leading, image.check
    if check is None or not check.leading:
        decreases = [image.decrease_of(i) for i in leading]
        if all(decrease is None for decrease in decreases):
            lengths = image.importance[leading].clip(0).tolist()
            return [(length, 1.0) for length in lengths], max(lengths, default=0.0)
        lengths = [max(decrease or 0.0, 0.0) for decrease in decreases]
        return [(length, 1.0) for length in lengths], max(LARGE_DROP, *lengths)
    without = [image.probability_without(i) for i in leading] if len(leading) > 1 else check.without_first
    alone = [0.0 if of_one is None else check.probability - of_one for of_one in without]
    added = check.added.tolist() or [math.nan] * len(alone)
    bars = [bar_of(of_one, after) for of_one, after in zip(alone, added, strict=True)]
    longest = largest_decrease(check) if check.without_each else max(LARGE_DROP, *(length for length, _ in bars))
    return bars, longest


def _row(image: RemovedRegions, number: int) -> ListedPart:
    without, decrease = image.probability_without(number), image.decrease_of(number)
    return ListedPart(
        image.name_of(number),
        image.place_of(number),
        float(sum_per_region(image.bits, image.regions)[number]),
        float(image.shares[number]),
        without=math.nan if without is None else without,
        effect=math.nan if decrease is None else decrease,
        number=number,
    )


def region_records(image: RemovedRegions) -> list[dict[str, Any]]:
    """What a file has of each region, by number: its name and place, bits, rank and label, and the removals.

    ``without`` is the probability without this region alone, and ``effect`` the decrease that it is ranked by; None
    where they are not known.
    """
    rank = {number: at for at, number in enumerate(image.ranked, 1)}
    labels = {row.number: row.relation for row in image.other_rows}
    bits = sum_per_region(image.bits, image.regions)
    return [
        {
            "name": image.name_of(number),
            "place": image.place_of(number),
            "bits": float(bits[number]),
            "share": float(image.shares[number]),
            "rank": rank[number],
            "effect": image.decrease_of(number),
            "without": image.probability_without(number),
            "label": labels.get(number, ""),
        }
        for number in range(image.n_regions)
    ]


def _without_first(image: RemovedRegions) -> list[float]:
    """The probability without the first k leading regions; without a check those that were removed in turn."""
    if image.check is not None:
        return list(image.check.without_first)
    in_turn = image.leading == list(image.measured[: len(image.leading)])
    decreases = np.cumsum(image.effects[: image.n_in_turn * in_turn])
    return [float(left) for left in image.target_probability - decreases]


def further_terms(image: RemovedRegions) -> Legend:
    """What rows and columns are of, and average activations."""
    terms, (height, width) = {}, image.regions.shape
    if any("rows" in row.place for row in (*image.rows, *image.other_rows)):
        terms["rows, columns"] = f"of the model's input, {width} x {height} pixels"
    if AVERAGES in f"{image.answer} {image.remark()}".lower():
        terms[AVERAGES] = OF_IMAGES
    return terms


def ninth_of(mask: npt.NDArray[np.bool_]) -> str:
    """Where the center of a region is, in ninths of the image: "top left"; "around the center" of a ring."""
    rows, columns = np.nonzero(mask)
    height, width = mask.shape
    vertical = ("top", "middle", "bottom")[min(2, int(3 * rows.mean() / height))]
    horizontal = ("left", "center", "right")[min(2, int(3 * columns.mean() / width))]
    name = "center" if (vertical, horizontal) == ("middle", "center") else f"{vertical} {horizontal}"
    return name if mask[round(rows.mean()), round(columns.mean())] else f"around the {name}"


def rectangle_of(mask: npt.NDArray[np.bool_]) -> str:
    """Where a region is, in pixels from 0: "rows 8 to 15, columns 0 to 7", or "41 pixels within rows ..."."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    n_pixels = int(mask.sum())
    is_whole = n_pixels == (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    within = "" if is_whole else f"{n_pixels} pixels within "  # of the smallest rectangle around it
    return f"{within}{_range('row', rows)}, {_range('column', columns)}"


def _range(noun: str, numbers: npt.NDArray[np.intp]) -> str:
    """ "rows 8 to 15", or "row 3" of a single one."""
    first, last = int(numbers[0]), int(numbers[-1])
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
