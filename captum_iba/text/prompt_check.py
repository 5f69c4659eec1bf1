"""The order of the leading parts of a prompt by their removal, and the check of an attribution."""

from __future__ import annotations

from collections.abc import Sequence
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
    GroupSearch,
    first_needed,
    kept_with_one,
    leading_in_order,
    most_without_one,
)
from captum_iba._reading.removal_check import PromptCheck
from captum_iba._reading.thresholds import NEARLY_ALL
from captum_iba.metrics.part_removal import RemovalSequence, removal_effects
from captum_iba.text.generation_result import GenerationAttribution
from captum_iba.text.prompt_part_removal import CachedPromptRemoval, ChoiceRemoval

_N_ALONE = 40  # parts of a prompt up to which a check removes each alone
# Passes of a language model are expensive.
_N_PAIRED = 10  # parts of a prompt of which all pairs are tried
_LARGEST, _LARGEST_OF_MANY = 6, 4  # parts of the groups that are built, of such a prompt and of longer ones
_N_CANDIDATES = 8  # parts that are tried in place of a leading one
_HALF = 0.5  # of the probability of a choice: the model prefers the response
_ADDS = 0.1  # nats that a leading part adds to the others at least
_MOST_MISSED, _N_MEASURED = 8, 24  # parts that a check measures: that matter alone; where most is left without others


def rerank_by_removal(
    removal: CachedPromptRemoval, result: GenerationAttribution, count: int, further: Sequence[int] = ()
) -> GenerationAttribution:
    """The result with its probability, and the effects of the parts with the most bits, and of ``further`` ones.

    Where all of these speak against the response, twice as many are measured. Of a few parts all are.
    """
    few = len(result.parts) <= count
    above = len(result.parts) if few else int((result.shares > 0).sum())
    order = _by_bits(result)
    while True:
        leaders = order[: min(count, above)].tolist()
        leaders += [i for i in further if i not in leaders]
        measured = leaders if len(leaders) > 1 else []
        whole, effects, alone = removal_effects(removal, measured, len(result.parts))
        if len(leaders) >= above or bool((effects > 0).any()) or not len(effects):
            break
        count *= 2
    of_part = dict(zip(measured, zip(effects.tolist(), alone.tolist(), strict=True), strict=True))
    each = [of_part.get(number, (None, part.effect_alone)) for number, part in enumerate(result.parts)]
    parts = tuple(
        replace(part, effect=effect, effect_alone=of_part_alone)
        for part, (effect, of_part_alone) in zip(result.parts, each, strict=True)
    )
    return replace(result, probability=float(removal.probabilities(whole)), parts=parts)


def with_check_by_removal(
    removal: CachedPromptRemoval, result: GenerationAttribution, count: int, seed: int = 0
) -> GenerationAttribution:
    """The result with its order settled by removal, and its check (:func:`captum_iba._explain.check.with_check`).

    Args:
        removal (CachedPromptRemoval): The model, the prompt and the response.
        result (GenerationAttribution): Bits of the parts.
        count (int): Number of parts with the most bits that are put in order by removal, 0 for none. At most 24 are,
            of a prompt with up to 40 parts, where these leave most of the probability. Each part of such a prompt is
            removed alone.
        seed (int): Seed of the parts at random. Default: 0.
    """
    is_short = len(result.parts) <= _N_ALONE

    def attempted(new: Attempt) -> GenerationAttribution:
        found = _with_each_alone(removal, rerank_by_removal(removal, result, new.n_measured, new.further))
        return replace(found, check=check_by_removal(removal, found, seed, new.search, new.leading))

    def missed(found: GenerationAttribution) -> list[int]:
        """Numbers of up to eight parts that lower the probability alone and were not measured."""
        whole, most = float(removal(_whole(found))), most_without_one(found.probability)
        decreases = torch.tensor([part.effect_alone or 0.0 for part in found.parts], dtype=torch.float64)
        left = removal.probabilities(whole - decreases).tolist()
        unmeasured = [i for i, part in enumerate(found.parts) if part.effect is None and left[i] <= most]
        return sorted(unmeasured, key=left.__getitem__)[:_MOST_MISSED] if is_short else []

    found = with_check(attempted, count, _N_MEASURED if is_short else count, missed, _progress)
    if found.check is None or found.contrast is None or found.probability < _HALF:
        return found

    def chances(kept: Tensor) -> Tensor:
        of_response = removal.probabilities(removal(kept).double())
        return torch.stack([of_response, 1 - of_response], 1)

    responses = (found.response.strip(), found.contrast.strip())
    change = change_of_prediction(chances, removal.tried, 0, responses.__getitem__, len(found.parts))
    return replace(found, check=replace(found.check, change=change))


