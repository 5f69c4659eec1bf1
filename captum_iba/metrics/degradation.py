"""The degradation test: what becomes of the prediction as features are removed in the order of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from captum_iba.metrics.operators import BaselineValue, Delete, Operator
from captum_iba.metrics.ranking import (
    COUNTINGS,
    NINTHS,
    ORDERS,
    counts_as_released,
    counts_of_shares,
    feature_grid,
    feature_scores,
    per_feature,
    rank_as_released,
    rank_features,
)
from captum_iba.metrics.rows import Rows, Task


class Degradation(NamedTuple):
    """What became of each example, all (B, S + 1) on the CPU; column 0: nothing removed.

    Args:
        probability (Tensor): Of the target, softmax over the classes, float32 (float64 for a float64 model). Classes
            must compete; for one with a probability of its own (sigmoid) see :func:`degradation`.
        logit (Tensor): Of the target, likewise.
        decision (Tensor): The most probable class, int64.
        share (Tensor): Of the removable features (or groups), really removed, float32; 0 where there are none.
    """

    probability: Tensor
    logit: Tensor
    decision: Tensor
    share: Tensor


def degradation(
    forward_func: Callable[..., Tensor],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    target: int | Sequence[int] | Tensor | None = None,
    additional_forward_args: Any = None,
    *,
    feature_mask: Tensor | None = None,
    removable_mask: Tensor | None = None,
    operator: Operator | None = None,
    shares: Sequence[float] | None = None,
    counts: Sequence[int] | None = None,
    order: str = "morf",
    counting: str = "removable",
    max_examples_per_batch: int | None = None,
    show_progress: bool = False,
) -> Degradation:
    r"""
    Remove the features of each example in the order of their scores, and see how the prediction changes.

    If scores are right, removing the most relevant first (MoRF) destroys the prediction soon, and removing the
    least relevant first (LeRF) late. What is removed at a step stays removed at later ones. Ties go by position, the
    earlier first; features scored NaN go last in both orders, infinite ones where they belong. So LeRF is always MoRF
    of the negated scores. A result does not depend on what else is in the batch, nor on padding.

    Examples and steps run together, a step of a short text that removes no more than the one before only once,
    sorted by length where the operator deletes, so that little padding is computed. :func:`degradation_both` does both
    orders at once.

    Probabilities are by softmax. Where each class has one of its own (sigmoid, several labels), let ``forward_func``
    give the logits of yes or no, ``torch.stack([torch.zeros_like(z), z], -1)`` for the logit ``z`` of the class, and
    explain target 1.

    The test is that of Samek et al., "Evaluating the Visualization of What a Deep Neural Network Has Learned", 2017,
    and, with deleted tokens, that of Jiang et al., Findings of EMNLP 2020, https://arxiv.org/abs/2012.13838.

    Args:

        forward_func (Callable): The model, or any function of inputs and further arguments, that gives logits
                    (rows, C), C > 1. It runs in evaluation mode, without gradients, and is left as it was.
        inputs (Tensor or tuple of Tensor): Token ids (B, T), embeddings (B, T, D), images (B, C, H, W) or tables
                    (B, F); of a tuple, features are removed from the first.
        attributions (Tensor or tuple of Tensor): Scores: (B, T); (B, T, D), summed over D; for images (B, H, W) or
                    (B, C, H, W), summed over C; of a tuple, the first.
        target (int, list of int or Tensor, optional): Class, one for all or one an example.
                    Default: None, the most probable class of the whole example
        additional_forward_args (Any, optional): Further arguments of ``forward_func``, one or a tuple. Tensors in
                    them whose first dimension counts the examples go with the examples.
                    Default: None
        feature_mask (Tensor, optional): Integers (B, T) or (1, T), for images (B, H, W) or (1, H, W): features with
                    the same integer (sub-words of a word, superpixels) are removed as one, scored by their sum.
                    Default: every feature by itself
        removable_mask (Tensor, optional): False where nothing is ever removed: special tokens, the separator of a
                    pair, padding. Shaped as ``feature_mask``.
                    Default: everything may be removed
        operator (Callable, optional): What removing means: :class:`Delete`, :class:`ReplaceToken`, :class:`MaskOut`,
                    :class:`BaselineValue`, or a callable (see :mod:`captum_iba.metrics.operators`).
                    Default: None, ``BaselineValue(0)`` for floating-point inputs; ids need one
        shares (sequence of float, optional): Of the removable features of an example, in rising order, from 0 to 1.
                    Rounded to features, halves up, at least one for a share above 0; 1 removes all.
                    Default: 1/9, 2/9, ... 1
        counts (sequence of int, optional): In place of ``shares``, how many features; no more than there are.
        order (str, optional): ``"morf"``, highest score first, or ``"lerf"``, lowest first.
                    Default: "morf"
        counting (str, optional): ``"removable"``; or ``"as_released"``, as the code of Jiang et al.: shares are of the
                    whole length, special tokens included, halves to even; steps of a short text that remove
                    as many as the one before are left out, and the last is repeated at the end; the token
                    that ranks last, special or not, is never removed. With :class:`Delete`, without
                    ``feature_mask`` and ``counts``.
                    Default: "removable"
        max_examples_per_batch (int, optional): Rows (examples times steps) of a pass.
                    Default: None, as many as hold 1024 positions on a CPU, 32768 elsewhere; 32 images
        show_progress (bool, optional): A progress bar over the passes.
                    Default: False

    Returns:
        *Degradation*: **probability**, **logit**, **decision** and **share**, each (B, S + 1) for S shares or counts.
        An example without removable features keeps its first column throughout.

    Raises:
        TypeError: inputs or outputs that are not tensors.
        ValueError: a shape, share, count, order or counting that does not fit; says which.
        AssertionError: a target that the output does not have.

    Examples::

        >>> def forward(ids, mask): return model(ids, attention_mask=mask).logits
        >>> ordinary = mask.bool() & (ids != cls) & (ids != sep)
        >>> result = degradation(forward, ids, scores, target=1, additional_forward_args=mask,
        ...                      removable_mask=ordinary, operator=Delete(pad_id=0))
        >>> result.probability[:, 0] - result.probability[:, 1]  # the drop without the top ninth
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, expected one of {', '.join(ORDERS)}")
    return _degrade(
        (order,),
        Task(forward_func, _check_inputs(inputs), _arguments(additional_forward_args)),
        attributions,
        target,
        feature_mask=feature_mask,
        removable_mask=removable_mask,
        operator=operator,
        shares=shares,
        counts=counts,
        counting=counting,
        max_examples_per_batch=max_examples_per_batch,
        show_progress=show_progress,
    )[0]


