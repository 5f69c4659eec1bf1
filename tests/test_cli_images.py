"""The command for images, ``explain-image``, with a tiny model."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captum_iba._reading.thresholds import SAME, fraction_left
from captum_iba.cli.common import plain_errors
from captum_iba.vision import ImageAttribution
from tests.test_cli import own_folders, run  # noqa: F401


@pytest.fixture
def model():
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(**sizes, image_size=32, patch_size=8, id2label={0: "cat", 1: "dog"})
    ViTForImageClassification(config).save_pretrained("vit")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained("vit")
    generator = np.random.default_rng(0)
    Path("train").mkdir()
    for name in ("photo.jpg", "other.png", "train/a.png", "train/b.png"):
        Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(name)
    return ["explain-image", "--model", "vit", "--steps", "2"]


def test_explain_image(model):
    files = ["--html", "page.html", "--json", "result.json", "--figure", "figure.png"]
    done = run(*model, "photo.jpg", *files, "--statistics-from", "train", "--target", "dog")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("photo.jpg · dog") and "\nCheck" in done.stdout
    result = ImageAttribution.load("result.json")
    assert (result.name, result.target_label, result.settings["n_steps"]) == ("photo.jpg", "dog", 2)
    assert result.statistics == "a dataset (34 positions of the layer)"
    # The image and its map, and what leads if something changes without it.
    changes = fraction_left(result.check) <= SAME
    assert Path("page.html").read_text("utf-8").count("<img") == 2 + changes and len(result.leading) == 1
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
    several = run(*model, "photo.jpg", "other.png", "--json", "-", "--preset", "coiba", "--no-check", "-q")
    assert several.exit_code == 0, several.stderr
    assert [entry["name"] for entry in json.loads(several.stdout)] == ["photo.jpg", "other.png"]
    checked = run(*model, "photo.jpg", "other.png", "--html", "both.html", "--json", "both.json")
    said = re.search(r"(?:Check of|No verdict for) \d.*images?: .*", checked.stderr.replace("\n", " "))
    assert said is not None and "for 2 images" not in run(*model, "photo.jpg").stderr
    assert said.group()[:20] in Path("both.html").read_text("utf-8")
    assert all(isinstance(entry["findings"], list) for entry in json.loads(Path("both.json").read_text("utf-8")))
    told, quiet = (run(*model, "photo.jpg", "--no-check", *option).stdout for option in ((), ("-q",)))
    assert told.startswith(quiet.rstrip("\n")) and "\nbar  " in told and "\nbar  " not in quiet
    folder = run(*model, "train", "photo.jpg", "--json", "-", "--no-check", "-q")
    assert [entry["name"] for entry in json.loads(folder.stdout)] == ["a.png", "b.png", "photo.jpg"]
    inner = run(*model, ".", "--json", "-", "--no-check", "-q")
    assert {"train/a.png", "photo.jpg"} < {entry["name"] for entry in json.loads(inner.stdout)}


def test_a_note_is_shown_once_whoever_catches_warnings_in_between(capsys):
    with plain_errors(False):
        for text in ("first", "first", "second"):
            with warnings.catch_warnings():
                warnings.simplefilter("default")
            warnings.warn(text, UserWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == ["captum-iba: note: first", "captum-iba: note: second"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["none.jpg"], "IMAGE: none.jpg does not exist, expected the file of an image"),
        (["broken.jpg"], "IMAGE is broken.jpg, which is not a whole image"),
        (["photo.jpg", "--figure", "figure.txt"], "figure.txt ends in none of .png, .svg, .pdf"),
        (["photo.jpg", "other.png", "--figure", "figure.png"], "--figure is for one image, 2 are given"),
        (["photo.jpg", "--statistics-from", "none"], "there is no folder none"),
        (["photo.jpg", "--statistics-from", "vit"], "vit holds no image"),
        (["photo.jpg", "--target", "owl"], "target is 'owl', which is no label of the model"),
        (["photo.jpg", "--layer", "vit.layer"], "layer is 'vit.layer', which is no module of the model"),
        (["photo.jpg", "--preset", "per_sample"], "smoothing is 1, expected 0 for layer"),
        (["photo.jpg", "--model", "./none"], "there is no folder ./none"),
    ],
)
def test_errors_are_one_line(model, options, message):
    Path("broken.jpg").write_bytes(b"no image")
    done = run(*model, *options)
    assert done.exit_code != 0
    assert message in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr


def test_files_that_are_no_images_are_named_and_the_others_explained(model):
    Path("broken.jpg").write_bytes(b"no image")
    done = run(*model, "photo.jpg", "broken.jpg", "other.png", "--no-check", "--json", "out.json")
    assert done.exit_code == 1
    assert "error: broken.jpg is not explained: IMAGE is broken.jpg, which is not a whole image" in done.stderr
    assert done.stderr.splitlines()[-1] == "captum-iba: error: 1 of 3 images are not explained"
    assert [entry["name"] for entry in json.loads(Path("out.json").read_text("utf-8"))] == ["photo.jpg", "other.png"]
    done = run(*model, "broken.jpg", "broken.jpg", "--json", "none.json")
    assert done.exit_code == 1 and "2 of 2 images are not explained" in done.stderr and not Path("none.json").exists()


def test_explain_of_an_image_names_the_right_command(model):
    for name in ("photo.jpg", "no_such_file.png"):  # never explained as a text
        done = run("explain", name)
        assert done.exit_code == 2
        assert f"{name} is the name of an image, which captum-iba explain-image explains" in done.stderr


def test_a_label_that_is_written_as_a_number_is_the_label(model):
    config = json.loads(Path("vit/config.json").read_text("utf-8"))
    config |= {"id2label": {"0": "1", "1": "0"}, "label2id": {"1": 0, "0": 1}}
    Path("vit/config.json").write_text(json.dumps(config), "utf-8")
    done = run(*model, "photo.jpg", "--target", "1", "--no-check", "-q", "--json", "-")
    assert [(entry["target"], entry["target_label"]) for entry in json.loads(done.stdout)] == [(0, "1")]
