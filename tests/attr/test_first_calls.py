"""What somebody writes who comes from Captum's other methods, and is not there yet: told what was expected."""

import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForQuestionAnswering

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

IMAGES = torch.zeros(2, 1, 8, 8)
IDS = torch.zeros(1, 12, dtype=torch.long)
QUICK = {"n_steps": 1, "n_samples": 1}


@pytest.fixture
def cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


@pytest.fixture
def iba(cnn):
    statistics = FeatureStatistics.estimate(cnn, cnn[0], [torch.randn(64, 1, 8, 8)])
    return InformationBottleneckAttribution(cnn, cnn[0], statistics=statistics)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((IMAGES, torch.zeros_like(IMAGES)), {"target": 1}),
        ((IMAGES, torch.zeros_like(IMAGES), 1), {}),
        ((IMAGES, (torch.zeros_like(IMAGES),), 1), {}),
        ((IMAGES,), {"baselines": 0, "target": 1}),
        ((IMAGES, 0, 1), {}),
        ((IMAGES, 0, 1, None), {}),
        ((IMAGES, torch.zeros(2, dtype=torch.long), 1, None), {}),
    ],
)
def test_there_are_no_baselines(iba, arguments, keywords):
    with pytest.raises(TypeError, match="baselines"):
        iba.attribute(*arguments, **keywords)


def test_a_loss_function_takes_any_target(iba):
    def distance(output, target):
        return (output.sum(1) - target).square()

    assert iba.attribute(IMAGES, torch.zeros(2), loss=distance, **QUICK).shape == (2, 4, 6, 6)


def test_statistics_by_their_path(cnn):
    with pytest.raises(TypeError, match=r"statistics is a str, .*FeatureStatistics.load\(path\) reads a file"):
        InformationBottleneckAttribution(cnn, cnn[0], statistics="a.safetensors")


def test_a_loader_of_images_and_labels(cnn):
    loader = DataLoader(TensorDataset(IMAGES, torch.tensor([0, 1])))
    with pytest.raises(TypeError, match=r"batches: a batch has 2 entries, .* pass \(x for x, _ in loader\)"):
        FeatureStatistics.estimate(cnn, cnn[0], loader)


@pytest.mark.parametrize("size", [8, 200])
def test_a_token_of_several_positions(size):
    model = nn.Sequential(nn.Embedding(200, 8), nn.Linear(8, 8), nn.Linear(8, size))
    with pytest.raises(AssertionError, match=r"target 3 .*expected \(position, class\), for example \(-1, 3"):
        InformationBottleneckAttribution(model, model[1]).attribute(IDS, target=3, **QUICK)
    with pytest.raises(AssertionError, match=r"target 300 is out of range .*expected \(position, class\)"):
        InformationBottleneckAttribution(model, model[1]).attribute(IDS, target=300, **QUICK)


def test_a_model_of_question_answering_has_start_logits():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForQuestionAnswering(BertConfig(vocab_size=200, **sizes))
    with pytest.raises(TypeError, match=r"model\(\*args\).start_logits, or .end_logits"):
        InformationBottleneckAttribution(model, model.bert.encoder.layer[0]).attribute(IDS, target=3)


def test_the_shape_of_a_mask_of_pixels(iba):
    mask = torch.zeros(6, 6, dtype=torch.long)
    with pytest.raises(ValueError, match=r"feature_mask has the shape \(6, 6\).* is mask\[None, None\]"):
        iba.attribute(IMAGES, target=1, feature_mask=mask)
    with pytest.raises(ValueError, match=r"feature_mask has the shape \(1, 6, 6\).*; reshape it to \(1, 1, 6, 6\)"):
        iba.attribute(IMAGES, target=1, feature_mask=mask[None])
    assert iba.attribute(IMAGES, target=1, feature_mask=mask[None, None], **QUICK).shape == (2, 4, 6, 6)


def test_warnings_point_at_the_line_of_the_user(cnn):
    calls = [
        lambda: InformationBottleneckAttribution(cnn, cnn[0]).attribute(IMAGES, target=1, **QUICK),
        lambda: FeatureStatistics.estimate(cnn, cnn[0], [IMAGES]),
        lambda: FeatureStatistics.estimate(lambda x, mask: cnn(x), cnn[0], [(IMAGES, IMAGES[:, 0, :, 0] > 0)]),
    ]
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        line = inspect.getsourcelines(call)[1]
        assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, line)}
