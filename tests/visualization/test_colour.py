import math
from itertools import pairwise

import pytest

from captum_iba.visualization.colour import LEVELS, Scale, _luminance, _rgb, colours, contrast, palette


@pytest.mark.parametrize(
    ("bits", "most", "expected"),
    [(0.0, 99.0, 0), (99.0, 99.0, LEVELS), (9.0, 99.0, LEVELS // 2), (200.0, 99.0, LEVELS), (-1.0, 99.0, 0)],
)
def test_levels_are_logarithmic(bits, most, expected):
    assert Scale(most).level(bits) == expected


def test_ticks_do_not_run_into_each_other():
    assert [bits for bits, _ in Scale(2877.0).ticks()] == [0, 1, 10, 100, 2877]
    assert [bits for bits, _ in Scale(1.0).ticks()] == [0, 1]
    for most in (1.0, 1.5, 3.0, 9.9, 10.0, 700.0, 5e7):
        places = [place for _, place in Scale(most).ticks()]
        assert places[0] == 0 and places[-1] == 1
        assert all(right - left > 0.03 for left, right in pairwise(places))


@pytest.mark.parametrize("bits", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_have_no_level(bits):
    assert Scale(8.0).level(bits) is None


@pytest.mark.parametrize("background", ["light", "dark", "terminal"])
def test_words_can_be_read_on_every_colour(background):
    for colour, ink in palette(background):
        assert contrast(_rgb(colour), _rgb(ink)) >= 4.5


@pytest.mark.parametrize(("background", "direction"), [("light", -1), ("dark", 1)])
def test_more_bits_are_further_from_the_page(background, direction):
    """Lightness alone tells the order, whatever colours a reader can tell apart."""
    shades = [_luminance(_rgb(colour)) for colour, _ in palette(background)]
    assert all(direction * (after - before) > 0 for before, after in pairwise(shades))


def test_contrast_after_wcag():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((9, 9, 9), (9, 9, 9)) == 1


@pytest.mark.parametrize("background", ["light", "dark"])
def test_the_signed_scale_is_palest_in_the_middle(background):
    pairs = colours(Scale(1.0, signed=True), background)
    assert len(pairs) == 2 * LEVELS + 1
    assert all(contrast(_rgb(colour), _rgb(ink)) >= 4.5 for colour, ink in pairs)
    shades = [_luminance(_rgb(colour)) for colour, _ in pairs]
    sides = (shades[LEVELS::-1], shades[LEVELS:])
    direction = -1 if background == "light" else 1
    assert all(direction * (after - before) > 0 for side in sides for before, after in pairwise(side))


def test_scores_are_on_a_linear_scale():
    scale = Scale(4.0, signed=True, unit="score")
    assert [scale.level(value) for value in (-4.0, -2.0, 0.0, 1.0, 9.0, math.nan, -math.inf)] == [
        *(-LEVELS, -LEVELS // 2, 0, LEVELS // 4, LEVELS),
        *(None, None),
    ]
    assert scale.ticks() == [(-4.0, 0.0), (0.0, 0.5), (4.0, 1.0)]
    assert Scale(4.0, unit="score").level(-1.0) == 0
