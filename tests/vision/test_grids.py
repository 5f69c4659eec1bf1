"""Layers that hold a grid, of the architectures of torchvision and transformers."""

import pytest
import torch
from torch import nn

from captum_iba.vision import Grid, find_image_layers
from captum_iba.vision.grids import grid_of, resize_map
from tests.vision.architectures import ARCHITECTURES


@pytest.mark.parametrize(
    ("shape", "dim", "patches", "expected"),
    [
        ((1, 8, 7, 5), 1, (), Grid(7, 5, 1)),
        ((1, 14, 14, 8), 3, (), Grid(14, 14, 3)),
        ((1, 197, 8), 2, ((14, 14),), Grid(14, 14, 2, 1, True)),
        ((1, 201, 8), 2, ((14, 14),), Grid(14, 14, 2, 5, True)),
        ((1, 49, 8), 2, ((28, 28),), Grid(7, 7, 2, 0, True)),  # patches merged twice
        ((1, 198, 8), 2, (), Grid(14, 14, 2, 2, True)),  # patches without a convolution
        ((1, 17, 8), 2, ((4, 4),), Grid(4, 4, 2, 1, True)),
    ],
)
def test_grids_by_hand(shape, dim, patches, expected):
    assert grid_of(shape, dim, (1, 3, 224, 224), patches) == expected


def test_a_grid_of_an_image_that_is_not_square():
    assert grid_of((1, 33, 8), 2, (1, 3, 64, 128), [(4, 8)]) == Grid(4, 8, 2, 1, True)
    assert grid_of((1, 33, 8), 2, (1, 3, 64, 128)) == Grid(4, 8, 2, 1, True)


@pytest.mark.parametrize(
    ("shape", "dim"), [((1, 8), 1), ((1, 8, 1, 1), 1), ((1, 40, 8), 2), ((2, 8, 4, 4), 1), ((1, 8, 16), 1)]
)
def test_activations_without_a_grid(shape, dim):
    with pytest.raises(ValueError, match="without a grid over images"):
        grid_of(shape, dim, (1, 3, 32, 32), [(4, 4)] if len(shape) == 3 else [], "head")


def test_extra_tokens_are_left_out():
    grid = Grid(2, 2, 2, 2, True)
    values = torch.arange(12.0).view(1, 6, 2)
    assert grid.cells(values).tolist() == [[[9.0, 13.0], [17.0, 21.0]]]
    assert grid.maskable().tolist() == [[False, False, True, True, True, True]]
    assert Grid(2, 2, 1).maskable() is None


@pytest.mark.parametrize("size", [(4, 4), (7, 9), (2, 3), (224, 224)])
def test_bits_add_up_after_resizing(size):
    values = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(resize_map(values, size).sum((1, 2)), values.sum((1, 2)))
    assert resize_map(torch.zeros(1, 2, 2), size).sum() == 0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_architectures(name):
    architecture = ARCHITECTURES[name]
    model, size = architecture.build()
    layers = find_image_layers(model, torch.rand(1, 3, size, size), None, architecture.logits(model))
    found = {(layer.grid.shape, layer.grid.n_extra, layer.grid.feature_dim) for layer in layers}
    assert architecture.grids <= found
    assert {layer.grid.n_extra for layer in layers} == {architecture.n_extra}
    assert len(layers) >= architecture.n_blocks


def test_named_layers(cnn, images):
    (layer,) = find_image_layers(cnn, images, ["blocks.0.0"])
    assert (layer.name, layer.grid) == ("blocks.0.0", Grid(16, 16, 1))
    with pytest.raises(ValueError, match="layer is 'block', which is no module of the model; expected a name such as"):
        find_image_layers(cnn, images, ["block"])
    with pytest.raises(ValueError, match=r"layer 'linear' has the shape \(3, 4\), without a grid"):
        find_image_layers(cnn, images, ["linear"])
    cnn.unused = nn.Conv2d(3, 3, 1)
    with pytest.raises(ValueError, match="layer is 'unused', which gives no tensor in a forward pass"):
        find_image_layers(cnn, images, ["unused"])


def test_the_model_is_left_as_it_was(cnn, images):
    cnn.train()
    find_image_layers(cnn, images)
    assert cnn.training
    assert all(not module._forward_hooks and "forward" not in vars(module) for module in cnn.modules())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_a_model_behind_a_normalization(name):
    """``nn.Sequential(Normalize(), model)``: the model was taken for a block, which holds no grid."""
    model, size = ARCHITECTURES[name].build()
    images = torch.rand(1, 3, size, size)
    behind = nn.Sequential(nn.Identity(), model)
    found = find_image_layers(behind, images, None, lambda given: getattr(out := behind(given), "logits", out))
    alone = find_image_layers(model, images, None, ARCHITECTURES[name].logits(model))
    assert [layer.name for layer in found] == [f"1.{layer.name}" for layer in alone]


def test_a_shape_with_one_size_is_told_by_a_larger_image():
    """At 64 x 64 pixels the blocks of (1, 32, 32, 32) were left out, and other layers than at 32 x 32 explained."""

    class LastChannels(nn.Module):
        def forward(self, x):
            return x.movedim(1, -1)

    class Head(nn.Module):
        def forward(self, x):
            return torch.stack([x.flatten(1).mean(1), -x.flatten(1).mean(1)], 1)

    for block, dim in ((nn.ReLU(), 1), (LastChannels(), 3)):
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(block), Head()).eval()
        (layer,) = find_image_layers(model, torch.rand(1, 3, 8, 8), ["1.0"])
        assert layer.grid.feature_dim == dim
