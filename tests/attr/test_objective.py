"""The mathematics, against float64, closed forms and numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr import resolve_settings
from captum_iba.attr.objective import apply_bottleneck, information, standard_noise
from captum_iba.attr.optimizer import unneeded_bits

CPU = torch.device("cpu")
EXTREMES = [(a, x) for a in (-40.0, -5.0, 0.0, 5.0, 17.0, 40.0) for x in (-50.0, -1.0, 0.0, 1.0, 50.0)]


def textbook(a: float, x: float) -> float:
    """KL(N(lam x, (1 - lam)^2) || N(0, 1)) with log(1 - lam) = -softplus(a), in Python's floats."""
    lam = 1 / (1 + math.exp(-a))
    log_open = -(a + math.log1p(math.exp(-a))) if a > 0 else -math.log1p(math.exp(a))
    rest = math.exp(log_open)
    return -log_open + (rest**2 + (lam * x) ** 2 - 1) / 2


@pytest.mark.parametrize(("a", "x"), EXTREMES)
def test_information_is_the_textbook_divergence(a, x):
    double = information(torch.tensor(a, dtype=torch.float64), torch.tensor(x, dtype=torch.float64) ** 2)
    assert float(double) == pytest.approx(textbook(a, x), rel=1e-12, abs=1e-14)
    single = information(torch.tensor(a), torch.tensor(x) ** 2)
    assert float(single) == pytest.approx(textbook(a, x), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("a", "x"), EXTREMES)
def test_gradient_is_the_closed_form(a, x):
    alpha = torch.tensor(a, requires_grad=True)
    information(alpha, torch.tensor(x * x)).backward()
    lam = torch.sigmoid(torch.tensor(a, dtype=torch.float64))
    expected = float(lam**2 * ((2 - lam) + (1 - lam) * x * x))
    # 1 - lam has few digits left in float32 where the mask is open.
    assert float(alpha.grad) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_by_hand():
    # lam = 1/2, x = 2: -log(1/2) + (1/4 + 1 - 1) / 2 = 0.6931 + 0.125
    assert float(information(torch.tensor(0.0), torch.tensor(4.0))) == pytest.approx(math.log(2) + 0.125)
    # Nothing goes through a closed mask, whatever the feature.
    assert float(information(torch.tensor(-40.0), torch.tensor(2500.0))) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=20), st.floats(-20, 20))
def test_elements_that_share_a_value_add_up(xs, a):
    x = torch.tensor(xs, dtype=torch.float64)
    alpha = torch.tensor(a, dtype=torch.float64)
    each = information(alpha, x.square()).sum()
    together = information(alpha, x.square().sum(), float(len(xs)))
    torch.testing.assert_close(together, each, rtol=1e-9, atol=1e-9)


@given(st.floats(-40, 40), st.floats(0, 40), st.floats(-50, 50))
def test_more_open_is_never_less_information(a, more, x):
    alphas = torch.tensor([a, a + more], dtype=torch.float64)
    low, high = information(alphas, torch.tensor(x * x, dtype=torch.float64)).tolist()
    assert high >= low - 1e-9
    assert low >= -1e-12


def test_bottleneck_ends():
    x, e = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(apply_bottleneck(x, e, torch.ones(3, 1)), x)
    assert torch.equal(apply_bottleneck(x, e, torch.zeros(3, 1)), e)
    torch.testing.assert_close(apply_bottleneck(x, e, torch.full((3, 1), 0.25)), 0.25 * x + 0.75 * e)


def test_bottleneck_keeps_the_dtype_of_the_feature_and_the_precision_of_the_mask():
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    through = apply_bottleneck(x, torch.zeros(3, 4), torch.full((3, 1), 0.999))
    assert through.dtype == torch.bfloat16
    torch.testing.assert_close(through, (0.999 * x.float()).bfloat16())


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_noise_of_a_longer_text_begins_with_that_of_a_shorter(length):
    longer = standard_noise((300, 5), (1, 2), CPU)
    assert torch.equal(standard_noise((length, 5), (1, 2), CPU), longer[:length])


def test_noise_is_standard_normal_and_depends_on_its_key_alone():
    state = torch.get_rng_state()
    drawn = standard_noise((1000, 100), (0, 0, 0, 0), CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert abs(float(drawn.mean())) < 0.02
    assert float(drawn.std()) == pytest.approx(1, abs=0.02)
    assert torch.equal(standard_noise((1000, 100), (0, 0, 0, 0), CPU), drawn)
    for key in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]:
        other = standard_noise((1000, 100), key, CPU)
        assert abs(float(torch.corrcoef(torch.stack([drawn.flatten(), other.flatten()]))[0, 1])) < 0.02


def test_the_final_mask_is_the_mean_of_the_last_steps():
    """Masks after each number of steps, one by one, averaged by hand; the trace ends with that mask."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    statistics = FeatureStatistics.estimate(model, model[0], [torch.randn(1000, 4)])
    iba = InformationBottleneckAttribution(model, model[0], statistics=statistics)

    def logits_of(bits, standardized):
        """Mask logits of single elements, by bisection: the information grows with them."""
        low, high = torch.full_like(bits, -30), torch.full_like(bits, 30)
        for _ in range(80):
            middle = (low + high) / 2
            below = information(middle, standardized.square()) / math.log(2) < bits
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return low

    settings = {"granularity": "feature", "n_steps": 6}
    with torch.no_grad():
        standardized = ((model[0](x) - statistics.mean) / statistics.std).double()
    last = [iba.attribute(x, 1, **{**settings, "n_steps": n}, tail_average=0.0).double() for n in (4, 5, 6)]
    mean = torch.stack([logits_of(bits, standardized) for bits in last]).mean(0)
    bits, trace = iba.attribute(x, 1, **settings, tail_average=0.5, return_trace=True)
    torch.testing.assert_close(
        bits, (information(mean, standardized.square()) / math.log(2)).float(), rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(trace.information[:, -1], bits.sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_an_average_element_that_is_not_needed_ends_with_the_unneeded_bits(preset):
    layer = nn.Identity()
    x = torch.tensor([1.0, -1.0]).repeat(2, 3, 4)  # standardized by mean 0 and standard deviation 1
    statistics = FeatureStatistics(feature_dim=-1)
    statistics.update(x.reshape(-1, 8) * torch.tensor([[1.0], [-1.0]]).repeat(3, 1))

    def first_token(x):
        return layer(x)[:, 0, :3]

    iba = InformationBottleneckAttribution(first_token, layer, statistics=statistics)
    settings = resolve_settings(preset)
    bits = iba.attribute(x, 1, preset=settings, feature_dim=-1)
    expected = unneeded_bits(settings, 3 * 8 if settings.granularity == "feature" else 3)
    torch.testing.assert_close(bits[:, 1:], torch.full((2, 2, 8), expected), rtol=1e-3, atol=1e-6)
