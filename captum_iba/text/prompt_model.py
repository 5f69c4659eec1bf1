"""A language model's response with parts of its prompt closed by a mask."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from captum_iba._checks import kind_of
from captum_iba.attr.objective import apply_bottleneck
from captum_iba.text.model_properties import attention_implementation
from captum_iba.text.prompt import Prompt

_ATTENTION, _CROSS_ATTENTION = "captum_iba_closing", "captum_iba_closing_cross"
_KEY_BIAS: ContextVar[Tensor] = ContextVar("captum_iba_key_bias")
# Differences of log-probabilities, relative to 1, by which a model computes otherwise than is assumed: in one
# implementation of attention, and between two in half precision, which differ by up to 0.03 in real models.
_SAME, _SAME_IN_HALF_PRECISION, _SAME_OTHERWISE = 1e-2, 0.2, 1e-3
# What is closed has the weight 0: in float32 only rounding is left.
_SAME_CLOSED = 1e-4
_DEFAULT_NEW_TOKENS = 20  # of transformers, where neither arguments nor configuration say
# Fewer tokens before the first part, in number or of all, are not worth the passes that fill and try the cache.
_LEAST_PREFIX, _LEAST_SHARE = 16, 0.2


class ClosableModel:
    """A language model on a prompt and a response, in which parts of the prompt can be closed.

    Each row has a mask of its own. All rows have the same tokens, or those of one prompt each (:func:`stacked`).
    """

    def __init__(self, model: Any, prompt: Prompt, response: Sequence[int]) -> None:
        self.model = model
        self._asked = (prompt, response)
        self.embeddings = model.get_input_embeddings()
        self.device = self.embeddings.weight.device
        self.vocabulary = self.embeddings.weight.shape[0]
        self.ids = torch.tensor([[*prompt.ids, *self._in_prompt(response)]], device=self.device)
        self.response = torch.tensor(response, device=self.device)
        parts = torch.tensor([[*prompt.parts, *[-1] * (self.ids.shape[1] - len(prompt.ids))]], device=self.device)
        self.maskable = parts >= 0
        self.parts = parts.clamp_min(0)
        self.n_parts = len(prompt.names)
        self.scale = _embedding_scale(model)
        with torch.no_grad():
            self.embedded = self.embeddings(self.ids) * self.scale
        same = (parts.unsqueeze(2) == parts.unsqueeze(1)) & self.maskable.unsqueeze(1)
        # The last position of the prompt gives the first token of the response: it reads its own part through the mask,
        # too, and its own embedding is all that no attention passes.
        last = len(prompt.ids) - 1
        self.first = torch.tensor([last], device=self.device)
        same[:, last, :last] = False
        self.last = torch.arange(self.ids.shape[1], device=self.device).view(1, -1, 1) == last
        # (1, T, T): whether the mask of a key's part applies to a query.
        self.closes = self.maskable.unsqueeze(1) & ~same
        self.attended = torch.ones_like(self.ids)

    @cached_property
    def prefix(self) -> CachedPrefix:
        """The tokens before the first part, computed once."""
        return cached_prefix(self.model, *self._asked)

    @cached_property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the vocabulary's embeddings, (D,) each."""
        with torch.no_grad():
            everything = self.embeddings(torch.arange(self.vocabulary, device=self.device)).float() * self.scale
            return everything.mean(0), everything.std(0).clamp_min(1e-6)

    def _in_prompt(self, response: Sequence[int]) -> Sequence[int]:
        """The tokens of the response that stand in one sequence with the prompt."""
        return response

    def log_probabilities(self, rows: int, lam: Tensor | None = None, log_lam: Tensor | None = None) -> Tensor:
        """Log-probabilities of the response's tokens, (rows, R), through a mask, (rows, T, 1), or without."""
        embedded, start = self.embedded.expand(rows, -1, -1), self.prefix.length
        if lam is not None and log_lam is not None:
            embedded = torch.where(self.last, apply_bottleneck(embedded, self.statistics[0], lam), embedded)
            bias = torch.where(self.closes[:, start:], log_lam.transpose(1, 2), 0.0).unsqueeze(1)
            with _closing_attention(self.model, _ATTENTION, bias):
                return self._response_log_probabilities(embedded[:, start:])
        return self._response_log_probabilities(embedded[:, start:])

    def own_log_probabilities(self, ids: Tensor) -> Tensor:
        """Log-probabilities of the response's tokens by the model as it is, from token ids, (1, R)."""
        logits = self.model(input_ids=ids, use_cache=False).logits
        if logits.shape[:2] != ids.shape:
            raise ValueError(
                f"model: {type(self.model).__name__} gives logits of the shape {tuple(logits.shape)} for "
                f"{ids.shape[1]} tokens"
            )
        return target_log_probabilities(logits[:, -len(self.response) - 1 : -1], self.response)

    def _response_log_probabilities(self, embedded: Tensor) -> Tensor:
        inputs = embedded.clone()  # CTRL writes into them
        begins = int(self.first.min())
        logits = last_logits(self.model, self.ids.shape[1] - begins, self.prefix, inputs_embeds=inputs)
        return target_log_probabilities(
            gather_positions(logits, self.first - begins, self.response.shape[-1]), self.response
        )


