"""``captum-iba compare-images``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from captum_iba.cli.common import (
    DeviceOption,
    KeptWork,
    Precision,
    PrecisionOption,
    QuietOption,
    check_input,
    check_model,
    check_output_folder,
    loading,
    note,
    plain_errors,
)
from captum_iba.cli.explain_image import load_image_explainer
from captum_iba.cli.methods_option import check_known, listed, sample

COMPARE_IMAGES_EXAMPLES = """\b
Examples:
  captum-iba compare-images --model FOLDER --images photos --out results
  captum-iba compare-images --model FOLDER --images test.npz --methods grad_cam,lime,random --tile 16 --out results
"""


def compare_images(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Folder or hub name of an image classifier of transformers, or a name of torchvision.models.",
        ),
    ],
    images: Annotated[
        Path, typer.Option(help="Folder of images, or .npz with images (N, H, W, 3) uint8 and perhaps labels.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the rows and the table.")],
    weights: Annotated[
        Path | None,
        typer.Option(help="Safetensors file of a model of torchvision.", show_default="those of torchvision"),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods with commas between them: iba, random, saliency, input_x_gradient, ig, gradient_shap, "
            "grad_cam, guided_grad_cam, occlusion, lime, kernel_shap. A folder with other methods gets those that it "
            "lacks."
        ),
    ] = "iba,grad_cam,ig,occlusion,random",
    statistics_from: Annotated[
        Path | None,
        typer.Option(help="Folder or .npz of images for the statistics of iba.", show_default="those of each image"),
    ] = None,
    target: Annotated[str, typer.Option(help="Class to explain: predicted, or label, that of the .npz.")] = "predicted",
    tile: Annotated[
        int | None,
        typer.Option(min=1, help="Side of a tile in pixels.", show_default="4 x 4 to 7 x 7 tiles, as of explain-image"),
    ] = None,
    layer: Annotated[
        str | None, typer.Option(help="Module that Grad-CAM explains at.", show_default="the last spatial one")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Number of images in the sample.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the methods.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Largest number of rows of a forward pass.")] = 16,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on images: what the prediction loses without the tiles ranked first.

    If it is stopped, the same command goes on.
    """
    work = KeptWork("rows", out, quiet, "measured")
    with plain_errors(quiet, work.interrupted):
        for option, path in (("--images", images), ("--statistics-from", statistics_from)):
            check_input(option, path, "a folder of images or an .npz", folder=True)
        check_model(model)
        check_output_folder("--out", out)
        if target not in ("predicted", "label"):
            raise typer.BadParameter(f"--target: {target!r} is none, expected predicted or label.")
        names = listed(methods)
        with loading():
            import torch

            from captum_iba._explain.model import check_device
            from captum_iba.compare.image_comparison import compare_images as compare
            from captum_iba.compare.image_files import read_images
            from captum_iba.methods.iba_of_images import iba_of_images
            from captum_iba.methods.image_methods import IMAGE_METHODS
            from captum_iba.metrics import tiles

            check_known(names, IMAGE_METHODS)
            found = read_images(images)
            if target == "label" and found.labels is None:
                raise typer.BadParameter(f"--target: {images} has no labels, expected predicted.")
            check_device(device, "--device")
            check_input("--weights", weights, "a file of weights")
            note(f"loading {model}", quiet)
            explainer = load_image_explainer(model, weights, device=device, dtype=(dtype or Precision.float32).value)
        chosen = sample(len(found.images), examples, seed)
        pixels = explainer.inputs([found.images[i] for i in chosen])
        functions = {name: IMAGE_METHODS[name].function for name in names}
        if "iba" in functions:
            if statistics_from is not None:
                note(f"statistics of the images of {statistics_from}", quiet)
                explainer.estimate_statistics(read_images(statistics_from).images)
            functions["iba"] = partial(iba_of_images, explainer=explainer)
        labels = None
        if target == "label" and found.labels is not None:
            labels = torch.tensor([found.labels[i] for i in chosen])
        work.total = len(chosen) * len(names)
        note(f"{len(chosen)} of {len(found.images)} images, {len(names)} method{'s' * (len(names) > 1)}", quiet)
        with work.every_minute():
            comparison = compare(
                explainer.model,
                pixels,
                labels,
                functions,
                regions=None if tile is None else tiles(pixels.shape[2], pixels.shape[3], size=tile),
                layer=layer,
                batch_size=batch_size,
                seed=seed,
                folder=out,
                on_row=work.progressed,
                show_progress=not quiet and sys.stderr.isatty(),
            )
        typer.echo(str(comparison))
        note(f"wrote {out / 'table.md'}", quiet)
