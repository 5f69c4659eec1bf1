"""Which elements of a feature share one mask value, and which carry a bottleneck at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captum_iba.attr.bottleneck import information


def align_left(mask: Tensor, shape: torch.Size, name: str) -> Tensor:
    """A mask over the first dimensions of a feature, with dimensions of size 1 for the rest.

    Raises:
        ValueError: where it does not broadcast to ``shape``.
    """
    aligned = mask.reshape(*mask.shape, *[1] * (len(shape) - mask.ndim)) if mask.ndim <= len(shape) else mask
    if aligned.ndim != len(shape) or any(m not in (1, s) for m, s in zip(aligned.shape, shape, strict=True)):
        raise ValueError(
            f"{name} has the shape {tuple(mask.shape)}, expected one that broadcasts, aligned on the left, to the "
            f"feature of shape {tuple(shape)}"
        )
    return aligned


@dataclass(frozen=True)
class MaskLayout:
    """How mask values cover a feature.

    Args:
        shape (torch.Size): Of the mask, size 1 where a value is shared along a dimension.
        carries (Tensor): Bool, broadcastable to the feature: False where nothing is noised.
        groups (Tensor or None): For every element of the mask the number of its value, (B or 1, ...).
        n_groups (int): How many values an example has, with ``groups``.
    """

    shape: torch.Size
    carries: Tensor
    groups: Tensor | None = None
    n_groups: int = 0

    @classmethod
    def of(
        cls,
        feature: Tensor,
        granularity: str,
        feature_mask: Tensor | None,
        bottleneck_mask: Tensor | None,
        feature_dim: int,
    ) -> MaskLayout:
        """The layout for a feature of shape (B, ...), by granularity or by a mask of integers."""
        device, shape = feature.device, feature.shape
        if bottleneck_mask is None:
            carries = torch.ones([1] * len(shape), dtype=torch.bool, device=device)
        else:
            carries = align_left(bottleneck_mask.to(device).bool(), shape, "bottleneck_mask")
        if feature_mask is None:
            return cls(torch.Size(_shared_shape(granularity, shape, feature_dim)), carries)
        if feature_mask.is_floating_point() or feature_mask.is_complex():
            raise ValueError(f"feature_mask has the dtype {feature_mask.dtype}, expected integers")
        aligned = align_left(feature_mask.to(device), shape, "feature_mask")
        values, groups = torch.unique(aligned, return_inverse=True)
        return cls(torch.Size((shape[0], *aligned.shape[1:])), carries, groups.flatten(1), len(values))

    def require_fit(self, feature: Tensor, name: str) -> None:
        """Raise ValueError unless the mask fits the feature of another layer, too, which is called ``name``."""
        for mask in (self.shape, self.carries.shape):
            if len(mask) != feature.ndim or any(m not in (1, n) for m, n in zip(mask, feature.shape, strict=True)):
                raise ValueError(
                    f"share_mask is True, but {name} has the shape {tuple(feature.shape)}, which the mask of the first "
                    f"layer, {tuple(mask)}, does not fit"
                )

    def start(self, value: float, dtype: torch.dtype) -> Tensor:
        """The values to optimise, one row an example."""
        size = self.shape if self.groups is None else (self.shape[0], self.n_groups)
        return torch.full(size, value, dtype=dtype, device=self.carries.device, requires_grad=True)

    def spread(self, values: Tensor) -> Tensor:
        """The mask before the sigmoid, of ``shape``."""
        if self.groups is None:
            return values
        return values.gather(1, self.groups.expand(self.shape[0], -1)).reshape(self.shape)

    def openness(self, values: Tensor) -> Tensor:
        """Lambda, broadcastable to the feature: 1 where there is no bottleneck."""
        lam = torch.sigmoid(self.spread(values))
        return torch.where(self.carries, lam, torch.ones_like(lam))


class InformationMeter:
    """Counts the information that a mask lets through, in nats.

    The square of the standardised feature is all that the information depends on, so it is summed once over
    the elements that share a mask value.

    Args:
        layout (MaskLayout): What shares a value.
        standardised (Tensor): :math:`(X - m) / s`, (B, ...).
    """

    def __init__(self, layout: MaskLayout, standardised: Tensor) -> None:
        self._layout = layout
        self._squares = torch.where(layout.carries, standardised.square(), 0.0)
        shared = [d for d, size in enumerate(layout.shape) if d > 0 and size < standardised.shape[d]]
        carried = layout.carries.expand_as(standardised).to(standardised.dtype)
        self._shared_squares = self._squares.sum(shared, keepdim=True) if shared else self._squares
        self._shared_count = carried.sum(shared, keepdim=True) if shared else carried
        self.elements = self._shared_count.flatten(1).sum(1)
        """How many elements of each example carry a bottleneck, (B,)."""

    def total(self, values: Tensor) -> Tensor:
        """Of each example, (B,)."""
        alpha = self._layout.spread(values)
        return information(alpha, self._shared_squares, self._shared_count).flatten(1).sum(1)

    def mean(self, values: Tensor) -> Tensor:
        """Of each example, a bottlenecked element; 0 for an example without any. (B,)."""
        return self.total(values) / self.elements.clamp_min(1)

    def of_elements(self, values: Tensor) -> Tensor:
        """Of every element, the feature's shape; 0 where there is no bottleneck."""
        each = information(self._layout.spread(values), self._squares)
        return torch.where(self._layout.carries, each, 0.0).clamp_min(0).expand_as(self._squares)


def _shared_shape(granularity: str, shape: torch.Size, feature_dim: int) -> tuple[int, ...]:
    if granularity == "feature" or len(shape) == 2:
        return tuple(shape)
    kept = {feature_dim} if granularity == "channel" else set(range(len(shape))) - {feature_dim}
    return tuple(size if d == 0 or d in kept else 1 for d, size in enumerate(shape))
