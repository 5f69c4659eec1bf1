"""Prompts and responses from files, for the commands about language models."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import typer

from captum_iba.cli.common import note
from captum_iba.cli.text_files import naming_data, read_text, refuse_rows

# Chat messages in JSON or as Python spells them, in a cell of CSV.
_NAMED = 5  # rows in a note
_SPELLED = re.compile(r"\s*\[\s*\{\s*['\"](role|content)['\"]\s*:")


def as_messages(prompts: Sequence[Any], tokenizer: Any, chat: bool | None) -> list[Any]:
    """Prompts, with each string as the message of a user, if that is asked for, or there is a chat template."""
    has_template = bool(tokenizer.chat_template)
    if chat and not has_template:
        raise typer.BadParameter("--chat: the tokenizer has no chat template.")
    as_chat = has_template if chat is None else chat
    return [[{"role": "user", "content": p}] if as_chat and isinstance(p, str) else p for p in prompts]


def read_prompt_file(file: str) -> str:
    """The prompt in a file, without the line break at its end."""
    text = read_text(file)
    if not text.strip():
        raise ValueError(f"--file: {file} is empty, expected a prompt")
    return text.removesuffix("\n").removesuffix("\r")


class TableOfPrompts(NamedTuple):
    """Prompts of a table.

    Attributes:
        prompts (list): Strings, or lists of chat messages.
        responses (list): Responses, None of those that are generated.
        ids (list of str): Ids, or numbers, of the rows.
        names (list of str): What errors call the rows.
        unread (list of str): Columns that are not read.
        blank (list of str): Rows that are left out, because they have no prompt.
    """

    prompts: list[Any]
    responses: list[str | None]
    ids: list[str]
    names: list[str]
    unread: list[str]
    blank: list[str]

    @property
    def left_out(self) -> str:
        """A sentence on the rows that are left out, because they have no prompt; else empty."""
        from captum_iba._reading.wording import enumerated

        if not self.blank:
            return ""
        return f"Left out, because the prompt is empty: {enumerated(self.blank[:_NAMED], len(self.blank[_NAMED:]))}."

    def note_unread(self, source: str, quiet: bool, of_all_rows: Collection[str] = ()) -> None:
        """Say which rows are left out, and which columns are not read; some are options for all rows."""
        if said := self.left_out:
            note(f"{source}: {said[0].lower()}{said[1:-1]}", False)  # they are in no output
        if self.unread:
            options = [f"; --{name} is for all rows" for name in of_all_rows if name in map(str.casefold, self.unread)]
            note(f"{source}: columns that are not read: {', '.join(self.unread)}{''.join(options)}", quiet)


def read_prompt_table(source: str, prompt_column: str | None, response_column: str | None) -> TableOfPrompts:
    """The prompts and responses of a table. A last message of the assistant is the response."""
    from captum_iba.compare.data import open_table, row_name

    with naming_data("--file"):
        table, _ = open_table(source)
    names = {name.strip().casefold(): name for name in reversed(table.column_names)}
    for option, name in (("--prompt-column", prompt_column), ("--response-column", response_column)):
        if name is not None and name not in table.column_names:
            listed = ", ".join(map(repr, table.column_names))
            raise ValueError(f"{option}: {source} has no column {name!r}; the columns are {listed}.")
    prompt_name = prompt_column or names.get("prompt") or names.get("messages")
    if prompt_name is None:
        listed = ", ".join(map(repr, table.column_names))
        raise ValueError(f"{source} has no column 'prompt' or 'messages'; name it by --prompt-column: {listed}.")
    response_name = response_column or names.get("response")
    prompts: list[Any] = []
    responses: list[str | None] = []
    kept, blank, problems = list[int](), list[str](), list[tuple[str, str]]()
    for number in range(len(table)):
        row = table[number]
        prompt, response = row[prompt_name], row[response_name] if response_name is not None else None
        if prompt is None and prompt_column is None:  # a file may have both kinds of lines
            prompt = row.get(names.get("messages", prompt_name))
        if isinstance(prompt, str) and (messages := _messages(prompt)) is not None:
            prompt = messages
        elif isinstance(prompt, str) and (prompt_name.casefold() == "messages" or _SPELLED.match(prompt)):
            said = f"has {prompt[:40]!r} in the column {prompt_name!r}, expected chat messages as a JSON list (of "
            problems.append((row_name(table, number), f"{said}pandas: to_json(orient='records', lines=True))"))
            continue
        if isinstance(prompt, list) and not response and len(prompt) > 1 and _role(prompt[-1]) == "assistant":
            prompt, response = prompt[:-1], prompt[-1].get("content")
        if not isinstance(prompt, (str, list)) or not isinstance(response, (str, type(None))):
            value = response if isinstance(prompt, (str, list)) else prompt
            said = f"has a value of type {type(value).__name__}, expected a text, or a list of chat messages"
            problems.append((row_name(table, number), said))
            continue
        if not (prompt.strip() if isinstance(prompt, str) else prompt):
            blank.append(row_name(table, number))
            continue
        kept.append(number)
        prompts.append(prompt)
        responses.append(response or None)
    refuse_rows(source, problems)
    if not prompts:
        raise ValueError(f"--file: {source} {'has empty prompts alone' if blank else 'is empty'}, expected prompts")
    ids = [str(table[number][names["id"]] if "id" in names else number + 1) for number in kept]
    read = {prompt_name, response_name, names.get("id"), names.get("messages")}
    unread = [name for name in table.column_names if name not in read]
    return TableOfPrompts(
        prompts, responses, ids, [f"{source}: {row_name(table, number)}" for number in kept], unread, blank
    )


def _messages(text: str) -> list[Any] | None:
    """The chat messages that a cell of CSV holds as JSON; None if it is a prompt."""
    try:
        content = json.loads(text) if text.lstrip().startswith("[") else None
    except ValueError:
        return None
    whole = isinstance(content, list) and content and all(isinstance(m, dict) and "role" in m for m in content)
    return content if whole else None


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
