"""How many texts the default explains at BERT-base shape: the bar is 25,000 reviews in 10 minutes on a GPU.

    python -m benchmarks.throughput --texts 1000 --dtype bfloat16             # on CUDA if there is one
    python -m benchmarks.throughput --texts 8 --batch 4 --device cpu          # a smoke test

Token ids and weights are random, which changes no operation. Lengths are those of a data set (``--data``; words times
1.3, cut at 512), or evenly spread from 16 to 512 tokens. Statistics are estimated on 32 of the texts and not timed. The
batch with the longest texts runs once before, to warm up; if it fits into memory, all do.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.degradation import read_texts
from benchmarks.page import RESULTS, keep, machine
from benchmarks.procedures import TARGET, load_model
from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.text.arguments import batches_by_length

BAR = 25_000


def lengths_of(options: argparse.Namespace) -> list[int]:
    """Tokens of each text."""
    if options.data is None:
        return torch.linspace(16, 512, options.texts).int().tolist()
    texts, _ = read_texts(options.data, options.texts, [options.column])
    return [min(512, 2 + round(1.3 * len(text.split()))) for text in texts]


def measure(model: Any, lengths: list[int], batch: int, internal_batch_size: int | None) -> list[float]:
    """Seconds of every batch, the longest texts first."""
    device = next(model.parameters()).device
    blocks = list(model.base_model.encoder.layer)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (len(lengths), max(lengths)), generator=generator)

    def forward(ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=ids, attention_mask=mask).logits
        return logits

    def inputs(rows: list[int]) -> tuple[Tensor, Tensor]:
        width = max(lengths[row] for row in rows)
        mask = torch.arange(width) < torch.tensor([lengths[row] for row in rows])[:, None]
        return ids[rows, :width].to(device), mask.long().to(device)

    batch_of_statistics = inputs(list(range(min(32, len(lengths)))))
    statistics = FeatureStatistics.estimate(forward, blocks, [batch_of_statistics], mask_func=lambda batch: batch[1])
    iba = InformationBottleneckAttribution(forward, blocks, statistics=statistics)
    batches = sorted(batches_by_length(lengths, batch), key=lambda rows: -max(lengths[row] for row in rows))
    seconds = []
    for number, rows in enumerate([batches[0], *batches]):
        start = time.perf_counter()
        given, mask = inputs(rows)
        bits = iba.attribute(
            given,
            target=TARGET,
            additional_forward_args=(mask,),
            bottleneck_mask=mask.bool(),
            share_mask=True,
            internal_batch_size=internal_batch_size,
        )
        bits.sum(-1).cpu()  # waits for the device
        seconds.append(time.perf_counter() - start)
        print(f"batch {number} of {len(batches)}: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    return seconds[1:]


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write the page with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a classifier of BERT's kind (default: BERT-base, random)")
    parser.add_argument("--data", type=Path, help="JSON lines whose lengths are taken, gzipped or not")
    parser.add_argument("--column", default="text", help="of the text in the data")
    parser.add_argument("--texts", type=int, default=1000, help="how many")
    parser.add_argument("--batch", type=int, default=32, help="texts at once")
    parser.add_argument("--internal-batch-size", type=int, help="most rows of a pass (default: all of a batch)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--out", type=Path, default=RESULTS / "throughput", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    about = machine() | {"device": options.device, "dtype": options.dtype}
    if options.device.startswith("cuda"):
        about["device"] = torch.cuda.get_device_name(options.device)
    model = load_model(options.model).to(options.device, getattr(torch, options.dtype))
    lengths = lengths_of(options)
    seconds = sum(measure(model, lengths, options.batch, options.internal_batch_size))
    texts = len(lengths)
    minutes = BAR * seconds / texts / 60
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    body = (
        f"{texts} texts of {sum(lengths) / texts:.0f} tokens on average in {seconds:.1f} s: "
        f"{texts / seconds:.2f} texts a second, and {BAR} in {minutes:.1f} minutes."
        + ("" if peak is None else f" Peak memory {peak:.1f} GiB.")
    )
    figures = {"texts": texts, "seconds": seconds, "minutes": minutes, "gib": peak}
    keep(options.out, "throughput", arguments, "Texts an hour", about, body, **figures)


if __name__ == "__main__":
    main()
