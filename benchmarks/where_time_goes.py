"""Where the time of one attribution goes, by kind of operation, and what compiling the blocks would save.

    python -m benchmarks.where_time_goes --length 128 --layer 9

The first table is torch's profile of the preset ``paper`` on one text: time in operations themselves. The
second runs the blocks after the layer, forward and backward to the layer's output, as they are and compiled by
``torch.compile``, in turns, for several numbers of rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.arithmetic import Shape, matrix_product_rate
from benchmarks.page import RESULTS, keep, machine, spread
from benchmarks.procedures import load_model, procedures

# The first kind whose part is in the name of an operation: "addmm" is a product, not a sum.
KINDS = {
    "matrix products": ("mm", "bmm", "linear"),
    "attention": ("attention",),
    "GELU": ("gelu",),
    "layer normalisation": ("layer_norm",),
    "noise": ("normal_", "randn"),
    "copies, sums, mixing": ("copy_", "add", "mul", "cat", "sum", "lerp", "fill_", "clone", "sigmoid", "div", "sub"),
}


@dataclass
class Compiled:
    """Seconds of the blocks after the layer at one number of rows; the lists have one entry a round."""

    rows: int
    eager: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    operations: int = 0


def kinds_of_time(run: Callable[[], object]) -> dict[str, float]:
    """Seconds of the processor in each kind of operation, over all threads of torch's profile."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    seconds: Counter[str] = Counter()
    for event in found.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "all else")
        seconds[kind] += event.self_cpu_time_total / 1e6
    return dict(seconds.most_common())


def compare_compiled(model: Any, layer: int, length: int, rows: list[int], repeats: int) -> list[Compiled]:
    """Time the blocks after the layer, eager and compiled, in turns."""
    shape = Shape.of(model.config)
    model.requires_grad_(False)
    eager = [block.forward for block in list(model.base_model.encoder.layer)[layer:]]
    compiled = [torch.compile(forward, dynamic=False) for forward in eager]

    def seconds(blocks: list[Any], states: torch.Tensor) -> float:
        start = time.perf_counter()
        hidden = states
        for block in blocks:
            hidden = block(hidden)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        torch.autograd.grad(hidden[..., 0].sum(), states)
        return time.perf_counter() - start

    found = []
    for number in rows:
        states = torch.randn(number, length, shape.hidden, requires_grad=True)
        seconds(compiled, states)  # compiles
        timing = Compiled(number, operations=number * (shape.after(layer, length) - 2 * shape.head()))
        for _ in range(repeats):
            timing.eager.append(seconds(eager, states))
            timing.compiled.append(seconds(compiled, states))
            timing.rate.append(matrix_product_rate(shape, number * length))
        found.append(timing)
    return found


def body(kinds: dict[str, float], timings: list[Compiled]) -> str:
    """Both tables."""
    total = sum(kinds.values())
    lines = ["| operations | seconds | share |", "|---|---|---|"]
    lines += [f"| {kind} | {seconds:.2f} | {seconds / total:.0%} |" for kind, seconds in kinds.items()]
    lines += [
        "\n## Compiled blocks\n",
        "| rows | seconds | compiled | times less | share of the matrix-product rate | compiled |",
        "|---|---|---|---|---|---|",
    ]
    for timing in timings:
        ratios = [eager / compiled for eager, compiled in zip(timing.eager, timing.compiled, strict=True)]
        rate = statistics.median(timing.rate)
        shares = [
            spread([timing.operations / seconds / rate for seconds in column], 2)
            for column in (timing.eager, timing.compiled)
        ]
        cells = [str(timing.rows), spread(timing.eager, 2), spread(timing.compiled, 2), spread(ratios, 2), *shares]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the tables, and write them with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where_time_goes", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a classifier of BERT's kind (default: BERT-base, random)")
    parser.add_argument("--length", type=int, default=128, help="tokens of the text")
    parser.add_argument("--layer", type=int, default=9, help="layer with the bottleneck, from 1")
    parser.add_argument("--rows", type=int, nargs="*", default=[2, 5, 10], help="rows of a pass, to compile for")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of the second table")
    parser.add_argument("--out", type=Path, default=RESULTS / "where_time_goes", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    about = machine()
    model = load_model(options.model)
    todo = procedures(model, options.length, [options.layer])
    paper = next(procedure for procedure in todo if procedure.name == "paper")
    paper.run()
    kinds = kinds_of_time(paper.run)
    timings = compare_compiled(model, options.layer, options.length, options.rows, options.repeats)
    compiled = [asdict(timing) for timing in timings]
    page = body(kinds, timings)
    keep(options.out, "where_time_goes", arguments, "Where the time goes", about, page, kinds=kinds, compiled=compiled)


if __name__ == "__main__":
    main()
