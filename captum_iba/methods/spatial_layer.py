"""The layer of Grad-CAM: which one, its activation with rows and columns, and guided gradients of ReLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from captum_iba.attr._model.nested import split_activation
from captum_iba.vision.grids import Grid, find_image_layers


def spatial_layers(
    logits: Callable[[Tensor], Tensor],
    model: Any,
    images: Tensor,
    targets: Tensor,
    layer: nn.Module | str | None = None,
) -> list[tuple[nn.Module, list[int]]]:
    """The layers of :func:`spatial_layer`, each with the numbers of the images that it is the layer of.

    An image in which the last layers are dead, without a gradient, has an earlier one, whatever is in its batch.
    """
    first, later = _live_layer(logits, model, images[:1], targets[:1], layer)
    others = list(range(1, len(images)))
    if layer is None and others:
        live = _live(logits, images[1:], targets[1:], [first, *later])
        others = [number for number, row in zip(others, live, strict=True) if not row[0] or any(row[1:])]
    own = {
        number: spatial_layer(logits, model, images[number : number + 1], targets[number : number + 1])
        for number in (others if layer is None else ())
    }
    groups: dict[nn.Module, list[int]] = {}
    for number in range(len(images)):
        groups.setdefault(own.get(number, first), []).append(number)
    return list(groups.items())


def _live(
    logits: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor, modules: list[nn.Module]
) -> list[list[bool]]:
    """For each image, whether each module's last activation has a gradient that is not zero everywhere."""
    outputs: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        split = split_activation(output)
        if split is not None and split[0].requires_grad:
            outputs[module] = split[0]

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        with torch.enable_grad():
            chosen = logits(images.detach().clone().requires_grad_()).gather(1, targets[:, None]).sum()
            kept = [outputs[module] for module in modules if module in outputs]
            gradients = dict(zip(outputs, torch.autograd.grad(chosen, kept, allow_unused=True), strict=True))
    finally:
        for handle in handles:
            handle.remove()
    rows = [gradients.get(module) for module in modules]
    return [[g is not None and bool((g[number] != 0).any()) for g in rows] for number in range(len(images))]


def spatial_layer(
    logits: Callable[[Tensor], Tensor],
    model: Any,
    image: Tensor,
    target: Tensor,
    layer: nn.Module | str | None = None,
) -> nn.Module:
    """The layer that is given, or the last one that ran whose pixels, or whose tokens of patches, reach the logit.

    Activations are (B, C, h, w), larger than one pixel. Tokens, (B, T, D), count behind a normalization, as is usual
    for Grad-CAM of vision transformers. In the last block only the class token reaches the logit, so that there it is
    the normalization before the attention.

    Args:
        logits (Callable): Function of images that returns logits.
        model (Module): The model, with the modules to choose from.
        image (Tensor): An image to try, (1, C, H, W).
        target (Tensor): Its class, (1,).
        layer (Module or str, optional): A module of the model, or its name. Default: None.

    Raises:
        ValueError: A name that the model does not have, or a model without such a layer.
    """
    return _live_layer(logits, model, image, target, layer)[0]


def _live_layer(
    logits: Callable[[Tensor], Tensor],
    model: Any,
    image: Tensor,
    target: Tensor,
    layer: nn.Module | str | None,
) -> tuple[nn.Module, list[nn.Module]]:
    """The layer, and later ones that would come before it if their gradient were not zero for this image."""
    if isinstance(layer, nn.Module):
        return layer, []
    modules: dict[str, nn.Module] = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    if layer is not None:
        if layer not in modules:
            raise ValueError(f"layer is {layer!r}, expected a module of the model, such as {list(modules)[-1:]}")
        return modules[layer], []
    ran: list[tuple[nn.Module, Tensor]] = []

    def look(module: nn.Module, args: Any, output: Any) -> None:
        split = split_activation(output)
        if split is not None and split[0].requires_grad and _is_spatial(module, split[0]):
            ran.append((module, split[0]))

    handles = [module.register_forward_hook(look) for module in modules.values()]
    try:
        with torch.enable_grad():
            chosen = logits(image.detach().clone().requires_grad_()).gather(1, target[:, None]).sum()
            gradients = torch.autograd.grad(chosen, [output for _, output in ran], allow_unused=True) if ran else ()
    finally:
        for handle in handles:
            handle.remove()
    dead: list[nn.Module] = []
    for (module, _), gradient in reversed(list(zip(ran, gradients, strict=True))):
        if gradient is None:
            continue
        if not bool((gradient != 0).any()):
            dead.append(module)
            continue
        try:
            grid = grid_of_layer(logits, model, image, module)
        except ValueError:  # it holds no grid over the image
            continue
        if gradient.ndim == (3 if grid.is_tokens else 4) and bool((as_grid(gradient, grid) != 0).any()):
            return module, dead
    raise ValueError(
        f"layer is None, and {type(model).__name__} has no module whose output has rows and columns, (B, C, h, w), or "
        "normalized tokens of patches; expected layer, a module or its name"
    )


