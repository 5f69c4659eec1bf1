"""Captum's own tools around the attribution, and all that Captum lets a caller pass."""

import functools
import inspect
import warnings
from types import SimpleNamespace

import pytest
import torch
from architectures import CLASSES, HIDDEN, build
from captum.attr import LayerAttribution, NoiseTunnel, visualization
from captum.metrics import infidelity, sensitivity_max
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

ROWS, WIDTH, POSITIONS = 4, 6, 5
QUICK = {"n_steps": 3, "n_samples": 2, "beta": 0.01}


class Net(nn.Module):
    """The inputs themselves as a layer, then one more; outputs of any shape."""

    def __init__(self, shape=(CLASSES,)):
        super().__init__()
        self.shape = shape
        self.inputs = nn.Identity()
        self.hidden = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(inplace=True))
        self.head = nn.Linear(HIDDEN, torch.Size(shape).numel())

    def forward(self, x):
        return self.head(self.hidden(self.inputs(x))).reshape(len(x), *self.shape)


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(shape=(CLASSES,), seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(shape).eval()


def attribution(net, forward=None, layer=None):
    layer = net.hidden[0] if layer is None else layer
    return InformationBottleneckAttribution(net if forward is None else forward, layer, statistics=known(net, layer))


def known(net, layer):
    return FeatureStatistics.estimate(net, layer, [drawn(50, WIDTH, seed=2)])


@pytest.fixture
def x():
    return drawn(ROWS, WIDTH)


@pytest.fixture
def net():
    return made()


@pytest.fixture
def bits(net, x):
    return attribution(net).attribute(x, target=1, **QUICK)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "few observations: the statistics of (a )?layer")
        yield


# Around the attribution


@pytest.mark.parametrize("kind", ["smoothgrad", "smoothgrad_sq", "vargrad"])
def test_noise_tunnel(net, x, kind):
    tunnel = NoiseTunnel(attribution(net))
    found = tunnel.attribute(x, nt_type=kind, nt_samples=3, stdevs=0.1, target=[0, 1, 2, 0], **QUICK)
    assert found.shape == (ROWS, HIDDEN)
    assert found.isfinite().all()
    # Captum takes the variance as the difference of two means, which rounding may take below 0.
    assert (found >= -1e-4).all()


def test_noise_tunnel_without_noise_changes_nothing(net, x, bits):
    tunnel = NoiseTunnel(attribution(net))
    for samples_at_once in (None, 2):
        found = tunnel.attribute(x, nt_samples=4, nt_samples_batch_size=samples_at_once, stdevs=0.0, target=1, **QUICK)
        torch.testing.assert_close(found, bits, rtol=1e-4, atol=1e-4)


def test_noise_tunnel_over_images():
    images = build("Convolutional net")
    statistics = FeatureStatistics.estimate(images.model, images.layer, images.inputs)
    tunnel = NoiseTunnel(InformationBottleneckAttribution(images.model, images.layer, statistics=statistics))
    found = tunnel.attribute(images.inputs[0], nt_samples=2, stdevs=0.1, target=1, **QUICK)
    assert found.shape == (3, 8, 16, 16)
    assert found.isfinite().all()


def test_noise_tunnel_over_embeddings():
    text = build("BERT")
    ids, mask = text.inputs
    embeddings = text.model.bert.embeddings.word_embeddings(ids).detach()

    def forward(embeddings, mask):
        return text.model(inputs_embeds=embeddings, attention_mask=mask).logits

    statistics = FeatureStatistics.estimate(forward, text.layer, [(embeddings, mask)], lambda batch: batch[1])
    tunnel = NoiseTunnel(InformationBottleneckAttribution(forward, text.layer, statistics=statistics))
    # Captum repeats inputs and arguments for the noise; a mask of one row goes with all.
    found = tunnel.attribute(
        embeddings,
        nt_samples=3,
        stdevs=0.05,
        target=[0, 1, 2],
        additional_forward_args=(mask,),
        bottleneck_mask=torch.arange(ids.shape[1])[None] > 0,
        **QUICK,
    )
    assert found.shape == embeddings.shape
    assert found.isfinite().all()
    assert (found[:, 0] == 0).all()


