"""What a model of another head than that of a sequence classifier says where some words are deleted."""

from __future__ import annotations

from captum_iba.text.answers import best_answer, entry_of
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.heads import TARGET_ROW, AnswerHead, MaskHead, TokenHead, ValueHead
from captum_iba.text.target import TextTarget


def decision_about(classifier: Classifier, text: EncodedText, about: TextTarget) -> str:
    """What the model predicts for what is explained, in a text without some words.

    Args:
        classifier (Classifier): The model.
        text (EncodedText): The text, with the row of its target.
        about (TextTarget): What is explained in the whole text.

    Returns:
        str: The class of a token or word, the classes of the words of an entity, the word at a mask token, the answer,
        or the value; empty for multiple choice, where the text is read with one choice only, and for an empty text.
    """
    head = classifier.head
    if not len(text) or not isinstance(head, (TokenHead, AnswerHead, ValueHead)):
        return ""
    ((_, values),) = classifier.values([text], 1)
    if isinstance(head, ValueHead):
        value = f"{float(values[about.number]):.4g}"
        return value if head.n_columns == 1 else f"{head.labels[about.number]} {value}"
    if isinstance(head, AnswerHead):
        return best_answer(text, values.double().log_softmax(0))[-1]
    at = [position for position, wanted in enumerate(text.inputs[TARGET_ROW]) if wanted]
    found = values[at].argmax(1).tolist()
    if isinstance(head, MaskHead):
        return entry_of(classifier, found[0])
    if found == [int(text.inputs[TARGET_ROW][position]) - 1 for position in at]:
        return about.label
    return " and ".join(dict.fromkeys(classifier.labels[number] for number in found))
