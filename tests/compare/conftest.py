"""A tiny classifier in a folder, a small dataset, and a comparison of a few methods on it."""

import json
from pathlib import Path

import pytest

from captum_iba.compare import ComparisonConfig, prepare, write_report
from tests.text.conftest import bert, wordpiece  # noqa: F401

LABELS = ["negative", "neutral", "positive"]
WORDS = ["the film was good", "a bad dull plot", "not unbelievable", "the plot was not like a good film", "dull", "a"]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows_of_texts(count):
    texts = [" ".join(WORDS[(i + k) % len(WORDS)] for k in range(1 + i % 4)) for i in range(count)]
    return [{"text": text, "label": i % 3} for i, text in enumerate(texts)]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """The tables that ``datasets`` keeps go with the tests."""
    import datasets

    patch = pytest.MonkeyPatch()
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, bert, wordpiece):  # noqa: F811
    folder = tmp_path_factory.mktemp("model")
    bert.save_pretrained(folder)
    wordpiece.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data_file(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("data") / "texts.jsonl", rows_of_texts(30))


@pytest.fixture
def config_of(model_folder, data_file):
    """A configuration for the tiny model and data, with changes."""

    def make(**changes):
        settings = {
            "data": str(data_file),
            "model": str(model_folder),
            "methods": "iba,leave_one_out,random",
            "examples": 6,
            "random_seeds": 2,
            "chunk_size": 2,
        }
        return ComparisonConfig(**{**settings, **changes})

    return make


@pytest.fixture(scope="session")
def finished(tmp_path_factory, model_folder, data_file) -> Path:
    """The folder of a finished comparison; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    methods = [{"method": "iba", "n_steps": 3}, "leave_one_out", "saliency", "random"]
    config = ComparisonConfig(
        str(data_file), str(model_folder), methods, examples=12, random_seeds=3, chunk_size=5, batch_size=16
    )
    for _ in prepare(config, folder).run():
        pass
    write_report(folder)
    return folder
