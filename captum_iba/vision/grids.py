"""Which layers of a model hold a grid over the image, and where its cells are in their activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from captum_iba.attr._model.guard import ModuleGuard, on_this_thread
from captum_iba.attr._model.hooks import hook_points, record
from captum_iba.attr._model.nested import split_activation
from captum_iba.attr.feature_dim import resolve_feature_dim
from captum_iba.vision.token_order import tokens_in_order

MOST_EXTRA_TOKENS = 16
"""Largest number of class, distillation and register tokens before the patches."""

_ROUNDING = 0.1
_CONTAINERS = (nn.Sequential, nn.ModuleList)
_CONVOLUTIONS = (nn.Conv2d, nn.LazyConv2d)


@dataclass(frozen=True)
class Grid:
    """The cells of an image in an activation.

    Attributes:
        height, width (int): Number of cells.
        feature_dim (int): Dimension of the features: 1 for (B, C, H, W), 3 for (B, H, W, C), 2 for (B, T, D).
        n_extra (int): Number of tokens before the patches, class and register tokens, in (B, T, D).
        is_tokens (bool): Whether the activation is (B, T, D).
    """

    height: int
    width: int
    feature_dim: int
    n_extra: int = 0
    is_tokens: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    def cells(self, values: Tensor) -> Tensor:
        """Values of an activation summed over its features, (B, height, width); extra tokens are left out.

        Examples::

            >>> Grid(2, 2, 2, n_extra=1, is_tokens=True).cells(torch.arange(10.0).view(1, 5, 2))
            tensor([[[ 5.,  9.],
                     [13., 17.]]])
        """
        of_positions = values.sum(self.feature_dim)
        if self.is_tokens:
            of_positions = of_positions[:, self.n_extra :].reshape(-1, *self.shape)
        return of_positions

    def maskable(self, device: torch.device | None = None) -> Tensor | None:
        """True at patches and False at extra tokens, (1, T); None where there are none of these."""
        if not self.n_extra:
            return None
        return torch.arange(self.n_extra + self.height * self.width, device=device).unsqueeze(0) >= self.n_extra


@dataclass(frozen=True)
class ImageLayer:
    """A layer of a model that holds a grid.

    Attributes:
        name (str): Name of the module in the model.
        module (nn.Module): The module.
        grid (Grid): Its cells.
    """

    name: str
    module: nn.Module
    grid: Grid


def resize_map(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Bits of cells, (B, h, w), at another resolution, (B, H, W): bilinear, and scaled to the same sum.

    A map of zeros stays one.

    Examples::

        >>> resize_map(torch.tensor([[[1.0, 3.0]]]), (2, 4)).sum()
        tensor(4., dtype=torch.float64)
    """
    wide = F.interpolate(values.unsqueeze(1).double(), size, mode="bilinear", align_corners=False).squeeze(1)
    total, before = wide.sum((1, 2), keepdim=True), values.double().sum((1, 2), keepdim=True)
    return wide * torch.where(total > 0, before / total.where(total > 0, 1.0), 0.0)


