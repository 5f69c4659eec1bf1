"""Methods that attribute a decision about images to pixels or regions; Captum computes most of them.

:data:`IMAGE_METHODS` has them by name, for :func:`attribute_images` and for
:func:`captum_iba.compare.compare_images`. A method is a function of an :class:`ImageTask` and of its options.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from captum.attr import (
    FeatureAblation,
    GradientShap,
    InputXGradient,
    IntegratedGradients,
    KernelShap,
    LayerGradCam,
    Lime,
    Saliency,
)
from torch import Tensor, nn

from captum_iba._checks import check_choice, check_integer
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr.losses import NoLogitsError, logits_of
from captum_iba.methods.perturbation_methods import RidgeRegression, similarity_of_kept
from captum_iba.methods.spatial_layer import GridProbe, GuidedReLU, grid_of_layer, spatial_layers
from captum_iba.methods.task import random_states_restored, seed_everything
from captum_iba.metrics.image_baselines import blurred, check_images, mean_color
from captum_iba.vision.images import drawn
from captum_iba.vision.regions import superpixels as superpixels_of

_BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": torch.zeros_like,
    "mean_color": lambda images: mean_color(images).expand_as(images),
    "blurred": blurred,
}


@dataclass(frozen=True)
class ImageTask:
    """Images whose decisions a method explains.

    Attributes:
        model (Module or Callable): Function of images (rows, C, H, W) that returns logits, (rows, classes), or an
            object with them as ``logits``, as the models of transformers do, or a tuple that begins with them.
        images (Tensor): Images, (B, C, H, W), as the model takes them.
        targets (Tensor): Class to explain of each image, (B,), int64, on the device of the images.
        regions (Tensor): Number of the region of each pixel, from 0 in each image, (B, H, W), int64.
        layer (Module, str or None): Layer of methods that explain at a layer; None: the last spatial one.
        batch_size (int): Largest number of rows of a forward pass, where a method runs an image several times.
        seed (int): Seed of random numbers.
    """

    model: Callable[[Tensor], Any]
    images: Tensor
    targets: Tensor
    regions: Tensor
    layer: nn.Module | str | None = None
    batch_size: int = 32
    seed: int = 0

    def logits(self, images: Tensor) -> Tensor:
        """Logits of images, (rows, classes)."""
        try:
            logits, _ = logits_of(self.model(images.clone()), len(images))  # a model may write into them
        except NoLogitsError as error:
            raise ValueError(f"model gives {error}") from None
        if self.targets.numel() and not 0 <= int(self.targets.min()) <= int(self.targets.max()) < logits.shape[1]:
            raise ValueError(f"targets is {self.targets.tolist()}, expected classes from 0 to {logits.shape[1] - 1}")
        return logits

    def probabilities(self, images: Tensor) -> Tensor:
        """Probabilities of the classes, (rows, classes)."""
        return self.logits(images).softmax(-1)

    def baseline(self, name: str) -> Tensor:
        """Images of ``"zero"``, of the ``"mean_color"`` of each, or ``"blurred"``, (B, C, H, W)."""
        check_choice("baseline", name, tuple(_BASELINES))
        return _BASELINES[name](self.images)

    @contextmanager
    def seeded(self, number: int) -> Iterator[None]:
        """Global random states that follow from the seed and the image alone, whatever else is in the batch."""
        pixels = self.images[number].detach().cpu().contiguous().float().numpy().tobytes()
        digest = hashlib.sha256(f"{self.seed}:".encode() + pixels).digest()
        with random_states_restored(), torch.random.fork_rng(devices=_devices(self.images)):
            seed_everything(int.from_bytes(digest[:4], "big"))
            yield

    def spread(self, number: int, scores: Tensor) -> Tensor:
        """A map, (H, W), with the score of each region, (R,), in equal parts on its pixels: their sum is the score."""
        regions = self.regions[number]
        sizes = regions.flatten().bincount(minlength=len(scores)).clamp(min=1)
        each: Tensor = (scores.to(sizes.device) / sizes)[regions]
        return each

    @property
    def n_regions(self) -> int:
        """The largest number of regions of an image."""
        return int(self.regions.max()) + 1


@dataclass(frozen=True)
class ImageMethod:
    """A method for images, with its name.

    Attributes:
        name (str): Name, as in :data:`IMAGE_METHODS`.
        function (Callable): Function of an :class:`ImageTask` and options by keyword, which returns maps (B, H, W),
            or scores of the regions, (B, R).
        description (str): A sentence.
    """

    name: str
    function: Callable[..., Tensor]
    description: str


IMAGE_METHODS: dict[str, ImageMethod] = {}
"""The methods by name. One that needs more than the task is a function that holds it, as
``partial(iba_of_images, explainer=explainer)`` holds the statistics of its layers."""


def register_image_method(name: str, function: Callable[..., Tensor], description: str) -> ImageMethod:
    """Add a method to :data:`IMAGE_METHODS`.

    Args:
        name (str): Name, an identifier.
        function (Callable): Function of an :class:`ImageTask` and options by keyword, which returns maps (B, H, W) or
            scores of the regions, (B, R).
        description (str): A sentence.

    Returns:
        ImageMethod: The method.

    Raises:
        ValueError: A name that is taken, or none.

    Examples::

        >>> method = register_image_method("brightness", lambda task: task.images.mean(1), "Bright pixels first.")
        >>> attribute_images("brightness", torch.nn.Flatten(), torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[[1., 3.]]])
        >>> del IMAGE_METHODS["brightness"]
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name is {name!r}, expected letters, digits and underscores")
    if name in IMAGE_METHODS:
        raise ValueError(f"name is {name!r}, which there is already: {IMAGE_METHODS[name].description}")
    IMAGE_METHODS[name] = ImageMethod(name, function, description)
    return IMAGE_METHODS[name]


