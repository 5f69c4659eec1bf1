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
        feature_dim (int or None): The dimension of the features in what the layer returns, where it has to be said.
            Default: None, the last
    """

    model: Module
    layer_name: str
    forward: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    layer_call: int = -1
    feature_dim: int | None = None

    @property
    def layer(self) -> Module:
        """The layer itself."""
        return self.model.get_submodule(self.layer_name)

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


class LongShortTermNet(Module):
    """Two recurrent layers of a module each, whose states are read at the end, too."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.first = kind(SIGNALS, HIDDEN, batch_first=True)
        self.second = kind(HIDDEN, HIDDEN, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4 * HIDDEN, CLASSES)

    def forward(self, signals: Tensor) -> Tensor:
        """(B, T, signals) to (B, classes)."""
        outputs, states = self.second(self.first(signals)[0])
        last = states[0] if isinstance(states, tuple) else states
        return self.head(torch.cat([outputs.mean(1), *last], -1))


class AudioNet(Module):
    """Convolutions over time, each with normalisation and a residual sum."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, channels, 5, stride=2)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv1d(channels, channels, 3), nn.GroupNorm(4, channels), nn.GELU(), nn.MaxPool1d(2))
                for _ in range(3)
            )
        )
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, sound: Tensor) -> Tensor:
        """(B, 1, T) to (B, classes)."""
        return self.head(self.blocks(self.stem(sound)).mean(-1))


class TorchEncoder(Module):
    """PyTorch's own transformer, which has a fast path of its own for padded texts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 2 * HIDDEN, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(B, T) to (B, classes)."""
        return self.head(self.encoder(self.embedding(ids), src_key_padding_mask=mask == 0)[:, 0])


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
    return Architecture(model, "blocks.1", model, (_images(),), feature_dim=1)


def _recurrent() -> Architecture:
    model = _with_large_weights(RecurrentNet())
    return Architecture(model, "blocks.1", model, (torch.randn(3, 9, SIGNALS, generator=_seeded()),))


def _states(kind: type[nn.RNNBase]) -> Architecture:
    model = _with_large_weights(LongShortTermNet(kind))
    return Architecture(model, "first", model, (torch.randn(3, 7, SIGNALS, generator=_seeded()),))


def _audio() -> Architecture:
    model = _with_large_weights(AudioNet())
    return Architecture(model, "blocks.0", model, (torch.randn(3, 1, 80, generator=_seeded()),), feature_dim=1)


def _torch_encoder() -> Architecture:
    model = _with_large_weights(TorchEncoder())
    return Architecture(model, "encoder.layers.1", model, texts())


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


def _pooled(encoder: Module, layer_name: str, inputs: tuple[Tensor, ...] | None = None) -> Architecture:
    model = PooledHead(encoder)
    return Architecture(model, f"encoder.{layer_name}", model, texts() if inputs is None else inputs)


def _longer(found: Architecture) -> Architecture:
    """Long enough for block-sparse attention, and no multiple of its blocks."""
    return replace(found, inputs=texts((17, 12, 9)))


def _without(names: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _xlnet(layer_name: str) -> Architecture:
    settings = {**_without(("max_position_embeddings",), _BERT_LIKE), "d_model": HIDDEN, "d_inner": 2 * HIDDEN}
    return _classifier("XLNetForSequenceClassification", "XLNetConfig", layer_name, **settings, n_layer=2, n_head=HEADS)


def _funnel() -> Architecture:
    settings = _without(("num_hidden_layers", "num_attention_heads", "max_position_embeddings"), _BERT_LIKE)
    settings |= {"block_sizes": [1, 2], "d_model": HIDDEN, "n_head": HEADS, "d_head": 8, "d_inner": 2 * HIDDEN}
    return _classifier("FunnelForSequenceClassification", "FunnelConfig", "funnel.encoder.blocks.1.0", **settings)


def _bart() -> dict[str, Any]:
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _BART_SIDE.items()}
    return {**_DECODER_LIKE, "d_model": HIDDEN, **sides, "init_std": 0.2, "decoder_start_token_id": END}


_BART_SIDE = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 2 * HIDDEN}


def _bart_encoder() -> Architecture:
    from transformers import BartConfig, BartModel

    return _pooled(BartModel(BartConfig(**_bart())).encoder, "layers.1")


def _mamba() -> Architecture:
    from transformers import MambaConfig, MambaModel

    settings = {**_DECODER_LIKE, "state_size": 4, "time_step_rank": 4}
    return _pooled(MambaModel(MambaConfig(**settings)), "layers.1")


