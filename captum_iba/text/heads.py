"""What a model is that is no sequence classifier, and what explains it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_FUNCTION = "forward_func=lambda ids, mask: model(input_ids=ids, attention_mask=mask)"
_OF_POSITION = f"{_FUNCTION}.logits[:, position], the classes of one token"

# By a part of the class's name: what it is, and the forward function that explains it.
_BY_NAME = {
    "MultipleChoice": ("a model of multiple choice", f"{_FUNCTION}.logits, with ids of shape (B, choices, T)"),
    "QuestionAnswering": ("a model of question answering", f"{_FUNCTION}.start_logits, or .end_logits"),
    "TokenClassification": ("a token classifier", _OF_POSITION),
    "MaskedLM": ("a masked language model", f"{_FUNCTION}.logits[:, position], the vocabulary at the masked token"),
    "ConditionalGeneration": (
        "a model that generates text",
        "a forward_func that gives decoder_input_ids, too, and returns the logits of one position",
    ),
    "CausalLM": ("a causal language model", f"{_FUNCTION}.logits[:, -1], the vocabulary for the next token"),
    "LMHead": ("a causal language model", f"{_FUNCTION}.logits[:, -1], the vocabulary for the next token"),
}
_BASE = (
    "a base model without a head",
    "a forward_func that puts a head on it and returns logits, (B, classes)",
)


def refusal(model: Any, output: Any, expected: tuple[int, int], error: Exception | None = None) -> str:
    """Why a model cannot be explained as a sequence classifier, and what does it.

    Args:
        model (nn.Module): The model.
        output (Any): What it gave for some texts; None where it failed.
        expected (tuple of int): The shape that logits should have: texts and classes.
        error (Exception or None): With what it failed. Default: None.
    """
    name = type(model).__name__
    logits = getattr(output, "logits", None)
    if error is not None:
        given = f"it fails on a short text ({type(error).__name__}: {str(error)[:200]})"
    elif isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        given = f"got a {type(output).__name__}; for a classifier, set model.config.return_dict = True"
    else:
        given = f"got {tuple(logits.shape) if isinstance(logits, Tensor) else 'none'}"
    message = f"model: {name} is not a sequence classifier: expected logits of shape {expected}, {given}."
    if (known := _kind(model, output)) is None:
        return message
    kind, function = known
    return f"{message} It is {kind}: InformationBottleneckAttribution explains it, with {function}."


def _kind(model: Any, output: Any) -> tuple[str, str] | None:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # behind an adapter
    for one in (type(model).__name__, type(inner).__name__):
        for part, kind in _BY_NAME.items():
            if part in one:
                return kind
    if hasattr(output, "start_logits"):
        return _BY_NAME["QuestionAnswering"]
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor) and logits.ndim == 3:
        language = logits.shape[-1] == getattr(model.config.get_text_config(), "vocab_size", None)
        return ("a language model", _BY_NAME["CausalLM"][1]) if language else _BY_NAME["TokenClassification"]
    return _BASE if logits is None and hasattr(output, "last_hidden_state") else None
