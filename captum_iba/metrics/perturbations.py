"""What removing a feature means: deleted, replaced, masked out, or set to a baseline.

A perturbation is any callable ``perturbation(inputs, arguments, removed) -> (inputs, arguments)``. It gets the rows of
one forward pass: ``inputs``, a tuple of tensors; ``arguments``, a tuple of additional arguments; and ``removed``, bool,
(rows, T), or (rows, H, W) for images, True where a feature is removed. Texts are never decoded and tokenized again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_MOST_SEGMENTS = 4  # XLNet's segment ids
Tensors = tuple[Tensor, ...]
Arguments = tuple[Any, ...]


class Perturbation(Protocol):
    """Removes features of the rows of a forward pass."""

    def __call__(self, inputs: Tensors, arguments: Arguments, removed: Tensor, /) -> tuple[Tensors, Arguments]:
        """Inputs and additional arguments of ``forward_func`` without the removed features."""


@dataclass(frozen=True)
class Delete:
    """Removed positions leave the token ids and every aligned tensor; the remaining ones move together to the left.

    Aligned are all tensors of inputs and additional arguments, also inside tuples, lists and dictionaries, that have
    the shape (rows, T, ...): attention mask, segment ids, position ids. Position ids so keep their
    numbers, and a model that counts positions itself sees none missing. Other integers (rows, T) among the inputs are
    refused, since they may be a second text: padded to another length, it stays as it is. What belongs to the
    tokens of the first text is passed as an additional argument.

    An argument that depends on the number of tokens otherwise (lengths for ``pack_padded_sequence``, masks of the shape
    (rows, 1, 1, T), position ids (T,)) cannot follow: let ``forward_func`` make it from the ids or the attention mask.

    Rows of a pass that got shorter than the longest are filled up on the right, the ids with ``pad_id``, all else with
    0, so the model must ignore what its attention mask or ``pad_id`` marks as padding, and nothing
    may depend on the right end of a row. For models that do otherwise (XLNet, FNet, ConvBERT) there is
    ``equal_lengths``. A position counts as padding, and is deleted too, where it is not removable and all aligned
    tensors hold their padding values.

    Args:
        pad_id (int): Padding token id of the model. Decoders look for it in the ids to find a text's last token, so
            that a wrong one gives wrong logits.
        equal_lengths (bool): Whether only rows of equal length share a pass, so that nothing is padded: slower, and
            right where padding changes the model's output. Default: False.

    Examples::

        >>> Delete(0)((torch.tensor([[5, 6, 7]]),), (), torch.tensor([[False, True, False]]))
        ((tensor([[5, 7]]),), ())
    """

    pad_id: int
    equal_lengths: bool = False

    def __call__(self, inputs: Tensors, arguments: Arguments, removed: Tensor) -> tuple[Tensors, Arguments]:
        """Rows without the removed positions, truncated to the longest that remains (one column at least)."""
        lengths = (~removed).sum(1)
        width = max(1, int(lengths.max()))
        # A stable sort by "removed" brings the remaining positions to the front, in their order.
        remaining = torch.sort(removed.to(torch.uint8), dim=1, stable=True).indices[:, :width]
        empty = torch.arange(width, device=removed.device) >= lengths[:, None]

        def pack(tensor: Tensor, fill: int) -> Tensor:
            shape = (*remaining.shape, *[1] * (tensor.ndim - 2))
            values = tensor.expand(len(removed), *tensor.shape[1:])
            packed = values.gather(1, remaining.view(shape).expand(*remaining.shape, *tensor.shape[2:]))
            return packed.masked_fill(empty.view(shape), fill)

        def pack_aligned(tensor: Tensor) -> Tensor:
            return pack(tensor, 0) if _aligned(tensor, removed.shape) else tensor

        others, additional = _map_tensors(pack_aligned, (inputs[1:], arguments))
        return (pack(inputs[0], self.pad_id), *others), additional

    def padding(self, inputs: Tensors, arguments: Arguments, removable: Tensor) -> Tensor:
        """Mask of the positions that are padding, bool, (B, T), on the device of ``removable``.

        Raises:
            ValueError: An argument that deletion cannot follow, or a mask whose 0 does not mark padding.
        """
        for number, tensor in enumerate(inputs[1:], 1):
            if _aligned(tensor, removable.shape) and _may_be_text(tensor, inputs[0] != self.pad_id):
                raise ValueError(
                    f"Delete: inputs[{number}] has the shape of inputs[0], {tuple(tensor.shape)}, and may be a second "
                    "text, whose tokens would be deleted too; expected one that is padded to another length. What "
                    "belongs to the tokens of inputs[0] belongs into additional_forward_args"
                )
        padding = ~removable & (inputs[0] == self.pad_id).to(removable.device)
        others: list[Tensor] = []

        def exclude(tensor: Tensor) -> None:
            if not _aligned(tensor, removable.shape):
                others.append(tensor)
                return
            is_zero = (tensor == 0).reshape(*tensor.shape[:2], -1).all(2).to(padding.device)
            padding.logical_and_(is_zero)
            is_mask = tensor.ndim == 2 and (tensor.dtype == torch.bool or tensor.is_floating_point())
            if is_mask and not self.equal_lengths and removable.any() and (is_zero | ~removable).all():
                raise ValueError(
                    f"Delete: an argument of {tensor.dtype} is 0 at every token, as masks are whose True or -inf is "
                    "padding; expected 0 at padding, with which short rows are filled up: let forward_func invert it, "
                    "or set equal_lengths=True"
                )

        _map_tensors(exclude, (inputs[1:], arguments))
        lengths = (~padding).sum(1).cpu()
        for tensor in others:
            is_integer = tensor.dtype != torch.bool and not tensor.is_floating_point()
            if padding.shape[1] > 1 and is_integer and torch.equal(tensor.flatten().cpu().long(), lengths):
                raise ValueError(
                    f"Delete: an argument is {tensor.tolist()}, the number of tokens of each example, which deletion "
                    "cannot follow; expected a forward_func that counts them in the ids or the attention mask (what "
                    "is something else belongs into forward_func)"
                )
        return padding

    def marked_padding(self, inputs: Tensors, arguments: Arguments) -> Tensor:
        """Mask of the padding, bool, (B, T), on the CPU, where nobody says what is removable.

        Padding has the padding id, and a 0 in an aligned tensor of 0 and 1 that has its zeros at such ids alone.

        Raises:
            ValueError: There are padding ids, and no such tensor tells which of them are padding.
        """
        ids_of_padding = (inputs[0] == self.pad_id).cpu()
        if not bool(ids_of_padding.any()):
            return ids_of_padding
        masks: list[Tensor] = []

        def collect(tensor: Tensor) -> None:
            if _aligned(tensor, ids_of_padding.shape) and tensor.ndim == 2:
                values = tensor.cpu().expand(ids_of_padding.shape)
                if bool((((values == 0) & ids_of_padding) | (values == 1)).all()):
                    masks.append(values == 0)

        _map_tensors(collect, (inputs[1:], arguments))
        if not masks:
            raise ValueError(
                f"removable_mask is None, expected one that is False at padding: inputs hold the padding id "
                f"{self.pad_id}, and no attention mask of forward_func tells whether it is padding"
            )
        return torch.stack(masks).any(0)


@dataclass(frozen=True)
class ReplaceToken:
    """Another token, [MASK] for example, replaces the removed one; everything else stays.

    Args:
        token_id (int): Id of the other token.

    Examples::

        >>> ReplaceToken(103)((torch.tensor([[5, 6, 7]]),), (), torch.tensor([[False, True, False]]))
        ((tensor([[  5, 103,   7]]),), ())
    """

    token_id: int

    def __call__(self, inputs: Tensors, arguments: Arguments, removed: Tensor) -> tuple[Tensors, Arguments]:
        """Rows with the other token where a feature is removed."""
        return (inputs[0].masked_fill(removed, self.token_id), *inputs[1:]), arguments


@dataclass(frozen=True)
class MaskOut:
    """The attention mask becomes 0: nothing attends to the position any more, but it stays where it is.

    Args:
        argument (int): Position of the attention mask, (B, T), among the arguments of ``forward_func``, counted from 0
            through inputs and additional arguments. Default: 1, the first after the ids.

    Examples::

        >>> ids, mask = torch.tensor([[5, 6, 7]]), torch.ones(1, 3)
        >>> MaskOut()((ids,), (mask,), torch.tensor([[False, True, False]]))
        ((tensor([[5, 6, 7]]),), (tensor([[1., 0., 1.]]),))
    """

    argument: int = 1

    def __call__(self, inputs: Tensors, arguments: Arguments, removed: Tensor) -> tuple[Tensors, Arguments]:
        """Rows with 0 in the mask where a feature is removed.

        Raises:
            ValueError: The argument is not a tensor (B, T).
        """
        values: list[Any] = [*inputs, *arguments]
        values[self.argument] = self.mask(inputs, arguments, removed.shape).masked_fill(removed, 0)
        return tuple(values[: len(inputs)]), tuple(values[len(inputs) :])

    def mask(self, inputs: Tensors, arguments: Arguments, shape: torch.Size) -> Tensor:
        """The attention mask, of this shape; ValueError if the argument has another."""
        values: list[Any] = [*inputs, *arguments]
        mask = values[self.argument] if 0 <= self.argument < len(values) else None
        if not isinstance(mask, Tensor) or mask.shape != shape:
            actual = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"MaskOut: argument {self.argument} of forward_func is {actual}, expected the attention mask, a tensor "
                f"with a value for each of {shape[1]} positions"
            )
        return mask


@dataclass(frozen=True, eq=False)
class BaselineValue:
    """A baseline replaces the removed feature: for embeddings, images and tables.

    Args:
        value (float, Tensor or Callable): Baseline, the same for all examples; a tensor broadcasts to the inputs
            (B, ...), for example (D,) for embeddings, (C, 1, 1) for images. Or a function of the complete inputs that
            gives the baseline of each example: :func:`captum_iba.metrics.mean_color`,
            :func:`captum_iba.metrics.blurred`. Default: 0.

    Examples::

        >>> BaselineValue(0.5)((torch.ones(1, 3),), (), torch.tensor([[False, True, False]]))
        ((tensor([[1.0000, 0.5000, 1.0000]]),), ())
        >>> of_each = BaselineValue(lambda x: x.mean(1, keepdim=True))
        >>> of_each((torch.tensor([[1.0, 5.0]]),), (), torch.tensor([[False, True]]))
        ((tensor([[1., 3.]]),), ())
    """

    value: float | Tensor | Callable[[Tensor], Tensor] = 0.0

    def __call__(self, inputs: Tensors, arguments: Arguments, removed: Tensor) -> tuple[Tensors, Arguments]:
        """Rows with the baseline where a feature is removed.

        Raises:
            ValueError: A baseline of another shape, with a value for each example, or that the inputs cannot hold.
        """
        first = inputs[0]
        where = removed.unsqueeze(1) if first.ndim >= 4 else removed.view(*removed.shape, *[1] * (first.ndim - 2))
        if callable(self.value):
            return (torch.where(where, self._baseline_of_each_example(first), first), *inputs[1:]), arguments
        given = torch.as_tensor(self.value, device=first.device)
        value = given.to(first.dtype)
        if not first.is_floating_point() and not torch.equal(value.to(given.dtype), given):
            raise ValueError(f"BaselineValue: value is {self.value}, expected one that {first.dtype} can hold")
        baseline = value[0] if value.ndim == first.ndim and len(value) == 1 else value
        shape = tuple(first.shape[1:])
        sizes = zip(reversed(baseline.shape), reversed(shape), strict=False)
        if baseline.ndim > len(shape) or not all(size in (1, expected) for size, expected in sizes):
            raise ValueError(
                f"BaselineValue: value has the shape {tuple(value.shape)}, expected one that broadcasts to an example, "
                f"{shape}: the baseline is the same for all examples"
            )
        return (torch.where(where, value, first), *inputs[1:]), arguments

    def _baseline_of_each_example(self, inputs: Tensor) -> Tensor:
        """The baseline of each example, by the function, of the type of the inputs."""
        assert callable(self.value)
        value = self.value(inputs)
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        sizes = zip(shape[1:], inputs.shape[1:], strict=False)
        if len(shape) != inputs.ndim or shape[0] != len(inputs) or not all(size in (1, full) for size, full in sizes):
            raise ValueError(
                f"BaselineValue: the function returns {shape or type(value).__name__}, expected a tensor that "
                f"broadcasts to the inputs, {tuple(inputs.shape)}, with a baseline for each example"
            )
        return value.to(inputs)


def _aligned(tensor: Tensor, shape: torch.Size) -> bool:
    """Whether a tensor has a value, or several, for each position.

    Raises:
        ValueError: It has as many as there are positions in another dimension, which deletion cannot follow.
    """
    rows, length = shape
    aligned = tensor.ndim >= 2 and tensor.shape[0] in (1, rows) and tensor.shape[1] == length
    others = tensor.shape[2:] if aligned else tensor.shape[1 if tensor.shape[:1] == (rows,) else 0 :]
    if length > 1 and length in others:
        raise ValueError(
            f"Delete: an argument has the shape {tuple(tensor.shape)}, with the number of positions in another place "
            f"than ({rows}, {length}, ...), which deletion cannot follow; expected attention masks of the shape "
            f"{(rows, length)} (what has nothing to do with positions belongs into forward_func)"
        )
    return aligned


def _may_be_text(tensor: Tensor, tokens: Tensor) -> bool:
    """Whether a tensor (rows, T) may hold token ids: integers, but no attention mask, segment ids or position ids.

    ``tokens`` is False at padding, (rows, T).
    """
    if tensor.ndim != 2 or tensor.dtype == torch.bool or tensor.is_floating_point():
        return False
    is_mask = bool(((tensor >= 0) & (tensor <= _MOST_SEGMENTS)).all())
    neighbors = tokens[:, 1:] & tokens[:, :-1]
    return not (is_mask or bool(((tensor.diff(dim=1) == 1) | ~neighbors.to(tensor.device)).all()))


def _map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    # Captum loads pyplot: not before something is computed.
    from captum_iba.attr._model.nested import map_tensors

    return map_tensors(function, value)
