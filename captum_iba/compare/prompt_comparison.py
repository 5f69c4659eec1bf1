"""Methods compared on prompts: what a response loses without the parts of its prompt that each method ranks first."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from captum_iba._checks import check_integer
from captum_iba._compat import progress
from captum_iba._explain.json_result import library_versions
from captum_iba._warnings import warn_user
from captum_iba.compare.kept_rows import KeptRows, RowTable, chosen_methods, counted_passes, finite_or_none
from captum_iba.methods.prompt_methods import PROMPT_METHODS, PromptMethod, PromptTask
from captum_iba.metrics.part_removal import CachedRemoval
from captum_iba.metrics.prompt_removal import linear_datamodeling_score, prompt_degradation
from captum_iba.text.generation_explainer import GenerationExplainer
from captum_iba.text.prompt_model import decoder_arguments

DEFAULT_METHODS = ("iba", "context_cite_64", "leave_one_out", "random")
"""The methods of a comparison that names none."""

COUNTS = (1, 3, 5)
"""Numbers of parts whose removal has a column of its own."""


@dataclass(frozen=True)
class PromptRow:
    """One method on one prompt.

    Attributes:
        prompt (int): Number of the prompt, from 0.
        method (str): Name of the method.
        parts (tuple of str): Texts of the parts; empty where the prompt cannot be explained.
        scores (tuple of float): Score of each part.
        values (dict): Each metric (:attr:`PromptComparison.columns`) with its value, None where it is not defined;
            empty where the method failed.
        error (str or None): Why it failed.
        response (tuple of int): Token ids of the response.
    """

    prompt: int
    method: str
    parts: tuple[str, ...]
    scores: tuple[float, ...]
    values: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None
    response: tuple[int, ...] = ()


@dataclass(frozen=True)
class PromptComparison(RowTable):
    """
    The rows of a comparison on prompts; ``print`` shows its table.

    The columns are the decrease in the mean log-probability per token of the response without the 1, 3 and 5 parts that
    a method ranks first (``drop@1``; a prompt of at most so many parts has no value there, as all are removed), the
    mean of that decrease over ninths of the parts (``aopc``), the linear datamodeling score over random removals
    (``lds``), the number of forward passes, of which one with a backward pass counts twice, and the seconds per prompt.

    Attributes:
        methods (tuple of str): Names of the methods; the others are compared with the first.
        rows (tuple of PromptRow): One per prompt and method.
    """

    methods: tuple[str, ...]
    rows: tuple[PromptRow, ...]

    example = "prompt"
    measured = (*(f"drop@{count}" for count in COUNTS), "aopc", "lds")
    meaning = (
        "drop@k: decrease in the log-probability per token without the first k parts, of prompts with more than k "
        "parts; aopc: the mean of that decrease over ninths of the parts; lds: rank correlation of the scores with the "
        "log-probability over random removals."
    )


def compare_prompts(
    explainer: GenerationExplainer,
    prompts: Sequence[str | Sequence[Mapping[str, str]]],
    responses: Sequence[str | None] | None = None,
    methods: Sequence[str] | Mapping[str, PromptMethod] = DEFAULT_METHODS,
    *,
    granularity: str | Sequence[Sequence[tuple[int, int]]] = "word",
    n_removals: int = 64,
    seed: int = 0,
    gen_args: dict[str, Any] | None = None,
    batch_size: int = 8,
    folder: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
    on_row: Callable[[int], object] = lambda _: None,
    show_progress: bool = False,
) -> PromptComparison:
    """
    Compare methods on prompts by deletion of the parts that each ranks first.

    Args:
        explainer (GenerationExplainer): The model and its tokenizer.
        prompts (sequence): Strings, or lists of chat messages.
        responses (sequence, optional): One response per prompt; None among them is generated. Default: None, all are.
        methods (sequence of str, or dict): Names among :data:`captum_iba.methods.prompt_methods.PROMPT_METHODS`, or
            names with functions of a :class:`captum_iba.methods.prompt_methods.PromptTask`. The others are compared
            with the first. Default: :data:`DEFAULT_METHODS`.
        granularity (str or sequence): ``"token"``, ``"word"``, ``"sentence"``, ``"paragraph"``, or for each prompt a
            list of (start, end) of the characters of its parts. Default: "word".
        n_removals (int): Number of random removals of the linear datamodeling score. Default: 64.
        seed (int): Seed of methods with random numbers, and of these removals. Default: 0.
        gen_args (dict, optional): Arguments of ``generate``. Default: up to 25 new tokens, the most probable ones.
        batch_size (int): Largest number of rows of a forward pass. Default: 8.
        folder (path, optional): Folder for the rows (``rows.jsonl``) and the table (``table.md``): the same call goes
            on where it stopped, tries again what failed, and one with more methods adds them. Default: None.
        names (sequence of str, optional): What warnings and errors call each prompt. Default: None, ``prompts[0]`` and
            so on.
        on_row (Callable, optional): Called with the number of rows that are finished. Default: nothing is called.
        show_progress (bool): Whether to show a progress bar over prompts and methods. Default: False.

    Returns:
        PromptComparison: A prompt that cannot be explained, or on which a method fails, is recorded with the error and
            does not count; a warning names it.

    Raises:
        TypeError, ValueError: As :meth:`captum_iba.text.GenerationExplainer.explain`, where no prompt can be explained;
            the message names the first. Or a method that is unknown, or a folder with other prompts or settings.

    Examples::

        >>> from captum_iba.text import GenerationExplainer
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        >>> decoder = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
        >>> explainer = GenerationExplainer(decoder, tokenizer)
        >>> result = compare_prompts(explainer, ["the film is good"], ["a good film"], ["iba", "random"])
        >>> [(row.method, len(row.scores)) for row in result.rows]
        [('iba', 4), ('random', 4)]
    """
    functions = chosen_methods(methods, PROMPT_METHODS)
    check_integer("n_removals", n_removals, at_least=2)
    check_integer("seed", seed)
    check_integer("batch_size", batch_size, at_least=1)
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping)):
        raise TypeError("prompts is one prompt, expected a sequence of them")
    if isinstance(responses, str):
        raise TypeError("responses is one string, expected a sequence with one response for each prompt")
    given = [None] * len(prompts) if responses is None else list(responses)
    of_prompts: list[Any] = [granularity] * len(prompts) if isinstance(granularity, str) else list(granularity)
    called = [f"prompts[{number}]" for number in range(len(prompts))] if names is None else list(names)
    for name, values in (("responses", given), ("granularity", of_prompts), ("names", called)):
        if len(values) != len(prompts):
            raise ValueError(f"{name} has {len(values)}, expected one for each of the {len(prompts)} prompts")
    if not prompts:
        raise ValueError("prompts is empty, expected at least one")
    read = [
        _result_or_error(explainer.read, prompt, response, of_prompt, _arguments(response, gen_args))
        for prompt, response, of_prompt in zip(prompts, given, of_prompts, strict=True)
    ]
    wrong = [(name, found) for name, found in zip(called, read, strict=True) if isinstance(found, Exception)]
    if len(wrong) == len(prompts):
        first, reason = wrong[0]
        raise type(reason)(f"{first}: {reason}") from reason
    for name, reason in wrong:
        warn_user(f"{name} is left out: {reason}")
    generated = [str(prompt) for prompt, response in zip(prompts, given, strict=True) if response is None]
    if len({*generated}) < len(generated):
        warn_user(
            "prompts has a prompt twice, both with a generated response: also where the model samples, these are the "
            "same, and the intervals take them for two examples; expected different prompts, or responses"
        )
    asked = {"prompts": list(prompts), "responses": given, "granularity": of_prompts, "gen_args": gen_args or {}}
    settings = {"n_removals": n_removals, "seed": seed, "versions": library_versions()}
    kept, rows, responses_kept = None, [], {}
    if folder is not None:
        digest = hashlib.sha256(json.dumps(asked, default=str, sort_keys=True).encode()).hexdigest()
        kept = KeptRows(Path(folder), {**settings, "prompts": digest, "model": explainer.fingerprint()})
        sequences = ("parts", "response", "scores")
        rows = [PromptRow(**{**row, **{name: tuple(row[name]) for name in sequences}}) for row in kept.rows(functions)]
        # Generated once for all methods: another call of a model that samples may give another response.
        responses_kept = {row["prompt"]: row["response"] for row in kept.contents()}
    done = {(row.prompt, row.method) for row in rows}
    bar: Any = progress(range(len(prompts)), "Prompts", len(prompts)) if show_progress else range(len(prompts))
    for number in bar:
        wanted = {name: function for name, function in functions.items() if (number, name) not in done}
        if not wanted:
            continue
        found = read[number]
        if not isinstance(found, Exception):
            arguments = _arguments(given[number], gen_args)
            ids: Any = responses_kept.get(number) or _result_or_error(
                explainer.attribution.response_ids, found, given[number], arguments, "response"
            )
            if isinstance(ids, Exception):  # generation ended at once
                warn_user(f"{called[number]} is left out: {ids}")
                found = ids
        if isinstance(found, Exception):
            measure: Callable[[str, PromptMethod], PromptRow] = partial(_failed, number, found)
        else:
            explainer.attribution.check_model(found, ids)
            of_prompt = (prompts[number], of_prompts[number], found, ids)
            task = PromptTask(explainer, *of_prompt, decoder_arguments(gen_args), batch_size, seed)
            measure = partial(_measure, number, task, CachedRemoval(task.removal), n_removals, seed)
        for name, function in wanted.items():
            row = measure(name, function)
            rows.append(row)
            if kept is not None:
                kept.add(row, function)
            on_row(len(rows))
    order = list(functions)
    rows.sort(key=lambda row: (row.prompt, order.index(row.method)))
    comparison = PromptComparison(tuple(functions), tuple(rows))
    if kept is not None:
        kept.write_table(comparison)
    return comparison


def _arguments(response: Any, gen_args: dict[str, Any] | None) -> dict[str, Any] | None:
    return gen_args if response is None else decoder_arguments(gen_args)


def _result_or_error(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, or its TypeError or ValueError."""
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        return error


