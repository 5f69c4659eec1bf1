"""Which attribution of generated text is most faithful to the model, at which cost?

    python recipes/language_models.py models
    python -m benchmarks.generated_text --model models/smollm2-135m-instruct --data train.jsonl.gz --rows rows.jsonl

The model answers every prompt itself, up to 24 tokens. Each method scores the words or sentences of the text in the
prompt; what is asked about it is left alone. Parts are deleted, the one with the highest score first, and the table has
the decrease in the mean log-probability per token of the answer without the first 1, 3 and 5 parts, its mean over
ninths of them (AOPC), and the linear datamodeling score over 64 random removals, with the paired difference of
the bottleneck and its 95% interval. Task "fact" has the answer in one sentence of several, and the table says how
often that sentence comes first where the answer is right. Rows are kept in a file, and the same command goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from captum.attr import LayerIntegratedGradients, LLMGradientAttribution, TextTokenInput
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.page import RESULTS, keep, machine
from captum_iba._bootstrap import paired_bootstrap
from captum_iba.compare.tables import FEWEST
from captum_iba.methods.prompt_methods import context_cite, leave_one_part_out
from captum_iba.metrics.prompt_removal import linear_datamodeling_score, prompt_degradation, removal_effects
from captum_iba.text.generation import (
    GENERATION,
    GREEDY,
    LLMInformationBottleneckAttribution,
    generation_settings,
)
from captum_iba.text.prompt import Prompt, divide
from captum_iba.text.prompt_model import PromptRemoval

N_TOKENS, COUNTS, N_RERANKED = 24, (1, 3, 5), 8
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
    parser.add_argument("--by", choices=("word", "sentence"), default="word")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, required=True, help="file of the rows, JSON lines")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    attribution = LLMInformationBottleneckAttribution(model, tokenizer)
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.is_file() else []
    done = {(row["example"], row["method"]) for row in rows}
    for number, (text, prompt_text, answer) in enumerate(prompts(options)):
        wanted = [name for name in options.methods if (number, name) not in done]
        if not wanted:
            continue
        case = Case(attribution, text, prompt_text, options.by)
        if number == 0:
            iba(case)  # the check of the model, once per model, is not timed
        right = None if answer is None else answer.lower() in tokenizer.decode(case.response).lower()
        for name in wanted:
            row = {"example": number, "method": name, "right": right, **case.measure(name, answer is None)}
            if answer is not None:
                row["first"] = answer in case.prompt.names[max(range(case.n_parts), key=lambda i: row["scores"][i])]
            rows.append(row)
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(f"{number + 1} of {options.examples}", flush=True)
    name = f"generated_{Path(options.model).name}_{options.task}_{options.by}"
    title = f"Generated text: {Path(options.model).name}, {options.task}, by {options.by}"
    keep(RESULTS / name, "generated_text", None, title, machine(), table(rows, options.methods), rows=rows)


def prompts(options: argparse.Namespace) -> list[tuple[str, str, str | None]]:
    """The text that is attributed to, the prompt with the question, and the answer, if it is known."""
    if options.task == "fact":
        return [planted_fact(options.seed + number) for number in range(options.examples)]
    with gzip.open(options.data, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)[options.column] for line in file]
    texts = [" ".join(text.split()) for text in texts]
    texts = [text for text in texts if 20 <= len(text.split()) <= 45 and len(divide(text, "sentence")) > 1]
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


class Case:
    """A prompt, the model's response, and the parts of the text in it."""

    def __init__(self, attribution: LLMInformationBottleneckAttribution, text: str, prompt: str, by: str) -> None:
        self.attribution, self.model, self.tokenizer = attribution, attribution.model, attribution.tokenizer
        tokenizer = self.tokenizer
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        start = prompt.index(text)
        spans = [(start + a, start + b) for a, b in divide(text, by)]
        self.prompt: Prompt = attribution.read(prompt, spans)
        self.n_parts = len(self.prompt.names)
        self.response = attribution.response_ids(self.prompt, None, {**GREEDY, "max_new_tokens": N_TOKENS})
        self.known: dict[tuple[bool, ...], float] = {}

    def removal(self) -> PromptRemoval:
        """The function of the kept parts, with a count of its passes."""
        return PromptRemoval(self.model, self.prompt, self.response)

    def cached(self, kept: Tensor) -> Tensor:
        """Log-probabilities, each computed once for all methods; what a method itself runs is not cached."""
        new = [row for row in dict.fromkeys(map(tuple, kept.tolist())) if row not in self.known]
        if new:
            self.known.update(zip(new, self.removal()(torch.tensor(new)).tolist(), strict=True))
        return torch.tensor([self.known[tuple(row)] for row in kept.tolist()])

    def measure(self, name: str, with_metrics: bool) -> dict[str, Any]:
        """Scores and cost of a method, and its metrics."""
        began = time.perf_counter()
        scores, passes, *additive = METHODS[name](self)
        seconds = time.perf_counter() - began
        cost = {"scores": [round(value, 6) for value in scores.tolist()], "passes": passes, "seconds": seconds}
        if not with_metrics:
            return cost
        removal = self.cached
        drops = prompt_degradation(removal, scores, COUNTS).drops.tolist()
        curve = prompt_degradation(removal, scores).drops
        score = linear_datamodeling_score(removal, additive[0] if additive else scores, seed=1)
        return {
            **cost,
            **{f"drop@{count}": drop for count, drop in zip(COUNTS, drops, strict=True)},
            "aopc": float(curve.mean()),
            "lds": score,
        }


