"""Tensors in nested inputs and outputs of modules: tuples, lists, mappings, model outputs.

``torch.utils._pytree`` does not follow mappings of unregistered types, and cannot rebuild immutable ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure with ``function`` applied to every tensor in it; everything else as it is.

    Tuples (named ones too), lists and mappings (``ModelOutput`` too) are followed; any other object, a
    key-value cache for example, is passed on untouched.
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return _like(value, [map_tensors(function, item) for item in value])
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    if isinstance(value, Mapping):
        return with_values(value, {key: map_tensors(function, value[key]) for key in value})
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor of a structure, in order."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def copy_tensor(tensor: Tensor) -> Tensor:
    """A copy outside of any graph."""
    return tensor.detach().clone()


def wrapped_module(module: Any) -> Module | None:
    """The model inside ``torch.compile``, an adapter of PEFT or a parallel wrapper; None for other modules."""
    base = getattr(module, "get_base_model", None)
    held = (getattr(module, "_orig_mod", None), base() if callable(base) else None, getattr(module, "module", None))
    return next((inner for inner in held if isinstance(inner, Module) and inner is not module), None)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if it is in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def select_examples(value: Any, rows: int, examples: Tensor) -> Any:
    """Every tensor whose first dimension counts the ``rows`` examples, with some of them, by number."""

    def select(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or tensor.shape[0] != rows:
            return tensor
        return tensor.index_select(0, examples.to(tensor.device))

    return map_tensors(select, value)


def tile(value: Any, rows: int, copies: int) -> Any:
    """Every tensor whose first dimension counts the ``rows`` examples, ``copies`` times: noise samples x examples.

    Captum's own expansion also repeats tensors of other sizes, and leaves those inside dictionaries alone.
    With one example nothing is copied: the tiled tensor is a view.
    """

    def tiled(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or tensor.shape[0] != rows:
            return tensor
        return tensor.unsqueeze(0).expand(copies, *tensor.shape).reshape(copies * rows, *tensor.shape[1:])

    return value if copies == 1 else map_tensors(tiled, value)


def split_activation(value: Any) -> tuple[Tensor, Callable[[Tensor], Any]] | None:
    """The activation in the input or output of a layer, and a function that puts another in its place.

    The activation is the tensor itself, or else what is called ``hidden_states`` (if it is one tensor; a tuple holds
    those of all blocks) or ``last_hidden_state``, or else the first floating-point tensor. Where it is in several
    places (query, key and value of attention), it is replaced in all of them. The rest of the structure stays. None
    where there is no such tensor.
    """
    split = _split(value)
    if split is None or sum(tensor is split[0] for tensor in tensors_in(value)) == 1:
        return split
    activation = split[0]
    return activation, lambda new: map_tensors(lambda tensor: new if tensor is activation else tensor, value)


def _split(value: Any) -> tuple[Tensor, Callable[[Tensor], Any]] | None:
    if isinstance(value, Tensor):
        return (value, lambda new: new) if value.is_floating_point() else None
    keys: list[Any] = []
    if isinstance(value, (tuple, list)):
        keys = [*range(len(value))]
    elif isinstance(value, Mapping):
        names = ("hidden_states", "last_hidden_state")
        keys = [*(name for name in names if isinstance(value.get(name), Tensor)), *value]
    for key in keys:
        if (split := _split(value[key])) is not None:
            return split[0], partial(_with_item, value, key, split[1])
    return None


def _with_item(value: Any, key: Any, inner: Callable[[Tensor], Any], new: Tensor) -> Any:
    if isinstance(value, Mapping):
        return with_values(value, {key: inner(new)})
    items = list(value)
    items[key] = inner(new)
    return items if isinstance(value, list) else _like(value, items)


def _like(value: tuple[Any, ...], items: list[Any]) -> Any:
    """A tuple of other items, named as ``value`` is."""
    construct: Any = type(value)
    if hasattr(value, "_fields"):
        return construct(*items)
    return construct(items) if hasattr(value, "n_sequence_fields") else tuple(items)  # what torch.max returns


def with_values(value: Mapping[str, Any], changes: dict[str, Any]) -> Any:
    """The same mapping with other values; one that cannot be written to is made anew of the same type."""
    if not isinstance(value, MutableMapping):
        construct: Any = type(value)
        return construct({**value, **changes})
    changed: Any = copy.copy(value)
    for key, new in changes.items():
        changed[key] = new
    return changed
