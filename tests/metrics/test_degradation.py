import math

import pytest
import torch
from torch import nn

from captum_iba.metrics import NINTHS, BaselineValue, Delete, MaskOut, ReplaceToken, degradation, degradation_both
from captum_iba.metrics.removal import counts_of_fractions
from tests.metrics.bag import CLS, MASK, PAD, SEP, WORTH, bag

# [CLS] 10 20 30 40 [SEP]: worth 1, 2, 3, 4.
IDS = torch.tensor([[CLS, 10, 20, 30, 40, SEP]])
SCORES = torch.tensor([[9.0, 0.1, 0.4, 0.2, 0.3, 9.0]])
ORDINARY = (IDS != CLS) & (IDS != SEP)


def logits(result):
    return [round(value, 4) for value in result.logit[0].tolist()]


def degrade(scores=SCORES, ids=IDS, **settings):
    settings = {"target": 1, "perturbation": Delete(PAD), "removable_mask": ORDINARY, **settings}
    return degradation(bag, ids, scores, **settings)


def test_most_relevant_first():
    result = degrade(counts=[1, 2, 3, 4])
    # Out go 20, 40, 30, 10.
    assert logits(result) == [10, 8, 4, 1, 0]
    torch.testing.assert_close(result.probability, result.logit.sigmoid())
    assert result.decision.tolist() == [[1, 1, 1, 1, 0]]
    assert result.fraction.tolist() == [[0, 0.25, 0.5, 0.75, 1]]
    assert result.decision.dtype == torch.int64


def test_least_relevant_first():
    assert logits(degrade(counts=[1, 2, 3, 4], order="lerf")) == [10, 9, 6, 2, 0]


def test_other_target():
    result = degrade(counts=[4], target=0)
    assert logits(result) == [0, 0]
    torch.testing.assert_close(result.probability, torch.tensor([[1 / (1 + math.exp(10)), 0.5]]))


def test_default_target_is_the_most_probable_class_of_the_complete_example():
    ids = torch.tensor([[40, 30], [PAD, PAD]])
    result = degradation(bag, ids, torch.ones(2, 2), perturbation=ReplaceToken(MASK), counts=[2])
    assert result.logit.tolist() == [[7, 0], [0, 0]]


@pytest.mark.parametrize(
    ("fraction", "count"),
    [(0.0, 0), (0.01, 1), (1 / 9, 1), (0.37, 1), (0.375, 2), (0.5, 2), (0.625, 3), (0.99, 4), (1.0, 4)],
)
def test_fractions_are_rounded_half_up_and_at_least_one(fraction, count):
    # 4 removable features; 0.375 of them are 1.5, 0.625 are 2.5.
    assert degrade(fractions=[fraction]).fraction.tolist() == [[0, count / 4]]