def degradation_both(
    forward_func: Callable[..., Tensor],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    target: int | Sequence[int] | Tensor | None = None,
    additional_forward_args: Any = None,
    *,
    feature_mask: Tensor | None = None,
    removable_mask: Tensor | None = None,
    operator: Operator | None = None,
    shares: Sequence[float] | None = None,
    counts: Sequence[int] | None = None,
    counting: str = "removable",
    max_examples_per_batch: int | None = None,
    show_progress: bool = False,
) -> tuple[Degradation, Degradation]:
    """
    Most and least relevant first, at once: what both have in common, the whole and the empty example, runs once.

    Args:
        forward_func, inputs, attributions, target, additional_forward_args: As in :func:`degradation`, and all else.

    Returns:
        *tuple* of two *Degradation*: **most relevant first** and **least relevant first**.

    Raises:
        As :func:`degradation`.

    Examples::

        >>> morf, lerf = degradation_both(forward, ids, scores, 1, mask, removable_mask=ordinary, operator=Delete(0))
        >>> area_between(morf, lerf)
    """
    morf, lerf = _degrade(
        ORDERS,
        Task(forward_func, _check_inputs(inputs), _arguments(additional_forward_args)),
        attributions,
        target,
        feature_mask=feature_mask,
        removable_mask=removable_mask,
        operator=operator,
        shares=shares,
        counts=counts,
        counting=counting,
        max_examples_per_batch=max_examples_per_batch,
        show_progress=show_progress,
    )
    return morf, lerf


