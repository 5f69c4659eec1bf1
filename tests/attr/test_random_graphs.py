"""Models put together by chance: replay, whole passes and a naive bottleneck agree, and everything is as it was."""

import copy
import random
import warnings

import hypothesis
import naive
import numpy
import pytest
import torch
from architectures import assert_same
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules import module as torch_module

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

WIDTH, POSITIONS, CLASSES = 4, 3, 3
# One draw a pass: a model that looks at its whole batch then sees the same one in every implementation.
SETTINGS = {"n_steps": 4, "n_samples": 1, "beta": 0.01, "learning_rate": 2.0}
PHASES = [
    hypothesis.Phase.explicit,
    hypothesis.Phase.generate,
    hypothesis.Phase.shrink,
]  # no explanations: they take long
GLOBAL_HOOKS = [name for name in vars(torch_module) if name.startswith("_global_") and "hooks" in name]


class Clock:
    """Counts the module calls of all models, and raises at one of them."""

    calls, raises_at, error = 0, 0, None

    @classmethod
    def start(cls, raises_at=0, error=None):
        cls.calls, cls.raises_at, cls.error = 0, raises_at, error

    @classmethod
    def tick(cls):
        cls.calls += 1
        if cls.calls == cls.raises_at:
            raise cls.error


class Part(nn.Module):
    """What all parts begin with; it reads its input through a saved copy, so that others may write into it."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        Clock.tick()
        return self.inner(torch.tanh(self.dropout(hidden)))


class Residual(Part):
    def forward(self, hidden):
        return hidden + super().forward(hidden)


class GivesATuple(Part):
    def forward(self, hidden):
        return None, torch.arange(4), super().forward(hidden), hidden.sum()


class GivesADictionary(Part):
    def forward(self, hidden):
        return {"scale": torch.ones(1), "hidden_states": super().forward(hidden)}


class Normalises(Part):
    def __init__(self):
        super().__init__()
        self.normalisation = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden):
        return self.normalisation(super().forward(hidden).transpose(1, 2)).transpose(1, 2)


class WritesIntoItsInput(Part):
    def forward(self, hidden):
        Clock.tick()
        hidden.mul_(1.1)
        hidden += 0.1
        return hidden


class WritesIntoAViewOfItsInput(Part):
    def forward(self, hidden):
        hidden[:, :1] += 1
        return super().forward(hidden)


class GivesItsInput(Part):
    def forward(self, hidden):
        Clock.tick()
        return hidden


class GivesAView(Part):
    def forward(self, hidden):
        return torch.stack([super().forward(hidden), hidden], 1)[:, 0]


class WritesIntoItsOutput(Part):
    def forward(self, hidden):
        changed = super().forward(hidden)
        changed -= 0.2
        return changed.mul_(1.2)


class CountsInBuffers(Part):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, hidden):
        self.count += 1
        self.average = 0.9 * self.average + 0.1 * hidden.detach().mean((0, 1))  # another tensor every time
        return super().forward(hidden)


class Draws(Part):
    """From the global random state, to no effect."""

    def forward(self, hidden):
        return super().forward(hidden) + 0 * torch.rand(1, dtype=hidden.dtype)


class TakesASide(Part):
    """Looks at the data, and runs one of two modules; the other one a recorded pass has not seen."""

    def __init__(self):
        super().__init__()
        self.other = Part()

    def forward(self, hidden):
        return super().forward(hidden) if hidden.mean() > 0 else self.other(hidden)


class WritesAttributes(Part):
    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, None

    def forward(self, hidden):
        self.calls += 1
        self.last = hidden.detach()
        self.shape_seen = tuple(hidden.shape)  # new from the first pass on
        return super().forward(hidden)


class AddsRandomNumbers(Part):
    def forward(self, hidden):
        return super().forward(hidden) + 0.1 * torch.rand_like(hidden)


PARTS = (
    Part,
    Residual,
    GivesATuple,
    GivesADictionary,
    Normalises,
    WritesIntoItsInput,
    WritesIntoAViewOfItsInput,
    GivesItsInput,
    GivesAView,
    WritesIntoItsOutput,
    CountsInBuffers,
    Draws,
    TakesASide,
)
# What the model does between or instead of running a new part.
STEPS = (
    "run",
    "run and add an early state",
    "run, then compare with an early state",
    "run where an early state is positive",
    "run where it has grown since an early state",
    "run until it settles",
    "run, then an earlier part again",
    "run, then an earlier part if positive",
    "run, then turn if close to an early state",
    "run, then write into it",
)
LOOKS = (
    "run",
    "run where an early state is positive",
    "run where it has grown since an early state",
    "run, then turn if close to an early state",
)


def tensor_of(output):
    if isinstance(output, tuple):
        return output[2]
    return output["hidden_states"] if isinstance(output, dict) else output


class Graph(nn.Module):
    """A model of (part, step, number of an earlier state or part) one after the other."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(kind() for kind, _, _ in plan)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.watched = None

    def forward(self, x):
        hidden = self.stem(x)
        states = [hidden]
        for number, (_, step, which) in enumerate(self.plan):
            part, early = self.parts[number], states[which % len(states)]
            settles = step == "run until it settles" and part is not self.watched
            if step == "run where an early state is positive" and early.mean() <= 0:
                hidden = -hidden
            if step == "run where it has grown since an early state" and (hidden - early).mean() <= 0:
                hidden = 0.5 * hidden
            if settles:
                for _ in range(3):
                    before = hidden.clone()
                    hidden = tensor_of(part(hidden))
                    if (hidden - before).abs().mean() < 1:
                        break
            else:
                hidden = tensor_of(part(hidden))
            again = self.parts[which % (number + 1)]
            if step == "run and add an early state":
                hidden = hidden + early
            elif step == "run, then compare with an early state":
                hidden = torch.where(hidden > early, 2 * hidden, hidden)
            elif step == "run, then write into it":
                hidden *= 0.9
            elif step == "run, then turn if close to an early state":
                if (hidden - early).abs().mean() < 1:
                    hidden = -hidden
            elif step == "run, then an earlier part again" or (
                # How often the explained part runs does not depend on the data, or no call of it could be named.
                step == "run, then an earlier part if positive" and again is not self.watched and hidden.mean() > 0
            ):
                hidden = tensor_of(again(hidden))
            states.append(hidden)
        return self.head(hidden.mean(1))


