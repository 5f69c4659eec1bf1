"""What is said of an explained image where it is handed over: in answers, codes, JSON and pictures."""

import json
from dataclasses import replace

import numpy as np

from captum_iba._reading.removal_check import PredictionChange
from captum_iba.vision import (
    ImageAttribution,
    ImageCheck,
    tile_regions,
)
from captum_iba.vision.image_settings import of_images
from captum_iba.visualization import image_page, plot_image
from captum_iba.visualization.image_figures import (
    heat_over_image,
    map_title,
)
from tests.vision.examples import image_attribution


def test_an_image_of_the_mean_color_with_the_class_is_weak_evidence_and_has_a_code():
    """ "Confirmed" stood beside 77.2% of an image of one color, and JSON had no code of it."""
    result = image_attribution()
    check = replace(
        result.check, without_leading=0.1, without_all=0.6, leading=(3, 0), without_each=(0.5, 0.9, 0.9, 0.4)
    )
    colored = replace(result, check=check)
    assert colored.verdict == "weakly confirmed" and "mean_color" in colored.findings
    assert "because an image of the mean color alone has more than half of the probability" in str(colored)
    less = replace(result, check=replace(check, without_all=0.4))
    assert less.verdict == "confirmed" and "mean_color" not in less.findings
    most = replace(result, check=replace(check, without_all=0.85))
    assert most.verdict == "" and "no_verdict" in most.findings and "No verdict, because" in most.answer


def test_json_of_an_image_has_a_record_of_each_region():
    """``regions`` was a map of pixels, and the label of a region was nowhere."""
    change = PredictionChange((1,), "cat", 0.8, alone=((1, "cat"),))
    result = image_attribution()
    check = replace(result.check, leading=(3, 0), without_each=(0.7, 0.4, 0.9, 0.5), change=change)
    result = replace(result, check=check)
    records = json.loads(result.to_json())["regions"]
    assert [record["label"] for record in records] == ["", "changes the prediction", "", ""]
    assert [record["without"] for record in records] == [0.7, 0.4, 0.9, 0.5]
    assert records[1]["name"] == "top right" and records[1]["place"] == "rows 0 to 3, columns 4 to 7"
    assert sorted(record["rank"] for record in records) == [1, 2, 3, 4]
    assert "top right (rows 0 to 3, columns 4 to 7) · changes the prediction" in str(result)
    again = ImageAttribution.from_dict(json.loads(result.to_json()))
    assert np.array_equal(again.regions, result.regions) and again.check == result.check


def test_a_warning_names_the_images_that_it_is_about():
    assert of_images("so", ["a.png", "", "b.png"]) == "a.png and b.png: so"
    assert of_images("so", ["a", "b", "c", "d", "e"]) == "a, b, c and 2 more: so"


def test_numbers_of_the_list_stand_in_the_picture():
    """Four tiles of sixteen have the name "center"."""
    result = image_attribution()
    check = replace(result.check, leading=(3, 0), without_each=(0.7, 0.4, 0.9, 0.5))
    result = replace(result, check=check)
    page = image_page([result])
    places = [(75, 75), (25, 25), (75, 25)]  # tiles 3, 0 and 1, which matters alone
    for number, (across, down) in enumerate(places, 1):
        assert f'style="left:{across}%;top:{down}%">{number}</span>' in page
    rows = [*result.rows, *result.other_rows]
    assert [row.number for row in rows] == [3, 0, 1] and page.count('class="number"') == 3
    for number, row in enumerate(rows, 1):
        assert f'<span class="place">{number}.</span> <bdi>{row.name}</bdi>' in page
    _, ax = plot_image(result)
    assert [(text.get_text(), text.get_position()) for text in ax.texts] == [("1", (5.5, 5.5)), ("2", (1.5, 1.5))]
    assert not plot_image(result, count=1)[1].texts


