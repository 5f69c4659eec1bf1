"""Images are explained: maps of the input's size, with bits that add up, of every architecture."""

import json
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution, LostPredictionWarning
from captum_iba._explain.fingerprint import model_fingerprint
from captum_iba.compare import compare_images
from captum_iba.vision import IMAGE_PRESETS, ImageAttribution, ImageExplainer, superpixels
from captum_iba.vision.image_settings import NO_STATISTICS
from captum_iba.visualization import image_page
from tests.vision.architectures import ARCHITECTURES

QUICK = {"n_steps": 3}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.filterwarnings(f"ignore:{NO_STATISTICS[:20]}", "ignore:Fewer than")
def test_architectures(name):
    model, size = ARCHITECTURES[name].build()
    images = torch.rand(2, 3, size, size)
    explainer = ImageExplainer(model)
    results = explainer.explain(images, rerank=2, **QUICK)
    for result in results:
        assert result.heat_map.shape == result.bits.shape == (size, size)
        assert result.bits.sum() == pytest.approx(result.total_bits)
        assert result.heat_map.min() >= 0
        assert result.total_bits > 0
        for layer in result.layers:
            assert float(layer.tensor.sum()) == pytest.approx(layer.total_bits)
    # One by one as batched.
    alone = explainer.explain(images[1], rerank=2, **QUICK)
    for of_batch, of_one in zip(results[1].layers, alone.layers, strict=True):
        np.testing.assert_allclose(of_batch.bits, of_one.bits, rtol=1e-4, atol=1e-4)
    assert alone.target == results[1].target


