"""Mean and standard deviation of a layer over a dataset: the statistics of the bottleneck's noise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba._checks import check_integer, check_number, per_layer
from captum_iba._compat import progress
from captum_iba._files import write_bytes
from captum_iba._warnings import warn_user
from captum_iba.attr._model.guard import ModuleGuard, modules_of
from captum_iba.attr._model.hooks import HookPoint, activation_of, hook_points, hooked, layer_input_of
from captum_iba.attr._model.nested import copy_tensor, map_tensors
from captum_iba.attr._model.padding import Padding
from captum_iba.attr.feature_dim import Origin, infer_feature_dim, resolve_feature_dim

ENOUGH = 1000
"""With fewer observations, bits depend on which ones were seen: the table is in docs/limits.md."""

_FORMAT = "captum_iba.FeatureStatistics/1"


class FeatureStatistics:
    r"""
    Mean and standard deviation of every feature of a layer over a dataset.

    The bottleneck replaces masked activations by noise with these statistics: they look like an average activation
    then, and carry no information. They are gathered batch by batch in float64 (Chan's method), in memory
    that does not depend on the amount of data, and can be merged from parts.

    One dimension holds the features (``feature_dim``); everything else, examples and positions, is counted as
    observations.

    Args:
        layer (str, optional): Name of the layer; saved in the file and checked when it is loaded. Default: None.
        min_std (float, optional): Floor of the standard deviation, so that a feature that never changes does not carry
            infinite information as soon as it does. Default: 0.01.
        feature_dim (int, optional): Dimension of an activation that holds the features: 1 for (B, C, T), (B, C, H, W)
            and (B, C, D, H, W), -1 for (B, T, D) and (B, H, W, C). Saved in the file. Default: the last dimension of
            (B, D) and (B, T, D); required for more dimensions.

    Attributes:
        model (str or None): Fingerprint of the model that they were estimated with, if set; saved in the file.
            :class:`captum_iba.text.TextExplainer` sets and checks it. None if unknown.
        at_input (bool or None): Whether they are statistics of the layer's input; set by :meth:`estimate`, checked by
            attribution and saved in the file. None if unknown.
        call (int or None): Number of the call of the layer, as passed to :meth:`estimate`; likewise.

    Examples::

        >>> statistics = FeatureStatistics("encoder")
        >>> for activations in (torch.ones(2, 5, 3), torch.zeros(4, 7, 3)):
        ...     _ = statistics.update(activations)
        >>> statistics.mean, statistics.count
        (tensor([0.2632, 0.2632, 0.2632]), 38)
        >>> # from a model:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> FeatureStatistics.estimate(model, model[0], torch.randn(1000, 4).split(100))
        FeatureStatistics(8 features, 1000 observations, layer='0')
    """

    def __init__(self, layer: str | None = None, min_std: float = 0.01, feature_dim: int | None = None) -> None:
        check_number("min_std", min_std, accepts=lambda floor: floor > 0, expected="a positive number")
        if feature_dim is not None:
            check_integer("feature_dim", feature_dim)
        self.layer = layer
        self.min_std = float(min_std)
        self.feature_dim = feature_dim
        self.model: str | None = None
        self.at_input: bool | None = None
        self.call: int | None = None
        self.count = 0
        """Observations so far: examples, times positions that count."""
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None  # sum of squared deviations from the mean
        self._batches = 0

    def __repr__(self) -> str:
        width = "no data" if self._mean is None else f"{self.n_features} features"
        return f"FeatureStatistics({width}, {self.count} observations, layer={self.layer!r})"

    @property
    def n_features(self) -> int:
        """Width of the layer."""
        return len(self._require()[0])

    @property
    def mean(self) -> Tensor:
        """Mean of every feature, (D,), float32."""
        return self._require()[0].float()

    @property
    def std(self) -> Tensor:
        """Standard deviation of every feature over the population, at least ``min_std``, (D,), float32."""
        return (self._require()[1] / self.count).sqrt().clamp_min(self.min_std).float()

    def update(self, features: Tensor, mask: Tensor | None = None) -> FeatureStatistics:
        r"""
        Take one batch into account.

        Args:
            features (Tensor): Output of the layer, of shape (B, D), (B, T, D), or any other with ``feature_dim``.
            mask (Tensor, optional): True (or 1) where an observation counts, False for padding; of the shape of
                ``features`` without its feature dimension, or of its first dimensions only. Default: all count.

        Returns:
            FeatureStatistics: itself

        Raises:
            ValueError: for another number of dimensions, another width than before, a mask of another shape or with
                        negative numbers or NaN, or NaN or infinity among the observations that count (says in
                        which batch); what was gathered so far stays.
        """
        observed = _wide(self._observations(features.detach(), mask))
        if len(observed):
            if not bool(torch.isfinite(observed).all()):
                raise ValueError(f"features of batch {self._batches} hold NaN or infinity")
            mean = observed.mean(0)
            self._combine(len(observed), mean, (observed - mean).square().sum(0))
        if self.feature_dim is None and features.ndim == 3:
            self.feature_dim = -1  # as it was read
        self._batches += 1
        return self

    def merge(self, other: FeatureStatistics) -> FeatureStatistics:
        """The statistics of both data sets together, as a new object.

        Raises:
            ValueError: The layer, its call, its input or output, width, floor or model differ.
        """
        if self.layer != other.layer:
            raise ValueError(f"other is of layer {other.layer!r}, expected one of the same layer, {self.layer!r}")
        for name in ("feature_dim", "min_std"):
            own, others = getattr(self, name), getattr(other, name)
            if _differ(own, others):
                raise ValueError(f"other has the {name} {others}, expected {own}")
        for name in ("at_input", "call"):
            own, others = getattr(self, name), getattr(other, name)
            if _differ(own, others):
                raise ValueError(f"other has {name}={others}, expected statistics of the same place, {name}={own}")
        if _differ(self.model, other.model):
            raise ValueError("other was gathered with another model, expected statistics of the same model")
        merged = type(self)(self.layer, self.min_std)
        for name in ("feature_dim", "at_input", "call"):
            own = getattr(self, name)
            setattr(merged, name, getattr(other, name) if own is None else own)
        merged.model = self.model if self.model == other.model else None
        for part in (self, other):
            if part._mean is not None and part._squares is not None:
                merged._combine(part.count, part._mean, part._squares)
        merged._batches = self._batches + other._batches
        merged._take_further(self, other)
        return merged

    def _take_further(self, *parts: FeatureStatistics) -> None:
        """What a subclass merges, too."""

    @classmethod
    def estimate(
        cls,
        forward_func: Callable[..., Any],
        layer: Module | Sequence[Module],
        batches: Iterable[Any],
        mask_func: Callable[[Any], Tensor | None] | None = None,
        layer_call: int | Sequence[int] = -1,
        attribute_to_layer_input: bool = False,
        min_std: float = 0.01,
        show_progress: bool = False,
        feature_dim: int | Sequence[int | None] | None = None,
    ) -> Any:
        r"""
        Run a model on a data set and gather the statistics of a layer.

        The model runs in evaluation mode and is left as it was.

        Args:
            forward_func (Callable): The model, or any function that runs it.
            layer (Module or list of Module): One layer gives one object; several, gathered in the same passes, a list.
            batches (iterable): Batches, each a tensor or a tuple (positional arguments of ``forward_func``) or a
                mapping (keyword arguments); of a loader of inputs and labels ``(x for x, _ in loader)``. Read once; a
                generator will do.
            mask_func (Callable, optional): Takes a batch, gives the mask for :meth:`update`, or None. Default: the
                ``attention_mask`` of a mapping (also inside of a batch), or of a tuple where ``forward_func`` has a
                parameter of that name, for layers that have its positions; else all observations count, with a warning
                where that may count padding.
            layer_call (int or list of int, optional): Number of the call of a layer that runs several times in a
                forward pass, from 0; negative numbers count from the last, and need the full forward pass. Default: -1.
            attribute_to_layer_input (bool, optional): Gather the statistics of the layer's input. Default: False.
            min_std (float, optional): Floor of the standard deviation. Default: 0.01.
            show_progress (bool, optional): Show a progress bar over the batches. Default: False.
            feature_dim (int or list of int, optional): Dimension of the activation that holds the features, of each
                layer; negative numbers count from the last. Default: that of the layer, or of the last layer with
                parameters before it: 1 for convolutions and batch normalization, the last one for linear layers. Where
                it is ambiguous, an error asks.

        Returns:
            FeatureStatistics, or a list of them in the order of ``layer``

        Raises:
            ValueError: No data, a layer that does not run, an ambiguous dimension of the features, or what
                :meth:`update` raises.

        Warns:
            UserWarning: Fewer than 1,000 observations; padding that may have been counted.
        """
        if isinstance(batches, Tensor):
            raise TypeError("batches is a tensor, expected an iterable of batches: [tensor], or tensor.split(32)")
        layers = [layer] if isinstance(layer, Module) else list(layer)
        points = hook_points(layers, layer_call, attribute_to_layer_input)
        named_dims = per_layer("feature_dim", feature_dim, len(layers))
        names = [_name_of(forward_func, point.layer) for point in points]
        gathered = [cls(name, min_std) for name in names]
        for statistics, point in zip(gathered, points, strict=True):
            statistics.at_input, statistics.call = bool(point.at_input), int(point.call)
        padding = Padding(
            forward_func, [name or type(module).__name__ for name, module in zip(names, layers, strict=True)]
        )
        with ModuleGuard(forward_func) as guard, torch.no_grad():

            def features_last(captured: Sequence[tuple[Tensor, Origin]]) -> list[Tensor]:
                return [
                    statistics._features_last(activation)
                    for statistics, (activation, _) in zip(gathered, captured, strict=True)
                ]

            def rerun(batch: Any) -> list[Tensor]:
                try:
                    return features_last(_run_to_points(forward_func, batch, points, guard))
                finally:
                    guard.restore_state()

            for batch in progress(batches, desc="Statistics") if show_progress else batches:
                with guard.watching(leaves=True):
                    captured = _run_to_points(forward_func, batch, points, guard)
                    guard.restore_state()  # which the pass, ended at the layer, could not do at its end
                    for statistics, point, dim, capture in zip(gathered, points, named_dims, captured, strict=True):
                        statistics._settle_feature_dim(point, *capture, dim)
                    if mask_func is not None:
                        masks: list[Tensor | None] = [mask_func(batch)] * len(captured)
                    else:
                        masks = padding.masks(batch, features_last(captured), rerun)
                for statistics, (activation, _), mask in zip(gathered, captured, masks, strict=True):
                    statistics.update(activation, mask)
        for statistics in gathered:
            statistics._require()
        _warn_if_few(gathered)
        return gathered[0] if isinstance(layer, Module) else gathered

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file with its metadata (layer, count, floor, format, model), atomically."""
        from safetensors.torch import save

        mean, squares = self._require()
        metadata = {
            "format": _FORMAT,
            "layer": "" if self.layer is None else self.layer,
            "count": str(self.count),
            "min_std": repr(self.min_std),
            "feature_dim": "" if self.feature_dim is None else str(self.feature_dim),
            **({} if self.model is None else {"model": self.model}),
            **({} if self.at_input is None else {"at_input": str(int(self.at_input))}),
            **({} if self.call is None else {"call": str(self.call)}),
        }
        content = save({"mean": mean.cpu(), "squares": squares.cpu(), **self.further_tensors()}, metadata=metadata)
        write_bytes(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str], layer: str | None = None) -> FeatureStatistics:
        """Read what :meth:`save` wrote.

        Args:
            path (str or path): The file.
            layer (str, optional): The layer that it must be of.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: Not a file of statistics, or of another layer.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(os.fspath(path), framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise ValueError(
                        f"path {os.fspath(path)!r} has the format {metadata.get('format')!r}, expected {_FORMAT!r}"
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
                if not {"mean", "squares"} <= tensors.keys():
                    raise ValueError(f"path {os.fspath(path)!r} has {sorted(tensors)}, expected mean and squares")
                mean, squares = tensors.pop("mean"), tensors.pop("squares")
        except SafetensorError as error:
            raise ValueError(f"path {os.fspath(path)!r} is not a safetensors file of statistics: {error}") from error
        dim = metadata.get("feature_dim")  # files of versions before 1.0 have none
        statistics = cls(metadata["layer"] or None, float(metadata["min_std"]), int(dim) if dim else None)
        if layer is not None and statistics.layer != layer:
            raise ValueError(
                f"path {os.fspath(path)!r} has statistics of layer {statistics.layer!r}, expected layer {layer!r}"
            )
        statistics.model = metadata.get("model")  # absent in files from before 1.0
        statistics.at_input = bool(int(metadata["at_input"])) if "at_input" in metadata else None
        statistics.call = int(metadata["call"]) if "call" in metadata else None
        statistics._combine(int(metadata["count"]), mean, squares)
        statistics._restore(tensors)
        return statistics

    def further_tensors(self) -> dict[str, Tensor]:
        """What a subclass saves, too."""
        return {}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        """Take what a subclass saved, which others ignore."""

    def _observations(self, activations: Tensor, mask: Tensor | None) -> Tensor:
        """(N, D): the observations that count."""
        rows = self._features_last(activations)
        if self._mean is not None and rows.shape[-1] != len(self._mean):
            raise ValueError(
                f"features of batch {self._batches} have the shape {tuple(activations.shape)}, that is "
                f"{rows.shape[-1]} features; the batches before had {len(self._mean)}"
            )
        if mask is None:
            return rows.reshape(-1, rows.shape[-1])
        if mask.dtype is not torch.bool and not bool((mask >= 0).all()):
            raise ValueError(
                "mask holds negative numbers or NaN, expected True or 1 where an observation counts, False or 0 for "
                "padding; an additive mask is mask == 0"
            )
        if mask.ndim >= rows.ndim or tuple(rows.shape[: mask.ndim]) != tuple(mask.shape):
            raise ValueError(
                f"mask has the shape {tuple(mask.shape)}, expected the first dimensions of {tuple(rows.shape[:-1])}"
            )
        return rows[mask.to(rows.device, torch.bool)].reshape(-1, rows.shape[-1])

    def _settle_feature_dim(self, point: HookPoint, activations: Tensor, origin: Origin, named: int | None) -> None:
        layer, at_input = point.layer, point.at_input
        if activations.ndim < 2:
            raise ValueError(
                f"layer {type(layer).__name__} has the shape {tuple(activations.shape)}, expected (B, ...)"
            )
        if named is None and infer_feature_dim(layer, activations.shape, origin, at_input) is None:
            named = self.feature_dim  # of batches of another length
        dim = resolve_feature_dim(layer, activations.shape, named, origin, at_input)
        # The last one from behind: the same for activations of (B, D) and (B, T, D).
        dim = -1 if dim == activations.ndim - 1 else dim
        if self.feature_dim not in (None, dim):
            raise ValueError(
                f"features of batch {self._batches} are in dimension {dim} of the shape {tuple(activations.shape)}, "
                f"those of the batches before in {self.feature_dim}; expected feature_dim to say which"
            )
        self.feature_dim = dim

    def _features_last(self, activations: Tensor) -> Tensor:
        """The same tensor with the dimension of the features at the end."""
        dim, ndim = self.feature_dim, activations.ndim
        if dim is None and ndim in (2, 3):
            dim = -1
        if dim is None or not -ndim < dim < ndim or dim % ndim == 0:
            raise ValueError(
                f"features have the shape {tuple(activations.shape)} and feature_dim is {dim}, expected (B, D), "
                "(B, T, D), or feature_dim=1 (channels first) or -1 (last)"
            )
        return activations.movedim(dim, -1)

    def _combine(self, count: int, mean: Tensor, squares: Tensor) -> None:
        if self._mean is None or self._squares is None:
            self._mean, self._squares, self.count = mean.clone(), squares.clone(), count
            return
        if len(mean) != len(self._mean):
            raise ValueError(f"{len(mean)} features cannot be merged with {len(self._mean)}")
        total = self.count + count
        delta = mean.to(self._mean.device) - self._mean
        # Not in place: tensors of inference mode cannot be written into outside of it.
        self._mean = self._mean + delta * (count / total)
        self._squares = self._squares + squares.to(self._mean.device) + delta.square() * (self.count * count / total)
        self.count = total

    def _require(self) -> tuple[Tensor, Tensor]:
        if self._mean is None or self._squares is None:
            raise ValueError("these statistics hold no data: no batch, or none with an observation that counts")
        return self._mean, self._squares


def _differ(own: Any, other: Any) -> bool:
    """Whether both are known, and not the same."""
    return None not in (own, other) and own != other


def _wide(tensor: Tensor) -> Tensor:
    """In float64, which not every device has."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


