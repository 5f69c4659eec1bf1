"""Counting as in the published code, against its procedure written down plainly: one text, one list at a time."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from captum_iba.metrics import Delete, degradation
from tests.metrics.bag import CLS, PAD, SEP, bag


def published(tokens, special, scores, order, steps=10):
    """Kept tokens at every step: fractions of all tokens; the scan over the ranking stops before its last entry."""
    counts = list(dict.fromkeys(int(count) for count in np.round(np.linspace(0, 1, steps) * len(tokens))))
    counts += [counts[-1]] * (steps - len(counts))
    ranking = np.argsort([-score if order == "morf" else score for score in scores], kind="stable")
    remaining = []
    for count in counts:
        removed = []
        for index in ranking[:-1]:
            if len(removed) < count and not special[index]:
                removed.append(index)
        remaining.append([token for i, token in enumerate(tokens) if i not in removed])
    return remaining


def ours(tokens, special, scores, order, padded=0):
    ids = torch.tensor([[*tokens, *[PAD] * padded]])
    mask = torch.tensor([[1] * len(tokens) + [0] * padded])
    removable = torch.tensor([[not is_special for is_special in special] + [False] * padded])
    # Padding is scored highest and lowest in turn, which must not matter.
    values = torch.tensor([[*scores, *[(-1.0) ** i * 1e9 for i in range(padded)]]], dtype=torch.float64)
    return degradation(
        bag,
        ids,
        values,
        1,
        mask,
        removable_mask=removable,
        perturbation=Delete(PAD),
        order=order,
        counting="as_released",
    )


@given(
    st.lists(st.tuples(st.integers(10, 90), st.integers(-4, 4)), min_size=0, max_size=25),
    st.tuples(st.integers(-4, 4), st.integers(-4, 4)),
    st.sampled_from(["morf", "lerf"]),
    st.integers(0, 3),
)
def test_agrees_with_the_plain_procedure(text, ends, order, padded):
    tokens = [CLS, *(token for token, _ in text), SEP]
    special = [True, *[False] * len(text), True]
    scores = [float(ends[0]), *(float(score) for _, score in text), float(ends[1])]
    result = ours(tokens, special, scores, order, padded)
    remaining = published(tokens, special, scores, order)
    worth = [sum(token for token in row if token > SEP) / 10 for row in remaining]
    torch.testing.assert_close(result.logit, torch.tensor([worth]), rtol=1e-5, atol=1e-4)
    fractions = [(len(tokens) - len(row)) / max(1, len(text)) for row in remaining]
    torch.testing.assert_close(result.fraction, torch.tensor([fractions]))


def test_by_hand():
    # Five tokens, ninths of them round to 1 1 2 2 3 3 4 4 5, so the steps remove 1 2 3 4 5 5 5 5 5, and never 10.
    result = ours([CLS, 10, 20, 30, SEP], [True, False, False, False, True], [9, 1, 3, 2, 9], "morf")
    assert result.logit.tolist() == [pytest.approx([6, 4, 1, 1, 1, 1, 1, 1, 1, 1])]
    assert result.fraction.tolist() == [pytest.approx([0, 1 / 3, *[2 / 3] * 8])]


def test_a_special_token_that_ranks_last_does_not_keep_another():
    result = ours([CLS, 10, 20, SEP], [True, False, False, True], [0, 1, 2, 3], "morf")
    assert result.fraction[0, -1] == 1
