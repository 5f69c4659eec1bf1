"""Cases in which an attribution was wrong without a word, or left a model or the machine changed. Add yours here."""

import gc
import re
import threading
import types
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from architectures import assert_same
from captum.attr import LayerActivation, NoiseTunnel
from torch import nn
from torch.utils.checkpoint import checkpoint

import captum_iba
from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr._model import guard as guard_module
from captum_iba.attr.feature_dim import resolve_feature_dim
from captum_iba.attr.feature_statistics import _wide
from captum_iba.attr.objective import Information, MaskLayout, Objective, apply_bottleneck
from captum_iba.attr.settings import resolve_settings

transformers = pytest.importorskip("transformers")

SETTINGS = {"n_steps": 4, "n_samples": 2, "beta": 0.01, "target": 0}


def drawn(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make, *arguments):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*arguments)


def of_width(width, scale=1.0):
    return FeatureStatistics().update(drawn(200, width, scale=scale))


def attribute(forward, layer, inputs, statistics, **changes):
    iba = InformationBottleneckAttribution(forward, layer, statistics=statistics)
    return iba.attribute(inputs, **{**SETTINGS, **changes})


# 2. A feature that another hook reads.


def bert():
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16, vocab_size=50
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    head = nn.Linear(16, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        head.weight.mul_(10)
    return model, head


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("at_input", [False, True])
def test_hidden_states_that_transformers_collects_by_hooks_are_noised(replay, at_input):
    model, head = seeded(bert)
    model(torch.ones(1, 3, dtype=torch.int64), output_hidden_states=True)  # installs the hooks, for good

    def by_library(ids):
        states = model(ids, output_hidden_states=True).hidden_states
        return head(torch.stack(states[-3 if at_input else -2 :]).mean(0).mean(1))

    def by_hand(ids):
        states = [model.embeddings(ids)]
        for block in model.encoder.layer:
            out = block(states[-1])
            states.append(out[0] if isinstance(out, tuple) else out)
        return head(torch.stack(states[-3 if at_input else -2 :]).mean(0).mean(1))

    ids = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    layer = model.encoder.layer[1 if not at_input else 2]
    statistics = FeatureStatistics.estimate(by_hand, layer, [ids], attribute_to_layer_input=at_input)
    changes = {"replay": replay, "attribute_to_layer_input": at_input}
    if at_input:
        # By hand, the state before the layer is noised for the layer only: a hook at the layer's input is the same.
        states = []

        def by_hand(ids):
            handle = layer.register_forward_pre_hook(lambda _, args: states.append(args[0]))
            try:
                hidden = model(ids).last_hidden_state
            finally:
                handle.remove()
            return head((hidden + states.pop()).mean(1))

        with torch.no_grad():
            clean = by_hand(ids)
        kept = layer.register_forward_pre_hook(lambda _, args: states.append(args[0]))

        def by_library(ids):
            hidden = model(ids).last_hidden_state
            return head((hidden + states.pop()).mean(1))

        torch.testing.assert_close(by_library(ids), clean)
        found = attribute(by_library, layer, ids, statistics, **changes)
        kept.remove()
        assert_same(found, attribute(by_hand, layer, ids, statistics, **changes))
        return
    torch.testing.assert_close(by_library(ids), by_hand(ids))
    assert_same(
        attribute(by_library, layer, ids, statistics, **changes), attribute(by_hand, layer, ids, statistics, **changes)
    )


@pytest.mark.parametrize("replay", [True, False])
def test_a_hook_registered_before_sees_the_noised_output(replay):
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))).eval()
    seen = SimpleNamespace(output=None)
    handle = net[2].register_forward_hook(lambda module, args, output: setattr(seen, "output", output))

    def reads_the_hook(x):
        return net(x) + net[4](seen.output)

    def reads_the_output(x):
        hidden = net[2](net[1](net[0](x)))
        return net[4](net[3](hidden)) + net[4](hidden)

    x, statistics = drawn(3, 4), of_width(8)
    expected = attribute(reads_the_output, net[2], x, statistics, replay=False)
    assert_same(attribute(reads_the_hook, net[2], x, statistics, replay=replay), expected)
    handle.remove()

    def reads_captum(x):
        return net(x) + net[4](LayerActivation(net, net[2]).attribute(x, attribute_to_layer_input=False))

    # Captum's own layer hooks, in the same pass: its activation is the one that is noised, in a second call.
    bits = attribute(reads_captum, net[2], x, statistics, replay=replay, layer_call=0)
    assert bits.isfinite().all()


