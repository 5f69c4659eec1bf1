"""What is said of an explanation is true of it: few bits, average activations, deep layers, unknown words."""

import re
from dataclasses import replace
from inspect import getsource
from pathlib import Path

import pytest

from captum_iba._reading import codes
from captum_iba._reading.check_sentences import VERDICTS, CheckRow, CheckSentences
from captum_iba._reading.codes import by_code, findings
from captum_iba._reading.findings import _numbered, notes_of_all, verdicts
from captum_iba._reading.mask_sentences import remark
from captum_iba._reading.mask_state import needs_hardly_anything
from captum_iba._reading.removal_check import DeletionCheck, PredictionChange
from captum_iba._reading.wording import NEUTRAL_TEXTS
from captum_iba._reading.words import ranked_words
from captum_iba.text import TextAttribution, TextExplainer
from captum_iba.visualization import token_page
from captum_iba.visualization.printed_text import printed_text
from tests.visualization.examples import attribution, by_rank

FEW = {"unneeded_bits": 1.0, "open_bits": 200.0, "layer_index": None}


@pytest.mark.parametrize(
    ("changes", "said", "hardly"),
    [
        # A layer before the last one gave .885 with the bits of one word, and .435 without any.
        ({"target_probability": 0.94, "masked_probability": 0.885, "closed_probability": 0.435}, None, False),
        (
            {"target_probability": 0.94, "masked_probability": 0.94, "closed_probability": 0.93},
            "is 93.0%, nearly as much as with this text (94.0%). The model needs hardly anything of this text.",
            True,
        ),
        (
            {"target_probability": 0.99, "masked_probability": 0.97, "closed_probability": 0.85},
            "is 85.0%, not much less than with this text (99.0%). The model needs hardly anything of this text.",
            True,
        ),
        # Of a class that the text speaks against.
        (
            {"target_probability": 0.22, "masked_probability": 0.5, "closed_probability": 0.77, "predicted_label": "x"},
            "is 77.0%, more than with this text (22.0%). This text lowers it.",
            True,
        ),
        # Of a class that is next to ruled out there is nothing to explain.
        (
            {"target_probability": 0.003, "masked_probability": 0.01, "closed_probability": 0.08},
            "The model gives positive next to nothing.",
            True,
        ),
        (
            {"target_probability": 0.3, "masked_probability": 0.77, "closed_probability": 0.31},
            "with none of it 31.0%. 77.0% is more than with the whole text (30.0%): the mask hides words",
            True,
        ),
    ],
)
def test_what_is_said_where_no_word_has_many_bits(changes, said, hardly):
    result = attribution("a b", bits=[2.0, 3.0], **FEW, **changes)
    assert needs_hardly_anything(result) is hardly
    assert bool(ranked_words(result)[0]) is not hardly
    # So few bits have no percentages.
    assert result.to_dict()["words"][0]["share"] is None
    assert "No word has many bits above the floor, so there are no percentages." in str(result)
    assert "2.00 bits" in str(result) and "3.00 bits" in str(result)
    assert said is None or (said in str(result) and said in token_page([result]))
    if said is None:
        assert remark(result) == "" and "hardly anything" not in str(result)


def test_a_check_that_finds_more_than_the_bits_is_pointed_to():
    close = {"target_probability": 0.95, "masked_probability": 0.95, "closed_probability": 0.94}
    result = attribution("a b c d", bits=[2.0, 3.0, 2.0, 2.0], **FEW, **close)
    for without, said in (((0.94, 0.94, 0.94), False), ((0.94, 0.94, 0.5), True), ((0.2, 0.94, 0.94), True)):
        check = DeletionCheck(1, 0.95, *without, 10, by_rank(result, without[0], 0.94, 0.94, 0.94))
        one = replace(result, check=check)
        # The answer says so where the leading words do it.
        assert ("they do not explain the probability" in str(one)) is (said and without[0] == 0.94)
        assert ("the model gives" in one.sentences[0]) is (without[0] == 0.2)
        assert ("The model needs hardly anything of this text" in str(one)) is (without == (0.94, 0.94, 0.94))
        # Where the first word matters, it leads.
        assert needs_hardly_anything(one) is (without[0] == 0.94)
    # What the check has deleted first is not said to be hidden.
    check = DeletionCheck(1, 0.95, 0.2, 0.94, 0.94, 10, by_rank(result, 0.2, 0.94, 0.94, 0.1))
    said = str(replace(result, check=check))
    matters = [line for line in said.splitlines() if line.endswith("matters alone")]
    assert len(matters) == 1 and matters[0].split()[0] == "10.0%" and "d (word 4)" in matters[0]


