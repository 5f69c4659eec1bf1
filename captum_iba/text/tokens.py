"""Tokens and words of an explained text, and the optimization of their mask."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """One token of a text.

    Attributes:
        token (str): The token as the vocabulary spells it ("##able", "Ġfilm").
        bits (float): Information that the model needs of it, in bits.
        start, end (int): Its characters in the original text, [start, end).
        sequence (int or None): 0 for a token of the text, 1 of the pair, None if the tokenizer added it.
        special (bool): Whether it is a special token.
        word (int or None): Index of its word in :attr:`captum_iba.text.TextAttribution.words`, from 0; None for special
            tokens. What is printed or drawn counts words from 1.
        unknown (bool): Whether it stands for what the vocabulary does not have, as "[UNK]" does.
    """

    token: str
    bits: float
    start: int
    end: int
    sequence: int | None
    special: bool
    word: int | None
    unknown: bool = False


@dataclass(frozen=True)
class Word:
    """One word of a text: the sum of its tokens.

    Attributes:
        word (str): The word as the original text spells it.
        bits (float): Sum of the bits of its tokens.
        start, end (int): Its characters in the original text, [start, end).
        sequence (int): 0 for a word of the text, 1 of the pair.
    """

    word: str
    bits: float
    start: int
    end: int
    sequence: int


@dataclass(frozen=True)
class TextTrace:
    """The optimization of a mask: entry k is after k updates.

    Attributes:
        loss (tuple of float): Value of the objective, in nats.
        information (tuple of float): Information that the mask lets through, in bits.
        probability (tuple of float): Target probability through the bottleneck.
    """

    loss: tuple[float, ...]
    information: tuple[float, ...]
    probability: tuple[float, ...]
