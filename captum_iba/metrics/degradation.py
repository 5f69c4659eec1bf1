"""Degradation test: how the prediction changes as features are removed in the order of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from captum_iba._checks import as_tensors, check_choice, check_integer, kind_of
from captum_iba._warnings import warn_user
from captum_iba.metrics.perturbations import BaselineValue, Delete, MaskOut, Perturbation
from captum_iba.metrics.removal import (
    NINTHS,
    counts_as_released,
    counts_of_fractions,
    expand_mask,
    feature_grid,
    feature_scores,
    rank_as_released,
    rank_features,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

ORDERS = ("morf", "lerf")
COUNTINGS = ("removable", "as_released")

# Size of a forward pass by default. On a CPU larger passes leave the caches and get slower: benchmarks/degradation.py.
POSITIONS_PER_PASS = {"cpu": 1024}
POSITIONS_PER_PASS_OTHERWISE = 32768
IMAGES_PER_PASS = 32


class Degradation(NamedTuple):
    """Predictions of B examples after each step of removal, all (B, S + 1) on the CPU; column 0: nothing removed.

    Args:
        probability (Tensor): Target probability, softmax over the classes, float32 (float64 for a float64 model).
            Classes must compete; for a class with a probability of its own (sigmoid) see :func:`degradation`.
        logit (Tensor): Target logit, of the same type.
        decision (Tensor): Most probable class, int64.
        fraction (Tensor): Fraction of the removable features (or groups) that is removed, float32; 0 where there are
            none.
        requested (Tensor, optional): Fraction, or number, of features that the step was to remove, the same for all
            examples, float32; metrics check it. Default: None, unknown
    """

    probability: Tensor
    logit: Tensor
    decision: Tensor
    fraction: Tensor
    requested: Tensor | None = None


class DegradationSettings(TypedDict, total=False):
    """Keyword arguments of :func:`degradation` and :func:`degradation_both`; see there."""

    feature_mask: Tensor | None
    removable_mask: Tensor | None
    perturbation: Perturbation | None
    fractions: Sequence[float] | None
    counts: Sequence[int] | None
    counting: str
    max_examples_per_batch: int | None
    show_progress: bool


def degradation(
    forward_func: Callable[..., Tensor],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    target: int | Sequence[int] | Tensor | None = None,
    additional_forward_args: Any = None,
    *,
    order: str = "morf",
    **settings: Unpack[DegradationSettings],
) -> Degradation:
    r"""
    Remove the features of each example in the order of their scores, and record how the prediction changes.

    If scores are right, removing the most relevant features first (MoRF) destroys the prediction early, and removing
    the least relevant first (LeRF) late. Features that are removed at a step stay removed at later ones. Ties go by
    position, the earlier first; features scored NaN go last in both orders, infinite ones where they belong. So LeRF
    is always MoRF of the negated scores. Results are batch-invariant and do not depend on padding.

    Examples and steps share forward passes. A step that removes no more than the one before runs once. Where tokens
    are deleted, rows are sorted by length, so that little padding is computed. :func:`degradation_both` computes both
    orders at once.

    Probabilities are by softmax. Outputs that are probabilities already (every row in [0, 1], with the sum 1) are taken
    as they are, with a warning, and their logarithms as logits. Where each class has a probability of its own (sigmoid,
    several labels), let ``forward_func`` return the logits of no and yes, ``torch.stack([torch.zeros_like(z), z], -1)``
    for the logit ``z`` of the class, and explain target 1.

    Sources: Samek et al., "Evaluating the Visualization of What a Deep Neural Network Has Learned", 2017; with deleted
    tokens Jiang et al., Findings of EMNLP 2020, https://arxiv.org/abs/2012.13838.

    Args:
        forward_func (Callable): Model, or any function of inputs and additional arguments, that returns logits (rows,
            C), C > 1. It runs in evaluation mode, without gradients, and is left as it was.
        inputs (Tensor or tuple of Tensor): Token ids (B, T), embeddings (B, T, D), images (B, C, H, W) or tables (B,
            F). Of a tuple, features are removed from the first tensor; :class:`Delete` says of the others which follow.
        attributions (Tensor or tuple of Tensor): Scores (B, T); (B, T, D), summed over D; for images (B, H, W) or (B,
            C, H, W), summed over C. Of a tuple, the first tensor.
        target (int, list of int or Tensor, optional): Class, one for all examples or one per example. Default: None,
            the most probable class of the complete example.
        additional_forward_args (Any, optional): Additional arguments of ``forward_func``, one or a tuple. Tensors in
            them whose first dimension is B are selected together with the examples; with ValueError where this is
            chance, and one is for all examples. Default: None.
        order (str, optional): ``"morf"``, highest score first, or ``"lerf"``, lowest first. Default: "morf".
        feature_mask (Tensor, optional): Integers (B, T) or (1, T), for images (B, H, W) or (1, H, W). Features with the
            same integer (sub-words of a word, superpixels) are removed as one, scored by their sum. Default: None,
            every feature by itself.
        removable_mask (Tensor, optional): False where nothing is ever removed (special tokens, the separator of a pair,
            padding), of the shape of ``feature_mask``. Default: None, every feature may be removed, except for padding
            where :class:`Delete` or :class:`MaskOut` tell it by the attention mask; the others take padding for
            features.
        perturbation (Perturbation, optional): How features are removed: :class:`Delete`, :class:`ReplaceToken`,
            :class:`MaskOut`, :class:`BaselineValue`, or a function (:mod:`captum_iba.metrics.perturbations`). Default:
            None, ``BaselineValue(0)`` for floating-point inputs; token ids need one.
        fractions (sequence of float, optional): Fractions of the removable features of an example, in rising order,
            from 0 to 1. Rounded to features, halves up, at least one for a fraction above 0; 1 removes all. Default:
            None, 1/9, 2/9, ... 1.
        counts (sequence of int, optional): Numbers of removed features, in rising order, in place of ``fractions``.
            Default: None.
        counting (str, optional): ``"removable"``; or ``"as_released"``, as in the code of Jiang et al.: fractions of
            the whole length, special tokens included, halves to even; steps of a short text that remove as many as the
            one before are left out, and the last is repeated at the end; the token that ranks last, special or not, is
            never removed. With :class:`Delete`, without ``feature_mask`` and ``counts``. Default: "removable".
        max_examples_per_batch (int, optional): Maximum number of rows (examples times steps) of a forward pass.
            Default: None, as many as hold 1024 positions on a CPU, 32768 on other devices; 32 images.
        show_progress (bool, optional): Whether to show a progress bar over the forward passes. Default: False.

    Returns:
        *Degradation*: **probability**, **logit**, **decision**, **fraction** and **requested**, each (B, S + 1) for S
        fractions or counts. An example without removable features keeps its first column throughout, with a warning.

    Raises:
        TypeError: Inputs or outputs that are not tensors.
        ValueError: A shape, fraction, count, order or counting out of range, or an argument that has B rows by chance;
            the message names it.
        AssertionError: A target that the output does not have.

    Examples::

        >>> def forward(x):  # logits of two classes
        ...     return torch.stack([torch.zeros(len(x)), x.sum(1)], 1)
        >>> inputs = torch.tensor([[1.0, 4.0, 2.0]])
        >>> degradation(forward, inputs, attributions=inputs, target=1, counts=[1, 2, 3]).logit
        tensor([[7., 3., 1., 0.]])
    """
    check_choice("order", order, ORDERS)
    arguments = (forward_func, inputs, attributions, target, additional_forward_args)
    return _degrade((order,), *arguments, **settings)[0]


def degradation_both(
    forward_func: Callable[..., Tensor],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    target: int | Sequence[int] | Tensor | None = None,
    additional_forward_args: Any = None,
    **settings: Unpack[DegradationSettings],
) -> tuple[Degradation, Degradation]:
    """
    Both orders at once: rows that they have in common, the complete and the empty example, run once.

    Args:
        forward_func, inputs, attributions, target, additional_forward_args: As in :func:`degradation`.
        **settings: Keyword arguments of :func:`degradation`, except for ``order``.

    Returns:
        *tuple* of two *Degradation*: **most relevant first** and **least relevant first**.

    Raises:
        TypeError, ValueError, AssertionError: As :func:`degradation`.

    Examples::

        >>> def forward(ids, mask):  # logits of two classes
        ...     return torch.stack([torch.zeros(len(ids)), (ids * mask).sum(1).float()], 1)
        >>> ids, mask, scores = torch.tensor([[1, 20, 30, 2]]), torch.ones(1, 4), torch.tensor([[9.0, 0.1, 0.5, 9.0]])
        >>> morf, lerf = degradation_both(
        ...     forward, ids, scores, 1, mask, removable_mask=ids > 2, perturbation=Delete(pad_id=0), counts=[1, 2]
        ... )
        >>> morf.logit, lerf.logit
        (tensor([[53., 23.,  3.]]), tensor([[53., 33.,  3.]]))
    """
    morf, lerf = _degrade(ORDERS, forward_func, inputs, attributions, target, additional_forward_args, **settings)
    return morf, lerf


def _degrade(
    orders: Sequence[str],
    forward_func: Callable[..., Tensor],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    target: int | Sequence[int] | Tensor | None,
    additional_forward_args: Any,
    *,
    max_examples_per_batch: int | None = None,
    show_progress: bool = False,
    **settings: Any,
) -> list[Degradation]:
    """One result per order."""
    if max_examples_per_batch is not None:
        check_integer("max_examples_per_batch", max_examples_per_batch, at_least=1, kind=Integral)
    rows, row_of, removed, requested = _plan(
        orders, forward_func, inputs, attributions, additional_forward_args, **settings
    )
    outputs = probabilities_and_logits(rows.logits(max_examples_per_batch, show_progress))
    probabilities, logits = (values[row_of] for values in outputs)
    classes = target_classes(target, logits[0, :, 0])[None, :, None, None].expand(*logits.shape[:-1], 1)
    probability, logit = (values.gather(3, classes)[..., 0] for values in (probabilities, logits))
    columns = zip(probability, logit, logits.argmax(-1), removed, strict=True)
    return [Degradation(*tensors, requested) for tensors in columns]


def _plan(
    orders: Sequence[str],
    forward_func: Callable[..., Tensor],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    additional_forward_args: Any,
    *,
    feature_mask: Tensor | None = None,
    removable_mask: Tensor | None = None,
    perturbation: Perturbation | None = None,
    fractions: Sequence[float] | None = None,
    counts: Sequence[int] | None = None,
    counting: str = "removable",
) -> tuple[PerturbedRows, Tensor, Tensor, Tensor]:
    """All rows, the number of the row of each step, (O, B, S + 1), and what the steps remove and were to remove."""
    tensors = check_inputs(inputs)
    first, arguments = tensors[0], additional_forward_args
    if not isinstance(arguments, tuple):
        arguments = () if arguments is None else (arguments,)
    check_choice("counting", counting, COUNTINGS)
    perturbation = check_perturbation(perturbation, first)
    requested = _requested(fractions, counts)
    scores = feature_scores(attributions[0] if isinstance(attributions, tuple) else attributions, first)
    removable = removable_features(removable_mask, perturbation, tensors, arguments, scores.shape)
    padding = perturbation.padding(tensors, arguments, removable) if isinstance(perturbation, Delete) else None
    if counting == "as_released":
        if padding is None or feature_mask is not None or counts is not None:
            raise ValueError(
                "counting is 'as_released', expected perturbation=Delete(...), no feature_mask and no counts"
            )
        ranked = [rank_as_released(scores, removable, ~padding, order) for order in orders]
        lengths, total = (~padding).sum(1), removable.sum(1)
        steps = torch.stack([counts_as_released(requested, lengths, available) for _, available in ranked])
    else:
        groups = torch.arange(scores.shape[1]).expand_as(scores)
        if feature_mask is not None:
            groups = expand_mask(feature_mask, "feature_mask", first)
        ranked = [rank_features(scores, groups, removable, order) for order in orders]
        total = ranked[0][1]
        if counts is None:
            steps = counts_of_fractions(requested, total).expand(len(orders), -1, -1)
        else:
            steps = torch.tensor([0, *map(int, requested)]).minimum(total[:, None]).expand(len(orders), -1, -1)
    if bool((total == 0).any()):
        examples = (total == 0).nonzero().flatten().tolist()
        warn_user(f"inputs have no removable feature in examples {examples}: their curves are flat")

    # Rows that remove nothing, or everything, are the same in every order; those of the first order run for all.
    everything = (steps == total[:, None]) & (ranked[0][1] == total)[:, None]
    order_of = torch.arange(len(orders))[:, None, None].expand_as(steps).masked_fill((steps == 0) | everything, 0)
    example_of = torch.arange(len(scores))[:, None].expand_as(steps)
    keys = torch.stack([order_of, example_of, steps], -1)
    unique, row_of = torch.unique(keys.flatten(0, -2), dim=0, return_inverse=True)
    ranks = torch.stack([ranks for ranks, _ in ranked])
    rows = PerturbedRows(forward_func, tensors, arguments, perturbation, padding, ranks, *unique.T)
    removed = steps / total.clamp(min=1)[:, None]
    return rows, row_of.view(steps.shape), removed, torch.tensor([0.0, *requested]).repeat(len(scores), 1)


def probabilities_and_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of the classes, (R, C), and logits, which outputs that are probabilities already are not."""
    # Captum loads pyplot: not before something is computed.
    from captum_iba.attr.losses import are_probabilities

    known = logits[~logits.isnan().any(-1)]
    if len(known) < len(logits):
        warn_user(f"forward_func returns NaN in {len(logits) - len(known)} of {len(logits)} rows")
    if len(known) and are_probabilities(known):
        if bool(((known > 0) & (known < 1)).any()):
            warn_user("forward_func returns probabilities, expected logits; they are taken as they are")
            return logits, logits.clamp_min(torch.finfo(logits.dtype).tiny).log()
        # No softmax gives these.
        warn_user("forward_func returns nothing but 0 and 1, which are taken as logits")
    return logits.softmax(-1), logits


