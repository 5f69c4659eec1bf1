"""Small models and images that the tests share."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from captum_iba.vision import ImageExplainer


class Cnn(nn.Module):
    """Three blocks of convolutions, and classes by the mean over positions."""

    def __init__(self):
        super().__init__()
        widths = (3, 8, 8, 8)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(a, b, 3, 2 if b != a else 1, 1), nn.ReLU()) for a, b in pairwise(widths))
        )
        self.linear = nn.Linear(8, 4)

    def forward(self, images):
        return self.linear(self.blocks(images).mean((2, 3)))


@pytest.fixture
def cnn():
    torch.manual_seed(0)
    return Cnn().eval()


@pytest.fixture
def images():
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def explainer(cnn, images):
    explainer = ImageExplainer(cnn, labels=["cat", "dog", "owl", "fox"])
    explainer.estimate_statistics(torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(2)))
    return explainer


@pytest.fixture
def photo(tmp_path):
    """A file with a photo of 40 x 32 pixels."""
    from PIL import Image

    path = tmp_path / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 256, (32, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path
