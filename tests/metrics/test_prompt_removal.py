"""Metrics for generated text, on functions whose effects are known."""

import math

import pytest
import torch
from scipy.stats import spearmanr

from captum_iba.metrics.part_removal import removal_effects, removal_sequence
from captum_iba.metrics.prompt_removal import linear_datamodeling_score, prompt_degradation

EFFECTS = torch.tensor([1.0, 3.0, 0.5, 0.0])


def log_probability(kept):
    return kept.float() @ EFFECTS


def test_drops_are_those_of_the_parts_in_order():
    result = prompt_degradation(log_probability, [0.2, 0.9, 0.1, 0.2], counts=[1, 2, 3, 9])
    assert result.counts == (1, 2, 3, 4) and result.drops.tolist() == [3, 4, 4, 4.5]  # of equal scores the first one
    assert prompt_degradation(log_probability, EFFECTS, [1, 2], order="lerf").drops.tolist() == [0, 0.5]
    assert prompt_degradation(log_probability, EFFECTS).counts == (1, 1, 1, 2, 2, 3, 3, 4, 4)
    hundred = prompt_degradation(lambda kept: kept.double().sum(1), list(range(100)), fractions=[0.145, 0.285, 0.565])
    assert hundred.counts == (15, 29, 57)  # halves are rounded up, as in degradation
    large = prompt_degradation(
        lambda kept: kept.double() @ torch.tensor([1.0, 2.0]).double(), [2.0**24, 2.0**24 + 1], [1]
    )
    assert large.drops.tolist() == [2]


def test_the_datamodeling_score_is_spearmans_correlation():
    assert linear_datamodeling_score(log_probability, EFFECTS) == pytest.approx(1)
    assert linear_datamodeling_score(log_probability, -EFFECTS) == pytest.approx(-1)
    assert math.isnan(linear_datamodeling_score(log_probability, [0.0, 0.0, 0.0, 0.0]))
    scores, seen = torch.tensor([0.3, 0.1, 0.9, 0.2]), []

    def noted(kept):
        seen.append(kept)
        return log_probability(kept)

    score = linear_datamodeling_score(noted, scores, n_removals=40, seed=3)
    predicted = seen[0].double() @ scores.double()
    assert score == pytest.approx(spearmanr(predicted, log_probability(seen[0])).statistic)
    assert 10 < seen[0].sum(1).float().mean() * 20 < 70 and seen[0].shape == (40, 4)


def test_bad_input():
    for scores in ([[1.0]], [], [math.nan]):
        with pytest.raises(ValueError, match="expected one finite number per part"):
            prompt_degradation(log_probability, scores)
    with pytest.raises(ValueError, match="counts is 0"):
        prompt_degradation(log_probability, EFFECTS, counts=[0])
    with pytest.raises(ValueError, match="order is 'up'"):
        prompt_degradation(log_probability, EFFECTS, order="up")
    with pytest.raises(ValueError, match="fractions is 2"):
        prompt_degradation(log_probability, EFFECTS, fractions=[2])
    with pytest.raises(ValueError, match="kept_fraction is 1"):
        linear_datamodeling_score(log_probability, EFFECTS, kept_fraction=1)


def test_removal_effects_are_the_ends_of_a_shapley_value():
    generator = torch.Generator().manual_seed(0)
    values, seen = torch.randn(32, generator=generator), []

    def of_rows(kept):
        seen.append(len(kept))
        return values[(kept.long() * 2 ** torch.arange(5)).sum(1)]

    whole, effects, without_it = removal_effects(of_rows, [3, 0, 4], 5)
    assert seen == [8] and whole == values[31]
    for part, effect, single in zip([3, 0, 4], effects.tolist(), without_it.tolist(), strict=True):
        alone, last = values[31] - values[31 - 2**part], values[6 + 2**part] - values[6]  # of 1 and 2, the others
        assert effect == pytest.approx(float(alone + last) / 2, abs=1e-6) and single == pytest.approx(float(alone))
    # A linear function has its weights, and each of two equal parts half of their common effect.
    assert removal_effects(log_probability, [0, 1, 3], 4)[1].tolist() == pytest.approx(EFFECTS[[0, 1, 3]].tolist())
    assert removal_effects(lambda kept: kept[:, :2].any(1).float(), [0, 1], 3)[1].tolist() == [0.5, 0.5]
    assert removal_effects(of_rows, [], 5)[1].shape == (0,) and seen[-1] == 1
    for parts in ([0, 0], [5]):
        with pytest.raises(ValueError, match="expected different numbers from 0 to 4"):
            removal_effects(of_rows, parts, 5)


def test_of_parts_that_lower_the_value_as_much_the_first_one_given_comes_first():
    effects = torch.tensor([1.0, 1.04, 0.5, 0.01])
    found = removal_sequence(lambda kept: kept.float() @ effects, [0, 1, 2, 3], n_parts=4)
    assert found.parts == (0, 1, 2)  # the last one adds nothing
    assert removal_sequence(lambda kept: kept.float() @ effects, [0, 1, 2], 4, tolerance=0.0).parts == (1, 0, 2)
    assert found.without.tolist() == pytest.approx([1.55, 0.51, 0.01], abs=1e-6)


def test_a_sequence_of_many_parts_compares_a_few_at_each_step():
    effects, rows = torch.linspace(2.0, 0.1, 20, dtype=torch.float64), []

    def value(kept):
        rows.extend(kept)
        return kept.double() @ effects - (kept[:, 3] | kept[:, 11]).double()  # these two are needed together

    every = removal_sequence(value, range(20), 20, tolerance=0.15)
    n_every = len(rows)
    rows.clear()
    found = removal_sequence(value, range(20), 20, tolerance=0.15, n_compared=3)
    assert found.parts == every.parts and torch.equal(found.without, every.without)
    assert 19 not in found.parts and len(rows) <= 2 * 20 * (1 + 3) < n_every
    with pytest.raises(ValueError, match="n_compared is 0"):
        removal_sequence(value, [0, 1], 20, n_compared=0)


@pytest.mark.parametrize(("each", "tolerance"), [(0.095, 0.1), (0.019, 0.02)])
def test_parts_that_add_little_each_are_not_all_left_out(each, tolerance):
    """One of eight was left, or none: each was compared with the others that were left at the time."""
    found = removal_sequence(lambda kept: each * kept.double().sum(1), range(8), 8, tolerance)
    assert len(found.parts) == 6
    sure = removal_sequence(
        lambda kept: kept.double() @ torch.tensor([5.0, *[each] * 7]).double(), range(8), 8, tolerance
    )
    assert float(sure.without[-1]) <= max(2 * tolerance, 0.2 * (5 + 7 * each)) + 1e-6


def test_a_value_that_is_nan_names_the_removed_parts():
    with pytest.raises(ValueError, match=r"value is NaN without the parts \[0, 2\], expected a number"):
        removal_sequence(lambda kept: torch.where(kept[:, 1] & ~kept[:, 0] & ~kept[:, 2], math.nan, 1.0), [0, 1, 2], 3)
