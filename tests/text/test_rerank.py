"""The order of the words with the most bits by removal: known values, naive code, other heads, errors."""

import dataclasses
import io
import json
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from rich.console import Console

from captum_iba._explain.leading_parts import GroupSearch, better_group, leading_in_order
from captum_iba._reading.codes import findings
from captum_iba._reading.mask_state import needs_hardly_anything
from captum_iba._reading.places import is_punctuation
from captum_iba._reading.removal_check import DeletionCheck
from captum_iba._reading.wording import format_probability
from captum_iba._reading.words import ranked_words, standing_out
from captum_iba.methods import attribute
from captum_iba.text import TextAttribution, TextExplainer
from captum_iba.text.word_check import check_by_removal
from captum_iba.text.word_removal import TextRemoval
from captum_iba.visualization import terminal_text, token_map, token_page
from captum_iba.visualization.colored_text import token_parts
from tests.visualization.examples import attribution

from .conftest import built

QUICK = {"n_steps": 2, "n_samples": 2}
SHORT, LONG = "the film was not good", "the film was good . the plot was bad . not a good plot, a bad film"


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece)
    explainer.estimate_statistics([SHORT, LONG, "a bad, dull plot!", "not unbelievable"])
    return explainer


def log_odds_of(explainer, result, words):
    """Of the target for the text with some words only, by plain torch."""
    ids, tokenizer = [], explainer.classifier.tokenizer
    encoding = tokenizer(result.text)
    for i, word in zip(encoding["input_ids"], [token.word for token in result.tokens], strict=True):
        if word is None or word in words:
            ids.append(i)
    with torch.no_grad():
        logits = explainer.model(input_ids=torch.tensor([ids])).logits.double()[0]
    p = logits.softmax(-1)[result.target]
    return float(p.log() - (1 - p).log())


@pytest.mark.parametrize(("text", "rerank"), [(SHORT, 8), (LONG, 4), (LONG, 8)])
def test_effects_are_the_mean_of_two_removals(explainer, text, rerank):
    result = explainer.explain(text, rerank=rerank, **QUICK)
    alone = explainer.explain(text, rerank=0, **QUICK)
    assert np.array_equal(result.bits, alone.bits) and alone.effects == alone.without == ()
    every = set(range(len(result.words)))
    by_bits = [result.words.index(word) for word in alone.ranked]
    measured = by_bits if len(by_bits) <= rerank else [i for i in by_bits[:rerank] if result.shares[i] > 0]
    assert [i for i in every if result.effects[i] is not None] == sorted(measured) and len(measured) > 1
    whole, others = log_odds_of(explainer, result, every), every - set(measured)
    for i in measured:
        without = log_odds_of(explainer, result, every - {i})
        after = log_odds_of(explainer, result, others | {i}) - log_odds_of(explainer, result, others)
        assert result.effects[i] == pytest.approx((whole - without + after) / 2, abs=1e-5)
        assert result.without[i] == pytest.approx(1 / (1 + np.exp(-without)), abs=1e-6)
    # The order is that of the deletion of the leading words, then that of the effects, then that of the bits.
    order = [result.words.index(word) for word in result.ranked]
    leading = list(result.removal_order)
    others = sorted((i for i in measured if i not in leading), key=lambda i: -result.effects[i])
    assert order[: len(measured)] == leading + others
    assert order[len(measured) :] == [i for i in by_bits if i not in measured]


def test_long_lists_are_cut_and_say_so():
    """27 words of a text of 60 had a bar, and three of 17 that raise the probability were listed without a word."""
    n_words = 40
    text = " ".join(f"w{number}" for number in range(n_words))
    effects = [3.0, *[1.0 - 0.01 * number for number in range(20)], *[-2.0] * 6, *[None] * 13]
    without = [0.1, *[0.4 + 0.001 * number for number in range(20)], *[0.99] * 6, *[None] * 13]
    result = attribution(text, bits=[0.0, *np.linspace(90, 1, n_words), 0.0], target_probability=0.8)
    result = replace(result, effects=tuple(effects), without=tuple(without), removal_order=(0,), without_first=(0.1,))
    leading, rest = ranked_words(result)
    listed = standing_out(leading, rest)
    assert [row.number for row in listed] == [*range(1, 11), *range(21, 24)]
    cut = "10 words with a bar of at least 15% of the longest and 3 words that may speak against positive."
    for shown in (str(result), token_page([result])):
        assert f"Not in the list: {cut}" in shown
    ranks = {word["rank"]: number for number, word in enumerate(result.to_dict()["words"])}
    assert [ranks[rank] for rank in range(1, 12)] == [0, *(row.number for row in listed[:10])]
    assert [result.words.index(word) for word in result.ranked][:11] == [row.number for row in result.rows][:11]
    assert result.to_dict()["leading"] == [0]


