"""Which words of a long text does a check have to delete alone, to find those that matter most?

    python -m benchmarks.single_deletions --model DIR --data test.jsonl.gz

Of every text of more than 60 words each word is deleted alone. The table has the share of the three words without which
the probability of the predicted class is lowest, and of the three without which it is highest, that are among the 60
words that a check deletes, among as many by bits, and among as many by the magnitude of the gradient times activation.
The rule was chosen on a train file.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch

from benchmarks.degradation import read_texts
from benchmarks.page import RESULTS, keep, machine
from captum_iba._reading.order import ranking_by_bits
from captum_iba._reading.thresholds import ALL_DELETED_ALONE
from captum_iba.text import TextAttribution, TextExplainer
from captum_iba.text.encoding import EncodedText
from captum_iba.text.gradients import gradient_x_activation_of_words
from captum_iba.text.word_check import words_deleted_alone
from captum_iba.text.word_removal import TextRemoval

_ROWS = ("the words of the check", "as many by bits", "as many by gradient x activation")
_MOST = 3


def found_words(explainer: TextExplainer, result: TextAttribution, text: EncodedText) -> list[float]:
    """Shares of the words that matter most, and of those most against the class, by each choice: two per choice."""
    classifier, n_words = explainer.classifier, len(result.words)
    kept = [set(range(n_words)) - {word} for word in range(n_words)]
    order = TextRemoval(classifier, text, 32).probabilities(kept)[:, result.target].argsort().tolist()
    scores = np.abs(gradient_x_activation_of_words(classifier, text, explainer.layers, result.target))
    choices = (
        words_deleted_alone(classifier, text, result, explainer.layers),
        ranking_by_bits(result)[:ALL_DELETED_ALONE],
        np.argsort(-scores, kind="stable")[:ALL_DELETED_ALONE].tolist(),
    )
    ends = order[:_MOST], order[-_MOST:]
    return [len({*end} & {*chosen}) / _MOST for chosen in choices for end in ends]


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.single_deletions", description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="folder of a classifier")
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, gzipped or not")
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--words", type=int, default=250, help="of the longest text")
    parser.add_argument("--out", type=Path, default=RESULTS / "single_deletions", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    explainer = TextExplainer.from_pretrained(options.model)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    every = [text for text, _ in zip(*read_texts(options.data, 10**6, ["text"]), strict=True)]
    long = [text for text in every if ALL_DELETED_ALONE < len(text.split()) <= options.words]
    texts = random.Random(0).sample(long, min(options.examples, len(long)))
    encoded = explainer.classifier.encode(texts, [None] * len(texts))
    results = explainer.explain(texts, rerank=0)
    rows = np.array([found_words(explainer, *pair) for pair in zip(results, encoded, strict=True)])
    means = rows.mean(0).reshape(len(_ROWS), 2)
    lines = [f"| {ALL_DELETED_ALONE} words | {_MOST} that matter most | {_MOST} most against it |", "|---|---|---|"]
    lines += [f"| {name} | {of[0]:.2f} | {of[1]:.2f} |" for name, of in zip(_ROWS, means, strict=True)]
    body = "\n".join([f"{len(rows)} texts, {np.mean([len(one.words) for one in results]):.0f} words each.", "", *lines])
    print(body)
    keep(options.out, "single_deletions", arguments, "Single deletions", machine(), body, rows=rows.tolist())


if __name__ == "__main__":
    main()