def test_at_a_deep_layer_special_tokens_have_read_the_text(film_explainer):
    """The bottleneck at the last layer leaves [CLS] as it is, which holds the whole text by then."""
    layers = film_explainer.layers
    explainer = TextExplainer(film_explainer.model, film_explainer.classifier.tokenizer, layer=len(layers))
    explainer.estimate_statistics(["A dull film.", "A wonderful film.", "A boring, awful plot."])
    result = explainer.explain("A dull, boring film.")
    assert result.closed_probability == pytest.approx(result.target_probability, abs=1e-4)
    said = "have already read the other words, so the mask cannot tell which words are needed."
    assert said in str(result) and said not in str(film_explainer.explain("A dull, boring film."))


def test_an_order_in_which_the_last_words_matter_more_is_not_confirmed():
    """.94 fell to .72 without the leading words, to .12 without those with the fewest bits: not confirmed."""
    result = attribution("a b c d", bits=[90.0, 20.0, 2.0, 2.0], unneeded_bits=1.0, open_bits=200.0)
    for least, said in ((0.12, "not confirmed"), (0.93, "weakly confirmed")):
        one = replace(result, check=DeletionCheck(1, 0.94, 0.7, least, 0.9, 10))
        assert one.verdict == said
        told = (
            'Not confirmed: without "a" the probability of positive falls from 94.0% to 70.0%. Without the word with '
        )
        told += "the fewest bits it falls further, to 12.0%."
        assert (told in str(one)) is (least == 0.12) and f"{least:10.1%}  without the word with the fewest" in str(one)


def test_half_of_a_probability_is_confirmed_and_15_percent_of_a_mean_over_tokens():
    """20 words left 67 of 95%, "confirmed"; the mean over the tokens of a response hardly falls."""
    for noun, left, said in (
        ("word", 0.44, 0),
        ("word", 0.5, 1),
        ("region", 0.5, 1),
        ("part", 0.5, 0),
        ("part", 0.8, 1),
    ):
        check = DeletionCheck(2, 0.9, left, 0.9, 0.9, 10, lowest_random=0.9)
        found = CheckSentences(check, 2, 9, "the probability", noun)
        assert found.verdict == VERDICTS[said]
        assert ("because most of the probability is left" in found.title) is (said == 1)


def test_a_word_that_is_deleted_several_times_is_named_once():
    result = attribution("a b a c d", bits=[50.0, 2.0, 40.0, 30.0, 2.0], unneeded_bits=1.0, open_bits=200.0)
    one = replace(result, check=DeletionCheck(3, 0.9, 0.1, 0.9, 0.9, 10))
    assert 'Without "a" (2 times) and "c" the probability of positive falls from 90.0% to 10.0%' in str(one)


def test_bits_near_the_floor_say_little():
    kept = {"target_probability": 0.95, "masked_probability": 0.94, "closed_probability": 0.6}
    for bits, said in (([2.0, 1.5], True), ([6.0, 1.5], False)):
        result = attribution("a b", bits=bits, **FEW, **kept)
        assert ("No word has clearly more bits than the floor (1.00 bits per token)" in str(result)) is said


def test_the_summary_counts_what_the_texts_say():
    """ "In 5 average activations give the class as much" stood above texts of which none said so."""
    improbable = attribution("a b", bits=[30.0, 2.0], **FEW, target_probability=0.004, closed_probability=0.08)
    check = DeletionCheck(1, 0.9, 0.2, 0.9, 0.9, 10)
    likely = attribution("a b", bits=[30.0, 2.0], **FEW, target_probability=0.9, closed_probability=0.1, check=check)
    assert "average activations" not in token_page([likely, likely, improbable]).partition("How to read this")[0]


def test_unknown_words_are_named(film_explainer):
    result = film_explainer.explain("A dull 电 film 影")
    assert [result.words[token.word].word for token in result.tokens if token.unknown] == ["电", "影"]
    said = '"电" and "影" are unknown to the tokenizer. The model reads [UNK], as for every unknown word.'
    assert said in str(result) and said in result.sentences
    assert TextAttribution.from_dict(result.to_dict()) == result
    assert "unknown" not in str(film_explainer.explain("A dull film"))


def test_json_has_the_probability_without_each_word(film_explainer):
    result = film_explainer.explain("The plot is dull, but not boring.", check=True)
    words = result.to_dict()["words"]
    for number, word in enumerate(words):
        text = result.text[: word["start"]] + result.text[word["end"] :]
        if word["word"].isalpha():
            alone = film_explainer.explain(text, target="negative", n_steps=0).target_probability
            assert word["without"] == pytest.approx(alone, abs=1e-4), number