TEXTS = [
    "The plot is dull and boring, the acting is bad, and I want my money back.",
    "A dull plot, but the acting is wonderful.",
    "The plot is thin and the jokes are old, but the two leads are so charming that I did not want it to end.",
]


@pytest.mark.parametrize("text", TEXTS)
def test_as_few_words_lead_as_hold_the_decrease(film_explainer, text):
    """The rule of docs/how_it_works.md, word by word, with the log-odds of every set anew."""
    result = film_explainer.explain(text)
    every = set(range(len(result.words)))
    whole = log_odds_of(film_explainer, result, every)

    def decrease(words):
        return whole - log_odds_of(film_explainer, result, every - set(words))

    def first_to_cover(words):
        decreases = [decrease(words[:count]) for count in range(1, len(words) + 1)]
        return words[: 1 + next(i for i, value in enumerate(decreases) if value >= 0.9 * max(decreases))]

    helpful = [i for i in every if (result.effects[i] or 0) > 0]
    left = first_to_cover(sorted(helpful, key=lambda i: -result.effects[i]))
    while len(left) > 1:
        least = max(left, key=lambda i: decrease([j for j in left if j != i]))
        if decrease(left) - decrease([j for j in left if j != least]) > 0.1:
            break
        left.remove(least)
    in_turn = []
    while left:
        largest = max(decrease([*in_turn, i]) for i in left)
        in_turn.append(next(i for i in left if decrease([*in_turn, i]) >= largest - 0.1))  # the larger effect of a tie
        left.remove(in_turn[-1])
    in_turn = first_to_cover(in_turn)
    # A word after which the probability has fallen by 95% of what it falls by is the last.
    falls = [1 / (1 + math.exp(-whole)) - 1 / (1 + math.exp(decrease(in_turn[:k]) - whole)) for k in range(1, 9)]
    last = next(i for i, value in enumerate(falls) if value >= 0.95 * max(falls[: len(in_turn)]))
    assert list(result.removal_order) == in_turn[: last + 1]


def test_no_word_leads_where_all_measured_words_lower_the_class_by_next_to_nothing(film_explainer):
    result = film_explainer.explain("A wonderful film.", check=True)
    helpful = [i for i, effect in enumerate(result.effects) if (effect or 0) > 0]
    every = set(range(len(result.words)))
    whole = log_odds_of(film_explainer, result, every)
    lowest = min(log_odds_of(film_explainer, result, every - {i}) for i in helpful)
    assert 0.03 < whole - lowest < 0.5 and result.removal_order == result.without_first == ()
    assert ranked_words(result)[0] == [] and result.verdict == ""


def test_the_least_words_of_a_check_are_those_with_the_fewest_bits(film_explainer):
    """A measured word with a negative effect stood last, and was deleted as the one with the fewest bits."""
    result = film_explainer.explain("A dull and boring film.")
    by_bits = film_explainer.explain(result.text, rerank=0).ranked
    last = result.words.index(by_bits[1])
    effects = tuple(-1.0 if i == last else effect for i, effect in enumerate(result.effects))
    harmful = dataclasses.replace(result, effects=effects, removal_order=(), without_first=())
    (encoded,) = film_explainer.classifier.encode([result.text], [None])
    check = check_by_removal(TextRemoval(film_explainer.classifier, encoded, 8), harmful)
    order = [result.words.index(word) for word in by_bits if word.word != "."]
    leading = [result.words.index(row_word) for row_word in harmful.ranked[: check.n_removed]]
    least = [i for i in order if i not in leading][-check.n_removed :]
    expected = 1 / (1 + np.exp(-log_odds_of(film_explainer, result, set(range(len(result.words))) - set(least))))
    assert last not in least and check.without_least == pytest.approx(expected, abs=1e-6)


def test_no_word_leads_where_no_deletion_lowers_the_class(explainer):
    result = explainer.explain(SHORT, **QUICK)
    none = dataclasses.replace(
        result, effects=(-0.3, -2.0, -1.0, 0.0, -0.1), without=(0.5,) * 5, removal_order=(), without_first=()
    )
    assert ranked_words(none)[0] == []
    sure = dataclasses.replace(none, closed_probability=0.0, masked_probability=none.target_probability)
    assert ("No word leads: no small group of the" in str(sure)) is not needs_hardly_anything(sure)


