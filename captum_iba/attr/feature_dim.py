"""Which dimension of an activation holds its features (channels, hidden units)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module
from torch.nn.modules import activation, batchnorm, conv, dropout, pooling

_CHANNELS_FIRST = (
    conv._ConvNd,
    batchnorm._NormBase,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.Upsample,
    nn.Unfold,
    nn.Fold,
    dropout.Dropout1d,
    dropout.Dropout2d,
    dropout.Dropout3d,
    *(getattr(pooling, name) for name in vars(pooling) if name.startswith("_") and name.endswith("Nd")),
)
_FEATURES_LAST = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.MultiheadAttention)
_KEEPS_LAYOUT = (
    *(
        one
        for name in activation.__all__
        if name not in ("MultiheadAttention", "GLU") and isinstance(one := getattr(activation, name), type)
    ),
    dropout.Dropout,
    dropout.AlphaDropout,
    dropout.FeatureAlphaDropout,
    nn.Identity,
    nn.LayerNorm,
    nn.RMSNorm,
)
# Tokens that models put before those of an image: for the class, for registers.
_MOST_EXTRA_TOKENS = 8
_WIDTHS_OUT = ("out_channels", "num_features", "num_channels", "out_features", "embedding_dim", "embed_dim")
_WIDTHS_IN = ("in_channels", "num_features", "num_channels", "in_features", "embed_dim", "input_size")


@dataclass(frozen=True)
class LeafOutput:
    """What a module gave whose kind says where its features are; no tensor is kept alive.

    Args:
        shape (tuple of int): Of the output.
        strides (tuple of int): Of the output; empty where it has none.
        offset (int): Where the output begins in its storage.
        storage (StorageWeakRef or None): Its storage, which this does not keep.
        dim (int or None): The dimension of the features, from 1; None where the kind of the module is not known.
        wider (LeafOutput or None): Of an output of two dimensions the last one before that has more. Default: None
        energy (Tensor or None): The sum of squares, where both ends have one size; a copy, transposed or not, has the
            same.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: StorageWeakRef | None
    dim: int | None
    wider: LeafOutput | None = None
    energy: Tensor | None = None

    @classmethod
    def of(cls, output: Tensor, dim: int | None) -> LeafOutput:
        """That of a tensor."""
        shape = tuple(output.shape)
        with suppress(RuntimeError, NotImplementedError):  # sparse, nested and some wrapped tensors
            storage = StorageWeakRef(output.untyped_storage())  # type: ignore[no-untyped-call]
            energy = output.detach().float().square().sum() if len(shape) > 2 and shape[1] == shape[-1] else None
            return cls(shape, tuple(output.stride()), int(output.storage_offset()), storage, dim, energy=energy)
        return cls(shape, (), 0, None, dim)

    def is_copied_to(self, other: LeafOutput) -> bool:
        """Whether another tensor may hold the same numbers in another order."""
        if self.energy is None or other.energy is None:
            return True
        return bool((self.energy.to(other.energy.device) - other.energy).abs() <= 1e-4 * other.energy.abs())

    def after(self, before: LeafOutput | None) -> LeafOutput:
        """The same, with what came before it."""
        if len(self.shape) > 2 or before is None:
            return self
        return replace(self, wider=before.wider if len(before.shape) == 2 else before)

    def for_shape(self, shape: tuple[int, ...]) -> LeafOutput:
        """This, or where it weighs what came before, as the gates of channels and of experts do, that."""
        smaller = len(self.shape) == 2 < len(shape) and math.prod(self.shape) < math.prod(shape)
        return self.wider if smaller and self.wider is not None and self.wider.shape == shape else self

    def dim_by_memory(self, tensor: Tensor) -> int | None:
        """The dimension of the features in a tensor that is this output or a view of it; None for any other."""
        if self.dim is None or self.storage is None or self.shape[self.dim] < 2:
            return None
        other = LeafOutput.of(tensor, None)
        # A weak reference keeps the address of a storage from being used again.
        if other.storage is None or other.storage.cdata != self.storage.cdata:
            return None
        if (other.shape, other.strides, other.offset) == (self.shape, self.strides, self.offset):
            return self.dim
        step = self.strides[self.dim]
        if step == 0 or [s for s, n in zip(self.strides, self.shape, strict=True) if n > 1].count(step) != 1:
            return None
        alike = [
            dim
            for dim, (size, stride) in enumerate(zip(other.shape, other.strides, strict=True))
            if size == self.shape[self.dim] and stride == step
        ]
        return alike[0] if len(alike) == 1 and alike[0] > 0 else None


