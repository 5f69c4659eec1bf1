"""How long one text takes, against the published procedure and against the arithmetic that remains.

    python -m benchmarks.speed --lengths 128 512 --layers 9

All procedures run in one process, in turns (A B C A B C ...), so that whatever else the machine does meets
them alike; what counts is the ratio within a round. Beside each stands the share of the machine's own
matrix-product rate that it reaches, counting only the arithmetic that has to be done: one whole pass, then,
for every step and draw, the part after the layer, forward and backward to the layer's output.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.arithmetic import Shape, count_operations, floor, matrix_product_rate
from benchmarks.memory import peak_memory
from benchmarks.procedures import PUBLISHED, Procedure, load_model, procedures

RESULTS = Path(__file__).parent / "results"


@dataclass
class Timing:
    """What was measured of one procedure at one length and layer; the lists have one entry a round."""

    name: str
    length: int
    layer: int
    n_steps: int
    rows: int
    operations: int | None
    operations_floor: int
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    times_less: list[float] = field(default_factory=list)
    processor_times_less: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    peak_mib: float | None = None

    @property
    def shares(self) -> list[float]:
        """Of the matrix-product rate, reached on the arithmetic that has to be done."""
        pairs = zip(self.seconds, self.rate, strict=True)
        return [self.operations_floor / seconds / rate for seconds, rate in pairs]


def measure(model: Any, layer: int, length: int, repeats: int) -> list[Timing]:
    """Time every procedure ``repeats`` times, in turns, each between two readings of the machine's rate."""
    shape = Shape.of(model.config)
    todo = procedures(model, layer, length)
    timings = [start_timing(procedure, shape, length) for procedure in todo]
    for _ in range(repeats):
        for procedure, timing in zip(todo, timings, strict=True):
            rows = procedure.rows * length
            before = matrix_product_rate(shape, rows)
            wall, processor = time.perf_counter(), time.process_time()
            procedure.run()
            timing.seconds.append(time.perf_counter() - wall)
            timing.processor_seconds.append(time.process_time() - processor)
            timing.rate.append((before + matrix_product_rate(shape, rows)) / 2)
            timing.times_less.append(timings[0].seconds[-1] / timing.seconds[-1])
            timing.processor_times_less.append(timings[0].processor_seconds[-1] / timing.processor_seconds[-1])
    return timings


def start_timing(procedure: Procedure, shape: Shape, length: int) -> Timing:
    """The entry of a procedure, its operations counted; counting also warms it up."""
    counted = None if procedure.name == PUBLISHED else count_operations(procedure.run)
    least = floor(shape, procedure.layer, length, procedure.n_steps, procedure.rows)
    return Timing(procedure.name, length, procedure.layer, procedure.n_steps, procedure.rows, counted, least)


def machine() -> dict[str, Any]:
    """What the figures depend on: date, processor, threads, load, versions."""
    packages = ["captum-iba", "torch", "captum", "transformers"]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: installed_version(name) for name in packages},
    }


def processor_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def installed_version(package: str) -> str:
    """Version of an installed package, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def spread(values: list[float], digits: int) -> str:
    """Median and range, as text."""
    median = statistics.median(values)
    return f"{median:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(timings: list[Timing]) -> str:
    """The timings as a markdown table: median over the rounds, and the smallest and largest in brackets."""
    lines = [
        "| tokens | layer | procedure | steps x rows | seconds | times less than published "
        "| the same, processor time | operations needed (run), 1e9 | share of the matrix-product rate "
        "| peak memory, MiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for timing in timings:
        run = "" if timing.operations is None else f" ({timing.operations / 1e9:.0f})"
        cells = [
            str(timing.length),
            str(timing.layer),
            timing.name,
            f"{timing.n_steps} x {timing.rows}",
            spread(timing.seconds, 2),
            spread(timing.times_less, 2),
            spread(timing.processor_times_less, 2),
            f"{timing.operations_floor / 1e9:.0f}{run}",
            spread(timing.shares, 2),
            "" if timing.peak_mib is None else f"{timing.peak_mib:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_whole(path: Path, text: str) -> None:
    """Write a file, or leave what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def keep(out: Path, text: str, raw: dict[str, Any]) -> None:
    """Print a page, and write it beside the raw figures: ``out`` with the suffixes .md and .json."""
    print(text)
    write_whole(out.with_suffix(".json"), json.dumps(raw, indent=1) + "\n")
    write_whole(out.with_suffix(".md"), text)
    print(f"written: {out.with_suffix('.json')}, {out.with_suffix('.md')}")


def report(about: dict[str, Any], command: str, timings: list[Timing]) -> str:
    """The page that is written beside the raw figures."""
    facts = ", ".join(f"{name} {value}" for name, value in about.items())
    rates = [rate / 1e9 for timing in timings for rate in timing.rate]
    return (
        f"# Time of one text\n\n`{command}`\n\n{facts}\n\n"
        f"Matrix products alone, float32: {spread(rates, 0)} 1e9 operations a second. "
        "Figures: median (smallest to largest) over the rounds.\n\n"
        f"{table(timings)}\n"
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128], help="tokens of the text")
    parser.add_argument("--layers", type=int, nargs="+", default=[9], help="layer with the bottleneck, from 1")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--model", help="folder of a classifier of BERT's kind (default: BERT-base, random)")
    parser.add_argument("--threads", type=int, help="of torch (default: torch's own)")
    parser.add_argument("--memory", action="store_true", help="measure peak memory, too, one process each")
    parser.add_argument("--out", type=Path, default=RESULTS / "speed", help="without suffix: .json and .md")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    options = parse_arguments(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    about = machine()
    model = load_model(options.model)
    timings: list[Timing] = []
    for length, layer in itertools.product(options.lengths, options.layers):
        found = measure(model, layer, length, options.repeats)
        if options.memory:
            for timing in found:
                timing.peak_mib = peak_memory(options.model, layer, length, timing.name)
        timings += found
    command = " ".join(["python -m benchmarks.speed", *(sys.argv[1:] if arguments is None else arguments)])
    text = report(about, command, timings)
    keep(options.out, text, {"machine": about, "command": command, "timings": [asdict(timing) for timing in timings]})


if __name__ == "__main__":
    main()
