"""Metrics that were wrong without a word."""

import pytest
import torch
import transformers

from captum_iba.metrics import (
    BaselineValue,
    Degradation,
    Delete,
    MaskOut,
    cascading_randomisation,
    comprehensiveness,
    decision_flip_rate,
    degradation,
    log_odds,
    paired_bootstrap,
    probability_drop,
    sufficiency,
)
from tests.text.conftest import build


def test_rounding_is_no_difference_and_a_small_one_is():
    tenths = torch.full((30,), 0.1, dtype=torch.float64)
    assert not paired_bootstrap(tenths + 0.2, torch.full_like(tenths, 0.3)).excludes_zero
    assert paired_bootstrap(tenths + 1e-9, tenths).excludes_zero
    assert paired_bootstrap(tenths * 1e-12, tenths * 2e-12).excludes_zero


def test_rows_of_equal_length_share_a_pass_where_padding_matters():
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = build(transformers.FNetConfig(vocab_size=40, pad_token_id=0, **size))
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
    scores = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0))

    def run(rows, **limit):
        return degradation(
            lambda ids: model(input_ids=ids).logits,
            ids[rows],
            scores[rows],
            target=1,
            removable_mask=ids[rows] != 0,
            perturbation=Delete(0, equal_lengths=True),
            **limit,
        ).probability

    together = run(slice(None))
    assert torch.allclose(together, run(slice(None), max_examples_per_batch=1), atol=1e-6)
    assert torch.allclose(together[1:], run(slice(1, 2)), atol=1e-6)
    with torch.no_grad():
        alone = float(model(input_ids=ids[1:, :3]).logits.softmax(-1)[0, 1])
    assert float(together[1, 0]) == pytest.approx(alone, abs=1e-6)


def test_probabilities_are_not_softmaxed_again():
    weights = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 3.0]])
    inputs, scores = torch.tensor([[1.0, 0.5, 2.0], [0.0, 1.0, -1.0]]), torch.tensor([[3.0, 2.0, 1.0]] * 2)
    expected = degradation(lambda x: x @ weights, inputs, scores, 1)
    with pytest.warns(UserWarning, match="forward_func returns probabilities, expected logits"):
        curves = degradation(lambda x: (x @ weights).softmax(-1), inputs, scores, 1)
    torch.testing.assert_close(curves.probability, expected.probability)
    torch.testing.assert_close(curves.logit, expected.probability.log())
    assert torch.equal(curves.decision, expected.decision)


@pytest.mark.filterwarnings("error")
def test_logits_of_0_and_1_are_no_probabilities():
    curves = degradation(lambda x: torch.tensor([[0.0, 1.0]]).expand(len(x), 2), torch.ones(1, 3), torch.ones(1, 3), 1)
    torch.testing.assert_close(curves.logit, torch.ones(1, 10))


NOISE = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scale", [1e-6, 1e-11, 1e-13, 1e-14, 1e-60])
def test_an_interval_does_not_depend_on_the_unit(scale):
    interval, scaled = paired_bootstrap(NOISE), paired_bootstrap(NOISE * scale)
    assert not scaled.excludes_zero
    assert [value / scale for value in scaled] == pytest.approx(list(interval), rel=1e-6)
    a, b = NOISE.abs(), NOISE.flip(0).abs()
    assert [value / scale for value in paired_bootstrap(a * scale, b * scale)] == pytest.approx(
        list(paired_bootstrap(a, b)), rel=1e-6
    )


def test_small_noise_about_equal_values_is_not_certain():
    half = torch.full_like(NOISE, 0.5)
    assert not paired_bootstrap(half + 1e-13 * (NOISE - NOISE.mean()), half).excludes_zero


@pytest.mark.parametrize("confidence", [95, 1.5, 1.0, 0.0, -0.5, float("nan")])
def test_confidence_is_a_fraction(confidence):
    with pytest.raises(ValueError, match=f"confidence is {confidence!r}, expected a number between 0 and 1"):
        paired_bootstrap(NOISE, confidence=confidence)


WEIGHTS = torch.tensor([0.0, 1.0, -2.0, 3.0, 0.5, 0.25, -0.75, 0.1])
IDS = torch.tensor([[3, 1, 4, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 1, 2]])
MASK = (IDS != 0).long()
SCORES = torch.linspace(1, 2, 18).reshape(2, 9).sin() * MASK


