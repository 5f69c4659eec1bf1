"""Images: read from files, arrays and PIL, made inputs of a model, and drawn again as the model saw them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._checks import kind_of
from captum_iba._warnings import warn_user

Pixels = npt.NDArray[np.uint8]
"""An image as it is drawn, (H, W, 3)."""

Transform = Callable[..., Any]
"""Makes an input (3, H, W) of a PIL image: of torchvision, or an image processor of transformers."""

Normalization = tuple[list[float], list[float]]
"""Mean and standard deviation of each channel."""

_OPAQUE = 255
_FAR = 1.0  # of the range of pixels, from 0 to 1, by which an input may leave it
_GRAY = 64  # pixels of a side of the images that a transform is tried on
_ORIENTATION, _ON_ITS_SIDE = 0x0112, range(5, 9)  # of EXIF data
_ENLARGED = 8  # times, above which an image has hardly any pixels
# What an 8-bit image is; others (I, F: 16 bits and more) would be cut off at 255.
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


def read_image(image: Any, name: str = "images") -> Pixels:
    """An image as 8-bit RGB, (H, W, 3).

    Grey images get three equal channels; transparent ones lie on white; a photo is turned as its EXIF data says; of
    an animation it is the first frame. Transparent pixels are worth a warning.

    Args:
        image (path, PIL.Image.Image or array): Arrays are (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of 8-bit numbers.
        name (str): What messages call it. Default: "images".

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A file that is no whole image, more than 8 bits per channel, or an array of another shape.
        TypeError: Something else.
        ModuleNotFoundError: Pillow is not installed.

    Examples::

        >>> read_image(np.zeros((4, 6), dtype=np.uint8)).shape
        (4, 6, 3)
    """
    pillow = _pillow()
    if isinstance(image, Tensor) and image.dtype is torch.uint8:
        image = image.movedim(0, -1).cpu().numpy() if image.ndim == 3 else image.cpu().numpy()
    if isinstance(image, np.ndarray):
        image = _from_array(image, name)
    elif isinstance(image, (str, os.PathLike)):
        image = _from_file(os.fspath(image), name)
    if not isinstance(image, pillow.Image):
        raise TypeError(f"{name} is {kind_of(image)}, expected a tensor, an array, a PIL image or the path of a file")
    if image.mode not in _MODES:
        raise ValueError(f"{name} is an image of mode {image.mode!r}, expected one of 8 bits per channel")
    if not all(image.size):
        raise ValueError(f"{name} is an image of {image.size[0]} x {image.size[1]} pixels, expected at least one")
    from PIL.ImageOps import exif_transpose

    turned = exif_transpose(image)
    if (layered := _with_alpha(turned)) is not None:
        if _has_transparent_pixels(layered):
            warn_user(f"{name} has transparent pixels; they lie on white, which is what the model sees")
        turned = pillow.alpha_composite(pillow.new("RGBA", layered.size, "white"), layered)
    return np.asarray(turned.convert("RGB"), dtype=np.uint8).copy()


def as_batch(images: Any, transform: Transform | None) -> tuple[list[Tensor], bool]:
    """Images as inputs of a model, each (3, H, W), and whether there was only one.

    Floating-point tensors are inputs already; everything else is read by :func:`read_image` and goes through the
    transform.

    Args:
        images (tensor, array, PIL image, path, or sequence of them): (3, H, W) or (B, 3, H, W), or as for
            :func:`read_image`; a sequence, or an array (B, H, W, C), has several.
        transform (Callable or None): Makes the input.

    Raises:
        TypeError, ValueError: As of :func:`read_image`; no images; an image without a transform; a transform that gives
            something else than (3, H, W).
    """
    one = is_one(images)
    if not one and not isinstance(images, (Tensor, np.ndarray, Sequence)):
        raise TypeError(
            f"images is {kind_of(images)}, expected a tensor, an array, a PIL image, a path, or several of them"
        )
    several = [images] if one else list(images)
    if not several:
        raise ValueError("images is empty, expected at least one")
    known = normalization(transform) if any(map(_is_input, several)) else None
    names = ["images" if one else f"images[{i}]" for i in range(len(several))]
    names = [
        f"{name} ({os.path.basename(image)})" if isinstance(image, (str, os.PathLike)) else name
        for name, image in zip(names, several, strict=True)
    ]
    return [_as_input(image, name, transform, known) for image, name in zip(several, names, strict=True)], one


def is_one(images: Any) -> bool:
    """Whether it is a single image, and not several."""
    if isinstance(images, (Tensor, np.ndarray)):
        return images.ndim < 4
    return isinstance(images, (str, os.PathLike)) or _is_pillow(images)


def size_of(image: Any) -> tuple[int, int] | None:
    """Rows and columns of an image before the transform, (H, W); None of a tensor that is an input already."""
    if _is_input(image):
        return None
    if isinstance(image, (Tensor, np.ndarray)):
        height, width = image.shape[-2:] if isinstance(image, Tensor) else image.shape[:2]
        return int(height), int(width)
    if isinstance(image, (str, os.PathLike)):
        with _pillow().open(image) as file:
            return size_of(file)
    width, height = image.size
    return (width, height) if image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE else (height, width)


def is_transparent(image: Any) -> bool:
    """Whether an image has transparent pixels, which lie on white; False of a tensor that is an input already."""
    if _is_input(image):
        return False
    if isinstance(image, (Tensor, np.ndarray)):
        array = image.movedim(0, -1).cpu().numpy() if isinstance(image, Tensor) and image.ndim == 3 else image
        return array.ndim == 3 and array.shape[-1] == 4 and bool((np.asarray(array)[..., 3] < _OPAQUE).any())
    if isinstance(image, (str, os.PathLike)):
        with _pillow().open(image) as file:
            return is_transparent(file)
    layered = _with_alpha(image)
    return layered is not None and _has_transparent_pixels(layered)


def _with_alpha(image: Any) -> Any:
    """A PIL image as RGBA, if it has an alpha channel; else None."""
    image = image.convert("LA") if image.mode == "La" else image
    has_alpha = image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info
    return image.convert("RGBA") if has_alpha else None


def _has_transparent_pixels(layered: Any) -> bool:
    return bool(layered.getchannel("A").getextrema() != (_OPAQUE, _OPAQUE))


def _is_input(image: Any) -> bool:
    """Whether an image is an input of the model already: a tensor of other than 8-bit pixels."""
    return isinstance(image, Tensor) and image.dtype is not torch.uint8


def _as_input(image: Any, name: str, transform: Transform | None, known: Normalization | None) -> Tensor:
    if _is_input(image):
        if not image.is_floating_point():
            raise ValueError(f"{name} has the dtype {image.dtype}, expected floating-point numbers, or uint8 pixels")
        made = _check_input(image.detach(), name)
        if known is not None:
            _warn_of_range(made, name, known)
        return made
    pixels = read_image(image, name)
    if transform is None:
        raise ValueError(
            f"{name} is {kind_of(image)}, and transform is None; expected a transform that makes the model's "
            "input of it (torchvision's weights.transforms(), an image processor of transformers), or a tensor that is "
            "that input"
        )
    made = _check_input(transformed(pixels, transform, name), f"transform({name})")
    if min(made.shape[1:]) > _ENLARGED * min(pixels.shape[:2]):
        warn_user(
            f"{name} is an image of {pixels.shape[1]} x {pixels.shape[0]} pixels, which the transform enlarges to "
            f"{made.shape[2]} x {made.shape[1]}; regions may be smaller than a pixel"
        )
    return made


def transformed(pixels: Pixels, transform: Any, name: str) -> Tensor:
    """The input that a transform makes of an image, (3, H, W).

    An image processor of transformers is called by its own names. ValueError, with the image's ``name``, if it fails.
    """
    picture = _pillow().fromarray(pixels)
    is_processor = callable(getattr(transform, "preprocess", None)) and hasattr(transform, "model_input_names")
    try:
        made = transform(images=[picture], return_tensors="pt") if is_processor else transform(picture)
    except Exception as error:
        raise ValueError(
            f"transform failed on {name}: {type(error).__name__}: {error}; expected a function of one PIL image that "
            "returns a tensor (3, H, W), or an image processor of transformers"
        ) from error
    if is_processor:
        values = made[transform.model_input_names[0]]
        return values[0] if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))[0]
    if not isinstance(made, Tensor):
        raise TypeError(f"transform gives {kind_of(made)}, expected a tensor (3, H, W)")
    return made


def _check_input(image: Tensor, name: str) -> Tensor:
    if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
        hint = "; a grey image has to be repeated: image.expand(3, -1, -1)" * (image.ndim == 3 and len(image) == 1)
        last = "; its channels are last: image.movedim(-1, 0)" * (image.ndim == 3 and image.shape[-1] == 3)
        raise ValueError(f"{name} has the shape {tuple(image.shape)}, expected (3, H, W){hint}{last}")
    if not bool(image.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinity, expected finite numbers")
    return image


def normalization(transform: Transform | None) -> Normalization | None:
    """Mean and standard deviation by which a transform normalizes each channel; None where it does not say so.

    A function that has no such attributes is called with three images of a single gray each.
    """
    for item in (transform, *getattr(transform, "transforms", ())):
        for names in (("image_mean", "image_std"), ("mean", "std")):
            mean, std = (getattr(item, name, None) for name in names)
            if isinstance(mean, (list, tuple, Tensor)) and isinstance(std, (list, tuple, Tensor)) and len(mean) == 3:
                if getattr(item, "do_normalize", True) is False:
                    continue
                return [float(value) for value in mean], [float(value) for value in std]
    return None if transform is None else _measured_normalization(transform)


def _measured_normalization(transform: Transform) -> Normalization | None:
    """Mean and standard deviation of each channel by images of one gray each; None if it is not linear."""
    channels = []
    for level in (0, 51, 255):
        pixels = np.full((_GRAY, _GRAY, 3), level, dtype=np.uint8)
        try:
            with torch.random.fork_rng(devices=[]):  # a random transform leaves the user's state as it was
                made = transformed(pixels, transform, "gray")
        except (TypeError, ValueError):
            return None
        if made.ndim != 3 or made.shape[0] != 3:
            return None
        values = made.detach().cpu().double().flatten(1)
        if not torch.allclose(values, values[:, :1].expand_as(values), atol=1e-5):
            return None  # padded, or random
        channels.append(values[:, 0])
    black, dark, white = channels
    if not bool((white - black > 0).all()) or not torch.allclose(dark, black + 0.2 * (white - black), atol=1e-3):
        return None
    std = 1 / (white - black)
    return (-black * std).tolist(), std.tolist()


def _warn_of_range(image: Tensor, name: str, known: Normalization) -> None:
    """Warn of numbers that are far outside what the transform makes of pixels: of 0 to 255, for example."""
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in known)
    values = image.cpu().float() * std + mean
    if float(values.min()) < -_FAR or float(values.max()) > 1 + _FAR:
        low, high = float((-mean / std).min()), float(((1 - mean) / std).max())
        warn_user(
            f"{name} has numbers from {float(image.min()):.3g} to {float(image.max()):.3g}, and the transform gives "
            f"numbers from {low:.3g} to {high:.3g}: floating-point tensors are inputs of the model, which the "
            "transform does not change; pass pixels as uint8, or what the transform returns"
        )


def drawn(image: Tensor, known: Normalization | None = None) -> Pixels:
    """An input of a model, (3, H, W), as it is drawn: its :func:`normalization` is undone.

    Where that is not known, numbers from 0 to 1 are taken as they are, and others are stretched from the least to
    the largest.

    Examples::

        >>> drawn(torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1)).tolist()
        [[[0, 128, 255]]]
    """
    values = image.detach().cpu().float()
    if known is not None:
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in known)
        values = values * std + mean
    elif float(values.min()) < 0 or float(values.max()) > 1:
        values = (values - values.min()) / (values.max() - values.min()).clamp_min(1e-12)
    pixels: Pixels = (255 * values.clamp(0, 1)).round().to(torch.uint8).movedim(0, -1).numpy()
    return pixels


def png_bytes(pixels: Pixels) -> bytes:
    """An image as the content of a PNG file."""
    content = io.BytesIO()
    _pillow().fromarray(pixels).save(content, format="PNG", optimize=False)
    return content.getvalue()


def pixels_of_png(content: bytes) -> Pixels:
    """The image in the content of a PNG file."""
    pixels: Pixels = np.asarray(_pillow().open(io.BytesIO(content)).convert("RGB"), dtype=np.uint8)
    return pixels


def _from_array(array: npt.NDArray[Any], name: str) -> Any:
    if array.dtype != np.uint8:
        raise ValueError(
            f"{name} is an array of {array.dtype}, expected pixels of uint8 from 0 to 255, or a tensor that is the "
            "model's input"
        )
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (3, 4))) or 0 in array.shape:
        raise ValueError(f"{name} has the shape {array.shape}, expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    return _pillow().fromarray(np.ascontiguousarray(array))


def _from_file(path: str, name: str) -> Any:
    if not os.path.isfile(path):
        what = "is a folder" if os.path.isdir(path) else "does not exist"
        raise FileNotFoundError(f"{name} is {path}, which {what}, expected the file of an image")
    try:
        with _pillow().open(path) as image:
            image.load()
            return image
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ValueError(f"{name} is {path}, which is not a whole image: {error}") from error


def _is_pillow(image: Any) -> bool:
    return type(image).__module__.partition(".")[0] == "PIL"


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "images need Pillow, which is not installed: pip install 'captum-iba[vision]'", name="PIL"
        ) from error
    return Image
