"""Draw images of shapes, and train a small classifier of them: something to explain where there is no other model.

    python recipes/shapes.py shapes

It writes ``shapes/model``, a ``ResNetForImageClassification`` of transformers with its image processor,
``shapes/images``, images to explain, and ``shapes/others``, images for the statistics. Every image has one circle,
square or triangle of any color, at any place, on a noisy background with lines that say nothing of its class. The model
takes a minute on one core; its accuracy on new images is printed.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional as F
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessorPil

SIDE = 64
CLASSES = ("circle", "square", "triangle")
N_SHOWN, N_OTHERS, N_TESTED = 4, 200, 300


def drawn(shape: str, draw: random.Random) -> Image.Image:
    """An image, 64 x 64 pixels, with a shape."""
    gray = draw.randint(0, 255)
    noise = np.random.default_rng(draw.getrandbits(32)).normal(gray, 18, (SIDE, SIDE, 3))
    image = Image.fromarray(noise.clip(0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)

    def color() -> tuple[int, ...]:
        """Far enough from the background, in two of three channels at least."""
        near, *far = draw.sample(range(3), 3)
        found = [0, 0, 0]
        found[near] = draw.randint(0, 255)
        for channel in far:
            found[channel] = (gray + draw.randint(90, 165)) % 256
        return tuple(found)

    for _ in range(3):
        pen.line([(draw.randrange(SIDE), draw.randrange(SIDE)) for _ in range(2)], fill=color(), width=1)
    radius = draw.uniform(9, 14)
    x, y = (draw.uniform(radius + 2, SIDE - radius - 2) for _ in range(2))
    if shape == "circle":
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=color())
        return image
    count = {"square": 4, "triangle": 3}[shape]
    turned = draw.uniform(-0.3, 0.3) + (math.pi / 4 if shape == "square" else -math.pi / 2)
    corners = [turned + 2 * math.pi * corner / count for corner in range(count)]
    pen.polygon([(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in corners], fill=color())
    return image


def several(count: int, draw: random.Random) -> tuple[list[Image.Image], Tensor]:
    """Images, and the numbers of their classes."""
    numbers = [draw.randrange(len(CLASSES)) for _ in range(count)]
    return [drawn(CLASSES[number], draw) for number in numbers], torch.tensor(numbers)


def trained(steps: int, draw: random.Random) -> tuple[ResNetForImageClassification, ViTImageProcessorPil, float]:
    """The model, its image processor, and its accuracy on new images."""
    config = ResNetConfig(
        num_labels=len(CLASSES),
        id2label=dict(enumerate(CLASSES)),
        label2id={name: number for number, name in enumerate(CLASSES)},
        embedding_size=16,
        hidden_sizes=[16, 32, 64],
        depths=[1, 1, 1],
        layer_type="basic",
        downsample_in_first_stage=False,
    )
    model = ResNetForImageClassification(config).train()
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})

    def inputs(images: list[Image.Image]) -> Tensor:
        return processor(images, return_tensors="pt")["pixel_values"]

    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for _ in range(steps):
        images, numbers = several(64, draw)
        loss = F.cross_entropy(model(inputs(images)).logits, numbers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    images, numbers = several(N_TESTED, draw)
    with torch.no_grad():
        right = model(inputs(images)).logits.argmax(1) == numbers
    return model, processor, float(right.float().mean())


def main(arguments: list[str] | None = None) -> None:
    """Train, and write the model and the images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400, help="training steps of 64 images (default: 400)")
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    draw = random.Random(0)
    model, processor, accuracy = trained(given.steps, draw)
    model.save_pretrained(given.folder / "model")
    processor.save_pretrained(given.folder / "model")
    for name, shapes in (("images", [*CLASSES] * N_SHOWN), ("others", draw.choices(CLASSES, k=N_OTHERS))):
        (given.folder / name).mkdir(exist_ok=True)
        for number, shape in enumerate(shapes):
            drawn(shape, draw).save(given.folder / name / f"{number:03d}_{shape}.png")
    print(f"{given.folder}: accuracy {accuracy:.1%} on {N_TESTED} new images")


if __name__ == "__main__":
    main()
