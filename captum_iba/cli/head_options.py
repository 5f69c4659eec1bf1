"""Options of ``captum-iba explain`` for models with other heads than that of a sequence classifier."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from captum_iba.cli.command import OPTIONS

if TYPE_CHECKING:
    from captum_iba.text import TextExplainer

WordOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Token classification: word to explain, by its text or its number from 1, without punctuation marks. Give "
        "one for all texts, or one per text."
    ),
]
EntityOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Token classification: predicted entity to explain, by its text or number from 1.", show_default="all"
    ),
]
QuestionOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Question answering: the question, with the context as TEXT. Give one for all texts, or one per text."
    ),
]
MaskOption = Annotated[
    str | None,
    typer.Option(help="Masked language model: word for the mask token.", show_default="the predicted one"),
]
ChoiceOption = Annotated[list[str] | None, typer.Option(help="Multiple choice: a choice. Repeat the option for each.")]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        help="Regression: the distance from the prediction, in the unit of the output, that counts as one.",
        show_default="the standard deviation over neutral texts",
    ),
]


@dataclass
class HeadOptions:
    """What is explained, as the options say it."""

    word: list[str] = field(default_factory=list)
    entity: list[str] = field(default_factory=list)
    question: list[str] = field(default_factory=list)
    mask: str | None = None
    choice: list[str] = field(default_factory=list)
    tolerance: float | None = None

    def named_target(self, target: str | None) -> int | str | None:
        """``--target`` of a head without classes: words of the text, unless it is the number of a choice."""
        is_number = target is not None and target.isdecimal() and bool(self.choice) and target not in self.choice
        return int(target) if is_number and target is not None else target

    def arguments(
        self, explainer: TextExplainer, texts: list[str], pairs: list[str] | None, target: Any
    ) -> tuple[list[str], list[str] | None, dict[str, Any]]:
        """Texts, second texts and keywords for :meth:`captum_iba.text.TextExplainer.explain`.

        BadParameter for an option that is not for the head of the model.
        """
        head = explainer.classifier.head
        kind = "other" if head.has_classes else head.kind
        for of_kind, names in _OF_KIND.items():
            for name in names:
                if getattr(self, name) not in (None, []) and kind != of_kind:
                    raise typer.BadParameter(f"--{name} is for models of {of_kind}, this is one of {head.kind}.")
        keywords: dict[str, Any] = {"target": target}
        if kind == "token classification":
            if self.word and self.entity:
                raise typer.BadParameter("--word and --entity: expected one of them, got both.")
            name = "word" if self.word else "entity"
            given = self.word or self.entity
            wanted = [_number_or_text(name, one, texts) for one in given or ()]
            keywords[name] = _of_each(name, wanted, len(texts)) if given else "all"
            if name == "word":
                keywords[name] = _numbers_of_words(explainer, texts, pairs, keywords[name])
        elif self.mask is not None:
            if target is not None:
                raise typer.BadParameter("--mask and --target: expected one of them, got both.")
            keywords["target"] = self.mask
            OPTIONS.set({**OPTIONS.get(), "target": "--mask"})  # what an error names
        elif self.choice:
            keywords["choices"] = [self.choice] * len(texts)
        elif self.tolerance is not None:
            keywords["tolerance"] = self.tolerance
        elif self.question:
            if pairs is not None:
                raise typer.BadParameter("--question: the second texts are given already.")
            return _of_each("question", self.question, len(texts)), texts, keywords
        return texts, pairs, keywords


_OF_KIND = {
    "token classification": ("word", "entity"),
    "question answering": ("question",),
    "masked language modeling": ("mask",),
    "multiple choice": ("choice",),
    "regression": ("tolerance",),
}


def _of_each(name: str, given: Sequence[Any], count: int) -> list[Any]:
    if len(given) not in (1, count):
        raise typer.BadParameter(f"--{name}: expected one, or one for each of the {count} texts, got {len(given)}.")
    return list(given) * count if len(given) == 1 else list(given)


def _numbers_of_words(
    explainer: TextExplainer, texts: list[str], pairs: list[str] | None, wanted: Sequence[int | str]
) -> list[int | str]:
    """Words to explain, with their numbers among all words; as they are printed, they leave punctuation marks out."""
    from captum_iba._reading.places import printed_numbers

    numbers = list(wanted)
    for i, text in enumerate(explainer.classifier.encode(texts, pairs or [None] * len(texts))):
        if isinstance(number := wanted[i], str):
            continue
        printed = printed_numbers([text.spelling(*word[1:]) for word in text.word_spans])
        if number + 1 not in printed:
            expected = f"1 to {printed[-1]}" if printed else "none, there is no such"
            raise ValueError(f"word is {number + 1}, expected {expected}, for texts[{i}]")
        numbers[i] = printed.index(number + 1)
    return numbers


def _number_or_text(name: str, given: str, texts: Sequence[str]) -> int | str:
    """Words and entities are counted from 1 where people read; a number that a text has itself is its text."""
    spelled = any(re.search(rf"(?<!\w){re.escape(given)}(?!\w)", text) for text in texts)
    if given == "0" and not spelled:
        raise typer.BadParameter(f"--{name} is 0, expected a number from 1, or its text.")
    return int(given) - 1 if given.isdecimal() and int(given) > 0 and not spelled else given
