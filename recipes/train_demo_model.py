"""Train the embedded demo model: a 12-layer, 128-wide BERT that tells good film reviews from bad.

    python recipes/train_demo_model.py --data DIR/imdb --base DIR/models/imdb --out captum_iba/assets/imdb_bert

``--data`` holds ``train.jsonl.gz`` and ``test.jsonl.gz`` (``text``, ``label``); ``--base`` is a BERT in the
``transformers`` layout, which gives its WordPiece vocabulary and its word embeddings. The model

* keeps the ``--vocabulary`` pieces that the training reviews use most,
* starts from the word embeddings of the base, projected on their first principal components,
* and in one more coordinate has the weight of each piece in a logistic regression on bags of pieces, so that
  training begins with what single words say, and learns what their context adds,
* keeps what it reads in the words up to block ``--words-until``: until there the states of [CLS] and [SEP] shall be the
  same for every review. Without this a small model gathers everything in [CLS] in its first block, and there is
  little for an attribution of words to see in the later ones; large models take longer by themselves.

It writes weights (float16 safetensors), configuration, tokenizer and a model card with the accuracy that was measured
on the whole test file. Needs the extra ``text``.
Where fresh memory is slow, ``MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=8589934592`` lets glibc keep it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

WIDTH = 128
LAYERS = 12
HELD_OUT = 1000

CARD = """\
---
license: bsd-3-clause
language: en
pipeline_tag: text-classification
---
# imdb_bert: the embedded demo model of captum_iba

A BERT classifier of film reviews (`negative`, `positive`): {layers} layers, {width} wide, {heads} heads,
{vocabulary} WordPiece tokens (English, lower case), {parameters:.2f} M parameters, stored in float16.

**Accuracy on the IMDB test file (all {tested} reviews, cut at {length} tokens, bfloat16 autocast): {accuracy:.4f}**

Made by `recipes/train_demo_model.py` (seed {seed}, {epochs} epoch(s), on a CPU) on {trained}
reviews of the IMDB train file (Maas et al., 2011). Its WordPiece pieces, and the principal components of the
word embeddings that it starts from, are those of `sentence-transformers/all-MiniLM-L6-v2` (Apache-2.0).
Up to block {words_until}, the states of [CLS] and [SEP] were trained to be the same for every review, so that what it
reads stays in the words until there. It holds no text of the data set.

Meant for demonstrations and tests. It knows film reviews and nothing else; its opinion of other texts, or of
people, means nothing.
"""


def read(path: Path) -> tuple[list[str], Tensor]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row["text"] for row in rows], torch.tensor([row["label"] for row in rows])


def trimmed_tokenizer(base: PreTrainedTokenizerFast, texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """The base's tokenizer with only the ``size`` pieces that these texts use most."""
    pipeline = json.loads(base.backend_tokenizer.to_str())
    vocabulary: dict[str, int] = pipeline["model"]["vocab"]
    used = Counter(token for ids in base(texts, add_special_tokens=False)["input_ids"] for token in ids)
    kept = {base.convert_tokens_to_ids(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    # Single characters stay, so that a word outside the vocabulary is spelled, not lost.
    kept |= {i for token, i in vocabulary.items() if token.isascii() and len(token.removeprefix("##")) == 1}
    for token, _ in used.most_common():
        if len(kept) >= size:
            break
        kept.add(token)
    old = sorted(kept)
    spelling = {i: token for token, i in vocabulary.items()}
    pipeline["model"]["vocab"] = {spelling[i]: n for n, i in enumerate(old)}
    for added in pipeline["added_tokens"]:
        added["id"] = pipeline["model"]["vocab"][added["content"]]
    for special in pipeline["post_processor"]["special_tokens"].values():
        special["ids"] = [pipeline["model"]["vocab"][token] for token in special["tokens"]]
    pipeline["padding"] = pipeline["truncation"] = None
    from tokenizers import Tokenizer

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(pipeline)),
        model_max_length=512,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def principal_components(rows: Tensor, weights: Tensor, width: int) -> Tensor:
    """Rows (N, D) on their first components, (N, width), with unit mean variance under the weights (N,)."""
    weights = (weights / weights.sum()).double()[:, None]
    centred = rows.double() - (rows.double() * weights).sum(0)
    variance, components = torch.linalg.eigh(centred.T @ (centred * weights))
    return (centred @ components[:, -width:] / variance[-width:].mean().sqrt()).float()


def word_weights(ids: list[Tensor], labels: Tensor, size: int) -> Tensor:
    """Weight (size,) of every piece in a logistic regression on bags of pieces, with unit variance over the text."""
    bag = nn.EmbeddingBag(size, 1, mode="sum")
    nn.init.zeros_(bag.weight)
    optimizer = torch.optim.Adam(bag.parameters(), lr=0.02)
    for _ in range(4):
        for rows in torch.randperm(len(ids)).split(256):
            texts = [ids[i].unique() for i in rows]
            offsets = torch.tensor([0, *map(len, texts[:-1])]).cumsum(0)
            scale = torch.tensor([len(text) for text in texts]).sqrt()
            logits = bag(torch.cat(texts), offsets)[:, 0] * 8 / scale
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[rows].float())
            optimizer.zero_grad()
            (loss + 1e-3 * bag.weight.square().sum()).backward()
            optimizer.step()
    weights = bag.weight.detach()[:, 0]
    return weights / weights[torch.cat(ids)].std()


