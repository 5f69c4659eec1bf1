import base64
import hashlib
import re
import shutil

import pytest

from captum_iba.compare import prepare, write_report
from captum_iba.compare.records import read_scores
from captum_iba.text.encoding import join_words
from tests.compare.conftest import WORDS, write_lines

FILES = ["table.md", "table.csv", "table.tex", "curves.svg", "curves.png", "report.html"]


def test_drawn_again_it_is_the_same(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    before = {name: (copy / name).read_bytes() for name in FILES}
    for name in FILES:
        (copy / name).unlink()
    summary = write_report(copy)
    assert [path.name for path in summary.files] == FILES
    assert {name: (copy / name).read_bytes() for name in FILES} == before
    assert len(summary.lines) == 7 and summary.lines[0].startswith("drop at 1/9: ")


def test_the_page_stands_alone_and_runs_one_script(finished):
    page = (finished / "report.html").read_text("utf-8")
    assert not re.search(r"(src=|<link|url\((?!#)|@import|href=.(?!#))", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page
    assert page.count("<article>") == 12 and page.count('type="radio"') == 4 and page.count("<svg") == 1
    assert page.count('scope="row"') == 4
    assert "/" not in re.sub(r"<[^>]*>", "", page.split("<h1>")[1].split("</p>")[0])  # a file's name without its folder


def test_texts_are_shown_whole_and_colored_by_every_method(finished):
    page = (finished / "report.html").read_text("utf-8")
    article = page.split("<article>")[1]
    shown = re.sub(r"<[^>]*>", "", article.split('<p class="facts">')[0]).strip()
    assert shown and set(shown.split()) <= {word for text in WORDS for word in text.split()}
    depths = [float(depth) for depth in re.findall(r"--m1:(-?[\d.]+)", article)]
    assert max(abs(depth) for depth in depths) == 1  # leave_one_out: relative to the largest, signs kept
    assert all(0 < float(depth) <= 1 for depth in re.findall(r"--m0:(-?[\d.]+)", page))
    assert article.count("<dt>") == 4


def test_a_word_of_several_tokens_has_the_score_that_its_method_gave_the_word(config_of, tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [{"text": "not unbelievable film", "label": 0}])
    out = tmp_path / "out"
    list(
        prepare(
            config_of(data=str(data), methods=[{"method": "captum_lime", "n_samples": 40}], examples=None), out
        ).run()
    )
    write_report(out)
    (scores,) = read_scores(out, "captum_lime@n_samples=40", [0]).values()
    words = [scores[1], scores[2], scores[5]]  # un ##believ ##able share one
    assert scores[2] == scores[3] == scores[4] != 0
    page = (out / "report.html").read_text("utf-8").split("<article>")[1]
    most = max(map(abs, words))
    assert re.findall(r"--m0:(-?[\d.]+)", page) == [f"{word / most:.2f}" for word in words]


def test_nothing_in_a_text_becomes_markup(config_of, tmp_path):
    evil = '<script>alert(1)</script> <img src=x onerror=alert(2)> " onmouseover="x \' & film'
    data = write_lines(tmp_path / "data.jsonl", [{"text": evil, "label": 0}, {"text": "a film", "label": 1}])
    out = tmp_path / "out"
    config = config_of(data=str(data), methods="saliency,random", examples=None)
    list(prepare(config, out).run())
    write_report(out)
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<script") == 1 and "<img" not in page
    assert "&lt;</span>" in page and 'onmouseover="' not in page


def test_what_is_not_finished_is_not_drawn(config_of, tmp_path):
    with pytest.raises(ValueError, match="holds no comparison"):
        write_report(tmp_path)
    comparison = prepare(config_of(), tmp_path)
    with pytest.raises(ValueError, match="has not begun"):
        write_report(tmp_path)
    next(comparison.run())
    with pytest.raises(ValueError, match="not finished, 22 of 24 records are missing"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_scores_that_are_no_numbers_are_hatched(finished):
    from captum_iba.compare import report

    words = join_words((0, 1), ((0, 4), (5, 9)), (0, 0))
    row = {"text": "good film", "pair": None}
    good, _, film = report._pieces(row, words, {"iba": [float("nan"), 2.0], "ig": [-4.0, 0.0]})
    assert (good["strange"], good["style"], good["title"]) == (" x0", "--m1:-1.00", "iba: n/a\nig: -4")
    assert (film["strange"], film["style"], film["title"]) == ("", "--m0:1.00", "iba: 2\nig: 0")
    page = (finished / "report.html").read_text("utf-8")
    assert ".x0 { background: var(--hatch)" in page and "no number" not in page
