"""Generated text explained, beside Captum's ``LLMAttribution``: which tokens or parts of the prompt the response needs.

The bottleneck is at the embeddings, and a position that it closes is closed as a key of every attention, too. Without
the second, the model still sees that there is a position, and in most models much of its attention goes there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from captum.attr import LLMAttributionResult, TextTemplateInput, TextTokenInput
from torch import Tensor
from torch.nn import functional as F

from captum_iba._checks import check_flag, check_integer
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr.objective import NATS_PER_BIT, Information, MaskLayout, apply_bottleneck
from captum_iba.attr.optimizer import optimize_mask
from captum_iba.attr.settings import BottleneckSettings, SettingsOverrides, resolve_settings

GENERATION = BottleneckSettings(
    "token",
    beta=0.1,
    n_steps=10,
    n_samples=0,
    complement=1.0,
    learning_rate=1.0,
    momentum=0.5,
    tail_average=0.5,
    alternate=True,
)
"""Default settings for generated text. ``beta`` is smaller than a classifier's: the loss is a mean per token."""

_ATTENTION = "captum_iba_closing"
_KEY_BIAS: ContextVar[Tensor] = ContextVar("captum_iba_key_bias")
# Differences of log-probabilities, relative to 1, by which a model computes otherwise than is assumed.
_SAME = 1e-2
_GENERATION_ARGUMENTS = {"max_new_tokens": 25, "do_sample": False, "temperature": None, "top_p": None}


