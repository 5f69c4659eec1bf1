"""Results by hand: shares, order, heat map, JSON, figures, pages, and Captum's own figures."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import LayerAttribution, visualization
from PIL import Image

from captum_iba._reading.image_sentences import OWN_STATISTICS
from captum_iba._reading.legend import legend_lines
from captum_iba.metrics.part_removal import CachedRemoval
from captum_iba.vision import (
    ImageAttribution,
    ImageCheck,
    LayerMap,
    RegionRemoval,
    leading_by_removal,
    order_by_removal,
    superpixels,
    tile_regions,
)
from captum_iba.vision.image_model import ImageClassifier
from captum_iba.vision.images import read_image, size_of
from captum_iba.vision.region_check import check_by_removal, rerank_by_removal, with_check_by_removal
from captum_iba.vision.regions import sum_per_region
from captum_iba.visualization import image_map, image_page, plot_image
from captum_iba.visualization.image_figures import (
    heat_over_image,
    heat_positions,
    leading_regions,
    removal_map,
)
from tests.vision.examples import image_attribution


def test_values_by_hand():
    result = image_attribution(values=(0.1, 0.009, 0.008, 0.4))
    np.testing.assert_allclose(result.layers[0].shares, [[0.25, 0.25], [0.0, 0.5]])
    assert result.total_bits == 8
    assert result.bits.sum() == pytest.approx(8)
    assert result.pixel_shares.sum() == pytest.approx(1)
    assert result.shares[3] > result.shares[0] > result.shares[2]
    assert result.n_regions == 4
    assert [result.decrease_of(region) for region in range(4)] == [0.1, 0.009, 0.008, 0.4]
    assert (-result.scores).argsort().tolist() == [3, 0, 1, 2]
    assert result.importance[3] == 1
    assert result.importance[0] == pytest.approx(0.25)
    assert result.importance[1] == pytest.approx(0.009 / 0.4)
    np.testing.assert_allclose(
        sum_per_region(result.heat_map, result.regions), result.importance / result.importance.sum()
    )
    assert result.leading == [3, 0]  # those that were removed in turn
    assert result.top_mask(1).sum() == 16


def test_a_later_region_is_never_brighter():
    """In color; the numbers are those that were measured, whatever the order."""
    result = image_attribution(measured=(0, 3), effects=(0.1, 0.4), n_in_turn=2)
    assert (-result.scores).argsort().tolist()[:2] == [0, 3]
    assert result.importance[0] == result.importance[3] == 1
    assert (result.decrease_of(0), result.decrease_of(3)) == (0.1, 0.4)
    first, second = (row.number for row in result.rows)
    assert (first, second) == (0, 3)
    none = image_attribution(measured=(0, 3), effects=(1e-6, 1e-7), values=(1e-7,) * 4)  # of an image of one color
    assert none.decrease_of(0) is None and none.leading[0] == 3


def test_a_second_region_that_raises_the_probability_is_not_removed_in_turn():
    """Its row said "after the first", and had another number; it rose by 13 points."""

    def probability(kept):
        kept = kept.double()
        return 0.5 * kept[:, 0] + 0.3 * torch.maximum(kept[:, 0], 1 - kept[:, 1]) + 0.1 * kept[:, 0] * kept[:, 1]

    found = order_by_removal(probability, [0, 1], [0.5, 0.1, 0.0])
    assert found.order[0] == 0 and found.n_in_turn == 1 and found.effects[1] == 0.1
    raising = order_by_removal(lambda kept: 1 - kept.double().mean(1), [0, 1], [-0.3, -0.2, 0.0])
    assert raising.n_in_turn == 0 and raising.order == (1, 0) and raising.effects == (-0.2, -0.3)


def test_regions_whose_removal_does_not_lower_the_probability():
    result = image_attribution(measured=(0, 3), effects=(0.2, -0.1), n_in_turn=1)
    assert (-result.scores).argsort().tolist()[0] == 0
    assert (-result.scores).argsort().tolist()[-1] == 3
    assert result.importance[3] == 0
    # Where there is no other, the bits decide.
    none = image_attribution(measured=(3, 0), effects=(-0.1, -0.2), n_in_turn=0, values=(-0.2, -0.3, -0.4, -0.1))
    assert (-none.scores).argsort().tolist()[0] == 3
    np.testing.assert_array_equal(none.heat_map, none.pixel_shares)


def test_as_few_regions_lead_as_are_enough():
    """The bar of a region without which the class stays was long, and that of an indispensable one was empty."""

    def probability(kept):  # any of 0, 1 and 3 keeps the class; 2 adds next to nothing
        return 0.02 + 0.01 * kept[:, 2] + 0.9 * (kept[:, 0] | kept[:, 1] | kept[:, 3]).double()

    leading, without = leading_by_removal(probability, np.array([0, 2, 1, 3, 4]), 4)
    assert leading == [0, 1, 3] and without == pytest.approx([0.93, 0.93, 0.03])
    check = ImageCheck(
        1,
        0.9,
        0.1,
        0.9,
        0.9,
        10,
        (0.9, 0.6, 0.9, 0.9),
        without_others=(0.5, 0.9),
        lowest_random=0.9,
        leading=(3, 0),
        without_first=(0.9, 0.1),
    )
    result = replace(image_attribution(), check=check)
    assert [row.number for row in result.rows] == result.leading == [3, 0]
    # Alone they lower it by 0 and 0; where the other one is removed, 3 adds 0.4 and 0 adds 0.8.
    assert [row.importance for row in result.rows] == pytest.approx([0.5, 1.0])
    assert [row.share_alone for row in result.rows] == [0.0, 0.0]
    assert result.legend()["bar"].endswith(
        "(at least 10 points): solid, alone; hatched, after the other leading ones, if that is more"
    )
    none_alone = "None of them alone lowers the probability by 1% of its value."
    compared = replace(result, check=replace(check, n_removed=2))
    assert none_alone in compared.answer and none_alone not in result.answer  # which has no verdict
    some_alone = replace(compared, check=replace(compared.check, without_each=(0.9, 0.6, 0.9, 0.7)))
    assert none_alone not in some_alone.answer
    alone = replace(result, check=replace(check, without_each=(0.5, 0.2, 0.9, 0.6)))
    assert [row.importance for row in alone.rows] == pytest.approx([0.5, 1.0])
    assert [row.share_alone for row in alone.rows] == pytest.approx([0.75, 0.5])
    assert ImageAttribution.from_dict(json.loads(result.to_json())).check == check
    content = result.to_dict()
    assert content["leading"] == result.leading == list(result.ranked[:2])
    first = content["regions"][result.leading[0]]
    assert first["place"] == "rows 4 to 7, columns 4 to 7" and first["rank"] == 1
    assert first["without"] == result.probability_without(result.leading[0])
    assert (content["answer"], content["verdict"]) == (result.answer, result.verdict)
    assert content["sentences"] == result.sentences and result.sentences[0] == result.answer


def test_average_activations_that_give_the_class_are_told_by_the_answer_as_of_texts():
    """The verdict is on removals alone."""
    result = replace(image_attribution(), statistics="a dataset (34 positions of the layer)")
    layers = tuple(replace(layer, closed_probability=0.85) for layer in result.layers)
    check = ImageCheck(1, 0.9, 0.1, 0.9, 0.9, 10, leading=(3,), without_first=(0.1,), without_all=0.1)
    without, told = replace(result, check=check), replace(result, check=check, layers=layers)
    assert without.verdict == told.verdict == "confirmed"
    said = "With average activations in place of this image the model gives dog, too (85.0%)."
    assert said in told.answer and "adds little" not in str(told) and said not in without.answer
    # The activations of the image itself say nothing of an average one.
    assert said not in replace(told, statistics=OWN_STATISTICS).answer


def test_a_leading_region_is_exchanged_for_a_better_one():
    """Of superpixels three led, and a pair of measured ones lowered the probability further."""

    def probability(kept):  # 0 and 3 are the first of the order, 0 and 2 lower it most
        return 0.5 * kept[:, 0] + 0.3 * (kept[:, 1] | kept[:, 2]).double() + 0.2 * kept[:, 2] + 0.1 * kept[:, 3]

    assert sorted(leading_by_removal(probability, np.array([0, 3, 1, 2]), 2)[0]) == [0, 3]
    leading, without = leading_by_removal(probability, np.array([0, 3, 1, 2]), 2, measured=(0, 1, 2, 3))
    assert leading == [0, 2] and without == pytest.approx([0.6, 0.4])


def test_nothing_is_confirmed_where_most_regions_lower_the_probability():
    """ "Confirmed" was said where 15 of 16 regions did as much alone."""
    result = image_attribution()
    check = ImageCheck(
        1,
        0.9,
        0.0,
        0.2,
        0.3,
        10,
        (0.1, 0.2, 0.9, 0.0),
        without_all=0.01,
        lowest_random=0.1,
        leading=(3,),
        without_first=(0.0,),
        decision="cat",
        decision_probability=0.8,
    )
    said = replace(result, check=check)
    assert said.verdict == "" and said.is_pale and "░" in str(said)
    assert "No verdict, because 2 of the 3 other regions lower the probability by more than 10 points" in said.answer
    assert "and the model predicts cat (80.0%). No verdict, because" in said.answer
    fewer = replace(said, check=replace(check, without_each=(0.1, 0.85, 0.9, 0.0)))
    assert fewer.verdict == "weakly confirmed" and not fewer.is_pale
    assert "weakly confirmed, because another region alone takes more than half as much of the probability\n" in str(
        fewer
    )
    assert "lowest 10.0%: top left (rows 0 to 3, columns 0 to 3))\n" in str(fewer)
    distinct = replace(check, without_least=0.8, without_random=0.8, lowest_random=0.7)
    alone = replace(said, check=replace(distinct, without_each=(0.7, 0.85, 0.9, 0.0)))
    assert alone.verdict == "confirmed"
    # Pairs at random may miss the one region that does more than both leading ones.
    pair = replace(distinct, n_removed=2, leading=(3, 1), without_first=(0.5, 0.1), without_leading=0.1)
    beaten = replace(said, check=replace(pair, without_each=(0.05, 0.85, 0.9, 0.5)))
    assert beaten.verdict == "not confirmed" and beaten.other_rows[0].without == 0.05
    assert (
        "Without another region alone, top left (rows 0 to 3, columns 0 to 3), it falls further, to 5.0%"
        in beaten.answer
    )
    assert "1.0% of an image of the mean color alone." in fewer.checked.comparison
    assert "\n      1.0%  of an image of the mean color alone\n" in str(fewer)
    fig, ax = plot_image(fewer)
    assert ax.get_title() == "dog 90.0%\nweakly confirmed, 1 other alone, too"
    (bar,) = (axes for axes in fig.axes[1:] if axes is not ax)
    assert bar.get_ylim() == pytest.approx((0, 90)) and "points" in bar.get_ylabel()
    assert plot_image(said)[1].get_title() == "dog 90.0% · no verdict"
    other = replace(said, target_probability=0.001, predicted=0, predicted_label="cat", predicted_probability=0.8)
    other = replace(other, check=replace(check, probability=0.001, without_each=(0.001, 0.6, 0.001, 0.001)))
    assert "(predicted: cat" in plot_image(other)[1].get_title() and not plot_image(other)[1].lines
    assert [(row.number, row.relation) for row in other.other_rows] == [(1, "speaks against it")]
    # No picture of leading regions: the image, the map and its color bar.
    assert image_page([other]).count('src="data:image/png;base64,') == 3 and "color bar" in image_page([other])
    # The mean color itself has the class: removal is a poor test.
    grey = replace(fewer, check=replace(fewer.check, without_all=0.89))
    assert len(plot_image(grey)[0].axes) == 2 and "drawn dark" in plot_image(grey)[1].get_xlabel()
    assert grey.verdict == "" and "is dog with 89.0%" in grey.answer and not grey.other_rows[1:]
    assert heat_over_image(grey).max() < heat_over_image(fewer).max()


def test_a_removal_that_changes_no_pixel_says_nothing(capsys):
    grey = np.full((8, 8, 3), 128, dtype=np.uint8)
    result = replace(image_attribution(), image=grey)
    check = replace(result.check, without_leading=0.9, changes_pixels=False)
    one = replace(result, check=check)
    told = "No verdict, because the removal changes no pixel: there the image has its mean color already."
    assert one.verdict == "" and told in one.answer and one.is_pale


def test_as_text():
    text = str(image_attribution())
    assert text.startswith(
        "photo.png · dog 90.0% · cnn\nWithout the 2 leading regions the probability of dog falls from 90.0% to 30.0%."
    )
    row = next(line for line in text.splitlines() if "rows 4 to 7, columns 4 to 7" in line)
    assert row.split()[:2] == ["70.0%", "█" * 24]
    (row,) = [line for line in image_attribution().to_text(details=True).splitlines() if "rows 4 to 7, col" in line]
    assert row.split()[:2] == ["70.0%", "41.4%"]
    assert (
        "\nCheck of the leading regions: confirmed\n     90.0%  with the whole image\n     30.0%  without the 2 "
        in text
    )
    one = replace(image_attribution(), check=replace(image_attribution().check, n_removed=1))
    assert (
        one.verdict == ""
        and str(one).count("Not compared with others, because more than half of all regions lead") == 1
    )
    setting = "layer3 · default, statistics of a dataset of 1,000 positions"
    assert setting not in text and setting in image_attribution().to_text(details=True)
    assert "dog 0.900" in repr(image_attribution())


def test_a_class_that_is_ruled_out_keeps_nothing():
    """ "truck keeps 9.5%" stood under a probability of 0.002%: average activations give that."""
    result = image_attribution()
    near_floor = tuple(
        replace(layer, bits=np.ones((2, 2)), open_bits=100.0, masked_probability=0.095, closed_probability=0.086)
        for layer in result.layers
    )
    for probability, said in ((0.9, True), (2e-5, False)):
        one = replace(result, target_probability=probability, layers=near_floor, check=None)
        assert ("No cell stands out" in one.remark() or "The mask removed" in one.remark()) is said
    nearly = [0.9] * result.n_regions
    nearly[result.leading[0]], nearly[result.leading[1]], nearly[2] = 0.3, 0.35, 0.4
    check = replace(result.check, without_each=tuple(nearly))  # nearly as much as one that leads
    line = next(line for line in str(replace(result, check=check)).splitlines() if result.place_of(2) in line)
    assert line.split()[0] == "40.0%" and line.count("█") == round(24 * 0.5 / 0.6)


def test_json(tmp_path):
    result = image_attribution()
    again = ImageAttribution.load(result.save(tmp_path / "result.json"))
    assert again.to_dict() == json.loads(result.to_json())
    np.testing.assert_array_equal(again.image, result.image)
    np.testing.assert_array_equal(again.heat_map, result.heat_map)
    assert str(again) == str(result)
    for content in ({}, {"format": "captum-iba image/1"}, [], {**result.to_dict(), "image": "bm8="}):
        with pytest.raises(ValueError, match="content"):
            ImageAttribution.from_dict(content)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="which is not a saved attribution"):
        ImageAttribution.load(tmp_path / "broken.json")


def test_captum_draws_it():
    result = image_attribution()
    attributions, image = result.to_captum()
    fig, _ = visualization.visualize_image_attr(attributions, image, "blended_heat_map", "positive", use_pyplot=False)
    assert fig is not None
    methods, signs = ["original_image", "heat_map", "masked_image"], ["all", "positive", "positive"]
    fig, axes = visualization.visualize_image_attr_multiple(attributions, image, methods, signs, use_pyplot=False)
    assert len(axes) == 3
    wide = LayerAttribution.interpolate(result.layers[0].tensor, (8, 8), "bilinear")
    np.testing.assert_allclose(wide[0, 0].numpy() / float(wide.sum()) * 8, result.bits)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures(tmp_path, suffix):
    path = image_attribution(label="a $1 <dog>").save_figure(tmp_path / f"figure.{suffix}")
    assert path.stat().st_size > 1000
    again = image_attribution(label="a $1 <dog>").save_figure(tmp_path / f"again.{suffix}")
    assert path.read_bytes() == again.read_bytes()


def test_a_figure_on_given_axes():
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    assert plot_image(image_attribution(), ax, count=1)[1] is ax
    assert len(ax.lines) == 8  # the inner sides of a corner of 4 x 4 pixels
    assert len(plot_image(image_attribution())[1].lines) == 4 * 4  # of two corners, each by itself


def test_colors():
    result = image_attribution()
    assert heat_positions(np.zeros((2, 2))).max() == 0
    assert heat_positions(result.heat_map).max() == 1
    assert heat_over_image(result).shape == (8, 8, 3)
    top = leading_regions(result, 1)
    np.testing.assert_array_equal(top[4:, 4:], result.image[4:, 4:])
    assert top[:4].min() > 200


def test_regions_that_each_decide_alone_are_all_bright():
    """A region without which 99.9% fell to 4.8% was dark, because another one that decides led."""
    result = image_attribution()
    assert removal_map(result) is None  # this check removed no region alone
    check = ImageCheck(1, 0.9, 0.0, 0.9, 0.9, 10, (0.9, 0.1, 0.95, 0.0), leading=(3,), without_first=(0.0,))
    drawn = removal_map(replace(result, check=check))
    np.testing.assert_allclose(drawn[::4, ::4], [[0.0, 0.8 / 0.9], [0.0, 1.0]])
    # Neither of two leading regions is missed alone: each is as bright as what it adds to the other.
    added = replace(check, without_each=(0.9,) * 4, leading=(3, 1), without_first=(0.9, 0.1), without_others=(0.9, 0.5))
    added = replace(added, without_leading=0.1)
    np.testing.assert_allclose(removal_map(replace(result, check=added))[::4, ::4], [[0.0, 0.5], [0.0, 1.0]])
    # A map of decreases that are all small is dark.
    small = replace(result, check=replace(check, without_each=(0.9, 0.89, 0.9, 0.85)))
    np.testing.assert_allclose(removal_map(small)[::4, ::4], [[0.0, 0.1], [0.0, 0.5]])
    assert "palest color is the largest decrease" in image_page([small]) and "follows the bits" not in image_page(
        [small]
    )
    np.testing.assert_array_equal(small.heat_map, result.heat_map)


def test_regions_without_which_the_class_is_more_probable():
    result = image_attribution()
    check = replace(result.check, without_each=(0.9, 0.99, 0.9, 0.3))
    one = replace(result, check=check)
    for shown in (str(one), image_page([one])):
        assert "speaks against it" in shown and f"{result.place_of(1)}" in shown and "99.0%" in shown
    other = replace(result, check=replace(check, without_each=(0.9,) * 4))
    assert "speaks against it" not in str(other) + image_page([other]) and not other.other_rows
    # Where not all of them are listed, their number is said.
    regions = np.arange(64).reshape(8, 8) // 4
    each = (0.3,) * 6 + (0.999,) * 5 + (0.9,) * 4 + (0.1,)
    more = replace(check, without_each=each, leading=(15,), without_first=(0.1,), without_others=())
    many = replace(result, regions=regions, check=more, values=(*result.values, *(0.0,) * 12))
    said = "6 regions that do not lead lower it by more than 10 points alone, "
    said += "and 5 regions that do not lead may speak against dog."
    assert said in many.answer and len(many.other_rows) == 5 + 3


def test_pages(tmp_path):
    result = image_attribution(label="<script>alert(1)</script>")
    page = result.save_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count('src="data:image/png;base64,') == 3
    assert '<bdi>bottom right</bdi> <span class="place">rows 4 to 7, columns 4 to 7</span>' in page
    assert "<b>70.0%</b>" in page and "leading regions" in page
    assert "http" not in page.replace("http-equiv", "")
    several = image_page([image_attribution(), image_attribution(label="cat")])
    assert "Why these decisions?" in several
    assert image_attribution()._repr_html_() == image_map(image_attribution())
    with pytest.raises(ValueError, match="attributions is empty"):
        image_page([])


@pytest.mark.parametrize(("size", "expected"), [((224, 224), 49), ((32, 32), 16), ((384, 300), 49), ((3, 5), 9)])
def test_default_tiles(size, expected):
    regions = tile_regions(*size)
    assert regions.shape == size
    assert regions.max() + 1 == expected == len(np.unique(regions))


def test_bad_tiles_and_superpixels():
    with pytest.raises(ValueError, match="n_tiles is 5, expected at most the 4 pixels"):
        tile_regions(4, 8, n_tiles=5)
    with pytest.raises(ValueError, match="n_tiles is 0"):
        tile_regions(4, 8, n_tiles=0)
    with pytest.raises(ValueError, match=r"pixels is \(4, 8\), expected an array"):
        superpixels(np.zeros((4, 8), dtype=np.uint8))


class Additive(torch.nn.Module):
    """The logit of class 1 is the weighted sum of the quarters' means of the first channel."""

    def forward(self, images):
        of_tiles = torch.nn.functional.avg_pool2d(images[:, 0], 4).flatten(1)
        return torch.stack([torch.zeros(len(images)), of_tiles @ torch.tensor([1.0, 2.0, 0.0, 4.0])], 1)


