import copy

import pytest
import torch

from captum_iba.text import TextExplainer, cache_folder, cached_statistics

TEXTS = ["the film was good", "a bad, dull plot!"]


@pytest.fixture
def make(bert, wordpiece):
    return lambda **settings: TextExplainer(bert, wordpiece, **{"layer": 2, **settings})


def test_statistics_are_estimated_once(make, tmp_path):
    first, second = make(), make()
    path, found = cached_statistics(first, TEXTS, tmp_path / "new")
    assert not found and path.parent == tmp_path / "new"
    assert cached_statistics(second, TEXTS, tmp_path / "new") == (path, True)
    assert torch.equal(first.statistics[0].mean, second.statistics[0].mean)


def test_the_key_holds_all_that_matters(make, tmp_path):
    paths = {
        cached_statistics(explainer, texts, tmp_path)[0]
        for explainer, texts in [
            (make(), TEXTS),
            (make(), TEXTS[::-1]),
            (make(), ["".join(TEXTS)]),
            (make(layer=3), TEXTS),
            (make(max_length=5), TEXTS),
        ]
    }
    assert len(paths) == 5


def test_other_weights_in_the_same_folder_are_another_model(make, bert, wordpiece, tmp_path):
    model = tmp_path / "model"
    bert.save_pretrained(model)
    wordpiece.save_pretrained(model)
    path, _ = cached_statistics(TextExplainer.from_pretrained(model), TEXTS, tmp_path)
    assert cached_statistics(TextExplainer.from_pretrained(model), TEXTS, tmp_path) == (path, True)
    other = copy.deepcopy(bert)
    with torch.no_grad():
        other.classifier.bias += 1
    other.save_pretrained(model)
    assert cached_statistics(TextExplainer.from_pretrained(model), TEXTS, tmp_path)[1] is False


def test_a_damaged_file_is_made_anew(make, tmp_path):
    path, _ = cached_statistics(make(), TEXTS, tmp_path)
    path.write_bytes(b"broken")
    assert cached_statistics(make(), TEXTS, tmp_path) == (path, False)
    assert cached_statistics(make(), TEXTS, tmp_path) == (path, True)


def test_the_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("CAPTUM_IBA_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("CAPTUM_IBA_CACHE")
    assert cache_folder().name == "captum_iba"
