"""Tiny models with random weights, one of each architecture, and a layer in the middle of each.

Used by the tests and by ``benchmarks/replay_table.py``; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

HIDDEN, LAYERS, HEADS, VOCABULARY = 32, 4, 4, 60
LENGTHS = (9, 6, 4)
CLASSES = 3
SIGNALS = 10
PADDING, END = 0, 1

TOLERANCE = 1e-4
"""By how much bits may differ that should be the same, relative to the largest."""

# A beta so small that the class, not only the price of information, decides what stays open.
SETTINGS = {"n_steps": 3, "n_samples": 2, "beta": 0.01, "learning_rate": 2.0}


@dataclass(frozen=True)
class Architecture:
    """A model, a layer in its middle, and three examples.

    Args:
        model (Module): In evaluation mode.
        layer_name (str): Of the layer, in ``model.named_modules()``.
        forward (Callable): What is attributed: inputs in, a tensor with a row an example out.
        inputs (tuple of Tensor): Three examples; texts come with their attention mask.
        layer_call (int): Which call of the layer. Default: -1.
    """

    model: Module
    layer_name: str
    forward: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    layer_call: int = -1

    @property
    def layer(self) -> Module:
        """The layer itself."""
        return self.block(0)

    def block(self, steps: int) -> Module:
        """The block so many places after the layer (before, where negative)."""
        stem, _, number = self.layer_name.rpartition(".")
        return self.model.get_submodule(f"{stem}.{int(number) + steps}".lstrip("."))

    @property
    def mask(self) -> Tensor | None:
        """True where a token is; None for models that do not read texts."""
        return self.inputs[1].bool() if len(self.inputs) > 1 else None

    def example(self, number: int) -> tuple[Tensor, ...]:
        """One example alone, without its padding."""
        one = tuple(tensor[number : number + 1] for tensor in self.inputs)
        return tuple(tensor[:, : LENGTHS[number]] for tensor in one) if self.mask is not None else one


def texts(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, padded on the right; every text ends in the end token."""
    ids = torch.randint(5, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids[~mask] = PADDING
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return ids, mask.long()


class ResidualBlock(Module):
    """Convolution, normalisation, residual sum and activation, the last two in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)
        self.normalisation = nn.BatchNorm2d(channels)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) in and out."""
        changed = self.normalisation(self.convolution(images))
        changed += images
        return self.activation(changed)


class ConvolutionalNet(Module):
    """Stem, three residual blocks, mean over the positions, classes."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.activation = nn.ReLU(inplace=True)
        self.blocks = nn.Sequential(*(ResidualBlock(channels) for _ in range(3)))
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, classes)."""
        return self.head(self.blocks(self.activation(self.stem(images))).mean((2, 3)))


class RecurrentNet(Module):
    """Two recurrent layers, whose last state, layers first, is read once more at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(SIGNALS, HIDDEN, num_layers=2, batch_first=True)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(3)))
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, signals: Tensor) -> Tensor:
        """(B, T, signals) to (B, classes)."""
        outputs, states = self.recurrent(signals)
        return self.head(self.blocks(outputs).mean(1) + states[-1])


class PooledHead(Module):
    """A text encoder, the mean over its tokens, classes."""

    def __init__(self, encoder: Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, T) to (B, classes)."""
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden)
        return self.head((hidden * weights).sum(1) / weights.sum(1))


_BERT_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * HIDDEN,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
    "num_labels": CLASSES,
    "pad_token_id": PADDING,
}
_DECODER_LIKE = {**_BERT_LIKE, "eos_token_id": END, "bos_token_id": END}


def _classifier(model: str, config: str, layer_name: str, **settings: Any) -> Architecture:
    import transformers

    built = getattr(transformers, model)(getattr(transformers, config)(**settings))

    def forward(*inputs: Tensor) -> Tensor:
        if len(inputs) == 1:
            return built(inputs[0]).logits
        return built(input_ids=inputs[0], attention_mask=inputs[1]).logits

    return Architecture(built, layer_name, forward, texts())


def _bert_like(name: str, layer_name: str, **settings: Any) -> Architecture:
    return _classifier(f"{name}ForSequenceClassification", f"{name}Config", layer_name, **{**_BERT_LIKE, **settings})


def _decoder(name: str, layer_name: str, **settings: Any) -> Architecture:
    return _classifier(f"{name}ForSequenceClassification", f"{name}Config", layer_name, **{**_DECODER_LIKE, **settings})


