"""Faithfulness and cost of attributions of images: methods compared by removal and insertion of tiles.

    python -m benchmarks.images --model resnet56.safetensors --data cifar10_test_600.npz

``--model`` is a folder of transformers, or a file of weights beside a ``resnet.py`` with ``load(path)`` and
``normalise(images)``. Explained is the predicted class. Written are the rows, with which the same command goes on, and
the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from captum_iba._files import write_text
from captum_iba.compare.image_comparison import compare_images
from captum_iba.compare.image_files import read_images
from captum_iba.methods.iba_of_images import iba_of_images
from captum_iba.methods.image_methods import IMAGE_METHODS, lime_of_images
from captum_iba.metrics import tiles
from captum_iba.vision import ImageExplainer

RESULTS = Path(__file__).parent / "results"
METHODS: dict[str, Any] = {
    "iba": iba_of_images,
    **{name: IMAGE_METHODS[name].function for name in ("grad_cam", "guided_grad_cam", "ig", "gradient_shap")},
    "occlusion": IMAGE_METHODS["occlusion"].function,
    "lime@n_samples=145": partial(lime_of_images, n_samples=145),  # the passes of the default
    "lime@n_samples=200": partial(lime_of_images, n_samples=200),
    "random": IMAGE_METHODS["random"].function,
}


def load(path: Path, images: list[Any]) -> tuple[nn.Module, Tensor]:
    """The model, and the images as it takes them."""
    if path.is_dir():
        explainer = ImageExplainer.from_pretrained(path)
        return explainer.model, explainer.inputs(images)
    spec = importlib.util.spec_from_file_location("resnet", path.with_name("resnet.py"))
    assert spec is not None and spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    return code.load(str(path)), code.normalise(np.stack(images))


def main(arguments: list[str] | None = None) -> None:
    """Compare, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="npz with images, or a folder of them")
    parser.add_argument("--statistics", type=Path, help="npz with images, or a folder, for the statistics of iba")
    parser.add_argument("--images", type=int, default=300, help="number of images, a random sample (default: 300)")
    parser.add_argument("--tile", type=int, default=4, help="pixels of a side of a tile (default: 4)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--rows", type=Path, required=True, help="folder for the rows")
    parser.add_argument("--out", type=Path, help="file of the table (default: results/images_MODEL.md)")
    given = parser.parse_args(arguments)
    if "iba" in given.methods and given.statistics is None:
        parser.error("--statistics: expected images for the statistics of iba")

    found = read_images(given.data).images
    chosen = np.random.default_rng(0).permutation(len(found))[: given.images]
    model, images = load(given.model, [found[number] for number in sorted(chosen)])
    regions = tiles(*images.shape[2:], size=given.tile)
    methods = {name: METHODS[name] for name in given.methods}
    if "iba" in methods:
        explainer = ImageExplainer(model)
        explainer.estimate_statistics(load(given.model, read_images(given.statistics).images)[1])
        methods["iba"] = partial(iba_of_images, explainer=explainer)
    torch.set_num_threads(1)
    result = compare_images(model, images, methods=methods, regions=regions, folder=given.rows, show_progress=True)
    out = given.out or RESULTS / f"images_{given.model.stem}.md"
    named = given.methods != list(METHODS)
    shown = [f"--model {given.model.name}", f"--data {given.data.name}", f"--images {given.images}"]
    shown += [f"--statistics {given.statistics.name}"] if given.statistics else []
    shown += [f"--tile {given.tile}", *([f"--methods {' '.join(given.methods)}"] if named else []), "--rows ROWS"]
    text = f"# Image attributions, {given.model.stem}\n\n`python -m benchmarks.images {' '.join(shown)}`\n\n"
    write_text(out, f"{text}{result.to_markdown()}\n")
    print(result, file=sys.stdout)


if __name__ == "__main__":
    main()
