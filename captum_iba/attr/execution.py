"""One call of ``attribute``: examples in parts that fit into memory, one recorded pass per part, results joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import DataParallel, Module, RNNBase

from captum_iba._compat import _format_output, _run_forward
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr._model.hooks import CapturedActivation, HookPoint, RecordedPass, record
from captum_iba.attr._model.inputs import ModelInputs
from captum_iba.attr._model.nested import at_least_float32, tensors_in
from captum_iba.attr._model.replay import ForwardPasses, largest_difference, out_of_memory, relative_tolerance
from captum_iba.attr.feature_dim import resolve_feature_dim
from captum_iba.attr.feature_statistics import FeatureStatistics, require_same_place
from captum_iba.attr.losses import (
    LossFunction,
    has_probability,
    loss_warning,
    require_outputs,
    resolve_loss,
    row_losses,
)
from captum_iba.attr.objective import (
    NATS_PER_BIT,
    Information,
    MaskLayout,
    Objective,
    dataset_noise,
    example_noise,
    released_noise,
)
from captum_iba.attr.optimizer import NoGradientError, optimize_mask
from captum_iba.attr.settings import BottleneckSettings

# On a CPU, passes with larger activations are slower per row: the output of one operation is no longer in the cache
# when the next one reads it, and new memory is fetched from the system for every pass.
_BYTES_PER_PASS = 2 * 2**20


class BottleneckTrace(NamedTuple):
    """Course of the optimization, per example and step; entry ``k`` is after ``k`` updates of the mask.

    Args:
        objective (Tensor): Mean loss over the noise samples, plus ``beta`` times the mean information per element in
            nats, plus ``complement`` times the complement loss, (B, n_steps + 1).
        information (Tensor): Information that the mask lets through, in bits, (B, n_steps + 1).
        probability (Tensor): Target probability through the bottleneck, mean over the noise samples,
            (B, n_steps + 1). Minus the loss where the loss has no probability.
        closed_probability (Tensor): The same through a closed mask, which lets no information through, (B,).
    """

    objective: Tensor
    information: Tensor
    probability: Tensor
    closed_probability: Tensor


@dataclass
class Execution:
    """One call of ``attribute`` on a model; it runs once. Fields with the names of its arguments mean the same.

    Args:
        points (sequence of HookPoint): Where the bottlenecks are.
        statistics (sequence of FeatureStatistics or None): Those of each hook point; None takes per-example statistics.
        feature_dims (sequence of int or None): Dimension of the features, of each hook point.
        internal_batch_size (int or None): Largest number of rows of a pass; smaller after memory ran out.
        complement_required (bool): Whether the complement stays for a loss that has no bound.
        warn_once (Callable): Takes the key of a warning, and its text.
        on_rows (Callable): Called with the number of rows, noise samples times examples, after every pass; negative
            numbers take back rows that are run again.
    """

    forward_func: Callable[..., Any]
    points: Sequence[HookPoint]
    statistics: Sequence[FeatureStatistics | None]
    inputs: ModelInputs
    settings: BottleneckSettings
    feature_mask: Tensor | None
    bottleneck_mask: Tensor | None
    feature_dims: Sequence[int | None]
    loss: str | LossFunction | None
    seed: int
    internal_batch_size: int | None
    replay: bool
    return_trace: bool | Literal["final"]
    complement_required: bool
    warn_once: Callable[[str, str], None]
    on_rows: Callable[[int], object]
    _after_memory_error: bool = field(default=False, init=False)
    _resolved_loss: str | LossFunction | None = field(default=None, init=False)
    _n_rows_run: int = field(default=0, init=False)

    @property
    def n_rows(self) -> int:
        """Rows that go through the model for one bottleneck, noise samples times examples."""
        return (self.settings.n_steps + 2 * bool(self.return_trace)) * self.settings.samples_per_step * self.inputs.rows

    def attributions(self, bottlenecks: Sequence[Sequence[int]]) -> list[tuple[Any, BottleneckTrace | None]]:
        """Attribution and trace of every bottleneck (at one hook point, or shared by several)."""
        with ModuleGuard(self.forward_func) as guard:
            parts: list[list[_PartResult]] = []
            outputs: list[Tensor] = []
            first = 0
            while first < self.inputs.rows:
                part = self.inputs.part(first, self._examples_per_pass)
                n_rows_before, failed = self._n_rows_run, False
                try:
                    results, output = self._part(part, first, bottlenecks, guard)
                except (MemoryError, RuntimeError) as error:
                    if not (out_of_memory(error) and self._halve_rows()):
                        _raise_with_reason(error)
                    failed = True
                if failed:
                    # Here, where the exception and with it everything that the pass held is gone.
                    self._count_rows(n_rows_before - self._n_rows_run)
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                    continue
                parts.append(results)
                outputs.append(output)
                first += part.rows
            if len(parts) > 1 and self.inputs.arguments is not None:
                self._compare_with_one_pass(torch.cat(outputs), guard)
        return [_joined([part[number] for part in parts]) for number in range(len(bottlenecks))]

    @property
    def _examples_per_pass(self) -> int:
        if self.internal_batch_size is None:
            return self.inputs.rows
        rows_per_example = self.settings.samples_per_step * self.settings.rows_per_sample
        return max(1, min(self.inputs.rows, self.internal_batch_size // rows_per_example))

    def _samples_per_pass(self, activation: Tensor) -> int:
        n_samples, rows_per_sample = self.settings.samples_per_step, self.settings.rows_per_sample
        if self.internal_batch_size is not None:
            n_samples = min(n_samples, max(1, self.internal_batch_size // rows_per_sample))
        if activation.device.type != "cpu" or (self.internal_batch_size is not None and not self._after_memory_error):
            return n_samples
        return min(n_samples, max(1, _BYTES_PER_PASS // (rows_per_sample * activation.nbytes)))

    def _halve_rows(self) -> bool:
        """At most half the rows from now on; False where a pass has one example and one noise sample already."""
        rows = self.inputs.rows * self.settings.samples_per_step * self.settings.rows_per_sample
        if self.internal_batch_size is not None:
            rows = min(rows, self.internal_batch_size)
        if rows <= self.settings.rows_per_sample:
            return False
        self.internal_batch_size, self._after_memory_error = rows // 2, True
        return True

    def _count_rows(self, n_rows: int) -> None:
        self._n_rows_run += n_rows
        self.on_rows(n_rows)

    def _forward(self, part: ModelInputs) -> Callable[[int], Any]:
        forward_func = _on_one_device(self.forward_func)

        def forward(copies: int) -> Any:
            inputs, arguments = part.tiled(copies)
            try:
                return _run_forward(forward_func, inputs, None, arguments)
            except TypeError as error:
                if arguments is None or "positional argument" not in str(error):
                    raise
                raise TypeError(
                    f"additional_forward_args: forward_func does not take them: {error}; the arguments are inputs, "
                    "target and additional_forward_args, without baselines"
                ) from error

        return forward

    def _part(
        self, part: ModelInputs, first: int, bottlenecks: Sequence[Sequence[int]], guard: ModuleGuard
    ) -> tuple[list[_PartResult], Tensor]:
        """Results of every bottleneck for some examples, which share one recorded pass, and its output."""
        recorded = record(self._forward(part), self.points, guard)
        loss = self._check_recorded_pass(part, recorded)
        if part.rows > 1:
            self._compare_with_one_example(part, recorded)
        settings = self.settings
        if not (self.complement_required or has_probability(loss)):
            # A loss without a bound could rise for ever, and drown the information.
            settings = replace(settings, complement=0.0)
        results = []
        runs = bool(settings.n_steps or self.return_trace)
        for numbers in bottlenecks:
            with ForwardPasses(recorded, part.rows, numbers, self.replay and runs) as passes:
                if passes.coupled > 10 * passes.tolerance:
                    self._warn_of_changed_output(passes.coupled)
                results.append(self._optimize(settings, part, first, passes, loss))
                if self.replay and passes.reason:
                    self.warn_once(
                        "replay",
                        f"{self.points[numbers[0]]} is not replayed, every forward pass is a full one: {passes.reason}",
                    )
        return results, recorded.output

    def _check_recorded_pass(self, part: ModelInputs, recorded: RecordedPass) -> str | LossFunction:
        """The loss; ValueError for shapes or losses of the recorded pass that cannot be used."""
        rows, output = part.rows, recorded.output
        for captured in recorded.captured:
            shape = tuple(captured.activation.shape)
            if len(shape) < 2 or shape[0] != rows:
                raise ValueError(
                    f"layer {self.points[captured.number]} has the shape {shape}, expected (B, ...) with one row for "
                    f"each of {rows} examples"
                )
            statistics = self.statistics[captured.number]
            if statistics is not None and not self.settings.noise_around_input:
                require_same_place(statistics, self.forward_func, self.points[captured.number], captured.n_calls)
        if output.ndim == 0 or output.shape[0] != rows:
            raise ValueError(
                f"forward_func gives the shape {tuple(output.shape)}, expected one row for each of {rows} examples"
            )
        if not output.is_floating_point():
            raise ValueError(f"forward_func gives the dtype {output.dtype}, expected floating-point numbers")
        if self._resolved_loss is None:  # once for all examples: another part could look different
            self._resolved_loss = resolve_loss(self.loss, output)
        loss = self._resolved_loss
        require_outputs(loss, output)
        warning = loss_warning(self.loss, loss, output)
        if warning is not None:
            self.warn_once(*warning)
        losses = row_losses(loss, output, part.target)
        if not bool(losses.isfinite().all()):
            raise ValueError(f"forward_func gives NaN or infinity: the losses of the examples are {losses.tolist()}")
        return loss

    def _compare_with_one_example(self, part: ModelInputs, recorded: RecordedPass) -> None:
        """ValueError where the rows of a layer are not the examples; a warning where they depend on each other."""
        try:
            alone = record(self._forward(part.examples(0, 1)), self.points, recorded.guard)
        except Exception as error:
            if out_of_memory(error):
                raise
            self._warn_of_coupled_rows(f"forward_func fails for one example by itself ({error}), and not for several")
            return
        difference = 0.0
        for one, several in zip(alone.captured, recorded.captured, strict=True):
            if one.activation.shape[0] != 1:
                raise ValueError(
                    f"layer {self.points[one.number]} has the shape {tuple(one.activation.shape)} for one "
                    "example, expected (B, ...) with the examples in dimension 0 (batch_first=True)"
                )
            # The model may cut the inputs to the longest of the batch.
            if one.activation.shape[1:] == several.activation.shape[1:]:
                difference = max(difference, largest_difference(one.activation, several.activation[:1]))
        if alone.output.shape == recorded.output[:1].shape:
            difference = max(difference, largest_difference(alone.output, recorded.output[:1]))
        if difference > 10 * relative_tolerance(recorded.guard):
            self._warn_of_changed_output(difference)

    def _warn_of_changed_output(self, difference: float) -> None:
        self._warn_of_coupled_rows(
            "the output of forward_func for an example changes with the other rows of a pass, or by chance "
            f"(by {difference:.2g} of the largest)"
        )

    def _warn_of_coupled_rows(self, reason: str) -> None:
        self.warn_once(
            "coupled",
            f"{reason}; expected rows that do not depend on each other, and additional_forward_args with tensors, not "
            "lists or arrays, of one entry per example: the attribution of an example depends on its batch here",
        )

    def _compare_with_one_pass(self, outputs: Tensor, guard: ModuleGuard) -> None:
        """Warn where parts give other outputs than all examples in one pass: an argument was cut that must not be."""
        guard.restore_state()
        try:
            with torch.no_grad(), guard.watching():
                output = self._forward(self.inputs)(1)
        except Exception:  # as where memory or the model has no room for all examples: nothing to compare with
            return
        if largest_difference(outputs, output) > 1e-3:
            self.warn_once(
                "parts",
                "additional_forward_args holds a tensor whose first dimension happens to be the number of examples, "
                "and which is cut with them, or a list or array of one entry per example, which is not: the output of "
                "forward_func for parts of the examples differs from that for all of them. Expected tensors that count "
                "the examples, or internal_batch_size=None",
            )

    def _optimize(
        self,
        settings: BottleneckSettings,
        part: ModelInputs,
        first: int,
        passes: ForwardPasses,
        loss: str | LossFunction,
    ) -> _PartResult:
        """One bottleneck for some examples."""
        first_captured = passes.captured[0]
        activation = first_captured.activation
        dims = [self._feature_dim(captured) for captured in passes.captured]
        if len(set(dims)) > 1:
            raise ValueError(f"share_mask is True, but the features of the layers are in dimensions {dims}")
        feature_mask, bottleneck_mask = (
            _mask_of_part(mask, first, part.rows) for mask in (self.feature_mask, self.bottleneck_mask)
        )
        layout = MaskLayout.of(
            activation, settings.granularity, feature_mask, bottleneck_mask, dims[0], settings.smoothing
        )
        _require_finite(activation, layout, first)
        for captured in passes.captured[1:]:
            layout.require_fit(captured.activation, str(self.points[captured.number]))
        noise = [self._noise(captured, layout, dim) for captured, dim in zip(passes.captured, dims, strict=True)]
        mean, std = noise[0]
        information = Information(layout, (activation.to(mean.dtype) - mean) / std)
        means, stds = zip(*noise, strict=True)
        objective = Objective(passes, means, stds, layout, information, loss, part.target, settings, self.seed)
        try:
            alpha, history, closed = optimize_mask(
                objective,
                self._samples_per_pass(activation),
                self.return_trace,
                lambda n_samples: self._count_rows(n_samples * part.rows),
            )
        except NoGradientError as error:
            quantized = passes.guard.quantized()
            if quantized is None:
                raise
            raise ValueError(
                f"forward_func runs {type(quantized).__module__}.{type(quantized).__name__}, a quantized module "
                "through which no gradient flows back; expected the model before quantization"
            ) from error
        bits = information.per_element(alpha) / NATS_PER_BIT
        trace = None
        if closed is not None:
            objectives, nats, probabilities = (torch.stack(column, 1) for column in zip(*history, strict=True))
            trace = BottleneckTrace(objectives, nats / NATS_PER_BIT, probabilities, closed)
        attributions = [
            bits if tensor is activation else torch.zeros(tensor.shape, dtype=bits.dtype, device=tensor.device)
            for tensor in _tensors_of(first_captured, self.points[first_captured.number].at_input)
        ]
        position = next(i for i, attribution in enumerate(attributions) if attribution is bits)
        holds_states = isinstance(self.points[first_captured.number].layer, RNNBase)
        return _PartResult(part.rows, attributions, position, trace, holds_states)

    def _feature_dim(self, captured: CapturedActivation) -> int:
        """The dimension of the features: as named, as in the statistics, or as the layer says."""
        named, statistics = self.feature_dims[captured.number], self.statistics[captured.number]
        point, shape = self.points[captured.number], captured.activation.shape
        gathered = None if statistics is None else statistics.feature_dim
        dim = resolve_feature_dim(
            point.layer, shape, gathered if named is None else named, captured.origin, point.at_input
        )
        if gathered is not None and resolve_feature_dim(point.layer, shape, gathered) != dim:
            raise ValueError(
                f"feature_dim is {named}, but statistics were gathered with {gathered}; expected the same for a "
                f"layer of shape {tuple(shape)}"
            )
        return dim

    def _noise(self, captured: CapturedActivation, layout: MaskLayout, feature_dim: int) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the noise at a hook point, in the mask's precision."""
        activation = at_least_float32(captured.activation)
        if self.settings.noise_around_input:
            return released_noise(activation, captured.layer_input)
        statistics = self.statistics[captured.number]
        if statistics is not None:
            return dataset_noise(activation, statistics, feature_dim)
        self.warn_once(
            "statistics",
            "statistics is None: the noise has the statistics of each example, and attributions are less faithful; "
            "pass statistics=FeatureStatistics.estimate(model, layer, batches)",
        )
        return example_noise(activation, layout, feature_dim)