@dataclass(frozen=True)
class PerturbedRows:
    """All rows of a test, R of them: an example with a number of its features (or groups) removed in an order.

    Args:
        padding (Tensor or None): True at padding, (B, N), where the perturbation deletes.
        ranks (Tensor): Rank of every feature in each of O orders, (O, B, N).
        orders, examples, counts (Tensor): Order, example and number of removed features of each row, (R,).
    """

    forward_func: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    arguments: tuple[Any, ...]
    perturbation: Perturbation
    padding: Tensor | None
    ranks: Tensor
    orders: Tensor
    examples: Tensor
    counts: Tensor

    def removed(self, rows: Tensor) -> Tensor:
        """Mask of the removed features, (rows, N); where tokens are deleted, padding is deleted too."""
        removed = self.ranks[self.orders[rows], self.examples[rows]] < self.counts[rows, None]
        return removed if self.padding is None else removed | self.padding[self.examples[rows]]

    def passes(self, limit: int | None) -> list[Tensor]:
        """Numbers of the rows that share a forward pass, the longest first where rows get shorter."""
        numbers, first = torch.arange(len(self.examples)), self.inputs[0]
        lengths = torch.full_like(numbers, self.ranks.shape[2])
        if self.padding is not None:
            lengths, numbers = torch.sort((~self.removed(numbers)).sum(1), descending=True, stable=True)
        if limit is None and first.ndim >= 4:
            limit = IMAGES_PER_PASS
        positions = POSITIONS_PER_PASS.get(first.device.type, POSITIONS_PER_PASS_OTHERWISE)
        parts = torch.split(numbers, _pass_sizes(lengths.tolist(), positions) if limit is None else limit)
        if not (isinstance(self.perturbation, Delete) and self.perturbation.equal_lengths):
            return list(parts)
        lengths = torch.empty_like(lengths).index_copy_(0, numbers, lengths)
        runs = [(part, torch.unique_consecutive(lengths[part], return_counts=True)[1].tolist()) for part in parts]
        return [same for part, counts in runs for same in torch.split(part, counts)]

    def forward_args(self, rows: Tensor) -> tuple[Any, ...]:
        """All arguments of ``forward_func`` for some rows."""
        # Captum loads pyplot: not before something is computed.
        from captum_iba.attr._model.nested import select_examples

        first = self.inputs[0]
        inputs, arguments = select_examples((self.inputs, self.arguments), len(first), self.examples[rows])
        removed = self.removed(rows).view(len(rows), *feature_grid(first)).to(first.device)
        inputs, arguments = self.perturbation(inputs, arguments, removed)
        return (*inputs, *arguments)

    def logits(self, limit: int | None, show_progress: bool) -> Tensor:
        """Logits of all rows, (R, C), at least float32, on the CPU."""
        from captum_iba._compat import progress
        from captum_iba.attr._model.guard import ModuleGuard
        from captum_iba.attr._model.inputs import require_own_rows

        passes = self.passes(limit)
        results: list[Tensor] = []
        with ModuleGuard(self.forward_func) as guard, guard.watching(), torch.no_grad():
            require_own_rows(self.forward_func, self.inputs, self.arguments, guard)
            guard.restore_state()
            for part in progress(passes, desc="degradation", total=len(passes)) if show_progress else passes:
                output = self.forward_func(*self.forward_args(part))
                guard.restore_state()  # no pass depends on those before it
                if not isinstance(output, Tensor):
                    raise TypeError(f"forward_func returns {kind_of(output)}, expected a tensor of logits")
                if output.ndim != 2 or len(output) != len(part) or output.shape[1] < 2:
                    shape = tuple(output.shape)
                    raise ValueError(f"forward_func returns the shape {shape}, expected ({len(part)}, C) with C > 1")
                results.append(output.to("cpu", torch.promote_types(output.dtype, torch.float32)))
        logits = torch.cat(results)
        return torch.empty_like(logits).index_copy_(0, torch.cat(passes), logits)


