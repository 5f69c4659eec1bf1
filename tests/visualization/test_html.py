import math
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from captum_iba.text import TextAttribution, Token
from captum_iba.visualization import layer_page, terminal_text, token_map, token_page
from captum_iba.visualization.pieces import say_short

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
        if self._open[-1:] != ["style"]:
            self.text += data


def attribution(text, bits=None, pair=None, layer=1, **changes):
    """One token a word, words parted by single spaces, [CLS] before."""
    tokens = [Token("[CLS]", 0.0, 0, 0, None, True, None)]
    for sequence, source in enumerate((text, pair)):
        start = 0
        for word in (source or "").split(" "):
            if source is not None:
                number = len(tokens) - 1
                value = float(number) if bits is None else bits[number]
                tokens.append(Token(word, value, start, start + len(word), sequence, False, number))
            start += len(word) + 1
    values = {
        "target": 1,
        "target_label": "positive",
        "target_probability": 0.75,
        "predicted": 1,
        "predicted_label": "positive",
        "predicted_probability": 0.75,
        "layer": f"encoder.{layer - 1}",
        "layer_index": layer,
        "method": "iba",
        "preset": "default",
        "granularity": "token",
        "statistics": "a data set of 10 positions",
    }
    return TextAttribution(text=text, pair=pair, tokens=tuple(tokens), **{**values, **changes})


def pages(one):
    """Everything that can be drawn of one attribution."""
    return [token_map(one), token_page([one]), layer_page([[(one, one)]])]


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


def test_pages_need_nothing_from_elsewhere():
    for page in pages(attribution("a film"))[1:]:
        assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
        assert not re.search(r"(src=|href=|url\(|@import|<script)", page)
        assert "default-src 'none'" in page


def test_words_are_coloured_by_their_bits():
    page = token_map(attribution("no some most", bits=[0.0, 9.0, 99.0]))
    assert [int(found) for found in re.findall(r'class="w q(\d+)"', page)] == [0, 10, 20]
    assert 'title="most: 99.0 bits"' in page and "(99.0 bits)" in page
    assert 'class="s"' in page


@pytest.mark.parametrize(
    ("bits", "text"),
    [(0, "0"), (1, "1"), (9.96, "10"), (100, "100"), (583.3, "583"), (4246, "4.2k"), (12732826, "13M"), (2e9, "2G")],
)
def test_numbers_at_the_scale_are_short(bits, text):
    assert say_short(bits) == text


def test_less_than_a_bit_stays_pale():
    page = token_map(attribution("next to nothing", bits=[0.1, 0.1, 0.1]))
    assert set(re.findall(r'class="w q(\d+)"', page)) == {"3"}


def test_strange_numbers_are_drawn_as_such():
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


def test_pairs_and_cuts_are_shown():
    one = attribution("first text", pair="second text", tokens_cut=3)
    for page in pages(one):
        seen = Page(page)
        assert "second" in seen.text and "3 tokens at the end were cut off" in seen.text
        # Each text runs in its own direction; the page of layers draws both twice.
        assert page.count('class="map" dir="auto"') == (4 if "data-head" in page else 2)


def test_another_class_than_the_predicted_one_is_said():
    one = attribution("film", target=0, target_label="negative", target_probability=0.25)
    for page in pages(one):
        assert re.search(r"explained: +negative +\(0.250\), predicted: +positive", " ".join(Page(page).text.split()))


def test_layers_are_rows_with_before_and_after():
    layers = [
        (attribution("a film", bits=[100.0, 300.0], layer=n), attribution("a film", bits=[1.0, 3.0], layer=n))
        for n in (1, 2, 3)
    ]
    page = layer_page([layers, layers[:2]])
    assert page.count("<section>") == 2
    assert page.count('data-head="before"') == page.count('data-head="after"') == 5
    assert "1.0% of before" in page
    assert page.count('scope="row"') == 5


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="attributions"):
        token_page([])
    for texts in ([], [[]]):
        with pytest.raises(ValueError, match="texts"):
            layer_page(texts)


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
