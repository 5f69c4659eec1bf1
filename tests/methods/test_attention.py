"""Attention rollout: against its formula, which tokens heads read, and models that it refuses."""

import copy

import numpy as np
import peft
import pytest
import torch
from transformers import (
    AlbertConfig,
    BertConfig,
    FNetConfig,
    GPT2Config,
    LongformerConfig,
    ModernBertConfig,
    T5Config,
    XLMConfig,
)

from captum_iba.methods import attribute
from captum_iba.text import Classifier
from captum_iba.text.model_properties import attention_implementation
from tests.text.conftest import SIZE, build

TEXTS = ["the film was not good", "bad", "a dull, unbelievable plot! don't like the plot"]
TWO = {**SIZE, "num_hidden_layers": 2, "num_labels": 2}
MODERN = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
SETTINGS = ("_attn_implementation", "output_attentions")


def settings(model):
    return [
        [getattr(module.config, name) for name in SETTINGS] for module in model.modules() if hasattr(module, "config")
    ]


@pytest.mark.parametrize(
    ("config", "read"),
    [
        (BertConfig(**TWO), lambda length: [0]),
        (AlbertConfig(**TWO, embedding_size=8), lambda length: [0]),
        (
            GPT2Config(vocab_size=400, n_embd=16, n_layer=3, n_head=2, n_positions=64, num_labels=2, pad_token_id=0),
            lambda length: [length - 1],
        ),
        (ModernBertConfig(**TWO, **MODERN, classifier_pooling="mean"), range),
        (ModernBertConfig(**TWO, **MODERN, classifier_pooling="cls"), lambda length: [0]),
    ],
    ids=["bert", "albert", "gpt2", "modernbert-mean", "modernbert-cls"],
)
def test_it_is_the_product_of_the_attention_weights_of_all_blocks(wordpiece, config, read):
    model = build(config)
    classifier = Classifier(model, wordpiece)
    before = settings(model)
    assert any("sdpa" in found for found in before)
    together = attribute("attention_rollout", classifier, TEXTS, target=1)
    assert settings(model) == before
    model.set_attn_implementation("eager")
    for scores in together:
        inputs = classifier.tensors([scores.encoded])
        with torch.no_grad():
            attentions = model(**inputs, output_attentions=True).attentions
        product = np.eye(len(scores.encoded))
        for attention in attentions:
            mixed = 0.5 * attention[0].mean(0).double().numpy() + 0.5 * np.eye(len(product))
            product = mixed / mixed.sum(-1, keepdims=True) @ product
        expected = product[list(read(len(product)))].mean(0)
        assert expected.sum() == pytest.approx(1)
        ordinary = ~np.array(scores.encoded.special)
        assert np.allclose(scores.tokens[ordinary], expected[ordinary], atol=1e-6)


def test_an_adapter_is_asked_for_its_attention_weights(bert, wordpiece):
    lora = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], init_lora_weights=False)
    model = peft.get_peft_model(copy.deepcopy(bert), lora).eval()
    (adapted,) = attribute("attention_rollout", Classifier(model, wordpiece), TEXTS[0])
    (merged,) = attribute("attention_rollout", Classifier(model.merge_and_unload(), wordpiece), TEXTS[0])
    assert adapted.tokens == pytest.approx(merged.tokens, abs=1e-5)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (FNetConfig(**TWO), r"expected those of 2 blocks, \(1, heads, 7, 7\), got none"),
        (LongformerConfig(**TWO, attention_window=4), r"expected those of 2 blocks, .*, got 2, of shapes"),
        (
            T5Config(
                vocab_size=400,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=2,
                num_heads=2,
                pad_token_id=0,
                eos_token_id=3,
                decoder_start_token_id=0,
            ),
            "is an encoder-decoder",
        ),
        (
            XLMConfig(vocab_size=400, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=40),
            "XLMForSequenceClassification has no list of transformer blocks",
        ),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_models_without_the_attention_weights_of_all_blocks_are_refused(wordpiece, config, says):
    classifier = Classifier(build(config), wordpiece)
    before = settings(classifier.model)
    with pytest.raises(ValueError, match=f"model: .*{says}"):
        attribute("attention_rollout", classifier, TEXTS[0], target=1)
    assert settings(classifier.model) == before


def test_a_head_that_reads_no_token_after_the_last_block_is_refused(wordpiece):
    model = build(BertConfig(**TWO))
    classifier = Classifier(model, wordpiece)
    with (
        model.bert.pooler.register_forward_hook(lambda module, args, output: output.detach()),
        pytest.raises(ValueError, match="the logits of BertForSequenceClassification have no gradient at the output"),
    ):
        attribute("attention_rollout", classifier, TEXTS[0], target=1)


@pytest.mark.parametrize("name", ["attention_rollout", "attn_lrp"])
def test_the_model_stays_as_it_was_when_a_pass_fails(wordpiece, name):
    model = build(BertConfig(**TWO))
    classifier = Classifier(model, wordpiece)
    before = settings(model), dict(vars(model.config))

    def fail(*_):
        raise RuntimeError("no memory")

    with model.classifier.register_forward_hook(fail), pytest.raises(RuntimeError, match="no memory"):
        attribute(name, classifier, TEXTS[0], target=1)
    assert (settings(model), dict(vars(model.config))) == before
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())
    assert attribute(name, classifier, TEXTS[0], target=1)[0].tokens.any()


def test_eager_attention_is_for_the_context_alone(bert):
    before = settings(bert)
    with attention_implementation(bert, "eager", output_attentions=True):
        assert all(found == ["eager", True] for found in settings(bert))
    assert settings(bert) == before
