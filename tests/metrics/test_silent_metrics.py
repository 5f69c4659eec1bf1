"""Metrics that were wrong without a word."""

import pytest
import torch
import transformers
from captum.attr import LayerGradientXActivation
from torch.nn.utils import prune, spectral_norm, weight_norm

from captum_iba import FeatureStatistics
from captum_iba.metrics import (
    BaselineValue,
    Degradation,
    Delete,
    MaskOut,
    ReplaceToken,
    area_between,
    cascading_randomization,
    comprehensiveness,
    decision_flip_rate,
    degradation,
    degraded_floor,
    ground_truth_precision,
    layer_infidelity,
    layer_sensitivity_max,
    log_odds,
    paired_bootstrap,
    probability_drop,
    sufficiency,
)
from captum_iba.metrics.removal import counts_of_fractions
from tests.metrics.bag import bag
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


def test_outputs_of_nothing_but_0_and_1_are_taken_as_logits_with_a_warning():
    x = torch.ones(1, 3)
    with pytest.warns(UserWarning, match="nothing but 0 and 1, which are taken as logits"):
        curves = degradation(lambda x: torch.tensor([[0.0, 1.0]]).expand(len(x), 2), x, x, 1)
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

    result = cascading_randomization(model, explain)
    assert result.layers == ("gate", "scale", "")
    assert result.correlation[0, :2].tolist() == pytest.approx([1, 1]) and abs(result.correlation[0, 2]) < 0.9
    assert torch.equal(seen[2][0], seen[0][0]) and not torch.equal(seen[3][0], seen[0][0])
    assert seen[1][2] != 0 and seen[2][1] != 5
    assert cascading_randomization(model, explain, layers=["scale"]).layers == ("scale",)


def test_masks_of_the_other_sign_are_refused():
    padding = IDS[:1] == 0  # PyTorch's src_key_padding_mask
    additive = padding.float() * -1e9

    def inverted(ids, mask):
        return of_words(ids, mask == 0)

    def run(perturbation, mask, rows=slice(0, 1), **options):
        return degradation(inverted, IDS[rows], SCORES[rows], 1, mask, perturbation=perturbation, **options)

    for mask in (padding, additive):
        with pytest.raises(ValueError, match="argument 1 of forward_func is 0 at different tokens, and removable_mask"):
            run(MaskOut(1), mask)
        with pytest.raises(ValueError, match="argument 1 .* is 0 at features where removable_mask is True"):
            run(MaskOut(1), mask, removable_mask=~padding)
        with pytest.raises(ValueError, match=f"argument of {mask.dtype} is 0 at every token.* let forward_func invert"):
            run(Delete(0), mask, removable_mask=~padding)
        with pytest.raises(ValueError, match="is 0 at every token"):
            run(Delete(0), torch.zeros_like(MASK[1:]).to(mask), slice(1, 2))
        equal = run(Delete(0, equal_lengths=True), mask, removable_mask=~padding)
        expected = degradation(of_words, IDS[:1, :3], SCORES[:1, :3], 1, MASK[:1, :3], perturbation=Delete(0))
        torch.testing.assert_close(equal.logit[:, :-1], expected.logit[:, :-1])
    right = degradation(of_words, IDS, SCORES, 1, MASK.bool(), perturbation=Delete(0))
    assert torch.equal(right.logit, degradation(of_words, IDS, SCORES, 1, MASK, perturbation=Delete(0)).logit)


@pytest.mark.parametrize("segments", [[0] * 9, [0] * 5 + [1] * 4])
def test_segments_are_no_attention_mask(segments):
    arguments = torch.tensor([segments]), MASK[1:]

    def forward(ids, segments, mask):
        return of_words(ids, mask)

    with pytest.raises(ValueError, match=r"argument 1 .* expected the attention mask, .* say which \(MaskOut\(2\)\)"):
        degradation(forward, IDS[1:], SCORES[1:], 1, arguments, perturbation=MaskOut())
    degradation(forward, IDS[1:], SCORES[1:], 1, arguments, perturbation=MaskOut(2))


def test_nothing_removable_is_warned_of():
    with pytest.warns(UserWarning, match=r"no removable feature in examples \[0\]: their curves are flat"):
        degradation(of_words, IDS, SCORES, 1, MASK, perturbation=Delete(0), removable_mask=MASK * MASK[1:] * (IDS == 7))


