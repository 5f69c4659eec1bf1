"""What an attribution of an image of 224 pixels costs beside occlusion, whose forward passes grow with the regions.

    python -m benchmarks.image_cost

ResNet-50 and ViT-B/16 of random weights: the cost does not depend on what a network has learned. The bottleneck runs 4
images at a time, occlusion 8 regions of one image. Rows are those of forward passes that begin at the model;
passes from a layer on, and backward passes, are in the seconds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from captum.attr import FeatureAblation
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

from benchmarks.page import RESULTS, keep, machine
from captum_iba.vision import ImageExplainer, tile_regions

N_IMAGES, BATCH = 4, 8
TILES = {"7 x 7": 7, "14 x 14": 14}


def networks() -> dict[str, Callable[[], nn.Module]]:
    """Models by name."""
    return {
        "ResNet-50": lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)),
        "ViT-B/16": lambda: ViTForImageClassification(ViTConfig(num_labels=1000)),
    }


def measure(model: nn.Module) -> dict[str, dict[str, float]]:
    """Rows and seconds per image, by the number of tiles and the method."""
    images = torch.randn(N_IMAGES, 3, 224, 224)
    explainer = ImageExplainer(model)
    explainer.estimate_statistics(images)
    targets = [0] * N_IMAGES
    counted = [0]

    def count(module: nn.Module, arguments: Any, keywords: dict[str, Any]) -> None:
        counted[0] += len(arguments[0] if arguments else keywords["pixel_values"])

    model.register_forward_pre_hook(count, with_kwargs=True)
    found = {}
    for name, n_tiles in TILES.items():
        regions = torch.as_tensor(tile_regions(224, 224, n_tiles))
        for method in ("iba", "occlusion"):
            counted[0], began = 0, time.perf_counter()
            if method == "iba":
                explainer.explain(images, target=targets, feature_mask=regions)
            else:
                ablation = FeatureAblation(lambda given: explainer.classifier.logits(given))
                for image, target in zip(images, targets, strict=True):
                    baseline = image.mean((1, 2), keepdim=True)[None]
                    settings = {"feature_mask": regions[None, None], "perturbations_per_eval": BATCH}
                    with torch.no_grad():
                        ablation.attribute(image[None], baseline, target, **settings)
            seconds = time.perf_counter() - began
            found[f"{method}, {name} tiles"] = {"rows": counted[0] / N_IMAGES, "seconds": seconds / N_IMAGES}
            print(found, flush=True)
    return found


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "image_cost")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # on what random weights say
    lines = ["| network | method | rows per image | seconds per image |", "|---|---|---|---|"]
    figures = {}
    for name, build in networks().items():
        torch.manual_seed(0)
        figures[name] = measure(build().eval())
        for row, cost in figures[name].items():
            lines.append(f"| {name} | {row} | {cost['rows']:.0f} | {cost['seconds']:.1f} |")
    keep(out, "image_cost", None, "The cost of images of 224 pixels", machine(), "\n".join(lines), figures=figures)


if __name__ == "__main__":
    main()
