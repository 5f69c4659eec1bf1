r"""
The mathematics of the bottleneck.

With the activation :math:`X`, its mean :math:`m` and standard deviation :math:`s` over a dataset, the mask
:math:`\lambda = \mathrm{sigmoid}(\alpha)` and noise :math:`\varepsilon \sim N(m, s^2)`, the bottleneck lets
:math:`Z = \lambda X + (1 - \lambda) \varepsilon` through. The information of :math:`Z` about :math:`X` is the
Kullback-Leibler divergence of :math:`Z \mid X` from :math:`N(m, s^2)` (Schulz et al., 2020, equation 5; Jiang et al.,
2020, equation 6). The mask minimizes the loss of the prediction plus ``beta`` times the mean information per element.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from captum_iba._compat import ExpansionTypes, TargetType, _expand_target
from captum_iba.attr._model.replay import ForwardPasses
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.losses import LossFunction, complement_losses, row_losses
from captum_iba.attr.settings import BottleneckSettings

NATS_PER_BIT = math.log(2.0)

# Noise is sampled for blocks of so many positions. Every block has the same size, so the noise of a longer (padded)
# text begins with the noise of a shorter one, whatever a device's generator does with sizes.
_POSITIONS_PER_BLOCK = 64
# The standard deviation that the published code computes from one example, sqrt(max(0, 1e-5) / 1).
_RELEASED_STD = 1e-5**0.5
_MIN_STD_OF_EXAMPLE = 0.01


def information(alpha: Tensor, x_squared: Tensor, count: Tensor | float = 1.0) -> Tensor:
    r"""
    Information that the bottleneck lets through, in nats.

    .. math:: \mathrm{KL}(\alpha, x) = \mathrm{softplus}(\alpha) - \lambda + \lambda^2 (1 + x^2) / 2

    of mask logits :math:`\alpha`, summed over ``count`` elements that share a mask value, with ``x_squared`` the sum of
    their squared standardized activations :math:`((X - m) / s)^2`. It equals the textbook form with
    :math:`\log (1 - \lambda)^2`, which is infinite in float32 from :math:`\alpha \approx 17` on, and is finite for
    every finite :math:`\alpha`. Its derivative is :math:`\lambda^2 ((2 - \lambda) + (1 - \lambda) x^2)`.

    Examples::

        >>> information(torch.tensor([0.0]), torch.tensor([3.0]))
        tensor([0.6931])
    """
    lam = torch.sigmoid(alpha)
    return count * (F.softplus(alpha) - lam) + lam.square() * (count + x_squared) / 2


def apply_bottleneck(activation: Tensor, noise: Tensor, lam: Tensor) -> Tensor:
    r""":math:`Z = \lambda X + (1 - \lambda) \varepsilon`, in the mask's precision; of the dtype of the activation."""
    return torch.lerp(noise.to(lam.dtype), activation.to(lam.dtype), lam).to(activation.dtype)


