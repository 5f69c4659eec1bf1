"""A call of ``attribute`` carried out: examples part by part, one recorded pass a part, every bottleneck optimised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import DataParallel, Module

from captum_iba._compat import _format_output, _run_forward
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr._model.hooks import Site
from captum_iba.attr._model.nested import tensors_in
from captum_iba.attr._model.recording import Recording, Sighting, record
from captum_iba.attr._model.replay import Passes
from captum_iba.attr.batch import Batch
from captum_iba.attr.bottleneck import NATS_PER_BIT
from captum_iba.attr.feature_dim import resolve_feature_dim
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.job import Job
from captum_iba.attr.losses import (
    LossFunction,
    doubts,
    knows_probability,
    may_be_probabilities,
    require_outputs,
    resolve_loss,
    row_losses,
)
from captum_iba.attr.mask import InformationMeter, MaskLayout
from captum_iba.attr.memory import out_of_memory
from captum_iba.attr.noise import noise_as_released, noise_of_data_set, noise_of_example
from captum_iba.attr.optimizer import Bottleneck, NoGradientError, optimize_mask
from captum_iba.attr.settings import BottleneckSettings


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


@dataclass(frozen=True)
class Run:
    """One call of ``attribute`` on a model.

    Args:
        job (Job): What was asked for.
        forward_func (Callable): The model.
        sites (sequence of Site): Where bottlenecks sit.
        statistics (sequence of FeatureStatistics or None): Of each site; None takes the examples' own.
        warn_once (Callable): Takes the name of a warning, and its text.
        bar (Any): A progress bar over rows, or None.
        resolved (dict): The loss that was found for the first examples. Default: empty.
    """

    job: Job
    forward_func: Callable[..., Any]
    sites: Sequence[Site]
    statistics: Sequence[FeatureStatistics | None]
    warn_once: Callable[[str, str], None]
    bar: Any
    resolved: dict[str, Any] = field(default_factory=dict)

    def attributions(self, bottlenecks: Sequence[Sequence[int]]) -> list[tuple[Any, BottleneckTrace | None]]:
        """For every bottleneck (at one site, or shared by several) the attribution, and its trace."""
        with ModuleGuard(self.forward_func) as guard:
            return self._attributions(bottlenecks, guard)

    def _attributions(
        self, bottlenecks: Sequence[Sequence[int]], guard: ModuleGuard
    ) -> list[tuple[Any, BottleneckTrace | None]]:
        job, bar = self.job, self.bar
        parts: list[list[_Part]] = []
        first = 0
        while first < job.batch.rows:
            part = job.batch.examples(first, first + job.examples_per_pass)
            smaller = None
            shown = 0 if bar is None else bar.n
            try:
                parts.append(self._part(job, part, first, bottlenecks, guard))
                first += part.rows
            except (MemoryError, RuntimeError) as error:
                if "checkpoint" in f"{type(error).__name__} {error}".lower():
                    raise ValueError(
                        "forward_func uses torch.utils.checkpoint around or after the layer, which runs modules again "
                        "without their hooks, or allows no torch.autograd.grad; expected a model that does not "
                        f"checkpoint (model.gradient_checkpointing_disable() in transformers). torch says: {error}"
                    ) from error
                if "nference tensor" in str(error):
                    raise ValueError(
                        "forward_func runs on tensors made in inference mode, through which no gradient flows back; "
                        "expected a model made, and a function that runs, outside torch.inference_mode"
                    ) from error
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

    def _part(
        self, job: Job, part: Batch, first: int, bottlenecks: Sequence[Sequence[int]], guard: ModuleGuard
    ) -> list[_Part]:
        """Some examples, at every bottleneck: all share one recorded pass."""
        forward_func = _on_one_device(self.forward_func)

        def forward(copies: int) -> Any:
            tiled = part.tiled(copies)
            return _run_forward(forward_func, tiled.inputs, None, tiled.arguments)

        recording = record(forward, self.sites, guard)
        loss = self._require_sound(part, recording)
        self._require_examples_first(forward_func, part, recording)
        if not (job.complement_given or knows_probability(loss)):
            # Without a bound it could rise for ever, and what it needs would be drowned.
            job = replace(job, chosen=replace(job.chosen, complement=0.0))
        found = []
        for numbers in bottlenecks:
            if not (job.chosen.n_steps or job.return_trace):
                # Nothing runs again: the information in the layer as it is.
                passes = Passes(recording, part.rows, numbers, replay=False)
                found.append(self._optimize(job, part, first, passes, loss))
                continue
            with Passes(recording, part.rows, numbers, job.replay) as passes:
                if passes.coupled > 10 * passes.tolerance:
                    self.warn_once(
                        "coupled",
                        "the output of forward_func for an example changes with the other rows of a pass, or by chance "
                        f"(by {passes.coupled:.2g} of the largest); expected rows that do not depend on each other: "
                        "the attribution of an example depends on its batch here",
                    )
                found.append(self._optimize(job, part, first, passes, loss))
                if job.replay and not passes.replays:
                    layer = _describe(self.sites[numbers[0]])
                    self.warn_once("replay", f"{layer} is not replayed, every pass runs whole: {passes.reason}")
        return found

    def _require_sound(self, part: Batch, recording: Recording) -> str | LossFunction:
        """The loss; ValueError where shapes or the recorded losses will not do."""
        rows, output = part.rows, recording.output
        for sighting in recording.sightings:
            shape = tuple(sighting.feature.shape)
            if len(shape) < 2 or shape[0] != rows:
                raise ValueError(
                    f"layer {_describe(self.sites[sighting.number])} has the shape {shape}, expected (B, ...) "
                    f"with one row for each of {rows} examples"
                )
            statistics = self.statistics[sighting.number]
            if statistics is not None and not self.job.chosen.noise_around_input:
                statistics.require_place(self.forward_func, self.sites[sighting.number], sighting.calls)
        if output.ndim == 0 or output.shape[0] != rows:
            raise ValueError(
                f"forward_func gives the shape {tuple(output.shape)}, expected one row for each of {rows} examples"
            )
        if not output.is_floating_point():
            raise ValueError(f"forward_func gives the dtype {output.dtype}, expected floating-point numbers")
        # Once for all examples: a part of them may look otherwise.
        loss: str | LossFunction = self.resolved.setdefault("loss", resolve_loss(self.job.loss, output))
        require_outputs(loss, output)
        for what, message in doubts(self.job.loss, output):
            self.warn_once(what, message)
        if self.job.loss is None and output.shape[1:].numel() == 1:
            self.warn_once(
                "one value",
                "forward_func gives one value an example, and the bottleneck keeps what makes it large; for a "
                "classifier of one logit pass loss='binary_cross_entropy' and the class, 0 or 1, as target, for a "
                "regression a function of the distance as loss, and loss='negative_output' if large is what you mean",
            )
        if self.job.loss is None and loss == "softmax":
            self.warn_once(
                "probabilities",
                "forward_func gives probabilities: every row lies in [0, 1] and sums to 1. loss='probability' is "
                "taken, minus the logarithm of the target's; pass loss='cross_entropy' if these are logits",
            )
        elif self.job.loss is None and loss == "cross_entropy" and may_be_probabilities(output):
            self.warn_once(
                "between 0 and 1",
                "forward_func gives values between 0 and 1 only, taken for logits; if they are probabilities of "
                "independent classes (a sigmoid), pass loss='probability', if they are logits loss='cross_entropy'",
            )
        recorded = row_losses(loss, output, part.target)
        if not bool(recorded.isfinite().all()):
            raise ValueError(f"forward_func gives NaN or infinity: the losses of the examples are {recorded.tolist()}")
        return loss

    def _require_examples_first(self, forward_func: Callable[..., Any], part: Batch, recording: Recording) -> None:
        """ValueError where dimension 0 counts something else, of which there happen to be as many as examples."""
        rows, alike = part.rows, set()
        for sighting in recording.sightings:
            others = list(sighting.feature.shape)
            del others[self._feature_dim(sighting)], others[0]
            if rows > 1 and rows in others:
                alike.add(sighting.number)
        if not alike:
            return
        one = part.examples(0, 1)

        def forward(copies: int) -> Any:
            tiled = one.tiled(copies)
            return _run_forward(forward_func, tiled.inputs, None, tiled.arguments)

        alone = record(forward, self.sites, recording.guard)
        for sighting in alone.sightings:
            if sighting.feature.shape[0] != 1 and sighting.number in alike:
                raise ValueError(
                    f"layer {_describe(self.sites[sighting.number])} has the shape {tuple(sighting.feature.shape)} for "
                    "one example, expected (B, ...) with the examples in dimension 0 (batch_first=True)"
                )

    def _optimize(self, job: Job, part: Batch, first: int, passes: Passes, loss: str | LossFunction) -> _Part:
        """One bottleneck in some examples."""
        chosen, rows, sightings = job.chosen, part.rows, passes.sightings
        where = sightings[0]
        feature = where.feature
        groups = _rows_of(job.feature_mask, first, rows, job.batch.rows)
        carries = _rows_of(job.bottleneck_mask, first, rows, job.batch.rows)
        dims = [self._feature_dim(sighting) for sighting in sightings]
        if len(set(dims)) > 1:
            raise ValueError(f"share_mask is True, but the features of the layers lie in dimensions {dims}")
        layout = MaskLayout.of(feature, chosen.granularity, groups, carries, dims[0])
        _require_finite(feature, layout, first)
        for sighting in sightings[1:]:
            layout.require_fit(sighting.feature, _describe(self.sites[sighting.number]))
        noise = [self._noise(sighting, layout, chosen, dim) for sighting, dim in zip(sightings, dims, strict=True)]
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
        try:
            values, history = optimize_mask(
                bottleneck,
                chosen,
                job.draws_per_pass(feature),
                job.return_trace,
                lambda draws: self.bar.update(draws * rows) if self.bar else None,
            )
        except NoGradientError as error:
            quantized = passes.guard.quantized()
            if quantized is None:
                raise
            raise ValueError(
                f"forward_func runs {type(quantized).__module__}.{type(quantized).__name__}, a quantized module "
                "through which no gradient flows back; expected the model before quantization"
            ) from error
        bits = meter.of_elements(values) / NATS_PER_BIT
        trace = None
        if job.return_trace:
            objective, information, chance = (torch.stack(column, 1) for column in zip(*history, strict=True))
            trace = BottleneckTrace(objective, information / NATS_PER_BIT, chance)
        attributions = [
            bits if tensor is feature else torch.zeros(tensor.shape, dtype=bits.dtype, device=tensor.device)
            for tensor in _tensors_at(where, self.sites[0].at_input)
        ]
        bottlenecked = next(number for number, one in enumerate(attributions) if one is bits)
        return _Part(rows, attributions, bottlenecked, trace)

    def _feature_dim(self, sighting: Sighting) -> int:
        """The dimension of the features at a site, as named, as in its statistics, or by what the layer is."""
        named, statistics = self.job.feature_dims[sighting.number], self.statistics[sighting.number]
        layer, shape = self.sites[sighting.number].layer, sighting.feature.shape
        gathered = None if statistics is None else statistics.feature_dim
        at_input = self.sites[sighting.number].at_input
        found = resolve_feature_dim(layer, shape, gathered if named is None else named, sighting.origin, at_input)
        if gathered is not None and resolve_feature_dim(layer, shape, gathered) != found:
            raise ValueError(
                f"feature_dim is {named}, but statistics were gathered with {gathered}; expected the same for a "
                f"layer of shape {tuple(shape)}"
            )
        return found

    def _noise(
        self, sighting: Sighting, layout: MaskLayout, chosen: BottleneckSettings, feature_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the noise at a site, in the mask's precision."""
        feature = sighting.feature.to(torch.promote_types(sighting.feature.dtype, torch.float32))
        if chosen.noise_around_input:
            return noise_as_released(feature, sighting.layer_input)
        statistics = self.statistics[sighting.number]
        if statistics is not None:
            return noise_of_data_set(feature, statistics, feature_dim)
        self.warn_once(
            "statistics",
            "no statistics given: the noise takes those of each example itself, and attributions are less "
            "faithful; pass statistics=FeatureStatistics.estimate(model, layer, batches)",
        )
        return noise_of_example(feature, layout, feature_dim)


