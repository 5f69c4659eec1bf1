"""The check of an attribution by removal: of texts, prompts and images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from captum_iba._explain.leading_parts import fewest_to_change
from captum_iba._reading.removal_check import PredictionChange
from captum_iba._reading.thresholds import N_RANDOM
from captum_iba.metrics.part_removal import kept_without

_QUARTER, _LESS, _NOTHING = 0.25, 0.1, 0.01  # of the probability
_N_FIRST = 8  # parts with the most bits that are measured first, also where more are asked for

Explained = TypeVar("Explained")
Kept = npt.NDArray[np.bool_]


class Attempt(NamedTuple):
    """How the leading parts are looked for.

    Args:
        n_measured (int): Number of parts with the most bits whose effect is measured; 0 for none.
        further (sequence of int): Numbers of further parts that are measured. Default: none.
        search (bool): Whether to search for a better group of as many parts. Default: False.
        leading (sequence of int): Numbers of the leading parts, in their order. Default: they are looked for.
    """

    n_measured: int
    further: Sequence[int] = ()
    search: bool = False
    leading: Sequence[int] = ()


class Progress(NamedTuple):
    """How far the search for leading parts has come, by an explanation with its check.

    Args:
        probability (float): With all parts.
        left (float): Without the leading parts.
        leading (sequence of int): Numbers of the leading parts, in their order.
        n_measured (int): Number of parts whose effect was measured.
        n_parts (int): Number of all parts that can be removed.
        is_improbable (bool): Whether the probability is so small that no further part is looked for.
    """

    probability: float
    left: float
    leading: Sequence[int]
    n_measured: int
    n_parts: int
    is_improbable: bool = False


def with_check(
    attempted: Callable[[Attempt], Explained],
    count: int,
    most: int,
    missed: Callable[[Explained], Sequence[int]],
    progress: Callable[[Explained], Progress | None],
    larger: Callable[[Explained, float], Sequence[int]] | None = None,
) -> Explained:
    """
    An explanation with its check, for which more is tried where the leading parts leave most of the probability.

    1. The parts with the most bits are measured, up to eight, and the explanation is checked.
    2. Parts that lower the probability alone, and that were not measured, are measured, too. The new leading parts
       replace the first ones if they are better.
    3. The explanation is searched for a better group of as many parts, unless the leading parts leave less than 1% of
       the probability.
    4. If the leading parts leave more than a quarter of the probability, or a tenth and all measured parts lead,
       more parts are measured. The new leading parts replace the others if they are better.
    5. If they still leave more than a quarter, a larger group is built. It leads if it is better.
    6. If ``count`` is above eight, so many parts are measured. The new leading parts replace the others if they are
       better.

    Leading parts are better than others if they are no more and the probability without them is no higher; or if they
    are more, the probability is lower by a tenth of the whole, and they are at most half of all parts; or the others
    lower it by less than a tenth.

    Args:
        attempted (Callable): Returns the explanation with its check, of an :class:`Attempt`.
        count (int): Number of parts with the most bits that are measured; 0 for none, and no search.
        most (int): The same number in step 4.
        missed (Callable): Numbers of the parts that matter alone and were not measured, from an explanation.
        progress (Callable): How far an explanation has come; None where it has no check.
        larger (Callable, optional): Numbers of more parts, from an explanation and the probability that they are to
            leave (:func:`captum_iba._explain.leading_parts.larger_group`). Default: None, no step 5.

    Returns:
        The explanation.

    Examples::

        >>> left = {(4, ()): 0.8, (4, (9,)): 0.7, (24, (9,)): 0.2}
        >>> def attempted(new): return left[new.n_measured, tuple(new.further)] - 0.1 * new.search
        >>> def progress(left): return Progress(0.9, left, [1, 2], n_measured=4, n_parts=30)
        >>> with_check(attempted, 4, 24, lambda left: [9], progress)
        0.1
    """
    attempt = Attempt(min(count, _N_FIRST))
    found = attempted(attempt)
    first = progress(found)
    if not count or first is None:
        return found
    now = first

    def try_instead(new: Attempt) -> None:
        nonlocal attempt, found, now
        explained = attempted(new)
        reached = progress(explained)
        if reached is not None and _is_better(reached, now):
            attempt, found, now = new, explained, reached

    missing = missed(found)
    if missing:
        try_instead(attempt._replace(further=missing))
    if now.left > _NOTHING * now.probability and not now.is_improbable:
        attempt = attempt._replace(search=True)
        found = attempted(attempt)  # the search itself compares what it finds
        now = progress(found) or now
    all_lead = len(now.leading) == now.n_measured < now.n_parts
    too_much = (_LESS if all_lead else _QUARTER) * now.probability
    if attempt.n_measured < most and not now.is_improbable and now.left > too_much:
        try_instead(attempt._replace(n_measured=most, further=missing, search=True))
    enough = _QUARTER * now.probability
    if larger is not None and not now.is_improbable and now.left > enough and (group := larger(found, enough)):
        try_instead(attempt._replace(leading=group))
    if count > attempt.n_measured:
        before = attempt._replace(n_measured=count, leading=now.leading)
        try_instead(attempt._replace(n_measured=count, further=missing, search=not now.is_improbable, leading=()))
        if attempt.n_measured < count:
            found = attempted(before)
    return found


def _is_better(new: Progress, old: Progress) -> bool:
    """Whether new leading parts are better than the old ones, as :func:`with_check` says.

    Where none leads, or the old ones lower the probability by less than a tenth, the new ones may be more than half of
    all parts.
    """
    n_new, n_old = len(new.leading), len(old.leading)
    if n_new <= n_old:
        return new.left <= old.left
    lowers = old.left <= (1 - _LESS) * old.probability
    is_most = 2 * n_new > new.n_parts and 0 < 2 * n_old <= old.n_parts and lowers
    return not is_most and new.left <= old.left - _LESS * old.probability


def compare_with_others(
    probabilities: Callable[[Kept], Sequence[float]], compared: Kept, leading: Sequence[int]
) -> tuple[dict[str, Any], Kept]:
    """Probabilities without the leading parts, without the least, and without as many others at random.

    Without sets of others the probabilities without them are NaN.

    Args:
        probabilities (Callable): Probabilities, one per row, of the kept parts, (rows, P) booleans.
        compared (array): The parts that the check keeps, (3 + R, P), (3, P) or (2, P) booleans, from
            :func:`kept_in_check`.
        leading (sequence of int): Numbers of all leading parts.

    Returns:
        tuple: Fields of a :class:`RemovalCheck` by name, and the parts that stay without all leading ones, (P,).

    Examples::

        >>> def probabilities(kept): return (0.1 + 0.8 * kept[:, 0]).tolist()
        >>> compared = kept_in_check(np.arange(4), 1, seed=0, by_bits=np.arange(4))
        >>> fields, kept = compare_with_others(probabilities, compared, leading=[0])
        >>> fields["n_removed"], round(fields["without_leading"], 2), round(fields["lowest_random"], 2), fields["least"]
        (1, 0.1, 0.9, (3,))
    """
    whole, without_leading, *without_others = probabilities(compared)
    fields = {
        "n_removed": int((~compared[1]).sum()),
        "probability": whole,
        "without_leading": without_leading,
        "without_least": math.nan,
        "without_random": math.nan,
        "n_random": 0,
        "leading": tuple(leading),
    }
    if len(without_others) == 1:
        (fields["without_rest"],) = without_others
    elif without_others:
        least, *at_random = without_others
        fields |= {
            "without_least": least,
            "without_random": float(np.mean(at_random)),
            "n_random": len(at_random),
            "lowest_random": min(at_random),
            "least": tuple(np.flatnonzero(~compared[2]).tolist()),
            "lowest_set": tuple(np.flatnonzero(~compared[3 + int(np.argmin(at_random))]).tolist()),
        }
    return fields, compared[1]


def change_of_prediction(
    probabilities: Callable[[Tensor], Tensor],
    tried: Iterable[frozenset[int]],
    predicted: int,
    labels: Callable[[int], str],
    n_parts: int,
) -> PredictionChange | None:
    """The fewest parts without which a model predicts another class; None where no set that was removed changes it.

    Args:
        probabilities (Callable): Function of the kept parts, (rows, P) booleans, that returns the probabilities of the
            classes, (rows, C).
        tried (iterable of frozenset of int): Sets of removed parts (:func:`fewest_to_change`).
        predicted (int): The predicted class.
        labels (Callable): Name of a class by its number.
        n_parts (int): Number of all parts, P.

    Examples::

        >>> def probabilities(kept): return torch.where(kept[:, :1], torch.tensor([0.75, 0.25]), torch.tensor([0, 1.0]))
        >>> found = change_of_prediction(probabilities, [frozenset({0, 1})], 0, "ab".__getitem__, n_parts=4)
        >>> found.parts, found.decision, found.probability, found.n_sets, found.alone
        ((0,), 'b', 1.0, 1, ((0, 'b'),))
    """

    def margin(kept: Tensor) -> Tensor:
        chances = probabilities(kept)
        return chances[:, predicted] - _others(chances).amax(1)

    def _others(chances: Tensor) -> Tensor:
        others = chances.clone()
        others[:, predicted] = -math.inf
        return others

    every = list(tried)
    found = fewest_to_change(margin, every, n_parts)
    if not found:
        return None
    sets = {*every, frozenset(found)}
    alone = sorted(part for one in sets if len(one) == 1 for part in one)
    chances = probabilities(kept_without([(), found, *([part] for part in alone)], n_parts))
    second, decision, *of_alone = [int(chances_of.argmax()) for chances_of in (_others(chances[:1]), *chances[1:])]
    as_many = [one for one in sets if len(one) == len(found)]
    return PredictionChange(
        tuple(found),
        labels(decision),
        float(chances[1].max()),
        int((margin(kept_without(as_many, n_parts)) < 0).sum()),
        tuple((part, labels(of)) for part, of in zip(alone, of_alone, strict=True) if of != predicted),
        labels(second),
        float(_others(chances[:1]).max()),
    )


def kept_in_check(
    order: npt.NDArray[np.intp],
    n_leading: int,
    seed: int,
    by_bits: npt.NDArray[np.intp],
    marks: Kept | None = None,
    n_single: int = N_RANDOM,
    n_parts: int | None = None,
) -> Kept:
    """The parts that a check keeps: all, all but the leading ones, all but the least, and all but others at random.

    As many parts are removed as lead; one in nine if none leads. The least and the random ones are taken from the parts
    that do not lead. If these are fewer, all of them are removed in a third row.

    Args:
        order (array): Numbers of the parts that can be removed, the most important one first.
        n_leading (int): How many of them lead.
        seed (int): Seed of the random draws.
        by_bits (array): The same numbers, that with the most bits first; the least parts are the last of these.
        marks (array, optional): True for punctuation, (P,), which is drawn only if too few words are left.
            Default: none.
        n_single (int): Up to so many other parts, each of them is removed alone if a single part leads. Default: 10.
        n_parts (int, optional): Number of all parts, P. Default: all can be removed.

    Returns:
        array: Booleans, (3 + R, P), or (3, P) of fewer others, or (2, P) where all lead. R is 10, or the number of sets
        of other parts if that is less; of a single leading part R is the number of other parts if that is at most
        ``n_single``.
    """
    n_words = len(order)
    n_deleted = n_leading or max(1, round(n_words / 9))
    generator = np.random.default_rng(seed)
    others = order[n_deleted:]
    n_parts = n_words if n_parts is None else n_parts
    marks = np.zeros(n_parts, dtype=bool) if marks is None else marks
    least = by_bits[np.isin(by_bits, others)]
    least = least[np.argsort(~marks[least], kind="stable")]  # punctuation before the words
    deleted = [order[:0], order[:n_deleted]]
    if len(others) < n_deleted:
        return kept_without([*deleted, *([others] if len(others) else [])], n_parts).numpy()
    words, rest = others[~marks[others]], others[marks[others]]
    always, drawn = (words[:0], words) if len(words) >= n_deleted else (words, rest)
    n_drawn = n_deleted - len(always)
    if math.comb(len(drawn), n_drawn) <= (n_single if n_deleted == 1 else N_RANDOM):
        sets: Iterable[Any] = combinations(drawn.tolist(), n_drawn)
    else:
        sets = (generator.permutation(drawn)[:n_drawn] for _ in range(N_RANDOM))
    deleted += [least[-n_deleted:], *(np.concatenate([always, np.array(one, dtype=order.dtype)]) for one in sets)]
    return kept_without(deleted, n_parts).numpy()
