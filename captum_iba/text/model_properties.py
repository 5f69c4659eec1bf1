"""What is read from a model of ``transformers`` and its tokenizer: classes, inputs, positions, padding, weights."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from captum_iba._checks import kind_of
from captum_iba.attr._model.guard import ONE_AT_A_TIME
from captum_iba.attr._model.nested import wrapped_module

# Tokenizers without a limit of their own have a very large integer.
_NO_LIMIT = 10**6

# A library of matrix products may choose its kernel by how far an array lies after a multiple of 16 or 64 bytes, and
# two kernels add in different orders. Weights read from a file lie where the file has them, copies in another process
# at multiples of 64: unless they are moved to the same offsets, the last digits of results differ.
_ALIGNMENT = 64  # bytes of a cache line, and of what torch aligns its own memory to

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
_BASE = ("a base model without a head", "a forward_func that puts a head on it and returns logits, (B, classes)")


def class_labels(model: Any) -> list[str]:
    """Names of the classes; ValueError unless the model is a classifier of two or more."""
    config = getattr(model, "config", None)
    count = getattr(config, "num_labels", None)
    if not isinstance(model, nn.Module) or not isinstance(count, int):
        raise ValueError(
            f"model: {type(model).__name__} is not a sequence classifier of transformers: "
            "expected a module with config.num_labels."
        )
    if count < 2:
        raise ValueError(
            f"model: {type(model).__name__} has {count} output, and its problem_type is "
            f"{getattr(config, 'problem_type', None)!r}; expected two or more classes, or one output with problem_type "
            "'regression' or 'multi_label_classification'."
        )
    return output_labels(model)


def output_labels(model: Any) -> list[str]:
    """Names of the outputs of a head, one of each; ValueError where the configuration names others."""
    config, count = model.config, model.config.num_labels
    names = getattr(config, "id2label", None) or {}
    if strange := [key for key in names if key not in range(count)]:
        raise ValueError(
            f"model: config.id2label of {type(model).__name__} has the key {strange[0]!r}, expected the numbers of its "
            f"{count} outputs, 0 to {count - 1}; set config.id2label"
        )
    return [str(names.get(i, f"LABEL_{i}")) for i in range(count)]


def token_limit(model: Any, tokenizer: Any, max_length: int | None) -> int:
    """Number of tokens that texts are truncated to: ``max_length``, or the largest that model and tokenizer allow."""
    allowed = count_positions(model)
    if max_length is None:
        limit = getattr(tokenizer, "model_max_length", _NO_LIMIT)
        return int(min(allowed, limit if limit < _NO_LIMIT else sys.maxsize))
    if isinstance(max_length, bool) or not isinstance(max_length, int) or not 1 <= max_length <= allowed:
        raise ValueError(f"max_length is {max_length!r}, expected an integer from 1 to {allowed}")
    return max_length


def count_positions(model: Any) -> int:
    """Number of positions: RoBERTa's begin after the id of the padding token, and YOSO has more rows than positions."""
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        if last in ("position_embeddings", "wpe") and "Embedding" in type(module).__name__:
            padding_idx = getattr(module, "padding_idx", None)
            rows = len(module.weight) - (0 if padding_idx is None else padding_idx + 1)
            position_ids = getattr(model.get_submodule(parent), "position_ids", None)
            return min(rows, position_ids.shape[-1]) if isinstance(position_ids, Tensor) else rows
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else sys.maxsize


def window_size(model: Any, longest: int) -> int:
    """Number of tokens that a model of attention windows or blocks pads its inputs to a multiple of."""
    config = model.config.get_text_config()
    if getattr(config, "attention_type", None) == "block_sparse" and hasattr(config, "num_random_blocks"):
        # BigBird has full attention, and no padding, where there are too few blocks.
        return int(config.block_size) if longest > (5 + 2 * config.num_random_blocks) * config.block_size else 1
    window = getattr(config, "attention_window", 1)
    return max(window) if isinstance(window, (list, tuple)) else int(window or 1)


def padding_id(model: Any, tokenizer: Any) -> int:
    """Id of the padding token: that of the model first, since decoders look for it in the input."""
    for number in (model.config.get_text_config().pad_token_id, tokenizer.pad_token_id):
        if isinstance(number, int) and number >= 0:
            return number
    raise ValueError(
        "tokenizer: neither it nor the model has a padding token; set tokenizer.pad_token, for example to "
        "tokenizer.eos_token."
    )


def input_names(model: Any, tokenizer: Any) -> tuple[str, ...]:
    """Names of the model's inputs that the tokenizer gives."""
    candidates = ("attention_mask", "token_type_ids")
    others = [name for name in candidates if name in tokenizer.model_input_names or name == "attention_mask"]
    model = _unwrapped(model)
    parameters = inspect.signature(model.forward).parameters
    # Models of transformers name all inputs; their further keywords are not for the embeddings.
    named = inspect.unwrap(model.forward).__module__.startswith("transformers.")
    if _takes_any_keyword(model) and not (named and "input_ids" in parameters):
        return ("input_ids", *others)
    return ("input_ids", *(name for name in others if name in parameters))


def _takes_any_keyword(model: Any) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(model.forward).parameters.values())


def _unwrapped(model: Any) -> Any:
    """The model inside torch.compile, an adapter or a wrapper whose ``forward`` passes all arguments on."""
    while _takes_any_keyword(model) and (inner := wrapped_module(model)) is not None:
        model = inner
    return model