def test_infidelity(net, x):
    at_inputs = attribution(net, layer=net.inputs).attribute(x, target=1, **QUICK)
    assert at_inputs.shape == x.shape

    def perturb(inputs):
        noise = 0.1 * torch.ones_like(inputs)
        return noise, inputs - noise

    found = infidelity(net, perturb, x, at_inputs, target=1, n_perturb_samples=3)
    assert found.shape == (ROWS,)
    assert found.isfinite().all()


def test_sensitivity(net, x):
    iba = attribution(net, layer=net.inputs)

    # sensitivity_max fails on every layer method unless the result is in a tuple.
    def explain(inputs, **arguments):
        return (iba.attribute(inputs, **arguments),)

    found = sensitivity_max(explain, x, perturb_radius=0.01, n_perturb_samples=2, target=1, **QUICK)
    assert found.shape == (ROWS,)
    assert found.isfinite().all()


def test_visualize_text(monkeypatch):
    if not visualization.HAS_IPYTHON:  # It only shows what Captum made.
        monkeypatch.setattr(visualization, "HAS_IPYTHON", True)
        monkeypatch.setattr(visualization, "display", lambda shown: None, raising=False)
        monkeypatch.setattr(visualization, "HTML", lambda data: SimpleNamespace(data=data), raising=False)
    text = build("BERT")
    ids, mask = text.example(0)
    statistics = FeatureStatistics.estimate(text.forward, text.layer, [text.inputs], lambda batch: batch[1])
    iba = InformationBottleneckAttribution(text.forward, text.layer, statistics=statistics)
    tokens = iba.attribute((ids, mask), target=1, **QUICK)[0].sum(-1)
    record = visualization.VisualizationDataRecord(
        word_attributions=tokens / tokens.max(),
        pred_prob=0.5,
        pred_class="b",
        true_class="b",
        attr_class="b",
        attr_score=float(tokens.sum()),
        raw_input_ids=[f"w{number}" for number in ids[0].tolist()],
        convergence_score=0.0,
    )
    html = visualization.visualize_text([record]).data
    assert all(f"w{number}" in html for number in ids[0].tolist())
    assert "nan" not in html.lower()


def test_data_parallel(net, x, bits):
    torch.testing.assert_close(attribution(net, nn.DataParallel(net)).attribute(x, target=1, **QUICK), bits)


def test_interpolate():
    images = build("Convolutional net")
    statistics = FeatureStatistics.estimate(images.model, images.layer, images.inputs)
    iba = InformationBottleneckAttribution(images.model, images.layer, statistics=statistics)
    found = iba.attribute(images.inputs[0], target=1, **QUICK).sum(1, keepdim=True)
    large = LayerAttribution.interpolate(found, (32, 24), interpolate_mode="bilinear")
    assert large.shape == (3, 1, 32, 24)
    assert (large >= 0).all()


def test_is_a_layer_attribution_of_captum(net):
    iba = attribution(net)
    assert isinstance(iba, LayerAttribution)
    assert iba.get_name() == "Information Bottleneck Attribution"
    assert not iba.has_convergence_delta()
    # What log_usage wraps; NoiseTunnel and TCAV look for it.
    assert inspect.isfunction(InformationBottleneckAttribution.attribute.__wrapped__)
    arguments = list(inspect.signature(InformationBottleneckAttribution.attribute.__wrapped__).parameters)
    assert arguments[:4] == ["self", "inputs", "target", "additional_forward_args"]


# Targets


@pytest.mark.parametrize(
    "target", [1, [1] * ROWS, torch.tensor(1), torch.tensor([1]), torch.full((ROWS,), 1), (1,), [(1,)] * ROWS], ids=str
)
def test_kinds_of_targets(net, x, bits, target):
    torch.testing.assert_close(attribution(net).attribute(x, target=target, **QUICK), bits)


