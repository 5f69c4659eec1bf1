"""Log-probabilities of a response where parts of its prompt are removed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.metrics.part_removal import CachedRemoval
from captum_iba.text.generation_result import GenerationAttribution
from captum_iba.text.prompt import Prompt
from captum_iba.text.prompt_model import (
    CachedPrefix,
    cached_prefix,
    gather_positions,
    last_logits,
    longest_of_short_positions,
    stop_tokens,
    target_log_probabilities,
)

# Fewer rows are not worth the passes that fill and try the cache.
_LEAST_ROWS = 8


class PromptRemoval:
    """Mean log-probability per token of a response where only some parts of its prompt are kept.

    Where no token of the prompt is left, the response follows the token that begins a text.

    Args:
        model (PreTrainedModel): A decoder or an encoder-decoder.
        prompt (Prompt): Tokens and parts.
        response (sequence of int): Token ids of the response.
        weights (Tensor, optional): Weight of each of its tokens, (R,), with the sum 1. Default: equal ones.
        replacement (int, optional): Id of the token that takes the place of removed ones. Default: None, the others
            move together.
        batch_size (int): Largest number of rows of a forward pass. Default: 8.
        on_rows (Callable, optional): Is called with the number of rows after each forward pass. Default: None.

    Attributes:
        passes (int): Number of rows that have run.
    """

    def __init__(
        self,
        model: Any,
        prompt: Prompt,
        response: Sequence[int],
        weights: Tensor | None = None,
        replacement: int | None = None,
        batch_size: int = 8,
        on_rows: Callable[[int], object] | None = None,
    ) -> None:
        self.model, self.prompt, self.response = model, prompt, list(response)
        self.weights = torch.ones(len(response)) / len(response) if weights is None else weights
        self.replacement, self.batch_size, self.on_rows = replacement, batch_size, on_rows
        self.passes = 0

    def __call__(self, kept: Tensor) -> Tensor:
        """Log-probabilities, (N,), of the parts that are kept, (N, P) booleans."""
        n_parts = len(self.prompt.names)
        if kept.ndim != 2 or kept.shape[1] != n_parts or kept.dtype != torch.bool:
            raise ValueError(f"kept has the shape {tuple(kept.shape)}, expected booleans, (N, {n_parts})")
        rows = [self._tokens(row) for row in kept.tolist()]
        values = torch.empty(len(rows))
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        # Positions of long contexts are other ones for the whole batch as soon as one row is long (longrope).
        limit = longest_of_short_positions(self.model.config.get_text_config())
        groups = [[i for i in by_length if len(rows[i]) <= limit], [i for i in by_length if len(rows[i]) > limit]]
        with ModuleGuard(self.model), torch.no_grad():
            pays = len(rows) >= _LEAST_ROWS and limit == math.inf
            prefix = cached_prefix(self.model, self.prompt, self.response) if pays else CachedPrefix()
            for group in groups:
                for start in range(0, len(group), self.batch_size):
                    batch = group[start : start + self.batch_size]
                    found = self._batch_log_probabilities([rows[i] for i in batch], prefix)
                    if self.prompt.decoder_ids and bool(found.isnan().any()):
                        # A window of an encoder's attention that has nothing but padding gives no numbers.
                        found = torch.cat([self._batch_log_probabilities([rows[i]], prefix) for i in batch])
                    values[batch] = found
                    if self.on_rows is not None:
                        self.on_rows(len(batch))
        self.passes += len(rows)
        return values

    @staticmethod
    def probabilities(values: Tensor) -> Tensor:
        """The probabilities of what a call returns, geometric means per token."""
        return values.exp()

    def _tokens(self, kept: Sequence[bool]) -> list[int]:
        prompt = self.prompt
        if self.replacement is None:
            ids = [i for i, part in zip(prompt.ids, prompt.parts, strict=True) if part < 0 or kept[part]]
        else:
            ids = [
                i if part < 0 or kept[part] else self.replacement
                for i, part in zip(prompt.ids, prompt.parts, strict=True)
            ]
        ids = ids or [_first_token(self.model)]
        return ids if prompt.decoder_ids else [*ids, *self.response]

    def _batch_log_probabilities(self, rows: Sequence[Sequence[int]], prefix: CachedPrefix) -> Tensor:
        """Rows are padded on the right, where causal attention does not see it; an encoder gets a mask."""
        length, size = max(len(row) for row in rows), len(self.response)
        device = self.model.get_input_embeddings().weight.device
        ids = torch.tensor([[*row, *[row[-1]] * (length - len(row))] for row in rows], device=device)
        if self.prompt.decoder_ids:
            lengths = torch.tensor([[len(row)] for row in rows], device=device)
            mask = (torch.arange(length, device=device) < lengths).long()
            decoder_ids = torch.tensor([[*self.prompt.decoder_ids, *self.response[:-1]]] * len(rows), device=device)
            logits = self.model(
                input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids, use_cache=False
            ).logits[:, -size:]
            return (
                target_log_probabilities(logits, torch.tensor(self.response, device=device)).cpu() * self.weights
            ).sum(1)
        first = torch.tensor([len(row) - size - 1 for row in rows], device=device)
        logits = last_logits(self.model, length - int(first.min()), prefix, input_ids=ids[:, prefix.length :])
        of_rows = gather_positions(logits, first - int(first.min()), size)
        values = target_log_probabilities(of_rows, torch.tensor(self.response, device=device))
        return (values.cpu() * self.weights).sum(1)


class ChoiceRemoval:
    """Log-odds of the choice between two responses where only some parts of their prompt are kept.

    They are the difference of the mean log-probabilities per token of both. The log-probability of the choice would
    hardly change where the model is sure of it, though a part speaks against it.

    Args:
        response (PromptRemoval): Of the response.
        contrast (PromptRemoval): Of the other one.
    """

    def __init__(self, response: PromptRemoval, contrast: PromptRemoval) -> None:
        self.response, self.contrast = response, contrast

    def __call__(self, kept: Tensor) -> Tensor:
        """Log-odds, (N,), of the parts that are kept, (N, P) booleans."""
        return self.response(kept) - self.contrast(kept)

    def whole_response_probability(self, kept: Tensor) -> Tensor:
        """Probability of the response as a whole relative to that of both, (N,), of the parts that are kept."""
        sums = [removal(kept).double() * (removal.weights > 0).sum() for removal in (self.response, self.contrast)]
        return (sums[0] - sums[1]).sigmoid()

    @staticmethod
    def probabilities(values: Tensor) -> Tensor:
        """The probabilities of the choice by the log-odds that a call returns."""
        return values.sigmoid()


def _first_token(model: Any) -> int:
    """Id of the token that begins a text, or that separates texts, as GPT-2's does."""
    first = getattr(model.generation_config, "bos_token_id", None)
    found = [first] if isinstance(first, int) else stop_tokens(model)
    if not found:
        raise ValueError(
            "no token of the prompt is left without its parts, and the model's generation_config has neither "
            "bos_token_id nor eos_token_id; expected one of them, or a prompt with other tokens"
        )
    return found[0]


Removal = PromptRemoval | ChoiceRemoval


class CachedPromptRemoval(CachedRemoval):
    """A removal that runs each set of kept parts once.

    Args:
        removal (PromptRemoval or ChoiceRemoval): What is run.
    """

    def __init__(self, removal: Removal) -> None:
        super().__init__(removal)
        self.removal, self.probabilities = removal, removal.probabilities


def with_contrast(removal: Removal, result: GenerationAttribution) -> GenerationAttribution:
    """The result with the number of tokens and the probability of the other response, if it explains a choice."""
    if not isinstance(removal, ChoiceRemoval):
        return result
    chance = removal.contrast(torch.ones(1, len(result.parts), dtype=torch.bool)).double().exp()
    n_tokens = int((removal.contrast.weights > 0).sum())
    return replace(result, contrast_tokens=n_tokens, contrast_probability=float(chance))
