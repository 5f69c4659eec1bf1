"""Cases in which a replayed pass was another than a full one, or a pass another than the user's, without a word."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from architectures import assert_same
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr.losses import row_losses

SETTINGS = {"n_steps": 6, "n_samples": 2, "beta": 0.1}


def drawn(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make, *arguments):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*arguments).eval()


def of_width(width, scale=1.0):
    return FeatureStatistics().update(drawn(400, width, scale=scale))


def attributed(forward, layer, inputs, iba=None, **changes):
    """Bits, and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iba = iba or InformationBottleneckAttribution(forward, layer, statistics=of_width(8))
        bits = iba.attribute(inputs, **{"target": 0, **SETTINGS, **changes})
    return bits, [str(warning.message) for warning in caught]


class RemembersOnce(nn.Module):
    """A summary that is made once a pass is kept in an object that an early module makes, for long inputs only."""

    def __init__(self):
        super().__init__()
        self.stem, self.layer, self.head = MakesAMemory(), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden, memory = self.stem(x)
        hidden = self.layer(hidden).tanh()
        if x.shape[1] > 4 and memory.kept is None:
            memory.kept = 5 * hidden.mean(1)
        return self.head(hidden.mean(1) if memory.kept is None else memory.kept)


class MakesAMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 8)

    def forward(self, x):
        return self.inner(x), SimpleNamespace(kept=None)


def test_what_a_short_input_has_shown_is_not_taken_for_a_long_one():
    net = seeded(RemembersOnce)
    iba = InformationBottleneckAttribution(net, net.layer, statistics=of_width(8))
    _, said = attributed(net, net.layer, drawn(1, 3, 4), iba)
    assert said == []
    bits, said = attributed(net, net.layer, drawn(1, 6, 4), iba)
    assert_same(bits, attributed(net, net.layer, drawn(1, 6, 4), replay=False)[0])
    assert any("is not replayed" in message for message in said)


class PoolsAll(nn.Module):
    """One value a channel at the layer, and a summary of it that is made once."""

    def __init__(self):
        super().__init__()
        self.stem, self.layer, self.head = MakesAnImage(), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 2)

    def forward(self, x):
        image, memory = self.stem(x)
        hidden = self.layer(image.relu())
        if memory.kept is None:
            memory.kept = 5 * hidden
        return self.head(memory.kept.flatten(1)) + 0.01 * hidden.mean()