def test_where_most_regions_lead_the_map_is_dark_and_the_others_are_removed_together():
    """15 of 16 regions led in a bright map, and the 46.9% of an image of the mean color stood nowhere."""
    result = image_attribution()
    check = replace(result.check, n_removed=3, leading=(3, 0, 1), without_each=(0.8, 0.8, 0.9, 0.8), n_random=0)
    check = replace(check, without_random=np.nan, without_least=np.nan, without_rest=0.88, without_all=0.4)
    result = replace(result, check=check)
    said = str(result)
    assert "Not compared with others" in said and "88.0%  without the other region" in said
    assert "40.0%  of an image of the mean color alone" in said and result.verdict == ""
    few = replace(result, check=replace(check, n_removed=1, leading=(3,)))
    assert heat_over_image(result).astype(int).sum() < heat_over_image(few).astype(int).sum()
    assert "drawn dark, because most regions lead" in map_title(result)


def test_many_leading_regions_are_folded():
    result = image_attribution(size=16)
    regions = tile_regions(16, 16, n_tiles=4)
    each = tuple(0.5 + 0.02 * i for i in range(16))
    order = tuple(range(9))
    first = tuple(0.8 - 0.05 * i for i in order)
    check = ImageCheck(9, 0.9, 0.3, np.nan, np.nan, 0, each, leading=order, without_first=first)
    none = {"measured": (), "effects": (), "effects_alone": ()}
    result = replace(result, regions=regions, check=check, values=(0.1,) * 16, **none)
    page = image_page([replace(result, n_in_turn=0)])
    assert "<summary>4 more leading regions" in page and "What decides is spread over many regions." in page
    assert all(f'<span class="place">{number}.</span>' in page for number in range(1, 10))


def test_transparent_pixels_are_told_where_the_image_is_handed_over():
    """The note was on a terminal alone, and the class was that of an image with a white band."""
    said = "The image has transparent pixels: they lie on white, which is what the model sees."
    result = replace(image_attribution(), transparent=True)
    assert said in str(result) and said in image_page([result]) and said in result.to_dict()["sentences"][0]
    assert ImageAttribution.from_dict(json.loads(result.to_json())).transparent
    assert said in replace(result, check=None).answer and said not in str(image_attribution())


def test_a_code_of_the_mean_color_holds_wherever_it_has_half_of_the_probability():
    """Four of six images lacked it, because another sentence came first."""
    result = image_attribution()
    for without, blank, holds in ((0.7, 0.6, True), (0.1, 0.85, True), (0.1, 0.4, False)):
        check = replace(result.check, without_leading=without, without_all=blank, leading=(3, 0))
        assert ("mean_color" in replace(result, check=check).findings) is holds
    weak = {"without_leading": 0.6, "without_all": 0.6, "leading": (3, 0), "without_least": 0.9, "without_random": 0.88}
    check = replace(result.check, without_each=(0.8, 0.9, 0.9, 0.8), **weak)
    title = replace(result, check=check).checked.title
    assert "most of the probability is left and an image of the mean color alone has more than half" in title


def test_the_region_with_the_most_bits_stands_between_commas():
    result = image_attribution(measured=(), effects=(), n_in_turn=0)
    check = ImageCheck(1, 0.9, 0.89, 0.9, 0.9, 3, leading=(3,), changes_pixels=False)
    said = replace(result, check=check).answer
    assert said.startswith(
        "Without the region with the most bits, bottom right (rows 4 to 7, columns 4 to 7), the prob"
    )


def test_a_leading_region_of_most_of_the_image_is_told():
    """A superpixel of 81% of the image was "center"."""
    regions = np.zeros((8, 8), dtype=np.int64)
    regions[0, :4], regions[0, 4:] = 1, 2
    result = image_attribution(measured=(0,), effects=(0.4,), n_in_turn=1, values=(0.4, 0.1, 0.1))
    check = replace(result.check, n_removed=1, leading=(0,), without_each=(0.3, 0.9, 0.9), without_first=(0.3,))
    result = replace(result, regions=regions, check=check)
    assert "The leading region is 88% of the image; the others are smaller." in result.answer
    assert "of the image; the others" not in image_attribution().answer