def _pass_sizes(lengths: list[int], positions: int) -> list[int]:
    """Number of rows of each pass, given their lengths: at most so many positions, an eighth of them padding."""
    sizes: list[int] = []
    longest = wasted = 0
    for length in lengths:
        wasted += longest - length
        if not sizes or (sizes[-1] + 1) * longest > positions or wasted > positions // 8:
            sizes.append(0)
            longest, wasted = length, 0
        sizes[-1] += 1
    return sizes


def check_inputs(inputs: Any) -> tuple[Tensor, ...]:
    """Inputs as a tuple of tensors, with at least one example."""
    tensors = as_tensors(inputs)
    feature_grid(tensors[0])
    if len(tensors[0]) == 0:
        raise ValueError(f"inputs has the shape {tuple(tensors[0].shape)}, expected at least one example")
    return tensors


def removable_features(
    mask: Tensor | None,
    perturbation: Perturbation,
    inputs: tuple[Tensor, ...],
    arguments: tuple[Any, ...],
    shape: torch.Size,
) -> Tensor:
    """Mask of the removable features, (B, N), on the CPU."""
    removable = None if mask is None else expand_mask(mask, "removable_mask", inputs[0]).bool()
    if isinstance(perturbation, MaskOut):
        attended = perturbation.mask(inputs, arguments, shape).cpu() != 0
        if removable is None:
            excluded = inputs[0].detach().cpu()[~attended]
            wrong, where = excluded != excluded[:1], "different tokens, and removable_mask is None"
        else:
            wrong, where = removable & ~attended, "features where removable_mask is True"
        if bool(wrong.any()):
            raise ValueError(
                f"MaskOut: argument {perturbation.argument} of forward_func is 0 at {where}, expected the attention "
                "mask, 0 at padding only; where it is another argument, say which (MaskOut(2)), and where True or -inf "
                "is padding, let forward_func invert it"
            )
        return attended if removable is None else removable
    if removable is not None:
        return removable
    if isinstance(perturbation, Delete):
        return ~perturbation.marked_padding(inputs, arguments)
    return torch.ones(shape, dtype=torch.bool)


