"""The settings of an attribution: the only list of them, their valid values, and the presets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from captum_iba._checks import check_choice, check_flag, check_integer, check_number

if TYPE_CHECKING:
    from typing_extensions import Unpack

GRANULARITIES = ("token", "feature", "channel")

INITIAL_MASK_LOGIT = 5.0
"""Mask logit before the first step; its sigmoid, 0.993, lets nearly everything through."""
CLOSED_MASK_LOGIT = -20.0
"""Mask logit of a closed mask; its sigmoid is 2e-9."""


class SettingsOverrides(TypedDict, total=False):
    """Keyword arguments that override single settings of a preset; None keeps the preset's value."""

    granularity: str | None
    beta: float | None
    n_steps: int | None
    n_samples: int | None
    complement: float | None
    learning_rate: float | None
    momentum: float | None
    tail_average: float | None
    antithetic: bool | None
    alternate: bool | None
    smoothing: float | None


_check_count = partial(check_integer, at_least=0)
_check_weight = partial(check_number, accepts=lambda number: number >= 0, expected="a number of at least 0")
_check_momentum = partial(
    check_number, accepts=lambda number: 0 <= number < 1, expected="a number of at least 0 and less than 1"
)
_check_fraction = partial(check_number, accepts=lambda number: 0 <= number <= 1, expected="a number from 0 to 1")
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "granularity": partial(check_choice, choices=GRANULARITIES),
    "beta": _check_weight,
    "n_steps": _check_count,
    "n_samples": _check_count,
    "complement": _check_weight,
    "learning_rate": check_number,
    "momentum": _check_momentum,
    "tail_average": _check_fraction,
    "antithetic": check_flag,
    "alternate": check_flag,
    "noise_around_input": check_flag,
    "smoothing": _check_weight,
}


@dataclass(frozen=True)
class BottleneckSettings:
    r"""
    What an attribution by an information bottleneck is computed with.

    Args:
        granularity (str): Elements that share one mask value: ``"token"``, all features of a position (of a token in
            (B, T, D), of a pixel in (B, C, H, W)); ``"feature"``, none; ``"channel"``, all positions of a feature.
        beta (float): Weight of the mean information per element, in nats, against the loss. It is a mean over the
            maskable elements, so it means the same for every length.
        n_steps (int): Number of optimizer steps. 0 gives the information in the layer before the mask is optimized.
        n_samples (int): Number of noise samples per step. 0 uses the mean of the noise, :math:`\lambda X + (1 -
            \lambda) m`, in one forward pass. It is cheaper and not stochastic; the information is still computed for
            the noise.
        complement (float): Weight of the complement loss. The complement mask :math:`1 - \lambda` lets through
            :math:`(1 - \lambda) X + \lambda \varepsilon`, which must not suffice for the prediction: its loss is
            :math:`-\log(1 - p)`, or minus the loss where the loss has no probability. So the mask keeps everything that
            the prediction could rest on. Each noise sample takes a second row, unless steps ``alternate``. 0 leaves the
            complement out. Default: 0.
        learning_rate (float): Adam learning rate, of the mask logits. Default: 1.
        momentum (float): Adam :math:`\beta_1`. Default: 0.9.
        tail_average (float): Fraction of the steps, from the last one back, whose mask logits are averaged to the final
            mask (Polyak-Ruppert averaging). 0 keeps the last ones only. Default: 0.
        antithetic (bool): Noise samples come in antithetic pairs: the second is the negated first. A pair lies within a
            step, or in two steps where there is one sample per step. Default: False.
        alternate (bool): With a complement, even steps compute the loss and odd steps the complement loss, with the
            same noise and twice the weight. So a noise sample takes one row instead of two. Default: False.
        noise_around_input (bool): Noise of the published code: its mean is the layer's input, element by element, and
            its standard deviation is ``sqrt(1e-5)``. Default: False.
        smoothing (float): Standard deviation, in positions, of the Gaussian that smooths the mask over the positions of
            (B, C, H, W) or (B, H, W, C) after the sigmoid, as in Schulz et al. (2020). 0 is off. Default: 0.

    Raises:
        ValueError: A value that is out of range.

    Examples::

        >>> BottleneckSettings("token", beta=10.0, n_steps=16, n_samples=1).rows_per_sample
        1
    """

    granularity: str
    beta: float
    n_steps: int
    n_samples: int
    complement: float = 0.0
    learning_rate: float = 1.0
    momentum: float = 0.9
    tail_average: float = 0.0
    antithetic: bool = False
    alternate: bool = False
    noise_around_input: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))

    @property
    def samples_per_step(self) -> int:
        """Number of forward passes per example and step, without the complement: the mean of the noise is one, too."""
        return max(1, self.n_samples)

    @property
    def alternates(self) -> bool:
        """Whether steps alternate between the loss and the complement loss."""
        return self.alternate and self.complement > 0

    @property
    def rows_per_sample(self) -> int:
        """Rows of a forward pass per noise sample: 2 if the complement is computed in the same pass."""
        return 2 if self.complement and not self.alternate else 1

    @property
    def averaged_steps(self) -> int:
        """Number of the last steps whose mask logits are averaged; at least that of the last one."""
        return max(1, round(self.tail_average * self.n_steps))

    def masks_of_step(self, step: int) -> list[tuple[tuple[int, ...], float]]:
        """Masks that are evaluated in a step (0: the mask, 1: its complement) and the weight of their gradient.

        Masks of one forward pass are in one entry. An entry with weight 0 is needed for a trace only.
        """
        if not self.complement:
            return [((0,), 1.0)]
        if not self.alternate:
            return [((0, 1), 1.0)]
        # Each is evaluated in every second step: twice the weight makes two steps the sum of both losses.
        return [((step % 2,), 2.0), ((1 - step % 2,), 0.0)]