@pytest.mark.parametrize("name", ["transformers vit", "torchvision swin", "torchvision resnet"])
@pytest.mark.filterwarnings("ignore:statistics is None")
def test_maps_are_those_of_the_core_with_full_passes(name):
    model, size = ARCHITECTURES[name].build()
    image = torch.rand(1, 3, size, size)
    explainer = ImageExplainer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = explainer.explain(image[0], target=2, preset=IMAGE_PRESETS["coiba"], n_steps=3, n_samples=0)
    for layer, found in zip(explainer.find_layers(image), result.layers, strict=True):
        bits = InformationBottleneckAttribution(ARCHITECTURES[name].logits(model), layer.module).attribute(
            image,
            2,
            bottleneck_mask=layer.grid.maskable(),
            feature_dim=layer.grid.feature_dim,
            replay=False,
            preset=IMAGE_PRESETS["coiba"],
            n_steps=3,
            n_samples=0,
        )
        bits = bits[0] if isinstance(bits, tuple) else bits
        if layer.grid.is_tokens:
            assert float(bits[:, : layer.grid.n_extra].abs().sum()) == 0
        np.testing.assert_allclose(layer.grid.cells(bits)[0].numpy(), found.bits, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings(f"ignore:{NO_STATISTICS[:20]}")
def test_class_tokens_are_untouched():
    # Its head reads the class token alone: a mask on the other tokens of the last block changes nothing.
    model, size = ARCHITECTURES["transformers vit"].build()
    image = torch.rand(3, size, size)
    last = ImageExplainer(model, layer="vit.layers.3").explain(image, beta=1000.0, rerank=0)
    assert last.masked_probability == pytest.approx(last.target_probability, rel=1e-5)
    before = ImageExplainer(model, layer="vit.layers.2").explain(image, beta=1000.0, rerank=0)
    assert before.masked_probability != pytest.approx(before.target_probability, rel=1e-5)


def test_results_name_the_weights_and_the_statistics(cnn, images):
    copy = deepcopy(cnn)
    explainer = ImageExplainer(copy)
    alone = explainer.explain(images[0], **QUICK).provenance
    explainer.estimate_statistics(images)
    with_statistics = explainer.explain(images[0], **QUICK).provenance
    assert "statistics_fingerprint" in with_statistics and "statistics_fingerprint" not in alone
    assert alone["model_fingerprint"] == with_statistics["model_fingerprint"] == model_fingerprint(cnn)
    with torch.no_grad():
        next(copy.parameters()).mul_(1.5)
    assert explainer.classifier.provenance()["model_fingerprint"] != alone["model_fingerprint"]


def test_presets(explainer, cnn, images):
    result = explainer.explain(images[0], target="dog")
    assert (result.target, result.target_label) == (1, "dog")
    assert result.preset == "default"
    assert len(result.measured) == len(result.effects) == 8
    one = ImageExplainer(cnn, layer="blocks.0.0")
    one.estimate_statistics(images)
    (layer,) = one.explain(images[0], preset="per_sample").layers
    assert layer.bits.shape == (16, 16)
    expected = one.explain(
        images[0], preset=IMAGE_PRESETS["per_sample"], granularity="feature", beta=10.0, n_steps=10, n_samples=10
    )
    np.testing.assert_allclose(layer.bits, expected.layers[0].bits)
    rough = one.explain(images[0], preset="per_sample", smoothing=0.0)
    assert not np.allclose(layer.bits, rough.layers[0].bits)


@pytest.mark.filterwarnings(f"ignore:{NO_STATISTICS[:20]}")
def test_one_mask_for_the_blocks_of_a_transformer():
    model, size = ARCHITECTURES["transformers vit"].build()
    explainer = ImageExplainer(model)
    image = torch.rand(3, size, size)
    layers = explainer.find_layers(image[None], "coiba")
    assert all(isinstance(layer.module, nn.LayerNorm) for layer in layers)
    assert len(layers) == 3
    (layer,) = explainer.explain(image, preset="coiba", n_samples=2, n_steps=2).layers
    assert layer.layer == f"3 layers with one mask, {layers[0].name} to {layers[-1].name}"
    assert layer.bits.shape == (8, 8)


def test_measured_regions_lead(explainer, images):
    # Without weights that were trained, the removal of a region may well raise a probability.
    results = [explainer.explain(images[0], target=target, rerank=3) for target in range(4)]
    result = max(results, key=lambda item: max(item.effects))
    positive = [region for region, effect in zip(result.measured, result.effects, strict=True) if effect > 0]
    assert positive
    assert (-result.scores).argsort()[: len(positive)].tolist() == positive
    within = [result.heat_map[result.regions == region].sum() for region in positive]
    assert within == sorted(within, reverse=True)
    assert result.heat_map.sum() == pytest.approx(1)


def test_the_result_does_not_depend_on_the_batch_size(explainer, images):
    several = explainer.explain(images, batch_size=2, check=True)
    for image, result in zip(images, several, strict=True):
        alone = explainer.explain(image, check=True, batch_size=1, internal_batch_size=1)
        np.testing.assert_allclose(alone.heat_map, result.heat_map, rtol=1e-3, atol=1e-7)
        assert alone.check.without_leading == pytest.approx(result.check.without_leading, rel=1e-4)
        assert alone.check.without_random == pytest.approx(result.check.without_random, rel=1e-4)


def test_the_fewest_regions_that_change_the_prediction(explainer, cnn, images):
    """All classes are equal within a hair, so that a region changes the predicted one."""
    image = images[0]
    with torch.no_grad():
        cnn.linear.bias -= cnn(image[None])[0] - torch.tensor([1e-6, 0.0, 0.0, 0.0])
    result = explainer.explain(image, check=True)
    check, kept = result.check, torch.from_numpy(~np.isin(result.regions, result.check.change.parts))
    with torch.no_grad():
        probabilities = cnn(torch.where(kept, image, image.mean((1, 2), keepdim=True))[None]).softmax(-1)[0]
    assert len(check.change.parts) == 1 and result.predicted_label == "cat"
    assert check.change.decision == explainer.classifier.label(int(probabilities.argmax())) != "cat"
    assert check.change.probability == pytest.approx(float(probabilities.max()), rel=1e-4)
    if {*check.change.parts} != {*check.leading}:
        assert f"alone the model predicts {check.change.decision}" in result.answer


def test_the_check_is_that_of_images_without_regions(explainer, cnn, images):
    result = explainer.explain(images[0], check=True)
    n_removed = result.check.n_removed
    removed = result.leading[:n_removed]
    mask = torch.from_numpy(np.isin(result.regions, removed))
    image = torch.where(mask, images[0].mean((1, 2), keepdim=True), images[0])
    with torch.no_grad():
        expected = cnn(image[None]).softmax(-1)[0, result.target]
    assert result.check.without_leading == pytest.approx(float(expected), rel=1e-4)
    assert result.check.probability == pytest.approx(result.target_probability, rel=1e-4)
    with torch.no_grad():
        bare = cnn(torch.where(mask, images[0].mean((1, 2), keepdim=True), images[0])[None]).softmax(-1)[0]
        blank = cnn(images[0].mean((1, 2), keepdim=True).expand_as(images[0])[None]).softmax(-1)[0, result.target]
    assert result.check.without_all == pytest.approx(float(blank), rel=1e-4)
    if len(removed) == len(result.leading):
        assert result.check.decision_probability == pytest.approx(float(bare.max()), rel=1e-4)
    # The mean color alone has as much of the class as this image, so that the removal of regions says little.
    assert blank > 0.85 * result.target_probability and result.verdict == ""
    assert "No verdict, because an image of the mean color alone, which removed regions get, is owl" in result.answer
    assert not any(row.relation for row in result.other_rows)
    # The list has the probability without the first k of them.
    for count, found in enumerate(result.check.without_first, 1):
        mask = torch.from_numpy(np.isin(result.regions, result.leading[:count]))
        with torch.no_grad():
            expected = cnn(torch.where(mask, images[0].mean((1, 2), keepdim=True), images[0])[None]).softmax(-1)
        assert found == pytest.approx(float(expected[0, result.target]), rel=1e-4)
    so_far = [row.without_so_far for row in result.rows]
    assert so_far[:16] == list(result.check.without_first) != []
    again = type(result).from_dict(json.loads(result.to_json()))
    assert again.check == result.check


def test_a_lost_prediction_is_tried_again_with_a_smaller_beta(cnn):
    """A network whose classes are even for average activations, so that a mask that closes loses all of them."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(12, 3, 32, 32, generator=generator) * torch.rand(12, 3, 1, 1, generator=generator) * 3
    with torch.no_grad():
        cnn.linear.weight.mul_(300)
        cnn.linear.bias.copy_(-cnn.linear.weight @ cnn.blocks(images).mean((0, 2, 3)))
    explainer = ImageExplainer(cnn)
    explainer.estimate_statistics(images)
    with pytest.warns(LostPredictionWarning, match="the mask removed too much"):
        lost = explainer.explain(images, beta=1e6)
    assert all(one.lost_prediction and one.preset == "default" for one in lost)
    results = explainer.explain(images)
    assert {one.preset for one in results} == {"default", "default, beta 3", "default, beta 1"}
    assert sum(one.lost_prediction for one in results) < len(images) / 2
    for image, one in zip(images, results, strict=True):
        alone = explainer.explain(image, beta=one.settings["beta"])
        np.testing.assert_allclose(one.heat_map, alone.heat_map, rtol=1e-3, atol=1e-6)
        assert one.effects == pytest.approx(alone.effects, rel=1e-3, abs=1e-6)


def test_regions_of_ones_own(explainer, images):
    mask = torch.zeros(32, 32, dtype=torch.int64)
    mask[:16], mask[16:, :10] = 7, 3
    result = explainer.explain(images[0], feature_mask=mask)
    assert result.n_regions == 3
    assert (result.regions[0, 0], result.regions[-1, 0], result.regions[-1, -1]) == (2, 1, 0)
    per_image = torch.stack([mask, mask.T, mask]).unsqueeze(1)
    results = explainer.explain(images, feature_mask=per_image)
    assert np.array_equal(results[1].regions, results[0].regions.T)
    blocks = (
        torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    )
    found = explainer.explain(blocks, feature_mask="superpixels")
    assert np.array_equal(found.regions, superpixels(found.image))
    assert found.n_regions > 4


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.zeros(16, 16, dtype=torch.int64), ValueError, r"shape \(16, 16\), expected \(32, 32\)"),
        (torch.zeros(2, 32, 32, dtype=torch.int64), ValueError, r"shape \(2, 32, 32\)"),
        (torch.rand(32, 32), ValueError, "dtype torch.float32, expected integers"),
        (torch.ones(32, 32, dtype=torch.int64), ValueError, "a single region"),
        ("slic", ValueError, "feature_mask is 'slic', expected integers or 'superpixels'"),
        ([[0, 1]], TypeError, "feature_mask is a list"),
    ],
)
def test_masks_of_another_shape(explainer, images, mask, error, message):
    with pytest.raises(error, match=message):
        explainer.explain(images[0], feature_mask=mask)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": 4}, ValueError, "target is 4, expected a class from 0 to 3"),
        ({"target": "cow"}, ValueError, "'cow', which is no label of the model; expected one of 4 classes: cat, dog"),
        ({"target": 1.5}, TypeError, "target is 1.5"),
        ({"target": [0, 1]}, ValueError, "target has 2 entries, expected one for each of 1 images"),
        ({"preset": "paper"}, ValueError, "preset is 'paper', expected one of default, per_sample, coiba"),
        ({"granularity": "channel"}, ValueError, "granularity is 'channel'"),
        ({"rerank": -1}, ValueError, "rerank is -1"),
        ({"check": 1}, ValueError, "check is 1, expected True or False"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        ({"seed": 0.5}, ValueError, "seed is 0.5"),
        ({"steps": 3}, TypeError, "'steps' is not a setting"),
        ({"layer": "1"}, TypeError, "'layer' is an argument of ImageExplainer"),
        ({"smoothing": 9.0}, ValueError, "smoothing is 9, expected 0 for layer"),
    ],
)
def test_bad_options(explainer, images, options, error, message):
    with pytest.raises(error, match=message):
        explainer.explain(images[0], **options)


def test_bad_images(explainer, images):
    with pytest.raises(
        ValueError, match=r"images\[1\] has the shape \(3, 16, 16\) as an input, expected that of images\[0\]"
    ):
        explainer.explain([images[0], images[0, :, :16, :16]])
    model, _ = ARCHITECTURES["transformers vit"].build()
    with pytest.raises(ValueError, match=r"the model does not take inputs of shape \(3, 40, 40\)"):
        ImageExplainer(model).explain(torch.rand(3, 40, 40))


def test_bad_models(images):
    with pytest.raises(TypeError, match="model is a function, expected a torch.nn.Module"):
        ImageExplainer(lambda x: x)
    with pytest.raises(TypeError, match="transform is an int"):
        ImageExplainer(nn.Identity(), transform=3)
    with pytest.raises(ValueError, match=r"gives \(3, 3, 32, 32\), expected logits of .*, for inputs of shape"):
        ImageExplainer(nn.Identity()).explain(images)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    with pytest.raises(ValueError, match="has no block that holds a grid"):
        ImageExplainer(flat).explain(images)
    with pytest.raises(ValueError, match=r"layer '1' has the shape \(1, 4\), without a grid"):
        ImageExplainer(flat, layer="1").explain(images)
    for layer in ([], 3, [3]):
        with pytest.raises((ValueError, TypeError)):
            ImageExplainer(flat, layer=layer)


def test_the_model_is_left_as_it_was(explainer, cnn, images):
    cnn.train()
    before = {name: value.clone() for name, value in cnn.state_dict().items()}
    explainer.explain(images, check=True, **QUICK)
    assert cnn.training
    assert all(torch.equal(before[name], value) for name, value in cnn.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in cnn.parameters())


def test_without_statistics_a_warning_says_so_once(cnn, images):
    explainer = ImageExplainer(cnn)
    with pytest.warns(UserWarning, match="no statistics given") as found:
        result = explainer.explain(images[0], **QUICK)
        explainer.explain(images[0], **QUICK)
    assert len(found) == 1
    assert result.statistics == "this image only"


def test_statistics_are_saved_and_loaded(explainer, cnn, images, tmp_path):
    explainer.save_statistics(tmp_path / "statistics")
    again = ImageExplainer(cnn, statistics=tmp_path / "statistics", labels=["cat", "dog", "owl", "fox"])
    assert set(again.statistics) == set(explainer.statistics)
    np.testing.assert_array_equal(again.explain(images[0]).bits, explainer.explain(images[0]).bits)
    assert "a dataset (" in again.explain(images[0], **QUICK).statistics
    with torch.no_grad():
        cnn.linear.weight.add_(1)
    with pytest.warns(UserWarning, match="the weights of the model have changed"):
        again.explain(images[0], **QUICK)
    with pytest.raises(ValueError, match="gathered with another model"):
        ImageExplainer(cnn, statistics=tmp_path / "statistics")
    with pytest.raises(FileNotFoundError):
        again.load_statistics(tmp_path / "none")
    with pytest.raises(ValueError, match="statistics is empty"):
        ImageExplainer(cnn).save_statistics(tmp_path / "none")


@pytest.mark.filterwarnings("ignore:Fewer than")
def test_statistics_of_one_layer_and_of_batches(cnn, images, tmp_path):
    one = ImageExplainer(cnn, layer="blocks.1")
    (statistics,) = one.estimate_statistics(iter([images, images]))
    assert statistics.count == 2 * 3 * 16 * 16
    expected = FeatureStatistics.estimate(cnn, cnn.blocks[1], [images, images])
    torch.testing.assert_close(statistics.mean, expected.mean)
    one.save_statistics(tmp_path / "one.safetensors")
    assert (
        ImageExplainer(cnn, "blocks.1", tmp_path / "one.safetensors").statistics["blocks.1"].count == statistics.count
    )
    with pytest.raises(ValueError, match="statistics is of layer 'blocks.1', expected blocks.0"):
        ImageExplainer(cnn, "blocks.0", statistics)
    with pytest.raises(ValueError, match="statistics has 1 entries, expected those of 2 layers"):
        ImageExplainer(cnn, ["blocks.0", "blocks.1"], statistics)


def test_a_folder_of_transformers(tmp_path, photo):
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "dog"},
    )
    folder = tmp_path / "vit"
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    explainer = ImageExplainer.from_pretrained(folder)
    explainer.estimate_statistics([photo, str(photo)])
    result = explainer.explain(photo, target="DOG", **QUICK)
    assert isinstance(result, ImageAttribution)
    assert (result.name, result.model, result.target_label) == ("photo.png", "vit", "dog")
    assert result.image.shape == (32, 32, 3)
    with pytest.raises(FileNotFoundError, match="no config.json"):
        ImageExplainer.from_pretrained(tmp_path)


def test_a_model_of_torchvision(tmp_path, photo):
    from safetensors.torch import save_file

    from tests.attr.vision_models import torchvision_models

    torch.manual_seed(0)
    model = torchvision_models().mobilenet_v3_small()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="'mobile' *, which is no classifier"):
        ImageExplainer.from_torchvision("mobile")
    with pytest.raises(FileNotFoundError, match="weights is"):
        ImageExplainer.from_torchvision("mobilenet_v3_small", tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="which are not those of ResNet"):
        ImageExplainer.from_torchvision("resnet18", tmp_path / "weights.safetensors")
    explainer = ImageExplainer.from_torchvision("mobilenet_v3_small", tmp_path / "weights.safetensors")
    with pytest.warns(UserWarning, match="no statistics given"):
        result = explainer.explain(photo, target="tabby", rerank=0, n_steps=1)
    assert (result.target_label, result.image.shape, result.n_regions) == ("tabby", (224, 224, 3), 49)


def test_a_mask_that_loses_the_prediction_is_warned_of():
    torch.manual_seed(0)
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    with torch.no_grad():
        cnn[3].weight.mul_(20)
    explainer = ImageExplainer(cnn)
    images = torch.randn(40, 3, 8, 8)
    explainer.estimate_statistics(images)
    with pytest.warns(UserWarning, match="the mask removed too much of an image"):
        results = explainer.explain(images[:4], beta=1e4, rerank=0)
    assert any(result.masked_probability < result.target_probability / 2 for result in results)


def test_statistics_of_other_layers_are_not_said_to_be_missing(explainer, images):
    with pytest.warns(UserWarning, match=r"statistics are of blocks\..*, and blocks\..* has none: estimate_statistics"):
        explainer.explain(images[0], preset="per_sample")


def test_a_transform_that_fails_is_named(cnn):
    explainer = ImageExplainer(cnn, transform=lambda image: image.no_such())
    with pytest.raises(
        ValueError, match=r"transform failed on images\[0\]: AttributeError.*expected a function of one PIL"
    ):
        explainer.explain([np.zeros((32, 32, 3), dtype=np.uint8)])


def test_a_layer_is_a_module_or_its_name(cnn, images):
    by_module = ImageExplainer(cnn, layer=cnn.blocks[1], transform=None).explain(images[0], rerank=0, n_steps=2)
    by_name = ImageExplainer(cnn, layer="blocks.1").explain(images[0], rerank=0, n_steps=2)
    assert [layer.layer for layer in by_module.layers] == ["blocks.1"]
    assert np.array_equal(by_module.bits, by_name.bits)
    with pytest.raises(ValueError, match="expected a module inside the model, its name, or several"):
        ImageExplainer(cnn, layer=nn.Linear(2, 2))


@pytest.mark.filterwarnings(f"ignore:{NO_STATISTICS[:20]}", "ignore:no cell of an image")
def test_a_class_of_several_labels_has_its_own_sigmoid():
    model, size = ARCHITECTURES["transformers vit"].build()
    image = torch.rand(3, size, size)
    with torch.no_grad():
        logits = ARCHITECTURES["transformers vit"].logits(model)(image[None])[0].double()
    configured = deepcopy(model)
    configured.config.problem_type = "multi_label_classification"
    found = ImageExplainer(configured).explain(image, target=1, check=True, **QUICK)
    assert found.target_probability == pytest.approx(float(logits.sigmoid()[1]), abs=1e-6)
    assert found.check.probability == pytest.approx(found.target_probability, abs=1e-6)
    assert found.check.decision == "" and found.check.decision_probability is None
    likely = {f"LABEL_{i}": float(chance) for i, chance in enumerate(logits.sigmoid()) if i != 1 and chance >= 0.5}
    assert dict(found.other_labels) == pytest.approx(likely, abs=1e-6)
    assert f"predicted: {max(likely, key=likely.get)} " in found.headline()
    assert f"predicted: {max(likely, key=likely.get)} " in image_page([found])
    assert ImageAttribution.from_dict(json.loads(found.to_json())).other_labels == found.other_labels
    assert found.multi_label and not ImageExplainer(model).explain(image, rerank=0, **QUICK).multi_label
    assert 0 < found.layers[0].closed_probability < 1
    by_hand = ImageExplainer(model, multi_label=True).explain(image, target=1, rerank=0, **QUICK)
    np.testing.assert_allclose(by_hand.bits, found.bits, rtol=1e-5)
    competing = ImageExplainer(model).explain(image, target=1, rerank=0, **QUICK)
    assert competing.target_probability == pytest.approx(float(logits.softmax(0)[1]), abs=1e-6)
    with pytest.raises(ValueError, match="model is a multi-label classifier"):
        compare_images(configured, image[None], methods=["random"])


def test_a_layer_of_another_type_is_an_error(cnn):
    with pytest.raises(TypeError, match="layer is an int, expected a module inside the model, its name, or several"):
        ImageExplainer(cnn, layer=1)


def test_what_a_classifier_has_already_is_no_argument(cnn):
    classifier = ImageExplainer(cnn, labels=["cat", "dog", "owl", "fox"]).classifier
    assert ImageExplainer(classifier).classifier is classifier
    with pytest.raises(ValueError, match="expected no transform, labels and multi_label beside its own"):
        ImageExplainer(classifier, multi_label=True)


def test_a_model_that_gives_sigmoids_is_told(cnn):
    sigmoids = nn.Sequential(deepcopy(cnn), nn.Sigmoid())
    with pytest.warns(UserWarning, match=r"values between 0 and 1 only, .*multi_label=True"):
        ImageExplainer(sigmoids).explain(torch.rand(4, 3, 32, 32), rerank=0, **QUICK)


@pytest.mark.parametrize(("sizes", "largest"), [({"batch_size": 1}, 2), ({"internal_batch_size": 3}, 3)])
def test_no_pass_has_more_rows_than_asked(cnn, explainer, images, sizes, largest):
    rows = []
    handle = explainer.model.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    explainer.explain(images[0], check=True, **sizes)
    handle.remove()
    assert max(rows) == largest


def test_progress_is_shown_over_steps_and_images_without_some_regions(explainer, images, capsys):
    explainer.explain(images[:1], show_progress=True)
    shown = capsys.readouterr().err
    assert "Bottleneck Attribution" in shown and "Removal: " in shown and "images/s" in shown
    explainer.explain(images, batch_size=1, show_progress=True, rerank=0)
    shown = capsys.readouterr().err
    assert "Images: " in shown and "Bottleneck" not in shown and "Removal" not in shown
    explainer.explain(images[:1])
    assert capsys.readouterr().err == ""
