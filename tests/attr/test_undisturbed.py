"""Whatever happens in an attribution, everything is afterwards as it was before."""

import random
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

ROWS, POSITIONS, WIDTH, CLASSES = 3, 4, 6, 2
QUICK = {"target": 1, "n_steps": 2, "n_samples": 2, "beta": 0.01}
GLOBAL_HOOKS = [name for name in vars(torch_module) if name.startswith("_global_") and "hooks" in name]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.normalisation = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.5)

    def forward(self, hidden):
        changed = self.normalisation(self.inner(hidden).transpose(1, 2)).transpose(1, 2)
        return self.dropout(changed.relu()) + hidden


class Net(nn.Module):
    """Dropout and batch normalisation in training mode; an error on demand, in a pass of choice."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        # Not a number of its own, which an attribution puts back.
        self.counter = SimpleNamespace(passes=0)
        self.fails_in, self.error = 0, ValueError("as planned")

    @property
    def passes(self):
        return self.counter.passes

    @passes.setter
    def passes(self, passes):
        self.counter.passes = passes

    def forward(self, x):
        self.passes += 1
        for block in self.blocks:
            x = block(x)
        if self.passes == self.fails_in:
            raise self.error
        return self.head(x.mean(1))


def own_forward(hidden):
    return nn.functional.dropout(hidden, 0.0)


@pytest.fixture
def x():
    return torch.randn(ROWS, POSITIONS, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net(x):
    """In training mode but for one block, with gradients but for one weight, hooks and a ``forward`` of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
        net(x).sum().backward()
    net.blocks[2].eval()
    net.blocks[0].inner.weight.requires_grad_(False)
    net.blocks[0].inner.weight.grad = None
    net.blocks[1].register_forward_hook(lambda layer, args, output: None)
    net.blocks[1].register_forward_pre_hook(lambda layer, args, kwargs: None, with_kwargs=True)
    net.head.register_full_backward_hook(lambda layer, before, after: None)
    net.blocks[0].dropout.forward = own_forward
    net.passes = 0
    return net


@pytest.fixture
def iba(net, x):
    statistics = FeatureStatistics.estimate(net, net.blocks[1], [x])
    net.passes = 0
    return InformationBottleneckAttribution(net, net.blocks[1], statistics=statistics)


@pytest.fixture(autouse=True)
def undisturbed(net, x):
    """Of every test in this file."""
    before = everything(net, x)
    yield
    after = everything(net, x)
    assert list(before) == list(after)
    for what, value in before.items():
        assert same(value, after[what]), what


def everything(net, x):
    """All that an attribution could leave traces in, by name; values are copies."""
    found = {
        "inputs": x.clone(),
        "random state of torch": torch.get_rng_state(),
        "random state of Python": random.getstate(),
        "random state of NumPy": numpy.random.get_state()[1].copy(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "number type": torch.get_default_dtype(),
        "handler of Ctrl-C": signal.getsignal(signal.SIGINT),
    }
    found |= {name: dict(getattr(torch_module, name)) for name in GLOBAL_HOOKS}
    for name, module in net.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in ("fails_in", "error")}
        found |= {f"{name}: {key}": dict(value) if isinstance(value, dict) else value for key, value in own.items()}
    for name, parameter in net.named_parameters():
        found[f"{name}: value"] = parameter.detach().clone()
        found[f"{name}: version"] = parameter._version
        found[f"{name}: requires_grad"] = parameter.requires_grad
        found[f"{name}: grad"] = None if parameter.grad is None else parameter.grad.clone()
        found[f"{name}: backward hooks"] = len(parameter._backward_hooks or ())
    return found | {f"{name}: buffer": buffer.clone() for name, buffer in net.named_buffers()}


def same(one, other):
    if isinstance(one, dict):
        return list(one) == list(other) and all(one[key] is other[key] for key in one)
    if isinstance(one, torch.Tensor):
        return one.equal(other)
    if isinstance(one, numpy.ndarray):
        return bool((one == other).all())
    return one is other or one == other


def passes_of(iba, net, x, **changes):
    """How many passes an attribution takes."""
    net.passes = 0
    iba.attribute(x, **QUICK, **changes)
    passes, net.passes = net.passes, 0
    return passes


