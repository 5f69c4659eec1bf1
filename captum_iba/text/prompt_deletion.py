"""Responses where parts of their prompt are removed: log-probabilities, the order of leading parts, a check."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._explain.leading_parts import (
    MOST_OF_DECREASE,
    N_PRUNED,
    kept_in_check,
    kept_without_leading,
    leading_in_order,
    most_without_one,
    with_more_measured,
)
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.metrics.part_removal import (
    CachedRemoval,
    first_to_cover,
    removal_effects,
)
from captum_iba.text.generation_result import GenerationAttribution, PromptCheck
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
# Of prompts with at most so many parts a check removes each alone.
_N_PARTS = 40
_ADDS = 0.1  # nats that a leading part adds to the others at least
_MOST_MISSED, _N_MEASURED = 8, 24  # parts that a check measures: that matter alone; where most is left without others


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


def rerank_by_removal(
    removal: CachedPromptRemoval, result: GenerationAttribution, count: int, further: Sequence[int] = ()
) -> GenerationAttribution:
    """The result with its probability, and the effects of the parts with the most bits, and of ``further`` ones.

    Where all of these speak against the response, twice as many are measured. Of a few parts all are.
    """
    few = len(result.parts) <= count
    above = len(result.parts) if few else int((result.shares > 0).sum())
    order = _by_bits(result)
    while True:
        leaders = order[: min(count, above)].tolist()
        leaders += [i for i in further if i not in leaders]
        measured = leaders if len(leaders) > 1 else []
        whole, effects, alone = removal_effects(removal, measured, len(result.parts))
        if len(leaders) >= above or bool((effects > 0).any()) or not len(effects):
            break
        count *= 2
    of_part = dict(zip(measured, zip(effects.tolist(), alone.tolist(), strict=True), strict=True))
    each = [of_part.get(number, (None, part.effect_alone)) for number, part in enumerate(result.parts)]
    parts = tuple(
        replace(part, effect=effect, effect_alone=of_part_alone)
        for part, (effect, of_part_alone) in zip(result.parts, each, strict=True)
    )
    return replace(result, probability=float(removal.probabilities(whole)), parts=parts)


def checked(removal: CachedPromptRemoval, result: GenerationAttribution, count: int) -> GenerationAttribution:
    """The result with its check, after :func:`rerank_by_removal` of ``count`` parts.

    Of up to 40 parts each is removed alone. Parts that lower the probability alone, and were not measured, are measured
    then. Where the leading parts leave most of the probability, or all measured parts lead, up to 24 parts are
    measured. They count if the leading ones among them leave less.
    """
    alone = _with_each_alone(removal, result)
    found = replace(alone, check=check_by_removal(removal, alone))
    if found.check is None or not count or len(result.parts) > _N_PARTS:
        return found
    whole, most = float(removal(_whole(alone))), most_without_one(result.probability)
    effects = torch.tensor([part.effect_alone or 0.0 for part in alone.parts], dtype=torch.float64)
    left = removal.probabilities(whole - effects).tolist()
    unmeasured = [i for i, part in enumerate(alone.parts) if part.effect is None]
    missed = sorted((i for i in unmeasured if left[i] <= most), key=left.__getitem__)

    def measured(n_parts: int) -> GenerationAttribution:
        again = rerank_by_removal(removal, alone, n_parts, missed[:_MOST_MISSED])
        return replace(again, check=check_by_removal(removal, again))

    found = measured(count) if missed else found
    if count >= _N_MEASURED:
        return found
    n_measured = sum(part.effect is not None for part in found.parts)
    all_lead = found.check is not None and len(found.check.leading) == n_measured < len(found.parts)
    return with_more_measured(found, lambda: measured(_N_MEASURED), _left, result.probability, all_lead)


def _left(result: GenerationAttribution) -> float:
    """The probability without the leading parts; that of the whole prompt where none leads."""
    return result.probability if result.check is None else result.check.without_leading


def _by_bits(result: GenerationAttribution) -> npt.NDArray[np.intp]:
    """Numbers of the parts, that with the most bits first."""
    return np.lexsort((-result.bits, -result.shares))


def _whole(result: GenerationAttribution) -> Tensor:
    """All parts are kept, (1, P)."""
    return torch.ones(1, len(result.parts), dtype=torch.bool)


def _with_each_alone(removal: CachedPromptRemoval, result: GenerationAttribution) -> GenerationAttribution:
    """The result with the effect alone of the parts that were not measured, if there are at most 40."""
    rest = [number for number, part in enumerate(result.parts) if part.effect is None]
    if not rest or not 1 < len(result.parts) <= _N_PARTS:
        return result
    kept = torch.ones(1 + len(rest), len(result.parts), dtype=torch.bool)
    kept[range(1, 1 + len(rest)), rest] = False
    whole, *without = removal(kept).double().tolist()
    alone = dict(zip(rest, (whole - value for value in without), strict=True))
    parts = [replace(part, effect_alone=alone.get(i, part.effect_alone)) for i, part in enumerate(result.parts)]
    return replace(result, parts=tuple(parts))


def with_contrast(removal: Removal, result: GenerationAttribution) -> GenerationAttribution:
    """The result with the number of tokens and the probability of the other response, if it explains a choice."""
    if not isinstance(removal, ChoiceRemoval):
        return result
    chance = removal.contrast(torch.ones(1, len(result.parts), dtype=torch.bool)).double().exp()
    n_tokens = int((removal.contrast.weights > 0).sum())
    return replace(result, contrast_tokens=n_tokens, contrast_probability=float(chance))


def check_by_removal(removal: CachedPromptRemoval, result: GenerationAttribution) -> PromptCheck | None:
    """Probabilities without the leading parts, the least, and others at random; None where none is for the response.

    Up to eight leading parts are put in the order of their removal, without those that add nothing to the others. Some
    are exchanged for other measured ones if the probability is lower without these.
    """
    if not result.leading and any(part.known_effect is not None for part in result.parts):
        return None  # all parts with bits speak against the response
    order = (-result.scores).argsort()
    n_measured = sum(part.effect is not None for part in result.parts)
    others = [i for i, part in enumerate(result.parts) if (part.effect or 0.0) > 0]
    leading, first = leading_in_order(removal, order, n_measured or len(result.leading), _ADDS, others)
    if 1 < len(leading) <= N_PRUNED:
        whole = removal.probabilities(removal(_whole(result)).double())
        chances = removal.probabilities(torch.tensor(first, dtype=torch.float64))
        leading = leading[: first_to_cover(whole - chances, MOST_OF_DECREASE)]
    n_leading, order = len(leading), np.array([*leading, *(i for i in order if i not in leading)])
    kept = kept_in_check(order, n_leading, 0, _by_bits(result))
    all_leading = kept_without_leading(kept, order, n_leading)
    rows = torch.from_numpy(np.concatenate([kept, all_leading]))
    found = removal.probabilities(removal(rows).double()).tolist()
    without_all = found.pop() if len(all_leading) else None
    whole, without_leading, without_least, *others = found
    whole_without = None
    if isinstance(removal.removal, ChoiceRemoval):
        whole_without = float(removal.removal.whole_response_probability(rows[-1:] if len(all_leading) else rows[1:2]))
    return PromptCheck(
        n_parts=int((~kept[1]).sum()),
        probability=whole,
        without_leading=without_leading if without_all is None else without_all,
        without_least=without_least,
        without_random=float(np.mean(others)),
        n_random=len(others),
        lowest_random=min(others),
        whole_without_leading=whole_without,
        without_first=tuple(removal.probabilities(torch.tensor(first[:n_leading], dtype=torch.float64)).tolist()),
        n_leading=n_leading,
        leading=tuple(leading),
    )