def _rwkv() -> Architecture:
    from transformers import RwkvConfig, RwkvModel

    # In evaluation mode it divides its weights, once, and its hidden states in the middle of a pass.
    model = RwkvModel(RwkvConfig(**_DECODER_LIKE, context_length=40, rescale_every=2, use_cache=False))
    return _pooled(_with_large_weights(model), "blocks.1")


def _with_images(found: Architecture, feature_dim: int | None = None) -> Architecture:
    return replace(found, inputs=(_images(),), feature_dim=feature_dim)


def _hf_swin() -> Architecture:
    settings = _without(("hidden_size", "num_hidden_layers", "num_attention_heads"), _BERT_LIKE)
    settings |= {"image_size": 16, "patch_size": 2, "embed_dim": 16, "window_size": 2}
    settings |= {"depths": [2, 2], "num_heads": [2, 4]}
    return _with_images(
        _classifier("SwinForImageClassification", "SwinConfig", "swin.encoder.layers.0.blocks.1", **settings)
    )


def _hf_convnext() -> Architecture:
    found = _classifier(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        "convnext.encoder.stages.1.layers.0",
        num_labels=CLASSES,
        patch_size=2,
        hidden_sizes=[8, 16],
        depths=[1, 2],
        num_stages=2,
        initializer_range=0.2,
        layer_scale_init_value=1.0,
    )
    return _with_images(found, 1)


def _wav2vec2() -> Architecture:
    found = _classifier(
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        "wav2vec2.encoder.layers.1",
        **_BERT_LIKE,
        conv_dim=[16, 16],
        conv_stride=[4, 2],
        conv_kernel=[8, 3],
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=16,
        num_feat_extract_layers=2,
    )
    return replace(found, inputs=(torch.randn(3, 100, generator=_seeded()),))


def _torchvision(
    made: Callable[[Any], Module], layer_name: str, feature_dim: int = 1, pixels: int = 16
) -> Architecture:
    from vision_models import torchvision_models

    model = _with_large_weights(made(torchvision_models()))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    images = torch.randn(3, 3, pixels, pixels, generator=_seeded())
    return Architecture(model, layer_name, model, (images,), feature_dim=feature_dim)


def _vgg(models: Any) -> Module:
    with torch.device("meta"):  # its own classifier has a hundred million weights
        model = models.VGG(nn.Identity(), num_classes=CLASSES, init_weights=False)
    model.features = models.vgg.make_layers([8, "M", 16, 16, "M"], batch_norm=True)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier = nn.Linear(64, CLASSES)
    return model


def _efficient_net(models: Any) -> Module:
    block = models.efficientnet.MBConvConfig
    blocks = [
        block(1, 3, 1, 8, 8, 1, 1.0, 1.0),
        block(4, 3, 2, 8, 16, 2, 1.0, 1.0),
        block(4, 5, 1, 16, 16, 1, 1.0, 1.0),
    ]
    return models.EfficientNet(blocks, dropout=0.2, last_channel=32, num_classes=CLASSES)


def _convnext(models: Any) -> Module:
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(16, 32, 1), block(32, None, 2)], layer_scale=1.0, num_classes=CLASSES)


def _swin(models: Any) -> Module:
    return models.SwinTransformer(
        [2, 2], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[2, 2], num_classes=CLASSES
    )


