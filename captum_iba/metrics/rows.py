"""The rows of a degradation test, examples times steps, run in passes that compute little padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from captum_iba.metrics.operators import Delete, Operator
from captum_iba.metrics.ranking import feature_grid

# How much a pass holds if nothing is said. On a CPU larger passes leave the caches and get slower, not faster; see
# benchmarks/degradation.py.
POSITIONS_A_PASS = {"cpu": 1024}
POSITIONS_A_PASS_ELSEWHERE = 32768
IMAGES_A_PASS = 32


class Task(NamedTuple):
    """What runs.

    Args:
        forward_func (Callable): Gives logits, (rows, C).
        inputs (tuple of Tensor): Of B examples.
        arguments (tuple): Further arguments.
    """

    forward_func: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Rows:
    """Everything that has to run, R rows: of an example, in some order, so many features (or groups) go.

    Args:
        task (Task): What runs.
        operator (Callable): Takes features away.
        padding (Tensor or None): Where there is padding, (B, N), if the operator deletes.
        ranks (Tensor): Of every feature in each of O orders, (O, B, N).
        orders (Tensor): Of the rows, (R,).
        examples (Tensor): Of the rows, (R,).
        counts (Tensor): Of the rows, (R,).
    """

    task: Task
    operator: Operator
    padding: Tensor | None
    ranks: Tensor
    orders: Tensor
    examples: Tensor
    counts: Tensor

    def removed(self, rows: Tensor) -> Tensor:
        """Which features the operator takes away, (rows, N); with deleted tokens, padding is taken away, too."""
        removed = self.ranks[self.orders[rows], self.examples[rows]] < self.counts[rows, None]
        return removed if self.padding is None else removed | self.padding[self.examples[rows]]

    def passes(self, limit: int | None) -> list[Tensor]:
        """The numbers of the rows that run together, the longest first where rows get shorter."""
        numbers, first = torch.arange(len(self.examples)), self.task.inputs[0]
        lengths = torch.full_like(numbers, self.ranks.shape[2])
        if self.padding is not None:
            lengths, numbers = torch.sort((~self.removed(numbers)).sum(1), descending=True, stable=True)
        if limit is None and first.ndim >= 4:
            limit = IMAGES_A_PASS
        positions = POSITIONS_A_PASS.get(first.device.type, POSITIONS_A_PASS_ELSEWHERE)
        parts = torch.split(numbers, _sizes(lengths.tolist(), positions) if limit is None else limit)
        if not (isinstance(self.operator, Delete) and self.operator.equal_lengths):
            return list(parts)
        lengths = torch.empty_like(lengths).index_copy_(0, numbers, lengths)
        runs = [(part, torch.unique_consecutive(lengths[part], return_counts=True)[1].tolist()) for part in parts]
        return [same for part, counts in runs for same in torch.split(part, counts)]

    def arguments_of(self, rows: Tensor) -> tuple[Any, ...]:
        """The arguments of ``forward_func`` for some rows."""
        # Captum loads pyplot: not before something is computed.
        from captum_iba.attr._model.nested import map_tensors

        first, examples = self.task.inputs[0], self.examples[rows]

        def select(tensor: Tensor) -> Tensor:
            if tensor.ndim == 0 or tensor.shape[0] != len(first):
                return tensor
            return tensor.index_select(0, examples.to(tensor.device))

        inputs, arguments = map_tensors(select, (self.task.inputs, self.task.arguments))
        removed = self.removed(rows).view(len(rows), *feature_grid(first)).to(first.device)
        inputs, arguments = self.operator(inputs, arguments, removed)
        return (*inputs, *arguments)

    def logits(self, limit: int | None, show_progress: bool) -> Tensor:
        """What the model gives for all rows, (R, C), float32 at least, on the CPU."""
        from captum_iba._compat import progress
        from captum_iba.attr._model.guard import ModuleGuard

        passes = self.passes(limit)
        results: list[Tensor] = []
        with ModuleGuard() as guard, guard.watching(), torch.no_grad():
            for part in progress(passes, desc="degradation", total=len(passes)) if show_progress else passes:
                output = self.task.forward_func(*self.arguments_of(part))
                if not isinstance(output, Tensor):
                    raise TypeError(f"forward_func gives a {type(output).__name__}, expected a tensor of logits")
                if output.ndim != 2 or len(output) != len(part) or output.shape[1] < 2:
                    shape = tuple(output.shape)
                    raise ValueError(f"forward_func gives the shape {shape}, expected ({len(part)}, C) with C > 1")
                results.append(output.to("cpu", torch.promote_types(output.dtype, torch.float32)))
        logits = torch.cat(results)
        return torch.empty_like(logits).index_copy_(0, torch.cat(passes), logits)


def _sizes(lengths: list[int], positions: int) -> list[int]:
    """How many rows each pass gets, given their lengths: at most so many positions, an eighth of them padding."""
    sizes: list[int] = []
    longest = wasted = 0
    for length in lengths:
        wasted += longest - length
        if not sizes or (sizes[-1] + 1) * longest > positions or wasted > positions // 8:
            sizes.append(0)
            longest, wasted = length, 0
        sizes[-1] += 1
    return sizes