def standard_noise(shape: tuple[int, ...], key: tuple[int, ...], device: torch.device) -> Tensor:
    """Standard normal noise from its own generator, of a shape with the positions first, as (T, D).

    It depends on the key (seed, layer, step, noise sample) and the kind of device. The first ``n`` positions of a key
    are the same for every number of positions.

    Examples::

        >>> long = standard_noise((100, 2), (0, 0), torch.device("cpu"))
        >>> torch.equal(long[:3], standard_noise((3, 2), (0, 0), torch.device("cpu")))
        True
    """
    digest = hashlib.blake2b(",".join(map(str, key)).encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
    block = (_POSITIONS_PER_BLOCK, *shape[1:])
    # float32 whatever torch's default is: another precision gives other numbers.
    blocks = [
        torch.randn(block, generator=generator, device=device, dtype=torch.float32)
        for _ in range(-(-shape[0] // _POSITIONS_PER_BLOCK))
    ]
    return torch.cat(blocks)[: shape[0]]


def gaussian_smoothing(values: Tensor, sigma: float) -> Tensor:
    r"""
    Smooth (B, C, H, W) over H and W by a Gaussian of standard deviation ``sigma``, in positions.

    The kernel has :math:`2 \, \mathrm{round}(2 \sigma) + 1` positions along a side and the sum 1; the border is
    reflected (the published code of Schulz et al., 2020, ``IBA.pytorch``).

    Examples::

        >>> gaussian_smoothing(torch.eye(3)[None, None], sigma=0.5)[0, 0, 1]
        tensor([0.2515, 0.6420, 0.2515])
    """
    radius = smoothing_radius(sigma)
    offsets = torch.arange(-radius, radius + 1, dtype=values.dtype, device=values.device)
    kernel = torch.exp(-offsets.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).expand(values.shape[1], 1, 1, -1)
    padded = F.pad(values, (radius, radius, radius, radius), mode="reflect")
    along_width = F.conv2d(padded, kernel, groups=values.shape[1])
    return F.conv2d(along_width, kernel.mT, groups=values.shape[1])


def smoothing_radius(sigma: float) -> int:
    """Positions of the kernel of :func:`gaussian_smoothing` on each side of the middle."""
    return round(2 * sigma)


def dataset_noise(activation: Tensor, statistics: FeatureStatistics, feature_dim: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over a dataset, broadcastable to the activation; ValueError for another width."""
    if statistics.n_features != activation.shape[feature_dim]:
        raise ValueError(
            f"statistics have {statistics.n_features} features, expected {activation.shape[feature_dim]}, as the layer "
            f"has in dimension {feature_dim} of its shape {tuple(activation.shape)}"
        )
    shape = [-1 if d == feature_dim else 1 for d in range(activation.ndim)]
    return statistics.mean.to(activation).reshape(shape), statistics.std.to(activation).reshape(shape)


def example_noise(activation: Tensor, layout: MaskLayout, feature_dim: int) -> tuple[Tensor, Tensor]:
    """Per-example mean and standard deviation of each feature over the maskable positions; for (B, D) over features."""
    over = [1] if activation.ndim == 2 else [d for d in range(1, activation.ndim) if d != feature_dim]
    maskable = layout.maskable.expand_as(activation)
    count = maskable.sum(over, keepdim=True).clamp_min(1)
    mean = torch.where(maskable, activation, 0.0).sum(over, keepdim=True) / count
    variance = torch.where(maskable, (activation - mean).square(), 0.0).sum(over, keepdim=True) / count
    return mean, variance.sqrt().clamp_min(_MIN_STD_OF_EXAMPLE)


def released_noise(activation: Tensor, layer_input: Tensor | None) -> tuple[Tensor, Tensor]:
    """Noise of the published code: its mean is the layer's input, and its standard deviation is nearly 0."""
    if layer_input is None or layer_input.shape != activation.shape:
        raise ValueError('preset "as_released" needs a layer whose input has the shape of its output')
    return layer_input.to(activation), activation.new_tensor(_RELEASED_STD)


@dataclass(frozen=True)
class MaskLayout:
    """Which elements of an activation share a mask value, and which are maskable.

    Args:
        shape (torch.Size): Shape of the mask, with size 1 where a value is shared along a dimension.
        maskable (Tensor): Bool, broadcastable to the activation: False for elements without noise and information.
        feature_dim (int): Dimension of the activation that holds the features.
        groups (Tensor or None): Number of the mask value of every element of the mask, (B or 1, ...).
        n_groups (int): Number of mask values per example, with ``groups``.
        smoothing (float): Standard deviation, in positions, of the Gaussian that smooths the mask.
    """

    shape: torch.Size
    maskable: Tensor
    feature_dim: int
    groups: Tensor | None = None
    n_groups: int = 0
    smoothing: float = 0.0

    @classmethod
    def of(
        cls,
        activation: Tensor,
        granularity: str,
        feature_mask: Tensor | None,
        bottleneck_mask: Tensor | None,
        feature_dim: int,
        smoothing: float = 0.0,
    ) -> MaskLayout:
        """The layout for an activation (B, ...), by granularity or by a feature mask of integers."""
        device, shape = activation.device, activation.shape
        if smoothing:
            _check_smoothing(smoothing, granularity, shape, feature_dim, feature_mask, bottleneck_mask)
        if bottleneck_mask is None:
            maskable = torch.ones([1] * len(shape), dtype=torch.bool, device=device)
        else:
            maskable = _align_left(bottleneck_mask.to(device).bool(), shape, "bottleneck_mask")
        if feature_mask is None:
            return cls(_shared_shape(granularity, shape, feature_dim), maskable, feature_dim, smoothing=smoothing)
        if feature_mask.is_floating_point() or feature_mask.is_complex():
            raise ValueError(f"feature_mask has the dtype {feature_mask.dtype}, expected integers")
        aligned = _align_left(feature_mask.to(device), shape, "feature_mask")
        values, groups = torch.unique(aligned, return_inverse=True)
        return cls(torch.Size((shape[0], *aligned.shape[1:])), maskable, feature_dim, groups.flatten(1), len(values))

    def require_fit(self, activation: Tensor, name: str) -> None:
        """Raise ValueError unless the mask fits the activation of another layer ``name``, too."""
        for mask in (self.shape, self.maskable.shape):
            if not _broadcasts(mask, activation.shape):
                raise ValueError(
                    f"share_mask is True, but {name} has the shape {tuple(activation.shape)}, which the mask of the "
                    f"first layer, {tuple(mask)}, does not fit"
                )

    def initial_alpha(self, value: float, dtype: torch.dtype) -> Tensor:
        """The mask logits to optimize, one row per example."""
        size = self.shape if self.groups is None else (self.shape[0], self.n_groups)
        return torch.full(size, value, dtype=dtype, device=self.maskable.device, requires_grad=True)

    def expand(self, alpha: Tensor) -> Tensor:
        """The mask logits of all elements of the mask, of ``shape``."""
        if self.smoothing:
            # As logits, so that what follows is as stable as it is without smoothing.
            smoothed = [self._smoothed(torch.sigmoid(side)) for side in (alpha, -alpha)]
            lam, rest = (side.clamp_min(torch.finfo(side.dtype).tiny).log() for side in smoothed)
            return lam - rest
        if self.groups is None:
            return alpha
        return alpha.gather(1, self.groups.expand(self.shape[0], -1)).reshape(self.shape)

    def _smoothed(self, lam: Tensor) -> Tensor:
        """A mask (B, C, H, W) or (B, H, W, C), smoothed over its positions."""
        return gaussian_smoothing(lam.movedim(self.feature_dim, 1), self.smoothing).movedim(1, self.feature_dim)

    @cached_property
    def _first_maskable(self) -> Tensor | None:
        """The first maskable position of each example of (B, T, D) or (B, D, T), (B or 1,); None if it is 0 in all."""
        if self.maskable.ndim != 3:
            return None
        first = self.maskable.any(self.feature_dim).int().argmax(1)
        first = first[:1] if bool((first == first[0]).all()) else first
        return first if bool(first.any()) else None

    def standard_noise(self, shape: torch.Size, key: tuple[int, ...], device: torch.device) -> Tensor:
        """:func:`standard_noise` for an activation of ``shape`` without its rows, from the first maskable position on,
        so that padding on the left, as on the right, leaves the noise of a text as it is.

        It has one row for all examples, or one for each.
        """
        dim = self.feature_dim - 1
        noise = standard_noise((*shape[:dim], *shape[dim + 1 :], shape[dim]), key, device)
        if self._first_maskable is None:
            return noise.movedim(-1, dim).unsqueeze(0)
        positions = torch.arange(len(noise), device=device) - self._first_maskable.to(device).unsqueeze(1)
        return noise[positions.clamp_min(0)].movedim(-1, self.feature_dim)

    def gate(self, alpha: Tensor) -> Tensor:
        """Lambda, broadcastable to the activation: 1 where an element is not maskable."""
        lam = torch.sigmoid(self.expand(alpha))
        return torch.where(self.maskable, lam, torch.ones_like(lam))


class Information:
    """Information that a mask lets through, in nats, with the standardized activation :math:`(X - m) / s`, (B, ...).

    It depends on the squares only, which are summed once over elements that share a mask value.
    """

    def __init__(self, layout: MaskLayout, standardized: Tensor) -> None:
        self._layout = layout
        self._squares = torch.where(layout.maskable, standardized.square(), 0.0)
        shared = [d for d, size in enumerate(layout.shape) if d > 0 and size < standardized.shape[d]]
        maskable = layout.maskable.expand_as(standardized).to(standardized.dtype)
        self._shared_squares = self._squares.sum(shared, keepdim=True) if shared else self._squares
        self._shared_count = maskable.sum(shared, keepdim=True) if shared else maskable
        self.n_elements = self._shared_count.flatten(1).sum(1)
        """Number of maskable elements per example, (B,)."""

    def total(self, alpha: Tensor) -> Tensor:
        """Sum per example, (B,)."""
        values = information(self._layout.expand(alpha), self._shared_squares, self._shared_count)
        return values.flatten(1).sum(1)

    def mean(self, alpha: Tensor) -> Tensor:
        """Mean per maskable element of each example, 0 for an example without any, (B,)."""
        return self.total(alpha) / self.n_elements.clamp_min(1)

    def per_element(self, alpha: Tensor) -> Tensor:
        """Of every element, of the activation's shape; 0 where an element is not maskable."""
        values = information(self._layout.expand(alpha), self._squares)
        return torch.where(self._layout.maskable, values, 0.0).clamp_min(0).expand_as(self._squares)


@dataclass(frozen=True)
class Objective:
    """Loss and information of one mask, which one or several layers share, in a model that runs on a few examples.

    Args:
        mean, std (sequence of Tensor): Mean and standard deviation of the noise of each layer, broadcastable to its
            activation.
        information (Information): Information at the first layer.
    """

    passes: ForwardPasses
    mean: Sequence[Tensor]
    std: Sequence[Tensor]
    layout: MaskLayout
    information: Information
    loss: str | LossFunction
    target: TargetType
    settings: BottleneckSettings
    seed: int

    @property
    def activation(self) -> Tensor:
        """Activation of the first layer, (B, ...)."""
        return self.passes.captured[0].activation

    @cached_property
    def _are_finite(self) -> list[bool]:
        return [bool(captured.activation.isfinite().all()) for captured in self.passes.captured]

    def losses(self, alpha: Tensor, step: int, samples: range, masks: Sequence[int]) -> Tensor:
        """Losses of some noise samples of a step, (masks, samples, B).

        Mask 0 is the mask, mask 1 is its complement, with the same noise. They go through the model in one pass.
        """
        rows, copies = self.activation.shape[0], len(masks) * len(samples)
        lam = torch.stack([self.layout.gate(-alpha if mask else alpha) for mask in masks]).unsqueeze(1)

        def noised(number: int, live: Tensor) -> Tensor:
            shape = live.shape[1:]
            noise = self.mean[number]
            if self.settings.n_samples:
                samples_of_step = [self._standard_noise(shape, number, step, sample, live) for sample in samples]
                noise = noise + self.std[number] * torch.stack(samples_of_step)
            # In a replayed pass the activation of the first layer has the right shape only.
            activation = self.activation if number == 0 else live.reshape(len(masks), len(samples), rows, *shape)
            # Layers that share a mask may be on several devices.
            lam_of_layer = lam.to(live.device)
            if self._are_finite[number]:
                return apply_bottleneck(activation, noise, lam_of_layer).flatten(0, 2)
            # Padding of a maximum, for example, is -inf, which times 1 - lambda = 0 would be NaN.
            maskable = self.layout.maskable.to(live.device)
            finite = torch.where(maskable, activation, 0.0)
            return torch.where(maskable, apply_bottleneck(finite, noise, lam_of_layer), activation).flatten(0, 2)

        output = self.passes.run(copies, noised)
        target = _expand_target(self.target, len(samples), expansion_type=ExpansionTypes.repeat)
        losses = [
            (complement_losses if mask else row_losses)(self.loss, outputs, target)
            for mask, outputs in zip(masks, output.chunk(len(masks)), strict=True)
        ]
        return torch.stack(losses).reshape(len(masks), len(samples), rows)

    def _standard_noise(self, shape: torch.Size, number: int, step: int, sample: int, like: Tensor) -> Tensor:
        # Terms of the loss that are odd in the noise cancel in an antithetic pair: half the samples are as good. A pair
        # may lie in two steps, because Adam averages over steps.
        n_samples = self.settings.n_samples
        negated = self.settings.antithetic and (step * n_samples + sample) % 2 == 1
        if negated:
            step, sample = divmod(step * n_samples + sample - 1, n_samples)
        noise = self.layout.standard_noise(shape, (self.seed, number, step, sample), like.device)
        return -noise if negated else noise


def _broadcasts(mask: torch.Size, shape: torch.Size) -> bool:
    return len(mask) == len(shape) and all(m in (1, size) for m, size in zip(mask, shape, strict=True))


def _align_left(mask: Tensor, shape: torch.Size, name: str) -> Tensor:
    """A mask over the first dimensions of an activation, with size 1 for the rest; ValueError if it does not fit."""
    aligned = mask.reshape(*mask.shape, *[1] * max(0, len(shape) - mask.ndim))
    if not _broadcasts(aligned.shape, shape):
        wider = torch.Size((*mask.shape[:1], *[1] * (len(shape) - mask.ndim), *mask.shape[1:]))
        hint = f"; reshape it to {tuple(wider)}" if wider != mask.shape and _broadcasts(wider, shape) else ""
        raise ValueError(
            f"{name} has the shape {tuple(mask.shape)}, expected one that broadcasts, aligned on the left, to the "
            f"activation of shape {tuple(shape)}{hint}"
        )
    return aligned


def _check_smoothing(
    smoothing: float,
    granularity: str,
    shape: torch.Size,
    feature_dim: int,
    feature_mask: Tensor | None,
    bottleneck_mask: Tensor | None,
) -> None:
    """ValueError unless a mask for an activation has neighbors over which it can be smoothed."""
    given = next((name for name, mask in (("feature_mask", feature_mask), ("bottleneck_mask", bottleneck_mask))
                  if mask is not None), None)  # fmt: skip
    if given is not None:
        raise ValueError(f"smoothing is {smoothing:g}, expected 0 with a {given}, which separates what it would join")
    if len(shape) != 4 or granularity == "channel":
        raise ValueError(
            f"smoothing is {smoothing:g}, expected 0 for an activation of shape {tuple(shape)} with the granularity "
            f"{granularity!r}: a mask over the positions of (B, C, H, W) or (B, H, W, C) can be smoothed"
        )
    shortest = min(size for d, size in enumerate(shape) if d not in (0, feature_dim))
    if smoothing_radius(smoothing) >= shortest:
        raise ValueError(
            f"smoothing is {smoothing:g}, whose kernel reaches {smoothing_radius(smoothing)} positions to each side, "
            f"expected fewer than the activation of shape {tuple(shape)} has along a side, {shortest}"
        )


def _shared_shape(granularity: str, shape: torch.Size, feature_dim: int) -> torch.Size:
    if granularity == "feature" or len(shape) == 2:
        return shape
    unshared = {feature_dim} if granularity == "channel" else set(range(len(shape))) - {feature_dim}
    return torch.Size(size if d == 0 or d in unshared else 1 for d, size in enumerate(shape))
