"""Methods for images: known values, one by one as in a batch, the layer of Grad-CAM, and errors."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

from captum_iba.methods import attribute_images, register_image_method
from captum_iba.methods.image_methods import IMAGE_METHODS, grad_cam_of_images
from captum_iba.methods.spatial_layer import GuidedReLU, as_grid, spatial_layer
from captum_iba.metrics import mean_color, tiles
from captum_iba.vision.grids import Grid

BUILT_IN = [
    *("random", "saliency", "input_x_gradient", "ig", "gradient_shap", "grad_cam", "guided_grad_cam"),
    *("occlusion", "lime", "kernel_shap"),
]
FEWER = {"ig": {"n_steps": 5}, "gradient_shap": {"n_samples": 4}} | {
    name: {"n_samples": 40} for name in ("lime", "kernel_shap")
}
SIDE = 8
TILES = tiles(SIDE, SIDE, size=4)


class SmallNet(nn.Module):
    """Two convolutions, the second one behind a ReLU by function, and dropout, which evaluation must turn off."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1, stride=2)
        self.linear = nn.Linear(6, 3)

    def forward(self, images):
        maps = F.relu(self.second(F.relu(self.first(images))))
        return self.linear(F.dropout(maps, 0.5, self.training).mean((2, 3)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return SmallNet()


@pytest.fixture
def images():
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def linear():
    """The logit of class 1 is a sum of weights times pixels."""
    weights = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))

    def forward(x):
        return torch.stack([torch.zeros(len(x)), (x * weights).sum((1, 2, 3))], 1)

    return forward, weights


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_map_does_not_depend_on_the_others(name, model, images):
    given = {"regions": TILES, **FEWER.get(name, {})}
    together = attribute_images(name, model, images, [0, 1, 2], batch_size=3, **given)
    assert together.shape == (3, SIDE, SIDE) and together.isfinite().all()
    alone = [attribute_images(name, model, images[i : i + 1], i, batch_size=7, **given) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-6)
    other = attribute_images(name, model, images, [1, 2, 0], **given)
    assert torch.equal(other, together) == (name == "random")


def test_every_method_is_there():
    assert list(IMAGE_METHODS) == [*BUILT_IN, "iba"]
    assert all(method.description.endswith(".") for method in IMAGE_METHODS.values())


def test_of_a_linear_model_each_pixel_has_what_it_adds(linear, images):
    forward, weights = linear
    expected = (weights * images).sum(1)
    for name in ("ig", "input_x_gradient"):
        torch.testing.assert_close(attribute_images(name, forward, images, 1), expected)
    torch.testing.assert_close(
        attribute_images("saliency", forward, images, 1), weights.abs().amax(0).expand(3, -1, -1)
    )
    against = attribute_images("ig", forward, images, 1, baseline="mean_color")
    torch.testing.assert_close(against, (weights * (images - mean_color(images))).sum(1))


def test_occlusion_is_what_is_lost(linear, model, images):
    found = attribute_images("occlusion", linear[0], images, 1, TILES)
    for image, tile in itertools.product(range(3), range(4)):
        inside = TILES[0] == tile
        lost = (linear[1] * (images[image] - mean_color(images)[image]))[:, inside].sum()
        assert float(found[image][inside].sum()) == pytest.approx(float(lost), abs=1e-4)
        assert float(found[image][inside].std()) < 1e-6
    of_probability = attribute_images("occlusion", model, images, 1, TILES, output="probability")
    model.eval()
    changed = images.clone()
    changed[:, :, TILES[0] == 2] = mean_color(images)[..., 0]
    with torch.no_grad():
        lost = (model(images).softmax(-1) - model(changed).softmax(-1))[:, 1]
    torch.testing.assert_close(of_probability[:, TILES[0] == 2].sum(1), lost)


def test_lime_and_shapley_values_of_an_additive_model(images):
    """Of a probability that regions add to, every weight is what its region adds."""

    def forward(x):
        added = torch.stack([x[:, 0][:, TILES[0] == tile].mean(1) * (tile + 1) / 50 for tile in range(4)], 1).sum(1)
        p = 0.5 + added
        return torch.stack([1 - p, p], 1).log()

    lost = []
    for tile in range(4):
        changed = images.clone()
        changed[:, :, TILES[0] == tile] = mean_color(images)[..., 0]
        lost.append((forward(images).exp() - forward(changed).exp())[:, 1])
    expected = torch.stack(lost, 1)
    found = attribute_images("kernel_shap", forward, images, 1, TILES, n_samples=300)
    sums = torch.stack([found[:, TILES[0] == tile].sum(1) for tile in range(4)], 1)
    torch.testing.assert_close(sums, expected, rtol=1e-3, atol=1e-4)
    # The ridge penalty makes the weights of LIME a little smaller, in the same order.
    lime = attribute_images("lime", forward, images, 1, TILES, n_samples=300)
    weights = torch.stack([lime[:, TILES[0] == tile].sum(1) for tile in range(4)], 1)
    for i in range(3):
        assert torch.corrcoef(torch.stack([weights[i], expected[i]]))[0, 1] > 0.98