@pytest.mark.parametrize("argument", [MASK[:, None, None], torch.arange(9), MASK[:1, None], torch.zeros(3, 9)])
@pytest.mark.parametrize("perturbation", [Delete(0), Delete(0, equal_lengths=True)])
def test_tensors_whose_positions_deletion_cannot_find_are_refused(argument, perturbation):
    shape = str(tuple(argument.shape)).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=f"argument has the shape {shape}, with the number of positions in another"):
        degradation(of_words, IDS, SCORES, 1, (MASK, argument), perturbation=perturbation)


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(1, 2)])
def test_lengths_which_deletion_cannot_follow_are_refused(rows):
    ids, mask, scores = IDS[rows], MASK[rows], SCORES[rows]
    with pytest.raises(ValueError, match=r"argument is \[.*\], the number of tokens .* expected a forward_func that"):
        degradation(of_words, ids, scores, 1, (mask, mask.sum(1)), perturbation=Delete(0))
    degradation(of_words, ids, scores, 1, (mask, mask.sum(1) + 1), perturbation=Delete(0))


@pytest.mark.parametrize("value", [0.5, -1, 300, torch.tensor([1.0, 2.0, 2.5])])
def test_a_baseline_that_integers_cannot_hold_is_refused(value):
    pixels = torch.tensor([[10, 20, 30]], dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"BaselineValue: value is .*, expected one that torch.uint8 can hold"):
        BaselineValue(value)((pixels,), (), pixels > 10)
    assert BaselineValue(255.0)((pixels,), (), pixels > 10)[0][0].tolist() == [[10, 255, 255]]


@pytest.mark.parametrize(
    "computed", [spectral_norm, weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.3)]
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_cascade_randomises_what_weights_are_computed_from(computed):
    torch.manual_seed(0)
    model, inputs, seen = torch.nn.Sequential(computed(torch.nn.Linear(8, 2))).eval(), torch.randn(4, 8), []

    def explain(model):
        seen.append(model(inputs).detach())
        return seen[-1]

    with torch.no_grad():
        model(inputs)
        cascading_randomization(model, explain)
    first, last = (outputs - outputs[:1] for outputs in seen)  # without the bias
    assert not torch.allclose(first, last)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64])
def test_the_precision_of_scores_without_a_sign(dtype):
    truth = torch.tensor([[False, False, True]])
    assert ground_truth_precision(torch.tensor([[0, 0, 1]]).to(dtype), truth).tolist() == [1]


def test_curves_that_end_elsewhere_are_not_compared():
    def run(**options):
        return degradation(of_words, IDS, SCORES, 1, MASK, perturbation=Delete(0), **options)

    half, both = run(fractions=[0.1, 0.5]), run(order="lerf", fractions=[0.5, 1.0])
    with pytest.raises(ValueError, match=r"lerf has the fractions or counts \[0.0, 0.5, 1.0\], expected those of morf"):
        area_between(half, both)
    with pytest.raises(ValueError, match="results has one that ends at the fraction 0.5, expected 1"):
        degraded_floor([both, half])
    assert degraded_floor([both]) == pytest.approx(0.5)


@pytest.mark.parametrize("shape", [(1,), (2,), (1, 2), (5, 1)])
def test_sensitivity_repeats_the_arguments_of_examples_alone(shape):
    class Weighed(torch.nn.Sequential):
        def forward(self, inputs, weights):
            return super().forward(inputs) * weights

    model = Weighed(torch.nn.Linear(3, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    change = layer_sensitivity_max(
        LayerGradientXActivation(model, model[0]).attribute,
        torch.randn(5, 3),
        lambda inputs: inputs,
        target=1,
        additional_forward_args=torch.rand(shape) + 1,
    )
    assert change.tolist() == pytest.approx([0] * 5, abs=1e-5)  # the order of additions depends on the rows of a pass


def constant(outputs):
    """A model that gives these outputs for rows of these numbers of remaining features."""

    def forward(x):
        return outputs[x.abs().sum(1).long()]

    return forward


def test_probabilities_with_zeros_are_probabilities():
    """As those of a forest; they were softmaxed again where every row had a 0."""
    outputs = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])
    with pytest.warns(UserWarning, match="returns probabilities"):
        result = degradation(constant(outputs), torch.ones(1, 2), torch.ones(1, 2), target=1, counts=[1, 2])
    torch.testing.assert_close(result.probability, torch.tensor([[0.5, 0.75, 0.0]]))


def test_a_row_of_nan_does_not_change_the_others():
    outputs = torch.tensor([[float("nan")] * 2, [0.25, 0.75], [0.1, 0.9]])
    with pytest.warns(UserWarning, match="NaN in 1 of 3 rows"):
        result = degradation(constant(outputs), torch.ones(1, 2), torch.ones(1, 2), target=1, counts=[1, 2])
    torch.testing.assert_close(result.probability[:, :2], torch.tensor([[0.9, 0.75]]))
    assert decision_flip_rate(result, 2, [1, 2]).isnan().all()


