"""Methods compared on images: what a prediction loses without the regions that each ranks first."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from captum_iba._checks import kind_of
from captum_iba._compat import progress
from captum_iba._explain.fingerprint import model_fingerprint
from captum_iba._explain.json_result import library_versions
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.compare.kept_rows import KeptRows, RowTable, chosen_methods, counted_passes, finite_or_none
from captum_iba.methods.image_methods import IMAGE_METHODS, ImageTask, attribute_images, image_task
from captum_iba.methods.spatial_layer import grid_of_layer, spatial_layer
from captum_iba.metrics.degradation import degradation, degradation_both
from captum_iba.metrics.image_baselines import blurred, check_images, mean_color
from captum_iba.metrics.perturbations import BaselineValue
from captum_iba.metrics.scores import aopc, area_between, deletion_area, insertion_area, probability_drop
from captum_iba.vision.regions import tile_regions

DEFAULT_METHODS_FOR_IMAGES = ("iba", "grad_cam", "ig", "occlusion", "random")
"""The methods of a comparison that names none."""

EIGHTHS = tuple(step / 8 for step in range(1, 9))
"""Removed and inserted fractions."""

ImageFunction = Callable[[ImageTask], Tensor]
"""Maps (B, H, W) of the images of a task, or scores of their regions, (B, R)."""


@dataclass(frozen=True)
class ImageRow:
    """One method on one image.

    Attributes:
        image (int): Number of the image, from 0.
        method (str): Name of the method.
        scores (tuple of float): Score of each region, the sum over its pixels.
        values (dict): Each metric (:attr:`ImageComparison.columns`) with its value; empty where the method failed.
        error (str or None): Why it failed.
    """

    image: int
    method: str
    scores: tuple[float, ...]
    values: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class ImageComparison(RowTable):
    """
    The rows of a comparison on images; ``print`` shows its table.

    The columns are the decrease in the target probability without the eighth of the regions that a method ranks first
    (``drop@1/8``), AOPC, the area between the curves of least and most relevant first (``lerf-morf``), all with regions
    replaced by the mean color of the image; the area under the insertion curve, which begins with the blurred image,
    and under the deletion curve; the number of forward passes per image, of which one with a backward pass counts
    twice, and the seconds per image.

    Attributes:
        methods (tuple of str): Names of the methods; the others are compared with the first.
        rows (tuple of ImageRow): One per image and method.
    """

    example = "image"
    measured = ("drop@1/8", "aopc", "lerf-morf", "insertion", "deletion")
    lower_is_better = ("deletion",)
    digits = 3
    meaning = (
        "drop@1/8: decrease in the target probability without the first eighth of the regions; aopc: its mean over "
        "0 to 8 eighths; lerf-morf: area between the curves of least and most relevant first; deletion: area under the "
        "latter; regions get the mean color of the image. insertion: area while they are inserted into the blurred one."
    )


def compare_images(
    model: nn.Module,
    images: Tensor,
    targets: Tensor | int | None = None,
    methods: Sequence[str] | Mapping[str, ImageFunction] = DEFAULT_METHODS_FOR_IMAGES,
    *,
    regions: Tensor | None = None,
    layer: nn.Module | str | None = None,
    batch_size: int = 16,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    on_row: Callable[[int], object] = lambda _: None,
    show_progress: bool = False,
) -> ImageComparison:
    """
    Compare methods on images by removal, and insertion, of the regions that each ranks first.

    Args:
        model (Module): Returns logits, (rows, classes), or an object with them as ``logits``.
        images (Tensor): Images, (B, C, H, W), as the model takes them, on its device.
        targets (Tensor or int, optional): Class of each image, (B,), or of all. Default: None, the most probable ones.
        methods (sequence of str, or dict): Names among :data:`captum_iba.methods.image_methods.IMAGE_METHODS`, or names
            with functions of a :class:`captum_iba.methods.image_methods.ImageTask`, such as
            ``{"lime@n_samples=300": partial(lime_of_images, n_samples=300)}``. The others are compared with the first.
            Default: :data:`DEFAULT_METHODS_FOR_IMAGES`.
        regions (Tensor, optional): Integers (B, H, W) or (1, H, W). Default: None, the tiles of
            :func:`captum_iba.vision.tile_regions`, as in an explanation.
        layer (Module or str, optional): Layer of methods that explain at a layer, or its name. Default: None, the last
            spatial one.
        batch_size (int): Number of images that are explained together, and largest number of rows of a pass.
            Default: 16.
        seed (int): Seed of methods with random numbers. Default: 0.
        folder (path, optional): Folder for the rows (``rows.jsonl``) and the table (``table.md``): the same call goes
            on where it stopped, tries again what failed, and one with more methods adds them. Default: None.
        on_row (Callable, optional): Called with the number of rows that are finished. Default: nothing is called.
        show_progress (bool): Whether to show a progress bar over batches of images. Default: False.

    Returns:
        ImageComparison: A method that fails on an image is recorded there, and the image does not count.

    Raises:
        TypeError, ValueError: An argument that is not as above, or a folder with other images or settings.

    Examples::

        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 2))
        >>> result = compare_images(model, torch.rand(2, 3, 8, 8), methods=["ig", "random"])
        >>> [(row.image, row.method, len(row.scores)) for row in result.rows]
        [(0, 'ig', 16), (0, 'random', 16), (1, 'ig', 16), (1, 'random', 16)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {kind_of(model)}, expected a torch.nn.Module; an ImageExplainer has one, .model")
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        raise ValueError("model is a multi-label classifier, expected one of classes that compete")
    functions = chosen_methods(methods, {name: method.function for name, method in IMAGE_METHODS.items()})
    check_images("images", images)
    if regions is None:
        regions = torch.from_numpy(tile_regions(*images.shape[2:]))[None]
    with ModuleGuard(model) as guard, guard.watching():
        task = image_task(model, images, targets, regions, layer=layer, batch_size=batch_size, seed=seed)
        if layer is not None:  # else rows would record the error for each image
            of_first = spatial_layer(task.logits, model, images[:1], task.targets[:1], layer)
            grid_of_layer(task.logits, model, images[:1], of_first)
    kept, rows = None, []
    if folder is not None:
        kept = KeptRows(Path(folder), _about(task))
        rows = [ImageRow(**{**row, "scores": tuple(row["scores"])}) for row in kept.rows(functions)]
    done = {(row.image, row.method) for row in rows}
    batches = torch.split(torch.arange(len(images)), batch_size)
    for batch in progress(batches, "Images", len(batches)) if show_progress else batches:
        for name, function in functions.items():
            missing = [number for number in batch.tolist() if (number, name) not in done]
            for row in _measured(missing, name, function, task):
                rows.append(row)
                if kept is not None:
                    kept.add(row, function)
                on_row(len(rows))
    order = list(functions)
    rows.sort(key=lambda row: (row.image, order.index(row.method)))
    comparison = ImageComparison(tuple(functions), tuple(rows))
    if kept is not None:
        kept.write_table(comparison)
    return comparison


def _measured(numbers: list[int], name: str, function: ImageFunction, task: ImageTask) -> list[ImageRow]:
    """Rows of some images; where the method fails on them together, each is tried by itself."""
    if not numbers:
        return []
    images, targets, regions = task.images[numbers], task.targets[numbers], task.regions[numbers]
    began = time.perf_counter()
    try:
        with counted_passes(task.model) as passes:
            maps = attribute_images(
                function,
                task.model,
                images,
                targets,
                regions,
                layer=task.layer,
                batch_size=task.batch_size,
                seed=task.seed,
            )
    except Exception as error:
        if len(numbers) == 1:
            return [ImageRow(numbers[0], name, (), {}, f"{type(error).__name__}: {error}")]
        return [row for number in numbers for row in _measured([number], name, function, task)]
    seconds = time.perf_counter() - began
    asked = (task.logits, images, maps, targets)
    given: dict[str, Any] = {
        "feature_mask": regions,
        "fractions": EIGHTHS,
        "max_examples_per_batch": task.batch_size,
    }
    morf, lerf = degradation_both(*asked, perturbation=BaselineValue(mean_color), **given)
    inserted = degradation(*asked, order="lerf", perturbation=BaselineValue(blurred), **given)
    columns = (
        probability_drop(morf, EIGHTHS[0], EIGHTHS),
        aopc(morf),
        area_between(morf, lerf),
        insertion_area(inserted),
        deletion_area(morf),
    )
    costs = {"passes": passes[0] / len(numbers), "seconds": seconds / len(numbers)}
    sums = torch.zeros(len(numbers), task.n_regions, dtype=torch.float64)
    sums.scatter_add_(1, regions.cpu().flatten(1), maps.double().flatten(1))
    rows = []
    for place, number in enumerate(numbers):
        measured = zip(ImageComparison.measured, columns, strict=True)
        values = {column: float(found[place]) for column, found in measured} | costs
        rows.append(ImageRow(number, name, tuple(sums[place].tolist()), finite_or_none(values)))
    return rows


def _about(task: ImageTask) -> dict[str, Any]:
    """What all rows of a folder depend on."""
    digest = hashlib.sha256(str(tuple(task.images.shape)).encode())
    for tensor in (task.images, task.targets, task.regions):
        digest.update(tensor.detach().cpu().contiguous().double().numpy().tobytes())
    assert isinstance(task.model, nn.Module)
    names = {id(module): name for name, module in task.model.named_modules()}
    layer = names.get(id(task.layer), str(task.layer)) if isinstance(task.layer, nn.Module) else task.layer
    return {
        "seed": task.seed,
        "layer": layer,
        "versions": library_versions(),
        "model": model_fingerprint(task.model),  # before the images, whose classes it predicts
        "images": digest.hexdigest(),
    }
