"""The order of the leading regions of an image by removal, and the check of an attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._explain.check import (
    Attempt,
    Kept,
    Progress,
    change_of_prediction,
    compare_with_others,
    kept_in_check,
    with_check,
)
from captum_iba._explain.leading_parts import (
    MOST_OF_DECREASE,
    GroupSearch,
    kept_with_one,
    leading_in_order,
    most_without_one,
)
from captum_iba._reading.removal_check import ImageCheck
from captum_iba._reading.thresholds import N_RANDOM
from captum_iba.metrics.banzhaf import banzhaf_values
from captum_iba.metrics.part_removal import CachedRemoval
from captum_iba.vision.image_result import ImageAttribution
from captum_iba.vision.regions import RegionRemoval, order_by_removal

_N_BEGUN = 8  # regions from which groups are built: often none lowers the probability alone
_N_ALONE = 64  # regions, of which a check removes each alone
_N_ROWS = 64  # images without half of their regions each, from which the values are estimated
_ADDS = 0.02  # of a probability, that a leading region adds to the others at least
_MOST_MISSED, _N_MEASURED = 8, 16  # regions that a check measures: that matter alone; where most is left without others
_SAME_COLOR = 2  # of 255: a region as near to the mean color is not changed by its removal


def rerank_by_removal(
    removal: Callable[[Tensor], Tensor], result: ImageAttribution, count: int, seed: int, further: Sequence[int] = ()
) -> ImageAttribution:
    """The result with the values of all regions, and the order of the ``count`` largest and of ``further`` ones.

    The prior of the values are the shares of the bits, as shares of the probability.
    """
    if not count or result.n_regions < 2:
        return result
    cached = removal if isinstance(removal, CachedRemoval) else CachedRemoval(removal)
    prior = (result.target_probability * result.shares).tolist()
    values = banzhaf_values(cached, result.n_regions, prior, n_rows=_N_ROWS, seed=seed).tolist()
    leaders = sorted(range(result.n_regions), key=lambda i: -values[i])[:count]
    leaders += [i for i in further if i not in leaders]
    found = order_by_removal(cached, leaders, values)
    return replace(
        result,
        measured=found.order,
        effects=found.effects,
        effects_alone=found.alone,
        n_in_turn=found.n_in_turn,
        values=tuple(values),
    )


def with_check_by_removal(removal: RegionRemoval, result: ImageAttribution, count: int, seed: int) -> ImageAttribution:
    """The result with its order settled by removal, and its check (:func:`captum_iba._explain.check.with_check`).

    Args:
        removal (RegionRemoval): The model and the image.
        result (ImageAttribution): Bits of the regions.
        count (int): Number of regions with the largest values that are removed alone, 0 for none. At most 16 are where
            these leave most of the probability.
        seed (int): Seed of the regions at random.
    """

    of_classes = CachedRemoval(removal.probabilities)
    cached = _of_target(of_classes, removal.target)

    def attempted(new: Attempt) -> ImageAttribution:
        found = rerank_by_removal(cached, result, new.n_measured, seed, new.further)
        found = replace(found, check=check_by_removal(removal, of_classes, found, seed, new.search, new.leading))
        if found.measured and (unmeasured := [i for i in found.leading if i not in found.measured]):
            return attempted(new._replace(further=[*new.further, *unmeasured]))
        return found

    found = with_check(attempted, count, _N_MEASURED, _missed, _progress)
    if found.check is None or removal.classifier.multi_label or removal.target != found.predicted:
        return found
    label, tried = removal.classifier.label, of_classes.tried
    change = change_of_prediction(of_classes, tried, removal.target, label, result.n_regions)
    return replace(found, check=replace(found.check, change=change))


def _missed(result: ImageAttribution) -> list[int]:
    """Numbers of up to eight regions that lower the probability alone and were not measured."""
    check = result.check
    assert check is not None
    each, most = check.without_each, most_without_one(check.probability)
    missed = [i for i in range(len(each)) if i not in result.measured and each[i] <= most]
    return sorted(missed, key=each.__getitem__)[:_MOST_MISSED]


def _progress(result: ImageAttribution) -> Progress | None:
    check = result.check
    if check is None:
        return None
    return Progress(
        check.probability,
        check.without_leading if check.leading else check.probability,
        check.leading,
        n_measured=len(result.measured),
        n_parts=result.n_regions,
        is_improbable=result.is_improbable,
    )


def check_by_removal(
    removal: RegionRemoval,
    of_classes: CachedRemoval,
    result: ImageAttribution,
    seed: int,
    search: bool = False,
    known: Sequence[int] = (),
) -> ImageCheck:
    """Probabilities without the leading regions, the least, and others at random; of up to 64 without each alone.

    ``of_classes`` gives the probabilities of all classes, and runs each set of regions once. With ``search`` up to
    eight leading regions give way to as many others if the probability is lower without these. ``known`` are the
    leading regions in their order, if they are known.
    """
    order, n_regions = (-result.scores).argsort(), result.n_regions
    cached = _of_target(of_classes, removal.target)
    helping = [i for i, effect in zip(result.measured, result.effects, strict=True) if effect > 0]
    is_small = n_regions <= _N_ALONE
    tried = order.tolist() if is_small else ()
    groups = GroupSearch(helping, tried, n_begun=_N_BEGUN, enough=MOST_OF_DECREASE) if search and helping else None
    leading, first = _leading(cached, order, len(result.measured or result.leading), groups, known)

    def probabilities(kept: Kept) -> list[float]:
        return list(cached(torch.from_numpy(kept)).tolist())

    kept = kept_in_check(
        np.array([*leading, *(i for i in order.tolist() if i not in leading)]),
        len(leading),
        seed % 2**63,
        np.lexsort((-result.shares,)),
        n_single=_N_ALONE if is_small else N_RANDOM,  # each is removed alone, too, so that none is left to chance
    )
    fields, stays = compare_with_others(probabilities, kept, leading)
    none = np.zeros(n_regions, dtype=bool)
    chances = of_classes(torch.from_numpy(np.stack([stays, none])))
    decision = int(chances[0].argmax())
    classes_compete = not removal.classifier.multi_label
    return ImageCheck(
        **fields,
        without_each=tuple(probabilities(~np.eye(n_regions, dtype=bool))) if 1 < n_regions <= _N_ALONE else (),
        without_first=tuple(first),
        without_others=_without_others(cached, leading, n_regions),
        changes_pixels=_changes_pixels(result, np.flatnonzero(~stays)),
        decision=removal.classifier.label(decision) if classes_compete else "",
        decision_probability=float(chances[0, decision]) if classes_compete else None,
        without_all=float(chances[1, removal.target]),
    )


def _of_target(of_classes: CachedRemoval, target: int) -> Callable[[Tensor], Tensor]:
    return lambda kept: of_classes(kept)[:, target]


def leading_by_removal(
    probability: Callable[[Tensor], Tensor],
    order: npt.NDArray[np.intp],
    n_leading: int,
    measured: Sequence[int] = (),
) -> tuple[list[int], list[float]]:
    """
    As few of the first regions of an order as are enough, in the order of their removal.

    First the beginning is taken without which the probability falls by 90% of what it falls by at most. Then regions
    are left out, one at a time, as long as the probability without the others is higher by at most 0.02. The regions
    give way to as many other measured ones if the probability without these is lower by at least 0.02. Of those that
    are left the first one lowers the probability most when it is removed alone, and each next one lowers it most after
    those before it.

    Args:
        probability (Callable): Function of the kept regions, (rows, R) booleans, that returns (rows,).
        order (array): Numbers of all regions, (R,), the most important one first.
        n_leading (int): How many of them may lead; of more than 16 all do.
        measured (sequence of int, optional): Numbers of regions that may take the place of one of these. Default: none.

    Returns:
        tuple: Numbers of the leading regions, and the probability without the first k of them, for k up to 16.

    Examples::

        >>> def probability(kept): return 0.1 + 0.9 * (kept[:, 0] | kept[:, 2]).double()
        >>> leading_by_removal(probability, np.array([0, 1, 2, 3]), 3)[0]
        [0, 2]
    """
    return _leading(probability, order, n_leading, GroupSearch(measured) if measured else None)


def _leading(
    probability: Callable[[Tensor], Tensor],
    order: npt.NDArray[np.intp],
    n_leading: int,
    groups: GroupSearch | None,
    known: Sequence[int] = (),
) -> tuple[list[int], list[float]]:
    n_leading = min(n_leading, max(1, len(order) - 1))  # never are all regions removed
    return leading_in_order(probability, order, n_leading, _ADDS, groups, known=known)


def _without_others(
    probability: Callable[[Tensor], Tensor], leading: Sequence[int], n_regions: int
) -> tuple[float, ...]:
    """The probability with each leading region and without the other ones, for 2 to 64 of them; else none."""
    if not 1 < len(leading) <= _N_ALONE:
        return ()
    return tuple(probability(kept_with_one(leading, n_regions)).tolist())


def _changes_pixels(result: ImageAttribution, removed: npt.NDArray[np.intp]) -> bool:
    """Whether a pixel of these regions differs from the mean color of the image, which their removal gives it."""
    mean = result.image.mean((0, 1))
    pixels = result.image[np.isin(result.regions, removed)]
    return bool((np.abs(pixels - mean) > _SAME_COLOR).any())
