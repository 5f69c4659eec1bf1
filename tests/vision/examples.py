"""An attribution of an image with values by hand."""

import numpy as np

from captum_iba.vision import ImageAttribution, ImageCheck, LayerMap, tile_regions


def image_attribution(size=8, measured=(3, 0), effects=(0.4, 0.1), check=True, label="dog", n_in_turn=2, values=None):
    """2 x 2 tiles: tile 3 has half of the bits above the floor, tile 2 nothing.

    The value of a measured tile is its effect, and that of the others is a small one, unless ``values`` has others.
    """
    if values is None and measured:
        values = tuple(dict(zip(measured, effects, strict=True)).get(tile, 0.01 - 0.001 * tile) for tile in range(4))
    generator = np.random.default_rng(0)
    return ImageAttribution(
        image=generator.integers(0, 256, (size, size, 3), dtype=np.uint8),
        layers=(LayerMap("layer3", np.array([[2.0, 2.0], [1.0, 3.0]]), 1.0, 0.8, 0.1),),
        regions=tile_regions(size, size, n_tiles=2),
        measured=measured,
        effects=effects,
        values=values or (),
        effects_alone=tuple(effect / 2 for effect in effects),
        n_in_turn=n_in_turn,
        target=1,
        target_label=label,
        target_probability=0.9,
        predicted=1,
        predicted_label=label,
        predicted_probability=0.9,
        preset="default",
        settings={"beta": 30.0, "seed": 0},
        statistics="a dataset of 1,000 positions",
        name="photo.png",
        model="cnn",
        check=ImageCheck(2, 0.9, 0.3, 0.91, 0.7, 10) if check else None,
        provenance={"torch": "2"},
    )
