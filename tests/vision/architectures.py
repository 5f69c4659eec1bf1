"""Small models of torchvision and transformers with random weights."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.attr.vision_models import torchvision_models


@dataclass(frozen=True)
class Architecture:
    """A model, the size of its images, and what its blocks hold: (grid, extra tokens, feature dimension)."""

    make: Callable[[], Any]
    size: int
    grids: set
    n_blocks: int
    n_extra: int = 0

    def build(self):
        torch.manual_seed(0)
        return self.make().eval(), self.size

    def logits(self, model):
        return lambda images: getattr(model(images), "logits", None) if hasattr(model, "config") else model(images)


def of_transformers(name, **config):
    def make():
        import transformers

        return getattr(transformers, f"{name}ForImageClassification")(
            getattr(transformers, f"{name}Config")(**config, num_labels=5)
        )

    return make


def of_torchvision(name, **options):
    return lambda: getattr(torchvision_models(), name)(num_classes=5, **options)


def small_vgg():
    """Without its classifier of 120 million weights."""
    vgg = importlib.import_module(f"{torchvision_models().__name__}.vgg")
    model = vgg.VGG(vgg.make_layers([8, "M", 16, "M", 16, 16]), init_weights=False)
    model.classifier = torch.nn.Linear(16 * 49, 5)
    return model


def small_convnext():
    convnext = importlib.import_module(f"{torchvision_models().__name__}.convnext")
    return convnext.ConvNeXt([convnext.CNBlockConfig(8, 16, 2), convnext.CNBlockConfig(16, None, 2)], num_classes=5)


TRANSFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 4,
}

ARCHITECTURES = {
    "transformers vit": Architecture(of_transformers("ViT", **TRANSFORMER), 32, {((8, 8), 1, 2)}, 4, 1),
    "transformers deit": Architecture(of_transformers("DeiT", **TRANSFORMER), 32, {((8, 8), 2, 2)}, 4, 2),
    "transformers dinov2 with registers": Architecture(
        of_transformers("Dinov2WithRegisters", **{k: v for k, v in TRANSFORMER.items() if k != "intermediate_size"}),
        32,
        {((8, 8), 5, 2)},
        4,
        5,
    ),
    "transformers swin": Architecture(
        of_transformers(
            "Swin", image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[1, 2], window_size=4
        ),
        32,
        {((16, 16), 0, 2), ((8, 8), 0, 2)},
        4,
    ),
    "transformers convnext": Architecture(
        of_transformers("ConvNext", hidden_sizes=[8, 12, 16, 20], depths=[2, 2, 2, 2]), 64, {((8, 8), 0, 1)}, 8
    ),
    "transformers resnet": Architecture(
        of_transformers("ResNet", embedding_size=8, hidden_sizes=[8, 12, 16, 20], depths=[2] * 4, layer_type="basic"),
        64,
        {((8, 8), 0, 1), ((4, 4), 0, 1)},
        8,
    ),
    "torchvision vit": Architecture(
        lambda: torchvision_models().VisionTransformer(32, 4, 3, 2, 16, 32, num_classes=5), 32, {((8, 8), 1, 2)}, 3, 1
    ),
    "torchvision swin": Architecture(
        lambda: torchvision_models().SwinTransformer([2, 2], 8, [2, 2], [1, 2], [4, 4], num_classes=5),
        32,
        {((16, 16), 0, 3), ((8, 8), 0, 3)},
        4,
    ),
    "torchvision convnext": Architecture(small_convnext, 64, {((8, 8), 0, 1)}, 4),
    "torchvision resnet": Architecture(of_torchvision("resnet18"), 64, {((8, 8), 0, 1), ((4, 4), 0, 1)}, 8),
    "torchvision vgg": Architecture(small_vgg, 32, {((8, 8), 0, 1)}, 8),
    "torchvision efficientnet": Architecture(of_torchvision("efficientnet_b0"), 64, {((8, 8), 0, 1)}, 16),
    "torchvision mobilenet": Architecture(of_torchvision("mobilenet_v2"), 64, {((8, 8), 0, 1)}, 17),
}