class MakesAnImage(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.inner(x), SimpleNamespace(kept=None)


def test_the_other_activation_of_the_check_is_another_one_for_a_single_position():
    net, x = seeded(PoolsAll), drawn(1, 3, 6, 6)
    bits, said = attributed(net, net.layer, x, granularity="feature")
    assert_same(bits, attributed(net, net.layer, x, replay=False, granularity="feature")[0])
    assert any("is not replayed" in message for message in said)


class Table(nn.Module):
    """As many positions as examples: tiled, it is another one when it is summed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self):
        return self.weight


class Masked(nn.Module):
    """The last class is never predicted."""

    def __init__(self, masked):
        super().__init__()
        self.stem, self.table, self.layer, self.head = nn.Linear(4, 8), Table(), nn.Linear(8, 8), nn.Linear(8, 3)
        self.masked = masked

    def forward(self, x):
        table = self.table()
        logits = self.head((self.layer(self.stem(x)) * table.sum(0)).tanh().mean(1))
        return torch.cat([logits, torch.full_like(logits[:, :1], self.masked)], 1)


@pytest.mark.parametrize("masked", [-1e9, torch.finfo(torch.float32).min, float("-inf")])
def test_a_masked_class_does_not_hide_what_differs(masked):
    net, x = seeded(Masked, masked), drawn(3, 5, 4)
    bits, said = attributed(net, net.layer, x)
    assert_same(bits, attributed(net, net.layer, x, replay=False)[0])
    assert any("is not replayed" in message for message in said)
    # And a model with such a class is replayed where nothing differs.
    net.table.forward = lambda: torch.ones(1, 8)
    assert attributed(net, net.layer, x)[1] == []


class SubtractsTheMean(nn.Module):
    """Of all rows of a pass."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = self.layer(x)
        return self.head((hidden - hidden.mean(0)).tanh().mean(1))


class SortsItsBatch(SubtractsTheMean):
    """And leaves it sorted."""

    def forward(self, x):
        order = x.abs().sum((1, 2)).argsort()
        return self.head(self.layer(x[order]).tanh().mean(1))


@pytest.mark.parametrize("model", [SubtractsTheMean, SortsItsBatch])
@pytest.mark.parametrize("replay", [True, False])
def test_rows_that_depend_on_each_other_are_named(model, replay):
    net = seeded(model)
    _, said = attributed(net, net.layer, drawn(3, 5, 4), replay=replay)
    assert any("changes with the other rows of a pass" in message for message in said)


class WritesWhereItIsNoised(nn.Module):
    """Clips and damps outliers, which no natural input has."""

    def __init__(self):
        super().__init__()
        self.stem, self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.most = 3.0

    def forward(self, x):
        state = self.stem(x)
        hidden = self.layer(state.relu())
        if bool((hidden.detach().abs() > self.most).any()):
            state.mul_(0.5)
        return 5 * self.head((state + hidden).tanh().mean(1))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("n_samples", [1, 3])
def test_a_branch_of_noised_passes_that_writes_into_an_early_state(rows, n_samples):
    net, x = seeded(WritesWhereItIsNoised), drawn(rows, 5, 4)
    net.most = 1.5 * float(net.layer(net.stem(x).relu()).abs().max())
    bits, said = attributed(net, net.layer, x, n_samples=n_samples, n_steps=16)
    assert_same(bits, attributed(net, net.layer, x, n_samples=n_samples, n_steps=16, replay=False)[0])
    # A tensor that is tiled as a view cannot be written into: from then on passes run whole, and a warning says so.
    assert len(said) == (rows == 1 and n_samples > 1)


class Stream(nn.Module):
    """Goes on from the state of the pass before, of as many rows."""

    def __init__(self):
        super().__init__()
        self.layer, self.rnn, self.head = nn.Linear(4, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 2)
        self.state = None

    def forward(self, x):
        before = self.state if self.state is not None and self.state.shape[1] == len(x) else None
        hidden, state = self.rnn(self.layer(x), before)
        self.state = state.detach()
        return 3 * self.head(hidden[:, -1])


@pytest.mark.parametrize("replay", [True, False])
def test_every_pass_begins_from_the_state_that_the_user_has(replay):
    net, x = seeded(Stream), drawn(1, 3, 4)
    with torch.no_grad():
        net(drawn(1, 20, 4, seed=1))
    state = net.state

    def from_there(x):
        net.state = state.repeat(1, len(x), 1)
        return net(x)

    changes = {"n_samples": 1, "complement": 0.0, "replay": replay}
    bits, _ = attributed(net, net.layer, x, **changes)
    assert net.state is state
    assert_same(bits, attributed(from_there, net.layer, x, **changes)[0])


class Gains(nn.Module):
    """Its state changes only where noise has left little of the layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("gain", torch.tensor(1.0))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter *= 4

    def forward(self, x):
        hidden = self.layer(x)
        out = self.head(torch.tanh(hidden).mean(1)) * self.gain
        if hidden.detach().std() < 1.0:
            self.gain = self.gain * 1.3
        return out


@pytest.mark.parametrize("replay", [False, True])
def test_a_state_that_only_noised_passes_change_does_not_reach_the_next_pass(replay):
    model, x = seeded(Gains), drawn(1, 5, 6)
    statistics = FeatureStatistics.estimate(model, model.layer, [drawn(300, 5, 6, seed=1)])

    def from_the_first_state(x):
        model.gain = torch.tensor(1.0)
        return model(x)

    found, expected = (
        InformationBottleneckAttribution(function, model.layer, statistics=statistics).attribute(
            x, target=1, beta=0.3, replay=replay
        )
        for function in (model, from_the_first_state)
    )
    assert torch.allclose(found, expected, atol=1e-4) and expected.sum() > 10


class Merges(nn.Module):
    """Adds an adapter to its weights in its first pass, by ``.data``, and remembers it."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.merged = nn.Linear(4, 8), nn.Linear(8, 2), False

    def forward(self, x):
        if not self.merged:
            self.layer.weight.data += 1.0
            self.merged = True
        return self.head(self.layer(x).mean(1))


def test_weights_and_what_remembers_them_stay_together():
    net, x = seeded(Merges), drawn(2, 3, 4)
    expected = seeded(Merges)(x)
    attributed(net, net.layer, x)
    assert net.merged
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize("kind", ["sparse", "nested", "uint4", "not a number"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_buffers_that_cannot_be_compared(kind):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x

    net = nn.Sequential(nn.Linear(4, 8), Counts(), nn.Linear(8, 2))
    made = {
        "sparse": lambda: torch.eye(3).to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "uint4": lambda: torch.empty(2, dtype=torch.uint4),
        "not a number": lambda: torch.full((1,), float("nan")).expand(3),
    }
    net[0].register_buffer("odd", made[kind]())
    attributed(lambda x: net(x).mean(1), net[0], drawn(2, 3, 4))
    FeatureStatistics.estimate(net, net[0], [drawn(400, 3, 4)])
    assert net[1].calls == 0 and net[0].weight.requires_grad and net.training


class Locked(nn.LSTM):
    """Drops weights for good where it is in training mode."""

    def forward(self, x, state=None):
        if self.training:
            self.weight_hh_l0.data.zero_()
        return super().forward(x, state)


def test_a_subclass_of_lstm_stays_in_evaluation_mode():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rnn, self.head = nn.Linear(4, 8), Locked(8, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.rnn(self.layer(x))[0].mean(1))

    net, x = seeded(Net), drawn(2, 3, 4)
    before = net(x)
    attributed(net, net.layer, x)
    torch.testing.assert_close(net(x), before)


def test_a_layer_that_calls_its_own_forward_again():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            if x.shape[1] > 2:
                return torch.cat([self.forward(half) for half in x.split(2, 1)], 1)
            return self.inner(x).tanh()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.layer, self.head = nn.Linear(4, 8), Halves(), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.layer(self.stem(x)).mean(1))

    net, x = seeded(Net), drawn(2, 6, 4)
    bits, _ = attributed(net, net.layer, x, feature_dim=-1)
    assert bits.shape == (2, 6, 8)
    assert_same(bits, attributed(net, net.layer, x, replay=False, feature_dim=-1)[0])


@pytest.mark.parametrize("replay", [True, False])
def test_a_tensor_that_a_layer_takes_three_times_is_noised_three_times(replay):
    class Attends(nn.Module):
        def forward(self, query, key, value):
            return (query @ key.mT).softmax(-1) @ value

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.layer, self.head = nn.Linear(4, 8), Attends(), nn.Linear(8, 2)

        def forward(self, x):
            hidden = self.stem(x)
            return self.head(self.layer(hidden, hidden, hidden).mean(1))

    net, x = seeded(Net), drawn(2, 5, 4)
    bits, _ = attributed(net, net.layer, x, attribute_to_layer_input=True, replay=replay)
    assert len(bits) == 3 and all(one.equal(bits[0]) for one in bits)
    assert_same(bits[0], attributed(net, net.stem, x, replay=replay)[0])


def test_sigmoids_that_happen_to_sum_to_one():
    """Every label looks at a token of its own; of a sure one, the others say nothing."""

    class Labels(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.bias = nn.Identity(), nn.Parameter(torch.tensor([12.0, -12.0, -12.0]))

        def logits(self, x):
            return 3 * self.layer(x).mean(-1) + self.bias

        def forward(self, x):
            return self.logits(x).sigmoid()

    net = Labels()
    x = drawn(1, 3, 8, scale=0.5) + torch.tensor([1.0, -1.0, 0.0])[:, None]
    statistics = FeatureStatistics(feature_dim=-1).update(drawn(2000, 8, scale=0.5))
    more = {"feature_dim": -1, "beta": 0.1, "complement": 1.0}

    def bits(forward, x, **changes):
        iba = InformationBottleneckAttribution(forward, net.layer, statistics=statistics)
        return iba.attribute(x, **{**more, **changes}).sum(-1)

    expected = bits(lambda x: net.logits(x)[:, :1], x, loss="binary_cross_entropy", target=1)
    found = bits(net, x, loss="probability", target=0)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.5)
    other = x.clone()
    other[:, 1] = 10
    torch.testing.assert_close(bits(net, torch.cat([x, other]), loss="probability", target=0)[:1], found)


def test_named_losses_ask_for_what_they_are_for():
    logits = drawn(3, 1)
    for wrong in (-1, [0, 1, -1], torch.tensor([2, 0, 1]), (-1,)):
        with pytest.raises(AssertionError, match="expected 0 or 1"):
            row_losses("binary_cross_entropy", logits, wrong)
    net = seeded(SubtractsTheMean)
    for loss, message in (("nll", "values above 0"), ("probability", r"values outside of \[0, 1\]")):
        with pytest.raises(ValueError, match=message):
            attributed(lambda x: 5 + net(x), net.layer, drawn(3, 5, 4), loss=loss)
    with pytest.raises(ValueError, match=r"dtype torch.int64, expected floating-point"):
        attributed(lambda x: net(x).long(), net.layer, drawn(3, 5, 4))


def test_the_loss_is_found_once_for_all_parts():
    class Saturated(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 8)
            self.last = nn.Softmax(-1)

        def forward(self, x):
            return self.last(self.layer(x).mean(1)[:, :3])

    net, x = seeded(Saturated), drawn(4, 5, 4)
    at_once, said = attributed(net, net.layer, x)
    assert sum("gives probabilities" in message for message in said) == 1
    assert_same(attributed(net, net.layer, x, internal_batch_size=1)[0], at_once)


def test_layers_that_cannot_share_a_mask():
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Flatten(), nn.Linear(64, 2)))
    iba = InformationBottleneckAttribution(net, [net[0], net[0]], statistics=[of_width(8)] * 2)
    with pytest.raises(ValueError, match="the same call of a layer twice"):
        iba.attribute(drawn(2, 8, 4), target=0, share_mask=True)
    iba = InformationBottleneckAttribution(net, [net[0], net[1]], statistics=[of_width(8)] * 2)
    with pytest.raises(ValueError, match=r"features of the layers are in dimensions \[2, 1\]"):
        iba.attribute(drawn(2, 8, 4), target=0, share_mask=True, feature_dim=[-1, 1])


