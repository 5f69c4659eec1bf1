"""Deletion against each text alone, shortened by hand, in models that find their positions or last token themselves."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from captum_iba.metrics import Delete, degradation_both

SIZE = {"vocab_size": 60, "initializer_range": 0.5}
ENCODER = {
    **SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 30,
}
MODELS = {
    "bert": (0, lambda: BertForSequenceClassification(BertConfig(**ENCODER))),
    "roberta": (1, lambda: RobertaForSequenceClassification(RobertaConfig(**ENCODER, pad_token_id=1))),
    "distilbert": (
        0,
        lambda: DistilBertForSequenceClassification(
            DistilBertConfig(**SIZE, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=30)
        ),
    ),
    "gpt2": (
        59,
        lambda: GPT2ForSequenceClassification(
            GPT2Config(**SIZE, n_embd=16, n_layer=2, n_head=2, n_positions=30, pad_token_id=59)
        ),
    ),
}
TEXTS = [[5, 20, 21, 22, 23, 24, 25, 6], [5, 30, 31, 6], [5, 40, 41, 42, 43, 6]]
SCORES = [[9, 0.1, 0.6, 0.3, 0.5, 0.2, 0.4, 9], [9, 1.0, -1.0, 9], [9, 0.0, 0.0, 2.0, -3.0, 9]]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_deletion_is_a_shorter_text(name, side):
    pad_id, build = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()

    def padded(rows, fill):
        gaps = [[fill] * (8 - len(row)) for row in rows]
        return torch.tensor([gap + row if side == "left" else row + gap for gap, row in zip(gaps, rows, strict=True)])

    ids, mask = padded(TEXTS, pad_id), padded([[1] * len(text) for text in TEXTS], 0)
    both = degradation_both(
        lambda rows, attention: model(rows, attention_mask=attention).logits,
        ids,
        padded(SCORES, 50.0),
        1,
        mask,
        removable_mask=(ids > 19) & (ids != pad_id),
        perturbation=Delete(pad_id),
        counts=[1, 2, 3],
        max_examples_per_batch=4,
    )
    for sign, result in zip((-1, 1), both, strict=True):
        for i, (text, scores) in enumerate(zip(TEXTS, SCORES, strict=True)):
            order = sorted(range(1, len(text) - 1), key=lambda k: sign * scores[k])
            for count in range(4):
                remaining = torch.tensor([[token for k, token in enumerate(text) if k not in order[:count]]])
                with torch.no_grad():
                    logits = model(remaining).logits[0]
                torch.testing.assert_close(result.logit[i, count], logits[1], rtol=1e-4, atol=1e-4)
