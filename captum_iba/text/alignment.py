"""Where weights lie in memory, for copies of a model that compute as it does.

A library of matrix products may choose its kernel by how far an array lies behind a multiple of 16 or 64 bytes, and
two kernels add in different orders. Weights read from a file lie where the file has them, copies in another process
at multiples of 64: without care the last digits differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

_LINE = 64  # bytes; what vectors and lines of the cache ask for, and what torch aligns its own memory to


def offsets(model: nn.Module) -> list[int | None]:
    """How far every parameter and buffer lies behind a multiple of 64 bytes; None where that says nothing."""
    return [_offset(tensor) for tensor in _tensors(model)]


def place(model: nn.Module, wanted: Sequence[int | None]) -> None:
    """Have the parameters and buffers of a copy lie as those of the original did.

    Args:
        model (Module): The copy.
        wanted (sequence): What :func:`offsets` gave of the original.
    """
    for tensor, offset in zip(_tensors(model), wanted, strict=True):
        if offset is None or _offset(tensor) in (None, offset):
            continue
        room = torch.empty(tensor.numel() + _LINE // tensor.element_size(), dtype=tensor.dtype)
        skipped, rest = divmod((offset - room.data_ptr()) % _LINE, tensor.element_size())
        if rest == 0:
            tensor.data = room[skipped : skipped + tensor.numel()].view(tensor.shape).copy_(tensor.data)


def _tensors(model: nn.Module) -> chain[Tensor]:
    return chain(model.parameters(), model.buffers())


def _offset(tensor: Tensor) -> int | None:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not plain or tensor.is_inference() or not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.data_ptr() % _LINE