@dataclass(frozen=True)
class CachedPrefix:
    """The tokens before the first part of a prompt, which no mask or removal changes.

    Attributes:
        length (int): Number of these tokens; 0 where they are computed in every pass.
        layers (tuple): Keys and values of each layer, (1, H, length, D).
    """

    length: int = 0
    layers: tuple[tuple[Tensor, Tensor], ...] = ()

    def arguments(self, rows: int) -> dict[str, Any]:
        """What a forward pass over the tokens that follow takes."""
        from transformers import DynamicCache

        if not self.length:
            return {}
        # A forward pass appends to its cache, so each has its own.
        return {"past_key_values": DynamicCache([tuple(t.expand(rows, -1, -1, -1) for t in kv) for kv in self.layers])}


def cached_prefix(model: Any, prompt: Prompt, response: Sequence[int]) -> CachedPrefix:
    """Computes the tokens before the first part once, if they are many, and the model gives the same behind them.

    Layers of other caches than the plain one, such as those of a sliding window, have none. It is tried with token ids
    and with embeddings: from these, some models (RoBERTa) count positions anew.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    nothing, ids = CachedPrefix(), [*prompt.ids, *response]
    first = next((i for i, part in enumerate(prompt.parts) if part >= 0), 0)
    length = first - 1  # the token before the first part gives the response where all parts are removed
    takes_cache = "past_key_values" in inspect.signature(model.forward).parameters
    if prompt.decoder_ids or not takes_cache or length < max(_LEAST_PREFIX, len(ids) * _LEAST_SHARE):
        return nothing
    tokens = torch.tensor([ids], device=model.get_input_embeddings().weight.device)
    count, behind = len(response) + 1, tokens[:, length:]
    with torch.no_grad():
        cache = getattr(model(input_ids=tokens[:, :length], use_cache=True), "past_key_values", None)
        layers: list[Any] = cache.layers if cache is not None and type(cache) is DynamicCache else []
        if not layers or any(type(layer) is not DynamicLayer for layer in layers):
            return nothing
        prefix = CachedPrefix(length, tuple((layer.keys, layer.values) for layer in layers))
        whole = last_logits(model, count, input_ids=tokens).float()
        try:
            of_ids = last_logits(model, count, prefix, input_ids=behind).float()
            embedded = model.get_input_embeddings()(behind)
            of_embeddings = last_logits(model, count, prefix, inputs_embeds=embedded).float()
        except Exception:  # layers without keys (attention to images), or that share those of others
            return nothing
    # Positions that depend on the length (dynamic rotary embeddings) are others in a shorter text.
    in_half_precision = torch.finfo(layers[0].keys.dtype).bits < 32
    same = [same_log_probabilities(other, whole, in_half_precision) for other in (of_ids, of_embeddings)]
    return prefix if all(same) else nothing


def same_log_probabilities(values: Tensor, expected: Tensor, in_half_precision: bool = False) -> bool:
    """Whether values are those of another way of computing, but for rounding."""
    tolerance = _SAME_IN_HALF_PRECISION if in_half_precision else _SAME_OTHERWISE
    return values.shape == expected.shape and bool(
        ((values - expected).abs() <= tolerance * (1 + expected.abs())).all()
    )


class ClosableEncoderDecoder(ClosableModel):
    """The same of an encoder-decoder: its encoder reads the prompt, and the response follows in its decoder.

    A mask value multiplies the attention weights that other positions of the encoder, and all of the decoder, give to a
    token.
    """

    def __init__(self, model: Any, prompt: Prompt, response: Sequence[int]) -> None:
        super().__init__(model, prompt, response)
        self.last = torch.zeros_like(self.last)
        parts = torch.where(self.maskable, self.parts, -1)
        self.closes = self.maskable.unsqueeze(1) & (parts.unsqueeze(2) != parts.unsqueeze(1))
        self.decoder_ids = torch.tensor([[*prompt.decoder_ids, *response[:-1]]], device=self.device)
        self.first = self.first.new_tensor([len(prompt.decoder_ids) - 1])

    def _in_prompt(self, response: Sequence[int]) -> Sequence[int]:
        return ()

    def log_probabilities(self, rows: int, lam: Tensor | None = None, log_lam: Tensor | None = None) -> Tensor:
        """As of a decoder: log-probabilities of the response's tokens, (rows, R)."""
        embedded = self.embedded.expand(rows, -1, -1).clone()  # the encoder may write into it, too
        inputs = {"attention_mask": self.attended.expand(rows, -1)}
        encoder = self.model.get_encoder()
        if lam is None or log_lam is None:
            return self._decoder_log_probabilities(rows, encoder(inputs_embeds=embedded, **inputs), inputs)
        of_keys = log_lam.transpose(1, 2)
        with _closing_attention(self.model, _ATTENTION, torch.where(self.closes, of_keys, 0.0).unsqueeze(1)):
            encoded = encoder(inputs_embeds=embedded, **inputs)
        of_keys = torch.where(self.maskable.unsqueeze(1), of_keys, 0.0)
        with _closing_attention(self.model, _CROSS_ATTENTION, of_keys.unsqueeze(1)):
            return self._decoder_log_probabilities(rows, encoded, inputs)

    def _decoder_log_probabilities(self, rows: int, encoded: Any, inputs: dict[str, Tensor]) -> Tensor:
        decoder_ids = self.decoder_ids.expand(rows, -1)
        logits = self.model(encoder_outputs=encoded, decoder_input_ids=decoder_ids, use_cache=False, **inputs).logits
        return target_log_probabilities(gather_positions(logits, self.first, self.response.shape[-1]), self.response)

    def own_log_probabilities(self, ids: Tensor) -> Tensor:
        """As of a decoder: by the model as it is, (1, R)."""
        logits = self.model(input_ids=ids, decoder_input_ids=self.decoder_ids, use_cache=False).logits
        return target_log_probabilities(logits[:, -len(self.response) :], self.response)


