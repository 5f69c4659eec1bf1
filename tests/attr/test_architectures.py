"""Attribution in the middle of many architectures: replayed as whole, batched as alone, split as at once."""

import copy
import warnings
from functools import lru_cache

import pytest
import torch
from architectures import (
    BUILDERS,
    FALL_BACK,
    LENGTHS,
    SETTINGS,
    TEXT_MODELS,
    TOLERANCE,
    assert_same,
    build,
    texts,
)
from captum.attr import LayerActivation

from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr._model.nested import tensors_in

BaseModelOutputWithPast = pytest.importorskip("transformers.modeling_outputs").BaseModelOutputWithPast

TARGETS = [0, 1, 2]
HALVES = (torch.bfloat16, torch.float16)


@lru_cache
def known(name):
    """An architecture and the statistics of its layer, made once."""
    architecture = build(name)
    statistics = FeatureStatistics.estimate(
        architecture.forward, architecture.layer, [architecture.inputs], layer_call=architecture.layer_call
    )
    return architecture, statistics


def attribute(name, inputs=None, replayed=True, **changes):
    """The bits of the layer's feature; fails unless passes are replayed, or a warning says what is known."""
    architecture, statistics = known(name)
    inputs = architecture.inputs if inputs is None else inputs
    mask = inputs[1].bool() if len(inputs) > 1 else None
    given = {"target": TARGETS, "bottleneck_mask": mask, "layer_call": architecture.layer_call, "replay": replayed}
    iba = InformationBottleneckAttribution(architecture.forward, architecture.layer, statistics=statistics)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bits = activation_of(iba.attribute(inputs, **{**given, **SETTINGS, **changes}))
    if name in FALL_BACK and replayed and len(inputs[0]) > 1 and "internal_batch_size" not in changes:
        (warning,) = caught
        assert "is not replayed, every forward pass is a full one: a replayed pass fails with" in str(warning.message)
    elif name not in FALL_BACK or not replayed:
        assert [str(warning.message) for warning in caught] == []
    return bits


def activation_of(bits):
    """A layer with several tensors gives a tuple, with zeros for those that are not the feature."""
    if isinstance(bits, tuple):
        assert not any(rest.any() for rest in bits[1:])
        return bits[0]
    return bits


@lru_cache
def usual(name):
    return attribute(name)


@pytest.mark.parametrize("name", BUILDERS)
def test_bits_at_a_middle_block(name):
    architecture, _ = known(name)
    bits = usual(name)
    assert bits.isfinite().all()
    assert (bits >= 0).all()
    assert bits.dtype == torch.float32
    assert not bits.requires_grad
    if architecture.mask is not None:
        assert (bits[~architecture.mask] == 0).all()
        assert (bits[architecture.mask].sum(-1) > 0).all()
    # A network that does not mind its classes would show nothing.
    other = attribute(name, target=[1, 2, 0])
    assert (other - bits).abs().max() > 0.1 * bits.max()


@pytest.mark.parametrize("name", BUILDERS)
def test_shapes_are_those_of_the_layer(name):
    architecture, statistics = known(name)
    returned = []
    handle = architecture.layer.register_forward_hook(lambda layer, args, output: returned.append(output))
    with torch.no_grad():
        architecture.forward(*architecture.inputs)
    handle.remove()
    expected = [one.shape for one in tensors_in(returned[-1])]
    iba = InformationBottleneckAttribution(architecture.forward, architecture.layer, statistics=statistics)
    bits = iba.attribute(architecture.inputs, TARGETS, n_steps=0, layer_call=architecture.layer_call)
    assert [one.shape for one in tensors_in(bits)] == expected
    if not isinstance(returned[-1], tuple):  # LayerActivation fails on a tuple with None in it
        activation = LayerActivation(architecture.forward, architecture.layer).attribute(architecture.inputs)
        assert bits.shape == activation.shape


@pytest.mark.parametrize("name", BUILDERS)
def test_replayed_as_whole(name):
    architecture, _ = known(name)
    before = architecture.layer if name.startswith("ALBERT") else architecture.block(-2 if name == "MLP" else -1)
    early = next(module for module in before.modules() if not [*module.children()])
    runs = []
    # An own forward of an instance is run, and stays.
    early.forward = lambda *args, **kwargs: runs.append(1) or type(early).forward(early, *args, **kwargs)
    try:
        bits = attribute(name, n_steps=5)
        replayed = len(runs)
        whole = attribute(name, replayed=False, n_steps=5)
        assert replayed < len(runs) - replayed or name in FALL_BACK
    finally:
        del early.forward
    assert_same(bits, whole)


@pytest.mark.parametrize("name", BUILDERS)
def test_batched_and_padded_as_alone(name):
    architecture, _ = known(name)
    for number, together in enumerate(usual(name)):
        alone = attribute(name, architecture.example(number), target=number)[0]
        if architecture.mask is not None:
            together = together[: LENGTHS[number]]
        assert_same(alone, together)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", BUILDERS)
