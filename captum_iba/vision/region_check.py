"""The order of the leading regions of an image by removal, and the check of an attribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from captum_iba.metrics.prompt_removal import CachedRemoval
from captum_iba.text.deletion import kept_in_check, kept_without_leading, without_first
from captum_iba.vision.image_result import ImageAttribution, ImageCheck
from captum_iba.vision.regions import RegionRemoval, order_by_removal
from captum_iba.visualization.mask_sentences import is_much_lower

_N_ALONE = 64  # regions, of which a check removes each alone


def settled_by_removal(
    removal: RegionRemoval, result: ImageAttribution, count: int, further: Sequence[int] = ()
) -> ImageAttribution:
    """The result with the order of the regions with the most bits, and of ``further`` ones, settled by removal."""
    above = int((result.region_shares > 0).sum())
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

    Regions that the check finds to matter alone, and that were not measured, are measured then.
    """
    settled = settled_by_removal(removal, result, count)
    found = replace(settled, check=check_of_regions(removal, settled, seed))
    assert found.check is not None
    probability, each = found.check.probability, found.check.without_each
    missed = [i for i, without in enumerate(each) if i not in found.measured and is_much_lower(probability, without)]
    if not missed or not count:
        return found
    again = settled_by_removal(removal, result, count, missed)
    return replace(again, check=check_of_regions(removal, again, seed))


def check_of_regions(removal: RegionRemoval, result: ImageAttribution, seed: int) -> ImageCheck:
    """Probabilities without the leading regions, the least, and others at random; of up to 64 without each alone."""
    by_bits = np.lexsort((-result.region_shares,))
    order, n_regions = (-result.scores).argsort(), result.n_regions
    cached = CachedRemoval(removal)
    n_leading, first = without_first(cached, order, len(result.leading))
    kept = kept_in_check(order, n_leading, seed % 2**63, by_bits)
    n_removed, n_random = int((~kept[1]).sum()), len(kept) - 3
    all_leading = kept_without_leading(kept, order, n_leading)
    alone = ~np.eye(n_regions, dtype=bool)[: n_regions if 1 < n_regions <= _N_ALONE else 0]
    rows = torch.from_numpy(np.concatenate([kept, alone, all_leading]))
    whole, without_leading, without_least, *others = cached(rows).tolist()
    without_all = others.pop() if len(all_leading) else None
    random, lowest = float(np.mean(others[:n_random])), min(others[:n_random])
    of_others = (without_least, random, n_random, tuple(others[n_random:]), lowest)
    return ImageCheck(n_removed, whole, without_leading, *of_others, without_all, tuple(first), n_leading)
