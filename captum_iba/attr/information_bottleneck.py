"""InformationBottleneckAttribution: the information of a layer that the prediction needs, in bits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba._checks import check_integer, kind_of, per_layer
from captum_iba._compat import LayerAttribution, ModuleOrModuleList, NoiseTunnel, TargetType, log_usage, progress
from captum_iba._warnings import warn_user
from captum_iba.attr._model.hooks import hook_points
from captum_iba.attr._model.inputs import ModelInputs, outside_inference_mode
from captum_iba.attr.execution import Execution
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.losses import LossFunction
from captum_iba.attr.settings import BottleneckSettings, SettingsOverrides, resolve_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack


_P = ParamSpec("_P")


_BY_POSITION = 4  # self, inputs, target and additional_forward_args


def _without_baselines(attribute: Callable[_P, Any]) -> Callable[_P, Any]:
    """Refuse baselines, which in Captum's other methods come second."""

    @functools.wraps(attribute)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        given = args[2] if len(args) > 2 else None
        first = given[0] if isinstance(given, tuple) and given else given
        loss = kwargs.get("loss")  # a function may take any target, and this one takes 0.0 and 1.0
        takes_numbers = callable(loss) or loss == "binary_cross_entropy"
        no_index = isinstance(first, Tensor) and first.is_floating_point() and not takes_numbers
        if "baselines" in kwargs or no_index or (len(args) > 2 and "target" in kwargs) or len(args) > _BY_POSITION:
            raise TypeError(
                "baselines: an information bottleneck has no baselines, its noise takes their place; expected "
                "attribute(inputs, target, additional_forward_args, ...)"
            )
        return attribute(*args, **kwargs)

    return checked