def test_removed_regions_have_the_mean_color():
    generator = torch.Generator().manual_seed(0)
    image, regions = torch.rand(3, 8, 8, generator=generator), tile_regions(8, 8, n_tiles=2)
    removal = RegionRemoval(ImageClassifier(Additive()), image, regions, 1, 2)
    kept = torch.tensor([[True] * 4, [False] * 4, [True, True, True, False]])
    images = removal.images(kept)
    torch.testing.assert_close(images[0], image)
    torch.testing.assert_close(images[1], image.mean((1, 2), keepdim=True).expand_as(image))
    torch.testing.assert_close(images[2][:, :4], image[:, :4])
    expected = Additive()(images).double().softmax(-1)[:, 1]
    torch.testing.assert_close(removal(kept), expected, rtol=1e-6, atol=1e-6)


def test_the_order_by_removal_by_hand():
    def probability(kept):
        kept = kept.double()
        # 1 and 2 say the same, so that neither is missed alone.
        same = torch.maximum(kept[:, 1], kept[:, 2])
        return 0.5 * kept[:, 0] + 0.3 * same + 0.1 * kept[:, 3] - 0.05 * kept[:, 4] + 0.05

    rows = []

    def counted(kept):
        rows.append(len(kept))
        return probability(kept)

    values = (0.5, 0.14, 0.15, 0.1, -0.05, 0.0)
    found = order_by_removal(counted, [4, 3, 2, 1, 0], values)
    assert found.order == (0, 3, 2, 1, 4)  # 3 is the one that lowers it most after the first
    assert found.effects == pytest.approx((0.5, 0.1, 0.15, 0.14, -0.05)) and found.n_in_turn == 2
    assert dict(zip(found.order, found.alone, strict=True)) == pytest.approx({0: 0.5, 3: 0.1, 1: 0, 2: 0, 4: -0.05})
    assert sum(rows) == 2 * 5
    for regions in ([0, 0], [6], [-1]):
        with pytest.raises(ValueError, match="regions has"):
            order_by_removal(probability, regions, values)


