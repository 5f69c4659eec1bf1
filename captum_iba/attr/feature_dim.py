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
    *(getattr(pooling, name) for name in vars(pooling) if name.startswith("_") and name.endswith("Nd")),
)
_NORMALIZATION = (nn.LayerNorm, nn.RMSNorm)
_FEATURES_LAST = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.MultiheadAttention)
_KEEPS_LAYOUT = (
    *(
        cls
        for name in activation.__all__
        if name not in ("MultiheadAttention", "GLU") and isinstance(cls := getattr(activation, name), type)
    ),
    *(getattr(dropout, name) for name in dropout.__all__),
    nn.Identity,
    *_NORMALIZATION,
)
# Tokens that models put before those of an image: for the class, for registers.
_MOST_EXTRA_TOKENS = 8
_WIDTHS_OUT = ("out_channels", "num_features", "num_channels", "out_features", "embedding_dim", "embed_dim")
_WIDTHS_IN = ("in_channels", "num_features", "num_channels", "in_features", "embed_dim", "input_size")


@dataclass(frozen=True)
class TensorLayout:
    """Where a tensor lies in memory, and which of its dimensions holds the features; it keeps no tensor alive.

    Args:
        strides (tuple of int): Empty for a tensor that has none.
        dim (int or None): Dimension of the features, from 1; None where it is not known.
        wider (TensorLayout or None): For an output (B, C), the last output before it that has more dimensions.
        mixed (bool): Whether it, or modules before it, have mixed positions (token mixers), so that types of modules
            tell nothing.
        energy (Tensor or None): Sum of squares, for shapes with dimensions 1 and -1 of one size; a copy, transposed or
            not, has the same sum.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: StorageWeakRef | None
    dim: int | None
    wider: TensorLayout | None = None
    mixed: bool = False
    energy: Tensor | None = None

    @classmethod
    def of(cls, output: Tensor, dim: int | None) -> TensorLayout:
        """Description of a tensor."""
        shape = tuple(output.shape)
        with suppress(RuntimeError, NotImplementedError):  # sparse, nested and some wrapped tensors
            storage = StorageWeakRef(output.untyped_storage())  # type: ignore[no-untyped-call]
            energy = output.detach().float().square().sum() if len(shape) > 2 and shape[1] == shape[-1] else None
            return cls(shape, tuple(output.stride()), int(output.storage_offset()), storage, dim, energy=energy)
        return cls(shape, (), 0, None, dim)

    def is_copied_to(self, tensor: TensorLayout) -> bool:
        """Whether another tensor may hold the same values in another order."""
        if self.energy is None or tensor.energy is None:
            return True
        return bool((self.energy.to(tensor.energy.device) - tensor.energy).abs() <= 1e-4 * tensor.energy.abs())

    def after(self, before: TensorLayout | None) -> TensorLayout:
        """This output with the wider one before it."""
        if len(self.shape) > 2 or before is None:
            return self
        return replace(self, wider=before.wider if len(before.shape) == 2 else before)

    def for_shape(self, shape: tuple[int, ...]) -> TensorLayout:
        """This output, or the wider one before it where this one only gates that (channel attention, routers)."""
        smaller = len(self.shape) == 2 < len(shape) and math.prod(self.shape) < math.prod(shape)
        return self.wider if smaller and self.wider is not None and self.wider.shape == shape else self

    def dim_of_view(self, tensor: Tensor, part: bool = False) -> int | None:
        """The dimension of the features in a tensor that is this output or a view of it; None for other tensors.

        With ``part`` also in a view of some of the features only.
        """
        if self.dim is None or self.storage is None or self.shape[self.dim] < 2:
            return None
        view = TensorLayout.of(tensor, None)
        # A weak reference keeps the address of a storage from being used again.
        if view.storage is None or view.storage.cdata != self.storage.cdata:
            return None
        if (view.shape, view.strides, view.offset) == (self.shape, self.strides, self.offset):
            return self.dim
        step = self.strides[self.dim]
        if step == 0 or [s for s, n in zip(self.strides, self.shape, strict=True) if n > 1].count(step) != 1:
            return None
        candidates = [
            dim
            for dim, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True))
            if (size == self.shape[self.dim] or (part and 1 < size < self.shape[self.dim])) and stride == step
        ]
        return candidates[0] if len(candidates) == 1 and candidates[0] > 0 else None


@dataclass(frozen=True)
class Origin:
    """Where an activation comes from.

    Args:
        leaf (TensorLayout or None): Output of the last module before it with parameters, or of a known type.
        dim (int or None): Dimension of the features, where the activation shares the memory of that output, or is
            the output of an elementwise layer on it.
        input_dim (int or None): Dimension of the features of the layer's input, by memory.
    """

    leaf: TensorLayout | None
    dim: int | None
    activation: TensorLayout
    input_shape: tuple[int, ...]
    input_dim: int | None

    @classmethod
    def of(
        cls,
        leaf: TensorLayout | None,
        layer: Module,
        activation: Tensor,
        layer_input: Tensor | None,
        input_dim: int | None,
        at_input: bool,
    ) -> Origin:
        """Origin of a captured activation; ``input_dim`` is :func:`dim_from_memory` before the layer ran."""
        dim = dim_from_memory(leaf, activation)
        if dim is None and not at_input and layer_input is not None and _keeps_layout(layer, layer_input, activation):
            dim = dim_from_memory(leaf, layer_input)
        shape = () if layer_input is None else tuple(layer_input.shape)
        return cls(leaf, dim, TensorLayout.of(activation, None), shape, input_dim)


def dim_from_memory(leaf: TensorLayout | None, tensor: Tensor | None) -> int | None:
    """The dimension of the features of a tensor that shares the memory of the last leaf's output."""
    return None if leaf is None or tensor is None else leaf.dim_of_view(tensor)


