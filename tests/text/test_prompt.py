"""Prompts: their tokens, and the parts that they are divided into."""

import copy
import warnings

import pytest
from tokenizers import Regex, pre_tokenizers
from tokenizers.implementations import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from captum_iba.text.prompt import divide, read_prompt

PROMPT = "the film was not good . a dull plot !"


def test_texts_are_divided_into_words_sentences_and_paragraphs():
    text = 'One. "Two?" he said!  Three…\n\nFour 4.5 is. 日本語です。はい\n \nLast'

    def of(granularity):
        return [text[a:b] for a, b in divide(text, granularity)]

    words = ["One.", '"Two?"', "he", "said!", "Three…", "Four", "4.5", "is."]
    assert of("word") == [*words, *"日本語です。はい", "Last"]
    assert of("sentence") == [
        *("One.", '"Two?"', "he said!", "Three…", "Four 4.5 is.", "日本語です。", "はい", "Last"),
    ]
    assert of("paragraph") == ['One. "Two?" he said!  Three…', "Four 4.5 is. 日本語です。はい", "Last"]
    assert divide(" \n ", "paragraph") == divide("", "sentence") == divide(" ", "word") == []


@pytest.mark.parametrize("granularity", ["token", "word", "sentence", "paragraph", [(7, 12), (13, 15)]])
def test_a_token_that_goes_on_with_the_template_belongs_to_the_message(granularity):
    """The tokenizers of Llama 3 and GPT-4 join a question mark and the line break behind it."""
    core = ByteLevelBPETokenizer()
    punctuation = pre_tokenizers.Split(Regex(r" ?[^\s\w]+[\r\n]*|\s*[\r\n]+| ?\w+"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([punctuation, byte_level])
    core.train_from_iterator(["live :?\n"] * 4, vocab_size=400, special_tokens=["<s>", "</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core._tokenizer, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for m in messages %}|{{ m.role }}|\n{{ m.content }}\n{% endfor %}"
    messages = [{"role": "user", "content": "live? :?"}]
    as_text = tokenizer.apply_chat_template(messages, tokenize=False)
    read = read_prompt(messages if isinstance(granularity, str) else as_text, tokenizer, granularity)
    merged = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(" :?\n"))
    assert len(merged) == 1 and read.text.endswith(" :?\n")
    assert read.parts[read.ids.index(merged[0])] == len(read.names) - 1
    assert read.names[-1].strip() in (":?", "live? :?")


def test_a_role_that_the_template_does_not_name_is_told(wordpiece, monkeypatch):
    """A misspelled role was written into the prompt without a word."""
    monkeypatch.setattr(wordpiece, "chat_template", "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}")
    with pytest.warns(UserWarning, match="the role of message 1 is 'asistant', which the chat template does not name"):
        read_prompt([{"role": "user", "content": "a"}, {"role": "asistant", "content": "b"}], wordpiece)
    known = wordpiece.chat_template.replace("m.role }}", "m.role if m.role != 'critic' else 'a' }}")
    monkeypatch.setattr(wordpiece, "chat_template", known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_prompt([{"role": "critic", "content": "a"}, {"role": "user", "content": "b"}], wordpiece)


@pytest.mark.parametrize("granularity", ["token", "word", "sentence", "paragraph", [(0, 8), (9, 21)]])
def test_every_part_has_its_characters_and_tokens(wordpiece, granularity):
    read = read_prompt(PROMPT, wordpiece, granularity)
    assert [PROMPT[a:b] for a, b in read.spans] == read.names
    assert sorted({*read.parts} - {-1}) == list(range(len(read.names)))
    tokens = [[i for i, p in zip(read.ids, read.parts, strict=True) if p == n] for n in range(len(read.names))]
    of_parts = [wordpiece.decode(ids) for ids in tokens]
    assert [text.replace(" ", "") for text in of_parts] == [name.replace(" ", "") for name in read.names]


def test_sentences_of_other_scripts_end_with_their_marks():
    for mark in "\u06d4\u061f\u0964\u104b\u1362":
        assert len(divide(f"a b{mark} c d{mark}", "sentence")) == 2


def test_special_tokens_in_a_prompt_are_no_part_and_in_no_name(wordpiece):
    read = read_prompt("the film[SEP]was good", wordpiece, "word")
    assert read.names == ["the", "film", "was", "good"]
    assert [part for number, part in zip(read.ids, read.parts, strict=True) if number == 3] == [-1, -1]


def test_an_ordinary_token_that_pads_stays_one(wordpiece):
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.pad_token = "!"
    read = read_prompt("a film !", tokenizer, "word")
    assert read.names == ["a", "film", "!"] and read.parts == [-1, 0, 1, 2, -1]


def test_messages_with_contents_of_other_types_are_refused(wordpiece):
    with pytest.raises(TypeError, match="the content of message 1 is a list, expected a string"):
        read_prompt([{"role": "user", "content": "a"}, {"role": "user", "content": [{"text": "b"}]}], wordpiece)


@pytest.mark.parametrize("name", ["Mr. Weber", "Dr. Li", "St. Gallen", "fruit, e.g. plums", "cf. Weber"])
def test_an_abbreviation_ends_no_sentence(name):
    text = f"The contact is {name}. Call at noon."
    assert [text[start:end] for start, end in divide(text, "sentence")] == [f"The contact is {name}.", "Call at noon."]


def test_a_sentence_goes_on_after_letters_with_periods():
    """ "on Fridays." was a part of its own, behind "Our office closes at 5 p.m."."""
    text = "We close at 5 p.m. on Fridays. it opens at 9 a.m. We live in the U.S. now."
    sentences = [text[start:end] for start, end in divide(text, "sentence")]
    assert sentences == ["We close at 5 p.m. on Fridays.", "it opens at 9 a.m.", "We live in the U.S. now."]