def attribute_images(
    method: str | Callable[..., Tensor],
    model: Callable[[Tensor], Any],
    images: Tensor,
    targets: Tensor | int | None = None,
    regions: Tensor | None = None,
    *,
    layer: nn.Module | str | None = None,
    batch_size: int = 32,
    seed: int = 0,
    **options: Any,
) -> Tensor:
    """Attribute decisions about images by a method.

    Args:
        method (str or Callable): A name of :data:`IMAGE_METHODS`, or a function as :func:`register_image_method` takes.
        model (Module or Callable): Function of images that returns logits, (rows, classes), or an object with
            ``logits``. It runs in evaluation mode, and is left as it was.
        images (Tensor): Images, (B, C, H, W), as the model takes them.
        targets (Tensor or int, optional): Class of each image, (B,), or of all. Default: None, the most probable ones.
        regions (Tensor, optional): Integers (B, H, W) or (1, H, W), as of :func:`captum_iba.metrics.tiles`.
            Default: None, every pixel is one.
        layer (Module or str, optional): Layer of methods that explain at a layer, or its name.
            Default: None, the last spatial one.
        batch_size (int): Largest number of rows of a pass, where an image runs several times. Default: 32.
        seed (int): Seed of random numbers. Default: 0.
        **options: Options of the method.

    Returns:
        Tensor: Maps, (B, H, W), on the CPU. Where a method scores regions, the sum over a region is its score.

    Raises:
        ValueError: An unknown method, an argument of another shape; the message names it. Or scores that are not
            finite.

    Examples::

        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
        >>> attribute_images("saliency", model, torch.rand(5, 3, 2, 2)).shape
        torch.Size([5, 2, 2])
    """
    function = IMAGE_METHODS[method].function if method in IMAGE_METHODS else method
    if isinstance(function, str):
        raise ValueError(f"method is {function!r}, expected one of {', '.join(IMAGE_METHODS)}")
    with ModuleGuard(model) as guard, guard.watching():
        task = image_task(model, images, targets, regions, layer=layer, batch_size=batch_size, seed=seed)
        return _checked(function(task, **options), task)


