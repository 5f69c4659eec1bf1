"""``captum-iba explain-image``."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from enum import Enum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from captum_iba._files import IMAGE_ENDINGS
from captum_iba.cli.common import (
    DetailsOption,
    DeviceOption,
    Failures,
    Precision,
    PrecisionOption,
    QuietOption,
    check_input,
    check_model,
    check_output,
    check_results,
    deliver,
    loading,
    named_model,
    note,
    plain_errors,
    printed,
)

if TYPE_CHECKING:
    from captum_iba.vision import ImageAttribution, ImageExplainer

EXPLAIN_IMAGE_EXAMPLES = """\b
Examples:
  captum-iba explain-image photo.jpg --model FOLDER --html photo.html
  captum-iba explain-image *.jpg --model resnet50 --statistics-from TRAINING_IMAGES --json results.json
"""


class ImagePreset(str, Enum):
    """Named settings."""

    default = "default"
    per_sample = "per_sample"
    coiba = "coiba"


def explain_image(
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE...", help="Files of images, or folders, with the folders in them.")
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Folder or hub name of an image classifier of transformers, or a name of torchvision.models.",
        ),
    ],
    weights: Annotated[
        Path | None,
        typer.Option(help="Safetensors file of a model of torchvision.", show_default="those of torchvision"),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Class to explain: label or number.", show_default="the predicted one")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="Names of modules, with commas between; their maps are averaged.", show_default="the preset's"
        ),
    ] = None,
    preset: Annotated[ImagePreset, typer.Option(help="Named settings.")] = ImagePreset.default,
    beta: Annotated[
        float | None, typer.Option(min=0, help="Weight of the information.", show_default="the preset's")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Number of optimizer steps.", show_default="the preset's")
    ] = None,
    superpixels: Annotated[bool, typer.Option("--superpixels", help="Superpixels in place of tiles.")] = False,
    rerank: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of leading regions that are removed to settle their order.", show_default="the preset's"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    check: Annotated[
        bool,
        typer.Option(
            help="Remove the leading regions, those with the fewest bits and random ones, and show the probabilities."
        ),
    ] = True,
    statistics: Annotated[
        Path | None, typer.Option(help="Statistics of the layers: a file, or a folder with one file per layer.")
    ] = None,
    statistics_from: Annotated[
        Path | None, typer.Option(help="Folder with images to estimate the statistics from.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="File for a page with the heat maps.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="File for a JSON list of results; - is standard output."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="File for a figure (.png, .svg or .pdf), of one image.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of images per pass.")] = 8,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    details: DetailsOption = False,
    quiet: QuietOption = False,
) -> None:
    """Explain decisions on images: the regions that they need, and the probability without them."""
    with plain_errors(quiet):
        named = [(file, name) for path in images for file, name in _named_images(path)]
        images, names = [file for file, _ in named], [name for _, name in named]
        for image in images:
            check_input("IMAGE", image, "the file of an image")
        check_model(model)
        check_results(html, json_file)
        check_output("--figure", figure)
        if figure is not None and len(images) > 1:
            raise typer.BadParameter(f"--figure is for one image, {len(images)} are given; --html shows several.")
        if figure is not None and figure.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise typer.BadParameter(f"--figure: {figure} ends in none of .png, .svg, .pdf.")
        if statistics is not None and statistics_from is not None:
            raise typer.BadParameter("--statistics and --statistics-from: expected one of them.")
        failures = Failures("images")
        readable = _readable(images, names, failures)
        training = [] if statistics_from is None else images_in(statistics_from, "--statistics-from")
        with loading():
            note(f"loading {model}", quiet)
            explainer = load_image_explainer(
                model, weights, layer, statistics, device, (dtype or Precision.float32).value
            )
        if training:
            note(f"estimating statistics from {len(training):,} images", quiet)
            explainer.estimate_statistics(training, preset=preset.value)
        elif statistics is None:
            note("statistics: of each image itself, which is less faithful; --statistics-from estimates them", quiet)
        results = []
        note("explaining", quiet)
        from captum_iba._compat import progress  # which the explainer has imported

        shown, several = not quiet and sys.stderr.isatty(), len(readable) > batch_size
        with progress(total=len(readable), desc="Images") if shown and several else nullcontext() as bar:
            for start in range(0, len(readable), batch_size):
                batch = readable[start : start + batch_size]
                found = explainer.explain(
                    [images[i] for i in batch],
                    target=None if target is None else [target] * len(batch),
                    preset=preset.value,
                    feature_mask="superpixels" if superpixels else None,
                    rerank=rerank,
                    check=check,
                    seed=seed,
                    batch_size=batch_size,
                    beta=beta,
                    n_steps=steps,
                    show_progress=shown and not several,
                )
                results += [replace(result, name=names[i]) for i, result in zip(batch, found, strict=True)]
                if bar is not None:
                    bar.update(len(batch))
        _deliver(results, html, json_file, figure, details, quiet, failures.introduction)
        failures.exit(len(images))


def _readable(images: list[Path], names: list[str], failures: Failures) -> list[int]:
    """Numbers of the files that are whole images; the others are told."""
    readable = []
    for number, image in enumerate(images):
        try:
            check_image(image)
            readable.append(number)
        except (OSError, ValueError) as error:
            if len(images) == 1:
                raise
            failures.tell(number, names[number], error)
    if not readable:
        failures.exit(len(images))
    return readable


def _named_images(path: Path) -> list[tuple[Path, str]]:
    """An image, or those in a folder and the folders in it, each with its name in the output."""
    if not path.is_dir():
        return [(path, path.name)]
    return [(file, file.relative_to(path).as_posix()) for file in images_in(path, "IMAGE")]


def check_image(path: Path) -> None:
    """Raise the error of a file that is no whole image, before a model is loaded."""
    from captum_iba.vision import read_image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are shown when the image is explained
        read_image(path, "IMAGE")


def images_in(folder: Path, option: str) -> list[Path]:
    """The images in a folder and the folders in it, in the order of their names; errors name the option.

    Raises:
        FileNotFoundError: There is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{option}: there is no folder {folder}, expected one with images.")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS and path.is_file())
    if not found:
        raise FileNotFoundError(f"{option}: {folder} holds no image ({', '.join(IMAGE_ENDINGS)}).")
    return found