def grid_of_layer(logits: Callable[[Tensor], Tensor], model: Any, image: Tensor, layer: nn.Module) -> Grid:
    """Where the rows and columns of an image, (1, C, H, W), are in the activation of a layer; ValueError if nowhere."""
    names = {module: name for name, module in model.named_modules()} if isinstance(model, nn.Module) else {}
    root, name = (model, names[layer]) if names.get(layer) else (nn.ModuleList([layer]), "0")
    (found,) = find_image_layers(root, image, [name], logits)
    return found.grid


def as_grid(activation: Tensor, grid: Grid) -> Tensor:
    """An activation as (B, D, h, w): of tokens (B, T, D) those of the patches, of (B, h, w, D) the features first."""
    if grid.is_tokens:
        patches = activation[:, grid.n_extra :].transpose(1, 2)
        return patches.reshape(*patches.shape[:2], *grid.shape)
    return activation.movedim(grid.feature_dim, 1)


def _is_spatial(module: nn.Module, output: Tensor) -> bool:
    if output.ndim == 4:
        return sum(size > 1 for size in output.shape[1:]) > 1
    return output.ndim == 3 and output.shape[1] >= 4 and "norm" in type(module).__name__.lower()


class GridProbe(nn.Module):
    """An identity module that the activation of a layer passes through as (B, C, h, w), for Captum to hook."""

    def __init__(self, layer: nn.Module, logits: Callable[[Tensor], Tensor], grid: Grid) -> None:
        super().__init__()
        self._layer, self._logits, self._grid = [layer], logits, grid  # in a list: the layer is no part of the probe

    def run(self, images: Tensor) -> Tensor:
        """Logits of images."""
        handle = self._layer[0].register_forward_hook(self._hook)
        try:
            return self._logits(images)
        finally:
            handle.remove()

    def forward(self, activation: Tensor) -> Tensor:
        """The activation, as it is."""
        return activation

    def _hook(self, layer: nn.Module, args: Any, output: Any) -> Any:
        split = split_activation(output)
        if split is None:
            raise ValueError(f"layer {type(layer).__name__} returns no activation, expected (B, C, h, w)")
        activation, with_activation = split
        grid = self(as_grid(activation, self._grid))
        if not self._grid.is_tokens:
            return with_activation(grid.movedim(1, self._grid.feature_dim))
        tokens = grid.flatten(2).transpose(1, 2)
        return with_activation(torch.cat([activation[:, : self._grid.n_extra], tokens], 1))


class GuidedReLU(TorchFunctionMode):
    """While it is entered, gradients pass a ReLU only where they, and its input, are positive (guided backpropagation).

    Attributes:
        calls (int): Number of ReLUs that ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace a ReLU by the guided one; all else runs as it is."""
        kwargs = kwargs or {}
        in_place = func in (nn.functional.relu_, torch.relu_, Tensor.relu_)
        if not in_place and func not in (nn.functional.relu, torch.relu, Tensor.relu):
            return func(*args, **kwargs)
        self.calls += 1
        # What else reads the input of a ReLU in place finds the result there.
        in_place = in_place or kwargs.get("inplace", len(args) > 1 and args[1])
        return _Guided.apply(args[0] if args else kwargs["input"], in_place)  # type: ignore[no-untyped-call]


class _Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, in_place: bool) -> Tensor:
        ctx.save_for_backward(values > 0)
        if not in_place:
            return values.clamp(min=0)
        ctx.mark_dirty(values)
        return values.clamp_(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (positive,) = ctx.saved_tensors
        return gradients[0].clamp(min=0) * positive, None