@dataclass(frozen=True)
class Origin:
    """Where an activation comes from.

    Args:
        leaf (LeafOutput or None): What the last module with parameters, or of a known kind, gave before.
        dim (int or None): The dimension of the features, where the activation lies in the memory of that, or an
            elementwise layer made it of that.
        itself (LeafOutput): The activation, as a leaf's output is described.
        shape_before (tuple of int): Of what the layer took.
    """

    leaf: LeafOutput | None
    dim: int | None
    itself: LeafOutput
    shape_before: tuple[int, ...]

    @classmethod
    def of(
        cls, leaf: LeafOutput | None, layer: Module, activation: Tensor, layer_input: Tensor | None, at_input: bool
    ) -> Origin:
        """That of an activation, at the moment when it is seen."""
        dim = None if leaf is None else leaf.dim_by_memory(activation)
        if leaf is not None and dim is None and not at_input and layer_input is not None:
            dim = _kept_dim(leaf, layer, layer_input, activation)
        return cls(leaf, dim, LeafOutput.of(activation, None), () if layer_input is None else tuple(layer_input.shape))


def leaf_after(before: LeafOutput | None, module: Module, layer_input: Any, output: Any) -> LeafOutput | None:
    """The last leaf after a module has run: what that gave, or, of a module that says nothing, the one before."""
    given = _first_floating(output)
    if given is None or given.ndim < 2:
        return before
    taken = _first_floating(layer_input)
    if before is not None and taken is not None:
        dim = _kept_dim(before, module, taken, given)
        if dim is not None:
            return LeafOutput.of(given, dim).after(before)
    if _kind(module) is None:
        if not _is_leaf(module):
            return before
        return LeafOutput.of(given, _dim_of_parameters(module, given.shape)).after(before)
    dim = _dim_of_kind(module, given.shape, at_input=False)
    if before is not None and taken is not None and _width(module, at_input=False) is None:
        # Pooling works on any dimensions: where it is known that it took features last, it says nothing.
        known = before.dim_by_memory(taken)
        dim = None if known not in (None, dim) else dim
    return LeafOutput.of(given, dim).after(before)


def _kept_dim(leaf: LeafOutput, module: Module, taken: Tensor, given: Tensor) -> int | None:
    keeps = isinstance(module, _KEEPS_LAYOUT) and _is_plain(module) and taken.shape == given.shape
    return leaf.dim_by_memory(taken) if keeps and _kind(module) is None else None


def resolve_feature_dim(
    layer: Module,
    shape: Sequence[int],
    feature_dim: int | None = None,
    origin: Origin | None = None,
    at_input: bool = False,
) -> int:
    """The dimension of an activation that holds the features, from 1 to its number of dimensions less 1.

    What is not named must be told by more than sizes that coincide:

    - 1 for convolutions, batch and group normalization and pooling, the last for linear layers, layer normalization,
      embeddings, recurrent layers and attention, where the layer is one of these;
    - by the memory: where the activation is what such a module gave, or a view of it, transposed or not, or where
      elementwise modules made it of that;
    - by the last such module that ran before, where the width of what that gave is in one place only;
    - where both ends have one size, of a layer whose modules are of one kind, with a residual sum at its end.

    Args:
        layer (Module): The layer.
        shape (sequence of int): Shape of the activation, dimension 0 counting the examples.
        feature_dim (int, optional): The dimension, if it is named; negative ones count from the last.
            Default: None
        origin (Origin, optional): Where the activation comes from.
            Default: None, not known
        at_input (bool, optional): Whether the activation is the layer's input.
            Default: False

    Returns:
        int

    Raises:
        ValueError: A dimension out of range, or one that cannot be told.

    Examples::

        >>> resolve_feature_dim(nn.Conv1d(1, 6, 3), (2, 6, 18))
        1
        >>> resolve_feature_dim(nn.Linear(4, 96), (2, 7, 7, 96))
        3
    """
    ndim = len(shape)
    if feature_dim is not None:
        if isinstance(feature_dim, bool) or not isinstance(feature_dim, int) or not -ndim < feature_dim < ndim:
            raise ValueError(f"feature_dim is {feature_dim!r}, expected an integer from {1 - ndim} to {ndim - 1}")
        if feature_dim % ndim == 0:
            raise ValueError("feature_dim is 0, expected another dimension than that of the examples")
        return feature_dim % ndim
    dim = infer_feature_dim(layer, shape, origin, at_input)
    if dim is None:
        raise ValueError(
            f"feature_dim is None, and which dimension of {type(layer).__name__}'s activation of shape {tuple(shape)} "
            "holds the features cannot be told; expected feature_dim=1 (channels first) or feature_dim=-1 (last)"
        )
    return dim