# 3. The dimension of the features.


class Audio(nn.Module):
    """(B, 1, T) to (B, 6, T') to two classes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Conv1d(1, 6, 3), nn.Tanh())
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.layer(x).mean(2))


class ChannelsLast(Audio):
    """The same, the other way round inside."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 6)
        with torch.no_grad():
            self.mix.weight.copy_(torch.eye(6))
            self.mix.bias.zero_()

    def forward(self, x):
        return self.head(self.mix(self.layer(x).mT).mean(1))


def test_channels_first_and_last_give_the_same_bits():
    first, last = seeded(Audio).eval(), seeded(ChannelsLast).eval()
    last.load_state_dict(first.state_dict(), strict=False)
    x, data = drawn(2, 1, 20), [drawn(9, 1, 24, seed=1)]
    statistics = FeatureStatistics.estimate(first, first.layer, data)
    assert (statistics.n_features, statistics.feature_dim) == (6, 1)
    other = FeatureStatistics.estimate(last, last.mix, data)
    assert (other.n_features, other.feature_dim) == (6, -1)
    for granularity in ("token", "channel"):
        # The mean of the noise in the place of samples, which are drawn position by position.
        bits = attribute(first, first.layer, x, statistics, granularity=granularity, n_samples=0)
        assert_same(bits.mT, attribute(last, last.mix, x, other, granularity=granularity, n_samples=0))
    # Another length than that of the data set; a position has one mask value.
    assert attribute(first, first.layer, drawn(2, 1, 30), statistics).shape == (2, 6, 28)


