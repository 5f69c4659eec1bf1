"""Inputs of a model: cut into parts of examples, and tiled over noise samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_iba._checks import as_tensors
from captum_iba._compat import TargetType, _format_additional_forward_args
from captum_iba.attr._model.nested import map_tensors, tensors_in, tile


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of a model for some examples, its further arguments, and one target for all or one per example.

    ``per_example`` says of every tensor in ``inputs`` and ``arguments``, in order, whether dimension 0 counts examples.
    """

    inputs: tuple[Tensor, ...]
    arguments: Any
    target: TargetType
    per_example: tuple[bool, ...]

    @classmethod
    def of(cls, inputs: Any, arguments: Any, target: TargetType) -> ModelInputs:
        """Of the arguments of ``attribute``, checked; tensors made in inference mode are copied."""
        tensors = as_tensors(inputs)
        if tensors[0].ndim == 0 or tensors[0].shape[0] == 0:
            raise ValueError(f"inputs has the shape {tuple(tensors[0].shape)}, expected at least one example")
        _refuse_caches(arguments)
        tensors, arguments, target = outside_inference_mode(
            (tensors, _format_additional_forward_args(arguments), target)
        )
        rows = tensors[0].shape[0]
        count = len(target) if isinstance(target, list) else target.numel() if isinstance(target, Tensor) else 1
        if count not in (1, rows) or (isinstance(target, list) and count != rows):
            raise AssertionError(f"target has {count} entries, expected one for each of {rows} examples")
        per_example = tuple(bool(x.ndim) and x.shape[0] == rows for x in tensors_in((tensors, arguments)))
        return cls(tensors, arguments, target, per_example)

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.inputs[0].shape[0]

    def part(self, first: int, size: int) -> ModelInputs:
        """The examples from ``first`` on, at most ``size`` of them."""
        # A tensor that is the same for all examples must not look as if it counted those of the part.
        tensors = zip(tensors_in((self.inputs, self.arguments)), self.per_example, strict=True)
        other_sizes = {tensor.shape[0] for tensor, per_example in tensors if tensor.ndim and not per_example}
        size = min(size, self.rows - first)
        while 1 < size < self.rows and size in other_sizes:
            size -= 1
        return self.examples(first, first + size)

    def examples(self, first: int, last: int) -> ModelInputs:
        """The examples from ``first`` to before ``last``."""
        if first == 0 and last >= self.rows:
            return self
        inputs, arguments = self._mapped(lambda tensor: tensor[first:last])
        target = self.target
        if isinstance(target, list) or (isinstance(target, Tensor) and target.numel() > 1):
            target = target[first:last]
        return ModelInputs(inputs, arguments, target, self.per_example)

    def tiled(self, copies: int) -> tuple[tuple[Tensor, ...], Any]:
        """Inputs and arguments with every example ``copies`` times, in tensors that a model may write into."""
        inputs, arguments = self._mapped(lambda tensor: tile(tensor, self.rows, copies))
        cloned: tuple[tuple[Tensor, ...], Any] = map_tensors(torch.clone, (inputs, arguments))
        return cloned

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Any:
        flags: Iterator[bool] = iter(self.per_example)
        return map_tensors(lambda tensor: function(tensor) if next(flags) else tensor, (self.inputs, self.arguments))


def outside_inference_mode(value: Any) -> Any:
    """Tensors made in inference mode cannot be kept for a backward pass; copies can."""
    with torch.inference_mode(False):
        return map_tensors(lambda tensor: tensor.clone() if tensor.is_inference() else tensor, value)


def _refuse_caches(arguments: Any) -> None:
    """A key-value cache of transformers is written by every pass, and cannot be tiled."""
    if isinstance(arguments, (tuple, list)):
        for argument in arguments:
            _refuse_caches(argument)
    elif isinstance(arguments, Mapping):
        _refuse_caches(list(arguments.values()))
    elif hasattr(arguments, "get_seq_length"):
        raise ValueError(
            f"additional_forward_args holds a {type(arguments).__name__}, which every pass would write into; expected "
            "a forward_func that makes the cache itself, for as many rows as it is given"
        )