def test_findings_are_codes_of_what_is_said(film_explainer):
    """An auditor could not filter by sentences."""
    kept = {"target_probability": 0.9, "masked_probability": 0.88, "closed_probability": 0.2}
    plain = attribution("a b c d", bits=[90.0, 20.0, 2.0, 2.0], **FEW, **kept)
    check = DeletionCheck(1, 0.9, 0.2, 0.9, 0.9, 10)
    confirmed = replace(plain, check=check)
    assert plain.to_dict()["findings"] == confirmed.to_dict()["findings"] == []
    for changes, code in (
        ({"tokens_truncated": 3}, "truncated"),
        ({"masked_probability": 0.3}, "prediction_lost"),
        ({"target_probability": 0.002, "masked_probability": 0.002, "closed_probability": 0.0}, "improbable_target"),
        ({"check": replace(check, without_leading=0.8)}, "weakly_confirmed"),
        ({"check": replace(check, without_leading=0.899)}, "not_confirmed"),
        ({"check": replace(check, without_each=(0.2, 0.9, 0.6, 0.9))}, "hidden_evidence"),
        # Five points are enough for a word that does more alone than each leading word.
        ({"check": replace(check, without_each=(0.86, 0.9, 0.84, 0.9))}, "hidden_evidence"),
    ):
        assert replace(confirmed, **changes).to_dict()["findings"] == [code]
    kept_by_averages = replace(confirmed, closed_probability=0.89)
    assert kept_by_averages.to_dict()["findings"] == ["unexplained"]
    least = replace(confirmed, check=replace(check, without_least=0.1))
    assert least.to_dict()["findings"] == ["not_confirmed", "hidden_evidence"]
    close = attribution("a b", bits=[30.0, 29.0], **FEW, **kept)
    assert close.to_dict()["findings"] == ["near_tie"]
    repeated = replace(close, repeats=((0.0, 30.0, 29.0), (0.0, 30.0, 29.0)))
    assert repeated.to_dict()["findings"] == [] and "are close" not in str(repeated)
    few = attribution("a b", bits=[2.0, 1.0], **FEW, **{**kept, "closed_probability": 0.8})
    assert few.to_dict()["findings"] == ["hardly_anything_needed"]
    assert "unknown_words" in film_explainer.explain("A dull 电 film").to_dict()["findings"]


def test_a_word_that_speaks_against_the_class_is_named():
    """ "There is little to explain" was said of entailment at 3.7%, which one word took from 93.8%."""
    few = {"unneeded_bits": 1.0, "open_bits": 200.0}
    result = attribution(
        "it gets it not", bits=[9.0, 8.0, 2.0, 2.0], **few, target_probability=0.04, predicted_label="no"
    )
    for alone, said in (
        (
            (0.09, 0.04, 0.05, 0.938),
            '"not" (word 4, to 93.8%) may speak against positive: the probability of positive rises when it is deleted',
        ),
        (
            (0.09, 0.5, 0.05, 0.938),
            '"not" (word 4, to 93.8%) and "gets" (word 2, to 50.0%) may speak against positive: the probability',
        ),
        (
            (0.2, 0.5, 0.3, 0.9),
            '"gets" (word 2, to 50.0%), "it" (word 3, to 30.0%) and "it" (word 1, to 20.0%) may speak',
        ),
        (
            (0.05, 0.05, 0.03, 0.06),
            "there is little to explain.",
        ),
    ):
        one = replace(result, check=DeletionCheck(1, 0.04, 0.09, 0.06, 0.2, 10, by_rank(result, *alone)))
        assert said in str(one) and said in " ".join(one.sentences)
        assert ("there is little to explain" in str(one)) is ("little" in said)
    # Of a class that is predicted, too: the most first, whether the word leads or not.
    likely = attribution("it gets it not", bits=[90.0, 8.0, 2.0, 2.0], **few, target_probability=0.6)
    one = replace(
        likely,
        check=DeletionCheck(1, 0.6, 0.2, 0.6, 0.7, 10, by_rank(likely, 0.2, 0.75, 0.6, 0.9), decision="negative"),
    )
    assert "to 20.0%, and the model predicts negative." in str(one)
    assert "not (word 4) · speaks against it" in str(one) and "may speak against" not in str(one)


def test_deleting_words_is_not_said_to_lower_what_it_raises():
    """ "Deleting words lowers it further" stood beside a check in which a word raised it from 6.6% to 96.9%."""
    lowered = {
        "target_probability": 0.22,
        "masked_probability": 0.5,
        "closed_probability": 0.77,
        "predicted_label": "x",
    }
    result = attribution("a b c d", bits=[60.0, 3.0, 2.0, 2.0], **FEW, **lowered)
    for alone, said in (((0.1, 0.2, 0.2, 0.2), True), ((0.1, 0.2, 0.2, 0.9), False)):
        one = replace(result, check=DeletionCheck(1, 0.22, 0.1, 0.2, 0.2, 10, by_rank(result, *alone)))
        assert ("the model gives" in one.sentences[0]) and "more than with this text" in str(one)
        assert ("d (word 4) · speaks against it" in str(one)) is not said
    one = replace(result, check=DeletionCheck(1, 0.22, 0.1, 0.9, 0.2, 10, by_rank(result, 0.1, 0.2, 0.2, 0.9)))
    assert "opposing_words" in findings(one)
    # From one half to below is no "no less than".
    crossed = {"target_probability": 0.484, "masked_probability": 0.5, "closed_probability": 0.581}
    assert "more than with this text (48.4%). This text lowers it." in str(
        attribution("a b", bits=[2.0, 3.0], **FEW, **crossed)
    )


