import inspect

import captum.attr
import captum.metrics
import pytest
import torch
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.metrics import layer_infidelity, layer_sensitivity_max


class TwoLayers(nn.Module):
    """x, (B, 3) -> relu(x W) -> 2 logits; ``wrap`` makes the layer give a tuple."""

    def __init__(self, wrap=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = Layer(wrap), nn.Linear(4, 2)

    def forward(self, x, scale=None):
        hidden = self.layer(x)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.head(hidden if scale is None else hidden * scale[:, None])


class Layer(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.linear, self.wrap = nn.Linear(3, 4), wrap

    def forward(self, x):
        hidden = self.linear(x).relu()
        return (hidden, None) if self.wrap else hidden


X = torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, 1.0], [-2.0, 0.3, 0.7]])


def shift(inputs, radius):
    return tuple(one + radius for one in inputs) if isinstance(inputs, tuple) else inputs + radius


def test_captum_alone_fails_on_layers():
    """If this no longer fails, the wrapper of layer_sensitivity_max is not needed any more."""
    model = TwoLayers()
    with pytest.raises(Exception):  # noqa: B017 - which one depends on the shapes
        captum.metrics.sensitivity_max(captum.attr.LayerActivation(model, model.layer).attribute, X)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("limit", [None, 6])
def test_sensitivity_of_the_activation_by_hand(several, limit):
    model = TwoLayers()
    attribute = captum.attr.LayerActivation(model, [model.layer] if several else model.layer).attribute
    result = layer_sensitivity_max(attribute, X, shift, 0.1, n_perturb_samples=4, max_examples_per_batch=limit)
    with torch.no_grad():
        before, after = model.layer.linear(X).relu(), model.layer.linear(X + 0.1).relu()
    torch.testing.assert_close(result, (after - before).norm(dim=1) / before.norm(dim=1))


def test_sensitivity_of_other_layer_methods():
    model = TwoLayers()
    statistics = FeatureStatistics.estimate(model, model.layer, [X])
    methods = [
        InformationBottleneckAttribution(model, model.layer, statistics=statistics),
        captum.attr.LayerGradientXActivation(model, model.layer),
        captum.attr.LayerIntegratedGradients(model, model.layer),
    ]
    for method in methods:
        still = layer_sensitivity_max(method.attribute, X, shift, 0.0, target=1, n_perturb_samples=2)
        torch.testing.assert_close(still, torch.zeros(3), rtol=0, atol=1e-5)
        moved = layer_sensitivity_max(
            method.attribute, X, shift, 0.5, target=torch.tensor([0, 1, 1]), n_perturb_samples=2
        )
        assert (moved > 0).any()


def test_sensitivity_of_input_methods_is_captums():
    model = TwoLayers()
    attribute = captum.attr.FeatureAblation(model).attribute
    ours, theirs = (
        metric(attribute, X, perturb_func=shift, target=1)
        for metric in (layer_sensitivity_max, captum.metrics.sensitivity_max)
    )
    torch.testing.assert_close(ours, theirs)


def halve(activations):
    return activations / 2, activations / 2


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("limit", [None, 6])
def test_infidelity_by_hand(wrap, limit):
    model = TwoLayers(wrap)
    scale = torch.tensor([1.0, 2.0, 3.0])
    # Behind the layer the model is linear: its gradient foretells every change.
    gradient = model.head.weight[1].detach() * scale[:, None]
    settings = {"target": 1, "additional_forward_args": scale, "max_examples_per_batch": limit}
    result = layer_infidelity(model, model.layer, halve, X, gradient, **settings)
    torch.testing.assert_close(result, torch.zeros(3), rtol=0, atol=1e-10)
    wrong = layer_infidelity(model, model.layer, halve, X, gradient + 1, **settings)
    with torch.no_grad():
        hidden = model.layer.linear(X).relu()
    torch.testing.assert_close(wrong, (hidden / 2).sum(1).square())


