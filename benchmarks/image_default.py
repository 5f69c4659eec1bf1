"""How the default for images was chosen: faithfulness and cost of its parts, on training images.

    python -m benchmarks.image_default --network resnet.py --weights resnet56.safetensors --data cifar10_train.npz

``--network`` is a Python file with ``load(weights)``, which gives a module, and ``normalise(images)``, which makes its
inputs of uint8 images (B, H, W, 3); the .npz file holds such ``images``. The first images are explained, those after
them give the statistics. Regions are removed in the order of each method, most relevant first (MoRF) and least relevant
first (LeRF); removed ones get the mean color of the image. "lost" is the share of the images whose final mask has lost
the prediction. Intervals of the differences to occlusion are paired.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from captum.attr import FeatureAblation
from torch import Tensor

from benchmarks.page import RESULTS, keep, machine
from captum_iba.metrics import banzhaf_values, paired_bootstrap
from captum_iba.vision import (
    ImageAttribution,
    ImageExplainer,
    RegionRemoval,
    find_image_layers,
    order_by_removal,
    tile_regions,
)

Scores = np.ndarray[Any, np.dtype[np.float64]]
REFERENCE = "occlusion"
BATCH, N_TIMED, N_ALONE = 8, 5, 8


def load_file(path: Path) -> Any:
    """A Python file as a module."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def faithfulness(removal: RegionRemoval, scores: Scores) -> tuple[float, float]:
    """Area between the LeRF and the MoRF curve, and the drop without the first eighth of the regions."""
    n_regions = len(scores)
    rank = torch.from_numpy(np.argsort(np.argsort(-scores, kind="stable"), kind="stable"))
    counts = torch.arange(n_regions + 1).unsqueeze(1)
    kept = torch.cat([rank >= counts, rank < n_regions - counts])
    morf, lerf = removal(kept).chunk(2)
    return float((lerf - morf).mean()), float(morf[0] - morf[round(n_regions / 8)])


def occlusion(explainer: ImageExplainer, image: Tensor, target: int, regions: Tensor) -> Scores:
    """Captum's FeatureAblation by the mean color, one region a pass, as it does by default."""
    baseline = image.mean((2, 3), keepdim=True)
    with torch.no_grad():
        probability = lambda images: explainer.classifier.logits(images).softmax(-1)  # noqa: E731
        found = FeatureAblation(probability).attribute(image, baseline, target, feature_mask=regions[None, None])
    return np.array([float(found[0, 0][regions == region][0]) for region in range(int(regions.max()) + 1)])


def by_values(bits: ImageAttribution, removal: RegionRemoval, n_rows: int, with_bits: bool) -> Scores:
    """Scores by the removal of halves: with the bits as prior or without, and eight regions removed alone."""
    prior = bits.target_probability * bits.shares * with_bits
    values = banzhaf_values(removal, bits.n_regions, torch.from_numpy(prior), n_rows=n_rows).tolist()
    leaders = np.argsort(-np.array(values), kind="stable")[:N_ALONE].tolist()
    found = order_by_removal(removal, leaders, values)
    in_turn = found.order[: found.n_in_turn]
    scores = np.array(values)
    scores[list(in_turn)] = max(values) + np.arange(len(in_turn), 0, -1)
    return scores


