"""The command ``compare-images``, with a tiny vision transformer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from captum_iba import cli
from tests.test_cli import own_folders, run  # noqa: F401


@pytest.fixture
def compared():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(image_size=8, patch_size=2, num_labels=3, initializer_range=0.5, **size)
    ViTForImageClassification(config).save_pretrained("vit")
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained("vit")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 10, 12, 3), dtype=np.uint8)
    np.savez("test.npz", images=pixels, labels=np.array([0, 1, 2]))
    return ["compare-images", "--model", "vit", "--images", "test.npz", "--out", "out"]


def test_compare_images(compared):
    command = [*compared, "--methods", "grad_cam,random", "--tile", "2"]
    done = run(*command)
    assert done.exit_code == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    assert table[0] == ["drop@1/8", "aopc", "lerf-morf", "insertion", "deletion", "passes", "seconds"]
    assert [row[0] for row in table[1:3]] == ["grad_cam", "random"]
    assert "3 of 3 images, 2 methods" in done.stderr and "wrote out/table.md" in done.stderr
    rows = [json.loads(line) for line in Path("out/rows.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 6 and all(row["error"] is None and len(row["scores"]) == 16 for row in rows)
    # The same command computes nothing anew.
    before = Path("out/rows.jsonl").read_bytes()
    assert run(*command).stdout == done.stdout and Path("out/rows.jsonl").read_bytes() == before
    other = run(*command, "--target", "label")
    assert other.exit_code == 1 and "out has a comparison with another images" in other.stderr


def test_a_folder_of_images_and_a_sample(compared):
    image = pytest.importorskip("PIL.Image")
    Path("photos").mkdir()
    for number in range(3):
        image.new("RGB", (9, 8 + number), (number * 90, 20, 200)).save(f"photos/{number}.png")
    command = [*compared, "--images", "photos", "--examples", "2", "--methods", "random"]
    done = run(*command)
    assert done.exit_code == 0 and "2 of 3 images, 1 method" in done.stderr, done.stderr
    done = run(*command[:-6], "--images", "photos", "--target", "label")
    assert done.exit_code == 2 and "--target: photos has no labels" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "ig,best"], "--methods: there is no method 'best', expected some of random, saliency"),
        (["--images", "nowhere"], "--images: nowhere does not exist, expected a folder of images or an .npz"),
        (["--images", "vit"], "vit has no images"),
        (["--model", "./nowhere"], "--model: there is no folder ./nowhere"),
        (["--target", "right"], "--target: 'right' is none, expected predicted or label"),
        (["--out", "test.npz"], "test.npz is a file, expected a folder"),
        (["--tile", "9"], "size is 9, expected at most"),
        (["--device", "gpu"], "--device is gpu"),
    ],
)
def test_compare_images_errors_are_one_line(compared, arguments, says, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([*compared, *arguments])
    told = capsys.readouterr()
    assert left.value.code and says in told.err.strip().splitlines()[-1] and not told.out


def test_a_language_model_is_no_classifier_of_images(compared):
    config = json.loads(Path("vit/config.json").read_text("utf-8"))
    Path("vit/config.json").write_text(json.dumps({**config, "model_type": "llama"}), encoding="utf-8")
    done = run(*compared)
    assert done.exit_code == 1 and "model: vit is no classifier of images" in done.stderr
