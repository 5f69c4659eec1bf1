"""How near cheap settings come to a long optimisation: rank correlation of the tokens' bits, text by text.

    python -m benchmarks.convergence --model DIR --data test.jsonl.gz --columns premise hypothesis --examples 8

The long ones take 50 steps of 100 draws, with both sides of the mask in each. One goes on where the default stops, with
steps of the same size. The other goes as far as the default does, 16 steps of 1 in 50 of 16/50: what the default
comes to were its steps small and its noise averaged out. Beside each setting stand the rows that it puts through the
model: steps times draws, twice where both sides run in every step.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.degradation import read_texts
from benchmarks.page import RESULTS, keep, machine
from captum_iba.attr.settings import resolve_settings
from captum_iba.demo import embedded_model_path
from captum_iba.methods.task import FloatArray
from captum_iba.text import TextExplainer

_LONG = {"n_steps": 50, "n_samples": 100, "alternate": False, "tail_average": 0.0, "seed": 100}
_DEFAULT = resolve_settings()
REFERENCES = {
    "three times as far": _LONG,
    "as far, in fine steps": {**_LONG, "learning_rate": _DEFAULT.n_steps * _DEFAULT.learning_rate / 50},
}
CHEAP: dict[str, dict[str, Any]] = {
    "default": {},
    "the last step alone": {"tail_average": 0.0},
    "one draw a step": {"n_samples": 1},
    "one draw a step, another seed": {"n_samples": 1, "seed": 1},
    "two pairs of draws a step": {"n_samples": 4},
    "both sides in every step": {"alternate": False},
    "12 steps": {"n_steps": 12},
    "32 steps": {"n_steps": 32},
    "momentum 0.9": {"momentum": 0.9},
}


def correlations(
    explainer: TextExplainer, texts: list[str], pairs: list[str] | None
) -> dict[str, dict[str, list[float]]]:
    """For every setting Spearman's rank correlation with each long optimisation, one number a text."""

    def bits(show_progress: bool = False, **changes: Any) -> list[FloatArray]:
        results = explainer.explain(
            texts, pairs, batch_size=1, internal_batch_size=64, show_progress=show_progress, **changes
        )
        return [
            np.array([bits for bits, token in zip(result.bits, result.tokens, strict=True) if not token.special])
            for result in results
        ]

    references = {name: bits(show_progress=True, **long) for name, long in REFERENCES.items()}
    found: dict[str, dict[str, list[float]]] = {}
    for name, changes in CHEAP.items():
        own = bits(**changes)
        found[name] = {
            far: [float(spearmanr(one, other).statistic) for one, other in zip(own, reference, strict=True)]
            for far, reference in references.items()
        }
    return found


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """The correlations as a markdown table: the mean over the texts, and the lowest."""
    lines = [
        f"| setting | rows | {' | lowest | '.join(REFERENCES)} | lowest |",
        "|---" * (2 + 2 * len(REFERENCES)) + "|",
    ]
    for name, of_references in found.items():
        chosen = resolve_settings(**{key: value for key, value in CHEAP[name].items() if key != "seed"})
        cells = [name, str(chosen.n_steps * chosen.samples_per_step * chosen.rows_per_sample)]
        cells += [f"{number:.3f}" for values in of_references.values() for number in (np.mean(values), min(values))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a classifier (default: the embedded one)")
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, gzipped or not")
    parser.add_argument("--columns", nargs="+", default=["text"], help="of the text, and of the second text of a pair")
    parser.add_argument("--examples", type=int, default=8, help="how many, from the top of the file")
    parser.add_argument("--max-length", type=int, help="where texts are cut, in tokens (default: what the model takes)")
    parser.add_argument("--statistics", type=int, default=200, help="texts after those, for the noise")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--out", type=Path, default=RESULTS / "convergence", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    path = options.model or embedded_model_path()
    explainer = TextExplainer.from_pretrained(path, max_length=options.max_length, dtype=getattr(torch, options.dtype))
    texts, others = read_texts(options.data, options.examples + options.statistics, options.columns)
    pairs = None if None in others else [other for other in others if other is not None]
    first, rest = slice(options.examples), slice(options.examples, None)
    explainer.estimate_statistics(texts[rest], None if pairs is None else pairs[rest])
    found = correlations(explainer, texts[first], None if pairs is None else pairs[first])
    body = (
        "Spearman's rank correlation of the bits with those of 50 steps of 100 draws, mean over the texts: steps as "
        f"large as the default's, and such as go as far as the default in all.\n\n{table(found)}"
    )
    title = "How near to a long optimisation"
    keep(options.out, "convergence", arguments, title, machine(), body, correlations=found)


if __name__ == "__main__":
    main()