def test_a_check_of_half_of_the_leading_words_does_not_refute_all_of_them():
    """ "Not confirmed" stood before a probability that fell from 96.2% to 10.2% without the six leading words."""
    check = DeletionCheck(2, 0.96, 0.1, 0.96, 0.96, 10)
    said = CheckSentences(check, 3, 4, "the probability of Sports", names=("cup", "won", "team"))
    assert said.verdict == "" and said.answer == (
        'Without "cup", "won" and "team" the probability of Sports falls from 96.0% to 10.0%. '
        "Not compared with others, because more than half of all words lead, so that too "
        "few others are left."
    )
    assert not said.comparison and not said.rows and not said.title  # some of the others lead, too


def test_a_verdict_beside_averages_that_keep_the_class():
    """The verdict is on deletions alone; that averages give the class is a sentence of its own."""
    kept = {"target_probability": 0.98, "closed_probability": 0.9, "masked_probability": 0.95}
    result = attribution(
        "a b c d e f", bits=[400.0, 3.0, 3.0, 2.0, 2.0, 2.0], unneeded_bits=1.0, open_bits=900.0, **kept
    )
    check = DeletionCheck(1, 0.98, 0.2, 0.97, 0.97, 5, (0.2, 0.97, 0.97, 0.97, 0.97, 0.97))
    both = replace(result, check=check), replace(result, check=check, closed_probability=0.3)
    for one, said in zip(both, (True, False), strict=True):
        answer = one.sentences[0]
        caveat = " With average activations in place of this text the model gives positive, too (90.0%)."
        assert answer.endswith(caveat) is said and "falls from 98.0% to 20.0%" in answer
        assert one.verdict == "confirmed"
    page = token_page(list(both))
    assert "the leading words are confirmed in 2." in page


def test_without_a_verdict_a_stronger_set_of_words_is_told():
    """One of ten random draws was 36 points lower, and the answer had only that averages give the class."""
    check = DeletionCheck(2, 0.909, 0.521, 0.88, 0.9, 10, lowest_random=0.156)
    said = CheckSentences(check, 2, 9, "the probability", doubt="averages give it").answer
    assert (
        "to 52.1%. Without one of 10 sets of other words it falls further, to 15.6%. No verdict, because aver" in said
    )


def test_an_improbable_class_points_to_the_predicted_one(film_explainer):
    said = film_explainer.explain("The story is a boring mess.", target="positive", check=True)
    assert "To see which words decide, explain negative, the predicted class." in str(said)
    assert "To see which words decide" not in str(film_explainer.explain("The story is a boring mess.", check=True))


def test_one_meaning_of_leading_beside_a_check(film_explainer):
    """A check deleted one of 9 words, where hardly any bits led nothing, and then two words were said to lead."""
    result = attribution("a b c d e f", bits=[4.0, 3.0, 3.0, 2.0, 2.0, 2.0], **FEW, target_probability=0.9)
    one = replace(result, check=DeletionCheck(1, 0.9, 0.2, 0.9, 0.9, 10, by_rank(result, 0.2, 0.8, 0.9, 0.9, 0.9, 0.9)))
    assert len(ranked_words(one)[0]) == 1 and "\nCheck of the leading word: confirmed\n" in str(one)
    # A word in the list is not among those with the fewest bits.
    every = attribution("a b c", bits=[40.0, 39.0, 38.0], **FEW, target_probability=0.9)
    one = replace(every, check=DeletionCheck(1, 0.9, 0.2, 0.9, 0.3, 10, by_rank(every, 0.2, 0.9, 0.3)))
    assert "fewest bits (" not in str(one).partition("of the bits")[
        0
    ] and "Not compared with others, because all" in str(one)
    long = film_explainer.explain("A dull film about a man and a plot. " * 8, check=True)
    said = str(long)
    n_alone = sum(row.is_deleted for of in ranked_words(long) for row in of)
    n_together = sum(effect is not None for effect in long.effects)
    tried = (
        f"{n_together} of the 80 words and punctuation marks were tried as leading words, and {n_alone} were deleted"
    )
    assert f"{tried} alone, chosen by bits and gradients: others may matter, too (rerank, --rerank, measures" in said
    short = film_explainer.explain("A dull film about a man.", check=True)
    assert "others may matter" not in str(short) and short.check.decision in short.sentences[0]