def test_arguments_that_happen_to_have_as_many_rows_as_there_are_examples():
    net = seeded(lambda: nn.Linear(4, 8))
    classes = drawn(3, 8, seed=1)

    def forward(x, embeddings):
        return net(x).mean(1) @ embeddings.mT

    with pytest.raises(ValueError, match=r"gives the shape \(6, 6\) for 2 copies of the inputs, expected \(6, 3\)"):
        attributed(forward, net, drawn(3, 5, 4), additional_forward_args=(classes,))


def test_what_is_no_statistics_is_named():
    for wrong in (torch.ones(8), {"a": 1}, [torch.ones(8)]):
        with pytest.raises(TypeError, match="FeatureStatistics"):
            InformationBottleneckAttribution(nn.Linear(4, 8), nn.Linear(4, 8), statistics=wrong)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 2)

    def forward(self, ids, src_key_padding_mask=None, attention_mask=None, lengths=None):
        return self.head(self.embed(ids).mean(1))


def test_masks_of_other_kinds():
    net = seeded(Encoder)
    lengths = torch.tensor([3, 12, 5] * 100)
    kept = torch.arange(12) < lengths[:, None]
    ids = torch.where(kept, torch.arange(300)[:, None] % 9 + 1, 0)

    def count(**more):
        return FeatureStatistics.estimate(net, net.embed, [{"ids": ids, **more}]).count

    tokens = int(kept.sum())
    assert count(attention_mask=kept.long()) == count(src_key_padding_mask=~kept) == tokens
    with pytest.raises(ValueError, match="attention_mask holds negative numbers, expected 1 for tokens"):
        count(attention_mask=torch.where(kept, 0.0, -1e4))
    for more in ({"attention_mask": kept.long()[:, None, None]}, {"lengths": lengths}):
        with pytest.warns(UserWarning, match="seems to mark padding"):
            assert count(**more) == ids.numel()


