"""Traps: whatever a model does, a replayed pass is a whole one, or passes run whole and a warning says why."""

import warnings

import pytest
import torch
from architectures import CLASSES, SETTINGS, assert_same
from torch import nn
from transformers import DynamicCache

from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr._model.nested import tensors_in

BaseModelOutputWithPast = pytest.importorskip("transformers.modeling_outputs").BaseModelOutputWithPast

WIDTH, POSITIONS = 8, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + torch.tanh(self.inner(hidden))


class Plain(nn.Module):
    """Four blocks, the second of which is explained."""

    def __init__(self, layer=Block, stem=nn.Identity):
        super().__init__()
        self.stem = stem()
        self.blocks = nn.ModuleList((Block(), layer(), Block(), Block()))
        self.table = nn.Embedding(9, WIDTH)
        self.activation = nn.ReLU(inplace=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        first, layer, third, last = self.blocks
        return self.head(last(third(layer(first(x)))).mean(1))


class RunsABlockAgain(Plain):
    def forward(self, x):
        first, layer, third, last = self.blocks
        return self.head(last(first(layer(first(third(x))))).mean(1))


class ReadsAnEarlyState(Plain):
    def forward(self, x):
        first, layer, third, last = self.blocks
        early = first(x)
        return self.head(last(third(layer(early)) + early).mean(1))


class Lowers(nn.Module):
    def forward(self, hidden):
        return hidden - 0.01


class ComparesWithAnEarlyState(Plain):
    # What stands in for the early state must not decide a comparison: with the layer's own output none is true.
    def __init__(self):
        super().__init__(layer=Lowers)

    def forward(self, x):
        first, layer, _, last = self.blocks
        early = first(x)
        hidden = layer(early)
        return self.head(last(torch.where(hidden > early, 5 * hidden, hidden)).mean(1))


class AddsPositions(Plain):
    def forward(self, x):
        first, layer, third, _ = self.blocks
        positions = self.table(torch.arange(x.shape[1]))
        return self.head(third(layer(first(x + positions)) + positions).mean(1))


class AddsThePositionsSummed(Plain):
    def forward(self, x):
        first, layer, third, _ = self.blocks
        positions = self.table(torch.arange(x.shape[1]))
        return self.head(third(layer(first(x)) + positions.sum(0)).mean(1))


class AddsAStateWithoutExamplesFirst(Plain):
    def __init__(self):
        super().__init__(stem=lambda: nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True))

    def forward(self, x):
        first, layer, _, last = self.blocks
        outputs, states = self.stem(x)
        return self.head(last(layer(first(outputs))).mean(1) + states[-1])


class ActsInPlaceUnseen(Plain):
    # The module's result is thrown away, its effect is not.
    def forward(self, x):
        first, layer, third, last = self.blocks
        hidden = first(x)
        self.activation(hidden)
        skip = third(hidden)
        self.activation(skip)
        return self.head((last(layer(hidden)) + skip).mean(1))


class WritesIntoTheLayersOutput(Plain):
    def forward(self, x):
        first, layer, third, last = self.blocks
        return self.head(last(third(self.activation(layer(first(x))))).mean(1))


class WritesIntoItsInputs(Plain):
    def forward(self, x):
        x -= 0.5
        return super().forward(x)


class Cache:
    def __init__(self):
        self.states, self.kept = [], {}


class MakesACache(nn.Module):
    def forward(self, x):
        return x, Cache()


class ReadsACache(Plain):
    def __init__(self):
        super().__init__(stem=MakesACache)

    def forward(self, x):
        hidden, cache = self.stem(x)
        for block in self.blocks:
            hidden = block(hidden)
            cache.states.append(hidden)
        return self.head((cache.states[2] + hidden).mean(1))


class RemembersInACache(ReadsACache):
    def forward(self, x):
        hidden, cache = self.stem(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean(1) + cache.kept.setdefault("mean", hidden.mean((0, 1))))


class MakesAList(nn.Module):
    def forward(self, x):
        return [x]


class AppendsToAList(Plain):
    def __init__(self):
        super().__init__(stem=MakesAList)

    def forward(self, x):
        states = self.stem(x)
        for block in self.blocks:
            states.append(block(states[-1]))
        return self.head((states[3] + states[4]).mean(1))


class MakesADictionary(nn.Module):
    def forward(self, x):
        return {"hidden": x, "kept": x}


