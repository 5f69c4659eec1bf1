"""Make a small vision transformer by distillation: what a convolutional network has learned, from few images.

    python recipes/image_models.py --data cifar10_train.npz --test cifar10_test.npz --teacher DIR --out DIR/vit

``--data`` and ``--test`` hold ``images`` (N, 32, 32, 3) uint8 and ``labels`` (N,). ``--teacher`` is a folder with
``resnet56.safetensors`` and ``resnet.py`` (``load(path)``, ``CLASSES``, ``MEAN``, ``STD``; the output of the model's
``layer3`` lies on the grid of the patches, 8 x 8). The student is the ``ViTForImageClassification`` of transformers:
32 x 32 pixels in patches of 4 x 4, 6 blocks, 128 wide.

* It never sees a label. Every batch is made anew of the images: flipped, shifted, scaled, in other colors, two of them
  mixed (mixup) or one in a rectangle of the other (CutMix), and the teacher says what it sees in just this image
  (Beyer et al., 2022, "Knowledge distillation: a good teacher is patient and consistent").
* The states of its patches also learn to give the teacher's last feature map at their place (Romero et al., 2015,
  "FitNets"): 64 hints an image instead of one.

It writes weights (safetensors), configuration, image processor and a model card with the accuracy on the whole test
file. Needs transformers; a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

SIDE, PATCH, WIDTH, BLOCKS, HEADS = 32, 4, 128, 6, 4
TEMPERATURE = 2.0
HINT = 1.0

CARD = """\
---
license: bsd-3-clause
pipeline_tag: image-classification
---
# A small vision transformer of CIFAR-10 images

{blocks} blocks, {width} wide, patches of {patch} x {patch} pixels, {parameters:.2f} M parameters.
Made by `recipes/image_models.py` (seed {seed}, {steps} steps of {rows} images, on a CPU): distilled from a ResNet-56 on
augmented copies of {trained} images, without their labels.

**Accuracy on {tested} test images: {accuracy:.3f}** (the teacher: {teacher:.3f}; they agree on {agreement:.3f})
"""


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W) in 0 to 1 and labels (N,)."""
    with np.load(path, allow_pickle=False) as data:
        images, labels = torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])
    return images.permute(0, 3, 1, 2).float() / 255, labels


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Teacher:
    """Logits and last feature map of the convolutional network, for normalized images."""

    def __init__(self, folder: Path) -> None:
        self.code = module_at(folder / "resnet.py")
        self.model: nn.Module = self.code.load(str(folder / "resnet56.safetensors")).to(
            memory_format=torch.channels_last
        )
        self.seen: list[Tensor] = []
        self.model.layer3.register_forward_hook(lambda *call: self.seen.append(call[2]))

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, classes) and features (B, patches, channels), float32."""
        self.seen.clear()
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(images.contiguous(memory_format=torch.channels_last))
        return logits.float(), self.seen.pop().float().flatten(2).transpose(1, 2)


def views(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images in 0 to 1 flipped, scaled, shifted, lighter or darker, with more or less contrast."""

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return torch.rand(len(images), *size, generator=generator) * (high - low) + low

    scale = uniform(0.75, 1.05)  # of the part that is seen: below 1 the image is enlarged
    stretch = uniform(0.85, 1.15)
    flip = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    shift = uniform(-1, 1, 2) * (1 - scale).abs()[:, None].clamp(min=0.12)
    affine = torch.zeros(len(images), 2, 3)
    affine[:, 0, 0], affine[:, 1, 1], affine[:, :, 2] = scale * stretch * flip, scale / stretch, shift
    grid = nn.functional.affine_grid(affine, list(images.shape), align_corners=False)
    moved = nn.functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    mean = moved.mean((1, 2, 3), keepdim=True)
    return ((moved - mean) * uniform(0.7, 1.3, 1, 1, 1) + mean * uniform(0.8, 1.2, 3, 1, 1)).clamp(0, 1)


def mixed(images: Tensor, generator: torch.Generator) -> Tensor:
    """Half as they are, a quarter mixed with another image, a quarter with a rectangle of another image."""
    others, side = images.roll(1, 0), images.shape[-1]
    quarter = len(images) // 4
    result = images.clone()
    share = torch.rand(quarter, 1, 1, 1, generator=generator)
    result[:quarter] = share * images[:quarter] + (1 - share) * others[:quarter]
    for row in range(quarter, 2 * quarter):
        size = int(side * math.sqrt(torch.rand((), generator=generator).item()))
        top, left = torch.randint(0, side - size + 1, (2,), generator=generator).tolist()
        box = (row, slice(None), slice(top, top + size), slice(left, left + size))
        result[box] = others[box]
    return result


