"""Train the embedded demo model: a 12-layer, 128-wide BERT that tells good film reviews from bad.

    python recipes/train_demo_model.py --data DIR/imdb --teacher DIR/models/imdb --out captum_iba/assets/imdb_bert

``--data`` holds ``train.jsonl.gz`` and ``test.jsonl.gz`` (``text``, ``label``); ``--teacher`` is a BERT
classifier fine-tuned on the same task, in the ``transformers`` layout. The student

* keeps the most used ``--vocabulary`` pieces of the teacher's WordPiece vocabulary,
* starts from the teacher's word embeddings, projected on their first principal components,
* learns the labels, the teacher's logits, and (as TinyBERT and MiniLM do) the teacher's hidden states
  in the middle and at the end, again on their first principal components.

It writes weights (float16 safetensors), configuration, tokenizer and a model card with the accuracy that
was measured on the whole test file. About half an hour on one idle core with AMX, where a preloaded tcmalloc saves a
third of it. Needs the extra ``text``.
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
    AutoModelForSequenceClassification,
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

**Accuracy on the IMDB test file (all {tested} reviews, cut at {length} tokens): {accuracy:.4f}**

Made by `recipes/train_demo_model.py` (seed {seed}, {epochs} epochs, {minutes:.0f} minutes on two CPU cores) on the
{trained} reviews of the IMDB train file (Maas et al., 2011), distilled from a 6-layer MiniLM fine-tuned on the
same file, which starts from `sentence-transformers/all-MiniLM-L6-v2` (Apache-2.0), whose WordPiece pieces and
principal components of the word embeddings this model inherits. It holds no text of the data set.

Meant for demonstrations and tests. It knows film reviews and nothing else; its opinion of other texts, or of
people, means nothing.
"""


def read(path: Path) -> tuple[list[str], Tensor]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row["text"] for row in rows], torch.tensor([row["label"] for row in rows])