class LLMInformationBottleneckAttribution:
    """
    Attributes the response of a language model to its prompt, in bits, by one optimization for the whole response.

    It takes the inputs of Captum's ``LLMAttribution`` and returns its result. The mask has one value per token, or per
    value of a template, at the input embeddings. Where it closes, other positions attend to the position no more. It
    minimizes the mean negative log-probability per token of the response plus ``beta`` times the information per
    element, and maximizes it for the complement mask, as :class:`captum_iba.InformationBottleneckAttribution` does.
    The statistics of the noise are those of the vocabulary's embeddings, so that no texts are needed.

    Args:

        model (PreTrainedModel): A decoder of ``transformers`` with a language-model head, whose attention goes by
                    ``transformers``' interface. It is left as it was.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer, a fast one.

    Raises:

        ValueError: An encoder-decoder, a model without a language-model head, or whose attention cannot be set.

    Examples::

        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        >>> decoder = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
        >>> attribution = LLMInformationBottleneckAttribution(decoder, tokenizer)
        >>> prompt = TextTemplateInput("the {} was {}", ["film", "good"])
        >>> result = attribution.attribute(prompt, target="a good film", per_token=True)
        >>> result.input_tokens, result.token_attr.shape
        (['film', 'good'], torch.Size([3, 2]))
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        name = type(model).__name__
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(f"model: {name} is an encoder-decoder, expected a decoder")
        if model.get_output_embeddings() is None:
            raise ValueError(f"model: {name} has no language-model head, expected one for causal language modeling")
        if not model._can_set_attn_implementation():
            raise ValueError(
                f"model: the attention of {name} does not go by the interface of transformers, by which positions are "
                "closed; expected a decoder such as Llama, Qwen, Gemma or GPT-2"
            )
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(f"tokenizer: {type(tokenizer).__name__} gives no offsets, expected a fast tokenizer")
        self.model = model
        self.tokenizer = tokenizer
        self._checked = False

    def attribute(
        self,
        inp: TextTokenInput | TextTemplateInput | str | Sequence[Mapping[str, str]],
        target: str | Tensor | Sequence[int] | None = None,
        *,
        gen_args: dict[str, Any] | None = None,
        per_token: bool = False,
        internal_batch_size: int = 8,
        preset: BottleneckSettings = GENERATION,
        **overrides: Any,
    ) -> LLMAttributionResult:
        """
        Args:

            inp (TextTokenInput, TextTemplateInput, str or list of messages): The prompt. Of a ``TextTokenInput`` the
                        tokens that are not skipped have a mask value each; of a ``TextTemplateInput`` each value, or
                        the values of one number in its ``mask`` together; of a string every token that is not special;
                        of messages, which go through the tokenizer's chat template, the tokens of their contents, but
                        not those of a system message.
            target (str, Tensor, sequence of int, or None): The response, as text or token ids.
                        Default: None, what the model generates.
            gen_args (dict, optional): Arguments of ``generate``.
                        Default: up to 25 new tokens, the most probable ones
            per_token (bool): Whether to attribute every token of the response by itself, too, each with a mask of its
                        own, in ``token_attr``.
                        Default: False
            internal_batch_size (int): Largest number of rows of a forward pass, with ``per_token``.
                        Default: 8
            preset (BottleneckSettings): Settings; ``n_samples`` must be 0, and ``granularity`` ``"token"``.
                        Default: :data:`GENERATION`
            **overrides: Fields of the settings that override the preset's.

        Returns:

            LLMAttributionResult: ``seq_attr``, bits of each part of the prompt, (n_in,); with ``per_token``
            ``token_attr``, (n_out, n_in); and ``output_probs``, the probabilities of the response's tokens, (n_out,).

        Raises:

            ValueError: No part of the prompt to attribute to, an empty response, a token id out of the vocabulary,
                        or more tokens than the model has positions.
            TypeError: An input or target of another type, or a keyword that is no setting.
        """
        check_flag("per_token", per_token)
        check_integer("internal_batch_size", internal_batch_size, at_least=1)
        known: SettingsOverrides = overrides  # type: ignore[assignment]
        settings = resolve_settings(preset, **known)
        if settings.n_samples or settings.granularity != "token":
            raise ValueError(
                f"n_samples is {settings.n_samples} and granularity {settings.granularity!r}, expected 0 and 'token' "
                "for generated text"
            )
        prompt = _read_prompt(inp, self.tokenizer)
        response = self._response(prompt.ids, target, gen_args)
        self._check_length(len(prompt.ids) + len(response))
        rows = [[1 / len(response)] * len(response)]
        if per_token:
            rows += torch.eye(len(response)).tolist()
        with ModuleGuard(self.model), torch.inference_mode(False):
            model = _ClosableModel(self.model, prompt, response)
            if not self._checked:
                model.check()
                self._checked = True
            with torch.no_grad():
                probabilities = model.log_probabilities(1).exp()[0]
            bits = [
                _optimize(model, torch.tensor(rows[i : i + internal_batch_size]), settings)
                for i in range(0, len(rows), internal_batch_size)
            ]
        attributions = torch.cat(bits)
        return LLMAttributionResult(
            input_tokens=prompt.names,
            output_tokens=[_pretty(self.tokenizer, number) for number in response],
            seq_attr=attributions[0],
            token_attr=attributions[1:] if per_token else None,
            output_probs=probabilities.cpu(),
            inp=inp if isinstance(inp, (TextTokenInput, TextTemplateInput)) else None,
        )

    def _response(self, ids: Sequence[int], target: Any, gen_args: dict[str, Any] | None) -> list[int]:
        if target is None:
            inputs = torch.tensor([ids], device=self.model.get_input_embeddings().weight.device)
            with ModuleGuard(self.model), torch.no_grad():
                generated = self.model.generate(
                    inputs, attention_mask=torch.ones_like(inputs), **(gen_args or _GENERATION_ARGUMENTS)
                )
            response: list[int] = generated[0, len(ids) :].tolist()
            if response and response[-1] in _stop_tokens(self.model):
                response = response[:-1]
            if not response:
                raise ValueError("target is None, and generation ended at once; expected a target to explain")
            return response
        if gen_args is not None:
            raise ValueError("gen_args is given, and target, too: expected arguments for generation without a target")
        if isinstance(target, str):
            response = self.tokenizer(target, add_special_tokens=False)["input_ids"]
        elif isinstance(target, (Tensor, list, tuple)):
            response = [int(number) for number in torch.as_tensor(target).flatten().tolist()]
        else:
            raise TypeError(f"target is a {type(target).__name__}, expected a string, token ids or None")
        if not response:
            raise ValueError(f"target is {target!r}, without any token, expected a response to explain")
        size = self.model.get_input_embeddings().weight.shape[0]
        if wrong := [number for number in response if not 0 <= number < size]:
            raise ValueError(f"target has the token id {wrong[0]}, expected ids from 0 to {size - 1}")
        return list(response)

    def _check_length(self, length: int) -> None:
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if isinstance(limit, int) and length > limit:
            raise ValueError(f"inp and target have {length} tokens, expected at most {limit}, the model's positions")


@dataclass(frozen=True)
class _Prompt:
    """Token ids of a prompt, the part that each belongs to, -1 for none, and the names of the parts."""

    ids: list[int]
    parts: list[int]
    names: list[str]


def _read_prompt(inp: Any, tokenizer: Any) -> _Prompt:
    if isinstance(inp, TextTokenInput):
        kept = torch.ones_like(inp.inp_tensor, dtype=torch.bool) if inp.itp_mask is None else inp.itp_mask
        numbers = torch.where(kept[0], kept[0].long().cumsum(0) - 1, -1)
        prompt = _Prompt(inp.inp_tensor[0].tolist(), numbers.tolist(), list(inp.values))
    elif isinstance(inp, TextTemplateInput):
        text, spans = _spans_of_values(inp)
        groups = inp.formatted_mask if inp.mask is not None else list(range(len(spans)))
        names = list(inp.values)
        if inp.mask is not None:
            names = [" ".join(v for v, g in zip(inp.values, groups, strict=True) if g == n) for n in sorted({*groups})]
        prompt = _tokenize(tokenizer, text, [(*span, group) for span, group in zip(spans, groups, strict=True)], names)
    elif isinstance(inp, str):
        prompt = _tokenize(tokenizer, inp, None, None, add_special_tokens=True)
    elif isinstance(inp, (list, tuple)) and inp and all(isinstance(message, Mapping) for message in inp):
        text = tokenizer.apply_chat_template(inp, tokenize=False, add_generation_prompt=True)
        prompt = _tokenize(tokenizer, text, _contents(tokenizer, text, inp), None)
    else:
        raise TypeError(
            f"inp is a {type(inp).__name__}, expected TextTokenInput, TextTemplateInput, a string or chat messages"
        )
    if not any(part >= 0 for part in prompt.parts):
        raise ValueError("inp has no token to attribute to, expected some that are neither skipped nor of a template")
    return prompt


def _tokenize(
    tokenizer: Any,
    text: str,
    spans: Sequence[tuple[int, int, int]] | None,
    names: list[str] | None,
    add_special_tokens: bool = False,
) -> _Prompt:
    """Tokens of a text; each belongs to the span that holds its last character, and without names it is a part itself.

    ``spans`` are (start, end, number of the part); None is the whole text.
    """
    # A chat template and most templates of prompts have the special tokens in their text.
    encoded = tokenizer(
        text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, return_special_tokens_mask=True
    )
    ids, offsets, special = (encoded[key] for key in ("input_ids", "offset_mapping", "special_tokens_mask"))
    of_text = [(0, len(text), 0)] if spans is None else spans
    parts = [
        -1 if is_special or end <= start else next((part for a, b, part in of_text if a < end <= b), -1)
        for (start, end), is_special in zip(offsets, special, strict=True)
    ]
    if names is not None:
        if missing := [name for number, name in enumerate(names) if number not in parts]:
            raise ValueError(
                f"inp has the value {missing[0]!r}, to which no token belongs, expected values with tokens"
            )
        return _Prompt(ids, parts, names)
    kept = [i for i, part in enumerate(parts) if part >= 0]
    number = {position: n for n, position in enumerate(kept)}
    return _Prompt(ids, [number.get(i, -1) for i in range(len(ids))], [_pretty(tokenizer, ids[i]) for i in kept])


def _spans_of_values(inp: TextTemplateInput) -> tuple[str, list[tuple[int, int]]]:
    """The text of a template, and the characters of its values in it."""
    marks, keys = _marks(len(inp.values)), inp.dict_keys
    marked = inp.format_fn(**dict(zip(keys, marks, strict=True))) if keys else inp.format_fn(*marks)
    text, spans = _with_values(marked, marks, inp.values)
    if text != inp.to_model_input() or len(spans) < len(marks):
        raise ValueError("inp: the values are not in the text of the template as they are, expected each unchanged")
    return text, [spans[i] for i in range(len(marks))]


def _contents(tokenizer: Any, text: str, messages: Sequence[Mapping[str, str]]) -> list[tuple[int, int, int]]:
    """The characters of the contents of messages in the text of a chat template, without those of the system."""
    marks = _marks(len(messages))
    marked = [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)]
    rendered = tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    contents = [message["content"] for message in messages]
    for values in (contents, [content.strip() for content in contents]):  # most templates strip contents
        filled, spans = _with_values(rendered, marks, values)
        if filled == text and len(spans) == len(marks):
            return [(*spans[i], 0) for i, message in enumerate(messages) if message.get("role") != "system"]
    raise ValueError("inp: the chat template changes the contents of messages, expected each once, as it is")


def _marks(count: int) -> list[str]:
    return [chr(0xF0000 + i) for i in range(count)]  # characters of private use


def _with_values(marked: str, marks: Sequence[str], values: Sequence[str]) -> tuple[str, dict[int, tuple[int, int]]]:
    """A text with values in place of marks, and the characters of each value; ValueError for a mark that is twice."""
    text, spans = "", dict[int, tuple[int, int]]()
    for character in marked:
        if character not in marks:
            text += character
            continue
        i = marks.index(character)
        if i in spans:
            raise ValueError(f"inp: the template has the value {values[i]!r} twice, expected each once")
        spans[i] = (len(text), len(text) + len(values[i]))
        text += values[i]
    return text, spans


def _pretty(tokenizer: Any, number: int) -> str:
    text: str = tokenizer.decode([number])
    return text


def _stop_tokens(model: Any) -> set[int]:
    numbers = getattr(model.generation_config, "eos_token_id", None)
    return {numbers} if isinstance(numbers, int) else set(numbers or ())


class _ClosableModel:
    """A language model on a prompt and a response, in which parts of the prompt can be closed.

    It is the objective's side of a running model: rows share the tokens and have masks of their own.
    """

    def __init__(self, model: Any, prompt: _Prompt, response: Sequence[int]) -> None:
        self.model = model
        embeddings = model.get_input_embeddings()
        self.device = embeddings.weight.device
        self.ids = torch.tensor([[*prompt.ids, *response]], device=self.device)
        self.response = torch.tensor(response, device=self.device)
        parts = torch.tensor([[*prompt.parts, *[-1] * len(response)]], device=self.device)
        self.maskable = parts >= 0
        self.parts = parts.clamp_min(0)
        self.n_parts = len(prompt.names)
        with torch.no_grad():
            self.embedded = embeddings(self.ids)
            everything = embeddings(torch.arange(embeddings.weight.shape[0], device=self.device)).float()
            self.mean = everything.mean(0)
            self.std = everything.std(0).clamp_min(1e-6)
        same = (parts.unsqueeze(2) == parts.unsqueeze(1)) & self.maskable.unsqueeze(1)
        # (1, T, T): whether the mask of a key's part applies to a query.
        self.closes = self.maskable.unsqueeze(1) & ~same

    def log_probabilities(self, rows: int, lam: Tensor | None = None, log_lam: Tensor | None = None) -> Tensor:
        """Log-probabilities of the response's tokens, (rows, R), through a mask, (rows, T, 1), or without."""
        embedded = self.embedded.expand(rows, -1, -1)
        if lam is not None and log_lam is not None:
            embedded = apply_bottleneck(embedded, self.mean, lam)
            bias = torch.where(self.closes, log_lam.transpose(1, 2), 0.0).unsqueeze(1)
            with _closing_attention(self.model, bias):
                return self._of_response(embedded)
        return self._of_response(embedded)

    def _of_response(self, embedded: Tensor) -> Tensor:
        size = len(self.response)
        takes_rows = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        # The head on the response alone: a vocabulary times all positions is what exhausts memory.
        options = {"logits_to_keep": size + 1} if takes_rows else {}
        logits = self.model(inputs_embeds=embedded, use_cache=False, **options).logits[:, -size - 1 : -1]
        log_probabilities = logits.float().log_softmax(-1)
        of_tokens: Tensor = log_probabilities.gather(2, self.response.expand(len(embedded), -1).unsqueeze(2))
        return of_tokens.squeeze(2)

    def check(self) -> None:
        """Raise ValueError if the model computes otherwise than is assumed, which two passes tell.

        With an open mask the response has the probabilities of the model's own pass over the token ids. With a closed
        one they do not depend on the tokens of the prompt's parts.
        """
        name = type(self.model).__name__
        zero = torch.zeros_like(self.embedded[..., :1], dtype=torch.float32)
        with torch.no_grad():
            logits = self.model(input_ids=self.ids, use_cache=False).logits[:, -len(self.response) - 1 : -1]
            own = logits.float().log_softmax(-1).gather(2, self.response.view(1, -1, 1)).squeeze(2)
            opened = self.log_probabilities(1, zero + 1, zero)
            if not bool(((opened - own).abs() <= _SAME * (1 + own.abs())).all()):
                raise ValueError(f"model: {name} gives other probabilities from its embeddings than from token ids")
            closed = torch.where(self.maskable.unsqueeze(2), zero - 1e4, zero)
            first = self.log_probabilities(1, zero + 1, closed)
            before, changed = self.embedded, self.maskable.clone()
            # The last position of the prompt gives the first token of the response; only its embedding can be closed.
            changed[:, -len(self.response) - 1] = False
            try:
                other = before.roll(1, 1) + before.float().std().to(before)
                self.embedded = torch.where(changed.unsqueeze(2), other, before)
                second = self.log_probabilities(1, zero + 1, closed)
            finally:
                self.embedded = before
            if not bool(((first - second).abs() <= _SAME * (1 + first.abs())).all()):
                raise ValueError(
                    f"model: {name} reads positions of the prompt past its attention (a state-space layer, or "
                    "attention of its own); such models are not supported"
                )


