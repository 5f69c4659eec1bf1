"""InformationBottleneckAttribution: what a layer must let through for the prediction, in bits."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba._compat import LayerAttribution, ModuleOrModuleList, NoiseTunnel, TargetType, log_usage, progress
from captum_iba.attr._model.hooks import Site
from captum_iba.attr.batch import Batch, usable
from captum_iba.attr.feature_statistics import FeatureStatistics, feature_dims
from captum_iba.attr.job import Job
from captum_iba.attr.losses import LossFunction
from captum_iba.attr.run import Run
from captum_iba.attr.settings import BottleneckSettings, SettingsOverrides, resolve_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack


class InformationBottleneckAttribution(LayerAttribution):  # type: ignore[misc]
    r"""
    Attribution by an information bottleneck: how many bits of each feature the prediction needs.

    Noise is mixed into the output of a layer, :math:`Z = \lambda X + (1 - \lambda) \varepsilon`, and the mask
    :math:`\lambda` is optimised, for each example, to let through as little information on :math:`X` as
    possible while the model still predicts the target. What is left, in bits, is the attribution: zero bits mean that
    the model does as well with an average activation in this place.

    The noise has the mean and standard deviation of the layer over a data set (:class:`FeatureStatistics`).
    Attributions are non-negative: they say how much is needed, not in which direction it pushes.

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

            forward_func (Callable): The model, or any function that runs it and returns a tensor with one row an
                        example. A ``DataParallel`` over several devices is run on its first.
            layer (torch.nn.Module or list of torch.nn.Module): Layer or layers whose output (or input) gets a
                        bottleneck. Several layers give a list of attributions, or one with
                        ``share_mask=True``.
            device_ids (list of int, optional): Not used; here for the signature that all layer methods share.
            statistics (FeatureStatistics or list of them, optional): Mean and standard deviation of each layer over
                        a data set. Without them each example's own are taken, and a warning says once that
                        attributions are less faithful then.
                        Default: None
        """
        LayerAttribution.__init__(self, forward_func, layer, device_ids)
        layers = self._layers
        if not layers or not all(isinstance(one, Module) for one in layers):
            raise ValueError(f"layer is {layer!r}, expected a torch.nn.Module or a list of them")
        if statistics is None:
            self.statistics: list[FeatureStatistics | None] = [None] * len(layers)
        else:
            if not isinstance(statistics, (FeatureStatistics, list, tuple)):
                raise TypeError(
                    f"statistics is a {type(statistics).__name__}, expected FeatureStatistics or a list, one per layer"
                )
            given = [statistics] if isinstance(statistics, FeatureStatistics) else list(statistics)
            if len(given) != len(layers):
                raise ValueError(f"statistics has {len(given)} entries, expected one a layer, {len(layers)}")
            if wrong := [one for one in given if not isinstance(one, (FeatureStatistics, type(None)))]:
                raise TypeError(f"statistics holds a {type(wrong[0]).__name__}, expected FeatureStatistics per layer")
            self.statistics = list(given)
        self._warned: set[str] = set()

    @log_usage(part_of_slo=True)  # type: ignore[untyped-decorator]
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
        return_trace: bool = False,
        show_progress: bool = False,
        preset: str | BottleneckSettings = "default",
        **overrides: Unpack[SettingsOverrides],
    ) -> Any:
        r"""
        Args:

            inputs (Tensor or tuple of Tensor): Inputs of ``forward_func``; dimension 0 counts the examples.
            target (int, tuple, Tensor, or list, optional): Output that is explained, as everywhere in Captum.
                        Default: None, for outputs of one value an example
            additional_forward_args (Any, optional): Further arguments of ``forward_func``, one or a tuple. Tensors in
                        them (also inside tuples, lists and dictionaries) whose first dimension counts the
                        examples go with the examples; all else is passed as it is.
                        Default: None
            feature_mask (Tensor, optional): Integers; elements of an example with the same integer share one mask
                        value, so that words, channels or superpixels are closed and opened as one. It broadcasts,
                        aligned on the left, to the feature: (B, T) or (1, T) for a feature (B, T, D).
                        Takes the place of ``granularity``.
                        Default: None
            bottleneck_mask (Tensor, optional): False where an element passes untouched and gets zero bits, as padding
                        and special tokens should; broadcasts as ``feature_mask`` does. Through ``NoiseTunnel`` it is
                        that of the inputs as they are given there, and repeated with them.
                        Default: all elements carry a bottleneck
            preset (str, optional): ``"default"``; ``"paper"``, the equations and settings of Jiang et al.;
                        ``"as_released"``, their code, whose noise comes from the example itself (mean: the
                        layer's input; standard deviation: sqrt(1e-5)), whatever ``statistics`` are there.
                        The arguments up to ``alternate`` change single settings of a preset.
                        Default: "default"
            granularity (str, optional): What shares a mask value: ``"token"``, all features of a position (of a
                        token in (B, T, D), of a pixel in (B, C, H, W)); ``"feature"``, nothing;
                        ``"channel"``, all positions of a feature.
            beta (float, optional): Weight of the mean information an element (nats) against the loss. A mean over
                        the elements with a bottleneck, it means the same for every length.
            n_steps (int, optional): Updates of the mask. 0 gives the information in the layer as it is, before
                        anything is closed.
            n_samples (int, optional): Draws of the noise a step. 0 draws none: the mean of what passes,
                        :math:`\lambda X + (1 - \lambda) m`, goes on in one pass, which is cheaper and
                        has no chance in it. The information counted is that of the noise, drawn or not.
            complement (float, optional): Weight of the complement against the loss. The complement is what the mask
                        holds back, :math:`(1 - \lambda) X + \lambda \varepsilon`, and it must not suffice for
                        the prediction: its own loss is :math:`-\log(1 - p)` (minus the loss, where that knows no
                        probability). So the mask keeps all that the prediction could rest on, not only
                        enough of it. Takes a second row for every draw, unless steps ``alternate``. 0 leaves it out.
                        Default: the preset's; 0 for a ``loss`` function and for ``"negative_output"``, which may have
                        no bound to rise to
            learning_rate (float, optional): Of Adam, for the mask before the sigmoid.
            momentum (float, optional): Of Adam, by how much the mean of the gradients outlives a step, from 0 to 1.
            antithetic (bool, optional): Draws come in pairs, within a step or over two (where steps ``alternate``, two
                        pairs of turns), the noise of the second that of the first turned round its mean, so that
                        fewer are needed.
            alternate (bool, optional): With a complement, steps take turns: one looks at what the mask lets through,
                        the next, with the same noise, at what it holds back. Each counts twice. So a draw
                        takes one row in place of two.
            loss (str or Callable, optional): What must stay low. ``"cross_entropy"`` of logits (..., C);
                        ``"binary_cross_entropy"`` of one logit an example, with 0 or 1 as target;
                        ``"nll"``, for outputs that are log-probabilities; ``"probability"``, for outputs that are
                        probabilities; ``"negative_output"``, minus the selected output; or a function of output
                        and target that gives one value a row.
                        Default: cross-entropy for (B, C) outputs with C > 1, ``"probability"`` if their rows lie in
                        [0, 1] and sum to 1 (a warning says so once), else minus the selected output, with a warning
                        where there is only one
            seed (int, optional): Of the noise, which has its own generator and is the same for every example.
                        Default: 0
            share_mask (bool, optional): Several layers share one mask, and the first that runs counts the
                        information (after CoIBA, Hong et al., CVPR 2025). One attribution is returned.
                        Default: False
            layer_call (int or list of int, optional): Which call of a layer that runs several times in a pass (as in
                        ALBERT), from 0; negative ones count from the last.
                        Default: -1, as other layer methods do
            internal_batch_size (int, optional): At most so many rows, examples times draws (twice, with a
                        complement that does not ``alternate``), in one pass.
                        A draw of one example, with its complement, always goes. If memory runs out, the
                        examples at hand are done again with half the rows, and so on.
                        Default: all examples at once; on a CPU as many draws as keep the feature under 2 MiB
            attribute_to_layer_input (bool, optional): The bottleneck sits on the layer's input.
                        Default: False
            replay (bool, optional): Run only what comes after the layer, where that gives the same output. Where it
                        does not, passes run whole, and a warning says so once.
                        Default: True
            show_progress (bool, optional): A progress bar over the passes.
                        Default: False
            return_trace (bool, optional): Also give a :class:`BottleneckTrace`, for one more pass, and where steps
                        ``alternate`` for a pass of the side that a step leaves out. Bits stay the same.
                        Default: False
            feature_dim (int or list of int, optional): Dimension of the layer's activation that holds the features, of
                        every layer: 1 for (B, C, T) and (B, C, H, W), -1 for (B, T, D) and (B, H, W, C).
                        Default: that of the statistics; else 1 for convolutions, batch normalization and what is
                        built of them, and the last for all else

        Returns:
            *Tensor* or *tuple[Tensor, ...]* of **attributions**, or list of them; with ``return_trace`` a tuple of
            attributions and trace (or lists):

            - **attributions**: bits, non-negative, float32 (float64 for float64 features), of the shape of the
              layer's output. For a layer with several tensors a tuple, with zeros for those without
              a bottleneck. Their sum over the features of a token is what is needed of the token.

        Raises:
            ValueError: a setting out of range; a layer that does not run; masks or statistics of another shape;
                NaN or infinity in the layer or in the output.
            AssertionError: a target that does not fit the output.
            TypeError: inputs or outputs that are not tensors.

        Examples::

            >>> # BERT for two classes; layer 9 of 12; one mask value a token
            >>> def forward(ids, mask): return model(ids, attention_mask=mask).logits
            >>> layer = model.bert.encoder.layer[8]
            >>> # batches: mappings with input_ids and attention_mask, so that padding does not count
            >>> statistics = FeatureStatistics.estimate(model, layer, batches)
            >>> iba = InformationBottleneckAttribution(forward, layer, statistics=statistics)
            >>> bits = iba.attribute(ids, target=1, additional_forward_args=mask, bottleneck_mask=mask)
            >>> bits.sum(-1)  # bits per token
        """
        settings = resolve_settings(preset, **overrides)
        size = internal_batch_size
        if size is not None and not (isinstance(size, Integral) and size >= 1):
            raise ValueError(f"internal_batch_size is {size!r}, expected an integer of at least 1")
        calls = list(layer_call) if isinstance(layer_call, Sequence) else [int(layer_call)] * len(self._layers)
        if len(calls) != len(self._layers):
            raise ValueError(f"layer_call has {len(calls)} entries, expected one a layer, {len(self._layers)}")
        sites = [Site(layer, call, attribute_to_layer_input) for layer, call in zip(self._layers, calls, strict=True)]
        if share_mask and len(set(sites)) < len(sites):
            raise ValueError("layer has the same call of a layer twice, expected each once with share_mask")
        numbers = range(len(sites))
        bottlenecks = [list(numbers)] if share_mask else [[number] for number in numbers]
        batch = Batch.of(inputs, additional_forward_args, target)
        job = Job(
            batch,
            _usable_mask("feature_mask", feature_mask),
            _repeated_by_noise_tunnel(_usable_mask("bottleneck_mask", bottleneck_mask), batch.rows),
            settings,
            loss,
            seed,
            internal_batch_size,
            replay,
            return_trace,
            overrides.get("complement") is not None,
            feature_dims(feature_dim, len(sites)),
        )
        bar = (
            progress(total=len(bottlenecks) * job.n_rows, desc=f"{self.get_name()} attribution")
            if show_progress
            else None
        )
        with torch.inference_mode(False):
            try:
                run = Run(job, self.forward_func, sites, self.statistics, self._warn_once, bar)
                found = run.attributions(bottlenecks)
            finally:
                if bar is not None:
                    bar.close()
        attributions = [attribution for attribution, _ in found]
        traces = [trace for _, trace in found]
        if isinstance(self.layer, Module) or share_mask:
            return (attributions[0], traces[0]) if return_trace else attributions[0]
        return (attributions, traces) if return_trace else attributions

    @property
    def _layers(self) -> list[Module]:
        return [self.layer] if isinstance(self.layer, Module) else list(self.layer)

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, UserWarning, stacklevel=2)


def _usable_mask(name: str, mask: Tensor | None) -> Tensor | None:
    if mask is not None and not isinstance(mask, Tensor):
        raise TypeError(f"{name} is a {type(mask).__name__}, expected a tensor")
    found: Tensor | None = usable(mask)
    return found


def _repeated_by_noise_tunnel(mask: Tensor | None, rows: int) -> Tensor | None:
    """A mask with the rows of the inputs of a NoiseTunnel, which repeats these, and feature masks, but no others."""
    if mask is None or mask.ndim == 0 or mask.shape[0] in (0, 1, rows) or rows % mask.shape[0]:
        return mask
    # Elsewhere a mask of fewer rows is a mistake.
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if isinstance(frame.f_locals.get("self"), NoiseTunnel):
            return mask.repeat_interleave(rows // mask.shape[0], 0)
    return mask
