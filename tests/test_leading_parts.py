"""The search for leading parts: more that is measured never gives worse ones, and groups grow where few leave most."""

import itertools
import math

import numpy as np
import pytest
import torch

from captum_iba._explain.check import Attempt, Progress, compare_with_others, kept_in_check, with_check
from captum_iba._explain.leading_parts import GroupSearch, larger_group, leading_in_order
from captum_iba._reading.check_sentences import CheckSentences
from captum_iba._reading.removal_check import PromptCheck
from captum_iba.metrics.part_removal import kept_without


def of_overlapping_parts(seed, n_parts=14):
    """A value that falls far only where several parts go together, as where words say the same."""
    generator = torch.Generator().manual_seed(seed)
    says = torch.rand(n_parts, 3, generator=generator, dtype=torch.float64) ** 3
    return lambda kept: ((kept.double() @ says).clamp(max=2.0)).sum(1)


@pytest.mark.parametrize("seed", range(6))
def test_a_larger_group_is_nearly_the_best_of_its_size(seed):
    value, n_parts = of_overlapping_parts(seed), 14
    whole = float(value(torch.ones(1, n_parts, dtype=torch.bool)))
    found = larger_group(value, range(n_parts), 0.4 * whole, n_parts, tolerance=0.05)
    assert 2 <= len(found) == len({*found}) <= n_parts // 2
    _, left = leading_in_order(value, np.arange(n_parts), 0, 0.05, known=found)
    assert left[-1] <= 0.4 * whole + 0.2 * (whole - left[-1]) and left == sorted(left, reverse=True)
    every = list(itertools.combinations(range(n_parts), len(found)))
    best = float(value(kept_without(every, n_parts)).min())
    assert whole - left[-1] >= 0.9 * (whole - best)


def test_no_larger_group_where_parts_hardly_lower_the_value():
    value = of_overlapping_parts(0)
    assert larger_group(lambda kept: 5.0 + 0.01 * value(kept), range(14), 1.0, 14, tolerance=0.001) == []
    assert larger_group(value, [3], 0.0, 14, tolerance=0.1) == []


class Explained:
    """The leading parts of an attempt, and what is left without them."""

    def __init__(self, attempt, leading, left):
        self.attempt, self.leading, self.left = attempt, list(leading), left

    def progress(self):
        return Progress(1.0, self.left, self.leading, self.attempt.n_measured, n_parts=40)


def explained(left, count, larger=None):
    """The explanation with a check, where ``left`` has the leading parts and what they leave, by the number measured.

    What parts leave that are given is the least that these numbers of parts leave.
    """
    attempts = []

    def attempted(new):
        attempts.append(new)
        if new.leading:
            return Explained(new, new.leading, dict(left.values())[tuple(new.leading)])
        return Explained(new, *left[new.n_measured])

    found = with_check(attempted, count, 24, lambda found: (), Explained.progress, larger)
    return found, attempts


def test_leading_parts_of_fewer_measured_parts_stay_where_more_give_worse_ones():
    """Of 8 measured words 5 left 36.6%, another class, "confirmed"; of 24 two left 80.1%."""
    left = {8: ((1, 2, 3), 0.2), 24: ((1, 2), 0.8), 40: ((4,), 0.19)}
    found, _ = explained(left, 24)
    assert (found.leading, found.left, found.attempt.n_measured) == ([1, 2, 3], 0.2, 24)
    found, _ = explained(left, 40)
    assert (found.leading, found.left, found.attempt.n_measured) == ([4], 0.19, 40)
    found, attempts = explained(left, 8)
    assert found.leading == [1, 2, 3] and {new.n_measured for new in attempts} == {8}


