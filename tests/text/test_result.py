import dataclasses
import json
import math

import numpy as np
import pytest
from captum.attr import visualization

from captum_iba._files import write_text
from captum_iba._reading.check_sentences import VERDICTS
from captum_iba._reading.removal_check import DeletionCheck
from captum_iba.text import TextAttribution, TextTrace, Token


def attribution(bits=(1.0, 2.0, 0.5), text="so <b>good</b>", **changes):
    """Three words: so, <b>good</b> in two tokens."""
    first, *rest = bits
    tokens = (
        Token("[CLS]", 0.0, 0, 0, None, True, None),
        Token("so", first, 0, 2, 0, False, 0),
        Token("<b>", rest[0], 3, 6, 0, False, 1),
        Token("##good", rest[1], 6, 14, 0, False, 1),
    )
    values = {
        "text": text,
        "pair": None,
        "tokens": tokens,
        "target": 1,
        "target_label": "<good>",
        "target_probability": 0.9,
        "predicted": 1,
        "predicted_label": "<good>",
        "predicted_probability": 0.9,
        "layer": "encoder.2",
        "layer_index": 3,
        "method": "iba",
        "preset": "default",
        "granularity": "token",
        "statistics": "a dataset of 10 positions",
        "settings": {"beta": 1.0, "seed": 0},
        "trace": TextTrace((1.0, 0.5), (9.0, 3.5), (0.5, 0.8)),
        **changes,
    }
    return TextAttribution(**values)


def test_words_and_bits():
    result = attribution()
    assert [(word.word, word.bits, word.start, word.end) for word in result.words] == [
        ("so", 1.0, 0, 2),
        ("<b>good</b>", 2.5, 3, 14),
    ]
    assert result.bits.tolist() == [0.0, 1.0, 2.0, 0.5]
    assert result.word_bits.tolist() == [1.0, 2.5]
    assert result.total_bits == 3.5


def test_shares_are_of_what_lies_above_the_floor():
    np.testing.assert_allclose(attribution().shares, [1 / 3.5, 2.5 / 3.5])
    # The second word has two tokens, each with a floor.
    np.testing.assert_allclose(attribution(unneeded_bits=0.5).shares, [0.25, 0.75])
    np.testing.assert_array_equal(attribution(unneeded_bits=3.0).shares, [0.0, 0.0])
    # What is above the floor by less than a hundredth of it is not needed.
    np.testing.assert_array_equal(attribution(unneeded_bits=0.995).shares[0], 0.0)
    np.testing.assert_array_equal(attribution(bits=(math.nan, 1.0, 1.0)).shares, [0.0, 1.0])


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        attribution().text = "other"


def test_prints_the_decision_and_the_words_with_most_bits_first():
    lines = str(attribution(model="films", bits=(5.0, 20.0, 1.0))).splitlines()
    assert lines[:2] == ["<good> 90.0% · films", "so <b>good</b>"]
    assert lines[2].split() == ["of", "the", "bits", "bits", "leading", "word"]
    assert lines[3].split() == ["80.8%", "21.0", "bits", "█" * 24, "<b>good</b>", "(word", "2)"]
    assert lines[4].split() == ["19.2%", "in", "1", "other", "word"]
    assert lines[5].startswith("layer 3 (encoder.2) · default, statistics of a dataset") and "26.00 bits" in lines[5]


def test_long_texts_are_summed_up():
    tokens = tuple(Token("a", 1.0, i, i + 1, 0, False, i) for i in range(50))
    lines = str(attribution(text="a" * 50, tokens=tokens)).splitlines()
    assert len(lines) == 27
    assert [line.split() for line in lines[-4:-2]] == [
        ["40.0%", "in", "20", "leading", "words"],
        ["20.0%", "in", "10", "other", "words"],
    ]


def test_prints_no_control_characters():
    shown = str(attribution(text="so \x1b[31mx\u202e\x07abc"))
    assert "\x1b" not in shown and "\u202e" not in shown and "\x07" not in shown
    assert "\\x1b" in shown and "\\u202e" in shown