def _albert(layer_call: int) -> Architecture:
    found = _bert_like("Albert", "albert.encoder.albert_layer_groups.0.albert_layers.0", embedding_size=16)
    return replace(found, layer_call=layer_call)


def _t5_settings() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "d_model": HIDDEN,
        "d_kv": HIDDEN // HEADS,
        "d_ff": 2 * HIDDEN,
        "num_layers": LAYERS,
        "num_decoder_layers": 1,
        "num_heads": HEADS,
        "num_labels": CLASSES,
        "pad_token_id": PADDING,
        "eos_token_id": END,
        "decoder_start_token_id": PADDING,
    }


def _t5_encoder() -> Architecture:
    from transformers import T5Config, T5EncoderModel

    model = PooledHead(T5EncoderModel(T5Config(**_t5_settings())))
    return Architecture(model, "encoder.encoder.block.1", model, texts())


def _vit() -> Architecture:
    found = _classifier(
        "ViTForImageClassification", "ViTConfig", "vit.layers.1", **_BERT_LIKE, image_size=16, patch_size=4
    )
    return replace(found, inputs=(_images(),))


def _images() -> Tensor:
    return torch.randn(3, 3, 16, 16, generator=_seeded())


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _with_large_weights(model: Module) -> Module:
    """So that the classes differ, as they do in the transformers with their larger ``initializer_range``."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter)
    return model


def _convolutional() -> Architecture:
    model = _with_large_weights(ConvolutionalNet())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return Architecture(model, "blocks.1", model, (_images(),))


def _recurrent() -> Architecture:
    model = _with_large_weights(RecurrentNet())
    return Architecture(model, "blocks.1", model, (torch.randn(3, 9, SIGNALS, generator=_seeded()),))


def _mlp() -> Architecture:
    sizes = (SIGNALS, HIDDEN, HIDDEN, HIDDEN)
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU(inplace=True))]
    model = _with_large_weights(nn.Sequential(*parts, nn.Linear(HIDDEN, CLASSES)))
    return Architecture(model, "2", model, (torch.randn(3, SIGNALS, generator=_seeded()),))


BUILDERS: dict[str, Callable[[], Architecture]] = {
    "BERT": lambda: _bert_like("Bert", "bert.encoder.layer.1"),
    "RoBERTa": lambda: _bert_like("Roberta", "roberta.encoder.layer.1"),
    "ELECTRA": lambda: _bert_like("Electra", "electra.encoder.layer.1", embedding_size=16),
    "DistilBERT": lambda: _bert_like(
        "DistilBert",
        "distilbert.transformer.layer.1",
        dim=HIDDEN,
        n_layers=LAYERS,
        n_heads=HEADS,
        hidden_dim=2 * HIDDEN,
    ),
    "ALBERT, call 1": lambda: _albert(1),
    "ALBERT, last call": lambda: _albert(-1),
    "ModernBERT": lambda: _bert_like(
        "ModernBert",
        "model.layers.1",
        cls_token_id=END,
        sep_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        classifier_pooling="mean",
    ),
    "DeBERTa-v2": lambda: _bert_like(
        "DebertaV2",
        "deberta.encoder.layer.1",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
    ),
    "GPT-2": lambda: _decoder("GPT2", "transformer.h.1"),
    "Llama": lambda: _decoder("Llama", "model.layers.1", num_key_value_heads=2),
    "Qwen3": lambda: _decoder("Qwen3", "model.layers.1", num_key_value_heads=2, head_dim=8),
    "GPT-NeoX": lambda: _decoder("GPTNeoX", "gpt_neox.layers.1"),
    "T5 encoder": _t5_encoder,
    "T5": lambda: _classifier(
        "T5ForSequenceClassification", "T5Config", "transformer.encoder.block.1", **_t5_settings()
    ),
    "ViT": _vit,
    "Convolutional net": _convolutional,
    "MLP": _mlp,
    "Recurrent net": _recurrent,
}

TEXT_MODELS = [name for name in BUILDERS if name not in ("ViT", "Convolutional net", "MLP", "Recurrent net")]
# Passes run whole: the recurrent states have no row an example in their first dimension.
FALL_BACK = ("Recurrent net",)


def build(name: str, seed: int = 0) -> Architecture:
    """An architecture by name, always with the same weights; the global random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = BUILDERS[name]()
    found.model.eval()
    return found


def assert_same(bits, expected, tolerance=TOLERANCE):
    assert bits.shape == expected.shape
    deviation = float((bits - expected).abs().max() / expected.abs().max())
    assert deviation <= tolerance
