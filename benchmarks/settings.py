"""Which settings find the tokens that matter: the evidence behind the default preset.

    python benchmarks/settings.py --model DIR/models/ag_news --data DIR/data/ag_news/train.jsonl.gz --examples 100

Every setting explains the gold label of the same training examples; the tokens it scores highest are deleted (never
special ones), and what counts is by how much the probability of the label falls, mean over the examples with its
standard error, after 1/9 and 3/9 of the tokens. Integrated Gradients and leave-one-out stand beside it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from captum.attr import LayerIntegratedGradients
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from captum_iba import FeatureStatistics, InformationBottleneckAttribution

SHARES = (1 / 9, 3 / 9)
FIELDS = (("text",), ("premise", "hypothesis"), ("sentence1", "sentence2"))


@dataclass(frozen=True)
class Text:
    """One encoded example."""

    ids: Tensor
    segments: Tensor
    special: Tensor
    label: int


def read(path: Path, tokenizer: Any, count: int, length: int, seed: int) -> list[Text]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = random.Random(seed).sample(rows, count)
    fields = next(names for names in FIELDS if names[0] in rows[0])
    texts = []
    for row in rows:
        encoded = tokenizer(
            *(row[field] for field in fields), truncation=True, max_length=length, return_special_tokens_mask=True
        )
        texts.append(
            Text(
                torch.tensor(encoded["input_ids"]),
                torch.tensor(encoded["token_type_ids"]),
                torch.tensor(encoded["special_tokens_mask"]).bool(),
                row["label"],
            )
        )
    return texts


def pad(texts: list[Text]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def grid(rows: list[Tensor], fill: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)

    ids = grid([text.ids for text in texts], 0)
    mask = grid([torch.ones_like(text.ids) for text in texts], 0)
    carries = grid([(~text.special).long() for text in texts], 0).bool()
    return ids, mask, grid([text.segments for text in texts], 0), carries


def without(text: Text, scores: Tensor, share: float) -> Text:
    """The text without the given share of its ordinary tokens, highest scores first."""
    ordinary = (~text.special).nonzero().flatten()
    count = max(1, round(share * len(ordinary)))
    gone = ordinary[scores[ordinary].argsort(descending=True, stable=True)[:count]]
    keep = torch.ones(len(text.ids), dtype=torch.bool)
    keep[gone] = False
    return Text(text.ids[keep], text.segments[keep], text.special[keep], text.label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--length", type=int, default=256, help="tokens a text is cut at")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--betas", type=float, nargs="+", default=[1.0])
    parser.add_argument("--draws", type=int, nargs="+", default=[4])
    parser.add_argument("--shared", action="store_true", help="also one mask shared by all layers")
    parser.add_argument("--rivals", action="store_true", help="also Integrated Gradients and leave-one-out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="append JSON lines to this file")
    arguments = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, dtype=torch.float32).eval()
    texts = read(arguments.data, tokenizer, arguments.examples + 200, arguments.length, arguments.seed)
    texts, rest = sorted(texts[: arguments.examples], key=lambda t: len(t.ids)), texts[arguments.examples :]
    batches = [texts[i : i + 8] for i in range(0, len(texts), 8)]

    def forward(ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=mask, token_type_ids=segments).logits

    @torch.no_grad()
    def chance(some: list[Text]) -> Tensor:
        values = []
        for i in range(0, len(some), 16):
            ids, mask, segments, _ = pad(some[i : i + 16])
            labels = torch.tensor([text.label for text in some[i : i + 16]])
            values.append(forward(ids, mask, segments).softmax(-1).gather(1, labels[:, None])[:, 0])
        return torch.cat(values)

    whole = chance(texts)
    print(f"{len(texts)} texts, p(gold) {float(whole.mean()):.3f}")

    def report(name: str, explain: Callable[[list[Text]], list[Tensor]]) -> None:
        began = time.perf_counter()
        scores = [s for batch in batches for s in explain(batch)]
        seconds = (time.perf_counter() - began) / len(texts)
        line: dict[str, Any] = {"model": arguments.model, "name": name, "examples": len(texts), "seconds": seconds}
        for share in SHARES:
            drop = whole - chance([without(t, s, share) for t, s in zip(texts, scores, strict=True)])
            line[f"{round(9 * share)}/9"] = float(drop.mean())
            line[f"{round(9 * share)}/9 error"] = float(drop.std() / len(drop) ** 0.5)
        print(
            f"{name:48s} 1/9 {line['1/9']:.3f} ± {line['1/9 error']:.3f}   3/9 {line['3/9']:.3f} "
            f"± {line['3/9 error']:.3f}   {seconds:.3f} s",
            flush=True,
        )
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(line) + "\n")

    blocks = list(model.bert.encoder.layer)
    estimates = []
    for i in range(0, len(rest), 32):
        ids, mask, segments, _ = pad(rest[i : i + 32])
        estimates.append({"input_ids": ids, "attention_mask": mask, "token_type_ids": segments})
    statistics = FeatureStatistics.estimate(model, blocks, estimates)

    def bottleneck(numbers: list[int], **settings: Any) -> Callable[[list[Text]], list[Tensor]]:
        iba = InformationBottleneckAttribution(
            forward, [blocks[n - 1] for n in numbers], statistics=[statistics[n - 1] for n in numbers]
        )

        def explain(batch: list[Text]) -> list[Tensor]:
            ids, mask, segments, carries = pad(batch)
            bits = iba.attribute(
                ids,
                target=[text.label for text in batch],
                additional_forward_args=(mask, segments),
                bottleneck_mask=carries,
                share_mask=True,
                **settings,
            )
            return [row[: len(text.ids)].sum(-1) for row, text in zip(bits, batch, strict=True)]

        return explain

    if arguments.rivals:
        gradients = LayerIntegratedGradients(forward, model.bert.embeddings.word_embeddings)

        def integrated(batch: list[Text]) -> list[Tensor]:
            ids, mask, segments, carries = pad(batch)
            baseline = torch.where(carries, tokenizer.mask_token_id, ids)
            scores = gradients.attribute(
                ids,
                baseline,
                target=[text.label for text in batch],
                additional_forward_args=(mask, segments),
                n_steps=50,
                internal_batch_size=64,
            ).sum(-1)
            return [row[: len(text.ids)] for row, text in zip(scores, batch, strict=True)]

        def left_out(batch: list[Text]) -> list[Tensor]:
            scores = []
            for text in batch:
                changed = text.ids.repeat(len(text.ids), 1)
                changed.fill_diagonal_(tokenizer.mask_token_id)
                rows = [Text(ids, text.segments, text.special, text.label) for ids in changed]
                scores.append(-chance(rows))
            return scores

        report("integrated gradients, 50 steps", integrated)
        report("leave one out ([MASK])", left_out)
    for beta in arguments.betas:
        for draws in arguments.draws:
            for layer in arguments.layers:
                report(f"layer {layer}, beta {beta:g}, {draws} draws", bottleneck([layer], beta=beta, n_samples=draws))
            if arguments.shared:
                every = list(range(1, len(blocks) + 1))
                report(f"all layers, beta {beta:g}, {draws} draws", bottleneck(every, beta=beta, n_samples=draws))


if __name__ == "__main__":
    main()
