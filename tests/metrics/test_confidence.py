import itertools
import math
import sys

import pytest
import torch

from captum_iba.metrics import Interval, mean_over_seeds, paired_bootstrap


def test_interval_of_a_normal_sample():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
    interval = paired_bootstrap(values)
    assert interval.mean == pytest.approx(values.mean().item())
    # The textbook's interval, mean +- 1.96 standard errors.
    error = values.std().item() / 20
    assert interval.low == pytest.approx(interval.mean - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(interval.mean + 1.96 * error, abs=0.1 * error)


def test_percentiles_of_all_resamples():
    # Of (0, 0, 0, 0, 0, 1): low is 0, since a third of the resamples have no 1.
    interval = paired_bootstrap([0.0, 0, 0, 0, 0, 1])
    means = sorted(sum(draw) / 6 for draw in itertools.product([0, 0, 0, 0, 0, 1], repeat=6))
    assert interval.low == 0
    assert interval.mean < interval.high <= means[-1]


def test_pairs_are_kept_together():
    spread = torch.linspace(0, 100, 50)
    better = spread + 1 + 0.1 * torch.tensor([1.0, -1.0]).repeat(25)
    interval = paired_bootstrap(better, spread)
    assert interval.mean == pytest.approx(1, abs=1e-4)
    assert interval.excludes_zero
    assert interval.high - interval.low < 0.1
    # Not paired, the spread of the examples hides the difference.
    unpaired = [paired_bootstrap(values) for values in (better, spread)]
    assert unpaired[0].low < unpaired[1].high


def test_the_reverse_difference_is_negated():
    a, b = torch.rand(2, 40, generator=torch.Generator().manual_seed(0))
    there, back = paired_bootstrap(a, b), paired_bootstrap(b, a)
    assert (back.mean, back.low, back.high) == pytest.approx((-there.mean, -there.high, -there.low), abs=0.01)


@pytest.mark.parametrize("values", [[0.25] * 7, [0.1], [0.0, 0.0]])
def test_constant_values(values):
    assert paired_bootstrap(values) == Interval(values[0], values[0], values[0])


def test_equal_differences_are_constant():
    a = torch.rand(20, generator=torch.Generator().manual_seed(0))
    interval = paired_bootstrap(a + 1, a)
    assert interval.low <= interval.mean <= interval.high
    assert interval.high - interval.low < 1e-6
    assert interval.excludes_zero
    same = paired_bootstrap(a, a)
    assert same == Interval(0, 0, 0)
    assert not same.excludes_zero


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_nearly_constant_values_give_numbers(count):
    interval = paired_bootstrap([0.0] * (count - 1) + [1.0])
    assert all(math.isfinite(value) for value in interval)
    assert interval.low <= interval.mean <= interval.high


def test_seed():
    values = torch.rand(30, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    assert paired_bootstrap(values, seed=3) == paired_bootstrap(values, seed=3)
    assert paired_bootstrap(values, seed=3) != paired_bootstrap(values, seed=4)
    assert torch.equal(torch.get_rng_state(), state)


def test_confidence():
    values = torch.rand(50, generator=torch.Generator().manual_seed(0))
    wide, narrow = (paired_bootstrap(values, confidence=confidence) for confidence in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([], None, "a has the shape"),
        ([[1.0]], None, "a has the shape"),
        ([1.0, math.nan], None, r"a is NaN or infinite at \[1\]"),
        ([1.0, 2.0], [1.0], "b has 1 values, expected as many as a, 2"),
    ],
)
def test_bad_values(a, b, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(a, b)


def test_missing_scipy_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ModuleNotFoundError, match=r"captum-iba\[plot\]"):
        paired_bootstrap([0.0, 1.0])


def test_mean_over_seeds():
    means = mean_over_seeds([torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]), [0.5, 4.0]])
    assert means.tolist() == [0.5, 2.0]
    with pytest.raises(ValueError, match=r"runs have \[1, 2\] values"):
        mean_over_seeds([[1.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match=r"runs have \[\] values"):
        mean_over_seeds([])
