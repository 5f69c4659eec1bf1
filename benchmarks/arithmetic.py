"""Arithmetic of a BERT encoder: how much there is, and how fast this machine multiplies matrices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Shape:
    """Sizes of an encoder: hidden size, inner size of the feed-forward part, layers, classes."""

    hidden: int
    inner: int
    layers: int
    classes: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """Read the sizes off a BertConfig."""
        return cls(config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_labels)

    def linear(self, length: int) -> int:
        """Operations of the linear maps of one layer for one text, forward."""
        return 2 * length * (4 * self.hidden**2 + 2 * self.hidden * self.inner)

    def attention(self, length: int) -> int:
        """Operations of the two products of attention of one layer for one text, forward."""
        return 4 * length**2 * self.hidden

    def head(self) -> int:
        """Operations of pooler and classifier for one text, forward; both read the first token alone."""
        return 2 * self.hidden * (self.hidden + self.classes)

    def forward(self, length: int) -> int:
        """Operations of one whole forward pass of one text."""
        return self.layers * (self.linear(length) + self.attention(length)) + self.head()

    def after(self, layer: int, length: int) -> int:
        """Operations after ``layer`` (from 1) for one text: forward, and backward to the layer's output only.

        Backward, a linear map costs what it costs forward, for its weights get no gradient. A product of
        attention costs twice that, for both its factors depend on the input.
        """
        rest = self.layers - layer
        return rest * (2 * self.linear(length) + 3 * self.attention(length)) + 2 * self.head()


def floor(shape: Shape, layer: int, length: int, n_steps: int, n_samples: int) -> int:
    """The least operations for one text: one whole pass, then only the part after the layer, draw by draw."""
    return shape.forward(length) + n_steps * n_samples * shape.after(layer, length)


def count_operations(procedure: Callable[[], object]) -> int:
    """Count the floating-point operations of matrix products that the procedure really runs."""
    # Fused attention on a CPU is not in torch's table of operations; the plain one is counted by products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        procedure()
    return counter.get_total_flops()


def matrix_product_rate(shape: Shape, rows: int, repeats: int = 3) -> float:
    """Operations a second of this machine in float32, on the linear maps of one layer, forward and backward.

    Args:
        shape (Shape): Sizes of the encoder.
        rows (int): Rows of the left factor: tokens of a text times noise draws.
        repeats (int): The fastest of so many is taken. Default: 3.
    """
    sizes = [(shape.hidden, shape.hidden)] * 4 + [(shape.hidden, shape.inner), (shape.inner, shape.hidden)]
    products = [(torch.randn(rows, fan_in), torch.randn(fan_out, fan_in)) for fan_in, fan_out in sizes]
    operations = sum(2 * 2 * rows * fan_in * fan_out for fan_in, fan_out in sizes)
    seconds = float("inf")
    with torch.no_grad():
        for _ in range(repeats):
            start = time.perf_counter()
            for features, weight in products:
                F.linear(features, weight) @ weight
            seconds = min(seconds, time.perf_counter() - start)
    return operations / seconds
