"""Images of all kinds become inputs of a model, or an error says what is wrong."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from captum_iba.vision.images import as_batch, drawn, is_transparent, normalization, read_image

GENERATOR = np.random.default_rng(0)
COLOR = GENERATOR.integers(0, 256, (6, 8, 3), dtype=np.uint8)
GREY = GENERATOR.integers(0, 256, (6, 8), dtype=np.uint8)


def transform(image):
    assert image.mode == "RGB"
    return torch.from_numpy(np.asarray(image).copy()).movedim(-1, 0).float() / 255


@pytest.mark.parametrize("kind", ["array", "pillow", "file", "path", "tensor"])
def test_every_kind_of_image_is_the_same(kind, tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(COLOR).save(path)
    given = {
        "array": COLOR,
        "pillow": Image.fromarray(COLOR),
        "file": str(path),
        "path": path,
        "tensor": torch.from_numpy(COLOR).movedim(-1, 0),
    }[kind]
    assert np.array_equal(read_image(given), COLOR)
    (made,), one = as_batch(given, transform)
    assert one
    assert torch.equal(made, torch.from_numpy(COLOR).movedim(-1, 0).float() / 255)


@pytest.mark.parametrize("grey", [GREY, GREY[..., None], Image.fromarray(GREY)])
def test_grey_images_get_three_channels(grey):
    assert np.array_equal(read_image(grey), np.repeat(GREY[..., None], 3, -1))


def test_transparent_images_are_known(tmp_path):
    clear = np.full((4, 5, 4), 255, dtype=np.uint8)
    clear[0, 0, 3] = 0
    opaque = np.full((4, 5, 4), 255, dtype=np.uint8)
    Image.fromarray(clear).save(tmp_path / "clear.png")
    palette = Image.fromarray(clear[..., 0]).convert("P")
    palette.info["transparency"] = int(np.asarray(palette)[0, 0])
    for image in (
        clear,
        torch.from_numpy(clear).movedim(-1, 0),
        Image.fromarray(clear),
        tmp_path / "clear.png",
        palette,
    ):
        assert is_transparent(image)
    for image in (opaque, Image.fromarray(opaque), clear[..., :3], clear[..., 0], torch.rand(3, 4, 5)):
        assert not is_transparent(image)


def test_transparent_images_lie_on_white():
    pixels = np.zeros((1, 2, 4), dtype=np.uint8)
    pixels[0, 1, 3] = 255
    with pytest.warns(UserWarning, match="images has transparent pixels; they lie on white"):
        assert read_image(pixels).tolist() == [[[255, 255, 255], [0, 0, 0]]]
    palette = Image.new("P", (1, 1), 0)
    palette.info["transparency"] = 0
    with pytest.warns(UserWarning, match="transparent"):
        assert read_image(palette).tolist() == [[[255, 255, 255]]]
    pixels[..., 3] = 255  # opaque: nothing to say
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_image(pixels).tolist() == [[[0, 0, 0], [0, 0, 0]]]


def test_an_image_of_hardly_any_pixels_is_doubted():
    def enlarged(picture):
        return torch.zeros(3, 32, 32)

    with pytest.warns(
        UserWarning, match=r"images\[1\] is an image of 4 x 3 pixels, which the transform enlarges to 32 x"
    ):
        as_batch([np.zeros((32, 32), dtype=np.uint8), np.zeros((3, 4), dtype=np.uint8)], enlarged)


def test_a_photo_is_turned_as_its_file_says(tmp_path):
    image = Image.fromarray(COLOR)
    exif = image.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    image.save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "turned.png"), np.rot90(COLOR, -1))


def test_several_images():
    for several in ([COLOR, COLOR], np.stack([COLOR, COLOR]), [Image.fromarray(COLOR), COLOR]):
        made, one = as_batch(several, transform)
        assert not one
        assert len(made) == 2
    made, one = as_batch(torch.rand(2, 3, 4, 4), None)
    assert (len(made), one) == (2, False)
    assert as_batch(torch.rand(3, 4, 4), None)[1]


def test_damaged_files(tmp_path):
    whole = tmp_path / "whole.png"
    Image.fromarray(np.tile(COLOR, (20, 20, 1))).save(whole)
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:200])
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    empty = tmp_path / "empty.jpg"
    empty.touch()
    for path in (cut, text, empty):
        with pytest.raises(ValueError, match=f"images is .*{path.name}, which is not a whole image"):
            read_image(path)
    with pytest.raises(FileNotFoundError, match=r"none\.png, which does not exist"):
        read_image(tmp_path / "none.png")
    with pytest.raises(FileNotFoundError, match="which is a folder"):
        read_image(tmp_path)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (np.zeros((4, 4, 3)), ValueError, "an array of float64, expected pixels of uint8"),
        (np.zeros((4, 4, 2), dtype=np.uint8), ValueError, r"shape \(4, 4, 2\), expected \(H, W\)"),
        (np.zeros((0, 4), dtype=np.uint8), ValueError, r"shape \(0, 4\)"),
        (Image.new("I;16", (4, 4)), ValueError, "mode 'I;16', expected one of 8 bits"),
        (Image.new("F", (4, 4)), ValueError, "mode 'F'"),
        (3, TypeError, "images is an int"),
    ],
)
def test_images_that_are_none(image, error, message):
    with pytest.raises(error, match=message):
        read_image(image)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.rand(1, 4, 4), ValueError, r"shape \(1, 4, 4\), expected \(3, H, W\); a grey image has to be repeated"),
        (torch.rand(4, 4, 3), ValueError, "its channels are last"),
        (torch.full((3, 4, 4), float("nan")), ValueError, "holds NaN"),
        (torch.ones(3, 4, 4, dtype=torch.int64), ValueError, "dtype torch.int64"),
        ([], ValueError, "images is empty"),
        ({"a": 1}, TypeError, "images is a dict"),
        (COLOR, ValueError, "transform is None; expected a transform"),
    ],
)
def test_inputs_that_are_none(images, error, message):
    with pytest.raises(error, match=message):
        as_batch(images, None)


def test_transforms_that_make_no_input():
    with pytest.raises(TypeError, match="transform gives a ndarray, expected a tensor"):
        as_batch(COLOR, np.asarray)
    with pytest.raises(ValueError, match=r"transform\(images\[1\]\) has the shape \(6, 8\)"):
        as_batch(
            [COLOR, GREY], lambda image: torch.rand(3, 2, 2) if len(calls.append(0) or calls) == 1 else torch.rand(6, 8)
        )


calls: list[int] = []


class Normalize:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


class Composed:
    transforms = (object(), Normalize())

    def __call__(self, image):
        return (transform(image) - torch.tensor(Normalize.mean).view(3, 1, 1)) / torch.tensor(Normalize.std).view(
            3, 1, 1
        )


def test_notes_name_the_file(tmp_path):
    see_through = np.dstack([COLOR, np.full(COLOR.shape[:2], 100, dtype=np.uint8)])
    Image.fromarray(see_through).save(tmp_path / "alpha.png")
    with pytest.warns(UserWarning, match=r"images\[1\] \(alpha.png\) has transparent pixels"):
        as_batch([COLOR, tmp_path / "alpha.png"], transform)


def test_images_are_drawn_as_they_were():
    composed = Composed()
    assert normalization(composed) == ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    assert np.array_equal(drawn(composed(Image.fromarray(COLOR)), normalization(composed)), COLOR)
    assert np.array_equal(drawn(transform(Image.fromarray(COLOR))), COLOR)
    stretched = drawn(10 * transform(Image.fromarray(COLOR)) - 5)
    assert (stretched.min(), stretched.max()) == (0, 255)
    assert normalization(None) is None


def test_an_image_processor_of_transformers():
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    processor = ViTImageProcessorPil(size={"height": 6, "width": 8})
    (made,), _ = as_batch(COLOR, processor)
    assert made.shape == (3, 6, 8)
    torch.testing.assert_close(made, 2 * transform(Image.fromarray(COLOR)) - 1)
    assert np.array_equal(drawn(made, normalization(processor)), COLOR)


def test_a_transform_is_tried_once_for_several_images_and_leaves_the_random_state():
    calls = []

    def transform(image):
        calls.append(torch.rand(()))
        return torch.from_numpy(np.array(image.resize((32, 32)))).movedim(-1, 0).float() / 255

    state = torch.get_rng_state()
    as_batch(torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0)), transform)
    assert len(calls) == 3 and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("is_linear", [True, False])
def test_the_normalization_of_a_function_is_measured(is_linear):
    """A function that normalizes has no mean and std to read, and a blue image was drawn in another blue."""
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1)

    def own(image):
        values = torch.from_numpy(np.array(image)).movedim(-1, 0) / 255
        return ((values if is_linear else values**2) - mean) / std

    blue = np.full((8, 8, 3), (30, 90, 200), dtype=np.uint8)
    is_same = bool((drawn(as_batch(blue, own)[0][0], normalization(own)) == blue).all())
    assert is_same is is_linear
    assert (normalization(own) is not None) is is_linear
    found = normalization(lambda image: own(image)[:, :8, :8])
    assert found is None or (found[0] == pytest.approx(mean.flatten().tolist()) and is_linear)
