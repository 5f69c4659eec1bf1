"""Estimate the statistics of every layer of the embedded demo model over film reviews.

    python recipes/estimate_demo_statistics.py --data DIR/imdb --model captum_iba/assets/imdb_bert

``--data`` holds ``train.jsonl.gz`` (``text``). A seeded sample of ``--examples`` reviews, cut where the model was
trained to cut them, gives mean and standard deviation of each layer; they go to ``MODEL/statistics``, one file a
layer. Needs the extra ``text``; a minute on two cores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path

from captum_iba.text import TextExplainer, find_blocks
from captum_iba.text.classifier import load_classifier

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

    texts = sample(given.data / "train.jsonl.gz", given.examples)
    model, tokenizer = load_classifier(given.model)
    folder = given.model / "statistics"
    folder.mkdir(exist_ok=True)
    for block in find_blocks(model):
        explainer = TextExplainer(model, tokenizer, block.index, max_length=given.length)
        statistics = explainer.estimate_statistics(texts, show_progress=True)
        path = folder / f"layer-{block.index:02d}.safetensors"
        explainer.save_statistics(path)
        print(f"{path}: {statistics.count} positions, {statistics.n_features} features")


if __name__ == "__main__":
    main()