# Of a second search.


class Depth(nn.Module):
    """Counts in an attribute, which is put right at the end of a pass."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.depth = nn.Linear(4, 8), nn.Linear(8, 2), 0

    def forward(self, x):
        self.depth += 1
        output = self.head(self.layer(x * self.depth).mean(1))
        self.depth = 0
        return output


def test_statistics_of_many_batches_are_those_of_one():
    net, x = seeded(Depth), drawn(100, 3, 4)
    one = FeatureStatistics.estimate(net, net.layer, [x])
    many = FeatureStatistics.estimate(net, net.layer, x.split(10))
    torch.testing.assert_close(many.mean, one.mean)
    torch.testing.assert_close(many.std, one.std)
    assert net.depth == 0


def test_tensors_as_keys_of_an_attribute():
    net = seeded(Depth)
    net.names = {parameter: name for name, parameter in net.named_parameters()}
    net.seen = set(net.parameters())
    assert attributed(net, net.layer, drawn(2, 3, 4))[0].shape == (2, 3, 8)


class WritesUnderGradients(nn.Module):
    """A cache of keys, and a mean for a log, on the module."""

    def __init__(self):
        super().__init__()
        self.layer, self.key, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("cache", torch.zeros(64, 9, 8))
        self.mean = torch.zeros(8)

    def forward(self, x):
        hidden = self.layer(x)
        self.cache[: len(x), : x.shape[1]] = self.key(hidden)
        self.mean.mul_(0.9).add_(0.1 * hidden.mean((0, 1)))
        return self.head((hidden + self.cache[: len(x), : x.shape[1]]).mean(1))


def test_tensors_of_a_module_do_not_stay_in_a_graph():
    net, x = seeded(WritesUnderGradients), drawn(2, 5, 4)
    for _ in range(2):  # the second time, the cache holds what is written
        bits, _ = attributed(net, net.layer, x)
        for tensor in (net.cache, net.mean):
            assert tensor.grad_fn is None and not tensor.requires_grad and not tensor.any()
        assert_same(bits, attributed(net, net.layer, x, replay=False)[0])


class OneRow(nn.Module):
    """Takes one row at a time, and counts as ``Depth`` does."""

    def __init__(self):
        super().__init__()
        self.layer, self.rnn, self.head = nn.Linear(4, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 2)
        self.register_buffer("start", torch.zeros(1, 1, 8))
        self.depth, self.rows = 0, 1

    def forward(self, x):
        self.depth += 1
        start = self.start.expand(1, self.rows or len(x), 8).contiguous()
        output = self.head(self.rnn(self.depth * self.layer(x), start)[0].mean(1))
        self.depth = 0
        return output


@pytest.mark.parametrize("replay", [True, False])
def test_a_model_of_one_row(replay):
    net, other, x = seeded(OneRow), seeded(OneRow), drawn(1, 5, 4)
    other.rows = 0  # any number of them
    changes = {"n_samples": 1, "complement": 0.0, "replay": replay}
    bits, said = attributed(net, net.layer, x, **changes)
    assert_same(bits, attributed(other, other.layer, x, **changes)[0])
    assert len(said) == replay and net.depth == 0


def test_a_submodule_that_is_made_in_the_first_pass_is_named():
    class Makes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(4, 8), None

        def forward(self, x):
            if self.head is None:
                self.head = nn.Linear(8, 2)
            return self.head(self.layer(x).mean(1))

    net, x = seeded(Makes), drawn(2, 5, 4)
    with pytest.raises(ValueError, match="Makes makes submodules in its first forward pass; expected a model that has"):
        attributed(net, net.layer, x)
    assert net.head is None
    net(x)
    assert attributed(net, net.layer, x)[1] == []


def test_a_decoder_has_no_mask_of_the_encoder():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Embedding(9, 8), nn.Embedding(9, 8)

        def forward(self, ids, attention_mask, decoder_input_ids):
            return self.encoder(ids).mean(1) + self.decoder(decoder_input_ids).mean(1)

    net = seeded(Both)
    ids = torch.arange(600).view(100, 6) % 9
    batch = {"ids": ids, "attention_mask": (torch.arange(6) < 3).long().expand(100, 6), "decoder_input_ids": ids}
    with pytest.warns(UserWarning, match="which of them are padding is not known, and all count"):
        encoder, decoder = FeatureStatistics.estimate(net, [net.encoder, net.decoder], [batch])
    assert (encoder.count, decoder.count) == (300, 600)


# Of a third search.


@pytest.mark.parametrize("head", ["flatten", "pool"])
def test_the_input_of_a_head_has_the_features_of_what_gave_it(head):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            pooled = nn.Flatten() if head == "flatten" else nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
            self.classifier = nn.Sequential(pooled, nn.Linear(16 * (9 if head == "flatten" else 4), 2))

        def forward(self, x):
            return self.classifier(self.features(x))

    net, x = seeded(Net), drawn(40, 3, 6, 6)
    at_input = FeatureStatistics.estimate(net, net.classifier, [x], attribute_to_layer_input=True)
    at_output = FeatureStatistics.estimate(net, net.features, [x])
    assert (at_input.feature_dim, at_input.n_features) == (1, 16)
    torch.testing.assert_close(at_input.mean, at_output.mean)
    found = [
        InformationBottleneckAttribution(net, layer, statistics=statistics).attribute(
            x[:2], target=0, attribute_to_layer_input=at, **SETTINGS
        )
        for layer, statistics, at in ((net.classifier, at_input, True), (net.features, at_output, False))
    ]
    assert_same(*found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probabilities_of_half_precision_in_float32_are_recognized(dtype):
    net = seeded(SubtractsTheMean)
    x = drawn(4, 5, 4)

    def likely(x):
        return net(x).to(dtype).softmax(-1).float()

    _, said = attributed(likely, net.layer, x)
    assert any("gives probabilities" in message for message in said)


def test_parts_with_and_without_a_mask():
    """As transformers: a layer gets a mask where texts are padded, and none where they are not."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, hidden, mask=None):
            return self.inner(hidden) if mask is None else self.inner(hidden) * mask

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.layer, self.head = nn.Linear(4, 8), Block(), nn.Linear(8, 2)

        def forward(self, x, kept):
            mask = None if bool(kept.all()) else kept[..., None].float()
            return self.head(self.layer(self.stem(x), mask).mean(1))

    net, x = seeded(Net), drawn(2, 5, 4)
    kept = torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
    more = {"additional_forward_args": (kept,), "attribute_to_layer_input": True}
    whole, _ = attributed(net, net.layer, x, **more)
    parts, _ = attributed(net, net.layer, x, internal_batch_size=1, **more)
    assert_same(parts, whole[0])