def _progress(result: GenerationAttribution) -> Progress | None:
    if result.check is None:
        return None
    return Progress(
        result.probability,
        result.check.without_leading if result.check.leading else result.probability,
        result.check.leading,
        n_measured=sum(part.effect is not None for part in result.parts),
        n_parts=len(result.parts),
    )


def _by_bits(result: GenerationAttribution) -> npt.NDArray[np.intp]:
    """Numbers of the parts, that with the most bits first."""
    return np.lexsort((-result.bits, -result.shares))


def _whole(result: GenerationAttribution) -> Tensor:
    """All parts are kept, (1, P)."""
    return torch.ones(1, len(result.parts), dtype=torch.bool)


def _with_each_alone(removal: CachedPromptRemoval, result: GenerationAttribution) -> GenerationAttribution:
    """The result with the effect alone of the parts that were not measured, if there are at most 40."""
    rest = [number for number, part in enumerate(result.parts) if part.effect is None]
    if not rest or len(result.parts) > _N_ALONE:
        return result
    kept = torch.ones(1 + len(rest), len(result.parts), dtype=torch.bool)
    kept[range(1, 1 + len(rest)), rest] = False
    whole, *without = removal(kept).double().tolist()
    alone = dict(zip(rest, (whole - value for value in without), strict=True))
    parts = [replace(part, effect_alone=alone.get(i, part.effect_alone)) for i, part in enumerate(result.parts)]
    return replace(result, parts=tuple(parts))


def check_by_removal(
    removal: CachedPromptRemoval,
    result: GenerationAttribution,
    seed: int = 0,
    search: bool = False,
    known: Sequence[int] = (),
) -> PromptCheck | None:
    """Probabilities without the leading parts, the least, and others at random; None where none is for the response.

    Up to eight leading parts are put in the order of their removal, without those that add nothing to the others. With
    ``search`` they give way to as many others if the probability is lower without these. ``known`` are the leading
    parts in their order, if they are known.
    """
    if not result.leading and any(part.known_effect is not None for part in result.parts):
        return None  # all parts with bits speak against the response
    order = (-result.scores).argsort()
    n_measured = sum(part.effect is not None for part in result.parts)
    n_leading = min(n_measured or len(result.leading), max(1, len(order) - 1))  # never are all parts removed
    helping = [i for i in order.tolist() if (result.parts[i].effect or 0.0) > 0]
    tried = order.tolist() if len(order) <= _N_ALONE else ()
    groups = None
    if search:
        is_tiny = len(order) <= _N_PAIRED
        largest, pairs = (_LARGEST, tried) if is_tiny else (_LARGEST_OF_MANY, ())
        groups = GroupSearch(helping, tried, _N_CANDIDATES, largest=largest, pairs=pairs)
    leading, first = leading_in_order(
        removal, order, n_leading, _ADDS, groups, probabilities=removal.probabilities, known=known
    )
    chances = removal.probabilities(torch.tensor(first, dtype=torch.float64))
    n_half = len(order) // 2
    if not known and 1 <= n_half < len(leading) and len(chances) == len(leading):
        # Half of all parts can be compared with as many others.
        whole = float(removal.probabilities(removal(_whole(result)).double()))
        if whole - float(chances[n_half - 1]) >= NEARLY_ALL * (whole - float(chances[-1])):
            found = RemovalSequence(tuple(leading), torch.tensor(first, dtype=torch.float64))
            found = first_needed(removal, found, n_half, len(order), _ADDS)
            leading, chances = list(found.parts), removal.probabilities(found.without)

    def probabilities(kept: Kept) -> list[float]:
        return list(removal.probabilities(removal(torch.from_numpy(kept)).double()).tolist())

    order = np.array([*leading, *(i for i in order if i not in leading)])
    kept = kept_in_check(order, len(leading), seed % 2**63, _by_bits(result))
    fields, stays = compare_with_others(probabilities, kept, leading)
    whole_without = None
    if isinstance(removal.removal, ChoiceRemoval):
        whole_without = float(removal.removal.whole_response_probability(torch.from_numpy(stays[None])))
    return PromptCheck(
        **fields,
        without_first=tuple(chances[: len(leading)].tolist()),
        without_others=tuple(probabilities(kept_with_one(leading, len(order)).numpy())) if len(leading) > 1 else (),
        whole_without_leading=whole_without,
    )
