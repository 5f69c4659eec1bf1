"""What is held back must not suffice: the complement of the mask."""

import itertools
import math

import pytest
import torch
from torch import nn

from captum_iba import FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr.losses import complement_losses
from captum_iba.attr.settings import resolve_settings

WIDTH, LENGTH = 8, 10


class Either(nn.Module):
    """Class 1 as soon as one token speaks for it: of two such tokens, either suffices."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x):
        evidence = self.layer(x)[..., 0].amax(1)
        return torch.stack([torch.zeros_like(evidence), 4 * (evidence - 2)], 1)


@pytest.fixture
def iba():
    net = Either().eval()
    return InformationBottleneckAttribution(net, net.layer, statistics=statistics_of(net))


def statistics_of(net):
    return FeatureStatistics.estimate(net, net.layer, [texts(400, ())], feature_dim=-1)


def texts(count, evidence):
    x = 0.3 * torch.randn(count, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    for position in evidence:
        x[:, position, 0] = 4.0
    return x


@pytest.mark.parametrize("probability", [1e-6, 0.1, 0.5, 0.999, 1 - 1e-6])
@pytest.mark.parametrize("loss", ["cross_entropy", "nll"])
def test_loss_of_a_complement(loss, probability):
    rest = math.log1p(-probability) - math.log(2)
    logits = torch.tensor([[rest, math.log(probability), rest]], dtype=torch.float64, requires_grad=True)
    held_back = complement_losses(loss, logits, 1)
    assert held_back.item() == pytest.approx(-math.log1p(-probability), rel=1e-9)
    (slope,) = torch.autograd.grad(held_back.sum(), logits)
    # Of logits, d/dz of -log(1 - p) is p; of log p itself it is p / (1 - p).
    expected = probability if loss == "cross_entropy" else probability / (1 - probability)
    assert slope[0, 1].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("margin", [0.0, 16.0, 17.5, 40.0, 1000.0])
def test_a_complement_that_is_certain_still_has_a_gradient(margin):
    logits = torch.tensor([[0.0, margin]], requires_grad=True)  # from 17 on, p rounds to 1
    held_back = complement_losses("cross_entropy", logits, 1)
    assert held_back.item() == pytest.approx(margin + math.log1p(math.exp(-margin)), rel=1e-6)
    (slope,) = torch.autograd.grad(held_back.sum(), logits)
    p = 1 / (1 + math.exp(-margin))
    assert slope[0].tolist() == pytest.approx([-p, p], rel=1e-5)


def test_of_a_yes_or_no_that_is_certain_too():
    logit = torch.tensor([40.0], requires_grad=True)
    held_back = complement_losses("nll", nn.functional.logsigmoid(logit), None)
    assert held_back.item() == pytest.approx(40, rel=1e-6)
    assert torch.autograd.grad(held_back.sum(), logit)[0].item() == pytest.approx(1, rel=1e-5)


def test_loss_of_a_complement_at_one_of_several_positions():
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    targets = [(1, 2), (0, 0), (3, 4)]
    expected = [-math.log1p(-logits[row].softmax(-1)[target].item()) for row, target in enumerate(targets)]
    assert complement_losses("cross_entropy", logits, targets).tolist() == pytest.approx(expected, rel=1e-5)


def test_loss_of_a_complement_without_a_probability_and_where_it_is_certain():
    values = torch.tensor([-2.0, 3.0])
    assert torch.equal(complement_losses("negative_output", values, None), values)
    assert torch.equal(complement_losses(lambda output, target: output, values, None), -values)
    assert bool(complement_losses("nll", torch.zeros(1), None).isfinite())


def test_of_two_reasons_both_are_kept(iba):
    x = texts(20, (2, 7))
    bits = {weight: iba.attribute(x, target=1, beta=1.0, complement=weight).sum(-1) for weight in (0.0, 1.0)}
    others = [p for p in range(LENGTH) if p not in (2, 7)]
    less = {weight: found[:, [2, 7]].amin(1) for weight, found in bits.items()}
    assert bool((less[1.0] > 5 * bits[1.0][:, others].amax(1)).all())
    assert bool((less[1.0] > less[0.0]).all())


def test_of_one_reason_one_is_kept(iba):
    bits = iba.attribute(texts(20, (4,)), target=1, complement=1.0).sum(-1)
    assert bool((bits.argmax(1) == 4).all())


def test_alone_together_and_split(iba):
    x = texts(5, (2, 7))
    x[3:, 7] = 0.0
    together, trace = iba.attribute(x, target=1, complement=1.0, return_trace=True)
    alone = torch.cat([iba.attribute(row[None], target=1, complement=1.0) for row in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    for size in (1, 3, 8):
        split = iba.attribute(x, target=1, complement=1.0, internal_batch_size=size)
        torch.testing.assert_close(together, split, rtol=1e-4, atol=1e-4)
    assert trace.objective.shape == (5, resolve_settings().n_steps + 1) and bool(trace.objective.isfinite().all())


def test_rows_of_a_pass(iba):
    rows = []
    iba.forward_func.layer.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    for alternate, most in ((False, 24), (True, 12)):
        chosen = {"target": 1, "complement": 1.0, "n_samples": 4, "alternate": alternate}
        iba.attribute(texts(3, (2,)), internal_batch_size=8, **chosen)
        assert max(rows) == 8
        rows.clear()
        iba.attribute(texts(3, (2,)), **chosen)
        assert max(rows) == most
        rows.clear()


def test_the_trace_is_of_what_is_minimised(iba):
    """With the noise of one step: loss, complement and information add up, and the probability is that of the mask."""
    x = texts(2, (2,))
    _, plain = iba.attribute(x, target=1, n_steps=0, complement=0.0, return_trace=True)
    _, trace = iba.attribute(x, target=1, n_steps=0, complement=2.0, return_trace=True)
    assert torch.equal(plain.probability, trace.probability)
    assert torch.equal(plain.information, trace.information)
    extra = (trace.objective - plain.objective) / 2
    # What an open mask holds back is noise, which speaks for class 1 now and then.
    assert bool((extra > 0).all()) and bool((extra < 1).all())


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, "much"])
def test_bad_weight(iba, weight):
    with pytest.raises(ValueError, match="complement is .*, expected a number of at least 0"):
        iba.attribute(texts(1, ()), target=1, complement=weight)


def test_less_information_the_larger_beta(iba):
    x = texts(4, (2, 7))
    totals = [
        iba.attribute(x, target=1, beta=beta, complement=1.0, n_steps=20).flatten(1).sum(1) for beta in (0.01, 1.0, 1e4)
    ]
    assert all(bool((high >= low - 1e-3).all()) for high, low in itertools.pairwise(totals))