class _Part(NamedTuple):
    """Results for some examples."""

    rows: int
    attributions: list[Tensor]
    bottlenecked: int
    trace: BottleneckTrace | None


def _joined(parts: list[_Part]) -> tuple[Any, BottleneckTrace | None]:
    """Attributions and trace of all examples."""
    rows = [part.rows for part in parts]
    if len({len(part.attributions) for part in parts}) > 1:
        # transformers gives a layer a mask where texts are padded, and none where they are not.
        parts = [part._replace(attributions=[part.attributions[part.bottlenecked]]) for part in parts]
    tensors = [_concatenated(pieces, rows) for pieces in zip(*(part.attributions for part in parts), strict=True)]
    traces = [part.trace for part in parts if part.trace is not None]
    trace = BottleneckTrace(*(torch.cat(pieces) for pieces in zip(*traces, strict=True))) if traces else None
    return _format_output(len(tensors) > 1, tuple(tensors)), trace


def _concatenated(pieces: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
    """One tensor of a layer's output. The last state of an LSTM counts examples in dimension 1; a loss has none."""
    dimensions = [d for d in range(pieces[0].ndim) if [piece.shape[d] for piece in pieces] == list(rows)]
    return torch.cat(tuple(pieces), dimensions[0]) if dimensions else pieces[0]


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
