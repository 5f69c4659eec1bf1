"""Images from a folder or an archive of NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from captum_iba._files import IMAGE_ENDINGS
from captum_iba.vision.images import read_image


class FileOfImages(NamedTuple):
    """Images, (H, W, 3) uint8 each, their names, and their labels, if there are any."""

    images: list[Any]
    names: list[str]
    labels: list[int] | None


def read_images(source: str | Path) -> FileOfImages:
    """The images of a folder, or of an ``.npz`` with ``images`` (N, H, W, 3) uint8 and perhaps ``labels`` (N,).

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: A file of another kind, or one that cannot be read; the message names it.
    """
    path = Path(source)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist, expected a folder of images, or an .npz")
    if path.suffix != ".npz":
        raise ValueError(f"{path} is neither a folder of images nor an .npz")
    try:
        with np.load(path, allow_pickle=False) as archive:
            content = {name: archive[name] for name in ("images", "labels") if name in archive}
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    images, labels = content.get("images"), content.get("labels")
    if images is None or images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not len(images):
        described = "no array" if images is None else f"{images.shape} {images.dtype}"
        raise ValueError(f"{path}: images is {described}, expected (N, H, W, 3) uint8")
    if labels is not None and (labels.shape != (len(images),) or labels.dtype.kind not in "iu"):
        raise ValueError(f"{path}: labels is {labels.shape} {labels.dtype}, expected {len(images)} integers")
    names = [str(number) for number in range(len(images))]
    return FileOfImages(list(images), names, None if labels is None else [int(label) for label in labels])


def _read_folder(folder: Path) -> FileOfImages:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS and path.is_file())
    if not paths:
        raise ValueError(f"{folder} has no images, expected files that end in {', '.join(IMAGE_ENDINGS)}")
    return FileOfImages(
        [read_image(path, str(path)) for path in paths], [str(path.relative_to(folder)) for path in paths], None
    )
