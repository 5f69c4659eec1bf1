"""The targets of heads other than a sequence classifier's: words, entities, answers, choices and values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextTarget:
    """What is explained where that is no class of the whole text.

    Attributes:
        kind (str): ``"word"``, ``"token"``, ``"entity"``, ``"answer"``, ``"mask"``, ``"choice"`` or ``"value"``.
        label (str): The class, answer, word, choice or value that is explained.
        text (str): What has this label, as the text spells it: "Anna"; empty where it is the text as a whole.
        spans (tuple): Characters of its words, (sequence, start, end), with 0 for the text and 1 for the pair.
        number (int): Number of the label: its class, entry of the vocabulary, choice or output; of an answer the
            position of its first token.
        predicted (int), predicted_label (str), predicted_probability (float): The most probable label; -1 for an
            answer that begins at the same token and ends elsewhere.
        text_number (int): Number of its text among those of the call, from 0.
    """

    kind: str
    label: str
    number: int
    predicted: int
    predicted_label: str
    predicted_probability: float
    text: str = ""
    spans: tuple[tuple[int, int, int], ...] = ()
    text_number: int = 0

    def holds(self, sequence: int | None, start: int, end: int) -> bool:
        """Whether a token or word at these characters belongs to what is explained."""
        return any(sequence == own and start < last and end > first for own, first, last in self.spans)

    @property
    def question(self) -> str:
        """The question that the attribution answers, for example ``'Why B-PER for "Anna"?'``."""
        if self.kind == "answer":
            return f'Why this answer: "{self.label}"?'
        if self.kind == "mask":
            return f"Why {self.text} = {self.label}?"
        return f'Why {self.label} for "{self.text}"?' if self.text else f"Why {self.label}?"

    @property
    def name(self) -> str:
        """The label with what has it, for example ``"B-PER for Anna"``."""
        return f"{self.label} for {self.text}" if self.text else self.label
