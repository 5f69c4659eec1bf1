"""One call of ``attribute``: what it was given, and how much of it goes through the model at once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from captum_iba.attr.batch import Batch
from captum_iba.attr.losses import LossFunction
from captum_iba.attr.presets import Settings

# On a CPU, passes with larger features are slower a row: what one operation writes no longer lies in the cache when
# the next one reads it, and fresh memory is fetched from the system for every pass.
_BYTES_A_PASS = 2 * 2**20


@dataclass(frozen=True)
class Job:
    """One call of ``attribute``."""

    batch: Batch
    feature_mask: Tensor | None
    bottleneck_mask: Tensor | None
    chosen: Settings
    loss: str | LossFunction | None
    seed: int
    internal_batch_size: int | None
    replay: bool
    return_trace: bool

    @property
    def examples_per_pass(self) -> int:
        """Examples that are optimised together."""
        if self.internal_batch_size is None:
            return self.batch.rows
        return max(1, self.internal_batch_size // (self.chosen.n_samples * self.chosen.sides))

    def draws_per_pass(self, feature: Tensor) -> int:
        """Draws of the noise that go through the model together."""
        draws = self.chosen.n_samples
        if self.internal_batch_size is not None:
            return min(draws, max(1, self.internal_batch_size // self.chosen.sides))
        if feature.device.type != "cpu":
            return draws
        return min(draws, max(1, _BYTES_A_PASS // (self.chosen.sides * feature.nbytes)))

    @property
    def n_draws(self) -> int:
        """How many draws go through the model for one bottleneck."""
        steps = self.chosen.n_steps + self.return_trace
        return steps * self.chosen.n_samples * -(-self.batch.rows // self.examples_per_pass)