def _degrade(
    orders: Sequence[str],
    task: Task,
    attributions: Tensor | tuple[Tensor, ...],
    target: int | Sequence[int] | Tensor | None,
    *,
    feature_mask: Tensor | None,
    removable_mask: Tensor | None,
    operator: Operator | None,
    shares: Sequence[float] | None,
    counts: Sequence[int] | None,
    counting: str,
    max_examples_per_batch: int | None,
    show_progress: bool,
) -> list[Degradation]:
    """One result an order."""
    first = task.inputs[0]
    if counting not in COUNTINGS:
        raise ValueError(f"counting is {counting!r}, expected one of {', '.join(COUNTINGS)}")
    if max_examples_per_batch is not None and not max_examples_per_batch >= 1:
        raise ValueError(f"max_examples_per_batch is {max_examples_per_batch!r}, expected at least 1")
    if operator is None:
        if not first.is_floating_point():
            raise ValueError("operator is None, expected one for inputs of integers, for example Delete(pad_id)")
        operator = BaselineValue()
    if isinstance(operator, Delete) and first.ndim != 2:
        raise ValueError(f"operator is Delete, expected inputs of the shape (B, T), got {tuple(first.shape)}")
    if not callable(operator):
        raise TypeError(f"operator is {operator!r}, expected one of captum_iba.metrics.operators, or a function")
    scores = feature_scores(attributions[0] if isinstance(attributions, tuple) else attributions, first)
    removable = _removable(removable_mask, first)
    padding = operator.padding(task.inputs, task.arguments, removable) if isinstance(operator, Delete) else None
    if counting == "as_released":
        if padding is None or feature_mask is not None or counts is not None:
            raise ValueError("counting is 'as_released', expected operator=Delete(...), no feature_mask and no counts")
        ranked = [rank_as_released(scores, removable, ~padding, order) for order in orders]
        lengths, whole, given = (~padding).sum(1), removable.sum(1), _check_shares(shares)
        steps = torch.stack([counts_as_released(given, lengths, available) for _, available in ranked])
    else:
        own = torch.arange(scores.shape[1]).expand_as(scores)
        groups = own if feature_mask is None else per_feature(feature_mask, "feature_mask", first)
        ranked = [rank_features(scores, groups, removable, order) for order in orders]
        whole = ranked[0][1]
        steps = _steps(shares, counts, whole).expand(len(orders), -1, -1)

    # What removes nothing, or everything, does so in every order; the first stands for all of them.
    everything = (steps == whole[:, None]) & (ranked[0][1] == whole)[:, None]
    order_of = torch.arange(len(orders))[:, None, None].expand_as(steps).masked_fill((steps == 0) | everything, 0)
    example_of = torch.arange(len(scores))[:, None].expand_as(steps)
    (used, examples, removed), row_of = _unique(torch.stack([order_of, example_of, steps], -1))
    ranks = torch.stack([ranks for ranks, _ in ranked])
    rows = Rows(task, operator, padding, ranks, used, examples, removed)
    logits = rows.logits(max_examples_per_batch, show_progress)[row_of]
    chosen = _targets(target, logits[0, :, 0])[None, :, None, None].expand(*logits.shape[:-1], 1)
    return [
        Degradation(*parts)
        for parts in zip(
            logits.softmax(-1).gather(3, chosen)[..., 0],
            logits.gather(3, chosen)[..., 0],
            logits.argmax(-1),
            steps / whole.clamp(min=1)[:, None],
            strict=True,
        )
    ]


def _unique(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys (..., K) without repetition, as K rows of numbers; and for each key its place among them, (...)."""
    unique, places = torch.unique(keys.flatten(0, -2), dim=0, return_inverse=True)
    return unique.T, places.view(keys.shape[:-1])


def _check_inputs(inputs: Any) -> tuple[Tensor, ...]:
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    if not given or not all(isinstance(one, Tensor) for one in given):
        raise TypeError(f"inputs is a {type(inputs).__name__}, expected a tensor or a tuple of tensors")
    feature_grid(given[0])
    if len(given[0]) == 0:
        raise ValueError(f"inputs has the shape {tuple(given[0].shape)}, expected at least one example")
    return given


def _arguments(additional_forward_args: Any) -> tuple[Any, ...]:
    if additional_forward_args is None:
        return ()
    return additional_forward_args if isinstance(additional_forward_args, tuple) else (additional_forward_args,)


def _removable(mask: Tensor | None, inputs: Tensor) -> Tensor:
    if mask is None:
        return torch.ones(len(inputs), torch.Size(feature_grid(inputs)).numel(), dtype=torch.bool)
    return per_feature(mask, "removable_mask", inputs).bool()


def _check_shares(shares: Sequence[float] | None) -> list[float]:
    given = [float(share) for share in (NINTHS if shares is None else shares)]
    if not given or sorted(given) != given or not all(0 <= share <= 1 for share in given):
        raise ValueError(f"shares is {given}, expected one or more from 0 to 1, in rising order")
    return given


def _steps(shares: Sequence[float] | None, counts: Sequence[int] | None, available: Tensor) -> Tensor:
    if counts is None:
        return counts_of_shares(_check_shares(shares), available)
    if shares is not None:
        raise ValueError("shares and counts are both given, expected one of them")
    given = list(counts)
    if not given or not all(isinstance(count, Integral) for count in given) or sorted(given) != given or given[0] < 0:
        raise ValueError(f"counts is {given}, expected one or more integers from 0, in rising order")
    return torch.tensor([0, *given]).expand(len(available), -1).minimum(available[:, None])


def _targets(target: int | Sequence[int] | Tensor | None, logits: Tensor) -> Tensor:
    """The class of each example, (B,)."""
    if target is None:
        return logits.argmax(-1)
    rows, classes = logits.shape
    chosen = torch.as_tensor(target).detach().to("cpu").flatten()
    if chosen.is_floating_point() or chosen.numel() not in (1, rows):
        raise AssertionError(f"target is {target!r}, expected a class, or one for each of {rows} examples")
    if not bool(((chosen >= 0) & (chosen < classes)).all()):
        raise AssertionError(f"target is {target!r}, expected classes from 0 to {classes - 1}")
    return chosen.to(torch.int64).expand(rows)
