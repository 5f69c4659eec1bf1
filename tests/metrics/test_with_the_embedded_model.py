"""The degradation test on a trained model, and what ``import captum_iba.metrics`` loads."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from captum_iba.demo import demo_texts, embedded_model_path
from captum_iba.metrics import Delete, aopc, area_between, degradation, probability_drop
from captum_iba.text import Classifier
from captum_iba.text.classifier import load_classifier


@pytest.fixture(scope="module")
def classifier():
    return Classifier(*load_classifier(embedded_model_path()))


@pytest.fixture(scope="module")
def batch(classifier):
    texts = demo_texts()[:4]
    encoded = classifier.encode(texts, [None] * len(texts))
    tensors = classifier.tensors(encoded)
    removable = torch.zeros_like(tensors["input_ids"], dtype=torch.bool)
    for i, text in enumerate(encoded):
        removable[i, : len(text)] = ~torch.tensor(text.special)
    return tuple(tensors.values()), removable


def leave_one_out(classifier, inputs, removable, target):
    """Decrease in target logit without each token."""
    scores = torch.zeros(removable.shape)
    with torch.no_grad():
        for i, j in removable.nonzero().tolist():
            remaining = [k for k in range(removable.shape[1]) if k != j]
            rows = [tensor[i : i + 1] for tensor in inputs]
            whole, without = classifier.logits(*rows), classifier.logits(*(row[:, remaining] for row in rows))
            scores[i, j] = (whole - without)[0, target[i]]
    return scores


def test_informed_scores_beat_random_ones(classifier, batch):
    inputs, removable = batch
    target = classifier.logits(*inputs).argmax(-1)
    settings = {"removable_mask": removable, "perturbation": Delete(0)}
    results = {}
    for name, scores in {
        "leave one out": leave_one_out(classifier, inputs, removable, target),
        "random": torch.rand(removable.shape, generator=torch.Generator().manual_seed(0)),
    }.items():
        morf, lerf = (
            degradation(classifier.logits, inputs[0], scores, target, inputs[1:], order=order, **settings)
            for order in ("morf", "lerf")
        )
        results[name] = [
            value.mean().item() for value in (probability_drop(morf), aopc(morf), area_between(morf, lerf))
        ]
    assert all(a > b for a, b in zip(results["leave one out"], results["random"], strict=True))


def test_first_column_is_the_prediction(classifier, batch):
    inputs, removable = batch
    scores = torch.zeros(removable.shape)
    result = degradation(
        classifier.logits, inputs[0], scores, None, inputs[1:], removable_mask=removable, perturbation=Delete(0)
    )
    with torch.no_grad():
        probabilities = classifier.logits(*inputs).softmax(-1)
    torch.testing.assert_close(result.probability[:, 0], probabilities.max(-1).values, rtol=1e-4, atol=1e-5)
    assert torch.equal(result.decision[:, 0], probabilities.argmax(-1))


def test_import_is_light():
    heavy = ["captum", "transformers", "lime", "scipy", "matplotlib.pyplot"]
    code = f"import captum_iba.metrics, sys; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=400)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