def image_task(
    model: Callable[[Tensor], Any],
    images: Tensor,
    targets: Tensor | int | None = None,
    regions: Tensor | None = None,
    *,
    layer: nn.Module | str | None = None,
    batch_size: int = 32,
    seed: int = 0,
) -> ImageTask:
    """The task of a method, as :func:`attribute_images` makes it of its arguments."""
    check_images("images", images)
    check_integer("batch_size", batch_size, at_least=1)
    check_integer("seed", seed)
    rows, _, height, width = images.shape
    if regions is None:
        regions = torch.arange(height * width).view(1, height, width)
    if regions.shape not in ((1, height, width), (rows, height, width)) or regions.is_floating_point():
        raise ValueError(
            f"regions has the shape {tuple(regions.shape)} and the type {regions.dtype}, expected integers "
            f"{(1, height, width)} or {(rows, height, width)}"
        )
    numbered = torch.stack([torch.unique(row, return_inverse=True)[1] for row in regions.to(images.device)])
    task = ImageTask(model, images, torch.zeros(0), numbered.expand(rows, -1, -1), layer, batch_size, seed)
    if targets is None:
        with torch.no_grad():
            classes = torch.cat([task.logits(part).argmax(-1) for part in torch.split(images, batch_size)])
    else:
        classes = torch.as_tensor(targets, device=images.device)
        if classes.is_floating_point() or classes.dtype == torch.bool or classes.shape not in ((), (rows,)):
            raise ValueError(f"targets is {targets!r}, expected a class, or one for each of {rows} images")
        classes = classes.long().expand(rows)
    return ImageTask(model, images, classes, task.regions, layer, batch_size, seed)


def random_map(task: ImageTask) -> Tensor:
    """Random scores of the regions, the baseline of all methods; others for each image."""
    maps = []
    for number in range(len(task.images)):
        with task.seeded(number):
            maps.append(task.spread(number, torch.rand(task.n_regions)))
    return torch.stack(maps)


def saliency_of_images(task: ImageTask) -> Tensor:
    """Magnitude of the gradient of the target's logit, the largest of the channels (Simonyan et al. 2014)."""
    gradients: Tensor = Saliency(task.logits).attribute(_leaf(task.images), task.targets)
    return gradients.amax(1)


def input_x_gradient_of_images(task: ImageTask) -> Tensor:
    """Gradient of the target's logit times the pixels, summed over the channels."""
    scores: Tensor = InputXGradient(task.logits).attribute(_leaf(task.images), task.targets)
    return scores.sum(1)


def integrated_gradients_of_images(task: ImageTask, n_steps: int = 50, baseline: str = "zero") -> Tensor:
    """Gradients along the path from a baseline to the image, times the difference (Sundararajan et al. 2017).

    Args:
        n_steps (int): Number of points on the path. Default: 50.
        baseline (str): ``"zero"``, which after normalization is the mean color of the data; the ``"mean_color"`` of
            the image; or ``"blurred"``. Default: ``"zero"``.
    """
    check_integer("n_steps", n_steps, at_least=1)
    scores: Tensor = IntegratedGradients(task.logits).attribute(
        task.images,
        baselines=task.baseline(baseline),
        target=task.targets,
        n_steps=n_steps,
        internal_batch_size=max(task.batch_size, len(task.images)),
    )
    return scores.sum(1)


def gradient_shap_of_images(task: ImageTask, n_samples: int = 50) -> Tensor:
    """Expected gradients at random points between the image and three baselines: zero, its mean color, blurred.

    Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017.

    Args:
        n_samples (int): Number of points. Default: 50.
    """
    check_integer("n_samples", n_samples, at_least=1)
    baselines = torch.stack([task.baseline(name) for name in _BASELINES], 1)

    def attribute(number: int) -> Tensor:
        image = task.images[number : number + 1]
        target = int(task.targets[number])
        scores: Tensor = GradientShap(task.logits).attribute(image, baselines[number], n_samples, target=target)
        return scores[0].sum(0)

    return _one_by_one(task, attribute)