def load_image_explainer(
    model: str,
    weights: Path | None = None,
    layer: str | None = None,
    statistics: Path | None = None,
    device: str | None = None,
    dtype: str = "float32",
) -> ImageExplainer:
    """The explainer of a folder of transformers, or of a classifier of torchvision."""
    import torch

    from captum_iba.vision import ImageExplainer

    options: dict[str, Any] = {
        "layer": None if layer is None else [name.strip() for name in layer.split(",")],
        "statistics": statistics,
        "device": device,
        "dtype": getattr(torch, dtype),
    }
    if weights is not None or (not os.path.isdir(model) and "/" not in model and find_spec("torchvision") is not None):
        return ImageExplainer.from_torchvision(model, weights, **options)
    with named_model(model):
        try:
            return ImageExplainer.from_pretrained(model, **options)
        except OSError as error:
            if os.path.isdir(model) or "/" in model:
                raise
            first = str(error).strip().splitlines()[0]
            raise OSError(
                f"--model: there is no folder {model}, a model of torchvision needs pip install torchvision, and of "
                f"transformers: {first}"
            ) from error


def _deliver(
    results: list[ImageAttribution],
    html: Path | None,
    json_file: Path | None,
    figure: Path | None,
    details: bool,
    quiet: bool,
    introduction: str,
) -> None:
    """Write and print results."""
    from captum_iba._reading.check_sentences import summary
    from captum_iba.visualization import image_page

    deliver(
        lambda: [result.to_dict() for result in results],
        json_file,
        html,
        page=lambda: image_page(results, introduction=introduction),
        show=lambda: typer.echo(printed(results, details, quiet=quiet)),
        quiet=quiet,
        figure=None if figure is None else partial(results[0].save_figure, figure),
    )
    if said := summary([result.checked for result in results]):
        note(said, quiet)
