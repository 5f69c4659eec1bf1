"""Methods compared on prompts: what a response loses without the parts of its prompt that each method ranks first."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captum_iba._bootstrap import Interval, paired_bootstrap
from captum_iba._checks import check_integer
from captum_iba._compat import progress
from captum_iba._files import write_text
from captum_iba._warnings import warn_user
from captum_iba.compare.code_digest import code_digest
from captum_iba.compare.tables import FEWEST, MARKS
from captum_iba.methods.prompt_methods import PROMPT_METHODS, PromptMethod, PromptTask
from captum_iba.metrics.prompt_removal import linear_datamodeling_score, prompt_degradation
from captum_iba.text.generation_explainer import GenerationExplainer
from captum_iba.text.json_result import library_versions
from captum_iba.text.prompt_deletion import PromptRemoval
from captum_iba.text.prompt_model import decoder_arguments

DEFAULT_METHODS = ("iba", "context_cite_64", "leave_one_out", "random")
"""The methods of a comparison that names none."""

COUNTS = (1, 3, 5)
"""Numbers of parts whose removal has a column of its own."""

_COSTS = ("passes", "seconds")


@dataclass(frozen=True)
class PromptRow:
    """One method on one prompt.

    Attributes:
        prompt (int): Number of the prompt, from 0.
        method (str): Name of the method.
        parts (tuple of str): Texts of the parts.
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
class PromptComparison:
    """
    The rows of a comparison on prompts; ``print`` shows its table.

    The columns are the decrease in the mean log-probability per token of the response without the 1, 3 and 5 parts that
    a method ranks first (``drop@1``), the mean of that decrease over ninths of the parts (``aopc``), the linear
    datamodeling score over random removals (``lds``), the number of forward passes, of which one with a backward pass
    counts twice, and the seconds per prompt.

    Attributes:
        methods (tuple of str): Names of the methods; the others are compared with the first.
        rows (tuple of PromptRow): One per prompt and method.
    """

    methods: tuple[str, ...]
    rows: tuple[PromptRow, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metrics and costs."""
        return (*(f"drop@{count}" for count in COUNTS), "aopc", "lds", *_COSTS)

    def values(self, method: str, column: str) -> Tensor:
        """Values of a column on the prompts on which no method failed, (N,), float64; NaN where there is none."""
        failed = {row.prompt for row in self.rows if row.error is not None}
        rows = sorted((row for row in self.rows if row.method == method), key=lambda row: row.prompt)
        found = [row.values[column] for row in rows if row.prompt not in failed]
        return torch.tensor([float("nan") if value is None else value for value in found], dtype=torch.float64)

    def difference(self, method: str, column: str) -> Interval | None:
        """The first method minus another, prompt by prompt, with its 95% interval; None of fewer than 20 prompts."""
        first, other = self.values(self.methods[0], column), self.values(method, column)
        known = first.isfinite() & other.isfinite()
        return paired_bootstrap(first[known], other[known]) if int(known.sum()) >= FEWEST else None

    def to_markdown(self) -> str:
        """The table in Markdown: means, and in brackets the first method minus the other, with its 95% interval."""
        lines = [f"| {' | '.join(['method', *self.columns])} |", "|---" * (len(self.columns) + 1) + "|"]
        for method in self.methods:
            cells = [self._cell(method, column) for column in self.columns]
            lines.append(f"| {' | '.join([method, *cells])} |")
        return "\n".join([*lines, "", *self.notes()])

    def notes(self, with_intervals: bool = True) -> list[str]:
        """What a reader of the table, with or without the intervals, has to know."""
        first, n_prompts = self.methods[0], len({row.prompt for row in self.rows})
        failed = sorted({row.prompt for row in self.rows if row.error is not None})
        lines = [
            f"{n_prompts} prompt{'s' * (n_prompts != 1)}; higher is better but for passes and seconds.",
            "drop@k: decrease in the log-probability per token without the first k parts; aopc: its mean over ninths "
            "of the parts; lds: rank correlation of the scores with the log-probability over random removals.",
        ]
        if failed:
            row = next(row for row in self.rows if row.error is not None)
            lines.append(f"Left out, because a method failed: {len(failed)}; {row.method} by {row.error}")
        if len(self.methods) > 1 and n_prompts - len(failed) < FEWEST:
            lines.append(f"There are no intervals for fewer than {FEWEST} prompts.")
        elif len(self.methods) > 1 and with_intervals:
            lines.append(f"In brackets: {first} minus the method, 95% interval; ▲ the method is better, ▼ worse.")
        return lines

    def _cell(self, method: str, column: str) -> str:
        values = self.values(method, column)
        mean = values[values.isfinite()].mean()
        if column in _COSTS:
            return f"{mean:.1f}" if column == "seconds" else f"{mean:.0f}"
        difference = None if method == self.methods[0] else self.difference(method, column)
        if difference is None:
            return f"{mean:.2f}"
        mark = MARKS["" if not difference.excludes_zero else "worse" if difference.mean > 0 else "better"]
        interval = f"({difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}])"
        return " ".join(filter(None, [f"{mean:.2f}", interval, mark]))

    def __str__(self) -> str:
        """The means, in columns."""
        width = max(map(len, self.methods)) + 2
        lines = ["".ljust(width) + "".join(column.rjust(9) for column in self.columns)]
        for method in self.methods:
            cells = [self.values(method, column) for column in self.columns]
            means = "".join(f"{values[values.isfinite()].mean():9.2f}" for values in cells)
            lines.append(method.ljust(width) + means)
        return "\n".join([*lines, *self.notes(with_intervals=False)])


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
        on_row (Callable, optional): Called with the number of rows that are finished. Default: nothing is called.
        show_progress (bool): Whether to show a progress bar over prompts and methods. Default: False.

    Returns:
        PromptComparison: A method that fails on a prompt is recorded there, and the prompt does not count.

    Raises:
        TypeError, ValueError: As :meth:`captum_iba.text.GenerationExplainer.explain`; the message names the prompt. Or
            a method that is unknown, or a folder with other prompts or settings.

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
    functions = _functions(methods)
    check_integer("n_removals", n_removals, at_least=2)
    check_integer("seed", seed)
    check_integer("batch_size", batch_size, at_least=1)
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping)):
        raise TypeError("prompts is one prompt, expected a sequence of them")
    if isinstance(responses, str):
        raise TypeError("responses is one string, expected a sequence with one response for each prompt")
    given = [None] * len(prompts) if responses is None else list(responses)
    of_prompts: list[Any] = [granularity] * len(prompts) if isinstance(granularity, str) else list(granularity)
    for name, values in (("responses", given), ("granularity", of_prompts)):
        if len(values) != len(prompts):
            raise ValueError(f"{name} has {len(values)}, expected one for each of the {len(prompts)} prompts")
    if not prompts:
        raise ValueError("prompts is empty, expected at least one")
    read = []
    for number, (prompt, response, of_prompt) in enumerate(zip(prompts, given, of_prompts, strict=True)):
        try:
            read.append(explainer.read(prompt, response, of_prompt, _arguments(response, gen_args)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"prompts[{number}]: {error}") from error
    generated = [str(prompt) for prompt, response in zip(prompts, given, strict=True) if response is None]
    if len({*generated}) < len(generated):
        warn_user(
            "prompts has a prompt twice, both with a generated response: also where the model samples, these are the "
            "same, and the intervals take them for two examples; expected different prompts, or responses"
        )
    asked = {"prompts": list(prompts), "responses": given, "granularity": of_prompts, "gen_args": gen_args or {}}
    settings = {"n_removals": n_removals, "seed": seed, "versions": library_versions()}
    kept = None if folder is None else _KeptRows(Path(folder), explainer, asked, settings)
    rows = [] if kept is None else kept.rows(functions)
    done = {(row.prompt, row.method) for row in rows}
    responses_kept = {} if kept is None else kept.responses
    bar: Any = progress(range(len(prompts)), "Prompts", len(prompts)) if show_progress else range(len(prompts))
    for number in bar:
        wanted = {name: function for name, function in functions.items() if (number, name) not in done}
        if not wanted:
            continue
        response = given[number]
        ids = responses_kept.get(number) or explainer.attribution.response_ids(
            read[number], response, _arguments(response, gen_args), "response"
        )
        task = PromptTask(
            explainer,
            prompts[number],
            of_prompts[number],
            read[number],
            ids,
            decoder_arguments(gen_args),
            batch_size,
            seed,
        )
        explainer.attribution.check_model(read[number], ids)
        removal = _Cached(task.removal)
        for name, function in wanted.items():
            row = _measure(number, name, function, task, removal, n_removals, seed)
            rows.append(row)
            if kept is not None:
                kept.add(row, function)
            on_row(len(rows))
    order = list(functions)
    rows.sort(key=lambda row: (row.prompt, order.index(row.method)))
    comparison = PromptComparison(tuple(functions), tuple(rows))
    if kept is not None:
        write_text(kept.folder / "table.md", f"{comparison.to_markdown()}\n")
    return comparison


def _arguments(response: Any, gen_args: dict[str, Any] | None) -> dict[str, Any] | None:
    return gen_args if response is None else decoder_arguments(gen_args)


def _functions(methods: Sequence[str] | Mapping[str, PromptMethod]) -> dict[str, PromptMethod]:
    if isinstance(methods, Mapping):
        functions = dict(methods)
    else:
        names = [methods] if isinstance(methods, str) else list(methods)
        for name in names:
            if name not in PROMPT_METHODS:
                raise ValueError(f"methods has {name!r}, expected names among {', '.join(PROMPT_METHODS)}")
        functions = {name: PROMPT_METHODS[name] for name in names}
        if len(functions) < len(names):
            raise ValueError(f"methods is {', '.join(names)}, expected each once")
    if not functions:
        raise ValueError("methods is empty, expected at least one")
    return functions


def _measure(
    number: int,
    name: str,
    function: PromptMethod,
    task: PromptTask,
    removal: _Cached,
    n_removals: int,
    seed: int,
) -> PromptRow:
    parts, response = tuple(task.prompt.names), tuple(task.response)
    began = time.perf_counter()
    try:
        with _counted_passes(task.explainer.model) as passes:
            found = function(task)
        seconds = time.perf_counter() - began
        scores, additive = found if isinstance(found, tuple) else (found, found)
        drops = prompt_degradation(removal, scores, COUNTS).drops.tolist()
    except Exception as error:
        return PromptRow(number, name, parts, (), {}, f"{type(error).__name__}: {error}", response)
    lds = linear_datamodeling_score(removal, additive, n_removals, seed=seed + 1)
    values = {f"drop@{count}": drop for count, drop in zip(COUNTS, drops, strict=True)}
    values["aopc"] = float(prompt_degradation(removal, scores).drops.mean())
    values |= {"lds": lds, "passes": passes[0], "seconds": seconds}
    known = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return PromptRow(number, name, parts, tuple(scores.detach().cpu().double().tolist()), known, None, response)


@contextmanager
def _counted_passes(model: Any) -> Iterator[list[float]]:
    """Counts rows of forward passes, twice where a backward pass may follow, into the only item of a list."""
    count = [0.0]

    def add(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim > 1]
        count[0] += max((len(tensor) for tensor in tensors), default=1) * (2 if torch.is_grad_enabled() else 1)

    handle = model.register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()


class _Cached:
    """A removal whose log-probabilities are computed once for all metrics of a prompt."""

    def __init__(self, removal: PromptRemoval) -> None:
        self._removal = removal
        self._known: dict[tuple[bool, ...], float] = {}

    def __call__(self, kept: Tensor) -> Tensor:
        new = [row for row in dict.fromkeys(map(tuple, kept.tolist())) if row not in self._known]
        if new:
            self._known.update(zip(new, self._removal(torch.tensor(new)).tolist(), strict=True))
        return torch.tensor([self._known[tuple(row)] for row in kept.tolist()])


class _KeptRows:
    """The rows of a comparison in a folder."""

    def __init__(
        self, folder: Path, explainer: GenerationExplainer, asked: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"folder: {folder} is a file, expected a folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._path = folder, folder / "rows.jsonl"
        self.responses: dict[int, list[int]] = {}
        digest = hashlib.sha256(json.dumps(asked, default=str, sort_keys=True).encode()).hexdigest()
        about = {**settings, "prompts": digest, "model": explainer.fingerprint()}
        described = folder / "comparison.json"
        if described.exists():
            before = json.loads(described.read_text(encoding="utf-8"))
            for name, value in about.items():
                if before.get(name) != value:
                    raise ValueError(
                        f"folder: {folder} has a comparison with another {name} (was {before.get(name)}, is {value}); "
                        "expected the same, or another folder"
                    )
        else:
            write_text(described, json.dumps(about, indent=1))

    def rows(self, functions: Mapping[str, PromptMethod]) -> list[PromptRow]:
        """Rows of these methods that were kept, but for those that failed; a line that was cut is not there."""
        if not self._path.exists():
            return []
        content, _, cut = self._path.read_bytes().rpartition(b"\n")
        whole = content.decode("utf-8")
        if cut:  # the process was killed in the middle of a line, or of a character
            write_text(self._path, f"{whole}\n" if whole else "")
        contents = [json.loads(line) for line in filter(None, whole.split("\n"))]
        codes = [content.pop("code") for content in contents]
        # Generated once for all methods: another call of a model that samples may give another response.
        self.responses = {content["prompt"]: content["response"] for content in contents}
        own = {name: code_digest(function, {}) for name, function in functions.items()}
        sequences = ("parts", "response", "scores")
        rows = [PromptRow(**{**content, **{name: tuple(content[name]) for name in sequences}}) for content in contents]
        return [row for row, code in zip(rows, codes, strict=True) if own.get(row.method) == code and row.error is None]

    def add(self, row: PromptRow, function: PromptMethod) -> None:
        """Append a row, with a digest of the method's code: rows of another method of this name are not used."""
        content = {**vars(row), "code": code_digest(function, {})}
        line = json.dumps(content, ensure_ascii=False, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
