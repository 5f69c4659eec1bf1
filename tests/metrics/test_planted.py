import math

import pytest
import torch

from captum_iba.metrics import planted_token_precision

PLANTED = torch.tensor([[0, 1, 1, 0]]).bool()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0, 2, 3, 1], 1.0),
        ([9, 2, 3, 1], 0.5),
        ([9, 2, 3, 8], 0.0),
        ([-1, 0, 0, -1], 1.0),
        ([1, 1, 1, 1], 0.0),  # a tie counts against
        ([1, 1, 2, 0], 0.5),
        ([0, math.nan, 1, 0], 0.5),
        ([math.nan, 1, 2, math.nan], 1.0),
        ([0, math.inf, 1, -math.inf], 1.0),
    ],
)
def test_by_hand(scores, expected):
    assert planted_token_precision(torch.tensor([scores]), PLANTED).tolist() == [expected]


def test_hidden_features_are_summed():
    scores = torch.tensor([[[5.0, -5], [1, 0], [1, 1], [0, 0]]])
    assert planted_token_precision(scores, PLANTED).tolist() == [1]


def test_special_tokens_do_not_count():
    scores = torch.tensor([[9.0, 2, 3, 9]])
    assert planted_token_precision(scores, PLANTED, PLANTED | torch.tensor([[0, 0, 0, 0]]).bool()).tolist() == [1]
    removable = torch.tensor([[1, 1, 0, 1]])
    assert planted_token_precision(scores, PLANTED, removable).tolist() == [0]


def test_each_example_for_itself():
    planted = torch.tensor([[True, False], [False, True], [False, False]])
    found = planted_token_precision(torch.tensor([[2.0, 1], [2, 1], [2, 1]]), planted)
    assert found[:2].tolist() == [1, 0]
    assert found[2].isnan()


@pytest.mark.parametrize("shape", [(1, 3), (4,), (1, 4, 2, 2)])
def test_shapes(shape):
    with pytest.raises(ValueError, match="attributions and masks have the shapes"):
        planted_token_precision(torch.zeros(shape), PLANTED)
