"""Smoothing of the mask, against naive loops in float64."""

import math

import pytest
import torch

from captum_iba import InformationBottleneckAttribution
from captum_iba.attr import resolve_settings
from captum_iba.attr.objective import MaskLayout, gaussian_smoothing


def reflected(i, size):
    """The index that reflection at the border gives, without repeating the border."""
    i = abs(i)
    return i if i < size else 2 * (size - 1) - i


def naive(values, sigma):
    """Smoothing of (H, W), loop by loop."""
    radius = round(2 * sigma)
    weights = {d: math.exp(-(d**2) / (2 * sigma**2)) for d in range(-radius, radius + 1)}
    total = sum(weights.values())
    height, width = values.shape
    result = torch.zeros_like(values)
    for y in range(height):
        for x in range(width):
            for dy, a in weights.items():
                for dx, b in weights.items():
                    value = values[reflected(y + dy, height), reflected(x + dx, width)]
                    result[y, x] += a * b / total**2 * value
    return result


@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.4])
def test_smoothing_is_that_of_loops(sigma):
    values = torch.rand(2, 3, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    smoothed = gaussian_smoothing(values, sigma)
    for image, expected in zip(values.flatten(0, 1), smoothed.flatten(0, 1), strict=True):
        torch.testing.assert_close(naive(image, sigma), expected)


@pytest.mark.parametrize("feature_dim", [1, 3])
def test_the_logits_are_those_of_the_smoothed_mask(feature_dim):
    generator = torch.Generator().manual_seed(0)
    activation = torch.rand(2, 4, 5, 4, generator=generator)
    layout = MaskLayout.of(activation, "feature", None, None, feature_dim, smoothing=1.0)
    alpha = 4 * torch.randn(2, 4, 5, 4, generator=generator, dtype=torch.float64)
    lam = layout.gate(alpha)
    for row in range(2):
        for feature in range(4):
            index = (row, feature) if feature_dim == 1 else (row, slice(None), slice(None), feature)
            torch.testing.assert_close(lam[index], naive(alpha[index].sigmoid(), 1.0))
    # The complement is the mask of the negated logits.
    torch.testing.assert_close(layout.gate(-alpha), 1 - lam)


def test_extreme_logits_stay_finite():
    layout = MaskLayout.of(torch.rand(1, 2, 4, 4), "token", None, None, 1, smoothing=1.0)
    for value in (-500.0, 500.0):
        logits = layout.expand(torch.full((1, 1, 4, 4), value))
        assert bool(logits.isfinite().all())
        assert bool((logits.sign() == math.copysign(1, value)).all())


def test_a_uniform_mask_stays_as_it_is():
    layout = MaskLayout.of(torch.rand(1, 2, 4, 4), "token", None, None, 1, smoothing=1.0)
    alpha = torch.full((1, 1, 4, 4), 1.5, dtype=torch.float64)
    torch.testing.assert_close(layout.expand(alpha), alpha)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(4, 3),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:statistics is None")
def test_attributions_are_smoothed_and_do_not_depend_on_the_batch():
    net = model()
    images = torch.randn(2, 3, 8, 8)
    iba = InformationBottleneckAttribution(net, net[0])
    bits = iba.attribute(images, 1, smoothing=1.0, granularity="feature", n_steps=4)
    alone = iba.attribute(images[:1], 1, smoothing=1.0, granularity="feature", n_steps=4)
    torch.testing.assert_close(bits[:1], alone, rtol=1e-4, atol=1e-6)
    rough = iba.attribute(images, 1, granularity="feature", n_steps=4)
    assert float((bits - rough).abs().max()) > 1e-3


@pytest.mark.filterwarnings("ignore:statistics is None")
def test_zero_is_off():
    net = model()
    images = torch.randn(1, 3, 8, 8)
    iba = InformationBottleneckAttribution(net, net[0])
    assert torch.equal(iba.attribute(images, 1, n_steps=3), iba.attribute(images, 1, n_steps=3, smoothing=0.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_mask": torch.arange(64).view(1, 1, 8, 8)}, "expected 0 with a feature_mask"),
        ({"bottleneck_mask": torch.ones(1, 1, 8, 8)}, "expected 0 with a bottleneck_mask"),
        ({"granularity": "channel"}, "granularity 'channel'"),
        ({"smoothing": 4.0}, "reaches 8 positions to each side, expected fewer .* 8"),
    ],
)
@pytest.mark.filterwarnings("ignore:statistics is None")
def test_masks_that_cannot_be_smoothed(options, message):
    net = model()
    with pytest.raises(ValueError, match=message):
        InformationBottleneckAttribution(net, net[0]).attribute(
            torch.randn(1, 3, 8, 8), 1, **{"smoothing": 1.0, **options}
        )


@pytest.mark.parametrize("value", [-1.0, float("nan"), "1", True])
def test_smoothing_is_a_number_of_at_least_0(value):
    with pytest.raises(ValueError, match="smoothing is .*, expected a number of at least 0"):
        resolve_settings("default", smoothing=value)


def test_an_activation_without_two_dimensions_of_positions():
    with pytest.raises(ValueError, match=r"smoothing is 1, expected 0 for an activation of shape \(2, 5, 4\)"):
        MaskLayout.of(torch.rand(2, 5, 4), "token", None, None, 2, smoothing=1.0)