def trimmed_tokenizer(teacher: PreTrainedTokenizerFast, texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """The teacher's tokenizer with only the ``size`` pieces that these texts use most."""
    pipeline = json.loads(teacher.backend_tokenizer.to_str())
    vocabulary: dict[str, int] = pipeline["model"]["vocab"]
    used = Counter(token for ids in teacher(texts, add_special_tokens=False)["input_ids"] for token in ids)
    kept = {teacher.convert_tokens_to_ids(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
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


def principal_components(rows: Tensor, width: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean (D,) and scaled first components (D, width): projected rows have unit mean variance."""
    weights = torch.ones(len(rows)) if weights is None else weights
    weights = (weights / weights.sum()).double()[:, None]
    mean = (rows.double() * weights).sum(0)
    centred = rows.double() - mean
    variance, components = torch.linalg.eigh(centred.T @ (centred * weights))
    components = components[:, -width:]
    return mean.float(), (components / variance[-width:].mean().sqrt()).float()


def batches(lengths: list[int], rows: int, generator: torch.Generator) -> list[Tensor]:
    """Random batches of texts of like length: shuffled, sorted within large pools, shuffled again."""
    order = torch.randperm(len(lengths), generator=generator)
    pools = [sorted(pool.tolist(), key=lengths.__getitem__) for pool in order.split(rows * 64)]
    cut = [torch.tensor(pool[i : i + rows]) for pool in pools for i in range(0, len(pool), rows)]
    return [cut[i] for i in torch.randperm(len(cut), generator=generator)]


def padded(ids: list[Tensor], pad: int) -> tuple[Tensor, Tensor]:
    grid = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad)
    return grid, (grid != pad).long()


@torch.no_grad()
def accuracy(model: nn.Module, ids: list[Tensor], labels: Tensor, pad: int) -> float:
    model.eval()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    correct = 0
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        grid, mask = padded([ids[i] for i in rows], pad)
        correct += int((model(grid, mask).logits.argmax(-1) == labels[rows]).sum())
    return correct / len(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=256, help="tokens a review is cut at")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32, help="reviews a step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
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

    teacher = AutoModelForSequenceClassification.from_pretrained(arguments.teacher, dtype=torch.float32).eval()
    teacher_tokenizer = AutoTokenizer.from_pretrained(arguments.teacher)
    tokenizer = trimmed_tokenizer(teacher_tokenizer, texts, arguments.vocabulary)
    spelling = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    teacher_id = torch.tensor(teacher_tokenizer.convert_tokens_to_ids(spelling))
    pad = int(tokenizer.pad_token_id or 0)

    def encode(some: list[str]) -> list[Tensor]:
        encoded = tokenizer(some, truncation=True, max_length=arguments.length)["input_ids"]
        return [torch.tensor(ids) for ids in encoded]

    ids, test_ids = encode(texts), encode(test_texts)
    held_out = torch.randperm(len(ids), generator=generator)[:HELD_OUT].tolist()
    taken = sorted(set(range(len(ids))) - set(held_out))

    # What the teacher says of every review, once: logits, and two hidden states a token.
    middle, last = len(teacher.bert.encoder.layer) // 2, len(teacher.bert.encoder.layer)
    teacher = teacher.to(torch.bfloat16)
    projections: list[tuple[Tensor, Tensor]] = []
    taught: dict[int, tuple[Tensor, list[Tensor]]] = {}
    order = sorted(taken, key=lambda i: len(ids[i]))
    sample = [order[i] for i in torch.randperm(len(order), generator=generator)[:256]]
    with torch.no_grad():
        grid, mask = padded([ids[i] for i in sample], pad)
        states = teacher(teacher_id[grid], mask, output_hidden_states=True).hidden_states
        projections = [principal_components(states[k][mask.bool()].float(), WIDTH) for k in (middle, last)]
        del states
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            grid, mask = padded([ids[i] for i in rows], pad)
            said = teacher(teacher_id[grid], mask, output_hidden_states=True)
            targets = [
                ((said.hidden_states[k].float() - mean) @ components).half()
                for k, (mean, components) in zip((middle, last), projections, strict=True)
            ]
            for n, i in enumerate(rows):
                taught[i] = (said.logits[n].float(), [t[n, : len(ids[i])].clone() for t in targets])
    print(f"teacher done after {(time.monotonic() - began) / 60:.1f} min", flush=True)

    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    student = BertForSequenceClassification(config)
    counts = torch.bincount(torch.cat(ids), minlength=len(tokenizer)).float() + 1
    embeddings = teacher.bert.embeddings.word_embeddings.weight.detach().float()[teacher_id]
    mean, components = principal_components(embeddings, WIDTH, counts)
    with torch.no_grad():
        student.bert.embeddings.word_embeddings.weight.copy_((embeddings - mean) @ components * 0.5)
    heads = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in projections])
    parameters = [*student.parameters(), *heads.parameters()]
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
        student.train()
        seen = 0.0
        lengths = [len(ids[i]) for i in taken]
        for step, positions in enumerate(batches(lengths, arguments.rows, generator)):
            rows = [taken[p] for p in positions]
            grid, mask = padded([ids[i] for i in rows], pad)
            logits_taught = torch.stack([taught[i][0] for i in rows])
            flat = mask.bool()
            with torch.autocast("cpu", torch.bfloat16):
                said = student(grid, mask, output_hidden_states=True)
            states = (said.hidden_states[LAYERS // 2][flat].float(), said.hidden_states[LAYERS][flat].float())
            loss = nn.functional.cross_entropy(said.logits.float(), labels[rows])
            loss = loss + 4 * nn.functional.kl_div(
                (said.logits.float() / 2).log_softmax(-1),
                (logits_taught / 2).softmax(-1),
                reduction="batchmean",
            )
            for k, (head, state) in enumerate(zip(heads, states, strict=True)):
                wanted = torch.cat([taught[i][1][k] for i in rows]).float()
                loss = loss + nn.functional.mse_loss(head(state), wanted)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            seen = 0.98 * seen + 0.02 * float(loss.detach()) if step else float(loss.detach())
            if step % 100 == 0:
                minutes = (time.monotonic() - began) / 60
                print(f"epoch {epoch} step {step}/{per_epoch} loss {seen:.3f} {minutes:.1f} min", flush=True)
        held = accuracy(student, [ids[i] for i in held_out], labels[held_out], pad)
        print(f"epoch {epoch}: accuracy {held:.4f} on {len(held_out)} reviews held out", flush=True)

    # What is shipped is what is tested: weights rounded to float16 first.
    weights = {name: value.detach().half().contiguous() for name, value in student.state_dict().items()}
    student.load_state_dict({name: value.float() for name, value in weights.items()})
    tested = accuracy(student, test_ids, test_labels, pad)
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
        parameters=sum(p.numel() for p in student.parameters()) / 1e6,
        tested=len(test_ids),
        length=arguments.length,
        accuracy=tested,
        seed=arguments.seed,
        epochs=arguments.epochs,
        minutes=(time.monotonic() - began) / 60,
        trained=len(taken),
    )
    (arguments.out / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
