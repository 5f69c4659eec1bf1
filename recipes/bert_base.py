"""Grow a small BERT classifier to the shape of BERT-base, and fine-tune it.

    python recipes/bert_base.py --base DIR/models/ag_news --data DIR/ag_news --out models/ag_news_base

BERT-base has 12 layers, 768 wide, with 12 heads and 3072 wide feed-forward layers. The base model must be half as
wide, with as many heads, and half as deep (MiniLM: 6 layers, 384 wide). The wide model begins as the same function, as
in bert2BERT (Chen et al., ACL 2022, https://aclanthology.org/2022.acl-long.151): each feature stands twice, and each
weight is split at random into two that sum to it, so that the copies learn different things. Behind each layer there is
a new one, which begins close to the identity. Then all weights but the word embeddings are fine-tuned on the train
file.

``--data`` holds ``train.jsonl.gz`` and ``test.jsonl.gz`` (``text``, ``label``). Writes weights (float32 safetensors),
configuration and tokenizer, and prints the accuracy on texts of the test file. Needs the extra ``text``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

NOISE = 0.02


def read(path: Path) -> list[tuple[str, int]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [(row["text"], row["label"]) for row in map(json.loads, lines)]


def copied(rows: Tensor, heads: int | None = None) -> Tensor:
    """The rows (outputs) twice: one block after the other, or within each head."""
    if heads is None:
        return torch.cat([rows, rows])
    of_heads = rows.unflatten(0, (heads, -1))
    return torch.cat([of_heads, of_heads], 1).flatten(0, 1)


def split(weight: Tensor, heads: int | None = None) -> Tensor:
    """Columns (inputs) for features that stand twice: for each weight two that sum to it."""
    half = weight / 2 + NOISE * torch.randn(weight.shape)
    if heads is None:
        return torch.cat([half, weight - half], 1)
    of_heads, others = half.unflatten(1, (heads, -1)), (weight - half).unflatten(1, (heads, -1))
    return torch.cat([of_heads, others], 2).flatten(1, 2)


def widened(state: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Weights of a model of twice the width that computes the same."""
    wide = {}
    for name, tensor in state.items():
        if "embeddings" in name and "LayerNorm" not in name:
            wide[name] = torch.cat([tensor, tensor], 1)
        elif name.startswith("classifier"):
            wide[name] = split(tensor) if tensor.ndim == 2 else tensor
        else:
            inner = heads if any(f".{part}." in name for part in ("query", "key", "value")) else None
            outer = heads if "attention.output.dense" in name else None
            rows = copied(tensor, inner)
            # The product of a query and a key of twice the size is twice as large, and divided by sqrt(2) more.
            rows = rows / 2**0.5 if ".query." in name else rows
            # Each copy of an output has a split of its own.
            wide[name] = (
                rows if tensor.ndim == 1 else torch.cat([split(part, outer) for part in rows.split(rows.shape[0] // 2)])
            )
    return wide


def deepened(state: dict[str, Tensor], scale: Tensor, shift: Tensor) -> dict[str, Tensor]:
    """A new layer behind each layer: its blocks add almost nothing, its normalization restores mean and deviation."""
    deep = {}
    for name, tensor in state.items():
        if ".layer." not in name:
            deep[name] = tensor
            continue
        start, _, rest = name.partition(".layer.")
        number, _, part = rest.partition(".")
        deep[f"{start}.layer.{2 * int(number)}.{part}"] = tensor
        new = NOISE * torch.randn(tensor.shape) if tensor.ndim == 2 else torch.zeros_like(tensor)
        if part == "attention.output.dense.weight" or part == "output.dense.weight":
            new = new / 10
        elif part == "attention.output.LayerNorm.weight":
            new = torch.ones_like(tensor)
        elif part == "output.LayerNorm.weight":
            new = torch.full_like(tensor, float(scale[int(number)]))
        elif part == "output.LayerNorm.bias":
            new = torch.full_like(tensor, float(shift[int(number)]))
        deep[f"{start}.layer.{2 * int(number) + 1}.{part}"] = new
    return deep


def grown(base: BertForSequenceClassification, inputs: dict[str, Tensor]) -> BertForSequenceClassification:
    """The base model in twice the width and depth."""
    config = base.config
    state = {name: tensor.float() for name, tensor in base.state_dict().items()}
    with torch.no_grad():
        states = base(**inputs, output_hidden_states=True).hidden_states[1:]
    mask = inputs["attention_mask"].bool()
    scale = torch.stack([state[mask].std(1, correction=0).mean() for state in states])
    shift = torch.stack([state[mask].mean(1).mean() for state in states])
    wide = config.from_dict(config.to_dict())
    wide.hidden_size, wide.intermediate_size = 2 * config.hidden_size, 2 * config.intermediate_size
    wide.num_hidden_layers = 2 * config.num_hidden_layers
    model = BertForSequenceClassification(wide)
    model.load_state_dict(deepened(widened(state, config.num_attention_heads), scale, shift))
    return model.eval()


def accuracy(model: BertForSequenceClassification, tokenizer, rows: list[tuple[str, int]], length: int) -> float:
    model.eval()
    right = 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for start in range(0, len(rows), 50):
            texts, labels = zip(*rows[start : start + 50], strict=True)
            inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=length, return_tensors="pt")
            right += int((model(**inputs).logits.argmax(1) == torch.tensor(labels)).sum())
    return right / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=80)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--tested", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    base = AutoModelForSequenceClassification.from_pretrained(options.base, dtype=torch.float32).eval()
    rows = read(options.data / "train.jsonl.gz")
    random.Random(options.seed).shuffle(rows)
    tested = random.Random(options.seed).sample(read(options.data / "test.jsonl.gz"), options.tested)

    def encode(texts: list[str]) -> dict[str, Tensor]:
        return dict(tokenizer(texts, padding=True, truncation=True, max_length=options.length, return_tensors="pt"))

    model = grown(base, encode([text for text, _ in rows[:64]]))
    print(f"accuracy of the base {accuracy(base, tokenizer, tested, options.length):.4f}")
    print(f"accuracy before fine-tuning {accuracy(model, tokenizer, tested, options.length):.4f}", flush=True)
    model.train()
    model.bert.embeddings.word_embeddings.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, weight_decay=0.01)
    warmup = max(1, options.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (options.steps - step) / options.steps)
    )
    begun = time.monotonic()
    for step in range(options.steps):
        texts, labels = zip(*rows[step * options.batch : (step + 1) * options.batch], strict=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**encode(list(texts)), labels=torch.tensor(labels)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 25 == 0:
            print(f"step {step}, loss {loss.item():.3f}, {time.monotonic() - begun:.0f} s", flush=True)
    reached = accuracy(model, tokenizer, tested, options.length)
    print(f"accuracy of {options.tested} texts of the test file {reached:.4f}")
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
