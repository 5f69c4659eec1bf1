"""What is timed: the published procedure and ours, on the same model, layer and text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from benchmarks.published import published_attribution
from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr.presets import settings

PUBLISHED = "published procedure"
TARGET = 1


@dataclass(frozen=True)
class Procedure:
    """One way to attribute a text.

    Args:
        name (str): For the table.
        layer (int): The first layer with a bottleneck, from 1.
        n_steps (int): Steps.
        rows (int): Rows a step: draws of the noise, twice with a complement.
        run (Callable): Does it once.
    """

    name: str
    layer: int
    n_steps: int
    rows: int
    run: Callable[[], object]


def load_model(path: str | None = None) -> Any:
    """A classifier of BERT's kind: from a folder, or of BERT-base shape with random weights and 2 classes."""
    torch.manual_seed(0)
    if path is None:
        return BertForSequenceClassification(BertConfig(num_labels=2)).eval()
    return AutoModelForSequenceClassification.from_pretrained(path).eval()


def procedures(model: Any, layer: int, length: int) -> list[Procedure]:
    """The published procedure first, then ours: as released, the paper's settings, and the default.

    Args:
        model (Module): From :func:`load_model`.
        layer (int): Layer whose output carries the bottleneck, from 1.
        length (int): Tokens of the text; their ids are random.
    """
    module = model.base_model.encoder.layer[layer - 1]
    layer_name = next(name for name, other in model.named_modules() if other is module)
    ids = torch.randint(0, model.config.vocab_size, (5, length))
    mask = torch.ones_like(ids)

    def forward(ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=ids, attention_mask=mask).logits
        return logits

    def published(n_steps: int = 10, n_samples: int = 10) -> Procedure:
        text = {"input_ids": ids[:1], "attention_mask": mask[:1]}
        return Procedure(
            PUBLISHED,
            layer,
            n_steps,
            n_samples,
            lambda: published_attribution(model, layer_name, text, TARGET, n_steps=n_steps, n_samples=n_samples),
        )

    blocks = list(model.base_model.encoder.layer)
    statistics = FeatureStatistics.estimate(forward, blocks, [(ids[1:], mask[1:])])

    def ours(name: str, first: int, last: int, preset: str, **changes: int) -> Procedure:
        chosen = settings(preset, **changes)
        # As released, the statistics are those of the text itself.
        method = InformationBottleneckAttribution(
            forward,
            blocks[first - 1 : last],
            statistics=None if chosen.own_input else statistics[first - 1 : last],
        )
        return Procedure(
            name,
            first,
            chosen.n_steps,
            chosen.n_samples * chosen.sides,
            lambda: method.attribute(
                ids[:1], target=TARGET, additional_forward_args=(mask[:1],), preset=preset, share_mask=True, **changes
            ),
        )

    return [
        published(),
        # The published code reads the result off its tenth pass, so nine updates give what it gives.
        ours("as_released, the published result", layer, layer, "as_released"),
        ours("as_released, as many passes", layer, layer, "as_released", n_steps=10),
        ours("paper", layer, layer, "paper"),
        ours("default: all layers, and the complement", 1, len(blocks), "default"),
    ]
