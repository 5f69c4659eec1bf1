"""Generated text explained, beside Captum's ``LLMAttribution``: which tokens or parts of the prompt the response needs.

A mask value multiplies the attention weights, before they are normalized, that other positions give to a token, in
every block. So a closed token is erased, as by deletion, and only its place remains.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
from captum.attr import LLMAttributionResult, TextTemplateInput, TextTokenInput
from torch import Tensor
from torch.nn import functional as F

from captum_iba._checks import check_flag, check_integer, kind_of
from captum_iba._compat import progress
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr.objective import NATS_PER_BIT, Information, MaskLayout
from captum_iba.attr.optimizer import optimize_mask
from captum_iba.attr.settings import BottleneckSettings, SettingsOverrides, resolve_settings
from captum_iba.text.model_properties import rows_in_memory
from captum_iba.text.prompt import Prompt, encode_response, read_prompt, token_ids, token_text
from captum_iba.text.prompt_model import (
    ClosableModel,
    can_be_stacked,
    check_language_model,
    check_model,
    closable,
    decoder_arguments,
    decoder_prefix,
    same_log_probabilities,
    stacked,
    stop_tokens,
)

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

GREEDY = {"max_new_tokens": 25, "do_sample": False, "num_beams": 1, "temperature": None, "top_p": None}
"""Default arguments of ``generate``: the most probable token at each step, as in Captum's ``LLMAttribution``."""
_GENERATION_ARGUMENTS = (*GREEDY, "min_new_tokens", "max_length", "top_k", "repetition_penalty")
_ARGUMENTS = (
    *("response", "responses", "span", "contrast", "granularity", "per_token", "include_system"),
    *("rerank", "check", "gen_args"),
)

_TINY = torch.finfo(torch.float32).tiny


class AskedResponse(NamedTuple):
    """A prompt, its response, and what of it is explained.

    Args:
        prompt (Prompt): Tokens and parts.
        response (sequence of int): Token ids.
        weights (Tensor): Rows of weights of the response's tokens, (B, R).
        contrast (tuple, optional): Token ids of another response, and the weight of each. Default: None
    """

    prompt: Prompt
    response: Sequence[int]
    weights: Tensor
    contrast: tuple[Sequence[int], Tensor] | None = None


class PartAttributions(NamedTuple):
    """What :meth:`LLMInformationBottleneckAttribution.attribute_responses` finds of a response.

    Args:
        bits (Tensor): Bits of each part of the prompt, (B, P).
        masked_probability (Tensor): Probability through each final mask, the geometric mean per token, or of the
            choice, (B,).
        closed_probability (Tensor): The same through a closed mask, (B,).
        probabilities (Tensor): Probabilities of the response's tokens without a mask, (R,).
    """

    bits: Tensor
    masked_probability: Tensor
    closed_probability: Tensor
    probabilities: Tensor


