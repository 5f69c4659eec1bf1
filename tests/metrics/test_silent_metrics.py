"""Metrics that were wrong without a word."""

import pytest
import torch
import transformers

from captum_iba.metrics import Delete, degradation, paired_bootstrap
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