def test_a_target_an_example(net, x):
    targets = [0, 2, 1, 1]
    alone = [attribution(net).attribute(x[n : n + 1], target=targets[n], **QUICK) for n in range(ROWS)]
    for target in (targets, torch.tensor(targets)):
        for size in (None, 1, 5):
            found = attribution(net).attribute(x, target=target, internal_batch_size=size, **QUICK)
            torch.testing.assert_close(found, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_targets_in_outputs_of_three_dimensions(x):
    deep = made((2, 3))
    iba = attribution(deep)
    one = iba.attribute(x, target=(1, 2), **QUICK)
    flat = attribution(deep, lambda rows: deep(rows).flatten(1)).attribute(x, 5, loss="negative_output", **QUICK)
    torch.testing.assert_close(one, flat)
    torch.testing.assert_close(iba.attribute(x, target=[(1, 2)] * ROWS, **QUICK), one)
    mixed = iba.attribute(x, target=[(1, 2), (0, 0), (1, 2), (0, 1)], **QUICK)
    torch.testing.assert_close(mixed[0], one[0])
    torch.testing.assert_close(mixed[1:2], iba.attribute(x[1:2], target=(0, 0), **QUICK))
    # A class at every position: the cross-entropy is over the last dimension.
    tagged = iba.attribute(x, target=(1, 2), loss="cross_entropy", **QUICK)
    second = attribution(deep, lambda rows: deep(rows)[:, 1]).attribute(x, target=2, **QUICK)
    torch.testing.assert_close(tagged, second)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_value_an_example_needs_no_target(x, shape):
    single = made(shape)
    iba = attribution(single)
    with pytest.warns(UserWarning, match="one value per example.*binary_cross_entropy"):
        found = iba.attribute(x, **QUICK)
    # It has no bound to rise to, so nothing is held back against it.
    torch.testing.assert_close(iba.attribute(x, loss="negative_output", complement=0.0, **QUICK), found)
    assert not torch.allclose(iba.attribute(x, loss="negative_output", complement=1.0, **QUICK), found)
    assert found.shape == (ROWS, HIDDEN)
    wide = attribution(single, lambda rows: single(rows).reshape(-1, 1).expand(-1, 2))
    torch.testing.assert_close(found, wide.attribute(x, target=1, loss="negative_output", **QUICK))


@pytest.mark.parametrize(
    "target", [None, 3, -4, [0, 1], [0, 1, 2, 3], torch.tensor([0, 1]), (0, 1), [(0, 1)] * ROWS, "b"], ids=str
)
def test_bad_targets(net, x, target):
    with pytest.raises(AssertionError):
        attribution(net).attribute(x, target=target, **QUICK)


# Losses


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("settings", [{}, {"alternate": False}, {"complement": 0.0}])
def test_one_logit_is_two_classes(x, shape, settings):
    single = made(shape)
    wide = attribution(single, lambda rows: torch.stack([torch.zeros(len(rows)), single(rows).reshape(-1)], 1))
    for target in (0, [0, 1, 1, 0], torch.tensor([1, 0, 1, 1])):
        found, trace = attribution(single).attribute(
            x, target=target, loss="binary_cross_entropy", return_trace=True, **settings, **QUICK
        )
        expected, of_two = wide.attribute(x, target=target, return_trace=True, **settings, **QUICK)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(trace.probability, of_two.probability)


def test_one_logit_asks_for_one_logit_and_a_class(net, x):
    with pytest.raises(ValueError, match=r"'binary_cross_entropy', but the output has the shape \(4, 3\)"):
        attribution(net).attribute(x, target=1, loss="binary_cross_entropy", **QUICK)
    for target in (None, 2):
        with pytest.raises(AssertionError, match="target"):
            attribution(made(())).attribute(x, target=target, loss="binary_cross_entropy", **QUICK)


def test_losses_by_name(net, x, bits):
    iba = attribution(net)
    torch.testing.assert_close(iba.attribute(x, target=1, loss="cross_entropy", **QUICK), bits)
    logs = attribution(net, lambda rows: net(rows).log_softmax(-1))
    torch.testing.assert_close(logs.attribute(x, target=1, loss="nll", **QUICK), bits)
    assert not torch.allclose(iba.attribute(x, target=1, loss="negative_output", **QUICK), bits)


def test_custom_losses(net, x):
    iba = attribution(net)

    def cross_entropy(output, target):
        return nn.functional.cross_entropy(output, torch.full((len(output),), target), reduction="none")

    known = iba.attribute(x, target=1, complement=0.0, **QUICK)
    torch.testing.assert_close(iba.attribute(x, target=1, loss=cross_entropy, **QUICK), known)

    # The target is what attribute was given, an entry a row; None where there is none.
    with torch.no_grad():
        before = net(x)

    def distance(output, target):
        assert target is None
        return (output - before.repeat(len(output) // ROWS, 1)).square().sum(1)

    found = iba.attribute(x, loss=distance, **QUICK)
    assert found.isfinite().all()
    seen = []
    iba.attribute(x, target=[0, 1, 2, 0], loss=lambda output, target: seen.append(target) or output[:, 0], **QUICK)
    assert seen[-1] == [0, 1, 2, 0] * QUICK["n_samples"]


@pytest.mark.parametrize("limit", [None, 1, 4])
@pytest.mark.parametrize("kind", [torch.tensor, list])
def test_a_custom_loss_has_a_target_for_every_row(net, x, kind, limit):
    def cross_entropy(output, target):
        return nn.functional.cross_entropy(output, torch.as_tensor(target), reduction="none")

    iba = attribution(net)
    found = iba.attribute(x[:1], target=kind([1]), loss=cross_entropy, internal_batch_size=limit, **QUICK)
    torch.testing.assert_close(found, iba.attribute(x[:1], target=1, complement=0.0, **QUICK))


@pytest.mark.parametrize("loss", [lambda output, target: output.mean(), lambda output, target: output, lambda *_: 1.0])
def test_a_loss_must_give_one_value_a_row(net, x, loss):
    with pytest.raises(ValueError, match="loss must return one value per row"):
        attribution(net).attribute(x, target=1, loss=loss, **QUICK)


# What is attributed


class Wrapper:
    def __init__(self, net):
        self.net = net

    def logits(self, x):
        return self.net(x)


def test_kinds_of_functions(net, x, bits):
    def scaled(rows, scale):
        return net(rows * scale)

    for forward in (lambda rows: net(rows), functools.partial(scaled, scale=1.0), Wrapper(net).logits, net.forward):
        torch.testing.assert_close(attribution(net, forward).attribute(x, target=1, **QUICK), bits)


def test_tensors_anywhere_in_the_arguments_go_with_the_examples(net, x, bits):
    def forward(rows, arguments, power, *rest):
        extra, shared = arguments["nested"]["extra"], arguments["list"][0]
        assert len(extra) == len(rows)
        assert len(arguments["pair"][1]) == len(rows)
        assert shared.shape == (7,)
        assert power == 1
        return net(rows - extra + arguments["pair"][1] + shared.sum()) ** power

    shift = drawn(ROWS, WIDTH, seed=3)
    arguments = {"nested": {"extra": shift}, "list": [torch.zeros(7)], "pair": (None, shift), "name": "any"}
    iba = attribution(net, forward)
    for size in (None, 1, 3):
        found = iba.attribute(x, 1, (arguments, 1), internal_batch_size=size, **QUICK)
        torch.testing.assert_close(found, bits, rtol=1e-4, atol=1e-4)
    assert arguments["nested"]["extra"] is shift


def test_several_inputs(net, x, bits):
    iba = attribution(net, lambda first, second: net(torch.cat((first, second), 1)))
    found = iba.attribute((x[:, :2], x[:, 2:]), target=1, **QUICK)
    torch.testing.assert_close(found, bits)


def test_a_model_output_is_refused():
    text = build("BERT")
    iba = InformationBottleneckAttribution(text.model, text.layer)
    with pytest.raises((TypeError, AssertionError), match=r"tensor|Tensor"):
        iba.attribute(text.inputs[0], target=1)
