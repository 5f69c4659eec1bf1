"""A language model's prompt: its tokens, and the parts of it that an attribution has one score for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product
from numbers import Integral
from typing import Any

from captum.attr import TextTemplateInput, TextTokenInput
from torch import Tensor

from captum_iba._checks import check_choice, kind_of
from captum_iba._warnings import warn_user

GRANULARITIES = ("token", "word", "sentence", "paragraph")
"""The parts that a prompt can be divided into."""

# Characters of scripts without spaces are words of their own: Thai, Lao, Khmer, kana, CJK.
_NO_SPACES = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\s{_NO_SPACES}]+")
# A sentence ends with its mark and the quotes and brackets after it, before white space, or with the line.
_END_OF_SENTENCE = re.compile(
    r"""[.!?\u2026]+["'\u2019\u201d)\]]*(?=\s)|[\u061f\u06d4\u0964\u0965\u104b\u1362\u3002\uff01\uff1f]["\u300d\u201d)]*|\n"""
)
# What a sentence does not end with, though a period and white space follow.
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|vs|e\.g|i\.e|cf)\.\Z")
_LETTERS = re.compile(r"\b(?:[^\W\d_]\.){2,}\Z")  # a.m., U.S.
_PARAGRAPH = re.compile(r"\S(?:.*?\S)??(?=\s*?\n[^\S\n]*\n|\s*\Z)", re.DOTALL)
_ROLES = ("system", "user", "assistant", "developer", "tool", "function", "model")  # of chat messages


@dataclass(frozen=True)
class Prompt:
    """Tokens of a prompt and its parts.

    Attributes:
        ids (list of int): Token ids.
        parts (list of int): Number of the part that each token belongs to, -1 for none.
        names (list of str): Text of each part.
        text (str): The prompt as the model gets it, a chat template included; "" if only ids are known.
        spans (list of tuple): Start and end of each part in ``text``; empty if only ids are known.
        decoder_ids (list of int): Token ids after which the response follows in the decoder of an encoder-decoder;
            empty for a decoder.
        before_response (str): White space that a chat template puts before a response.
        system (str): Contents of the system messages, if they have no parts.
    """

    ids: list[int]
    parts: list[int]
    names: list[str]
    text: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)
    decoder_ids: list[int] = field(default_factory=list)
    before_response: str = ""
    system: str = ""


def read_prompt(
    inp: Any, tokenizer: Any, granularity: str | Sequence[tuple[int, int]] = "token", include_system: bool = False
) -> Prompt:
    """The tokens and parts of a prompt: one of Captum's inputs, a string, or chat messages.

    ``granularity`` divides strings and the contents of messages; Captum's inputs have parts of their own. System
    messages have parts with ``include_system``.

    Raises:
        TypeError: An input of another type.
        ValueError: No part, spans that are not in the prompt, or a template in which the parts cannot be found.
    """
    if isinstance(inp, TextTokenInput):
        kept = [True] * inp.inp_tensor.shape[1] if inp.itp_mask is None else inp.itp_mask[0].tolist()
        before = list(accumulate(kept, initial=0))
        parts = [number if keep else -1 for keep, number in zip(kept, before, strict=False)]
        prompt = Prompt(inp.inp_tensor[0].tolist(), parts, list(inp.values))
    elif isinstance(inp, TextTemplateInput):
        prompt = _read_template(inp, tokenizer)
    elif isinstance(inp, str):
        _check_granularity(granularity)
        prompt = _divide(_Tokens.of(tokenizer, inp, add_special_tokens=True), [(0, len(inp))], granularity, tokenizer)
    elif isinstance(inp, (list, tuple)) and inp and all(isinstance(message, Mapping) for message in inp):
        _check_granularity(granularity)
        if not isinstance(granularity, str):
            raise ValueError("granularity has spans, and the prompt is a list of messages; expected spans of a string")
        for number, message in enumerate(inp):
            if not isinstance(content := message.get("content"), str):
                raise TypeError(f"the content of message {number} is {kind_of(content)}, expected a string")
            if not isinstance(role := message.get("role"), str):
                raise TypeError(f"the role of message {number} is {role!r}, expected a string such as 'user'")
        system = [] if include_system else [message["content"] for message in inp if message["role"] == "system"]
        if len(system) == len(inp):
            raise ValueError(
                "the prompt has a system message alone, and those have no mask; expected a message of a user, too, or "
                "include_system=True"
            )
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("prompt has chat messages, and the tokenizer has no chat template; expected a string")
        for number, message in enumerate(inp):
            _warn_of_role(message["role"], number, str(tokenizer.chat_template))
        text = tokenizer.apply_chat_template(inp, tokenize=False, add_generation_prompt=True)
        contents = _contents(tokenizer, text, inp, include_system)
        prompt = _divide(_Tokens.of(tokenizer, text), contents, granularity, tokenizer)
        spaces = _space_before_response(tokenizer, text, inp)
        prompt = replace(prompt, before_response=spaces, system="\n".join(system))
    else:
        raise TypeError(f"inp is {kind_of(inp)}, expected TextTokenInput, TextTemplateInput, a string or chat messages")
    if not any(part >= 0 for part in prompt.parts):
        if isinstance(inp, str) and not inp.strip():
            raise ValueError("prompt is empty, expected a text")
        raise ValueError("the prompt has no token to attribute to, expected one that is not skipped or of a template")
    return prompt


def _warn_of_role(role: str, number: int, template: str) -> None:
    """Many templates take any role, and write it into the prompt."""
    if role not in _ROLES and role not in template:
        warn_user(
            f"the role of message {number} is {role!r}, which the chat template does not name; expected one that the "
            f"model was trained with, such as {', '.join(_ROLES[:3])}"
        )


def _check_granularity(granularity: Any) -> None:
    """Raise TypeError for anything but a name or a list of spans."""
    if not isinstance(granularity, (str, list, tuple)):
        raise TypeError(
            f"granularity is {granularity!r}, expected one of {', '.join(GRANULARITIES)}, or (start, end) of spans"
        )


def divide(text: str, granularity: str) -> list[tuple[int, int]]:
    """Start and end of the words, sentences or paragraphs of a text, without the white space around them.

    Words are between white space, and single characters of scripts without spaces. Sentences end with their marks or
    with a line, paragraphs at empty lines.
    """
    if granularity == "word":
        return [found.span() for found in _WORD.finditer(text)]
    if granularity == "paragraph":
        return [found.span() for found in _PARAGRAPH.finditer(text)]
    found = (match.end() for match in _END_OF_SENTENCE.finditer(text))
    ends = [0, *(end for end in found if not _goes_on(text, end)), len(text)]
    return [
        (start + len(sentence) - len(sentence.lstrip()), start + len(sentence.rstrip()))
        for start, sentence in ((start, text[start:end]) for start, end in pairwise(ends))
        if sentence.strip()
    ]


def _goes_on(text: str, end: int) -> bool:
    """Whether a sentence goes on after a period: of an abbreviation, or of p.m. before a lower-case letter."""
    begun, following = max(0, end - 6), text[end:].lstrip(" \t")
    return bool(
        _ABBREVIATION.search(text, begun, end) or (_LETTERS.search(text, begun, end) and following[:1].islower())
    )


def encode_response(tokenizer: Any, prompt: Prompt, response: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids of a response as they follow a prompt, and the start and end of each in the response.

    The response of a decoder is encoded with what comes before it: by itself it may begin with a space that it does not
    have ("▁" of Llama). Where it goes on with a word of the prompt, or the prompt has other tokens then, a new line
    stands for the prompt.
    """
    contexts = [("\n", tokenizer("\n", add_special_tokens=False)["input_ids"])]
    text = prompt.text or str(tokenizer.decode(prompt.ids))
    if not (text[-1:].isalnum() and response[:1].isalnum()):
        spaces = "" if response[:1].isspace() else prompt.before_response
        contexts = [*((before, prompt.ids) for before in dict.fromkeys([text + spaces, text])), *contexts]
    for before, ids in () if prompt.decoder_ids else contexts:
        for add_special_tokens in (False, True):
            encoded = tokenizer(before + response, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
            found, offsets = encoded["input_ids"], encoded["offset_mapping"]
            while len(found) > len(ids) and add_special_tokens and offsets[-1][0] == offsets[-1][1]:
                found, offsets = found[:-1], offsets[:-1]  # the token that ends a text
            spans = [(max(0, a - len(before)), b - len(before)) for a, b in offsets[len(ids) :]]
            if found[: len(ids)] == ids and all(end > 0 for _, end in spans):
                return found[len(ids) :], spans
    encoded = tokenizer(response, add_special_tokens=False, return_offsets_mapping=True)
    return encoded["input_ids"], [(a, b) for a, b in encoded["offset_mapping"]]


def token_ids(name: str, values: Tensor | Sequence[Any]) -> list[int]:
    """Token ids, of a tensor or of a sequence of integers or of rows of them; ``name`` is the argument.

    Raises:
        TypeError: Something else among them, which rounding would change.

    Examples::

        >>> token_ids("response", [5, 7]), token_ids("response", Tensor([[5, 7]]).int())
        ([5, 7], [5, 7])
    """
    rows = values.tolist() if isinstance(values, Tensor) else values
    rows = [
        row.tolist() if isinstance(row, Tensor) else row for row in (rows if isinstance(rows, Sequence) else [rows])
    ]
    numbers = [number for row in rows for number in (row if isinstance(row, (list, tuple)) else [row])]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise TypeError(f"{name} has {number!r} among its token ids, expected integers, or a text in place of them")
    return [int(number) for number in numbers]


def decode_response(tokenizer: Any, prompt: Prompt, ids: Sequence[int]) -> str:
    """Text of the token ids of a response; with the space that decoding takes from a text, if its tokens need it."""
    text = str(tokenizer.decode(ids))
    for candidate in (text, f" {text}"):
        if encode_response(tokenizer, prompt, candidate)[0][:1] == list(ids[:1]):
            return candidate
    return text


def token_text(tokenizer: Any, number: int) -> str:
    """Text of one token."""
    text: str = tokenizer.decode([number])
    return text


@dataclass(frozen=True)
class _Tokens:
    """Tokens of a text, with their characters; special ones have none, but for ``written``, those of the text."""

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]
    written: list[tuple[int, int]]

    @classmethod
    def of(cls, tokenizer: Any, text: str, add_special_tokens: bool = False) -> _Tokens:
        # A chat template has the special tokens in its text, and so has many a template of a prompt.
        begins = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
        add_special_tokens = add_special_tokens and not begins
        encoded = tokenizer(
            text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, return_special_tokens_mask=True
        )
        # An ordinary token stays one if it also pads, and an unknown word is one of the prompt.
        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        special = special - {tokenizer.unk_token_id} | {tokenizer.eos_token_id}
        ids, offsets, added = (encoded[key] for key in ("input_ids", "offset_mapping", "special_tokens_mask"))
        is_special = [is_added or number in special for number, is_added in zip(ids, added, strict=True)]
        return cls(
            text,
            ids,
            [(0, 0) if hidden else tuple(offset) for offset, hidden in zip(offsets, is_special, strict=True)],
            [(a, b) for (a, b), hidden in zip(offsets, is_special, strict=True) if hidden and a < b],
        )

    def ends(self, regions: Sequence[tuple[int, int]], only_before_space: bool = False) -> list[int]:
        """The end of each token; of one that ends in no region, and has the end of one in it, that end.

        Tokenizers join the last character of a message with the line break of the template that follows. With
        ``only_before_space`` only tokens that go on with white space alone are taken so.
        """

        def end_of(start: int, end: int) -> int:
            if any(a < end <= b for a, b in regions):
                return end
            begun = [b for _, b in regions if start < b < end]
            rest = self.text[begun[-1] : end] if begun else ""
            return begun[-1] if begun and (rest.isspace() or not only_before_space) else end

        return [end_of(start, end) for start, end in self.offsets]

    def between_special_tokens(self, regions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Regions of the text without the special tokens that are written in it."""
        pieces = list(regions)
        for a, b in self.written:
            before_and_after = [((start, min(end, a)), (max(start, b), end)) for start, end in pieces]
            pieces = [(start, end) for both in before_and_after for start, end in both if start < end]
        return pieces


def _divide(
    tokens: _Tokens,
    regions: Sequence[tuple[int, int]],
    granularity: str | Sequence[tuple[int, int]],
    tokenizer: Any,
) -> Prompt:
    """Parts of the regions of a text; a token belongs to the part that its last character is in, or follows."""
    text = tokens.text
    if not isinstance(granularity, str):
        spans = _checked_spans(granularity, text)
        return _with_parts(tokens, tokens.ends(spans, only_before_space=True), spans, [])
    check_choice("granularity", granularity, GRANULARITIES)
    if granularity != "token":
        regions = tokens.between_special_tokens(regions)
        spans = [(start + a, start + b) for start, end in regions for a, b in divide(text[start:end], granularity)]
        return _with_parts(tokens, tokens.ends(regions), spans, regions)
    kept = [i for i, end in enumerate(tokens.ends(regions)) if any(a < end <= b for a, b in regions)]
    number = {position: n for n, position in enumerate(kept)}
    parts = [number.get(i, -1) for i in range(len(tokens.ids))]
    names = [token_text(tokenizer, tokens.ids[i]) for i in kept]
    return Prompt(tokens.ids, parts, names, text, [tokens.offsets[i] for i in kept])


def _with_parts(
    tokens: _Tokens, ends: Sequence[int], spans: Sequence[tuple[int, int]], regions: Sequence[tuple[int, int]]
) -> Prompt:
    """The prompt with spans as its parts; white space of ``regions`` belongs to the part before it, or the first.

    A token of spaces alone belongs to the part that follows it, as the space does that a token begins with: many
    tokenizers have such a token before a number. ``ends`` are those of the tokens, from :meth:`_Tokens.ends`.
    """

    def span_of(start: int, end: int) -> int:
        piece = tokens.text[start:end]
        if regions and piece.isspace() and "\n" not in piece:
            following = next((i for i, (a, _) in enumerate(spans) if a == end), -1)
            if following >= 0:
                return following
        inside = next((i for i, (a, b) in enumerate(spans) if a < end <= b), -1)
        region = next(((a, b) for a, b in regions if a < end <= b), None)
        if inside >= 0 or region is None:
            return inside
        of_region = [i for i, (a, b) in enumerate(spans) if region[0] <= a and b <= region[1]]
        before = [i for i in of_region if spans[i][1] < end]
        return before[-1] if before else of_region[0] if of_region else -1

    found = [span_of(start, end) if end > start else -1 for (start, _), end in zip(tokens.offsets, ends, strict=True)]
    # A span whose characters are all in a token of the next one is joined with that.
    used = sorted({*found} - {-1})
    if not regions:
        _check_ends(tokens, spans, found)
    starts = [0, *(i + 1 for i in used[:-1])]
    joined = [(spans[first][0], spans[last][1]) for first, last in zip(starts, used, strict=True)] if used else []
    number = {span: n for n, span in enumerate(used)}
    parts = [number.get(span, -1) for span in found]
    return Prompt(tokens.ids, parts, [tokens.text[a:b] for a, b in joined], tokens.text, joined)


def _check_ends(tokens: _Tokens, spans: Sequence[tuple[int, int]], found: Sequence[int]) -> None:
    """Raise ValueError if an own span has no token, or its last characters are in a token of no span.

    ``found`` is the number of the span of each token, -1 for none.
    """
    if missing := [span for i, span in enumerate(spans) if i not in found]:
        raise ValueError(
            f"granularity has the span {missing[0]}, {tokens.text[slice(*missing[0])]!r}, in which no token ends; "
            "expected spans that end where tokens do"
        )
    of_no_span = [offset for offset, i in zip(tokens.offsets, found, strict=True) if i < 0]
    for (a, b), (start, end) in product(spans, of_no_span):
        if max(a, start) < b < end and tokens.text[max(a, start) : b].strip():
            raise ValueError(
                f"granularity has the span {(a, b)}, {tokens.text[a:b]!r}, which ends inside the token "
                f"{tokens.text[start:end]!r}; expected spans that end where tokens do: {(a, end)}"
            )


def is_span(value: object) -> bool:
    """Whether it is (start, end), two integers."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(type(place) is int for place in value)


def _checked_spans(spans: Sequence[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    result, before = [], 0
    for span in spans:
        if not is_span(span):
            raise TypeError(f"granularity has {span!r}, expected (start, end) of each span, in characters")
        if not before <= span[0] < span[1] <= len(text):
            raise ValueError(
                f"granularity has the span {tuple(span)}, expected spans in order that do not overlap, from 0 to "
                f"{len(text)}, the end of the prompt"
            )
        before = span[1]
        result.append((span[0], span[1]))
    return result


def _read_template(inp: TextTemplateInput, tokenizer: Any) -> Prompt:
    text, spans = _spans_of_values(inp)
    groups = inp.formatted_mask if inp.mask is not None else list(range(len(spans)))
    tokens = _Tokens.of(tokenizer, text, add_special_tokens=True)
    parts = [
        next((group for (a, b), group in zip(spans, groups, strict=True) if a < end <= b), -1) if end > start else -1
        for (start, _), end in zip(tokens.offsets, tokens.ends(spans), strict=True)
    ]
    names = list(inp.values)
    if inp.mask is not None:
        names = [" ".join(v for v, g in zip(inp.values, groups, strict=True) if g == n) for n in sorted({*groups})]
    if missing := [name for number, name in enumerate(names) if number not in parts]:
        raise ValueError(f"inp has the value {missing[0]!r}, to which no token belongs, expected values with tokens")
    return Prompt(tokens.ids, parts, names, text, spans if inp.mask is None else [])


def _spans_of_values(inp: TextTemplateInput) -> tuple[str, list[tuple[int, int]]]:
    """The text of a template, and the characters of its values in it."""
    marks, keys = _marks(len(inp.values)), inp.dict_keys
    marked = inp.format_fn(**dict(zip(keys, marks, strict=True))) if keys else inp.format_fn(*marks)
    text, spans = _with_values(marked, marks, inp.values)
    if text != inp.to_model_input() or len(spans) < len(marks):
        raise ValueError("inp: the values are not in the text of the template as they are, expected each unchanged")
    return text, [spans[i] for i in range(len(marks))]


def _contents(
    tokenizer: Any, text: str, messages: Sequence[Mapping[str, str]], include_system: bool
) -> list[tuple[int, int]]:
    """The characters of the contents of messages in the text of a chat template."""
    marks = _marks(len(messages))
    marked = [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)]
    rendered = tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    contents = [message["content"] for message in messages]
    for values in (contents, [content.strip() for content in contents]):  # most templates strip contents
        filled, spans = _with_values(rendered, marks, values)
        if filled == text and len(spans) == len(marks):
            return [spans[i] for i, message in enumerate(messages) if include_system or message["role"] != "system"]
    raise ValueError("prompt: the chat template changes the contents of messages, expected each once, as it is")


def _space_before_response(tokenizer: Any, text: str, messages: Sequence[Mapping[str, str]]) -> str:
    """White space between the text of a chat template and the response that follows it."""
    import jinja2

    (mark,) = _marks(1)
    answered = [*messages, {"role": "assistant", "content": mark}]
    try:
        rendered = str(tokenizer.apply_chat_template(answered, tokenize=False))
    except jinja2.TemplateError:  # messages that nothing may follow
        return ""
    between = rendered.removeprefix(text).partition(mark)[0] if rendered.startswith(text) else ""
    return between if between.isspace() else ""


def _marks(count: int) -> list[str]:
    return [chr(0xF0000 + i) for i in range(count)]  # characters of private use


def _with_values(marked: str, marks: Sequence[str], values: Sequence[str]) -> tuple[str, dict[int, tuple[int, int]]]:
    """A text with values in place of marks, and the characters of each value; ValueError for a mark that is twice."""
    text, spans = "", dict[int, tuple[int, int]]()
    for character in marked:
        if character not in marks:
            text += character
            continue
        i = marks.index(character)
        if i in spans:
            raise ValueError(f"inp: the template has the value {values[i]!r} twice, expected each once")
        spans[i] = (len(text), len(text) + len(values[i]))
        text += values[i]
    return text, spans
