"""Texts, targets and batches, by hand."""

from captum_iba.text.arguments import batches_by_length, check_texts, find_target, targets_per_text
from captum_iba.text.encoding import WordSpan, join_words, scores_per_word


def test_one_text_is_a_list_of_one():
    assert check_texts("A wonderful film.") == (["A wonderful film."], [None])


def test_a_target_is_a_label_in_any_case_a_number_or_nothing():
    labels = ["negative", "positive"]
    assert find_target("Positive", labels) == 1
    assert targets_per_text([None, "positive"], 2, labels) == [None, 1]


def test_batches_are_of_similar_length_the_longest_first():
    assert batches_by_length([3, 9, 5], 2) == [[1, 2], [0]]


def test_tokens_are_joined_to_words_whose_scores_are_their_sums():
    words = join_words((None, 0, 0, 1), ((0, 0), (0, 2), (2, 6), (6, 7)), (None, 0, 0, 0))
    assert words[0] == WordSpan(positions=(1, 2), sequence=0, start=0, end=6)
    assert scores_per_word(words, [0.0, 1.0, 2.0, 4.0]) == [3.0, 4.0]
