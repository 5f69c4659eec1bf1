"""Generated text explained: which parts of the prompt made the language model say this, in a few lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from captum_iba._checks import check_flag, check_integer, kind_of
from captum_iba._explain.fingerprint import RememberedFingerprint, tokenizer_fingerprint
from captum_iba._explain.json_result import provenance
from captum_iba._explain.model import model_name
from captum_iba._explain.progress import removal_progress
from captum_iba._reading.prompt_sentences import UNLIKELY
from captum_iba._reading.wording import format_probability
from captum_iba._warnings import warn_user
from captum_iba.attr.optimizer import unneeded_bits
from captum_iba.attr.settings import BottleneckSettings
from captum_iba.text.arguments import broken_text
from captum_iba.text.generation import (
    GENERATION,
    LLMInformationBottleneckAttribution,
    PartAttributions,
    generation_settings,
)
from captum_iba.text.generation_result import GenerationAttribution, ResponseToken
from captum_iba.text.prompt import Prompt
from captum_iba.text.prompt_check import rerank_by_removal, with_check_by_removal
from captum_iba.text.prompt_model import LanguageModel, decoder_arguments
from captum_iba.text.prompt_part_removal import (
    CachedPromptRemoval,
    ChoiceRemoval,
    PromptRemoval,
    Removal,
    with_contrast,
)
from captum_iba.text.prompt_parts import PromptPart
from captum_iba.text.response import ResponseToExplain, explained_response


class GenerationExplainer:
    """
    Explains responses of a language model: which tokens, words, sentences or paragraphs of the prompt they need.

    Args:
        model (PreTrainedModel): A decoder or encoder-decoder of ``transformers`` with a language-model head. It is left
            as it was.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer, a fast one.

    Raises:
        ValueError: A model without a language-model head, or whose attention cannot be set.
        TypeError: A model that is not one of ``transformers``, such as a name or the tokenizer.

    Examples::

        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        >>> decoder = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
        >>> result = GenerationExplainer(decoder, tokenizer).explain("the film is good", response="a good film")
        >>> [part.text for part in result.parts]
        ['the', 'film', 'is', 'good']
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.attribution = LLMInformationBottleneckAttribution(model, tokenizer)
        self.model, self.tokenizer = model, tokenizer
        self._fingerprint = RememberedFingerprint()

    def __repr__(self) -> str:
        return f"GenerationExplainer({type(self.model).__name__}, {model_name(self.model)!r})"

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        device: str | int | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> GenerationExplainer:
        """Load a language model and its tokenizer, from a folder or the Hugging Face hub.

        Args:
            name_or_path (str or path): A folder, or a name on the hub.
            device (str, int, torch.device or None): Device of the model; a number is a CUDA device. Default: the CPU.
            dtype (torch.dtype): Precision of the weights. Default: ``torch.float32``.
            **options: Arguments of ``transformers``' ``from_pretrained``, such as ``device_map``.

        Raises:
            ValueError: The checkpoint lacks weights or has no tokenizer, or torch does not find the device.
            OSError: There is no such folder or name.
        """
        from captum_iba.text.classifier import load_model

        name = os.fspath(name_or_path)
        model, tokenizer, missing = load_model(LanguageModel, name, device, dtype=dtype, **options)
        if missing:
            raise ValueError(
                f"model: {name} is not a trained language model, its file lacks {', '.join(missing[:3])}; expected a "
                "decoder or encoder-decoder with a language-model head (TextExplainer and `captum-iba explain` explain "
                "classifiers)."
            )
        return cls(model, tokenizer)

    def explain(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        response: str | Sequence[int] | Tensor | None = None,
        *,
        span: str | tuple[int, int] | None = None,
        contrast: str | None = None,
        granularity: str | Sequence[tuple[int, int]] = "word",
        per_token: bool = False,
        include_system: bool = False,
        rerank: int = 8,
        check: bool = False,
        seed: int = 0,
        gen_args: dict[str, Any] | None = None,
        batch_size: int = 8,
        show_progress: bool = False,
        preset: BottleneckSettings = GENERATION,
        **overrides: Any,
    ) -> GenerationAttribution:
        """
        Explain the response to a prompt, in bits per part of the prompt.

        A prompt of messages goes through the tokenizer's chat template; only the contents of the messages have a
        bottleneck, those of a system message with ``include_system``.

        Args:
            prompt (str or list of messages): The prompt. The tokens of the response follow its tokens as they are:
                after a prompt that ends without white space a response begins with a space. A text is encoded as it
                follows the prompt, which can give other tokens than the model generates for it.
            response (str, sequence of int or Tensor, optional): The response, as text or token ids. Default: None, what
                the model generates.
            span (str or tuple of int, optional): Start and end of the characters of the response that are explained, or
                a text that is in it once. Tokens that share a character with it count. Default: None, the whole
                response.
            contrast (str, optional): Another response, or with ``span`` another text in its place: explained is why the
                model prefers the span to it, by the mean log-probabilities per token of both. Effects of removal are
                decreases in their difference, the log-odds of the choice. Default: None.
            granularity (str or list of tuple): ``"token"``, ``"word"``, ``"sentence"``, ``"paragraph"``, or (start,
                end) of spans of a prompt that is a string; what is in no span has no bottleneck. Default: "word".
            per_token (bool): Whether each explained token of the response has bits of its own, too. Default: False.
            include_system (bool): Whether the contents of a system message have parts and are explained, too. Default:
                False.
            rerank (int): Number of parts with the most bits whose order is settled by removal, in two forward passes
                per part and two more; their bits stay as they are. Where all of these parts speak against the response,
                twice as many are measured. 0 for the order of the bits alone. Default: 8.
            check (bool): Whether to delete the leading parts, the least, and others at random; there is nothing to
                check where no part speaks for the response. Of a prompt with at most 40 parts, each is deleted alone
                before, and those that were not measured are ranked by that. Default: False.
            seed (int): Seed of the parts that the check deletes at random. The bits do not depend on it. Default: 0.
            gen_args (dict, optional): Arguments of ``generate``. With a response only those by which the decoder of an
                encoder-decoder begins, such as ``forced_bos_token_id``. A model that samples gives the same response
                until ``torch.manual_seed`` changes it: the random state is left as it was. Default: up to 25 new
                tokens, the most probable ones.
            batch_size (int): Largest number of rows of a forward pass. Default: 8.
            show_progress (bool): Whether to show a progress bar over the steps, and one over the prompts without parts.
                Default: False.
            preset (BottleneckSettings): Settings. Default: ``captum_iba.text.generation.GENERATION``.
            **overrides: Fields of the settings that override the preset's.

        Returns:
            GenerationAttribution

        Raises:
            ValueError: An empty response, a span that is not in it, spans that are not in the prompt, more tokens than
                the model has positions, or an argument out of range.
            TypeError: A prompt or response of another type, or a keyword that is no setting.
        """
        settings = generation_settings(preset, overrides)
        measuring = _Measuring.checked(rerank, check, seed, batch_size, show_progress)
        asked = self._asked(prompt, response, span, contrast, granularity, per_token, gen_args, include_system)
        return self._explain([asked], settings, measuring)[0]

    def explain_batch(
        self,
        prompts: Sequence[str | Sequence[Mapping[str, str]]],
        responses: Sequence[str | Sequence[int] | Tensor | None] | None = None,
        *,
        spans: Sequence[str | tuple[int, int] | None] | None = None,
        contrasts: Sequence[str | None] | None = None,
        granularity: str = "word",
        per_token: bool = False,
        include_system: bool = False,
        rerank: int = 8,
        check: bool = False,
        seed: int = 0,
        gen_args: dict[str, Any] | None = None,
        batch_size: int = 8,
        show_progress: bool = False,
        preset: BottleneckSettings = GENERATION,
        **overrides: Any,
    ) -> list[GenerationAttribution]:
        """
        Explain the responses to several prompts, as :meth:`explain` does one by one; prompts share forward passes.

        It pays where a pass of one prompt leaves a device idle, on a GPU above all. Prompts of similar lengths share a
        pass, padded on the right, where a decoder does not see it. The results are those of :meth:`explain` within
        1e-4 of the bits.

        Args:
            prompts (sequence): Strings, or lists of chat messages.
            responses, spans, contrasts (sequence, optional): For every prompt a response, span and contrast as of
                :meth:`explain`, or None. Default: None for all.
            granularity, per_token, include_system, rerank, check, seed, gen_args, show_progress, preset: As of
                :meth:`explain`.
            batch_size (int): Largest number of rows, of one or several prompts, of a forward pass. Default: 8.

        Returns:
            list of GenerationAttribution: One per prompt, in their order.

        Raises:
            ValueError, TypeError: As :meth:`explain`; the message names the prompt. Sequences of another length.

        Examples::

            >>> from transformers import LlamaConfig, LlamaForCausalLM
            >>> size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
            >>> decoder = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
            >>> explainer = GenerationExplainer(decoder, tokenizer)
            >>> [len(result.parts) for result in explainer.explain_batch(["the film", "a"], ["good", "film"])]
            [2, 1]
        """
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping)):
            raise TypeError("prompts is one prompt, expected a sequence of them; explain takes one")
        if not len(prompts):
            raise ValueError("prompts is empty, expected one or more")
        given = {"responses": responses, "spans": spans, "contrasts": contrasts}
        columns: list[Sequence[Any]] = []
        for name, column in given.items():
            if isinstance(column, str) or (column is not None and len(column) != len(prompts)):
                found = "a string" if isinstance(column, str) else f"of length {len(column)}"
                raise ValueError(f"{name} is {found}, expected one for each of the {len(prompts)} prompts")
            columns.append([None] * len(prompts) if column is None else column)
        settings = generation_settings(preset, overrides)
        measuring = _Measuring.checked(rerank, check, seed, batch_size, show_progress)
        asked = []
        for number, (prompt, response, span, contrast) in enumerate(zip(prompts, *columns, strict=True)):
            try:
                # Of some given responses, the arguments are for the others.
                arguments = gen_args if response is None or None not in columns[0] else decoder_arguments(gen_args)
                of_response = (response, span, contrast, granularity, per_token, arguments, include_system)
                asked.append(self._asked(prompt, *of_response))
            except (TypeError, ValueError) as error:
                raise type(error)(f"prompts[{number}]: {error}") from error
        return self._explain(asked, settings, measuring)

    def _asked(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        response: str | Sequence[int] | Tensor | None,
        span: str | tuple[int, int] | None,
        contrast: str | None,
        granularity: str | Sequence[tuple[int, int]],
        per_token: bool,
        gen_args: dict[str, Any] | None,
        include_system: bool,
    ) -> ResponseToExplain:
        """What is explained, generated if need be."""
        check_flag("per_token", per_token)
        check_flag("include_system", include_system)
        response = response.flatten().tolist() if isinstance(response, Tensor) else response
        _warn_without_template(self.tokenizer, prompt, response)
        if include_system and (isinstance(prompt, str) or all(message.get("role") != "system" for message in prompt)):
            warn_user(
                "include_system has no effect: the prompt has no system message, and what the chat template writes by "
                "itself has no parts"
            )
        read = self.read(prompt, response, granularity, gen_args, include_system)
        of_response = (response, span, contrast, granularity, per_token, gen_args)
        return explained_response(self.attribution, read, *of_response)

    def _explain(
        self, several: Sequence[ResponseToExplain], settings: BottleneckSettings, measuring: _Measuring
    ) -> list[GenerationAttribution]:
        rerank, check, seed, batch_size, show_progress = measuring
        found = self.attribution.attribute_responses(
            [asked.rows for asked in several], settings, batch_size, show_progress
        )
        results = []
        with removal_progress(show_progress, "prompts") as on_rows:
            for asked, of_parts in zip(several, found, strict=True):
                read, ids, rows, other = asked.rows
                removal = self._removal(read, ids, rows[0], other, batch_size, on_rows)
                cached = CachedPromptRemoval(removal)
                result = self._attribution(asked, of_parts, settings, measuring)
                if check:
                    result = with_check_by_removal(cached, result, rerank, seed)
                else:
                    result = rerank_by_removal(cached, result, rerank)
                results.append(with_contrast(removal, result))
        return results

    def _attribution(
        self, asked: ResponseToExplain, found: PartAttributions, settings: BottleneckSettings, measuring: _Measuring
    ) -> GenerationAttribution:
        read, _, rows, _ = asked.rows
        text, (start, end), per_token = asked.text, asked.span, len(rows) > 1
        bits_per_token = iter(found.bits[1:].tolist())
        tokens = tuple(
            ResponseToken(
                text[a:b],
                a,
                b,
                probability,
                inside,
                tuple(next(bits_per_token)) if inside and per_token else (),
            )
            for (a, b), probability, inside in zip(
                asked.offsets, found.probabilities.tolist(), asked.explained, strict=False
            )
        )
        per_token_probability = float((rows[0] * found.probabilities.log()).sum().exp())
        if per_token_probability < UNLIKELY:
            is_raw = not any(token in read.text for token in self.tokenizer.all_special_tokens)
            has_template = bool(getattr(self.tokenizer, "chat_template", None))
            warn_user(
                f"response: the model gives {text[start:end]!r} {format_probability(per_token_probability)} per token, "
                "and would hardly say it"
                + "; many responses begin with a space, which belongs to them" * (is_raw and not text[:1].isspace())
                + "; the tokenizer has a chat template, which a prompt of messages goes through"
                * (is_raw and has_template)
            )
        # The granularity of the bottleneck is always "token"; that of the result is its parts'.
        of_bottleneck = {name: value for name, value in asdict(settings).items() if name != "granularity"}
        return GenerationAttribution(
            prompt=read.text,
            parts=self._parts(read, found.bits[0], settings),
            response=text,
            tokens=tokens,
            span=asked.span,
            granularity=asked.granularity,
            probability=0.0,
            masked_probability=float(found.masked_probability[0]),
            closed_probability=float(found.closed_probability[0]),
            contrast=asked.contrast,
            settings={
                **of_bottleneck,
                "seed": measuring.seed,
                "rerank": measuring.rerank,
                "generated_with": _plain(asked.gen_args),
            },
            cut_off=asked.cut_off,
            system=read.system,
            model=model_name(self.model),
            provenance=provenance(self.model, self.fingerprint()),
        )

    def read(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        response: str | Sequence[int] | None = None,
        granularity: str | Sequence[tuple[int, int]] = "word",
        gen_args: dict[str, Any] | None = None,
        include_system: bool = False,
    ) -> Prompt:
        """The tokens and parts of a prompt; the errors of :meth:`explain` that need no forward pass.

        Args:
            prompt, response, granularity, gen_args, include_system: The same as for :meth:`explain`.
        """
        if not isinstance(prompt, str) and not (
            isinstance(prompt, (list, tuple)) and all(isinstance(message, Mapping) for message in prompt)
        ):
            several = ", one per call (explain_batch takes several)" if isinstance(prompt, (list, tuple)) else ""
            raise TypeError(f"prompt is {kind_of(prompt)}, expected a string or chat messages{several}")
        if isinstance(prompt, (list, tuple)) and not prompt:
            raise ValueError(f"prompt is {prompt!r}, without any message, expected a string or chat messages")
        if isinstance(prompt, str) and not prompt.strip():
            raise ValueError(f"prompt is {prompt!r}, without any word, expected a prompt")
        messages = [prompt] if isinstance(prompt, str) else [message.get("content") for message in prompt]
        for name, text in [*(("prompt", message) for message in messages), ("response", response)]:
            if isinstance(text, str) and (broken := broken_text(text)) is not None:
                raise ValueError(f"{name} {broken}")
        if not isinstance(response, (str, list, tuple, type(None))):
            raise TypeError(f"response is {kind_of(response)}, expected a string, token ids or None")
        read = self.attribution.read(prompt, granularity, gen_args, include_system)
        if response is not None:
            self.attribution.response_ids(read, response, gen_args, "response")
        return read

    def fingerprint(self) -> str:
        """Digest of the model, its weights and active adapters, its generation settings, and of the tokenizer."""
        parts = [self._fingerprint.of(self.model), tokenizer_fingerprint(self.tokenizer)]
        parts += [json.dumps(self.model.generation_config.to_dict(), sort_keys=True, default=str)]
        return hashlib.sha256("\n".join([*parts, str(self.tokenizer.chat_template)]).encode()).hexdigest()

    def removal(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        response: str | Sequence[int],
        *,
        granularity: str | Sequence[tuple[int, int]] = "word",
        replacement: int | None = None,
        gen_args: dict[str, Any] | None = None,
        include_system: bool = False,
        batch_size: int = 8,
    ) -> PromptRemoval:
        """The function that :func:`captum_iba.metrics.prompt_degradation` takes: what the response loses.

        Args:
            prompt, response, granularity, gen_args, include_system: The same as for :meth:`explain`.
            replacement (int, optional): Id of the token that takes the place of removed ones. Default: None, the others
                move together.
            batch_size (int): Largest number of rows of a forward pass. Default: 8.

        Returns:
            PromptRemoval: Function of the kept parts, (N, P) booleans, that returns the mean log-probability per token
            of the response, (N,).
        """
        gen_args = decoder_arguments(gen_args)
        read = self.read(prompt, response, granularity, gen_args, include_system)
        ids = self.attribution.response_ids(read, response, gen_args, "response")
        return PromptRemoval(self.model, read, ids, None, replacement, batch_size)

    def _removal(
        self,
        prompt: Prompt,
        ids: Sequence[int],
        weights: Tensor,
        contrast: tuple[Sequence[int], Tensor] | None,
        batch_size: int,
        on_rows: Callable[[int], object] | None,
    ) -> Removal:
        of_response = PromptRemoval(self.model, prompt, ids, weights, None, batch_size, on_rows)
        if contrast is None:
            return of_response
        return ChoiceRemoval(of_response, PromptRemoval(self.model, prompt, *contrast, None, batch_size, on_rows))

    def _parts(self, prompt: Prompt, bits: Tensor, settings: BottleneckSettings) -> tuple[PromptPart, ...]:
        width = self.model.get_input_embeddings().weight.shape[1]
        floor = unneeded_bits(settings, len(prompt.names)) * width
        return tuple(
            PromptPart(name, *span, of_part, floor * prompt.parts.count(number))
            for number, (name, span, of_part) in enumerate(zip(prompt.names, prompt.spans, bits.tolist(), strict=True))
        )