class _LayersDone(BaseException):
    """Ends a forward pass; no Exception, so that no handler in a model swallows it."""


def _run_to_points(
    forward_func: Callable[..., Any], batch: Any, points: list[HookPoint], guard: ModuleGuard
) -> list[tuple[Tensor, Origin]]:
    """Run a batch up to the hook points, and return their activations and where these come from.

    The last call of a layer is known at the end of a pass only: the next batch may run it more often.
    """
    activations: dict[tuple[Module, int], tuple[Tensor, Origin]] = {}

    def visit(layer: Module, at_input: bool, call: int, value: Any, entered: Any) -> None:
        if any(point.layer is layer and (point.call < 0 or point.call == call) for point in points):
            activation, (layer_input, input_dim) = activation_of(value, layer)[0], entered
            origin = Origin.of(guard.last_leaf, layer, activation, layer_input, input_dim, at_input)
            # A copy, because what follows may write into it, an in-place activation for example.
            activations[layer, call] = activation.detach().clone(), origin
        if all((point.layer, point.call) in activations for point in points):
            raise _LayersDone

    # A model may write into its inputs.
    copied = map_tensors(copy_tensor, batch)
    args, kwargs = ((), copied) if isinstance(copied, Mapping) else (copied, {})
    with suppress(_LayersDone), hooked(points, visit, lambda value: layer_input_of(value, guard)) as runs:
        arguments = args if isinstance(args, (tuple, list)) else (args,)
        try:
            forward_func(*arguments, **kwargs)
        except TypeError as error:
            if len(arguments) < 2 or "positional argument" not in str(error):
                raise
            raise TypeError(
                f"batches: a batch has {len(arguments)} entries, which are all arguments of forward_func: {error}; of "
                "a loader of inputs and labels pass (x for x, _ in loader)"
            ) from error
    for point in points:
        point.require(runs[point.layer, point.at_input])
    return [activations[point.layer, point.call % runs[point.layer, point.at_input]] for point in points]