def test_split_as_at_once(name, size):
    assert_same(attribute(name, internal_batch_size=size), usual(name))


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_as_many_examples_as_positions_heads_and_layers(name):
    # A tensor of any of these sizes could be taken for one with a row an example.
    inputs = texts((4, 3, 4, 2), seed=2)
    targets = [0, 1, 2, 0]
    assert_same(attribute(name, inputs, target=targets), attribute(name, inputs, target=targets, replayed=False))


@pytest.mark.parametrize("dtype", [torch.float64, *HALVES], ids=str)
@pytest.mark.parametrize("name", ["BERT", "T5 encoder", "DeBERTa-v2", "Llama", "ViT", "Convolutional net", "MLP"])
def test_other_precisions(name, dtype):
    architecture = build(name)
    architecture.model.to(dtype)
    inputs = tuple(one.to(dtype) if one.is_floating_point() else one for one in architecture.inputs)
    iba = InformationBottleneckAttribution(architecture.forward, architecture.layer, statistics=known(name)[1])
    given = {"target": TARGETS, "bottleneck_mask": architecture.mask, **SETTINGS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bits = activation_of(iba.attribute(inputs, **given))
    assert bits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert bits.isfinite().all()
    assert_same(bits, activation_of(iba.attribute(inputs, replay=False, **given)))
    if dtype == torch.float64:
        assert_same(bits, usual(name).double(), 1e-2)
    else:
        # Rounding turns a few close decisions of the mask, but not the whole picture.
        assert torch.corrcoef(torch.stack([bits.flatten(), usual(name).flatten()]))[0, 1] > 0.7


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "Llama", "GPT-2", "T5 encoder", "ViT"])
def test_the_input_of_a_block_is_the_output_of_the_one_before(name):
    architecture, of_the_one_before = known(name)
    statistics = copy.copy(of_the_one_before)
    statistics.layer = statistics.at_input = None  # not known: the check of places is for others
    iba = InformationBottleneckAttribution(architecture.forward, architecture.block(1), statistics=statistics)
    given = {"target": TARGETS, "bottleneck_mask": architecture.mask, **SETTINGS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bits = iba.attribute(architecture.inputs, attribute_to_layer_input=True, **given)
    assert_same(activation_of(bits), usual(name))


@pytest.mark.parametrize("name", ["BERT", "T5 encoder"])
def test_layers_together_as_one_by_one(name):
    architecture, _ = known(name)
    layers = [architecture.block(0), architecture.block(1)]
    statistics = FeatureStatistics.estimate(architecture.forward, layers, [architecture.inputs])
    given = {"target": TARGETS, "bottleneck_mask": architecture.mask, **SETTINGS}
    together = InformationBottleneckAttribution(architecture.forward, layers, statistics=statistics)
    bits = together.attribute(architecture.inputs, **given)
    assert_same(activation_of(bits[0]), usual(name))
    alone = InformationBottleneckAttribution(architecture.forward, layers[1], statistics=statistics[1])
    assert_same(activation_of(bits[1]), activation_of(alone.attribute(architecture.inputs, **given)))


@pytest.mark.parametrize("name", ["BERT", "ALBERT, call 1", "T5 encoder", "Llama", "Convolutional net"])
def test_one_mask_for_two_layers(name):
    architecture, _ = known(name)
    shared = name.startswith("ALBERT")
    layers = [architecture.layer, architecture.block(0 if shared else 1)]
    calls = [1, 2] if shared else -1
    statistics = FeatureStatistics.estimate(architecture.forward, layers, [architecture.inputs], layer_call=calls)
    iba = InformationBottleneckAttribution(architecture.forward, layers, statistics=statistics)
    given = {"target": TARGETS, "bottleneck_mask": architecture.mask, "share_mask": True, "layer_call": calls}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bits = activation_of(iba.attribute(architecture.inputs, **given, **SETTINGS))
    assert_same(bits, activation_of(iba.attribute(architecture.inputs, replay=False, **given, **SETTINGS)))
    assert (bits - usual(name)).abs().max() > TOLERANCE * bits.max()
    split = iba.attribute(architecture.inputs, internal_batch_size=3, **given, **SETTINGS)
    assert_same(activation_of(split), bits)
    swapped = InformationBottleneckAttribution(architecture.forward, layers[::-1], statistics=statistics[::-1])
    given["layer_call"] = calls[::-1] if shared else -1
    assert_same(activation_of(swapped.attribute(architecture.inputs, **given, **SETTINGS)), bits)


def test_calls_of_a_shared_layer_differ():
    call_1, last = usual("ALBERT, call 1"), usual("ALBERT, last call")
    assert (call_1 - last).abs().max() > 0.1 * last.max()
    assert_same(attribute("ALBERT, last call", layer_call=3), last)
    assert_same(attribute("ALBERT, call 1", layer_call=-3), call_1)
