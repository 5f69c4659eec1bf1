import base64
import dataclasses
import hashlib
import math
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from captum_iba.text import TextAttribution
from captum_iba.visualization import layer_page, method_map, method_page, terminal_text, token_map, token_page
from captum_iba.visualization.pieces import format_number, parts
from captum_iba.visualization.terminal import printable
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
    return [token_map(one), token_page([one]), token_page([one, one]), layer_page([[(one, one)]])]


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


def test_words_are_coloured_by_their_bits():
    page = token_map(attribution("no some most", bits=[0.0, 9.0, 99.0]))
    assert [int(level) for level in re.findall(r'class="w q(\d+)"', page)] == [0, 10, 20]
    assert 'title="most: 99.0 bits"' in page and "(99.0 bits)" in page
    assert 'class="s"' in page


@pytest.mark.parametrize(
    ("bits", "text"),
    [(0, "0"), (1, "1"), (9.96, "10"), (100, "100"), (583.3, "583"), (4246, "4.2k"), (12732826, "13M"), (2e9, "2G")],
)
def test_numbers_at_the_scale_are_short(bits, text):
    assert format_number(bits, "tick") == text


def test_numbers_of_readers_depend_on_their_unit():
    assert (format_number(1234.5), format_number(0.00012, "score")) == ("1,234", "0.00012")
    assert format_number(-4246, "tick") == "−4.2k"


def test_control_characters_are_spelled_out_on_a_terminal():
    assert printable("a\x1b[2J film") == "a\\x1b[2J film"


def test_less_than_a_bit_stays_pale():
    page = token_map(attribution("next to nothing", bits=[0.1, 0.1, 0.1]))
    assert set(re.findall(r'class="w q(\d+)"', page)) == {"3"}


def test_nan_and_infinite_bits_are_hatched():
    one = attribution("what is this", bits=[math.nan, math.inf, 2.0])
    for page in pages(one):
        assert page.count('class="w na"') >= 2
        assert "n/a" in page and "hatched" in page
    assert re.findall(r'class="w q(\d+)"', token_map(one)) == ["20"]
    nothing = attribution("no bits here", bits=[0.0, 0.0, 0.0])
    for page in pages(nothing):
        assert "no word has any bits" in page and 'class="w q20"' not in page


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
    for page, maps in zip(pages(one), (2, 2, 4, 4), strict=True):
        seen = Page(page)
        assert "second" in seen.text and "3 tokens were truncated" in seen.text
        # Each text runs in its own direction; the table has two rows, and the page of layers draws both twice.
        assert page.count('class="map" dir="auto"') == maps


def test_another_class_than_the_predicted_is_named():
    one = attribution("film", target=0, target_label="negative", target_probability=0.25)
    for page in [token_map(one), token_page([one]), layer_page([[(one, one)]])]:
        assert re.search(r"explained: +negative +\(0.250\), predicted: +positive", " ".join(Page(page).text.split()))


def test_layers_are_rows_with_before_and_after():
    layers = [
        (attribution("a film", bits=[100.0, 300.0], layer=n), attribution("a film", bits=[1.0, 3.0], layer=n))
        for n in (1, 2, 3)
    ]
    page = layer_page([layers, layers[:2]])
    assert page.count("<section ") == 2
    assert page.count('data-head="before"') == page.count('data-head="after"') == 5
    assert "1.0% of before" in page
    assert page.count('scope="row"') == 5


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="attributions"):
        token_page([])
    for texts in ([], [[]]):
        with pytest.raises(ValueError, match="texts"):
            layer_page(texts)


def test_many_texts_are_a_table_on_one_scale():
    rows = [
        attribution("weak film", bits=[0.0, 9.0]),
        attribution("strong film", bits=[0.0, 99.0], target=0, target_label="negative", target_probability=0.25),
    ]
    page = token_page(rows)
    assert page.count('class="scale"') == 1 and page.count('<tr>\n<td class="text"') == 2
    assert [int(level) for level in re.findall(r'class="w q(\d+)"', page)] == [0, 10, 0, 20]
    for value in ("negative", "positive", "0.25", "0.75", "99.0", "9.0"):
        assert f'data-value="{value}"' in page
    assert page.count("encoder.0") == 1  # what is the same for all stands once
    other = token_page([rows[0], attribution("a film", layer=2)])
    assert other.count("encoder.0") == other.count("encoder.1") == 1


def test_the_table_of_layers_sums_up():
    layers = [
        (attribution("a b c d", bits=[9.0] * 4), attribution("a b c d", [0.1, 4.0, 2.0, after])) for after in (1, 9)
    ]
    page = layer_page([layers])
    assert "<bdi>d</bdi>, <bdi>b</bdi>, <bdi>c</bdi></td>" in page  # a has less than a bit
    assert re.findall(r'<i style="height:([\d.]+)%" title="layer 1', page) == ["75.3", "100.0"]
    small = attribution("e", [0.5])
    heights = re.findall(r'<i style="height:([\d.]+)%" title="layer 1', layer_page([layers, [(small, small)]]))
    assert heights[:2] == ["75.3", "100.0"] and float(heights[2]) < 15  # texts share one scale
    nothing = layer_page([[(attribution("a"), attribution("a", bits=[math.nan]))]])
    assert ">none</td>" in nothing and 'title="layer 1: n/a bits"' in nothing


def test_layers_beside_methods():
    layers = [[(attribution("a film"), attribution("a film"))]]
    page = layer_page(layers, methods=[[scores("a film", [1.0, -1.0], method="ig")]])
    assert "The same text by other methods" in page and page.count('type="checkbox"') == 1
    for methods in ([[scores("other", [1.0])]], [[]], []):
        with pytest.raises(ValueError, match="methods"):
            layer_page(layers, methods=methods)


def test_a_page_of_layers_has_one_text_and_class_per_entry():
    one, negative = attribution("a film"), attribution("a film", target=0, target_label="negative")
    for other, message in ((attribution("a plot"), "several texts"), (negative, r"the classes \[0, 1\]")):
        for layers in ([(one, one), (other, other)], [(one, other)]):
            with pytest.raises(ValueError, match=rf"texts\[1\] has attributions of {message}"):
                layer_page([[(one, one)], layers])
    with pytest.raises(ValueError, match=r"methods has scores of the classes \[1\], expected those of \[0\]"):
        layer_page([[(negative, negative)]], methods=[[scores("a film", [1.0, -1.0])]])


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
    assert 'title="against: -1"' in page and "0 in the middle" in page
    assert page._repr_html_() == page
    unsigned = token_map(scores("most half", [2.0, 1.0], method="saliency", signed=False))
    assert re.findall(r'class="w (\w+)"', unsigned) == ["q20", "q10"] and "in the middle" not in unsigned


def test_sub_words_are_joined_and_special_tokens_dimmed():
    page = token_map(scores("unbelievable film", [3.0, 1.0], pieces=[["un", "##believable"], ["film"]]))
    assert "##" not in page and re.findall(r'title="([^"]*)"', page)[:2] == ["[CLS]: 0", "unbelievable: 3"]
    assert page.count('<bdi class="s"') == 1


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
    coloured = shown(one, force_terminal=True, color_system="truecolor")
    assert "[red]no[/red]" in coloured and "\x1b[2J" not in coloured
    assert "48;2;255;176;0m" in coloured
    plain = shown(one, color_system=None)
    assert "\x1b" not in plain and "█" * 24 in plain
