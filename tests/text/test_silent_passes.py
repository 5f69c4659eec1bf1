"""Models that compute otherwise from a length on, read tokens past their blocks, or lose the prediction in the mask."""

import copy
import dataclasses
import warnings

import pytest
import torch
import transformers
from transformers.modeling_outputs import SequenceClassifierOutput

from captum_iba._reading.mask_sentences import HARDLY_ANYTHING
from captum_iba._reading.mask_state import lost_prediction
from captum_iba._reading.thresholds import is_lost
from captum_iba._warnings import LostPredictionWarning
from captum_iba.compare.explain_many import explain_texts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.demo import embedded_model_path
from captum_iba.text import TextAttribution, TextExplainer, explain_layers
from captum_iba.text.layers import find_blocks
from captum_iba.visualization import token_map
from tests.visualization.examples import attribution

from .conftest import build

SMALL = {"vocab_size": 400, "num_labels": 3, "pad_token_id": 0, "initializer_range": 0.4}
FOUR = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SHORT = "the film was good and the plot was not bad , the film was good"
LONG = f"{SHORT} . " * 6
QUICK = {"n_steps": 4, "target": 0}


def rotary_of_two_factors():
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 1.5]}
    return transformers.Phi3Config(
        original_max_position_embeddings=32,
        max_position_embeddings=512,
        rope_parameters={**scaling, "rope_theta": 10000.0},
        num_key_value_heads=4,
        **FOUR,
        **SMALL,
    )


MODELS = {
    "big_bird": lambda: transformers.BigBirdConfig(block_size=4, num_random_blocks=1, **FOUR, **SMALL),
    "phi3": rotary_of_two_factors,
}


@pytest.mark.parametrize("family", MODELS)
def test_a_text_beside_a_longer_one_is_computed_as_alone(wordpiece, family):
    model = build(MODELS[family]())
    explainer = TextExplainer(model, wordpiece)
    explainer.estimate_statistics([SHORT] * 40)
    with torch.no_grad():
        inputs = wordpiece(SHORT, return_tensors="pt")
        # A short text turns BigBird to full attention for good.
        own = copy.deepcopy(model)(inputs["input_ids"], attention_mask=inputs["attention_mask"])
        expected = float(own.logits.softmax(-1)[0, 0])
    alone = explainer.explain(SHORT, check=True, **QUICK)
    beside, long = explainer.explain([SHORT, LONG], check=True, **QUICK)
    assert alone.target_probability == pytest.approx(expected, abs=1e-5)
    assert beside.target_probability == pytest.approx(expected, abs=1e-5)
    assert beside.bits == pytest.approx(alone.bits, rel=1e-4, abs=1e-4)
    one_by_one = explainer.explain(LONG, check=True, batch_size=1, internal_batch_size=1, **QUICK)
    for name in ("without_leading", "without_least", "without_random"):
        assert getattr(long.check, name) == pytest.approx(getattr(one_by_one.check, name), abs=1e-4)
    assert not explainer.classifier.padding_matters and explainer.classifier.padding_matters_up_to(len(long.tokens))


def test_statistics_are_of_texts_as_they_are_alone(wordpiece):
    explainer = TextExplainer(build(MODELS["phi3"]()), wordpiece)
    expected = explainer.estimate_statistics([SHORT, LONG], batch_size=1)
    for one, other in zip(expected, explainer.estimate_statistics([SHORT, LONG]), strict=True):
        assert torch.allclose(one.mean, other.mean, atol=1e-5)


