"""The examples in the docstrings run.

An example sees the names of its module and of the package's public interface above it, ``torch``, and what a reader of
the figures and pages has at hand: ``result``, a :class:`captum_iba.text.TextAttribution`; ``layers``, the same text at
two layers; ``scores``, the same text by another method; ``generated``, the attribution of a response to its prompt;
``explained``, an attribution of an image; ``explainer``, of the images of the model ``cnn``.
"""

import dataclasses
import doctest
import importlib.util
import inspect
import pkgutil
import re
import sys

import pytest
import torch

import captum_iba
from captum_iba.text import GenerationAttribution, PromptPart, ResponseToken
from captum_iba.vision import ImageExplainer
from tests.test_docs import ApproximateChecker
from tests.vision.examples import image_attribution
from tests.visualization.examples import attribution
from tests.visualization.examples import scores as scores_of_words

# Modules, or packages as a whole, whose examples do not run here, and why.
SKIPPED = {
    "captum_iba.cli": "examples are commands",
    "captum_iba.compare": "examples need a comparison on disk",
    "captum_iba.demo": "examples need a model of the reader's",
    "captum_iba.methods": "examples run in tests/text/test_examples.py",
    "captum_iba.text": "examples run in tests/text/test_examples.py",
}


def is_skipped(name):
    return any(name == skipped or name.startswith(f"{skipped}.") for skipped in SKIPPED)


def modules():
    found = pkgutil.walk_packages(captum_iba.__path__, "captum_iba.")
    return [importlib.import_module(module.name) for module in found if not module.name.endswith("__main__")]


def examples():
    """All docstrings with examples, but those of modules that are skipped."""
    finder = doctest.DocTestFinder()
    found = [test for module in modules() if not is_skipped(module.__name__) for test in finder.find(module)]
    return [test for test in found if test.examples]


def names_under(heading, docstring):
    """The names that a section of a docstring documents: a, b and c of "a, b (int):" and "c (tuple of (int, str)):"."""
    _, _, section = inspect.cleandoc(docstring or "").partition(f"{heading}:\n")
    lines = re.split(r"\n(?=\S)", section)[0].splitlines()
    entries = [line[4:] for line in lines if re.match(r" {4}\w", line)]
    while any("(" in entry for entry in entries):
        entries = [re.sub(r" *\([^()]*(\)|$)", "", entry) for entry in entries]
    return [name.strip() for entry in entries for name in entry.partition(":")[0].split(",")]


def is_dataclass_type(value):
    return isinstance(value, type) and dataclasses.is_dataclass(value)


def test_documented_fields_exist_and_all_attributes_are_documented():
    wrong = []
    for cls in {cls for module in modules() for cls in vars(module).values() if is_dataclass_type(cls)}:
        if not cls.__module__.startswith("captum_iba.") or cls.__name__.startswith("_"):
            continue
        fields = {field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")}
        properties = {name for name, value in inspect.getmembers(cls) if isinstance(value, property)}
        described = [base.__doc__ for base in cls.__mro__ if is_dataclass_type(base)]
        attributes = [name for doc in described for name in names_under("Attributes", doc)]
        arguments = names_under("Args", cls.__doc__)
        wrong += [f"{cls.__name__} has no {name}" for name in {*attributes, *arguments} - fields - properties]
        wrong += [f"{cls.__name__}: {name} is not documented" for name in fields - {*attributes} if attributes]
    assert wrong == []


def small_cnn():
    """A classifier of images of two classes."""
    torch.manual_seed(0)
    convolutions = [torch.nn.Sequential(torch.nn.Conv2d(n, 8, 3, padding=1), torch.nn.ReLU()) for n in (3, 8)]
    return torch.nn.Sequential(*convolutions, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 2))


def generated(prompt, response):
    """The attribution of a response to the two words of a prompt."""
    first, second = prompt.split()
    parts = PromptPart(first, 0, len(first), 1.0), PromptPart(second, len(first) + 1, len(prompt), 7.0)
    tokens = (ResponseToken(response, 0, len(response), 0.5),)
    return GenerationAttribution(
        prompt,
        parts,
        response,
        tokens,
        (0, len(response)),
        "word",
        0.5,
        0.4,
        0.1,
        settings={"beta": 0.1, "n_steps": 10},
    )


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_examples_run(example, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one = attribution("a film")
    handy = {
        "torch": torch,
        "result": one,
        "layers": [attribution("a film", layer=1), attribution("a film", layer=2)],
        "generated": generated("a film", "a plot"),
        "scores": scores_of_words("a film", [0.5, -0.25]),
        "explained": image_attribution(),
    }
    if example.name.startswith("captum_iba.vision.image_explainer"):
        handy["cnn"] = small_cnn()
        handy["explainer"] = ImageExplainer(handy["cnn"])
    package = sys.modules[example.globs["__name__"].rpartition(".")[0]]
    example.globs = {**handy, **vars(package), **example.globs}
    torch.manual_seed(0)
    output = []
    result = doctest.DocTestRunner(ApproximateChecker()).run(example, out=output.append)
    assert result.failed == 0, "".join(output)


@pytest.mark.parametrize("package", ["metrics", "visualization"])
def test_every_public_function_has_an_example(package):
    module = importlib.import_module(f"captum_iba.{package}")
    public = [getattr(module, name) for name in module.__all__]
    functions = [function for function in public if type(function).__name__ == "function"]
    assert [function.__name__ for function in functions if ">>>" not in function.__doc__] == []


def test_what_is_skipped_exists():
    assert [name for name in SKIPPED if importlib.util.find_spec(name) is None] == []
