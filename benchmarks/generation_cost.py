"""What it costs to attribute a response of 24 tokens to a prompt of 512: rows, seconds and memory, method by method.

    python -m benchmarks.generation_cost --model models/smollm2-135m-instruct

The prompt has some 40 sentences, which are the parts. Every method runs in a process of its own, so the peak is its
own. Rows and tokens are those of forward passes; ours has 10 backward passes beside them, integrated gradients one per
row. The latter has two steps here, and costs in proportion to them. A method that takes longer than ``--limit`` seconds
is stopped, and the table says so. With ``--methods`` the rows of others are those that were measured before.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from captum.attr import (
    FeatureAblation,
    LayerIntegratedGradients,
    LLMAttribution,
    LLMGradientAttribution,
    TextTemplateInput,
    TextTokenInput,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.generated_text import CITIES, NAMES, THINGS
from benchmarks.page import RESULTS, keep, machine
from captum_iba.methods.prompt_methods import context_cite
from captum_iba.text import GenerationExplainer
from captum_iba.text.generation import GREEDY

N_PROMPT, N_RESPONSE = 512, 24
METHODS = {
    "nothing": "the model and its response",
    "iba": "GenerationExplainer, by its default",
    "context_cite": "ContextCite, 64 removals",
    "ablation": "Captum LLMAttribution(FeatureAblation)",
    "ablation_one_pass": "Captum LLMAttribution(FeatureAblation), forward_in_tokens=False",
    "gradients": "Captum LLMGradientAttribution(LayerIntegratedGradients), 2 steps",
}


def main() -> None:
    """Run every method in its process, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--method", choices=list(METHODS), help="only this one, in this process")
    parser.add_argument("--limit", type=float, default=3600.0, help="most seconds of a method (default: 3600)")
    options = parser.parse_args()
    if options.method is not None:
        print(json.dumps(measure(options.model, options.method)))
        return
    name = f"generation_cost_{Path(options.model).name}"
    before = json.loads(path.read_text())["rows"] if (path := RESULTS / f"{name}.json").exists() else []
    found = {row["method"]: row for row in before}
    for method in options.methods:
        command = [sys.executable, "-m", "benchmarks.generation_cost", "--model", options.model, "--method", method]
        try:
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=options.limit)
            found[method] = {"method": method, **json.loads(done.stdout.splitlines()[-1])}
        except subprocess.TimeoutExpired:
            found[method] = {"method": method, "stopped_after": options.limit}
        print(found[method], flush=True)
    rows = [found[method] for method in METHODS if method in found]
    keep(RESULTS / name, "generation_cost", None, f"Cost of one response: {name}", machine(), table(rows), rows=rows)


def measure(path: str, method: str) -> dict[str, Any]:
    """Rows of forward passes, seconds, and the peak of the process's memory."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    explainer = GenerationExplainer(model, tokenizer)
    sentences = story(tokenizer)
    prompt = " ".join(sentences)
    arguments = {**GREEDY, "min_new_tokens": N_RESPONSE, "max_new_tokens": N_RESPONSE}
    ids = explainer.attribution.response_ids(explainer.attribution.read(prompt), None, arguments)
    response = tokenizer.decode(ids)
    explainer.explain("A short prompt.", " A response.", n_steps=1, rerank=0)  # the check of the model, once per model
    counted = [0, 0]

    def count(module: Any, args: Any, inputs: dict[str, Any]) -> None:
        given = args[0] if args else inputs["hidden_states"]
        counted[0] += given.shape[0]
        counted[1] += given.shape[0] * given.shape[1]

    # Not at the model: Captum calls its forward, past hooks.
    model.base_model.layers[0].register_forward_pre_hook(count, with_kwargs=True)
    began = time.perf_counter()
    if method == "iba":
        explainer.explain(prompt, response, granularity="sentence")
    elif method == "context_cite":
        removal = explainer.removal(prompt, response, granularity="sentence")
        context_cite(removal, len(removal.prompt.names), n_tokens=len(ids))
    elif method.startswith("ablation"):
        template = TextTemplateInput(" ".join(["{}"] * len(sentences)), sentences)
        by_tokens = {"forward_in_tokens": method == "ablation"}
        LLMAttribution(FeatureAblation(model), tokenizer).attribute(template, target=response, **by_tokens)
    elif method == "gradients":
        inner = LayerIntegratedGradients(model, model.get_input_embeddings())
        LLMGradientAttribution(inner, tokenizer).attribute(
            TextTokenInput(prompt, tokenizer), target=response, n_steps=2
        )
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": counted[0], "tokens": counted[1], "seconds": round(seconds, 1), "peak_mib": round(peak)}


def story(tokenizer: Any) -> list[str]:
    """Sentences that have 512 tokens or a few less."""
    draw, sentences = random.Random(0), ["This is what happened in the town."]
    while True:
        more = f"{draw.choice(NAMES)} bought a {draw.choice(THINGS)} in {draw.choice(CITIES)}."
        if len(tokenizer(" ".join([*sentences, more]))["input_ids"]) > N_PROMPT:
            return sentences
        sentences.append(more)


def table(rows: list[dict[str, Any]]) -> str:
    """Rows, tokens in them, seconds, and memory above that of the model and its response."""
    lines = ["| method | rows | tokens | seconds | peak above the model, MiB |", "|---|---|---|---|---|"]
    first = rows[0]["peak_mib"]
    for row in rows[1:]:
        if "stopped_after" in row:
            lines.append(f"| {METHODS[row['method']]} | | | not finished after {row['stopped_after']:,.0f} | |")
            continue
        numbers = f"{row['rows']} | {row['tokens']:,} | {row['seconds']} | {max(0, row['peak_mib'] - first)}"
        lines.append(f"| {METHODS[row['method']]} | {numbers} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