def test_a_table_shows_the_first_words_and_folds_long_texts(film_explainer):
    results = film_explainer.explain(
        ["A dull film.", "A dull film about a man. " * 12 + "The man lives in a city. " * 13], check=True
    )
    page = token_page(results)
    first, second = page.split('<p class="answer" dir="auto">')[1:]
    # Of many leading words the fewest that change the prediction come first.
    few = "The fewest words found that change the prediction: &#34;dull&#34; (word 2), "
    assert first.startswith("Without &#34;dull&#34; ") and second.startswith(few)
    unchecked = token_page([replace(one, check=None) for one in results])
    assert unchecked.count("(not checked against other words).") == 2
    by_bits = token_page([replace(one, check=None, effects=(), removal_order=(), without_first=()) for one in results])
    assert by_bits.count('<p class="first"><bdi>dull</bdi>') == 2
    assert first.index('class="map"') < first.index("<details>") < first.index("the words and their numbers")
    assert "<summary><bdi>A dull film about a man. A dull" in second
    assert "…</bdi> (175 words and marks, and their numbers)" in second
    assert second.index("<details>") < second.index('class="map"')
    hidden = replace(
        results[0], check=DeletionCheck(1, 0.9, 0.2, 0.9, 0.9, 10, by_rank(results[0], 0.2, 0.1, 0.9, 0.9))
    )
    assert ">other words matter</mark>" in token_page([hidden, results[1]])
    # Alone on a page, the answer stands there, and without any deletion the first words.
    by_bits = replace(results[1], check=None, effects=(), removal_order=(), without_first=())
    for one, said in ((results[1], False), (replace(results[1], check=None), False), (by_bits, True)):
        assert ('<p class="first">' in token_page([one])) is said
        assert ('<p class="answer" dir="auto">' in token_page([one])) is not said


def test_a_mask_that_keeps_little_does_not_explain_the_probability():
    """Of 7 points that a text added, its bits kept 0.6, and nothing said so; at 10 points a warning did."""
    few = {"unneeded_bits": 1.0, "open_bits": 200.0, "target_probability": 0.846}
    for masked, closed, said in ((0.782, 0.776, True), (0.84, 0.776, False), (0.755, 0.743, True), (0.8, 0.83, False)):
        one = attribution("a b", bits=[30.0, 2.0], **few, masked_probability=masked, closed_probability=closed)
        told = (
            "The bits keep little of what the text adds: they rank its words, but they do not explain the probability."
        )
        assert (told in str(one)) is said and (told in token_page([one])) is said
        assert ("unexplained" in findings(one)) is (said or closed == 0.83)


def test_a_text_that_lowers_an_improbable_class_is_said_to():
    """From 82% to 4% a text took a class, of which there was "little to explain"."""
    few = {"unneeded_bits": 1.0, "open_bits": 200.0, "target_probability": 0.04, "predicted_label": "neutral"}
    check = DeletionCheck(1, 0.04, 0.037, 0.04, 0.05, 10)
    one = attribution("a b", bits=[30.0, 2.0], **few, masked_probability=0.795, closed_probability=0.824, check=check)
    assert "is 82.4%, more than with this text (4.0%). This text lowers it." in str(one)
    assert "there is little to explain" not in str(one)
    assert "The probability of positive is small (4.0%). To see which words decide, explain neutral" in str(one)
    low = replace(one, masked_probability=0.05, closed_probability=0.05)
    assert "there is little to explain" in str(low) and "this text lowers it" not in str(low)


def test_the_leading_word_of_a_long_text_is_uncertain_by_neutral_statistics(film_explainer):
    long = film_explainer.explain("A dull film about a man and a plot. " * 8)
    said = "The statistics are those of neutral texts. With statistics of texts like yours"
    neutral = replace(long, statistics="neutral texts of 2,000 positions")
    alone = replace(neutral, tokens=neutral.tokens[:5], effects=(), without=(), removal_order=(), without_first=())
    for one, expected in ((long, False), (neutral, True), (alone, True)):
        close = "near_tie" in findings(one)
        assert (said in str(one)) is (expected and not close)
        assert ("neutral_statistics" in findings(one)) is expected


def test_another_order_by_deletion_is_a_finding_and_a_mark_of_the_table():
    result = attribution("a b c d", bits=[50.0, 60.0, 2.0, 2.0], unneeded_bits=1.0, open_bits=200.0)
    for first, second, said in ((0.7, 0.2, True), (0.2, 0.7, False)):
        one = replace(
            result, check=DeletionCheck(2, 0.75, 0.1, 0.75, 0.7, 10, by_rank(result, first, second, 0.75, 0.75))
        )
        assert ("other_order" in findings(one)) is said
        assert (">other order alone</mark>" in token_page([one, one])) is said


def test_a_summary_and_a_table_tell_of_a_mask_that_closed_too_much():
    """A text whose percentages were not to be relied on was one of 8 that were confirmed, without a mark."""
    few = {"unneeded_bits": 1.0, "open_bits": 200.0, "target_probability": 0.9}
    check = DeletionCheck(1, 0.9, 0.1, 0.9, 0.9, 10)
    sure = attribution("a b", bits=[30.0, 2.0], **few, masked_probability=0.85, closed_probability=0.2, check=check)
    lost = replace(sure, masked_probability=0.3)
    page = token_page([sure, lost])
    assert "In text 2 the mask removed too much, so its bits are not shown as percentages." in page
    assert "the leading words are confirmed in 2." in page