def grad_cam_of_images(task: ImageTask) -> Tensor:
    """Activations of a layer weighted by their mean gradient, where positive, enlarged to the image.

    Selvaraju et al., "Grad-CAM", ICCV 2017. The layer is the last one with rows and columns whose pixels reach the
    logit; of a vision transformer the normalization before the last attention, with its tokens in their places.
    """
    size = tuple(task.images.shape[2:])
    found = torch.empty(len(task.images), *size, dtype=task.images.dtype, device=task.images.device)
    for layer, numbers in spatial_layers(task.logits, task.model, task.images, task.targets, task.layer):
        images, targets = task.images[numbers], task.targets[numbers]
        probe = GridProbe(layer, task.logits, grid_of_layer(task.logits, task.model, images[:1], layer))
        method = LayerGradCam(probe.run, probe)
        maps: Tensor = method.attribute(_leaf(images), targets, relu_attributions=True).detach()
        found[numbers] = nn.functional.interpolate(maps, size, mode="bilinear", align_corners=False)[:, 0].to(found)
    return found


def guided_grad_cam_of_images(task: ImageTask) -> Tensor:
    """Grad-CAM times guided backpropagation, whose gradients pass a ReLU where they are positive.

    Springenberg et al. 2015; Selvaraju et al. 2017. ``captum.attr.GuidedGradCam`` changes modules ``torch.nn.ReLU``
    alone; here every ReLU counts, also that of ``torch.nn.functional``. Of the gradient, the magnitude of the sum over
    the channels counts: with its sign, dark pixels that speak for the class would go last.
    """
    images = _leaf(task.images)
    with torch.enable_grad(), GuidedReLU() as guided:
        chosen = task.logits(images).gather(1, task.targets[:, None])
        if not guided.calls:
            raise ValueError("model: it has no ReLU, without which guided_grad_cam is not defined")
        (gradient,) = torch.autograd.grad(chosen.sum(), images)
    return grad_cam_of_images(task) * gradient.sum(1).abs()


def occlusion_of_images(task: ImageTask, baseline: str = "mean_color", output: str = "logit") -> Tensor:
    """Decrease in the output without each region, by ``captum.attr.FeatureAblation`` (Zeiler and Fergus 2014).

    Args:
        baseline (str): What takes its place: ``"zero"``, ``"mean_color"`` of the image, or ``"blurred"``.
            Default: ``"mean_color"``.
        output (str): ``"logit"`` or ``"probability"`` of the target. Default: ``"logit"``.
    """
    check_choice("output", output, ("logit", "probability"))
    forward = task.logits if output == "logit" else task.probabilities
    baselines = task.baseline(baseline)

    def attribute(number: int) -> Tensor:
        decreases: Tensor = FeatureAblation(forward).attribute(
            task.images[number : number + 1],
            baselines[number : number + 1],
            target=int(task.targets[number]),
            feature_mask=task.regions[None, number : number + 1],
            perturbations_per_eval=task.batch_size,
        )
        return _per_region(decreases, task.regions[number])

    return _one_by_one(task, attribute)


def lime_of_images(
    task: ImageTask, n_samples: int = 1000, baseline: str = "mean_color", superpixels: str = "regions"
) -> Tensor:
    """Weights of a linear model of the probability without random regions, by ``captum.attr.Lime``.

    Ribeiro et al., "Why Should I Trust You?", KDD 2016; ridge regression and similarity as in the lime package.

    Args:
        n_samples (int): Number of versions of an image that run. Default: 1000.
        baseline (str): As for :func:`occlusion_of_images`. Default: ``"mean_color"``.
        superpixels (str): ``"regions"``, those of the task, or ``"slic"``, as many found by scikit-image.
            Default: ``"regions"``.
    """
    check_integer("n_samples", n_samples, at_least=2)
    check_choice("superpixels", superpixels, ("regions", "slic"))
    baselines = task.baseline(baseline)

    def attribute(number: int) -> Tensor:
        image, regions = task.images[number : number + 1], task.regions[number]
        if superpixels == "slic":
            found = superpixels_of(drawn(image[0]), int(regions.max()) + 1)
            regions = torch.from_numpy(found).to(image.device)
        method = Lime(task.probabilities, interpretable_model=RidgeRegression(), similarity_func=similarity_of_kept)
        return _weights(method, task, number, baselines, regions, n_samples)

    return _one_by_one(task, attribute)


