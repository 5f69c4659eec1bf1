"""Draws what each layer of a classifier needs of a text, before and after the bottleneck (the paper's Figure 3).

python docs/results/layers.py --model models/mnli --data mnli/validation_matched.jsonl.gz --columns premise hypothesis \
    --statistics-from mnli/train.jsonl.gz --row 0 --out docs/results/mnli_layers.svg
"""

import argparse
import gzip
import json
from itertools import islice
from pathlib import Path

from captum_iba.text import TextExplainer, explain_layers, find_blocks
from captum_iba.text.classifier import load_classifier
from captum_iba.visualization import plot_before_after, save_figure


def read(path: Path, columns: list[str], first: int, count: int) -> tuple[list[str], list[str] | None]:
    """Texts, and second texts where two columns are named."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, first, first + count)]
    return [row[columns[0]] for row in rows], [row[columns[1]] for row in rows] if len(columns) > 1 else None


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--model", required=True)
parser.add_argument("--data", type=Path, required=True, help="JSON lines, gzipped")
parser.add_argument("--columns", nargs="+", default=["text"])
parser.add_argument("--statistics-from", type=Path, required=True, help="JSON lines, gzipped")
parser.add_argument("--row", type=int, default=0)
parser.add_argument("--beta", type=float, default=1.0)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()

model, tokenizer = load_classifier(options.model)
known = read(options.statistics_from, options.columns, 0, 100)
texts, pairs = read(options.data, options.columns, options.row, 1)
explainers = [TextExplainer(model, tokenizer, block.index, max_length=128) for block in find_blocks(model)]
for explainer in explainers:
    explainer.estimate_statistics(*known)
(layers,) = explain_layers(explainers, texts, pairs=pairs, beta=options.beta)
fig, _ = plot_before_after(layers)
print(layers[0][1].predicted_label, layers[0][1].predicted_probability, save_figure(fig, options.out))