class ReplacesInADictionary(Plain):
    def __init__(self):
        super().__init__(stem=MakesADictionary)

    def forward(self, x):
        state = self.stem(x)
        first, layer, third, last = self.blocks
        hidden = third(layer(first(state["hidden"])))
        if state["kept"].equal(state["hidden"]):
            state["kept"] = last(hidden)
        return self.head((hidden + state["kept"]).mean(1))


class PaddedEncoder(nn.Module):
    """PyTorch's own encoder, whose fast path makes nested tensors of padded texts."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 4)
        self.blocks = self.encoder.layers
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        # From one to all positions are read, as the first number of an example says.
        read = 1 + x[:, :1, 0].sigmoid() * (x.shape[1] - 1)
        padding = torch.arange(x.shape[1]) >= read
        return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])


REPLAYS = (
    Plain,
    RunsABlockAgain,
    ReadsAnEarlyState,
    ComparesWithAnEarlyState,
    WritesIntoTheLayersOutput,
    WritesIntoItsInputs,
    AppendsToAList,
    PaddedEncoder,
    ActsInPlaceUnseen,
    ReplacesInADictionary,
)
FALLS_BACK = (ReadsACache, RemembersInACache)
EITHER = (AddsPositions, AddsThePositionsSummed, AddsAStateWithoutExamplesFirst)


def trapped(model, rows, positions=POSITIONS, **changes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        net = model().eval()
        for parameter in net.parameters():
            nn.init.normal_(parameter, 0, 0.5)
        x = torch.randn(rows, positions, WIDTH)
    layer = net.blocks[1]
    at_input = changes.get("attribute_to_layer_input", False)
    statistics = FeatureStatistics.estimate(net, layer, [x.clone()], attribute_to_layer_input=at_input)
    iba = InformationBottleneckAttribution(net, layer, statistics=statistics)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bits = iba.attribute(x, **{"target": 1, **SETTINGS, **changes})
    return bits, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(("rows", "positions"), [(3, 5), (1, 5), (5, 5), (2, 2), (1, 1)])
@pytest.mark.parametrize("model", [*REPLAYS, *FALLS_BACK, *EITHER])
def test_replayed_is_right_or_falls_back(model, rows, positions):
    bits, said = trapped(model, rows, positions)
    whole, _ = trapped(model, rows, positions, replay=False)
    assert_same(bits, whole)
    if model in REPLAYS:
        assert said == []
    elif model in FALLS_BACK or said:
        (message,) = [one for one in said if "is not replayed" in one]
        others = [one for one in said if one is not message]
        assert message.startswith("Block (output) is not replayed, every forward pass is a full one: a replayed pass")
        assert len(others) == (model is RemembersInACache)  # the mean over all rows of a pass
        assert all("changes with the other rows of a pass" in other for other in others)


@pytest.mark.parametrize("model", [WritesIntoItsInputs, WritesIntoTheLayersOutput, AddsPositions, ReadsACache])
def test_traps_split_as_at_once(model):
    expected, _ = trapped(model, 5)
    for size in (1, 3, 7):
        bits, said = trapped(model, 5, internal_batch_size=size)
        assert_same(bits, expected)
        assert len(said) <= 1


@pytest.mark.parametrize("model", EITHER)
def test_a_model_that_was_found_right_may_be_wrong_for_another_number_of_rows(model):
    net = model().eval()
    statistics = FeatureStatistics.estimate(net, net.blocks[1], [torch.randn(9, POSITIONS, WIDTH)])
    iba = InformationBottleneckAttribution(net, net.blocks[1], statistics=statistics)
    for rows in (3, POSITIONS, 1):
        x = torch.randn(rows, POSITIONS, WIDTH, generator=torch.Generator().manual_seed(rows))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            replayed, whole = (iba.attribute(x, target=1, replay=replay, **SETTINGS) for replay in (True, False))
        assert_same(replayed, whole)


def test_statistics_of_a_layer_that_the_model_writes_into():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))
    x = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(1))
    expected = net[0](x).detach()
    statistics = FeatureStatistics.estimate(net, net[0], [x[:10], x[10:]])
    torch.testing.assert_close(statistics.mean, expected.mean(0))
    torch.testing.assert_close(statistics.std, expected.std(0, correction=0))


def test_a_layer_whose_first_dimension_does_not_count_examples():
    class PositionsFirst(Plain):
        def forward(self, x):
            return self.head(self.blocks[1](x.transpose(0, 1)).mean(0))

    for rows, expected in ((3, "one row for each"), (POSITIONS, r"the shape \(5, 1, 8\) for one example")):
        with pytest.raises(ValueError, match=expected):
            trapped(PositionsFirst, rows)


# What layers take and give.


class InATuple(Block):
    def forward(self, hidden):
        return None, torch.arange(4), super().forward(hidden), Cache()


class InAModelOutput(Block):
    def forward(self, hidden):
        return BaseModelOutputWithPast(last_hidden_state=super().forward(hidden), past_key_values=Cache())


class InADictionary(Block):
    def forward(self, *, mask=None, hidden_states):
        return {"mask": mask, "scale": torch.ones(1), "hidden_states": super().forward(hidden_states)}


@pytest.mark.parametrize("at_input", [False, True])
@pytest.mark.parametrize("layer", [InATuple, InAModelOutput, InADictionary])
def test_what_layers_take_and_give(layer, at_input):
    class Unpacks(Plain):
        def __init__(self):
            super().__init__(layer=layer)

        def forward(self, x):
            first, middle, third, last = self.blocks
            hidden = first(x)
            given = middle(hidden_states=hidden) if layer is InADictionary else middle(hidden)
            hidden = given[2] if layer is InATuple else given[hidden_key(given)]
            return self.head(last(third(hidden)).mean(1))

    def hidden_key(given):
        return "last_hidden_state" if "last_hidden_state" in given else "hidden_states"

    found, said = trapped(Unpacks, 3, attribute_to_layer_input=at_input)
    assert said == []
    plain, _ = trapped(Plain, 3, attribute_to_layer_input=at_input)
    bits = tensors_in(found)
    assert [one.shape for one in bits[:-1]] == {InATuple: [(4,)], InADictionary: [(1,)]}.get(layer, []) * (not at_input)
    assert_same(bits[-1], plain)
    split, _ = trapped(Unpacks, 3, attribute_to_layer_input=at_input, internal_batch_size=3)
    assert_same(tensors_in(split)[-1], plain)


@pytest.mark.parametrize("limit", [None, 2])
def test_outputs_that_do_not_begin_with_the_examples(limit):
    """The last state of an LSTM, (layers, B, H), and a loss without dimensions."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=1, batch_first=True)

        def forward(self, x):
            hidden, (last, cell) = self.lstm(x)
            return hidden, last, cell.sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = Recurrent(), nn.Linear(WIDTH, 2)

        def forward(self, x):
            return self.head(self.layer(x)[0].mean(1))

    net, x = Net().eval(), torch.randn(3, POSITIONS, WIDTH)
    iba = InformationBottleneckAttribution(net, net.layer, statistics=FeatureStatistics.estimate(net, net.layer, [x]))
    bits, last, total = iba.attribute(x, target=1, n_steps=2, internal_batch_size=limit)
    assert bits.shape == (3, POSITIONS, WIDTH) and last.shape == (1, 3, WIDTH) and total.shape == ()


