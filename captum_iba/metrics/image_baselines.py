"""Tiles of an image, and what takes the place of those that are removed: its mean color, or the image blurred."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from captum_iba._checks import check_integer, check_number, kind_of


def tiles(
    height: int, width: int, size: int | tuple[int, int] | None = None, counts: tuple[int, int] | None = None
) -> Tensor:
    """
    A feature mask of rectangular tiles, numbered row by row from 0.

    Args:
        height, width (int): Size of the images in pixels.
        size (int or tuple of int, optional): Height and width of a tile in pixels; the last tiles of a row or column
                    are smaller where they do not fit. Default: None, ``counts`` are given
        counts (tuple of int, optional): Number of tiles in a column and in a row, of sizes that differ by a pixel at
                    most. Default: None, ``size`` is given

    Returns:
        *Tensor*: int64, (1, height, width), as ``feature_mask`` of :func:`degradation` and of Captum's methods.

    Raises:
        ValueError: Neither or both of ``size`` and ``counts``, or one that the images cannot have.

    Examples::

        >>> tiles(2, 4, size=2)
        tensor([[[0, 0, 1, 1],
                 [0, 0, 1, 1]]])
        >>> tiles(2, 3, counts=(2, 2))
        tensor([[[0, 0, 1],
                 [2, 2, 3]]])
    """
    if (size is None) == (counts is None):
        raise ValueError(f"size is {size} and counts is {counts}, expected one of them")
    lengths = {"height": height, "width": width}
    for name, length in lengths.items():
        check_integer(name, length, at_least=1, kind=Integral)
    given, name = (size, "size") if counts is None else (counts, "counts")
    pair = (given, given) if isinstance(given, Integral) and counts is None else given
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"{name} is {given!r}, expected two integers, of rows and of columns")
    for number, length in zip(pair, lengths.values(), strict=True):
        check_integer(name, number, at_least=1, kind=Integral)
        if number > length:
            raise ValueError(f"{name} is {given!r}, expected at most {(height, width)}, the size of the images")
    places = []
    for number, length in zip(pair, lengths.values(), strict=True):
        pixels = torch.arange(length)
        # Halves up: of 3 pixels in 2 parts the first gets two.
        places.append(pixels // number if counts is None else (pixels * number) // length)
    rows, columns = places
    return (rows[:, None] * (int(columns[-1]) + 1) + columns)[None]


def mean_color(images: Tensor) -> Tensor:
    """
    The mean color of each image, as a baseline of its removed pixels.

    Args:
        images (Tensor): Images, (B, C, H, W).

    Returns:
        *Tensor*: (B, C, 1, 1).

    Raises:
        ValueError: Images of another shape.

    Examples::

        >>> mean_color(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[[[2.]]]])
    """
    check_images("images", images)
    return images.mean((2, 3), keepdim=True)


def blurred(images: Tensor, sigma: float | None = None) -> Tensor:
    """
    Each image, blurred by a Gaussian, as a baseline of its removed pixels; images end with their mirror image.

    Petsiuk et al. 2018 insert pixels into such an image, so that no edges appear that the model could read.

    Args:
        images (Tensor): Images, (B, C, H, W).
        sigma (float, optional): Standard deviation in pixels. The sum ends at three standard deviations.
                    Default: None, an eighth of the shorter side

    Returns:
        *Tensor*: (B, C, H, W).

    Raises:
        ValueError: Images of another shape, or a ``sigma`` that is not positive.

    Examples::

        >>> blurred(torch.tensor([[[[0.0, 0.0, 1.0, 0.0, 0.0]]]]), sigma=0.5).round(decimals=2)
        tensor([[[[0.0000, 0.1100, 0.7900, 0.1100, 0.0000]]]])
    """
    check_images("images", images)
    if sigma is None:
        sigma = min(images.shape[2:]) / 8
    check_number("sigma", sigma)
    result, channels = images, images.shape[1]
    for dim in (2, 3):
        radius = min(max(1, round(3 * sigma)), images.shape[dim] - 1)
        weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / sigma) ** 2)
        kernel = (weights / weights.sum()).to(images).view(1, 1, *((-1, 1) if dim == 2 else (1, -1)))
        sides = (0, 0, radius, radius) if dim == 2 else (radius, radius, 0, 0)
        mirrored = pad(result, sides, mode="reflect")
        result = conv2d(mirrored, kernel.expand(channels, 1, *kernel.shape[2:]), groups=channels)
    return result


def check_images(name: str, images: Tensor) -> None:
    """ValueError unless these are images (B, C, H, W), at least one, of floating-point numbers."""
    if not isinstance(images, Tensor):
        raise TypeError(f"{name} is {kind_of(images)}, expected a tensor (B, C, H, W)")
    if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        raise ValueError(
            f"{name} has the shape {tuple(images.shape)} and the type {images.dtype}, expected floating-point images "
            "(B, C, H, W)"
        )
