"""What the noise of a bottleneck looks like: its mean and standard deviation, element by element."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.mask import MaskLayout

# The standard deviation that the published code arrives at from one instance, sqrt(max(0, 1e-5) / 1).
_RELEASED_STD = 1e-5**0.5
# Floor of the standard deviation of an example's own features.
_OWN_MIN_STD = 0.01


def noise_of_data_set(feature: Tensor, statistics: FeatureStatistics, feature_dim: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over a data set, broadcastable to the feature; ValueError for another width."""
    if statistics.n_features != feature.shape[feature_dim]:
        raise ValueError(
            f"statistics have {statistics.n_features} features, expected {feature.shape[feature_dim]}, as the layer "
            f"has in dimension {feature_dim} of its shape {tuple(feature.shape)}"
        )
    shape = [-1 if d == feature_dim else 1 for d in range(feature.ndim)]
    return statistics.mean.to(feature).reshape(shape), statistics.std.to(feature).reshape(shape)


def noise_of_example(feature: Tensor, layout: MaskLayout, feature_dim: int) -> tuple[Tensor, Tensor]:
    """Of each example: per feature over its positions with a bottleneck; for (B, D), over its features."""
    over = [1] if feature.ndim == 2 else [d for d in range(1, feature.ndim) if d != feature_dim]
    carried = layout.carries.expand_as(feature)
    count = carried.sum(over, keepdim=True).clamp_min(1)
    mean = torch.where(carried, feature, 0.0).sum(over, keepdim=True) / count
    variance = torch.where(carried, (feature - mean).square(), 0.0).sum(over, keepdim=True) / count
    return mean, variance.sqrt().clamp_min(_OWN_MIN_STD)


def noise_as_released(feature: Tensor, layer_input: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of the published code: around what the layer takes, with a standard deviation that is next to nothing."""
    if layer_input is None or layer_input.shape != feature.shape:
        raise ValueError('preset "as_released" needs a layer whose input has the shape of its output')
    return layer_input.to(feature), feature.new_tensor(_RELEASED_STD)
