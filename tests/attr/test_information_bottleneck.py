"""What attributions mean, on models small enough to know the answer."""

import itertools
import math
import warnings

import pytest
import torch
from torch import nn

from captum_iba import BottleneckTrace, FeatureStatistics, InformationBottleneckAttribution
from captum_iba.attr.objective import NATS_PER_BIT, information

VOCABULARY, WIDTH, LENGTH = 50, 8, 12


class Reader(nn.Module):
    """Sums what it reads: token 1 speaks for class 1, token 2 for class 0, the others say nothing."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.Identity()
        self.head = nn.Linear(WIDTH, 2, bias=False)
        with torch.no_grad():
            self.table.weight.copy_(torch.randn(VOCABULARY, WIDTH, generator=generator))
            self.table.weight[:, 0] = 0.0
            self.table.weight[1, 0], self.table.weight[2, 0] = 4.0, -4.0
            self.head.weight.zero_()
            self.head.weight[1, 0] = 2.0

    def forward(self, ids, mask=None):
        hidden = self.layer(self.table(ids))
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        return self.head(hidden.sum(1))


@pytest.fixture(scope="module")
def reader():
    return Reader().eval()


@pytest.fixture(scope="module")
def statistics(reader):
    ids = torch.randint(1, VOCABULARY, (400, LENGTH), generator=torch.Generator().manual_seed(1))
    return FeatureStatistics.estimate(reader, reader.layer, ids.split(50))


@pytest.fixture
def iba(reader, statistics):
    return InformationBottleneckAttribution(reader, reader.layer, statistics=statistics)


def planted(count, seed=2):
    """Texts with one token that decides, and where it stands."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (count, LENGTH), generator=generator)
    where = torch.randint(0, LENGTH, (count,), generator=generator)
    ids[torch.arange(count), where] = 1
    return ids, where


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_planted_shortcut_gets_the_most_bits(iba, preset):
    ids, where = planted(100)
    bits = iba.attribute(ids, target=1, preset=preset).sum(-1)
    assert int((bits.argmax(1) == where).sum()) >= 99


def test_result_is_what_layer_methods_return(iba):
    ids, _ = planted(3)
    bits = iba.attribute(ids, target=[1, 0, 1])
    assert bits.shape == (3, LENGTH, WIDTH)
    assert bits.dtype == torch.float32 and not bits.requires_grad
    assert bool(bits.isfinite().all()) and bool((bits >= 0).all())


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_information_falls_as_beta_rises(iba, preset):
    ids, _ = planted(4)
    totals = [
        iba.attribute(ids, target=1, preset=preset, beta=beta, n_steps=20).flatten(1).sum(1)
        for beta in (1e-3, 1e-1, 1e1, 1e3)
    ]
    assert all(bool((high >= low - 1e-3).all()) for high, low in itertools.pairwise(totals))
    assert bool((totals[0] > 2 * totals[-1]).all())


def test_a_huge_beta_closes_everything(iba):
    ids, _ = planted(4)
    bits = iba.attribute(ids, target=1, beta=1e8, n_steps=60)
    assert float(bits.sum()) < 1e-3 * float(iba.attribute(ids, target=1, n_steps=0).sum())
    # More momentum runs on where the gradient has become small.
    bits = iba.attribute(ids, target=1, beta=1e8, n_steps=30, momentum=0.9)
    assert float(bits.max()) < 1e-3
    _, trace = iba.attribute(ids, target=1, beta=1e8, n_steps=60, n_samples=4, return_trace=True)
    # With nothing let through, the output is that of an average text: noise around even.
    assert bool((trace.probability[:, -1] < trace.probability[:, 0]).all())


def test_at_beta_0_the_mask_stays_open_where_it_is_needed(iba):
    ids, where = planted(4)
    before = iba.attribute(ids, target=1, n_steps=0)
    after = iba.attribute(ids, target=1, beta=0.0)
    assert bool((after[range(4), where].sum(-1) >= 0.99 * before[range(4), where].sum(-1)).all())


