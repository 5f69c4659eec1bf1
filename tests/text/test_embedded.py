import gzip
import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from captum_iba import FeatureStatistics
from captum_iba.demo import demo_texts, embedded_model_path, embedded_statistics
from captum_iba.text import TextExplainer, explain_layers

ROOT = Path(__file__).parents[2]


def test_the_embedded_model_is_complete_and_small():
    folder = embedded_model_path()
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {f.name for f in folder.iterdir()}
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 8e6


def test_it_has_statistics_of_every_layer():
    for layer in range(1, 13):
        statistics = embedded_statistics(layer)
        assert statistics.layer == f"bert.encoder.layer.{layer - 1}"
        assert statistics.n_features == 128 and statistics.count > 1000
    with pytest.raises(FileNotFoundError, match="no statistics of layer 13"):
        embedded_statistics(13)


def test_results_have_the_fingerprints_of_the_model_and_of_the_statistics():
    """Statistics that do not know their model left the model out of the result."""
    explainers = [
        TextExplainer.from_pretrained(embedded_model_path(), layer=layer, statistics=embedded_statistics(layer))
        for layer in (8, 9)
    ]
    first, second = (explainer.explain("A dull film.", n_steps=1).provenance for explainer in explainers)
    assert first["model_fingerprint"] == second["model_fingerprint"] == explainers[0].fingerprint()
    assert first["statistics_fingerprint"] != second["statistics_fingerprint"]


def test_the_demo_texts_are_short():
    assert 4 <= len(demo_texts()) <= 5
    assert all(40 < len(text) < 200 for text in demo_texts())


def test_layers_before_and_after(bert, wordpiece):
    explainers = [TextExplainer(bert, wordpiece, layer) for layer in (1, 3)]
    for explainer in explainers:
        explainer.estimate_statistics(["the film was good", "a bad, dull plot!"])
    rows = explain_layers(explainers, ["good film", "bad"], n_samples=2)
    assert [[after.layer_index for _, after in row] for row in rows] == [[1, 3], [1, 3]]
    for row in rows:
        for before, after in row:
            assert before.text == after.text and before.settings["n_steps"] == 0
            assert before.total_bits > after.total_bits
    alone = explainers[1].explain("bad", n_samples=2)
    assert np.allclose(rows[1][1][1].bits, alone.bits, atol=1e-4)


def test_the_recipe_of_the_statistics(tmp_path, monkeypatch):
    model = tmp_path / "model"
    shutil.copytree(embedded_model_path(), model, ignore=shutil.ignore_patterns("statistics"))
    with gzip.open(tmp_path / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        for text in demo_texts():
            file.write(json.dumps({"text": text, "label": 1}) + "\n")
    recipe = str(ROOT / "recipes" / "estimate_demo_statistics.py")
    monkeypatch.setattr(sys, "argv", [recipe, "--data", str(tmp_path), "--model", str(model), "--examples", "3"])
    runpy.run_path(recipe, run_name="__main__")
    files = sorted((model / "statistics").iterdir())
    assert [file.name for file in files] == [f"layer-{layer:02d}.safetensors" for layer in range(1, 13)]
    assert FeatureStatistics.load(files[8], layer="bert.encoder.layer.8").count > 30
