"""Rows of a pass that are no examples, or depend on each other, and activations out of range."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr import resolve_settings


def coupled_models():
    layer, head = nn.Linear(6, 8), nn.Linear(8, 3)

    def choices(x):  # as the choices of a question are
        return head(layer(x).view(-1, 2, 8)).log_softmax(1).reshape(-1, 3)

    def shifted(x):  # as the frames of a clip are
        hidden = layer(x)
        return head(torch.cat([hidden[:, :4], hidden.roll(1, 0)[:, 4:]], 1))

    def scaled(x):  # by the loudest of the batch, before the layer
        return head(layer(x / x.abs().max()))

    return layer, {"choices": choices, "shifted": shifted, "scaled": scaled}


@pytest.mark.parametrize("name", ["choices", "shifted", "scaled"])
@pytest.mark.parametrize("replay", [True, False])
def test_rows_that_depend_on_each_other_are_warned_of(name, replay):
    torch.manual_seed(0)
    layer, models = coupled_models()
    iba = InformationBottleneckAttribution(models[name], layer)
    with pytest.warns(UserWarning, match="expected rows that do not depend on each other"):
        iba.attribute(torch.randn(4, 6), target=1, n_steps=2, replay=replay)


def test_rows_of_a_layer_that_are_not_the_examples_are_refused_where_there_are_as_many():
    """Tokens of an expert, of which there happen to be three."""
    embedding, expert, head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def model(ids):
        hidden = embedding(ids)
        routed = ids > 6
        return head(hidden.masked_scatter(routed[..., None], expert(hidden[routed])).sum(1))

    ids = torch.tensor([[1, 7, 8], [1, 2, 3], [2, 9, 4]])
    iba = InformationBottleneckAttribution(model, expert)
    with pytest.raises(ValueError, match=r"has the shape \(2, 8\) for one example"):
        iba.attribute(ids, target=1, n_steps=2)


def test_a_complement_in_settings_counts_as_one_that_is_passed():
    settings = resolve_settings(complement=1.0)
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(2, 6)
    iba = InformationBottleneckAttribution(model, model[0])

    def loss(output, target):
        return output[:, 0]

    by_settings, by_keyword, without = (
        iba.attribute(x, loss=loss, **arguments) for arguments in ({"preset": settings}, {"complement": 1.0}, {})
    )
    torch.testing.assert_close(by_settings, by_keyword)
    assert not torch.allclose(by_settings, without)


def test_activations_far_from_their_statistics_are_an_error():
    layer = nn.Identity()
    statistics = FeatureStatistics(feature_dim=-1)
    statistics.update(torch.randn(1000, 6))
    huge = torch.cat([torch.randn(2, 5), torch.full((2, 1), -1e20)], 1)
    iba = InformationBottleneckAttribution(lambda x: layer(x)[:, :3], layer, statistics=statistics)
    with pytest.raises(ValueError, match="information or its gradient is not finite at step 0: .* up to 1e.20"):
        iba.attribute(huge, target=1, feature_dim=-1)


def test_noise_around_the_input_shares_no_mask():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    iba = InformationBottleneckAttribution(model, [model[0], model[1]])
    with pytest.raises(ValueError, match="share_mask is True, expected False for noise around the layer's input"):
        iba.attribute(torch.randn(2, 6), target=1, preset="as_released", share_mask=True)


@pytest.mark.parametrize("replay", [True, False])
def test_packed_sequences_pass(replay):
    torch.manual_seed(0)
    embedding, gru, head = nn.Embedding(10, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def model(ids, lengths):
        packed = pack_padded_sequence(embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        _, last = gru(packed)
        return head(last[0])

    ids, lengths = torch.randint(10, (3, 5)), torch.tensor([5, 3, 4])
    iba = InformationBottleneckAttribution(model, embedding)
    mask = torch.arange(5) < lengths[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = iba.attribute(ids, 1, (lengths,), bottleneck_mask=mask, replay=replay)
        alone = iba.attribute(ids[1:2, :3], 1, (lengths[1:2],), replay=replay)
    torch.testing.assert_close(together[1:2, :3], alone, rtol=1e-3, atol=1e-4)


def test_named_results_of_torch_pass():
    class Largest(nn.Module):
        def forward(self, x):
            return torch.max(x, dim=1)

    layer, head = Largest(), nn.Linear(6, 3)
    iba = InformationBottleneckAttribution(lambda x: head(layer(x).values), layer)
    bits = iba.attribute(torch.randn(2, 4, 6), target=1, n_steps=2, feature_dim=-1)
    assert bits[0].shape == (2, 6)