def check_perturbation(perturbation: Perturbation | None, inputs: Tensor) -> Perturbation:
    """The perturbation, or that of floating-point inputs."""
    if perturbation is None:
        if not inputs.is_floating_point():
            raise ValueError("perturbation is None, expected one for inputs of integers, for example Delete(pad_id)")
        return BaselineValue()
    if isinstance(perturbation, Delete) and inputs.ndim != 2:
        raise ValueError(f"perturbation is Delete, expected inputs of the shape (B, T), got {tuple(inputs.shape)}")
    if not callable(perturbation):
        raise TypeError(
            f"perturbation is {perturbation!r}, expected one of captum_iba.metrics.perturbations, or a function"
        )
    return perturbation


def _requested(fractions: Sequence[float] | None, counts: Sequence[int] | None) -> list[float]:
    """The fractions, or else the counts, of the steps."""
    if counts is None:
        values = [float(fraction) for fraction in (NINTHS if fractions is None else fractions)]
        if not values or sorted(values) != values or not all(0 <= fraction <= 1 for fraction in values):
            raise ValueError(f"fractions is {values}, expected one or more from 0 to 1, in rising order")
        return values
    if fractions is not None:
        raise ValueError("fractions and counts are both given, expected one of them")
    numbers = list(counts)
    if not numbers or not all(isinstance(n, Integral) for n in numbers) or sorted(numbers) != numbers or numbers[0] < 0:
        raise ValueError(f"counts is {numbers}, expected one or more integers from 0, in rising order")
    return [float(number) for number in numbers]


def target_classes(target: int | Sequence[int] | Tensor | None, logits: Tensor) -> Tensor:
    """Class of each example, (B,)."""
    if target is None:
        return logits.argmax(-1)
    rows, classes = logits.shape
    targets = torch.as_tensor(target).detach().to("cpu").flatten()
    if targets.is_floating_point() or targets.numel() not in (1, rows):
        raise AssertionError(f"target is {target!r}, expected a class, or one for each of {rows} examples")
    if not bool(((targets >= 0) & (targets < classes)).all()):
        raise AssertionError(f"target is {target!r}, expected classes from 0 to {classes - 1}")
    return targets.to(torch.int64).expand(rows)
