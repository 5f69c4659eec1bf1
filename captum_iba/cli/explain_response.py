"""``captum-iba explain-response``."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from captum_iba.cli.common import (
    AddressOption,
    DetailsOption,
    DeviceOption,
    ExecutorName,
    ExecutorOption,
    Failures,
    KeptWork,
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
    plain_errors,
    printed,
    quiet_workers,
)
from captum_iba.cli.prompt_files import as_messages, read_prompt_file, read_prompt_table
from captum_iba.cli.text_files import has_columns

if TYPE_CHECKING:
    from captum_iba.text.generation_result import GenerationAttribution

EXPLAIN_RESPONSE_EXAMPLES = """\b
Examples:
  captum-iba explain-response --model FOLDER "The ferry leaves at nine. It rains. When does it leave?" --by sentence
  captum-iba explain-response --model FOLDER --file prompts.jsonl --by sentence --keep kept --json results.json
"""


class PartOfPrompt(str, Enum):
    """Parts of a prompt."""

    token = "token"
    word = "word"
    sentence = "sentence"
    paragraph = "paragraph"


def explain_response(
    model: Annotated[str, typer.Option("--model", help="Folder or hub name of a language model, a decoder.")],
    prompt: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="The prompt.", show_default=False)] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="File with the prompt, without the line break at its end, or a table (CSV, JSON lines or parquet) "
            "with one in each row; - is standard input.",
            show_default=False,
        ),
    ] = None,
    prompt_column: Annotated[
        str | None,
        typer.Option(
            help="Column with the prompts, texts or lists of chat messages, of a table.",
            show_default="prompt or messages",
        ),
    ] = None,
    response_column: Annotated[
        str | None,
        typer.Option(help="Column with the responses, of a table; an empty one is generated.", show_default="response"),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            help="Whether the prompt is the message of a user, in the tokenizer's chat template.",
            show_default="if there is one",
        ),
    ] = None,
    response: Annotated[
        str | None,
        typer.Option(
            help="The response to explain, with a space before it if one follows the prompt.",
            show_default="what the model generates",
        ),
    ] = None,
    span: Annotated[
        str | None, typer.Option(help="Text in the response that is explained.", show_default="the whole response")
    ] = None,
    contrast: Annotated[
        str | None,
        typer.Option(help="Another response, or text in the place of --span: why does the model prefer the first one?"),
    ] = None,
    by: Annotated[PartOfPrompt, typer.Option("--by", "--granularity", help="Parts of the prompt.")] = PartOfPrompt.word,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Explain each token of the response by itself, too.")
    ] = False,
    include_system: Annotated[bool, typer.Option("--include-system", help="Explain the system message, too.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens to generate.")] = 25,
    rerank: Annotated[
        int, typer.Option(min=0, help="Number of leading parts that are removed to settle their order.")
    ] = 8,
    check: Annotated[
        bool,
        typer.Option(
            help="Delete the leading parts, those with the fewest bits and random ones, and show the probabilities. "
            "With at most 40 parts, also delete each alone."
        ),
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the parts that the check deletes at random.")] = 0,
    beta: Annotated[float | None, typer.Option(min=0, help="Weight of the information.", show_default="0.1")] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="Number of optimizer steps.", show_default="10")] = None,
    html: Annotated[Path | None, typer.Option(help="File for a page with the colored prompt.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="File for a JSON list of results; of a table with its id; - is standard output."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder for finished results: the same command then goes on where it stopped."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Largest number of rows of a forward pass.")] = 8,
    prompts_per_batch: Annotated[
        int, typer.Option(min=1, help="Number of prompts of a table that share forward passes, for a GPU.")
    ] = 1,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    executor: ExecutorOption = ExecutorName.local,
    address: AddressOption = None,
    workers: WorkersOption = None,
    details: DetailsOption = False,
    quiet: QuietOption = False,
) -> None:
    """Explain responses of a language model: the parts of the prompt that they need, and what is left without them."""
    work = KeptWork("prompts", keep, quiet)
    with plain_errors(quiet, work.interrupted):
        if (prompt is None) == (file is None):
            raise typer.BadParameter("PROMPT and --file: expected one of them.")
        if prompt is not None and not prompt.strip():
            raise typer.BadParameter(f"PROMPT {'is only white space' if prompt else 'is empty'}, expected a prompt.")
        check_input("--file", None if file == "-" else file, "a file with a prompt")
        check_model(model)
        check_results(html, json_file)
        check_output_folder("--keep", keep)
        is_table = file is not None and has_columns(file)
        for option, column in (("--prompt-column", prompt_column), ("--response-column", response_column)):
            if column is not None and not is_table:
                raise typer.BadParameter(f"{option} is for a table (--file with CSV, JSON lines or parquet).")
        with loading():
            import torch

            from captum_iba._explain.model import check_device
            from captum_iba.compare.explain_many import explain_prompts
            from captum_iba.text import GenerationExplainer
            from captum_iba.text.generation import GREEDY

            left_out = ""
            ids: list[str] | None
            names: list[str] | None
            if is_table:
                table = read_prompt_table(str(file), prompt_column, response_column)
                prompts, responses, ids, names = table.prompts, table.responses, table.ids, table.names
                left_out = table.left_out
                table.note_unread(str(file), quiet, ("span", "contrast"))
            else:
                ids, names = None, None
                prompts, responses = [read_prompt_file(str(file)) if prompt is None else prompt], [None]
            if response is not None:
                if any(item is not None for item in responses):
                    raise typer.BadParameter("--response: the responses are in the file already.")
                responses = [response] * len(prompts)
            if contrast is not None and per_token:
                raise typer.BadParameter("--per-token and --contrast: expected at most one of them.")
            where = find_executor(executor, address, workers)
            if not where.remote:  # remote workers have devices of their own
                check_device(device, "--device")
            note(f"loading {model}", quiet)
            with named_model(model):
                explainer = GenerationExplainer.from_pretrained(
                    model,
                    device=None if where.remote else device,
                    dtype=getattr(torch, (dtype or Precision.float32).value),
                )
        messages = as_messages(prompts, explainer.tokenizer, chat)
        in_template = messages != prompts
        note(f"explaining{'; the prompt is a message of a user in the chat template' if in_template else ''}", quiet)
        work.total, failures = len(prompts), Failures("prompts")
        with quiet_workers(where), work.every_minute():
            results = explain_prompts(
                where,
                explainer,
                messages,
                responses,
                device=device,
                prompts_per_batch=prompts_per_batch,
                show_progress=not quiet and sys.stderr.isatty(),
                keep=keep,
                names=names,
                on_prompt=work.progressed,
                on_kept=work.found,
                on_error=None if names is None else lambda i, error: failures.tell(i, names[i], error),
                span=span,
                contrast=contrast,
                granularity=by.value,
                include_system=include_system,
                per_token=per_token,
                rerank=rerank,
                check=check,
                seed=seed,
                gen_args={**GREEDY, "max_new_tokens": max_new_tokens},
                batch_size=batch_size,
                beta=beta,
                n_steps=steps,
            )
        if ids is not None:
            ids = [name for number, name in enumerate(ids) if number not in failures.numbers]
        if results:
            introduction = f"{left_out} {failures.introduction}".strip()
            _deliver(results, ids, html, json_file, details, quiet, introduction)
        failures.exit(len(prompts))


def _deliver(
    results: list[GenerationAttribution],
    ids: list[str] | None,
    html: Path | None,
    json_file: Path | None,
    details: bool,
    quiet: bool,
    introduction: str,
) -> None:
    """Write and print results; of a table with the ids of its rows."""
    from captum_iba._reading.check_sentences import summary
    from captum_iba._reading.prompt_sentences import part_check
    from captum_iba._reading.wording import printable
    from captum_iba.visualization import generation_page
    from captum_iba.visualization.generation_page import asked

    def entries() -> list[dict[str, Any]]:
        found = [result.to_dict() for result in results]
        return found if ids is None else [{**entry, "id": name} for entry, name in zip(found, ids, strict=True)]

    headings: list[str] = []
    if ids is not None:
        headings = [f"{printable(name)}. {printable(asked(one))}" for name, one in zip(ids, results, strict=True)]
    deliver(
        entries,
        json_file,
        html,
        page=lambda: generation_page(results, ids=ids, introduction=introduction),
        show=lambda: typer.echo(printed(results, details, headings, quiet)),
        quiet=quiet,
    )
    if said := summary([None if one.check is None else part_check(one) for one in results]):
        note(said, quiet)
