"""Many texts or prompts, explained by the workers of an executor, and kept as they are finished.

It needs neither the extra ``compare`` nor, without :class:`captum_iba.compare.parallel.RayExecutor`, the extra ``ray``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from captum_iba._checks import check_integer, kind_of
from captum_iba._compat import progress
from captum_iba._explain.fingerprint import add_part
from captum_iba._explain.json_result import JsonResult, library_versions
from captum_iba._files import write_text
from captum_iba._warnings import LostPredictionWarning, warn_user
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.settings import PRESETS, preset_values
from captum_iba.compare.parallel import Executor
from captum_iba.text.arguments import (
    NoEntityError,
    NumberError,
    batches_by_length,
    check_texts,
    resolve_text_settings,
    targets_per_text,
    warn_of_special_tokens,
)
from captum_iba.text.bottleneck import warn_of_lost_predictions
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.generation import GENERATION
from captum_iba.text.generation_explainer import GenerationExplainer
from captum_iba.text.generation_result import GenerationAttribution
from captum_iba.text.head_targets import check_choices, per_text
from captum_iba.text.prompt_model import decoder_arguments
from captum_iba.text.result import TextAttribution

PromptLike = str | Sequence[Mapping[str, str]]
"""A prompt: a string, or chat messages."""

OnError = Callable[[int, Exception], object]
"""Gets the number of a text or prompt that cannot be explained, and why."""

Result = TypeVar("Result", bound=JsonResult)


class _Failed(NamedTuple):
    """What a worker returns of a text or prompt that cannot be explained: its number in the call, and why."""

    number: int
    error: Exception


class _Explaining:
    """The worker of :func:`explain_texts` and :func:`explain_prompts`.

    Where texts or prompts that share a call cannot be explained, each is by itself, so that the others are. Without
    ``goes_on`` the first that fails is the last.
    """

    def __init__(
        self, explainer: TextExplainer | GenerationExplainer, settings: dict[str, Any], goes_on: bool = False
    ) -> None:
        self.explainer = explainer
        self.settings = settings
        self.goes_on = goes_on

    def move(self, device: str) -> None:
        self.explainer.model.to(device)

    def explain(self, texts: list[str], pairs: list[str] | None, targets: list[int | None]) -> list[TextAttribution]:
        assert isinstance(self.explainer, TextExplainer)
        with warnings.catch_warnings():  # what is said of single texts is said before, by their numbers among all
            warnings.filterwarnings("ignore", message=r"(texts|pairs)\[\d+\] (is (empty|only white space)|has ')")
            return self.explainer.explain(texts, pairs, targets, batch_size=len(texts), **self.settings)

    def explain_other_heads(
        self, texts: list[str], pairs: list[str] | None, columns: dict[str, list[Any]], first: int
    ) -> list[TextAttribution | _Failed]:
        """Explain texts from number ``first`` on by a model with another head; messages number them among all."""
        try:
            return list(self._of_other_heads(texts, pairs, columns, first))
        except (TypeError, ValueError) as error:
            if len(texts) == 1 or not self.goes_on:
                return [_Failed(0, error)]
        found: list[TextAttribution | _Failed] = []
        for i, text in enumerate(texts):
            of_text = {name: [column[i]] for name, column in columns.items()}
            results = self.explain_other_heads([text], None if pairs is None else [pairs[i]], of_text, first + i)
            found += [one._replace(number=i) if isinstance(one, _Failed) else one for one in results]
        return found

    def _of_other_heads(
        self, texts: list[str], pairs: list[str] | None, columns: dict[str, list[Any]], first: int
    ) -> list[TextAttribution]:
        assert isinstance(self.explainer, TextExplainer)
        of_all_entities = all(entity == "all" for entity in columns.get("entity", [None]))
        try:
            with warnings.catch_warnings(record=True) as caught:
                options: dict[str, Any] = {**columns, **self.settings, "batch_size": len(texts)}
                results: list[TextAttribution] = self.explainer.explain(texts, pairs, **options)
        except (TypeError, ValueError) as error:
            if of_all_entities and isinstance(error, NoEntityError):
                return []
            pieces = error.args if isinstance(error, NumberError) else (str(error),)
            numbered = (_numbered(piece, first) if isinstance(piece, str) else piece for piece in pieces)
            raise type(error)(*numbered) from error
        for warning in caught:
            warn_user(_numbered(str(warning.message), first), warning.category)
        return [
            result
            if result.explained is None
            else replace(result, explained=replace(result.explained, text_number=result.explained.text_number + first))
            for result in results
        ]

    def explain_prompts(
        self, prompts: list[PromptLike], responses: list[str | None]
    ) -> list[GenerationAttribution | _Failed]:
        assert isinstance(self.explainer, GenerationExplainer)
        if len(prompts) > 1:
            settings = dict(self.settings)
            columns: dict[str, Any] = {
                f"{name}s": [settings.pop(name, None)] * len(prompts) for name in ("span", "contrast")
            }
            with suppress(TypeError, ValueError):
                return list(self.explainer.explain_batch(prompts, responses, **columns, **settings))
        results: list[GenerationAttribution | _Failed] = []
        for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            try:
                results.append(self.explainer.explain(prompt, response, **_settings_with(response, self.settings)))
            except (TypeError, ValueError) as error:
                results.append(_Failed(number, error))
                if not self.goes_on:
                    break
        return results


def explain_texts(
    executor: Executor,
    explainer: TextExplainer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    target: Any = None,
    *,
    device: str | None = None,
    batch_size: int = 8,
    show_progress: bool = False,
    keep: str | os.PathLike[str] | None = None,
    on_batch: Callable[[int], object] = lambda _: None,
    on_kept: Callable[[int], object] = lambda _: None,
    on_error: OnError | None = None,
    **settings: Any,
) -> list[TextAttribution]:
    """Explain many texts by the workers of an executor, as :meth:`captum_iba.text.TextExplainer.explain` does here.

    A job is one of the batches that ``explain`` makes. So the numbers are the same on the same kind of processor with
    as many threads, and else within the tolerance of ``docs/scale.md``.

    Args:
        executor (Executor): Where the work is done.
        explainer (TextExplainer): Model, layers and their statistics; remote workers get a copy.
        texts, pairs, target: As for ``explain``. Heads other than a sequence classifier's also take ``word``,
            ``token``, ``entity`` and ``choices``.
        device (str, optional): Device of the models of remote workers; None is the CPU. Default: None.
        batch_size (int, optional): Number of texts in a batch. Default: 8.
        show_progress (bool, optional): Whether to show a progress bar over the batches. Default: False.
        keep (path, optional): Folder for finished batches: the same call with the same folder goes on where it
            stopped, by any executor. Default: None.
        on_batch (Callable, optional): Called with the number of texts that are finished. Default: nothing is called.
        on_kept (Callable, optional): Called with the number of texts that the folder has from before. Default:
            nothing is called.
        on_error (Callable, optional): Called with the number of a text that cannot be explained, from 0, and the
            error, for example of a word that is not in it. The results are those of the other texts. Heads other than
            a sequence classifier's have such texts. Default: None, the error is raised.
        **settings: All other arguments of ``explain``.

    Returns:
        list of TextAttribution: One result per text, in the order of ``texts``; of ``entity="all"`` any number for a
        text.

    Raises:
        TypeError, ValueError: As ``explain``.
        ExecutorError: There are no workers, or they die over and over.
        OSError: The folder cannot be written; what was kept before stays.

    Examples::

        >>> results = explain_texts(RayExecutor(workers=2), explainer, reviews, preset="paper")
    """
    head = explainer.classifier.head
    first, second = check_texts(texts, pairs)
    columns: dict[str, list[Any]] = {}
    if head.has_classes:
        columns["target"] = list(targets_per_text(target, len(first), explainer.classifier.labels))
        encoded = explainer.classifier.encode(first, second)
        warn_of_special_tokens(encoded)
        batches = batches_by_length([len(item) for item in encoded], batch_size)
    else:
        columns = columns_per_text(target, settings, len(first))
        batches = [list(range(i, min(i + batch_size, len(first)))) for i in range(0, len(first), batch_size)]
    calls: list[tuple[Any, ...]] = []
    for batch in batches:
        of_batch = {name: [column[i] for i in batch] for name, column in columns.items()}
        of_pairs = None if pairs is None else [pair for i in batch if (pair := second[i]) is not None]
        further = (of_batch["target"],) if head.has_classes else (of_batch, batch[0])
        calls.append(([first[i] for i in batch], of_pairs, *further))
    preset = settings.get("preset", "default")
    overrides: Any = {name: settings[name] for name in settings if hasattr(PRESETS["default"], name)}
    if not resolve_text_settings(preset, overrides)[2].noise_around_input:
        explainer._find_statistics(pairs is not None, show_progress)  # once, and not by every worker
    kept = None
    if keep is not None:
        classifier, bottleneck = explainer.classifier, explainer._bottleneck_of(settings.get("preset", "default"))
        statistics = bottleneck.statistics or ()
        parts = [head.kind, *classifier.labels, str(classifier.multi_label)]
        parts += [layer.key for layer in bottleneck.layers]
        parts += [f"{len(bottleneck.layers)} {classifier.max_length}", json.dumps(preset_values(), sort_keys=True)]
        kept = KeptResults(
            Path(keep), TextAttribution, explainer, device, settings, parts, statistics, head.has_classes
        )
    found: dict[int, list[TextAttribution]] = {}
    method = "explain" if head.has_classes else "explain_other_heads"
    worker, n_failed = _Explaining(explainer, settings, on_error is not None), 0
    explained = _explained(executor, worker, method, device, calls, kept, on_kept)
    bar: Any = progress(explained, "Texts", len(batches)) if show_progress else explained
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LostPredictionWarning)  # once for all batches, new and kept
        for number, batch_results in bar:
            for failed in (one for one in batch_results if isinstance(one, _Failed)):
                if on_error is None:
                    raise failed.error
                on_error(batches[number][failed.number], failed.error)
                n_failed += 1
            found[number] = [one for one in batch_results if not isinstance(one, _Failed)]
            on_batch(sum(len(batches[done]) for done in found))
    if head.has_classes:
        of_text = {i: one for number in found for i, one in zip(batches[number], found[number], strict=True)}
        results = [of_text[i] for i in range(len(first))]
    else:  # of entity="all" any number for a text
        results = [one for number in range(len(batches)) for one in found[number]]
    if not results and not n_failed:
        raise NoEntityError("entity: the model predicts no entity in any of the texts; give a word (word, --word)")
    warn_of_lost_predictions(results)
    return results


def columns_per_text(target: Any, settings: dict[str, Any], count: int) -> dict[str, list[Any]]:
    """Arguments of other heads that say what is explained, one per text, taken out of the settings."""
    given = {"target": target, **{name: settings.pop(name, None) for name in ("word", "token", "entity")}}
    columns = {name: per_text(name, value, count) for name, value in given.items() if value is not None}
    if (choices := settings.pop("choices", None)) is not None:
        columns["choices"] = check_choices(choices, False, count)
    return columns


def explain_prompts(
    executor: Executor,
    explainer: GenerationExplainer,
    prompts: Sequence[PromptLike],
    responses: Sequence[str | None] | None = None,
    *,
    device: str | None = None,
    prompts_per_batch: int = 1,
    show_progress: bool = False,
    keep: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
    on_prompt: Callable[[int], object] = lambda _: None,
    on_kept: Callable[[int], object] = lambda _: None,
    on_error: OnError | None = None,
    **settings: Any,
) -> list[GenerationAttribution]:
    """Explain the responses to many prompts, each as :meth:`captum_iba.text.GenerationExplainer.explain` does.

    Args:
        executor (Executor): Where the work is done.
        explainer (GenerationExplainer): The model; remote workers get a copy.
        prompts (sequence): Strings, or lists of chat messages.
        responses (sequence, optional): One response per prompt; None among them is generated. Default: None, all are.
        device (str, optional): Device of the models of remote workers; None is the CPU. Default: None.
        prompts_per_batch (int, optional): Number of prompts that share forward passes, which pays on a GPU
            (:meth:`captum_iba.text.GenerationExplainer.explain_batch`). Default: 1.
        show_progress (bool, optional): Whether to show a progress bar over the prompts, or over the steps of a single
            one. Default: False.
        keep (path, optional): Folder for finished prompts: the same call with the same folder goes on where it
            stopped, by any executor. Default: None.
        names (sequence of str, optional): What errors call each prompt. Default: None, ``prompts[0]`` and so on.
        on_prompt (Callable, optional): Called with the number of prompts that are finished. Default: nothing is called.
        on_kept (Callable, optional): Called with the number of prompts that the folder has from before. Default:
            nothing is called.
        on_error (Callable, optional): Called with the number of a prompt that cannot be explained, from 0, and the
            error, for example of a span that the generated response lacks. The results are those of the other prompts.
            Default: None, the error is raised.
        **settings: All other arguments of ``explain``; ``gen_args`` are for the responses that are generated.

    Returns:
        list of GenerationAttribution: One result per prompt, in their order; with ``on_error`` of those that can be
        explained.

    Raises:
        TypeError, ValueError: As ``explain``; the message names the prompt.
        ExecutorError: There are no workers, or they die over and over.
        OSError: The folder cannot be written; what was kept before stays.

    Examples::

        >>> results = explain_prompts(RayExecutor(workers=2), explainer, prompts, keep="finished", check=True)
    """
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping)):
        raise TypeError("prompts is one prompt, expected a sequence of them")
    if isinstance(responses, str):
        raise TypeError("responses is one string, expected a sequence with one response for each prompt")
    given = [None] * len(prompts) if responses is None else list(responses)
    if len(given) != len(prompts):
        raise ValueError(f"responses has {len(given)}, expected one for each of the {len(prompts)} prompts")
    called = [f"prompts[{number}]" for number in range(len(prompts))] if names is None else list(names)
    if len(called) != len(prompts):
        raise ValueError(f"names has {len(called)}, expected one for each of the {len(prompts)} prompts")
    check_integer("prompts_per_batch", prompts_per_batch, at_least=1)
    failed = set()

    def fail(number: int, error: Exception) -> None:
        if on_error is None:
            raise type(error)(f"{called[number]}: {error}" if len(prompts) > 1 else str(error)) from error
        on_error(number, error)
        failed.add(number)

    for number, (prompt, response) in enumerate(zip(prompts, given, strict=True)):
        try:  # before the first is explained, which takes a while
            fitting = _settings_with(response, settings)
            asked = {name: fitting[name] for name in ("granularity", "gen_args", "include_system") if name in fitting}
            explainer.read(prompt, response, **asked)
        except (TypeError, ValueError) as error:
            fail(number, error)
    read = [number for number in range(len(prompts)) if number not in failed]
    if prompts_per_batch > 1:
        read.sort(key=lambda i: len(str(prompts[i])))
    batches = [read[i : i + prompts_per_batch] for i in range(0, len(read), prompts_per_batch)]
    calls = [([prompts[i] for i in batch], [given[i] for i in batch]) for batch in batches]
    kept = None
    if keep is not None:
        preset = json.dumps(asdict(GENERATION), sort_keys=True)
        kept = KeptResults(Path(keep), GenerationAttribution, explainer, device, settings, [preset])
    results: dict[int, GenerationAttribution] = {}
    options = {**settings, "show_progress": show_progress and len(calls) == 1}
    worker = _Explaining(explainer, options, on_error is not None)
    explained = _explained(executor, worker, "explain_prompts", device, calls, kept, on_kept)
    bar: Any = progress(explained, "Prompts", len(calls)) if show_progress and len(calls) > 1 else explained
    for number, batch_results in bar:
        for i, one in zip(batches[number], batch_results, strict=False):  # fewer where the first that fails is the last
            if isinstance(one, _Failed):
                fail(i, one.error)
            else:
                results[i] = one
        on_prompt(len(results))
    return [results[i] for i in sorted(results)]


def _numbered(message: str, first: int) -> str:
    """A message about texts of a batch, with their numbers among all."""
    return re.sub(r"texts\[(\d+)\]", lambda match: f"texts[{int(match[1]) + first}]", message)


def _settings_with(response: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of ``explain``; of ``gen_args`` those that have a place beside a response."""
    given = {} if response is None else {"gen_args": decoder_arguments(settings.get("gen_args"))}
    return {**settings, **given}


