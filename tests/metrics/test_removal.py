"""Ranks of the features in the order of removal, against a loop over examples, groups and scores."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from captum_iba.metrics.removal import NEVER, rank_as_released, rank_features

# Quarters: ties occur, and sums are exact.
numbers = st.one_of(st.integers(-8, 8).map(lambda n: n / 4), st.sampled_from([math.nan, math.inf, -math.inf]))
features = st.tuples(numbers, st.sampled_from([-7, 0, 1, 2, 10**12]), st.booleans())
batches = st.integers(0, 9).flatmap(
    lambda size: st.lists(st.lists(features, min_size=size, max_size=size), min_size=1, max_size=4)
)


def looped(row, order):
    """Ranks of one example, and how many groups it has."""
    members = {}
    for position, (score, group, removable) in enumerate(row):
        if removable:
            members.setdefault(group, []).append((position, score))
    sums = {group: sum(score for _, score in items) for group, items in members.items()}
    sign = -1 if order == "morf" else 1
    # Python's sort is stable; NaN cannot be compared, so it is 0 behind all others.
    removal = sorted(sums, key=lambda group: (True, 0) if math.isnan(sums[group]) else (False, sign * sums[group]))
    ranks = [NEVER] * len(row)
    for rank, group in enumerate(removal):
        for position, _ in members[group]:
            ranks[position] = rank
    return ranks, len(members)


def columns(batch):
    scores = torch.tensor([[score for score, _, _ in row] for row in batch], dtype=torch.float64)
    groups = torch.tensor([[group for _, group, _ in row] for row in batch], dtype=torch.int64)
    removable = torch.tensor([[removable for *_, removable in row] for row in batch], dtype=torch.bool)
    return scores, groups, removable


@given(batches, st.sampled_from(["morf", "lerf"]))
def test_ranks_are_those_of_a_loop(batch, order):
    ranks, available = rank_features(*columns(batch), order)
    expected = [looped(row, order) for row in batch]
    assert ranks.tolist() == [row for row, _ in expected]
    assert available.tolist() == [count for _, count in expected]


@pytest.mark.parametrize(("order", "expected"), [("morf", [NEVER, 1, 0, NEVER]), ("lerf", [NEVER, 0, NEVER, NEVER])])
def test_as_released_the_last_ranked_token_is_never_removed(order, expected):
    scores, special = torch.tensor([[0.0, 1, 2, 0.5]]).double(), torch.tensor([[True, False, False, True]])
    ranks, available = rank_as_released(scores, ~special, torch.ones_like(special), order)
    assert ranks.tolist() == [expected]
    assert available.tolist() == [4 - expected.count(NEVER)]