def test_without_steps_the_information_is_that_of_the_open_mask(iba, reader, statistics):
    ids, _ = planted(2)
    x = (reader.table(ids) - statistics.mean) / statistics.std
    expected = information(torch.tensor(5.0), x.square()) / NATS_PER_BIT
    torch.testing.assert_close(iba.attribute(ids, target=1, n_steps=0), expected.detach())


@pytest.mark.parametrize("complement", [0.0, 2.0])
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("alternate", [False, True])
def test_one_step_by_hand(iba, reader, statistics, complement, antithetic, alternate):
    """Adam's first step is the sign of the gradient, here worked out without any of our machinery."""
    ids, _ = planted(1)
    a = torch.full((1, LENGTH, 1), 5.0, requires_grad=True)
    lam, x = torch.sigmoid(a), reader.table(ids).detach()
    from captum_iba.attr.objective import standard_noise

    losses, held_back = [], []
    for draw in range(3):
        pair, sign = (0, -1) if antithetic and draw == 1 else (draw, 1)
        noise = statistics.mean + statistics.std * sign * standard_noise((LENGTH, WIDTH), (7, 0, 0, pair), x.device)
        losses.append(nn.functional.cross_entropy(reader.head((lam * x + (1 - lam) * noise).sum(1)), torch.tensor([1])))
        other = reader.head(((1 - lam) * x + lam * noise).sum(1)).double().softmax(-1)[0, 1]
        held_back.append(-torch.log(1 - other))
    squares = ((x - statistics.mean) / statistics.std).square()
    kl = information(a, squares).mean()
    passed, held = torch.stack(losses).mean(), complement * torch.stack(held_back).mean()
    loss = passed + held + 0.3 * kl
    (2 * passed + 0.3 * kl if alternate and complement else loss).backward()
    alpha = 5.0 - 0.7 * a.grad / (a.grad.abs() + 1e-8)
    settings = {"n_steps": 1, "n_samples": 3, "beta": 0.3, "learning_rate": 0.7, "seed": 7}
    bits, trace = iba.attribute(
        ids,
        target=1,
        return_trace=True,
        complement=complement,
        antithetic=antithetic,
        alternate=alternate,
        **settings,
    )
    torch.testing.assert_close(bits, information(alpha, squares).detach() / NATS_PER_BIT, rtol=1e-4, atol=1e-5)
    assert float(trace.objective[0, 0]) == pytest.approx(loss.item(), rel=1e-5)
    assert float(trace.information[0, 0]) == pytest.approx(kl.item() * LENGTH * WIDTH / NATS_PER_BIT, rel=1e-5)
    assert float(trace.probability[0, 0]) == pytest.approx(sum(math.exp(-one.item()) for one in losses) / 3, rel=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("alternate", [False, True])
def test_two_steps_without_draws_by_hand(iba, reader, statistics, momentum, alternate):
    """The mean of the noise in place of draws, and Adam's second step written out."""
    ids, _ = planted(1)
    x = reader.table(ids).detach()
    squares = ((x - statistics.mean) / statistics.std).square()
    a = torch.full((1, LENGTH, 1), 5.0, requires_grad=True)
    first, second = torch.zeros_like(a), torch.zeros_like(a)
    for step in (1, 2):
        lam = torch.sigmoid(a)
        passed, held = lam * x + (1 - lam) * statistics.mean, (1 - lam) * x + lam * statistics.mean
        loss = nn.functional.cross_entropy(reader.head(passed.sum(1)), torch.tensor([1]))
        held_back = -torch.log(1 - reader.head(held.sum(1)).softmax(-1)[0, 1])
        both = 2 * (loss if step == 1 else held_back) if alternate else loss + held_back
        (gradient,) = torch.autograd.grad(both + 0.3 * information(a, squares).mean(), a)
        first = momentum * first + (1 - momentum) * gradient
        second = 0.999 * second + 0.001 * gradient.square()
        update = first / (1 - momentum**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        a = (a - 0.7 * update).detach().requires_grad_()
    settings = {"n_steps": 2, "n_samples": 0, "beta": 0.3, "learning_rate": 0.7, "complement": 1.0}
    settings |= {"momentum": momentum, "alternate": alternate}
    bits = iba.attribute(ids, target=1, **settings)
    torch.testing.assert_close(bits, information(a, squares).detach() / NATS_PER_BIT, rtol=1e-4, atol=1e-5)
    assert torch.equal(bits, iba.attribute(ids, target=1, seed=1, **settings))


def test_a_pair_of_draws_may_fall_into_two_steps(iba, monkeypatch):
    from captum_iba.attr import objective

    keys = []
    drawn = objective.standard_noise
    monkeypatch.setattr(
        objective, "standard_noise", lambda shape, key, device: keys.append(key) or drawn(shape, key, device)
    )
    ids, _ = planted(1)
    iba.attribute(ids, target=1, n_steps=3, n_samples=3, antithetic=True, alternate=False)
    assert [key[2:] for key in keys] == [(0, 0), (0, 0), (0, 2), (0, 2), (1, 1), (1, 1), (2, 0), (2, 0), (2, 2)]
    keys.clear()
    iba.attribute(ids, target=1, n_steps=6, n_samples=1, antithetic=True, alternate=True)
    assert [key[2:] for key in keys] == [(0, 0)] * 4 + [(2, 0)] * 2  # two turns have the same noise


def test_a_trace_changes_nothing_where_steps_take_turns(iba):
    ids, _ = planted(3)
    bits, trace = iba.attribute(ids, target=1, n_steps=5, return_trace=True)
    assert torch.equal(bits, iba.attribute(ids, target=1, n_steps=5))
    # Both sides are in every entry, though each step moves the mask by one.
    _, both = iba.attribute(ids, target=1, n_steps=5, alternate=False, return_trace=True)
    torch.testing.assert_close(trace.objective[:, 0], both.objective[:, 0])
    torch.testing.assert_close(trace.probability[:, 0], both.probability[:, 0])


def test_trace(iba):
    ids, _ = planted(3)
    bits, trace = iba.attribute(ids, target=1, n_steps=6, return_trace=True)
    assert isinstance(trace, BottleneckTrace)
    assert all(column.shape == (3, 7) for column in trace[:3]) and trace.closed_probability.shape == (3,)
    torch.testing.assert_close(trace.information[:, -1], bits.flatten(1).sum(1), rtol=1e-4, atol=1e-3)
    assert bool((trace.information[:, -1] < trace.information[:, 0]).all())
    assert bool(((trace.probability >= 0) & (trace.probability <= 1)).all())


@pytest.mark.parametrize("preset", ["default", "paper", "as_released"])
def test_seeds(iba, preset):
    ids, _ = planted(2)
    first = iba.attribute(ids, target=1, preset=preset, n_samples=1)
    assert torch.equal(first, iba.attribute(ids, target=1, preset=preset, n_samples=1))
    assert not torch.equal(first, iba.attribute(ids, target=1, preset=preset, n_samples=1, seed=1))


def test_the_default_has_no_random_numbers(iba):
    ids, _ = planted(2)
    assert torch.equal(iba.attribute(ids, target=1), iba.attribute(ids, target=1, seed=1))


@pytest.mark.parametrize("preset", ["default", "paper", "as_released"])
def test_an_example_does_not_depend_on_its_batch(iba, reader, preset):
    ids, _ = planted(5)
    lengths = torch.tensor([12, 7, 3, 9, 1])
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).float()
    settings = {"target": 1, "preset": preset}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = iba.attribute(ids, additional_forward_args=mask, bottleneck_mask=mask, **settings)
    for rows in (1, 2, 3, 7, 100):
        split = iba.attribute(
            ids, additional_forward_args=mask, bottleneck_mask=mask, internal_batch_size=rows, **settings
        )
        torch.testing.assert_close(split, together, rtol=1e-4, atol=1e-4)
    for row, length in enumerate(lengths):
        alone = iba.attribute(ids[row : row + 1, :length], **settings)
        torch.testing.assert_close(alone, together[row : row + 1, :length], rtol=1e-4, atol=1e-4)
        assert float(together[row, length:].abs().sum()) == 0.0


def test_words_share_their_mask_and_special_tokens_pass_untouched(iba, statistics, reader):
    ids, _ = planted(2)
    words = torch.arange(LENGTH).div(3, rounding_mode="floor").expand(2, -1)
    special = torch.zeros(2, LENGTH, dtype=torch.bool)
    special[:, [0, -1]] = True
    bits = iba.attribute(ids, target=1, feature_mask=words, bottleneck_mask=~special)
    assert float(bits[special].abs().sum()) == 0.0
    # Recover the mask value of every token from its bits: within a word there is one.
    squares = ((reader.table(ids) - statistics.mean) / statistics.std).square().sum(-1)
    low, high = torch.full((2, LENGTH), -40.0), torch.full((2, LENGTH), 40.0)
    for _ in range(60):
        middle = (low + high) / 2
        below = information(middle, squares, float(WIDTH)) / NATS_PER_BIT < bits.sum(-1)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    values = low.detach()[:, 1:-1]
    for word in (values[:, 2:5], values[:, 5:8]):
        torch.testing.assert_close(word, word[:, :1].expand_as(word), rtol=1e-2, atol=1e-2)


def test_feature_mask_of_singletons_is_token_granularity(iba):
    ids, _ = planted(2)
    tokens = torch.arange(LENGTH).unsqueeze(0)
    torch.testing.assert_close(
        iba.attribute(ids, target=1, feature_mask=tokens), iba.attribute(ids, target=1, granularity="token")
    )


def test_an_example_of_special_tokens_only_gets_no_bits(iba):
    ids, _ = planted(2)
    carries = torch.ones(2, LENGTH)
    carries[1] = 0
    bits = iba.attribute(ids, target=1, bottleneck_mask=carries)
    assert float(bits[1].abs().sum()) == 0.0 and float(bits[0].sum()) > 0


def test_without_statistics_a_warning_says_once_what_to_do(reader):
    ids, _ = planted(2)
    iba = InformationBottleneckAttribution(reader, reader.layer)
    with pytest.warns(UserWarning, match=r"statistics is None.*FeatureStatistics\.estimate\(model, layer, batches\)"):
        bits = iba.attribute(ids, target=1)
    assert bool(bits.isfinite().all())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iba.attribute(ids, target=1)


def test_own_statistics_do_not_depend_on_padding(reader):
    ids, _ = planted(2)
    mask = (torch.arange(LENGTH) < 6).float().expand(2, -1)
    iba = InformationBottleneckAttribution(reader, reader.layer)
    with pytest.warns(UserWarning, match="statistics is None"):
        padded = iba.attribute(ids, target=1, additional_forward_args=mask, bottleneck_mask=mask)
    torch.testing.assert_close(padded[:, :6], iba.attribute(ids[:, :6], target=1), rtol=1e-4, atol=1e-4)


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu()).mean(1)


