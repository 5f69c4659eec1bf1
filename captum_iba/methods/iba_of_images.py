"""The bottleneck for images, as one method among others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from captum_iba._checks import kind_of
from captum_iba.methods.image_methods import ImageTask
from captum_iba.vision import ImageExplainer


def iba_of_images(task: ImageTask, explainer: ImageExplainer | None = None, **settings: Any) -> Tensor:
    """
    The order of the regions by an information bottleneck, and by the removal of those with the most bits.

    Args:
        task (ImageTask): Images.
        explainer (ImageExplainer, optional): Explainer of the model, with statistics of images like these.
            Default: None, one with the statistics of each image, whose maps are less faithful.
        **settings: Arguments of :meth:`captum_iba.vision.ImageExplainer.explain`.

    Returns:
        Tensor: Number of regions that are ranked below each, (B, R).
    """
    if explainer is None:
        if not isinstance(task.model, nn.Module):
            raise ValueError(f"model is {kind_of(task.model)}, expected a torch.nn.Module for a bottleneck")
        explainer = ImageExplainer(task.model)
    results = explainer.explain(
        task.images,
        task.targets.tolist(),
        feature_mask=task.regions,
        seed=task.seed,
        batch_size=task.batch_size,
        **settings,
    )
    scores = torch.zeros(len(results), task.n_regions, dtype=torch.float64)
    for row, result in zip(scores, results, strict=True):
        row[: result.n_regions] = torch.from_numpy(result.scores)
    return scores