def test_json_there_and_back(tmp_path):
    result = attribution(pair="second")
    path = result.save(tmp_path / "result.json")
    assert TextAttribution.load(path) == result
    assert json.loads(path.read_text(encoding="utf-8"))["words"][1]["word"] == "<b>good</b>"
    assert json.loads(result.to_json()) == result.to_dict()
    path.write_text(f"[{result.to_json()}]", encoding="utf-8")  # of the command line
    assert TextAttribution.load(path) == result
    # What pages show of it, too, in their order.
    words = result.to_dict()["words"]
    assert [word["share"] for word in words] == pytest.approx(list(result.shares))
    assert sorted(words, key=lambda word: word["rank"]) == [words[result.words.index(word)] for word in result.ranked]
    assert sorted(word["rank"] for word in words) == list(range(1, len(words) + 1))
    one = dataclasses.replace(attribution(text="a b c d", bits=[90.0, 2.0, 1.0, 1.0]), check=None)
    checked = dataclasses.replace(one, check=DeletionCheck(1, 0.9, 0.1, 0.9, 0.9, 10)).to_dict()
    assert checked["verdict"] == VERDICTS[0] and any("Check of the" in sentence for sentence in checked["sentences"])
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_check_is_read_with_the_names_of_earlier_versions():
    one = dataclasses.replace(attribution(text="a b c d"), check=DeletionCheck(1, 0.9, 0.1, 0.9, 0.9, 10, least=(2,)))
    content = one.to_dict()
    check = content["check"]
    check |= {"n_words": check.pop("n_removed"), "without_all_leading": 0.1, "without_leading": 0.5}
    assert TextAttribution.from_dict(content) == one


def test_json_has_no_nan():
    result = attribution(bits=(math.nan, math.inf, 0.0))
    content = json.loads(result.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert content["tokens"][1]["bits"] is None
    assert np.isnan(TextAttribution.from_dict(content).bits[1])


def test_a_result_of_an_older_format_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"the format 'captum_iba.TextAttribution/1', expected .*/4'; explain again"):
        TextAttribution.from_dict({"format": "captum_iba.TextAttribution/1"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "content is a list, expected a dictionary of to_dict; from_dict reads each entry of a list"),
        ("{", "not a saved attribution"),
        ('{"model_type": "bert"}', "content is a dictionary without the key 'format', expected one of to_dict"),
        ('{"format": "other"}', "content has the format 'other', expected 'captum_iba.TextAttribution/4'"),
        ('{"format": "captum_iba.TextAttribution/4"}', "not a whole attribution"),
    ],
)
def test_loading_something_else_is_an_error(tmp_path, content, says):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="other.json, which is not a saved attribution") as error:
        TextAttribution.load(path)
    assert says in str(error.value) and "explain again" not in str(error.value)


def test_the_repr_is_one_short_line():
    long = repr(attribution(text="so <b>good</b>" + " and so on" * 99))
    assert long.startswith("TextAttribution(text='so <b>good</b> and so on") and "…'" in long and len(long) < 200
    assert "target=1 (<good> 0.900), leading='<b>good</b>'" in long
    assert "pair='second'" in repr(attribution(pair="second"))


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("old")

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="disk full"):
        attribution().save(path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_writing_into_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        attribution().save(tmp_path / "no" / "result.json")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        attribution().save(tmp_path)


def test_captum_draws_it_escaped():
    record = attribution().to_captum_record(true_class="<i>")
    cells = visualization.format_word_importances(record.raw_input_ids, record.word_attributions)
    assert "&lt;b&gt;good&lt;/b&gt;" in cells and "<b>good" not in cells
    assert record.attr_class == "&lt;good&gt;" and record.true_class == "&lt;i&gt;"
    assert record.word_attributions.tolist() == pytest.approx([0.4, 1.0])
    strange = attribution(bits=(math.nan, 1.0, 0.0)).to_captum_record()
    assert strange.word_attributions.tolist() == [0.0, 1.0]
    assert attribution(bits=(0.0, 0.0, 0.0)).to_captum_record().word_attributions.tolist() == [0.0, 0.0]


def test_draws_itself(tmp_path):
    assert attribution()._repr_html_().startswith('<div class="iba">')
    page = attribution().save_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "&lt;b&gt;good" in page


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "page.html"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"page.html cannot be written: .*large$"):
            write_text(path, 101 * "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"] and path.read_text() == "old"


def test_errors_of_writing_name_the_file_and_no_temporary_one(explainer):
    explainer.estimate_statistics(["the film was not good", "bad"])
    for write in (explainer.explain("a film", n_steps=1).save, explainer.save_statistics):
        with pytest.raises(OSError, match=r"/proc/\w+/out cannot be written") as caught:
            write("/proc/self/out")
        assert "tmp" not in str(caught.value) and ".statistics-" not in str(caught.value)
