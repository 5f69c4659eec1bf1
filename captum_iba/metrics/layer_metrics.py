"""Captum's ``infidelity`` and ``sensitivity_max`` for attributions of a layer, with Captum's argument order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

if TYPE_CHECKING:
    from captum_iba._compat import TargetType

# Captum loads pyplot: both functions import it, and what needs it, when they are called.


def layer_sensitivity_max(
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
    Maximum change of the attribution as the input changes a little.

    ``captum.metrics.sensitivity_max`` (Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", NeurIPS
    2019), which expects a tuple of attributions, and so fails on every ``LayerAttribution`` that returns
    a tensor. Lower is better.

    Args:
        explanation_func (Callable): ``attribute`` of any attribution method; it may return a tensor, a tuple or a list
            of tensors.
        inputs (Tensor or tuple of Tensor): Inputs of ``explanation_func``.
        perturb_func (Callable, optional): Returns perturbed inputs. Default: None, uniform noise of ``perturb_radius``,
            which token ids cannot take.
        perturb_radius, n_perturb_samples, norm_ord, max_examples_per_batch: As in Captum.
        **kwargs (Any, optional): Additional arguments of ``explanation_func``: ``target``, ``additional_forward_args``.

    Returns:
        *Tensor*: (B,), relative to the norm of the attribution.

    Examples::

        >>> from captum.attr import LayerActivation
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> layer_sensitivity_max(LayerActivation(model, model[0]).attribute, torch.ones(5, 3)).shape
        torch.Size([5])
    """
    from captum.metrics import sensitivity_max

    from captum_iba.attr._model.nested import map_tensors, tensors_in

    rows = len(inputs[0] if isinstance(inputs, tuple) else inputs)
    # Captum repeats no masks, and of the additional arguments also tensors of other rows.
    names = ("feature_mask", "bottleneck_mask", "additional_forward_args")
    own = {name: kwargs.pop(name) for name in names if name in kwargs}

    def explain(perturbed: Any, **arguments: Any) -> tuple[Tensor, ...]:
        copies = len(perturbed[0] if isinstance(perturbed, tuple) else perturbed) // rows

        def repeat(tensor: Tensor) -> Tensor:
            return tensor.repeat_interleave(copies, 0) if tensor.ndim and len(tensor) == rows else tensor

        attributions = tensors_in(explanation_func(perturbed, **arguments, **map_tensors(repeat, own)))
        return tuple(tensor.detach().contiguous() for tensor in attributions)

    sensitivity: Tensor = sensitivity_max(
        explain,
        inputs,
        **({} if perturb_func is None else {"perturb_func": perturb_func}),
        perturb_radius=perturb_radius,
        n_perturb_samples=n_perturb_samples,
        norm_ord=norm_ord,
        max_examples_per_batch=max_examples_per_batch,
        **kwargs,
    )
    return sensitivity


def layer_infidelity(
    forward_func: Callable[..., Tensor],
    layer: Module,
    perturb_func: Callable[..., tuple[Tensor, Tensor]],
    inputs: Tensor | tuple[Tensor, ...],
    attributions: Tensor | tuple[Tensor, ...],
    baselines: Any = None,
    additional_forward_args: Any = None,
    target: TargetType = None,
    n_perturb_samples: int = 10,
    max_examples_per_batch: int | None = None,
    normalize: bool = False,
    *,
    attribute_to_layer_input: bool = False,
) -> Tensor:
    """
    Error of the attribution of a layer as a prediction of how a perturbation of the layer changes the output.

    ``captum.metrics.infidelity`` (Yeh et al., NeurIPS 2019) with the activation of the layer as the input, since
    Captum's own expects attributions of the shape of the model's inputs. The model runs with the perturbed activation
    in the layer's place. Lower is better. It suits attributions that predict changes of the output, as those by
    gradients; bits, which are non-negative, do not claim to.

    Args:
        forward_func (Callable): Model, or any function that runs it and returns a tensor.
        layer (Module): Layer that runs once in a forward pass.
        perturb_func (Callable): Takes activations (rows, ...), and ``baselines`` where these are given; returns
            ``(perturbation, activations - perturbation)``.
        inputs (Tensor or tuple of Tensor): Inputs of ``forward_func``.
        attributions (Tensor or tuple of Tensor): Attributions of the layer's activation; of a tuple, the tensor of its
            shape.
        baselines (scalar or Tensor, optional): Baselines of the activation, passed on to ``perturb_func`` by Captum.
            Default: None.
        additional_forward_args (Any, optional): Additional arguments of ``forward_func``, one or a tuple. Tensors in
            them whose first dimension is B are selected together with the examples. Default: None.
        target (int, tuple, Tensor, or list, optional): Output that is explained, as everywhere in Captum. Default:
            None.
        n_perturb_samples, max_examples_per_batch, normalize: As in Captum.
        attribute_to_layer_input (bool, optional): Whether the activation is the input of the layer, not its output.
            Default: False.

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: A layer that does not run once, or attributions of another shape than its activation.
        TypeError: A layer without a floating-point activation.

    Examples::

        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> def halve(activations):
        ...     return activations / 2, activations / 2
        >>> gradient = (model[2].weight[1] * 1.0).detach().expand(5, 4)  # the model is linear behind the ReLU
        >>> layer_infidelity(model, model[1], halve, torch.randn(5, 3), gradient, target=1).round(decimals=3)
        tensor([0., 0., 0., 0., 0.])
    """
    from captum.metrics import infidelity

    from captum_iba._compat import _format_additional_forward_args
    from captum_iba.attr._model.guard import ModuleGuard
    from captum_iba.attr._model.hooks import HookPoint, activation_of, hooked, record
    from captum_iba.attr._model.inputs import require_own_rows
    from captum_iba.attr._model.nested import copy_tensor, map_tensors, select_examples, tensors_in

    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    forward_args = (*tensors, *(_format_additional_forward_args(additional_forward_args) or ()))
    rows = len(tensors[0])
    point = HookPoint(layer, at_input=attribute_to_layer_input)

    def forward_from_layer(activations: Tensor, examples: Tensor) -> Tensor:
        def replace(module: Module, at_input: bool, call: int, value: Any, layer_input: Any) -> Any:
            return activation_of(value, module)[1](activations.to(activation.dtype, copy=True))

        with hooked([point], replace):
            output = forward_func(*select_examples(forward_args, rows, examples))
        guard.restore_state()
        return output

    with ModuleGuard(forward_func) as guard, guard.watching(), torch.no_grad():
        require_own_rows(forward_func, tensors, forward_args[len(tensors) :], guard)
        guard.restore_state()
        # Every pass gets copies: a model may write into its inputs.
        (captured,) = record(lambda _: forward_func(*map_tensors(copy_tensor, forward_args)), [point], guard).captured
        if captured.n_calls != 1:
            raise ValueError(f"layer {type(layer).__name__} ran {captured.n_calls} times in a pass, expected once")
        activation = captured.activation
        shapes = [tuple(tensor.shape) for tensor in tensors_in(attributions)]
        if tuple(activation.shape) not in shapes:
            raise ValueError(
                f"attributions has the shape {shapes}, expected that of the layer, {tuple(activation.shape)}"
            )
        # Indices of the examples stand for the arguments: Captum would also repeat tensors of other sizes.
        result: Tensor = infidelity(
            forward_from_layer,
            perturb_func,
            activation,
            tensors_in(attributions)[shapes.index(tuple(activation.shape))],
            baselines,
            (torch.arange(rows),),
            target,
            n_perturb_samples,
            max_examples_per_batch,
            normalize,
        )
    return result
