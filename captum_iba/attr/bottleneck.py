"""The mathematics of the bottleneck, as pure tensor functions.

With the feature :math:`X`, its mean :math:`m` and standard deviation :math:`s` over a data set, the mask
:math:`\\lambda = \\mathrm{sigmoid}(a)` and noise :math:`\\varepsilon \\sim N(m, s^2)`, the bottleneck lets
:math:`Z = \\lambda X + (1 - \\lambda) \\varepsilon` through. What :math:`Z` tells of :math:`X`, beyond what anybody
knows who knows only :math:`m` and :math:`s`, is the Kullback-Leibler divergence of :math:`Z \\mid X` from
:math:`N(m, s^2)` (Schulz et al., 2020, equation 5; Jiang et al., 2020, equation 6).
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor
from torch.nn import functional as F

NATS_PER_BIT = math.log(2.0)

# Noise is drawn for so many positions at a time. Every draw has the same size, so a longer (padded) text
# begins with the very noise of a shorter one, whatever a device's generator does with sizes.
_POSITIONS_PER_DRAW = 64


def information(alpha: Tensor, x_squared: Tensor, count: Tensor | float = 1.0) -> Tensor:
    r"""What the bottleneck lets through, in nats.

    .. math:: \mathrm{KL}(a, x) = \mathrm{softplus}(a) - \lambda + \lambda^2 (1 + x^2) / 2

    summed over ``count`` elements that share the mask value. Equal to the textbook form with
    :math:`\log (1 - \lambda)^2`, which is infinite in float32 from :math:`a \approx 17` on, and finite for
    every finite :math:`a`. Its derivative is :math:`\lambda^2 ((2 - \lambda) + (1 - \lambda) x^2)`.

    Args:
        alpha (Tensor): Mask before the sigmoid, any shape.
        x_squared (Tensor): Sum of the squares of the standardised features :math:`(X - m) / s` over the
            elements that share a mask value; shape broadcastable to that of ``alpha``.
        count (Tensor or float): How many elements share it. Default: 1.

    Returns:
        Tensor: nats, of the broadcast shape.
    """
    lam = torch.sigmoid(alpha)
    return count * (F.softplus(alpha) - lam) + lam.square() * (count + x_squared) / 2


def open_bottleneck(features: Tensor, noise: Tensor, lam: Tensor) -> Tensor:
    r""":math:`Z = \lambda X + (1 - \lambda) \varepsilon`, computed in the mask's precision.

    Args:
        features (Tensor): :math:`X`.
        noise (Tensor): :math:`\varepsilon`, broadcastable with ``features``.
        lam (Tensor): :math:`\lambda` in [0, 1], broadcastable with ``features``.

    Returns:
        Tensor: of the dtype of ``features``.
    """
    return torch.lerp(noise.to(lam.dtype), features.to(lam.dtype), lam).to(features.dtype)


def standard_noise(shape: tuple[int, ...], key: tuple[int, ...], device: torch.device) -> Tensor:
    """Standard normal noise from a generator of its own, drawn position by position.

    Args:
        shape (tuple of int): Positions first, for example (T, D).
        key (tuple of int): What the noise depends on, for example seed, layer, step, draw. The first
            ``n`` positions of a key are the same for every number of positions.
        device (torch.device): Where it is drawn; devices differ in their numbers.

    Returns:
        Tensor: float32, of ``shape``.
    """
    digest = hashlib.blake2b(",".join(map(str, key)).encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
    block = (_POSITIONS_PER_DRAW, *shape[1:])
    blocks = range(-(-shape[0] // _POSITIONS_PER_DRAW))
    # Whatever torch's default is: another precision draws other numbers.
    drawn = [torch.randn(block, generator=generator, device=device, dtype=torch.float32) for _ in blocks]
    return torch.cat(drawn)[: shape[0]]