class InformationBottleneckAttribution(LayerAttribution):  # type: ignore[misc]
    r"""
    Attribution by an information bottleneck: the number of bits of each feature that the prediction needs.

    Noise is mixed into the output of a layer, :math:`Z = \lambda X + (1 - \lambda) \varepsilon`, and the mask
    :math:`\lambda` is optimized, for each example, to let through as little information about :math:`X` as
    possible while the model still predicts the target. The remaining information, in bits, is the attribution: zero
    bits mean that the model does as well with an average activation in this place.

    The noise has the mean and standard deviation of the layer over a dataset (:class:`FeatureStatistics`).
    Attributions are non-negative: they say how much is needed, not whether it speaks for or against the target.

    The published procedure is that of Jiang et al., "Inserting Information Bottlenecks for Attribution in
    Transformers", Findings of EMNLP 2020, https://arxiv.org/abs/2012.13838, after Schulz et al.,
    "Restricting the Flow: Information Bottlenecks for Attribution", ICLR 2020, https://arxiv.org/abs/2001.00396.
    """

    def __init__(
        self,
        forward_func: Callable[..., Tensor],
        layer: ModuleOrModuleList,
        device_ids: list[int] | None = None,
        statistics: FeatureStatistics | Sequence[FeatureStatistics] | None = None,
    ) -> None:
        r"""
        Args:
            forward_func (Callable): The model, or any function that runs it and returns a tensor with one row per
                example. A ``DataParallel`` over several devices is run on its first device.
            layer (torch.nn.Module or list of torch.nn.Module): Layer or layers whose output (or input) gets a
                bottleneck. Several layers give a list of attributions, or one attribution with ``share_mask=True``.
            device_ids (list of int, optional): Not used; part of the signature of Captum's layer methods. Default:
                None.
            statistics (FeatureStatistics or list of them, optional): Mean and standard deviation of each layer over a
                dataset. Without them the statistics of each example are used, and a warning says once that attributions
                are less faithful then. Default: None.
        """
        LayerAttribution.__init__(self, forward_func, layer, device_ids)
        layers = self._layers if isinstance(layer, Iterable | Module) else []
        if not layers or not all(isinstance(module, Module) for module in layers):
            raise ValueError(f"layer is {layer!r}, expected a torch.nn.Module or a list of them")
        self.statistics = _one_per_layer(statistics, len(layers))
        self._warned: set[str] = set()

    @log_usage(part_of_slo=True)  # type: ignore[untyped-decorator]
    @_without_baselines
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: TargetType = None,
        additional_forward_args: Any = None,
        *,
        attribute_to_layer_input: bool = False,
        internal_batch_size: int | None = None,
        feature_mask: Tensor | None = None,
        bottleneck_mask: Tensor | None = None,
        feature_dim: int | Sequence[int | None] | None = None,
        layer_call: int | Sequence[int] = -1,
        share_mask: bool = False,
        loss: str | LossFunction | None = None,
        seed: int = 0,
        replay: bool = True,
        return_trace: bool | Literal["final"] = False,
        show_progress: bool = False,
        preset: str | BottleneckSettings = "default",
        **overrides: Unpack[SettingsOverrides],
    ) -> Any:
        r"""
        Args:
            inputs (Tensor or tuple of Tensor): Inputs of ``forward_func``; dimension 0 counts the examples.
            target (int, tuple, Tensor, or list, optional): Output that is explained. For outputs (B, C) the class: an
                integer for all examples, or a list or 1-D tensor of integers, one per example. For outputs of more
                dimensions a tuple of indices, or a list of tuples. None for outputs of one value per example. Default:
                None.
            additional_forward_args (Any, optional): Further arguments of ``forward_func``, one or a tuple. Tensors in
                them (also inside tuples, lists and dictionaries) whose first dimension is the number of examples are
                cut and tiled with the examples; everything else is passed as it is. Default: None.
            attribute_to_layer_input (bool, optional): Put the bottleneck on the layer's input. Default: False.
            internal_batch_size (int, optional): Largest number of rows of a forward pass. Rows are examples times noise
                samples (times 2 with a complement that does not ``alternate``). One noise sample of one example, with
                its complement, always runs. If memory runs out, the examples at hand are run again with half the rows,
                and so on. Default: None, all examples at once; on a CPU as many noise samples as keep the activation
                below 2 MiB.
            feature_mask (Tensor, optional): Integers; elements of an example with the same integer share one mask
                value: words, channels or superpixels, for example. It broadcasts, aligned on the left, to the
                activation: (B, T) or (1, T) for an activation (B, T, D). It replaces ``granularity``. Default: None.
            bottleneck_mask (Tensor, optional): False where an element is not maskable: it passes unchanged and gets
                zero bits, as padding and special tokens should. It broadcasts as ``feature_mask`` does. ``NoiseTunnel``
                repeats it with the inputs. Default: None, all elements are maskable.
            feature_dim (int or list of int, optional): Dimension of the activation that holds the features, of each
                layer: 1 for (B, C, T) and (B, C, H, W), -1 for (B, T, D) and (B, H, W, C). Default: that of the
                statistics; else the dimension that the layer, or the last layer with parameters before it, gives: 1 for
                convolutions and batch normalization, the last one for linear layers, layer normalization and attention.
                Where it is ambiguous, an error asks for it.
            layer_call (int or list of int, optional): Number of the call of a layer that runs several times in a
                forward pass (as in ALBERT), from 0; negative numbers count from the last. Default: -1.
            share_mask (bool, optional): Several layers share one mask, and the information is that of the first layer
                that runs (after CoIBA, Hong et al., CVPR 2025). One attribution is returned. Default: False.
            loss (str or Callable, optional): What must stay low. ``"cross_entropy"`` of logits (..., C);
                ``"binary_cross_entropy"`` of one logit per example, with 0 or 1 as target; ``"nll"`` for outputs that
                are log-probabilities; ``"probability"`` for outputs that are probabilities; ``"negative_output"``,
                minus the target output; or a function of output and target that returns one value per row. Default:
                ``"cross_entropy"`` for (B, C) outputs with C > 1, ``"probability"`` if their rows are in [0, 1] and sum
                to 1 (with a warning), else ``"negative_output"``, with a warning if there is one value per example.
            seed (int, optional): Seed of the noise, which has its own generator and is the same for every example.
                Default: 0.
            replay (bool, optional): Run only what comes after the layer, where that gives the same output. Where it
                does not, every forward pass is a full one, and a warning says so once. Default: True.
            return_trace (bool or str, optional): Also return a :class:`BottleneckTrace`, for two more forward passes,
                and where steps ``alternate`` for one more per step. ``"final"`` keeps its last entry alone, for two
                more forward passes, and without the complement loss. The attributions are the same. Default: False.
            show_progress (bool, optional): Show a progress bar over the forward passes. Default: False.
            preset (str or BottleneckSettings, optional): ``"default"``; ``"paper"``, the equations and settings of
                Jiang et al.; ``"as_released"``, their published code, whose noise has the layer's input as mean and
                sqrt(1e-5) as standard deviation, whatever the ``statistics``; or settings. Default: "default".
            **overrides: Single settings that override those of the preset: the fields of :class:`BottleneckSettings`,
                which describes them, except ``noise_around_input``. ``complement`` is 0 for a ``loss`` function and for
                ``"negative_output"``, which may have no bound, unless it is passed.

        Returns:
            *Tensor* or *tuple[Tensor, ...]* of **attributions**, or list of them; with ``return_trace`` a tuple of
            attributions and trace (or lists):

            - **attributions**: bits, non-negative, float32 (float64 for float64 activations), of the shape of the
              layer's output. For a layer with several tensors a tuple, with zeros for those without
              a bottleneck. Their sum over the features of a token is the information of the token.

        Raises:
            ValueError: A setting out of range; a layer that does not run; masks or statistics of another shape;
                NaN or infinity in the layer or in the output.
            AssertionError: A target that does not fit the output.
            TypeError: Inputs or outputs that are not tensors, or an unknown keyword.

        Examples::

            >>> embedding, linear = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 2)
            >>> model = torch.nn.Sequential(embedding, torch.nn.Tanh(), linear)
            >>> def forward_func(ids): return model(ids).mean(1)
            >>> ids = torch.randint(10, (2, 6))
            >>> batches = torch.randint(10, (400, 6)).split(100)
            >>> statistics = FeatureStatistics.estimate(model, embedding, batches)
            >>> iba = InformationBottleneckAttribution(forward_func, embedding, statistics=statistics)
            >>> bits = iba.attribute(ids, target=1)
            >>> bits.shape, bits.sum(-1).shape  # of every feature, and of every token
            (torch.Size([2, 6, 4]), torch.Size([2, 6]))
        """
        settings = resolve_settings(preset, **overrides)
        if settings.noise_around_input and share_mask and len(self._layers) > 1:
            raise ValueError(
                "share_mask is True, expected False for noise around the layer's input "
                '(preset="as_released"): that of a later layer would bring back what the first mask took away'
            )
        if settings.noise_around_input and attribute_to_layer_input:
            raise ValueError(
                "attribute_to_layer_input is True, expected False for noise around the layer's input "
                '(preset="as_released"): the input would be the mean of its own noise'
            )
        check_integer("seed", seed, kind=Integral)
        if return_trace not in (True, False, "final"):
            raise ValueError(f"return_trace is {return_trace!r}, expected True, False or 'final'")
        if internal_batch_size is not None:
            check_integer("internal_batch_size", internal_batch_size, at_least=1, kind=Integral)
        points = hook_points(self._layers, layer_call, attribute_to_layer_input)
        if share_mask and len(set(points)) < len(points):
            raise ValueError("layer has the same call of a layer twice, expected each once with share_mask")
        numbers = range(len(points))
        bottlenecks = [list(numbers)] if share_mask else [[number] for number in numbers]
        model_inputs = ModelInputs.of(inputs, additional_forward_args, target)
        rows = model_inputs.rows
        bar = None
        execution = Execution(
            forward_func=self.forward_func,
            points=points,
            statistics=self.statistics,
            inputs=model_inputs,
            settings=settings,
            feature_mask=_usable_mask("feature_mask", feature_mask, rows),
            bottleneck_mask=_usable_mask("bottleneck_mask", _repeated_by_noise_tunnel(bottleneck_mask, rows), rows),
            feature_dims=per_layer("feature_dim", feature_dim, len(points)),
            loss=loss,
            seed=int(seed),
            internal_batch_size=internal_batch_size,
            replay=replay,
            return_trace=return_trace,
            complement_required=overrides.get("complement") is not None or isinstance(preset, BottleneckSettings),
            warn_once=self._warn_once,
            on_rows=lambda n_rows: bar.update(n_rows) if bar is not None else None,
        )
        if show_progress:
            bar = progress(total=len(bottlenecks) * execution.n_rows, desc=f"{self.get_name()} attribution")
        with torch.inference_mode(False):
            try:
                results = execution.attributions(bottlenecks)
            finally:
                if bar is not None:
                    bar.close()
        attributions, traces = [attribution for attribution, _ in results], [trace for _, trace in results]
        if isinstance(self.layer, Module) or share_mask:
            return (attributions[0], traces[0]) if return_trace else attributions[0]
        return (attributions, traces) if return_trace else attributions

    @property
    def _layers(self) -> list[Module]:
        return [self.layer] if isinstance(self.layer, Module) else list(self.layer)

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warn_user(message)


