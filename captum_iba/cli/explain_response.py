"""``captum-iba explain-response``."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from captum_iba.cli.common import (
    DeviceOption,
    Precision,
    PrecisionOption,
    QuietOption,
    check_input,
    check_model,
    check_results,
    loading,
    named_model,
    note,
    plain_errors,
    read_text,
)


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
            help="File with the prompt, without the line break at its end; - is standard input.", show_default=False
        ),
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
        str | None, typer.Option(help="Another response: why does the model prefer the first one to it?")
    ] = None,
    by: Annotated[PartOfPrompt, typer.Option(help="Parts of the prompt.")] = PartOfPrompt.word,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Explain each token of the response by itself, too.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens to generate.")] = 25,
    rerank: Annotated[int, typer.Option(min=0, help="Number of leading parts whose order is settled by removal.")] = 8,
    check: Annotated[bool, typer.Option(help="Delete the leading parts, the least, and random ones.")] = True,
    beta: Annotated[float | None, typer.Option(min=0, help="Weight of the information.", show_default="0.1")] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="Number of optimizer steps.", show_default="10")] = None,
    html: Annotated[Path | None, typer.Option(help="File for a page with the colored prompt.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for the result as JSON; - is standard output.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Largest number of rows of a forward pass.")] = 8,
    device: DeviceOption = None,
    dtype: PrecisionOption = None,
    quiet: QuietOption = False,
) -> None:
    """Explain the response of a language model: the parts of the prompt that it needs, and how many bits of each."""
    with plain_errors(quiet):
        if (prompt is None) == (file is None):
            raise typer.BadParameter("PROMPT and --file: expected one of them.")
        check_input("--file", None if file == "-" else file, "a file with a prompt")
        check_model(model)
        check_results(html, json_file)
        text = _read(str(file)) if prompt is None else prompt
        with loading():
            import torch

            from captum_iba.text import GenerationExplainer
            from captum_iba.text.arguments import check_device
            from captum_iba.text.generation import GREEDY

            check_device(device, "--device")
            note(f"loading {model}", quiet)
            with named_model(model):
                explainer = GenerationExplainer.from_pretrained(
                    model, device=device, dtype=getattr(torch, (dtype or Precision.float32).value)
                )
        has_template = bool(explainer.tokenizer.chat_template)
        if chat and not has_template:
            raise typer.BadParameter("--chat: the tokenizer has no chat template.")
        as_chat = has_template if chat is None else chat
        note(f"explaining{'; the prompt is a message of a user in the chat template' if as_chat else ''}", quiet)
        result = explainer.explain(
            [{"role": "user", "content": text}] if as_chat else text,
            response,
            span=span,
            contrast=contrast,
            granularity=by.value,
            per_token=per_token,
            rerank=rerank,
            check=check,
            show_progress=not quiet and sys.stderr.isatty(),
            gen_args={**GREEDY, "max_new_tokens": max_new_tokens} if response is None else None,
            batch_size=batch_size,
            beta=beta,
            n_steps=steps,
        )
        written = []
        if json_file is not None and str(json_file) != "-":
            written.append(result.save(json_file))
        if html is not None:
            written.append(result.save_html(html))
        typer.echo(result.to_json(indent=1) if str(json_file) == "-" else str(result))
        for path in written:
            note(f"wrote {path}", quiet)


def _read(file: str) -> str:
    text = read_text(file)
    if not text.strip():
        raise ValueError(f"--file: {file} is empty, expected a prompt")
    return text.removesuffix("\n").removesuffix("\r")
