"""Whether memory ran out."""

from __future__ import annotations

import torch


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory ran out, on a CPU or an accelerator."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # A CPU's allocator has no exception of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
