"""Which dimension of an activation holds its features (channels, hidden units)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn import Module
from torch.nn.modules import batchnorm, conv, dropout, pooling

_CHANNELS_FIRST = (
    conv._ConvNd,
    batchnorm._NormBase,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.Upsample,
    dropout.Dropout1d,
    dropout.Dropout2d,
    dropout.Dropout3d,
    *(getattr(pooling, name) for name in vars(pooling) if name.startswith("_") and name.endswith("Nd")),
)
_FEATURES_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention)


def resolve_feature_dim(
    layer: Module,
    shape: Sequence[int],
    feature_dim: int | None = None,
    last_leaf: Module | None = None,
    at_input: bool = False,
) -> int:
    """The dimension of an activation that holds the features, from 1 to its number of dimensions less 1.

    What is not named is told by what the layer is: 1 for convolutions, batch and group normalization and pooling, the
    last for linear layers, layer normalization, embeddings, recurrent layers and attention. A layer with submodules is
    what they are; where they are of both kinds, the one decides whose width the activation has in its dimension. A
    layer without parameters (an activation function) goes by the last layer with parameters that ran before it, and so
    does the input of a layer with submodules.

    Args:
        layer (Module): The layer.
        shape (sequence of int): Shape of the activation, dimension 0 counting the examples.
        feature_dim (int, optional): The dimension, if it is named; negative ones count from the last.
            Default: None
        last_leaf (Module, optional): The last module with parameters of its own that ran before the layer's output,
            or its input.
            Default: None
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
    if ndim == 2:
        return 1
    if _channels_first(layer):
        return 1
    if at_input and isinstance(layer, _FEATURES_LAST):
        return ndim - 1
    widths = _Widths([layer] if isinstance(layer, _FEATURES_LAST) else layer.modules(), ndim)
    found = None
    if widths and not at_input:
        found = widths.dimension(shape)
    elif last_leaf is not None:
        # Without parameters of its own a layer keeps the width, or it is not known what it does; and what a layer
        # takes has the width of what gave it, not of what the layer makes of it.
        found = _Widths([last_leaf], ndim).kept_in(shape)
    if found is None and at_input:
        found = widths.kept_in(shape)
    if found is None:
        raise ValueError(
            f"feature_dim is None, and which dimension of {type(layer).__name__}'s activation of shape {tuple(shape)} "
            "holds the features cannot be told; expected feature_dim=1 (channels first) or feature_dim=-1 (last)"
        )
    return found


class _Widths:
    """How many features modules give, by the dimension in which their kind gives them."""

    def __init__(self, modules: Iterable[Module], ndim: int) -> None:
        self._ndim = ndim
        self._first: set[int] = set()
        self._last: set[int] = set()
        self._of_unknown_kind: set[int] = set()
        self._pools = False
        for module in modules:
            self._add(module)
        # Normalizations and linear layers of other libraries are of the kind of what is known beside them.
        unknown, both = self._of_unknown_kind, bool(self._first) == bool(self._last)
        self._first, self._last = (
            self._first | unknown if self._first or both else set(),
            self._last | unknown if self._last or both else set(),
        )

    def __bool__(self) -> bool:
        return bool(self._first or self._last)

    def kept_in(self, shape: Sequence[int]) -> int | None:
        """The only dimension that has one of these widths, or of two the one of their kind."""
        widths = self._first | self._last
        if shape[1] in widths and shape[-1] in widths:
            return self.dimension(shape)
        return 1 if shape[1] in widths else self._ndim - 1 if shape[-1] in widths else None

    def dimension(self, shape: Sequence[int]) -> int | None:
        """The dimension that the kinds of modules speak for; None if they speak for both or for none."""
        first, last = shape[1] in self._first, shape[-1] in self._last
        # Modules of one kind decide alone, unless the widths say that their result was transposed.
        if self._first and not self._last:
            return None if not first and shape[-1] in self._first else 1
        if self._last and not self._first:
            # Linear layers behind pooling may weigh channels, which come first.
            return None if (not last or self._pools) and shape[1] in self._last else self._ndim - 1
        if first == last:
            return None
        return 1 if first else self._ndim - 1

    def _add(self, module: Module) -> None:
        if _channels_first(module):
            self._pools = True
            for name in ("out_channels", "num_features", "num_channels"):
                if isinstance(width := getattr(module, name, None), int):
                    self._first.add(width)
                    if isinstance(module, conv._ConvNd) and len(module.kernel_size) + 2 != self._ndim:
                        # The activation has another number of dimensions: patches that were made tokens, for example.
                        self._last.add(width)
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            # Of several dimensions it says nothing on which of them holds the features.
            self._last.update(module.normalized_shape if len(module.normalized_shape) == 1 else ())
        elif isinstance(module, nn.MultiheadAttention):
            self._last.add(module.embed_dim)
        elif isinstance(module, nn.RNNBase):
            self._last.add((module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1))
        elif isinstance(module, nn.Embedding):
            self._last.add(module.embedding_dim)
        elif isinstance(width := getattr(module, "out_features", None), int):
            self._last.add(width)  # linear layers, quantized ones and adapters too
        elif not module._modules and not isinstance(module, nn.PReLU):
            for parameter in module._parameters.values():
                if parameter is not None and parameter.ndim in (1, 2):
                    self._of_unknown_kind.update(parameter.shape)


def _channels_first(module: Module) -> bool:
    if isinstance(module, nn.LayerNorm):
        # torchvision's and timm's LayerNorm2d normalizes channels that come first.
        return type(module).__name__.endswith("2d")
    return isinstance(module, _CHANNELS_FIRST)
