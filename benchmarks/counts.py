"""What an attribution costs, counted and not timed: the same on every machine, so a test can guard it.

    python -m benchmarks.counts            # count, and compare with what was kept
    python -m benchmarks.counts --keep     # keep the new counts, after a change that is meant to change them

A small BERT with random weights. Passes and rows are those that its first and its last block run; operations
are of matrix products, forward and backward; bytes are the most that results of operations hold at one time.
"""

from __future__ import annotations

import argparse
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.arithmetic import Shape, count_operations, floor
from benchmarks.page import write_whole
from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr.settings import resolve_settings
from captum_iba.metrics import Delete, degradation_both

KEPT = Path(__file__).parent / "results" / "counts.json"
LAYERS, LENGTH, TEXTS = 4, 24, 3

Counts = dict[str, int]


class PeakBytes(TorchDispatchMode):
    """The most bytes that the results of operations inside hold at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and look at what it gives."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return
        self._alive.add(key)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._now -= size


def load_model() -> Any:
    """A BERT of four narrow layers with random weights."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=96,
        vocab_size=200,
        num_labels=2,
        max_position_embeddings=LENGTH,
    )
    return BertForSequenceClassification(config).eval()


def cases(model: Any) -> dict[str, tuple[Callable[[], object], int]]:
    """What is counted, by name: what runs once, and the fewest operations that it needs (0: not known)."""
    blocks = list(model.base_model.encoder.layer)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (8 + TEXTS, LENGTH), generator=generator)
    texts = ids[8:]

    def forward(ids: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=ids).logits
        return logits

    statistics = FeatureStatistics.estimate(forward, blocks, [ids[:8]])
    shape = Shape.of(model.config)

    def sweep() -> tuple[Callable[[], object], int]:
        iba = InformationBottleneckAttribution(forward, blocks, statistics=statistics)
        chosen = resolve_settings("paper")
        after = sum(shape.after(layer, LENGTH) for layer in range(1, LAYERS + 1))
        least = TEXTS * (shape.forward(LENGTH) + chosen.n_steps * chosen.samples_per_step * after)
        return lambda: iba.attribute(texts, target=1, preset="paper"), least

    def attribution(first: int, last: int, preset: str, **changes: Any) -> tuple[Callable[[], object], int]:
        chosen = resolve_settings(preset)
        iba = InformationBottleneckAttribution(
            forward, blocks[first - 1 : last], statistics=statistics[first - 1 : last]
        )
        rows = chosen.samples_per_step * chosen.rows_per_sample
        least = TEXTS * floor(shape, first, LENGTH, chosen.n_steps, rows)
        return lambda: iba.attribute(texts, target=1, preset=preset, share_mask=True, **changes), least

    scores = torch.rand(texts.shape, generator=generator)
    removable = torch.ones_like(texts, dtype=torch.bool)
    return {
        "default, all layers": attribution(1, LAYERS, "default"),
        "default, all layers, 2 rows a pass": attribution(1, LAYERS, "default", internal_batch_size=2),
        "paper, layer 3": attribution(3, 3, "paper"),
        "paper, layer 3, whole passes": attribution(3, 3, "paper", replay=False),
        "paper, every layer by itself": sweep(),
        "statistics of every layer": (lambda: FeatureStatistics.estimate(forward, blocks, [ids[:8]]), 0),
        "degradation, both orders": (
            lambda: degradation_both(forward, texts, scores, 1, removable_mask=removable, perturbation=Delete(0)),
            0,
        ),
    }


def count(model: Any, run: Callable[[], object], least: int) -> Counts:
    """Run three times: warm, for passes, rows and bytes, and for operations."""
    run()
    blocks = model.base_model.encoder.layer
    rows: dict[str, list[int]] = {"first": [], "last": []}
    # Inside the blocks: hooks of a block itself run even where its recorded output stands in for it.
    hooks = [
        block.intermediate.register_forward_pre_hook(lambda _, args, name=name: rows[name].append(len(args[0])))
        for name, block in (("first", blocks[0]), ("last", blocks[-1]))
    ]
    try:
        with PeakBytes() as peak:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    found = {
        "passes of the first block": len(rows["first"]),
        "rows of the first block": sum(rows["first"]),
        "passes of the last block": len(rows["last"]),
        "rows of the last block": sum(rows["last"]),
        "operations": count_operations(run),
        "peak bytes": peak.peak,
    }
    return found if least == 0 else {**found, "operations needed": least}


def count_all() -> dict[str, Counts]:
    """The counts of every case."""
    model = load_model()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so narrow a model only waits for the second
    try:
        return {name: count(model, run, least) for name, (run, least) in cases(model).items()}
    finally:
        torch.set_num_threads(threads)


def regressions(found: dict[str, Counts], kept: dict[str, Counts]) -> list[str]:
    """What costs more than it did, one line each. Versions of torch differ by some bytes: 5 % are let pass."""
    lines = [f"{name}: kept, and not counted any more" for name in kept if name not in found]
    for name, counts in found.items():
        for what, number in counts.items():
            before = kept.get(name, {}).get(what)
            if before is None:
                lines.append(f"{name}: nothing is kept for {what}, {number} found")
            elif number > before * (1.05 if what == "peak bytes" else 1.0):
                lines.append(f"{name}: {what} {number}, {before} kept")
    return lines


def table(found: dict[str, Counts]) -> str:
    """The counts as a markdown table."""
    columns = list(next(iter(found.values())))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{counts[c]:,}' if c in counts else '' for c in columns)} |"
        for name, counts in found.items()
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Count, print, and compare or keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counts", description=__doc__.split("\n")[0])
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT}")
    options = parser.parse_args(arguments)
    found = count_all()
    print(table(found))
    if options.keep:
        write_whole(KEPT, json.dumps(found, indent=1) + "\n")
        print(f"written: {KEPT}")
        return
    worse = regressions(found, json.loads(KEPT.read_text(encoding="utf-8")))
    if worse:
        sys.exit("dearer than what was kept:\n" + "\n".join(worse))


if __name__ == "__main__":
    main()