@pytest.mark.parametrize("values", [[0.7] * 10 + [0.3] * 10, [0.1, 0.3] * 10, [1 / 3, 0.0, -2 / 3, 1.0] * 5])
def test_resamples_with_the_mean_of_all_are_neither_above_nor_below(values):
    exact = [round(value * 30) for value in values]
    of_integers = paired_bootstrap(exact)
    interval = paired_bootstrap(values)
    assert interval.low == pytest.approx(of_integers.low / 30, abs=1e-9)
    assert interval.high == pytest.approx(of_integers.high / 30, abs=1e-9)


def test_counts_that_leave_features_have_no_floor():
    result = degradation(constant(torch.rand(11, 2)), torch.ones(1, 10), torch.ones(1, 10), target=1, counts=[1, 3])
    with pytest.raises(ValueError, match="ends at the fraction 0.3"):
        degraded_floor([result])


def test_fractions_of_float32_are_those_of_float64():
    x = torch.rand(3, 15)
    single, double = (
        degradation(lambda x: x[:, :2], x, x, target=1, fractions=[float(f) for f in fractions]).fraction
        for fractions in (torch.linspace(0, 1, 11)[1:], torch.linspace(0, 1, 11, dtype=torch.float64)[1:])
    )
    assert torch.equal(single, double)


@pytest.mark.parametrize("n", [7, 512 * 512])
def test_fractions_of_single_features_are_counts(n):
    counts = [1, 2, 3, 5, n // 2, n]
    assert counts_of_fractions([count / n for count in counts], torch.tensor([n]))[0].tolist()[1:] == counts
    assert counts_of_fractions([1e-9], torch.tensor([n]))[0].tolist() == [0, 1]


def by_position(ids, positions):
    """Logits of two classes; position ids of the shape (T,) are the same for all examples."""
    total = (ids * (1 + positions[..., : ids.shape[1]])).sum(1).float() / 10
    return torch.stack([torch.zeros_like(total), total], 1)


def zero_shot(x, classes):
    return x @ classes.T


@pytest.mark.parametrize(
    ("forward", "inputs", "argument", "perturbation"),
    [
        (by_position, torch.tensor([[4, 5, 6], [7, 8, 9], [2, 3, 4]]), torch.arange(3), ReplaceToken(0)),
        (zero_shot, torch.eye(3, 6) + 0.1, torch.rand(3, 6, generator=torch.Generator().manual_seed(0)), None),
        (zero_shot, torch.eye(3, 3) + 0.1, torch.rand(3, 3, generator=torch.Generator().manual_seed(0)), None),
        (lambda x, weights: x[:, :3] * weights, torch.eye(3, 6) + 0.1, torch.tensor([1.0, 5.0, 3.0]), None),
        (lambda x, of: x[:, :3] * of["class"], torch.eye(3, 6), {"class": torch.tensor([1.0, 5.0, 3.0])}, None),
    ],
)
def test_arguments_with_as_many_rows_as_examples_by_chance_are_refused(forward, inputs, argument, perturbation):
    options = {"perturbation": perturbation, "counts": [1]}
    with pytest.raises(ValueError, match=r"additional_forward_args holds a tensor of the shape \(3,.* by chance"):
        degradation(forward, inputs, inputs, 1, argument, **options)
    # Of other sizes it is the same for all.
    result = degradation(forward, inputs[:2], inputs[:2], 1, argument, **options)
    assert result.logit[:, 0].tolist() == pytest.approx(forward(inputs[:2], argument)[:, 1].tolist())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_arguments_of_the_examples_are_selected_with_them(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to(dtype)
    inputs, scale = torch.randn(6, 6, dtype=dtype), torch.rand(6, dtype=dtype)
    result = degradation(lambda x, scale: model(x * scale[:, None]), inputs, inputs.float(), 1, scale)
    with torch.no_grad():
        expected = model.eval()(inputs * scale[:, None])[:, 1].float()
    assert result.logit[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-5 if dtype == torch.float32 else 0.05)


def test_rows_that_depend_on_each_other_are_warned_of():
    x, scale = torch.rand(4, 6), torch.ones(4)
    with pytest.warns(UserWarning, match="changes with the other rows of a pass"):
        degradation(lambda x, scale: (x - x.mean(0)) * scale[:, None], x, x, 1, scale)


def test_a_second_text_does_not_lose_the_positions_of_the_first():
    def similar(ids, other):
        total = (ids.sum(1) - other.sum(1)).float() / 10
        return torch.stack([torch.zeros_like(total), total], 1)

    first, second = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[15, 11, 12], [13, 18, 0]])
    longer = torch.cat([second, torch.zeros(2, 1, dtype=torch.int64)], 1)
    options = {"removable_mask": first > 0, "perturbation": Delete(0), "counts": [1, 3]}
    with pytest.raises(ValueError, match=r"Delete: inputs\[1\] has the shape of inputs\[0\], \(2, 3\), and may be"):
        degradation(similar, (first, second), first, 1, **options)
    left = degradation(similar, (first, longer), first, 1, **options).logit
    assert torch.allclose(left, torch.tensor([[-2.0, -2.7, -3.8], [-1.4, -2.3, -3.1]]))
    degradation(similar, first, first, 1, second, **options)  # an argument that belongs to the tokens
    mask, positions = (first > 0).long(), torch.tensor([[2, 3, 4], [2, 3, 1]])
    for tensor in (mask, mask.float(), positions, positions[:1]):
        degradation(lambda ids, other: bag(ids, other != 0), (first, tensor), first, 1, **options)


