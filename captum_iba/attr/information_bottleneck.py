"""InformationBottleneckAttribution: what a layer must let through for the prediction, in bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import DataParallel, Module

from captum_iba._compat import (
    LayerAttribution,
    ModuleOrModuleList,
    TargetType,
    _format_output,
    _run_forward,
    log_usage,
    progress,
)
from captum_iba.attr.batch import Batch
from captum_iba.attr.bottleneck import NATS_PER_BIT
from captum_iba.attr.guard import ModuleGuard
from captum_iba.attr.job import Job
from captum_iba.attr.losses import LossFunction, resolve_loss, row_losses
from captum_iba.attr.mask import InformationMeter, MaskLayout
from captum_iba.attr.memory import out_of_memory
from captum_iba.attr.nested import tensors_in
from captum_iba.attr.noise import noise_as_released, noise_of_data_set, noise_of_example
from captum_iba.attr.optimization import Bottleneck, optimize_mask
from captum_iba.attr.presets import Settings, settings
from captum_iba.attr.recording import Recording, Sighting, record
from captum_iba.attr.replay import CallSequence, Passes
from captum_iba.attr.sites import Site
from captum_iba.attr.statistics import FeatureStatistics


class BottleneckTrace(NamedTuple):
    """How an attribution came about, per example and step; entry ``k`` is after ``k`` updates of the mask.

    Args:
        loss (Tensor): What is minimised: mean over the draws, plus ``beta`` times the mean information an element,
            in nats, and ``complement`` times the loss of the complement, (B, n_steps + 1).
        information (Tensor): All that the mask lets through, in bits, (B, n_steps + 1).
        probability (Tensor): Of the target through the bottleneck, mean over the draws, (B, n_steps + 1). Minus
            the loss where the loss knows no probability.
    """

    loss: Tensor
    information: Tensor
    probability: Tensor


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
            given = [statistics] if isinstance(statistics, FeatureStatistics) else list(statistics)
            if len(given) != len(layers):
                raise ValueError(f"statistics has {len(given)} entries, expected one a layer, {len(layers)}")
            self.statistics = list(given)
        self._warned: set[str] = set()
        self._checked: dict[CallSequence, bool] = {}

    @log_usage(part_of_slo=True)  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: TargetType = None,
        additional_forward_args: Any = None,
        feature_mask: Tensor | None = None,
        bottleneck_mask: Tensor | None = None,
        preset: str = "default",
        granularity: str | None = None,
        beta: float | None = None,
        n_steps: int | None = None,
        n_samples: int | None = None,
        complement: float | None = None,
        learning_rate: float | None = None,
        momentum: float | None = None,
        antithetic: bool | None = None,
        loss: str | LossFunction | None = None,
        seed: int = 0,
        share_mask: bool = False,
        layer_call: int | Sequence[int] = -1,
        internal_batch_size: int | None = None,
        attribute_to_layer_input: bool = False,
        replay: bool = True,
        show_progress: bool = False,
        return_trace: bool = False,
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
                        and special tokens should; broadcasts as ``feature_mask`` does.
                        Default: all elements carry a bottleneck
            preset (str, optional): ``"default"``; ``"paper"``, the equations and settings of Jiang et al.;
                        ``"as_released"``, their code, whose noise comes from the example itself (mean: the
                        layer's input; standard deviation: sqrt(1e-5)), whatever ``statistics`` are there.
                        The arguments up to ``antithetic`` change single settings of a preset.
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
                        enough of it. Takes a second row for every draw. 0 leaves it out.
                        Default: the preset's; 0 for a ``loss`` function, which may have no bound to rise to
            learning_rate (float, optional): Of Adam, for the mask before the sigmoid.
            momentum (float, optional): Of Adam, by how much the mean of the gradients outlives a step, from 0 to 1.
            antithetic (bool, optional): Draws come in pairs, within a step or over two, the noise of the second that
                        of the first turned round its mean, so that fewer are needed.
            loss (str or Callable, optional): What must stay low. ``"cross_entropy"`` of logits (..., C);
                        ``"nll"``, for outputs that are log-probabilities; ``"negative_output"``, minus the
                        selected output; or a function of output and target that gives one value a row.
                        Default: cross-entropy for (B, C) outputs with C > 1, else minus the selected output
            seed (int, optional): Of the noise, which has its own generator and is the same for every example.
                        Default: 0
            share_mask (bool, optional): Several layers share one mask, and the first that runs counts the
                        information (after CoIBA, Hong et al., CVPR 2025). One attribution is returned.
                        Default: False
            layer_call (int or list of int, optional): Which call of a layer that runs several times in a pass (as in
                        ALBERT), from 0; negative ones count from the last.
                        Default: -1, as other layer methods do
            internal_batch_size (int, optional): At most so many rows, examples times draws (twice, with a
                        complement), in one pass.
                        A draw of one example, which takes two with a complement, always goes. If memory runs out, the
                        examples at hand are done again with half the rows, and so on.
                        Default: all examples at once; on a CPU as many draws as keep the feature under 2 MiB
            attribute_to_layer_input (bool, optional): The bottleneck sits on the layer's input.
                        Default: False
            replay (bool, optional): Run only what comes after the layer, where that gives the same output. Where it
                        does not, passes run whole, and a warning says so once.
                        Default: True
            show_progress (bool, optional): A progress bar over the passes.
                        Default: False
            return_trace (bool, optional): Also give a :class:`BottleneckTrace`, for one more pass.
                        Default: False

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
            >>> statistics = FeatureStatistics.estimate(model, layer, batches)
            >>> iba = InformationBottleneckAttribution(forward, layer, statistics=statistics)
            >>> bits = iba.attribute(ids, target=1, additional_forward_args=mask, bottleneck_mask=mask)
            >>> bits.sum(-1)  # bits per token
        """
        chosen = settings(
            preset,
            granularity=granularity,
            beta=beta,
            n_steps=n_steps,
            n_samples=n_samples,
            complement=0.0 if complement is None and callable(loss) else complement,
            learning_rate=learning_rate,
            momentum=momentum,
            antithetic=antithetic,
        )
        if internal_batch_size is not None and not internal_batch_size >= 1:
            raise ValueError(f"internal_batch_size is {internal_batch_size!r}, expected at least 1")
        calls = [layer_call] * len(self._layers) if isinstance(layer_call, int) else list(layer_call)
        if len(calls) != len(self._layers):
            raise ValueError(f"layer_call has {len(calls)} entries, expected one a layer, {len(self._layers)}")
        sites = [Site(layer, call, attribute_to_layer_input) for layer, call in zip(self._layers, calls, strict=True)]
        numbers = range(len(sites))
        bottlenecks = [list(numbers)] if share_mask else [[number] for number in numbers]
        job = Job(
            Batch.of(inputs, additional_forward_args, target),
            feature_mask,
            bottleneck_mask,
            chosen,
            loss,
            seed,
            internal_batch_size,
            replay,
            return_trace,
        )
        bar = (
            progress(total=len(bottlenecks) * job.n_rows, desc=f"{self.get_name()} attribution")
            if show_progress
            else None
        )
        devices = sorted({t.device.index or 0 for t in job.batch.inputs if t.device.type == "cuda"})
        # A model with randomness of its own draws from the global state: it is put back.
        with torch.random.fork_rng(devices), torch.inference_mode(False):
            try:
                found = self._attribute(job, sites, bottlenecks, bar)
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

    def _attribute(
        self, job: Job, sites: list[Site], bottlenecks: list[list[int]], bar: Any
    ) -> list[tuple[Any, BottleneckTrace | None]]:
        """For every bottleneck (at one site, or shared by several) the attribution, and its trace."""
        parts: list[list[_Part]] = []
        first = 0
        while first < job.batch.rows:
            part = job.batch.examples(first, first + job.examples_per_pass)
            smaller = None
            shown = 0 if bar is None else bar.n
            try:
                parts.append(self._attribute_part(job, part, first, sites, bottlenecks, bar))
                first += part.rows
            except (MemoryError, RuntimeError) as error:
                smaller = job.halved() if out_of_memory(error) else None
                if smaller is None:
                    raise
            if smaller is not None:
                # Here, where the exception and with it all that the pass held is gone.
                job = smaller
                if bar is not None:
                    bar.update(shown - bar.n)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
        return [_joined([part[number] for part in parts]) for number in range(len(bottlenecks))]

    def _attribute_part(
        self, job: Job, part: Batch, first: int, sites: list[Site], bottlenecks: list[list[int]], bar: Any
    ) -> list[_Part]:
        """Some examples, at every bottleneck: all share one recorded pass."""
        forward_func = _on_one_device(self.forward_func)

        def forward(copies: int) -> Any:
            tiled = part.tiled(copies)
            return _run_forward(forward_func, tiled.inputs, None, tiled.arguments)

        with ModuleGuard() as guard:
            recording = record(forward, sites, guard)
            loss = self._require_sound(job, part, sites, recording)
            found = []
            for numbers in bottlenecks:
                replay = job.replay and (job.chosen.n_steps > 0 or job.return_trace)
                with Passes(forward, part.rows, sites, recording, numbers, replay, self._checked) as passes:
                    if replay and not passes.replays:
                        layer = _describe(sites[numbers[0]])
                        self._warn_once("replay", f"{layer} is not replayed, every pass runs whole: {passes.reason}")
                    found.append(self._optimize(job, part, first, sites, passes, loss, bar))
        return found

    @staticmethod
    def _require_sound(job: Job, part: Batch, sites: list[Site], recording: Recording) -> str | LossFunction:
        """The loss; ValueError where shapes or the recorded losses will not do."""
        rows, output = part.rows, recording.output
        for sighting in recording.sightings:
            shape = tuple(sighting.feature.shape)
            if len(shape) < 2 or shape[0] != rows:
                raise ValueError(
                    f"layer {_describe(sites[sighting.number])} has the shape {shape}, expected (B, ...) "
                    f"with one row for each of {rows} examples"
                )
        if output.ndim == 0 or output.shape[0] != rows:
            raise ValueError(
                f"forward_func gives the shape {tuple(output.shape)}, expected one row for each of {rows} examples"
            )
        loss = resolve_loss(job.loss, output)
        recorded = row_losses(loss, output, part.target)
        if not bool(recorded.isfinite().all()):
            raise ValueError(f"forward_func gives NaN or infinity: the losses of the examples are {recorded.tolist()}")
        return loss

    def _optimize(
        self,
        job: Job,
        part: Batch,
        first: int,
        sites: list[Site],
        passes: Passes,
        loss: str | LossFunction,
        bar: Any,
    ) -> _Part:
        """One bottleneck in some examples."""
        chosen, rows, sightings = job.chosen, part.rows, passes.sightings
        where = sightings[0]
        feature = where.feature
        groups = _rows_of(job.feature_mask, first, rows, job.batch.rows)
        carries = _rows_of(job.bottleneck_mask, first, rows, job.batch.rows)
        layout = MaskLayout.of(feature, chosen.granularity, groups, carries)
        _require_finite(feature, layout, first)
        for sighting in sightings[1:]:
            layout.require_fit(sighting.feature, _describe(sites[sighting.number]))
        noise = [self._noise(sighting, layout, chosen) for sighting in sightings]
        mean, std = noise[0]
        meter = InformationMeter(layout, (feature.to(mean.dtype) - mean) / std)
        bottleneck = Bottleneck(
            passes,
            feature,
            [m for m, _ in noise],
            [s for _, s in noise],
            layout,
            meter,
            loss,
            part.target,
            job.seed,
            chosen.n_samples,
            chosen.antithetic,
        )
        values, history = optimize_mask(
            bottleneck,
            chosen,
            job.draws_per_pass(feature),
            job.return_trace,
            lambda draws: bar.update(draws * rows) if bar else None,
        )
        bits = meter.of_elements(values) / NATS_PER_BIT
        trace = None
        if job.return_trace:
            objective, information, chance = (torch.stack(column, 1) for column in zip(*history, strict=True))
            trace = BottleneckTrace(objective, information / NATS_PER_BIT, chance)
        attributions = [
            bits if tensor is feature else torch.zeros(tensor.shape, dtype=bits.dtype, device=tensor.device)
            for tensor in _tensors_at(where, sites[0].at_input)
        ]
        return _Part(rows, attributions, trace)

    def _noise(self, sighting: Sighting, layout: MaskLayout, chosen: Settings) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the noise at a site, in the mask's precision."""
        feature = sighting.feature.to(torch.promote_types(sighting.feature.dtype, torch.float32))
        if chosen.own_input:
            return noise_as_released(feature, sighting.layer_input)
        statistics = self.statistics[sighting.number]
        if statistics is not None:
            return noise_of_data_set(feature, statistics)
        self._warn_once(
            "statistics",
            "no statistics given: the noise takes those of each example itself, and attributions are less "
            "faithful; pass statistics=FeatureStatistics.estimate(model, layer, batches)",
        )
        return noise_of_example(feature, layout)

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, UserWarning, stacklevel=2)


