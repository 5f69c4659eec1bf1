"""Arguments of a model, cut into examples and tiled over draws of the noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_iba._compat import TargetType, _format_additional_forward_args
from captum_iba.attr._model.nested import map_tensors, tile


@dataclass(frozen=True)
class Batch:
    """Arguments of a model for some examples, and what is explained of each.

    Args:
        inputs (tuple of Tensor): Dimension 0 counts the examples.
        arguments (tuple or None): Further arguments.
        target (TargetType): One for all, or one an example.
    """

    inputs: tuple[Tensor, ...]
    arguments: Any
    target: TargetType

    @classmethod
    def of(cls, inputs: Any, arguments: Any, target: TargetType) -> Batch:
        """Of the arguments of ``attribute``, checked; tensors made in inference mode are copied."""
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        if not given or not all(isinstance(one, Tensor) for one in given):
            raise TypeError(f"inputs is a {type(inputs).__name__}, expected a tensor or a tuple of tensors")
        if given[0].ndim == 0 or given[0].shape[0] == 0:
            raise ValueError(f"inputs has the shape {tuple(given[0].shape)}, expected at least one example")
        _refuse_caches(arguments)
        given, further, target = usable((given, _format_additional_forward_args(arguments), target))
        batch = cls(given, further, target)
        count = len(target) if isinstance(target, list) else target.numel() if isinstance(target, Tensor) else 1
        if count not in (1, batch.rows) or (isinstance(target, list) and count != batch.rows):
            raise AssertionError(f"target has {count} entries, expected one for each of {batch.rows} examples")
        return batch

    @property
    def rows(self) -> int:
        """How many examples there are."""
        return self.inputs[0].shape[0]

    def examples(self, first: int, last: int) -> Batch:
        """Those examples only."""
        rows, target = self.rows, self.target
        if first == 0 and last >= rows:
            return self
        inputs, arguments = map_tensors(
            lambda tensor: tensor[first:last] if tensor.ndim and tensor.shape[0] == rows else tensor,
            (self.inputs, self.arguments),
        )
        if isinstance(target, list) or (isinstance(target, Tensor) and target.numel() > 1):
            target = target[first:last]
        return Batch(inputs, arguments, target)

    def tiled(self, copies: int) -> Batch:
        """Every example ``copies`` times, in tensors that a model may write into; the target stays."""
        inputs, arguments = map_tensors(torch.clone, tile((self.inputs, self.arguments), self.rows, copies))
        return Batch(inputs, arguments, self.target)


def _refuse_caches(arguments: Any) -> None:
    """A key-value cache of transformers is written by every pass, and cannot be tiled."""
    if isinstance(arguments, (tuple, list)):
        for one in arguments:
            _refuse_caches(one)
    elif isinstance(arguments, Mapping):
        _refuse_caches(list(arguments.values()))
    elif hasattr(arguments, "get_seq_length"):
        raise ValueError(
            f"additional_forward_args holds a {type(arguments).__name__}, which every pass would write into; expected "
            "a forward_func that makes the cache itself, for as many rows as it is given"
        )


def usable(value: Any) -> Any:
    """Tensors made in inference mode cannot be kept for a backward pass; copies can."""
    with torch.inference_mode(False):
        return map_tensors(lambda tensor: tensor.clone() if tensor.is_inference() else tensor, value)
