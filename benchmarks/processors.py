"""How far numbers of the same comparison differ between processors: ``python -m benchmarks.processors``.

Other processors are stood in for by the kernels that the libraries take there, and by threads. Every setting is a
process of its own; the first is what the others are compared with. Differences are of the greatest number of a list,
or of 1, whichever is more, as on the page about many machines.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from captum_iba.compare.records import Record, read_records
from captum_iba.demo import demo_texts

SETTINGS = {
    "this processor": {},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "ONEDNN_MAX_CPU_ISA=AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}
KINDS = {
    "scores": ("scores",),
    "probabilities": ("morf_probability", "lerf_probability"),
    "logits": ("morf_logit", "lerf_logit"),
}


def main() -> None:
    """Run the comparison in each setting, and print the greatest differences."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", help="default: the texts of the demo")
    parser.add_argument("--model", help="default: the embedded one")
    parser.add_argument("--methods", default="iba,leave_one_out,ig:abs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = given.data or f"{folder}/texts.jsonl"
        if given.data is None:
            lines = [json.dumps({"text": text, "label": i % 2}) for i, text in enumerate(demo_texts())]
            Path(data).write_text("\n".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "captum_iba", "compare", "--data", data, "--methods", given.methods]
        command += ["--model", given.model] if given.model else []
        found = {}
        for name, variables in SETTINGS.items():
            out = f"{folder}/{len(found)}"
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
            subprocess.run([*command, "--out", out], env=environment, check=True, capture_output=True)
            found[name] = list(_records(Path(out)))
    print("| setting | scores | probabilities | logits | orders that differ | decisions that differ |")
    print("|---|---|---|---|---|---|")
    expected = found.pop("this processor")
    for name, records in found.items():
        pairs = list(zip(records, expected, strict=True))
        numbers = [f"{max(_distances(pairs, fields)):.0e}" for fields in KINDS.values()]
        orders = sum(_order(a) != _order(b) for a, b in pairs)
        decisions = sum((a.morf_decision, a.lerf_decision) != (b.morf_decision, b.lerf_decision) for a, b in pairs)
        print(f"| {name} | {' | '.join(numbers)} | {orders} | {decisions} |")


def _records(folder: Path) -> Iterator[Record]:
    for path in sorted((folder / "records").rglob("*.parquet")):
        yield from read_records(path)


def _distances(pairs: list[tuple[Record, Record]], fields: tuple[str, ...]) -> Iterator[float]:
    for one, other in pairs:
        for field in fields:
            a, b = getattr(one, field), getattr(other, field)
            yield max(abs(x - y) for x, y in zip(a, b, strict=True)) / max(1, *map(abs, b))


def _order(record: Record) -> list[int]:
    scores = record.scores or []
    return sorted(range(len(scores)), key=scores.__getitem__)


if __name__ == "__main__":
    main()