def test_one_in_eight_regions_is_removed_in_turn():
    """Of 64 tiles two were, and the first eight lowered the probability less than those of occlusion."""
    weights = torch.linspace(0.001, 0.02, 64, dtype=torch.float64)

    def probability(kept):
        return kept.double() @ weights

    rows = []
    found = order_by_removal(lambda kept: rows.append(len(kept)) or probability(kept), range(48, 64), [0.0] * 64)
    assert found.n_in_turn == 8 and found.order[:8] == (63, 62, 61, 60, 59, 58, 57, 56)
    assert found.effects[:8] == pytest.approx(weights.flip(0)[:8].tolist()) and found.effects[8:] == (0.0,) * 8
    assert rows == [17, *[8] * 7]
    few = order_by_removal(probability, range(60, 64), [0.0] * 64)
    assert few.order == (63, 62, 61, 60) and few.n_in_turn == 4


def test_every_region_is_ranked_by_its_value_where_others_were_removed():
    """Those that were not removed alone followed by their bits."""
    values = (-0.1, 0.0, 0.2, 0.1)
    result = image_attribution(measured=(3, 2), effects=(0.4, 0.2), n_in_turn=1, check=False, values=values)
    assert (-result.scores).argsort().tolist() == [3, 2, 1, 0]
    assert [result.decrease_of(i) for i in range(4)] == [-0.1, 0.0, 0.2, 0.4]
    assert result.importance.tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0])
    again = ImageAttribution.from_dict(result.to_dict())
    assert again.values == values and again.scores.tolist() == result.scores.tolist()
    with pytest.raises(ValueError, match="content has the format 'captum-iba image/3', expected 'captum-iba image/4'"):
        ImageAttribution.from_dict({**result.to_dict(), "format": "captum-iba image/3"})  # its regions were pixels