def test_of_a_class_that_is_not_predicted_the_opposing_words_come_first():
    few = {"unneeded_bits": 1.0, "open_bits": 200.0, "target_probability": 0.12, "masked_probability": 0.5}
    check = DeletionCheck(1, 0.12, 0.1, 0.12, 0.2, 10, (0.1, 0.943))
    one = attribution("a b", bits=[3.0, 2.0], **few, closed_probability=0.61, check=check, predicted_label="negative")
    said = one.sentences
    opposing, checked = (next(i for i, one in enumerate(said) if part in one) for part in ("may speak", "Check of"))
    assert opposing < checked and "lowered" in findings(one) and "hardly_anything_needed" not in findings(one)
    # Of the predicted class they are in the list.
    predicted = replace(one, predicted=1, predicted_label="positive")
    check = DeletionCheck(1, 0.52, 0.1, 0.52, 0.55, 10, (0.1, 0.65))
    predicted = replace(predicted, target_probability=0.52, check=check)
    assert "may speak" not in str(predicted) and "b (word 2) · speaks against it" in str(predicted)


def test_the_word_of_a_check_without_leading_words_is_named_and_no_other_word():
    """ "without another word alone" named the word that the check had deleted."""
    close = {"target_probability": 0.991, "masked_probability": 0.99, "closed_probability": 0.98}
    result = attribution("I loved it", bits=[3.1, 4.0, 3.4], **FEW, **close)
    check = DeletionCheck(1, 0.991, 0.989, 0.991, 0.991, 2, (0.991, 0.989, 0.991), lowest_random=0.991)
    said = str(replace(result, check=check))
    assert 'without the word with the most bits, "loved"\n' in said and "without another word alone" not in said
    assert 'without another word alone, "it" (word 3)' in str(
        replace(result, check=replace(check, without_each=(0.991, 0.989, 0.9)))
    )


def test_a_single_word_has_no_others_to_compare_with(film_explainer):
    page = token_page(film_explainer.explain(["Awful", "A boring film without a plot."], check=True))
    assert "there is only one word" in page and "most words lead" not in page


def test_codes_of_the_sentences_are_documented():
    page = (Path(__file__).parents[2] / "docs" / "reading.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", page.partition("### Codes")[2].partition("##")[0], re.MULTILINE)
    documented, known = re.findall(r"\w+", " ".join(rows)), re.findall(r'^ +"(\w+)":', getsource(codes), re.MULTILINE)
    assert set(by_code(attribution("a film", [1.0, 2.0]))) < set(documented) == set(known)


@pytest.mark.parametrize(("chance", "said"), [(0.55, "predicts negative (55.0%)."), (0.8, "predicts negative.")])
def test_the_probability_of_what_is_predicted_then_is_told_where_it_is_not_the_rest(chance, said):
    result = attribution("a dull slow film", bits=[1.0, 90.0, 8.0, 2.0], target_probability=0.9)
    check = DeletionCheck(1, 0.9, 0.2, 0.9, 0.9, 10, decision="negative", decision_probability=chance)
    assert replace(result, check=check).answer.endswith(f"and the model {said}")


def test_what_other_words_do_is_a_sentence_of_its_own_that_names_them():
    """ "Lowers it further, to 16.9%, and the model still predicts negative": it did not, at 16.9%."""
    spelled = [f'"{word}"' for word in ("not", "bad", "at", "film", "this", "a")]
    check = DeletionCheck(2, 0.9, 0.6, 0.75, 0.7, 10, lowest_random=0.169, lowest_set=(0, 1), least=(2, 5))
    said = CheckSentences(
        check, 2, 6, "the probability", names=("this", "film"), then="still predicts it", spelled=spelled
    )
    assert said.answer == (
        'Not confirmed: without "this" and "film" the probability falls from 90.0% to 60.0%, and the model still '
        'predicts it. Without one of 10 sets of other words, "not" and "bad", it falls further, to 16.9%.'
    )
    assert said.rows[2].what == 'without 2 other words at random (mean of 10, the lowest 16.9%: "not" and "bad")'
    assert said.rows[3].what == 'without the 2 words with the fewest bits, "at" and "a"'
    least = replace(said, check=replace(check, without_least=0.1))
    assert least.answer.endswith('Without the 2 words with the fewest bits, "at" and "a", it falls further, to 10.0%.')
    same = replace(said, check=replace(check, lowest_random=0.6))
    assert same.answer.endswith('"not" and "bad", it falls as far, to 60.0%.')


def test_texts_are_named_by_the_lines_of_their_file():
    """The page named text 8, which was the row labelled line 10; line 8 was another text."""
    low = attribution("a b c", closed_probability=0.74, masked_probability=0.75)
    checked = replace(low, check=DeletionCheck(1, 0.75, 0.2, 0.7, 0.7, 9), removal_order=(0,), without_first=(0.2,))
    checked = replace(checked, effects=(1.0, None, None))
    plain, named = verdicts([checked] * 2), verdicts([checked] * 2, ["line 2", "line 10"])
    assert "of texts 1 and 2," in plain or "average" not in plain
    assert ("in place of line 2 and line 10," in named) == ("in place of texts 1 and 2," in plain)
    assert _numbered([2], ["line 2", "line 10"]) == "line 10" and _numbered([2], ["a", "b"]) == "text b"


