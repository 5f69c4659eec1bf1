"""``captum-iba explain``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from captum_iba._files import IMAGE_ENDINGS
from captum_iba._warnings import LostPredictionWarning
from captum_iba.cli.common import (
    AddressOption,
    DetailsOption,
    DeviceOption,
    ExecutorName,
    ExecutorOption,
    Failures,
    KeptWork,
    ModelOption,
    Precision,
    PrecisionOption,
    QuietOption,
    WorkersOption,
    check_input,
    check_model,
    check_output_folder,
    check_results,
    deliver,
    find_executor,
    loading,
    named_model,
    note,
    number_or_name,
    parse_layer,
    plain_errors,
    print_result,
    quiet_workers,
)
from captum_iba.cli.head_options import (
    ChoiceOption,
    EntityOption,
    HeadOptions,
    MaskOption,
    QuestionOption,
    ToleranceOption,
    WordOption,
)
from captum_iba.cli.methods_option import check_methods, listed, scores_by_methods
from captum_iba.cli.statistics_of_texts import find_statistics
from captum_iba.cli.text_files import (
    FileOfTexts,
    LabelColumnOption,
    PairColumnOption,
    TextColumnOption,
    counted_from_one,
    gold_labels,
    has_columns,
    left_out,
    naming_arguments,
    note_blank,
    note_single_words,
    pairs_of,
    read_texts,
)

if TYPE_CHECKING:
    from captum_iba.compare.data import LabelNames
    from captum_iba.methods import Scores
    from captum_iba.text import TextAttribution, TextExplainer

EXPLAIN_EXAMPLES = """\b
Examples:
  captum-iba explain "The plot is dull, but the film is a joy." --html page.html
  captum-iba explain --model FOLDER --file reviews.csv --keep kept --json results.json
  captum-iba explain --model FOLDER --statistics-from train.csv --methods ig,lime "A long review."