def iba(case: Case, **overrides: Any) -> tuple[Tensor, float]:
    """The bottleneck, and its cost in forward passes."""
    settings = generation_settings(GENERATION, overrides)
    weights = torch.ones(1, len(case.response)) / len(case.response)
    bits, _, _ = case.attribution.attribute_parts(case.prompt, case.response, weights, settings)
    # A backward pass to the embeddings alone costs about a forward pass.
    return bits[0], 2 * settings.n_steps + 2


def reranked(case: Case) -> tuple[Tensor, float, Tensor]:
    """The bottleneck with its leading parts ranked by removal, as GenerationExplainer does; and the bits."""
    bits, passes = iba(case)
    order = bits.argsort(descending=True).tolist()
    removal = case.removal()
    _, effects = removal_effects(removal, order[:N_RERANKED], case.n_parts)
    leaders = [order[i] for i in effects.argsort(descending=True).tolist()]
    n_helpful = int((effects > 0).sum())  # those whose removal raises the log-probability are the last
    scores = torch.empty(case.n_parts)
    ranked = leaders[:n_helpful] + order[N_RERANKED:] + leaders[n_helpful:]
    scores[ranked] = torch.arange(case.n_parts, 0, -1.0)
    return scores, passes + removal.passes, bits


def cite(case: Case, n_contexts: int) -> tuple[Tensor, float]:
    """ContextCite."""
    scores = context_cite(case.removal(), case.n_parts, len(case.response), n_contexts)
    return scores, n_contexts


def leave_one_out(case: Case) -> tuple[Tensor, float]:
    """Each part deleted by itself."""
    return leave_one_part_out(case.removal(), case.n_parts), case.n_parts + 1


def integrated_gradients(case: Case, n_steps: int = 20) -> tuple[Tensor, float]:
    """Captum's LLMGradientAttribution, which has a pass forward and back per step and token of the response."""
    layer = case.model.get_input_embeddings()
    attribution = LLMGradientAttribution(LayerIntegratedGradients(case.model, layer), case.tokenizer)
    inp = TextTokenInput(case.prompt.text, case.tokenizer, skip_tokens=[])
    inp.inp_tensor = torch.tensor([case.prompt.ids])
    result = attribution.attribute(inp, target=torch.tensor(case.response), n_steps=n_steps, internal_batch_size=4)
    parts = torch.tensor(case.prompt.parts)
    scores = torch.zeros(case.n_parts).index_add_(
        0, parts.clamp_min(0), torch.where(parts >= 0, result.seq_attr.cpu().float(), 0)
    )
    return scores, 2 * n_steps * len(case.response)


def chance(case: Case) -> tuple[Tensor, float]:
    """Random scores."""
    return torch.rand(case.n_parts, generator=torch.Generator().manual_seed(len(case.prompt.ids))), 0


METHODS: dict[str, Callable[[Case], tuple[Any, ...]]] = {
    "iba": reranked,
    "iba_bits": iba,
    "context_cite_32": lambda case: cite(case, 32),
    "context_cite_64": lambda case: cite(case, 64),
    "context_cite_256": lambda case: cite(case, 256),
    "leave_one_out": leave_one_out,
    "integrated_gradients": integrated_gradients,
    "random": chance,
}


def table(rows: list[dict[str, Any]], methods: list[str]) -> str:
    """Means, and the paired difference of the first method with its interval."""
    every = (*(f"drop@{count}" for count in COUNTS), "aopc", "lds")
    columns = [name for name in every if all(name in row for row in rows)]
    examples = sorted({row["example"] for row in rows})
    of_method = {m: {row["example"]: row for row in rows if row["method"] == m} for m in methods}
    names = ["method", *columns, "passes", "seconds", "first"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for method in methods:
        mine, cells = of_method[method], []
        common = [i for i in examples if i in mine and i in of_method[methods[0]]]
        for column in columns:
            values = torch.tensor([mine[i][column] for i in common], dtype=torch.float64).nan_to_num(0)
            reference = torch.tensor(
                [of_method[methods[0]][i][column] for i in common], dtype=torch.float64
            ).nan_to_num(0)
            cell = f"{values.mean():.2f}"
            if method != methods[0] and len(common) >= FEWEST:
                found = paired_bootstrap(reference, values)
                cell += f" ({found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}])"
            cells.append(cell)
        right = [mine[i]["first"] for i in common if mine[i].get("right")]
        first = f"{sum(right)} of {len(right)}" if right else "—"
        passes = sum(mine[i]["passes"] for i in common) / len(common)
        seconds = sum(mine[i]["seconds"] for i in common) / len(common)
        lines.append(f"| {' | '.join([method, *cells, f'{passes:.0f}', f'{seconds:.1f}', first])} |")
    brackets = f"; in brackets: {methods[0]} minus the method, 95% interval" if columns else ""
    return "\n".join(lines) + f"\n\n{len(examples)} prompts{brackets}.\n"


if __name__ == "__main__":
    main()