@pytest.mark.parametrize(("least", "random", "rises"), [(0.68, 0.592, True), (0.68, 0.64, False), (0.6, 0.5, False)])
def test_words_with_the_fewest_bits_that_held_the_class_back_are_told(least, random, rises):
    """51.3% rose to 68.0%, and to 59.2% without others, and nothing said so."""
    check = DeletionCheck(2, 0.513, 0.2, least, random, 10, leading=(1, 2), least=(7, 8))
    result = attribution(
        "a b c d e f g h i", check=check, target_probability=0.513, removal_order=(1, 2), without_first=(0.4, 0.2)
    )
    result = replace(result, effects=(0.1,) * 9)
    assert ("opposing_words" in findings(result)) is rises
    assert ("rises to 68.0%" in str(result)) is rises


def test_a_single_word_that_does_as_much_makes_a_verdict_weak():
    """The order takes words as equal within 0.1 nats, and the verdict was "not confirmed" by 0.08 nats."""
    check = DeletionCheck(1, 0.746, 0.225, 0.7, 0.6, 8, lowest_random=0.211)
    row = CheckRow(0.211, '"people" (word 4)')
    said = CheckSentences(check, 1, 9, "the probability", names=("upset",), other=row)
    assert (
        said.title
        == "Check of the leading word: weakly confirmed, because another word alone takes as much of the probability"
    )
    assert said.answer == 'Without "upset" the probability falls from 74.6% to 22.5%.'
    assert said.rows[2].what == 'without another word (mean of 8, the lowest 21.1%: "people" (word 4))'
    assert len(said.rows) == 4  # it is not named twice
    further = replace(check, lowest_random=0.19)
    assert replace(said, check=further, other=row._replace(probability=0.19)).verdict == "not confirmed"


def test_the_word_with_the_most_bits_is_named_where_its_deletion_does_nothing():
    """A word with half of the bits was one of "26 other words", and its deletion raised the probability."""
    check = DeletionCheck(1, 0.867, 0.166, 0.85, 0.85, 10, without_each=(0.2, 0.872, 0.866, 0.866))
    result = attribution(
        "vanilla bowl a b",
        bits=[20.0, 60.0, 3.0, 3.0],
        unneeded_bits=1.0,
        open_bits=200.0,
        target_probability=0.867,
        effects=(2.0, -0.1, None, None),
        removal_order=(0,),
        without_first=(0.166,),
        without=(0.2, 0.872, None, None),
        check=check,
    )
    said = (
        '"bowl" (word 2) has the most bits (72.0%), and its deletion alone does not lower the probability of positive '
    )
    assert said + "(87.2% without it)." in result.to_text(details=True) and "bits_disagree" in result.findings
    assert "  72.0%" in result.to_text(details=True).partition("Check")[0]
    assert (
        said not in str(result) and said.replace('"', "&#34;") in token_page([result]) and "bowl (" not in str(result)
    )
    lowered = replace(
        result, check=replace(check, without_each=(0.2, 0.8, 0.866, 0.866)), without=(0.2, 0.8, None, None)
    )
    assert "bits_disagree" not in lowered.findings and "has the most bits" not in lowered.to_text(details=True)


def test_what_each_text_of_a_page_has_is_said_once_above_the_table(film_explainer):
    results = film_explainer.explain(["The plot is dull.", "A wonderful film, not boring at all."], check=True)
    said = "The statistics are those of neutral texts. With statistics of texts like yours"
    above, _, below = token_page([replace(one, statistics=NEUTRAL_TEXTS) for one in results]).partition("<table")
    assert above.count(said) == 1 and below.count(said) == 2


def test_what_most_texts_of_a_page_have_is_told_with_their_number(film_explainer):
    """One text of eight had no such caution, and the others' were in their folds only."""
    results = film_explainer.explain(
        ["The plot is dull.", "A wonderful film, not boring at all.", "A dull mess."], check=True
    )
    own = "a dataset of 1,000 positions"
    several = [replace(one, statistics=NEUTRAL_TEXTS if i else own) for i, one in enumerate(results)]
    above, _, _ = token_page(several).partition("<table")
    assert above.count("2 of the 3 texts: the statistics are those of neutral texts.") == 1
    one_of_three = [replace(one, statistics=own if i else NEUTRAL_TEXTS) for i, one in enumerate(results)]
    assert "the statistics are those of" not in token_page(one_of_three).partition("<table")[0].lower()


