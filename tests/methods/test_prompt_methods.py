"""Methods that attribute generated text to parts of its prompt."""

import copy

import pytest
import torch
from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

from captum_iba.methods.prompt_methods import (
    PROMPT_METHODS,
    PromptTask,
    context_cite,
    integrated_gradients_of_prompt,
    leave_one_part_out,
)
from captum_iba.text import GenerationExplainer
from tests.text.conftest import llama, wordpiece  # noqa: F401

SMALL_T5 = {"vocab_size": 110, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
SMALL_T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 3}


def test_methods_by_removal_find_the_effects_of_a_linear_model():
    effects = torch.tensor([1.0, 3.0, 0.0, -2.0, 0.5])

    def log_probability(kept):
        return kept.float() @ effects - 6

    assert torch.allclose(leave_one_part_out(log_probability, 5), effects.double())
    found = context_cite(log_probability, 5, n_tokens=3, n_contexts=64)
    assert torch.allclose(found, effects.double(), atol=0.15)
    with pytest.raises(ValueError, match="n_contexts is 0"):
        context_cite(log_probability, 5, n_tokens=3, n_contexts=0)


@pytest.fixture
def task(llama, wordpiece):  # noqa: F811
    explainer = GenerationExplainer(llama, wordpiece)
    prompt = "the film was not good . a dull plot !"
    read = explainer.read(prompt)
    return PromptTask(explainer, prompt, "word", read, explainer.attribution.response_ids(read, "a bad film"))


def mean_log_probability(task, embedded):
    """Of the response, by the whole model from embeddings."""
    logits = task.explainer.model(inputs_embeds=embedded).logits[0].log_softmax(-1)
    rows = range(len(logits) - len(task.response) - 1, len(logits) - 1)
    return logits[list(rows), task.response].mean()


def embedded_tokens(task):
    return task.explainer.model.get_input_embeddings()(torch.tensor([[*task.prompt.ids, *task.response]])).detach()


def in_parts(task, of_tokens):
    sums = [0.0] * task.n_parts
    for part, value in zip(task.prompt.parts, of_tokens.tolist(), strict=False):
        if part >= 0:
            sums[part] += value
    return sums


def test_gradients_of_the_mean_log_probability(task):
    embedded = embedded_tokens(task).requires_grad_()
    (gradient,) = torch.autograd.grad(mean_log_probability(task, embedded), embedded)
    expected = in_parts(task, (gradient * embedded)[0].sum(1))
    assert PROMPT_METHODS["gradient_x_activation"](task).tolist() == pytest.approx(expected, abs=1e-5)


def test_integrated_gradients_sum_to_the_change(task):
    whole = embedded_tokens(task)
    inside = torch.tensor([part >= 0 for part in [*task.prompt.parts, *[-1] * len(task.response)]])
    with torch.no_grad():
        change = mean_log_probability(task, whole) - mean_log_probability(task, whole * ~inside.view(1, -1, 1))
    scores = integrated_gradients_of_prompt(task, n_steps=400)
    assert float(scores.sum()) == pytest.approx(float(change), abs=0.02)


def test_shapley_values_sum_to_the_change(task):
    ends = torch.stack([torch.ones(task.n_parts, dtype=torch.bool), torch.zeros(task.n_parts, dtype=torch.bool)])
    whole, nothing = task.removal(ends).tolist()
    for name in ("shapley_value_sampling", "kernel_shap"):
        scores = PROMPT_METHODS[name](task)
        assert float(scores.sum()) == pytest.approx(whole - nothing, abs=1e-2), name


def test_rollout_from_the_positions_that_give_the_response(task):
    model = task.explainer.model
    ids = torch.tensor([[*task.prompt.ids, *task.response]])
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = eager(ids, output_attentions=True).attentions
    product = torch.eye(ids.shape[1])
    for weights in attentions:
        product = (weights[0].mean(0) + torch.eye(ids.shape[1])) / 2 @ product
    expected = in_parts(task, product[len(task.prompt.ids) - 1 : -1].mean(0))
    assert PROMPT_METHODS["attention_rollout"](task).tolist() == pytest.approx(expected, abs=1e-6)
    assert model.config._attn_implementation == "sdpa"


def test_one_task_has_one_answer(task):
    for name, method in PROMPT_METHODS.items():
        first, second = method(task), method(task)
        scores = [torch.stack(found) if isinstance(found, tuple) else found for found in (first, second)]
        assert torch.equal(*scores) and bool(scores[0].isfinite().all()) and scores[0].shape[-1] == task.n_parts, name


def test_methods_of_encoder_decoders(wordpiece):  # noqa: F811
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(**SMALL_T5)).eval()
    explainer = GenerationExplainer(model, wordpiece)
    read = explainer.read("the film was not good")
    task = PromptTask(
        explainer, "the film was not good", "word", read, explainer.attribution.response_ids(read, "a film")
    )
    for name, method in PROMPT_METHODS.items():
        if name == "attention_rollout":
            with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
                method(task)
        else:
            found = method(task)
            assert (found[0] if isinstance(found, tuple) else found).shape == (task.n_parts,), name


def test_methods_of_a_model_in_training_mode_are_those_in_evaluation_mode(wordpiece):  # noqa: F811
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 0, "eos_token_id": 3}
    config = MarianConfig(vocab_size=110, scale_embedding=True, dropout=0.5, decoder_start_token_id=0, **sizes, **heads)
    model = MarianMTModel(config).eval()
    explainer = GenerationExplainer(model, wordpiece)
    read = explainer.read("the film was not good")
    response = explainer.attribution.response_ids(read, "a film")
    task = PromptTask(explainer, "the film was not good", "word", read, response)
    for name in ("gradient_x_activation", "integrated_gradients", "leave_one_out"):
        expected = PROMPT_METHODS[name](task)
        model.train()
        before = torch.get_rng_state()
        assert torch.equal(PROMPT_METHODS[name](task), expected), name
        assert torch.equal(torch.get_rng_state(), before) and model.training, name
        model.eval()
