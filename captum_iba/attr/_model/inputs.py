"""Inputs of a model: cut into parts of examples, and tiled over noise samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from captum_iba._checks import as_tensors, kind_of
from captum_iba._compat import TargetType, _format_additional_forward_args
from captum_iba._warnings import warn_user
from captum_iba.attr._model.nested import copy_tensor, map_tensors, tensors_in, tile
from captum_iba.attr._model.replay import largest_difference, relative_tolerance

if TYPE_CHECKING:
    from captum_iba.attr._model.guard import ModuleGuard


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


def require_own_rows(
    forward_func: Callable[..., Tensor], inputs: tuple[Tensor, ...], arguments: tuple[Any, ...], guard: ModuleGuard
) -> None:
    """ValueError where an argument has as many rows as there are examples by chance, and is one for all of them.

    Then the output for half of the examples, in reverse order and with their rows alone, differs from that for all as
    they were given, and does not if the argument stays whole. Nothing runs where the sizes tell that all is of the
    examples.
    """
    first, rows = inputs[0], len(inputs[0])
    # A value for each example and position belongs to them, unless these are as many, or there are no positions.
    has_positions = not (first.is_floating_point() and first.ndim == 2) and rows != first.shape[1]
    suspects = [
        tensor
        for tensor in tensors_in(arguments)
        if rows > 1 and tensor.shape[:1] == (rows,) and not (has_positions and tensor.shape[:2] == first.shape[:2])
    ]
    if not suspects:
        return
    try:
        whole = forward_func(*map_tensors(copy_tensor, (*inputs, *arguments)))
        known = (~whole.isnan().flatten(1).any(1)).nonzero().flatten()
        examples = known.flip(0)[: (len(known) + 1) // 2].cpu()
        tolerance = 10 * max(relative_tolerance(guard), 2 * torch.finfo(whole.dtype).eps)
    except Exception:  # no memory for all rows at once, or an output that the caller refuses
        return
    if len(whole) != rows or not len(examples):
        return

    def differs(*shared: Tensor) -> bool:
        def of_examples(tensor: Tensor) -> Tensor:
            own = tensor.shape[:1] == (rows,) and not any(tensor is other for other in shared)
            return tensor.index_select(0, examples.to(tensor.device)) if own else copy_tensor(tensor)

        try:
            part = forward_func(*map_tensors(of_examples, (*inputs, *arguments)))
            return not largest_difference(part, whole[examples]) <= tolerance
        except Exception:  # shapes that the model does not expect
            return True

    if not differs():
        return
    for shared in (*((tensor,) for tensor in suspects), suspects):
        if not differs(*shared):
            raise ValueError(
                f"additional_forward_args holds a tensor of the shape {tuple(shared[0].shape)}, with a row for each of "
                f"{rows} examples by chance: the output of forward_func shows that it is the same for all. Expected "
                "tensors of the examples; let forward_func hold what is the same for all"
            )
    warn_user(
        "the output of forward_func for an example changes with the other rows of a pass, or by chance; expected rows "
        "that do not depend on each other, and additional_forward_args with one entry per example"
    )


def _refuse_caches(arguments: Any) -> None:
    """A key-value cache of transformers is written by every pass, and cannot be tiled."""
    if isinstance(arguments, (tuple, list)):
        for argument in arguments:
            _refuse_caches(argument)
    elif isinstance(arguments, Mapping):
        _refuse_caches(list(arguments.values()))
    elif hasattr(arguments, "get_seq_length"):
        raise ValueError(
            f"additional_forward_args holds {kind_of(arguments)}, which every pass would write into; expected "
            "a forward_func that makes the cache itself, for as many rows as it is given"
        )