def test_a_word_that_a_synonym_covers_leads(film_explainer):
    """Deleted alone, neither of "dull" and "boring" changes anything; without the other one each decides."""
    result = film_explainer.explain("A dull and boring film.", check=True)
    leading = [row.name for row in ranked_words(result)[0]]
    assert set(leading) == {"dull", "boring"} and min(result.without[1], result.without[3]) > 0.95
    assert result.check.without_leading < 0.1 and result.verdict == "confirmed"


def test_what_is_shown_of_effects(film_explainer):
    result = film_explainer.explain("Not bad at all.", target="negative")
    answer, head, row = str(result).splitlines()[2:5]
    after = format_probability(result.without_first[-1])
    assert answer.endswith(f"to {after} (not checked against other words).")
    first = result.ranked[0]
    without = f"{result.without[result.words.index(first)]:.1%}"
    assert head.split()[:2] == ["without", "it"] and re.search(r"  leading words?$", head)
    assert row.split()[0] == without and len(re.findall("[█▒]", row)) == 24 and f"{first.word} (word " in row
    said = (
        "decrease in the log-odds, log(p / (1 - p)), without this word: solid, alone; hatched, after the other leading "
        "ones, if that is more"
    )
    (legend,) = [line for line in str(result).splitlines() if line.startswith("bar ")]
    assert legend.split(maxsplit=1) == ["bar", said] and legend.index(said) == len(max(result.legend(), key=len)) + 2
    assert "of the bits" not in str(result) and "of the bits" in result.to_text(details=True)
    assert {*result.legend(details=True)} - {*result.legend()} == {"of the bits"}
    for page in (token_map(result), token_page([result])):
        assert f"<b>{without}</b>" in page
        bar = r'<span class="bar"><i style="width:(.*?)%"></i><i class="after" style="width:(.*?)%">'
        widths = re.findall(bar, page)
        assert sum(map(float, widths[0])) == pytest.approx(100, abs=0.1)
    assert said in token_map(result) and "<dt>bars, color</dt>" in token_page([result])
    by_bits = film_explainer.explain("Not bad at all.", rerank=0)
    for page in (str(by_bits), token_map(by_bits), token_page([by_bits])):
        assert "without it" not in page and "decreases in the log-odds" not in page


def test_color_and_bars_show_the_effects(film_explainer):
    """Colors showed bits, and the list the effects; then bars were drawn as long as that of the next word."""
    text = "The plot is thin and the jokes are old, but the two leads are so charming that I did not want it to end."
    result = film_explainer.explain(text, rerank=3)
    assert sum(effect is not None for effect in result.effects) == 3
    drawn = token_parts(result)
    depths = {part.word: part.depth for part in drawn.parts if part.kind == "word"}
    # A color and a bar are measurements: the others have neither.
    # One rule for all: the effect, or the decrease alone where that is larger; relative to the largest.
    whole = math.log(result.target_probability / (1 - result.target_probability))
    expected = [
        0.0 if effect is None else max(0.0, effect, whole - math.log(without / (1 - without)))
        for effect, without in zip(result.effects, result.without, strict=True)
    ]
    assert [depths[i] for i in range(len(result.words))] == pytest.approx(np.array(expected) / max(expected), abs=1e-4)
    rows = {row.number: row for of in ranked_words(result) for row in of}
    assert all(rows[i].importance == depths[i] == result.importance[i] for i in rows)
    # With a check every word was deleted, and has the bar of its number.
    checked = film_explainer.explain(text, rerank=3, check=True)
    lowers = [row for row in checked.rows if row.without < checked.target_probability]
    assert len(lowers) > 3 and all(row.importance > 0 for row in lowers)
    assert drawn.scale.maximum == 1 and all(part.depth == 0 for part in drawn.parts if part.kind == "special")
    # By the bits alone they are the shares, relative to the largest.
    by_bits = film_explainer.explain(text, rerank=0)
    assert by_bits.importance == pytest.approx(by_bits.shares / by_bits.shares.max())


def test_the_leading_words_are_in_the_order_of_their_deletion(film_explainer):
    """One came first that had been deleted after all others only: alone it raised the probability."""
    result = film_explainer.explain("The plot is dull and boring, the acting is bad, and I want my money back.")
    every = set(range(len(result.words)))
    order, value = list(result.removal_order), partial(log_odds_of, film_explainer, result)
    assert 1 < len(order) < len(every) and [result.words.index(word) for word in result.ranked][: len(order)] == order
    leading = ranked_words(result)[0]
    assert [row.number for row in leading] == order
    so_far = [1 / (1 + np.exp(-value(every - set(order[: k + 1])))) for k in range(len(order))]
    assert list(result.without_first) == pytest.approx(so_far, abs=1e-6)
    assert [row.without_so_far for row in leading] == list(result.without_first)
    # Each adds to the others: without it the log-odds are higher by more than 0.1.
    whole = value(every - set(order))
    assert all(value(every - set(order) | {i}) - whole > 0.1 for i in order)
    head = next(line for line in str(result).splitlines() if line.startswith("without it"))
    assert head.startswith("without it  and those above")
    assert ">and those above</th>" in token_page([result])