def leaf_after(
    before: TensorLayout | None, module: Module, module_input: Any, module_output: Any
) -> TensorLayout | None:
    """The last leaf after a module has run: its output, or the leaf before where the module tells nothing."""
    output = _first_floating(module_output)
    if output is None or output.ndim < 2:
        return before
    input_tensor = _first_floating(module_input)
    known = dim_from_memory(before, input_tensor)
    if known is not None and input_tensor is not None and _keeps_layout(module, input_tensor, output):
        return TensorLayout.of(output, known).after(before)
    if _features_at(module) is None:
        if not _is_leaf(module):
            return before
        return TensorLayout.of(output, _from_parameters(module, output.shape)).after(before)
    dim = _from_type(module, output.shape, at_input=False)
    if input_tensor is None or not input_tensor.is_floating_point():
        return TensorLayout.of(output, dim).after(before)
    # A module that works on another dimension than that of the features mixes positions. From then on the types of
    # modules tell nothing, until one works on what is known again.
    acts_on = _from_type(module, input_tensor.shape, at_input=True)
    dim_of_input = known if known is not None or before is None else before.dim_of_view(input_tensor, part=True)
    mixed = dim_of_input != acts_on if dim_of_input is not None else before is not None and before.mixed
    if known is not None and _width(module, at_input=False) is None:
        mixed, dim = False, known if known == dim else None  # pooling works on any dimensions
    return replace(TensorLayout.of(output, None if mixed else dim), mixed=mixed).after(before)


def _keeps_layout(module: Module, module_input: Tensor, output: Tensor) -> bool:
    same_shape = module_input.shape == output.shape
    return (
        isinstance(module, _KEEPS_LAYOUT)
        and _runs_torch_forward(module)
        and same_shape
        and _features_at(module) is None
    )