def of_words(ids, mask, *_):
    logit = (WEIGHTS[ids] * mask).sum(1)
    return torch.stack([torch.zeros_like(logit), logit], -1)


@pytest.mark.parametrize("others", [(), (torch.zeros_like(MASK),), (torch.arange(9)[None],)])
@pytest.mark.parametrize("perturbation", [Delete(0), MaskOut(1)])
@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_padding_that_the_attention_mask_tells_is_no_feature(perturbation, order, others):
    def run(rows, length):
        arguments = tuple(
            tensor[rows, :length] if len(tensor) > 1 else tensor[:, :length] for tensor in (MASK, *others)
        )
        return degradation(
            of_words, IDS[rows, :length], SCORES[rows, :length], 1, arguments, perturbation=perturbation, order=order
        )

    both, alone = run(slice(None), 9), run(slice(0, 1), 3)
    assert torch.equal(both.probability[:1], alone.probability) and torch.equal(both.fraction[:1], alone.fraction)


def test_padding_that_nothing_tells_is_refused():
    def forward(ids):
        return of_words(ids, ids != 0)

    with pytest.raises(ValueError, match="removable_mask is None, expected one .* the padding id 0, and no attention"):
        degradation(forward, IDS, SCORES, 1, perturbation=Delete(0))
    with pytest.raises(ValueError, match="removable_mask is None"):
        degradation(lambda ids, kinds: forward(ids), IDS, SCORES, 1, torch.zeros_like(IDS), perturbation=Delete(0))
    result = degradation(forward, IDS, SCORES, 1, perturbation=Delete(0), removable_mask=IDS != 0)
    assert torch.equal(result.probability, degradation(of_words, IDS, SCORES, 1, MASK, perturbation=Delete(0))[0])


def test_metrics_know_the_fractions_of_a_result():
    def run(order="morf", **steps):
        return degradation(of_words, IDS, SCORES, 1, MASK, perturbation=Delete(0), order=order, **steps)

    tenths = [k / 10 for k in range(1, 10)]
    lerf, counted = run("lerf", fractions=tenths), run(counts=range(9))
    with pytest.raises(ValueError, match=r"fractions is \[0.1111, .* the result was computed, \[0.1, 0.2,"):
        sufficiency(lerf)
    sufficiency(lerf, fractions=tenths)
    for metric in (probability_drop, comprehensiveness, log_odds, decision_flip_rate):
        with pytest.raises(ValueError, match=r"or counts with which the result was computed, \[0.0, 1.0, 2.0"):
            metric(counted)
    drop = probability_drop(counted, 2, fractions=range(9))
    assert torch.equal(drop, counted.probability[:, 0] - counted.probability[:, 3])
    with pytest.raises(ValueError, match="expected fractions, not counts"):
        sufficiency(counted, fractions=range(9))
    probability_drop(Degradation(*(column[:1] for column in run())))
    probability_drop(run()._replace(requested=None))


@pytest.mark.parametrize("rows", [3, 4])
def test_a_baseline_for_each_example_is_refused(rows):
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    forward = torch.nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"value has the shape \(4, 3\), expected one that broadcasts to an example"):
        degradation(forward, inputs, inputs, 1, perturbation=BaselineValue(inputs), max_examples_per_batch=rows)
    one, row = (
        degradation(forward, inputs, inputs, 1, perturbation=BaselineValue(value))
        for value in (torch.ones(3), torch.ones(1, 3))
    )
    assert torch.equal(one.logit, row.logit)


class Scale(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value))


class WithOwnParameters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(1, 12, generator=torch.Generator().manual_seed(0)) * 3)
        self.scale, self.gate = Scale([5.0]), Scale(0.0)


def test_a_cascade_randomises_single_numbers_and_the_parameters_of_the_model_itself():
    model, seen = WithOwnParameters(), []

    def explain(model):
        seen.append((model.weights.detach().clone(), model.scale.value.item(), model.gate.value.item()))
        return model.weights.detach().expand(2, -1)

    result = cascading_randomisation(model, explain)
    assert result.layers == ("gate", "scale", "")
    assert result.correlation[0, :2].tolist() == pytest.approx([1, 1]) and abs(result.correlation[0, 2]) < 0.9
    assert torch.equal(seen[2][0], seen[0][0]) and not torch.equal(seen[3][0], seen[0][0])
    assert seen[1][2] != 0 and seen[2][1] != 5
    assert cascading_randomisation(model, explain, layers=["scale"]).layers == ("scale",)