PRESETS = {
    # One mask value per token, dataset statistics, and the complement: docs/settings.md has the measurements.
    "default": BottleneckSettings(
        "token",
        beta=10.0,
        n_steps=16,
        n_samples=0,
        complement=1.0,
        learning_rate=1.0,
        momentum=0.5,
        tail_average=0.5,
        antithetic=True,  # for those who set n_samples
        alternate=True,
    ),
    # Jiang et al. (2020), sections 3 and 4.1.
    "paper": BottleneckSettings("feature", beta=1e-5, n_steps=10, n_samples=10),
    # The published code reads the information off its tenth pass, so its tenth update has no effect.
    "as_released": BottleneckSettings("feature", beta=1e-5, n_steps=9, n_samples=10, noise_around_input=True),
}


def resolve_settings(
    preset: str | BottleneckSettings = "default", **overrides: Unpack[SettingsOverrides]
) -> BottleneckSettings:
    r"""
    Settings of a preset with overrides.

    Args:
        preset (str or BottleneckSettings): ``"default"``, ``"paper"``, ``"as_released"``, or settings. Default:
            "default".
        **overrides: Fields of :class:`BottleneckSettings`; None keeps the preset's value.

    Returns:
        BottleneckSettings

    Raises:
        ValueError: An unknown preset, or a value that is out of range.
        TypeError: A keyword that is not a setting.

    Examples::

        >>> resolve_settings("paper", n_samples=5).n_samples
        5
    """
    if isinstance(preset, str) and preset in PRESETS:
        settings = PRESETS[preset]
    elif isinstance(preset, BottleneckSettings):
        settings = preset
    else:
        raise ValueError(f"preset is {preset!r}, expected one of {', '.join(PRESETS)}, or BottleneckSettings")
    known = [field.name for field in fields(BottleneckSettings)]
    if unknown := [name for name in overrides if name not in known]:
        raise TypeError(f"{unknown[0]!r} is not a setting, expected one of {', '.join(known)}")
    changes: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return replace(settings, **changes)


def preset_values() -> dict[str, dict[str, Any]]:
    """Settings of each preset as dictionaries: results kept on disk depend on them."""
    return {name: asdict(settings) for name, settings in PRESETS.items()}


Result = TypeVar("Result")

SMALLER_BETAS = (3.0, 1.0)
"""Values of ``beta`` that a default tries in turn where its own removes so much that the prediction is lost."""


def with_smaller_betas(
    results: Sequence[Result], is_lost: Callable[[Result], bool], explain: Callable[[list[int], float], list[Result]]
) -> list[Result]:
    """Results of which those that lost the prediction are computed again, by the first smaller ``beta`` that keeps it.

    Args:
        results (sequence): Results by the default's own ``beta``.
        is_lost (callable): Whether the mask of a result has lost the prediction.
        explain (callable): Function of the numbers of results, and of ``beta``, that returns them anew.

    Returns:
        list: As many results; by the last of :data:`SMALLER_BETAS` where all lose it.

    Examples::

        >>> with_smaller_betas([10.0, 0.5], lambda beta: beta > 2, lambda numbers, beta: [beta] * len(numbers))
        [1.0, 0.5]
    """
    best = list(results)
    for beta in SMALLER_BETAS:
        if lost := [number for number, result in enumerate(best) if is_lost(result)]:
            for number, result in zip(lost, explain(lost, beta), strict=True):
                best[number] = result
    return best
