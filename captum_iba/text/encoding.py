"""From a text to what the model reads, and back: tokens, words, characters.

**What a word is.** Tokens belong to one word when the tokenizer's own pre-tokenizer says so
(``BatchEncoding.word_ids``) and no white space of the original text lies between them. So WordPiece joins
``unbeliev ##able`` and keeps ``don ' t`` apart, byte-level BPE joins the bytes of one emoji, and a tokenizer
without a pre-tokenizer (Llama 2) falls back on white space. A word is spelled as in the original text.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class EncodedText:
    """One text, or pair of texts, as tokens.

    Attributes:
        text (str): The original text.
        pair (str or None): The second text of a pair.
        inputs (dict): For each of the model's inputs (``"input_ids"`` first) a number per token.
        tokens (tuple of str): The tokens as the vocabulary spells them.
        spans (tuple): Per token the first character and the one after the last in its text; (0, 0) for what
            the tokenizer added.
        sequences (tuple): Per token 0 for the text, 1 for the pair, None for what the tokenizer added.
        special (tuple of bool): Which tokens are special: added, or written out in the text ("[SEP]").
        words (tuple): Per token the number of its word, counted through both texts; None for special tokens.
        cut (int): How many tokens were lost to the model's greatest length.
    """

    text: str
    pair: str | None
    inputs: dict[str, list[int]]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    sequences: tuple[int | None, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    cut: int

    def __len__(self) -> int:
        return len(self.tokens)

    def spelling(self, sequence: int | None, start: int, end: int) -> str:
        """The characters of the original text (sequence 0) or pair (1)."""
        source = self.pair if sequence == 1 else self.text
        return (source or "")[start:end]


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ValueError unless the tokenizer knows where in the text its tokens lie."""
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"tokenizer: {type(tokenizer).__name__} is a slow (Python) tokenizer and gives no character "
            "offsets; a fast one is needed: AutoTokenizer.from_pretrained(..., use_fast=True), or one "
            "converted to tokenizer.json."
        )


def encode(tokenizer: Any, text: str, pair: str | None, max_length: int, names: Sequence[str]) -> EncodedText:
    """One text as tokens, cut at ``max_length``, never padded.

    Args:
        tokenizer (PreTrainedTokenizerBase): A fast tokenizer.
        text (str): The text.
        pair (str or None): The second text of a pair.
        max_length (int): The most tokens the model takes, special ones included.
        names (sequence of str): The model's inputs that are wanted if the tokenizer gives them.

    Returns:
        EncodedText: tokens, words and offsets.

    Raises:
        ValueError: The special tokens alone are more than ``max_length``.

    Examples::

        >>> encode(tokenizer, "unbelievable!", None, 512, ["input_ids"]).words
        (None, 0, 0, 1, None)
    """
    wanted: dict[str, Any] = {
        "return_offsets_mapping": True,
        "return_special_tokens_mask": True,
        "return_token_type_ids": "token_type_ids" in names,
        "return_attention_mask": True,
        "padding": False,
        "verbose": False,
    }
    full = tokenizer(text, pair, truncation=False, **wanted)
    kept = full
    if len(full["input_ids"]) > max_length:
        kept = tokenizer(text, pair, truncation=True, max_length=max_length, **wanted)
    ids: list[int] = kept["input_ids"]
    if len(ids) > max_length:
        raise ValueError(
            f"max_length: {max_length} leaves no room beside the special tokens (the tokenizer gives {len(ids)} "
            "tokens); expected more."
        )
    sequences = tuple(kept.sequence_ids(0))
    special = _special(tokenizer, ids, kept["special_tokens_mask"])
    sources = {None: "", 0: text, 1: pair or ""}
    offsets = kept["offset_mapping"]
    words = _number_words(kept.word_ids(0), sequences, special, offsets, sources)
    shared = {word for word, tokens in Counter(words).items() if tokens > 1}
    spans = tuple(
        _without_space(sources[sequence], start, _with_marks(sources[sequence], start, end), word in shared)
        for sequence, (start, end), word in zip(sequences, offsets, words, strict=True)
    )
    return EncodedText(
        text=text,
        pair=pair,
        inputs={name: list(kept[name]) for name in names if name in kept},
        tokens=tuple(tokenizer.convert_ids_to_tokens(ids)),
        spans=spans,
        sequences=sequences,
        special=special,
        words=words,
        cut=len(full["input_ids"]) - len(ids),
    )


def _special(tokenizer: Any, ids: list[int], added: list[int]) -> tuple[bool, ...]:
    """Added tokens, and the same ones written out in a text; not [UNK] and [MASK], which stand for words."""
    names = ("cls", "sep", "bos", "eos", "pad")
    numbers = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    if tokenizer.pad_token_id == tokenizer.unk_token_id != tokenizer.eos_token_id:
        numbers -= {tokenizer.pad_token_id}  # some pad with the unknown token
    return tuple(bool(mask) or number in numbers for number, mask in zip(ids, added, strict=True))


def _with_marks(source: str, start: int, end: int) -> int:
    """The end of a span with the combining marks behind it, which normalizers drop (an accent written by itself)."""
    while start < end < len(source) and unicodedata.category(source[end]) in ("Mn", "Me", "Mc"):
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


def _number_words(
    word_ids: Sequence[int | None],
    sequences: Sequence[int | None],
    special: Sequence[bool],
    offsets: Sequence[tuple[int, int]],
    sources: dict[int | None, str],
) -> tuple[int | None, ...]:
    numbers: list[int | None] = []
    count = 0
    before: int | None = None  # the token before, if it is a word's
    for i, sequence in enumerate(sequences):
        if special[i]:
            numbers.append(None)
            before = None
            continue
        joined = (
            before is not None
            and sequence == sequences[before]
            and word_ids[i] is not None
            and word_ids[i] == word_ids[before]
            and not _space_before(sources[sequence], offsets[before], offsets[i])
        )
        count += not joined
        numbers.append(count - 1)
        before = i
    return tuple(numbers)


def _space_before(source: str, left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether white space parts a token from the one before: between them, or at its own beginning."""
    # Bytes of one character have the same span, which may take in the space before the character.
    if left == right:
        return False
    return any(character.isspace() for character in source[left[1] : right[0] + 1])


def pad(encoded: Sequence[EncodedText], pad_id: int, device: torch.device, multiple: int = 1) -> dict[str, Tensor]:
    """The inputs of several texts as tensors, padded on the right.

    Args:
        encoded (sequence of EncodedText): Texts with the same inputs.
        pad_id (int): The token that fills up ``input_ids``; other inputs are filled with 0.
        device (torch.device): Where the tensors go.
        multiple (int): The length is a multiple of this. Default: 1.

    Returns:
        dict of Tensor: (B, T) integers by the names of ``inputs``, ``input_ids`` first.
    """
    longest = -(-max(map(len, encoded)) // multiple) * multiple
    return {
        name: torch.tensor(
            [row.inputs[name] + [pad_id if name == "input_ids" else 0] * (longest - len(row)) for row in encoded],
            device=device,
        )
        for name in encoded[0].inputs
    }


def per_token(values: Sequence[Sequence[int]], fill: int, device: torch.device, length: int | None = None) -> Tensor:
    """Rows of different lengths as one (B, T) tensor, filled up on the right: to ``length``, or the longest row."""
    longest = max(map(len, values)) if length is None else length
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in values], device=device)
