"""What stands in for a token that a method takes away without shortening the text."""

from __future__ import annotations

from torch import Tensor

from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText, per_token


def stand_in(classifier: Classifier, name: str = "mask") -> int:
    """The id of the token that replaces others.

    Args:
        classifier (Classifier): Whose tokenizer is asked.
        name (str): ``"pad"``, or ``"mask"``: [MASK], or else the unknown token, or else the padding token.
            Default: ``"mask"``.

    Raises:
        ValueError: Another name, or nothing stands for a token but what ends the text for the model.
    """
    if name not in ("mask", "pad"):
        raise ValueError(f"baseline: expected 'mask' or 'pad', got {name!r}.")
    if name == "mask":
        for number in (classifier.tokenizer.mask_token_id, classifier.tokenizer.unk_token_id):
            if isinstance(number, int):
                return number
        if classifier.own_end:
            raise ValueError(
                "tokenizer: it has no [MASK] and no unknown token, and its padding token ends every text, so that the "
                "model would look for the end elsewhere; set tokenizer.unk_token, or choose a method that leaves out "
                "tokens, such as lime."
            )
    return classifier.pad_id


def empty_text(classifier: Classifier, encoded: list[EncodedText], ids: Tensor, name: str = "mask") -> Tensor:
    """Token ids with a stand-in for every ordinary token; special tokens and padding stay.

    Args:
        classifier (Classifier): Whose stand-in it is.
        encoded (list of EncodedText): The texts.
        ids (Tensor): Their ids, padded, (B, T).
        name (str): As for :func:`stand_in`. Default: ``"mask"``.

    Returns:
        Tensor: (B, T).
    """
    ordinary = per_token([[int(not special) for special in text.special] for text in encoded], 0, ids.device)
    return ids.masked_fill(ordinary.bool(), stand_in(classifier, name))