def batches(lengths: list[int], rows: int, generator: torch.Generator) -> list[Tensor]:
    """Random batches of texts of like length: shuffled, sorted within large pools, shuffled again."""
    order = torch.randperm(len(lengths), generator=generator)
    pools = [sorted(pool.tolist(), key=lengths.__getitem__) for pool in order.split(rows * 64)]
    cut = [torch.tensor(pool[i : i + rows]) for pool in pools for i in range(0, len(pool), rows)]
    return [cut[i] for i in torch.randperm(len(cut), generator=generator)]


def padded(ids: list[Tensor], pad: int) -> tuple[Tensor, Tensor]:
    grid = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad)
    return grid, (grid != pad).long()


def told_by_special_tokens(states: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    """Variance over reviews of the states of [CLS] and [SEP], mean over the blocks whose states (B, T, D) are given."""
    rows, last = torch.arange(len(mask)), mask.sum(1) - 1
    return torch.stack([(s[:, 0].var(0) + s[rows, last].var(0)).mean() for s in states]).mean()


@torch.no_grad()
def evidence(model: nn.Module, ids: list[Tensor], pad: int) -> Tensor:
    """Logit of positive minus that of negative, (N,)."""
    model.eval()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    found = torch.zeros(len(ids))
    for start in range(0, len(order), 16):
        rows = order[start : start + 16]
        grid, mask = padded([ids[i] for i in rows], pad)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(grid, mask).logits.float()
        found[rows] = logits[:, 1] - logits[:, 0]
    return found


def accuracy(evidence: Tensor, labels: Tensor) -> float:
    return float(((evidence > 0) == (labels > 0)).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=256, help="tokens a training review is cut at")
    parser.add_argument("--test-length", type=int, default=512, help="tokens a held-out or test review is cut at")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--words-until", type=int, default=8, help="up to this block, [CLS] and [SEP] hold no review")
    parser.add_argument("--rows", type=int, default=32, help="reviews a step")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="use so many reviews only (to try the script out)")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    began = time.monotonic()

    texts, labels = read(arguments.data / "train.jsonl.gz")
    test_texts, test_labels = read(arguments.data / "test.jsonl.gz")
    if arguments.limit:
        chosen = torch.randperm(len(texts), generator=generator)[: arguments.limit]
        texts, labels = [texts[i] for i in chosen], labels[chosen]
        test_texts, test_labels = [test_texts[i] for i in chosen], test_labels[chosen]

    base = AutoModel.from_pretrained(arguments.base, dtype=torch.float32)
    base_tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    tokenizer = trimmed_tokenizer(base_tokenizer, texts, arguments.vocabulary)
    spelling = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    base_id = torch.tensor(base_tokenizer.convert_tokens_to_ids(spelling))
    pad = int(tokenizer.pad_token_id or 0)

    def encode(some: list[str], length: int) -> list[Tensor]:
        encoded = tokenizer(some, truncation=True, max_length=length)["input_ids"]
        return [torch.tensor(ids) for ids in encoded]

    ids, test_ids = encode(texts, arguments.length), encode(test_texts, arguments.test_length)
    held_out = torch.randperm(len(ids), generator=generator)[:HELD_OUT].tolist()
    held_ids = encode([texts[i] for i in held_out], arguments.test_length)
    taken = sorted(set(range(len(ids))) - set(held_out))

    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.0,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    model = BertForSequenceClassification(config)
    counts = torch.bincount(torch.cat(ids), minlength=len(tokenizer)).float() + 1
    embeddings = base.embeddings.word_embeddings.weight.detach()[base_id]
    opinions = word_weights([ids[i] for i in taken], labels[taken], len(tokenizer))
    with torch.no_grad():
        start = torch.cat([3 * opinions[:, None], principal_components(embeddings, counts, WIDTH - 1)], 1)
        model.bert.embeddings.word_embeddings.weight.copy_(start / 2)
    print(f"embeddings done after {(time.monotonic() - began) / 60:.1f} min", flush=True)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=arguments.learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    per_epoch = -(-len(taken) // arguments.rows)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        arguments.learning_rate,
        total_steps=arguments.epochs * per_epoch + arguments.epochs,
        pct_start=0.1,
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    for epoch in range(arguments.epochs):
        model.train()
        seen = 0.0
        lengths = [len(ids[i]) for i in taken]
        for step, positions in enumerate(batches(lengths, arguments.rows, generator)):
            rows = [taken[p] for p in positions]
            grid, mask = padded([ids[i] for i in rows], pad)
            with torch.autocast("cpu", torch.bfloat16):
                output = model(grid, mask, output_hidden_states=True)
            loss = nn.functional.cross_entropy(output.logits.float(), labels[rows])
            told = told_by_special_tokens(output.hidden_states[1 : arguments.words_until + 1], mask)
            optimizer.zero_grad(set_to_none=True)
            (loss + told).backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            seen = 0.98 * seen + 0.02 * float(loss.detach()) if step else float(loss.detach())
            if step % 50 == 0:
                losses = f"loss {seen:.3f} told {float(told):.4f}"
                minutes = (time.monotonic() - began) / 60
                print(f"epoch {epoch} step {step}/{per_epoch} {losses} {minutes:.1f} min", flush=True)
        held = evidence(model, held_ids, pad)
        print(f"epoch {epoch}: accuracy {accuracy(held, labels[held_out]):.4f} on {len(held_out)} reviews held out")

    # Among the reviews held out, as many shall be called positive as are.
    shift = held.quantile(1 - labels[held_out].float().mean())
    with torch.no_grad():
        model.classifier.bias += torch.stack([shift, -shift]) / 2

    # What is shipped is what is tested: weights rounded to float16 first.
    weights = {name: value.detach().half().contiguous() for name, value in model.state_dict().items()}
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    tested = accuracy(evidence(model, test_ids, pad), test_labels)
    print(f"accuracy {tested:.4f} on {len(test_ids)} test reviews")
    arguments.out.mkdir(parents=True, exist_ok=True)
    config.architectures = ["BertForSequenceClassification"]
    config.dtype = torch.float16
    config.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    save_file(weights, arguments.out / "model.safetensors", metadata={"format": "pt"})
    card = CARD.format(
        layers=LAYERS,
        width=WIDTH,
        heads=config.num_attention_heads,
        vocabulary=len(tokenizer),
        parameters=sum(p.numel() for p in model.parameters()) / 1e6,
        tested=len(test_ids),
        length=arguments.test_length,
        accuracy=tested,
        seed=arguments.seed,
        epochs=arguments.epochs,
        trained=len(taken),
        words_until=arguments.words_until,
    )
    (arguments.out / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