def test_a_word_that_speaks_against_it_is_in_the_list(film_explainer):
    result = film_explainer.explain("Not bad at all.", rerank=0, check=True)
    rows = [row for of in ranked_words(result) for row in of]
    against = [row for row in rows if row.relation]
    for row in rows:
        rises = row.without - result.target_probability
        assert (row in against) == (rises > 0.1) or 0.05 < rises <= 0.1
    given = dataclasses.replace(
        result, target_probability=0.5, check=None, effects=(-2.0, 3.0, 0.5, 0.1), without=(0.9, 0.1, 0.4, 0.5)
    )
    assert "(word 1) · speaks against it" in str(given) and "Not (" not in token_page([given]).split("<tbody>")[0]
    assert token_page([given]).count(' against" title="Not') == 1


def test_json_there_and_back(explainer, tmp_path):
    result = explainer.explain(LONG, **QUICK)
    assert TextAttribution.load(result.save(tmp_path / "result.json")) == result
    words = json.loads((tmp_path / "result.json").read_text("utf-8"))["words"]
    assert [word["effect"] for word in words] == pytest.approx(list(result.effects))
    assert [word["without"] for word in words] == pytest.approx(list(result.without))
    # Files of earlier versions have neither.
    old = result.to_dict()
    for name in ("effects", "without", "removal_order", "without_first"):
        del old[name]
    assert TextAttribution.from_dict(old).effects == ()


def test_one_by_one_as_in_a_batch(explainer):
    texts = [LONG, SHORT, "a bad, dull plot!"]
    alone = [explainer.explain(text, **QUICK) for text in texts]
    for one, other in zip(explainer.explain(texts, **QUICK), alone, strict=True):
        assert [a is None for a in one.effects] == [a is None for a in other.effects]
        for a, b in zip(one.effects, other.effects, strict=True):
            assert a is b is None or a == pytest.approx(b, abs=1e-4)


def test_a_single_word_is_deleted(explainer, film_explainer):
    """It had bits and layers in place of the probability without it."""
    result = explainer.explain("good", **QUICK)
    alone = log_odds_of(explainer, result, {0}) - log_odds_of(explainer, result, set())
    assert result.effects == (pytest.approx(alone, abs=1e-5),) and "the 1 words" not in str(result)
    leads = film_explainer.explain("bad", check=True)
    assert leads.removal_order == (0,) and leads.without_first == (pytest.approx(leads.without[0]),)
    assert f"{leads.without[0]:10.1%}" in str(leads) and "of the bits" not in str(leads)


@pytest.mark.parametrize("rerank", [-1, 1.5, True, "8"])
def test_a_wrong_number_of_words(explainer, rerank):
    with pytest.raises(ValueError, match=r"rerank is .*, expected an integer of at least 0"):
        explainer.explain(SHORT, rerank=rerank)


def test_of_a_regression_it_is_the_closeness(wordpiece):
    explainer = TextExplainer(built("BertForSequenceClassification", num_labels=1), wordpiece)
    result = explainer.explain(SHORT, check=True, **QUICK)
    assert "log-odds" not in str(result) and "the closeness when this word is deleted" in str(result)
    first = ranked_words(result)[0][0] if ranked_words(result)[0] else None
    for i, without in enumerate(result.without):
        assert without is None or 0 <= without <= 1, i
    assert first is None or first.is_measured
    assert result.check.probability == pytest.approx(result.target_probability, abs=1e-6)


def test_what_is_explained_is_not_removed(entities):
    result = entities.explain(LONG, word=1, check=True, **QUICK)
    assert result.effects[1] is None and any(effect is not None for effect in result.effects)
    assert result.words[1].word == "film"


