"""Methods compared on images: metrics, costs, the rows in a folder, and errors."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from captum_iba.compare.image_comparison import EIGHTHS, ImageComparison, ImageRow, compare_images
from captum_iba.compare.image_files import read_images
from captum_iba.methods.image_methods import attribute_images
from captum_iba.metrics import BaselineValue, blurred, degradation_both, mean_color, tiles

SIDE = 8


@pytest.fixture
def model():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * SIDE * SIDE, 3)
    return nn.Sequential(*layers)


@pytest.fixture
def images():
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def bright(task):
    return task.images.mean(1)


def test_a_row_has_what_is_lost_and_what_it_costs(model, images):
    regions = tiles(SIDE, SIDE, size=2)
    targets = torch.tensor([2, 0, 1])
    result = compare_images(model, images, targets, ["ig", "occlusion"], regions=regions, batch_size=2)
    assert [(row.image, row.method) for row in result.rows] == [(i, m) for i in range(3) for m in ("ig", "occlusion")]
    maps = attribute_images("occlusion", model, images, targets, regions)
    given = {"target": targets, "feature_mask": regions, "fractions": EIGHTHS}
    morf, lerf = degradation_both(model, images, maps, perturbation=BaselineValue(mean_color), **given)
    inserted = degradation_both(model, images, maps, perturbation=BaselineValue(blurred), **given)[1]
    for i, row in enumerate(result.rows[1::2]):
        sums = [float(maps[i][regions[0] == tile].sum()) for tile in range(16)]
        assert row.scores == pytest.approx(sums, abs=1e-6)
        p, q, r = (curve.probability[i].double() for curve in (morf, lerf, inserted))
        assert row.values["drop@1/8"] == pytest.approx(float(p[0] - p[1]), abs=1e-5)
        assert row.values["aopc"] == pytest.approx(float((p[0] - p).mean()), abs=1e-5)
        assert row.values["lerf-morf"] == pytest.approx(float(torch.trapezoid(q - p)) / 8, abs=1e-5)
        assert row.values["insertion"] == pytest.approx(float(torch.trapezoid(r)) / 8, abs=1e-5)
        assert row.values["deletion"] == pytest.approx(float(torch.trapezoid(p)) / 8, abs=1e-5)
        assert row.values["passes"] == 17 and row.values["seconds"] > 0
    # 50 points with a backward pass each.
    assert [row.values["passes"] for row in result.rows[::2]] == [100, 100, 100]


def test_the_number_of_images_of_a_batch_changes_nothing(model, images):
    methods = ["random", "gradient_shap", "grad_cam"]
    results = [compare_images(model, images, methods=methods, batch_size=size) for size in (1, 3)]
    for one, other in zip(results[0].rows, results[1].rows, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
        measured = ImageComparison.measured
        assert [one.values[c] for c in measured] == pytest.approx([other.values[c] for c in measured], abs=1e-5)


def test_a_comparison_goes_on_and_grows(model, images, tmp_path):
    counted = []
    first = compare_images(model, images, methods={"bright": bright}, folder=tmp_path)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"image": 1, "met')  # killed in the middle of a line
    given = {"methods": {"bright": bright, "dark": lambda task: -bright(task)}, "folder": tmp_path}
    grown = compare_images(model, images, on_row=counted.append, **given)
    assert counted == [4, 5, 6] and grown.rows[::2] == first.rows
    assert (tmp_path / "table.md").read_text("utf-8").count("\n| ") == 2
    assert len((tmp_path / "rows.jsonl").read_text("utf-8").splitlines()) == 6
    row = json.loads((tmp_path / "rows.jsonl").read_text("utf-8").splitlines()[0])
    assert row["image"] == 0 and len(row["scores"]) == 16
    for change, name in (
        ({"seed": 1}, "seed .was 0, is 1"),
        ({"regions": tiles(SIDE, SIDE, size=4)}, "images"),
        ({"targets": 0}, "images"),
        ({"layer": "0"}, "layer .was None, is 0"),
    ):
        with pytest.raises(ValueError, match=f"has a comparison with another {name}"):
            compare_images(model, images, **{"methods": {"bright": bright}, "folder": tmp_path, **change})
    with torch.no_grad():
        model[3].bias[0] += 100  # other predictions, too
    with pytest.raises(ValueError, match="has a comparison with another model"):
        compare_images(model, images, methods={"bright": bright}, targets=[0, 1, 2], folder=tmp_path)


def test_a_method_that_fails_on_an_image_is_recorded_there(model, images):
    def fragile(task):
        if bool((task.images[:, 0, 0, 0] == images[1, 0, 0, 0]).any()):
            raise RuntimeError("out of memory")
        return bright(task)

    result = compare_images(model, images, methods={"bright": bright, "fragile": fragile})
    assert [row.error for row in result.rows if row.method == "fragile"] == [None, "RuntimeError: out of memory", None]
    assert len(result.values("bright", "aopc")) == len(result.values("fragile", "aopc")) == 2
    assert (
        "Left out, because a method failed: 1 image; the first, fragile by RuntimeError: out of memory"
        in result.to_markdown()
    )


def test_marks_say_which_is_better():
    """Of the area under the deletion curve, a lower one."""
    noise = torch.randn(30, generator=torch.Generator().manual_seed(0)).tolist()
    columns = ImageComparison(("a",), ()).columns

    def rows(method, shift):
        varied = {"aopc": shift, "deletion": shift}
        return [
            ImageRow(i, method, (), {c: noise[i] + varied.get(c, 0) * (1 + i % 3) for c in columns}) for i in range(30)
        ]

    result = ImageComparison(("a", "b"), (*rows("a", 0.5), *rows("b", 0.0)))
    interval = result.difference("b", "aopc")
    assert interval.mean == pytest.approx(1.0) and 0.8 < interval.low < 1 < interval.high < 1.2
    cells = result.to_markdown().splitlines()[3].split("|")
    assert "(+1.000 [" in cells[3] and cells[3].endswith("▼ ") and cells[6].endswith("▲ ") and "▲" not in cells[2]
    assert "higher is better but for deletion, passes and seconds" in result.to_markdown()


def test_the_model_is_left_as_it_was(model, images):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    compare_images(model.train(), images)
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model._forward_pre_hooks and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": lambda x: x}, TypeError, "model is a function, expected a torch.nn.Module"),
        ({"images": torch.rand(3, SIDE, SIDE)}, ValueError, r"images has the shape \(3, 8, 8\)"),
        ({"methods": ["ig", "best"]}, ValueError, "methods has 'best', expected names among random, saliency"),
        ({"methods": ["ig", "ig"]}, ValueError, "expected each once"),
        ({"methods": []}, ValueError, "methods is empty"),
        ({"targets": [0]}, ValueError, "expected a class, or one for each of 3 images"),
        ({"regions": tiles(4, 4, size=2)}, ValueError, r"regions has the shape \(1, 4, 4\)"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
    ],
)
def test_bad_input(model, images, change, error, says):
    with pytest.raises(error, match=says):
        compare_images(**{"model": model, "images": images, **change})


def test_images_of_an_archive_and_of_a_folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "some.npz", images=pixels, labels=np.array([1, 0]))
    found = read_images(tmp_path / "some.npz")
    assert np.array_equal(np.stack(found.images), pixels) and found.labels == [1, 0]
    (tmp_path / "photos" / "more").mkdir(parents=True)
    image.fromarray(pixels[1]).save(tmp_path / "photos" / "more" / "b.png")
    image.fromarray(pixels[0]).save(tmp_path / "photos" / "a.PNG")
    image.fromarray(pixels[0][..., 0]).save(tmp_path / "photos" / "gray.bmp")
    (tmp_path / "photos" / "notes.txt").write_text("none")
    found = read_images(tmp_path / "photos")
    assert found.names == ["a.PNG", "gray.bmp", "more/b.png"] and found.labels is None
    assert np.array_equal(found.images[0], pixels[0]) and found.images[1].shape == (4, 5, 3)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="broken.jpg, which is not a whole image"):
        read_images(tmp_path / "photos")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"pixels": np.zeros(3)}, "images is no array"),
        ({"images": np.zeros((1, 3, 4, 4))}, r"images is \(1, 3, 4, 4\) float64, expected \(N, H, W, 3\) uint8"),
        ({"images": np.zeros((1, 4, 4, 3), np.uint8), "labels": np.zeros(2, int)}, r"labels is \(2,\) int64"),
        ({"images": np.array([{}])}, "cannot be read"),
    ],
)
def test_archives_without_images(tmp_path, content, says):
    np.savez(tmp_path / "some.npz", **content)
    with pytest.raises(ValueError, match=says):
        read_images(tmp_path / "some.npz")


def test_sources_without_images(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        read_images(tmp_path / "nowhere")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="neither a folder of images nor an .npz"):
        read_images(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="has no images, expected files that end in .jpg"):
        read_images(tmp_path)


def test_a_layer_that_is_not_there_is_an_error_before_the_first_image(model, images, tmp_path):
    """A table of NaN was written, with success, though methods without a layer were in it, too."""
    with pytest.raises(ValueError, match="layer is 'foo', expected a module of the model"):
        compare_images(model, images, methods=["random", "grad_cam"], layer="foo", folder=tmp_path)
    assert not any(tmp_path.iterdir())