def refusal(model: Any, output: Any, expected: tuple[int, int], error: Exception | None = None) -> str:
    """Why a model cannot be explained as a sequence classifier, and which forward function explains it.

    ``output`` is the model's output for some texts, or None where it raised ``error``; ``expected`` is the shape of
    logits, (texts, classes).
    """
    name = type(model).__name__
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return (
            f"model: {name} gives {kind_of(output)}, expected an output with names; set model.config.return_dict = True"
        )
    logits = getattr(output, "logits", None)
    if error is not None:
        problem = f"it fails on a short text ({type(error).__name__}: {str(error)[:200]})"
    else:
        problem = f"got {tuple(logits.shape) if isinstance(logits, Tensor) else 'none'}"
    message = f"model: {name} is not a sequence classifier: expected logits of shape {expected}, {problem}."
    if (known := _kind_of_model(model, output)) is None:
        return message
    kind, function = known
    return f"{message} It is {kind}: InformationBottleneckAttribution explains it, with {function}."


def _kind_of_model(model: Any, output: Any) -> tuple[str, str] | None:
    for name in (type(model).__name__, type(wrapped_module(model)).__name__):
        for part, kind in _BY_NAME.items():
            if part in name:
                return kind
    if hasattr(output, "start_logits"):
        return _BY_NAME["QuestionAnswering"]
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor) and logits.ndim == 3:
        language = logits.shape[-1] == getattr(model.config.get_text_config(), "vocab_size", None)
        return ("a language model", _BY_NAME["CausalLM"][1]) if language else _BY_NAME["TokenClassification"]
    return _BASE if logits is None and hasattr(output, "last_hidden_state") else None


def memory_offsets(model: nn.Module) -> list[int | None]:
    """Offsets of all parameters and buffers from a multiple of 64 bytes; None where that has no meaning."""
    return [_memory_offset(tensor) for tensor in chain(model.parameters(), model.buffers())]


def place_in_memory(model: nn.Module, offsets: Sequence[int | None]) -> None:
    """Move the parameters and buffers of a copy to the offsets of the original."""
    for tensor, offset in zip(chain(model.parameters(), model.buffers()), offsets, strict=True):
        if offset is None or _memory_offset(tensor) in (None, offset):
            continue
        room = torch.empty(tensor.numel() + _ALIGNMENT // tensor.element_size(), dtype=tensor.dtype)
        skipped, rest = divmod((offset - room.data_ptr()) % _ALIGNMENT, tensor.element_size())
        if rest == 0:
            tensor.data = room[skipped : skipped + tensor.numel()].view(tensor.shape).copy_(tensor.data)


def _memory_offset(tensor: Tensor) -> int | None:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.layout == torch.strided
    if not plain or tensor.is_inference() or not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.data_ptr() % _ALIGNMENT


@contextmanager
def attention_implementation(model: nn.Module, name: str, output_attentions: bool = False) -> Iterator[None]:
    """Context with another implementation of attention; afterwards the configurations of all modules are as before."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        if hasattr(config := getattr(module, "config", None), "to_dict"):
            configs[id(config)] = config
    for config in list(configs.values()):
        for part in getattr(config, "sub_configs", {}):
            if (inner := getattr(config, part, None)) is not None:
                configs[id(inner)] = inner
    with ONE_AT_A_TIME, ExitStack() as undo:
        for config in configs.values():
            undo.callback(_restore_attention, config, dict(vars(config)))
        for config in configs.values():
            config._attn_implementation = name
        if output_attentions:
            for config in configs.values():
                config.output_attentions = True
            undo.callback(model.register_forward_pre_hook(_with_attentions, with_kwargs=True).remove)
        yield


def _with_attentions(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Asks by argument where there is one: PEFT's wrapper passes its own None on, which overrides the configuration."""
    takes = "output_attentions" in inspect.signature(model.forward).parameters
    return args, {**kwargs, "output_attentions": True} if takes else kwargs


def _restore_attention(config: Any, before: dict[str, Any]) -> None:
    for name in [name for name in vars(config) if "attn_implementation" in name or "output_attentions" in name]:
        if name in before:
            vars(config)[name] = before[name]
        else:
            del vars(config)[name]


def rows_in_memory(model: Any, length: int, n_rows: int) -> int:
    """How many of ``n_rows`` rows a pass with gradients can have on a CPU, by the memory of the machine; at least 1.

    A row keeps the attention weights of all blocks, about 1.5 times. On a GPU all rows count as possible: there torch
    says that memory is missing, while a process on a CPU is killed without a message.

    Args:
        model (nn.Module): A model of ``transformers``, with its configuration.
        length (int): Number of tokens of the longest row.
        n_rows (int): Number of rows that are asked for.

    Raises:
        ValueError: One row needs more than the memory of the machine.
    """
    parameter, config = next(iter(model.parameters())), model.config.get_text_config()
    if parameter.device.type != "cpu" or not hasattr(os, "sysconf"):
        return n_rows
    n_weights = getattr(config, "num_hidden_layers", 1) * getattr(config, "num_attention_heads", 1) * length**2
    needed = 1.5 * n_weights * parameter.element_size()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ValueError(
            f"prompt and response have {length:,} tokens, whose attention weights need at least {needed / 1e9:,.0f} GB "
            f"for the backward pass; this machine has {memory / 1e9:,.0f} GB, expected a shorter prompt, or a GPU"
        )
    return max(1, min(n_rows, int(memory / 2 / needed)))