def test_the_method_has_the_order_of_explain(film_explainer):
    texts = ["The plot is dull and the acting is unbelievably bad.", "A wonderful film."]
    settings = {"beta": 3.0}
    results = film_explainer.explain(texts, target=[0, 1], **settings)
    statistics = film_explainer.statistics
    scores = attribute(
        "iba_reranked", film_explainer.classifier, texts, target=[0, 1], statistics=statistics, **settings
    )
    bits = attribute("iba", film_explainer.classifier, texts, target=[0, 1], statistics=statistics, **settings)
    for result, ranked, plain in zip(results, scores, bits, strict=True):
        measured = [i for i, effect in enumerate(result.effects) if effect is not None]
        order = np.argsort(-ranked.words, kind="stable")[: len(measured)]
        assert [result.words[i] for i in order] == list(result.ranked[: len(measured)])
        others = [i for i, token in enumerate(result.tokens) if token.word is not None and token.word not in measured]
        assert np.allclose(ranked.tokens[others], plain.tokens[others] / result.total_bits, rtol=1e-3)
        # Tokens of measured words stand before all others.
        of_measured = [i for i, token in enumerate(result.tokens) if token.word in measured]
        assert min(ranked.tokens[of_measured]) > max([*ranked.tokens[others], 0.0])


def test_leading_words_are_underlined(film_explainer):
    text = "The photography is stunning, but the story is a boring mess."
    result = film_explainer.explain(text)
    leading = [row.name for row in ranked_words(result)[0]]
    assert leading == ["boring", "mess"]
    for page in (token_map(result), token_page([result])):
        assert re.findall(r'class="w \w+ lead" title="(\w+):', page) == leading
    console = Console(no_color=False, force_terminal=True, width=200, color_system="truecolor", file=io.StringIO())
    console.print(terminal_text(result))
    assert console.file.getvalue().count("\x1b[4") == 2
    by_bits = film_explainer.explain(text, rerank=0)
    assert ' lead"' not in token_page([by_bits])


def test_words_that_a_check_finds_are_put_in_order(film_explainer):
    """ "too" has hardly any bits, and without it alone .72 falls to .39: only a sentence said so."""
    text = "The music is lovely and the cast is great, but it is boring and too long."
    without, result = film_explainer.explain(text), film_explainer.explain(text, check=True)
    too = [word.word for word in result.words].index("too")
    assert without.effects == () and result.without[too] < 0.75 * result.target_probability
    assert result.effects[too] > 0 and result.ranked[1].word == "too"
    assert np.array_equal(without.bits, result.bits)
    # With the order by bits it has a label.
    by_bits = film_explainer.explain(text, check=True, rerank=0)
    assert by_bits.effects == () and "too (word 15) · changes the prediction" in str(by_bits)


def test_bars_are_pale_where_the_leading_words_are_not_confirmed(film_explainer):
    result = film_explainer.explain(TEXTS[0], check=True)
    pale = dataclasses.replace(result, check=dataclasses.replace(result.check, lowest_random=0.0))
    assert (result.verdict, pale.verdict) == ("confirmed", "not confirmed")
    for one, is_pale in ((result, False), (pale, True)):
        assert ("░" in str(one), "█" in str(one)) == (is_pale, not is_pale)
        for page in (token_page([one]), token_map(one), token_page([one, one])):
            assert ('<table class="words pale">' in page) is is_pale


def test_more_words_are_measured_where_the_first_ones_leave_most_of_the_probability(film_explainer):
    """Of twelve words that say the same, eight were deleted: "falls a little, from 99.0% to 97.9%"."""
    words = "dull, boring, awful, terrible, dreadful, stupid, lame, weak, poor, bad, horrible, pointless"
    text = f"A {words} film."
    unchecked, result = film_explainer.explain(text), film_explainer.explain(text, check=True)
    assert sum(effect is not None for effect in unchecked.effects) == 8 < len(result.removal_order)
    kept = set(range(len(result.words))) - set(result.removal_order)
    left = 1 / (1 + math.exp(-log_odds_of(film_explainer, result, kept)))
    assert result.without_first[-1] == pytest.approx(left, abs=1e-5) and left < 0.1 * result.target_probability
    assert unchecked.without_first == () or unchecked.without_first[-1] > 0.5 * result.target_probability
    said = (
        "and 7 other leading words (12 of 26 words and punctuation marks) the probability of negative falls from 99.0%"
    )
    assert f"{said} to 1.3%" in str(result)
    assert np.array_equal(result.bits, unchecked.bits)
    # Where the first ones decide, no more are measured.
    few = film_explainer.explain("A dull, boring film, but it is not long, and the music is in it.", check=True)
    assert sum(effect is not None for effect in few.effects) <= 8


@pytest.mark.parametrize("rerank", [16, 24, 40])
def test_more_measured_words_never_give_a_worse_set(film_explainer, rerank):
    """Six of eight measured words left 9.2%, and five of 24 left 15.5%."""
    text = (
        "Sometime I fail to understand what do the directors think when they make a movie... I had had a trauma after "
        "watching Welcome (2007) and thought that they wont do it again."
    )
    default, more = (film_explainer.explain(text, check=True, rerank=count) for count in (8, rerank))
    assert more.without_first[-1] <= default.without_first[-1] < 0.1
    assert sum(effect is not None for effect in more.effects) > sum(effect is not None for effect in default.effects)