# Success


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"replay": False},
        {"return_trace": True},
        {"n_steps": 0},
        {"internal_batch_size": 1},
        {"attribute_to_layer_input": True},
        {"preset": "as_released"},
        {"loss": lambda output, target: output[:, 0]},
    ],
    ids=lambda changes: ", ".join(changes) or "none",
)
def test_after_success(iba, x, changes):
    iba.statistics[0].at_input = None  # of the input, too
    iba.attribute(x, **{**QUICK, **changes})


def test_statistics(net, x):
    FeatureStatistics.estimate(net, net.blocks[1], [x, x[:1]])
    FeatureStatistics.estimate(net, [net.blocks[1], net.blocks[2]], [x], layer_call=0, attribute_to_layer_input=True)
    for error in (ValueError("as planned"), KeyboardInterrupt()):
        net.passes, net.fails_in, net.error = 0, 1, error
        with pytest.raises(type(error)):
            FeatureStatistics.estimate(net, net.blocks[1], [x])


def test_several_layers(net, x):
    layers = [net.blocks[2], net.blocks[0]]
    statistics = FeatureStatistics.estimate(net, layers, [x])
    iba = InformationBottleneckAttribution(net, layers, statistics=statistics)
    iba.attribute(x, **QUICK)
    iba.attribute(x, share_mask=True, **QUICK)


def test_a_layer_that_has_its_own_forward(net, x):
    layer = net.blocks[0].dropout
    statistics = FeatureStatistics.estimate(net, layer, [x], feature_dim=-1)
    iba = InformationBottleneckAttribution(net, layer, statistics=statistics)
    iba.attribute(x, **QUICK)


def test_training_mode_gives_the_bits_of_evaluation_mode(iba, net, x):
    bits = iba.attribute(x, **QUICK)
    modes = {module: module.training for module in net.modules()}
    net.eval()
    torch.testing.assert_close(iba.attribute(x, **QUICK), bits, rtol=0, atol=0)
    net.train()
    torch.testing.assert_close(iba.attribute(x, **QUICK), bits, rtol=0, atol=0)
    assert all(module.training for module in net.modules())
    for module, training in modes.items():
        module.training = training