"""


class BottleneckPreset(str, Enum):
    """Named settings."""

    default = "default"
    paper = "paper"
    as_released = "as_released"


class Granularity(str, Enum):
    """Unit with one mask value."""

    token = "token"
    word = "word"
    feature = "feature"


def explain(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to explain.")] = None,
    model: ModelOption = None,
    pair: Annotated[
        list[str] | None, typer.Option(help="Second text of a pair. Repeat the option for each text.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="File with texts: one per line, or a CSV, JSON lines or parquet table; - is standard input.",
            show_default=False,
        ),
    ] = None,
    text_column: TextColumnOption = None,
    pair_column: PairColumnOption = None,
    label_column: LabelColumnOption = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="Layer of the mask: a block from 1, or a module's name; 1,2,3 or 1..3 for several with one mask; all "
            "for the default.",
            show_default="all blocks, for other heads the embeddings; for the published presets the block at 3/4 of "
            "the depth",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Class to explain: label or number; for question answering, the answer.",
            show_default="the predicted one",
        ),
    ] = None,
    word: WordOption = None,
    entity: EntityOption = None,
    question: QuestionOption = None,
    mask: MaskOption = None,
    choice: ChoiceOption = None,
    tolerance: ToleranceOption = None,
    preset: Annotated[BottleneckPreset, typer.Option(help="Named settings.")] = BottleneckPreset.default,
    granularity: Annotated[
        Granularity | None, typer.Option(help="Unit with one mask value.", show_default="the preset's")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(min=0, help="Weight of the information.", show_default="the preset's")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Number of optimizer steps.", show_default="the preset's")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=0, help="Noise samples per step; 0 takes the mean of the noise.", show_default="the preset's"),
    ] = None,
    complement: Annotated[
        float | None, typer.Option(min=0, help="Weight of the complement loss.", show_default="the preset's")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of explanations with resampled noise and statistics. Shows which words lead in each of them "
            "and, with statistics of your own texts, the spread of the percentages (--details: of each word).",
        ),
    ] = 1,
    rerank: Annotated[
        int, typer.Option(min=0, help="Number of words with the most bits whose order is settled by removal.")
    ] = 8,
    check: Annotated[
        bool,
        typer.Option(
            help="Delete the leading words, those with the fewest bits and random ones, and show the probabilities."
        ),
    ] = True,
    methods: Annotated[
        str | None,
        typer.Option(help="Other methods to show beside the bottleneck, for example ig,lime,leave_one_out."),
    ] = None,
    statistics: Annotated[
        Path | None, typer.Option(help="Statistics of the layer: a file, or a folder with one file per layer.")
    ] = None,
    statistics_from: Annotated[
        Path | None,
        typer.Option(help="File with texts, as for --file, to estimate the statistics from; kept in a cache."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="File for a page with the colored texts.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="File for a JSON list of results; of a table with its id and label, and the gold label by name; - is "
            "standard output.",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder for finished results: the same command then goes on where it stopped."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of texts in a batch.")] = 8,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    executor: ExecutorOption = ExecutorName.local,
    address: AddressOption = None,
    workers: WorkersOption = None,
    details: DetailsOption = False,
    quiet: QuietOption = False,
) -> None:
    """Explain decisions on texts: which words the model needs, and what it predicts without them."""

    work = KeptWork("texts", keep, quiet)
    with plain_errors(quiet, work.interrupted):
        _check_options(texts, preset, statistics, statistics_from, text_column, pair_column, label_column)
        if texts and file is not None:
            raise typer.BadParameter("TEXT and --file: expected one of them, got both.")
        _check_paths(file, statistics, statistics_from, html, json_file, keep, model)
        names = [name for name in listed(methods or "") if name != "iba"]
        of_file = (text_column, pair_column)
        if statistics_from is not None and has_columns(str(statistics_from)) and not has_columns(file or "-"):
            of_file = (None, None)  # they are columns of the file for the statistics
        with loading():
            read = read_texts(texts, file, *of_file, label_column)
            first_texts, second_texts = read.first, pairs_of(read, pair)
            from captum_iba._explain.model import check_device
            from captum_iba.compare.explain_many import explain_texts
            from captum_iba.text.arguments import check_texts

            note_single_words(texts, quiet)
            with naming_arguments(texts):
                check_texts(first_texts, second_texts)
            layers = None if layer in (None, "all") else parse_layer(layer)
            check_methods(names, layers)
            where = find_executor(executor, address, workers)
            if not where.remote:  # remote workers have devices of their own
                check_device(device, "--device")
            _check_configuration(model, layers, target)
            note(f"loading {model or 'the embedded model'}", quiet)
            explainer = _load(model, layers, statistics, None if where.remote else device, dtype)
        if statistics is None and preset is not BottleneckPreset.as_released:
            find_statistics(explainer, model, statistics_from, (text_column, pair_column), quiet)
        attribute: Callable[..., list[TextAttribution]] = explainer.explain
        note_blank(read, file or "-")
        gold = gold_labels(read, explainer.classifier.labels, quiet)
        head = explainer.classifier.head
        options = HeadOptions(word or [], entity or [], question or [], mask, choice or [], tolerance)
        wanted = _target(target, explainer.classifier.labels) if head.labels else options.named_target(target)
        with naming_arguments(texts):
            first_texts, second_texts, asked = options.arguments(explainer, first_texts, second_texts, wanted)
        work.total, failures = len(first_texts), Failures("texts")
        goes_on = work.total > 1 and not head.has_classes
        if goes_on or where.remote or keep is not None or work.total > batch_size:
            run = partial(explain_texts, where, explainer, device=device, keep=keep)
            attribute = partial(run, on_batch=work.progressed, on_kept=work.found)
            if goes_on:
                attribute = partial(
                    attribute,
                    on_error=lambda i, error: failures.tell(i, f"text {i + 1}", counted_from_one(error, texts)),
                )
        if work.total == 1:  # what is printed says it
            warnings.simplefilter("ignore", LostPredictionWarning)
        with naming_arguments(texts), quiet_workers(where), work.every_minute():
            results = attribute(
                first_texts,
                second_texts,
                **asked,
                granularity=None if granularity is None else granularity.value,
                preset=preset.value,
                beta=beta,
                n_steps=steps,
                n_samples=samples,
                complement=complement,
                seed=seed,
                repeats=repeats,
                rerank=rerank,
                check=check,
                batch_size=batch_size,
                show_progress=not quiet and sys.stderr.isatty(),
            )
        explained = [i for i in range(work.total) if i not in failures.numbers]
        if not explained:
            failures.exit(work.total)
        read, gold = _rows_of_results(results, read, gold, explained)
        with work.every_minute():
            columns = {"texts": first_texts, "pairs": second_texts, **asked}
            if head.has_classes:
                columns["target"] = [result.target for result in results]
            elif failures.numbers:
                columns = {
                    name: [column[i] for i in explained] if isinstance(column, list) else column
                    for name, column in columns.items()
                }
            scores = scores_by_methods(names, layers, explainer, columns, seed, keep, work)
        _deliver(
            results,
            scores,
            read,
            gold,
            explainer.classifier.labels,
            html,
            json_file,
            details,
            quiet,
            " ".join(filter(None, [left_out(read), failures.introduction])),
        )
        failures.exit(work.total)


def _check_options(
    texts: list[str] | None,
    preset: BottleneckPreset,
    statistics: Path | None,
    statistics_from: Path | None,
    text_column: str | None,
    pair_column: str | None,
    label_column: str | None,
) -> None:
    """Refuse options that would change nothing, and files of images in the place of texts."""
    for text in texts or ():
        if text.lower().endswith(IMAGE_ENDINGS) and (" " not in text or Path(text).is_file()):
            raise typer.BadParameter(f"TEXT: {text} is the name of an image, which captum-iba explain-image explains.")
        if (os.sep in text or "." in text) and " " not in text and Path(text).exists():
            option = "--model" if Path(text).is_dir() else "--file"
            raise typer.BadParameter(f"TEXT: {text} is a file or folder, expected a text, or {option} {text}.")
    for option, path in (("--statistics", statistics), ("--statistics-from", statistics_from)):
        if path is not None and preset is BottleneckPreset.as_released:
            raise typer.BadParameter(f"{option}: the preset as_released takes its noise from the text itself.")
    columns_of_statistics = statistics_from is not None and has_columns(str(statistics_from))
    for option, column in (("--text-column", text_column), ("--pair-column", pair_column)):
        if column is not None and texts and not columns_of_statistics:
            raise typer.BadParameter(f"{option} is for a table (--file), the texts are arguments.")
    if label_column is not None and texts:
        raise typer.BadParameter("--label-column is for a table (--file), the texts are arguments.")


def _check_paths(
    file: str | None,
    statistics: Path | None,
    statistics_from: Path | None,
    html: Path | None,
    json_file: Path | None,
    keep: Path | None,
    model: str | None,
) -> None:
    """Refuse paths that cannot be read or written, before anything is loaded."""
    if statistics is not None and statistics_from is not None:
        raise typer.BadParameter("--statistics and --statistics-from: expected one of them, got both.")
    texts = "a file of texts: one on each line, or a CSV, JSON lines or parquet table"
    check_input("--file", None if file == "-" else file, texts)
    check_input("--statistics-from", statistics_from, texts)
    kept = "a file of statistics, or a folder of one for each layer, as save_statistics writes them"
    check_input("--statistics", statistics, kept, folder=True)
    check_model(model)
    check_results(html, json_file)
    check_output_folder("--keep", keep)


def _rows_of_results(
    results: list[TextAttribution], read: FileOfTexts, gold: LabelNames | None, explained: Sequence[int]
) -> tuple[FileOfTexts, LabelNames | None]:
    """The rows of the file and the gold labels of each result: of all entities there are others than texts."""
    if not any(result.explained for result in results):
        return read, gold
    rows = [0 if result.explained is None else result.explained.text_number for result in results]
    for number in sorted({*explained} - {*rows}):
        note(f"text {number + 1} is not explained: the model predicts no entity in it", False)
    return read.of_rows(rows), None if gold is None else gold.of_rows(rows)


def _check_configuration(model: str | None, layers: list[int | str] | None, target: str | None) -> None:
    """Refuse a layer or target that the model's configuration does not have, before its weights are loaded."""
    numbers = [layer for layer in layers or [] if isinstance(layer, int)]
    if not numbers and target is None:
        return
    from transformers import AutoConfig

    from captum_iba.demo import embedded_model_path
    from captum_iba.text.arguments import find_target
    from captum_iba.text.heads import Head, head_of_architectures

    try:
        config = AutoConfig.from_pretrained(embedded_model_path() if model is None else model)
    except Exception:  # loading the model says what is wrong
        return
    labels = [str(label) for _, label in sorted(config.id2label.items())]
    of_texts = head_of_architectures(config.architectures) is Head
    if target is not None and of_texts and sorted(config.id2label) == list(range(len(labels))) and len(labels) > 1:
        find_target(_target(target, labels), labels)
    depth = getattr(config, "num_hidden_layers", None)
    if isinstance(depth, int) and not config.is_encoder_decoder:
        for number in numbers:
            if not 1 <= number <= depth:
                raise ValueError(f"layer is {number}, expected a block from 1 to {depth}.")


