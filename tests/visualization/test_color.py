import math
from itertools import pairwise

import pytest

from captum_iba.visualization.color import LEVELS, Scale, _luminance, _rgb, colors, contrast, palette


@pytest.mark.parametrize(
    ("bits", "most", "expected"),
    [(0.0, 99.0, 0), (99.0, 99.0, LEVELS), (49.5, 99.0, LEVELS // 2), (200.0, 99.0, LEVELS), (-1.0, 99.0, 0)],
)
def test_levels_are_linear(bits, most, expected):
    assert Scale(most).level(bits) == expected


@pytest.mark.parametrize("bits", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_have_no_level(bits):
    assert Scale(8.0).level(bits) is None


@pytest.mark.parametrize("background", ["light", "dark", "terminal"])
def test_words_can_be_read_on_every_color(background):
    for color, ink in palette(background):
        assert contrast(_rgb(color), _rgb(ink)) >= 4.5


@pytest.mark.parametrize(("background", "direction"), [("light", -1), ("dark", 1)])
def test_more_bits_are_further_from_the_page(background, direction):
    """Lightness alone tells the order, whatever colors a reader can tell apart."""
    shades = [_luminance(_rgb(color)) for color, _ in palette(background)]
    assert all(direction * (after - before) > 0 for before, after in pairwise(shades))


def test_contrast_after_wcag():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((9, 9, 9), (9, 9, 9)) == 1


@pytest.mark.parametrize("background", ["light", "dark"])
def test_the_signed_scale_is_palest_in_the_middle(background):
    pairs = colors(Scale(1.0, signed=True), background)
    assert len(pairs) == 2 * LEVELS + 1
    assert all(contrast(_rgb(color), _rgb(ink)) >= 4.5 for color, ink in pairs)
    shades = [_luminance(_rgb(color)) for color, _ in pairs]
    sides = (shades[LEVELS::-1], shades[LEVELS:])
    direction = -1 if background == "light" else 1
    assert all(direction * (after - before) > 0 for side in sides for before, after in pairwise(side))


def test_signed_scores_have_0_in_the_middle_of_the_scale():
    scale = Scale(4.0, signed=True, unit="score")
    assert [scale.level(value) for value in (-4.0, -2.0, 0.0, 1.0, 9.0, math.nan, -math.inf)] == [
        *(-LEVELS, -LEVELS // 2, 0, LEVELS // 4, LEVELS),
        *(None, None),
    ]
    assert scale.ticks() == [(-4.0, 0.0), (0.0, 0.5), (4.0, 1.0)]
    assert Scale(4.0, unit="score").level(-1.0) == 0
