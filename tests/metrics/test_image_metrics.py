"""Metrics of image attributions, against values by hand and naive loops."""

import math

import numpy as np
import pytest
import torch

from captum_iba.metrics import (
    BaselineValue,
    Degradation,
    area_between,
    blurred,
    bounding_box_ratio,
    degradation,
    degradation_both,
    degraded_floor,
    deletion_area,
    insertion_area,
    insertion_deletion,
    mean_color,
    normalized_area_between,
    pointing_game,
    sensitivity_n,
    tiles,
)

SIDE = 6


@pytest.fixture
def images():
    return torch.rand(3, 2, SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def scores():
    return torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def network():
    torch.manual_seed(2)
    layers = torch.nn.Conv2d(2, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    return torch.nn.Sequential(*layers).double().eval()


def test_tiles_by_size_and_by_number():
    assert tiles(3, 5, size=2)[0].tolist() == [[0, 0, 1, 1, 2], [0, 0, 1, 1, 2], [3, 3, 4, 4, 5]]
    assert tiles(2, 4, size=(1, 2))[0].tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert torch.equal(tiles(32, 32, size=4), tiles(32, 32, counts=(8, 8)))
    for length, number in ((7, 3), (10, 4), (5, 5)):
        sizes = tiles(1, length, counts=(1, number))[0, 0].bincount()
        assert len(sizes) == number and sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "size is None and counts is None, expected one"),
        ({"size": 2, "counts": (1, 1)}, "size is 2 and counts is"),
        ({"size": 7}, r"size is 7, expected at most \(6, 6\)"),
        ({"size": 0}, "size is 0, expected an integer of at least 1"),
        ({"counts": (2, 9)}, r"counts is \(2, 9\), expected at most"),
        ({"counts": 3}, "counts is 3, expected two integers"),
    ],
)
def test_tiles_that_there_are_not(given, says):
    with pytest.raises(ValueError, match=says):
        tiles(SIDE, SIDE, **given)


def test_blur_is_the_sum_over_neighbors(images):
    sigma, radius = 0.8, 2
    kernel = [math.exp(-0.5 * (d / sigma) ** 2) for d in range(-radius, radius + 1)]
    kernel = [weight / sum(kernel) for weight in kernel]

    def mirror(i):
        return SIDE - 1 - abs(SIDE - 1 - abs(i))

    found = blurred(images, sigma)
    for row in range(SIDE):
        for column in range(SIDE):
            expected = sum(
                kernel[i + radius] * kernel[j + radius] * images[1, 0, mirror(row + i), mirror(column + j)]
                for i in range(-radius, radius + 1)
                for j in range(-radius, radius + 1)
            )
            assert found[1, 0, row, column] == pytest.approx(float(expected))
    flat = torch.full((1, 3, 5, 4), 0.25)
    torch.testing.assert_close(blurred(flat), flat)
    assert blurred(torch.rand(1, 1, 1, 3), 5.0).shape == (1, 1, 1, 3)
    with pytest.raises(ValueError, match="sigma is 0, expected a positive number"):
        blurred(images, 0)


@pytest.mark.parametrize("function", [mean_color, blurred])
def test_baselines_are_of_images(function):
    with pytest.raises(ValueError, match=r"images has the shape \(3, 4\)"):
        function(torch.rand(3, 4))
    with pytest.raises(ValueError, match="torch.int64, expected floating-point"):
        function(torch.zeros(1, 1, 2, 2, dtype=torch.int64))


def test_the_baseline_of_an_image_is_its_own(images, scores, network):
    """In a batch, one by one, and by hand."""
    regions = tiles(SIDE, SIDE, size=2)
    given = {"feature_mask": regions, "perturbation": BaselineValue(mean_color), "counts": [1, 4]}
    together = degradation(network, images, scores, 1, **given)
    alone = [degradation(network, images[i : i + 1], scores[i : i + 1], 1, **given) for i in range(3)]
    torch.testing.assert_close(together.probability, torch.cat([one.probability for one in alone]))
    sums = [float(scores[0][regions[0] == tile].sum()) for tile in range(9)]
    top = sorted(range(9), key=lambda tile: -sums[tile])
    for column, count in ((1, 1), (2, 4)):
        changed = images[:1].clone()
        for tile in top[:count]:
            changed[:, :, regions[0] == tile] = images[0].mean((1, 2))[:, None]
        expected = network(changed).softmax(-1)[0, 1]
        assert together.probability[0, column] == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: 1.0, "the function returns float, expected a tensor that broadcasts"),
        (lambda x: x.mean((0, 2, 3)), r"the function returns \(2,\)"),
        (lambda x: x.mean((0, 2, 3), keepdim=True)[:, :, 0], r"the function returns \(1, 2, 1\)"),
    ],
)
def test_a_function_that_gives_no_baseline_of_each(images, scores, network, function, says):
    with pytest.raises(ValueError, match=says):
        degradation(network, images, scores, perturbation=BaselineValue(function))


