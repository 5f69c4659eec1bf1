import hypothesis.strategies as st
import pytest
import scipy.stats
import torch
from hypothesis import given
from torch import nn

from captum_iba.metrics import cascading_randomisation, rank_correlation


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
    found = cascading_randomisation(model, gradient)
    assert found.layers == ("3", "1", "0")
    assert found.correlation.shape == (5, 3)
    assert (found.correlation < 0.99).all()


def test_it_cascades_and_leaves_the_model_alone(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []

    def explain(one):
        state = one.state_dict()
        seen.append([name for name in before if not torch.equal(before[name], state[name])])
        return gradient(one)

    state = torch.get_rng_state()
    cascading_randomisation(model, explain, ["3", "0"])
    last = ["3.weight", "3.bias"]
    assert seen == [[], last, ["0.scale", *last]]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_scores_that_ignore_the_model_stay_alike(model):
    found = cascading_randomisation(model, lambda one: X)
    torch.testing.assert_close(found.correlation, torch.ones(5, 3, dtype=torch.float64))


def test_only_magnitudes_count(model):
    signs = iter([1, -1, 1, -1])
    found = cascading_randomisation(model, lambda one: X * next(signs))
    torch.testing.assert_close(found.correlation, torch.ones(5, 3, dtype=torch.float64))


def test_seed(model):
    runs = [cascading_randomisation(model, gradient, seed=seed).correlation for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("layers", [[], ["head"]])
def test_unknown_layers(model, layers):
    with pytest.raises(ValueError, match=r"layers is .* such as \['0', '1', '3'\]"):
        cascading_randomisation(model, gradient, layers)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=9))
def test_rank_correlation_is_scipys(pairs):
    a, b = torch.tensor(pairs, dtype=torch.float32).T
    found = rank_correlation(a[None], b[None])
    if len(a.unique()) == 1 or len(b.unique()) == 1:
        assert found.isnan().all()
    else:
        assert found.item() == pytest.approx(scipy.stats.spearmanr(a, b).statistic)


def test_rank_correlation_by_hand():
    # Ranks 1 2 3.5 3.5 and 1 2 4 3.
    found = rank_correlation(torch.tensor([[1.0, 2, 3, 3]]), torch.tensor([[1.0, 5, 9, 7]]))
    assert found.item() == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_mask_and_nan():
    a = torch.tensor([[1.0, 2, 3, 99], [1, 2, torch.nan, 4], [1, 2, 3, 4]])
    b = torch.tensor([[1.0, 2, 3, -99], [1, 2, 3, 4], [4, 3, 2, 1]])
    mask = torch.ones(3, 4)
    mask[0, 3] = 0
    found = rank_correlation(a, b, mask)
    assert found[0].item() == pytest.approx(1)
    assert found[1].isnan()
    assert found[2].item() == pytest.approx(-1)
    mask[0, 1:] = 0
    assert rank_correlation(a, b, mask)[0].isnan()


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="expected one shape"):
        rank_correlation(X, X[:, :5])
    with pytest.raises(ValueError, match="expected one shape"):
        rank_correlation(X, X, torch.ones(6))
