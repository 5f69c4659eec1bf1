"""Are the regions that an explanation of an image names the ones that the model needs? By removal, bits, occlusion.

    python -m benchmarks.leading_regions --network resnet.py --weights resnet56.safetensors --data cifar10_test.npz \
        --statistics-from cifar10_train.npz

For every image the leading regions of ``ImageExplainer.explain`` with a check are removed: they get the mean color. As
many regions are removed in two other orders: by their bits, and by what the removal of each alone changes (occlusion).
Two more rows are of the leading regions without the exchange of :func:`captum_iba.vision.leading_by_removal`, and of
the best set of as many measured regions, which is the bound of any rule. The table has the mean decrease in the
probability of the predicted class, and the paired difference to the leading regions. Files have the form of
``benchmarks.image_default``. The rule was chosen on training images.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_default import load_file
from benchmarks.page import RESULTS, keep, machine, table_of_decreases
from captum_iba.metrics.part_removal import CachedRemoval
from captum_iba.vision import ImageAttribution, ImageExplainer, RegionRemoval, leading_by_removal

_ROWS = (
    "the leading regions",
    "as many by bits",
    "as many by occlusion",
    "the leading regions, without exchange",
    "the best set of as many measured regions",
)
_MOST = 5000  # sets of measured regions that are tried


def decreases(explainer: ImageExplainer, result: ImageAttribution, image: Tensor) -> list[float] | None:
    """Number of leading regions, and the decrease without them and others; None where there are too many sets."""
    assert result.check is not None
    leading, measured, n_regions = result.leading, result.measured, result.n_regions
    removal = CachedRemoval(RegionRemoval(explainer.classifier, image, result.regions, result.target, 64))

    def without(sets: list[list[int]]) -> np.ndarray:
        kept = torch.tensor([[region not in one for region in range(n_regions)] for one in sets])
        return result.target_probability - removal(kept).numpy()

    sets = [list(one) for one in combinations(sorted({*measured, *leading}), len(leading))]
    if len(sets) > _MOST:
        return None
    alone = -without([[region] for region in range(n_regions)])
    orders = [np.argsort(values, kind="stable").tolist() for values in (-result.shares, alone)]
    order = (-result.scores).argsort()
    first = leading_by_removal(removal, order, len(measured or leading))[0]
    found = without([leading, *(order[: len(leading)] for order in orders), first])
    return [float(len(leading)), *found.tolist(), float(without(sets).max())]


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leading_regions", description=__doc__.split("\n")[0])
    parser.add_argument("--network", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--statistics-from", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--statistics-images", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS / "leading_regions", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    network = load_file(options.network)
    explainer = ImageExplainer(network.load(options.weights).eval())
    images, others = (
        network.normalise(np.load(path)["images"][:count])
        for path, count in ((options.data, options.images), (options.statistics_from, options.statistics_images))
    )
    explainer.estimate_statistics(others)
    results = explainer.explain(images, check=True)
    found = [decreases(explainer, result, image) for result, image in zip(results, images, strict=True)]
    rows = np.array([row for row in found if row is not None])
    left_out = len(found) - len(rows)
    body = (
        f"{len(rows)} images, {rows[:, 0].mean():.1f} regions each; {left_out} more with too many sets of regions.\n\n"
    )
    body += table_of_decreases(rows[:, 1:], _ROWS, "regions removed")
    print(body)
    keep(options.out, "leading_regions", arguments, "Leading regions", machine(), body, rows=rows.tolist())


if __name__ == "__main__":
    main()