def test_areas_by_hand():
    p, q = torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    decision, fraction = torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[0.0, 0.5, 1.0]])
    morf, lerf = (Degradation(values, values.logit(), decision, fraction) for values in (p, q))
    assert deletion_area(morf).tolist() == [0.5]
    assert insertion_area(lerf).tolist() == [0.75]
    assert area_between(morf, lerf).tolist() == [0.25]
    assert normalized_area_between(morf, lerf, 0.5).tolist() == [0.5]
    assert normalized_area_between(morf, lerf, degraded_floor([morf, lerf])).tolist() == [0.25]
    assert normalized_area_between(morf, lerf, 1.0).isnan().all()


def naive_curve(network, image, scores, start, order, target):
    """Probability as pixels are set, one by one, to those of the image, or from it to those of ``start``."""
    current = start.clone() if order == "insertion" else image.clone()
    values = [float(network(current[None]).softmax(-1)[0, target])]
    for position in sorted(range(SIDE * SIDE), key=lambda i: -float(scores.flatten()[i])):
        row, column = divmod(position, SIDE)
        source = image if order == "insertion" else start
        current[:, row, column] = source[:, row, column]
        values.append(float(network(current[None]).softmax(-1)[0, target]))
    area = sum((a + b) / 2 for a, b in zip(values, values[1:])) / (SIDE * SIDE)  # noqa: B905, RUF007
    return values, area


def test_insertion_and_deletion_against_loops(images, scores, network):
    fractions = [step / (SIDE * SIDE) for step in range(1, SIDE * SIDE + 1)]
    found = insertion_deletion(network, images, scores, [0, 1, 2], fractions=fractions)
    for i in range(3):
        curve, area = naive_curve(network, images[i], scores[i], blurred(images)[i], "insertion", i)
        assert found.insertion_curve[i].tolist() == pytest.approx(curve)
        assert float(found.insertion[i]) == pytest.approx(area)
        gray = mean_color(images)[i].expand(-1, SIDE, SIDE)
        curve, area = naive_curve(network, images[i], scores[i], gray, "deletion", i)
        assert found.deletion_curve[i].tolist() == pytest.approx(curve)
        assert float(found.deletion[i]) == pytest.approx(area)
    torch.testing.assert_close(found.inserted, found.deleted)
    few = insertion_deletion(network, images, scores, 1, feature_mask=tiles(SIDE, SIDE, size=3), fractions=[0.5, 1])
    assert few.inserted.tolist() == few.deleted.tolist() == [[0, 0.5, 1]] * 3
    torch.testing.assert_close(few.insertion_curve[:, -1], few.deletion_curve[:, 0])


def naive_ratio(scores, box):
    left, top, right, bottom = box
    ranked = sorted(np.ndindex(*scores.shape), key=lambda place: -float(scores[place]))
    size = (right - left) * (bottom - top)
    return sum(left <= x < right and top <= y < bottom for y, x in ranked[:size]) / size


def test_bounding_box_ratio(scores):
    boxes = torch.tensor([[0, 0, 2, 2], [1, 2, 6, 5], [3, 0, 4, 6]])
    found = bounding_box_ratio(scores, boxes)
    assert found.tolist() == pytest.approx([naive_ratio(s, b) for s, b in zip(scores, boxes.tolist(), strict=True)])
    # Without an order, it is the fraction of the image that the box covers; a perfect map has 1.
    assert bounding_box_ratio(torch.zeros(3, SIDE, SIDE), boxes).tolist() == pytest.approx([4 / 36, 15 / 36, 6 / 36])
    perfect = torch.zeros(1, SIDE, SIDE)
    perfect[0, 2:5, 1:6] = 1
    assert bounding_box_ratio(perfect, boxes[1:2]).item() == 1
    # Two of three tied pixels are inside, and there is one place left: 1 + 2/3 of 2.
    tied = torch.tensor([[[5.0, 3.0, 3.0, 3.0]]])
    assert bounding_box_ratio(tied, torch.tensor([[0, 0, 2, 1]])).item() == pytest.approx((1 + 1 / 3) / 2)


def test_pointing_game():
    scores = torch.zeros(1, 4, 5)
    scores[0, 3, 4] = 1
    box = torch.tensor([[1, 1, 3, 2]])  # its last pixel is (1, 2): two rows up and two columns to the left
    assert pointing_game(scores, box).item() == 0
    assert pointing_game(scores, box, tolerance=2.8).item() == 0
    assert pointing_game(scores, box, tolerance=2.83).item() == 1
    scores[0, 1, 1] = 1  # one of two highest pixels
    assert pointing_game(scores, box).item() == 0.5
    with pytest.raises(ValueError, match="tolerance is -1"):
        pointing_game(scores, box, tolerance=-1)


@pytest.mark.parametrize("function", [bounding_box_ratio, pointing_game])
@pytest.mark.parametrize(
    ("box", "says"),
    [
        ([2, 1, 2, 3], r"boxes\[0\] is \[2, 1, 2, 3\], which is empty"),
        ([0, 0, 7, 1], r"boxes\[0\] is \[0, 0, 7, 1\], expected it inside the image, 6 pixels wide and 6 high"),
        ([-1, 0, 2, 1], "expected it inside the image"),
        ([0.0, 0.0, 1.0, 1.0], "torch.float32, expected integers"),
        ([0, 0, 1], r"boxes has the shape \(1, 3\)"),
    ],
)
def test_boxes_that_are_none(function, box, says):
    with pytest.raises(ValueError, match=says):
        function(torch.rand(1, SIDE, SIDE), torch.tensor([box]))


