"""Metrics of image attributions: insertion and deletion, boxes of objects, sums of scores against what they remove.

The areas between curves of most and least relevant first are those of :func:`degradation_both` with a ``feature_mask``
of :func:`tiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from captum_iba._checks import check_choice, check_integer, check_number
from captum_iba._warnings import warn_user
from captum_iba.metrics.degradation import (
    PerturbedRows,
    check_perturbation,
    degradation,
    probabilities_and_logits,
    target_classes,
)
from captum_iba.metrics.image_baselines import blurred, check_images, mean_color
from captum_iba.metrics.perturbations import BaselineValue, Perturbation
from captum_iba.metrics.removal import expand_mask, feature_scores, rank_features
from captum_iba.metrics.scores import deletion_area, insertion_area

_STEPS = tuple(step / 32 for step in range(1, 33))


class InsertionDeletion(NamedTuple):
    """Areas and curves of :func:`insertion_deletion`; a curve has S + 1 points.

    Args:
        insertion (Tensor): Area under the insertion curve, (B,); higher is better.
        deletion (Tensor): Area under the deletion curve, (B,); lower is better.
        insertion_curve (Tensor): Target probability with the inserted features alone, (B, S + 1).
        inserted (Tensor): Fraction of the features that is inserted, (B, S + 1), from 0 to 1.
        deletion_curve (Tensor): Target probability without the deleted features, (B, S + 1).
        deleted (Tensor): Fraction of the features that is deleted, (B, S + 1), from 0 to 1.
    """

    insertion: Tensor
    deletion: Tensor
    insertion_curve: Tensor
    inserted: Tensor
    deletion_curve: Tensor
    deleted: Tensor


def insertion_deletion(
    forward_func: Callable[..., Tensor],
    images: Tensor,
    attributions: Tensor,
    target: int | Sequence[int] | Tensor | None = None,
    additional_forward_args: Any = None,
    *,
    feature_mask: Tensor | None = None,
    fractions: Sequence[float] = _STEPS,
    insert_into: Callable[[Tensor], Tensor] | Tensor | float = blurred,
    delete_to: Callable[[Tensor], Tensor] | Tensor | float = mean_color,
    max_examples_per_batch: int | None = None,
    show_progress: bool = False,
) -> InsertionDeletion:
    """
    Insert the features of each image, or delete them, most relevant first, and measure the area under the probability.

    Petsiuk, Das and Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC 2018,
    https://arxiv.org/abs/1806.07421, there in steps of 224 pixels, inserted into a blurred image, deleted to gray.

    Args:
        forward_func, target, additional_forward_args, max_examples_per_batch, show_progress: As in
                    :func:`degradation`.
        images (Tensor): Images, (B, C, H, W).
        attributions (Tensor): Scores, (B, H, W), or (B, C, H, W), summed over C.
        feature_mask (Tensor, optional): Integers (B, H, W) or (1, H, W): :func:`tiles`, superpixels.
                    Default: None, every pixel by itself
        fractions (sequence of float): Inserted and deleted fractions, in rising order up to 1.
                    Default: 32 steps of equal size
        insert_into (Callable, Tensor or float): What is there before anything is inserted, as the value of
                    :class:`BaselineValue`. Default: :func:`blurred`
        delete_to (Callable, Tensor or float): What takes the place of deleted features. Default: :func:`mean_color`

    Returns:
        *InsertionDeletion*: **insertion** and **deletion**, (B,), and both curves.

    Raises:
        ValueError: ``fractions`` that do not end at 1; and as :func:`degradation`.

    Examples::

        >>> def forward(images):  # the left pixel speaks for class 1
        ...     return torch.stack([torch.zeros(len(images)), 4 * images[:, 0, 0, 0] - 2], 1)
        >>> image = torch.tensor([[[[1.0, 0.5]]]])
        >>> scores = torch.tensor([[[1.0, 0.0]]])
        >>> given = {"insert_into": 0.0, "delete_to": 0.0, "fractions": [0.5, 1.0]}
        >>> right = insertion_deletion(forward, image, scores, 1, **given)
        >>> wrong = insertion_deletion(forward, image, -scores, 1, **given)
        >>> bool(right.insertion > wrong.insertion), bool(right.deletion < wrong.deletion)
        (True, True)
    """
    check_images("images", images)
    steps = [float(fraction) for fraction in fractions]
    if not steps or steps[-1] != 1:
        raise ValueError(f"fractions is {steps}, expected ones in rising order that end at 1: curves go to the end")
    asked = (forward_func, images, attributions, target, additional_forward_args)
    given: dict[str, Any] = {
        "feature_mask": feature_mask,
        "max_examples_per_batch": max_examples_per_batch,
        "show_progress": show_progress,
    }
    # To insert the top fraction is to remove the rest, least relevant first.
    kept = sorted({1 - step for step in steps if step < 1} | {1.0})
    inserted = degradation(*asked, order="lerf", fractions=kept, perturbation=BaselineValue(insert_into), **given)
    deleted = degradation(*asked, order="morf", fractions=steps, perturbation=BaselineValue(delete_to), **given)
    return InsertionDeletion(
        insertion_area(inserted),
        deletion_area(deleted),
        inserted.probability.flip(1),
        1 - inserted.fraction.flip(1),
        deleted.probability,
        deleted.fraction,
    )


def bounding_box_ratio(attributions: Tensor, boxes: Tensor) -> Tensor:
    """
    Fraction of the top pixels that lie inside the box of the object; of as many pixels as the box has.

    Schulz et al., "Restricting the Flow", ICLR 2020, section 4.4. Random scores give the fraction of the image that the
    box covers. Of pixels with equal scores at the limit, each counts as likely to be among the top: the ratio is the
    mean over all ways to order them.

    Args:
        attributions (Tensor): Scores, (B, H, W).
        boxes (Tensor): Integers (B, 4): left, top, right and bottom edge in pixels; the right column and the bottom row
                    are the first outside.

    Returns:
        *Tensor*: (B,), float64, from 0 to 1; higher is better.

    Raises:
        ValueError: Scores that are not finite, an empty box, or one that is not inside the image.

    Examples::

        >>> scores = torch.tensor([[[9.0, 8.0, 0.0], [7.0, 1.0, 0.0]]])
        >>> bounding_box_ratio(scores, torch.tensor([[0, 0, 2, 1]]))  # 9 and 8 are the top two, both inside
        tensor([1.], dtype=torch.float64)
    """
    scores, inside = _scores_and_boxes(attributions, boxes)
    scores, inside = scores.flatten(1), inside.flatten(1)
    size = inside.sum(1)
    limit = scores.sort(1, descending=True).values.gather(1, size[:, None] - 1)
    above, tied = scores > limit, scores == limit
    of_tied = (size - above.sum(1)) / tied.sum(1).double()
    return ((above & inside).sum(1) + of_tied * (tied & inside).sum(1)) / size


def pointing_game(attributions: Tensor, boxes: Tensor, tolerance: float = 0) -> Tensor:
    """
    1 where the pixel with the highest score lies inside the box of the object, or near it, else 0.

    Zhang et al., "Top-down Neural Attention by Excitation Backprop", ECCV 2016, with a tolerance of 15 pixels in images
    of some 500; the mean is its rate. Of several highest pixels, the fraction that hits counts.

    Args:
        attributions (Tensor): Scores, (B, H, W).
        boxes (Tensor): As in :func:`bounding_box_ratio`, (B, 4).
        tolerance (float): Largest distance from the box, in pixels, that is a hit. Default: 0

    Returns:
        *Tensor*: (B,), float64; higher is better.

    Raises:
        ValueError: As :func:`bounding_box_ratio`, or a negative ``tolerance``.

    Examples::

        >>> scores = torch.tensor([[[0.0, 9.0, 0.0, 0.0]]])
        >>> box = torch.tensor([[2, 0, 4, 1]])
        >>> pointing_game(scores, box), pointing_game(scores, box, tolerance=1)
        (tensor([0.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    check_number("tolerance", tolerance, lambda number: number >= 0, "a number of pixels, from 0")
    scores, _ = _scores_and_boxes(attributions, boxes)
    height, width = scores.shape[1:]
    left, top, right, bottom = (edge[:, None] for edge in boxes.cpu().long().T)
    columns, rows = torch.arange(width)[None], torch.arange(height)[None]
    across = torch.maximum(left - columns, columns - right + 1).clamp(min=0)
    down = torch.maximum(top - rows, rows - bottom + 1).clamp(min=0)
    near = down[:, :, None] ** 2 + across[:, None] ** 2 <= tolerance**2
    highest = scores == scores.amax((1, 2), keepdim=True)
    return (highest & near).sum((1, 2)) / highest.sum((1, 2)).double()


def sensitivity_n(
    forward_func: Callable[..., Tensor],
    images: Tensor,
    attributions: Tensor,
    target: int | Sequence[int] | Tensor | None = None,
    additional_forward_args: Any = None,
    *,
    n: int,
    feature_mask: Tensor | None = None,
    n_subsets: int = 100,
    perturbation: Perturbation | None = None,
    output: str = "logit",
    seed: int = 0,
    max_examples_per_batch: int | None = None,
    show_progress: bool = False,
) -> Tensor:
    """
    Correlation, over random subsets of n features, of the sum of their scores with what the output loses without them.

    Ancona et al., "Towards better understanding of gradient-based attribution methods for Deep Neural Networks", ICLR
    2018, https://arxiv.org/abs/1711.06104. It asks for scores that add up, which a ranking need not do.

    Args:
        forward_func, target, additional_forward_args, max_examples_per_batch, show_progress: As in
                    :func:`degradation`.
        images (Tensor): Images, (B, C, H, W), or any other inputs of :func:`degradation`.
        attributions (Tensor): Scores, (B, H, W), or (B, C, H, W), summed over C.
        n (int): Number of features in a subset, below the number of features.
        feature_mask (Tensor, optional): Integers (B, H, W) or (1, H, W), features that are removed as one.
                    Default: None, every pixel by itself
        n_subsets (int): Number of subsets, a forward pass each. The same for every image. Default: 100
        perturbation (Perturbation, optional): As in :func:`degradation`. Default: None, ``BaselineValue(0)``
        output (str): ``"logit"`` or ``"probability"`` of the target. Default: "logit"
        seed (int): Seed of the subsets; the global random state is not touched. Default: 0

    Returns:
        *Tensor*: Pearson correlation, (B,), float64; NaN, with a warning, where the sums or the losses are all the
        same. Higher is better.

    Raises:
        ValueError: ``n`` that is not below the number of features of every image, scores that are not finite; and as
            :func:`degradation`.

    Examples::

        >>> weights = torch.tensor([3.0, 1.0, -2.0, 0.5])
        >>> def forward(images):  # linear, so that weights times pixels are the right scores
        ...     return torch.stack([torch.zeros(len(images)), images.flatten(1) @ weights], 1)
        >>> images = torch.ones(1, 1, 2, 2)
        >>> sensitivity_n(forward, images, weights.view(1, 2, 2), 1, n=2).round(decimals=3)
        tensor([1.], dtype=torch.float64)
    """
    check_choice("output", output, ("logit", "probability"))
    check_integer("n", n, at_least=1)
    check_integer("n_subsets", n_subsets, at_least=2)
    check_integer("seed", seed)
    if max_examples_per_batch is not None:
        check_integer("max_examples_per_batch", max_examples_per_batch, at_least=1)
    scores = feature_scores(attributions, images)
    _require_finite(scores)
    rows, size = scores.shape
    groups = torch.arange(size).expand_as(scores)
    if feature_mask is not None:
        groups = expand_mask(feature_mask, "feature_mask", images)
    members, counts = _numbered(groups)
    if n >= int(counts.min()):
        raise ValueError(
            f"n is {n}, expected less than the number of features of each image, which is {int(counts.min())}"
        )
    arguments = additional_forward_args
    if not isinstance(arguments, tuple):
        arguments = () if arguments is None else (arguments,)

    # A subset are the features that random scores rank first.
    generator = torch.Generator().manual_seed(seed)
    everything = torch.ones_like(groups, dtype=torch.bool)
    ranks = []
    for _ in range(n_subsets):
        random = torch.rand(1, size, generator=generator, dtype=torch.float64).expand(rows, -1)
        ranks.append(rank_features(random.gather(1, members) / _sizes(members), groups, everything, "morf")[0])
    subset = torch.arange(n_subsets).repeat_interleave(rows)
    example = torch.arange(rows).repeat(n_subsets)
    whole = torch.zeros(rows, dtype=torch.int64)
    perturbed = PerturbedRows(
        forward_func,
        (images,),
        arguments,
        check_perturbation(perturbation, images),
        None,
        torch.stack(ranks),
        torch.cat([whole, subset]),
        torch.cat([torch.arange(rows), example]),
        torch.cat([whole, torch.full_like(subset, n)]),
    )
    values = probabilities_and_logits(perturbed.logits(max_examples_per_batch, show_progress))
    of_targets = values[0 if output == "probability" else 1].double()
    classes = target_classes(target, values[1][:rows])
    complete = of_targets[:rows].gather(1, classes[:, None])[:, 0]
    without = of_targets[rows:].view(n_subsets, rows, -1).gather(2, classes[None, :, None].expand(n_subsets, -1, 1))
    losses = complete - without[..., 0]
    sums = torch.stack([(scores * (rank < n)).sum(1) for rank in ranks])
    return _correlation(sums, losses)


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson correlation of the columns of (K, B), (B,); NaN, with a warning, where one is constant."""
    centered = []
    constant = torch.zeros(a.shape[1], dtype=torch.bool)
    for values in (a, b):
        spread = values - values.mean(0)
        # What remains of equal values is rounding.
        constant |= spread.abs().amax(0) <= 1e-7 * values.abs().amax(0)
        centered.append(spread)
    if bool(constant.any()):
        warn_user(
            f"sensitivity_n: in examples {constant.nonzero().flatten().tolist()} the scores or the losses of all "
            "subsets are the same, which has no correlation"
        )
    a, b = centered
    return ((a * b).sum(0) / (a.square().sum(0) * b.square().sum(0)).sqrt()).masked_fill(constant, torch.nan)


def _numbered(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Groups (B, N) numbered from 0 in each example, and their number, (B,)."""
    numbered = torch.stack([row.unique(return_inverse=True)[1] for row in groups])
    return numbered, numbered.amax(1) + 1


def _sizes(members: Tensor) -> Tensor:
    """Number of members of the group of each feature, (B, N)."""
    counts = torch.zeros_like(members).scatter_add(1, members, torch.ones_like(members))
    return counts.gather(1, members)


def _require_finite(scores: Tensor) -> None:
    if not bool(scores.isfinite().all()):
        examples = (~scores.isfinite().flatten(1).all(1)).nonzero().flatten().tolist()
        raise ValueError(f"attributions has scores that are not finite in examples {examples}, expected finite ones")


def _scores_and_boxes(attributions: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (B, H, W), float64 on the CPU, and True inside the boxes, (B, H, W)."""
    attributions, boxes = torch.as_tensor(attributions), torch.as_tensor(boxes)
    if attributions.ndim != 3 or 0 in attributions.shape:
        raise ValueError(f"attributions has the shape {tuple(attributions.shape)}, expected (B, H, W)")
    rows, height, width = attributions.shape
    if boxes.shape != (rows, 4) or boxes.is_floating_point() or boxes.dtype == torch.bool:
        raise ValueError(
            f"boxes has the shape {tuple(boxes.shape)} and the type {boxes.dtype}, expected integers ({rows}, 4): "
            "left, top, right and bottom of each image"
        )
    scores = attributions.detach().to("cpu", torch.float64)
    _require_finite(scores)
    inside = torch.zeros(rows, height, width, dtype=torch.bool)
    for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
        if left >= right or top >= bottom:
            raise ValueError(
                f"boxes[{number}] is {[left, top, right, bottom]}, which is empty; expected left < right, top < bottom"
            )
        if min(left, top) < 0 or right > width or bottom > height:
            raise ValueError(
                f"boxes[{number}] is {[left, top, right, bottom]}, expected it inside the image, {width} pixels "
                f"wide and {height} high"
            )
        inside[number, top:bottom, left:right] = True
    return scores, inside