class LabelScorers(transformers.BertPreTrainedModel):
    """One scorer per label, more of them than blocks."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.heads = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(32, 4), torch.nn.Linear(4, 1)) for _ in range(6)
        )
        self.post_init()

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        hidden = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        return SequenceClassifierOutput(logits=torch.cat([head(hidden).mean(1) for head in self.heads], -1))


def test_heads_are_no_blocks_even_if_there_are_more_of_them():
    model = LabelScorers(transformers.BertConfig(num_labels=6, vocab_size=400, **FOUR))
    assert [block.name for block in find_blocks(model)] == ["bert.encoder.layer.0", "bert.encoder.layer.1"]


def test_a_module_that_is_several_blocks_has_one_call_for_each(bert, wordpiece):
    model = copy.deepcopy(bert)
    layers = model.bert.encoder.layer
    layers[len(layers) - 1] = layers[0]
    blocks = find_blocks(model)
    assert [block.call for block in blocks if block.module is layers[0]] == [0, 1]
    assert len({block.key for block in blocks}) == len(blocks)
    explainer = TextExplainer(model, wordpiece)
    explainer.estimate_statistics([SHORT, LONG])
    assert explainer.explain(SHORT, **QUICK).total_bits > 0


# A decoder that gets the token ids reads them past bottlenecks in the encoder.
def test_a_decoder_that_reads_the_tokens_is_warned_of(wordpiece):
    config = transformers.BartConfig(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        eos_token_id=wordpiece.sep_token_id,
        bos_token_id=wordpiece.cls_token_id,
        decoder_start_token_id=wordpiece.sep_token_id,
        forced_eos_token_id=None,
        init_std=0.4,
        **{key: value for key, value in SMALL.items() if key != "initializer_range"},
    )
    with pytest.warns(UserWarning, match="BartForSequenceClassification reads the tokens past model.encoder.layers.0"):
        TextExplainer(build(config), wordpiece)


@pytest.mark.parametrize("layer", [None, 1, 2, "bert.embeddings"])
def test_a_model_that_reads_the_tokens_by_its_layers_only_is_not_warned_of(bert, wordpiece, layer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TextExplainer(bert, wordpiece, layer)


def test_a_layer_with_a_residual_connection_past_it_is_warned_of(bert, wordpiece):
    with pytest.warns(UserWarning, match="reads the tokens past bert.encoder.layer.0.attention.self"):
        TextExplainer(bert, wordpiece, "bert.encoder.layer.0.attention.self")


FEW = {"bits": [2.0, 3.0], "unneeded_bits": 1.0, "open_bits": 100.0}


def test_a_mask_that_has_lost_the_prediction_does_not_say_that_hardly_anything_is_needed():
    result = attribution("a b", **FEW)
    lost = dataclasses.replace(result, target_probability=0.9, masked_probability=0.2)
    assert lost_prediction(lost) and "The mask removed too much" in str(lost)
    assert HARDLY_ANYTHING[:-1] not in str(lost) + token_map(lost)
    kept = dataclasses.replace(result, target_probability=0.9, masked_probability=0.85)
    assert HARDLY_ANYTHING in str(kept) and "alone the probability of positive is 85.0%." in str(kept)
    # Percentages of next to nothing say nothing.
    listed = str(kept).split("this text.\n")[1].split("\nNo word")[0]
    assert "3.00 bits" in listed and "%" not in listed and "of the bits" not in token_map(kept)
    partly = dataclasses.replace(result, target_probability=0.9, masked_probability=0.6)
    assert HARDLY_ANYTHING[:-1] not in str(partly)
    assert "The mask keeps hardly any bits above the floor: with the information in the bits alone" in str(partly)
    assert "A smaller beta keeps more of them." in str(partly)
    # A decision that falls below one half is lost, and so are bits that add next to nothing to a closed mask.
    assert lost_prediction(dataclasses.replace(result, target_probability=0.957, masked_probability=0.479))
    with_closed = {"target_probability": 0.954, "masked_probability": 0.561}
    assert not lost_prediction(dataclasses.replace(result, **with_closed, closed_probability=0.2))
    lost_to_closed = dataclasses.replace(result, **with_closed, closed_probability=0.557)
    assert lost_prediction(lost_to_closed) and "is 56.1%, and with none of it 55.7%" in str(lost_to_closed)
    # Advice is not given again where it was followed.
    least = dataclasses.replace(lost, settings={"beta": 1.0})
    assert "Even beta 1 keeps too little" in str(least) and "A smaller beta" not in str(least)
    assert "Use a smaller beta, or statistics from texts like this one, about as long." in str(lost)
    assert "100.0%" not in str(lost) and "of the bits" not in token_map(lost)
    # With many bits, too.
    many = dataclasses.replace(lost, unneeded_bits=0.01)
    assert lost_prediction(many) and "The mask removed too much" in str(many)


@pytest.mark.parametrize(
    ("probability", "masked", "closed", "lost"),
    [
        (0.9, 0.44, None, True),
        (0.9, 0.51, None, False),
        (0.95, 0.48, None, True),
        (0.55, 0.48, None, False),  # by less than 0.1
        (0.9, 0.59, 0.5, True),  # less than a quarter of 0.4
        (0.9, 0.61, 0.5, False),
        (0.4, 0.25, 0.9, False),  # the text speaks against it
    ],
)
def test_when_a_mask_has_lost_a_prediction(probability, masked, closed, lost):
    assert is_lost(probability, masked, closed) is lost


def test_a_closed_mask_leaves_the_mean_of_the_statistics():
    explainer = TextExplainer.from_pretrained(embedded_model_path(), "bert.embeddings")
    text = "A wonderful, touching film."
    explainer.estimate_statistics([text, "A dull plot, bad acting and a boring end."])
    result = explainer.explain(text)
    mean = explainer.statistics[0].mean

    def closed(module, inputs, output):
        output = output.clone()
        output[:, 1:-1] = mean.to(output)
        return output

    inputs = explainer.classifier.tokenizer(text, return_tensors="pt")
    with torch.no_grad(), explainer.model.bert.embeddings.register_forward_hook(closed):
        expected = explainer.model(**inputs).logits.softmax(-1)[0, result.target]
    assert result.closed_probability == pytest.approx(float(expected), abs=1e-5)
    assert f"and with none of it {expected:.1%}" in result.to_text(details=True)
    assert TextAttribution.from_dict(result.to_dict()) == result


def test_a_prediction_that_the_mask_loses_is_warned_of():
    """The mask closes for any text with such a beta, so that a good film and a bad one have the same prediction."""
    explainer = TextExplainer.from_pretrained(embedded_model_path(), "bert.embeddings")
    texts = ["A wonderful, touching film.", "A dull plot, bad acting and a boring end."]
    explainer.estimate_statistics(texts * 10)
    closed = {"beta": 1e6, "complement": 0.0, "n_steps": 60}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = explainer.explain(texts, **closed)
    traced = explainer.explain(texts, return_trace=True, **closed)
    assert any(map(lost_prediction, results))
    assert any(issubclass(warning.category, LostPredictionWarning) for warning in caught)
    for result, other in zip(results, traced, strict=True):
        assert result.masked_probability == pytest.approx(other.trace.probability[-1], abs=1e-5)
        assert other.masked_probability == pytest.approx(other.trace.probability[-1])


def test_the_default_tries_a_smaller_beta_where_its_mask_loses_the_prediction():
    explainer = TextExplainer.from_pretrained(embedded_model_path())
    texts = ["A fine film.", "Boring.", "A dull plot."]
    fixed = explainer.explain(texts, beta=10.0)
    assert [lost_prediction(result) for result in fixed] == [False, True, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = explainer.explain(texts)
    assert [result.preset for result in results] == ["default", "default, beta 3", "default, beta 3"]
    assert [result.settings["beta"] for result in results] == [10, 3, 3] and not any(map(lost_prediction, results))
    assert results[0].bits == pytest.approx(fixed[0].bits) and "default, beta 3" in str(results[1])
    # As with that beta, and alone as beside others.
    assert results[2].bits == pytest.approx(explainer.explain(texts[2], beta=3.0).bits, rel=1e-4, abs=1e-2)
    assert results[2].bits == pytest.approx(explainer.explain(texts[2]).bits, rel=1e-4, abs=1e-2)


def test_layers_side_by_side_have_one_beta():
    path = embedded_model_path()
    explainers = [TextExplainer.from_pretrained(path, layer) for layer in (1, 4)]
    texts = ["A fine film.", "Boring.", "A dull plot."]
    alone = [[result.settings["beta"] for result in explainer.explain(texts, rerank=0)] for explainer in explainers]
    assert len({beta for of_layer in alone for beta in of_layer}) > 1  # by itself, each text and layer has its own
    rows = explain_layers(explainers, texts)
    betas = {after.settings["beta"] for row in rows for _, after in row}
    assert betas == {min(min(of_layer) for of_layer in alone)}
    given = explain_layers(explainers, texts, beta=10.0)
    assert {after.settings["beta"] for row in given for _, after in row} == {10.0}


def test_kept_results_that_lost_the_prediction_are_warned_of_again(tmp_path):
    explainer = TextExplainer.from_pretrained(embedded_model_path())
    for _ in range(2):
        with pytest.warns(UserWarning, match="removed too much"):
            explain_texts(LocalExecutor(), explainer, ["A fine film.", "Boring."], keep=tmp_path, beta=30.0)
