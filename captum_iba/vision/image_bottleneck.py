"""Bottlenecks at the layers of an image classifier: the bits of their cells."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from captum_iba._compat import progress
from captum_iba._reading.image_sentences import OWN_STATISTICS
from captum_iba.attr.execution import BottleneckTrace, tensor_with_bits
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.information_bottleneck import InformationBottleneckAttribution
from captum_iba.attr.objective import smoothing_radius
from captum_iba.attr.optimizer import unneeded_bits
from captum_iba.attr.settings import BottleneckSettings
from captum_iba.vision.grids import Grid, ImageLayer
from captum_iba.vision.image_model import ImageClassifier
from captum_iba.vision.layer_map import LayerMap


@dataclass(frozen=True)
class ImageBottleneck:
    """A classifier with bottlenecks at some layers.

    Args:
        classifier (ImageClassifier): The model.
        layers (sequence of ImageLayer): The layers.
        statistics (sequence of FeatureStatistics or None): Of each layer; None for those of each image.
        share_mask (bool): Whether the layers share one mask.
        settings (BottleneckSettings): Settings.
        smooth_where_possible (bool): Whether a layer whose mask cannot be smoothed is left unsmoothed: one of tokens,
            or with fewer cells along a side than the kernel reaches over.
    """

    classifier: ImageClassifier
    layers: Sequence[ImageLayer]
    statistics: Sequence[FeatureStatistics] | None
    share_mask: bool
    settings: BottleneckSettings
    smooth_where_possible: bool = False

    def maps(
        self,
        batch: Tensor,
        targets: Sequence[int],
        *,
        seed: int = 0,
        batch_size: int = 8,
        internal_batch_size: int | None = None,
        show_progress: bool = False,
    ) -> list[tuple[LayerMap, ...]]:
        """The maps of each image, one per layer, or one of all layers that share a mask.

        Args:
            batch (Tensor): Inputs, (B, 3, H, W).
            targets (sequence of int): The class of each.
            seed, batch_size, internal_batch_size, show_progress: As for :meth:`ImageExplainer.explain`.

        Raises:
            ValueError: A mask that cannot be smoothed, or layers of different grids that share a mask.
        """
        groups = self._groups()
        attributions = [
            InformationBottleneckAttribution(
                self.classifier.class_scores,
                [self.layers[n].module for n in numbers],
                statistics=None if self.statistics is None else [self.statistics[n] for n in numbers],
            )
            for numbers, _ in groups
        ]
        of_images: list[tuple[LayerMap, ...]] = []
        starts = range(0, len(batch), batch_size)
        for start in progress(starts, desc="Images") if show_progress and len(starts) > 1 else starts:
            part = batch[start : start + batch_size]
            maps: dict[int, list[LayerMap]] = {}
            for attribution, (numbers, settings) in zip(attributions, groups, strict=True):
                # Gradients cannot flow through tensors that are made in inference mode.
                with warnings.catch_warnings(), torch.inference_mode(False):
                    warnings.filterwarnings("ignore", "statistics is None")  # which the explainer has said
                    bits, traces = attribution.attribute(
                        part.clone(),
                        torch.tensor(targets[start : start + len(part)], device=part.device),
                        bottleneck_mask=self.layers[numbers[0]].grid.maskable(part.device),
                        feature_dim=[self.layers[n].grid.feature_dim for n in numbers],
                        share_mask=self.share_mask,
                        loss=self.classifier.loss,
                        seed=seed,
                        internal_batch_size=internal_batch_size,
                        return_trace="final",
                        show_progress=show_progress and len(starts) == 1,
                        preset=settings,
                    )
                if self.share_mask:
                    bits, traces = [bits], [traces]
                for n, of_layer, trace in zip(numbers, bits, traces, strict=False):
                    maps[n] = self._layer_maps(n, of_layer, trace, settings)
            of_images += zip(*(maps[n] for n in sorted(maps)), strict=True)
        return of_images

    def _groups(self) -> list[tuple[list[int], BottleneckSettings]]:
        """Numbers of the layers that share a recorded pass, and their settings: their extra tokens lie alike."""
        if self.share_mask and len({layer.grid for layer in self.layers}) > 1:
            raise ValueError(
                f"layer names layers of the grids {sorted({layer.grid.shape for layer in self.layers})}, expected one "
                "grid for layers that share a mask"
            )
        groups: dict[Any, list[int]] = {}
        for number, layer in enumerate(self.layers):
            grid = layer.grid
            extra = (grid.n_extra, grid.shape) if grid.n_extra else None
            groups.setdefault((extra, self._smoothing(layer.name, grid)), []).append(number)
        return [(numbers, replace(self.settings, smoothing=key[1])) for key, numbers in groups.items()]

    def _smoothing(self, name: str, grid: Grid) -> float:
        smoothing = self.settings.smoothing
        too_small = min(grid.shape) <= smoothing_radius(smoothing)
        if not smoothing or not (grid.is_tokens or too_small):
            return smoothing
        if self.smooth_where_possible:
            return 0.0
        what = "which has tokens" if grid.is_tokens else f"which has {grid.height} x {grid.width} cells"
        raise ValueError(
            f"smoothing is {smoothing:g}, expected 0 for layer {name!r}, {what}; set smoothing=0.0, or take the preset "
            "default or coiba"
        )

    def _layer_maps(
        self, number: int, bits: Any, trace: BottleneckTrace, settings: BottleneckSettings
    ) -> list[LayerMap]:
        """The map of each image at a layer."""
        layer, name = self.layers[number], self.layers[number].name
        if self.share_mask and len(self.layers) > 1:
            name = f"{len(self.layers)} layers with one mask, {name} to {self.layers[-1].name}"
        tensor = tensor_with_bits(bits)
        cells = layer.grid.cells(tensor.cpu().double()).numpy()
        n_features = tensor.shape[layer.grid.feature_dim]
        n_values = cells[0].size * (n_features if settings.granularity == "feature" else 1)
        floor = unneeded_bits(settings, n_values) * n_features
        before = unneeded_bits(replace(settings, n_steps=0), n_values) * n_features
        return [
            LayerMap(name, of_image, floor, masked, closed, before, settings.smoothing)
            for of_image, masked, closed in zip(
                cells, trace.probability[:, -1].tolist(), trace.closed_probability.tolist(), strict=True
            )
        ]


def statistics_origin(statistics: Sequence[FeatureStatistics] | None) -> str:
    """What the statistics of the layers are of, for the results."""
    return OWN_STATISTICS if statistics is None else f"a dataset ({statistics[0].count:,} positions of the layer)"


def applied(settings: BottleneckSettings, maps: Sequence[LayerMap]) -> dict[str, Any]:
    """The settings as they were applied: the default smooths only masks of layers whose grid is large enough."""
    return asdict(settings) | {"smoothing": max(layer.smoothing for layer in maps)}
