"""``captum-iba compare-texts``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from captum_iba.cli.common import (
    DeviceOption,
    KeptWork,
    Precision,
    PrecisionOption,
    QuietOption,
    check_input,
    check_model,
    check_output_folder,
    loading,
    named_model,
    note,
    plain_errors,
)
from captum_iba.cli.methods_option import listed, sample
from captum_iba.cli.statistics_of_texts import find_statistics
from captum_iba.cli.text_files import PairColumnOption, TextColumnOption, note_blank, read_columns

COMPARE_TEXTS_EXAMPLES = """\b
Examples:
  captum-iba compare-texts --model NER_FOLDER --file sentences.txt --out results
  captum-iba compare-texts --model QA_FOLDER --file qa.csv --text-column question --pair-column context --out results
"""


def compare_texts(
    model: Annotated[str, typer.Option("--model", help="Folder or hub name of a model of any head.")],
    file: Annotated[
        str,
        typer.Option(help="File with texts: one per line, or a CSV, JSON lines or parquet table.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the rows and the table.")],
    methods: Annotated[
        str,
        typer.Option(help="Methods with commas between them. A folder with other methods gets those that it lacks."),
    ] = "iba,ig,lime,leave_one_out,random",
    text_column: TextColumnOption = None,
    pair_column: PairColumnOption = None,
    target: Annotated[
        str | None,
        typer.Option(help="Class or answer to explain, for every text.", show_default="the predicted one"),
    ] = None,
    statistics_from: Annotated[
        Path | None,
        typer.Option(help="File with texts like yours, for the statistics.", show_default="neutral texts"),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Number of texts in the sample.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the methods.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Largest number of rows of a forward pass.")] = 32,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on a model of any head: what a prediction loses without the words that each ranks first.

    Of token classification every predicted entity is a target; of question answering the texts are the questions, and
    the second texts the contexts. If it is stopped, the same command goes on. For datasets
    with labels, layers and reports: captum-iba compare.
    """
    work = KeptWork("rows", out, quiet, "measured")
    with plain_errors(quiet, work.interrupted):
        check_input("--file", file, "a file with texts")
        if statistics_from is not None:
            check_input("--statistics-from", str(statistics_from), "a file with texts")
        check_model(model)
        check_output_folder("--out", out)
        names = listed(methods)
        with loading():
            import torch

            from captum_iba._explain.model import check_device
            from captum_iba.compare import compare_texts as compared
            from captum_iba.compare.kept_rows import chosen_methods
            from captum_iba.methods import find_method
            from captum_iba.text import TextExplainer

            chosen_methods(names, {name: find_method(name).function for name in names})
            read = read_columns(file, text_column, pair_column)
            note_blank(read, file)
            texts, pairs = read.first, read.second
            if not texts:
                raise typer.BadParameter(f"--file: no text in {file}.")
            check_device(device, "--device")
            note(f"loading {model}", quiet)
            with named_model(model):
                explainer = TextExplainer.from_pretrained(
                    model, device=device, dtype=getattr(torch, (dtype or Precision.float32).value)
                )
        kind = explainer.classifier.head.kind
        if kind == "multiple choice":
            raise typer.BadParameter("--model is of multiple choice, for which Python's compare_texts takes choices.")
        find_statistics(explainer, model, statistics_from, (text_column, pair_column), quiet)
        chosen = sample(len(texts), examples, seed)
        asked: dict[str, Any] = {"entity": "all"} if kind == "token classification" else {}
        work.total = 0 if asked else len(chosen) * len(names)  # how many entities there are is not known
        note(f"{len(chosen)} of {len(texts)} texts, {len(names)} method{'s' * (len(names) > 1)}", quiet)
        with work.every_minute():
            comparison = compared(
                explainer,
                [texts[i] for i in chosen],
                None if pairs is None else [pairs[i] for i in chosen],
                target,
                names,
                batch_size=batch_size,
                seed=seed,
                folder=out,
                on_row=work.progressed,
                show_progress=not quiet and sys.stderr.isatty(),
                **asked,
            )
        typer.echo(str(comparison))
        note(f"wrote {out / 'table.md'}", quiet)
