import copy
import math

import pytest
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import ByT5Tokenizer

from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import check_tokenizer, encode, join_words, pad, scores_per_word

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def words(encoded):
    """The spelling of every word, from the spans of its tokens."""
    found = {}
    for word, sequence, (start, end) in zip(encoded.words, encoded.sequences, encoded.spans, strict=True):
        if word is not None:
            first, last, _ = found.get(word, (start, end, sequence))
            found[word] = (min(first, start), max(last, end), sequence)
    return [(encoded.pair if s else encoded.text)[start:end] for start, end, s in found.values()]


def test_words_keep_the_original_spelling(wordpiece):
    encoded = encode(wordpiece, "The  Unbelievable FILM, don't!", None, 40, NAMES)
    assert words(encoded) == ["The", "Unbelievable", "FILM", ",", "don't", "!"]
    assert encoded.tokens[2:5] == ("un", "##believ", "##able")
    assert encoded.words[:5] == (None, 0, 1, 1, 1)
    assert encoded.special == (True, *[False] * 10, True)
    assert encoded.tokens_truncated == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don’t<br /><br>l'été, rock 'n' roll", ["Don’t", "<br />", "<br>", "l'été", ",", "rock", *"'n'", "roll"]),
        ('<a href="x.html" id="y">1,000.50</a>', ['<a href="x.html" id="y">', "1,000.50", "</a>"]),
        ("if a <b and c> d, e.", ["if", "a", "<", "b", "and", "c", ">", "d", ",", "e", "."]),
    ],
)
def test_words_are_those_of_a_reader(wordpiece, byte_level, text, expected):
    assert words(encode(wordpiece, text, None, 99, NAMES)) == expected
    assert [word for word in words(encode(byte_level, text, None, 199, NAMES[:2])) if word.strip()] == expected
    pair = encode(wordpiece, "don", "'t", 99, NAMES)
    assert words(pair) == ["don", "'", "t"]


def test_pairs_number_their_words_on(wordpiece):
    encoded = encode(wordpiece, "good film", "good film", 40, NAMES)
    assert encoded.tokens == ("[CLS]", "good", "film", "[SEP]", "good", "film", "[SEP]")
    assert encoded.words == (None, 0, 1, None, 2, 3, None)
    assert encoded.sequences == (None, 0, 0, None, 1, 1, None)
    assert encoded.inputs["token_type_ids"] == (0, 0, 0, 0, 1, 1, 1)


def test_special_tokens_written_in_the_text_are_special_and_unknown_words_are_not(wordpiece):
    encoded = encode(wordpiece, "good [SEP] 語 [MASK] film", None, 40, NAMES)
    assert encoded.tokens == ("[CLS]", "good", "[SEP]", "[UNK]", "[MASK]", "film", "[SEP]")
    assert encoded.special == (True, False, True, False, False, False, True)
    assert words(encoded) == ["good", "語", "[MASK]", "film"]


def test_truncation_is_noticed(wordpiece):
    encoded = encode(wordpiece, "good film " * 10, None, 12, NAMES)
    assert len(encoded) == 12 and encoded.tokens[-1] == "[SEP]"
    assert encoded.tokens_truncated == 10


def test_byte_level_words_have_no_space_and_whole_emojis(byte_level):
    encoded = encode(byte_level, "the film 😀 was dull", None, 99, NAMES[:2])
    assert words(encoded) == ["the", "film", "😀", "was", "dull"]
    assert not any(encoded.special)
    assert encode(byte_level, "good<end>", None, 99, NAMES[:2]).special[-1]


def test_words_are_whole_where_a_pre_tokenizer_parts_digits_and_marks(byte_level):
    """As those of Qwen2 and Llama 3 do."""
    tokenizer = copy.deepcopy(byte_level)
    pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    text = "in 2024 हिन्दी फिल्म cafe\u0301 ไม่ดี mp3"
    encoded = encode(tokenizer, text, None, 199, NAMES[:2])
    assert [word for word in words(encoded) if word.strip()] == [*text.split()[:-1], "mp", "3"]
    whole = encode(byte_level, text, None, 199, NAMES[:2])
    assert [word for word in words(whole) if word.strip()][:-2] == text.split()[:-1]


def test_white_space_of_its_own_is_a_word_of_its_own(byte_level):
    assert words(encode(byte_level, "good\n\nfilm", None, 99, NAMES[:2])) == ["good", "\n", "\n", "film"]


def test_without_a_pre_tokenizer_white_space_parts_words(without_pre_tokenizer):
    encoded = encode(without_pre_tokenizer, "the film", "the filmed", 99, NAMES[:2])
    assert words(encoded) == ["the", "film", "the", "filmed"]
    # The unknown token pads here; as a word in a text it is no padding.
    assert not encode(without_pre_tokenizer, "the 語", None, 99, NAMES[:2]).special[-1]


def test_padding_is_on_the_right_and_the_tokenizer_stays_as_it_was(wordpiece):
    assert wordpiece.padding_side == "left"
    rows = [encode(wordpiece, text, None, 40, NAMES) for text in ("good", "a good film")]
    tensors = pad(rows, 7, torch.device("cpu"))
    assert list(tensors) == list(NAMES)
    assert tensors["input_ids"][0].tolist()[3:] == [7, 7]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert wordpiece.padding_side == "left" and wordpiece.backend_tokenizer.padding is None


def test_a_slow_tokenizer_is_an_error_that_says_what_is_needed():
    with pytest.raises(ValueError, match=r"ByT5Tokenizer is a slow.*use_fast=True"):
        check_tokenizer(ByT5Tokenizer())


def test_texts_are_truncated_where_the_model_ends(bert, wordpiece):
    assert Classifier(bert, wordpiece).max_length == 40
    assert Classifier(bert, wordpiece, 8).max_length == 8
    for wrong in (0, 41, True, 8.0):
        with pytest.raises(ValueError, match="max_length is .*, expected an integer from 1 to 40"):
            Classifier(bert, wordpiece, wrong)


def test_tokens_are_joined_to_words_and_their_scores_summed(wordpiece):
    encoded = encode(wordpiece, "unbelievable film", "good", 99, ["input_ids"])
    words = encoded.word_spans
    assert [encoded.spelling(*word[1:]) for word in words] == ["unbelievable", "film", "good"]
    assert [word.sequence for word in words] == [0, 0, 1] and words[0].positions == (1, 2, 3)[: len(words[0].positions)]
    scores = [1.0] * len(encoded)
    assert scores_per_word(words, scores) == [len(word.positions) for word in words]
    assert scores_per_word(words, scores, word_level=True) == [1.0, 1.0, 1.0]
    (word,) = join_words((0, 0), ((0, 1), (1, 2)), (0, 0))
    assert math.isnan(scores_per_word([word], [math.inf, -math.inf])[0])
    assert scores_per_word([word], [math.inf, 1.0]) == [math.inf]


def test_special_tokens_are_neither_removable_nor_maskable_but_as_released(wordpiece):
    encoded = encode(wordpiece, "a film [SEP] good", None, 99, ["input_ids"])
    assert encoded.removable == encoded.maskable() == (False, True, True, False, True, False)
    assert encoded.maskable(special_tokens=True) == (True,) * 6
    assert encoded.word_groups == (6, 0, 1, 9, 2, 11)