def test_the_leading_words_and_the_answer_are_attributes(film_explainer):
    result = film_explainer.explain("The story is a boring mess.", check=True)
    assert [word.word for word in result.leading] == [row.name for row in ranked_words(result)[0]]
    assert result.leading == result.ranked[: len(result.leading)]
    assert result.answer == result.sentences[0] and result.answer.startswith('Without "')


def test_more_words_are_measured_where_all_measured_ones_lead(film_explainer):
    """Four words left 36.5%, "confirmed", and five others 1.1%."""
    text = "The acting is bad, the plot is dull, the music is awful and the ending is terrible."
    unchecked, result = (film_explainer.explain(text, check=check, rerank=4) for check in (False, True))
    assert len(unchecked.removal_order) == sum(effect is not None for effect in unchecked.effects) == 4
    before, after = (one.without_first[-1] / one.target_probability for one in (unchecked, result))
    assert 0.1 < before < 0.5 and after < before - 0.1 and len(result.removal_order) == 5


def test_json_has_the_probability_without_each_word_of_a_short_text(film_explainer):
    """Of 60 words 52 were null, though the page had their probabilities."""
    result = film_explainer.explain("The story is a boring mess, and the music of the film is dull.", check=True)
    words = result.to_dict()["words"]
    assert [word["without"] for word in words] == list(result.without) == pytest.approx(list(result.check.without_each))
    assert sum(effect is not None for effect in result.effects) < len(words) and None not in result.without
    for row in ranked_words(result)[1]:
        assert row.without == result.without[row.number]


def test_more_than_half_of_all_words_is_told_in_numbers(film_explainer):
    """ "More than half of all words lead" stood beside "23 of 48 words and punctuation marks"."""
    text = "Dull, boring, awful, terrible, dreadful, stupid, lame, weak, poor, horrible, pointless film."
    result = film_explainer.explain(text, check=True)
    marks = sum(is_punctuation(word.word) for word in result.words)
    leading = sum(not is_punctuation(word.word) for word in result.leading)
    counted = f"more than half of all words lead ({leading} of {len(result.words) - marks} without punctuation marks)"
    assert 2 * leading > len(result.words) - marks and counted in result.answer


def test_an_answer_where_all_words_lead(film_explainer):
    """It had half of them: "stays at 99.0%", beside a list that ends at 1.2%."""
    result = film_explainer.explain("awful terrible dreadful horrible", check=True)
    assert len(result.removal_order) == 4 and result.verdict == ""
    assert result.check.without_leading == pytest.approx(result.without_first[-1], abs=1e-6)
    after = format_probability(result.without_first[-1])
    answer = 'Without "awful", "terrible", "horrible" and "dreadful" the probability of negative falls from 98.9% to '
    assert answer + after in str(result) and "Not compared with others, because all words lead" in str(result)
    assert "not_compared" in findings(result) and "not_confirmed" not in findings(result)


def test_all_leading_words_are_listed_and_have_a_bar(film_explainer):
    """The list ended after 20 of 22, at another probability than the answer."""
    result = film_explainer.explain("boring " * 23 + "plot", check=True)
    assert len(result.removal_order) > 20
    assert len([line for line in str(result).splitlines() if line.endswith(")") and "▒  " in line]) == len(
        result.removal_order
    )
    together = film_explainer.explain("Not bad at all, I did not hate it and never felt bored.", check=True)
    assert "None of them alone lowers the probability by 1% of its value." in str(together)
    # The third one took 67 points of the probability after those above it, and had no bar.
    assert min(row.importance for row in ranked_words(together)[0]) > 0.15 and "no bar" not in str(together)


def test_a_leading_part_is_exchanged_for_a_better_one():
    """Without "raised" and five other words 20.3% were left, and 3.6% with "sharply" in its place."""

    def value(kept):
        return 2.0 * kept[:, 0] + kept[:, 1] + 1.5 * kept[:, 2]

    order = np.array([0, 1, 2, 3])
    assert leading_in_order(value, order, 2, tolerance=0.1) == ([0, 1], [2.5, 1.5])
    assert leading_in_order(value, order, 2, tolerance=0.1, search=GroupSearch([1, 2, 3])) == ([0, 2], [2.5, 1.0])


