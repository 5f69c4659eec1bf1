"""Where the weights of a model lie in memory, so that its copies in other processes compute the same digits.

A library of matrix products may choose its kernel by how far an array lies after a multiple of 16 or 64 bytes, and two
kernels add in different orders. Weights read from a file lie where the file has them, copies in another process at
multiples of 64: without these functions their last digits differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

_ALIGNMENT = 64  # bytes of a cache line, and of what torch aligns its own memory to


def memory_offsets(model: nn.Module) -> list[int | None]:
    """Offsets of all parameters and buffers from a multiple of 64 bytes; None where that has no meaning."""
    return [_memory_offset(tensor) for tensor in chain(model.parameters(), model.buffers())]


def place_in_memory(model: nn.Module, offsets: Sequence[int | None]) -> None:
    """Move the parameters and buffers of a copy to the offsets of the original."""
    for tensor, offset in zip(chain(model.parameters(), model.buffers()), offsets, strict=True):
        if offset is None or _memory_offset(tensor) in (None, offset):
            continue
        room = torch.empty(tensor.numel() + _ALIGNMENT // tensor.element_size(), dtype=tensor.dtype)
        skipped, rest = divmod((offset - room.data_ptr()) % _ALIGNMENT, tensor.element_size())
        if rest == 0:
            tensor.data = room[skipped : skipped + tensor.numel()].view(tensor.shape).copy_(tensor.data)


def _memory_offset(tensor: Tensor) -> int | None:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not plain or tensor.is_inference() or not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.data_ptr() % _ALIGNMENT
