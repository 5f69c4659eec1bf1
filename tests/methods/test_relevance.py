"""AttnLRP: against relevance propagated layer by layer, and models that it has no rules for."""

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BertConfig,
    BigBirdConfig,
    DistilBertConfig,
    ElectraConfig,
    FNetConfig,
    GPT2Config,
    LlamaConfig,
    LongformerConfig,
    MobileBertConfig,
    RobertaConfig,
    T5Config,
    XLMConfig,
)

from captum_iba.methods import AttributionTask, attribute
from captum_iba.methods.gradient_methods import EmbeddedTexts
from captum_iba.methods.relevance import attn_lrp, relevance_rules
from captum_iba.text import Classifier
from captum_iba.text.model_properties import attention_implementation
from tests.text.conftest import SIZE, build

TEXTS = ["the film was not good", "bad", "a dull, unbelievable plot! don't like the plot"]
TWO = {**SIZE, "num_hidden_layers": 2}
DISTIL = {"vocab_size": 400, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 40}
T5 = {"vocab_size": 400, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "pad_token_id": 0} | {
    "eos_token_id": 3,
    "decoder_start_token_id": 0,
}
BART = {
    **{f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")},
    **{"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 400, "d_model": 16, "max_position_embeddings": 40},
    **{"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0},
}


class LayerByLayer:
    """Relevance propagation by the rules of the paper, without gradients; keeps what does not reach the inputs."""

    def __init__(self):
        self.lost = 0.0

    def linear(self, layer, x, relevance):
        z = x @ layer.weight.T + layer.bias
        self.lost += float((layer.bias * relevance / z).sum())
        return x * ((relevance / z) @ layer.weight)

    def norm(self, layer, x, relevance):
        """A linear layer: the mean is subtracted, and the standard deviation is a constant."""
        deviation = (x.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt()
        size = x.shape[-1]
        weight = (torch.eye(size, dtype=x.dtype) - 1 / size) * layer.weight  # (in, out)
        y = (x @ weight) / deviation + layer.bias
        self.lost += float((layer.bias * relevance / y).sum())
        return x * ((relevance / y / deviation) @ weight.T)

    @staticmethod
    def added(a, b, relevance):
        return a / (a + b) * relevance, b / (a + b) * relevance

    @staticmethod
    def multiplied(a, b, relevance):
        """Half to each factor of a matrix product, in proportion to its terms."""
        terms = a[..., :, :, None] * b[..., None, :, :]  # (..., i, k, j)
        shares = terms / terms.sum(-2, keepdim=True) * relevance[..., :, None, :] / 2
        return shares.sum(-1), shares.sum(-3)

    def softmax(self, x, relevance):
        propagated = x * (relevance - x.softmax(-1) * relevance.sum(-1, keepdim=True))
        self.lost += float(relevance.sum() - propagated.sum())
        return propagated

    def attention(self, block, x, relevance):
        module = block.attention.self
        heads, size = module.num_attention_heads, module.attention_head_size

        def split(values):
            return values.view(len(values), heads, size).transpose(0, 1)

        def joined(values):
            return values.transpose(0, 1).reshape(len(x), -1)

        query, key, value = (split(layer(x)) for layer in (module.query, module.key, module.value))
        scores = query @ key.transpose(1, 2) / size**0.5
        of_weights, of_value = self.multiplied(scores.softmax(-1), value, split(relevance))
        of_query, of_key = self.multiplied(query, key.transpose(1, 2), self.softmax(scores, of_weights))
        parts = zip((module.query, module.key, module.value), (of_query, of_key.transpose(1, 2), of_value), strict=True)
        return sum(self.linear(layer, x, joined(part)) for layer, part in parts)

    def block(self, block, x, relevance):
        attended = block.attention.self(x[None])[0][0]
        dense = block.attention.output.dense(attended)
        middle = block.attention.output.LayerNorm(dense + x)
        hidden = block.intermediate.dense(middle)
        outer = block.output.dense(block.intermediate.intermediate_act_fn(hidden))
        relevance = self.norm(block.output.LayerNorm, outer + middle, relevance)
        of_outer, of_middle = self.added(outer, middle, relevance)
        activated = block.intermediate.intermediate_act_fn(hidden)
        of_hidden = self.linear(block.output.dense, activated, of_outer)  # of the activation, and so of its input
        of_middle = of_middle + self.linear(block.intermediate.dense, middle, of_hidden)
        of_sum = self.norm(block.attention.output.LayerNorm, dense + x, of_middle)
        of_dense, of_x = self.added(dense, x, of_sum)
        of_attended = self.linear(block.attention.output.dense, attended, of_dense)
        return of_x + self.attention(block, x, of_attended)

    def bert(self, model, ids, target):
        """Relevance of the word embeddings, (T,), and the logit."""
        table = model.bert.embeddings
        words = table.word_embeddings(ids)
        others = table.position_embeddings.weight[: len(ids)] + table.token_type_embeddings.weight[:1]
        states = [table.LayerNorm(words + others)]
        for block in model.bert.encoder.layer:
            states.append(block(states[-1][None])[0].reshape(states[-1].shape))
        first = states[-1][:1]
        pooled = model.bert.pooler.dense(first).tanh()
        logits = model.classifier(pooled)
        relevance = torch.zeros_like(logits)
        relevance[0, target] = logits[0, target]
        relevance = self.linear(model.bert.pooler.dense, first, self.linear(model.classifier, pooled, relevance))
        relevance = torch.cat([relevance, torch.zeros_like(states[-1][1:])])
        for block, x in zip(reversed(model.bert.encoder.layer), reversed(states[:-1]), strict=True):
            relevance = self.block(block, x, relevance)
        relevance = self.norm(table.LayerNorm, words + others, relevance)
        of_words, of_others = self.added(words, others, relevance)
        self.lost += float(of_others.sum())
        return of_words.sum(-1), float(logits[0, target])


@pytest.fixture(scope="module")
def double():
    """A small BERT in double precision with biases that are not 0."""
    model = build(BertConfig(**TWO, num_labels=3, attn_implementation="eager")).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.mark.parametrize("target", [0, 2])
def test_it_is_relevance_propagated_layer_by_layer_and_conserved(double, wordpiece, target):
    for scores in attribute("attn_lrp", Classifier(double, wordpiece), TEXTS, target=target):
        naive = LayerByLayer()
        with torch.no_grad():
            relevance, logit = naive.bert(double, torch.tensor(scores.encoded.inputs["input_ids"]), target)
        ordinary = ~np.array(scores.encoded.special)
        assert np.allclose(scores.tokens[ordinary], relevance.numpy()[ordinary], rtol=1e-6, atol=1e-9)
        assert float(relevance.sum()) + naive.lost == pytest.approx(logit, rel=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        BertConfig(**TWO, num_labels=2),
        GPT2Config(vocab_size=400, n_embd=16, n_layer=2, n_head=2, n_positions=40, num_labels=2, pad_token_id=0),
        LlamaConfig(**TWO, num_labels=2),
        T5Config(**T5, num_labels=2, feed_forward_proj="gated-gelu"),
    ],
    ids=lambda config: config.model_type,
)
def test_relevance_is_conserved_where_nothing_keeps_a_part(wordpiece, config):
    """Without biases, positions and attention, of which the softmax keeps a part: all goes to the words.

    Among them are normalizations with and without mean, composed activations and gates.
    """
    model = build(config).requires_grad_(False)
    attention = ("attention.output.dense.weight", "attn.c_proj.weight", "o_proj.weight", "Attention.o.weight")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", *attention)) or "position" in name or "token_type" in name or "wpe" in name:
                parameter.zero_()
        model.get_input_embeddings().weight[0] = 0.0  # the token type in GPT-2, the first token of the decoder in T5
    classifier = Classifier(model, wordpiece)
    texts = EmbeddedTexts.of(classifier, classifier.encode([TEXTS[0]], [None]), [1])
    leaf = texts.leaves()
    with attention_implementation(model, "eager"), relevance_rules(model) as check:
        logits = texts.forward(leaf, *texts.inputs)
    check(logits)
    (gradient,) = torch.autograd.grad(logits[0, 1], leaf)
    assert (gradient * leaf).sum().item() == pytest.approx(logits[0, 1].item(), rel=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        RobertaConfig(**{**TWO, "pad_token_id": 1}, num_labels=2),
        DistilBertConfig(**DISTIL, pad_token_id=0, num_labels=2),
        ElectraConfig(**TWO, embedding_size=8, num_labels=2),
        BigBirdConfig(**TWO, num_labels=2, attention_type="original_full"),
        LlamaConfig(**TWO, num_labels=2),
        XLMConfig(vocab_size=400, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=40, num_labels=2),
        BartConfig(**BART, num_labels=2),
    ],
    ids=lambda config: config.model_type,
)
def test_the_rules_change_gradients_and_not_outputs(wordpiece, config):
    model = build(config)
    classifier = Classifier(model, wordpiece)
    inputs = classifier.tensors(classifier.encode(TEXTS[:1], [None]))
    expected = classifier.logits(*inputs.values()).detach()
    with attention_implementation(model, "eager"), relevance_rules(model):
        found = classifier.logits(*inputs.values()).detach()
    assert torch.allclose(found, expected, atol=1e-5)
    together = attribute("attn_lrp", classifier, TEXTS, target=1)
    for text, scores in zip(TEXTS, together, strict=True):
        alone = attribute("attn_lrp", classifier, text, target=1)[0].tokens
        assert np.allclose(scores.tokens, alone, atol=1e-4 * abs(alone).max()) and alone.any()
        plain = attribute("gradient_x_activation", classifier, text, target=1)[0].tokens
        assert not np.allclose(alone, plain, atol=1e-2 * abs(plain).max())


@pytest.mark.parametrize(
    ("config", "operation"),
    [
        (FNetConfig(**TWO, num_labels=2), "ViewAsReal"),
        (LongformerConfig(**TWO, num_labels=2, attention_window=4), "IndexPut"),
        (BertConfig(**TWO, num_labels=2, hidden_act="sigmoid"), "Sigmoid"),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_an_operation_without_a_rule_is_refused(wordpiece, config, operation):
    classifier = Classifier(build(config), wordpiece)
    with pytest.raises(
        ValueError, match=f"model: {type(classifier.model).__name__} computes {operation}, an operation"
    ):
        attribute("attn_lrp", classifier, TEXTS, target=1)


def test_a_product_in_a_custom_head_is_refused_unless_its_factors_are_activations_of_known_rules(wordpiece):
    """The square of the pooled activation is a product, the exponential is not."""
    model = build(BertConfig(**TWO, num_labels=2))
    classifier = Classifier(model, wordpiece)
    squares = (
        lambda output: output * output,
        lambda output: torch.einsum("bi,bi->bi", output, output),
        lambda output: torch.einsum("ib->bi", torch.einsum("bi->ib", output * output)),
    )
    found = []
    for square in squares:
        with model.bert.pooler.register_forward_hook(lambda module, args, output, square=square: square(output)):
            found.append(attribute("attn_lrp", classifier, TEXTS[0], target=1)[0].tokens)
    assert found[0].any() and np.allclose(found, found[0], atol=1e-6)
    with (
        model.bert.pooler.register_forward_hook(lambda module, args, output: output.exp()),
        pytest.raises(ValueError, match="BertForSequenceClassification computes Exp, an operation"),
    ):
        attribute("attn_lrp", classifier, TEXTS[0], target=1)


def test_parameters_that_take_gradients_change_nothing(wordpiece):
    """The function alone, which the registry calls in evaluation mode and without gradients of parameters."""
    model = build(MobileBertConfig(**{**TWO, "intra_bottleneck_size": 16}, embedding_size=16, true_hidden_size=16))
    classifier = Classifier(model, wordpiece)
    expected = attribute("attn_lrp", classifier, TEXTS[0], target=1)[0]
    alone = attn_lrp(AttributionTask(classifier, [expected.encoded], [1]))[0]
    ordinary = ~np.array(expected.encoded.special)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert np.allclose(alone[ordinary], expected.tokens[ordinary])