def test_a_mask_that_has_lost_the_prediction_is_said():
    result = image_attribution()
    said = "The mask removed too much: with the information in the bits alone the probability of dog is 10.0%"
    layers = tuple(replace(layer, masked_probability=0.1) for layer in result.layers)
    confirmed = replace(result, layers=layers)
    assert result.verdict == "confirmed" and said not in str(confirmed) + image_page([confirmed])
    lost = replace(confirmed, check=None)
    assert said in str(lost) and said in image_page([lost])
    kept = replace(result, layers=tuple(replace(layer, masked_probability=0.8) for layer in result.layers))
    assert kept.remark() == "" and "removed too much" not in str(kept) + image_page([kept])


def test_a_class_that_loses_probability_without_any_cell_is_not_said_to_be_kept():
    """ "With all of them closed, green keeps 59.7%" stood below a probability of .99."""
    result = image_attribution()
    near_floor = {"bits": np.full((2, 2), 1.5), "open_bits": 100.0, "closed_probability": 0.1}
    for drop, kept in ((0.05, True), (0.3, False)):
        layers = [
            replace(layer, masked_probability=result.target_probability - drop, **near_floor) for layer in result.layers
        ]
        one = replace(result, layers=tuple(layers), check=None)
        assert one.needs_no_cell == kept and one.lost_prediction == (not kept)
        assert ("No cell stands out" in str(one)) == kept and ("The mask removed too much" in str(one)) == (not kept)


