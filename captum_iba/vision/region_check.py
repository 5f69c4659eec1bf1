"""The order of the leading regions of an image by removal, and the check of an attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._explain.leading_parts import (
    kept_in_check,
    kept_without_leading,
    leading_in_order,
    with_more_measured,
)
from captum_iba._reading.thresholds import LARGE_DROP, N_RANDOM
from captum_iba.metrics.part_removal import CachedRemoval
from captum_iba.vision.image_check import ImageCheck
from captum_iba.vision.image_result import ImageAttribution
from captum_iba.vision.regions import RegionRemoval, order_by_removal

_N_ALONE = 64  # regions, of which a check removes each alone
_ADDS = 0.02  # of a probability, that a leading region adds to the others at least
_N_MEASURED = 16  # regions that are measured where the first ones leave most of the probability
_SAME_COLOR = 2  # of 255: a region as near to the mean color is not changed by its removal


def settled_by_removal(
    removal: RegionRemoval, result: ImageAttribution, count: int, further: Sequence[int] = ()
) -> ImageAttribution:
    """The result with the order of the regions with the most bits, and of ``further`` ones, settled by removal."""
    above = int((result.shares > 0).sum())
    leaders = (-result.scores).argsort()[: min(count, above)].tolist()
    leaders += [i for i in further if i not in leaders]
    if len(leaders) < 2:
        return result
    settled = order_by_removal(removal, leaders, result.n_regions)
    return replace(
        result,
        measured=settled.order,
        effects=settled.effects,
        effects_alone=settled.alone,
        n_in_turn=settled.n_in_turn,
    )


def checked(removal: RegionRemoval, result: ImageAttribution, count: int, seed: int) -> ImageAttribution:
    """The result with its order settled by removal, and its check.

    Regions that the check finds to matter alone, and that were not measured, are measured then. Where the leading
    regions leave most of the probability, or all measured ones lead, up to 16 are measured. They count if the leading
    ones among them leave less.
    """

    def measured(n_regions: int, further: Sequence[int] = ()) -> ImageAttribution:
        settled = settled_by_removal(removal, result, n_regions, further)
        return replace(settled, check=check_of_regions(removal, settled, seed))

    found = measured(count)
    if not count:
        return found
    assert found.check is not None
    probability, each = found.check.probability, found.check.without_each
    missed = [i for i, without in enumerate(each) if i not in found.measured and probability - without > LARGE_DROP]
    found = measured(count, missed) if missed else found
    if count >= _N_MEASURED or found.is_improbable:
        return found
    assert found.check is not None
    all_lead = len(found.check.leading) == len(found.measured) < found.n_regions
    return with_more_measured(found, lambda: measured(_N_MEASURED, missed), _left, probability, all_lead)


def _left(result: ImageAttribution) -> float:
    """The probability without the leading regions."""
    check = result.check
    assert check is not None
    return check.without_leading


def check_of_regions(removal: RegionRemoval, result: ImageAttribution, seed: int) -> ImageCheck:
    """Probabilities without the leading regions, the least, and others at random; of up to 64 without each alone."""
    by_bits = np.lexsort((-result.shares,))
    order, n_regions = (-result.scores).argsort(), result.n_regions
    cached = CachedRemoval(removal)
    helping = [i for i, effect in zip(result.measured, result.effects, strict=True) if effect > 0]
    leading, first = leading_by_removal(cached, order, len(result.measured or result.leading), helping)
    n_leading = len(leading)
    order = np.array([*leading, *(i for i in order.tolist() if i not in leading)])
    # Each of up to 64 regions is removed alone, too, so that none is left to chance.
    n_single = _N_ALONE if n_regions <= _N_ALONE else N_RANDOM
    kept = kept_in_check(order, n_leading, seed % 2**63, by_bits, n_single=n_single)
    n_removed, n_random = int((~kept[1]).sum()), len(kept) - 3
    all_leading = kept_without_leading(kept, order, n_leading)
    alone = ~np.eye(n_regions, dtype=bool)[: n_regions if 1 < n_regions <= _N_ALONE else 0]
    rows = torch.from_numpy(np.concatenate([kept, alone, all_leading]))
    whole, without_leading, without_least, *others = cached(rows).tolist()
    without_all = others.pop() if len(all_leading) else None
    at_random, each = others[:n_random], others[n_random:]
    bare = torch.ones(2, n_regions, dtype=torch.bool)
    bare[0, leading] = bare[1] = False
    chances = removal.probabilities(bare)
    decision = int(chances[0].argmax())
    classes_compete = not removal.classifier.multi_label
    return ImageCheck(
        n_regions=n_removed,
        probability=whole,
        without_leading=without_leading if without_all is None else without_all,
        without_least=without_least,
        without_random=float(np.mean(at_random)),
        n_random=n_random,
        without_each=tuple(each),
        lowest_random=min(at_random),
        leading=tuple(leading),
        without_first=tuple(first),
        without_others=_without_others(cached, leading, n_regions),
        changes_pixels=_changes_pixels(result, leading),
        decision=removal.classifier.label(decision) if classes_compete else "",
        decision_probability=float(chances[0, decision]) if classes_compete else None,
        without_all=float(chances[1, removal.target]),
    )


def leading_by_removal(
    probability: Callable[[Tensor], Tensor],
    order: npt.NDArray[np.intp],
    n_leading: int,
    measured: Sequence[int] = (),
) -> tuple[list[int], list[float]]:
    """
    As few of the first regions of an order as are enough, in the order of their removal.

    First the beginning is taken without which the probability falls by 90% of what it falls by at most. Then regions
    are left out, one at a time, as long as the probability without the others is higher by at most 0.02. A region is
    exchanged for another measured one, up to three times, if the probability without the regions is then lower by at
    least 0.02. Of those that are left the first one lowers the probability most when it is removed alone, and each next
    one lowers it most after those before it. A beginning of more than eight regions stays as it is.

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
    return leading_in_order(probability, order, n_leading, _ADDS, measured)


def _without_others(
    probability: Callable[[Tensor], Tensor], leading: Sequence[int], n_regions: int
) -> tuple[float, ...]:
    """The probability with each leading region and without the other ones, for 2 to 64 of them; else none."""
    if not 1 < len(leading) <= _N_ALONE:
        return ()
    kept = torch.ones(len(leading), n_regions, dtype=torch.bool)
    kept[:, list(leading)] = torch.eye(len(leading), dtype=torch.bool)
    return tuple(probability(kept).tolist())


def _changes_pixels(result: ImageAttribution, leading: Sequence[int]) -> bool:
    """Whether a pixel of these regions differs from the mean color of the image, which their removal gives it."""
    mean = result.image.mean((0, 1))
    removed = result.image[np.isin(result.regions, leading)]
    return bool((np.abs(removed - mean) > _SAME_COLOR).any())