def closable(model: Any, prompt: Prompt, response: Sequence[int]) -> ClosableModel:
    """The class that fits a model: an encoder-decoder's prompts have tokens that begin the decoder's input."""
    return (ClosableEncoderDecoder if prompt.decoder_ids else ClosableModel)(model, prompt, response)


def can_be_stacked(model: Any) -> bool:
    """Whether the length of one row of a batch changes no other, as it does with rotary embeddings of long contexts."""
    return longest_of_short_positions(model.config.get_text_config()) == math.inf


def stacked(models: Sequence[ClosableModel]) -> ClosableModel:
    """Several prompts as the rows of one batch, padded on the right.

    There the causal attention of a decoder does not see the padding, and positions are counted from the left; an
    encoder gets a mask. Log-probabilities of a shorter response go on with numbers that mean nothing.
    """
    batch = copy(models[0])
    batch.__dict__.update(prefix=CachedPrefix())
    for name in ("ids", "embedded", "maskable", "parts", "last", "attended"):
        setattr(batch, name, _padded([getattr(model, name)[0] for model in models]))
    width = batch.ids.shape[1]
    square = [F.pad(model.closes[0].transpose(0, 1), (0, width - model.closes.shape[1])) for model in models]
    batch.closes = _padded(square).transpose(1, 2)
    batch.response = _padded([model.response for model in models])
    batch.first = torch.cat([model.first for model in models])
    batch.n_parts = max(model.n_parts for model in models)
    if isinstance(batch, ClosableEncoderDecoder):
        batch.decoder_ids = _padded([model.decoder_ids[0] for model in models if isinstance(model, type(batch))])
    return batch


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors (T, ...) as rows, filled up with 0."""
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True)


def check_language_model(model: Any, tokenizer: Any) -> None:
    """Raise TypeError for a name, or where both are in the place of each other."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "get_output_embeddings"):
        hint = "; GenerationExplainer.from_pretrained loads both by name" if isinstance(model, str) else ""
        raise TypeError(
            f"model is {kind_of(model)}, and tokenizer {kind_of(tokenizer)}, expected a language model "
            f"of transformers, and its tokenizer{hint}"
        )