def test_a_check_names_the_region_that_matters_most_alone_and_does_not_lead():
    """Removed alone, a tile that was not among the measured ones cost more than any that was listed."""
    result = image_attribution()
    leading = result.leading
    other = next(i for i in range(result.n_regions) if i not in leading)
    each = [0.85] * result.n_regions
    check = ImageCheck(1, 0.9, 0.5, 0.9, 0.9, 10, tuple(each))
    assert "other region" not in str(replace(result, check=check)).replace("another region at random", "")
    each[other] = 0.3
    said = replace(result, check=replace(check, without_each=tuple(each)))
    assert [(row.number, row.without) for row in said.other_rows] == [(other, 0.3)]
    (line,) = [line for line in str(said).splitlines() if said.place_of(other) in line]
    assert line.split()[0] == "30.0%" and "other region</th>" in image_page([said])
    assert said.probability_without(other) == 0.3
    assert ImageAttribution.from_dict(json.loads(said.to_json())).check == said.check


def test_the_image_itself_is_no_average(tmp_path):
    """Without statistics, "this image lowers it" was said of activations that are its own."""
    result = replace(image_attribution(check=False), target_probability=0.5, layers=image_attribution().layers)
    closed = tuple(replace(layer, closed_probability=0.66, masked_probability=0.6) for layer in result.layers)
    for statistics, said in (
        ("a dataset of 1,000 positions", "is 66.0%, more than with this image (50.0%). This image lowers it."),
        ("this image only", "The statistics are those of this image itself: with them dog has 66.0% (50.0% with the"),
    ):
        one = replace(result, layers=closed, statistics=statistics)
        assert said in one.remark() and ("lowers it" in one.remark()) is (statistics != "this image only")