@pytest.mark.parametrize("function", [bounding_box_ratio, pointing_game])
def test_maps_that_are_none(function):
    box = torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(ValueError, match=r"attributions has the shape \(1, 3, 6, 6\), expected \(B, H, W\)"):
        function(torch.rand(1, 3, SIDE, SIDE), box)
    with pytest.raises(ValueError, match=r"not finite in examples \[0\]"):
        function(torch.full((1, SIDE, SIDE), float("nan")), box)


@pytest.mark.parametrize("regions", [None, tiles(SIDE, SIDE, size=2)])
def test_sensitivity_of_a_linear_model(images, scores, regions):
    """Scores that are what each pixel adds have the correlation 1, their negation -1."""

    def forward(x):
        return torch.stack([torch.zeros(len(x)).double(), (x * scores[0]).sum((1, 2, 3))], 1)

    added = (images * scores[0]).sum(1)
    given = {"n": 4, "feature_mask": regions, "n_subsets": 20}
    assert sensitivity_n(forward, images, added, 1, **given).tolist() == pytest.approx([1, 1, 1])
    assert sensitivity_n(forward, images, -added, 1, **given).tolist() == pytest.approx([-1, -1, -1])


def test_sensitivity_against_a_loop(images, scores, network):
    regions = tiles(SIDE, SIDE, counts=(2, 3))
    removed = []

    def look(inputs, arguments, where):
        removed.append(where.clone())
        return (inputs[0].masked_fill(where[:, None], 0.5),), arguments

    given = {"n": 2, "feature_mask": regions, "n_subsets": 15, "output": "probability", "seed": 3}
    found = sensitivity_n(network, images[:1], scores[:1], 2, perturbation=look, **given)
    subsets = torch.cat(removed)
    subsets = subsets[subsets.flatten(1).any(1)]
    assert len(subsets) == 15 and len({tuple(s.flatten().tolist()) for s in subsets}) > 5
    sums, losses = [], []
    for subset in subsets:
        assert len(regions[0][subset].unique()) == 2 and int(subset.sum()) == 12
        sums.append(float(scores[0][subset].sum()))
        changed = images[:1].masked_fill(subset, 0.5)
        losses.append(float((network(images[:1]).softmax(-1) - network(changed).softmax(-1))[0, 2]))
    assert found.item() == pytest.approx(np.corrcoef(sums, losses)[0, 1])
    together = sensitivity_n(network, images, scores, 2, perturbation=BaselineValue(0.5), **given)
    assert together[0].item() == pytest.approx(found.item())


def test_sensitivity_without_a_correlation(images, network):
    with pytest.warns(UserWarning, match=r"in examples \[0\] the scores or the losses"):
        assert sensitivity_n(network, images[:1], torch.ones(1, SIDE, SIDE), n=2, n_subsets=5).isnan().all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n": 9}, "n is 9, expected less than the number of features of each image, which is 9"),
        ({"n": 0}, "n is 0"),
        ({"n_subsets": 1}, "n_subsets is 1"),
        ({"output": "loss"}, "output is 'loss', expected one of logit, probability"),
        ({"attributions": torch.rand(3, 5, 5)}, r"attributions has the shape \(3, 5, 5\)"),
        ({"attributions": torch.full((3, SIDE, SIDE), math.inf)}, r"not finite in examples \[0, 1, 2\]"),
        ({"feature_mask": tiles(4, 4, size=2)}, r"feature_mask has the shape \(1, 4, 4\)"),
    ],
)
def test_sensitivity_errors(images, scores, network, change, says):
    given = {"attributions": scores, "n": 2, "feature_mask": tiles(SIDE, SIDE, size=2), **change}
    with pytest.raises(ValueError, match=says):
        sensitivity_n(network, images, **given)


def test_insertion_errors(images, scores, network):
    with pytest.raises(ValueError, match=r"fractions is \[0.5\], expected ones in rising order that end at 1"):
        insertion_deletion(network, images, scores, fractions=[0.5])
    with pytest.raises(ValueError, match=r"attributions has the shape \(3, 5, 5\)"):
        insertion_deletion(network, images, torch.rand(3, 5, 5))
    with pytest.raises(ValueError, match=r"images has the shape \(3, 2\)"):
        insertion_deletion(network, torch.rand(3, 2), scores)


def test_the_model_and_the_random_state_stay(images, scores, network):
    state, network = torch.get_rng_state(), network.train()
    insertion_deletion(network, images, scores, fractions=[0.5, 1.0])
    sensitivity_n(network, images, scores, n=2, n_subsets=5)
    assert network.training and torch.equal(torch.get_rng_state(), state)
    assert degradation_both(network, images, scores)[0].probability.dtype == torch.float64