def test_layer_infidelity_refuses_an_argument_with_as_many_rows_as_examples_by_chance():
    """Label embeddings of as many labels as there are examples were selected with these."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)

    def forward(inputs, labels):
        return layer(inputs) @ labels.T

    def halve(activations):
        return activations / 2, activations / 2

    inputs, labels = torch.randn(3, 4), torch.randn(3, 4)
    for rows in (2, 3):
        arguments = (forward, layer, halve, inputs[:rows], torch.ones(rows, 4), None, labels, 1)
        if rows == 2:
            assert layer_infidelity(*arguments).shape == (2,)
        else:
            with pytest.raises(ValueError, match=r"shape \(3, 4\)"):
                layer_infidelity(*arguments)


class InPlace(torch.nn.Module):
    """Normalizes its input in place, has an in-place ReLU, and counts its passes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.BatchNorm2d(6)
        self.relu, self.head = torch.nn.ReLU(inplace=True), torch.nn.Linear(6, 4)
        self.passes = 0

    def forward(self, images):
        self.passes += 1
        hidden = self.relu(self.norm(self.conv(images.sub_(0.5).div_(0.25))))
        return self.head(hidden.mean((2, 3)))


def test_layer_infidelity_with_a_model_that_writes_into_its_inputs():
    torch.manual_seed(1)
    model, images, attributions = InPlace().eval(), torch.rand(4, 3, 6, 6), torch.randn(4, 6, 6, 6)
    before = images.clone()

    def shrink(activations):
        return activations * 0.3, activations * 0.7

    with torch.no_grad():
        activation = model.norm(model.conv((before - 0.5) / 0.25))
        output, changed = (
            model.head(a.relu().mean((2, 3)))[range(4), range(4)] for a in (activation, activation * 0.7)
        )
        expected = ((activation * 0.3 * attributions).flatten(1).sum(1) - (output - changed)).square()
    for _ in range(2):
        options = {"target": [0, 1, 2, 3], "n_perturb_samples": 1}
        result = layer_infidelity(model, model.norm, shrink, images, attributions, **options)
        assert torch.allclose(result, expected, rtol=1e-4)
        assert torch.equal(images, before) and model.passes == 0


def test_statistics_leave_the_batches_as_they_are():
    torch.manual_seed(1)
    model, images = InPlace().eval(), torch.rand(16, 3, 6, 6)
    before = images.clone()
    statistics = [FeatureStatistics.estimate(model, model.conv, images.split(8)) for _ in range(2)]
    assert torch.equal(images, before) and torch.equal(statistics[0].mean, statistics[1].mean)


def test_degradation_leaves_a_model_with_a_state_as_it_was():
    class Streaming(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.level = torch.nn.Linear(4, 3), 1.0

        def forward(self, inputs):
            output = self.linear(inputs) * self.level
            self.level *= 2
            return output

    torch.manual_seed(0)
    model, inputs = Streaming(), torch.randn(4, 4)
    results = [
        degradation(model, inputs, inputs, 1, counts=[2, 4], max_examples_per_batch=size).logit for size in (None, 4, 1)
    ]
    assert model.level == 1.0
    assert all(torch.allclose(results[0], result, atol=1e-5) for result in results)


def test_statistics_of_the_whole_model_merge_after_they_were_saved(tmp_path):
    model = torch.nn.Linear(4, 3)
    statistics = FeatureStatistics.estimate(model, model, [torch.randn(8, 4)])
    statistics.save(tmp_path / "statistics")
    assert statistics.merge(FeatureStatistics.load(tmp_path / "statistics")).count == 16