class Scale(nn.Module):
    """A normalization of another library."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Conv1d(1, 6, 3), (2, 6, 18), 1),
        (nn.Conv3d(1, 6, 3), (2, 6, 4, 4, 5), 1),
        (nn.BatchNorm2d(6), (2, 6, 7, 7), 1),
        (nn.GroupNorm(2, 6), (2, 6, 7), 1),
        (nn.MaxPool2d(2), (2, 6, 7, 7), 1),
        (nn.Linear(4, 96), (2, 7, 7, 96), 3),
        (nn.LayerNorm(8), (2, 5, 8), 2),
        (nn.LSTM(4, 8, batch_first=True, bidirectional=True), (2, 5, 16), 2),
        (nn.Embedding(9, 8), (2, 8, 8), 2),
        (Scale(8), (2, 5, 8), 2),
        (Scale(8), (2, 8, 5, 5), 1),
        (nn.Tanh(), (2, 5), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_the_dimension_of_the_features_is_told_by_what_the_layer_is(layer, shape, expected):
    assert resolve_feature_dim(layer, shape) == expected


def test_a_layer_without_parameters_goes_by_the_one_before():
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 2))).eval()
    assert FeatureStatistics.estimate(net, net[1], [drawn(4, 1, 6, 6)]).n_features == 6


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.ReLU(), (2, 6, 9)),
        (nn.Identity(), (2, 5, 5, 5)),
        (Scale(8), (2, 8, 8)),
        (nn.Conv2d(3, 8, 4), (2, 9, 8)),
        (nn.Sequential(nn.Conv2d(8, 8, 7), nn.Linear(8, 8)), (2, 8, 8, 8)),
    ],
)
def test_a_dimension_that_cannot_be_told_is_asked_for(layer, shape):
    with pytest.raises(ValueError, match=r"feature_dim is None, .* cannot be told; expected feature_dim=1"):
        resolve_feature_dim(layer, shape)
    assert resolve_feature_dim(layer, shape, -1) == len(shape) - 1


def test_a_dimension_that_is_named_must_be_one_of_features():
    for wrong, message in ((0, "feature_dim is 0"), (3, "integer from -2 to 2"), (-3, "from -2 to 2"), (True, "True")):
        with pytest.raises(ValueError, match=message):
            resolve_feature_dim(nn.Linear(4, 8), (2, 5, 8), wrong)
    net = seeded(Audio).eval()
    statistics = FeatureStatistics.estimate(net, net.layer, [drawn(4, 1, 8)])
    with pytest.raises(ValueError, match="feature_dim is 2, but statistics were gathered with 1"):
        attribute(net, net.layer, drawn(2, 1, 8), statistics, feature_dim=2)
    with pytest.raises(ValueError, match="feature_dim has 2 entries, expected one per layer, 1"):
        attribute(net, net.layer, drawn(2, 1, 8), statistics, feature_dim=[1, 1])


def test_a_file_keeps_the_dimension(tmp_path):
    net = seeded(Audio).eval()
    FeatureStatistics.estimate(net, net.layer, [drawn(4, 1, 8)]).save(tmp_path / "s.safetensors")
    assert FeatureStatistics.load(tmp_path / "s.safetensors").feature_dim == 1
    of_width(4).save(tmp_path / "t.safetensors")
    assert FeatureStatistics.load(tmp_path / "t.safetensors").feature_dim is None


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.rnn, self.head, self.batch_first = nn.GRU(4, 8, batch_first=batch_first), nn.Linear(8, 2), batch_first

    def forward(self, x):
        hidden, _ = self.rnn(x if self.batch_first else x.transpose(0, 1))
        return self.head(hidden.mean(1 if self.batch_first else 0))


@pytest.mark.parametrize("positions", [3, 5])
@pytest.mark.parametrize("replay", [True, False])
def test_positions_first_is_refused_for_as_many_positions_as_examples(positions, replay):
    net = seeded(Recurrent, False).eval()
    with pytest.raises(ValueError, match=r"expected \(B, \.\.\.\)"):
        attribute(net, net.rnn, drawn(3, positions, 4), of_width(8), replay=replay, n_samples=1)
    net = seeded(Recurrent, True).eval()
    bits, last = attribute(net, net.rnn, drawn(3, positions, 4), of_width(8), replay=replay)
    assert bits.shape == (3, positions, 8) and last.shape == (1, 3, 8)


# 4. Modules that only noised passes run.


class Experts(nn.Module):
    """Which branch an example takes, a router tells by the hidden state."""

    def __init__(self):
        super().__init__()
        self.layer, self.usual = nn.Linear(4, 8), nn.Linear(8, 8)
        self.rare = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        hidden = self.layer(x)
        large = hidden.norm(dim=-1) > 2.0
        mixed = torch.zeros_like(hidden)
        if large.any():
            mixed = mixed + torch.where(large[:, None], self.usual(hidden), 0.0)
        if (~large).any():
            mixed = mixed + torch.where(large[:, None], 0.0, self.rare(hidden))
        return self.head(mixed)


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("replay", [True, False])
def test_modules_that_only_noised_passes_run_are_guarded(reachable, replay):
    net, x, statistics = seeded(Experts).train(), drawn(6, 4, scale=10), of_width(8, scale=0.1)
    # In a generator's frame, where nobody finds the model before it runs.
    forward = net if reachable else (lambda box: lambda x: next(one for one in box())(x))(lambda: iter(vault))
    vault[:] = [net]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    bits = attribute(forward, net.layer, x, statistics, replay=replay, n_steps=12, beta=1.0)
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert net.rare[1].training and net.rare[2].training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert_same(bits, attribute(net.eval(), net.layer, x, statistics, replay=replay, n_steps=12, beta=1.0))


vault = []


# 5. Probabilities in the place of logits.


class Classifier(nn.Module):
    def __init__(self, last=nn.Identity):
        super().__init__()
        self.layer, self.head, self.last = nn.Linear(4, 8), nn.Linear(8, 3), last()
        with torch.no_grad():
            self.head.weight.mul_(5)

    def forward(self, x):
        return self.last(self.head(self.layer(x).tanh()))


@pytest.mark.parametrize("complement", [None, 0.0, 1.0])
def test_probabilities_give_the_bits_of_logits_and_a_warning(complement):
    x, statistics = drawn(3, 4), of_width(8)
    logits, likely = seeded(Classifier).eval(), seeded(Classifier, lambda: nn.Softmax(-1)).eval()
    expected = attribute(logits, logits.layer, x, statistics, complement=complement)
    iba = InformationBottleneckAttribution(likely, likely.layer, statistics=statistics)
    with pytest.warns(UserWarning, match=r"forward_func gives probabilities: .* loss='probability' is used"):
        assert_same(iba.attribute(x, **SETTINGS, complement=complement), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iba.attribute(x, **SETTINGS)  # said once
        named = attribute(likely, likely.layer, x, statistics, loss="cross_entropy", complement=complement)
    assert not torch.allclose(named, expected)
    # Log-probabilities are logits of themselves.
    logs = seeded(Classifier, lambda: nn.LogSoftmax(-1)).eval()
    assert_same(attribute(logs, logs.layer, x, statistics, complement=complement), expected)


def test_a_probability_that_rounds_to_one_keeps_its_gradient():
    from captum_iba.attr.losses import SOFTMAX, complement_losses

    logits = torch.tensor([[30.0, 1.0, 0.0]], requires_grad=True)
    expected = complement_losses("cross_entropy", logits, 0)
    (slope,) = torch.autograd.grad(expected.sum(), logits)
    found = complement_losses(SOFTMAX, logits.softmax(-1), 0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], slope)


def test_values_of_a_sigmoid_are_named():
    net = seeded(Classifier, nn.Sigmoid).eval()
    with pytest.warns(UserWarning, match="values between 0 and 1 only, which are used as logits"):
        attribute(net, net.layer, drawn(6, 4), of_width(8))
    x, statistics = drawn(6, 4), of_width(8)

    def as_logits(x):
        return torch.nn.functional.logsigmoid(net.head(net.layer(x).tanh()))

    expected = attribute(as_logits, net.layer, x, statistics, loss="nll", complement=1.0)
    assert_same(attribute(net, net.layer, x, statistics, loss="probability", complement=1.0), expected)


# 6. Control flow that looks at an earlier state.


class Adaptive(nn.Module):
    """Leaves early, through a head of its own, once a block hardly changes the state."""

    def __init__(self, threshold=0.0):
        super().__init__()
        self.stem, self.layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8)
        self.rest, self.head, self.early = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2), nn.Linear(8, 2)
        self.threshold, self.log = threshold, SimpleNamespace(exits=0)
        with torch.no_grad():
            self.layer.weight.mul_(3)
            self.head.weight.mul_(5)
            self.early.weight.mul_(5)

    def forward(self, x):
        before = self.stem(x)
        after = self.layer(before)
        if (after - before).norm(dim=-1).max() < self.threshold:
            self.log.exits += 1
            return self.early(after)
        return self.head(self.rest(after))


def test_an_early_exit_that_only_noised_states_take():
    net, x = seeded(Adaptive).eval(), drawn(1, 8, scale=3.0)
    with torch.no_grad():
        before = net.stem(x)
        net.threshold = 0.8 * float((net.layer(before) - before).norm())
    statistics = FeatureStatistics().update(before + 0.05 * drawn(200, 8))
    found = {}
    for replay in (True, False):
        net.log.exits = 0
        found[replay] = attribute(net, net.layer, x, statistics, replay=replay, n_steps=32, beta=1.0), net.log.exits
    assert found[False][1] > 5
    # One more pass, or less, is of the check.
    assert abs(found[True][1] - found[False][1]) <= 1
    assert_same(found[True][0], found[False][0])


# 7. The random state, on several threads.


def test_the_random_state_on_two_threads_and_of_estimate():
    class Noisy(Classifier):
        def forward(self, x):
            return super().forward(x + 0.01 * torch.randn(4))

    nets = [seeded(Noisy).eval() for _ in range(2)]
    x, statistics = drawn(3, 4), of_width(8)
    before = torch.get_rng_state()
    FeatureStatistics.estimate(nets[0], nets[0].layer, [x])
    assert torch.get_rng_state().equal(before)
    for _ in range(5):
        threads = [
            threading.Thread(target=attribute, args=(net, net.layer, x, statistics), kwargs={"replay": False})
            for net in nets
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.get_rng_state().equal(before)


# 9 to 12. What is given back.


class ReplacesParameters(Classifier):
    """As a library that offloads weights does: another object after every pass, with the flag of the one before."""

    def forward(self, x):
        output = super().forward(x)
        for module in (self.layer, self.head):
            for name, parameter in list(module._parameters.items()):
                module._parameters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        return output


def test_flags_of_parameters_that_are_replaced_in_every_pass():
    net, x = seeded(ReplacesParameters), drawn(3, 4)
    net.head.bias.requires_grad_(False)
    flags = [parameter.requires_grad for parameter in net.parameters()]
    statistics = FeatureStatistics.estimate(net, net.layer, [x])
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    attribute(net, net.layer, x, statistics)
    assert [parameter.requires_grad for parameter in net.parameters()] == flags


def test_a_parameter_that_two_modules_share():
    net = seeded(Classifier)
    net.other = nn.Linear(4, 8)
    net.other.weight = net.layer.weight
    attribute(net, net.layer, drawn(3, 4), of_width(8))
    assert net.layer.weight.requires_grad and net.other.weight is net.layer.weight


class Stateful(nn.Module):
    """Keeps its last state, counts, lists what it saw, and makes buffers as it goes."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        self.last, self.calls, self.seen, self.lengths = None, 0, [], {}
        self.total = torch.zeros(())
        self.register_buffer("offset", None)
        self.register_buffer("table", torch.zeros(2))

    def forward(self, x):
        hidden = self.layer(x)
        self.calls += 1
        self.last = hidden
        self.seen.append(hidden)
        self.lengths[len(hidden)] = self.calls
        self.total += hidden.detach().sum()
        if self.offset is None:
            self.offset = torch.zeros(8)
        self.register_buffer("table", torch.ones(3))
        self.register_buffer("made", torch.ones(1))
        return self.head(hidden + self.offset)