def test_an_answer_of_many_leading_words_begins_with_the_few_that_change_the_prediction():
    """21 of 47 words led, and a set of four stood last."""
    words = " ".join(f"w{i}" for i in range(24))
    check = DeletionCheck(
        10,
        0.9,
        0.1,
        0.89,
        0.89,
        10,
        by_rank_of(24),
        decision="negative",
        decision_probability=0.8,
        leading=tuple(range(10)),
        change=PredictionChange((3, 4), "negative", 0.6),
    )
    result = attribution(
        words,
        bits=[60.0] * 10 + [3.0] * 14,
        effects=(1.0,) * 10 + (None,) * 14,
        removal_order=tuple(range(10)),
        without_first=tuple(0.9 - 0.08 * (i + 1) for i in range(10)),
        target_probability=0.9,
        check=check,
        unneeded_bits=1.0,
        open_bits=200.0,
    )
    few = 'The fewest words found that change the prediction: "w3" and "w4" (negative 60.0%). Without '
    assert result.answer.startswith(few)
    assert "The text that is left may be unlike those that the model was trained on." in result.answer
    shorter = replace(result, check=replace(check, change=PredictionChange(tuple(range(3, 9)), "negative", 0.6)))
    assert result.answer.startswith(few) and shorter.answer.startswith("Without ")
    same = replace(result, check=replace(check, decision="positive"))  # nothing changes
    assert "may be unlike" not in same.answer


def by_rank_of(count):
    return tuple(0.88 for _ in range(count))


def test_a_text_of_which_the_tokenizer_knows_no_word_says_so_first():
    """Five [UNK] were "positive 99.0%", and the last line said that they are unknown."""
    known = attribution("a b .")
    unknown = replace(
        known, tokens=tuple(replace(t, token="[UNK]", unknown=not t.special and t.word < 2) for t in known.tokens)
    )
    said = "The tokenizer knows no word of this text: the model reads [UNK] for each."
    assert unknown.answer.startswith(said) and said not in known.answer
    one = replace(known, tokens=tuple(replace(t, unknown=t.word == 1) for t in known.tokens))
    assert "knows no word" not in one.answer


def test_bits_are_explained_where_a_check_speaks_of_them_and_the_list_does_not():
    check = DeletionCheck(1, 0.9, 0.1, 0.88, 0.89, 10, leading=(0,), least=(7,), without_first=(0.1,))
    bits = {"bits": [60.0] + [9.0] * 7, "unneeded_bits": 1.0, "open_bits": 200.0}
    result = attribution("a b c d e f g h", check=check, target_probability=0.9, **bits)
    measured = replace(result, effects=(2.0, *[None] * 7), removal_order=(0,), without_first=(0.1,))
    assert "with the fewest bits" in str(measured)
    assert measured.legend()["bits"].startswith("how much information of a word the model needs")
    assert "bits" not in measured.legend(details=True) and "of the bits" in measured.legend(details=True)
    assert "bits" not in replace(measured, check=None).legend()


def test_up_to_eight_words_with_the_fewest_bits_are_named_where_they_change_much():
    """The largest rise of a file was "without the 6 words with the fewest bits", without their names."""
    check = DeletionCheck(6, 0.6, 0.1, 0.92, 0.6, 10, leading=(0, 1, 2, 3, 4, 5), least=tuple(range(6, 12)))
    said = CheckSentences(check, 6, 20, "the probability", spelled=[f'"{i}"' for i in range(20)])
    assert said.rows[-1].what.endswith('the fewest bits, "6", "7", "8", "9", "10" and "11"')


def test_an_answer_of_little_probability_is_said_to_be_undecided():
    """An answer of 2.3% was explained without a word on how little that is."""
    check = DeletionCheck(1, 0.023, 0.001, 0.02, 0.02, 5, leading=(0,))
    result = attribution("a b c", check=check, target_probability=0.023, removal_order=(0,), without_first=(0.001,))
    said = "The model is undecided: nothing has more than 2.3%."
    assert said in result.answer and "nearly_undecided" in findings(result)
    other = replace(result, target=1 - result.target)
    more = replace(result, target_probability=0.6, check=replace(check, probability=0.6))
    assert said not in other.answer and "undecided" not in more.answer


def test_the_columns_of_an_improbable_class_are_those_of_its_legend():
    """The legend had "and those above", which the table had not."""
    result = attribution("a b c", target_probability=0.001, removal_order=(0, 1), without_first=(0.0008, 0.0005))
    result = replace(result, effects=(1.0, 0.5, None), without=(0.0008, 0.0009, 0.001))
    assert not ranked_words(result)[0]
    assert "and those above" not in str(result) and "and those above" not in result.legend()


def test_a_note_of_all_texts_is_told_once():
    """The sentence on neutral statistics stood under each of twelve texts."""
    few = {"bits": [90.0, 3.0], "unneeded_bits": 1.0, "open_bits": 200.0}
    results = [attribution(text, statistics=NEUTRAL_TEXTS, **few) for text in ("a b", "c d")]
    (said,) = notes_of_all(results)
    assert said.startswith(f"The statistics are those of {NEUTRAL_TEXTS}.") and notes_of_all(results[:1]) == []
    assert said in str(results[0]) and said not in "\n".join(printed_text(results[0], once=[said]).lines)
    assert notes_of_all([*results, attribution("e f")]) == notes_of_all([]) == []