def resolve_feature_dim(
    layer: Module,
    shape: Sequence[int],
    feature_dim: int | None = None,
    origin: Origin | None = None,
    at_input: bool = False,
) -> int:
    """The dimension of an activation that holds the features, from 1 to its number of dimensions less 1.

    If it is not named, it must follow from more than sizes, which may coincide:

    - from the type of the layer: 1 for convolutions, batch and group normalization and pooling, the last dimension for
      linear layers, layer normalization, embeddings, recurrent layers and attention;
    - from memory: the activation is the output of such a module, or a view of it (transposed, for example), or the
      result of elementwise modules on it;
    - from the last such module before, if exactly one dimension of the activation has the width of its output;
    - for dimensions 1 and -1 of one size: from a residual block, if all its modules and its input agree.

    ``shape`` is that of the activation, and ``feature_dim`` the dimension if it is named; negative numbers count from
    the last. ValueError for a dimension that is out of range or ambiguous.

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
    """As :func:`resolve_feature_dim` without a named dimension; None where it is ambiguous."""
    shape = tuple(shape)
    if len(shape) == 2:
        return 1
    dim = _from_type(layer, shape, at_input)
    if dim is not None and _width(layer, at_input) is not None:
        return dim
    # Pooling works on any dimensions: where its input comes from says more.
    if origin is not None and origin.dim is not None:
        return origin.dim
    if dim is not None:
        return dim if _spatial_dims(layer) in (None, len(shape) - 2) else None
    if _is_leaf(layer) and not at_input:
        return _from_parameters(layer, shape) if _features_at(layer) is None else None
    if origin is None:
        return None
    if origin.leaf is None:
        return _from_input_widths(layer, shape) if at_input else None
    leaf = origin.leaf.for_shape(shape)
    if shape[1] != shape[-1]:
        return _from_sizes(leaf, origin, shape, layer)
    return None if at_input else _from_modules_inside(leaf, origin, shape, layer)


def _from_sizes(leaf: TensorLayout, origin: Origin, shape: tuple[int, ...], layer: Module) -> int | None:
    """The dimension with the width of the leaf's output, for an activation whose dimensions 1 and -1 differ in size."""
    dim, ndim = leaf.dim, len(shape)
    if dim is None:
        return None
    width, sizes, leaf_sizes = leaf.shape[dim], shape[1:], leaf.shape[1:]
    if ndim == 3 and leaf.shape == (math.prod(shape) // width, width) and sizes.count(width) == 1:
        return 1 + sizes.index(width)  # all tokens as one batch, as in mixtures of experts
    if leaf.shape[0] not in (1, shape[0]):  # positions in dimension 0
        permuted = shape.count(width) == 1 and sorted(shape) == sorted(leaf.shape)
        return dim if permuted and shape[dim] == width else None
    if leaf_sizes == sizes:
        other_size = shape[-1] if dim == 1 else shape[1]
        return dim if other_size != width else None
    if len(leaf.shape) == ndim and dim == 1 and sizes[1:] == leaf_sizes[1:] and width not in sizes:
        # Concatenated with other outputs, as in DenseNet.
        return 1 if shape[1] > width and _dims_in(layer, ndim) == {1} else None
    if leaf_sizes.count(width) != 1 or sizes.count(width) != 1:
        return None
    position = 1 + sizes.index(width)
    if len(leaf.shape) != ndim:
        return position if _is_reshaped(leaf_sizes, sizes, width) else None
    # In three dimensions a product of matrices may have the same sizes.
    pooled = ndim > 3 and position == dim and all(a <= b for a, b in zip(sizes, leaf_sizes, strict=True))
    permuted = sorted(sizes) == sorted(leaf_sizes) and position in _dims_in(layer, ndim)
    return position if pooled or (permuted and (ndim > 3 or origin.input_shape == shape)) else None


def _is_reshaped(before: tuple[int, ...], sizes: tuple[int, ...], width: int) -> bool:
    """Whether patches of an image were made tokens, or tokens an image; sizes are without the examples."""
    positions_before, positions = math.prod(before) // width, math.prod(sizes) // width
    if len(sizes) == 2 and len(before) > 2:
        # With (k * width) features at positions / k the sizes may be the same.
        extra = positions - positions_before
        return 0 <= extra <= _MOST_EXTRA_TOKENS and positions_before % width != 0
    return len(before) == 2 and len(sizes) == 3 and positions_before == positions and sizes[1] != width


def _from_modules_inside(leaf: TensorLayout, origin: Origin, shape: tuple[int, ...], layer: Module) -> int | None:
    """The dimension for dimensions 1 and -1 of one size: of a residual block whose modules and input agree."""
    if leaf.shape != shape or not leaf.strides or leaf.strides != origin.activation.strides:
        return None
    if origin.input_shape != shape or leaf.is_copied_to(origin.activation):
        return None
    dim = origin.input_dim
    return dim if leaf.dim in (None, dim) and _dims_in(layer, len(shape)) == {dim} else None


def _from_input_widths(layer: Module, shape: tuple[int, ...]) -> int | None:
    """For an input of the model: the dimension with the input width of a layer whose modules are of one type."""
    dims = _dims_in(layer, len(shape))
    if len(dims) != 1:
        return None
    dim = dims.pop()
    input_widths = {_width(module, at_input=True) for module in layer.modules() if _features_at(module) is not None}
    return dim if shape[dim] in input_widths and shape[1:].count(shape[dim]) == 1 else None


def _features_at(module: Module) -> int | None:
    """1 for modules with features in dimension 1, -1 for those with features in the last, None for other modules."""
    if isinstance(module, _NORMALIZATION):
        # torchvision's and timm's LayerNorm2d, and that of ConvNeXt in transformers, normalize dimension 1.
        if type(module).__name__.endswith("2d") or getattr(module, "data_format", None) == "channels_first":
            return 1
        # Several normalized dimensions do not tell which of them holds the features.
        return -1 if len(module.normalized_shape) == 1 else None
    if isinstance(module, _CHANNELS_FIRST):
        return 1
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    if isinstance(module, _FEATURES_LAST) or all(isinstance(size, int) for size in sizes):
        return -1  # linear layers, quantized ones and adapters too
    return None


def _runs_torch_forward(module: Module) -> bool:
    """Whether a module runs torch's own forward."""
    return str(getattr(type(module).forward, "__module__", "")).partition(".")[0] == "torch"


def _is_what_it_inherits(module: Module, ndim: int) -> bool:
    """Whether the output has its features where the type says: a subclass with its own forward may transpose."""
    known = isinstance(module, _NORMALIZATION) or ndim > 3
    return _runs_torch_forward(module) or isinstance(module, nn.Embedding) or (known and _features_at(module) == 1)


def _dims_in(layer: Module, ndim: int) -> set[int]:
    """The dimensions of the features by the types of the modules in a layer; those of unknown type do not count."""
    known = [(module, at) for module in layer.modules() if (at := _features_at(module)) is not None]
    return {at % ndim for module, at in known if _is_what_it_inherits(module, ndim)}


def _from_type(module: Module, shape: Sequence[int], at_input: bool) -> int | None:
    """The dimension of the features by the type of a module, if the activation has the module's width there."""
    at, ndim = _features_at(module), len(shape)
    if at is None or _width(module, at_input) not in (None, shape[at]):
        return None
    if ndim > 2 and shape[1] == shape[-1] and not _is_what_it_inherits(module, ndim):
        return None
    return at % ndim


def _width(module: Module, at_input: bool) -> int | None:
    if isinstance(module, _NORMALIZATION):
        return int(module.normalized_shape[-1])
    if isinstance(module, nn.RNNBase) and not at_input:
        return (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
    for name in _WIDTHS_IN if at_input else _WIDTHS_OUT:
        if isinstance(width := getattr(module, name, None), int) and width > 0:
            return width
    return None


def _spatial_dims(module: Module) -> int | None:
    """The number of spatial dimensions in the name of a class, as AvgPool2d."""
    name = type(module).__name__
    return int(name[-2]) if name.endswith(("1d", "2d", "3d")) else None


def _is_leaf(module: Module) -> bool:
    return bool(module._parameters) and not module._modules and not isinstance(module, nn.PReLU)


def _from_parameters(module: Module, shape: Sequence[int]) -> int | None:
    """For a layer of another library: the only dimension with a size of its weights."""
    if len(shape) == 2:
        return 1
    parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
    vectors = [parameter for parameter in parameters if parameter.ndim == 1]
    widths = {size for parameter in vectors or parameters for size in parameter.shape} - {1}
    sizes = tuple(shape[1:])
    positions = [i for i, size in enumerate(sizes) if size in widths]
    if len(positions) != 1 or sizes[0] == sizes[-1] or (vectors and len(widths) > 1):
        return None
    # A vector broadcasts to the last dimension; with an image's channels it has to be shaped for that.
    if positions[0] == len(sizes) - 1:
        return len(sizes)
    return 1 if positions[0] == 0 and vectors and len(sizes) > 2 else None


def _first_floating(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and not value.is_nested else None
    if isinstance(value, (tuple, list)):
        return next((tensor for item in value if (tensor := _first_floating(item)) is not None), None)
    return None