@pytest.mark.parametrize("wrapped", [False, True])
def test_attributes_that_forward_writes_are_given_back(wrapped):
    net, x = seeded(Stateful).eval(), drawn(2, 4)
    forward = (lambda x: net(x)) if wrapped else net
    with torch.no_grad():
        net(x)
    net.layer.register_buffer("own", torch.ones(2))
    before, items = dict(vars(net)), (list(net.seen), dict(net.lengths), dict(net._buffers), net.total.clone())
    attribute(forward, net.layer, x, of_width(8), preset="paper")
    FeatureStatistics.estimate(forward, net.layer, [drawn(9, 4)])
    after = dict(vars(net))
    assert list(before) == list(after) and all(before[name] is after[name] for name in before)
    seen, lengths, buffers, total = items
    assert len(net.seen) == len(seen) and all(a is b for a, b in zip(net.seen, seen, strict=True))
    assert net.lengths == lengths and net.total.equal(total)
    assert list(net._buffers) == list(buffers) and all(net._buffers[name] is buffers[name] for name in buffers)


def test_a_model_under_functional_call_keeps_its_own_tensors():
    net, x = seeded(Experts).eval(), drawn(3, 4)
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    others = {name: value.detach() * 1.5 if value.is_floating_point() else value for name, value in own.items()}
    attribute(lambda x: torch.func.functional_call(net, others, x), net.layer, x, of_width(8))
    now = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    assert all(now[name] is own[name] for name in own)