def candidates(blocks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of ``explain`` by the name of the row; ``layer`` makes an explainer of its own."""
    later = blocks[2 * len(blocks) // 3 :]
    one = [later[(len(later) - 1) // 2]]
    four = [later[-(-(i + 1) * len(later) // 4) - 1] for i in range(4)]
    return {
        "default": {},
        "default, bits alone": {"rerank": 0},
        "default, one layer": {"layer": one},
        "default, no smoothing": {"smoothing": 0.0},
        "default, 16 steps": {"n_steps": 16},
        "default, 6 regions removed": {"rerank": 6},
        "per_sample, bits alone": {"preset": "per_sample"},
        "default, beta 10 alone": {"beta": 10.0},
        "default, beta 30": {"beta": 30.0},
        "default, beta 100": {"beta": 100.0},
        "default, four layers": {"layer": four},
    }


def measure(
    explainer: ImageExplainer, images: Tensor, training: Tensor, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Of each row the two figures of every image, milliseconds an image, and rows an image."""
    regions = tile_regions(*images.shape[-2:])
    tiles = torch.from_numpy(regions)
    rows = [0]
    explainer.model.register_forward_pre_hook(lambda module, inputs: rows.__setitem__(0, rows[0] + len(inputs[0])))
    with torch.no_grad():
        targets = explainer.model(images).argmax(-1).tolist()
    removals = [
        RegionRemoval(explainer.classifier, image, regions, target, 64)
        for image, target in zip(images, targets, strict=True)
    ]
    figures: dict[str, Any] = {}

    def row(name: str, compute: Callable[[range], list[Scores]]) -> None:
        rows[0], start = 0, time.process_time()
        for i in range(N_TIMED):
            compute(range(i, i + 1))
        one_by_one, n_rows = time.process_time() - start, rows[0]
        start = time.process_time()
        scores = [of_image for i in range(0, len(images), BATCH) for of_image in compute(batch_from(i))]
        batched = time.process_time() - start
        found = [faithfulness(removal, of_image) for removal, of_image in zip(removals, scores, strict=True)]
        area, drop = zip(*found, strict=True)
        figures[name] = {
            "area": area,
            "drop": drop,
            "rows": n_rows / N_TIMED,
            "milliseconds": 1000 * one_by_one / N_TIMED,
            "milliseconds in batches": 1000 * batched / len(images),
        }
        save(figures)

    def batch_from(start: int) -> range:
        return range(start, min(start + BATCH, len(images)))

    def occluded(batch: range) -> list[Scores]:
        return [occlusion(explainer, images[i : i + 1], targets[i], tiles) for i in batch]

    row(REFERENCE, occluded)
    blocks = [layer.name for layer in find_image_layers(explainer.model, images[:1])]
    results: dict[int, ImageAttribution] = {}
    bits: dict[int, ImageAttribution] = {}
    for name, options in candidates(blocks).items():
        layer, preset = options.pop("layer", None), options.get("preset", "default")
        own = explainer
        if layer is not None or preset != "default":
            own = ImageExplainer(explainer.model, layer=layer)
            own.estimate_statistics(training, preset=preset)

        def explained(batch: range, own: ImageExplainer = own, options: dict[str, Any] = options) -> list[Scores]:
            found = own.explain(images[batch.start : batch.stop], target=targets[batch.start : batch.stop], **options)
            results.update(zip(batch, found, strict=True))
            return [result.scores for result in found]

        row(name, explained)
        figures[name]["lost"] = float(np.mean([results[i].lost_prediction for i in range(len(images))]))
        save(figures)
        if name == "default, bits alone":
            bits = dict(results)
    for n_rows, with_bits in ((64, True), (64, False), (32, True), (128, True), (128, False)):

        def reordered(batch: range, n_rows: int = n_rows, with_bits: bool = with_bits) -> list[Scores]:
            return [by_values(bits[i], removals[i], n_rows, with_bits) for i in batch]

        row(f"values of {n_rows} halves with{'' if with_bits else 'out'} bits (cost of the removal)", reordered)
    return figures


def table_of(figures: dict[str, Any]) -> str:
    """The means, with paired intervals of the differences to occlusion."""
    table = [
        "| | LeRF - MoRF | less occlusion | drop at 1/8 | less occlusion | lost | rows | ms | ms in batches |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    reference = figures[REFERENCE]
    for name, row in figures.items():
        cells: list[str] = []
        for metric in ("area", "drop"):
            cells.append(f"{np.mean(row[metric]):.3f}")
            difference = paired_bootstrap(row[metric], reference[metric])
            interval = f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"
            cells.append("" if name == REFERENCE else interval)
        cells.append(f"{row['lost']:.2f}" if "lost" in row else "")
        table.append(
            f"| {name} | {' | '.join(cells)} | {row['rows']:.0f} | {row['milliseconds']:.0f} | "
            f"{row['milliseconds in batches']:.0f} |"
        )
    return "\n".join(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--statistics-images", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS / "image_default")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Fewer than")
    network = load_file(options.network)
    model = network.load(str(options.weights))
    with np.load(options.data) as file:
        images = network.normalise(file["images"][: options.images + options.statistics_images])
    explained, training = images[: options.images], images[options.images :]
    explainer = ImageExplainer(model)
    explainer.estimate_statistics(training)
    named = [f"--{name}={Path(getattr(options, name)).name}" for name in ("network", "weights", "data")]
    named += [f"--images={options.images}", f"--statistics-images={options.statistics_images}"]

    def save(figures: dict[str, Any]) -> None:
        about = (
            f"{len(explained)} images, statistics of {len(training)} others. Rows of forward passes for an image; "
            "those of the bottleneck begin at its layer. Milliseconds of one core, for "
            f"{N_TIMED} images one at a time, and for all in batches of {BATCH} (occlusion runs each by itself)."
        )
        body = f"{about}\n\n{table_of(figures)}"
        keep(options.out, "image_default", named, "The default for images", machine(), body, figures=figures)

    measure(explainer, explained, training, save)


if __name__ == "__main__":
    main()