def shapes_in_pass(model: nn.Module, forward: Callable[[], Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every module's first output in one forward pass, by name, in the order in which they finish."""
    names = {module: name for name, module in model.named_modules() if name}
    shapes: dict[str, tuple[int, ...]] = {}

    def finished(module: nn.Module, args: Any, output: Any) -> None:
        split = split_activation(output)
        if module in names and split is not None:
            shapes.pop(names[module], None)  # the last call counts
            shapes[names[module]] = tuple(split[0].shape)

    with ModuleGuard(model) as guard, torch.no_grad(), guard.watching():
        hook = register_module_forward_hook(on_this_thread(finished))
        try:
            forward()
        finally:
            hook.remove()
    return shapes


def find_image_layers(
    model: nn.Module,
    images: Tensor,
    names: Sequence[str] | None = None,
    forward: Callable[[Tensor], Tensor] | None = None,
) -> tuple[ImageLayer, ...]:
    """Layers of a model that hold a grid over the image, in the order in which they run.

    Args:
        model (nn.Module): The model.
        images (Tensor): A batch of its inputs, (B, 3, H, W), to see shapes.
        names (sequence of str, optional): Names of modules.
                    Default: the blocks that hold a grid: elements of ``Sequential`` and ``ModuleList``, without stages
        forward (Callable, optional): Gives the logits. Default: the model

    Returns:
        tuple of ImageLayer

    Raises:
        ValueError: There is no such module, it does not run, or it holds no grid; the message says what it holds.

    Examples::

        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        >>> [layer.name for layer in find_image_layers(model, torch.zeros(1, 3, 8, 8))]
        ['0', '1']
    """
    run = model if forward is None else forward
    shapes = shapes_in_pass(model, lambda: run(images))
    modules = dict(model.named_modules())
    patches = [
        shape[2:] for name, shape in shapes.items() if isinstance(modules[name], _CONVOLUTIONS) and len(shape) == 4
    ]
    if names is None:
        with_grid = {modules[name] for name, shape in shapes.items() if _may_hold_grid(shape, images)}
        blocks = set(_blocks(model, with_grid))
        chosen = [name for name, shape in shapes.items() if modules[name] in blocks and _may_hold_grid(shape, images)]
    else:
        chosen = [_known(name, modules, shapes) for name in names]
    layers: list[ImageLayer] = []
    with ModuleGuard(run) as guard:
        recorded = record(lambda copies: run(images), hook_points([modules[n] for n in chosen], -1, False), guard)
    captured = {item.number: item for item in recorded.captured}
    for number, name in enumerate(chosen):
        item = captured[number]
        shape = tuple(item.activation.shape)
        try:
            # Of (B, C, h, w) that a convolution gives, no other dimension can have the features.
            convolved = len(shape) == 4 and shape[2:] in patches and shape[1:3] not in patches
            dim = 1 if convolved else None
            if len(shape) == 4 and len(set(shape[1:])) == 1:
                dim = _same_for_larger(model, run, images, name, shape)
            if dim is None:
                dim = resolve_feature_dim(modules[name], shape, None, item.origin)
            layers.append(ImageLayer(name, modules[name], grid_of(shape, dim, images.shape, patches, name)))
        except ValueError:
            if names is not None:
                raise
    return _in_order(model, run, images, shapes, layers, named=names is not None)


def _same_for_larger(
    model: nn.Module, run: Callable[[Tensor], Tensor], images: Tensor, name: str, shape: tuple[int, ...]
) -> int | None:
    """Of dimensions of one size, that which an image of twice the size does not change: it has the features.

    None where the model takes no other size, or the shape still does not tell.
    """
    larger = images[:1].repeat(1, 1, 2, 2)
    try:
        found = shapes_in_pass(model, lambda: run(larger)).get(name, ())
    except Exception:  # whatever a model raises of a size that it is not made for
        return None
    same = [dim for dim in range(1, len(shape)) if len(found) == len(shape) and found[dim] == shape[dim]]
    return same[0] if len(same) == 1 else None


def token_embeddings(
    model: nn.Module, images: Tensor, first: ImageLayer, forward: Callable[[Tensor], Tensor]
) -> ImageLayer | None:
    """The last module before the first block with its class token and patches; None where there is none.

    Args:
        model (nn.Module): The model.
        images (Tensor): A batch of its inputs, (B, 3, H, W).
        first (ImageLayer): The first block.
        forward (Callable): Gives the logits.
    """
    if not first.grid.n_extra:
        return None
    shapes = shapes_in_pass(model, lambda: forward(images))
    before = takewhile(lambda name: not f"{name}.".startswith(f"{first.name}."), shapes)
    names = [name for name in before if shapes[name] == shapes[first.name]]
    return ImageLayer(names[-1], dict(model.named_modules())[names[-1]], first.grid) if names else None


def _in_order(
    model: nn.Module,
    run: Callable[[Tensor], Any],
    images: Tensor,
    shapes: dict[str, tuple[int, ...]],
    layers: Sequence[ImageLayer],
    named: bool,
) -> tuple[ImageLayer, ...]:
    """The layers whose tokens are in the order of the image's cells; an error if that leaves out half of them."""
    grids = {layer.grid for layer in layers if layer.grid.is_tokens}
    scrambled = {grid for grid in grids if not tokens_in_order(model, run, images, shapes, grid.n_extra, grid.shape)}
    others = [layer for layer in layers if layer.grid in scrambled]
    if others and (named or 2 * len(others) > len(layers)):
        grid = others[0].grid
        raise ValueError(
            f"layer {others[0].name!r} has {grid.n_extra + grid.height * grid.width} tokens, which are not the "
            f"{grid.height} x {grid.width} cells of the image row by row after {grid.n_extra} class and register "
            "tokens; expected such an order, or a layer (B, C, H, W)"
        )
    return tuple(layer for layer in layers if layer.grid not in scrambled)


def grid_of(
    shape: Sequence[int],
    feature_dim: int,
    image_shape: Sequence[int],
    patches: Sequence[Sequence[int]] = (),
    name: str = "layer",
) -> Grid:
    """The grid in an activation.

    Tokens (B, T, D) are as many patches as a convolution of the model has positions, or a half, a quarter, ... of these
    along each side, and before them class and register tokens; without convolutions the patches are the largest grid of
    the image's proportions.

    Args:
        shape (sequence of int): Shape of the activation.
        feature_dim (int): Dimension of its features.
        image_shape (sequence of int): (B, 3, H, W).
        patches (sequence): Height and width of the outputs of the model's convolutions.
        name (str): What messages call the layer. Default: "layer".

    Raises:
        ValueError: An activation without a grid of two cells or more.

    Examples::

        >>> grid_of((1, 197, 768), 2, (1, 3, 224, 224), [(14, 14)])
        Grid(height=14, width=14, feature_dim=2, n_extra=1, is_tokens=True)
    """
    grid = None
    if len(shape) == 4 and feature_dim in (1, 3):
        height, width = (size for d, size in enumerate(shape) if d not in (0, feature_dim))
        # (B, windows, pixels, C) of transformers with windows is no grid, but looks like one.
        if feature_dim == 1 or _fits(height, width, image_shape[-2:]):
            grid = Grid(height, width, feature_dim)
    elif len(shape) == 3 and feature_dim == 2:
        sizes = _patch_grid(shape[1], image_shape[-2:], patches)
        grid = None if sizes is None else Grid(*sizes, 2, shape[1] - math.prod(sizes), True)
    if grid is None or grid.height * grid.width < 2 or shape[0] != image_shape[0]:
        raise ValueError(
            f"layer {name!r} has the shape {tuple(shape)}, without a grid over images of shape {tuple(image_shape)}; "
            "expected (B, C, H, W) or (B, H, W, C) of the image's proportions, or tokens (B, T, D), one for each patch "
            f"after at most {MOST_EXTRA_TOKENS} others"
        )
    return grid


def _fits(height: int, width: int, image_size: Sequence[int]) -> bool:
    """Whether a grid has the proportions of the image, as exactly as whole cells allow; windows have others."""
    expected = width * image_size[0] / image_size[1]
    return abs(height - expected) <= max(1.0, _ROUNDING * expected) or (
        abs(width - height * image_size[1] / image_size[0]) <= 1.0
    )


def _patch_grid(n_tokens: int, image_size: Sequence[int], patches: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    candidates = set()
    for height, width in patches:
        while height > 1 and width > 1:
            candidates.add((height, width))
            height, width = -(-height // 2), -(-width // 2)
    if not candidates:
        ratio = image_size[0] / image_size[1]
        width = math.isqrt(int(n_tokens / ratio))
        height = round(width * ratio)
        candidates = {(height, width)} if height * width <= n_tokens else set()
    fitting = [pair for pair in candidates if 0 <= n_tokens - math.prod(pair) <= MOST_EXTRA_TOKENS]
    return max(fitting, key=math.prod, default=None)


def _blocks(model: nn.Module, with_grid: Collection[nn.Module]) -> Iterator[nn.Module]:
    """Elements of containers, and in the place of a stage or of a whole model those of its own containers."""
    for child in model.children():
        inside = type(child) in _CONTAINERS or _is_stage(child) or child not in with_grid
        if inside or type(model) not in _CONTAINERS:
            yield from _blocks(child, with_grid)
        else:
            yield child


def _is_stage(module: nn.Module) -> bool:
    """Whether a module has a container of two or more blocks of one type, and no layer of its own beside it."""
    if any(next(child.children(), None) is None for child in module.children()):
        return False
    for child in module.children():
        if type(child) in _CONTAINERS:
            types = [
                type(block)
                for block in child.children()
                if [*block.children()] and not isinstance(block, nn.Sequential)
            ]
            if len(types) > 1 and len(set(types)) == 1:
                return True
    return False


def _may_hold_grid(shape: Sequence[int], images: Tensor) -> bool:
    # What has the shape of the image is the image, normalized.
    return len(shape) in (3, 4) and shape[0] == len(images) and shape != tuple(images.shape)


def _known(name: str, modules: dict[str, nn.Module], shapes: dict[str, tuple[int, ...]]) -> str:
    if name not in modules or not name:
        last = ", ".join(list(shapes)[-5:])
        raise ValueError(f"layer is {name!r}, which is no module of the model; expected a name such as {last}")
    if name not in shapes:
        raise ValueError(f"layer is {name!r}, which gives no tensor in a forward pass; expected a module that runs")
    return name
