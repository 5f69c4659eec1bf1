"""Images and models that gave a wrong answer without a word."""

import warnings

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn

from captum_iba.compare.code_digest import code_digest
from captum_iba.compare.image_files import read_images
from captum_iba.methods.iba_of_images import iba_of_images
from captum_iba.methods.image_methods import attribute_images
from captum_iba.vision import ImageExplainer, find_image_layers
from captum_iba.vision.images import read_image

SIDE, PATCH, WIDTH = 32, 4, 16
IMAGES = torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


class Tokens(nn.Module):
    """A small vision transformer that puts its tokens in an order of its own."""

    def __init__(self, arrange=lambda cls, patches: torch.cat([cls, patches], 1)):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.arrange = nn.Conv2d(3, WIDTH, PATCH, PATCH), arrange
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        block = [
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        ]
        self.blocks, self.head = nn.ModuleList(block), nn.Linear(WIDTH, 2)

    def forward(self, images):
        tokens = self.arrange(self.token.expand(len(images), -1, -1), self.embed(images).flatten(2).mT)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))


def unrolled(cls, patches):
    """The order of Hiera: windows first, pixels of a window later."""
    grid = patches.view(len(patches), 4, 2, 4, 2, -1).permute(0, 2, 4, 1, 3, 5)
    return torch.cat([cls, grid.reshape(len(patches), 64, -1)], 1)


def test_tokens_row_by_row_are_accepted():
    layers = find_image_layers(Tokens().eval(), IMAGES[:1])
    assert [layer.grid.shape for layer in layers if layer.grid.is_tokens] == [(8, 8)] * 2


@pytest.mark.parametrize("arrange", [unrolled, lambda cls, patches: torch.cat([patches, cls], 1)])
def test_tokens_in_another_order_are_refused(arrange):
    for names in (["blocks.1"], None):
        with pytest.raises(ValueError, match="not the 8 x 8 cells of the image row by row"):
            layers = find_image_layers(Tokens(arrange).eval(), IMAGES[:1], names)
            assert not any(layer.grid.is_tokens for layer in layers)


class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, images):
        grid = self.first(images)
        windows = self.norm(grid.view(-1, WIDTH, 2, 4, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, 16, WIDTH))
        return self.head(windows.relu().mean((1, 2)))


def test_windows_are_no_grid():
    with pytest.raises(ValueError, match="without a grid"):
        find_image_layers(Windows().eval(), IMAGES[:1], ["norm"])


def cnn(*last):
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3), *last).eval()


class WritesIntoItsInput(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, images):
        return self.body(images.sub_(0.5).div_(0.25))


class Normalized(WritesIntoItsInput):
    def forward(self, images):
        return self.body((images - 0.5) / 0.25)


@pytest.mark.filterwarnings("ignore:no statistics", "ignore:no cell", "ignore:the final mask")
def test_a_model_that_writes_into_its_input_is_explained_as_one_that_does_not():
    kept = IMAGES.clone()
    expected, found = (
        ImageExplainer(kind(cnn())).explain(IMAGES[0], check=True, n_steps=2)
        for kind in (Normalized, WritesIntoItsInput)
    )
    assert found.check.probability == pytest.approx(found.target_probability)
    assert found.check == expected.check and found.measured == expected.measured
    np.testing.assert_allclose(found.bits, expected.bits, rtol=1e-4)
    for method in ("occlusion", "grad_cam", "ig"):
        maps = [attribute_images(method, kind(cnn()), IMAGES, 1) for kind in (Normalized, WritesIntoItsInput)]
        torch.testing.assert_close(*maps)
    assert torch.equal(IMAGES, kept)


@pytest.mark.filterwarnings("ignore:no statistics", "ignore:no cell", "ignore:the final mask")
def test_probabilities_are_taken_as_they_are():
    with pytest.warns(UserWarning, match="gives probabilities"):
        found = ImageExplainer(cnn(nn.Softmax(-1))).explain(IMAGES[0], check=True, n_steps=2)
    expected = ImageExplainer(cnn()).explain(IMAGES[0], check=True, n_steps=2)
    assert found.target_probability == pytest.approx(expected.target_probability, abs=1e-6)
    assert found.check.without_leading == pytest.approx(expected.check.without_leading, abs=1e-6)


def test_one_image_is_not_cut_into_strips():
    array = (255 * IMAGES[0]).byte().movedim(0, -1).numpy()
    counts = []
    for images in (array, [array], array[None], Image.fromarray(array)):
        explainer = ImageExplainer(
            cnn(), layer="2", transform=lambda p: torch.from_numpy(np.array(p)).movedim(-1, 0) / 255
        )
        counts.append(explainer.estimate_statistics(images)[0].count)
    assert counts == [256] * 4


def test_files_of_a_comparison_are_read_as_those_of_an_explanation(tmp_path):
    turned = Image.new("RGB", (6, 4), "red")
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "a.jpg", exif=exif)
    Image.new("RGBA", (6, 4), (0, 0, 0, 0)).save(tmp_path / "b.png")
    found = read_images(tmp_path).images
    assert [image.shape for image in found] == [(6, 4, 3), (4, 6, 3)] and found[1].min() == 255
    np.testing.assert_array_equal(found[0], read_image(tmp_path / "a.jpg"))