def test_parameters_that_are_not_initialized_are_named():
    net = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="parameters of LazyLinear are not initialized yet"):
        attribute(net, net[0], drawn(3, 4), of_width(8))
    assert net.training and net[1].weight.requires_grad
    net(drawn(3, 4))
    net.unused = nn.LazyLinear(3)
    assert attribute(lambda x: net[1](net[0](x)), net[0], drawn(3, 4), of_width(8)).shape == (3, 8)


def test_an_error_on_entering_the_guard_frees_the_lock(monkeypatch):
    import torch._dynamo  # without it there is no stance to set

    net, x = seeded(Classifier), drawn(3, 4)
    attribute(net, net.layer, x, of_width(8))

    def fails(*_):
        raise RuntimeError("as planned")

    for name in ("compiler.set_stance", "get_rng_state"):
        with monkeypatch.context() as patch:
            patch.setattr(f"torch.{name}", fails)
            with pytest.raises(RuntimeError, match="as planned"):
                attribute(net, net.layer, x, of_width(8))
        free = []

        def tries(free=free):
            free.append(guard_module.ONE_AT_A_TIME.acquire(timeout=10))
            guard_module.ONE_AT_A_TIME.release()

        thread = threading.Thread(target=tries)
        thread.start()
        thread.join()
        assert free == [True]
        assert torch.backends.mha.get_fastpath_enabled()
        assert net.training