def test_masks_of_any_sign_are_warned_of_and_labels_are_another_sequence():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Embedding(9, 8), nn.Embedding(9, 8)

        def forward(self, ids, attention_mask=None, labels=None, src_mask=None):
            return self.encoder(ids).mean(1) + self.decoder(ids if labels is None else labels).mean(1)

    net, ids = seeded(Both), torch.arange(600).view(100, 6) % 9
    kept = torch.arange(6) < (torch.arange(100) % 5 + 2)[:, None]
    for mask in (kept, ~kept, kept.float()):
        with pytest.warns(UserWarning, match="seems to mark padding"):
            FeatureStatistics.estimate(net, net.encoder, [{"ids": ids, "src_mask": mask}])
    batch = {"ids": ids, "attention_mask": kept.long(), "labels": ids}
    with pytest.warns(UserWarning, match="which of them are padding is not known, and all count"):
        encoder, decoder = FeatureStatistics.estimate(net, [net.encoder, net.decoder], [batch])
    assert (encoder.count, decoder.count) == (int(kept.sum()), 600)


def test_a_layer_that_is_written_into_behind_it_is_replayed():
    """The trial of the replay got what the full pass had written into."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.head = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Linear(6, 4)

        def forward(self, images):
            identity = self.first(images)
            out = self.norm(identity.relu())
            out += identity
            return self.head(out.mean((2, 3)))

    torch.manual_seed(0)
    model, images = Residual().eval(), torch.randn(2, 3, 4, 4)
    statistics = FeatureStatistics.estimate(model, model.norm, [torch.randn(8, 3, 4, 4)])
    attribution = InformationBottleneckAttribution(model, model.norm, statistics=statistics)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bits = attribution.attribute(images, target=1)
    assert torch.allclose(bits, attribution.attribute(images, target=1, replay=False), atol=1e-4)
