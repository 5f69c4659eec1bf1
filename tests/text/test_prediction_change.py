"""What changes a prediction: the sentences, labels and colors of single words and of the fewest that do."""

from dataclasses import replace

from captum_iba._reading.change_sentences import change_sentence
from captum_iba._reading.check_sentences import CheckSentences
from captum_iba._reading.codes import findings
from captum_iba._reading.removal_check import DeletionCheck, PredictionChange
from captum_iba._reading.word_sentences import verdict
from captum_iba._reading.words import ranked_words
from captum_iba.text import TextAttribution
from captum_iba.visualization import token_page
from captum_iba.visualization.colored_text import token_parts
from tests.visualization.examples import attribution


def test_the_fewest_words_that_change_the_prediction_are_named_where_they_are_not_the_leading_ones():
    spelled = [f'"word {number}"' for number in range(20)]
    check = DeletionCheck(2, 0.9, 0.1, 0.9, 0.9, 10, leading=(3, 1))

    def said(*parts, leading=(3, 1), alone=(), n_sets=1):
        change = PredictionChange(parts, "negative", 0.6, n_sets, tuple((part, "negative") for part in alone))
        found = replace(check, leading=leading, change=change)
        return change_sentence(CheckSentences(found, len(leading), 20, "the probability", spelled=spelled))

    assert said(1, 3) == change_sentence(CheckSentences(check, 2, 20, "the probability", spelled=spelled)) == ""
    assert said(3) == 'Without "word 3" alone the model predicts negative (60.0%).'
    few = 'The fewest words found that change the prediction: "word 2" and "word 3" (negative 60.0%).'
    assert said(2, 3) == few
    assert said(2, 3, n_sets=3) == f"{few[:-1]}; at least 2 other sets of as many do, too."
    likely = "With so many words a smaller set is likely."
    assert said(*range(8)).endswith('"word 6" and "word 7" (negative 60.0%).')
    assert said(*range(9)).endswith(f'"word 7" and "word 8" (negative 60.0%). {likely}')
    assert said(*range(14)).endswith(f'"word 11" and 2 more (negative 60.0%). {likely}')
    found = said(*range(4, 10), leading=tuple(range(9, -1, -1)))
    assert found == "The fewest words found that change the prediction: the first 6 leading words (negative 60.0%)."
    found = said(3, leading=(3,), alone=(3, 5, 7))
    assert found == 'Without "word 5" alone, or without "word 7" alone, the prediction changes, too.'
    found = said(3, leading=(3,), alone=(3, 5, 7, 8, 9))  # eight clauses stood in an answer
    assert found == "Each of 4 words changes the prediction alone, too."
    # "Any one of 7 other words" had three leading ones among them.
    found = said(2, leading=(3, 7), alone=(2, 3, 5, 7, 8))
    assert found.endswith("Each of 4 words, 2 of them leading, changes the prediction alone, too.")
    # The first sentence says it of a single leading word.
    assert '"word 3"' not in said(5, leading=(3,), alone=(3, 5, 7))


def test_a_prediction_that_single_other_words_change_at_half_is_nearly_undecided():
    """It was "confirmed" at 51.3%, as one at 98%, where 8 single words changed the class."""
    text, order = "a b c d e f g h i", (1, 2)
    change = PredictionChange((4,), "negative", 0.6, 2, ((1, "negative"), (4, "negative")), "negative", 0.47)
    check = DeletionCheck(2, 0.53, 0.2, 0.5, 0.52, 10, leading=order, change=change)
    result = attribution(text, check=check, target_probability=0.53, removal_order=order, without_first=(0.4, 0.2))
    result = replace(result, effects=(0.1,) * 9)
    said = "The model is nearly undecided: positive 53.0%, negative 47.0%."
    assert said in result.answer and "nearly_undecided" in findings(result)
    assert verdict(result) == "confirmed"
    # 50.7% was "nearly undecided" where the second of three classes had 27.1%.
    sure = replace(result, check=replace(check, change=replace(change, second_probability=0.27)))
    led = replace(result, check=replace(check, change=replace(change, alone=((1, "negative"), (2, "negative")))))
    other = replace(result, check=replace(check, change=None))
    for one in (sure, led, other):
        assert "undecided" not in one.answer and "nearly_undecided" not in findings(one)


def test_the_class_that_single_words_change_to_is_told_where_it_is_another():
    change = PredictionChange((0,), "b", 0.7, alone=((0, "b"), (2, "c")))
    check = DeletionCheck(1, 0.6, 0.1, 0.5, 0.5, 9, leading=(0,), decision="b", change=change)
    said = CheckSentences(check, 1, 9, "the probability", spelled=[f'"{i}"' for i in range(9)])
    assert change_sentence(said) == 'Without "2" alone, the prediction changes, too, to c.'
    same = replace(said, check=replace(check, change=replace(change, alone=((0, "b"), (2, "b")))))
    assert change_sentence(same) == 'Without "2" alone, the prediction changes, too.'


