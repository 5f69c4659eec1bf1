"""Presets for images, the layers that each of them uses by default, and warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from captum_iba._checks import check_integer
from captum_iba._reading.wording import enumerated
from captum_iba.attr.settings import BottleneckSettings, resolve_settings
from captum_iba.vision.grids import ImageLayer

IMAGE_PRESETS = {
    # Chosen on training images: benchmarks/image_default.py.
    "default": BottleneckSettings(
        "token",
        beta=10.0,
        n_steps=10,
        n_samples=0,
        complement=1.0,
        momentum=0.5,
        tail_average=0.5,
        alternate=True,
        smoothing=1.0,
        antithetic=True,  # for those who set n_samples
    ),
    # Schulz et al. (2020) and their published code, IBA.pytorch.
    "per_sample": BottleneckSettings("feature", beta=10.0, n_steps=10, n_samples=10, smoothing=1.0),
    # Hong et al. (2025): one mask value per patch for all blocks, information at the first of them.
    "coiba": BottleneckSettings("token", beta=10.0, n_steps=10, n_samples=10),
}
"""Settings by name."""

_FEWEST_MEASURED, _MOST_MEASURED, _ONE_OF = 8, 16, 4  # regions; of all of them


def counts_of_measured(rerank: int | None, preset: str, n_regions: Sequence[int]) -> list[int]:
    """How many regions of each image are removed alone: as given, else a fourth of all, 8 to 16, by the default.

    Raises:
        ValueError: ``rerank`` is below 0.

    Examples::

        >>> counts_of_measured(None, "default", [16, 49, 196]), counts_of_measured(None, "per_sample", [16])
        ([8, 12, 16], [0])
    """
    if rerank is not None:
        check_integer("rerank", rerank, at_least=0)
        return [rerank] * len(n_regions)
    if preset != "default":
        return [0] * len(n_regions)
    return [min(_MOST_MEASURED, max(_FEWEST_MEASURED, count // _ONE_OF)) for count in n_regions]


MASK_LOST_PREDICTION = (
    "the mask removed too much of an image: with the information that is left, the class keeps too little of its "
    "probability (result.masked_probability, result.closed_probability), and bits may miss what decides; look at the "
    "check, or lower beta"
)
NO_CELL_NEEDED = (
    "no cell of an image has more bits than one that is not needed; the class keeps its probability without them: it "
    "may be that of an average image, or class tokens hold what decides; look at the check, or name an earlier layer"
)
_NAMED = 3
NO_STATISTICS = (
    "no statistics given: the noise has the statistics of each image, and attributions are less faithful; "
    "estimate_statistics with images like those to be explained improves on them"
)


def of_images(warning: str, names: Sequence[str]) -> str:
    """A warning with the names of the images that it is about, as far as they are known.

    Examples::

        >>> of_images("the mask removed too much", ["a.png", "b.png"])
        'a.png and b.png: the mask removed too much'
        >>> of_images("the mask removed too much", [""])
        'the mask removed too much'
    """
    known = [name for name in names if name]
    which = enumerated(known[:_NAMED], max(len(known) - _NAMED, 0)) if known else ""
    return f"{which}: {warning}" if which else warning


def lacking_statistics(known: Sequence[str], layers: Sequence[str]) -> str:
    """The warning where layers have no statistics, but others may have."""
    if not known:
        return NO_STATISTICS
    lacking = ", ".join(layer for layer in layers if layer not in known)
    return (
        f"statistics are of {', '.join(known)}, and {lacking} has none: estimate_statistics(images, preset=...) gives "
        f"those of a preset; without, {NO_STATISTICS.partition(': ')[2]}"
    )


def resolve_image_settings(
    preset: str | BottleneckSettings, overrides: Mapping[str, Any]
) -> tuple[str, BottleneckSettings]:
    """Name and settings of a preset for images with overrides.

    Raises:
        ValueError: An unknown preset, ``granularity="channel"``, or a value out of range.
        TypeError: A keyword that is no setting.
    """
    name = preset if isinstance(preset, str) else "custom"
    if isinstance(preset, str):
        if preset not in IMAGE_PRESETS:
            raise ValueError(f"preset is {preset!r}, expected one of {', '.join(IMAGE_PRESETS)}, or BottleneckSettings")
        preset = IMAGE_PRESETS[preset]
    if "layer" in overrides:
        raise TypeError("'layer' is an argument of ImageExplainer, and not of explain")
    settings = resolve_settings(preset, **overrides)
    if settings.granularity == "channel":
        raise ValueError("granularity is 'channel', expected 'token' or 'feature' for a map over the image")
    if settings.noise_around_input:
        raise ValueError("noise_around_input is True, expected False for images")
    return name, settings


def default_layers(
    preset: str,
    blocks: Sequence[ImageLayer],
    image_size: tuple[int, int],
    embeddings: ImageLayer | None = None,
) -> tuple[ImageLayer, ...]:
    """The layers of a preset, of all blocks that hold a grid.

    - ``"default"``: the middle and the end of the last third of the blocks; of transformers with a class token, which
      gathers what the class needs from the first block on, the embeddings of the patches and the first block.
    - ``"per_sample"``: the last block of an eighth of the image's resolution, as in Schulz et al. (2020); else the
      middle one.
    - ``"coiba"``: the first layer normalization of each block, from a quarter of the depth on, of the grid that most
      blocks have.
    """
    if preset == "per_sample":
        eighth = [block for block in blocks if block.grid.height * 8 <= image_size[0] < block.grid.height * 16]
        return ((eighth or blocks[: len(blocks) // 2 + 1])[-1],)
    if preset == "coiba":
        common = Counter(block.grid for block in blocks).most_common(1)[0][0]
        same = [block for block in blocks if block.grid == common]
        return tuple(_first_normalization(block) for block in same[len(same) // 4 :])
    if blocks[-1].grid.n_extra:
        part = blocks[: max(1, len(blocks) // 2)]
        chosen = [part[0], part[-1]] if embeddings is None else [embeddings, blocks[0]]
    else:
        part = blocks[2 * len(blocks) // 3 :]
        chosen = [part[(len(part) - 1) // 2], part[-1]]
    return tuple({layer.name: layer for layer in chosen}.values())


def _first_normalization(block: ImageLayer) -> ImageLayer:
    for name, module in block.module.named_modules():
        if isinstance(module, nn.LayerNorm):
            return ImageLayer(f"{block.name}.{name}", module, block.grid)
    return block