def check_model(model: Any, prompt: Prompt, response: Sequence[int]) -> bool:
    """Raise ValueError if the model computes otherwise than is assumed, which four passes tell.

    With an open mask the response has the probabilities of the model's own pass over the token ids, they do not depend
    on later tokens, and with a mask that closes all tokens of the prompt not on those either.

    Returns:
        bool: Whether the prompt is long enough to tell.
    """
    name = type(model).__name__
    # The last token of an encoder stays open: attention to nothing but closed tokens is not closed.
    n_parts = len(prompt.ids) - bool(prompt.decoder_ids)
    every = replace(prompt, parts=[*range(n_parts), -1][: len(prompt.ids)], names=[""] * n_parts)
    whole = closable(model, every, response)
    zero = torch.zeros_like(whole.embedded[..., :1], dtype=torch.float32)

    def differ(a: Tensor, b: Tensor, tolerance: float = _SAME) -> bool:
        return not bool(((a - b).abs() <= tolerance * (1 + b.abs())).all())

    with torch.no_grad():
        of_ids = whole.own_log_probabilities(whole.ids)
        if not of_ids.isfinite().all():
            raise ValueError(f"model: {name} gives log-probabilities that are not finite in {model.dtype}")
        in_half_precision = torch.finfo(whole.embedded.dtype).bits < 32
        tolerance = _SAME_IN_HALF_PRECISION if in_half_precision else _SAME
        if differ(whole.log_probabilities(1, zero + 1, zero), of_ids, tolerance):
            raise ValueError(f"model: {name} gives other probabilities from its embeddings than from token ids")
        later = whole.ids.clone()
        later[:, -1] = (later[:, -1] + 1) % whole.vocabulary
        if not prompt.decoder_ids and differ(whole.own_log_probabilities(later), of_ids):
            raise ValueError(f"model: {name} sees later tokens, as a masked language model does; expected a decoder")
        closed = torch.where(whole.maskable.unsqueeze(2), zero - 1e4, zero)
        before = whole.log_probabilities(1, zero + 1, closed)
        changed = whole.maskable.unsqueeze(2) & ~whole.last
        # Far from every token: a model that does not read these positions does not change at all.
        other = whole.embedded.roll(1, 1) + 10 * whole.embedded.float().std().to(whole.embedded)
        whole.embedded = torch.where(changed, other, whole.embedded)
        if differ(whole.log_probabilities(1, zero + 1, closed), before, _SAME if in_half_precision else _SAME_CLOSED):
            raise ValueError(
                f"model: {name} reads positions of the prompt past its attention (a state-space layer, or attention of "
                "its own); such models are not supported"
            )
    return n_parts > 1


