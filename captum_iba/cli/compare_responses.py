"""``captum-iba compare-responses``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

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
from captum_iba.cli.explain_response import PartOfPrompt
from captum_iba.cli.methods_option import check_known, listed, sample
from captum_iba.cli.prompt_files import as_messages, read_prompt_table
from captum_iba.cli.text_files import has_columns

COMPARE_RESPONSES_EXAMPLES = """\b
Examples:
  captum-iba compare-responses --model FOLDER --file prompts.jsonl --out results
  captum-iba compare-responses --model FOLDER --file prompts.jsonl --by sentence --methods iba,context_cite_256 --out b
"""


def compare_responses(
    model: Annotated[str, typer.Option("--model", help="Folder or hub name of a language model.")],
    file: Annotated[
        str, typer.Option(help="Table (CSV, JSON lines or parquet) with one prompt in each row.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the rows and the table.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Methods with commas between them: iba, iba_bits, random, leave_one_out, context_cite_32, "
            "context_cite_48, context_cite_64, context_cite_256, shapley_value_sampling, kernel_shap, "
            "integrated_gradients, gradient_x_activation, attention_rollout. A folder with other methods gets those "
            "that it lacks."
        ),
    ] = "iba,context_cite_64,leave_one_out,random",
    prompt_column: Annotated[
        str | None,
        typer.Option(
            help="Column with the prompts, texts or lists of chat messages.", show_default="prompt or messages"
        ),
    ] = None,
    response_column: Annotated[
        str | None,
        typer.Option(help="Column with the responses; an empty one is generated.", show_default="response"),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            help="Whether a prompt is the message of a user, in the tokenizer's chat template.",
            show_default="if there is one",
        ),
    ] = None,
    by: Annotated[PartOfPrompt, typer.Option(help="Parts of the prompt.")] = PartOfPrompt.word,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Number of prompts in the sample.", show_default="all rows")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens to generate.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the methods.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Largest number of rows of a forward pass.")] = 8,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on a language model's responses: what these lose without the parts of the prompt ranked first.

    If it is stopped, the same command goes on.
    """
    work = KeptWork("rows", out, quiet, "measured")
    with plain_errors(quiet, work.interrupted):
        check_input("--file", file, "a table with prompts")
        if not has_columns(file):
            raise typer.BadParameter(f"--file: {file} is no table, expected CSV, JSON lines or parquet.")
        check_model(model)
        check_output_folder("--out", out)
        names = listed(methods)
        with loading():
            import torch

            from captum_iba._explain.model import check_device
            from captum_iba.compare import compare_prompts
            from captum_iba.methods.prompt_methods import PROMPT_METHODS
            from captum_iba.text import GenerationExplainer
            from captum_iba.text.generation import GREEDY

            check_known(names, PROMPT_METHODS)
            table = read_prompt_table(file, prompt_column, response_column)
            prompts, responses, names_of_rows = table.prompts, table.responses, table.names
            table.note_unread(file, quiet)
            check_device(device, "--device")
            note(f"loading {model}", quiet)
            with named_model(model):
                explainer = GenerationExplainer.from_pretrained(
                    model, device=device, dtype=getattr(torch, (dtype or Precision.float32).value)
                )
        chosen = sample(len(prompts), examples, seed)
        messages = as_messages([prompts[i] for i in chosen], explainer.tokenizer, chat)
        work.total = len(chosen) * len(names)
        note(f"{len(chosen)} of {len(prompts)} prompts, {len(names)} method{'s' * (len(names) > 1)}", quiet)
        with work.every_minute():
            comparison = compare_prompts(
                explainer,
                messages,
                [responses[i] for i in chosen],
                names,
                granularity=by.value,
                seed=seed,
                gen_args={**GREEDY, "max_new_tokens": max_new_tokens},
                batch_size=batch_size,
                folder=out,
                names=[names_of_rows[i] for i in chosen],
                on_row=work.progressed,
                show_progress=not quiet and sys.stderr.isatty(),
            )
        typer.echo(str(comparison))
        note(f"wrote {out / 'table.md'}", quiet)
