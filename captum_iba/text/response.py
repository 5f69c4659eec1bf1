"""What is explained of a response: the rows of its tokens, and the characters that each of them has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from captum_iba._warnings import warn_user
from captum_iba.text.generation import GREEDY, AskedResponse, LLMInformationBottleneckAttribution
from captum_iba.text.prompt import Prompt, decode_response, encode_response, is_span
from captum_iba.text.prompt_model import is_cut_off


class ResponseToExplain(NamedTuple):
    """What is explained of a response to a prompt.

    Attributes:
        rows (AskedResponse): The prompt, the token ids, and the weights of the tokens in each objective.
        text (str): The response.
        span (tuple of int): Start and end of the explained characters.
        offsets (sequence of tuple): Start and end of the characters of each token, which join to the text.
        explained (sequence of bool): Whether each token shares a character with the span.
        contrast (str or None): The contrast, as it was asked for.
        granularity (str): The granularity, "spans" for spans of one's own.
        cut_off (bool): Whether generation ended before the response did.
        gen_args (mapping or None): Arguments of ``generate``; None of a response that was given.
    """

    rows: AskedResponse
    text: str
    span: tuple[int, int]
    offsets: Sequence[tuple[int, int]]
    explained: Sequence[bool]
    contrast: str | None
    granularity: str
    cut_off: bool
    gen_args: Mapping[str, Any] | None


def explained_response(
    attribution: LLMInformationBottleneckAttribution,
    prompt: Prompt,
    response: str | Sequence[int] | None = None,
    span: str | tuple[int, int] | None = None,
    contrast: str | None = None,
    granularity: str | Sequence[tuple[int, int]] = "word",
    per_token: bool = False,
    gen_args: dict[str, Any] | None = None,
) -> ResponseToExplain:
    """What is explained of a response, which is generated if it is None.

    Args:
        attribution (LLMInformationBottleneckAttribution): The model and its tokenizer.
        prompt (Prompt): What the response follows.
        response, span, contrast, granularity, per_token, gen_args: As of ``GenerationExplainer.explain``.

    Raises:
        ValueError: A span that is not in the response, or holds none of its tokens; a contrast that is the span, or
            that is asked for with ``per_token``.
    """
    if contrast is not None and per_token:
        raise ValueError("per_token is True, and contrast is given; expected one of them")
    tokenizer = attribution.tokenizer
    ids = attribution.response_ids(prompt, response, gen_args, "response")
    cut_off = response is None and is_cut_off(attribution.model, prompt, len(ids), gen_args)
    text, offsets, shared = response_offsets(tokenizer, prompt, ids, response)
    start, end = find_span(span, text)
    explained = [span is None or (start < b and a < end) for a, b in shared]
    if not any(explained):
        raise ValueError(f"span is {span!r}, which holds no token of the response {text!r}")
    length = max(i for i, inside in enumerate(explained) if inside) + 1
    ids = ids[:length]  # what comes after the span has no part in it
    weights = torch.tensor(explained[:length], dtype=torch.float32)
    weights = weights / weights.sum()
    other = None
    if contrast is not None:
        _check_contrast(prompt, text, (start, end), contrast, "response" if span is None else "span")
        other = _with_contrast(attribution, prompt, text[:start], contrast)
    rows = weights.unsqueeze(0)
    if per_token:
        rows = torch.cat([rows, torch.eye(length)[weights > 0]])
    of_name = granularity if isinstance(granularity, str) else "spans"
    asked = AskedResponse(prompt, ids, rows, other)
    arguments = None if response is not None else GREEDY if gen_args is None else gen_args
    return ResponseToExplain(asked, text, (start, end), offsets, explained, contrast, of_name, cut_off, arguments)


def find_span(span: str | tuple[int, int] | None, response: str) -> tuple[int, int]:
    """Start and end in a response of a text that is in it once, or of such a pair; None is all of it."""
    if span is None:
        return 0, len(response)
    if span == "":
        raise ValueError("span is '', expected a text that is in the response once, or None for all of it")
    if isinstance(span, str):
        count = sum(response.startswith(span, place) for place in range(len(response)))
        if count != 1:
            where = f"{count} times in" if count else "not in"
            raise ValueError(f"span is {span!r}, which is {where} the response {response!r}, expected once")
        start = response.index(span)
        return start, start + len(span)
    if not is_span(span):
        raise TypeError(f"span is {span!r}, expected a text, or (start, end) in characters of the response")
    if not 0 <= span[0] < span[1] <= len(response):
        raise ValueError(f"span is {tuple(span)}, expected start and end from 0 to {len(response)}, in order")
    return span[0], span[1]


def response_offsets(
    tokenizer: Any, prompt: Prompt, ids: Sequence[int], response: str | Sequence[int] | None
) -> tuple[str, list[tuple[int, int]], list[tuple[int, int]]]:
    """A response, and the characters of its tokens, twice.

    First a character of several tokens belongs to the last one, so that the tokens join to the response; then it
    belongs to each.
    """
    if isinstance(response, str):
        _, shared = encode_response(tokenizer, prompt, response)
        spans = [*shared, (len(response), len(response))]
        ends = list(accumulate((min(b, after) for (_, b), (after, _) in pairwise(spans)), max, initial=0))
        return response, list(pairwise([*ends[:-1], len(response)])), shared
    text = decode_response(tokenizer, prompt, ids)
    space = text.removesuffix(str(tokenizer.decode(ids)))
    ends, shared = [0], []
    for i in range(1, len(ids) + 1):
        begun = space + str(tokenizer.decode(ids[:i])) if i < len(ids) else text
        whole = begun.removesuffix("\ufffd") if i < len(ids) else text
        same = next((k for k, (a, b) in enumerate(zip(whole, text, strict=False)) if a != b), len(whole))
        ends.append(max(ends[-1], min(same, len(text))))
        shared.append((ends[-2], min(len(text), ends[-1] + (begun != whole))))
    return text, list(pairwise(ends)), shared


def _check_contrast(prompt: Prompt, text: str, span: tuple[int, int], contrast: str, what: str) -> None:
    start, end = span
    if contrast == text[start:end]:
        raise ValueError(f"contrast is {contrast!r}, which is the {what} itself; expected another text")
    if contrast and not prompt.before_response and text[start].isspace() != contrast[0].isspace():
        warn_user(
            f"contrast: one of {text[start:end]!r} and {contrast!r} begins with white space, which may decide "
            "between them; expected both to begin alike"
        )


def _with_contrast(
    attribution: LLMInformationBottleneckAttribution, prompt: Prompt, before: str, contrast: str
) -> tuple[list[int], Tensor]:
    """Token ids of the response with another text in the place of its span, and the weights of that text's."""
    attribution.response_ids(prompt, contrast, None, "contrast")
    text = before + contrast
    ids = attribution.response_ids(prompt, text, None, "contrast")
    _, _, shared = response_offsets(attribution.tokenizer, prompt, ids, text)
    inside = torch.tensor([float(end > len(before)) for _, end in shared])
    return ids, inside / inside.sum()