def check_gen_args(gen_args: Any) -> None:
    """Raise TypeError for anything but the arguments of ``generate`` by name, or None."""
    if gen_args is not None and not isinstance(gen_args, Mapping):
        raise TypeError(
            f"gen_args is {gen_args!r}, expected a dictionary of arguments of generate: {{'max_new_tokens': 12}}"
        )


def decoder_arguments(gen_args: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Those arguments of ``generate`` by which the decoder of an encoder-decoder begins, whoever gives the response.

    The rest of them has no place beside a response; None if nothing is left.
    """
    names = ("decoder_start_token_id", "forced_bos_token_id", "decoder_input_ids", "generation_config")
    check_gen_args(gen_args)
    return {name: gen_args[name] for name in names if gen_args and gen_args.get(name) is not None} or None


def decoder_prefix(model: Any, gen_args: Mapping[str, Any] | None = None) -> list[int]:
    """Token ids that an encoder-decoder's decoder begins with before its response; empty for a decoder."""
    check_gen_args(gen_args)
    if not getattr(model.config, "is_encoder_decoder", False):
        return []

    def setting(name: str) -> Any:
        found = _generation_setting(model, gen_args, name)
        return getattr(model.config, name, None) if found is None else found

    start, forced = setting("decoder_start_token_id"), setting("forced_bos_token_id")
    start = setting("bos_token_id") if start is None else start
    if gen_args and gen_args.get("decoder_input_ids") is not None:
        begun: list[int] = torch.as_tensor(gen_args["decoder_input_ids"]).flatten().tolist()
        return begun if start is None or begun[:1] == [start] else [start, *begun]  # as generate does
    if not isinstance(start, int):
        raise ValueError(
            f"model: the generation_config of {type(model).__name__} has decoder_start_token_id {start!r}, expected "
            "the id of the token that its decoder begins with"
        )
    return [start] if forced is None else [start, forced]


def longest_of_short_positions(config: Any) -> float:
    """Number of tokens up to which rotary embeddings of long contexts (longrope) are those of short ones."""
    rotary = getattr(config, "rope_parameters", None) or {}
    # Or one for each kind of layer.
    kinds = [rotary, *(value for value in rotary.values() if isinstance(value, Mapping))]
    lengths = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    found = [n for n in (getattr(config, "original_max_position_embeddings", None), *lengths) if n]
    return min(found, default=math.inf)


def stop_tokens(model: Any, gen_args: Mapping[str, Any] | None = None) -> list[int]:
    """Ids of the tokens at which generation ends."""
    if gen_args is not None and "eos_token_id" in gen_args and gen_args["eos_token_id"] is None:
        return []
    numbers = _generation_setting(model, gen_args, "eos_token_id")
    return [numbers] if isinstance(numbers, int) else list(numbers or ())


def is_cut_off(model: Any, prompt: Prompt, n_response: int, gen_args: Mapping[str, Any] | None) -> bool:
    """Whether a generated response ends because it reached the largest number of tokens."""
    limit = _generation_setting(model, gen_args, "max_new_tokens")
    if limit is None:
        longest = _generation_setting(model, gen_args, "max_length")
        limit = _DEFAULT_NEW_TOKENS if longest is None else longest - len(prompt.decoder_ids or prompt.ids)
    return n_response >= int(limit)


class LanguageModel:
    """Loads a model by its configuration: an encoder-decoder, or a decoder."""

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> Any:
        """The model, as of ``transformers``' ``from_pretrained``."""
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

        try:
            in_two_parts = AutoConfig.from_pretrained(name).is_encoder_decoder
        except OSError:  # the folder of an adapter has none
            in_two_parts = False
        return (AutoModelForSeq2SeqLM if in_two_parts else AutoModelForCausalLM).from_pretrained(name, **options)


def _generation_setting(model: Any, gen_args: Mapping[str, Any] | None, name: str) -> Any:
    """A setting of ``generate``: of its arguments, or else of a configuration among them, of the model's."""
    arguments = dict(gen_args or {})
    given = arguments.get("generation_config")
    sources = (arguments, {} if given is None else vars(given), vars(model.generation_config))
    return next((source[name] for source in sources if source.get(name) is not None), None)


def _embedding_scale(model: Any) -> float:
    """Factor between the embeddings of an encoder's token ids and those that it takes in their place.

    Pegasus and Marian multiply the embeddings of ids, and not embeddings that they get.
    """
    encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else None
    scale = getattr(encoder, "embed_scale", 1.0)
    if encoder is None or scale == 1:
        return 1.0
    embeddings = model.get_input_embeddings()
    ids = torch.tensor([[0, 1]], device=embeddings.weight.device)
    with torch.no_grad():
        of_ids = encoder(input_ids=ids)[0]
        differences = [(encoder(inputs_embeds=embeddings(ids) * s)[0] - of_ids).abs().max() for s in (1.0, scale)]
    return 1.0 if differences[0] <= differences[1] else float(scale)


def target_log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities of the targets, (R,) or (B, R), by the logits of rows, (B, R, V); (B, R)."""
    log_probabilities = logits.float().log_softmax(-1)
    found: Tensor = log_probabilities.gather(2, targets.expand(len(logits), -1).unsqueeze(2))
    return found.squeeze(2)


def gather_positions(logits: Tensor, first: Tensor, count: int) -> Tensor:
    """Logits of some positions in a row, from a first one on, of each row, (B, count, V); (B,) or (1,) first ones."""
    if bool((first == first[0]).all()):
        return logits[:, int(first[0]) :][:, :count]
    positions = (first.unsqueeze(1) + torch.arange(count, device=first.device)).clamp_max(logits.shape[1] - 1)
    return logits.gather(1, positions.unsqueeze(2).expand(-1, -1, logits.shape[2]))


def last_logits(model: Any, count: int, prefix: CachedPrefix | None = None, **inputs: Tensor) -> Tensor:
    """Logits of the last positions; a vocabulary times all positions is what exhausts memory."""
    takes_count = "logits_to_keep" in inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"logits_to_keep": count} if takes_count else {}
    if prefix is not None:
        options |= prefix.arguments(len(next(iter(inputs.values()))))
    logits: Tensor = model(**inputs, use_cache=False, **options).logits
    return logits[:, -count:]


@contextmanager
def _closing_attention(model: Any, name: str, bias: Tensor) -> Iterator[None]:
    """Context in which a value is added to attention logits, (B, 1, T, T): to all, or to those of a prompt's encoding.

    ``name`` is that of the implementation, ``_ATTENTION`` or ``_CROSS_ATTENTION``.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(_ATTENTION, _attention_with_bias)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)
    AttentionInterface.register(_CROSS_ATTENTION, _eager_attention)
    AttentionMaskInterface.register(_CROSS_ATTENTION, _mask_with_bias)
    token = _KEY_BIAS.set(bias)
    try:
        with attention_implementation(model, name):
            yield
    finally:
        _KEY_BIAS.reset(token)


def _attention_with_bias(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *args: Any, **kwargs: Any
) -> tuple[Tensor, Any]:
    bias = _KEY_BIAS.get().to(query)
    mask = bias if attention_mask is None else attention_mask + bias
    return _eager_attention(module, query, key, value, mask, *args, **kwargs)


def _eager_attention(module: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    eager: Callable[..., Any] | None = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise ValueError(f"model: {type(module).__name__} has no attention that takes a bias; expected eager attention")
    result: tuple[Tensor, Any] = eager(module, *args, **kwargs)
    return result


def _mask_with_bias(*args: Any, **kwargs: Any) -> Tensor:
    """The mask of eager attention; in a decoder, attention that is not causal is that to the encoded prompt."""
    from transformers.masking_utils import eager_mask

    mask: Tensor = eager_mask(*args, **{**kwargs, "allow_is_bidirectional_skip": False})
    first, second = torch.arange(2)
    of_prompt = bool(kwargs["mask_function"](first, first, first, second))
    return mask + _KEY_BIAS.get().to(mask) if of_prompt else mask
