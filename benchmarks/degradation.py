"""How long the degradation test takes: batched over examples and steps, against one row at a time.

    python -m benchmarks.degradation --model DIR --data test.jsonl.gz --examples 100

Both run the same rows in one process, in turns, so that whatever else the machine does meets them alike; what
counts is the ratio within a round. One at a time is the published procedure on ids: for every text and every
step the shorter text, alone and without padding, goes through the model. Both must give the same probabilities.

Both also do the same arithmetic, so the table says what share of the machine's matrix-product rate each reaches,
and how many times less than one at a time it would take at all of it: no batch can be faster than that.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.arithmetic import Shape, count_operations, matrix_product_rate
from benchmarks.page import RESULTS, keep, machine, spread
from captum_iba.demo import embedded_model_path
from captum_iba.metrics import NINTHS, Delete, degradation
from captum_iba.text import Classifier
from captum_iba.text.classifier import load_classifier

POSITIONS_A_PASS = 1024
"""Of the degradation test on a CPU, by default: the rows of the products by which the machine's rate is read."""


@dataclass(frozen=True)
class Batch:
    """Encoded texts, with scores that order their tokens."""

    classifier: Classifier
    inputs: tuple[Tensor, ...]
    lengths: list[int]
    removable: Tensor
    scores: Tensor
    pad_id: int


@dataclass
class Timing:
    """What was measured; the lists have one entry a round."""

    rows_a_pass: int | None
    seconds: list[float] = field(default_factory=list)
    seconds_one_at_a_time: list[float] = field(default_factory=list)
    times_less: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    operations: int = 0
    difference: float = 0.0

    def shares(self, seconds: list[float]) -> list[float]:
        """Of the machine's matrix-product rate, reached in so many seconds."""
        return [self.operations / one / rate for one, rate in zip(seconds, self.rate, strict=True)]


def one_at_a_time(batch: Batch) -> Tensor:
    """Probability of class 1 at every step, (B, S + 1): a pass for each text and step, nothing padded."""
    rows = []
    with torch.no_grad():
        for i, length in enumerate(batch.lengths):
            positions = batch.removable[i].nonzero()[:, 0]
            ranking = positions[torch.sort(-batch.scores[i, positions], stable=True).indices]
            for share in (0, *NINTHS):
                count = int(share * len(ranking) + 0.5)
                count = max(1, count) if share else 0
                gone = set(ranking[:count].tolist())
                kept = [k for k in range(length) if k not in gone]
                logits = batch.classifier.logits(*(tensor[i : i + 1, kept] for tensor in batch.inputs))
                rows.append(logits.softmax(-1)[0, 1].cpu())
    return torch.stack(rows).view(len(batch.lengths), -1)


def batched(batch: Batch, rows_a_pass: int | None) -> Tensor:
    """The same by :func:`captum_iba.metrics.degradation`."""
    return degradation(
        batch.classifier.logits,
        batch.inputs[0],
        batch.scores,
        1,
        batch.inputs[1:],
        removable_mask=batch.removable,
        perturbation=Delete(batch.pad_id),
        max_examples_per_batch=rows_a_pass,
    ).probability


def measure(batch: Batch, rows_a_pass: list[int | None], repeats: int) -> list[Timing]:
    """Time every size of a pass ``repeats`` times, in turns with one at a time."""
    operations = count_operations(lambda: one_at_a_time(batch))
    timings = [Timing(rows, operations=operations) for rows in rows_a_pass]
    shape = Shape.of(batch.classifier.model.config)
    batched(batch, rows_a_pass[0])  # warms up
    for _ in range(repeats):
        rate = matrix_product_rate(shape, POSITIONS_A_PASS)
        start = time.perf_counter()
        expected = one_at_a_time(batch)
        alone = time.perf_counter() - start
        for timing in timings:
            start = time.perf_counter()
            found = batched(batch, timing.rows_a_pass)
            timing.seconds.append(time.perf_counter() - start)
            timing.seconds_one_at_a_time.append(alone)
            timing.times_less.append(alone / timing.seconds[-1])
            timing.rate.append(rate)
            timing.difference = max(timing.difference, float((found - expected).abs().max()))
    return timings


def read_texts(path: Path, examples: int, columns: list[str]) -> tuple[list[str], list[str | None]]:
    """The first texts of a file of JSON lines, and their second texts where two columns are named."""

    def lines() -> Iterator[dict[str, Any]]:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)

    found = list(islice(lines(), examples))
    return [row[columns[0]] for row in found], [row[columns[1]] if len(columns) > 1 else None for row in found]


def load(options: argparse.Namespace) -> Batch:
    """The model and the texts of the command line."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classifier = Classifier(*load_classifier(options.model, device), options.max_length)
    encoded = classifier.encode(*read_texts(options.data, options.examples, options.columns))
    tensors = classifier.tensors(encoded)
    ids = tensors["input_ids"]
    removable = torch.zeros(ids.shape, dtype=torch.bool)
    for i, one in enumerate(encoded):
        removable[i, : len(one)] = ~torch.tensor(one.special)
    scores = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0))
    pad_id = classifier.model.config.pad_token_id
    return Batch(classifier, tuple(tensors.values()), [len(one) for one in encoded], removable, scores, pad_id)


def table(timings: list[Timing], examples: int) -> str:
    """The timings as a markdown table: median over the rounds, and the smallest and largest in brackets."""
    lines = [
        "| rows a pass | seconds | texts a second | seconds, one at a time | times less | share of the matrix-product "
        "rate | one at a time | times less at all of it | largest difference of p |",
        "|---" * 9 + "|",
    ]
    for timing in timings:
        cells = [
            "default" if timing.rows_a_pass is None else str(timing.rows_a_pass),
            spread(timing.seconds, 2),
            spread([examples / seconds for seconds in timing.seconds], 1),
            spread(timing.seconds_one_at_a_time, 2),
            spread(timing.times_less, 2),
            spread(timing.shares(timing.seconds), 2),
            spread(timing.shares(timing.seconds_one_at_a_time), 2),
            spread([1 / share for share in timing.shares(timing.seconds_one_at_a_time)], 2),
            f"{timing.difference:.0e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.degradation", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a classifier (default: the embedded one)")
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, gzipped or not")
    parser.add_argument("--columns", nargs="+", default=["text"], help="of the text, and of the second text of a pair")
    parser.add_argument("--examples", type=int, default=50, help="how many, from the top of the file")
    parser.add_argument("--max-length", type=int, help="where texts are cut, in tokens (default: what the model takes)")
    parser.add_argument("--rows", type=int, nargs="*", default=[], help="rows of a pass, besides the default")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--threads", type=int, help="of torch (default: torch's own)")
    parser.add_argument("--out", type=Path, default=RESULTS / "degradation", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    options.model = options.model or str(embedded_model_path())
    return options


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    options = parse_arguments(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    about = machine()
    if torch.cuda.is_available():
        about["device"] = torch.cuda.get_device_name()
    batch = load(options)
    about["texts"] = len(batch.lengths)
    about["tokens a text"] = round(sum(batch.lengths) / len(batch.lengths), 1)
    timings = measure(batch, [None, *options.rows], options.repeats)
    body = (
        "Most relevant first, nine steps, all texts in one call. "
        f"Figures: median (smallest to largest) over the rounds.\n\n{table(timings, len(batch.lengths))}"
    )
    figures = [asdict(timing) for timing in timings]
    keep(options.out, "degradation", arguments, "Time of the degradation test", about, body, timings=figures)


if __name__ == "__main__":
    main()
