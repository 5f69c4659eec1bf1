"""Regions of an image: tiles, superpixels or a mask of one's own; what the model says without some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._checks import check_integer, kind_of
from captum_iba.metrics.part_removal import kept_without
from captum_iba.vision.image_model import ImageClassifier
from captum_iba.vision.images import Pixels

Regions = npt.NDArray[np.int64]
"""Number of the region of each pixel, (H, W), from 0 on, none left out."""

_FEWEST, _MOST, _PIXELS = 4, 7, 32
_LEAST_IN_TURN, _MOST_IN_TURN, _PER_ONE_IN_TURN = 2, 8, 8  # removed one after the other: one per 8 regions
_N_COMPARED = 8  # of them, at each step but the first: those that lowered the probability most when last compared


def tile_regions(height: int, width: int, n_tiles: int | None = None) -> Regions:
    """Tiles of an image, (H, W): as many along each side, numbered row by row.

    Args:
        height, width (int): Size of the image.
        n_tiles (int, optional): Tiles along a side. Default: one for 32 pixels of the shorter side, but at least 4 and
            at most 7: 7 x 7 for 224 pixels, 4 x 4 for 32.

    Raises:
        ValueError: More tiles than pixels.

    Examples::

        >>> tile_regions(2, 4, n_tiles=2)
        array([[0, 0, 1, 1],
               [2, 2, 3, 3]])
    """
    shorter = min(height, width)
    if n_tiles is None:
        n_tiles = min(shorter, max(_FEWEST, min(_MOST, round(shorter / _PIXELS))))
    check_integer("n_tiles", n_tiles, at_least=1)
    if n_tiles > shorter:
        raise ValueError(f"n_tiles is {n_tiles}, expected at most the {shorter} pixels of the shorter side")
    rows, columns = (np.arange(size) * n_tiles // size for size in (height, width))
    return rows[:, None] * n_tiles + columns[None, :]


def superpixels(pixels: Pixels, n_segments: int = 50, compactness: float = 10.0) -> Regions:
    """Superpixels of an image, (H, W), by SLIC (Achanta et al., 2012) of scikit-image.

    Args:
        pixels (array): The image, (H, W, 3), 8-bit.
        n_segments (int): About how many. Default: 50.
        compactness (float): Weight of the distance in space against that in color. Default: 10.

    Raises:
        ModuleNotFoundError: scikit-image is not installed.
        ValueError: No such image.

    Examples::

        >>> superpixels(np.zeros((32, 32, 3), dtype=np.uint8), n_segments=4).max()
        np.int64(3)
    """
    try:
        from skimage.segmentation import slic
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "superpixels need scikit-image, which is not installed: pip install 'captum-iba[vision]'", name=error.name
        ) from error
    check_integer("n_segments", n_segments, at_least=2)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or pixels.shape[-1] != 3:
        found = getattr(pixels, "shape", type(pixels).__name__)
        raise ValueError(f"pixels is {found}, expected an array (H, W, 3)")
    return numbered(slic(pixels, n_segments=n_segments, compactness=compactness, start_label=0, channel_axis=-1))


def numbered(regions: npt.NDArray[Any]) -> Regions:
    """Regions with the numbers from 0 on, none left out, in the same order."""
    _, numbers = np.unique(regions, return_inverse=True)
    result: Regions = numbers.reshape(regions.shape).astype(np.int64)
    return result


def regions_of_images(feature_mask: Any, pictures: Sequence[Pixels], size: tuple[int, int]) -> list[Regions]:
    """The regions of each image: tiles, superpixels, or those of a mask.

    Args:
        feature_mask (Tensor, array, str or None): Integers, (H, W), (1, H, W) or (B, H, W), with a dimension of 1 for
            the channels before H, or without; ``"superpixels"``; None for tiles.
        pictures (sequence of array): The images, B of them, (H, W, 3), 8-bit.
        size (tuple): H and W.

    Raises:
        TypeError: No tensor or array.
        ValueError: Another word or shape, no integers, or a single region.
    """
    n_images = len(pictures)
    if feature_mask is None:
        return [tile_regions(*size)] * n_images
    if isinstance(feature_mask, str):
        if feature_mask != "superpixels":
            raise ValueError(f"feature_mask is {feature_mask!r}, expected integers or 'superpixels'")
        return [superpixels(picture) for picture in pictures]
    if not isinstance(feature_mask, (Tensor, np.ndarray)):
        raise TypeError(
            f"feature_mask is {kind_of(feature_mask)}, expected integers in a tensor or array (H, W) or "
            "(B, H, W), or 'superpixels'"
        )
    mask = feature_mask.detach().cpu().numpy() if isinstance(feature_mask, Tensor) else feature_mask
    if not np.issubdtype(mask.dtype, np.integer):
        raise ValueError(f"feature_mask has the dtype {feature_mask.dtype}, expected integers")
    shape = mask.shape
    if mask.ndim == 4 and shape[1] == 1:
        mask = mask[:, 0]
    if mask.ndim == 2:
        mask = mask[None]
    if mask.ndim != 3 or mask.shape[1:] != size or mask.shape[0] not in (1, n_images):
        raise ValueError(
            f"feature_mask has the shape {tuple(shape)}, expected {size} or {(n_images, *size)}: a region for each "
            "pixel of the model's input"
        )
    regions = [numbered(of_image) for of_image in mask]
    if any(of_image.max() < 1 for of_image in regions):
        raise ValueError("feature_mask has a single region, expected two or more")
    return regions * n_images if len(regions) == 1 else regions


def sum_per_region(values: npt.NDArray[np.float64], regions: Regions) -> npt.NDArray[np.float64]:
    """The sum of a map, (H, W), over each region, (R,).

    Examples::

        >>> sum_per_region(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0, 0], [1, 1]]))
        array([3., 7.])
    """
    count = int(regions.max()) + 1
    sums: npt.NDArray[Any] = np.bincount(regions.ravel(), weights=values.ravel(), minlength=count)
    return sums.astype(np.float64)


@dataclass(frozen=True)
class RegionRemoval:
    """What a model says of an image without some of its regions: these get the mean color of the image.

    Args:
        classifier (ImageClassifier): The model.
        image (Tensor): Its input, (3, H, W).
        regions (array): Number of the region of each pixel, (H, W).
        target (int): The class.
        batch_size (int): Largest number of rows of a forward pass.
        on_rows (Callable, optional): Is called with the number of rows after each forward pass. Default: None.
    """

    classifier: ImageClassifier
    image: Tensor
    regions: Regions
    target: int
    batch_size: int
    on_rows: Callable[[int], object] | None = None

    def images(self, kept: Tensor) -> Tensor:
        """The image with some of its regions, (N, 3, H, W), from booleans (N, R)."""
        of_pixels = kept.to(self.image.device)[:, torch.from_numpy(self.regions).to(self.image.device)]
        return torch.where(of_pixels.unsqueeze(1), self.image, self.image.mean((1, 2), keepdim=True))

    def __call__(self, kept: Tensor) -> Tensor:
        """Probability of the class, (N,), float64, with the regions that are kept, (N, R), as booleans."""
        return self.probabilities(kept)[:, self.target]

    def probabilities(self, kept: Tensor) -> Tensor:
        """Probabilities of all classes, (N, C), float64, with the regions that are kept, (N, R), as booleans."""
        found = []
        for rows in torch.split(kept, self.batch_size):
            found.append(self.classifier.probabilities(self.images(rows), self.batch_size))
            if self.on_rows is not None:
                self.on_rows(len(rows))
        return torch.cat(found)


@dataclass(frozen=True)
class RemovalOrder:
    """The order of some regions by their removal.

    Attributes:
        order (tuple of int): Numbers of the regions, the most important one first.
        effects (tuple of float): Decrease in the probability by which each of them was ordered, in this order.
        alone (tuple of float): Decrease in the probability when each of them alone is removed, in this order.
        n_in_turn (int): How many of the first were removed one after the other: one in eight of all, two to eight;
            fewer where no further one lowers the probability. The effects of the others are their values.
    """

    order: tuple[int, ...]
    effects: tuple[float, ...]
    alone: tuple[float, ...]
    n_in_turn: int = 0


def order_by_removal(
    probability: Callable[[Tensor], Tensor], regions: Sequence[int], values: Sequence[float]
) -> RemovalOrder:
    """
    Settle the order of some regions, N of them, by what the model says without them.

    First comes the region whose removal lowers the probability most, then the one whose removal after it does. One in
    eight of all regions is chosen so, two to eight of them. Each time the eight are compared that lowered it most when
    they were compared last. The others follow by their values, the largest first.

    Args:
        probability (Callable): Function of the kept regions, (rows, R) booleans, that returns (rows,), as
            :class:`RegionRemoval`.
        regions (sequence of int): Their numbers.
        values (sequence of float): The value of each region of the image, (R,), in the unit of the probability, as of
            :func:`captum_iba.metrics.banzhaf_values`.

    Returns:
        RemovalOrder: After N + 1 forward passes, and at most eight more for each one in turn. The effects of these are
        the decreases by which they were chosen.

    Raises:
        ValueError: A number that is no region, or twice among them.

    Examples::

        >>> def probability(kept): return 0.5 * kept[:, 1] + 0.25 * (kept[:, 0] | kept[:, 2]) + 0.1 * kept[:, 3]
        >>> found = order_by_removal(probability, [0, 1, 3], values=[0.2, 0.5, 0.0, 0.1])
        >>> found.order, found.n_in_turn
        ((1, 3, 0), 2)
    """
    leaders, n_regions = list(regions), len(values)
    if len({*leaders}) < len(leaders) or not {*leaders} <= {*range(n_regions)}:
        raise ValueError(f"regions has {leaders}, expected different numbers from 0 to {n_regions - 1}")
    whole, *left = probability(kept_without([(), *([i] for i in leaders)], n_regions)).cpu().double().tolist()
    alone = {i: whole - value for i, value in zip(leaders, left, strict=True)}
    effects, in_turn, changes = {i: float(values[i]) for i in leaders}, list[int](), {i: -alone[i] for i in leaders}
    n_in_turn = min(_MOST_IN_TURN, max(_LEAST_IN_TURN, round(n_regions / _PER_ONE_IN_TURN)))
    tried, lowest = leaders, whole
    while tried and min(left) < lowest:
        chosen = tried[left.index(min(left))]
        effects[chosen], lowest = lowest - min(left), min(left)
        in_turn.append(chosen)
        if len(in_turn) == n_in_turn:
            break
        tried = sorted((i for i in leaders if i not in in_turn), key=changes.__getitem__)[:_N_COMPARED]
        left = probability(kept_without([(*in_turn, i) for i in tried], n_regions)).cpu().double().tolist()
        changes.update(zip(tried, (value - lowest for value in left), strict=True))
    order = [*in_turn, *sorted((i for i in leaders if i not in in_turn), key=lambda i: -effects[i])]
    of_each = (tuple(effects[i] for i in order), tuple(alone[i] for i in order))
    return RemovalOrder(tuple(order), *of_each, n_in_turn=len(in_turn))