class _Measuring(NamedTuple):
    """What follows the optimization, and how it runs; arguments of :meth:`GenerationExplainer.explain`."""

    rerank: int
    check: bool
    seed: int
    batch_size: int
    show_progress: bool

    @classmethod
    def checked(cls, rerank: int, check: bool, seed: int, batch_size: int, show_progress: bool) -> _Measuring:
        check_flag("check", check)
        check_flag("show_progress", show_progress)
        check_integer("batch_size", batch_size, at_least=1)
        check_integer("rerank", rerank, at_least=0)
        check_integer("seed", seed, kind=Integral)
        return cls(rerank, check, int(seed), batch_size, show_progress)


def _plain(gen_args: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Arguments of ``generate`` as JSON has them: objects by their ``repr``."""

    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)

    return None if gen_args is None else {name: plain(value) for name, value in gen_args.items()}


def _warn_without_template(tokenizer: Any, prompt: Any, response: Any) -> None:
    """Warn of a prompt that is a string where the tokenizer has a chat template, and a response is generated."""
    if isinstance(prompt, str) and response is None and getattr(tokenizer, "chat_template", None):
        warn_user(
            "prompt is a string, which the model reads as it is; the tokenizer has a chat template, which a prompt of "
            'messages goes through: [{"role": "user", "content": ...}]'
        )