def test_decimal_half_is_rounded_up_of_any_length():
    lengths = torch.arange(1, 400)
    counts = counts_of_fractions([0.05, 0.35, 0.65, 0.85], lengths)[:, 1:]
    expected = [[max(1, (2 * twentieths * n + 20) // 40) for twentieths in (1, 7, 13, 17)] for n in lengths.tolist()]
    assert counts.tolist() == expected


def test_decimal_half_is_rounded_up_in_spite_of_floating_point():
    ids = torch.full((1, 100), 10)
    result = degradation(bag, ids, torch.zeros(1, 100), 1, perturbation=Delete(PAD), fractions=[0.145])
    assert result.fraction[0, 1].item() == pytest.approx(0.15)


def test_ninths_are_the_default():
    ids = torch.full((1, 9), 10)
    result = degradation(bag, ids, torch.zeros(1, 9), 1, perturbation=Delete(PAD))
    assert result.fraction.shape == (1, 10)
    torch.testing.assert_close(result.fraction[0, 1:], torch.tensor(NINTHS))
    torch.testing.assert_close(result.logit[0], torch.arange(9.0, -1, -1))


def test_counts_stop_at_what_there_is():
    assert logits(degrade(counts=[3, 100])) == [10, 1, 0]


def test_ties_go_by_position():
    assert logits(degrade(torch.zeros(1, 6), counts=[1, 2, 3])) == [10, 9, 7, 4]
    assert logits(degrade(torch.zeros(1, 6), counts=[1, 2, 3], order="lerf")) == [10, 9, 7, 4]


@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_nan_goes_last(order):
    scores = torch.tensor([[0, torch.nan, 1, 1, 1, 0]])
    assert logits(degrade(scores, counts=[1, 2, 3, 4], order=order)) == [10, 8, 5, 1, 0]


def test_infinite_scores_and_negative_infinity_before_nan():
    scores = torch.tensor([[0, -torch.inf, torch.nan, torch.inf, 5, 0]])
    assert logits(degrade(scores, counts=[1, 2, 3, 4])) == [10, 7, 3, 2, 0]


def test_one_removable_token():
    result = degrade(torch.ones(1, 3), torch.tensor([[CLS, 30, SEP]]), removable_mask=torch.tensor([[0, 1, 0]]))
    assert logits(result) == [3] + 9 * [0]
    assert result.fraction.tolist() == [[0] + 9 * [1]]


def test_nothing_removable():
    with pytest.warns(UserWarning, match=r"no removable feature in examples \[0\]"):
        result = degrade(removable_mask=torch.zeros(1, 6))
    assert logits(result) == 10 * [10]
    assert result.fraction.tolist() == [10 * [0]]


def test_everything_removed_leaves_one_column_of_padding():
    seen = []

    def spy(ids):
        seen.append(ids.shape)
        return bag(ids)

    degradation(spy, IDS, SCORES, 1, perturbation=Delete(PAD), counts=[6], max_examples_per_batch=1)
    assert seen == [(1, 6), (1, 1)]


def test_groups_go_together_by_the_sum_of_their_scores():
    words = torch.tensor([[-1, 0, 1, 1, 2, -1]])
    # Word sums 0.1, 0.6, 0.3: out go 20 and 30, then 40, then 10.
    result = degrade(feature_mask=words, counts=[1, 2, 3])
    assert logits(result) == [10, 5, 1, 0]
    torch.testing.assert_close(result.fraction, torch.tensor([[0, 1 / 3, 2 / 3, 1]]))


def test_members_of_a_group_that_are_not_removable_stay_and_do_not_count():
    words = torch.tensor([[0, 0, 1, 1, 2, 2]])
    # The 9s of [CLS] and [SEP] do not count: 0.1, 0.6, 0.3.
    assert logits(degrade(feature_mask=words, counts=[1, 2, 3])) == [10, 5, 1, 0]


def test_tied_groups_go_by_their_first_removable_position():
    words = torch.tensor([[7, 9, 3, 9, 3, 7]])
    assert logits(degrade(torch.zeros(1, 6), feature_mask=words, counts=[1, 2])) == [10, 6, 0]


def test_delete_takes_positions_out_of_every_aligned_argument():
    # Worth at positions: 10 * (1 + 1), 20 * (1 + 2), (30 * 4 + 40 * 5) * 11.
    mask = torch.ones(1, 6)
    positions = torch.arange(6)[None]
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    result = degradation(
        bag,
        IDS,
        SCORES,
        1,
        (mask, positions, segments),
        perturbation=Delete(PAD),
        removable_mask=ORDINARY,
        counts=[1, 2],
    )
    # Position ids keep their numbers, segments theirs.
    assert logits(result) == [2 + 6 + 12 * 11 + 20 * 11, 2 + 12 * 11 + 20 * 11, 2 + 12 * 11]


def test_shared_position_ids_leave_too():
    ids = IDS.repeat(3, 1)

    def forward(rows, positions):
        assert positions.shape == rows.shape
        return bag(rows, positions=positions)

    result = degradation(
        forward, ids, SCORES.repeat(3, 1), 1, torch.arange(6)[None], perturbation=Delete(PAD), counts=[3]
    )
    # [CLS], [SEP] and 20 are gone.
    assert result.logit.tolist() == 3 * [[2 + 6 + 12 + 20, 2 + 12 + 20]]


def test_aligned_tensors_inside_containers():
    def forward(ids, more):
        return bag(ids, more["mask"], segments=more["others"][0])

    more = {"mask": torch.ones(1, 6), "others": [torch.tensor([[0, 0, 1, 0, 0, 0]]), "text", None]}
    result = degradation(
        forward, IDS, SCORES, 1, (more,), perturbation=Delete(PAD), removable_mask=ORDINARY, counts=[1]
    )
    assert logits(result) == [8 + 22, 8]


def test_deletion_is_not_replacement():
    def first_after_cls(ids, mask):
        return torch.stack([torch.zeros(len(ids)), WORTH[ids[:, 1]]], 1)

    arguments = (torch.ones_like(IDS),)
    settings = {"removable_mask": ORDINARY, "counts": [2]}
    scores = torch.tensor([[0, 4.0, 3, 2, 1, 0]])
    deleted = degradation(first_after_cls, IDS, scores, 1, arguments, perturbation=Delete(PAD), **settings)
    masked = degradation(first_after_cls, IDS, scores, 1, arguments, perturbation=ReplaceToken(MASK), **settings)
    assert logits(deleted) == [1, 3]
    assert logits(masked) == [1, 0]


def test_mask_out():
    mask = torch.ones_like(IDS)
    settings = {"removable_mask": ORDINARY, "counts": [1, 2]}
    assert logits(degradation(bag, IDS, SCORES, 1, mask, perturbation=MaskOut(), **settings)) == [10, 8, 4]
    both = degradation(bag, (IDS, mask), SCORES, 1, perturbation=MaskOut(1), **settings)
    assert logits(both) == [10, 8, 4]
    assert mask.tolist() == [6 * [1]]


def test_a_function_as_perturbation_gets_rows_and_the_mask_of_removed_features():
    def swap(inputs, arguments, removed):
        return (torch.where(removed, inputs[0] + 1, inputs[0]),), arguments

    assert logits(degrade(perturbation=swap, counts=[1, 4])) == [10, 10.1, 10.4]


def test_embeddings_with_a_baseline_and_scores_per_feature():
    embeddings = torch.tensor([[[1.0, 2], [3, 4], [5, 6]]])
    scores = torch.tensor([[[0.0, 1], [5, -5], [1, 1]]])  # sums 1, 0, 2

    def forward(x):
        return torch.stack([torch.zeros(len(x)), x.sum((1, 2))], 1)

    assert logits(degradation(forward, embeddings, scores, 1, counts=[1, 2, 3])) == [21, 10, 7, 0]
    settings = {"perturbation": BaselineValue(torch.tensor([0.5, 0.25])), "counts": [1, 3]}
    assert logits(degradation(forward, embeddings, scores, 1, **settings)) == [21, 10.75, 2.25]


@pytest.mark.parametrize("shape", [(1, 3, 2, 2), (1, 1, 2, 2), (1, 2, 2)])
def test_images_lose_pixels_in_all_channels(shape):
    image = torch.arange(12.0).view(1, 3, 2, 2)
    scores = torch.tensor([1, 4, 3.5, 2]).view(2, 2).expand(shape)

    def forward(x):
        return torch.stack([torch.zeros(len(x)), x.sum((1, 2, 3))], 1)

    # Pixels are worth 0 + 4 + 8 = 12, 15, 18 and 21; the lower two have the higher sum of scores.
    assert logits(degradation(forward, image, scores, 1, counts=[1, 2, 3, 4])) == [66, 51, 33, 12, 0]
    superpixels = torch.tensor([[[[0, 0], [1, 1]]]])
    assert logits(degradation(forward, image, scores, 1, feature_mask=superpixels, counts=[1])) == [66, 27]


def test_table_inputs():
    table = torch.tensor([[1.0, 2.0, 4.0]])

    def forward(x):
        return torch.stack([torch.zeros(len(x)), x.sum(1)], 1)

    assert logits(degradation(forward, table, table, 1, counts=[1, 2])) == [7, 3, 1]


def test_attributions_in_a_tuple_as_captum_gives_them():
    assert logits(degrade((SCORES,), counts=[1])) == [10, 8]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_precision(dtype):
    result = degradation(lambda ids: bag(ids).to(dtype), IDS, SCORES, 1, perturbation=Delete(PAD), counts=[1])
    assert result.probability.dtype == result.logit.dtype == torch.promote_types(dtype, torch.float32)


def test_repeated_steps_run_once():
    rows = []

    def spy(ids):
        rows.append(len(ids))
        return bag(ids)

    degrade_three = {"perturbation": Delete(PAD), "removable_mask": torch.tensor([[0, 1, 1, 1, 0]])}
    result = degradation(spy, torch.tensor([[CLS, 10, 20, 30, SEP]]), torch.zeros(1, 5), 1, **degrade_three)
    # 3 tokens: fractions of ninths remove 1, 1, 1, 1, 2, 2, 2, 3, 3.
    assert sum(rows) == 4
    assert logits(result) == [6, 5, 5, 5, 5, 3, 3, 3, 0, 0]


def test_both_orders_have_the_complete_and_the_empty_row_in_common():
    rows = []

    def spy(ids):
        rows.append(len(ids))
        return bag(ids)

    settings = {"perturbation": Delete(PAD), "removable_mask": ORDINARY, "counts": [1, 2, 3, 4]}
    morf, lerf = degradation_both(spy, IDS, SCORES, 1, **settings)
    assert sum(rows) == 2 * 5 - 2
    assert logits(morf) == [10, 8, 4, 1, 0]
    assert logits(lerf) == [10, 9, 6, 2, 0]


def test_passes_by_default_hold_a_thousand_positions():
    shapes = []

    def spy(ids):
        shapes.append(tuple(ids.shape))
        return bag(ids)

    degradation(spy, torch.full((5, 300), 10), torch.ones(5, 300), 1, perturbation=Delete(PAD), counts=[100, 290])
    # A row of 200 still fits in with two of 300; one of 10 does not with four of 200, which would be mostly padding.
    assert shapes == [(3, 300), (3, 300), (4, 200), (5, 10)]


def test_passes_are_sorted_by_length_and_split():
    shapes = []

    def spy(ids, mask):
        shapes.append(tuple(ids.shape))
        return bag(ids, mask)

    ids = torch.tensor([[10] * 8, [10] * 4 + [PAD] * 4])
    mask = (ids != PAD).long()
    settings = {"removable_mask": mask, "perturbation": Delete(PAD), "counts": [2, 4]}
    degradation(spy, ids, torch.ones(2, 8), 1, mask, max_examples_per_batch=2, **settings)
    # Lengths 8, 6, 4 and 4, 2, 0.
    assert shapes == [(2, 8), (2, 4), (2, 2)]


def test_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    table, scores = torch.randn(4, 3), torch.randn(4, 3)
    state = torch.get_rng_state()
    first = degradation(model, table, scores, 1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # Without dropout, and with fixed statistics of the batch norm, passes are the same however they are cut.
    torch.testing.assert_close(first, degradation(model, table, scores, 1, max_examples_per_batch=3))


def test_inputs_are_left_as_they_were():
    ids, mask, scores = IDS.clone(), torch.ones_like(IDS), SCORES.clone()
    degradation(bag, ids, scores, 1, mask, perturbation=Delete(PAD), removable_mask=ORDINARY)
    assert torch.equal(ids, IDS)
    assert torch.equal(scores, SCORES)
    assert mask.all()


def test_progress(capsys):
    degrade(show_progress=True)
    assert "degradation" in capsys.readouterr().err


@pytest.mark.parametrize("target", [1, [1], torch.tensor(1), torch.tensor([1])])
def test_targets(target):
    assert logits(degrade(target=target, counts=[1])) == [10, 8]


@pytest.mark.parametrize("target", [2, -1, [1, 1], torch.tensor([0.5])])
def test_bad_target(target):
    with pytest.raises(AssertionError, match="target is"):
        degrade(target=target)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "best"}, "order is 'best', expected one of morf, lerf"),
        ({"counting": "all"}, "counting is 'all', expected one of removable, as_released"),
        ({"max_examples_per_batch": 0}, "max_examples_per_batch is 0, expected an integer of at least 1"),
        ({"max_examples_per_batch": 2.5}, "max_examples_per_batch is 2.5, expected an integer"),
        ({"max_examples_per_batch": True}, "max_examples_per_batch is True, expected an integer"),
        ({"fractions": []}, "fractions is"),
        ({"fractions": [0.5, 0.1]}, "fractions is .* in rising order"),
        ({"fractions": [1.5]}, "fractions is"),
        ({"fractions": [math.nan]}, "fractions is"),
        ({"counts": [-1]}, "counts is"),
        ({"counts": [2, 1]}, "counts is .* in rising order"),
        ({"counts": [1.5, 2.7]}, r"counts is \[1.5, 2.7\], expected one or more integers"),
        ({"counts": [1], "fractions": [0.5]}, "both given"),
        ({"perturbation": None}, "perturbation is None, expected one for inputs of integers"),
        ({"removable_mask": torch.ones(1, 5)}, r"removable_mask has the shape \(1, 5\), expected \(1, 6\)"),
        ({"feature_mask": torch.zeros(2, 6)}, r"feature_mask has the shape \(2, 6\)"),
        ({"scores": torch.zeros(1, 5)}, r"attributions has the shape \(1, 5\), expected \(1, 6\)"),
        ({"scores": torch.zeros(6)}, r"attributions has the shape \(6,\)"),
        ({"counting": "as_released", "counts": [1]}, "counting is 'as_released', expected"),
        ({"counting": "as_released", "perturbation": ReplaceToken(MASK)}, "counting is 'as_released', expected"),
        ({"perturbation": MaskOut(1)}, "MaskOut: argument 1 of forward_func is NoneType"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        degrade(**settings)


@pytest.mark.parametrize(
    ("forward", "error", "message"),
    [
        (lambda ids: "logits", TypeError, "forward_func returns a str"),
        (lambda ids: torch.zeros(len(ids)), ValueError, "forward_func returns the shape"),
        (lambda ids: torch.zeros(len(ids), 1), ValueError, r"expected \(\d+, C\) with C > 1"),
        (lambda ids: torch.zeros(1, 2), ValueError, "forward_func returns the shape"),
    ],
)
def test_bad_output(forward, error, message):
    with pytest.raises(error, match=message):
        degradation(forward, IDS, SCORES, 1, perturbation=Delete(PAD))


@pytest.mark.parametrize(
    ("inputs", "error"), [("ids", TypeError), ((), TypeError), (torch.zeros(3), ValueError), (IDS[:0], ValueError)]
)
def test_bad_inputs(inputs, error):
    with pytest.raises(error, match="inputs"):
        degradation(bag, inputs, SCORES, 1, perturbation=Delete(PAD))


def test_numpy_scores_and_perturbations_by_name():
    expected = degradation(bag, IDS, SCORES, 1, perturbation=Delete(PAD))
    result = degradation(bag, IDS, SCORES.numpy(), 1, perturbation=Delete(PAD))
    assert torch.equal(result.probability, expected.probability)
    with pytest.raises(TypeError, match="perturbation is 'delete', expected one of captum_iba.metrics.perturbations"):
        degradation(bag, IDS, SCORES, 1, perturbation="delete")


def test_delete_is_for_rows_of_tokens():
    with pytest.raises(
        ValueError, match=r"perturbation is Delete, expected inputs of the shape \(B, T\), got \(1, 6, 2\)"
    ):
        degradation(lambda x: x.mean(1), torch.zeros(1, 6, 2), torch.zeros(1, 6), 1, perturbation=Delete(PAD))


def test_delete_refuses_masks_of_pairs():
    with pytest.raises(ValueError, match=r"Delete: an argument has the shape \(1, 6, 6\)"):
        degradation(bag, IDS, SCORES, 1, torch.ones(1, 6, 6), perturbation=Delete(PAD))


def test_sigmoid_classes_are_explained_as_two_logits():
    # As the docstring says: zero and the logit of the class.
    result = degradation(bag, IDS, SCORES, 1, perturbation=Delete(PAD), counts=[2])
    torch.testing.assert_close(result.probability, result.logit.sigmoid())