class _PartResult(NamedTuple):
    """Results for some examples: one attribution per tensor of the layer's output, that at ``position`` with bits."""

    rows: int
    attributions: list[Tensor]
    position: int
    trace: BottleneckTrace | None
    holds_states: bool = False  # of a recurrent layer, beside its output


def _joined(parts: list[_PartResult]) -> tuple[Any, BottleneckTrace | None]:
    """Attribution and trace of all examples."""
    rows = [part.rows for part in parts]
    if len({len(part.attributions) for part in parts}) > 1:
        # transformers gives a layer a mask where texts are padded, and none where they are not.
        parts = [part._replace(attributions=[part.attributions[part.position]]) for part in parts]
    pieces_of_tensors = zip(*(part.attributions for part in parts), strict=True)
    of_states = [parts[0].holds_states and i != parts[0].position for i in range(len(parts[0].attributions))]
    tensors = [_concatenated(*each, rows) for each in zip(pieces_of_tensors, of_states, strict=True)]
    traces = [part.trace for part in parts if part.trace is not None]
    trace = BottleneckTrace(*(torch.cat(pieces) for pieces in zip(*traces, strict=True))) if traces else None
    return _format_output(len(tensors) > 1, tuple(tensors)), trace


def tensor_with_bits(attributions: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The attribution of a layer's activation; other tensors that the layer returns have zeros.

    Examples::

        >>> tensor_with_bits((torch.zeros(2, 3), torch.ones(2, 4))).shape
        torch.Size([2, 4])
    """
    tensors = (attributions,) if isinstance(attributions, Tensor) else attributions
    return next((tensor for tensor in tensors if bool((tensor != 0).any())), tensors[0])


def _concatenated(pieces: Sequence[Tensor], is_state: bool, rows: Sequence[int]) -> Tensor:
    """One tensor of a layer's output. States of a recurrent layer count examples in dimension 1; a loss has none."""
    dimensions = [d for d in range(pieces[0].ndim) if [piece.shape[d] for piece in pieces] == list(rows)]
    dimension = 1 if is_state and 1 in dimensions else next(iter(dimensions), None)
    return pieces[0] if dimension is None else torch.cat(tuple(pieces), dimension)


def _mask_of_part(mask: Tensor | None, first: int, rows: int) -> Tensor | None:
    """The rows of a mask for some examples; a mask with one row is for all."""
    return mask if mask is None or mask.ndim == 0 or mask.shape[0] == 1 else mask[first : first + rows]


def _require_finite(activation: Tensor, layout: MaskLayout, first: int) -> None:
    broken = (layout.maskable & ~activation.isfinite()).flatten(1).any(1)
    if bool(broken.any()):
        example = first + int(broken.nonzero()[0, 0])
        raise ValueError(f"the layer holds NaN or infinity in example {example}, where a bottleneck is")


def _tensors_of(captured: CapturedActivation, at_input: bool) -> list[Tensor]:
    """What other layer methods return: the tensors of the layer's output, or of its positional arguments."""
    tensors = tensors_in(captured.structure[0] if at_input else captured.structure)
    return tensors if any(tensor is captured.activation for tensor in tensors) else [captured.activation]


def _on_one_device(forward_func: Callable[..., Any]) -> Callable[..., Any]:
    # Replicas run on threads of their own, each with a part of the rows: one process per device is simpler and as fast.
    if isinstance(forward_func, DataParallel) and len(forward_func.device_ids) > 1:
        module: Module = forward_func.module
        return module
    return forward_func


_OF_CHECKPOINTING = ("CheckpointError", "torch.utils.checkpoint", "Checkpointing is not compatible")  # torch's words


def _raise_with_reason(error: Exception) -> NoReturn:
    """Raise an error of the model again, with the way out where it is known."""
    if any(said in f"{type(error).__name__} {error}" for said in _OF_CHECKPOINTING):
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
    raise error
