import math
import sys

import hypothesis.strategies as st
import pytest
import scipy.stats
import torch
from hypothesis import given
from torch import nn

from captum_iba.metrics import cascading_randomization, ground_truth_precision, rank_correlation


class Attention(nn.Module):
    """A parameter of its own and no ``reset_parameters``."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x):
        return x * self.scale


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(Attention(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def gradient(model):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(model(x)[:, 1].sum(), x)[0]


def test_layers_from_the_output_down(model):
    result = cascading_randomization(model, gradient)
    assert result.layers == ("3", "1", "0")
    assert result.correlation.shape == (5, 3)
    assert (result.correlation < 0.99).all()


def test_it_cascades_and_leaves_the_model_alone(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []

    def explain(randomized):
        state = randomized.state_dict()
        seen.append([name for name in before if not torch.equal(before[name], state[name])])
        return gradient(randomized)

    state = torch.get_rng_state()
    cascading_randomization(model, explain, ["3", "0"])
    last = ["3.weight", "3.bias"]
    assert seen == [[], last, ["0.scale", *last]]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_scores_that_ignore_the_model_stay_similar(model):
    result = cascading_randomization(model, lambda model: X)
    torch.testing.assert_close(result.correlation, torch.ones(5, 3, dtype=torch.float64))


def test_only_magnitudes_count(model):
    signs = iter([1, -1, 1, -1])
    result = cascading_randomization(model, lambda model: X * next(signs))
    torch.testing.assert_close(result.correlation, torch.ones(5, 3, dtype=torch.float64))


def test_scores_that_the_mask_leaves_out_do_not_count(model):
    mask = torch.arange(6).expand(5, 6) > 1
    result = cascading_randomization(model, lambda scored: gradient(scored).where(mask, 9.0), mask=mask)
    only_the_others = cascading_randomization(model, lambda scored: gradient(scored)[:, 2:])
    torch.testing.assert_close(result.correlation, only_the_others.correlation)


def test_seed(model):
    runs = [cascading_randomization(model, gradient, seed=seed).correlation for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("layers", [[], ["head"]])
def test_unknown_layers(model, layers):
    with pytest.raises(ValueError, match=r"layers is .* such as \['0', '1', '3'\]"):
        cascading_randomization(model, gradient, layers)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=9))
def test_rank_correlation_is_scipys(pairs):
    a, b = torch.tensor(pairs, dtype=torch.float32).T
    result = rank_correlation(a[None], b[None])
    if len(a.unique()) == 1 or len(b.unique()) == 1:
        assert result.isnan().all()
    else:
        assert result.item() == pytest.approx(scipy.stats.spearmanr(a, b).statistic)


def test_rank_correlation_by_hand():
    # Ranks 1 2 3.5 3.5 and 1 2 4 3.
    result = rank_correlation(torch.tensor([[1.0, 2, 3, 3]]), torch.tensor([[1.0, 5, 9, 7]]))
    assert result.item() == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_mask_and_nan():
    a = torch.tensor([[1.0, 2, 3, 99], [1, 2, torch.nan, 4], [1, 2, 3, 4]])
    b = torch.tensor([[1.0, 2, 3, -99], [1, 2, 3, 4], [4, 3, 2, 1]])
    mask = torch.ones(3, 4)
    mask[0, 3] = 0
    result = rank_correlation(a, b, mask)
    assert result[0].item() == pytest.approx(1)
    assert result[1].isnan()
    assert result[2].item() == pytest.approx(-1)
    mask[0, 1:] = 0
    assert rank_correlation(a, b, mask)[0].isnan()


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="expected one shape"):
        rank_correlation(X, X[:, :5])
    with pytest.raises(ValueError, match="expected one shape"):
        rank_correlation(X, X, torch.ones(6))


def test_missing_scipy_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ModuleNotFoundError, match=r"rank_correlation needs scipy: pip install 'captum-iba\[plot\]'"):
        rank_correlation(X, X)


GROUND_TRUTH = torch.tensor([[0, 1, 1, 0]]).bool()


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
def test_ground_truth_precision_by_hand(scores, expected):
    assert ground_truth_precision(torch.tensor([scores]), GROUND_TRUTH).tolist() == [expected]


def test_ground_truth_precision_sums_hidden_dimensions():
    scores = torch.tensor([[[5.0, -5], [1, 0], [1, 1], [0, 0]]])
    assert ground_truth_precision(scores, GROUND_TRUTH).tolist() == [1]


def test_ground_truth_precision_leaves_special_tokens_out():
    scores = torch.tensor([[9.0, 2, 3, 9]])
    assert ground_truth_precision(
        scores, GROUND_TRUTH, GROUND_TRUTH | torch.tensor([[0, 0, 0, 0]]).bool()
    ).tolist() == [1]
    removable = torch.tensor([[1, 1, 0, 1]])
    assert ground_truth_precision(scores, GROUND_TRUTH, removable).tolist() == [0]


def test_ground_truth_precision_per_example():
    ground_truth = torch.tensor([[True, False], [False, True], [False, False]])
    precision = ground_truth_precision(torch.tensor([[2.0, 1], [2, 1], [2, 1]]), ground_truth)
    assert precision[:2].tolist() == [1, 0]
    assert precision[2].isnan()


@pytest.mark.parametrize("shape", [(1, 3), (4,), (1, 4, 2, 2)])
def test_ground_truth_precision_of_wrong_shapes(shape):
    with pytest.raises(ValueError, match="attributions and masks have the shapes"):
        ground_truth_precision(torch.zeros(shape), GROUND_TRUTH)


def test_a_model_in_training_mode_is_left_as_it_was():
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    cascading_randomization(model, lambda scored: scored(torch.linspace(-1, 1, 35).view(7, 5)))
    assert int(model[1].num_batches_tracked) == 0 and model.training