@dataclass(frozen=True)
class _GenerationObjective:
    """Loss and information of the masks of several rows, each with its own weights of the response's tokens, (B, R)."""

    model: _ClosableModel
    weights: Tensor
    settings: BottleneckSettings
    loss: str = "cross_entropy"

    @cached_property
    def activation(self) -> Tensor:
        """The embeddings, (B, T, D)."""
        embedded: Tensor = self.model.embedded
        return embedded.expand(len(self.weights), -1, -1)

    @cached_property
    def layout(self) -> MaskLayout:
        return MaskLayout.of(self.activation, "token", self.model.parts, self.model.maskable, 2)

    @cached_property
    def information(self) -> Information:
        standardized = (self.activation.float() - self.model.mean) / self.model.std
        return Information(self.layout, standardized)

    def losses(self, alpha: Tensor, step: int, samples: range, masks: Sequence[int]) -> Tensor:
        """Mean negative log-probabilities, and -log(1 - p) of their geometric means p, (masks, 1, B)."""
        results = []
        for mask in masks:
            signed = -alpha if mask else alpha
            log_lam = torch.where(self.layout.maskable, F.logsigmoid(self.layout.expand(signed)), 0.0)
            of_tokens = self.model.log_probabilities(len(self.weights), self.layout.gate(signed), log_lam)
            loss = -(self.weights.to(of_tokens) * of_tokens).sum(1)
            if mask:
                loss = -torch.log(-torch.expm1(-loss.clamp_min(torch.finfo(loss.dtype).tiny)))
            results.append(loss)
        return torch.stack(results).unsqueeze(1)


