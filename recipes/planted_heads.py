"""Train tiny models with a planted cue, and count how often the attribution finds it first.

    python recipes/planted_heads.py [--save FOLDER] [--texts 100] [--seed 1] [--json FILE]

The sentences are of templates. In those for token classification a name is the same whether it is a person or a place;
the word before it ("Doctor", "Lake") decides. In those for question answering a person, a thing and a room are in the
context, and one word of the question ("who", "what", "where") decides which of them answers. All other words are drawn
at random. Some sentences of the training have no such word: the name is then no entity, and the question without an
answer, so that no class is what the model says without the cue. Both models are BERTs of two layers from random
weights, with a vocabulary of whole words: seconds on one core.

Models that small gather a cue at the position of the target in their first block, past the mask of the blocks. The
default of these heads, a mask at the word embeddings, is before that; both are counted.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional as F

from captum_iba._files import write_text
from captum_iba._reading.order import ranking
from captum_iba.text import TextExplainer

NAMES = ["Morgan", "Jordan", "Florence", "Austin", "Chelsea", "Sydney", "Victoria", "Madison", "Georgia", "Lincoln"]
TITLES = {"PER": ["Doctor", "Professor", "Captain", "Judge"], "LOC": ["Lake", "Mount", "Port", "Fort"]}
FILLERS = ["yesterday", "again", "often", "quietly", "today", "maybe", "finally", "suddenly", "there", "always"]
VERBS = ["saw", "remembered", "described", "missed", "praised", "painted"]
PEOPLE = ["we", "they", "she", "he", "everyone", "nobody"]
ITEMS = ["book", "lamp", "coat", "ring", "plate", "clock", "map", "key", "cup", "scarf"]
ROOMS = ["kitchen", "garage", "attic", "cellar", "office", "garden", "hall", "library"]
ASKED = ("who", "what", "where")
LABELS = ("O", "PER", "LOC")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def entity_sentence(draw: random.Random) -> tuple[list[str], int, int, str]:
    """Words of a sentence, the numbers of the cue and of the name in it, and the class of the name."""
    label = draw.choice(("PER", "LOC"))
    before = [*draw.choices(FILLERS, k=draw.randint(0, 3)), draw.choice(PEOPLE), draw.choice(VERBS)]
    words = [*before, draw.choice(TITLES[label]), draw.choice(NAMES), *draw.choices(FILLERS, k=draw.randint(1, 4))]
    return words, len(before), len(before) + 1, label


def question_context(draw: random.Random) -> tuple[list[str], list[str], int, int]:
    """Words of a question and of a context; numbers of the cue in the question, and of the answer in the context."""
    asked = draw.randrange(3)
    before = draw.choices(FILLERS, k=draw.randint(0, 2))
    question = [*before, ASKED[asked], *draw.choices(FILLERS, k=draw.randint(0, 2)), "is", "it", "?"]
    context = [draw.choice(NAMES), *draw.choices(FILLERS, k=draw.randint(0, 2)), draw.choice(VERBS), "the"]
    context += [draw.choice(ITEMS), *draw.choices(FILLERS, k=draw.randint(0, 2)), "in", "the", draw.choice(ROOMS)]
    kinds = (NAMES, ITEMS, ROOMS)
    (answer,) = (number for number, word in enumerate(context) if word in kinds[asked])
    return question, context, len(before), answer


def word_tokenizer() -> Any:
    """A fast tokenizer of whole words."""
    words = {
        *NAMES,
        *TITLES["PER"],
        *TITLES["LOC"],
        *FILLERS,
        *VERBS,
        *PEOPLE,
        *ITEMS,
        *ROOMS,
        *ASKED,
        "the",
        "is",
        "in",
        "it",
    }
    entries = [*SPECIAL, *sorted(word.lower() for word in words), ".", "?"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(entries)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.BertTokenizerFast(tokenizer_object=backend, model_max_length=64)


def tiny_bert(auto_class: Any, tokenizer: Any, **options: Any) -> Any:
    """A BERT of two layers, 64 wide, with random weights."""
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **options,
    )
    return auto_class(config)


def train(model: Any, batch: Callable[[random.Random], Tensor], steps: int, seed: int) -> Any:
    """Adam on the losses of batches that are drawn anew, with a rate that falls to 0."""
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        batch(draw).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def token_classifier(steps: int = 200, seed: int = 0) -> tuple[Any, Any]:
    """A token classifier of persons and places, trained on sentences where the word before a name decides."""
    torch.manual_seed(seed)
    tokenizer = word_tokenizer()
    names = dict(enumerate(LABELS))
    model = tiny_bert(transformers.BertForTokenClassification, tokenizer, num_labels=len(LABELS), id2label=names)

    def loss(draw: random.Random) -> Tensor:
        drawn = [entity_sentence(draw) for _ in range(40)]
        for number in range(32, 40):
            words, cue, name, _ = drawn[number]
            words[cue] = draw.choice(FILLERS)
            drawn[number] = words, cue, name, "O"
        inputs = tokenizer([" ".join(words) for words, *_ in drawn], padding=True, return_tensors="pt")
        labels = torch.where(inputs["attention_mask"] == 1, 0, -100)
        for row, (_, _, name, label) in enumerate(drawn):
            labels[row, 1 + name] = LABELS.index(label)
        return F.cross_entropy(model(**inputs).logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    return train(model, loss, steps, seed), tokenizer


def answerer(steps: int = 200, seed: int = 0) -> tuple[Any, Any]:
    """A model of question answering, trained on contexts where one word of the question decides what answers."""
    torch.manual_seed(seed)
    tokenizer = word_tokenizer()
    model = tiny_bert(transformers.BertForQuestionAnswering, tokenizer)

    def loss(draw: random.Random) -> Tensor:
        drawn = [question_context(draw) for _ in range(40)]
        for question, _, cue, _ in drawn[32:]:
            question[cue] = draw.choice(FILLERS)
        texts = [(" ".join(question), " ".join(context)) for question, context, *_ in drawn]
        inputs = tokenizer([q for q, _ in texts], [c for _, c in texts], padding=True, return_tensors="pt")
        positions = torch.tensor([2 + len(question) + answer for question, _, _, answer in drawn])
        positions[32:] = 0  # [CLS]: no answer
        loss: Tensor = model(**inputs, start_positions=positions, end_positions=positions).loss
        return loss

    return train(model, loss, steps, seed), tokenizer


def explain_entities(explainer: TextExplainer, count: int, seed: int, **options: Any) -> list[tuple[bool, bool]]:
    """For each of new sentences: whether the model is right, and whether the cue has the most bits."""
    draw = random.Random(seed)
    drawn = [entity_sentence(draw) for _ in range(count)]
    texts = [" ".join(words) for words, *_ in drawn]
    results = explainer.explain(texts, word=[name for _, _, name, _ in drawn], **options)
    return [
        (result.target_label == label, ranking(result)[0] == cue)
        for result, (_, cue, _, label) in zip(results, drawn, strict=True)
    ]


def explain_answers(explainer: TextExplainer, count: int, seed: int, **options: Any) -> list[tuple[bool, bool]]:
    """For each of new questions: whether the model is right, and whether the cue has the most bits."""
    draw = random.Random(seed)
    drawn = [question_context(draw) for _ in range(count)]
    results = explainer.explain([" ".join(d[0]) for d in drawn], [" ".join(d[1]) for d in drawn], **options)
    return [
        (result.target_label == context[answer], ranking(result)[0] == cue)
        for result, (_, context, cue, answer) in zip(results, drawn, strict=True)
    ]


def cue_statistics(explainer: TextExplainer, paired: bool, seed: int = 7) -> None:
    """Statistics of the layers over sentences of the same kind."""
    draw = random.Random(seed)
    if paired:
        drawn = [question_context(draw) for _ in range(200)]
        explainer.estimate_statistics([" ".join(d[0]) for d in drawn], [" ".join(d[1]) for d in drawn])
    else:
        explainer.estimate_statistics([" ".join(entity_sentence(draw)[0]) for _ in range(200)])


def report(count: int = 100, save: Path | None = None, seed: int = 1) -> list[dict[str, Any]]:
    """Train both models, and count over new sentences that are drawn from a seed."""
    rows = []
    for name, make, explain in (
        ("token classification", token_classifier, explain_entities),
        ("question answering", answerer, explain_answers),
    ):
        start = time.perf_counter()
        model, tokenizer = make()
        trained = time.perf_counter() - start
        if save is not None:
            folder = save / name.replace(" ", "_")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        for layer in (None, [1, 2]):
            explainer = TextExplainer(model, tokenizer, layer=layer)
            cue_statistics(explainer, paired=explain is explain_answers)
            for mask_target in (False, True):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    start = time.perf_counter()
                    found = explain(explainer, count, seed=seed, mask_target=mask_target)
                rows.append(
                    {
                        "head": name,
                        "layer": "word embeddings" if layer is None else "all blocks",
                        "mask_target": mask_target,
                        "seed": seed,
                        "texts": count,
                        "model is right": sum(right for right, _ in found),
                        "cue first": sum(first for _, first in found),
                        "seconds to train": round(trained, 1),
                        "seconds per text": round((time.perf_counter() - start) / count, 2),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="folder for the trained models")
    parser.add_argument("--texts", type=int, default=100, help="number of new texts per head")
    parser.add_argument("--seed", type=int, default=1, help="seed of the new texts; the models stay the same")
    parser.add_argument("--json", type=Path, help="file for the counts")
    arguments = parser.parse_args()
    counts = report(arguments.texts, arguments.save, arguments.seed)
    if arguments.json is not None:
        write_text(arguments.json, json.dumps(counts, indent=1) + "\n")
