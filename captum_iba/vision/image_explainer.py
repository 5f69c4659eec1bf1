"""Image classifiers explained: images in, a map at the resolution of the input out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from captum_iba._checks import check_flag, check_integer, kind_of
from captum_iba._explain import statistics_files
from captum_iba._explain.fingerprint import weights_mark
from captum_iba._explain.progress import removal_progress
from captum_iba._reading.check_sentences import CONFIRMING
from captum_iba._warnings import LostPredictionWarning, warn_user
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.settings import BottleneckSettings, SettingsOverrides, with_smaller_betas
from captum_iba.vision.grids import ImageLayer, find_image_layers, token_embeddings
from captum_iba.vision.image_bottleneck import ImageBottleneck, applied, statistics_origin
from captum_iba.vision.image_model import ImageClassifier, load_image_classifier, load_torchvision_classifier
from captum_iba.vision.image_result import ImageAttribution
from captum_iba.vision.image_settings import (
    MASK_LOST_PREDICTION,
    NO_CELL_NEEDED,
    counts_of_measured,
    default_layers,
    lacking_statistics,
    of_images,
    resolve_image_settings,
)
from captum_iba.vision.images import Transform, as_batch, drawn, is_one, is_transparent, normalization, size_of
from captum_iba.vision.region_check import rerank_by_removal, with_check_by_removal
from captum_iba.vision.regions import RegionRemoval, regions_of_images

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ImageExplainer:
    """Explains an image classifier: how many bits of each part of an image its decision needs.

    Args:
        model (nn.Module): Maps inputs (B, 3, H, W) to logits (B, C), or to an output with ``.logits``: a CNN or a
            vision transformer of torchvision, transformers or your own. It is left as it was. Or an
            :class:`captum_iba.vision.image_model.ImageClassifier`, which has the transform and the labels.
        layer (str, nn.Module, sequence of them, or None): Modules or their names. Maps of several are averaged; with
            preset ``"coiba"`` they share one mask. Default: the preset's, of the blocks that hold a grid over the image
            (:func:`captum_iba.vision.find_image_layers`).
        statistics (FeatureStatistics, sequence of them, path or None): Dataset statistics of each layer, or the path of
            a file or folder from :meth:`save_statistics`. Default: those of each image, with a warning.
        transform (Callable, optional): Makes the model's input (3, H, W) of a PIL image: ``weights.transforms()`` of
            torchvision, an image processor of transformers. Without it, images are tensors that are inputs already.
        labels (sequence or mapping of str, optional): Names of the classes. Default: those of ``model.config``, or
            numbers.
        multi_label (bool, optional): Whether each class has a probability of its own, the sigmoid of its logit.
            Default: as ``model.config.problem_type`` says; else the classes compete.

    Raises:
        TypeError: The model is no module, or the transform no function.
        ValueError: ``layer`` without a name; statistics of another number of layers.

    Examples::

        >>> explainer = ImageExplainer(cnn, labels=["cat", "dog"])
        >>> _ = explainer.estimate_statistics(torch.rand(40, 3, 32, 32))
        >>> result = explainer.explain(torch.rand(3, 32, 32), target="dog")
        >>> result.heat_map.shape
        (32, 32)
    """

    _CACHED = ("_found", "_mark", "_warned")  # no result depends on them

    def __init__(
        self,
        model: nn.Module | ImageClassifier,
        layer: str | nn.Module | Sequence[str | nn.Module] | None = None,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | str | os.PathLike[str] | None = None,
        transform: Transform | None = None,
        labels: Sequence[str] | Mapping[int, str] | None = None,
        multi_label: bool | None = None,
    ) -> None:
        of_classifier = (transform, labels, multi_label)
        if isinstance(model, ImageClassifier) and any(given is not None for given in of_classifier):
            raise ValueError(
                "model is an ImageClassifier, expected no transform, labels and multi_label beside its own"
            )
        self.classifier = model if isinstance(model, ImageClassifier) else ImageClassifier(model, *of_classifier)
        known = {module: name for name, module in self.classifier.model.named_modules()}
        several: Any = (layer,) if isinstance(layer, (str, nn.Module)) else layer
        if not isinstance(several, (Sequence, type(None))):
            raise TypeError(f"layer is {kind_of(layer)}, expected a module inside the model, its name, or several")
        names = several and [known.get(one, "") if isinstance(one, nn.Module) else one for one in several]
        if names is not None and not (names and all(isinstance(name, str) and name for name in names)):
            raise ValueError(f"layer is {layer!r}, expected a module inside the model, its name, or several")
        self.layer_names = None if names is None else tuple(names)
        if names is not None and len(set(names)) < len(names):
            raise ValueError(f"layer is {layer!r}, expected different names")
        self._statistics: dict[str, FeatureStatistics] = {}
        self._found: dict[Any, tuple[ImageLayer, ...]] = {}
        self._warned = False
        self._mark: Any = None
        if isinstance(statistics, (str, os.PathLike)):
            self.load_statistics(statistics)
        elif statistics is not None:
            each = [statistics] if isinstance(statistics, FeatureStatistics) else list(statistics)
            if self.layer_names is not None and len(each) != len(self.layer_names):
                raise ValueError(
                    f"statistics has {len(each)} entries, expected those of {len(self.layer_names)} layers"
                )
            self._use(each)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        layer: str | Sequence[str] | None = None,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | str | os.PathLike[str] | None = None,
        device: str | int | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> ImageExplainer:
        """Load a classifier of ``transformers`` and its image processor, from a folder or the Hugging Face hub.

        Args:
            name_or_path (str or path): A folder, or a name on the hub.
            layer, statistics: As for the class.
            device (str, int, torch.device or None): Device of the model; a number is a CUDA device. Default: the CPU.
            dtype (torch.dtype): Precision of the weights. Default: ``torch.float32``.

        Raises:
            ValueError: The checkpoint has no classification head, or as the class.
            OSError: There is no such folder or name, or it has no image processor.
        """
        return cls(load_image_classifier(name_or_path, device, dtype), layer, statistics)

    @classmethod
    def from_torchvision(
        cls,
        name: str,
        weights: str | os.PathLike[str] | None = None,
        layer: str | Sequence[str] | None = None,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | str | os.PathLike[str] | None = None,
        device: str | int | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> ImageExplainer:
        """Load a classifier of ``torchvision.models``, with the transform and the classes of its trained weights.

        Args:
            name (str): Name of the architecture, such as ``"resnet50"``.
            weights (path, optional): A safetensors file of its ``state_dict``. Default: the weights of torchvision,
                which it downloads once.
            layer, statistics, device, dtype: As for :meth:`from_pretrained`.

        Raises:
            ValueError: There is no such classifier, or the file is not of it.
            ModuleNotFoundError: torchvision is not installed.
        """
        return cls(load_torchvision_classifier(name, weights, device, dtype), layer, statistics)

    def __repr__(self) -> str:
        layers = "default" if self.layer_names is None else ", ".join(self.layer_names)
        return f"ImageExplainer(model={self.classifier.name!r}, layer={layers}, statistics of {len(self._statistics)})"

    @property
    def model(self) -> nn.Module:
        """The classifier, as it was given."""
        return self.classifier.model

    @property
    def statistics(self) -> dict[str, FeatureStatistics]:
        """Dataset statistics by the names of layers; empty without."""
        return dict(self._statistics)

    def explain(
        self,
        images: Any,
        target: int | str | Sequence[int | str | None] | Tensor | None = None,
        *,
        preset: str | BottleneckSettings = "default",
        feature_mask: Any = None,
        rerank: int | None = None,
        check: bool = False,
        seed: int = 0,
        batch_size: int = 8,
        internal_batch_size: int | None = None,
        show_progress: bool = False,
        **overrides: Unpack[SettingsOverrides],
    ) -> Any:
        """Attribute the model's decision on images to their pixels and regions.

        The result of an image does not depend on the other images.

        Args:
            images (tensor, array, PIL image, path, or sequence of them): One image or several. Floating-point tensors
                (3, H, W) or (B, 3, H, W) are inputs of the model; uint8 arrays (H, W), (H, W, 3), (H, W, 4) or
                (B, H, W, 3), PIL images and files go through the transform: grey ones get three channels, transparent
                ones lie on white.
            target (int, str, None, or one per image): The class to explain, by number or label. Default: the predicted
                class.
            preset (str or BottleneckSettings): ``"default"``; ``"per_sample"``, Schulz et al. (2020); ``"coiba"``, one
                mask over the blocks of a transformer (Hong et al., 2025); or settings. Where the mask of ``"default"``
                loses the prediction, ``beta`` is 3 in place of 10, or then 1, unless ``beta`` is given;
                ``result.preset`` says so. Default: ``"default"``.
            feature_mask (tensor, array, "superpixels" or None): Regions: integers (H, W) or (B, H, W) for the model's
                input, as in Captum's ``FeatureAblation``, or SLIC superpixels. Bits are summed over them. Default:
                tiles (:func:`captum_iba.vision.tile_regions`).
            rerank (int, optional): Number of regions that are removed alone, and in turn
                (:func:`captum_iba.vision.order_by_removal`): those with the largest Banzhaf values, of 64 passes. 0
                leaves the order of the bits. Default: a fourth of all, 8 to 16, for ``"default"``, else 0.
            check (bool): Whether to remove the leading regions, the least, and others at random, and keep the
                probabilities in ``result.check``. Default: False.
            seed (int): Seed of the noise. Default: 0.
            batch_size (int): Number of images per batch. Default: 8.
            internal_batch_size (int, optional): Largest number of rows of a forward pass: images times noise samples,
                and images without some of their regions. Default: no limit for the first, ``2 * batch_size`` for the
                others.
            show_progress (bool): Whether to show a progress bar, over batches or the steps of a single one, and one
                over the images without some regions. Default: False.
            **overrides: Fields of :class:`captum_iba.attr.BottleneckSettings` that override the preset's.

        Returns:
            ImageAttribution, or list of ImageAttribution: One for one image, a list in their order for several.

        Raises:
            TypeError: Images, targets or masks of another type, or a keyword that is no setting.
            ValueError: No image, images of different sizes or of one that the model does not take, a damaged file, an
                unknown class or preset, a layer without a grid, a mask of another shape, or a setting out of range.

        Examples::

            >>> results = explainer.explain(torch.rand(2, 3, 32, 32), check=True)
            >>> [result.check.n_random for result in results]
            [15, 15]
        """
        name, settings = resolve_image_settings(preset, overrides)
        check_integer("seed", seed, kind=Integral)
        check_integer("batch_size", batch_size, at_least=1)
        check_flag("check", check)
        check_flag("show_progress", show_progress)
        inputs, one = as_batch(images, self.classifier.transform)
        batch = self._batch(inputs)
        size = (batch.shape[-2], batch.shape[-1])
        known = normalization(self.classifier.transform)
        pictures = [drawn(image, known) for image in inputs]
        regions = regions_of_images(feature_mask, pictures, size)
        counts = counts_of_measured(rerank, name, [int(of_image.max()) + 1 for of_image in regions])
        probabilities = self.classifier.checked_probabilities(batch, batch_size)
        targets = self._targets(target, probabilities)
        layers = self.find_layers(batch, name)
        statistics = self._known(layers)
        smooth_where_possible = name == "default" and overrides.get("smoothing") is None
        origin, several = self.classifier.provenance(statistics), [images] if one else list(images)

        def explained(numbers: Sequence[int], settings: BottleneckSettings, named: str) -> list[ImageAttribution]:
            bottleneck = ImageBottleneck(
                self.classifier, layers, statistics, name == "coiba", settings, smooth_where_possible
            )
            maps = bottleneck.maps(
                batch[list(numbers)],
                [targets[i] for i in numbers],
                seed=seed,
                batch_size=batch_size,
                internal_batch_size=internal_batch_size,
                show_progress=show_progress,
            )
            best = probabilities.argmax(1).tolist()
            return [
                ImageAttribution(
                    image=pictures[i],
                    layers=of_image,
                    regions=regions[i],
                    measured=(),
                    effects=(),
                    target=targets[i],
                    target_label=self.classifier.label(targets[i]),
                    target_probability=float(probabilities[i, targets[i]]),
                    predicted=best[i],
                    predicted_label=self.classifier.label(best[i]),
                    predicted_probability=float(probabilities[i, best[i]]),
                    other_labels=self.classifier.other_labels(probabilities[i], targets[i]),
                    multi_label=self.classifier.multi_label,
                    preset=named,
                    settings={**applied(settings, of_image), "seed": int(seed), "rerank": counts[i]},
                    statistics=statistics_origin(statistics),
                    name=_name_of(several[i]),
                    original_size=size_of(several[i]),
                    transparent=is_transparent(several[i]),
                    model=self.classifier.name,
                    provenance=origin,
                )
                for i, of_image in zip(numbers, maps, strict=True)
            ]

        results = explained(range(len(batch)), settings, name)
        if name == "default" and overrides.get("beta") is None:
            results = with_smaller_betas(
                results,
                lambda result: result.lost_prediction,
                lambda numbers, beta: explained(numbers, replace(settings, beta=beta), f"{name}, beta {beta:g}"),
            )
        rows = internal_batch_size or 2 * batch_size
        settled = partial(with_check_by_removal if check else rerank_by_removal, seed=seed)
        with removal_progress(show_progress and bool(any(counts) or check), "images") as on_rows:
            for i, result in enumerate(results):
                removal = RegionRemoval(self.classifier, batch[i], regions[i], targets[i], rows, on_rows)
                results[i] = settled(removal, result, counts[i])
        unconfirmed = [result for result in results if result.verdict not in CONFIRMING]
        if lost := [result.name for result in unconfirmed if result.lost_prediction]:
            warn_user(of_images(MASK_LOST_PREDICTION, lost), LostPredictionWarning)
        if needless := [result.name for result in unconfirmed if result.needs_no_cell]:
            warn_user(of_images(NO_CELL_NEEDED, needless))
        return results[0] if one else results

    def inputs(self, images: Any) -> Tensor:
        """Images as the model takes them, (B, 3, H, W): read, transformed, on its device.

        Args:
            images: As for :meth:`explain`.

        Raises:
            TypeError, ValueError: As :meth:`explain`.
        """
        return self._batch(as_batch(images, self.classifier.transform)[0])

    def find_layers(self, images: Tensor, preset: str = "default") -> tuple[ImageLayer, ...]:
        """The layers that :meth:`explain` uses for inputs of this size, (B, 3, H, W).

        Args:
            images (Tensor): Inputs of the model.
            preset (str): Name of a preset. Default: "default".

        Raises:
            ValueError: A layer that does not run or holds no grid; a model without any that does.
        """
        key = (tuple(images.shape[1:]), preset if self.layer_names is None else None)
        if key not in self._found:
            found = find_image_layers(self.model, images[:1], self.layer_names, self.classifier.logits)
            if not found:
                raise ValueError(
                    f"model {self.classifier.name} has no block that holds a grid over images of shape "
                    f"{tuple(images.shape[1:])}; name a layer of the shape (B, C, H, W), (B, H, W, C) or (B, T, D)"
                )
            if self.layer_names is None:
                first = token_embeddings(self.model, images[:1], found[0], self.classifier.logits)
                found = default_layers(preset, found, (images.shape[-2], images.shape[-1]), first)
            self._found[key] = found
        return self._found[key]

    def estimate_statistics(
        self, images: Any, preset: str = "default", batch_size: int = 32, show_progress: bool = False
    ) -> tuple[FeatureStatistics, ...]:
        """Estimate the dataset statistics of the layers over images like those to be explained, and use them.

        A few hundred images suffice.

        Args:
            images: As for :meth:`explain`, or an iterable of batches that are inputs (a loader without its labels).
            preset (str): The preset whose default layers are meant. Default: "default".
            batch_size (int): Number of images per pass. Default: 32.
            show_progress (bool): Whether to show a progress bar. Default: False.

        Returns:
            tuple of FeatureStatistics: One per layer; also in ``explainer.statistics``.

        Raises:
            TypeError, ValueError: As :meth:`explain`.
        """
        check_integer("batch_size", batch_size, at_least=1)
        loader = isinstance(images, Iterable) and not isinstance(
            images, (Tensor, np.ndarray, str, os.PathLike, Sequence)
        )
        batches: Iterable[Tensor]
        if loader:
            every = iter(images)
            if (part := next(every, None)) is None:
                raise ValueError("images is a loader without a batch, expected at least one image")
            first = self._batch(as_batch(part, self.classifier.transform)[0])
            batches = chain([first], (self._batch(as_batch(part, self.classifier.transform)[0]) for part in every))
        else:
            several = [images] if is_one(images) else images
            batches = [
                self._batch(as_batch(several[i : i + batch_size], self.classifier.transform)[0])
                for i in range(0, len(several), batch_size)
            ]
            if not batches:
                raise ValueError("images is empty, expected at least one")
            first = batches[0]
        layers = self.find_layers(first, preset)
        gathered = FeatureStatistics.estimate(
            self.model,
            [layer.module for layer in layers],
            batches,
            mask_func=lambda batch: None,  # images have no padding
            feature_dim=[layer.grid.feature_dim for layer in layers],
            show_progress=show_progress,
        )
        fingerprint = self.classifier.fingerprint()
        for statistics, layer in zip(gathered, layers, strict=True):
            statistics.layer, statistics.model = layer.name, fingerprint
        self._use(gathered)
        return tuple(gathered)

    def save_statistics(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics as safetensors: of one layer to the file ``path``, of several to files in the folder.

        Raises:
            ValueError: There are none.
        """
        if not self._statistics:
            raise ValueError("statistics is empty, expected statistics to save; call estimate_statistics first")
        statistics_files.save(path, list(self._statistics), list(self._statistics.values()))

    def load_statistics(self, path: str | os.PathLike[str]) -> dict[str, FeatureStatistics]:
        """Use statistics from files that :meth:`save_statistics` wrote; returns them by the names of layers.

        Raises:
            FileNotFoundError: There is no such file, or none in the folder.
            ValueError: Not a file of statistics, or statistics of another model.
        """
        folder = Path(path)
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
        if not files or not all(file.is_file() for file in files):
            raise FileNotFoundError(
                f"statistics is {folder}, without a file of statistics, expected one from save_statistics"
            )
        self._use([FeatureStatistics.load(file) for file in files])
        return self.statistics

    def _use(self, several: Sequence[FeatureStatistics]) -> None:
        """Take statistics, all of them or none."""
        fingerprint, taken = None, dict(self._statistics)
        for number, statistics in enumerate(several):
            if not isinstance(statistics, FeatureStatistics):
                raise TypeError(f"statistics has {kind_of(statistics)}, expected FeatureStatistics")
            if statistics.model is not None:
                fingerprint = fingerprint or self.classifier.fingerprint()
                statistics_files.check_model([statistics], fingerprint, self.classifier.name)
            name = statistics.layer
            if name is None and self.layer_names is not None:
                name = self.layer_names[number]
            if name is None or (self.layer_names is not None and name not in self.layer_names):
                expected = "the name of a layer" if self.layer_names is None else ", ".join(self.layer_names)
                raise ValueError(f"statistics is of layer {name!r}, expected {expected}")
            taken[name] = statistics
        self._statistics, self._mark = taken, weights_mark(self.model)

    def _batch(self, inputs: Sequence[Tensor]) -> Tensor:
        for number, image in enumerate(inputs):
            if image.shape != inputs[0].shape:
                raise ValueError(
                    f"images[{number}] has the shape {tuple(image.shape)} as an input, expected that of images[0], "
                    f"{tuple(inputs[0].shape)}; explain images of other sizes by themselves, or resize in the transform"
                )
        return torch.stack([image.to(self.classifier.device, self.classifier.dtype) for image in inputs])

    def _targets(self, target: Any, probabilities: Tensor) -> list[int]:
        n_images, n_classes = probabilities.shape
        if isinstance(target, (Tensor, np.ndarray)):
            target = target.tolist()
        several = list(target) if isinstance(target, (list, tuple)) else [target] * n_images
        if len(several) != n_images:
            raise ValueError(f"target has {len(several)} entries, expected one for each of {n_images} images")
        return [
            int(probabilities[i].argmax()) if given is None else self.classifier.target_number(given, n_classes)
            for i, given in enumerate(several)
        ]

    def _check_change(self, known: Sequence[FeatureStatistics]) -> None:
        """Warn, once, if the model has changed since its statistics were gathered."""
        models = {statistics.model for statistics in known if statistics.model is not None}
        # The mark is cheap; the fingerprint reads all weights.
        if models and self._mark != (mark := weights_mark(self.model)):
            self._mark = mark
            if models != {self.classifier.fingerprint()}:
                warn_user(
                    "statistics: the weights of the model have changed since they were gathered, and bits rest on the "
                    "wrong noise; call estimate_statistics again"
                )

    def _known(self, layers: Sequence[ImageLayer]) -> list[FeatureStatistics] | None:
        """The statistics of layers; None, with a warning once, where one has none."""
        known = [self._statistics[layer.name] for layer in layers if layer.name in self._statistics]
        if len(known) == len(layers):
            self._check_change(known)
            return known
        if not self._warned:
            self._warned = True
            warn_user(lacking_statistics([*self._statistics], [layer.name for layer in layers]))
        return None


def _name_of(image: Any) -> str:
    return Path(image).name if isinstance(image, (str, os.PathLike)) else ""
