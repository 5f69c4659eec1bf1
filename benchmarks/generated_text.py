"""Which attribution of generated text is most faithful to the model, at which cost?

    python recipes/language_models.py models
    python -m benchmarks.generated_text --model models/smollm2-135m-instruct --data train.jsonl.gz --folder rows

The model answers every prompt itself, up to 24 tokens. Each method scores the words or sentences of the text in the
prompt; what is asked about it is left alone. :func:`captum_iba.compare.compare_prompts` deletes the parts. Task "fact"
has the answer in one sentence of several, and a line says how often that sentence comes first where the answer is
right. Sentences need longer texts: --by sentence --words 100 200. Rows are kept in the folder, and the same command
goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.page import RESULTS, keep, machine
from captum_iba.compare import PromptComparison, compare_prompts
from captum_iba.compare.prompt_comparison import PromptRow
from captum_iba.methods.prompt_methods import PROMPT_METHODS
from captum_iba.text import GenerationExplainer
from captum_iba.text.generation import GREEDY
from captum_iba.text.prompt import divide

N_TOKENS = 24
QUESTIONS = {
    "summary": "Summarize in one sentence:\n{}\nSummary:",
    "question": "{}\nQuestion: What is the text about?\nAnswer:",
    "fact": "{}\nQuestion: {}\nAnswer:",
}
# fmt: off
NAMES = [
    "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack",
    "Karen", "Leo", "Mona", "Nick", "Olga", "Paul", "Rose", "Sam", "Tina", "Victor",
]
THINGS = [
    "bicycle", "umbrella", "guitar", "camera", "violin", "teapot", "lamp", "carpet", "mirror", "helmet",
    "basket", "kettle", "blanket", "drum",
]
ROLES = ["doctor", "teacher", "baker", "mayor", "priest", "judge"]
SURNAMES = ["Whitfield", "Marlowe", "Thornton", "Ashcroft", "Pemberton", "Hawkins", "Lindqvist", "Okafor"]
CITIES = [
    "Paris", "London", "Berlin", "Madrid", "Rome", "Vienna", "Oslo", "Lisbon", "Dublin", "Prague",
    "Athens", "Warsaw", "Cairo", "Tokyo", "Lima",
]
# fmt: on


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", choices=list(QUESTIONS), default="summary")
    parser.add_argument("--data", type=Path, help="JSON lines with the texts, gzipped; not for the task fact")
    parser.add_argument("--column", default="text")
    parser.add_argument("--words", type=int, nargs=2, default=(20, 45), help="the fewest and the most words of a text")
    parser.add_argument("--by", choices=("word", "sentence"), default="word")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--methods", nargs="+", choices=list(PROMPT_METHODS), default=list(PROMPT_METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="of the rows")
    parser.add_argument("--finished", action="store_true", help="measure nothing: the table of the rows in the folder")
    options = parser.parse_args()
    if options.finished:
        write(options, finished(options.folder, options.methods), "")
        return
    explainer = GenerationExplainer.from_pretrained(options.model)
    texts, questions, answers = zip(*prompts(options), strict=True)
    pairs = zip(texts, questions, strict=True)
    asked, spans = zip(*(in_template(explainer, *pair, options.by) for pair in pairs), strict=True)
    gen_args = {**GREEDY, "max_new_tokens": N_TOKENS}
    comparison = compare_prompts(
        explainer,
        asked,
        methods=options.methods,
        granularity=spans,
        gen_args=gen_args,
        folder=options.folder,
        on_row=lambda count: print(f"{count} of {len(asked) * len(options.methods)} rows", flush=True),
    )
    facts = f"\n{facts_found(explainer, comparison, asked, answers)}" if options.task == "fact" else ""
    write(options, comparison, facts)


def finished(folder: Path, methods: list[str]) -> PromptComparison:
    """The rows that a run has kept of these methods, of the prompts that have one of each."""
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    contents = [json.loads(line) for line in lines]
    rows = [PromptRow(**{name: value for name, value in row.items() if name != "code"}) for row in contents]
    whole = {row.prompt for row in rows if {other.method for other in rows if other.prompt == row.prompt} >= {*methods}}
    return PromptComparison(tuple(methods), tuple(row for row in rows if row.prompt in whole and row.method in methods))


def write(options: argparse.Namespace, comparison: PromptComparison, facts: str) -> None:
    """Write the table and its rows."""
    body = comparison.to_markdown() + facts
    name = f"generated_{Path(options.model).name}_{options.task}_{options.by}"
    title = f"Generated text: {Path(options.model).name}, {options.task}, by {options.by}"
    rows = [asdict(row) for row in comparison.rows]
    keep(RESULTS / name, "generated_text", None, title, machine(), body, rows=rows)


def in_template(explainer: GenerationExplainer, text: str, prompt: str, by: str) -> tuple[str, list[tuple[int, int]]]:
    """The prompt in the model's chat template, if it has one, and the spans of the parts of the text in it."""
    tokenizer = explainer.tokenizer
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    start = prompt.index(text)
    return prompt, [(start + a, start + b) for a, b in divide(text, by)]


def facts_found(
    explainer: GenerationExplainer, comparison: PromptComparison, asked: tuple[str, ...], answers: tuple[str, ...]
) -> str:
    """How often each method ranks the sentence with the answer first, where the model answers right."""
    lines = []
    right = [
        answer.lower() in explainer.explain(prompt, n_steps=0, rerank=0, granularity="sentence").response.lower()
        for prompt, answer in zip(asked, answers, strict=True)
    ]
    for method in comparison.methods:
        rows = [row for row in comparison.rows if row.method == method and right[row.prompt]]
        first = [answers[row.prompt] in row.parts[int(torch.tensor(row.scores).argmax())] for row in rows]
        lines.append(f"{method}: the sentence with the answer first in {sum(first)} of {len(first)} right answers.")
    return "\n".join(lines)


def prompts(options: argparse.Namespace) -> list[tuple[str, str, str | None]]:
    """The text that is attributed to, the prompt with the question, and the answer, if it is known."""
    if options.task == "fact":
        return [planted_fact(options.seed + number) for number in range(options.examples)]
    with gzip.open(options.data, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)[options.column] for line in file]
    texts = [" ".join(text.split()) for text in texts]
    fewest, most = options.words
    texts = [text for text in texts if fewest <= len(text.split()) <= most and len(divide(text, "sentence")) > 1]
    chosen = random.Random(options.seed).sample(texts, options.examples)
    return [(text, QUESTIONS[options.task].format(text), None) for text in chosen]


def planted_fact(seed: int) -> tuple[str, str, str]:
    """8 to 40 sentences, one of which says who has a role, and a question for that."""
    draw = random.Random(seed)
    pairs = draw.sample([(name, thing) for name in NAMES for thing in THINGS], draw.randint(8, 40) - 1)
    sentences = [f"{name} bought a {thing} in {draw.choice(CITIES)}." for name, thing in pairs]
    role, name = draw.choice(ROLES), draw.choice(SURNAMES)
    sentences.insert(draw.randint(0, len(sentences)), f"The {role} of the village is called {name}.")
    text = " ".join(sentences)
    return text, QUESTIONS["fact"].format(text, f"What is the {role} of the village called?"), name


if __name__ == "__main__":
    main()