def test_a_larger_group_leads_where_few_parts_leave_most():
    wanted = []

    def larger(found, enough):
        wanted.append((found.leading, enough))
        return (1, 2, 3, 4)

    left = {8: ((1, 2), 0.7), 24: ((5, 6), 0.7), 0: ((1, 2, 3, 4), 0.3)}
    found, _ = explained(left, 8, larger)
    assert found.leading == [1, 2, 3, 4] and wanted == [([5, 6], 0.25)]
    assert explained(left | {0: ((1, 2, 3, 4), 0.65)}, 8, larger)[0].leading == [5, 6]
    assert explained(left, 8, lambda found, enough: ())[0].leading == [5, 6]
    wanted.clear()
    assert explained({8: ((1, 2), 0.2)}, 8, larger)[0].leading == [1, 2] and not wanted


def test_an_attempt_measures_what_is_asked_for():
    left = {4: ((1,), 0.1), 8: ((1,), 0.1), 12: ((1,), 0.1)}
    for count in (4, 12):
        found, attempts = explained(left, count)
        assert found.attempt.n_measured == count and attempts[0] == Attempt(min(count, 8))
    assert len(explained({0: ((1,), 0.1)}, 0)[1]) == 1


def test_leading_parts_end_where_the_probability_has_fallen_also_after_an_exchange():
    """A third part took 3.9% to 3.3% of 54.8%, behind two that were found in place of others."""
    weights = torch.tensor([3.0, 0.6, 1.0, 1.0, 0.55], dtype=torch.float64)

    def value(kept):
        removed = 1 - kept.double()
        together = 3.0 * removed[:, 0] * removed[:, 4]
        return 2.0 - removed @ weights - together

    found, without = leading_in_order(value, np.arange(5), 4, 0.1, GroupSearch([4]), probabilities=torch.sigmoid)
    chances = [1 / (1 + math.exp(-x)) for x in (2.0, *without)]
    assert {0, 4} <= {*found}
    assert chances[0] - chances[-2] < 0.95 * (chances[0] - chances[-1])


@pytest.mark.parametrize("seed", range(20))
def test_every_leading_part_adds_to_the_others(seed):
    """After the last ones were cut off, "the" led, and the probability was lower with it than without it."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(10, generator=generator, dtype=torch.float64)
    both = torch.randn(10, 10, generator=generator, dtype=torch.float64)

    def value(kept):
        removed = 1 - kept.double()
        return -(removed @ weights + 0.5 * ((removed @ both) * removed).sum(1))

    for search in (None, GroupSearch(range(10), range(10))):
        for probabilities in (None, torch.sigmoid):
            found, left = leading_in_order(
                value, np.arange(10), 8, 0.1, search, n_parts=10, probabilities=probabilities
            )
            others = [[part for part in found if part != one] for one in found]
            without_others = value(kept_without(others, 10)) if len(found) > 1 else torch.tensor([math.inf])
            assert float(without_others.min()) > left[-1] + 0.1 - 1e-9, (found, search is None)


def test_where_fewer_parts_are_left_than_lead_these_are_removed_together():
    """Three of four parts led, and nothing was compared, though the fourth alone leaves nearly everything."""

    def probabilities(kept):
        return (0.1 + 0.2 * kept[:, :3].sum(1) + 0.05 * kept[:, 3:].all(1)).tolist()

    compared = kept_in_check(np.arange(4), 3, seed=0, by_bits=np.arange(4))
    assert compared.tolist() == [[True] * 4, [False, False, False, True], [True, True, True, False]]
    fields, _ = compare_with_others(probabilities, compared, leading=[0, 1, 2])
    assert fields["n_random"] == 0 and math.isnan(fields["without_random"])
    check = PromptCheck(**fields)
    assert check.without_rest == pytest.approx(0.7) and PromptCheck.from_dict(check.to_dict()) == check
    said = CheckSentences(check, 3, 4, "the probability", "part")
    assert said.title == "Check of the leading parts" and said.verdict == ""
    assert [row.what for row in said.rows] == [
        "with the whole prompt",
        "without the 3 leading parts",
        "without the other part",
    ]
    assert kept_in_check(np.arange(3), 3, seed=0, by_bits=np.arange(3)).shape == (2, 3)
