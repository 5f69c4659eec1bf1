"""What is read off degraded examples: pure functions of one or two :class:`Degradation`, a value an example.

Conventions differ between libraries under the same names; each function says whose formula it is. They take the results
of :func:`degradation` in the order that :data:`METRICS` lists ("morf", "lerf", or both), and the ``shares`` that it
was called with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from captum_iba.metrics.ranking import NINTHS

if TYPE_CHECKING:
    from captum_iba.metrics.degradation import Degradation


def probability_drop(result: Degradation, share: float = 1 / 9, shares: Sequence[float] = NINTHS) -> Tensor:
    r"""
    How far the target's probability falls without the top share: :math:`p(x) - p(x \setminus r_k)`.

    The table of Jiang et al., Findings of EMNLP 2020, at 1/9. Higher is better for most relevant first.

    Args:
        result (Degradation): Of B examples.
        share (float): One of ``shares``. Default: 1/9
        shares (sequence of float): With which ``degradation`` was called. Default: its own

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: a share that is not among ``shares``, or ``shares`` that do not fit the result.

    Examples::

        >>> probability_drop(degradation(...)).mean()
    """
    return result.probability[:, 0] - result.probability[:, _column(result, share, shares)]


def aopc(result: Degradation) -> Tensor:
    r"""
    Area over the perturbation curve: :math:`\frac{1}{S + 1} \sum_{k=0}^{S} p(x^{(0)}) - p(x^{(k)})`.

    Samek et al., "Evaluating the Visualization of What a Deep Neural Network Has Learned", 2017: the first step, which
    removes nothing, counts in the divisor. The paper of ERASER (DeYoung et al., 2020) writes the same; its code leaves
    the first step out, as :func:`comprehensiveness` does. Quantus gives the single differences (RegionPerturbation).
    Higher is better for most relevant first.

    Args:
        result (Degradation): Of B examples.

    Returns:
        *Tensor*: (B,).

    Examples::

        >>> aopc(Degradation(probability=torch.tensor([[0.9, 0.6, 0.3]]), ...))  # (0 + 0.3 + 0.6) / 3
        tensor([0.3000])
    """
    return (result.probability[:, :1] - result.probability).mean(1)


def comprehensiveness(
    morf: Degradation, over: Iterable[float] | None = None, shares: Sequence[float] = NINTHS
) -> Tensor:
    r"""
    What the top-scored features are worth to the rest: the mean over shares of :math:`p(x) - p(x \setminus r_k)`.

    ERASER, DeYoung et al., ACL 2020, as its code computes it: the mean over the shares (its paper counts the empty
    share too: :func:`aopc`). ERASER takes the shares 1, 5, 10, 20 and 50 %. ferret takes every count of tokens, and
    leaves a step that removes nothing more out of the mean; here every share counts. Higher is better.

    Args:
        morf (Degradation): Most relevant first, of B examples.
        over (iterable of float, optional): Shares, each one of ``shares``.
                    Default: all of them
        shares (sequence of float): With which ``degradation`` was called. Default: its own

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: as :func:`probability_drop`.

    Examples::

        >>> comprehensiveness(degradation(..., shares=bins), shares=bins)  # bins = [0.01, 0.05, 0.1, 0.2, 0.5]
    """
    return _mean_drop(morf, list(shares if over is None else over), shares)


def sufficiency(lerf: Degradation, over: Iterable[float] | None = None, shares: Sequence[float] = NINTHS) -> Tensor:
    r"""
    What is missing where only the top-scored features are kept: the mean over shares of :math:`p(x) - p(r_k)`.

    ERASER, DeYoung et al., ACL 2020, as its code computes it. To keep the top share is to remove the least relevant
    ``1 - share``, a point of the LeRF curve; what is removed is rounded, not what is kept. Lower is better.

    Args:
        lerf (Degradation): Least relevant first, of B examples.
        over (iterable of float, optional): Shares that are kept, ``1 - share`` each one of ``shares``.
                    Default: all but those that keep nothing; with the default shares 1/9, ... 8/9
        shares (sequence of float): With which ``degradation`` was called. Default: its own

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: as :func:`probability_drop`.

    Examples::

        >>> sufficiency(degradation(..., order="lerf"), over=[1 / 9])  # only the top ninth is kept
    """
    removed = [share for share in shares if share < 1] if over is None else [1 - share for share in over]
    return _mean_drop(lerf, removed, shares)


def log_odds(result: Degradation, share: float = 1 / 9, shares: Sequence[float] = NINTHS) -> Tensor:
    r"""
    :math:`\log p(x \setminus r_k) - \log p(x)`, natural logarithm.

    "Log-odds" as Chen, Zheng and Ji, "Generating Hierarchical Explanations on Text Classification via Feature
    Interaction Detection", ACL 2020, define it: a ratio of probabilities, not of odds. Lower is better for most
    relevant first. A probability of 0 counts as the smallest normal number of its type: all values are finite.

    Args:
        result, share, shares: As in :func:`probability_drop`.

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: as :func:`probability_drop`.

    Examples::

        >>> log_odds(Degradation(probability=torch.tensor([[0.8, 0.4]]), ...), share=1.0, shares=[1.0])
        tensor([-0.6931])
    """
    logarithm = result.probability.clamp(min=torch.finfo(result.probability.dtype).tiny).log()
    return logarithm[:, _column(result, share, shares)] - logarithm[:, 0]


def area_between(morf: Degradation, lerf: Degradation) -> Tensor:
    r"""
    The area between the curves of least and of most relevant first, :math:`\int p_{LeRF} - p_{MoRF}`.

    The degradation score of Schulz et al., "Restricting the Flow", ICLR 2020 (there of probabilities that are scaled
    to their range over the set), by trapezoids over the share that was really removed: random scores give 0 on
    average, and a step that removes no more than the one before has no width. Higher is better.

    Args:
        morf (Degradation): Most relevant first, of B examples.
        lerf (Degradation): Least relevant first, of the same, at the same shares.

    Returns:
        *Tensor*: (B,).

    Raises:
        ValueError: results of different shapes.

    Examples::

        >>> area_between(degradation(...), degradation(..., order="lerf"))
    """
    if morf.probability.shape != lerf.probability.shape:
        raise ValueError(
            f"lerf has the shape {tuple(lerf.probability.shape)}, "
            f"expected that of morf, {tuple(morf.probability.shape)}"
        )
    return torch.trapezoid(lerf.probability, lerf.share) - torch.trapezoid(morf.probability, morf.share)


def decision_flip_rate(result: Degradation, share: float = 1 / 9, shares: Sequence[float] = NINTHS) -> Tensor:
    """
    1 where the most probable class is another one without the top share, else 0; the mean is the rate.

    "Decision flip" of Serrano and Smith, "Is Attention Interpretable?", ACL 2019, who remove the single
    most relevant; here the share. Higher is better for most relevant first.

    Args:
        result, share, shares: As in :func:`probability_drop`.

    Returns:
        *Tensor*: (B,), of the type of the probabilities.

    Raises:
        ValueError: as :func:`probability_drop`.

    Examples::

        >>> decision_flip_rate(degradation(...)).mean()
    """
    flipped = result.decision[:, _column(result, share, shares)] != result.decision[:, 0]
    return flipped.to(result.probability.dtype)


def degraded_floor(results: Iterable[Degradation]) -> float:
    """
    The lowest mean probability of the fully degraded set among all methods that are compared.

    Args:
        results (iterable of Degradation): One a method, all of the same examples.

    Returns:
        *float*: :math:`m` of :func:`normalised_curve`, the same for all methods.

    Examples::

        >>> floor = degraded_floor([morf_of_iba, morf_of_ig])
    """
    return min(float(result.probability[:, -1].mean()) for result in results)


def normalised_curve(result: Degradation, floor: float) -> Tensor:
    r"""
    The mean curve between the whole text and the floor: :math:`d_k = (\bar p_k - m) / (o - m)`.

    The figures of Jiang et al., Findings of EMNLP 2020, on means over the set: :math:`o` is the mean probability of
    the whole examples. Lower is better for most relevant first.

    Args:
        result (Degradation): Of B examples.
        floor (float): :math:`m`, one for all methods: :func:`degraded_floor`.

    Returns:
        *Tensor*: (S + 1,), 1 at the start; NaN throughout where the start is no higher than the floor.

    Examples::

        >>> normalised_curve(morf_of_iba, degraded_floor([morf_of_iba, morf_of_ig]))
    """
    mean = result.probability.mean(0)
    span = mean[0] - floor
    return (mean - floor) / span.where(span > 0, torch.nan)


@dataclass(frozen=True)
class Metric:
    """A metric of :data:`METRICS`.

    Args:
        function (Callable): Takes one result for each of ``orders``, gives (B,).
        higher_is_better (bool): In which direction a method is better.
        orders (tuple of str): Which results it takes: "morf", "lerf".
        source (str): Whose formula it is.
    """

    function: Callable[..., Tensor]
    higher_is_better: bool
    orders: tuple[str, ...]
    source: str


METRICS: dict[str, Metric] = {
    "probability_drop": Metric(probability_drop, True, ("morf",), "Jiang et al. 2020, table 1"),
    "aopc": Metric(aopc, True, ("morf",), "Samek et al. 2017"),
    "comprehensiveness": Metric(comprehensiveness, True, ("morf",), "ERASER (DeYoung et al. 2020), as its code"),
    "sufficiency": Metric(sufficiency, False, ("lerf",), "ERASER (DeYoung et al. 2020), as its code"),
    "log_odds": Metric(log_odds, False, ("morf",), "Chen et al. 2020"),
    "area_between": Metric(area_between, True, ("morf", "lerf"), "Schulz et al. 2020, not scaled"),
    "decision_flip_rate": Metric(decision_flip_rate, True, ("morf",), "Serrano and Smith 2019, of a share"),
}
"""Every metric with a value an example, by name."""


def _mean_drop(result: Degradation, removed: list[float], shares: Sequence[float]) -> Tensor:
    if not removed:
        raise ValueError(f"over is empty, expected at least one share, of {[round(share, 4) for share in shares]}")
    # Where nothing is removed, nothing is lost.
    columns = [0 if share == 0 else _column(result, share, shares) for share in removed]
    return (result.probability[:, :1] - result.probability[:, columns]).mean(1)


def _column(result: Degradation, share: float, shares: Sequence[float]) -> int:
    steps = result.probability.shape[1] - 1
    if len(shares) != steps:
        raise ValueError(f"shares has {len(shares)} entries, expected the {steps} with which the result was computed")
    found = [k for k, one in enumerate(shares, 1) if abs(one - share) < 1e-6]
    if not found:
        raise ValueError(f"share is {share}, expected one of {[round(one, 4) for one in shares]}")
    return found[0]
