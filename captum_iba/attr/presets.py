"""Settings that belong together, by name."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

GRANULARITIES = ("token", "feature", "channel")

OPEN = 5.0
"""Where the mask starts, before the sigmoid: open, at 0.993."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: Any, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}, expected {expected}")


@dataclass(frozen=True)
class Settings:
    """What an attribution is computed with.

    Args:
        granularity (str): What shares one mask value: ``"token"`` (all features of a position), ``"feature"``
            (nothing is shared) or ``"channel"`` (all positions of a feature).
        beta (float): Weight of the mean information per element, in nats, against the loss.
        n_steps (int): Updates of the mask.
        n_samples (int): Draws of the noise a step; 0: its mean, once, in place of draws.
        complement (float): Weight of what is held back against the loss: it must not suffice.
        learning_rate (float): Of Adam.
        momentum (float): Of Adam: by how much the mean of the gradients outlives a step.
        antithetic (bool): Draws come in pairs, the second with the noise of the first turned round.
        alternate (bool): Steps take turns where there is a complement: one looks at what the mask lets through, the
            next, with the same noise, at what it holds back.
        own_input (bool): The noise of the published code: its mean is the layer's input, element by element, and
            its standard deviation is ``sqrt(1e-5)``.
    """

    granularity: str
    beta: float
    n_steps: int
    n_samples: int
    complement: float = 0.0
    learning_rate: float = 1.0
    momentum: float = 0.9
    antithetic: bool = False
    alternate: bool = False
    own_input: bool = False

    def __post_init__(self) -> None:
        if self.granularity not in GRANULARITIES:
            raise ValueError(f"granularity is {self.granularity!r}, expected one of {', '.join(GRANULARITIES)}")
        _require(_is_number(self.beta) and self.beta >= 0, "beta", self.beta, "a number of at least 0")
        _require(
            _is_number(self.complement) and self.complement >= 0,
            "complement",
            self.complement,
            "a number of at least 0",
        )
        _require(_is_count(self.n_steps) and self.n_steps >= 0, "n_steps", self.n_steps, "an integer of at least 0")
        _require(
            _is_count(self.n_samples) and self.n_samples >= 0,
            "n_samples",
            self.n_samples,
            "an integer of at least 0",
        )
        _require(
            _is_number(self.learning_rate) and self.learning_rate > 0,
            "learning_rate",
            self.learning_rate,
            "a positive number",
        )
        _require(
            _is_number(self.momentum) and 0 <= self.momentum < 1,
            "momentum",
            self.momentum,
            "a number of at least 0 and less than 1",
        )
        _require(isinstance(self.antithetic, bool), "antithetic", self.antithetic, "True or False")
        _require(isinstance(self.alternate, bool), "alternate", self.alternate, "True or False")

    @property
    def draws(self) -> int:
        """Passes through the bottleneck a step: the mean of the noise is one, too."""
        return max(1, self.n_samples)

    @property
    def alternates(self) -> bool:
        """Whether steps take turns."""
        return self.alternate and self.complement > 0

    @property
    def sides(self) -> int:
        """Rows a draw: what the mask lets through, and in the same pass what it holds back, if that counts."""
        return 2 if self.complement and not self.alternate else 1

    def turns(self, step: int) -> list[tuple[tuple[int, ...], float]]:
        """What goes through the model in a step: sides (0: let through, 1: held back), and what they weigh.

        Those that go together stand together; what weighs nothing is of use for a trace only.
        """
        if not self.complement:
            return [((0,), 1.0)]
        if not self.alternate:
            return [((0, 1), 1.0)]
        # Every second step each: twice the weight makes the sum of two steps that of both sides.
        return [((step % 2,), 2.0), ((1 - step % 2,), 0.0)]


PRESETS = {
    # One mask value a token, statistics of a data set, and the complement: docs/settings has the measurements.
    "default": Settings(
        "token",
        beta=10.0,
        n_steps=16,
        n_samples=1,
        complement=1.0,
        learning_rate=1.0,
        momentum=0.5,
        antithetic=True,
        alternate=True,
    ),
    # Jiang et al. (2020), sections 3 and 4.1.
    "paper": Settings("feature", beta=1e-5, n_steps=10, n_samples=10),
    # The published code reads the information off its tenth pass, so its tenth update counts for nothing.
    "as_released": Settings("feature", beta=1e-5, n_steps=9, n_samples=10, own_input=True),
}


def settings(preset: str = "default", **changes: Any) -> Settings:
    """The settings of a preset, with every change that is not None.

    Raises:
        ValueError: an unknown preset, or a value out of range.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}, expected one of {', '.join(PRESETS)}")
    known = {field.name for field in fields(Settings)}
    given = {name: value for name, value in changes.items() if value is not None}
    assert set(given) <= known
    return replace(PRESETS[preset], **given)


def presets() -> dict[str, dict[str, Any]]:
    """What each preset stands for now: what is kept on disk depends on it as on the versions of libraries."""
    return {name: asdict(chosen) for name, chosen in PRESETS.items()}
