import base64
import dataclasses
import hashlib
import math
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from captum_iba._reading.mask_sentences import HARDLY_ANYTHING
from captum_iba._reading.removal_check import DeletionCheck
from captum_iba._reading.text_parts import parts
from captum_iba._reading.wording import format_number, format_probability, printable
from captum_iba._reading.words import ranked_words
from captum_iba.text import TextAttribution
from captum_iba.visualization import method_map, method_page, plot_layers, terminal_text, token_map, token_page
from tests.visualization.examples import attribution, scores

VOID = {"meta", "br", "input", "link", "img", "hr"}


class Page(HTMLParser):
    """What a browser sees of a page: its tags, its text, and whether they are closed in order."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.attributes, self.text, self._open = [], [], "", []
        self.feed(content)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] not in (["style"], ["script"]):
            self.text += data


def pages(one):
    """Everything that can be drawn of one attribution."""
    return [token_map(one), token_page([one]), token_page([one, one]), token_page([one], layers=[[one, one]])]


HOSTILE = [
    "<script>alert(1)</script> film",
    '"><img src=x onerror=alert(1)> film',
    "</style><h1>film </h1></title>",
    "{{ 7 * 7 }} {% raw %} film",
    "' onmouseover='alert(1) film",
    "<!-- film -->",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_and_labels_never_become_markup(text):
    harmless = [Page(page).tags for page in pages(attribution("a film"))]
    for page, tags in zip(pages(attribution(text, target_label=text, statistics=text)), harmless, strict=True):
        seen = Page(page)
        assert set(seen.tags) == set(tags)
        assert not any(name.startswith("on") or name == "src" for name, _ in seen.attributes)
        for word in text.split(" "):
            assert word in seen.text


@pytest.mark.parametrize("text", ["זה סרט טוב", "good\u202e film", "zero\u200bwidth", "👩\u200d🚀 film 😀", "映画 は"])
def test_any_script_comes_out_as_it_is(text):
    for page in pages(attribution(text)):
        seen = Page(page)
        assert all(word in seen.text for word in text.split(" "))
        assert ("dir", "auto") in seen.attributes


def test_pages_fetch_nothing():
    for page in pages(attribution("a film"))[1:]:
        assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
        assert not re.search(r"(src=|href=.(?!#)|url\(|@import)", page)
        scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        assert len(scripts) == page.count("<script") <= 1
        allowed = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        assert "default-src 'none'" in page and re.findall(r"script-src 'sha256-([^']*)'", page) == allowed


def test_words_are_colored_by_their_bits():
    page = token_map(attribution("no some most", bits=[0.0, 9.0, 99.0]))
    assert [int(level) for level in re.findall(r'class="w q(\d+)"', page)] == [0, 2, 20]
    assert 'title="most: 99.0 bits"' in page and "(99.0 bits)" in page
    assert "[CLS]" not in page  # a special token without bits says nothing of the text


@pytest.mark.parametrize(
    ("bits", "text"),
    [(0, "0"), (1, "1"), (9.96, "10"), (100, "100"), (583.3, "583"), (4246, "4.2k"), (12732826, "13M"), (2e9, "2G")],
)
def test_numbers_at_the_scale_are_short(bits, text):
    assert format_number(bits, "tick") == text


def test_numbers_of_readers_depend_on_their_unit():
    assert format_number(math.nan) == format_probability(math.nan) == "n/a"
    assert (format_number(1234.5), format_number(0.00012, "score")) == ("1,234", "0.00012")
    assert (format_number(1083.4, "score"), format_number(-1e7, "score")) == ("1,083", "-1e+07")
    assert format_number(-4246, "tick") == "−4.2k"


def test_control_characters_are_spelled_out_on_a_terminal():
    assert printable("a\x1b[2J film") == "a\\x1b[2J film"


def test_colors_begin_at_the_floor_of_each_token():
    one = attribution("floor some most", bits=[2.0, 27.0, 52.0], unneeded_bits=2.0)
    assert re.findall(r'class="w q(\d+)"', token_map(one)) == ["0", "10", "20"]


@pytest.mark.parametrize(("bits", "floor"), [([0.1, 0.1, 0.1], 0.0), ([4.9, 2.9, 2.3], 1.73), ([18.9, 2.9, 2.3], 1.73)])
def test_where_hardly_anything_is_needed_nothing_is_deep_and_pages_say_so(bits, floor):
    one = attribution("next to nothing", bits=bits, unneeded_bits=floor)
    for page in [*pages(one), shown(one, color_system=None)]:
        assert HARDLY_ANYTHING in page and "of the bits above the floor:" not in page
        assert all(level == "0" for level in re.findall(r'class="w q(\d+)"', page))
    assert "48;2;" not in shown(one, force_terminal=True, color_system="truecolor")  # no background
    enough = attribution("next to nothing", bits=[25.0, *bits[1:]], unneeded_bits=floor)
    assert all(HARDLY_ANYTHING not in page for page in [*pages(enough), str(enough)])


def test_the_texts_of_a_pair_are_named():
    seen = " ".join(Page(token_page([attribution("not one", pair="is not.")])).text.split())
    assert "first text" in seen and "second text" in seen
    assert "first text" not in Page(token_page([attribution("not one")])).text


def test_the_words_that_hold_80_percent_come_first_with_their_place():
    one = attribution("Not good. It is not <br /> bad! So", [60.0, 0, 0, 1, 30, 1, 1, 7, 0, 0], unneeded_bits=0.0)
    leading, rest = ranked_words(one)
    assert [(word.name, word.place, word.share) for word in leading] == [
        ("Not", "word 1", 0.6),
        ("not", "word 5", 0.3),
    ]
    assert [word.place for word in rest[:2]] == ["word 8", "word 4"] and len(rest) == 7
    seen = " ".join(Page(token_page([one])).text.split()).replace("\xa0", " ")
    assert "leading words of the bits bits Not word 1 60.0% 60.0 not word 5 30.0% 30.0" in seen
    assert "7 other words" in seen and seen.count("0.0%") == 3  # 60.0%, 30.0%, and those with 0.0% in one line
    assert "/> word 7 1.0% 1.00 3 words with 0.0%: good., It, So" in seen
    pair = attribution("not one", [9.0, 1.0, 0.0, 90.0, 0.0], pair="is not. Three")
    assert [word.place for word in ranked_words(pair)[0]] == ["second text, word 2"]
    assert [word.place for word in ranked_words(attribution("a film"))[0]] == ["word 2"]


def test_words_without_a_number_or_with_a_spread_are_no_zeros():
    one = attribution("no nan most", bits=[0.0, math.nan, 99.0])
    seen = " ".join(Page(token_page([one])).text.split())
    assert "nan word 2 0.0% n/a" in seen and "1 word with 0.0%: no" in seen
    one = dataclasses.replace(attribution("so most", [0.0, 99.0]), repeats=((0.0, 0.0, 99.0), (0.0, 9.0, 99.0)))
    assert "with 0.0%" not in token_page([one])


def test_percentages_are_explained():
    one = attribution("floor some most", bits=[2.0, 27.0, 52.0], unneeded_bits=2.0)
    assert " 66.7%        52.0 bits" in str(one)
    assert "of the bits  its share of the bits above the floor; the floor is about what an unneeded" in str(one)
    assert "floor 2.00 per token" in str(one)
    assert "above the floor" not in str(attribution("a film"))  # of the total
    released = attribution("a film")
    tokens = (dataclasses.replace(released.tokens[0], bits=9.0), *released.tokens[1:])
    shown_beside = str(dataclasses.replace(released, tokens=tokens))
    assert "Percentages are of the bits of all words, without special tokens." in shown_beside
    seen = " ".join(Page(token_page([one])).text.split())
    assert (
        "About the bits that a token keeps if it is not needed" in seen
        and "Percentages are of the bits above it." in seen
    )
    assert "per cent" not in seen


def test_percent_signs_follow_the_number():
    one = dataclasses.replace(
        attribution("a film", target=0, check=DeletionCheck(1, 0.75, 0.1, 0.7, 0.4, 10)), repeats=((0.0, 1.0, 2.0),) * 2
    )
    for page in [*pages(one), str(one)]:
        assert "%" in Page(page).text and not re.search(r"\s%", Page(page).text)
        said = " ".join(Page(page).text.split())
        assert "falls from 75.0% to 10.0%." in said
        assert "40.0% without another word (mean of 10) 70.0% without the word with the fewest bits" in said


def test_the_decision_comes_first():
    one = attribution("a film", model="films", tokens_truncated=3)
    for page in pages(one)[:2]:
        text = " ".join(Page(page).text.split()).replace("\xa0", " ")
        places = [
            text.index(part) for part in ("positive 75.0% by films", "3 tokens were truncated", "a (", "encoder.0")
        ]
        assert places == sorted(places)
    warning, decision, *_ = str(one).split("\n")
    assert warning == "Warning: 3 of 6 tokens were truncated and not read."
    assert decision == "positive 75.0% · films"
    assert "<title>Why positive?</title>" in token_page([one])


def test_nan_and_infinite_bits_are_hatched():
    one = attribution("what is this", bits=[math.nan, math.inf, 2.0])
    for page in pages(one):
        assert page.count('class="w na"') >= 2
        assert "n/a" in page and "hatched" in page
    assert re.findall(r'class="w q(\d+)"', token_map(one)) == ["20"]


def test_spaces_between_words_stay():
    one = attribution("a  film")
    assert '<span class="gap">  </span>' in token_map(
        TextAttribution.from_dict(
            {
                **one.to_dict(),
                "tokens": [
                    {"token": "a", "bits": 1, "start": 0, "end": 1, "sequence": 0, "special": False, "word": 0},
                    {"token": "film", "bits": 1, "start": 3, "end": 7, "sequence": 0, "special": False, "word": 1},
                ],
            }
        )
    )


def test_pairs_and_truncation_are_shown():
    one = attribution("first text", pair="second text", tokens_truncated=3)
    for page, maps in zip(pages(one), (2, 2, 4, 6), strict=True):
        seen = Page(page)
        assert "second" in seen.text and "3 tokens were truncated" in seen.text
        # Each text runs in its own direction; the table has two rows, and the last page two layers.
        assert page.count('class="map" dir="auto"') == maps


def test_another_class_than_the_predicted_is_named():
    one = attribution("film", target=0, target_label="negative", target_probability=0.25)
    for page in pages(one):
        text = " ".join(Page(page).text.split()).replace("\xa0", " ")
        assert re.search(r"negative (25.0% )?\(predicted: positive 75.0%\)", text)


def test_layers_are_rows_on_one_scale():
    one = attribution("a film", bits=[100.0, 300.0])
    layers = [attribution("a film", bits=[1.0, 30.0 * n], layer=n) for n in (1, 2)]
    page = token_page([one, one], layers=[layers, layers[:1]])
    folded = page[page.index("Layer by layer") :]
    assert folded.count("<dt ") == 3 and "layer 2" in folded
    assert re.findall(r'class="w q(\d+)"', folded) == ["0", "10", "0", "20", "1", "20"]


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="attributions"):
        token_page([])


def test_many_texts_are_a_table():
    rows = [
        attribution("weak film", bits=[0.0, 9.0]),
        attribution("strong film", bits=[0.0, 99.0], target=0, target_label="negative", target_probability=0.25),
    ]
    page = token_page(rows)
    assert page.count('class="scale"') == 1 and page.count('<tr>\n<td class="text"') == 2
    assert [int(level) for level in re.findall(r'class="w q(\d+)"', page)] == [0, 20, 0, 20]
    for value in ("negative", "positive", "0.25", "0.75"):
        assert f'data-value="{value}"' in page
    assert page.count(" bits in all</p>") == 2 and 'data-head="bits"' not in page
    assert page.count("encoder.0") == 1  # what is the same for all stands once
    other = token_page([rows[0], attribution("a film", layer=2)])
    assert other.count("encoder.0") == other.count("encoder.1") == 1


def test_gold_labels_stand_beside_the_class():
    one = attribution("a film")
    page = token_page([one, one], gold_labels=["<b>", "positive"])
    assert 'data-head="gold label" data-value="&lt;b&gt;"' in page
    rivals = [[scores("a film", [1.0, -2.0])]]
    for kind in (None, rivals):
        assert "gold label: positive" in Page(token_page([one], methods=kind, gold_labels=["positive"])).text
    assert "<mark" not in page
    marked = token_page([one] * 3, gold_labels=["negative", "positive", "4"], labels=["negative", "positive"])
    assert marked.count("<mark") == 1 and '<bdi class="whole">negative</bdi> (not predicted)' in marked
    for name in ("gold_labels", "ids"):
        with pytest.raises(ValueError, match=f"{name} has 1 entries, expected one for each of 2 texts"):
            token_page([one, one], **{name: ["positive"]})


def test_a_table_names_texts_model_and_provenance():
    origin = {"captum_iba": "1.0", "torch": "2.13.0", "model_fingerprint": "0123456789abcdef0123"}
    one = dataclasses.replace(attribution("a film"), model="<small>", provenance=origin)
    page = Page(token_page([one, one], ids=["row-7", "<i>"]))
    assert "Model: <small>" in page.text and "row-7" in page.text and "<i>" in page.text
    assert page.text.count("captum_iba 1.0, torch 2.13.0, fingerprint of the model 0123456789abcdef") == 1


def test_bits_of_different_beta_are_not_sorted_or_compared():
    one, other = (attribution("a film", settings={"beta": beta}) for beta in (10.0, 3.0))
    page = token_page([one, other])
    assert "Bits of different beta do not compare" in page and " bits in all, beta 3<" in page
    assert '<button type="button">bits</button>' not in page + token_page([one, one])
    assert "(beta 3)" in token_page([one], layers=[[one, other]])
    assert "(beta 3)" not in token_page([one], layers=[[other, other]])
    labels = plot_layers([one, other])[1].get_yticklabels()
    assert [label.get_text() for label in labels] == ["1 (beta 10)", "1 (beta 3)"]


def test_other_methods_stand_beside():
    one = attribution("a film")
    rivals = [scores("a film", [1.0, -2.0], method="ig"), scores("a film", [1.0, 0.0], method="lime")]
    page = token_page([one, one], methods=[rivals, rivals])
    assert page.index("against the class") < page.index("<section>")  # what the colors of signed scores mean
    text = " ".join(Page(page).text.split()).replace("\xa0", " ")
    assert text.index("Why positive?") < text.index("The same text by other methods") < text.index("film \u22122, a 1")
    assert page.count("Integrated Gradients") == page.count("<b>LIME</b>") == 2 and "<script" not in page
    assert "by other methods" in text.replace("The same text by other methods", "")  # folded, of the second text


@pytest.mark.parametrize("name", ["methods", "layers"])
def test_methods_and_layers_are_of_the_same_texts_and_classes(name):
    def make(text, target):
        one = scores(text, [1.0, -1.0]) if name == "methods" else attribution(text)
        return dataclasses.replace(one, target=target)

    one = attribution("a film")
    token_page([one], **{name: [[make("a film", 1)]]})
    for wrong in ([[make("a plot", 1)]], [[make("a film", 0)]], [[make("a film", 1), make("a plot", 1)]], [[]], []):
        with pytest.raises(ValueError, match=f"{name} has other texts or classes than attributions"):
            token_page([one], **{name: wrong})


def test_no_character_is_drawn_twice():
    one = attribution("cafe film", bits=[1.0, 2.0])
    tokens = (*one.tokens[:2], dataclasses.replace(one.tokens[2], start=3))
    drawn = [part for part in parts(dataclasses.replace(one, tokens=tokens)) if part.kind != "special"]
    assert "".join(part.text for part in drawn) == "cafe film"
    assert [part.value for part in drawn if part.has_value] == [1.0, 2.0]


def test_a_special_token_in_the_text_is_drawn_once():
    one = attribution("good film but", bits=[1.0, 2.0, 1.0])
    written = dataclasses.replace(one.tokens[2], special=True, word=None)
    rest = [token if token.word is None else dataclasses.replace(token, word=token.word // 2) for token in one.tokens]
    drawn = list(parts(dataclasses.replace(one, tokens=(*one.tokens[:1], rest[1], written, rest[3]))))
    assert "".join(part.text for part in drawn[1:]) == "good film but"


def test_signed_scores_have_0_in_the_middle():
    page = method_map([scores("for none against", [2.0, 0.0, -1.0], method="ig")])
    assert re.findall(r'class="w (\w+)"', page) == ["p20", "p0", "n10"]
    assert 'title="against: -1"' in page and "0 in the middle" in page and "for</bdi>&nbsp;2" in page
    assert page._repr_html_() == page
    unsigned = token_map(scores("most half", [2.0, 1.0], method="saliency", signed=False))
    assert re.findall(r'class="w (\w+)"', unsigned) == ["q20", "q10"] and "in the middle" not in unsigned


def test_sub_words_are_joined_and_special_tokens_without_a_score_are_left_out():
    page = token_map(scores("unbelievable film", [3.0, 1.0], pieces=[["un", "##believable"], ["film"]]))
    assert "##" not in page and re.findall(r'title="([^"]*)"', page)[:1] == ["unbelievable: 3"]
    assert '<bdi class="s' not in page


def test_nan_and_infinite_scores_are_hatched():
    page = method_map([scores("what is this", [math.nan, -math.inf, 2.0])])
    assert re.findall(r'class="w (\w+)"', page) == ["na", "na", "p20"] and "hatched" in page
    nothing = method_map([scores("no scores here", [0.0, 0.0, 0.0])])
    assert set(re.findall(r'class="w (\w+)"', nothing)) == {"p0"} and "all scores are 0" in nothing


def test_special_tokens_without_a_number_are_hatched():
    one = attribution("a film")
    tokens = (dataclasses.replace(one.tokens[0], bits=math.nan), *one.tokens[1:])
    assert '<bdi class="s na"' in token_map(dataclasses.replace(one, tokens=tokens))


def test_methods_can_be_selected():
    texts = [
        [scores(text, [1.0, -1.0], method="ig"), scores(text, [1.0, 0.5], method="saliency", signed=False)]
        for text in ("a film", "the plot")
    ]
    page = method_page(texts, labels=["negative", "positive"])
    assert page.count('type="checkbox"') == 2 and page.count('class="scale"') == 2 and "<script" not in page
    assert page.count('class="method m0"') == page.count('class="method m1"') == 2
    assert page.count("<bdi>positive</bdi>") == 2
    for wrong in ([], [[]], [[texts[0][0], texts[1][0]]]):
        with pytest.raises(ValueError, match="texts"):
            method_page(wrong)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_and_methods_never_become_markup(text):
    def made(words, name):
        one = scores(words, [1.0] * len(words.split(" ")), method=name)
        return [method_map([one], labels={1: name}), method_page([[one]], name, name), token_map(one)]

    for page, harmless in zip(made(text, text), made("a film", "ig"), strict=True):
        seen = Page(page)
        assert set(seen.tags) == set(Page(harmless).tags)
        assert not any(name.startswith("on") or name == "src" for name, _ in seen.attributes)
        assert all(word in seen.text for word in text.split(" "))


def shown(one, **settings):
    console = Console(width=60, highlight=False, **settings)
    with console.capture() as captured:
        console.print(terminal_text(one))
    return captured.get()


def test_terminal():
    one = attribution("[red]no[/red] most\x1b[2J", bits=[0.0, 4.0])
    colored = shown(one, force_terminal=True, color_system="truecolor")
    assert "[red]no[/red]" in colored and "\x1b[2J" not in colored
    assert "48;2;255;176;0m" in colored
    assert colored.index("positive 75.0%") < colored.index("[red]no[/red]")
    plain = shown(one, color_system=None)
    assert "\x1b" not in plain and "█" * 24 in plain


def test_what_is_no_attribution_is_refused():
    with pytest.raises(TypeError, match=r"attributions\[0\] is a str, expected a TextAttribution"):
        token_page(["a film"])


def test_a_long_list_of_leading_words_is_folded_after_five():
    """Fifteen rows took the whole screen of a phone, and the check stood below them."""
    many = "a b c d e f g h i j k l m n o p q r s t"
    n_words, numbers = 20, range(20)
    for n_leading, folded in ((8, 0), (9, 4)):
        one = dataclasses.replace(
            attribution(many, bits=[30.0 - i for i in numbers], target_probability=0.9),
            effects=tuple(2.0 - 0.05 * i for i in numbers),
            without=(0.8,) * n_words,
            removal_order=tuple(range(n_leading)),
            without_first=tuple(0.8 - 0.07 * i for i in range(n_leading)),
        )
        page = token_page([one])
        assert (f"{folded} more leading words</summary>" in page) is bool(folded)
        words = re.findall(r'<th scope="row"><bdi>(\w)</bdi>', page)
        assert words[:n_leading] == list(many.replace(" ", ""))[:n_leading] and set(words) == set(many) - {" "}