def _load(
    model: str | None,
    layers: list[int | str] | None,
    statistics: Path | None,
    device: str | None,
    dtype: Precision | None,
) -> TextExplainer:
    import torch

    from captum_iba.demo import embedded_model_path
    from captum_iba.text import TextExplainer

    with named_model(model):
        return TextExplainer.from_pretrained(
            embedded_model_path() if model is None else model,
            layer=layers,
            statistics=statistics,
            device=device,
            dtype=getattr(torch, (dtype or Precision.float32).value),
        )


def _target(target: str | None, labels: Sequence[str]) -> int | str | None:
    """A number is a class's number, unless a label is called so."""
    return target if target is None or target in labels else number_or_name(target)


def _deliver(
    results: list[TextAttribution],
    scores: list[list[Scores]],
    read: FileOfTexts,
    gold: LabelNames | None,
    labels: Sequence[str],
    html: Path | None,
    json_file: Path | None,
    details: bool,
    quiet: bool,
    introduction: str,
) -> None:
    from captum_iba._reading.findings import missed_labels, verdicts
    from captum_iba.visualization import token_page

    known = labels if gold is not None and gold.are_classes else None
    names = None if gold is None else gold.names

    def entries() -> list[dict[str, Any]]:
        found = [result.to_dict() for result in results]
        for entry, of_text in zip(found, scores, strict=False):
            entry["methods"] = {item.method: item.words.tolist() for item in of_text}
        for key, column in (("label", read.labels), ("gold_label", names), ("id", read.ids)):
            for entry, value in zip(found, column or [], strict=False):
                entry[key] = value
        return found

    deliver(
        entries,
        json_file,
        html,
        page=lambda: token_page(
            results, methods=scores or None, gold_labels=names, ids=read.ids, labels=known, introduction=introduction
        ),
        show=lambda: _show(results, scores, read.ids, names, known, details, quiet),
        quiet=quiet,
    )
    for said in filter(None, (missed_labels(results, names, known), verdicts(results, read.ids))):
        note(said, quiet)