def require_same_place(
    statistics: FeatureStatistics, forward_func: Callable[..., Any], point: HookPoint, n_calls: int
) -> None:
    """Raise ValueError where statistics were gathered at another layer, call or side of it, as far as that is known.

    The bottleneck is at ``point``, and the layer ran ``n_calls`` times.
    """
    where = f"statistics are of layer {statistics.layer!r}" if statistics.layer else "statistics are of a layer"
    if statistics.at_input is not None and statistics.at_input != bool(point.at_input):
        gathered, asked = ("input", "output") if statistics.at_input else ("output", "input")
        raise ValueError(
            f"{where}, at its {gathered}, but attribute_to_layer_input is {point.at_input}; expected statistics of "
            f"the {asked}: FeatureStatistics.estimate(..., attribute_to_layer_input={point.at_input})"
        )
    if statistics.call is not None and statistics.call != point.call and (statistics.call - point.call) % n_calls:
        raise ValueError(
            f"{where}, call {statistics.call}, but layer_call is {point.call}, and the layer ran {n_calls} times; "
            f"expected statistics of the same call: FeatureStatistics.estimate(..., layer_call={point.call})"
        )
    if name := _other_name(statistics.layer, forward_func, point.layer):
        raise ValueError(
            f"{where}, but the layer is {name!r}; expected statistics of the same layer (where modules are "
            "named otherwise than in the model that they were gathered with, set statistics.layer = None)"
        )