def test_of_a_class_that_is_ruled_out_there_is_little_to_explain():
    result = image_attribution()
    ruled_out = replace(result.check, probability=1e-9, without_leading=1e-12)
    said = replace(result, target_probability=1e-9, check=ruled_out).answer
    assert said == "The probability of dog is next to nothing (less than 0.0001%): there is little to explain."


def test_bars_are_pale_where_the_check_does_not_confirm_the_regions():
    result = image_attribution()
    doubted = replace(result, check=replace(result.check, without_leading=result.check.probability))
    assert (result.verdict, doubted.verdict) == ("confirmed", "not confirmed")
    for one, is_pale in ((result, False), (doubted, True)):
        assert ("░" in str(one), '<table class="words pale">' in image_page([one])) == (is_pale, is_pale)


class KnownRegions:
    """What a model says without some regions, by a function of their booleans, as RegionRemoval gives it."""

    multi_label = False

    def __init__(self, probability):
        self.probability, self.target = probability, 1

    def __call__(self, kept):
        return self.probability(kept.double())

    def probabilities(self, kept):
        return torch.stack([1 - self(kept), self(kept)], 1)

    @property
    def classifier(self):
        return self

    def label(self, number):
        return ("cat", "dog")[number]


@pytest.mark.parametrize("count", [16, 8, 2])
def test_all_measured_regions_can_lead(count):
    """The first ones held 80% of the heat map and nothing of the class: "not confirmed", "stays at 100.0%"."""
    regions = tile_regions(8, 8, n_tiles=4)
    layer = LayerMap("layer3", np.arange(16.0).reshape(4, 4) + 2, 1.0, 0.8, 0.1)
    needed = [15, 14, 12, 11, 10]  # any of them is enough

    def probability(kept):
        return 0.02 + 0.88 * (kept[:, needed].sum(1) > 0) + 0.01 * kept[:, 13]

    image = image_attribution(check=False, measured=(), effects=(), n_in_turn=0)
    image = replace(image, regions=regions, layers=(layer,), effects_alone=())
    result = with_check_by_removal(KnownRegions(probability), image, count, seed=0)
    assert sorted(result.leading) == sorted(needed) and len(result.measured) == max(count, 16 if count < 5 else 0)
    assert result.check.without_leading == pytest.approx(0.03) and result.check.decision == "cat"
    assert result.verdict == "confirmed" and "confirmed" in result.legend()