def test_layers_one_by_one_or_with_one_mask():
    net, x = TwoLayers().eval(), torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    layers = [net.first, net.second]
    statistics = FeatureStatistics.estimate(net, layers, [x])
    iba = InformationBottleneckAttribution(net, layers, statistics=statistics)
    both = iba.attribute(x, target=1)
    assert isinstance(both, list) and len(both) == 2
    for layer, one, known in zip(layers, both, statistics, strict=False):
        alone = InformationBottleneckAttribution(net, layer, statistics=known).attribute(x, target=1)
        torch.testing.assert_close(one, alone)
    shared, trace = iba.attribute(x, target=1, share_mask=True, return_trace=True, n_steps=20)
    assert shared.shape == (2, 5, 6) and trace.objective.shape == (2, 21)
    assert not torch.allclose(shared, both[0])
    # Whichever way they are named, the layer that runs first counts the information.
    turned = InformationBottleneckAttribution(net, layers[::-1], statistics=statistics[::-1])
    torch.testing.assert_close(turned.attribute(x, target=1, share_mask=True, n_steps=20), shared)


def test_one_mask_for_layers_of_different_widths():
    """A mask a token fits every width, a mask an element only its own."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4), nn.Flatten(), nn.Linear(20, 2)).eval()
    x = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0))
    statistics = FeatureStatistics.estimate(net, [net[0], net[1]], [x])
    iba = InformationBottleneckAttribution(net, [net[0], net[1]], statistics=statistics)
    assert iba.attribute(x, target=1, share_mask=True).shape == (3, 5, 8)
    expected = r"share_mask is True, but Linear \(output\) has the shape \(3, 5, 4\), .* \(3, 5, 8\), does not fit"
    with pytest.raises(ValueError, match=expected):
        iba.attribute(x, target=1, share_mask=True, granularity="feature")


def test_progress_counts_every_draw(iba, capsys):
    ids, _ = planted(3)
    iba.attribute(ids, target=1, n_steps=5, n_samples=4, internal_batch_size=2, show_progress=True)
    assert "60/60" in capsys.readouterr().err  # 3 examples, one at a time, 5 steps, 4 draws


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": -1.0}, "beta is -1.0, expected a number of at least 0"),
        ({"beta": float("nan")}, "beta is nan, expected a number of at least 0"),
        ({"n_steps": -1}, "n_steps is -1, expected an integer of at least 0"),
        ({"n_steps": 2.5}, "n_steps is 2.5, expected an integer"),
        ({"n_samples": -1}, "n_samples is -1, expected an integer of at least 0"),
        ({"momentum": 1.0}, "momentum is 1.0, expected a number of at least 0 and less than 1"),
        ({"alternate": 1}, "alternate is 1, expected True or False"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected a positive number"),
        ({"preset": "fast"}, "preset is 'fast', expected one of default, paper, as_released"),
        ({"granularity": "word"}, "granularity is 'word', expected one of token, feature, channel"),
        ({"loss": "hinge"}, "loss is 'hinge', expected one of cross_entropy, binary_cross_entropy, nll"),
        ({"loss": lambda output, target: output}, r"loss must return one value per row, a tensor of shape \(2,\)"),
        ({"internal_batch_size": 0}, "internal_batch_size is 0, expected an integer of at least 1"),
        ({"layer_call": 1}, "layer_call is 1, but layer Identity ran 1 times in this pass: expected -1 to 0"),
        ({"layer_call": [0, 0]}, "layer_call has 2 entries, expected one per layer, 1"),
        ({"feature_mask": torch.zeros(2, 5, dtype=torch.long)}, "feature_mask has the shape"),
        ({"bottleneck_mask": torch.zeros(2, 5)}, "bottleneck_mask has the shape"),
    ],
)
def test_bad_settings(iba, change, message):
    ids, _ = planted(2)
    with pytest.raises(ValueError, match=message):
        iba.attribute(ids, target=1, **change)


@pytest.mark.parametrize("target", [2, None, [0, 1, 1], [0, 5], torch.tensor([0, 1, 1]), (0, 1), "positive"])
def test_bad_targets_are_assertion_errors_as_in_captum(iba, target):
    ids, _ = planted(2)
    with pytest.raises(AssertionError):
        iba.attribute(ids, target=target)


def test_bad_inputs(reader, statistics, iba):
    with pytest.raises(TypeError, match="inputs is a str, expected a tensor or a tuple of tensors"):
        iba.attribute("a text", target=1)
    with pytest.raises(ValueError, match="expected at least one example"):
        iba.attribute(torch.zeros(0, 5, dtype=torch.long), target=1)
    ids, _ = planted(2)
    with pytest.raises(ValueError, match="Linear did not run in this forward pass"):
        InformationBottleneckAttribution(reader, nn.Linear(1, 1), statistics=statistics).attribute(ids, target=1)
    for wrong in ("table", 3, None):
        with pytest.raises(ValueError, match="expected a torch.nn.Module or a list of them"):
            InformationBottleneckAttribution(reader, wrong)
    with pytest.raises(ValueError, match="statistics has 1 entries, expected one per layer, 2"):
        InformationBottleneckAttribution(reader, [reader.table, reader.layer], statistics=statistics)
    narrow = FeatureStatistics().update(torch.randn(9, 3))
    with pytest.raises(ValueError, match="statistics have 3 features, expected 8"):
        InformationBottleneckAttribution(reader, reader.layer, statistics=narrow).attribute(ids, target=1)
    with pytest.raises(TypeError, match=r"must return a tensor, got dict; .* lambda .*model\(\*args\)\['"):
        wrapped = InformationBottleneckAttribution(lambda x: {"logits": reader(x)}, reader.layer, statistics=statistics)
        wrapped.attribute(ids, target=1)


def test_a_layer_that_the_output_does_not_need(statistics):
    class Aside(Reader):
        def forward(self, ids):
            self.layer(self.table(ids))
            return self.head(self.table(ids).sum(1))

    model = Aside()
    ids, _ = planted(2)
    with pytest.raises(ValueError, match="the loss does not depend on the layer"):
        InformationBottleneckAttribution(model, model.layer, statistics=statistics).attribute(ids, target=1)


def test_not_a_number_is_named(statistics):
    model = Reader()
    with torch.no_grad():
        model.table.weight[7] = float("nan")
    iba = InformationBottleneckAttribution(model, model.layer, statistics=statistics)
    ids = torch.tensor([[3, 4, 5], [3, 7, 5]])
    with pytest.raises(ValueError, match=r"forward_func gives NaN or infinity: the losses .*nan"):
        iba.attribute(ids, target=1)
    # Not-a-number where no bottleneck is, and where the model does not look, is nobody's business.
    ignores = InformationBottleneckAttribution(
        lambda ids, mask: model.head(torch.where(mask.bool().unsqueeze(-1), model.layer(model.table(ids)), 0.0).sum(1)),
        model.layer,
        statistics=statistics,
    )
    mask = torch.tensor([[1, 1, 1], [1, 0, 1]])
    bits = ignores.attribute(ids, target=1, additional_forward_args=mask, bottleneck_mask=mask)
    assert bool(bits.isfinite().all())
    with pytest.raises(ValueError, match="the layer holds NaN or infinity in example 1"):
        ignores.attribute(ids, target=1, additional_forward_args=mask)


@pytest.mark.parametrize("settings", [{}, {"n_samples": 2}, {"preset": "paper", "n_samples": 2}, {"n_steps": 0}])
def test_the_final_trace_is_the_last_entry_of_the_whole(settings):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    statistics = FeatureStatistics.estimate(model, model[0], [torch.randn(64, 4)])
    attribution = InformationBottleneckAttribution(model, model[0], statistics=statistics)
    inputs = torch.randn(5, 4)
    bits, whole = attribution.attribute(inputs, target=1, return_trace=True, **settings)
    same, final = attribution.attribute(inputs, target=1, return_trace="final", **settings)
    assert torch.allclose(bits, same) and final.probability.shape == (5, 1)
    assert torch.allclose(final.probability[:, 0], whole.probability[:, -1], atol=1e-6)
    assert torch.allclose(final.information[:, 0], whole.information[:, -1])


def test_a_wrong_trace():
    model = torch.nn.Linear(4, 3)
    with pytest.raises(ValueError, match="return_trace is 'last', expected True, False or 'final'"):
        InformationBottleneckAttribution(model, model).attribute(torch.ones(1, 4), target=0, return_trace="last")