def sine_positions(width: int, grid: int) -> Tensor:
    """Positions (1, 1 + grid², width) as sines and cosines of row and column; zero for the class token."""
    frequencies = 1 / 100 ** (torch.arange(width // 4) / (width // 4))
    angles = torch.arange(grid)[:, None] * frequencies
    along = torch.cat([angles.sin(), angles.cos()], 1)
    patches = torch.cat([along.repeat_interleave(grid, 0), along.repeat(grid, 1)], 1)
    return torch.cat([torch.zeros(1, width), patches])[None]


def new_student(classes: tuple[str, ...]) -> ViTForImageClassification:
    config = ViTConfig(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=WIDTH,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        intermediate_size=3 * WIDTH,
        id2label=dict(enumerate(classes)),
        label2id={name: number for number, name in enumerate(classes)},
        attn_implementation="eager",  # faster than the fused one for 65 tokens in bfloat16 on a CPU
    )
    student = ViTForImageClassification(config)
    with torch.no_grad():
        student.vit.embeddings.position_embeddings.copy_(0.5 * sine_positions(WIDTH, SIDE // PATCH))
        for layer in student.vit.layers:
            start_like_trained(layer.attention)
    return student


def start_like_trained(attention: nn.Module) -> None:
    """Attention that begins near the identity, as that of trained transformers looks (Trockman and Kolter, 2023)."""

    def noisy(noise: float, identity: float) -> tuple[Tensor, Tensor]:
        """Factors of a matrix, noise and a multiple of the identity."""
        u, s, v = torch.linalg.svd(noise * torch.randn(WIDTH, WIDTH) / WIDTH**0.5 + identity * torch.eye(WIDTH))
        return u * s.sqrt(), s.sqrt()[:, None] * v

    size = WIDTH // HEADS
    for rows in torch.arange(WIDTH).split(size):
        left, right = noisy(0.7, 0.7)
        attention.q_proj.weight[rows], attention.k_proj.weight[rows] = left.T[:size], right[:size]
    left, right = noisy(0.4, -0.4)
    attention.o_proj.weight.copy_(left)
    attention.v_proj.weight.copy_(right)


def distill(
    student: ViTForImageClassification,
    teacher: Teacher,
    images: Tensor,
    *,
    steps: int,
    rows: int,
    generator: torch.Generator,
) -> None:
    code = teacher.code
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (code.MEAN, code.STD))
    hint = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, teacher(images[:1])[1].shape[-1]))
    trained = [*student.parameters(), *hint.parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.05},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=(0.9, 0.98),
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, total_steps=steps, pct_start=0.08)
    student.train()
    start = time.perf_counter()
    order = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if len(order) < rows:
            order = torch.cat([order, torch.randperm(len(images), generator=generator)])
        chosen, order = order[:rows], order[rows:]
        batch = (mixed(views(images[chosen], generator), generator) - mean) / deviation
        logits, features = teacher(batch)
        with torch.autocast("cpu", torch.bfloat16):
            output = student(batch, output_hidden_states=True)
            given = hint(output.hidden_states[-1][:, 1:])
        wanted = (logits / TEMPERATURE).softmax(-1)
        answer = nn.functional.cross_entropy(output.logits.float() / TEMPERATURE, wanted)
        hints = (given.float() - features).square().mean() / features.var()
        optimizer.zero_grad()
        (answer * TEMPERATURE + HINT * hints).backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            agree = (output.logits.argmax(-1) == logits.argmax(-1)).float().mean()
            print(
                f"step {step}, {time.perf_counter() - start:.0f} s: cross-entropy {answer:.3f}, hints {hints:.3f}, "
                f"agreement {agree:.2f}",
                flush=True,
            )
    student.eval()


@torch.inference_mode()
def predictions(model: nn.Module, images: Tensor) -> Tensor:
    outputs = [model(part) for part in images.split(100)]
    return torch.cat([getattr(output, "logits", output) for output in outputs]).argmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="npz with images and labels to train on")
    parser.add_argument("--test", type=Path, required=True, help="npz with images and labels to measure on")
    parser.add_argument("--teacher", type=Path, required=True, help="folder with resnet.py and resnet56.safetensors")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new model")
    parser.add_argument("--steps", type=int, default=1700, help="batches (default: 1700)")
    parser.add_argument("--rows", type=int, default=64, help="images a batch (default: 64)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    torch.manual_seed(given.seed)
    generator = torch.Generator().manual_seed(given.seed)
    teacher = Teacher(given.teacher)
    images, _ = read(given.data)
    student = new_student(teacher.code.CLASSES)
    distill(student, teacher, images, steps=given.steps, rows=given.rows, generator=generator)

    code = teacher.code
    processor = ViTImageProcessorPil(
        do_resize=True,
        size={"height": SIDE, "width": SIDE},
        image_mean=list(code.MEAN),
        image_std=list(code.STD),
    )
    given.out.mkdir(parents=True, exist_ok=True)
    student.save_pretrained(given.out)
    processor.save_pretrained(given.out)

    tested, labels = read(given.test)
    pixels = (tested - torch.tensor(code.MEAN).view(3, 1, 1)) / torch.tensor(code.STD).view(3, 1, 1)
    student_says, teacher_says = predictions(student, pixels), predictions(teacher.model, pixels)
    card = CARD.format(
        blocks=BLOCKS,
        width=WIDTH,
        patch=PATCH,
        parameters=sum(p.numel() for p in student.parameters()) / 1e6,
        seed=given.seed,
        steps=given.steps,
        rows=given.rows,
        trained=len(images),
        tested=len(tested),
        accuracy=(student_says == labels).float().mean(),
        teacher=(teacher_says == labels).float().mean(),
        agreement=(student_says == teacher_says).float().mean(),
    )
    (given.out / "README.md").write_text(card, encoding="utf-8")
    print(card)


if __name__ == "__main__":
    main()