def infer_feature_dim(layer: Module, shape: Sequence[int], origin: Origin | None, at_input: bool) -> int | None:
    """As :func:`resolve_feature_dim` where nothing is named; None where it cannot be told."""
    shape = tuple(shape)
    if len(shape) == 2:
        return 1
    dim = _dim_of_kind(layer, shape, at_input)
    if dim is None and origin is not None:
        dim = origin.dim
    if dim is None and _is_leaf(layer) and not at_input:
        return _dim_of_parameters(layer, shape) if _kind(layer) is None else None
    if dim is not None or origin is None:
        return dim
    if origin.leaf is None:
        return _dim_of_inputs(layer, shape) if at_input else None
    leaf = origin.leaf.for_shape(shape)
    if shape[1] != shape[-1]:
        return _dim_by_sizes(leaf, shape, layer)
    return _dim_by_kinds(leaf, origin, shape, layer, at_input)


def _dim_by_sizes(leaf: LeafOutput, shape: tuple[int, ...], layer: Module) -> int | None:
    """The place of the width of what a leaf gave in an activation whose ends differ in size."""
    dim, ndim = leaf.dim, len(shape)
    if dim is None:
        return None
    width = leaf.shape[dim]
    if ndim == 3 and leaf.shape == (math.prod(shape) // width, width) and shape[1:].count(width) == 1:
        return 1 + shape[1:].index(width)  # all tokens as one batch, as in mixtures of experts
    if leaf.shape[0] != shape[0]:
        permuted = shape.count(width) == 1 and sorted(shape) == sorted(leaf.shape)  # with positions in dimension 0
        return shape.index(width) if permuted and shape[0] != width else None
    if leaf.shape == shape:
        other_end = shape[-1] if dim == 1 else shape[1]
        return dim if other_end != width else None
    if len(leaf.shape) == ndim and dim == 1 and shape[2:] == leaf.shape[2:] and width not in shape[1:]:
        # Joined with others, as in DenseNet.
        return 1 if shape[1] > width and _kinds_in(layer, ndim) == {1} else None
    sizes = shape[1:]
    if leaf.shape[1:].count(width) != 1 or sizes.count(width) != 1:
        return None
    place = 1 + sizes.index(width)
    if len(leaf.shape) == ndim:
        same_place = place == dim  # pooled, cut or broadcast
        return place if same_place or sorted(sizes) == sorted(leaf.shape[1:]) else None
    positions, others = math.prod(leaf.shape[1:]) // width, math.prod(sizes) // width
    if ndim == 3 and len(leaf.shape) > 3:
        # Patches that were made tokens. With (k * width) features at positions / k the sizes may be the same.
        fits = positions <= others <= positions + _MOST_EXTRA_TOKENS and positions % width != 0
        return place if fits else None
    # Tokens that were made an image.
    return place if len(leaf.shape) == 3 and ndim == 4 and positions == others and place in (1, 3) else None


def _dim_by_kinds(
    leaf: LeafOutput, origin: Origin, shape: tuple[int, ...], layer: Module, at_input: bool
) -> int | None:
    """The dimension of modules that are all of one kind, of an activation whose ends have one size."""
    kinds = _kinds_in(layer, len(shape))
    if len(kinds) != 1 or leaf.shape != shape or not leaf.strides or leaf.strides != origin.itself.strides:
        return None
    if (not at_input and origin.shape_before != shape) or leaf.is_copied_to(origin.itself):
        return None
    dim = kinds.pop() % len(shape)
    return dim if leaf.dim in (None, dim) else None


def _dim_of_inputs(layer: Module, shape: tuple[int, ...]) -> int | None:
    """Of an input of the model: where a layer of one kind wants the width that is there and nowhere else."""
    kinds = _kinds_in(layer, len(shape))
    if len(kinds) != 1:
        return None
    dim = kinds.pop() % len(shape)
    wanted = {_width(module, at_input=True) for module in layer.modules() if _kind(module) is not None}
    return dim if shape[dim] in wanted and shape[1:].count(shape[dim]) == 1 else None


def _kind(module: Module) -> int | None:
    """1 for modules whose features come first, -1 for those whose come last, None where that is not known."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        # torchvision's and timm's LayerNorm2d, and that of ConvNeXt in transformers, normalize what comes first.
        if type(module).__name__.endswith("2d") or getattr(module, "data_format", None) == "channels_first":
            return 1
        # Of several dimensions it says nothing on which of them holds the features.
        return -1 if len(module.normalized_shape) == 1 else None
    if isinstance(module, _CHANNELS_FIRST):
        return 1
    if isinstance(module, _FEATURES_LAST) or isinstance(getattr(module, "out_features", None), int):
        return -1  # linear layers, quantized ones and adapters too
    return None


def _is_plain(module: Module) -> bool:
    """Whether a module runs torch's own code, so that it is what its class says."""
    return str(getattr(type(module).forward, "__module__", "")).partition(".")[0] == "torch"


def _is_what_it_inherits(module: Module, ndim: int) -> bool:
    """Whether a module gives its features where its kind does: a subclass with a forward of its own may transpose."""
    known = isinstance(module, (nn.LayerNorm, nn.RMSNorm)) or ndim > 3
    return _is_plain(module) or isinstance(module, nn.Embedding) or (known and _kind(module) == 1)


def _kinds_in(layer: Module, ndim: int) -> set[int]:
    """The kinds of the modules in a layer. Modules of other libraries are of the kind of what is known beside them."""
    return {kind for m in layer.modules() if (kind := _kind(m)) is not None and _is_what_it_inherits(m, ndim)}


def _dim_of_kind(module: Module, shape: Sequence[int], at_input: bool) -> int | None:
    """The dimension of the features by the kind of a module, if the activation has its width there."""
    kind, ndim = _kind(module), len(shape)
    if kind is None:
        return None
    width = _width(module, at_input)
    if width is not None and shape[kind] != width:
        return None
    if ndim > 2 and shape[1] == shape[-1] and not _is_what_it_inherits(module, ndim):
        return None
    return kind % ndim


def _width(module: Module, at_input: bool) -> int | None:
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return int(module.normalized_shape[-1])
    if isinstance(module, nn.RNNBase) and not at_input:
        return (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
    for name in _WIDTHS_IN if at_input else _WIDTHS_OUT:
        if isinstance(width := getattr(module, name, None), int) and width > 0:
            return width
    return None


def _is_leaf(module: Module) -> bool:
    return bool(module._parameters) and not module._modules and not isinstance(module, nn.PReLU)


def _dim_of_parameters(module: Module, shape: Sequence[int]) -> int | None:
    """Of a normalization or linear layer of another library: where the size of its weights is, in one place only."""
    if len(shape) == 2:
        return 1
    parameters = [one for one in module._parameters.values() if one is not None]
    vectors = [one for one in parameters if one.ndim == 1]
    widths = {size for one in vectors or parameters for size in one.shape} - {1}
    sizes = tuple(shape[1:])
    places = [place for place, size in enumerate(sizes) if size in widths]
    if len(places) != 1 or sizes[0] == sizes[-1] or (vectors and len(widths) > 1):
        return None
    # A vector broadcasts to the last dimension; with an image's channels it has to be shaped for that.
    return len(sizes) if places[0] == len(sizes) - 1 else 1 if places[0] == 0 and vectors and len(sizes) > 2 else None


def _first_floating(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and not value.is_nested else None
    if isinstance(value, (tuple, list)):
        return next((one for item in value if (one := _first_floating(item)) is not None), None)
    return None