def _optimize(model: _ClosableModel, weights: Tensor, settings: BottleneckSettings) -> Tensor:
    """Bits of each part of the prompt, (B, G), for rows of weights of the response's tokens, (B, R)."""
    objective = _GenerationObjective(model, weights, settings)
    alpha, _ = optimize_mask(objective, 1, False, lambda _: None)
    bits = objective.information.per_element(alpha).sum(2).cpu() / NATS_PER_BIT
    parts = model.parts.cpu().expand(len(bits), -1)
    return torch.zeros(len(bits), model.n_parts).scatter_add_(1, parts, bits.float())


@contextmanager
def _closing_attention(model: Any, bias: Tensor) -> Iterator[None]:
    """Context in which a value is added to every attention logit, (B, 1, T, T)."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(_ATTENTION, _attention_with_bias)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)
    before = model.config._attn_implementation
    token = _KEY_BIAS.set(bias)
    try:
        model.set_attn_implementation(_ATTENTION)
        yield
    finally:
        model.set_attn_implementation(before)
        _KEY_BIAS.reset(token)


def _attention_with_bias(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *args: Any, **kwargs: Any
) -> tuple[Tensor, Any]:
    eager: Callable[..., Any] | None = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise ValueError(f"model: {type(module).__name__} has no attention that takes a bias; expected eager attention")
    bias = _KEY_BIAS.get().to(query)
    mask = bias if attention_mask is None else attention_mask + bias
    result: tuple[Tensor, Any] = eager(module, query, key, value, mask, *args, **kwargs)
    return result