def test_more_regions_are_measured_where_all_measured_ones_lead():
    regions, layer = tile_regions(8, 8, n_tiles=4), LayerMap("layer3", np.arange(16.0).reshape(4, 4) + 2, 1.0, 0.8, 0.1)
    image = image_attribution(check=False, measured=(), effects=(), n_in_turn=0)
    image = replace(image, regions=regions, layers=(layer,), effects_alone=())
    result = with_check_by_removal(KnownRegions(lambda kept: 0.1 + 0.2 * kept[:, 12:].sum(1)), image, 3, seed=0)
    assert sorted(result.leading) == [12, 13, 14, 15] and result.check.without_leading == pytest.approx(0.1)


def bare_image(bits=None):
    bits = np.arange(16.0).reshape(4, 4) + 2 if bits is None else bits
    image = image_attribution(check=False, measured=(), effects=(), n_in_turn=0)
    regions, layer = tile_regions(8, 8, n_tiles=4), LayerMap("layer3", bits, 1.0, 0.8, 0.1)
    return replace(image, regions=regions, layers=(layer,), effects_alone=())


def test_what_a_check_says_where_no_region_leads_is_of_the_regions_that_it_removes():
    """ "falls from 90.0% to 10.0%, and the model still predicts cat", and "the removal changes no pixel"."""
    image = bare_image(np.ones((4, 4)))  # at the floor
    image = replace(image, image=np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3))
    result = with_check_by_removal(KnownRegions(lambda kept: 0.1 + 0.8 * (kept.sum(1) > 14)), image, 0, seed=0)
    check = result.check
    assert check.leading == () and check.changes_pixels
    assert check.without_leading == pytest.approx(0.1) and check.decision == "cat"


@pytest.mark.parametrize("whole", [0.9, 0.09])
def test_a_region_that_matters_alone_is_measured(whole):
    """A class of 9% could not fall by 10 points: the region that takes all of it was never measured."""
    result = with_check_by_removal(KnownRegions(lambda kept: 0.001 + (whole - 0.001) * kept[:, 0]), bare_image(), 4, 0)
    assert result.leading == [0] and result.check.without_leading == pytest.approx(0.001)


def test_regions_whose_removal_raises_the_probability_do_not_lead_together():
    """ "Without the 12 leading regions the probability rises from 50.0% to 56.0%"."""
    order = np.arange(20)
    for count in (3, 12):
        assert leading_by_removal(lambda kept: 0.5 + 0.005 * (~kept).double().sum(1), order, count)[0] == [0]


def test_no_region_is_drawn_as_leading_where_nothing_changes_without_it():
    """The picture of noise pointed at a tile, without which 88.7% fell to 88.4%."""
    result = image_attribution()
    title = "The leading regions"
    assert image_map(result).count("<img") == 3 and title in image_map(result)
    same = replace(result, check=replace(result.check, without_leading=0.898))
    assert image_map(same).count("<img") == 2 and title not in image_map(same)


def test_bars_where_most_regions_lead():
    """Of fourteen leading regions one had a bar, that of its removal alone."""
    regions, layer = tile_regions(8, 8, n_tiles=4), LayerMap("layer3", np.arange(16.0).reshape(4, 4) + 2, 1.0, 0.8, 0.1)
    image = image_attribution(check=False, measured=(), effects=(), n_in_turn=0)
    image = replace(image, regions=regions, layers=(layer,), effects_alone=())
    removal = KnownRegions(lambda kept: 0.1 + 0.05 * kept[:, 4:].sum(1))
    of_classes = CachedRemoval(removal.probabilities)
    found = rerank_by_removal(lambda kept: of_classes(kept)[:, 1], image, 16, seed=0)
    result = replace(found, check=check_by_removal(removal, of_classes, found, seed=0))
    assert len(result.leading) > 8 and result.verdict == "" and "no check confirms" in result.legend()["pale bar"]
    assert all(row.importance == pytest.approx(0.5, abs=0.01) for row in result.rows)  # 5 of at least 10 points


def test_all_orders_of_regions_have_the_leading_ones_of_the_check_first():
    """``top_mask(1)`` was of another region than the first of ``ranked``."""
    result = image_attribution()
    check = replace(result.check, leading=(2, 0), without_first=(0.5, 0.3))
    checked = replace(result, check=check)
    assert checked.ranked[:2] == (2, 0) and checked.leading == [2, 0]
    assert (-checked.scores).argsort().tolist() == list(checked.ranked)
    for count in (1, 2):
        assert set(np.unique(checked.regions[checked.top_mask(count)])) == set(checked.ranked[:count])
    assert (-result.scores).argsort().tolist() == list(result.ranked)


def test_numbers_that_are_not_finite_are_saved(tmp_path):
    result = image_attribution()
    layer = replace(result.layers[0], bits=np.array([[2.0, np.nan], [np.inf, 3.0]]))
    again = ImageAttribution.load(replace(result, layers=(layer,)).save(tmp_path / "result.json"))
    assert np.array_equal(again.layers[0].bits, layer.bits, equal_nan=True)


