"""Several prompts in one batch: the results are those of each prompt by itself."""

import warnings

import pytest
import torch

from captum_iba.compare.explain_many import explain_prompts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.text import GenerationExplainer
from captum_iba.text.generation import GENERATION, AskedResponse
from captum_iba.text.prompt_model import closable, stacked
from tests.text import test_encoder_decoders, test_generation

PROMPTS = ["the film was not good . a dull plot !", "a film", "the plot was dull , but the film was good"]
RESPONSES = ["a bad film", "the plot was good , not dull", "good"]
QUICK = {"n_steps": 4, "rerank": 2, "check": True}


MODELS = [pytest.param(test_generation.language_model, family, id=family) for family in test_generation.FAMILIES]
MODELS += [
    pytest.param(test_encoder_decoders.encoder_decoder, family, id=family) for family in test_encoder_decoders.FAMILIES
]


def assert_same(batch, alone, tolerance=1e-3):
    assert batch.bits == pytest.approx(alone.bits, rel=tolerance, abs=tolerance)
    assert [token.probability for token in batch.tokens] == pytest.approx(
        [t.probability for t in alone.tokens], rel=min(tolerance, 1e-4)
    )
    assert batch.token_bits == pytest.approx(alone.token_bits, rel=tolerance, abs=tolerance)
    assert batch.masked_probability == pytest.approx(alone.masked_probability, rel=tolerance)
    assert (batch.response, batch.span, batch.contrast) == (alone.response, alone.span, alone.contrast)
    # Of a random model, rounding can decide whether one more part is among the leading ones.
    if alone.check is not None and batch.check is not None and batch.check.n_removed == alone.check.n_removed:
        assert batch.check.without_leading == pytest.approx(alone.check.without_leading, rel=1e-3)


@pytest.mark.parametrize(("build", "family"), MODELS)
def test_prompts_in_one_batch_are_those_by_themselves(build, family, wordpiece):
    """In double precision; in single precision bits of T5 differ by 5e-4, of rounding."""
    in_double = family != "gpt_oss"  # whose experts torch multiplies in single precision only
    explainer = GenerationExplainer(build(family).double() if in_double else build(family), wordpiece)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # improbable responses
        batch = explainer.explain_batch(PROMPTS, RESPONSES, batch_size=3, **QUICK)
        for result, prompt, response in zip(batch, PROMPTS, RESPONSES, strict=True):
            assert_same(result, explainer.explain(prompt, response, **QUICK), tolerance=1e-9 if in_double else 1e-3)


@pytest.mark.parametrize(("build", "family"), MODELS)
def test_rows_of_a_batch_have_the_log_probabilities_of_each_prompt(build, family, wordpiece):
    explainer = GenerationExplainer(build(family), wordpiece)
    read = [explainer.read(prompt) for prompt in PROMPTS]
    ids = [explainer.attribution.response_ids(*pair) for pair in zip(read, RESPONSES, strict=True)]
    with torch.no_grad():
        models = [closable(explainer.model, *pair) for pair in zip(read, ids, strict=True)]
        rows = stacked(models).log_probabilities(len(models))
        for row, model in zip(rows, models, strict=True):
            alone = model.log_probabilities(1)[0]
            torch.testing.assert_close(row[: len(alone)], alone, rtol=1e-4, atol=1e-4)


def test_spans_contrasts_and_tokens_of_a_batch(llama, wordpiece):
    explainer = GenerationExplainer(llama, wordpiece)
    spans, contrasts = ["bad", None, (0, 4)], ["good", None, "dull"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for settings in (
            {"spans": spans, "per_token": True},
            {"spans": spans, "contrasts": contrasts},
            {"contrasts": [None, "a dull plot", "dull"]},
        ):
            batch = explainer.explain_batch(PROMPTS, RESPONSES, batch_size=4, **settings, **QUICK)
            for number, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
                one = {name[:-1]: column[number] for name, column in settings.items() if name != "per_token"}
                one["per_token"] = settings.get("per_token", False)
                assert_same(batch[number], explainer.explain(prompt, response, **one, **QUICK))


def test_a_model_whose_rows_depend_on_each_other_has_a_pass_for_each_prompt(llama, wordpiece):
    explainer = GenerationExplainer(llama, wordpiece)
    alone = [explainer.explain(*pair, n_steps=2, rerank=0) for pair in zip(PROMPTS, RESPONSES, strict=True)]
    lengths = []

    def mixed(module, args, kwargs, output):
        lengths.append(output.logits.shape[0])
        if output.logits.shape[0] > 1:
            output.logits = output.logits + output.logits.mean(0, keepdim=True)
        return output

    hook = llama.register_forward_hook(mixed, with_kwargs=True)
    batch = explainer.explain_batch(PROMPTS, RESPONSES, n_steps=2, rerank=0)
    hook.remove()
    assert lengths.count(3) == 1  # the pass that found it out
    for result, expected in zip(batch, alone, strict=True):
        assert result.bits == pytest.approx(expected.bits, rel=1e-5, abs=1e-5)


def test_the_gradients_of_a_row_do_not_depend_on_the_others(llama, wordpiece):
    attribution = GenerationExplainer(llama, wordpiece).attribution
    asked = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        read = attribution.read(prompt, "word")
        ids = attribution.response_ids(read, response)
        asked.append(AskedResponse(read, ids, torch.ones(1, len(ids)) / len(ids)))
    together = attribution.attribute_responses(asked, GENERATION, 8)
    for number, found in enumerate(together):
        (one,) = attribution.attribute_responses([asked[number]], GENERATION, 8)
        torch.testing.assert_close(found.bits, one.bits, rtol=1e-3, atol=1e-3)


def test_many_prompts_are_explained_in_batches_and_kept(llama, wordpiece, tmp_path):
    explainer = GenerationExplainer(llama, wordpiece)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = explain_prompts(LocalExecutor(), explainer, PROMPTS, RESPONSES, **QUICK)
        for _ in range(2):
            batch = explain_prompts(
                LocalExecutor(), explainer, PROMPTS, RESPONSES, prompts_per_batch=2, keep=tmp_path, **QUICK
            )
            assert len(list(tmp_path.iterdir())) == 2
            for result, expected in zip(batch, alone, strict=True):
                assert_same(result, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("the film",), TypeError, "prompts is one prompt, expected a sequence of them"),
        ((["the film"], "good"), ValueError, "responses is a string, expected one for each of the 1 prompts"),
        ((["the film", "a plot"], ["good"]), ValueError, "responses is of length 1, expected one for each of the 2"),
        ((["the film", ""], None), ValueError, r"prompts\[1\]: prompt is '', without any word"),
        ((["the film", 3], ["a", "b"]), TypeError, r"prompts\[1\]: prompt is an int"),
    ],
)
def test_wrong_batches(llama, wordpiece, arguments, error, says):
    with pytest.raises(error, match=says):
        GenerationExplainer(llama, wordpiece).explain_batch(*arguments)
