"""Captum's ``sensitivity_max`` and ``infidelity``, for attributions of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

if TYPE_CHECKING:
    from captum_iba._compat import TargetType

# Captum loads pyplot: both functions import it, and what needs it, when they are called.


def sensitivity_max(
    explanation_func: Callable[..., Any],
    inputs: Tensor | tuple[Tensor, ...],
    perturb_func: Callable[..., Any] | None = None,
    perturb_radius: float = 0.02,
    n_perturb_samples: int = 10,
    norm_ord: str = "fro",
    max_examples_per_batch: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """
    How far the attribution moves, at most, as the input moves a little.

    ``captum.metrics.sensitivity_max`` (Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", NeurIPS
    2019), which takes a tuple of attributions for granted, and so fails on every ``LayerAttribution`` that returns
    a tensor. Lower is better.

    Args:

        explanation_func (Callable): ``attribute`` of any attribution. A tensor, a tuple or a list of them
                    is fine.
        inputs (Tensor or tuple of Tensor): Of ``explanation_func``.
        perturb_func (Callable, optional): Gives moved inputs.
                    Default: uniform noise of ``perturb_radius``, which token ids cannot take
        perturb_radius, n_perturb_samples, norm_ord, max_examples_per_batch: As in Captum.
        **kwargs (Any, optional): Further arguments of ``explanation_func``: ``target``, ``additional_forward_args``.

    Returns:
        *Tensor*: (B,), relative to the norm of the attribution.

    Examples::

        >>> iba = InformationBottleneckAttribution(net, net.layer, statistics=statistics)
        >>> sensitivity_max(iba.attribute, images, target=1)
    """
    from captum.metrics import sensitivity_max as of_captum

    from captum_iba.attr._model.nested import tensors_in

    rows = len(inputs[0] if isinstance(inputs, tuple) else inputs)

    def explained(moved: Any, **more: Any) -> tuple[Tensor, ...]:
        # Captum repeats inputs, target and further arguments, but no masks.
        for name in ("feature_mask", "bottleneck_mask"):
            if isinstance(mask := more.get(name), Tensor) and mask.ndim and len(mask) == rows:
                more[name] = mask.repeat_interleave(len(moved[0] if isinstance(moved, tuple) else moved) // rows, 0)
        return tuple(tensor.detach().contiguous() for tensor in tensors_in(explanation_func(moved, **more)))

    given = {} if perturb_func is None else {"perturb_func": perturb_func}
    found: Tensor = of_captum(
        explained,
        inputs,
        perturb_radius=perturb_radius,
        n_perturb_samples=n_perturb_samples,
        norm_ord=norm_ord,
        max_examples_per_batch=max_examples_per_batch,
        **given,
        **kwargs,
    )
    return found


def infidelity(
    forward_func: Callable[..., Tensor],
    layer: Module,
    perturb_func: Callable[[Tensor], tuple[Tensor, Tensor]],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    target: TargetType = None,
    additional_forward_args: Any = None,
    *,
    attribute_to_layer_input: bool = False,
    n_perturb_samples: int = 10,
    max_examples_per_batch: int | None = None,
    normalize: bool = False,
) -> Tensor:
    """
    How badly the attribution of a layer foretells what a perturbation of the layer does to the output.

    ``captum.metrics.infidelity`` (Yeh et al., NeurIPS 2019) with the features of the layer as the input, since Captum's
    own wants attributions of the shape of the model's inputs. The model runs with the perturbed features in the layer's
    place. Lower is better. It measures attributions that foretell changes of the output, as those by gradients;
    bits, which are non-negative, do not claim to.

    Args:

        forward_func (Callable): The model, or any function that runs it and gives a tensor.
        layer (Module): The layer, which runs once in a pass.
        perturb_func (Callable): Takes features (rows, ...), gives ``(perturbation, features - perturbation)``.
        inputs (Tensor or tuple of Tensor): Of ``forward_func``.
        attributions (Tensor or tuple of Tensor): Of the layer's features; of a tuple, the one of their shape.
        target (int, tuple, Tensor, or list, optional): Output that is explained, as everywhere in Captum.
                    Default: None
        additional_forward_args (Any, optional): Further arguments of ``forward_func``, one or a tuple. Tensors in them
                    whose first dimension counts the examples go with the examples.
                    Default: None
        attribute_to_layer_input (bool, optional): The features are the layer's input.
                    Default: False
        n_perturb_samples, max_examples_per_batch, normalize: As in Captum.

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: a layer that does not run once, or attributions of another shape than its features.
        TypeError: a layer without floating-point features.

    Examples::

        >>> def noise(features): move = 0.1 * torch.randn_like(features); return move, features - move
        >>> scores = LayerGradientXActivation(forward, layer).attribute(ids, target=1)
        >>> infidelity(forward, layer, noise, ids, scores, target=1)
    """
    from captum.metrics import infidelity as of_captum

    from captum_iba._compat import _format_additional_forward_args
    from captum_iba.attr._model.guard import ModuleGuard
    from captum_iba.attr._model.hooks import HookPoint, activation_of, hooked
    from captum_iba.attr._model.nested import map_tensors, tensors_in

    given = inputs if isinstance(inputs, tuple) else (inputs,)
    everything = (*given, *(_format_additional_forward_args(additional_forward_args) or ()))
    rows = len(given[0])
    site = HookPoint(layer, at_input=attribute_to_layer_input)
    recorded: list[Tensor] = []

    def record(module: Module, at_input: bool, call: int, value: Any, layer_input: Any) -> None:
        recorded.append(activation_of(value, module)[0].clone())  # what follows may write into it

    def through(features: Tensor, numbers: Tensor) -> Tensor:
        def replace(module: Module, at_input: bool, call: int, value: Any, layer_input: Any) -> Any:
            return activation_of(value, module)[1](features.to(recorded[0].dtype, copy=True))

        def select(tensor: Tensor) -> Tensor:
            if tensor.ndim == 0 or tensor.shape[0] != rows:
                return tensor
            return tensor.index_select(0, numbers.to(tensor.device))

        with hooked([site], replace):
            return forward_func(*map_tensors(select, everything))

    with ModuleGuard() as guard, guard.watching(), torch.no_grad():
        with hooked([site], record):
            forward_func(*everything)
        if len(recorded) != 1:
            raise ValueError(f"layer {type(layer).__name__} ran {len(recorded)} times in a pass, expected once")
        feature = recorded[0]
        fitting = [tensor for tensor in tensors_in(attributions) if tensor.shape == feature.shape]
        if not fitting:
            shapes = [tuple(tensor.shape) for tensor in tensors_in(attributions)]
            raise ValueError(f"attributions has the shape {shapes}, expected that of the layer, {tuple(feature.shape)}")
        # The numbers of the examples stand for the arguments: Captum would also repeat tensors of other sizes.
        found: Tensor = of_captum(
            through,
            perturb_func,
            feature,
            fitting[0],
            additional_forward_args=(torch.arange(rows),),
            target=target,
            n_perturb_samples=n_perturb_samples,
            max_examples_per_batch=max_examples_per_batch,
            normalize=normalize,
        )
    return found
