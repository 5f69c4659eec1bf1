"""One call of ``attribute``: what it was given, and how much of it goes through the model at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from captum_iba.attr.batch import Batch
from captum_iba.attr.losses import LossFunction
from captum_iba.attr.settings import BottleneckSettings

# On a CPU, passes with larger features are slower a row: what one operation writes no longer lies in the cache when
# the next one reads it, and fresh memory is fetched from the system for every pass.
_BYTES_A_PASS = 2 * 2**20


@dataclass(frozen=True)
class Job:
    """One call of ``attribute``."""

    batch: Batch
    feature_mask: Tensor | None
    bottleneck_mask: Tensor | None
    chosen: BottleneckSettings
    loss: str | LossFunction | None
    seed: int
    internal_batch_size: int | None
    replay: bool
    return_trace: bool
    complement_given: bool
    feature_dims: Sequence[int | None]
    tried_again: bool = False

    @property
    def examples_per_pass(self) -> int:
        """Examples that are optimised together."""
        if self.internal_batch_size is None:
            return self.batch.rows
        return max(
            1,
            min(
                self.batch.rows,
                self.internal_batch_size // (self.chosen.samples_per_step * self.chosen.rows_per_sample),
            ),
        )

    def draws_per_pass(self, feature: Tensor) -> int:
        """Draws of the noise that go through the model together."""
        draws = self.chosen.samples_per_step
        if self.internal_batch_size is not None:
            draws = min(draws, max(1, self.internal_batch_size // self.chosen.rows_per_sample))
        if feature.device.type != "cpu" or (self.internal_batch_size is not None and not self.tried_again):
            return draws
        return min(draws, max(1, _BYTES_A_PASS // (self.chosen.rows_per_sample * feature.nbytes)))

    @property
    def n_rows(self) -> int:
        """How many rows go through the model for one bottleneck, each draw of an example counted as one."""
        return (self.chosen.n_steps + self.return_trace) * self.chosen.samples_per_step * self.batch.rows

    def halved(self) -> Job | None:
        """The same with at most half the rows; None where a pass has one example and one draw already."""
        most = self.chosen.samples_per_step * self.chosen.rows_per_sample
        rows = self.batch.rows * most if self.internal_batch_size is None else self.internal_batch_size
        rows = min(rows, self.batch.rows * most)
        if rows <= self.chosen.rows_per_sample:
            return None
        return replace(self, internal_batch_size=rows // 2, tried_again=True)
