"""What is timed: the published procedure, ours and the rivals, on the same model and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from captum.attr import FeatureAblation, LayerIntegratedGradients, Lime
from torch import Tensor
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from benchmarks.arithmetic import Shape, floor
from benchmarks.published import published_attribution
from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr.settings import resolve_settings

PUBLISHED = "published procedure"
TARGET = 1
ROWS_A_PASS = 16
"""Of the rivals, which Captum batches."""


@dataclass(frozen=True)
class Procedure:
    """One way to attribute texts.

    Args:
        name (str): For the table.
        layer (int or None): The first layer with a bottleneck, from 1.
        texts (int): How many texts it attributes at once.
        rows (int): Rows that one text puts through the model, or through the part after the layer.
        run (Callable): Does it once.
        floor (int or None): The fewest operations of matrix products for one text, where that is known.
    """

    name: str
    layer: int | None
    texts: int
    rows: int
    run: Callable[[], object]
    floor: int | None = None


def load_model(path: str | None = None) -> Any:
    """A classifier of BERT's kind: from a folder, or of BERT-base shape with random weights and 2 classes."""
    torch.manual_seed(0)
    if path is None:
        return BertForSequenceClassification(BertConfig(num_labels=2)).eval()
    return AutoModelForSequenceClassification.from_pretrained(path).eval()


def procedures(
    model: Any, length: int, layers: Sequence[int], texts: Sequence[int] = (1,), with_rivals: bool = False
) -> list[Procedure]:
    """The published procedure first, then ours, then the rivals.

    Args:
        model (Module): From :func:`load_model`.
        length (int): Tokens of a text; their ids are random.
        layers (sequence of int): Layers whose output carries the bottleneck, from 1. The published procedure and the
            preset ``as_released`` are run at the last of them, ``paper`` at each (several texts at once: at the last).
        texts (sequence of int): How many texts ours attributes at once. The published procedure takes one.
        with_rivals (bool): Captum's Integrated Gradients, LIME and leave one out, too. Default: False.
    """
    shape, blocks, name_of = Shape.of(model.config), list(model.base_model.encoder.layer), _names(model)
    ids = torch.randint(0, model.config.vocab_size, (max(4, *texts), length))
    mask = torch.ones_like(ids)

    def forward(ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=ids, attention_mask=mask).logits
        return logits

    def published(layer: int, n_steps: int = 10, n_samples: int = 10) -> Procedure:
        text = {"input_ids": ids[:1], "attention_mask": mask[:1]}
        return Procedure(
            PUBLISHED,
            layer,
            1,
            n_steps * n_samples,
            lambda: published_attribution(
                model, name_of[blocks[layer - 1]], text, TARGET, n_steps=n_steps, n_samples=n_samples
            ),
            floor(shape, layer, length, n_steps, n_samples),
        )

    statistics = FeatureStatistics.estimate(forward, blocks, [(ids[:4], mask[:4])])

    def ours(name: str, first: int, last: int, preset: str, texts: int, **changes: Any) -> Procedure:
        chosen = resolve_settings(preset, **changes)
        # As released, the statistics are those of the text itself.
        method = InformationBottleneckAttribution(
            forward,
            blocks[first - 1 : last],
            statistics=None if chosen.noise_around_input else statistics[first - 1 : last],
        )
        rows = chosen.samples_per_step * chosen.rows_per_sample
        return Procedure(
            name,
            first,
            texts,
            chosen.n_steps * rows,
            lambda: method.attribute(
                ids[:texts],
                target=TARGET,
                additional_forward_args=(mask[:texts],),
                preset=preset,
                share_mask=True,
                **changes,
            ),
            floor(shape, first, length, chosen.n_steps, rows),
        )

    def rival(name: str, method: Any, rows: int, **options: Any) -> Procedure:
        def run() -> object:
            return method.attribute(ids[:1], target=TARGET, additional_forward_args=(mask[:1],), **options)

        return Procedure(name, None, 1, rows, run)

    # The published code reads the result off its tenth pass, so nine updates give what it gives.
    found = [published(layers[-1]), ours("as_released", layers[-1], layers[-1], "as_released", 1)]
    for number in texts:
        found += [ours("paper", layer, layer, "paper", number) for layer in (layers if number == 1 else layers[-1:])]
        found.append(ours("default: all layers, and the complement", 1, len(blocks), "default", number))
    if with_rivals:
        gradients = LayerIntegratedGradients(forward, model.get_input_embeddings())
        found += [
            rival("integrated gradients, 10 steps", gradients, 10, n_steps=10, internal_batch_size=ROWS_A_PASS),
            rival("integrated gradients, 50 steps", gradients, 50, n_steps=50, internal_batch_size=ROWS_A_PASS),
            rival("LIME, 100 samples", Lime(forward), 100, n_samples=100, perturbations_per_eval=ROWS_A_PASS),
            rival("leave one out", FeatureAblation(forward), length + 1, perturbations_per_eval=ROWS_A_PASS),
            Procedure(
                "statistics of all layers, of four texts",
                None,
                4,
                1,
                lambda: FeatureStatistics.estimate(forward, blocks, [(ids[:4], mask[:4])]),
                shape.forward(length),
            ),
        ]
    return found


def _names(model: Any) -> dict[Any, str]:
    return {module: name for name, module in model.named_modules()}