class Dead(nn.Module):
    """Its last layer has a gradient for bright images only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, images):
        early = self.a(images)
        bright = (images.mean((1, 2, 3)) > 0.3).float()[:, None]
        return early.relu().mean((2, 3))[:, :2] + bright * self.b(early).relu().mean((2, 3))[:, :2]


def test_grad_cam_does_not_depend_on_the_batch():
    model, images = Dead().eval(), torch.stack([0.1 * IMAGES[0], IMAGES[1], 0.1 * IMAGES[2], IMAGES[0]])
    alone = torch.cat([attribute_images("grad_cam", model, image[None], 1) for image in images])
    torch.testing.assert_close(attribute_images("grad_cam", model, images, 1), alone)
    torch.testing.assert_close(attribute_images("grad_cam", model, images.flip(0), 1).flip(0), alone)


def test_targets_out_of_range_are_named():
    for method in ("occlusion", "saliency", "lime"):
        for target in (-1, 3):
            with pytest.raises(ValueError, match=r"targets is .*, expected classes from 0 to 2"):
                attribute_images(method, cnn(), IMAGES[:1], target)
    explainer = ImageExplainer(cnn(), labels=dict(enumerate("abcd")))
    with pytest.raises(ValueError, match="target is 3, expected a class from 0 to 2"):
        explainer.explain(IMAGES[0], target="d")


@pytest.mark.filterwarnings("ignore:no statistics", "ignore:no cell", "ignore:the final mask")
def test_labels_with_the_keys_of_json_and_numbers_of_numpy():
    explainer = ImageExplainer(cnn(), labels={"0": "a", "1": "b", "2": "c"})
    assert explainer.explain(IMAGES[0], target=np.int64(1), n_steps=1, rerank=0).target_label == "b"


def test_an_explainer_has_one_digest_until_its_statistics_change():
    explainer = ImageExplainer(cnn())
    explainer.estimate_statistics(IMAGES)
    before = code_digest(iba_of_images, {"explainer": explainer})
    explainer.explain(IMAGES[0], n_steps=1, rerank=0)
    again = ImageExplainer(cnn())
    again.estimate_statistics(IMAGES)
    assert (
        code_digest(iba_of_images, {"explainer": explainer})
        == before
        == code_digest(iba_of_images, {"explainer": again})
    )
    again.estimate_statistics(IMAGES[:1])
    assert code_digest(iba_of_images, {"explainer": again}) != before


@pytest.mark.filterwarnings("ignore:no statistics")
def test_a_map_that_says_nothing_is_said_to():
    with torch.no_grad():
        model = cnn()
        model[-1].weight.zero_()
        model[-1].bias.copy_(torch.tensor([3.0, 0.0, 0.0]))
    with pytest.warns(UserWarning, match="no cell of an image"):
        result = ImageExplainer(model).explain(IMAGES[0] + 0 * IMAGES[1], n_samples=0)
    assert result.needs_no_cell and "No cell stands out" in str(result)


def test_transformers_with_a_class_token_are_masked_before_it_reads():
    size = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": SIDE, "patch_size": 8}
    models = {
        "vit": transformers.ViTForImageClassification(transformers.ViTConfig(**size, intermediate_size=32)),
        "dinov2": transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**size)),
    }
    for name, model in models.items():
        embeddings, first = ImageExplainer(model.eval()).find_layers(IMAGES[:1])
        assert embeddings.name == f"{name}.embeddings" and first.name.endswith(".0")
        assert embeddings.grid == first.grid and first.grid.n_extra == 1
    names = [layer.name for layer in ImageExplainer(Tokens().eval()).find_layers(IMAGES[:1])]
    assert names == ["blocks.0"]  # whose embeddings are no module


def test_labels_of_another_number_of_classes():
    """Two names of a model of three classes were taken, and the third class printed as a number."""
    with pytest.raises(ValueError, match="labels has 2 names, expected one for each of 3 classes"):
        ImageExplainer(cnn(), labels=["a", "b"]).explain(IMAGES[0], n_steps=2)


def test_tensors_that_are_pixels_are_warned_of():
    """A float tensor of 0 to 255 gave a class of 100% without a word: it does not go through the transform."""

    def transform(image):
        pixels = torch.from_numpy(np.array(image)).movedim(-1, 0).float() / 255
        return (pixels - 0.5) / 0.25

    explainer = ImageExplainer(Tokens(), transform=transform, layer="embed")
    settings = {"n_steps": 1, "rerank": 0}
    said = r"images has numbers from .* to 2.*, and the transform gives numbers from -2 to 2: .* pass pixels as uint8"
    with pytest.warns(UserWarning, match=said):
        explainer.explain(255 * IMAGES[0], **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explainer.explain((IMAGES[0] - 0.5) / 0.25, **settings)
        explainer.explain((255 * IMAGES[0]).byte(), **settings)
    assert not any("has numbers from" in str(warning.message) for warning in caught)


def test_settings_say_what_smoothing_was_applied():
    """Results of a vision transformer said 1.0, which tokens have not, and could not be repeated by their settings."""
    explainer = ImageExplainer(Tokens())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = explainer.explain(IMAGES[0], rerank=0, n_steps=2)
        again = explainer.explain(IMAGES[0], rerank=0, n_steps=2, smoothing=result.settings["smoothing"])
    assert result.settings["smoothing"] == result.layers[0].smoothing == 0
    assert np.array_equal(result.bits, again.bits)


def test_statistics_are_taken_all_or_none(explainer):
    statistics = [*explainer.statistics.values()]
    assert len(statistics) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = ImageExplainer(explainer.model)
    statistics[-1].model = "of another model"
    with pytest.raises(ValueError, match="statistics"):
        other._use(statistics)
    assert other.statistics == {}
    with pytest.raises(ValueError, match="images is a loader without a batch"):
        other.estimate_statistics(image for image in [])


class Exhausted(nn.Module):
    """A model whose device has no memory left."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")


def test_an_error_of_the_device_is_not_said_to_be_of_the_images():
    with pytest.raises(RuntimeError, match="^CUDA error: CUBLAS_STATUS_ALLOC_FAILED"):
        ImageExplainer(Exhausted()).explain(IMAGES[0])