@pytest.mark.parametrize("probabilities", [None, torch.sigmoid])
def test_many_words_of_which_none_is_the_first_to_matter_are_sorted_by_their_bars(probabilities):
    """Of 15 leading words "Iraq" was the first for 0.1 points, and word 13 took it from 93.1% to 21.4%."""
    weights = torch.tensor([1.0, 1.8, 1.2, 1.9, 1.4, 1.1, 1.7, 1.3, 1.6, 1.5], dtype=torch.float64)

    def value(kept, most=4.0):
        return torch.clamp(kept.double() @ weights, max=most)

    by_weight = (-weights).argsort().tolist()
    found, without = leading_in_order(value, np.arange(10), 10, 0.05, probabilities=probabilities)
    assert found == by_weight and without[4] == 4.0  # what each adds to the others
    assert without == pytest.approx([min(4.0, float(weights[by_weight[k:]].sum())) for k in range(1, 11)])
    # Where the first half does half of it, they stay in the order of their deletion.
    every, lowered = leading_in_order(lambda kept: value(kept, 99.0), np.arange(10), 10, 0.05, probabilities=None)
    assert every == by_weight[: len(every)] and lowered == sorted(lowered, reverse=True)


def test_a_group_is_found_that_no_single_exchange_finds():
    """Of a pair "museum" and "closed" led with 31.5% left; "every" and "except", both measured, leave 22.8%."""

    def value(kept):
        museum, closed, every, other = (~kept[:, i] for i in range(4))
        return 3.0 - 1.5 * museum - 0.5 * closed - 1.4 * every - 1.4 * (every & other) + 0.9 * (museum & every)

    order, search = np.array([0, 1, 2, 3, 4]), GroupSearch([0, 1, 2, 3])
    assert leading_in_order(value, order, 2, tolerance=0.1)[0] == [0, 1]
    leading, without = leading_in_order(value, order, 2, tolerance=0.1, search=search)
    assert set(leading) == {2, 3} and without[-1] == pytest.approx(0.2)


def test_a_word_that_raises_the_probability_alone_can_lead_with_another():
    """Without "Nobody" and "coat" 34.3% were left, without "Nobody" and "blue" 21.8%: alone "blue" raised it."""

    def value(kept):
        nobody, coat, blue = (~kept[:, i] for i in range(3))
        return 3.0 - 2.0 * nobody - 0.5 * coat + 0.2 * blue - 1.5 * (nobody & blue) + 1.2 * (coat & blue)

    order = np.arange(5)
    leading, _ = leading_in_order(value, order, 2, tolerance=0.1, search=GroupSearch([0, 1], tried=range(5)))
    assert leading == [0, 2]
    assert leading_in_order(value, order, 2, tolerance=0.1, search=GroupSearch([0, 1]))[0] == [0, 1]


def test_each_set_of_words_runs_once(film_explainer):
    rows = []
    (encoded,) = film_explainer.classifier.encode(["A dull film."], [None])
    removal = TextRemoval(film_explainer.classifier, encoded, 8, rows.append)
    first = removal.probabilities([{0, 1}, {1, 0}, {2}])
    again = removal.probabilities([{2}, {0, 1}, {0, 2}])
    assert sum(rows) == 3 and torch.equal(first[[2, 0]], again[:2]) and torch.equal(first[0], first[1])
    assert removal.probabilities([]).shape == (0, 2)


def test_an_answer_with_many_leading_words_says_where_half_of_the_decrease_is():
    bits = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    check = DeletionCheck(6, 0.9, 0.1, 0.88, 0.89, 10)
    result = attribution(
        " ".join("abcdefghijklm"),
        bits,
        check=check,
        target_probability=0.9,
        effects=(*[1.0] * 6, *[None] * 7),
        removal_order=(0, 1, 2, 3, 4, 5),
        without_first=(0.8, 0.45, 0.4, 0.3, 0.2, 0.1),
    )
    assert (
        "falls from 90.0% to 10.0%. Without the first 2 leading words the probability of positive is still 45.0%."
        in result.answer
    )
    late = dataclasses.replace(result, without_first=(0.8, 0.8, 0.8, 0.8, 0.2, 0.1))
    assert "is still" not in late.answer
    few = dataclasses.replace(result, removal_order=(0, 1), without_first=(0.4, 0.1))
    assert "leading words it is" not in few.answer
    assert [row.number for row in result.rows][:6] == [0, 1, 2, 3, 4, 5] and len(result.rows) == 13


def test_no_part_is_exchanged_for_an_equal_one_or_for_nan():
    def value(kept):
        found = kept[:, 0] + 0.5 * kept[:, 1] + 0.5 * kept[:, 2]
        return torch.where(kept[:, 3], found, math.nan)

    assert better_group(value, [0, 1], GroupSearch([2, 3]), 4, tolerance=0.0) == (0, 1)


