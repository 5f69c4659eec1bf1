"""Bits of many model families: by replay, by whole passes, and by a naive implementation without code of ours."""

import warnings
from dataclasses import replace

import naive
import pytest
import torch
from architectures import FALL_BACK, FAMILIES, assert_same, build, rotated, texts
from torch.nn import functional as F

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

pytest.importorskip("transformers")

TARGETS = [0, 1, 2]
SETTINGS = {"n_steps": 4, "n_samples": 2, "beta": 0.01, "learning_rate": 2.0}


def double(architecture):
    """Inputs of the model, both in float64."""
    architecture.model.double()
    return tuple(one.double() if one.is_floating_point() else one for one in architecture.inputs)


def mask_of_positions(architecture, feature):
    """The attention mask, as far as the feature has its positions: some models pad, others pool."""
    mask = architecture.mask
    if mask is None or feature.ndim == 2 or feature.shape[1] < mask.shape[1]:
        return None
    return F.pad(mask, (0, feature.shape[1] - mask.shape[1]))


def by_all_three(made, **changes):
    """Bits by replay, by whole passes and naively, and what was said.

    ``made`` gives the architecture, once for us and once for the naive implementation: some models are others after
    their first pass, and neither is to see what the other has done.
    """
    architecture = made()
    inputs = double(architecture)
    forward, layer, call = architecture.forward, architecture.layer, architecture.layer_call
    feature, _ = naive.recorded(forward, layer, inputs, call)
    mask = mask_of_positions(architecture, feature)
    where = {} if architecture.feature_dim is None else {"feature_dim": architecture.feature_dim}
    mean, std = naive.statistics(forward, layer, inputs, mask, call, **where)
    given = {"bottleneck_mask": mask, "layer_call": call, **where, **SETTINGS, **changes}
    expected = naive.bits(forward, layer, inputs, TARGETS, mean, std, **given)

    ours = made()
    double(ours)
    statistics = FeatureStatistics.estimate(
        ours.forward, ours.layer, [inputs], lambda batch: mask, layer_call=call, **where
    )
    torch.testing.assert_close(statistics.mean, mean)
    torch.testing.assert_close(statistics.std, std)
    iba = InformationBottleneckAttribution(ours.forward, ours.layer, statistics=statistics)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replayed, whole = (iba.attribute(inputs, TARGETS, replay=replay, **given) for replay in (True, False))
    said = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    ours.model.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours.forward(*inputs), forward(*inputs))
    return _feature(replayed), _feature(whole), expected, said


def _feature(bits):
    return bits[0] if isinstance(bits, tuple) else bits


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name):
    replayed, whole, expected, said = by_all_three(lambda: build(name))
    assert replayed.dtype == whole.dtype == torch.float64
    assert_same(whole, expected)
    assert_same(replayed, expected)
    if name in FALL_BACK:
        assert all("is not replayed" in message for message in said)
    else:
        assert said == []


@pytest.mark.parametrize("name", ["BERT", "Convolutional net"])
@pytest.mark.parametrize(
    "changes",
    [
        {"granularity": "feature"},
        {"granularity": "channel"},
        {"granularity": "feature", "complement": 0.0, "antithetic": False, "momentum": 0.9, "beta": 1e-5},
        {"complement": 0.0, "n_samples": 3},
        {"complement": 0.3, "alternate": False},
        {"complement": 0.3, "alternate": False, "n_samples": 3, "seed": 7},
        {"n_samples": 0},
        {"n_samples": 1, "n_steps": 7},
        {"antithetic": False},
        {"n_steps": 0},
    ],
    ids=str,
)
def test_settings(name, changes):
    replayed, whole, expected, said = by_all_three(lambda: build(name), **changes)
    assert_same(whole, expected)
    assert_same(replayed, expected)
    assert said == []


@pytest.mark.parametrize("name", ["BERT", "Llama", "XLNet"])
def test_more_positions_than_one_block_of_noise(name):
    def made():
        found = build(name)
        if name == "BERT":
            # Positions of a longer text are those of a shorter one, again.
            found.model.bert.embeddings.position_ids = (torch.arange(80) % 40).unsqueeze(0)
            found.model.bert.embeddings.token_type_ids = torch.zeros(1, 80, dtype=torch.long)
        return replace(found, inputs=texts((70, 66, 20)))

    replayed, whole, expected, said = by_all_three(made, n_steps=2)
    assert_same(whole, expected)
    assert_same(replayed, expected)
    assert said == []


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama"])
def test_a_head_that_reads_hidden_states(name):
    """transformers collects them by hooks of its own: what they see must be the noised value, too."""
    head = torch.nn.Linear(32, 3).double()
    with torch.no_grad():
        head.weight.copy_(torch.randn(3, 32, generator=torch.Generator().manual_seed(3)))

    def made():
        found = build(name)

        def forward(ids, mask):
            output = found.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            # 0 are the embeddings: this is what the second block gave.
            return head(output.hidden_states[2][:, 0]) + output.logits

        return replace(found, forward=forward)

    replayed, whole, expected, _ = by_all_three(made)
    assert_same(whole, expected)
    assert_same(replayed, expected)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_longest_text_so_far(kind):
    replayed, whole, expected, said = by_all_three(lambda: rotated(kind))
    assert_same(whole, expected)
    assert_same(replayed, expected)
    assert said == []


def test_block_sparse_attention_that_a_model_gives_up_for_short_texts():
    """It puts other modules in the place of its own."""
    replayed, whole, expected, said = by_all_three(lambda: replace(build("BigBird"), inputs=texts()))
    assert_same(whole, expected)
    assert_same(replayed, expected)
    assert said == []


@pytest.mark.parametrize("trains", [True, False])
def test_weights_that_a_model_rescales_in_its_first_pass(trains):
    """RWKV divides them and writes down that it did: after one without the other they would be divided again."""

    calls = []

    def made():
        found = build("RWKV")
        found.model.train(trains and len(calls) > 0)  # ours; the naive one is always in evaluation mode
        calls.append(1)
        return found

    replayed, whole, expected, said = by_all_three(made)
    assert_same(whole, expected)
    assert_same(replayed, expected)
    assert said == []


def test_blocks_that_give_positions_first_are_refused():
    architecture = build("XLNet")
    layer = architecture.model.transformer.layer[0]
    for replay in (True, False):
        iba = InformationBottleneckAttribution(architecture.forward, layer)
        with warnings.catch_warnings(), pytest.raises(ValueError, match="one row for each"):
            warnings.simplefilter("ignore")
            iba.attribute(architecture.inputs, TARGETS, replay=replay, **SETTINGS)


def test_how_many_families():
    vision = [name for name in FAMILIES if name.startswith("torchvision")]
    own = ("Convolutional net", "MLP", "Recurrent net", "LSTM", "GRU", "Audio net", "Encoder of PyTorch")
    of_transformers = {name.split(",")[0] for name in FAMILIES if name not in (*vision, *own)}
    assert len(of_transformers) >= 25
    assert len(vision) >= 6
