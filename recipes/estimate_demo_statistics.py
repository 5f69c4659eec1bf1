"""Estimate the statistics of every layer of the embedded demo model over film reviews.

    python recipes/estimate_demo_statistics.py --data DIR/imdb --model captum_iba/assets/imdb_bert

``--data`` holds ``train.jsonl.gz`` (``text``). A seeded sample of ``--examples`` reviews, cut where the model was
trained to cut them, gives mean and standard deviation of each layer; they go to ``MODEL/statistics``, one file a
layer, in one pass for all. Needs the extra ``text``; a minute on two cores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path

from captum_iba.text import TextExplainer

SEED = 0


def sample(path: Path, count: int) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    return random.Random(SEED).sample(texts, min(count, len(texts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.jsonl.gz")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--examples", type=int, default=1000, help="reviews (default: 1000)")
    parser.add_argument("--length", type=int, default=256, help="tokens a review is cut at (default: 256)")
    given = parser.parse_args()

    explainer = TextExplainer.from_pretrained(given.model, max_length=given.length)
    found = explainer.estimate_statistics(sample(given.data / "train.jsonl.gz", given.examples))
    folder = given.model / "statistics"
    folder.mkdir(exist_ok=True)
    for block, statistics in zip(explainer.layers, found, strict=True):
        statistics.model = None  # the fingerprint would change with versions of transformers
        path = folder / f"layer-{block.index:02d}.safetensors"
        statistics.save(path)
        print(f"{path}: {statistics}")


if __name__ == "__main__":
    main()