class LLMInformationBottleneckAttribution:
    """
    Attributes the response of a language model to its prompt, in bits, by one optimization for the whole response.

    It takes the inputs of Captum's ``LLMAttribution`` and returns its result. The mask has one value per token, or per
    value of a template. The value multiplies the attention weights, before they are normalized, that positions outside
    of the part give to its tokens, in every block; the embedding at the prompt's last position, which attention does
    not pass on, is mixed with the mean embedding of the vocabulary. The optimization minimizes the mean negative
    log-probability per token of the response plus ``beta`` times the information per element, and maximizes it for the
    complement mask, as :class:`captum_iba.InformationBottleneckAttribution` does. The bits are those that noise at the
    embeddings would let through with this mask; its mean and standard deviation are those of the vocabulary, so that no
    texts are needed.

    Args:
        model (PreTrainedModel): A decoder or encoder-decoder of ``transformers`` with a language-model head, whose
            attention goes by ``transformers``' interface. It is left as it was.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer, a fast one.

    Raises:
        ValueError: A model without a language-model head, or whose attention cannot be set.
        TypeError: A model that is not one of ``transformers``, such as a name or the tokenizer.

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
        check_language_model(model, tokenizer)
        if model.get_output_embeddings() is None:
            raise ValueError(f"model: {name} has no language-model head, expected one for causal language modeling")
        if not model._can_set_attn_implementation():
            raise ValueError(
                f"model: the attention of {name} does not go by the interface of transformers, by which positions are "
                "closed; expected a decoder such as Llama, Qwen, Gemma or GPT-2"
            )
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise ValueError(f"model: {name} has learned prompts of PEFT, which stand before the tokens; expected none")
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
        show_progress: bool = False,
        preset: BottleneckSettings = GENERATION,
        **overrides: Any,
    ) -> LLMAttributionResult:
        """
        Args:
            inp (TextTokenInput, TextTemplateInput, str or list of messages): The prompt. Of a ``TextTokenInput`` the
                tokens that are not skipped have a mask value each; of a ``TextTemplateInput`` each value, or the values
                of one number in its ``mask`` together; of a string every token that is not special; of messages, which
                go through the tokenizer's chat template, the tokens of their contents, but not those of a system
                message.
            target (str, Tensor, sequence of int, or None): The response, as text or token ids. Default: None, what the
                model generates.
            gen_args (dict, optional): Arguments of ``generate``. Default: up to 25 new tokens, the most probable ones.
            per_token (bool): Whether to attribute every token of the response by itself, too, each with a mask of its
                own, in ``token_attr``. Default: False.
            internal_batch_size (int): Largest number of rows of a forward pass, with ``per_token``. Default: 8.
            show_progress (bool): Whether to show a progress bar over the steps. Default: False.
            preset (BottleneckSettings): Settings; ``n_samples`` must be 0, and ``granularity`` ``"token"``. Default:
                :data:`GENERATION`.
            **overrides: Fields of the settings that override the preset's.

        Returns:
            LLMAttributionResult: ``seq_attr``, bits of each part of the prompt, (n_in,); with ``per_token``
            ``token_attr``, (n_out, n_in); and ``output_probs``, the probabilities of the response's tokens, (n_out,).

        Raises:
            ValueError: No part of the prompt to attribute to, an empty response, a token id out of the vocabulary, or
                more tokens than the model has positions.
            TypeError: An input or target of another type, or a keyword that is no setting.
        """
        check_flag("per_token", per_token)
        check_flag("show_progress", show_progress)
        check_integer("internal_batch_size", internal_batch_size, at_least=1)
        settings = generation_settings(preset, overrides)
        prompt = self.read(inp, gen_args=gen_args)
        response = self.response_ids(prompt, target, gen_args)
        rows = torch.ones(1, len(response)) / len(response)
        if per_token:
            rows = torch.cat([rows, torch.eye(len(response))])
        asked = [AskedResponse(prompt, response, rows)]
        (found,) = self.attribute_responses(asked, settings, internal_batch_size, show_progress)
        return LLMAttributionResult(
            input_tokens=prompt.names,
            output_tokens=[token_text(self.tokenizer, number) for number in response],
            seq_attr=found.bits[0],
            token_attr=found.bits[1:] if per_token else None,
            output_probs=found.probabilities,
            inp=inp if isinstance(inp, (TextTokenInput, TextTemplateInput)) else None,
        )

    def attribute_responses(
        self,
        several: Sequence[AskedResponse],
        settings: BottleneckSettings,
        internal_batch_size: int = 8,
        show_progress: bool = False,
    ) -> list[PartAttributions]:
        """Attribute the responses to several prompts, whose rows share forward passes.

        Where a model gives other log-probabilities for prompts of several lengths in one pass, each prompt has its own.
        """
        longest = max(len(item.prompt.ids) + len(item.response) for item in several)
        internal_batch_size = rows_in_memory(self.model, longest, internal_batch_size)
        with ModuleGuard(self.model), torch.inference_mode(False):
            models = [closable(self.model, item.prompt, item.response) for item in several]
            choices = [
                None if contrast is None else (closable(self.model, prompt, contrast[0]), contrast[1])
                for prompt, _, _, contrast in several
            ]
            for item in several:
                self.check_model(item.prompt, item.response)
            with torch.no_grad():
                log_probabilities = [model.log_probabilities(1)[0] for model in models]
            batches = _batches(several, internal_batch_size, len(several) > 1 and can_be_stacked(self.model))
            found: list[list[Tensor]] = [[] for _ in several]
            masked: list[list[Tensor]] = [[] for _ in several]
            without: list[list[Tensor]] = [[] for _ in several]
            total = len(batches) * (settings.n_steps + 2)
            with progress(total=total, desc="Generated text") if show_progress else nullcontext() as bar:
                on_pass = (lambda _: None) if bar is None else bar.update
                while batches:
                    rows = batches.pop(0)
                    numbers = [number for number, _ in rows]
                    objective = _GenerationObjective(
                        *_together([models[i] for i in numbers], [several[i].weights[row] for i, row in rows]), settings
                    )
                    if len({*numbers}) > 1 and not _agree(objective.model, [log_probabilities[i] for i in numbers]):
                        alone = [[row for row in rows if row[0] == number] for number in sorted({*numbers})]
                        batches = [*alone, *batches]
                        continue
                    if contrasts := [choice for i in numbers if (choice := choices[i]) is not None]:
                        objective = replace(objective, contrast=_together(*zip(*contrasts, strict=True)))
                    for (number, _), bits, kept, closed in zip(rows, *_optimize(objective, on_pass), strict=True):
                        found[number].append(bits[: len(several[number].prompt.names)])
                        masked[number].append(kept)
                        without[number].append(closed)
        return [
            PartAttributions(torch.stack(bits), torch.stack(kept), torch.stack(closed), log_p.exp().cpu())
            for bits, kept, closed, log_p in zip(found, masked, without, log_probabilities, strict=True)
        ]

    def check_model(self, prompt: Prompt, response: Sequence[int]) -> None:
        """Raise ValueError if the model computes otherwise than is assumed; once per model, by four passes."""
        if not self._checked:
            with ModuleGuard(self.model):
                self._checked = check_model(self.model, prompt, response)

    def read(
        self,
        inp: Any,
        granularity: str | Sequence[tuple[int, int]] = "token",
        gen_args: dict[str, Any] | None = None,
        include_system: bool = False,
    ) -> Prompt:
        """The tokens and parts of a prompt as this model takes them."""
        prompt = read_prompt(inp, self.tokenizer, granularity, include_system)
        prompt = replace(prompt, decoder_ids=decoder_prefix(self.model, gen_args))
        if prompt.decoder_ids and -1 not in prompt.parts:
            raise ValueError(
                "the prompt has a bottleneck for every token, and the decoder has none to read where all are closed; "
                "expected one that is skipped, such as the token at its end"
            )
        self._check_length(prompt, 1)
        return prompt

    def response_ids(
        self, prompt: Prompt, target: Any, gen_args: dict[str, Any] | None = None, name: str = "target"
    ) -> list[int]:
        """Token ids of a response to a prompt; ``name`` is the argument that errors name."""
        response = (
            self._generated(prompt, gen_args, name) if target is None else self._given(prompt, target, gen_args, name)
        )
        self._check_length(prompt, len(response))
        return response

    def _generated(self, prompt: Prompt, gen_args: dict[str, Any] | None, name: str) -> list[int]:
        inputs = torch.tensor([prompt.ids], device=self.model.get_input_embeddings().weight.device)
        arguments = GREEDY if gen_args is None else gen_args
        with ModuleGuard(self.model), torch.no_grad():
            generated = self.model.generate(inputs, attention_mask=torch.ones_like(inputs), **arguments)
        sequences = getattr(generated, "sequences", generated)  # with return_dict_in_generate
        response: list[int] = sequences[0, len(prompt.decoder_ids or prompt.ids) :].tolist()
        # After its end, the longest of several sequences pads the others.
        stops = stop_tokens(self.model, arguments)
        response = response[: next((i for i, number in enumerate(response) if number in stops), len(response))]
        if not response:
            raise ValueError(f"{name} is None, and generation ended at once; expected a {name} to explain")
        return response

    def _given(self, prompt: Prompt, target: Any, gen_args: dict[str, Any] | None, name: str) -> list[int]:
        if gen_args is not None and gen_args != decoder_arguments(gen_args):
            raise ValueError(f"gen_args is given, and {name}, too: expected arguments for generation without a {name}")
        if isinstance(target, str):
            response, _ = encode_response(self.tokenizer, prompt, target)
        elif isinstance(target, (Tensor, list, tuple)):
            response = token_ids(name, target)
        else:
            raise TypeError(f"{name} is {kind_of(target)}, expected a string, token ids or None")
        if not response:
            raise ValueError(f"{name} is {target!r}, without any token, expected a response to explain")
        size = self.model.get_input_embeddings().weight.shape[0]
        if wrong := [number for number in response if not 0 <= number < size]:
            raise ValueError(f"{name} has the token id {wrong[0]}, expected ids from 0 to {size - 1}")
        return list(response)

    def _check_length(self, prompt: Prompt, n_response: int) -> None:
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if not isinstance(limit, int):
            return
        if prompt.decoder_ids:
            lengths = {"the prompt": len(prompt.ids), "the response": len(prompt.decoder_ids) + n_response - 1}
        else:
            lengths = {"prompt and response": len(prompt.ids) + n_response}
        for what, length in lengths.items():
            if length > limit:
                raise ValueError(
                    f"{what} ha{'ve' if ' and ' in what else 's'} {length} tokens, expected at most {limit}, the "
                    "model's positions"
                )


def _batches(several: Sequence[AskedResponse], size: int, together: bool) -> list[list[tuple[int, int]]]:
    """Number of the prompt, and of its row, of all rows of each pass, prompts of similar lengths ``together``."""
    rows = [(number, row) for number, item in enumerate(several) for row in range(len(item.weights))]

    def group(row: tuple[int, int]) -> tuple[bool, int]:
        item = several[row[0]]
        return item.contrast is None, 0 if together else row[0]

    def length(row: tuple[int, int]) -> int:
        return len(several[row[0]].prompt.ids) + len(several[row[0]].response)

    groups = [list(of_group) for _, of_group in groupby(sorted(rows, key=lambda row: (group(row), length(row))), group)]
    return [of_group[start : start + size] for of_group in groups for start in range(0, len(of_group), size)]


def _together(models: Sequence[ClosableModel], weights: Sequence[Tensor]) -> tuple[ClosableModel, Tensor]:
    """A model of the rows, one for all of one prompt, and the weights of their tokens, (B, R)."""
    same = all(model is models[0] for model in models)
    return models[0] if same else stacked(models), torch.nn.utils.rnn.pad_sequence(list(weights), batch_first=True)


def _agree(model: ClosableModel, log_probabilities: list[Tensor]) -> bool:
    """Whether the responses have the same log-probabilities in one pass as by themselves."""
    with torch.no_grad():
        rows = model.log_probabilities(len(log_probabilities))
    in_half_precision = torch.finfo(model.embedded.dtype).bits < 32
    return all(
        same_log_probabilities(row[: len(alone)], alone, in_half_precision)
        for row, alone in zip(rows, log_probabilities, strict=True)
    )


def generation_settings(preset: BottleneckSettings, overrides: Mapping[str, Any]) -> BottleneckSettings:
    """Settings with overrides; ValueError for those that generated text does not have."""
    if not isinstance(preset, BottleneckSettings):
        raise TypeError(
            f"preset is {preset!r}, expected BottleneckSettings: the presets of classifiers do not fit generated text"
        )
    if for_generation := [name for name in overrides if name in _GENERATION_ARGUMENTS]:
        raise TypeError(f"{for_generation[0]!r} is an argument of generation; pass it in gen_args")
    for name in overrides:
        close = difflib.get_close_matches(name, (*BottleneckSettings.__dataclass_fields__, *_ARGUMENTS), n=1)
        if close and close[0] != name:
            raise TypeError(f"{name!r} is no argument; did you mean {close[0]}?")
    known: SettingsOverrides = overrides  # type: ignore[assignment]
    settings = resolve_settings(preset, **known)
    if settings.n_samples or settings.granularity != "token":
        raise ValueError(
            f"the settings have n_samples={settings.n_samples} and granularity={settings.granularity!r}, expected "
            "n_samples=0 and granularity='token' for generated text"
        )
    return settings


@dataclass(frozen=True)
class _GenerationObjective:
    """Loss and information of the masks of several rows, each with its own weights of the response's tokens, (B, R)."""

    model: ClosableModel
    weights: Tensor
    settings: BottleneckSettings
    contrast: tuple[ClosableModel, Tensor] | None = None
    loss: str = "cross_entropy"

    @cached_property
    def activation(self) -> Tensor:
        """The embeddings, (B, T, D)."""
        return self._embeddings(self.model)

    @cached_property
    def layout(self) -> MaskLayout:
        """The mask over the prompt and the response."""
        return MaskLayout.of(self.activation, "token", self.model.parts, self.model.maskable, 2)

    @cached_property
    def information(self) -> Information:
        """Information in the embeddings of the prompt."""
        mean, std = self.model.statistics
        standardized = (self.activation.float() - mean) / std
        return Information(self.layout, standardized)

    def losses(self, alpha: Tensor, step: int, samples: range, masks: Sequence[int]) -> Tensor:
        """Mean negative log-probabilities, and -log(1 - p) of their geometric means p, (masks, 1, B).

        With a contrast p is the probability of the choice, the logistic function of the difference of both means.
        """
        results: list[Tensor] = []
        for mask in masks:
            log_p = self._mean(self.model, self.layout, -alpha if mask else alpha, self.weights)
            if self.contrast is None:
                loss = -torch.log(-torch.expm1(log_p.clamp_max(-_TINY))) if mask else -log_p
            else:
                model, weights = self.contrast
                of_contrast = self._mean(model, self._layout_of_contrast, -alpha if mask else alpha, weights)
                difference = log_p - of_contrast
                loss = F.softplus(difference if mask else -difference)
            results.append(loss)
        return torch.stack(results).unsqueeze(1)

    @cached_property
    def _layout_of_contrast(self) -> MaskLayout:
        assert self.contrast is not None
        model, _ = self.contrast
        return MaskLayout.of(self._embeddings(model), "token", model.parts, model.maskable, 2)

    def _embeddings(self, model: ClosableModel) -> Tensor:
        embedded: Tensor = model.embedded
        return embedded.expand(len(self.weights), -1, -1)

    def _mean(self, model: ClosableModel, layout: MaskLayout, alpha: Tensor, weights: Tensor) -> Tensor:
        """Weighted means of the log-probabilities of the response's tokens, (B,)."""
        log_lam = torch.where(layout.maskable, F.logsigmoid(layout.expand(alpha)), 0.0)
        log_probabilities = model.log_probabilities(len(self.weights), layout.gate(alpha), log_lam)
        means: Tensor = (weights.to(log_probabilities) * log_probabilities).sum(1)
        return means


def _optimize(objective: _GenerationObjective, on_pass: Callable[[int], object]) -> tuple[Tensor, Tensor, Tensor]:
    """Bits of each part of the prompt, (B, P), and probabilities through the final and through a closed mask, (B,)."""
    alpha, [(_, _, probability)], closed = optimize_mask(objective, 1, "final", on_pass)
    assert closed is not None
    bits = objective.information.per_element(alpha).sum(2).cpu() / NATS_PER_BIT
    parts = objective.model.parts.cpu().expand(len(bits), -1)
    of_parts = torch.zeros(len(bits), objective.model.n_parts).scatter_add_(1, parts, bits.float())
    return of_parts, probability.cpu(), closed.cpu()