def _other_name(expected: str | None, forward_func: Callable[..., Any], layer: Module) -> str | None:
    """The name of a layer where the model of a function gives the name ``expected`` to another module; else None.

    A function can have several models, and a module that they share its name in each of them.
    """
    models = [forward_func] if isinstance(forward_func, Module) else modules_of(forward_func)
    known = [names for model in models if expected in (names := dict(model.named_modules()))] if expected else []
    if any(names[expected] is layer for names in known):
        return None
    return next((name for names in known for name, module in names.items() if module is layer and name), None)


def _warn_if_few(gathered: Sequence[FeatureStatistics]) -> None:
    fewest = min(gathered, key=lambda statistics: statistics.count)
    if fewest.count < ENOUGH:
        of_layer = f"layer {fewest.layer!r}" if fewest.layer else "a layer"
        warn_user(
            f"few observations: the statistics of {of_layer} come from {fewest.count:,} observations (examples, "
            f"times positions), expected {ENOUGH:,} or more: bits change with the data they are gathered from. Give "
            "more data"
        )


def _name_of(forward_func: Callable[..., Any], layer: Module) -> str | None:
    if isinstance(forward_func, Module):
        for name, module in forward_func.named_modules():
            if module is layer:
                return str(name) or None  # the model itself has no name, as in files
    return None