# More families, whose blocks are called in unusual ways; the differential test has them all.
FAMILIES: dict[str, Callable[[], Architecture]] = {
    **BUILDERS,
    # Its blocks give positions first; this is the pooled state.
    "XLNet": lambda: _xlnet("sequence_summary.summary"),
    "Longformer": lambda: _bert_like("Longformer", "longformer.encoder.layer.1", attention_window=[4] * LAYERS),
    "BigBird": lambda: _longer(
        _bert_like(
            "BigBird",
            "bert.encoder.layer.1",
            block_size=2,
            num_random_blocks=1,
            attention_type="block_sparse",
            sep_token_id=END,
        )
    ),
    "MPNet": lambda: _bert_like("MPNet", "mpnet.encoder.layer.1"),
    "Funnel": _funnel,
    "ConvBERT": lambda: _bert_like("ConvBert", "convbert.encoder.layer.1", embedding_size=16, head_ratio=2),
    "RoFormer": lambda: _bert_like("RoFormer", "roformer.encoder.layer.1", embedding_size=HIDDEN),
    "BART": lambda: _classifier("BartForSequenceClassification", "BartConfig", "model.encoder.layers.1", **_bart()),
    "BART encoder": _bart_encoder,
    "GPT-Neo": lambda: _decoder(
        "GPTNeo",
        "transformer.h.1",
        num_layers=LAYERS,
        num_heads=HEADS,
        attention_types=[[["global", "local"], LAYERS // 2]],
        window_size=4,
    ),
    "Mistral": lambda: _decoder("Mistral", "model.layers.1", num_key_value_heads=2, sliding_window=4),
    "Mixtral": lambda: _decoder(
        "Mixtral", "model.layers.1", num_key_value_heads=2, num_local_experts=4, experts_implementation="eager"
    ),
    "Qwen2-MoE": lambda: _decoder(
        "Qwen2Moe",
        "model.layers.1",
        num_key_value_heads=2,
        num_experts=4,
        experts_implementation="batched_mm",
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "Gemma 3": lambda: _classifier(
        "Gemma3TextForSequenceClassification",
        "Gemma3TextConfig",
        "model.layers.1",
        **_DECODER_LIKE,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        sliding_window_pattern=2,
    ),
    "Phi": lambda: _decoder("Phi", "model.layers.1"),
    "OPT": lambda: _decoder("OPT", "model.decoder.layers.1", ffn_dim=2 * HIDDEN, word_embed_proj_dim=16, init_std=0.2),
    "Falcon": lambda: _decoder("Falcon", "transformer.h.1", num_kv_heads=2, new_decoder_architecture=True),
    "Bloom": lambda: _decoder("Bloom", "transformer.h.1", n_layer=LAYERS, n_head=HEADS),
    "Mamba": _mamba,
    "RWKV": _rwkv,
    "Swin": _hf_swin,
    "ConvNeXt": _hf_convnext,
    "Wav2Vec2": _wav2vec2,
    "LSTM": lambda: _states(nn.LSTM),
    "GRU": lambda: _states(nn.GRU),
    "Audio net": _audio,
    "Encoder of PyTorch": _torch_encoder,
    "torchvision ResNet": lambda: _torchvision(
        lambda models: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES), "layer2.0", pixels=32
    ),
    "torchvision VGG": lambda: _torchvision(_vgg, "features.4"),
    "torchvision MobileNetV2": lambda: _torchvision(
        lambda models: models.MobileNetV2(num_classes=CLASSES, width_mult=0.25), "features.4", pixels=32
    ),
    "torchvision MobileNetV3": lambda: _torchvision(
        lambda models: models.mobilenet_v3_small(num_classes=CLASSES, width_mult=0.25), "features.4", pixels=32
    ),
    "torchvision EfficientNet": lambda: _torchvision(_efficient_net, "features.2.0"),
    "torchvision DenseNet": lambda: _torchvision(
        lambda models: models.DenseNet(4, (2, 2, 2), 8, num_classes=CLASSES),
        "features.denseblock2.denselayer1",
        pixels=32,
    ),
    "torchvision ViT": lambda: _torchvision(
        lambda models: models.VisionTransformer(16, 4, LAYERS, HEADS, HIDDEN, 2 * HIDDEN, num_classes=CLASSES),
        "encoder.layers.encoder_layer_1",
        None,
    ),
    # Features last between the blocks.
    "torchvision Swin": lambda: _torchvision(_swin, "features.1.1", None),
    "torchvision ConvNeXt": lambda: _torchvision(_convnext, "features.1.0"),
    # Features last inside the block.
    "torchvision ConvNeXt, inside": lambda: _torchvision(_convnext, "features.1.0.block.3", None),
}

TEXT_MODELS = [name for name in BUILDERS if name not in ("ViT", "Convolutional net", "MLP", "Recurrent net")]
# Passes run whole: the recurrent states have no row an example in their first dimension.
FALL_BACK = ("Recurrent net",)


def build(name: str, seed: int = 0) -> Architecture:
    """An architecture by name, always with the same weights; the global random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = FAMILIES[name]()
    found.model.eval()
    return found


def assert_same(bits, expected, tolerance=TOLERANCE):
    assert bits.shape == expected.shape
    deviation = float((bits - expected).abs().max() / expected.abs().max())
    assert deviation <= tolerance


def rotated(kind: str) -> Architecture:
    """A Llama whose angles of rotation, a buffer, depend on the longest text so far; these are longer than planned."""
    more: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    if kind == "longrope":
        more |= {"original_max_position_embeddings": 6, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = _decoder(
            "Llama", "model.layers.1", num_key_value_heads=2, max_position_embeddings=6, rope_parameters=more
        )
    found.model.eval()
    return found