# 10. and 13. Several devices, and devices that lack something.


def test_a_shared_mask_goes_to_the_device_of_every_layer():
    """With the other device that every machine has, the one without data."""
    first, second = drawn(2, 5, 8), torch.empty(2, 5, 8, device="meta")
    layout = MaskLayout.of(first, "token", None, None, 2)
    visited = []

    class OnTwoDevices:
        def run(self, copies, replace):
            visited.extend([replace(0, first), replace(1, second)])
            return visited[0].mean((1, 2))[:, None].expand(-1, 3)

    def zeros(device):
        return torch.zeros(1, 1, 8, device=device)

    passes = OnTwoDevices()
    passes.captured = [SimpleNamespace(activation=first)] * 2
    objective = Objective(
        passes, [zeros("cpu"), zeros("meta")], [zeros("cpu"), zeros("meta")], layout, Information(layout, first),
        "cross_entropy", 0, resolve_settings(n_samples=0), 0,
    )  # fmt: skip
    losses = objective.losses(layout.initial_alpha(5.0, torch.float32), 0, range(1), [0])
    assert [one.device.type for one in visited] == ["cpu", "meta"]
    assert losses.shape == (1, 1, 2)


def test_open_bottleneck_stays_on_its_device():
    meta = torch.empty(2, 3, device="meta")
    assert apply_bottleneck(meta, meta, meta).device.type == "meta"


def test_statistics_of_a_device_without_float64():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        wide = _wide(torch.empty(3, 2, device="mps"))
        assert (wide.device.type, wide.dtype) == ("cpu", torch.float64)
        assert _wide(torch.empty(3, 2, device="cuda")).device.type == "cuda"


