"""What shares a mask value, and how its information is counted."""

import pytest
import torch

from captum_iba.attr.objective import Information, MaskLayout, information

FEATURE = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("feature", "granularity", "shape", "feature_dim"),
    [
        (FEATURE, "token", (2, 3, 1), 2),
        (FEATURE, "channel", (2, 1, 4), 2),
        (FEATURE, "feature", (2, 3, 4), 2),
        (IMAGE, "token", (2, 1, 4, 5), 1),
        (IMAGE, "channel", (2, 3, 1, 1), 1),
        (IMAGE, "feature", (2, 3, 4, 5), 1),
        (IMAGE, "token", (2, 3, 4, 1), 3),
        (IMAGE, "channel", (2, 1, 1, 5), 3),
        (FEATURE, "token", (2, 1, 4), 1),
        (FEATURE[:, 0], "token", (2, 4), 1),
    ],
)
def test_granularity(feature, granularity, shape, feature_dim):
    layout = MaskLayout.of(feature, granularity, None, None, feature_dim)
    assert tuple(layout.expand(layout.initial_alpha(5.0, torch.float32)).shape) == shape


def test_groups_share_a_value_within_an_example_only():
    words = torch.tensor([[7, 7, 2], [2, 2, 2]])
    layout = MaskLayout.of(FEATURE, "feature", words, None, 2)
    values = layout.initial_alpha(0.0, torch.float32)
    with torch.no_grad():
        values[0, 0], values[0, 1], values[1, 0] = 1.0, 2.0, 3.0  # groups 2 and 7, renumbered 0 and 1
    assert layout.expand(values).squeeze(-1).tolist() == [[2, 2, 1], [3, 3, 3]]


@pytest.mark.parametrize("granularity", ["token", "channel", "feature"])
@pytest.mark.parametrize("maskable", [None, torch.tensor([[0, 1, 1], [1, 1, 0]]), torch.rand(2, 3, 4) > 0.5])
def test_counting_over_shared_values_is_counting_over_elements(granularity, maskable):
    layout = MaskLayout.of(FEATURE, granularity, None, maskable, 2)
    information_of = Information(layout, FEATURE)
    values = torch.randn(layout.shape)
    expected = information(values.expand_as(FEATURE), FEATURE.square())
    if maskable is not None:
        carried = maskable.reshape(*maskable.shape, *[1] * (3 - maskable.ndim)).bool().expand_as(FEATURE)
        expected = torch.where(carried, expected, 0.0)
        assert information_of.n_elements.tolist() == carried.flatten(1).sum(1).tolist()
    torch.testing.assert_close(information_of.per_element(values), expected)
    torch.testing.assert_close(information_of.total(values), expected.flatten(1).sum(1))


def test_an_example_without_bottleneck_counts_nothing():
    layout = MaskLayout.of(FEATURE, "token", None, torch.tensor([[True] * 3, [False] * 3]), 2)
    information_of = Information(layout, FEATURE)
    assert float(information_of.mean(torch.full((2, 3, 1), 5.0))[1]) == 0.0
    assert torch.equal(layout.gate(torch.full((2, 3, 1), -40.0))[1], torch.ones(3, 1))


@pytest.mark.parametrize("mask", [torch.zeros(2, 2, dtype=torch.long), torch.zeros(3, dtype=torch.long)])
def test_masks_must_fit(mask):
    with pytest.raises(ValueError, match=r"feature_mask has the shape .* expected one that broadcasts"):
        MaskLayout.of(FEATURE, "token", mask, None, 2)
    with pytest.raises(ValueError, match="bottleneck_mask has the shape"):
        MaskLayout.of(FEATURE, "token", None, mask, 2)


def test_feature_mask_must_be_integers():
    with pytest.raises(ValueError, match=r"feature_mask has the dtype torch.float32, expected integers"):
        MaskLayout.of(FEATURE, "token", torch.zeros(2, 3), None, 2)