def _show(
    results: list[TextAttribution],
    scores: list[list[Scores]],
    ids: list[str] | None,
    gold_labels: Sequence[str | None] | None,
    labels: Sequence[str] | None,
    details: bool,
    quiet: bool,
) -> None:
    """Print results, each with its id and gold label, and with the scores of other methods."""
    from captum_iba._reading.findings import is_missed, notes_of_all
    from captum_iba._reading.legend import legend_lines
    from captum_iba._reading.wording import printable

    once = notes_of_all(results)
    for number, result in enumerate(results):
        if number:
            typer.echo()
        if ids is not None or gold_labels is not None:
            label = None if gold_labels is None else gold_labels[number]
            wrong = " (not predicted)" if is_missed(result, label, labels) else ""
            named = [None if ids is None else ids[number], None if label is None else f"label {label}"]
            typer.echo(printable(", ".join(str(part) for part in named if part is not None) + wrong))
        print_result(result, len(results) == 1 and not quiet, details, once)
        for item in scores[number] if scores else []:
            typer.echo(str(item))
    if once:
        typer.echo("\n".join(["", *(f"Of all {len(results)} texts: {said[0].lower()}{said[1:]}" for said in once)]))
    if len(results) > 1 and not quiet and (lines := legend_lines(result.legend(details) for result in results)):
        typer.echo("\n".join(["", *lines]))
    if any(item.signed for of_text in scores for item in of_text):
        typer.echo("Scores of other methods: above 0 a word speaks for what is explained, below 0 against it.")
