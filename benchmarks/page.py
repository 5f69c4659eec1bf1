"""A page of figures: what they depend on, how they are written, and where they are kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from captum_iba.metrics import paired_bootstrap

RESULTS = Path(__file__).parent / "results"


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


def table_of_decreases(rows: np.ndarray, names: Sequence[str], removed: str) -> str:
    """Mean decreases in the probability, a line each, with the paired difference to the first; rows (N, names)."""
    lines = [f"| {removed} | decrease in the probability | minus {names[0]} |", "|---|---|---|"]
    for column, name in enumerate(names):
        difference = paired_bootstrap(rows[:, column].tolist(), rows[:, 0].tolist())
        interval = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]" if column else ""
        lines.append(f"| {name} | {rows[:, column].mean():.3f} | {interval} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    """Median and range, as text; the one value alone, and nothing for none."""
    if not values:
        return ""
    median = statistics.median(values)
    if len(values) == 1:
        return f"{median:.{digits}f}"
    return f"{median:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def write_whole(path: Path, text: str) -> None:
    """Write a file, or leave what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def keep(
    out: Path, module: str, arguments: list[str] | None, title: str, about: dict[str, Any], body: str, **figures: Any
) -> None:
    """Print a page, and write it beside the raw figures: ``out`` with the suffixes .md and .json.

    Args:
        out (Path): Without suffix.
        module, arguments: The command: its module, and its arguments (None: those of this process).
        title, body (str): Of the page, as markdown.
        about (dict): What the figures depend on, from :func:`machine`.
        **figures: The raw figures, as JSON takes them.
    """
    command = " ".join([f"python -m benchmarks.{module}", *(sys.argv[1:] if arguments is None else arguments)])
    facts = ", ".join(f"{name} {value}" for name, value in about.items())
    text = f"# {title}\n\n`{command}`\n\n{facts}\n\n{body}\n"
    print(text)
    raw = {"machine": about, "command": command, **figures}
    write_whole(out.with_suffix(".json"), json.dumps(raw, indent=1) + "\n")
    write_whole(out.with_suffix(".md"), text)
    print(f"written: {out.with_suffix('.json')}, {out.with_suffix('.md')}")