def test_a_single_leading_part_is_exchanged():
    def value(kept):
        return kept @ torch.tensor([1.0, 2.0, 0.0])

    leading, without = leading_in_order(lambda kept: value(kept.float()), np.array([0, 1, 2]), 1, 0.1, GroupSearch([1]))
    assert leading == [1] and without == [1.0]


def test_a_smaller_group_leads_that_does_nearly_as_much():
    """Five words led where three others left nearly as little, and the group was not searched again after a cut."""

    def value(kept):
        removed = (~kept).double()
        return (
            10
            - 9.5 * removed[:, 4] * removed[:, 5]
            - 2.5 * (removed[:, 0] + removed[:, 1] + removed[:, 2] + removed[:, 3])
        )

    def group(**search):
        return {*better_group(value, [0, 1, 2, 3], GroupSearch([4, 5], **search), n_parts=6, tolerance=0.1)}

    # Without two of the others as well the value is -4.5, without one -2: 12 of 14.5 of the decrease.
    assert {4, 5} < group(n_begun=6) and len(group(n_begun=6)) == 4
    assert {4, 5} < group(n_begun=6, enough=0.8) and len(group(n_begun=6, enough=0.8)) == 3
    # None of the two lowers it alone, so that groups that begin with four parts do not find them.
    assert group() == {0, 1, 2, 3}


def test_a_pair_of_which_each_word_alone_speaks_against_the_class_is_found():
    """Of "not a bad film" three other words led, and "not" and "bad" were said to speak against the class."""

    def value(kept):  # 0 and 1 raise it alone, and lower it together
        without = ~kept
        pair = without[:, 0] & without[:, 1]
        return 2.0 - 3.0 * pair + 0.5 * (without[:, 0] ^ without[:, 1]) - 0.4 * without[:, 2] - 0.4 * without[:, 3]

    order = np.array([2, 3, 4, 5, 0, 1])
    alone = leading_in_order(value, order, 2, 0.1, GroupSearch([2, 3], tried=range(6), n_begun=6))
    assert set(alone[0]) == {2, 3}
    leading, without = leading_in_order(value, order, 2, 0.1, GroupSearch([2, 3], range(6), pairs=range(6)))
    assert {0, 1} <= {*leading} and without[-1] <= -1.0
    # Never do all parts lead, and where none lowers the value alone a pair can.
    only_pair = GroupSearch([], range(3), n_begun=3, pairs=range(3))
    assert leading_in_order(lambda kept: -2.0 * (~kept).all(1), np.arange(3), 0, 0.1, only_pair)[0] == []
    both = leading_in_order(lambda kept: 1.0 - 2.0 * (~kept[:, :2]).all(1), np.arange(3), 0, 0.1, only_pair)
    assert sorted(both[0]) == [0, 1] and both[1] == [1.0, -1.0]
    sigmoid = leading_in_order(
        lambda kept: 1.0 - 0 * kept[:, 0], np.arange(3), 0, 0.1, only_pair, probabilities=torch.sigmoid
    )
    assert sigmoid == ([], [])


def test_a_part_that_does_nearly_as_much_alone_leads_in_place_of_a_pair():
    """Of an image a pair left 4.4%, and one region alone, which was not measured, 6.4%."""

    def probability(kept):
        pair = ~kept[:, 0] & ~kept[:, 1]
        return torch.where(pair, 0.044, torch.where(kept[:, 5], 1.0, 0.064)).double()

    search = GroupSearch([0, 1, 2], tried=range(6), n_begun=8, enough=0.95)
    assert leading_in_order(probability, np.array([0, 1, 2, 3, 4, 5]), 3, 0.02, search) == ([5], [pytest.approx(0.064)])


def test_a_leading_word_that_raises_the_probability_alone_says_so(film_explainer):
    """It was underlined and colored like a word that lowers it."""
    result = film_explainer.explain("The photography is stunning, but the story is a boring mess.", check=True)
    first = result.removal_order[0]
    higher = result.target_probability + 0.5 * (1 - result.target_probability)
    each = tuple(higher if i == first else p for i, p in enumerate(result.check.without_each))
    check = dataclasses.replace(result.check, without_each=each)
    raised = dataclasses.replace(result, check=check, without=each)
    assert higher >= result.target_probability + 0.01
    row = next(row for row in raised.rows if row.number == first)
    assert row.without == pytest.approx(higher) and row.relation == "raises it alone"
    assert "raises it alone the probability is higher without this word alone" in " ".join(str(raised).split())
    assert "<dt>raises it alone</dt>" in token_page([raised]) and "<dt>raises it alone" not in token_page([result])
    assert "raises it alone" not in str(result)