def test_what_changes_the_prediction_is_told_where_no_word_leads():
    """JSON had it, and the answer was "This text lowers it."."""
    change = PredictionChange((3,), "negative", 0.51, alone=((3, "negative"),))
    check = DeletionCheck(1, 0.52, 0.49, 0.5, 0.5, 9, leading=(3,), change=change)
    said = CheckSentences(check, 0, 9, "the probability", spelled=[f'"{i}"' for i in range(9)])
    assert change_sentence(said) == 'Without "3" alone the model predicts negative (51.0%).'
    assert change_sentence(replace(said, n_leading=1)) == ""


def test_the_first_words_and_those_that_change_the_prediction_are_told_once():
    """The same five words had 49.2% of one class, and 50.8% of the other, in two sentences."""
    order = tuple(range(8))
    left = (0.85, 0.8, 0.7, 0.6, 0.492, 0.4, 0.3, 0.2)
    check = DeletionCheck(8, 0.9, 0.2, 0.88, 0.89, 10, leading=order)
    result = attribution(
        " ".join("abcdefghijklmnopqrst"), check=check, target_probability=0.9, removal_order=order, without_first=left
    )
    assert "Without the first 5 leading words the probability of positive is still 49.2%." in result.answer
    same = replace(result, check=replace(check, change=PredictionChange((0, 1, 2, 3, 4), "b", 0.508)))
    assert "49.2%" not in same.answer and "(b 50.8%)" in same.answer


def test_single_words_that_change_the_prediction_are_labelled_and_counted():
    """Four words were counted, and the list had three; five of sixteen were punctuation marks."""
    change = PredictionChange((0,), "negative", 0.9, alone=tuple((i, "negative") for i in (0, 2, 3, 4, 5)))
    check = DeletionCheck(1, 0.9, 0.1, 0.88, 0.89, 10, leading=(0,), change=change)
    alone = (0.1, 0.9, 0.48, 0.47, 0.46, 0.45, 0.9, 0.9)
    result = attribution("a b c d e . g h", check=replace(check, without_each=alone), target_probability=0.9)
    result = replace(result, removal_order=(0,), without_first=(0.1,), effects=(2.0, *[None] * 7))
    said = "Each of 4 words and punctuation marks changes the prediction alone, too."
    assert said in result.answer
    matter = {row.number for row in ranked_words(result)[1] if row.relation == "changes the prediction"}
    assert matter == {2, 3, 4, 5} and str(result).count("changes the prediction") >= 4
    some = replace(result, check=replace(result.check, without_each=(*alone[:6], None, None)))
    assert said[:-1] + " (6 of 8 were deleted alone)." in some.answer


def test_a_word_that_changes_the_prediction_has_a_label_and_a_color():
    """In a pair the answer named "an", and the text of the page showed it as a word that does nothing."""
    change = PredictionChange((0,), "negative", 0.9, alone=((0, "negative"), (2, "negative")))
    check = DeletionCheck(1, 0.6, 0.01, 0.58, 0.58, 10, leading=(0,), change=change)
    check = replace(check, without_each=(0.01, 0.59, 0.47, 0.59, 0.3, 0.59, 0.59, 0.59))
    result = attribution("a b c d e f g h", check=check, target_probability=0.6)
    result = replace(result, removal_order=(0,), without_first=(0.01,), effects=(2.0, *[None] * 7))
    labels = [record["label"] for record in result.to_dict()["words"]]
    assert labels == ["", "", "changes the prediction", "", "matters alone", "", "", ""]
    assert "changes the prediction  does not lead; without this word alone the model predicts another class" in str(
        result
    )
    drawn = token_parts(result)
    levels = {part.word: drawn.level(part) for part in drawn.parts if part.kind == "word"}
    assert ranked_words(result)[1][1].number == 2 and ranked_words(result)[1][1].importance < 0.15
    assert levels[2] > 0 and levels[1] == levels[3] == 0
    assert "<dt>changes the prediction</dt>" in token_page([result])
    assert TextAttribution.from_dict(result.to_dict()).check.change == change


def test_spread_evidence_is_said_beside_the_words_that_change_the_prediction():
    order = tuple(range(9))
    left = (0.9, 0.89, 0.88, 0.86, 0.85, 0.8, 0.44, 0.3, 0.2)
    change = PredictionChange(tuple(range(7)), "b", 0.56)
    check = DeletionCheck(9, 0.9, 0.2, 0.88, 0.89, 10, leading=order, change=change)
    text = " ".join("abcdefghijklmnopqrst")
    result = attribution(text, check=check, target_probability=0.9, removal_order=order, without_first=left)
    result = replace(result, effects=(1.0,) * 9 + (None,) * 11)
    assert "What decides is spread over many words." in result.answer and "44.0%" not in result.answer