def plans(parts, steps):
    return st.lists(
        st.tuples(st.sampled_from(parts), st.sampled_from(steps), st.integers(0, 5)), min_size=2, max_size=5
    )


class Case:
    """A model, the part that is explained, and a batch."""

    def __init__(self, plan, watched, inside, call, rows, trains, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = Graph(plan).double()
            for parameter in self.net.parameters():
                nn.init.normal_(parameter, 0, 0.8)
            self.x = torch.randn(rows, POSITIONS, WIDTH, dtype=torch.float64)
        self.net.watched = self.net.parts[watched % len(plan)]
        # The part itself, or a module inside it, where that runs in every pass.
        always = not isinstance(self.net.watched, (WritesIntoItsInput, GivesItsInput, TakesASide))
        self.layer = self.net.watched.inner if inside and always else self.net.watched
        for number, part in enumerate(self.net.parts):
            part.train(bool(trains >> number & 1))
            part.inner.bias.requires_grad_(number % 2 == 0)
        self.call = call
        self.target = [number % CLASSES for number in range(rows)]

    def __repr__(self):
        plan = [(kind.__name__, step, which) for kind, step, which in self.net.plan]
        number = [*self.net.parts].index(self.net.watched)
        return f"{plan}, {type(self.layer).__name__} of part {number}, call {self.call}, {len(self.x)} rows"

    def naively(self):
        twin = copy.deepcopy(self.net).eval().requires_grad_(False)
        settings = {**SETTINGS, "layer_call": self.call}
        with torch.random.fork_rng(devices=[]):
            layer = twin.watched if self.layer is self.net.watched else twin.watched.inner
            mean, std = naive.statistics(twin, layer, (self.x,), layer_call=self.call)
            return naive.bits(twin, layer, (self.x,), self.target, mean, std, **settings)

    def ours(self, replay=True, at_input=False):
        net, layer = self.net, self.layer
        given = {"layer_call": self.call, "attribute_to_layer_input": at_input}
        # Reading what some of them write takes a state that others wrote: warnings of passes that run whole are right.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            statistics = FeatureStatistics.estimate(net, layer, [self.x], **given)
            iba = InformationBottleneckAttribution(net, layer, statistics=statistics)
            found = iba.attribute(self.x, self.target, replay=replay, **given, **SETTINGS)
        return found[1] if isinstance(found, tuple) else found


def cases(parts=PARTS, steps=STEPS):
    return st.builds(
        Case,
        plan=plans(parts, steps),
        watched=st.integers(0, 4),
        inside=st.booleans(),
        call=st.sampled_from([0, -1]),
        rows=st.integers(1, 3),
        trains=st.integers(0, 31),
        seed=st.integers(0, 99),
    )


def everything(case):
    """All that should be as before, by name; values are copies."""
    found = {
        "input": case.x.clone(),
        "random state of torch": torch.get_rng_state(),
        "random state of Python": random.getstate(),
        "random state of NumPy": numpy.random.get_state()[1].copy(),
        "gradients": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }
    found |= {name: dict(getattr(torch_module, name)) for name in GLOBAL_HOOKS}
    for name, module in case.net.named_modules():
        found[f"{name}: names of attributes"] = sorted(vars(module))
        for key, value in vars(module).items():
            copied = value.clone() if isinstance(value, torch.Tensor) else value
            found[f"{name}: {key}"] = dict(value) if isinstance(value, dict) else copied
    for name, parameter in case.net.named_parameters():
        found[f"{name}: value"] = parameter.detach().clone()
        found[f"{name}: flags"] = (parameter.requires_grad, parameter.grad, len(parameter._backward_hooks or ()))
    return found | {f"{name}: state": tensor.clone() for name, tensor in case.net.state_dict().items()}


def changed(before, after):
    """The names of what is not as it was."""

    def same(one, other):
        if isinstance(one, dict):
            return list(one) == list(other) and all(one[key] is other[key] for key in one)
        if isinstance(one, torch.Tensor):
            return isinstance(other, torch.Tensor) and torch.equal(one, other)
        if isinstance(one, numpy.ndarray):
            return bool((one == other).all())
        return one is other or one == other

    return [name for name in {**before, **after} if name not in after or not same(before.get(name), after[name])]


@hypothesis.settings(max_examples=40, phases=PHASES)
@hypothesis.given(case=cases())
def test_replayed_whole_and_naive(case):
    Clock.start()
    before = everything(case)
    expected = case.naively()
    assert_same(case.ours(replay=False), expected)
    assert changed(before, everything(case)) == []
    assert_same(case.ours(), expected)
    assert changed(before, everything(case)) == []


@hypothesis.settings(max_examples=30, phases=PHASES)
@hypothesis.given(case=cases((Part, Residual), LOOKS))
def test_decisions_about_early_states(case):
    Clock.start()
    expected = case.naively()
    for replay in (False, True):
        assert_same(case.ours(replay), expected)


@hypothesis.settings(max_examples=30, phases=PHASES)
@hypothesis.given(case=cases())
def test_at_the_input_of_a_module(case):
    Clock.start()
    before = everything(case)
    whole, replayed = (case.ours(replay, at_input=True) for replay in (False, True))
    assert_same(replayed, whole)
    assert changed(before, everything(case)) == []


@hypothesis.settings(max_examples=30, phases=PHASES)
@hypothesis.given(case=cases(), part=st.floats(0, 1), error=st.sampled_from([ValueError, KeyboardInterrupt]))
def test_after_an_exception_in_any_module(case, part, error):
    before = everything(case)
    Clock.start()
    case.ours()
    raised, planned = None, error("as planned")
    Clock.start(raises_at=1 + int(part * (Clock.calls - 1)), error=planned)
    try:
        case.ours()
    except (ValueError, KeyboardInterrupt) as found:
        raised = found
    finally:
        Clock.start()
    # An error in a pass that finds out whether replay is right only means that it is not; an interrupt goes through.
    assert raised is planned or (raised is None and error is ValueError)
    assert changed(before, everything(case)) == []


@hypothesis.settings(max_examples=25, phases=PHASES)
@hypothesis.given(case=cases((WritesAttributes, Part, Residual, TakesASide)))
def test_what_models_write_into_themselves(case):
    Clock.start()
    before = everything(case)
    expected = case.naively()
    for replay in (False, True):
        assert_same(case.ours(replay), expected)
        assert changed(before, everything(case)) == []


@hypothesis.settings(max_examples=15, phases=PHASES)
@hypothesis.given(case=cases((AddsRandomNumbers, Part, Residual)))
def test_models_that_draw_random_numbers(case):
    # Which numbers it draws depends on how many modules run: bits are not compared, but nothing changes.
    Clock.start()
    before = everything(case)
    for replay in (False, True):
        first = case.ours(replay)
        assert changed(before, everything(case)) == []
        torch.testing.assert_close(case.ours(replay), first, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [WritesIntoItsInput, WritesIntoAViewOfItsInput])
def test_an_input_that_is_written_into_and_then_looked_at(kind):
    """What a skipped module does to its input must be done to what stands in for the input, too."""
    plan = [(kind, "run", 0), (Part, "run where it has grown since an early state", 0)]
    Clock.start()
    for seed in range(16):
        case = Case(plan, watched=seed % 2, inside=False, call=-1, rows=3, trains=0, seed=seed)
        expected = case.naively()
        for replay in (False, True):
            assert_same(case.ours(replay), expected)