def test_a_model_that_draws_random_numbers(net, x):
    def noisy(rows):
        return net(rows + 0.1 * torch.randn(rows.shape[1:]))

    statistics = FeatureStatistics.estimate(net, net.blocks[1], [x])
    iba = InformationBottleneckAttribution(noisy, net.blocks[1], statistics=statistics)
    iba.attribute(x, replay=False, **QUICK)
    with warnings.catch_warnings(record=True):
        iba.attribute(x, **QUICK)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_inside_contexts(iba, x, context):
    more = {**QUICK, "target": [1] * ROWS}
    masks = {"bottleneck_mask": torch.arange(POSITIONS)[None] > 0, "feature_mask": torch.arange(POSITIONS)[None] // 2}
    expected = iba.attribute(x, **masks, **more)
    with context():
        masks = {name: mask.clone() for name, mask in masks.items()}
        bits = iba.attribute(x.clone(), **masks, **{**more, "target": torch.ones(ROWS, dtype=torch.int64)})
    torch.testing.assert_close(bits, expected)
    assert not bits.is_inference()
    assert not bits.requires_grad


def test_models_of_inference_mode_are_named(net, x):
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        made_there = Net()
    statistics = FeatureStatistics.estimate(net, net.blocks[1], [x])

    def runs_there(rows):
        with torch.inference_mode():
            return net(rows)

    for model, layer in ((made_there, made_there.blocks[1]), (runs_there, net.blocks[1])):
        iba = InformationBottleneckAttribution(model, layer, statistics=statistics)
        with pytest.raises(ValueError, match="made in inference mode, through which no gradient flows back"):
            iba.attribute(x, **QUICK)


def test_inputs_that_require_gradients(iba, x):
    rows = x.clone().requires_grad_()
    torch.testing.assert_close(iba.attribute(rows, **QUICK), iba.attribute(x, **QUICK))
    assert rows.grad is None
    assert rows.requires_grad


# Failure


@pytest.mark.parametrize("error", [ValueError("as planned"), KeyboardInterrupt(), SystemExit()], ids=repr)
@pytest.mark.parametrize("replay", [True, False])
def test_after_an_error_in_any_pass(iba, net, x, error, replay):
    passes = passes_of(iba, net, x, replay=replay)
    assert passes >= QUICK["n_steps"] + 1
    for fails_in in range(1, passes + 1):
        # A new one every time, which has yet to find out that replay is right.
        iba = InformationBottleneckAttribution(net, net.blocks[1], statistics=iba.statistics)
        net.passes, net.fails_in, net.error = 0, fails_in, error
        before = everything(net, x)
        try:
            with warnings.catch_warnings(record=True):
                iba.attribute(x, replay=replay, **QUICK)
        except BaseException as raised:
            assert raised is error
        else:
            # The passes that find out if rows are independent and replay is right may fail; interrupts go through.
            assert isinstance(error, Exception)
        after = everything(net, x)
        assert [what for what in before if not same(before[what], after[what])] == []
    net.fails_in = 0


@pytest.mark.parametrize("error", [ValueError("as planned"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_after_an_error_in_the_loss(iba, x, error, calls):
    counted = []

    def loss(output, target):
        counted.append(output)
        if len(counted) == calls:
            raise error
        return output[:, 0]

    with pytest.raises(type(error)):
        iba.attribute(x, loss=loss, **QUICK)


class FailsBackwards(torch.autograd.Function):
    @staticmethod
    def forward(context, output):
        return output.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("as planned")


def test_after_an_error_in_the_backward_pass(iba, x):
    with pytest.raises(RuntimeError, match="as planned"):
        iba.attribute(x, loss=lambda output, target: FailsBackwards.apply(output)[:, 0], **QUICK)


def test_after_bad_arguments(iba, net, x):
    with pytest.raises(AssertionError):
        iba.attribute(x, **{**QUICK, "target": 9})
    with pytest.raises(ValueError, match="did not run"):
        InformationBottleneckAttribution(net, nn.Identity()).attribute(x, **QUICK)
    with pytest.raises(ValueError, match="layer_call"):
        iba.attribute(x, layer_call=3, **QUICK)
    with pytest.raises(ValueError, match="bottleneck_mask"):
        iba.attribute(x, bottleneck_mask=torch.ones(7, 7), **QUICK)


def test_after_an_error_in_a_hook_of_the_model(iba, net, x):
    def fails(layer, args, output):
        raise KeyboardInterrupt

    handle = net.blocks[2].register_forward_hook(fails)
    with pytest.raises(KeyboardInterrupt):
        iba.attribute(x, **QUICK)
    handle.remove()


def test_after_a_signal(iba, x):
    def loss(output, target):
        signal.raise_signal(signal.SIGINT)
        return output[:, 0]

    with pytest.raises(KeyboardInterrupt):
        iba.attribute(x, loss=loss, **QUICK)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_after_ctrl_c_in_a_process():
    code = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import torch
        from test_undisturbed import CLASSES, POSITIONS, ROWS, WIDTH, Net, everything, same
        from captum_iba import FeatureStatistics, InformationBottleneckAttribution

        torch.set_num_threads(1)
        net, x = Net(), torch.randn(ROWS, POSITIONS, WIDTH)
        iba = InformationBottleneckAttribution(
            net, net.blocks[1], statistics=FeatureStatistics.estimate(net, net.blocks[1], [x])
        )
        before = everything(net, x)
        try:
            print("ready", flush=True)
            iba.attribute(x, target=1, n_steps=10**6)
        except KeyboardInterrupt:
            after = everything(net, x)
            print("changed:", [what for what in before if not same(before[what], after[what])])
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        threading.Event().wait(1.0)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=400)
    finally:
        process.kill()
    assert output == "changed: []\n"


# Other threads


def test_while_other_threads_run_modules(iba, net, x):
    """The same model, even: global hooks and replaced ``forward`` methods are for one thread only."""
    expected = iba.attribute(x, **QUICK)
    modes = {module: module.training for module in net.modules()}
    net.eval()
    with torch.no_grad():
        output = net(x)
    stop, errors, runs = threading.Event(), [], []
    # Without dropout, which would draw from the random state that all threads share.
    with torch.random.fork_rng(devices=[]):
        other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    flags = [parameter.requires_grad for parameter in other.parameters()]

    def work():
        try:
            while not stop.is_set():
                other(x).sum().backward()
                assert all(module.training for module in other.modules())
                assert [parameter.requires_grad for parameter in other.parameters()] == flags
                with torch.no_grad():
                    net(x)  # the layer with the bottleneck, too
                runs.append(1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(5):
                torch.testing.assert_close(iba.attribute(x, **QUICK), expected)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert runs
    with torch.no_grad():
        torch.testing.assert_close(net(x), output)
    for module, training in modes.items():
        module.training = training


@pytest.mark.parametrize("models", [1, 2])
def test_attributions_on_two_threads(x, models):
    """Of two models, or of one in training mode: no attribution sees, or undoes, what another does."""

    def made(seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = Net()
        statistics = FeatureStatistics.estimate(net, net.blocks[1], [x])
        return InformationBottleneckAttribution(net, net.blocks[1], statistics=statistics)

    several = [made(seed) for seed in range(models)] * (2 // models)
    before = [everything(iba.forward_func, x) for iba in several]
    expected = [iba.attribute(x, **QUICK) for iba in several]
    found = {}

    def work(number):
        for turn in range(5):
            found[number, turn] = several[number].attribute(x, **QUICK)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 10
    for (number, _), bits in found.items():
        torch.testing.assert_close(bits, expected[number])
    for iba, state in zip(several, before, strict=True):
        after = everything(iba.forward_func, x)
        assert [what for what in state if not same(state[what], after[what])] == []


def test_ctrl_c_is_not_caught_by_copyreg(iba, x):
    """Its ``except:`` catches KeyboardInterrupt, too, so that an attribution went on for minutes."""
    iba.attribute(x, **QUICK)  # the first one imports
    files = set()
    sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
    try:
        iba.attribute(x, **QUICK)
    finally:
        sys.setprofile(None)
    assert files and not [name for name in files if name.endswith("copyreg.py")]


def test_an_attribute_that_was_none_and_is_deleted_comes_back():
    class Starts(nn.Module):
        def __init__(self):
            super().__init__()
            self.start, self.layer, self.head = None, nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            if "start" in vars(self):
                del self.start
                self.scale = 3.0
            return self.head(torch.relu(self.layer(x))) * vars(self).get("scale", 1.0)

    with torch.random.fork_rng(devices=[]):
        model, inputs = Starts().eval(), torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        InformationBottleneckAttribution(model, model.layer).attribute(inputs, target=0, n_steps=2)
    assert "start" in vars(model) and "scale" not in vars(model)


class Writing(nn.Module):
    """Keeps what it has seen, as attention modules keep their weights."""

    def __init__(self):
        super().__init__()
        self.embed, self.head, self.seen, self.passes = nn.Linear(4, 6), nn.Linear(6, 3), None, 0

    def forward(self, x):
        self.seen, self.passes = self.embed(x).tanh(), self.passes + 1
        return self.head(self.seen.mean(1))


class Application:
    """Holds a model, as pipelines and apps do."""

    def __init__(self, model):
        self.inner = type("Inner", (), {})()
        self.inner.model = self.model = model

    def logits(self, x):
        return self.inner.model(x)


def test_a_model_that_an_object_holds_is_left_as_it_was():
    """By a closure over the object, by its bound method, and by its global name."""
    with torch.random.fork_rng(devices=[]):
        model = Writing().eval()
        x, texts = torch.randn(2, 5, 4), torch.randn(30, 5, 4)
    app = Application(model)
    space = {"app": app}
    exec("def by_global(x):\n    return app.model(x)", space)
    statistics = FeatureStatistics.estimate(model, model.embed, [texts])
    model(x)
    seen = model.seen
    bits = []
    for forward in (model, lambda x: app.model(x), app.logits, space["by_global"]):
        iba = InformationBottleneckAttribution(forward, model.embed, statistics=statistics)
        bits.append(iba.attribute(x, target=1, n_steps=2))
        assert model.seen is seen and model.passes == 1
        assert torch.equal(bits[-1], bits[0])
