"""Which observations of a layer are padding: what a batch says about it, and which layers it says it about."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

_NO_MASK = ("token_type_ids", "position_ids", "input_ids")
_OTHER_SEQUENCES = ("decoder", "label", "tgt", "target")
_LENGTHS = ("length", "lengths", "seq_len", "seq_lens", "seq_length", "seq_lengths", "sequence_lengths")


class Padding:
    """Finds the attention mask of batches, for the layers that have its positions.

    Args:
        forward_func (Callable): The model, or the function that runs it: the names of its parameters say which item
            of a tuple is the attention mask.
        layers (sequence of str): The names of the layers, for messages.
    """

    def __init__(self, forward_func: Callable[..., Any], layers: Sequence[str]) -> None:
        self._function = forward_func.forward if isinstance(forward_func, Module) else forward_func
        self._layers = layers
        self._have_positions: dict[int, bool] = {}
        self._warned: set[str] = set()

    def masks(
        self, batch: Any, features: Sequence[Tensor], rerun: Callable[[Any], Sequence[Tensor]]
    ) -> list[Tensor | None]:
        """For each layer what of it counts, as :meth:`FeatureStatistics.update` takes it; None: all of it.

        Args:
            batch (Any): The batch.
            features (sequence of Tensor): The activations of the layers.
            rerun (callable): Gives those for another batch.
        """
        named = self._named(batch)
        mask = _attention_mask(named)
        if mask is None:
            self._look_for_masks(named, features)
            return [None] * len(features)
        if bool((mask != 0).all()):
            return [None] * len(features)
        alike = [feature.ndim == 3 and feature.shape[:2] == mask.shape for feature in features]
        if any(same and number not in self._have_positions for number, same in enumerate(alike)):
            self._try_shorter(batch, mask, alike, rerun)
        return [self._mask_of(number, mask, feature, alike[number]) for number, feature in enumerate(features)]

    def _mask_of(self, number: int, mask: Tensor, feature: Tensor, alike: bool) -> Tensor | None:
        if alike and self._have_positions.get(number, True):
            return mask
        if feature.ndim == 3:  # what has no positions, as a pooler, has no padding either
            self._warn(
                f"positions {number}",
                f"batches: attention_mask has the shape {tuple(mask.shape)}, and layer {self._layers[number]} gives "
                f"{tuple(feature.shape)}, other positions: which of them are padding cannot be told, and all count. "
                "Give mask_func, which says it (or returns None: all count).",
            )
        return None

    def _try_shorter(
        self, batch: Any, mask: Tensor, alike: Sequence[bool], rerun: Callable[[Any], Sequence[Tensor]]
    ) -> None:
        """Cut half of the positions off: a layer that has the mask's positions has half of them, too.

        Sizes alone do not tell: (T, B, D) has the mask's shape where B = T, and there may be as many latents as tokens.
        """

        kept = (mask.shape[1] + 1) // 2  # half: of models that fill up to whole windows, often whole windows

        def cut(name: str, value: Any) -> Any:
            # The positions of a decoder are others.
            own = isinstance(value, Tensor) and value.shape[:2] == mask.shape and not name.startswith(_OTHER_SEQUENCES)
            return value[:, :kept] if own else value

        if mask.shape[1] == 1:
            return
        items = batch.items() if isinstance(batch, Mapping) else zip(self._named(batch), batch, strict=False)
        shortened = {name: cut(name, value) for name, value in items}
        shorter = shortened if isinstance(batch, Mapping) else tuple(shortened.values())
        try:
            found = rerun(shorter)
        except Exception:  # a model of one length: the shape has to do
            return
        for number, (feature, same) in enumerate(zip(found, alike, strict=True)):
            if same:
                fits = feature.ndim == 3 and feature.shape[:2] == (mask.shape[0], kept)
                self._have_positions.setdefault(number, fits)

    def _named(self, batch: Any) -> dict[str, Any]:
        """The values of a batch by the names of the parameters that take them."""
        if isinstance(batch, Mapping):
            return dict(batch)
        values = batch if isinstance(batch, (tuple, list)) else (batch,)
        try:
            bound = inspect.signature(self._function).bind(*values)
        except (TypeError, ValueError):
            return {f"item {number}": value for number, value in enumerate(values)}
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                named.update((f"item {len(named) + number}", one) for number, one in enumerate(value))
            else:
                named[name] = value
        return named

    def _look_for_masks(self, named: Mapping[str, Any], features: Sequence[Tensor]) -> None:
        shapes = [feature.shape[:2] for feature in features if feature.ndim == 3]
        for name, value in named.items():
            if name in _NO_MASK or not isinstance(value, Tensor):
                continue
            of_more_dimensions = name == "attention_mask" and value.ndim > 2 and not bool((value == value.amax()).all())
            of_lengths = name in _LENGTHS and value.ndim == 1 and bool((value != value.amax()).any())
            if of_more_dimensions or of_lengths or (value.shape in shapes and _marks_padding(name, value)):
                self._warn(
                    "mask",
                    f"batches: {name!r} seems to say which positions are padding, and they are counted as data. "
                    "Give the batches as mappings with 'attention_mask', or mask_func=lambda batch: ... that "
                    "returns the mask (or None, where all count).",
                )

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, UserWarning, stacklevel=5)


def _attention_mask(named: Mapping[str, Any]) -> Tensor | None:
    """The mask (B, T) that is not 0 for tokens: transformers' by its name, or the inverse of torch's own."""
    for name, value in named.items():
        if not isinstance(value, Tensor) or value.ndim != 2:
            continue
        if name.endswith("key_padding_mask") and not name.startswith(_OTHER_SEQUENCES):
            return ~value if value.dtype is torch.bool else value == 0
        if name == "attention_mask":
            if bool((value < 0).any()):
                raise ValueError(
                    "batches: attention_mask holds negative numbers, expected 1 for tokens and 0 for padding; for a "
                    "mask of another kind pass mask_func"
                )
            return value
    return None


def _marks_padding(name: str, value: Tensor) -> bool:
    """Whether a (B, T) tensor is 1 for the tokens of each row and 0 for padding on one side of them."""
    called_mask = "mask" in name or "pad" in name
    if (value.is_floating_point() and not called_mask) or not bool(((value == 0) | (value == 1)).all()):
        return False
    # What is called a mask may be true for padding, too; anything else would be token types.
    return _is_one_side(value.bool()) or (called_mask and _is_one_side(value == 0))


def _is_one_side(ones: Tensor) -> bool:
    # Token types begin with 0 in every row, and padding on the left leaves at least one row whole.
    if bool(ones.all()) or not bool(ones.any(1).all()):
        return False
    changes = (ones[:, 1:] != ones[:, :-1]).sum(1)
    right, left = bool(ones[:, 0].all()), bool(ones[:, -1].all() and ones.all(1).any())
    return bool((changes <= 1).all()) and (right or left)