def kernel_shap_of_images(task: ImageTask, n_samples: int = 1000, baseline: str = "mean_color") -> Tensor:
    """Shapley values of the regions, by ``captum.attr.KernelShap`` (Lundberg and Lee 2017).

    Args:
        n_samples (int): Number of versions of an image that run. Default: 1000.
        baseline (str): As for :func:`occlusion_of_images`. Default: ``"mean_color"``.
    """
    check_integer("n_samples", n_samples, at_least=2)
    baselines = task.baseline(baseline)
    if int(task.regions.flatten(1).amax(1).min()) == 0:
        raise ValueError("regions has an image of one region, expected at least two")

    def attribute(number: int) -> Tensor:
        return _weights(KernelShap(task.probabilities), task, number, baselines, task.regions[number], n_samples)

    return _one_by_one(task, attribute)


def _weights(method: Any, task: ImageTask, number: int, baselines: Tensor, regions: Tensor, n_samples: int) -> Tensor:
    scores: Tensor = method.attribute(
        task.images[number : number + 1],
        baselines=baselines[number : number + 1],
        target=int(task.targets[number]),
        feature_mask=regions[None, None],
        n_samples=n_samples,
        perturbations_per_eval=task.batch_size,
    )
    return _per_region(scores, regions)


def _per_region(scores: Tensor, regions: Tensor) -> Tensor:
    """Scores (1, C, H, W), the same on all pixels of a region, as a map (H, W) whose sum over a region is its score."""
    return scores[0, 0] / regions.flatten().bincount()[regions]


def _one_by_one(task: ImageTask, attribute: Callable[[int], Tensor]) -> Tensor:
    maps = []
    for number in range(len(task.images)):
        with task.seeded(number):
            maps.append(attribute(number).detach())
    return torch.stack(maps)


def _leaf(images: Tensor) -> Tensor:
    return images.detach().clone().requires_grad_()


def _devices(tensor: Tensor) -> list[torch.device]:
    return [tensor.device] if tensor.device.type == "cuda" else []


def _checked(scores: Any, task: ImageTask) -> Tensor:
    """Maps (B, H, W) on the CPU, of what a method has returned."""
    rows, _, height, width = task.images.shape
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if shape == (rows, task.n_regions):
        scores = torch.stack([task.spread(number, scores[number]) for number in range(rows)])
    elif shape != (rows, height, width):
        raise ValueError(
            f"the method returns {shape}, expected maps {(rows, height, width)}, or scores of the regions, "
            f"{(rows, task.n_regions)}"
        )
    maps: Tensor = scores.detach().cpu()
    if not bool(maps.isfinite().all()):
        raise ValueError("the method returns scores that are not finite, expected finite ones")
    return maps


for _name, _function, _description in (
    ("random", random_map, "Random scores of the regions, the baseline of all methods."),
    ("saliency", saliency_of_images, "Magnitude of the gradient at the pixels."),
    ("input_x_gradient", input_x_gradient_of_images, "Gradient times pixels."),
    ("ig", integrated_gradients_of_images, "Integrated gradients at the pixels."),
    ("gradient_shap", gradient_shap_of_images, "Expected gradients between the image and three baselines."),
    ("grad_cam", grad_cam_of_images, "Activations of the last spatial layer, weighted by their mean gradient."),
    ("guided_grad_cam", guided_grad_cam_of_images, "Grad-CAM times guided backpropagation."),
    ("occlusion", occlusion_of_images, "Each region replaced by the mean color of the image."),
    ("lime", lime_of_images, "A linear model of random regions replaced by the mean color of the image."),
    ("kernel_shap", kernel_shap_of_images, "Shapley values of the regions, by a linear model."),
):
    register_image_method(_name, _function, _description)
