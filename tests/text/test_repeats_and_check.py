"""How sure an answer is: repeats with other noise and other texts for the statistics, and the check by deletion."""

import dataclasses
import html
import itertools
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from captum_iba._explain.check import kept_in_check
from captum_iba._explain.leading_parts import fewest_to_change, leading_in_order
from captum_iba._reading.order import nearly_tied
from captum_iba._reading.removal_check import DeletionCheck
from captum_iba._reading.text_parts import parts
from captum_iba._reading.word_sentences import verdict
from captum_iba._reading.words import ranked_words
from captum_iba.demo import embedded_statistics
from captum_iba.text import TextAttribution, TextExplainer
from captum_iba.text.statistics import GroupedStatistics
from captum_iba.text.word_removal import TextRemoval, keep_words
from captum_iba.visualization import save_token_page, token_map, token_page
from tests.visualization.examples import attribution, by_rank

TEXTS = ["The film was not good", "a dull, unbelievable plot! don't like the plot", "good?"]
TRAINING = ["the film was good", "a dull plot, not good", "unbelievable", "I don't like the plot", "good", "bad!"] * 5
QUICK = {"n_steps": 3}


@pytest.fixture
def fitted(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few positions
        explainer.estimate_statistics(TRAINING)
    return explainer


def test_groups_of_texts_add_up_to_all_texts(fitted):
    for statistics in fitted.statistics:
        groups = [group for group in statistics.groups if group.count]
        assert len(groups) == 8 and sum(group.count for group in groups) == statistics.count
        merged = groups[0]
        for group in groups[1:]:
            merged = merged.merge(group)
        torch.testing.assert_close(merged.mean, statistics.mean)
        torch.testing.assert_close(merged.std, statistics.std)


def test_a_resampled_estimate_is_that_of_the_drawn_groups(fitted):
    statistics = fitted.statistics[0]
    drawn = torch.randint(8, (8,), generator=torch.Generator().manual_seed(3)).tolist()
    expected = statistics.groups[drawn[0]]
    for number in drawn[1:]:
        expected = expected.merge(statistics.groups[number])
    sample = statistics.resampled(3)
    assert sample.count == expected.count and sample.layer == statistics.layer and sample.model == statistics.model
    torch.testing.assert_close(sample.mean, expected.mean)
    torch.testing.assert_close(sample.std, expected.std)


def test_groups_are_saved(fitted, tmp_path):
    results = fitted.explain(TEXTS, repeats=3, **QUICK)
    fitted.save_statistics(tmp_path)
    again = TextExplainer(fitted.classifier.model, fitted.classifier.tokenizer, statistics=tmp_path)
    for one, other in zip(results, again.explain(TEXTS, repeats=3, **QUICK), strict=True):
        assert np.allclose(one.repeats, other.repeats, rtol=1e-4, atol=1e-5)


def test_the_first_repeat_is_the_result_without_repeats(fitted):
    for n_samples in (0, 2):
        once = fitted.explain(TEXTS, n_samples=n_samples, seed=4, **QUICK)
        repeated = fitted.explain(TEXTS, n_samples=n_samples, seed=4, repeats=3, **QUICK)
        for one, several in zip(once, repeated, strict=True):
            assert one.repeats == () and np.isnan(one.shares_std).all()
            assert np.array(several.repeats).shape == (3, len(one.tokens))
            assert np.array_equal(several.repeats[0], one.bits)
            assert np.allclose(several.bits, np.mean(several.repeats, 0))
            assert not np.array_equal(several.repeats[0], several.repeats[1])
            assert np.allclose(several.repeated_shares[0], one.shares)
            assert np.allclose(several.shares_std, np.std(several.repeated_shares, 0, ddof=1))


def test_repeats_leave_the_statistics_as_they_are(fitted):
    before = fitted.statistics
    fitted.explain(TEXTS[0], repeats=2, **QUICK)
    assert fitted.statistics is before


def test_noise_alone_varies_where_statistics_have_no_groups(fitted):
    fitted.statistics = [statistics.resampled(0) for statistics in fitted.statistics]
    result = fitted.explain(TEXTS[0], repeats=2, n_samples=1, seed=7, **QUICK)
    for number in (0, 1):
        alone = fitted.explain(TEXTS[0], n_samples=1, seed=7 + number, **QUICK)
        assert np.array_equal(result.repeats[number], alone.bits)
    with pytest.raises(ValueError, match="repeats is 2, but nothing varies: n_samples is 0"):
        fitted.explain(TEXTS[0], repeats=2, **QUICK)


def test_statistics_of_one_text_do_not_vary(bert, wordpiece):
    explainer = TextExplainer(bert, wordpiece)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few positions
        explainer.estimate_statistics(["the film was good, the plot was not dull"])
    with pytest.raises(ValueError, match="nothing varies.*statistics are of one text.*from at least 2 texts"):
        explainer.explain(TEXTS[0], repeats=2, **QUICK)


@pytest.mark.parametrize("repeats", [0, 1.5, True, "5"])
def test_a_wrong_number_of_repeats(fitted, repeats):
    with pytest.raises(ValueError, match="repeats is .*, expected an integer of at least 1"):
        fitted.explain(TEXTS[0], repeats=repeats)


def test_words_whose_order_changes_are_marked(film_explainer):
    text = "A dull plot, bad acting and a boring end."
    result = film_explainer.explain(text, repeats=4, rerank=0)
    shares, order = result.repeated_shares, np.argsort(-result.shares)
    lines = [line for line in str(result).splitlines() if "bits" in line and "(word" in line]
    for rank, line in enumerate(lines):
        word = order[rank]
        neighbours = [order[i] for i in (rank - 1, rank + 1) if 0 <= i < len(order)]
        signs = [np.sign(shares[:, word] - shares[:, other]) for other in neighbours]
        assert line.endswith("≈") == any(len(set(sign)) > 1 for sign in signs)
        assert f"± {100 * result.shares_std[word]:4.1f}%" in line
    leads = sum(row.argmax() == order[0] for row in shares)
    assert f'"{result.words[order[0]].word}" leads in {leads} of 4 repeats' in str(result)
    for page in (token_map(result), token_page([result])):
        assert f"leads in {leads} of 4 repeats" in page and "±" in page
    # The order by removal does not depend on them.
    settled = film_explainer.explain(text, repeats=4)
    leading = settled.removal_order
    assert len(leading) == 4 and settled.repeated_leading == (leading,) * 4
    said = "All 4 leading words lead in each of 4 repeats, and no other word"
    assert "≈" not in str(settled) and said in str(settled) and said in html.unescape(token_page([settled]))


def test_the_leading_words_of_a_repeat_are_those_of_an_explanation_of_its_own(fitted):
    """It was said of their bits alone, which do not say whether the same words lead."""
    fitted.statistics = [statistics.resampled(0) for statistics in fitted.statistics]  # so that the noise alone varies
    for check in (False, True):
        options = {"n_samples": 1, "rerank": 2, "check": check, **QUICK}
        result = fitted.explain(TEXTS[1], repeats=3, seed=5, **options)
        alone = [fitted.explain(TEXTS[1], seed=5 + number, **options).removal_order for number in range(3)]
        assert result.repeated_leading == tuple(alone)
        assert TextAttribution.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert fitted.explain(TEXTS[1], repeats=2, rerank=0, n_samples=1, **QUICK).repeated_leading == ()


@pytest.mark.parametrize(
    ("leading", "of_repeats", "says"),
    [
        ((1,), [(1,)] * 3, "The leading word leads in each of 3 repeats, and no other word."),
        ((1, 2), [(1, 2), (2, 1), (1, 2)], "Both leading words lead in each of 3 repeats, and no other word."),
        ((1, 2), [(1, 2), (1,), (1, 0)], '"dull" leads in each of 3 repeats, "plot" in 1 and "A" in 1.'),
        ((1, 2), [(1,), (2, 1), (2, 0)], '"dull" leads in 2 of 3 repeats, "plot" in 2 and "A" in 1.'),
        ((1,), [(), (), ()], "No word leads in 3 of 3 repeats."),
        ((), [(), (1,), ()], "Some word leads in 1 of 3 repeats."),
        (
            (1, 2, 4, 5),
            [(1, 2, 4), (1, 2, 5, 8), (1, 2, 7)],
            "2 of the 4 leading words lead in each of 3 repeats, and 2 other words in some of them.",
        ),
    ],
)
def test_what_is_said_of_the_leading_words_of_repeats(film_explainer, leading, of_repeats, says):
    result = film_explainer.explain("A dull plot, bad acting and a boring end.", repeats=2)
    without = tuple(0.5 / (1 + k) for k in range(len(leading)))
    changed = replace(
        result, removal_order=leading, without_first=without, without_others=(), repeated_leading=tuple(of_repeats)
    )
    assert any(sentence.startswith(says.removesuffix(".")) for sentence in changed.sentences), changed.sentences


def with_repeats(result, bits, *repeats):
    """The result with these bits of the words in the mean and in each repeat, and a floor of 0.1 bits."""

    def of_tokens(values):
        return tuple(0.1 if token.word is None else values[token.word] for token in result.tokens)

    tokens = tuple(replace(token, bits=b) for token, b in zip(result.tokens, of_tokens(bits), strict=True))
    repeated = tuple(map(of_tokens, repeats))
    return replace(result, tokens=tokens, repeats=repeated, unneeded_bits=0.1)


def test_no_word_leads_a_repeat_without_bits_above_the_floor(fitted):
    result = fitted.explain("good film bad", rerank=0, **QUICK)
    assert [len(result.words), len(result.tokens)] == [3, 5]
    none, last = (0.01, 0.05, 0.02), (0.01, 0.05, 0.9)
    assert "No word leads in 4 of 4 repeats" in str(with_repeats(result, none, *[none] * 4))
    assert '"bad" leads in 2 of 4 repeats, no word in 2 (' in str(with_repeats(result, last, none, last, none, last))
    assert "No word leads in 1 of 2 repeats" in str(with_repeats(result, none, none, last))


def test_the_check_runs_the_text_without_the_words(film_explainer):
    text = "The music is lovely, but the plot is dull and the acting is painfully bad, and it has no end at all."
    result = film_explainer.explain(text, check=True, beta=20.0, rerank=0)
    assert film_explainer.explain(text, beta=20.0).check is None
    classifier, check = film_explainer.classifier, result.check
    (encoded,) = classifier.encode([text], [None])
    order = sorted(range(len(result.words)), key=lambda i: (-result.shares[i], -result.word_bits[i]))
    assert check.n_removed == len(ranked_words(result)[0]) > 1

    def probability(without):
        kept = keep_words(encoded, set(range(len(order))) - set(without))
        with torch.no_grad():
            ids = torch.tensor([kept.inputs["input_ids"]])
            return float(classifier.model(input_ids=ids).logits.double().softmax(-1)[0, result.target])

    assert check.probability == pytest.approx(result.target_probability, abs=1e-5) == probability([])
    assert check.without_leading == pytest.approx(probability(order[: check.n_removed]), abs=1e-5)
    assert check.without_least == pytest.approx(probability(order[-check.n_removed :]), abs=1e-5)
    assert check.without_leading < check.without_random
    assert check.decision_probability == pytest.approx(1 - check.without_leading)
    n, leading = check.n_removed, [result.words[i].word for i in order[: check.n_removed]]
    assert n == 3
    answer = (
        f'Without "{leading[0]}", "{leading[1]}" and "{leading[2]}" the probability of negative falls from '
        f"{check.probability:.1%} to {check.without_leading:.1%}, and the model predicts positive."
    )
    assert result.sentences[0] == answer and str(result).splitlines()[2] == answer
    rows = [
        (check.probability, "with the whole text"),
        (check.without_leading, f"without the {n} leading words"),
        (check.without_random, f"without {n} other words at random (mean of 10, the lowest {check.lowest_random:.1%})"),
        (check.without_least, f"without the {n} words with the fewest bits"),
    ]
    pages = [html.unescape(str(page)) for page in (token_map(result), token_page([result]))]
    assert all(answer in page and "<caption>Check of the leading words: confirmed</caption>" in page for page in pages)
    for probability, what in rows:
        assert f"\n{probability:10.1%}  {what}\n" in str(result)
        width = 100 * probability / max(probability for probability, _ in rows)
        bar = f'<i style="width:{width:.1f}%"></i></span></td> <th scope="row">{what}</th>'
        assert all(f'<b>{probability:.1%}</b></td> <td><span class="bar">{bar}' in page for page in pages)
    said = ", ".join(f"{probability:.1%} {what}" for probability, what in rows)
    assert f"Check of the leading words: confirmed. The probability of negative is {said}." in result.sentences


def test_a_text_that_is_not_needed_is_checked_by_a_ninth_of_its_words(film_explainer):
    text = "A warm, beautifully acted little film. I laughed, I cried, and it was fun."
    result = film_explainer.explain(text, check=True, rerank=0)
    assert ranked_words(result)[0] == [] and result.check.n_removed == round(len(result.words) / 9) == 2


def test_where_most_words_lead_nothing_is_compared(film_explainer):
    """The words "at random" and those "with the fewest bits" were leading ones."""
    result = film_explainer.explain("a bad disaster", check=True, beta=0.1)
    check, saved = result.check, result.to_dict()["check"]
    assert len(ranked_words(result)[0]) == check.n_removed == len(check.leading) > 1
    assert math.isnan(check.without_random) and math.isnan(check.without_least) and check.lowest_random is None
    assert check.n_random == 0 and check.least == check.lowest_set == ()
    assert saved["without_random"] is saved["without_least"] is None
    assert repr(DeletionCheck.from_dict(json.loads(json.dumps(saved)))) == repr(check)
    assert "Not compared with others, because more than half of all words lead" in str(result)


@pytest.mark.parametrize(("n_words", "n_leading"), [(9, 3), (8, 4), (20, 0), (2, 1)])
def test_the_words_at_random_are_others_than_the_leading(n_words, n_leading):
    """They were drawn from all, so that a leading word was deleted on both sides of the comparison."""
    order = np.random.default_rng(n_words).permutation(n_words)
    whole, leading, least, *at_random = kept_in_check(order, n_leading, seed=0, by_bits=order)
    n_deleted = int((~leading).sum())
    assert whole.all() and set(np.flatnonzero(~leading)) == set(order[:n_deleted])
    n_sets = math.comb(n_words - n_deleted, n_deleted)  # of a few sets each is taken once
    assert not (~leading & ~least).any() and len(at_random) == min(10, n_sets)
    assert len({row.tobytes() for row in at_random}) == len(at_random) or n_sets > 10
    for kept in at_random:
        assert (~kept).sum() == n_deleted and leading[~kept].all()


def test_the_fewest_words_that_change_the_prediction(film_explainer):
    """By brute force: no set of fewer words changes it, and this one does."""
    text = "The photography is stunning, but the story is a boring mess."
    result = film_explainer.explain(text, check=True)
    check, words = result.check, [word.word for word in result.words]
    assert [words[i] for i in check.change.parts] == ["boring"] and len(check.leading) == 2
    assert f'Without "boring" alone the model predicts positive ({check.change.probability:.1%}).' in result.answer
    removal = TextRemoval(film_explainer.classifier, film_explainer.classifier.encode([text], [None])[0], 8)
    (without,) = removal.probabilities([set(range(len(words))) - {*check.change.parts}])
    assert check.change.decision == film_explainer.classifier.labels[int(without.argmax())] == "positive"
    assert check.change.probability == pytest.approx(float(without.max()), abs=1e-6)
    other = film_explainer.explain(text, target="positive", check=True)
    assert other.check.change is None  # it is not predicted


def test_the_fewest_parts_that_change_a_prediction_among_those_that_were_removed():
    weights = torch.tensor([0.5, 0.1, 0.9, 0.3, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0])

    def margin(kept):
        return kept.float() @ weights - 0.75  # without more than 1.25 it is negative

    def fewest(*tried):
        return fewest_to_change(margin, map(frozenset, tried), 10)

    assert fewest({0, 1, 2, 3, 5}) == [0, 2]  # parts that are not needed are left out
    assert fewest({0, 1, 2, 3, 5}, {1, 2, 3}) == [1, 2, 3]  # the smallest of those that were tried
    assert fewest({2, 3, 4}, {0, 2}) == [0, 2]
    assert fewest() == fewest({0, 1}, set(range(6))) == []  # more than half of all do not count
    two = [set(pair) for pair in itertools.combinations(range(10), 2)]
    assert fewest(*two) == [0, 2]  # of equally small ones the lowest margin


def test_a_text_of_one_word_can_be_checked(film_explainer):
    check = film_explainer.explain("Wonderful", check=True).check
    assert check.n_removed == 1 and check.without_leading < check.probability
    assert check.n_random == 0 and math.isnan(check.without_random)


def test_a_result_with_repeats_and_check_is_read_back(film_explainer, tmp_path):
    result = film_explainer.explain("A dull plot.", repeats=2, check=True)
    result.save(tmp_path / "result.json")
    assert TextAttribution.load(tmp_path / "result.json") == result
    content = result.to_dict()
    del content["repeats"], content["check"]  # of an earlier version
    old = TextAttribution.from_dict(json.loads(json.dumps(content)))
    assert old.repeats == () and old.check is None


def test_repeats_on_neutral_texts_show_no_spread(film_explainer):
    result = film_explainer.explain("A dull plot.", repeats=2, rerank=0)
    neutral = dataclasses.replace(result, statistics="neutral texts of 2,000 positions")
    says = "The statistics are those of neutral texts, so no ± is shown"
    for one, expected in ((result, False), (neutral, True), (dataclasses.replace(neutral, repeats=()), False)):
        for shown in (str(one), token_map(one), token_page([one])):
            assert (says in shown) == expected and ("leads in" in shown) == bool(one.repeats)
            assert ("±" in shown.replace(says, "")) == (one is result)


def checked(result, *numbers):
    return str(replace(result, check=DeletionCheck(*numbers, 10)))


def test_the_check_begins_with_what_the_leading_words_change(film_explainer):
    result = film_explainer.explain("The plot is dull and the acting is bad.", rerank=0)
    n = len(ranked_words(result)[0])
    said = checked(result, n, 0.9, 0.1, 0.95, 0.8)
    assert "the probability of negative falls from 90.0% to 10.0%." in said and "no more than" not in said
    assert "\nCheck of the leading words: confirmed\n" in said
    said = checked(result, n, 0.9, 0.895, 0.9, 0.9)
    assert "the probability of negative hardly changes, from 90.0% to 89.5%" in said
    assert "Not confirmed: without" in said and "\nCheck of the leading words: not confirmed\n" in said
    said = checked(result, n, 0.9, 0.95, 0.9, 0.8)
    assert "rises from 90.0% to 95.0%" in said and "speak" not in said
    assert "Not confirmed: without" in said
    said = checked(result, n, 0.9, 0.8, 0.7, 0.9)
    assert "from 90.0% to 80.0%" in said
    assert f"Without the {n} words with the fewest bits it falls further, to 70.0%." in said
    said = checked(result, n, 0.9, 0.8, 0.9, 0.9)
    assert "\nCheck of the leading words: weakly confirmed, because most of the probability is left\n" in said
    first = film_explainer.explain("Dull, bad, awful, boring, dreadful, terrible film.", target="negative", beta=0.1)
    said = checked(first, 5, 0.9, 0.1, 0.95, 0.8)
    said = said.partition("\nbar ")[0]
    assert "other leading" not in said and "another leading" not in said
    said = checked(first, 6, 0.9, 0.1, 0.95, 0.8).partition("\nbar ")[0]
    assert "another leading word" not in said and "other leading" not in said  # the sixth is named, too


def test_the_place_of_a_word_does_not_count_punctuation(film_explainer):
    result = film_explainer.explain('"A" dreadful, boring $5 film.')
    places = {word.name: word.place for words in ranked_words(result) for word in words}
    assert [places[word] for word in ("A", "dreadful", "boring", "film")] == [f"word {i}" for i in (1, 2, 3, 6)]
    assert places[","] == "after word 2" and places["."] == "after word 6" and places["$"] == "word 4"
    assert "before word 1" in {word.place for words in ranked_words(result) for word in words}
    assert [word.word for word in result.words].index("boring") == 5
    others = [row for row in ranked_words(result)[1] if not row.stands_out]  # those are in the list
    rest = [row.name for row in others if row.name.isalnum() or row.name == "$"]
    said = f"{len(rest)} other words and {len(others) - len(rest)} punctuation marks"
    assert f"in {said}" in result.to_text(details=True) and "<summary>all 6 words and " in token_page([result])


def test_a_text_of_punctuation_alone_has_places(film_explainer):
    words = [word for row in ranked_words(film_explainer.explain("! ?")) for word in row]
    assert {word.name: word.place for word in words} == {"!": "word 1", "?": "word 2"}


def test_the_embedded_statistics_have_groups():
    assert isinstance(embedded_statistics(1), GroupedStatistics) and embedded_statistics(1).has_groups


def log_odds(probability):
    return math.log(probability / (1 - probability))


def test_the_check_deletes_each_leading_word_alone(film_explainer):
    result = film_explainer.explain("The plot is dull and the acting is bad.", check=True)
    leading = ranked_words(result)[0]
    # Of a short text every word is, too.
    assert len(leading) > 1 and len(result.check.without_each) == len(result.words)
    for row in leading:
        words = [
            w for w, place in zip(result.words, result.to_dict()["words"], strict=True) if place["place"] != row.place
        ]
        shortened = " ".join(word.word for word in words)
        alone = film_explainer.explain(shortened, target=result.target, n_steps=0).target_probability
        assert row.without == pytest.approx(alone, abs=1e-5)
        (line,) = (line for line in str(result).splitlines() if f"{row.name} ({row.place})" in line and "▒" in line)
        assert line.split()[0] == f"{alone:.1%}"
        (detailed,) = [
            line for line in result.to_text(details=True).splitlines() if f"{row.name} ({row.place})" in line
        ]
        assert f"  {row.share:>11.1%}  " in detailed
        n_solid, n_hatched = line.count("█"), line.count("▒")
        assert n_solid == round((n_solid + n_hatched) * row.share_alone)
        decrease = log_odds(result.target_probability) - log_odds(row.without)
        others = [w.word for w in result.words if w not in result.leading or w == result.words[row.number]]
        kept = film_explainer.explain(" ".join(others), target=result.target, n_steps=0).target_probability
        after = log_odds(kept) - log_odds(result.without_first[-1])
        assert row.share_alone == pytest.approx(max(0, decrease) / max(decrease, after), abs=1e-4)
        assert f"without it {alone:.1%}" in token_page([result])
    again = type(result).from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.check == result.check


def test_the_probability_through_the_mask_is_said_once(film_explainer):
    """.58 in place of .98 stood nowhere but in an attribute."""
    for text in ("A dull, boring film.", "A film."):
        result = film_explainer.explain(text)
        for shown in (result.to_text(details=True), token_page([result]).partition("How to read this")[0]):
            assert shown.lower().count("with the information in the bits alone") == 1
            assert f"{result.masked_probability:.1%}" in shown


def test_a_class_that_is_not_predicted_is_improbable_below_5_percent(film_explainer):
    """1.1% to 0.4% counted as a class that falls without the leading words."""
    result = film_explainer.explain("The plot is dull and the acting is bad.")
    n = len(ranked_words(result)[0])
    check = DeletionCheck(n, 0.011, 0.004, 0.011, 0.011, 10)
    predicted = replace(result, check=check, target_probability=0.011, closed_probability=0.005)
    other = replace(predicted, target=1, target_label="positive")
    assert verdict(predicted) == "confirmed" and verdict(other) == ""
    assert "The probability of positive is small (1.1%)" in str(other) and not ranked_words(other)[0]
    assert "little probability" not in str(predicted)


def test_a_change_of_less_than_half_a_point_is_none_unless_a_quarter_is_lost(film_explainer):
    result = film_explainer.explain("The plot is dull and the acting is bad.")
    n = len(ranked_words(result)[0])
    for probability, without, said in (
        (0.161, 0.158, "hardly changes,"),
        (0.161, 0.14, "falls a little,"),
        (0.012, 0.001, "falls"),
    ):
        check = DeletionCheck(n, probability, without, probability + 0.1, probability, 10)
        one = replace(result, check=check)
        assert f"the probability of negative {said} from" in str(one)
        verdicts = {"hardly changes,": "not confirmed", "falls a little,": "weakly confirmed", "falls": "confirmed"}
        assert one.verdict == verdicts[said]


def test_what_single_words_do_is_in_the_list_and_not_said_again(film_explainer):
    result = film_explainer.explain("The plot is dull and the acting is bad.", rerank=0)
    n = len(ranked_words(result)[0])
    for alone in ((0.8, 0.2), (0.2, 0.8), (0.9, 0.9)):
        said = str(
            replace(result, check=DeletionCheck(n, 0.85, 0.1, 0.9, 0.8, 10, by_rank(result, *alone, *[0.9] * n)))
        )
        assert "deleted alone" not in said and "speak against" not in said
        for without, row in zip(alone, ranked_words(result)[0], strict=False):
            assert any(f"{without:.1%}" in line and row.name in line for line in said.splitlines())
    # Of three words that lead, the check may compare two, at most half of all, and all together are deleted, too.
    many = film_explainer.explain("Boring, awful, dreadful film.", target="negative", beta=0.1, rerank=0)
    n_many = len(ranked_words(many)[0])
    assert n_many > 2
    check = DeletionCheck(2, 0.9, 0.05, 0.9, 0.9, 10, by_rank(many, *[0.9] * n_many))
    fewer = str(replace(many, check=check))
    assert "Not compared with others, because more than half of all words lead" in fewer
    assert "falls from 90.0% to 5.0%" in fewer and "Check:" not in fewer


def test_words_with_few_bits_that_matter_when_deleted_alone_are_named():
    """ "cannot" had 0.7% of the bits, and without it .67 fell to .14: only another method showed it."""
    result = attribution(
        "Sadly boring and I cannot", bits=[3.0, 90.0, 1.0, 1.0, 2.0], unneeded_bits=1.0, open_bits=200.0
    )
    alone = (0.1, 0.5, 0.14, 0.66, 0.7)  # boring, Sadly, cannot, and, I
    said = str(replace(result, check=DeletionCheck(1, 0.67, 0.1, 0.7, 0.6, 10, by_rank(result, *alone))))
    assert {"Sadly (word 1) · matters alone", "cannot (word 5) · matters alone"} <= {
        line.split("  ")[-1].strip() for line in said.splitlines()
    }
    said = str(
        replace(result, check=DeletionCheck(1, 0.67, 0.1, 0.7, 0.6, 10, by_rank(result, 0.1, 0.66, 0.66, 0.66, 0.7)))
    )
    assert "fewer bits" not in said
    # Of a small probability a quarter is no evidence.
    unlikely = DeletionCheck(1, 0.07, 0.01, 0.07, 0.07, 10, (0.01, 0.04, 0.07, 0.07, 0.07))
    assert "fewer bits" not in str(replace(result, target_probability=0.07, check=unlikely))


def test_a_class_that_average_activations_give_as_well_is_said_to_be_unexplained():
    """A page explained why there is entailment, which the model gave without any text, and more surely."""
    kept = {
        "masked_probability": 0.7,
        "unneeded_bits": 1.0,
        "open_bits": 200.0,
        "check": DeletionCheck(1, 0.75, 0.1, 0.7, 0.6, 10),
    }
    result = attribution("a b c", bits=[30.0, 20.0, 5.0], **kept)
    for closed, said in ((0.78, "more than"), (0.76, "no less than"), (0.72, "nearly as much as"), (0.6, None)):
        one = replace(result, closed_probability=closed)
        text = f"in place of this text the probability of positive is {closed:.1%}, {said} with this text (75.0%)"
        assert (text in str(one)) == (text in token_page([one])) == (said is not None)
        assert any("With average activations in place" in sentence for sentence in one.sentences) == (said is not None)
        page = token_page([one, one])
        text = "With average activations in place of texts 1 and 2, the model gives their class nearly as high a "
        text += "probability, or a higher one."
        # Where the answer says so, it is not said again.
        agreed = token_page([replace(one, check=replace(one.check, without_leading=0.74))] * 2)
        assert (text in agreed) == (said is not None) and text not in page
        assert "No verdict for 2 texts: most words lead." in page
    unlikely = replace(result, target_probability=0.02, closed_probability=0.001)
    assert "With average activations in place" not in str(unlikely)


def test_a_check_deletes_punctuation_last(film_explainer):
    order, marks = np.arange(8), np.array([False, False, True, False, True, False, True, True])
    _, _, least, *at_random = kept_in_check(order, 2, seed=0, by_bits=order, marks=marks)
    assert set(np.flatnonzero(~least)) == {3, 5} and all(set(np.flatnonzero(~row)) == {3, 5} for row in at_random)
    _, _, least, *at_random = kept_in_check(order, 3, seed=0, by_bits=order, marks=marks)  # two words are left
    assert all({3, 5} < set(np.flatnonzero(~row)) for row in (least, *at_random))
    check = film_explainer.explain("A dull, boring film.", check=True, beta=0.1).check
    without_words = film_explainer.explain("dull, boring.", target="negative", n_steps=0).target_probability
    assert check.n_removed == 2 and check.without_random == pytest.approx(without_words, abs=1e-5)
    assert check.without_least == pytest.approx(without_words, abs=1e-5)
    assert check.n_random == 1  # two words are two others
    result = film_explainer.explain("A dull, boring film.", check=True, beta=0.1)
    assert "  without the 2 other words\n" in str(result) and "(mean of" not in str(result)
    # Seven of nine words were "confirmed", because five commas and two other words did less.
    few = film_explainer.explain("Dull, boring, bad!", check=True, beta=0.1)
    assert len(few.leading) == few.check.n_removed == 3 and not few.verdict and "not_compared" in few.findings


def test_words_that_are_nearly_tied_are_named():
    close = attribution("a b c", bits=[30.0, 27.0, 5.0], unneeded_bits=1.0, open_bits=200.0)  # 29, 26 and 4 above it
    assert nearly_tied(close) == [0, 1]
    said = '"a" (word 1) and "b" (word 2) are close in bits. With statistics of other texts another of them may lead.'
    assert said in str(close) and html.escape(said, quote=False) in token_map(close).replace("&#34;", '"')
    assert "are close" not in str(attribution("a b c", bits=[30.0, 24.0, 5.0], unneeded_bits=1.0, open_bits=200.0))
    # Repeats say in how many a word leads.
    assert "are close" not in str(replace(close, repeats=((0.0, 30.0, 27.0, 5.0), (0.0, 27.0, 30.0, 5.0))))


def test_a_page_of_several_texts_says_what_their_checks_confirm(film_explainer):
    texts = [
        "The plot is dull and the acting is bad.",
        "A boring, awful film.",
        "Nothing in this dreadful story works.",
    ]
    results = film_explainer.explain(texts, rerank=0)
    n = [len(ranked_words(result)[0]) for result in results]
    checks = [DeletionCheck(n[i], 0.9, leading, 0.91, 0.89, 10) for i, leading in enumerate((0.2, 0.8, 0.895))]
    results = [replace(result, check=check) for result, check in zip(results, checks, strict=True)]
    assert [verdict(result) for result in results] == ["confirmed", "weakly confirmed", "not confirmed"]
    page = token_page(results)
    assert "Check of 3 texts: the leading words are confirmed in 1, weakly confirmed in 1, not confirmed in 1." in page
    assert [f'data-head="without leading words" data-value="{value}"' in page for value in (0, 1, 2)] == [True] * 3
    assert "<mark>not confirmed</mark>" in page
    assert "of its value" not in token_page([replace(result, check=None) for result in results])
    # Where no leading word lowers it alone, the table says that they do so together.
    assert "only together" not in page
    alone = replace(checks[0], without_each=by_rank(results[0], *[0.9] * n[0]))
    assert n[0] > 1 and "confirmed, only together</span>" in token_page(
        [replace(results[0], check=alone), *results[1:]]
    )
    ruled_out = DeletionCheck(n[0], 0.001, 0.0005, 0.001, 0.001, 10)
    page = token_page([*results, replace(results[0], check=ruled_out, target_probability=0.001)])
    assert "No verdict for 1 more text: the class has little probability." in page
    assert '<span class="note">no verdict: the class has little probability</span></td>' in page
    none_leads = replace(results[0], tokens=results[0].tokens[:1], check=ruled_out)
    two = token_page([*results, *[replace(results[0], check=ruled_out, target_probability=0.001)] * 2, none_leads])
    assert "3 more texts: the class has little probability (2), no word leads (1)." in two


def test_the_check_of_one_word_compares_with_nothing(film_explainer):
    result = film_explainer.explain("dreadful", check=True)
    assert result.sentences[0].startswith('Without "dreadful", the only word, the probability of negative falls')
    assert "Check:" not in str(result) and "random" not in str(result)
    assert verdict(result) == ""


def test_what_a_page_says_of_the_check_holds_where_no_word_leads(film_explainer):
    """One word in nine is deleted then; the page said "80% of the bits", which are three words of this text."""
    result = film_explainer.explain("The film runs for two hours.", check=True, rerank=0)
    assert result.check.n_removed == 1 < len(result.words) / 2
    assert "If none leads, one word in nine" in " ".join(token_page([result]).split())
    open_mask = film_explainer.explain("A dull film.", beta=0.0, check=True)
    said = open_mask.to_text(details=True)
    assert "a token that is not needed still keeps" in said and "0 of them" not in said


def test_a_mask_that_has_not_closed_is_said(film_explainer):
    text = "The plot is dull and the acting is bad."
    assert "The optimization is not finished" in str(film_explainer.explain(text, n_steps=2))
    assert "The optimization is not finished" in token_page([film_explainer.explain(text, n_steps=2)])
    assert "not finished" not in str(film_explainer.explain(text))


def test_words_without_bits_are_not_listed(film_explainer):
    needless = film_explainer.explain("A wonderful film. " * 8)
    assert not ranked_words(needless)[0]
    rows = [line for line in str(needless).splitlines() if " bits  " in line]
    assert len(rows) <= 5 and not any(row.startswith("  0.0%") for row in rows)


def test_one_page_of_several_texts_is_saved(film_explainer, tmp_path):
    results = film_explainer.explain(["A dull plot.", "A fine plot."], n_steps=1)
    path = save_token_page(results, tmp_path / "films.html", title="Two films")
    assert path.read_text(encoding="utf-8") == token_page(results, title="Two films")


def test_a_cut_is_marked(film_explainer):
    explainer = TextExplainer(film_explainer.model, film_explainer.classifier.tokenizer, max_length=8)
    result = explainer.explain("A dreadful, boring film that nobody could follow.", n_steps=1)
    assert "A dreadful, boring film that …\n" in str(result) and "nobody" not in str(result)
    assert [part.text for part in parts(result)][-1] == " …" and "nobody" not in token_page([result])


def test_removals_that_bring_the_decision_back_do_not_lead():
    """7 regions of an image were "confirmed": one changes the decision, the third undoes that, the last changes it."""

    def value(kept):
        n_removed = (~kept).sum(1)
        return torch.tensor([0.9, 0.05, 0.001, 1.0, 1.0, 0.99, 0.99, 0.003, 0.5])[n_removed]

    order = np.array([3, 0, 1, 2, 6, 5, 4, 7, 8])

    def first(value, order, n_leading):
        return leading_in_order(value, order, n_leading, tolerance=0.0)

    assert first(value, order, 7) == ([3], pytest.approx([0.05]))
    # The second one alone has 95% of the decrease without both.
    assert first(lambda kept: value(kept) - 0.2 * (~kept[:, 0]), order, 7) == ([0], pytest.approx([-0.15]))
    # Of more than 16 not all are tried, and where nothing falls the first one stays.
    falling = first(lambda kept: kept.sum(1) / 10.0, np.arange(20), 17)
    assert falling == (list(range(17)), pytest.approx((20 - np.arange(1, 17)) / 10))
    assert first(lambda kept: -(~kept).sum(1).clamp(max=6) / 10.0, np.arange(20), 12)[0] == list(range(6))
    assert first(lambda kept: (~kept).sum(1) / 10.0, order, 2) == ([3], pytest.approx([0.1]))
