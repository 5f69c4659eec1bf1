"""How long one text takes: ours, the published procedure, rivals, and the arithmetic that remains.

    python -m benchmarks.speed --lengths 128 --layers 9                       # about 4 minutes on two cores
    python -m benchmarks.speed --lengths 32 128 512 --layers 1 6 9 --texts 1 16 --rivals

All procedures run in one process, in turns (A B C A B C ...), so that whatever else the machine does meets
them alike; what counts is the ratio within a round. Beside each of ours stands the share of the machine's own
matrix-product rate that it reaches, counting only the arithmetic that has to be done: one whole pass, then,
for every step and draw, the part after the layer, forward and backward to the layer's output.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks.arithmetic import Shape, matrix_product_rate
from benchmarks.memory import peak_resident
from benchmarks.page import RESULTS, keep, machine, spread
from benchmarks.procedures import Procedure, load_model, procedures

MOST_ROWS = 4096
"""Of the left factor when the rate is read: more takes long, and is no faster."""


@dataclass
class Timing:
    """What was measured of one procedure at one length; the lists have one entry a round, of one text."""

    name: str
    length: int
    layer: int | None
    texts: int
    rows: int
    operations_floor: int | None
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    times_less: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)

    @property
    def shares(self) -> list[float]:
        """Of the matrix-product rate, reached on the arithmetic that has to be done."""
        if self.operations_floor is None:
            return []
        pairs = zip(self.seconds, self.rate, strict=True)
        return [self.operations_floor / seconds / rate for seconds, rate in pairs]


def measure(todo: list[Procedure], shape: Shape, length: int, repeats: int) -> list[Timing]:
    """Time every procedure ``repeats`` times, in turns, each between two readings of the machine's rate."""
    timings = [Timing(p.name, length, p.layer, p.texts, p.rows, p.floor) for p in todo]
    for number in range(repeats):
        for procedure, timing in zip(todo, timings, strict=True):
            # The rows that a step of the paper's settings puts through the model together.
            rows = min(MOST_ROWS, 10 * length * procedure.texts)
            before = matrix_product_rate(shape, rows)
            with peak_resident() as peak:
                wall, processor = time.perf_counter(), time.process_time()
                procedure.run()
                seconds, busy = time.perf_counter() - wall, time.process_time() - processor
            timing.seconds.append(seconds / procedure.texts)
            timing.processor_seconds.append(busy / procedure.texts)
            timing.rate.append((before + matrix_product_rate(shape, rows)) / 2)
            timing.times_less.append(timings[0].seconds[-1] / timing.seconds[-1])
            timing.peak_mib += peak
            print(
                f"{length} tokens, round {number + 1} of {repeats}: {procedure.name}, {procedure.texts} at once, "
                f"{timing.seconds[-1]:.2f} s a text",
                file=sys.stderr,
                flush=True,
            )
    return timings


def table(timings: list[Timing]) -> str:
    """The timings as a markdown table: median over the rounds, and the smallest and largest in brackets."""
    lines = [
        "| tokens | at once | layer | procedure | rows | seconds a text | times less than published "
        "| operations needed, 1e9 | share of the matrix-product rate | peak memory, MiB |",
        "|---" * 10 + "|",
    ]
    for timing in timings:
        cells = [
            str(timing.length),
            str(timing.texts),
            "" if timing.layer is None else str(timing.layer),
            timing.name,
            str(timing.rows),
            spread(timing.seconds, 2),
            spread(timing.times_less, 2),
            "" if timing.operations_floor is None else f"{timing.operations_floor / 1e9:.0f}",
            spread(timing.shares, 2),
            spread(timing.peak_mib, 0),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def body(timings: list[Timing]) -> str:
    """What stands on the page that is written beside the raw figures."""
    rates = [rate / 1e9 for timing in timings for rate in timing.rate]
    return (
        "Rows go through the model, or through the part after the layer, for one text. Peak memory is what a procedure "
        "adds to what the process held before, weights and all.\n\n"
        f"Matrix products alone, float32: {spread(rates, 0)} 1e9 operations a second. "
        "Figures: median (smallest to largest) over the rounds.\n\n"
        f"{table(timings)}"
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128], help="tokens of the text")
    parser.add_argument("--layers", type=int, nargs="+", default=[9], help="layers with the bottleneck, from 1")
    parser.add_argument("--texts", type=int, nargs="+", default=[1], help="how many texts ours attributes at once")
    parser.add_argument("--rivals", action="store_true", help="Integrated Gradients, LIME, leave one out, too")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--model", help="folder of a classifier of BERT's kind (default: BERT-base, random)")
    parser.add_argument("--threads", type=int, help="of torch (default: torch's own)")
    parser.add_argument("--out", type=Path, default=RESULTS / "speed", help="without suffix: .json and .md")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    options = parse_arguments(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    about = machine()
    model = load_model(options.model)
    shape = Shape.of(model.config)
    for warm in procedures(model, 16, options.layers, with_rivals=options.rivals)[1:]:
        warm.run()
    timings: list[Timing] = []
    for length in options.lengths:
        todo = procedures(model, length, options.layers, options.texts, options.rivals)
        timings += measure(todo, shape, length, options.repeats)
    figures = [asdict(timing) for timing in timings]
    keep(options.out, "speed", arguments, "Time of one text", about, body(timings), timings=figures)


if __name__ == "__main__":
    main()