def _failed(number: int, error: Exception, name: str, function: PromptMethod) -> PromptRow:
    """The row of a method where the prompt cannot be explained."""
    return PromptRow(number, name, (), (), {}, f"{type(error).__name__}: {error}")


def _measure(
    number: int,
    task: PromptTask,
    removal: CachedRemoval,
    n_removals: int,
    seed: int,
    name: str,
    function: PromptMethod,
) -> PromptRow:
    parts, response = tuple(task.prompt.names), tuple(task.response)
    began = time.perf_counter()
    try:
        with counted_passes(task.explainer.model) as passes:
            found = function(task)
        seconds = time.perf_counter() - began
        scores, additive = found if isinstance(found, tuple) else (found, found)
        drops = prompt_degradation(removal, scores, COUNTS).drops.tolist()
    except Exception as error:
        return PromptRow(number, name, parts, (), {}, f"{type(error).__name__}: {error}", response)
    lds = linear_datamodeling_score(removal, additive, n_removals, seed=seed + 1)
    # Without all parts every method loses the same.
    values = {f"drop@{n}": drop if n < len(parts) else math.nan for n, drop in zip(COUNTS, drops, strict=True)}
    values["aopc"] = float(prompt_degradation(removal, scores).drops.mean())
    values |= {"lds": lds, "passes": passes[0], "seconds": seconds}
    listed = tuple(scores.detach().cpu().double().tolist())
    return PromptRow(number, name, parts, listed, finite_or_none(values), None, response)
