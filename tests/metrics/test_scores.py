import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from captum_iba.metrics import (
    METRICS,
    Degradation,
    aopc,
    area_between,
    comprehensiveness,
    decision_flip_rate,
    degraded_floor,
    log_odds,
    normalized_curve,
    probability_drop,
    sufficiency,
)

HALVES = [0.5, 1.0]


def made(probability, decision=None, fraction=None):
    """A result with these probabilities."""
    p = torch.tensor(probability)
    steps = torch.linspace(0, 1, p.shape[1]).expand_as(p) if fraction is None else torch.tensor(fraction)
    chosen = torch.zeros_like(p, dtype=torch.int64) if decision is None else torch.tensor(decision)
    return Degradation(p, p.logit(), chosen, steps)


MORF = made([[0.9, 0.5, 0.2], [0.6, 0.6, 0.4]], [[1, 1, 0], [1, 2, 1]])
LERF = made([[0.9, 0.8, 0.2], [0.6, 0.7, 0.4]])


def close(values, expected):
    torch.testing.assert_close(values, torch.tensor(expected))


def test_probability_drop():
    close(probability_drop(MORF, 0.5, HALVES), [0.4, 0.0])
    close(probability_drop(MORF, 1.0, HALVES), [0.7, 0.2])


def test_probability_drop_at_one_ninth_is_the_default():
    close(probability_drop(made([[0.9, 0.7, *[0.1] * 8]])), [0.2])


def test_aopc_counts_the_step_that_removes_nothing():
    close(aopc(MORF), [(0 + 0.4 + 0.7) / 3, (0 + 0 + 0.2) / 3])


def test_comprehensiveness_does_not():
    close(comprehensiveness(MORF, fractions=HALVES), [(0.4 + 0.7) / 2, 0.1])
    close(comprehensiveness(MORF, [0.5], HALVES), [0.4, 0.0])


def test_sufficiency_keeps_the_top():
    # Keeping the top half is removing the lower half; keeping all loses nothing.
    close(sufficiency(LERF, [0.5], HALVES), [0.1, -0.1])
    close(sufficiency(LERF, [0.5, 1.0], HALVES), [0.05, -0.05])
    close(sufficiency(LERF, fractions=HALVES), [0.1, -0.1])


def test_sufficiency_by_default_keeps_something():
    close(sufficiency(made([[0.9, *[0.7] * 8, 0.0]])), [0.2])


def test_log_odds():
    close(log_odds(MORF, 0.5, HALVES), [math.log(0.5 / 0.9), 0.0])
    assert log_odds(made([[0.5, 0.0]]), 1.0, [1.0]).isfinite().all()


def test_area_between():
    # Trapezoids: (0.9 + 2 * 0.8 + 0.2) / 4 - (0.9 + 2 * 0.5 + 0.2) / 4
    close(area_between(MORF, LERF), [0.15, 0.05])


def test_area_is_over_what_was_really_removed():
    fraction = [[0.0, 1.0, 1.0]]
    close(area_between(made([[0.8, 0.2, 0.2]], fraction=fraction), made([[0.8, 0.4, 0.4]], fraction=fraction)), [0.1])


def test_decision_flip_rate():
    close(decision_flip_rate(MORF, 0.5, HALVES), [0.0, 1.0])
    close(decision_flip_rate(MORF, 1.0, HALVES), [1.0, 0.0])


def test_normalized_curve_is_of_means_with_one_floor():
    other = made([[0.9, 0.7, 0.0], [0.6, 0.6, 0.2]])
    floor = degraded_floor([MORF, other])
    assert floor == pytest.approx(0.1)
    # Means of MORF: 0.75, 0.55, 0.3; the floor is the other method's.
    close(normalized_curve(MORF, floor), [1.0, 0.45 / 0.65, 0.2 / 0.65])
    close(normalized_curve(other, floor), [1.0, 0.55 / 0.65, 0.0])


def test_normalized_curve_without_a_span_is_nan():
    assert normalized_curve(made([[0.5, 0.5]]), 0.5).isnan().all()


def naive_aopc(curves):
    """Samek et al. 2017: 1 / (L + 1) times the mean over images of the sum over k = 0 ... L of f(x0) - f(xk)."""
    sums = [sum(curve[0] - value for value in curve) for curve in curves]
    return sum(sums) / len(sums) / len(curves[0])


def naive_comprehensiveness(whole, without):
    """ERASER, metrics.py: the average over instances and thresholds of beta_0 - beta_k."""
    differences = [beta_0 - beta for beta_0, betas in zip(whole, without, strict=True) for beta in betas]
    return sum(differences) / len(differences)


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=10, max_size=10), min_size=1, max_size=6))
def test_agree_with_the_formulas_written_out(curves):
    result = made(curves)
    assert aopc(result).mean().item() == pytest.approx(naive_aopc(curves), abs=1e-5)
    expected = naive_comprehensiveness([curve[0] for curve in curves], [curve[1:] for curve in curves])
    assert comprehensiveness(result).mean().item() == pytest.approx(expected, abs=1e-5)
    assert area_between(result, result).tolist() == [0] * len(curves)
    # With the same fractions the two differ by the divisor only.
    torch.testing.assert_close(aopc(result) * 10, comprehensiveness(result) * 9)


@pytest.mark.parametrize("name", METRICS)
def test_registry(name):
    """Every metric has one value per example, and says truly which of two methods is better."""
    metric = METRICS[name]
    good = {"morf": made([[0.9] + 9 * [0.2]] * 2, [[1] + 9 * [0]] * 2), "lerf": made([[0.9] * 9 + [0.2]] * 2)}
    bad = {"morf": good["lerf"], "lerf": good["morf"]}
    values = [metric(**results) for results in (good, bad)]
    assert all(value.shape == (2,) for value in values)
    assert bool((values[0] > values[1]).all()) == metric.higher_is_better
    assert bool((values[0] < values[1]).all()) != metric.higher_is_better
    assert metric.name == name and metric.title and metric.source and metric.formula


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda: probability_drop(MORF, 0.3, HALVES), r"fraction is 0.3, expected one of \[0.5, 1.0\]"),
        (lambda: probability_drop(MORF), "fractions has 9 entries, expected the 2"),
        (lambda: comprehensiveness(MORF, [], HALVES), "over is empty"),
        (lambda: sufficiency(LERF, [0.3], HALVES), "fraction is 0.7"),
        (lambda: area_between(MORF, made([[0.9, 0.2]])), r"lerf has the shape \(1, 2\)"),
    ],
)
def test_errors(compute, message):
    with pytest.raises(ValueError, match=message):
        compute()
