"""What removing a feature means: deleted, replaced, masked out, or set to a baseline.

An operator is any callable ``operator(inputs, arguments, removed) -> (inputs, arguments)``. It gets the rows of one
pass: ``inputs``, a tuple of tensors; ``arguments``, a tuple of further arguments; and ``removed``, bool, (rows, T), or
(rows, H, W) for images, True where a feature goes. Nothing is ever decoded and tokenised again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Operator = Callable[[tuple[Tensor, ...], tuple[Any, ...], Tensor], tuple[tuple[Tensor, ...], tuple[Any, ...]]]


@dataclass(frozen=True)
class Delete:
    """Positions leave the ids and every aligned tensor; what remains moves together to the left.

    Aligned are all tensors of inputs and further arguments, also inside tuples, lists and dictionaries, that have
    the shape (rows, T, ...): attention mask, segment ids, position ids. Position ids so keep their
    numbers, and a model that counts positions itself sees none missing.

    Rows of a pass that got shorter than the longest are filled up on the right, the ids with ``pad_id``, all else with
    0, so the model must ignore what its attention mask or ``pad_id`` marks as padding, and nothing
    may depend on the right end of a row. For models that do otherwise (XLNet, FNet, ConvBERT) there is
    ``equal_lengths``. Where everything already is what fills up, and nothing may be
    removed, there is padding: it leaves too.

    Args:
        pad_id (int): The model's own padding token. Decoders look for it in the ids to find a text's last token, so
            that a wrong one gives wrong logits.
        equal_lengths (bool): Whether only rows of equal length share a pass, so that nothing is padded: slower, and
            right where padding changes what the model gives. Default: False.

    Examples::

        >>> Delete(0)((torch.tensor([[5, 6, 7]]),), (), torch.tensor([[False, True, False]]))
        ((tensor([[5, 7]]),), ())
    """

    pad_id: int
    equal_lengths: bool = False

    def __call__(
        self, inputs: tuple[Tensor, ...], arguments: tuple[Any, ...], removed: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Rows without what is removed, cut to the longest that is left (one column at least)."""
        lengths = (~removed).sum(1)
        width = max(1, int(lengths.max()))
        # A stable sort by "removed" brings what stays to the front, in its order.
        kept = torch.sort(removed.to(torch.uint8), dim=1, stable=True).indices[:, :width]
        empty = torch.arange(width, device=removed.device) >= lengths[:, None]

        def pack(tensor: Tensor, fill: int) -> Tensor:
            shape = (*kept.shape, *[1] * (tensor.ndim - 2))
            values = tensor.expand(len(removed), *tensor.shape[1:])
            packed = values.gather(1, kept.view(shape).expand(*kept.shape, *tensor.shape[2:]))
            return packed.masked_fill(empty.view(shape), fill)

        def pack_aligned(tensor: Tensor) -> Tensor:
            return pack(tensor, 0) if _aligned(tensor, removed.shape) else tensor

        others, further = _map_tensors(pack_aligned, (inputs[1:], arguments))
        return (pack(inputs[0], self.pad_id), *others), further

    def padding(self, inputs: tuple[Tensor, ...], arguments: tuple[Any, ...], removable: Tensor) -> Tensor:
        """Where there is nothing but padding, bool, (B, T), on the device of ``removable``."""
        found = ~removable & (inputs[0] == self.pad_id).to(removable.device)

        def exclude(tensor: Tensor) -> None:
            if _aligned(tensor, removable.shape):
                found.logical_and_((tensor == 0).reshape(*tensor.shape[:2], -1).all(2).to(found.device))

        _map_tensors(exclude, (inputs[1:], arguments))
        return found


@dataclass(frozen=True)
class ReplaceToken:
    """Another token takes the place, [MASK] for example; everything else stays.

    Args:
        token_id (int): That token.
    """

    token_id: int

    def __call__(
        self, inputs: tuple[Tensor, ...], arguments: tuple[Any, ...], removed: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Rows with the token where something is removed."""
        return (inputs[0].masked_fill(removed, self.token_id), *inputs[1:]), arguments


@dataclass(frozen=True)
class MaskOut:
    """The attention mask becomes 0: nothing attends to the position any more, but it stays where it is.

    Args:
        argument (int): Which argument of ``forward_func`` is the attention mask, (B, T), counted from 0 through inputs
            and further arguments. Default: 1, the first after the ids.
    """

    argument: int = 1

    def __call__(
        self, inputs: tuple[Tensor, ...], arguments: tuple[Any, ...], removed: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Rows with 0 in the mask where something is removed.

        Raises:
            ValueError: the argument is not a tensor (B, T).
        """
        values: list[Any] = [*inputs, *arguments]
        mask = values[self.argument] if 0 <= self.argument < len(values) else None
        if not isinstance(mask, Tensor) or mask.shape != removed.shape:
            found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"MaskOut: argument {self.argument} of forward_func is {found}, expected the attention mask, a tensor "
                f"with a value for each of {removed.shape[1]} positions"
            )
        values[self.argument] = mask.masked_fill(removed, 0)
        return tuple(values[: len(inputs)]), tuple(values[len(inputs) :])


@dataclass(frozen=True, eq=False)
class BaselineValue:
    """A value takes the place: for embeddings, images and tables.

    Args:
        value (float or Tensor): That value, the same for all examples; a tensor broadcasts to the inputs (B, ...), for
            example (D,) for embeddings, (C, 1, 1) for images. Default: 0.
    """

    value: float | Tensor = 0.0

    def __call__(
        self, inputs: tuple[Tensor, ...], arguments: tuple[Any, ...], removed: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Rows with the value where something is removed."""
        first = inputs[0]
        where = removed.unsqueeze(1) if first.ndim >= 4 else removed.view(*removed.shape, *[1] * (first.ndim - 2))
        value = torch.as_tensor(self.value, dtype=first.dtype, device=first.device)
        return (torch.where(where, value, first), *inputs[1:]), arguments


def _aligned(tensor: Tensor, shape: torch.Size) -> bool:
    """Whether a tensor has a value, or several, for each position.

    Raises:
        ValueError: it has one for each pair of positions, and so cannot be followed.
    """
    rows, length = shape
    if length > 1 and tensor.ndim > 2 and tensor.shape[-2:] == (length, length):
        raise ValueError(
            f"Delete: an argument has the shape {tuple(tensor.shape)}, a value for each pair of positions; "
            f"expected attention masks of the shape {(rows, length)}"
        )
    return tensor.ndim >= 2 and tensor.shape[0] in (1, rows) and tensor.shape[1] == length


def _map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    # Captum loads pyplot: not before something is computed.
    from captum_iba.attr._model.nested import map_tensors

    return map_tensors(function, value)
