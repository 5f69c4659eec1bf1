"""Twelve images by five methods, as a picture for the documentation, and one of them as ``print`` shows it.

    python -m docs.image_picture resnet56.safetensors cifar10_test_600.npz cifar10_train_1200.npz

The weights lie beside a ``resnet.py`` with ``load(path)`` and ``normalise(images)``; statistics are of the last file.
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.images import load
from captum_iba.compare.image_files import read_images
from captum_iba.methods import attribute_images
from captum_iba.metrics import tiles
from captum_iba.vision import ImageExplainer
from captum_iba.visualization import save_figure
from captum_iba.visualization.figures import new_figure

METHODS = {"Grad-CAM": "grad_cam", "Occlusion": "occlusion", "Integrated\nGradients": "ig", "LIME": "lime"}
N_IMAGES = 12
LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

if __name__ == "__main__":
    weights, test, train = map(Path, sys.argv[1:])
    found = read_images(test)
    chosen = sorted(np.random.default_rng(0).permutation(len(found.images))[:N_IMAGES])
    pictures = [found.images[number] for number in chosen]
    model, images = load(weights, pictures)
    explainer = ImageExplainer(model, labels=LABELS)
    explainer.estimate_statistics(load(weights, read_images(train).images)[1])
    rows = {"Information\nbottleneck": [result.heat_map for result in explainer.explain(images)]}
    for title, method in METHODS.items():
        maps = attribute_images(method, model, images, regions=tiles(*images.shape[2:], size=8))
        rows[title] = list(maps.clamp_min(0).numpy())  # what speaks for the class
    results = explainer.explain(images, check=True)
    shown = [result for result in results if len(result.leading) > 1 and result.verdict == "confirmed"]
    print(max(shown, key=lambda result: min(row.share_alone for row in result.rows)))  # each matters alone, too
    figure = new_figure(9.6, 5.2)
    figure.set_layout_engine("none")
    for row, (title, maps) in enumerate({"": pictures, **rows}.items()):
        for column, values in enumerate(maps):
            axes = figure.add_axes((0.09 + column * 0.0755, 0.835 - row * 0.165, 0.073, 0.155))
            axes.set_axis_off()
            axes.imshow(pictures[column])
            if row:
                axes.imshow(values, cmap="magma", alpha=0.75, interpolation="nearest")
        figure.text(0.005, 0.91 - row * 0.165, title, fontsize=8, va="center")
    print(save_figure(figure, Path(__file__).parent / "_static" / "images.png"))