def test_superpixels(images, model):
    pytest.importorskip("skimage")
    halves = torch.zeros(1, 3, SIDE, SIDE)
    halves[..., SIDE // 2 :] = 1
    found = attribute_images("lime", model, halves, 0, tiles(SIDE, SIDE, size=4), n_samples=30, superpixels="slic")
    assert found.shape == (1, SIDE, SIDE) and len(found.unique()) >= 2


def test_grad_cam_by_hand(model, images):
    """Of this model the last spatial module is the second convolution, before its ReLU."""
    model.eval()
    assert spatial_layer(model, model, images[:1], torch.tensor([0])) is model.second
    kept = model.second(F.relu(model.first(images)))
    kept = kept.detach().requires_grad_()
    logits = model.linear(F.relu(kept).mean((2, 3)))
    (gradient,) = torch.autograd.grad(logits[:, 2].sum(), kept)
    maps = F.relu((gradient.mean((2, 3), keepdim=True) * kept).sum(1, keepdim=True))
    expected = F.interpolate(maps, (SIDE, SIDE), mode="bilinear", align_corners=False)[:, 0].detach()
    torch.testing.assert_close(attribute_images("grad_cam", model, images, 2), expected)
    first = attribute_images("grad_cam", model, images, 2, layer="first")
    assert torch.equal(first, attribute_images("grad_cam", model, images, 2, layer=model.first))
    assert not torch.equal(first, expected)


@pytest.fixture
def vit():
    torch.manual_seed(3)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(image_size=SIDE, patch_size=2, num_labels=3, initializer_range=0.5, **size)
    return ViTForImageClassification(config)


def test_the_layer_of_a_vision_transformer(vit, images):
    """Behind the last attention, patches do not reach the logit; before it, tokens lie on the grid of the patches."""
    vit.eval()
    found = spatial_layer(lambda x: vit(x).logits, vit, images[:1], torch.tensor([0]))
    (name,) = [name for name, module in vit.named_modules() if module is found]
    assert name == "vit.layers.1.layernorm_before"
    tokens = torch.arange(2.0 * 17 * 3).view(2, 17, 3)
    grid = as_grid(tokens, Grid(4, 4, 2, 1, True))
    assert grid.shape == (2, 3, 4, 4)
    assert all(
        torch.equal(grid[1, :, i, j], tokens[1, 1 + 4 * i + j]) for i, j in itertools.product(range(4), range(4))
    )
    maps = attribute_images("grad_cam", vit, images, 1)
    assert maps.shape == (3, SIDE, SIDE) and bool((maps >= 0).all()) and bool((maps > 0).any())


def grad_cam_by_hand(activation, gradient, size):
    """Of an activation and its gradient, (B, D, h, w)."""
    maps = F.relu((gradient.mean((2, 3), keepdim=True) * activation).sum(1, keepdim=True))
    return F.interpolate(maps, size, mode="bilinear", align_corners=False)[:, 0].detach()


def test_grad_cam_of_images_that_are_no_squares():
    """The 16 patches of 4 x 16 pixels are 2 x 8, not 4 x 4."""
    torch.manual_seed(3)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    vit = ViTForImageClassification(ViTConfig(image_size=(4, 16), patch_size=2, initializer_range=0.5, **size)).eval()
    images, kept = torch.randn(2, 3, 4, 16), []
    layer = vit.vit.layers[1].layernorm_before
    handle = layer.register_forward_hook(lambda module, args, output: kept.append(output))
    logits = vit(images).logits
    handle.remove()
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), kept[0])
    grids = [of[:, 1:].transpose(1, 2).reshape(2, 16, 2, 8) for of in (kept[0], gradient)]
    torch.testing.assert_close(attribute_images("grad_cam", vit, images, 1), grad_cam_by_hand(*grids, (4, 16)))


