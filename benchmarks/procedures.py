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

PUBLISHED = "published procedure"
TARGET = 1


@dataclass(frozen=True)
class Procedure:
    """One way to attribute a text: its name, steps and draws a step, and what runs it once."""

    name: str
    n_steps: int
    n_samples: int
    run: Callable[[], object]


def load_model(path: str | None = None) -> Any:
    """A classifier of BERT's kind: from a folder, or of BERT-base shape with random weights and 2 classes."""
    torch.manual_seed(0)
    if path is None:
        return BertForSequenceClassification(BertConfig(num_labels=2)).eval()
    return AutoModelForSequenceClassification.from_pretrained(path).eval()


def procedures(model: Any, layer: int, length: int) -> list[Procedure]:
    """The published procedure first, then ours: as released, by default, and by default with fewer draws.

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
            n_steps,
            n_samples,
            lambda: published_attribution(model, layer_name, text, TARGET, n_steps=n_steps, n_samples=n_samples),
        )

    statistics = FeatureStatistics.estimate(forward, module, [(ids[1:], mask[1:])])

    def ours(name: str, preset: str, n_steps: int = 10, n_samples: int = 10) -> Procedure:
        # As released, the statistics are those of the text itself.
        method = InformationBottleneckAttribution(
            forward, module, statistics=None if preset == "as_released" else statistics
        )
        return Procedure(
            name,
            n_steps,
            n_samples,
            lambda: method.attribute(
                ids[:1],
                target=TARGET,
                additional_forward_args=(mask[:1],),
                preset=preset,
                n_steps=n_steps,
                n_samples=n_samples,
            ),
        )

    return [
        published(),
        ours("as_released, equal settings", "as_released"),
        ours("default, equal settings", "default"),
        ours("default, 4 draws", "default", n_samples=4),
    ]