def test_recurrent_layers_on_cuda_train_without_dropout_while_they_are_attributed(monkeypatch):
    """cuDNN has no backward pass of recurrent layers in evaluation mode. Here on a CPU, which is taken for one."""
    monkeypatch.setattr(guard_module, "_runs_on_cudnn", lambda module: type(module) is nn.GRU)
    net = seeded(Recurrent, True)
    net.rnn = seeded(lambda: nn.GRU(4, 8, num_layers=2, batch_first=True, dropout=0.5))
    net.embed = nn.Linear(4, 4)
    modes = []

    def forward(x):
        modes.append((net.rnn.training, net.rnn.dropout, net.training))
        return net(net.embed(x))

    x, statistics = drawn(2, 5, 4), of_width(4)
    for training in (True, False):
        net.train(training)
        bits = attribute(forward, net.embed, x, statistics)
        assert set(modes) == {(True, 0.0, False)}
        assert (net.rnn.training, net.rnn.dropout) == (training, 0.5)
    assert_same(bits, attribute(forward, net.embed, x, statistics, replay=False))
    net.rnn.dropout = 0.0
    assert_same(bits, attribute(forward, net.embed, x, statistics, replay=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inside_with_outputs_in_float32_is_replayed(dtype):
    net = seeded(Classifier).to(dtype).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (1, 3, 5):
            x = drawn(rows, 4).to(dtype)
            bits = attribute(lambda x: net(x).float(), net.layer, x, of_width(8))
            assert bits.isfinite().all()


# 17. What cannot be done is named.


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.stem, self.layer = nn.Linear(4, 8), nn.Linear(8, 8)
        self.rest, self.head, self.reentrant = nn.Linear(8, 8), nn.Linear(8, 2), reentrant

    def segment(self, hidden):
        return self.rest(self.layer(hidden).tanh()).tanh()

    def forward(self, x):
        return self.head(checkpoint(self.segment, self.stem(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["layer", "stem"])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpoints_work_or_are_named(name, reentrant):
    net, plain = seeded(Checkpointed, reentrant), seeded(Checkpointed, reentrant)
    plain.forward = lambda x: plain.head(plain.segment(plain.stem(x)))
    x, statistics = drawn(3, 4), of_width(8)
    try:
        bits = attribute(net, getattr(net, name), x, statistics)
    except ValueError as error:
        named = "forward_func uses torch.utils.checkpoint around or after the layer"
        assert named in str(error) or "nor torch.utils.checkpoint (use_reentrant=True) around" in str(error)
    else:
        assert_same(bits, attribute(plain, getattr(plain, name), x, statistics))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantized_model_is_named():
    net = seeded(Classifier).eval()
    quantized = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, torch.qint8)
    with pytest.raises(ValueError, match=r"a quantized module through which no gradient flows back"):
        attribute(quantized, quantized.layer, drawn(3, 4), of_width(8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_named_and_a_scripted_part_works():
    net, x, statistics = seeded(Classifier).eval(), drawn(3, 4), of_width(8)
    expected = attribute(net, net.layer, x, statistics)
    scripted = torch.jit.script(net)
    with pytest.raises(ValueError, match=r"of TorchScript that did not run by itself .* before torch.jit.script"):
        attribute(scripted, scripted.layer, x, statistics)
    net.head = torch.jit.script(net.head)
    assert_same(attribute(net, net.layer, x, statistics), expected)


def test_outputs_in_a_mapping_that_cannot_be_written():
    class GivesAView(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 8)

        def forward(self, x):
            return types.MappingProxyType({"hidden": self.inner(x), "count": 3})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layer, self.head = GivesAView(), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.layer(self.first(x)["hidden"]))

    net, x, statistics = seeded(Net).eval(), drawn(3, 4), of_width(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(attribute(net, net.layer, x, statistics), attribute(net, net.layer, x, statistics, replay=False))
        bits = attribute(net, net.first, x, statistics)
    assert bits.shape == (3, 8)


def test_modules_made_in_forward_are_not_remembered_for_ever():
    class MakesModules(Classifier):
        def forward(self, x):
            return super().forward(nn.Identity()(nn.Hardtanh(-9, 9)(x)))

    net, x = seeded(MakesModules).eval(), drawn(3, 4)
    iba = InformationBottleneckAttribution(net, net.layer, statistics=of_width(8))
    expected = attribute(net, net.layer, x, of_width(8), replay=False)
    for _ in range(30):
        bits = iba.attribute(x, **SETTINGS)
    assert_same(bits, expected)
    gc.collect()
    assert sum(type(value) is nn.Hardtanh for value in gc.get_objects()) == 0


# 18. NoiseTunnel.


@pytest.mark.parametrize("batch", [None, 1, 2])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_noise_tunnel_repeats_a_bottleneck_mask(batch, rows):
    net, x = seeded(Audio).eval(), drawn(rows, 1, 8)
    statistics = FeatureStatistics.estimate(net, net.layer, [x])
    carried = torch.zeros(rows, 1, 6, dtype=torch.bool)
    for row in range(rows):
        carried[row, :, row:4] = True
    iba = InformationBottleneckAttribution(net, net.layer, statistics=statistics)
    more = {**SETTINGS, "bottleneck_mask": carried, "nt_samples": 3, "stdevs": 0.0}
    bits = NoiseTunnel(iba).attribute(x, nt_samples_batch_size=batch, **more)
    assert_same(bits, iba.attribute(x, **SETTINGS, bottleneck_mask=carried))
    assert (bits[~carried.expand_as(bits)] == 0).all()


def test_a_mask_of_fewer_rows_is_a_mistake_elsewhere():
    net, x = seeded(Audio).eval(), drawn(4, 1, 8)
    statistics = FeatureStatistics.estimate(net, net.layer, [x])
    with pytest.raises(ValueError, match=r"bottleneck_mask has the shape \(2, 1, 6\)"):
        attribute(net, net.layer, x, statistics, bottleneck_mask=torch.ones(2, 1, 6))


def test_results_leave_the_device_before_they_become_float64():
    """Apple's GPUs have no float64, and no machine here has one of those: the order of the calls is looked at."""
    package = Path(captum_iba.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    wrong = re.compile(r"\.double\(\)[\w.()\[\], -]*\.cpu\(\)|to\((\"cpu\", )?torch\.float64\)[\w.()]*\.cpu\(\)")
    found = [f"{path.name}: {match[0]}" for path, text in sources.items() for match in wrong.finditer(text)]
    assert found == []


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 6, num_layers=2, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def test_states_of_a_recurrent_layer_keep_their_shape_in_parts_of_as_many_examples_as_it_has_layers():
    model, x = seeded(LastState), drawn(4, 5, 4)
    whole, parts = (attribute(model, model.layer, x, None, internal_batch_size=size) for size in (None, 4))
    assert [tensor.shape for tensor in parts] == [tensor.shape for tensor in whole] == [(4, 5, 6), *[(2, 4, 6)] * 2]
    assert_same(parts[0], whole[0])


def test_a_training_flag_that_forward_sets_is_restored():
    class MonteCarlo(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.0), nn.Linear(6, 2)

        def forward(self, x):
            self.drop.train()
            return self.head(self.drop(self.layer(x)))

    model = seeded(MonteCarlo).eval()
    attribute(model, model.layer, drawn(2, 4), None)
    assert not model.drop.training


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_targets_of_binary_cross_entropy_may_be_those_of_torch(shape):
    model, x = seeded(nn.Sequential, nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)), drawn(4, 3)
    iba = InformationBottleneckAttribution(model, model[0], FeatureStatistics.estimate(model, model[0], [x]))
    classes, options = torch.tensor([1, 0, 1, 1]), {"loss": "binary_cross_entropy", "n_steps": 3}
    expected = iba.attribute(x, classes, **options)
    for target in (classes.reshape(shape).float(), classes.reshape(shape)):
        assert_same(iba.attribute(x, target, **options), expected)
    with pytest.raises(AssertionError, match=r"expected 0 or 1 for loss 'binary_cross_entropy'"):
        iba.attribute(x, classes.float() / 2, **options)


class Reads(nn.Module):
    def __init__(self, said):
        super().__init__()
        self.layer, self.said = nn.Linear(4, 4), said

    def forward(self, x):
        raise RuntimeError(self.said)


def test_an_error_that_only_names_a_folder_of_checkpoints_is_the_models_own():
    net = Reads("expected weights of ./checkpoint-500/model.safetensors with 8 columns")
    with pytest.raises(RuntimeError, match="^expected weights of ./checkpoint-500"):
        attribute(net, net.layer, drawn(3, 4), of_width(4))
