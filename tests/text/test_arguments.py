"""Texts, targets and batches, by hand."""

import pytest
import torch

from captum_iba.demo import embedded_model_path
from captum_iba.text import TextExplainer
from captum_iba.text.arguments import batches_by_length, check_texts, find_target, targets_per_text
from captum_iba.text.encoding import WordSpan, join_words, scores_per_word


def test_one_text_is_a_list_of_one():
    assert check_texts("A wonderful film.") == (["A wonderful film."], [None])


@pytest.mark.parametrize(
    ("texts", "pairs", "says"),
    [
        (["a", ""], None, r"^texts\[1\] is empty, expected some text$"),
        ("  \n", None, r"^texts is only white space, expected some text$"),
        (["a", ""], ["", ""], r"^texts\[1\] and pairs\[1\] are empty, expected some text in one of them$"),
        ([""], [" "], r"^texts\[0\] and pairs\[0\] are only white space, "),
        (
            ["a", "é \ud83d"],
            None,
            r"^texts\[1\] has half of a surrogate pair, '\\ud83d', as character 2, expected Unic",
        ),
        (["a"], ["\udc00"], r"^pairs\[0\] has half of a surrogate pair"),
    ],
)
def test_texts_that_are_none(texts, pairs, says):
    with pytest.raises(ValueError, match=says):
        check_texts(texts, pairs)


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


@pytest.mark.parametrize("device", ["cuda:99", torch.device("cuda", 99)])
def test_a_device_that_is_not_there(device):
    with pytest.raises(ValueError, match="^device is cuda:99, which torch does not find here, expected one of cpu"):
        TextExplainer.from_pretrained(embedded_model_path(), device=device)


def test_a_model_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="my/classifier"):
        TextExplainer.from_pretrained("my/classifier")
    with pytest.raises(FileNotFoundError, match=f"model: there is no config.json in {tmp_path}, expected a folder"):
        TextExplainer.from_pretrained(tmp_path)


def test_half_a_pair_is_warned_of():
    with pytest.warns(UserWarning, match=r"pairs\[1\] is empty, and 1 more: of such a pair the model reads one text"):
        check_texts(["a", "b", "c"], ["d", "", " "])
    with pytest.warns(UserWarning, match=r"texts\[0\] is only white space: of such"):
        check_texts([" "], ["d"])


def test_what_is_meant_is_said():
    labels = ["negative", "positive"]
    with pytest.raises(ValueError, match="target is '1', a string; a class by its number is 1, expected one of"):
        find_target("1", labels)
    with pytest.raises(ValueError, match=r"target is 'positiv' \(did you mean 'positive'\?\), expected one of"):
        find_target("positiv", labels)
    explainer = TextExplainer.from_pretrained(embedded_model_path())
    with pytest.raises(TypeError, match="'layer' is no argument of explain; pass it to TextExplainer"):
        explainer.explain("a film", layer=9)
