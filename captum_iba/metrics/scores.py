"""Scores of a degradation test: one value per example from one or two :class:`Degradation`.

Conventions differ between libraries under the same names; each function says whose formula it is. They take the results
of :func:`degradation` in the orders that :data:`METRICS` lists ("morf", "lerf", or both), and the ``fractions`` that it
was called with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from captum_iba.metrics.degradation import Degradation
from captum_iba.metrics.removal import NINTHS


@dataclass(frozen=True)
class Metric:
    """A metric of :data:`METRICS`; called with both results it returns one value per example, (B,).

    Args:
        name (str): Name of the function.
        title (str): Title of its column in tables.
        function (Callable): Function of one or two results.
        higher_is_better (bool): Whether higher values speak for the attribution method.
        source (str): Paper of the formula.
        formula (str): The formula in words.
        orders (tuple of str): Results that ``function`` takes: "morf", "lerf".
        settings (dict): Keyword arguments of ``function``.
    """

    name: str
    title: str
    function: Callable[..., Tensor]
    higher_is_better: bool
    source: str
    formula: str
    orders: tuple[str, ...]
    settings: dict[str, Any]

    def __call__(self, morf: Degradation, lerf: Degradation) -> Tensor:
        """Values of B examples, (B,), from the results of both orders."""
        results = {"morf": morf, "lerf": lerf}
        return self.function(*(results[order] for order in self.orders), **self.settings)


METRICS: dict[str, Metric] = {}
"""The registry of metrics with one value per example, by name. Tables have those of ``compare.tables.COLUMNS``."""

_ERASER = "ERASER, DeYoung et al. 2020, as its code computes it"
_TO_HALF = NINTHS[:4]  # ERASER's fractions end at one half
_Function = TypeVar("_Function", bound=Callable[..., Tensor])


def _metric(
    title: str, source: str, formula: str, orders: str = "morf", higher_is_better: bool = True, **settings: Any
) -> Callable[[_Function], _Function]:
    """Add a function to :data:`METRICS`."""

    def add(function: _Function) -> _Function:
        name = function.__name__
        METRICS[name] = Metric(
            name, title, function, higher_is_better, source, formula, tuple(orders.split()), settings
        )
        return function

    return add


@_metric(
    "drop at 1/9",
    "Jiang et al. 2020, table 1",
    "decrease in the probability of the explained class without the top ninth of the tokens",
)
def probability_drop(result: Degradation, fraction: float = 1 / 9, fractions: Sequence[float] = NINTHS) -> Tensor:
    r"""
    Decrease in target probability without the top fraction: :math:`p(x) - p(x \setminus r_k)`.

    Table 1 of Jiang et al., Findings of EMNLP 2020, at 1/9. Higher is better for most relevant first.

    Args:
        result (Degradation): Result for B examples.
        fraction (float): One of ``fractions``. Default: 1/9
        fractions (sequence of float): Fractions (or counts) that ``degradation`` was called with.
                    Default: its default, ninths

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: A fraction that is not among ``fractions``, or ``fractions`` that do not fit the result.

    Examples::

        >>> p = torch.tensor([[0.9, 0.6, 0.3]])
        >>> result = Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]]))
        >>> probability_drop(result, 0.5, fractions=[0.5, 1.0])
        tensor([0.3000])
    """
    return result.probability[:, 0] - result.probability[:, _column(result, fraction, fractions)]


@_metric("AOPC", "Samek et al. 2017", "mean decrease over all steps, from 0/9 to 9/9 removed")
def aopc(result: Degradation) -> Tensor:
    r"""
    Area over the perturbation curve: :math:`\frac{1}{S + 1} \sum_{k=0}^{S} p(x^{(0)}) - p(x^{(k)})`.

    Samek et al., "Evaluating the Visualization of What a Deep Neural Network Has Learned", 2017: the first step, which
    removes nothing, counts in the divisor. The paper of ERASER (DeYoung et al., 2020) writes the same; its code leaves
    the first step out, as :func:`comprehensiveness` does. Quantus returns the single differences (RegionPerturbation).
    Higher is better for most relevant first.

    Args:
        result (Degradation): Result for B examples.

    Returns:
        *Tensor*: (B,).

    Examples::

        >>> p = torch.tensor([[0.9, 0.6, 0.3]])
        >>> result = Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]]))
        >>> aopc(result)  # (0 + 0.3 + 0.6) / 3
        tensor([0.3000])
    """
    return (result.probability[:, :1] - result.probability).mean(1)


@_metric("comprehensiveness", _ERASER, "mean decrease without the top 1/9 to 4/9", over=_TO_HALF)
def comprehensiveness(
    morf: Degradation, over: Iterable[float] | None = None, fractions: Sequence[float] = NINTHS
) -> Tensor:
    r"""
    Mean decrease in target probability without the top features: the mean of :math:`p(x) - p(x \setminus r_k)`.

    ERASER, DeYoung et al., ACL 2020, as its code computes it: the mean over the fractions (its paper counts the empty
    fraction too: :func:`aopc`). ERASER takes the fractions 1, 5, 10, 20 and 50 %. ferret takes every count of tokens,
    and leaves a step that removes nothing more out of the mean; here every fraction counts. Higher is better.

    Args:
        morf (Degradation): Result of most relevant first for B examples.
        over (iterable of float, optional): Removed fractions, each one of ``fractions``.
                    Default: None, all of them
        fractions (sequence of float): Fractions that ``degradation`` was called with. Default: its default, ninths

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: As :func:`probability_drop`.

    Examples::

        >>> p = torch.tensor([[0.9, 0.6, 0.3]])
        >>> morf = Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]]))
        >>> comprehensiveness(morf, fractions=[0.5, 1.0])  # (0.3 + 0.6) / 2
        tensor([0.4500])
    """
    return _mean_drop(morf, list(fractions if over is None else over), fractions)


@_metric("sufficiency", _ERASER, "mean decrease with only the top 1/9 to 4/9 kept", "lerf", False, over=_TO_HALF)
def sufficiency(lerf: Degradation, over: Iterable[float] | None = None, fractions: Sequence[float] = NINTHS) -> Tensor:
    r"""
    Mean decrease in target probability with only the top features: the mean over fractions of :math:`p(x) - p(r_k)`.

    ERASER, DeYoung et al., ACL 2020, as its code computes it. To keep the top fraction is to remove the least relevant
    ``1 - fraction``, a point of the LeRF curve; the number of removed features is rounded, not that of kept ones.
    Lower is better.

    Args:
        lerf (Degradation): Result of least relevant first for B examples.
        over (iterable of float, optional): Kept fractions, ``1 - fraction`` each one of ``fractions``.
                    Default: None, all but those that keep nothing; with the default fractions 1/9, ... 8/9
        fractions (sequence of float): Fractions that ``degradation`` was called with. Default: its default, ninths

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: As :func:`probability_drop`.

    Examples::

        >>> p = torch.tensor([[0.9, 0.8, 0.3]])
        >>> lerf = Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]]))
        >>> sufficiency(lerf, over=[0.5], fractions=[0.5, 1.0])  # only the top half is kept
        tensor([0.1000])
    """
    if max(fractions, default=0) > 1:
        raise ValueError(f"fractions is {list(fractions)}, expected fractions, not counts: what is left is a fraction")
    removed = [fraction for fraction in fractions if fraction < 1] if over is None else [1 - kept for kept in over]
    return _mean_drop(lerf, removed, fractions)


@_metric(
    "log-odds at 1/9",
    "Chen et al. 2020",
    "logarithm of the probability without the top ninth, minus that of the complete text",
    higher_is_better=False,
)
def log_odds(result: Degradation, fraction: float = 1 / 9, fractions: Sequence[float] = NINTHS) -> Tensor:
    r"""
    :math:`\log p(x \setminus r_k) - \log p(x)`, natural logarithm.

    "Log-odds" as Chen, Zheng and Ji, "Generating Hierarchical Explanations on Text Classification via Feature
    Interaction Detection", ACL 2020, define it: a ratio of probabilities, not of odds. Lower is better for most
    relevant first. A probability of 0 counts as the smallest normal number of its type: all values are finite.

    Args:
        result, fraction, fractions: As in :func:`probability_drop`.

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: As :func:`probability_drop`.

    Examples::

        >>> p = torch.tensor([[0.8, 0.4]])
        >>> result = Degradation(p, p.logit(), torch.tensor([[1, 0]]), torch.tensor([[0.0, 1.0]]))
        >>> log_odds(result, fraction=1.0, fractions=[1.0])
        tensor([-0.6931])
    """
    logarithm = result.probability.clamp(min=torch.finfo(result.probability.dtype).tiny).log()
    return logarithm[:, _column(result, fraction, fractions)] - logarithm[:, 0]


@_metric(
    "LeRF−MoRF",
    "Schulz et al. 2020, not scaled",
    "area between the curves of least and most relevant first; 0 for random scores",
    "morf lerf",
)
def area_between(morf: Degradation, lerf: Degradation) -> Tensor:
    r"""
    Area between the curves of least and of most relevant first, :math:`\int p_{LeRF} - p_{MoRF}`.

    The degradation score of Schulz et al., "Restricting the Flow", ICLR 2020 (there of probabilities that are scaled
    to their range over the dataset), by trapezoids over the fraction that was really removed: random scores give 0 on
    average, and a step that removes no more than the one before has no width. Higher is better.

    Args:
        morf (Degradation): Result of most relevant first for B examples.
        lerf (Degradation): Result of least relevant first for the same examples and fractions.

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: Results of different shapes or fractions.

    Examples::

        >>> decision, fraction = torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]])
        >>> p, q = torch.tensor([[0.9, 0.5, 0.2]]), torch.tensor([[0.9, 0.8, 0.2]])
        >>> area_between(Degradation(p, p.logit(), decision, fraction), Degradation(q, q.logit(), decision, fraction))
        tensor([0.1500])
    """
    if morf.probability.shape != lerf.probability.shape:
        raise ValueError(
            f"lerf has the shape {tuple(lerf.probability.shape)}, "
            f"expected that of morf, {tuple(morf.probability.shape)}"
        )
    asked = [result.requested for result in (morf, lerf) if result.requested is not None]
    if len(asked) == 2 and not torch.equal(*asked):
        steps = [[round(value, 4) for value in requested[0].tolist()] for requested in asked]
        raise ValueError(f"lerf has the fractions or counts {steps[1]}, expected those of morf, {steps[0]}")
    return torch.trapezoid(lerf.probability, lerf.fraction) - torch.trapezoid(morf.probability, morf.fraction)


@_metric("deletion", "Petsiuk et al. 2018", "area under the curve of most relevant first", higher_is_better=False)
def deletion_area(morf: Degradation) -> Tensor:
    r"""
    Area under the deletion curve, :math:`\int p_{MoRF}`: the mean target probability while features are removed.

    Petsiuk, Das and Saenko, "RISE", BMVC 2018, by trapezoids over the fraction that was really removed. Lower is
    better. It counts the probability of the complete example too: compare methods on the same examples.

    Args:
        morf (Degradation): Result of most relevant first for B examples; up to the fraction 1, as all areas.

    Returns:
        *Tensor*: (B,).

    Examples::

        >>> p = torch.tensor([[0.9, 0.5, 0.2]])
        >>> deletion_area(Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]])))
        tensor([0.5250])
    """
    return torch.trapezoid(morf.probability, morf.fraction)


@_metric("insertion", "Petsiuk et al. 2018", "area under the curve of least relevant first, read backwards", "lerf")
def insertion_area(lerf: Degradation) -> Tensor:
    r"""
    Area under the insertion curve: the mean target probability while features are inserted, most relevant first.

    Petsiuk, Das and Saenko, "RISE", BMVC 2018. To insert the top fraction into an empty example is to remove the least
    relevant rest, so that this is :math:`\int p_{LeRF}`. The paper inserts pixels into a blurred image:
    ``perturbation=BaselineValue(blurred)``. Higher is better.

    Args:
        lerf (Degradation): Result of least relevant first for B examples.

    Returns:
        *Tensor*: (B,).

    Examples::

        >>> p = torch.tensor([[0.9, 0.8, 0.2]])
        >>> insertion_area(Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]])))
        tensor([0.6750])
    """
    return torch.trapezoid(lerf.probability, lerf.fraction)


@_metric(
    "flips at 1/9",
    "Serrano and Smith 2019, of a fraction",
    "fraction of the texts whose most probable class changes without the top ninth",
)
def decision_flip_rate(result: Degradation, fraction: float = 1 / 9, fractions: Sequence[float] = NINTHS) -> Tensor:
    """
    1 where the most probable class changes without the top fraction, else 0; the mean is the rate.

    "Decision flip" of Serrano and Smith, "Is Attention Interpretable?", ACL 2019, who remove the single
    most relevant feature; here a fraction. Higher is better for most relevant first.

    Args:
        result, fraction, fractions: As in :func:`probability_drop`.

    Returns:
        *Tensor*: (B,), of the type of the probabilities; NaN where these are.

    Raises:
        ValueError: As :func:`probability_drop`.

    Examples::

        >>> p = torch.tensor([[0.8, 0.4]])
        >>> result = Degradation(p, p.logit(), torch.tensor([[1, 0]]), torch.tensor([[0.0, 1.0]]))
        >>> decision_flip_rate(result, fraction=1.0, fractions=[1.0])
        tensor([1.])
    """
    column = _column(result, fraction, fractions)
    flipped = (result.decision[:, column] != result.decision[:, 0]).to(result.probability.dtype)
    unknown = result.probability[:, [0, column]].isnan().any(1)
    return flipped.masked_fill(unknown, float("nan"))


def degraded_floor(results: Iterable[Degradation]) -> float:
    """
    Lowest mean target probability of the fully degraded examples among all compared methods.

    Args:
        results (iterable of Degradation): One result per method, all of the same examples.

    Returns:
        *float*: :math:`m` of :func:`normalized_curve`, the same for all methods.

    Raises:
        ValueError: A result whose last fraction is below 1.

    Examples::

        >>> p = torch.tensor([[0.9, 0.6, 0.25]])
        >>> result = Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]]))
        >>> degraded_floor([result])
        0.25
    """
    means = []
    for result in results:
        last = 1.0 if result.requested is None else float(result.requested[0, -1])
        if last > 1:  # counts
            last = float(result.fraction[:, -1].where(result.fraction[:, -1] > 0, 1.0).min())
        if last < 1:
            raise ValueError(f"results has one that ends at the fraction {last:.4g}, expected 1, all removed")
        means.append(float(result.probability[:, -1].mean()))
    return min(means)


def normalized_curve(result: Degradation, floor: float) -> Tensor:
    r"""
    Mean curve between the complete examples and the floor: :math:`d_k = (\bar p_k - m) / (o - m)`.

    The figures of Jiang et al., Findings of EMNLP 2020, on means over the dataset: :math:`o` is the mean probability of
    the complete examples. Lower is better for most relevant first.

    Args:
        result (Degradation): Result for B examples.
        floor (float): :math:`m`, one for all methods: :func:`degraded_floor`.

    Returns:
        *Tensor*: (S + 1,), 1 at the start; NaN throughout where the start is no higher than the floor.

    Examples::

        >>> p = torch.tensor([[0.9, 0.6, 0.1]])
        >>> result = Degradation(p, p.logit(), torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]]))
        >>> normalized_curve(result, floor=0.1)
        tensor([1.0000, 0.6250, 0.0000])
    """
    mean = result.probability.mean(0)
    span = mean[0] - floor
    return (mean - floor) / span.where(span > 0, torch.nan)


def normalized_area_between(morf: Degradation, lerf: Degradation, floor: float) -> Tensor:
    r"""
    Area between the curves between the complete examples and the floor: :func:`area_between` over :math:`o - m`.

    Schulz et al., "Restricting the Flow", ICLR 2020: curves are scaled so that the mean probability of the complete
    examples, :math:`o`, is 1 and the floor :math:`m` is 0. Higher is better.

    Args:
        morf, lerf (Degradation): Results of both orders for B examples.
        floor (float): :math:`m`, one for all methods: :func:`degraded_floor`.

    Returns:
        *Tensor*: (B,), NaN where the complete examples are no higher than the floor.

    Raises:
        ValueError: As :func:`area_between`.

    Examples::

        >>> decision, fraction = torch.tensor([[1, 1, 0]]), torch.tensor([[0.0, 0.5, 1.0]])
        >>> p, q = torch.tensor([[0.9, 0.5, 0.2]]), torch.tensor([[0.9, 0.8, 0.2]])
        >>> morf = Degradation(p, p.logit(), decision, fraction)
        >>> lerf = Degradation(q, q.logit(), decision, fraction)
        >>> normalized_area_between(morf, lerf, degraded_floor([morf, lerf]))  # 0.15 / 0.7
        tensor([0.2143])
    """
    span = morf.probability[:, 0].mean() - floor
    return area_between(morf, lerf) / span.where(span > 0, torch.nan)


def _mean_drop(result: Degradation, removed: list[float], fractions: Sequence[float]) -> Tensor:
    if not removed:
        raise ValueError(f"over is empty, expected at least one fraction, of {[round(f, 4) for f in fractions]}")
    # Where nothing is removed, nothing is lost.
    columns = [0 if fraction == 0 else _column(result, fraction, fractions) for fraction in removed]
    return (result.probability[:, :1] - result.probability[:, columns]).mean(1)


def _column(result: Degradation, fraction: float, fractions: Sequence[float]) -> int:
    steps = result.probability.shape[1] - 1
    if len(fractions) != steps:
        raise ValueError(
            f"fractions has {len(fractions)} entries, expected the {steps} with which the result was computed"
        )
    asked = torch.tensor([float(candidate) for candidate in fractions])
    if result.requested is not None and not bool(torch.isclose(result.requested[:, 1:], asked, atol=1e-6).all()):
        expected = [round(value, 4) for value in result.requested[0, 1:].tolist()]
        raise ValueError(
            f"fractions is {[round(float(candidate), 4) for candidate in fractions]}, expected the fractions or counts "
            f"with which the result was computed, {expected}"
        )
    for column, candidate in enumerate(fractions, 1):
        if abs(candidate - fraction) < 1e-6:
            return column
    raise ValueError(f"fraction is {fraction}, expected one of {[round(candidate, 4) for candidate in fractions]}")
