"""From a text to what the model reads, and back: tokens, words, characters.

**What a word is.** Tokens belong to one word when the tokenizer's own pre-tokenizer says so
(``BatchEncoding.word_ids``) and no white space of the original text lies between them. So WordPiece joins
``unbeliev ##able``, byte-level BPE joins the bytes of one emoji, and a tokenizer without a pre-tokenizer (Llama 2)
falls back on white space. What a reader takes for one word is one, whatever the pre-tokenizer says: ``don't``,
``2024``, ``1,000.50``, ``<br />``, letters with combining marks. A word is spelled as in the original text.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_MARKS = ("Mn", "Me", "Mc")  # categories of combining marks

# One word each, though pre-tokenizers split them: apostrophes inside a word, numbers, and tags of HTML. Attributes of a
# tag must have quotes, so that "if a <b and c> d" is no tag.
_ONE_WORD = re.compile(
    r"""[^\W\d_]+(?:['’][^\W\d_]+)+|\d+(?:[.,]\d+)*|</?[a-zA-Z][a-zA-Z0-9]*(?:\s+[\w-]+="[^"<>]*")*\s*/?>"""
)


class WordSpan(NamedTuple):
    """One word: positions of its tokens, and its characters, [start, end), in the text (sequence 0) or pair (1)."""

    positions: tuple[int, ...]
    sequence: int
    start: int
    end: int


def join_words(
    words: Sequence[int | None], spans: Sequence[tuple[int, int]], sequences: Sequence[int | None]
) -> tuple[WordSpan, ...]:
    """Join tokens to words, in the order of the words' numbers.

    Of each token come the number of its word (None for special tokens), its characters, [start, end), and its sequence.
    """
    positions: dict[int, list[int]] = {}
    for position, word in enumerate(words):
        if word is not None:
            positions.setdefault(word, []).append(position)
    return tuple(
        WordSpan(
            tuple(token_positions),
            sequences[token_positions[0]] or 0,
            min(spans[i][0] for i in token_positions),
            max(spans[i][1] for i in token_positions),
        )
        for _, token_positions in sorted(positions.items())
    )


def scores_per_word(words: Sequence[WordSpan], scores: Sequence[float], word_level: bool = False) -> list[float]:
    """Scores of words: the sums over their tokens, or the means if all tokens of a word have the word's score."""
    word_scores = []
    for word in words:
        token_scores = [float(scores[position]) for position in word.positions]
        # fsum refuses the sum of infinity and minus infinity, which is NaN.
        total = math.fsum(token_scores) if all(map(math.isfinite, token_scores)) else sum(token_scores)
        word_scores.append(total / len(token_scores) if word_level else total)
    return word_scores


@dataclass(frozen=True)
class EncodedText:
    """One text, or pair of texts, as tokens.

    Attributes:
        text (str): The original text.
        pair (str or None): The second text of a pair.
        inputs (dict): A tuple of one integer per token for each of the model's inputs, ``"input_ids"`` first; for heads
            that read out single positions the row of their target, last.
        tokens (tuple of str): The tokens as the vocabulary spells them.
        spans (tuple): Characters of each token in its text, [start, end); (0, 0) for tokens that the tokenizer added.
        sequences (tuple): 0 for tokens of the text, 1 for those of the pair, None for those that the tokenizer added.
        special (tuple of bool): Whether each token is special: added, or written out in the text ("[SEP]").
        words (tuple): Number of the word of each token, counted through both texts; None for special tokens.
        tokens_truncated (int): Number of tokens beyond ``max_length``, which the model does not see.
        is_target (tuple of bool): Whether each token is what is explained, which stays where others are removed; empty
            where none is.
    """

    text: str
    pair: str | None
    inputs: dict[str, tuple[float, ...]]  # tuples, because all methods of a comparison share them
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    sequences: tuple[int | None, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    tokens_truncated: int
    is_target: tuple[bool, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def removable(self) -> tuple[bool, ...]:
        """Whether each token may be removed or replaced by methods and metrics: not special tokens and the target."""
        return tuple(not special and not target for special, target in zip(self.special, self._targets, strict=True))

    def maskable(self, special_tokens: bool = False) -> tuple[bool, ...]:
        """Whether each token gets a bottleneck: all that are removable, or special tokens, too (the published code)."""
        return tuple(not target for target in self._targets) if special_tokens else self.removable

    @property
    def _targets(self) -> tuple[bool, ...]:
        return self.is_target or (False,) * len(self)

    @property
    def removable_words(self) -> tuple[int, ...]:
        """Numbers of the words with removable tokens."""
        numbers = dict.fromkeys(word for word, free in zip(self.words, self.removable, strict=True) if free)
        return tuple(number for number in numbers if number is not None)

    @cached_property
    def word_spans(self) -> tuple[WordSpan, ...]:
        """The words in order."""
        return join_words(self.words, self.spans, self.sequences)

    @property
    def word_groups(self) -> tuple[int, ...]:
        """Integers that tokens of one word share; special tokens have numbers of their own, above those of words."""
        return tuple(len(self) + i if word is None else word for i, word in enumerate(self.words))

    def spelling(self, sequence: int | None, start: int, end: int) -> str:
        """The characters of the original text (sequence 0) or pair (1)."""
        source = self.pair if sequence == 1 else self.text
        return (source or "")[start:end]


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ValueError unless the tokenizer gives the characters of its tokens."""
    if isinstance(tokenizer, nn.Module):
        raise TypeError(
            f"tokenizer is a {type(tokenizer).__name__}, a model; expected the model first, then its tokenizer"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"tokenizer: {type(tokenizer).__name__} is a slow (Python) tokenizer and gives no character "
            "offsets; a fast one is needed: AutoTokenizer.from_pretrained(..., use_fast=True), or one "
            "converted to tokenizer.json."
        )


def encode(tokenizer: Any, text: str, pair: str | None, max_length: int, names: Sequence[str]) -> EncodedText:
    """Encode one text: truncated to ``max_length`` tokens, special ones included, never padded.

    ``names`` are the model's inputs, which are encoded where the tokenizer gives them. ValueError if ``max_length`` has
    no room beside the special tokens.
    """
    options: dict[str, Any] = {
        "return_offsets_mapping": True,
        "return_special_tokens_mask": True,
        "return_token_type_ids": "token_type_ids" in names,
        "return_attention_mask": True,
        "padding": False,
        "verbose": False,
    }
    full = tokenizer(text, pair, truncation=False, **options)
    truncated = full
    if len(full["input_ids"]) > max_length:
        truncated = tokenizer(text, pair, truncation=True, max_length=max_length, **options)
    ids: list[int] = truncated["input_ids"]
    if len(ids) > max_length:
        raise ValueError(
            f"max_length: {max_length} leaves no room beside the special tokens (the tokenizer gives {len(ids)} "
            "tokens); expected more."
        )
    sequences = tuple(truncated.sequence_ids(0))
    special = _special(tokenizer, ids, truncated["special_tokens_mask"])
    sources = {None: "", 0: text, 1: pair or ""}
    offsets = truncated["offset_mapping"]
    words = _number_words(truncated.word_ids(0), sequences, special, offsets, sources)
    shared = {word for word, tokens in Counter(words).items() if tokens > 1}
    starts: dict[int | None, set[int]] = {sequence: set() for sequence in sources}
    for sequence, (start, _) in zip(full.sequence_ids(0), full["offset_mapping"], strict=True):
        starts[sequence].add(start)
    spans = [
        _without_space(
            sources[sequence], start, _with_marks(sources[sequence], start, end, starts[sequence]), word in shared
        )
        for sequence, (start, end), word in zip(sequences, offsets, words, strict=True)
    ]
    _show_blank_words(spans, words, sequences, sources)
    return EncodedText(
        text=text,
        pair=pair,
        inputs={name: tuple(truncated[name]) for name in names if name in truncated},
        tokens=tuple(tokenizer.convert_ids_to_tokens(ids)),
        spans=tuple(spans),
        sequences=sequences,
        special=special,
        words=words,
        tokens_truncated=len(full["input_ids"]) - len(ids),
    )


def _special(tokenizer: Any, ids: list[int], added: list[int]) -> tuple[bool, ...]:
    """Added tokens, and the same tokens written out in a text; not [UNK] and [MASK], which stand for words."""
    numbers = {getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep", "bos", "eos")}
    pad_id = tokenizer.pad_token_id
    # Some pad with the unknown token, or with a word of the vocabulary ("!"), which are no special tokens in a text.
    if pad_id in ids and pad_id != tokenizer.unk_token_id:
        added_token = tokenizer.added_tokens_decoder.get(pad_id)
        numbers |= {pad_id} if added_token is not None and added_token.special else set()
    return tuple(bool(mask) or number in numbers for number, mask in zip(ids, added, strict=True))


def _with_marks(source: str, start: int, end: int, starts: Set[int]) -> int:
    """The end of a span with the combining marks after it that no other token starts with.

    Normalizers drop them (an accent written by itself); other tokenizers begin a token with them.
    """
    while start < end < len(source) and end not in starts and unicodedata.category(source[end]) in _MARKS:
        end += 1
    return end


def _without_space(source: str, start: int, end: int, joined: bool) -> tuple[int, int]:
    """The span without white space around it, as GPT-2 and Llama count it in.

    A token of nothing but white space is empty if it is ``joined`` with others to a word, else stays.
    """
    piece = source[start:end]
    if not piece.strip():
        return (end, end) if joined else (start, end)
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def _show_blank_words(
    spans: list[tuple[int, int]],
    words: Sequence[int | None],
    sequences: Sequence[int | None],
    sources: dict[int | None, str],
) -> None:
    """Give words of white space only, whose spans are empty, the white space between the token before and their end."""
    for word in join_words(words, spans, sequences):
        if word.start == word.end:
            first, source = word.positions[0], sources[word.sequence]
            ends = [spans[i][1] for i in range(first) if sequences[i] == word.sequence]
            start = max([len(source[: word.end].rstrip()), *ends])
            if start < word.end:
                spans[first] = (start, word.end)


def _number_words(
    word_ids: Sequence[int | None],
    sequences: Sequence[int | None],
    special: Sequence[bool],
    offsets: Sequence[tuple[int, int]],
    sources: dict[int | None, str],
) -> tuple[int | None, ...]:
    whole = {sequence: _one_words(source) for sequence, source in sources.items()}
    numbers: list[int | None] = []
    count = 0
    before: int | None = None  # the previous token, unless it is special
    for i, sequence in enumerate(sequences):
        if special[i]:
            numbers.append(None)
            before = None
            continue
        joined = before is not None and sequence == sequences[before]
        if joined and before is not None:
            source, left, right = sources[sequence], offsets[before], offsets[i]
            same = _in_one_word(whole[sequence], left, right)
            same_word_id = word_ids[i] is not None and word_ids[i] == word_ids[before]
            joined = (
                same is True
                # Pieces of one character, which a normalizer may have expanded to several words.
                or (left == right and left[0] < left[1])
                or _continues(source, left, right)
                or (same is None and same_word_id and not _space_before(source, left, right))
            )
        count += not joined
        numbers.append(count - 1)
        before = i
    return tuple(numbers)


def _one_words(source: str) -> dict[int, re.Match[str]]:
    """The match of :data:`_ONE_WORD` that each character of a text is in."""
    return {at: match for match in _ONE_WORD.finditer(source) for at in range(*match.span())}


def _in_one_word(whole: dict[int, re.Match[str]], left: tuple[int, int], right: tuple[int, int]) -> bool | None:
    """Whether two tokens are in the same match; None if that is for the pre-tokenizer to say: neither is in a tag.

    The last character decides, for the first may be the space before a word.
    """
    one, other = (whole.get(end - 1) for _, end in (left, right))
    if one is not None and one is other:
        return True
    return False if any(match is not None and match[0][0] == "<" for match in (one, other)) else None


def _continues(source: str, left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether a token begins with a combining mark, or with a letter after one: pre-tokenizers may split there."""
    start = right[0]
    if left[1] != start or not 0 < start < len(source):
        return False
    before, first = (unicodedata.category(character) for character in source[start - 1 : start + 1])
    return first in _MARKS or (before in _MARKS and first.startswith("L"))


def _space_before(source: str, left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether white space parts a token from the one before: between them, at its beginning, or at the other's end."""
    # Bytes of one character have the same span, which may take in the space before the character.
    if left == right:
        return False
    before = source[slice(*left)]
    ends_in_space = bool(before.strip()) and before[-1].isspace()
    return ends_in_space or any(character.isspace() for character in source[left[1] : right[0] + 1])


def pad(encoded: Sequence[EncodedText], pad_id: int, device: torch.device, multiple: int = 1) -> dict[str, Tensor]:
    """Inputs of texts as tensors, (B, T), padded on the right to a multiple of ``multiple``; ``input_ids`` first."""
    longest = -(-max(map(len, encoded)) // multiple) * multiple
    return {
        name: per_token([text.inputs[name] for text in encoded], pad_id if name == "input_ids" else 0, device, longest)
        for name in encoded[0].inputs
    }


def per_token(values: Sequence[Sequence[float]], fill: int, device: torch.device, length: int | None = None) -> Tensor:
    """Rows of different lengths as one tensor (B, T), padded on the right to ``length``, or to the longest row."""
    longest = max(map(len, values)) if length is None else length
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in values], device=device)