def test_infidelity_of_a_layers_input():
    model = TwoLayers()
    with torch.no_grad():
        model.layer.linear.bias.fill_(100)  # relu is open: the model is linear in x
    gradient = (model.head.weight[0] @ model.layer.linear.weight).detach().expand(3, 3)
    result = layer_infidelity(model, model.layer, halve, X, gradient, target=0, attribute_to_layer_input=True)
    torch.testing.assert_close(result, torch.zeros(3), rtol=0, atol=1e-8)


def test_infidelity_agrees_with_captum_where_that_works():
    model = TwoLayers()
    scores = captum.attr.Saliency(model).attribute(X.clone().requires_grad_(), target=1)
    ours = layer_infidelity(
        model, model.layer, halve, X, scores, target=1, attribute_to_layer_input=True, normalize=True
    )
    torch.testing.assert_close(ours, captum.metrics.infidelity(model, halve, X, scores, target=1, normalize=True))


def test_infidelity_takes_the_fitting_tensor_of_a_tuple():
    model = TwoLayers()
    gradient = model.head.weight[1].detach().expand(3, 4)
    result = layer_infidelity(model, model.layer, halve, X, (torch.zeros(3, 2), gradient), target=1)
    torch.testing.assert_close(result, torch.zeros(3), rtol=0, atol=1e-10)


def test_infidelity_leaves_the_model_alone():
    model = TwoLayers().train()
    layer_infidelity(model, model.layer, halve, X, torch.zeros(3, 4), target=1)
    assert model.training
    assert model.head.weight.requires_grad
    assert not model.layer._forward_hooks


def test_infidelity_has_captums_arguments_in_captums_order():
    ours = list(inspect.signature(layer_infidelity).parameters)
    theirs = list(inspect.signature(captum.metrics.infidelity).parameters)
    assert ours == [theirs[0], "layer", *theirs[1:], "attribute_to_layer_input"]
    ours, theirs = (inspect.signature(f).parameters for f in (layer_sensitivity_max, captum.metrics.sensitivity_max))
    assert list(ours) == list(theirs)


def test_infidelity_passes_baselines_to_the_perturbation():
    model = TwoLayers()
    gradient = model.head.weight[1].detach().expand(3, 4)
    baselines = []

    def towards(activations, baseline):
        baselines.append(baseline)
        return activations - baseline, torch.full_like(activations, baseline)

    result = layer_infidelity(model, model.layer, towards, X, gradient, 0.5, None, 1)
    torch.testing.assert_close(result, torch.zeros(3), rtol=0, atol=1e-10)
    assert set(baselines) == {0.5}


def test_infidelity_errors():
    model = TwoLayers()
    with pytest.raises(
        ValueError, match=r"attributions has the shape \[\(3, 3\)\], expected that of the layer, \(3, 4\)"
    ):
        layer_infidelity(model, model.layer, halve, X, torch.zeros(3, 3), target=1)
    with pytest.raises(ValueError, match="layer Linear did not run in this forward pass"):
        layer_infidelity(model, nn.Linear(1, 1), halve, X, torch.zeros(3, 4), target=1)


def test_infidelity_where_the_model_writes_into_the_layer():
    """By an activation in place, before the recorded features are read or the perturbed ones arrive."""

    def infidelity_of(inplace):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 2))
        scores = torch.ones(3, 4)
        torch.manual_seed(1)
        return layer_infidelity(net, net[0], lambda f: (noise := torch.rand_like(f), f - noise), X, scores, target=1)

    torch.testing.assert_close(infidelity_of(True), infidelity_of(False))


def test_sensitivity_with_masks():
    model = TwoLayers()
    statistics = FeatureStatistics.estimate(model, model.layer, [X])
    attribute = InformationBottleneckAttribution(model, model.layer, statistics=statistics).attribute
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 1]]).bool()
    settings = {"target": 1, "n_steps": 2, "n_samples": 2}
    each = [
        layer_sensitivity_max(attribute, X[i : i + 1], shift, 0.1, 4, bottleneck_mask=mask[i : i + 1], **settings)
        for i in range(3)
    ]
    for limit in (None, 5):
        result = layer_sensitivity_max(
            attribute, X, shift, 0.1, 4, max_examples_per_batch=limit, bottleneck_mask=mask, **settings
        )
        torch.testing.assert_close(result, torch.cat(each))