class _Part(NamedTuple):
    """Results for some examples."""

    rows: int
    attributions: list[Tensor]
    trace: BottleneckTrace | None


def _joined(parts: list[_Part]) -> tuple[Any, BottleneckTrace | None]:
    """Attributions and trace of all examples."""
    tensors = [
        torch.cat(pieces) if pieces[0].shape[0] == parts[0].rows else pieces[0]
        for pieces in zip(*(part.attributions for part in parts), strict=True)
    ]
    traces = [part.trace for part in parts if part.trace is not None]
    trace = BottleneckTrace(*(torch.cat(pieces) for pieces in zip(*traces, strict=True))) if traces else None
    return _format_output(len(tensors) > 1, tuple(tensors)), trace


def _require_finite(feature: Tensor, layout: MaskLayout, first: int) -> None:
    broken = (layout.carries & ~feature.isfinite()).flatten(1).any(1)
    if bool(broken.any()):
        raise ValueError(
            f"the layer holds NaN or infinity in example {first + int(broken.nonzero()[0, 0])}, where a bottleneck is"
        )


def _rows_of(mask: Tensor | None, first: int, rows: int, all_rows: int) -> Tensor | None:
    """The rows of a mask that go with some examples; a mask of one row goes with all."""
    if mask is None or mask.ndim == 0 or mask.shape[0] == 1 or mask.shape[0] != all_rows:
        return mask
    return mask[first : first + rows]


def _tensors_at(sighting: Sighting, at_input: bool) -> list[Tensor]:
    """What other layer methods return: the tensors of the layer's output, or of its positional arguments."""
    tensors = tensors_in(sighting.structure[0] if at_input else sighting.structure)
    return tensors if any(tensor is sighting.feature for tensor in tensors) else [sighting.feature]


def _on_one_device(forward_func: Callable[..., Any]) -> Callable[..., Any]:
    # Replicas run on threads of their own, each with a share of the rows: there is nothing to gain from them that
    # one process a device does not give, with less to go wrong.
    if isinstance(forward_func, DataParallel) and len(forward_func.device_ids) > 1:
        module: Module = forward_func.module
        return module
    return forward_func


def _describe(site: Site) -> str:
    return f"{type(site.layer).__name__} ({'input' if site.at_input else 'output'})"