def test_hooks_of_others_see_what_modules_gave():
    net = Plain().eval()
    x = torch.randn(3, POSITIONS, WIDTH)
    iba = InformationBottleneckAttribution(
        net, net.blocks[2], statistics=FeatureStatistics.estimate(net, net.blocks[2], [x])
    )
    expected = iba.attribute(x, target=1, n_steps=2)
    seen = []
    net.blocks[1].register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    assert_same(iba.attribute(x, target=1, n_steps=2), expected)
    assert len(seen) > 2 and all(bool(tensor.isfinite().all()) for pair in seen for tensor in pair)


def test_a_cache_is_refused():
    class Filled(Plain):
        def forward(self, x, cache):
            return super().forward(x)

    net, x = Filled(), torch.randn(3, POSITIONS, WIDTH)
    iba = InformationBottleneckAttribution(net, net.blocks[1])
    for arguments in (DynamicCache(), {"past": (None, DynamicCache())}):
        with pytest.raises(ValueError, match="additional_forward_args holds a DynamicCache, .* makes the cache itself"):
            iba.attribute(x, target=1, additional_forward_args=arguments)


def test_a_compiled_model():
    net = Plain().eval()
    x = torch.randn(3, POSITIONS, WIDTH, generator=torch.Generator().manual_seed(1))
    compiled = torch.compile(net, backend="eager")
    statistics = FeatureStatistics.estimate(net, net.blocks[1], [x])
    expected = InformationBottleneckAttribution(net, net.blocks[1], statistics=statistics).attribute(x, target=1)
    iba = InformationBottleneckAttribution(compiled, net.blocks[1], statistics=statistics)
    assert_same(iba.attribute(x, target=1), expected)
    torch.testing.assert_close(compiled(x), net(x))
    assert_same(iba.attribute(x, target=1), expected)
