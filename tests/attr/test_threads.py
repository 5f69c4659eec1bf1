"""Attributions on several threads at once, each on a model of its own: as on one thread."""

import threading
import warnings

import pytest
import torch
from architectures import CLASSES, SETTINGS
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

WIDTH, POSITIONS, ROWS = 6, 4, 2
THREADS, CALLS = 4, 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.3)

    def forward(self, hidden):
        return hidden + self.dropout(torch.tanh(self.inner(hidden)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class DrawsToNoEffect(Net):
    """In evaluation mode, too; another thread may draw in between, so that nothing may depend on the numbers."""

    def forward(self, x):
        return super().forward(x) + 0 * torch.rand(1)


class AddsRandomNumbers(Net):
    def forward(self, x):
        return super().forward(x + 0.1 * torch.rand(x.shape[1:]))


def made(kind, seed):
    """A model in training mode, and its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net, x = kind(), torch.randn(ROWS, POSITIONS, WIDTH)
    for parameter in net.parameters():
        nn.init.normal_(parameter, 0, 0.6, generator=torch.Generator().manual_seed(seed))
    net.blocks[0].eval()
    return net, x


def attributed(net, x, turn):
    """Statistics and bits, both of which enter the guard of the modules."""
    statistics = FeatureStatistics.estimate(net, net.blocks[1], [x])
    iba = InformationBottleneckAttribution(net, net.blocks[1], statistics=statistics)
    return iba.attribute(x, target=turn % CLASSES, seed=turn, replay=turn % 3 > 0, **SETTINGS)


def at_once(pairs):
    """What all threads found, by number of thread and call."""
    found, errors, start = {}, [], threading.Barrier(len(pairs))

    def work(number):
        try:
            start.wait()
            for turn in range(CALLS):
                found[number, turn] = attributed(*pairs[number], turn)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return found


def state(net):
    flags = [(name, parameter.requires_grad) for name, parameter in net.named_parameters()]
    modes = [(name, module.training, sorted(vars(module))) for name, module in net.named_modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()]
    return flags, modes, hooks


@pytest.mark.parametrize("kinds", [(Net,) * 4, (Net, DrawsToNoEffect) * 2], ids=["alike", "two that draw"])
def test_as_on_one_thread(kinds):
    pairs = [made(kind, seed) for seed, kind in enumerate(kinds)]
    states = [state(net) for net, _ in pairs]
    weights = [{name: value.clone() for name, value in net.state_dict().items()} for net, _ in pairs]
    random_state, fast_path = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {(n, turn): attributed(*pairs[n], turn) for n in range(THREADS) for turn in range(CALLS)}
        assert torch.get_rng_state().equal(random_state)
        found = at_once(pairs)
    assert torch.get_rng_state().equal(random_state)
    assert torch.backends.mha.get_fastpath_enabled() is fast_path
    assert sorted(found) == sorted(expected)
    for key, bits in found.items():
        torch.testing.assert_close(bits, expected[key])
    assert [state(net) for net, _ in pairs] == states
    for (net, _), before in zip(pairs, weights, strict=True):
        assert all(value.equal(before[name]) for name, value in net.state_dict().items())


def test_the_random_state_with_models_that_use_it():
    pairs = [made(AddsRandomNumbers if seed % 2 else Net, seed) for seed in range(THREADS)]
    random_state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {(n, turn): attributed(*pairs[n], turn) for n in (0, 2) for turn in range(CALLS)}
        found = at_once(pairs)
    assert torch.get_rng_state().equal(random_state)
    for key, bits in expected.items():
        torch.testing.assert_close(found[key], bits)
