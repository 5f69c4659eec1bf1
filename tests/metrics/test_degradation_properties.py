"""What holds for any texts and scores."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from transformers import BertConfig, BertForSequenceClassification

from captum_iba.metrics import Delete, MaskOut, ReplaceToken, degradation, degradation_both
from tests.metrics.bag import CLS, MASK, PAD, SEP

pytestmark = pytest.mark.filterwarnings("ignore:inputs have no removable feature")

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        num_labels=3,
        initializer_range=0.5,
    )
    return BertForSequenceClassification(config).eval()


# Quarters: ties occur, and sums and cubes are exact.
scored = st.tuples(st.integers(10, 99), st.integers(-12, 12).map(lambda number: number / 4))
texts = st.lists(st.lists(scored, min_size=0, max_size=12), min_size=1, max_size=4)
few = settings(max_examples=25)  # every one runs the model many times
perturbations = st.sampled_from([Delete(PAD), ReplaceToken(MASK), MaskOut(1)])


def padded(batch, extra=0):
    """Ids, mask, segments (the second half is another sentence), scores and what may be removed."""
    length = max(map(len, batch)) + 2 + extra
    rows = []
    for text in batch:
        ids = [CLS, *(token for token, _ in text), SEP]
        segments = [i > len(ids) // 2 for i in range(len(ids))]
        scores = [7.0, *(score for _, score in text), 7.0]
        fill = length - len(ids)
        rows.append((ids + [PAD] * fill, [1] * len(ids) + [0] * fill, segments + [0] * fill, scores + [50.0] * fill))
    ids, mask, segments, scores = (torch.tensor(column) for column in zip(*rows, strict=True))
    return ids, mask.long(), segments.long(), scores, (ids > MASK)


def run(model, batch, extra=0, negate=False, test=degradation, **options):
    ids, mask, segments, scores, removable = padded(batch, extra)

    def forward(rows, attention, types):
        return model(rows, attention_mask=attention, token_type_ids=types).logits

    options.setdefault("perturbation", Delete(PAD))
    scores = -scores if negate else scores
    return test(forward, ids, scores, 1, (mask, segments), removable_mask=removable, **options)


def same(a, b):
    for name in ("probability", "logit", "fraction"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), **TOLERANCE)


@few
@given(texts, perturbations)
def test_removing_nothing_changes_nothing(model, batch, perturbation):
    ids, mask, segments, _, _ = padded(batch)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, token_type_ids=segments).logits
    result = run(model, batch, perturbation=perturbation, fractions=[0.0, 0.0])
    torch.testing.assert_close(result.logit, logits[:, 1:2].expand(-1, 3), **TOLERANCE)
    assert not result.fraction.any()


@few
@given(texts, perturbations, st.booleans())
def test_least_relevant_first_is_most_relevant_first_of_the_negated_scores(model, batch, perturbation, as_released):
    counting = "as_released" if as_released and isinstance(perturbation, Delete) else "removable"
    options = {"perturbation": perturbation, "counting": counting}
    lerf = run(model, batch, order="lerf", **options)
    negated = run(model, batch, negate=True, order="morf", **options)
    for a, b in zip(lerf, negated, strict=True):
        assert torch.equal(a, b)


@few
@given(texts, perturbations, st.sampled_from(["removable", "as_released"]))
def test_both_orders_at_once_are_both_orders(model, batch, perturbation, counting):
    options = {"perturbation": perturbation, "counting": counting if isinstance(perturbation, Delete) else "removable"}
    morf, lerf = run(model, batch, test=degradation_both, **options)
    same(morf, run(model, batch, **options))
    same(lerf, run(model, batch, order="lerf", **options))


@few
@given(texts, perturbations, st.integers(1, 5), st.sampled_from(["removable", "as_released"]))
def test_batch_padding_and_passes_do_not_matter(model, batch, perturbation, extra, counting):
    options = {"perturbation": perturbation, "counting": counting if isinstance(perturbation, Delete) else "removable"}
    whole = run(model, batch, **options)
    same(whole, run(model, batch, extra=extra, **options))
    same(whole, run(model, batch, max_examples_per_batch=extra, **options))
    turned = run(model, batch[::-1], **options)
    same(whole, type(turned)(*(values.flip(0) for values in turned)))
    alone = [run(model, [text], **options) for text in batch]
    same(whole, type(whole)(*(torch.cat(column) for column in zip(*alone, strict=True))))


@few
@given(texts, perturbations)
def test_everything_is_removed_at_the_end_and_more_at_every_step(model, batch, perturbation):
    result = run(model, batch, perturbation=perturbation)
    lengths = torch.tensor([len(text) for text in batch])
    assert torch.equal(result.fraction[:, -1], (lengths > 0).float())
    assert (result.fraction.diff(dim=1) >= 0).all()
    # Whatever the order, the end is the same.
    torch.testing.assert_close(
        result.logit[:, -1], run(model, batch, perturbation=perturbation, order="lerf").logit[:, -1], **TOLERANCE
    )


@few
@given(texts)
def test_only_the_order_of_the_scores_counts(model, batch):
    same(run(model, batch), run(model, [[(token, 2 * score**3 + 1) for token, score in text] for text in batch]))


@few
@given(texts)
def test_groups_of_one_change_nothing(model, batch):
    length = padded(batch)[0].shape[1]
    same(run(model, batch), run(model, batch, feature_mask=torch.arange(length).flip(0)[None]))


def test_against_one_text_at_a_time_without_padding(model):
    batch = [[(20, 0.5), (30, -1.0), (40, 2.0), (50, 0.1)], [(60, 1.0), (70, 3.0)], [(80, 0.0)]]
    result = run(model, batch, counts=[1, 2, 3])
    for i, text in enumerate(batch):
        for count in range(4):
            removed = sorted(range(len(text)), key=lambda k: -text[k][1])[:count]
            ids, _, segments, _, _ = padded([text])
            remaining = [k for k in range(ids.shape[1]) if k - 1 not in removed]
            with torch.no_grad():
                logits = model(ids[:, remaining], token_type_ids=segments[:, remaining]).logits
            torch.testing.assert_close(result.logit[i, count], logits[0, 1], **TOLERANCE)
            torch.testing.assert_close(result.probability[i, count], logits[0].softmax(0)[1], **TOLERANCE)
            assert result.decision[i, count] == logits[0].argmax()