def _one_per_layer(
    statistics: FeatureStatistics | Sequence[FeatureStatistics] | None, n_layers: int
) -> list[FeatureStatistics | None]:
    if statistics is None:
        return [None] * n_layers
    if not isinstance(statistics, (FeatureStatistics, list, tuple)):
        raise TypeError(
            f"statistics is {kind_of(statistics)}, expected FeatureStatistics or a list, one per layer; "
            "FeatureStatistics.load(path) reads a file"
        )
    listed = [statistics] if isinstance(statistics, FeatureStatistics) else statistics
    entries = per_layer("statistics", listed, n_layers)
    if wrong := [entry for entry in entries if not isinstance(entry, (FeatureStatistics, type(None)))]:
        raise TypeError(f"statistics holds {kind_of(wrong[0])}, expected FeatureStatistics per layer")
    return entries


def _usable_mask(name: str, mask: Tensor | None, rows: int) -> Tensor | None:
    """A mask with one row, or with one row per example: with any other number it would fit some parts only."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} is {kind_of(mask)}, expected a tensor")
    if mask.ndim and mask.shape[0] not in (1, rows):
        raise ValueError(
            f"{name} has the shape {tuple(mask.shape)}, expected one that broadcasts, aligned on the left, to the "
            f"activation: 1 or {rows} rows; one (H, W) for all images and channels is mask[None, None]"
        )
    if name == "bottleneck_mask" and mask.dtype != torch.bool and bool(((mask < 0) | (mask != mask)).any()):
        raise ValueError(
            f"{name} holds negative numbers or NaN, expected True (or 1) for maskable elements and False (or 0) for "
            "padding; an additive attention mask is mask == 0"
        )
    usable: Tensor = outside_inference_mode(mask)
    return usable


def _repeated_by_noise_tunnel(mask: Any, rows: int) -> Any:
    """A mask with the rows of the inputs of a NoiseTunnel, which repeats these, and feature masks, but no others."""
    if not isinstance(mask, Tensor) or mask.ndim == 0 or mask.shape[0] in (0, 1, rows) or rows % mask.shape[0]:
        return mask
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if isinstance(frame.f_locals.get("self"), NoiseTunnel) and frame.f_code.co_name == "attribute":
            inputs = frame.f_locals.get("inputs")
            first = inputs[0] if isinstance(inputs, tuple) else inputs
            # Any other number of rows is a mistake.
            if isinstance(first, Tensor) and first.shape[0] == mask.shape[0]:
                return mask.repeat_interleave(rows // mask.shape[0], 0)
    return mask