def test_where_the_class_stays_other_regions_may_matter():
    result = image_attribution()
    check = replace(result.check, without_leading=0.6, leading=(3, 0), decision="dog", decision_probability=0.6)
    said = replace(result, check=check).answer
    assert "2 of the 4 regions were removed alone and together: others may matter, too" in said
    for changes in ({"decision": "cat"}, {"changes_pixels": False}):
        assert "others may matter" not in replace(result, check=replace(check, **changes)).answer


def test_bars_of_several_images_have_one_meaning():
    """Twelve images had eleven lines that said how long a full bar is, of none of which one."""
    several = [image_attribution(), image_attribution(effects=(0.7, 0.1))]
    several = [replace(one, check=replace(one.check, leading=(3, 0))) for one in several]
    lines = legend_lines(one.legend() for one in several)
    assert sum(line.startswith("bar ") for line in lines) == 1
    # Of one leading region and of two it is the longer one: the page of both had two.
    alone = replace(several[0], check=replace(several[0].check, leading=(3,), without_first=(0.3,)))
    (line,) = [line for line in legend_lines(one.legend() for one in (alone, several[0])) if line.startswith("bar ")]
    assert ": solid, alone; " in line


def test_a_step_that_raises_the_probability_is_explained_where_it_happens():
    result = image_attribution()
    check = replace(result.check, leading=(3, 0, 1), without_first=(0.3, 0.5, 0.1), without_each=(0.8, 0.8, 0.9, 0.5))
    rising, falling = (
        replace(result, check=replace(check, without_first=f)) for f in ((0.3, 0.5, 0.1), (0.5, 0.3, 0.1))
    )
    assert "where it rises, this one counts only together with other leading ones" in str(rising)
    assert "where it rises" not in str(falling)


def test_what_a_region_adds_is_measured_from_all_leading_ones():
    """Of 20 leading ones it was from the first 16."""
    n, each = 20, 0.03
    left = [0.9 - each * k for k in range(1, 17)]
    others = tuple([0.9 - each * (n - 1)] * n)
    check = ImageCheck(
        10,
        0.9,
        0.9 - each * n,
        0.9,
        0.9,
        10,
        (0.87,) * n,
        without_others=others,
        lowest_random=0.8,
        leading=tuple(range(n)),
        without_first=tuple(left),
    )
    assert check.added == pytest.approx([each] * n) and check.decreases == pytest.approx([each] * n)


def test_an_image_of_another_size_than_the_input_is_told():
    """Rows and columns are of the input: of a file of 200 x 120 pixels they are others."""
    result = replace(image_attribution(), original_size=(120, 200))
    assert result.legend()["rows, columns"] == "of the model's input, 8 x 8 pixels"
    # The legend of four images had the size of one of them.
    assert str(result).startswith("photo.png (200 x 120 pixels) · dog")
    assert "as the model saw it: 8 x 8 pixels (before the transform 200 wide and 120 high)" in image_page([result])
    assert ImageAttribution.from_dict(result.to_dict()).original_size == (120, 200)
    for same in (replace(result, original_size=(8, 8)), image_attribution()):
        assert "before the transform" not in str(same) + image_page([same])


def test_the_size_of_an_image_before_the_transform(tmp_path):
    photo, exif = Image.new("RGB", (20, 12)), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    photo.save(tmp_path / "photo.png")
    photo.save(tmp_path / "turned.jpg", exif=exif)
    assert size_of(str(tmp_path / "photo.png")) == size_of(photo) == (12, 20)
    assert size_of(tmp_path / "turned.jpg") == (20, 12) == read_image(tmp_path / "turned.jpg").shape[:2]
    assert size_of(np.zeros((12, 20, 3), np.uint8)) == size_of(torch.zeros(3, 12, 20, dtype=torch.uint8)) == (12, 20)
    assert size_of(torch.zeros(3, 12, 20)) is None


def test_without_a_check_those_lead_that_lower_it_in_turn():
    """17 of 64 tiles led without a check, because all had a value."""
    values = (0.1, 0.1, 0.1, 0.2)
    measured = {"measured": (3, 2, 1), "effects": (0.6, 0.25, 0.01), "n_in_turn": 3, "values": values}
    result = replace(image_attribution(check=False, **measured), effects_alone=(0.6, 0.1, 0.1))
    assert result.leading == [3, 2]  # 0.85 of 0.86
    assert [row.without_so_far for row in result.rows] == pytest.approx([0.3, 0.05])
    assert "Without the 2 leading regions the probability of dog falls from 90.0% to 5.0% (not checked" in str(result)
    assert "after those above it" in result.legend()["bar"]


def test_an_image_of_the_mean_color_that_has_much_of_the_probability_is_told():
    """ "confirmed" stood above 77.2% of an image of the mean color, and nothing said what that means."""
    result = image_attribution()
    check = ImageCheck(1, 0.9, 0.1, 0.9, 0.9, 10, leading=(3,), without_first=(0.1,), without_all=0.7)
    said = "Without any of the regions, as an image of the mean color alone, it is 70.0%: a removed region leaves edges"
    assert said in replace(result, check=check).answer
    for other in (0.1, 0.89):  # little, and so much that there is no verdict
        assert "Without any of the regions" not in replace(result, check=replace(check, without_all=other)).answer
