"""Calls of ``attribute`` that gave wrong bits without a word: masks and arguments in parts, wrappers, layer inputs."""

import pytest
import torch
from captum.attr import NoiseTunnel
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution


class Tokens(nn.Module):
    """Mean of the hidden states of tokens, weighted by a mask."""

    def __init__(self, width=8, n_classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, width)
        self.head = nn.Linear(width, n_classes)

    def forward(self, x, weights=None):
        logits = self.head(torch.tanh(self.layer(x)).mean(1))
        return logits if weights is None else logits * weights


@pytest.fixture
def model():
    return Tokens().eval()


@pytest.fixture
def x():
    return torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def iba(model, x):
    return InformationBottleneckAttribution(model, model.layer, statistics=statistics_of(model, x))


def statistics_of(model, x):
    with pytest.warns(UserWarning, match="observations"):
        return FeatureStatistics.estimate(model, model.layer, [x])


# Masks


@pytest.mark.parametrize("internal_batch_size", [None, 2])
@pytest.mark.parametrize("name", ["bottleneck_mask", "feature_mask"])
def test_masks_have_one_row_or_one_per_example(iba, x, name, internal_batch_size):
    mask = torch.ones(2, 6, dtype=torch.long)
    with pytest.raises(ValueError, match=rf"{name} has the shape \(2, 6\), expected .* 1 or 4 rows"):
        iba.attribute(x, target=1, internal_batch_size=internal_batch_size, **{name: mask})


@pytest.mark.parametrize("mask", [torch.tensor([[0.0, 0, 0, -1e9, -1e9, -1e9]]), torch.full((1, 6), float("nan"))])
def test_an_additive_mask_is_no_bottleneck_mask(iba, x, mask):
    with pytest.raises(ValueError, match="bottleneck_mask holds negative numbers or NaN"):
        iba.attribute(x, target=1, bottleneck_mask=mask)


def test_a_noise_tunnel_repeats_no_mask_of_other_rows(iba, x):
    mask = torch.ones(2, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match="bottleneck_mask has the shape"):
        NoiseTunnel(iba).attribute(x, target=1, nt_samples=2, bottleneck_mask=mask)


# Arguments in parts


def test_an_argument_of_other_rows_is_never_taken_for_that_of_a_part(iba, x):
    with pytest.raises((ValueError, RuntimeError)):
        iba.attribute(x, target=1, additional_forward_args=torch.rand(2, 3), internal_batch_size=2)


def test_an_argument_that_is_cut_by_mistake_is_named(x):
    model = Tokens(n_classes=4).eval()
    iba = InformationBottleneckAttribution(model, model.layer, statistics=statistics_of(model, x))
    weights = torch.tensor([3.0, 0.2, 1.0, 2.0])  # one per class, of which there are as many as examples
    with pytest.warns(UserWarning, match="additional_forward_args holds a tensor whose first dimension happens"):
        iba.attribute(x, target=1, additional_forward_args=weights, internal_batch_size=1)


def test_arguments_of_the_examples_in_parts_are_no_reason_to_warn(iba, x, recwarn):
    weights = torch.rand(4, 3) + 0.5
    whole = iba.attribute(x, target=1, additional_forward_args=weights)
    parts = iba.attribute(x, target=1, additional_forward_args=weights, internal_batch_size=2)
    torch.testing.assert_close(parts, whole)
    assert [str(one.message) for one in recwarn] == []


class AtMost(Tokens):
    """A model with room for four rows."""

    def forward(self, x, weights):
        if len(x) > 4:
            raise RuntimeError("no room")
        return super().forward(x, weights)


def test_parts_of_a_model_that_has_no_room_for_all_examples(x):
    model, x = AtMost().eval(), torch.cat([x, x])
    iba = InformationBottleneckAttribution(model, model.layer, statistics=statistics_of(Tokens().eval(), x))
    bits = iba.attribute(x, target=1, additional_forward_args=torch.rand(8, 3) + 0.5, internal_batch_size=2)
    assert bits.shape == (8, 6, 8)


class Cut(Tokens):
    """Positions behind the length of an example do not count."""

    def forward(self, x, lengths):
        hidden = torch.tanh(self.layer(x)).clone()
        for row, length in enumerate(lengths[: len(hidden)]):
            hidden[row, length:] = 0
        return self.head(hidden.mean(1))


@pytest.mark.parametrize("changes", [{"preset": "paper"}, {"internal_batch_size": 1}, {"alternate": False}], ids=str)
def test_a_list_of_one_entry_per_example_is_warned_of(x, changes):
    model = Cut().eval()
    iba = InformationBottleneckAttribution(model, model.layer, statistics=statistics_of(Tokens().eval(), x))
    lengths = [2, 6, 3, 5]
    with pytest.warns(UserWarning, match="additional_forward_args .*(tensors, not lists|a list or array)"):
        iba.attribute(x, target=1, additional_forward_args=lengths, replay=False, n_steps=2, **changes)


# Noise around the layer's input


class Block(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        torch.manual_seed(0)
        self.relu = nn.ReLU(inplace=in_place)
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(self.relu(x))


@pytest.mark.parametrize("name", ["block", "block.relu"])
def test_noise_as_released_is_around_the_input_as_it_was_before_the_layer(name):
    bits = []
    for in_place in (False, True):
        torch.manual_seed(1)
        head = nn.Linear(8, 2)
        model = nn.Sequential()
        model.add_module("stem", nn.Linear(5, 8))
        model.add_module("block", Block(in_place))
        model.add_module("head", head)
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
        iba = InformationBottleneckAttribution(model.eval(), model.get_submodule(name))
        bits.append(iba.attribute(x, target=1, preset="as_released"))
    torch.testing.assert_close(bits[1], bits[0])


def test_noise_around_the_input_is_not_for_the_input(iba, x):
    with pytest.raises(ValueError, match="attribute_to_layer_input is True, expected False"):
        iba.attribute(x, target=1, preset="as_released", attribute_to_layer_input=True)


# Rows that are not the examples


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.head = nn.Embedding(30, 8), nn.Embedding(30, 8), nn.Linear(8, 2)

    def forward(self, ids):
        return self.head(torch.tanh(self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))).mean(1))


@pytest.mark.parametrize("changes", [{}, {"replay": False}, {"n_steps": 0}], ids=str)
def test_as_many_positions_as_examples(changes):
    model = Positions().eval()
    iba = InformationBottleneckAttribution(model, model.positions)
    with pytest.raises(ValueError, match=r"\(4, 8\) for one example, expected \(B"):
        iba.attribute(torch.randint(30, (4, 4)), target=0, n_samples=0, **{"n_steps": 2, **changes})


# Arguments


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layer_call": 1.9}, "layer_call is 1.9, expected an integer"),
        ({"seed": None}, "seed is None, expected an integer"),
        ({"seed": 1.5}, "seed is 1.5, expected an integer"),
        ({"internal_batch_size": True}, "internal_batch_size is True, expected an integer of at least 1"),
    ],
)
def test_integers_are_integers(iba, x, changes, message):
    with pytest.raises(ValueError, match=message):
        iba.attribute(x, target=1, **changes)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def test_one_call_of_a_layer_is_named_once_with_a_shared_mask():
    model = Twice().eval()
    iba = InformationBottleneckAttribution(model, [model.layer, model.layer])
    with pytest.raises(ValueError, match="layer_call names the same call of a layer twice"):
        iba.attribute(torch.randn(3, 8), target=0, share_mask=True, layer_call=[-1, 1])
