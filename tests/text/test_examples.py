"""The examples of the docstrings run, on the embedded model."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import captum_iba.methods
import captum_iba.text
from captum_iba.demo import demo_texts, embedded_model_path
from captum_iba.methods import registry
from captum_iba.text import TextExplainer

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (captum_iba.text, captum_iba.methods)
    for module in pkgutil.iter_modules(package.__path__)
]


class WhereGiven(doctest.OutputChecker):
    """An example without output may print anything."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


@pytest.fixture(scope="module")
def names():
    explainer = TextExplainer.from_pretrained(embedded_model_path(), layer=9)
    explainer.estimate_statistics(demo_texts())
    return {
        **vars(captum_iba.text),
        **vars(captum_iba.methods),
        "np": np,
        "explainer": explainer,
        "classifier": explainer.classifier,
        "model": explainer.classifier.model,
        "tokenizer": explainer.classifier.tokenizer,
        "training_texts": demo_texts(),
        "result": explainer.explain("A wonderful film."),
    }


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(names, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAPTUM_IBA_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(WhereGiven(), verbose=False, optionflags=doctest.ELLIPSIS)
    for examples in doctest.DocTestFinder().find(module, globs={**names, **vars(module)}):
        for example in examples.examples:
            example.source = example.source.replace('"path/to/classifier"', repr(str(embedded_model_path())))
        assert runner.run(examples).failed == 0, examples.name