class FeaturesLast(nn.Module):
    """A convolution, and a normalization of (B, h, w, C), as in Swin."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.linear = nn.Conv2d(3, 5, 2, stride=2), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, images):
        return self.linear(F.relu(self.norm(self.first(images).permute(0, 2, 3, 1))).mean((1, 2)))


def test_grad_cam_where_the_features_are_last(images):
    torch.manual_seed(3)
    model = FeaturesLast().eval()
    activation = model.norm(model.first(images).permute(0, 2, 3, 1)).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.linear(F.relu(activation).mean((1, 2)))[:, 1].sum(), activation)
    expected = grad_cam_by_hand(activation.permute(0, 3, 1, 2), gradient.permute(0, 3, 1, 2), (SIDE, SIDE))
    torch.testing.assert_close(attribute_images("grad_cam", model, images, 1), expected)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "guided_grad_cam"])
def test_models_of_transformers(name, vit, images):
    found = attribute_images(name, vit, images[:2], regions=TILES, **FEWER.get(name, {}))
    assert found.shape == (2, SIDE, SIDE) and len(found.unique()) > 1


@pytest.mark.parametrize("relu", [nn.ReLU(), nn.ReLU(inplace=True), F.relu, torch.relu, torch.Tensor.relu])
def test_guided_relu(relu):
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    with GuidedReLU() as guided:
        (relu(x * 1) * torch.tensor([1.0, 1.0, -1.0])).sum().backward()
    assert guided.calls == 1 and x.grad.tolist() == [0, 1, 0]  # at 3 the gradient is negative


@pytest.mark.parametrize("in_place", [torch.relu_, torch.Tensor.relu_, lambda x: F.relu(x, True), nn.ReLU(True)])
def test_guided_relu_in_place_is_read_again(in_place):
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    with GuidedReLU() as guided:
        y = x * 1
        z = in_place(y)
        (2 * y + z * torch.tensor([1.0, 1.0, -3.0])).sum().backward()
    assert guided.calls == 1 and y.tolist() == [0, 2, 3]
    assert x.grad.tolist() == [0, 3, 0]  # at 3 the sum of both gradients is negative


def test_guided_grad_cam_is_a_product(model, images):
    cam = attribute_images("grad_cam", model, images, 1)
    model.eval()
    leaf = images.clone().requires_grad_()
    with GuidedReLU():
        (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    found = attribute_images("guided_grad_cam", model, images, 1)
    torch.testing.assert_close(found, cam * gradient.sum(1).abs())
    plain = attribute_images("input_x_gradient", model, torch.ones_like(images), 1)
    assert not torch.allclose(found, cam * plain.abs())


def test_the_model_and_random_states_stay(model, images):
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    for name in BUILT_IN:
        attribute_images(name, model, images, regions=TILES, **FEWER.get(name, {}))
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), states[0]) and (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


def test_the_predicted_class_by_default(model, images):
    model.eval()
    with torch.no_grad():
        predicted = model(images).argmax(-1)
    torch.testing.assert_close(
        attribute_images("saliency", model, images), attribute_images("saliency", model, images, predicted)
    )


def test_own_methods(model, images):
    method = register_image_method("by_tile", lambda task: torch.arange(4.0).expand(3, -1), "Later tiles first.")
    try:
        found = attribute_images("by_tile", model, images, regions=TILES + 5)  # numbered from 0
        assert found[:, TILES[0] == 3].sum(1).tolist() == pytest.approx([3, 3, 3])
        with pytest.raises(ValueError, match="name is 'by_tile', which there is already: Later tiles first"):
            register_image_method("by_tile", method.function, "")
    finally:
        del IMAGE_METHODS["by_tile"]
    with pytest.raises(ValueError, match="name is 'a b', expected letters"):
        register_image_method("a b", method.function, "")
    assert torch.equal(attribute_images(grad_cam_of_images, model, images), attribute_images("grad_cam", model, images))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"method": "best"}, "method is 'best', expected one of random, saliency"),
        ({"images": torch.rand(3, SIDE, SIDE)}, r"images has the shape \(3, 8, 8\)"),
        ({"targets": [0, 1]}, "expected a class, or one for each of 3 images"),
        ({"targets": 0.5}, "targets is 0.5"),
        ({"regions": tiles(4, 4, size=2)}, r"regions has the shape \(1, 4, 4\)"),
        ({"regions": torch.rand(1, SIDE, SIDE)}, "torch.float32, expected integers"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"method": "grad_cam", "layer": "third"}, "layer is 'third', expected a module of the model"),
        ({"method": "grad_cam", "layer": "linear"}, r"layer .linear. has the shape \(1, 3\), without a grid"),
        ({"method": "ig", "n_steps": 0}, "n_steps is 0"),
        ({"method": "ig", "baseline": "black"}, "baseline is 'black', expected one of zero, mean_color, blurred"),
        ({"method": "occlusion", "output": "loss"}, "output is 'loss'"),
        ({"method": "lime", "superpixels": "quick"}, "superpixels is 'quick'"),
        ({"method": "kernel_shap", "regions": tiles(SIDE, SIDE, size=8)}, "an image of one region"),
        ({"method": lambda task: torch.rand(2, 2)}, r"the method returns \(2, 2\), expected maps \(3, 8, 8\)"),
        ({"method": lambda task: task.images[:, 0] / 0}, "scores that are not finite"),
        (
            {"model": lambda x: x.mean((1, 2, 3))},
            r"model gives \(3,\), expected logits of two or more classes",
        ),
    ],
)
def test_errors(model, images, change, says):
    given = {"method": "saliency", "model": model, "images": images, **change}
    with pytest.raises(ValueError, match=says):
        attribute_images(**given)


def test_models_without_a_relu_or_rows_and_columns(images):
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 2))
    with pytest.raises(ValueError, match="it has no ReLU"):
        attribute_images("guided_grad_cam", flat, images)
    with pytest.raises(ValueError, match="Sequential has no module whose output has rows and columns"):
        attribute_images("grad_cam", flat, images)