def _explained(
    executor: Executor,
    worker: _Explaining,
    method: str,
    device: str | None,
    calls: Sequence[tuple[Any, ...]],
    kept: KeptResults[Result] | None,
    on_kept: Callable[[int], object],
) -> Iterator[tuple[int, list[Result | _Failed]]]:
    """Number and results of every call, those that were kept first. A call of which something failed is not kept."""
    missing, n_found = [], 0
    for number, call in enumerate(calls):
        results = None if kept is None else kept.read(call)
        if results is None:
            missing.append((number, call))
        else:
            n_found += len(call[0])
            yield number, list(results)
    if kept is not None:
        on_kept(n_found)
    if not missing:
        return
    with executor.open(worker, device) as workers:
        for number, results in workers.map(method, missing):
            if kept is not None and not any(isinstance(one, _Failed) for one in results):
                kept.write(results, calls[number])
            yield number, results


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (np.generic, Path)):
        return str(value)
    raise TypeError(
        f"keep is given, and a setting has {kind_of(value)}, which does not tell results of another one apart; "
        "expected numbers, strings, and lists and dictionaries of them"
    )


class KeptResults(Generic[Result]):
    """A folder with one file per finished call: of a batch of texts, or of a prompt.

    A file is named by the digest of all that its results depend on: model, layers, statistics, device, versions of
    the libraries, presets, settings, texts. What was computed with anything else is not found, so nothing ever mixes.
    Without ``one_each`` a text can have any number of results, as it has of all its entities.
    """

    def __init__(
        self,
        folder: Path,
        kind: type[Result],
        explainer: TextExplainer | GenerationExplainer,
        device: str | None,
        settings: Mapping[str, Any],
        parts: Sequence[str] = (),
        statistics: Sequence[FeatureStatistics] = (),
        one_each: bool = True,
    ) -> None:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"keep: {folder} is a file, expected a folder.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(error.errno, f"keep: {folder} cannot be made ({error.strerror})") from error
        self._folder, self._kind, self._one_each = folder, kind, one_each
        self._digest = hashlib.sha256()
        of_model = device or str(next(iter(explainer.model.parameters())).device)
        for part in (
            kind.__name__,
            explainer.fingerprint(),
            of_model,
            json.dumps([library_versions(), dict(settings)], sort_keys=True, default=_as_json),
            *parts,
        ):
            add_part(self._digest, part)
        for tensor in (t for item in statistics for t in (item.mean, item.std, *item.further_tensors().values())):
            self._digest.update(tensor.cpu().contiguous().numpy().tobytes())

    def read(self, call: tuple[Any, ...]) -> list[Result] | None:
        """The results of a call; None where there are none, or a damaged file."""
        try:
            content = json.loads(self._path(call).read_text(encoding="utf-8"))
            results = [self._kind.from_dict(item) for item in content]
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return results if not self._one_each or len(results) == len(call[0]) else None

    def write(self, results: Sequence[Result], call: tuple[Any, ...]) -> None:
        """Keep the results of a call."""
        content = json.dumps([result.to_dict() for result in results], ensure_ascii=False, allow_nan=False)
        try:
            write_text(self._path(call), content)
        except OSError as error:
            reason = f"keep: {error.strerror or error}; those that were finished before are kept"
            raise OSError(error.errno, reason) from error

    def _path(self, call: tuple[Any, ...]) -> Path:
        digest = self._digest.copy()
        add_part(digest, json.dumps(call, default=dict))
        return self._folder / f"{digest.hexdigest()[:32]}.json"
