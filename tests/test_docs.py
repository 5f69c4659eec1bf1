"""The pages' examples run, their links lead somewhere, and the names in them exist."""

import doctest
import importlib
import math
import re
import shlex
import warnings
from pathlib import Path

import pytest

import captum_iba.methods.registry as registry
from captum_iba import methods
from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.text import Classifier
from captum_iba.text.classifier import load_classifier
from tests.test_cli import run

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "tutorials"} & set(page.parts)]
OTHER_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = [*PAGES, *(ROOT / name for name in OTHER_PAGES)]
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


class ApproximateChecker(doctest.OutputChecker):
    """Accepts numbers within 1 %, for the arithmetic of other machines."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        expected, actual = (NUMBER.findall(text) for text in (want, got))
        return NUMBER.sub("", want).split() == NUMBER.sub("", got).split() and all(
            math.isclose(float(a), float(b), rel_tol=0.01) for a, b in zip(expected, actual, strict=True)
        )


@pytest.mark.parametrize("page", [page for page in TEXTS if ">>>" in page.read_text(encoding="utf-8")], ids=page_name)
def test_examples_run(page, monkeypatch):
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))  # pages register methods of their own
    blocks = re.findall(r"^( *)```pycon\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest("\n".join(code for _, code in blocks), {}, page_name(page), None, 0)
    report: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        result = doctest.DocTestRunner(ApproximateChecker()).run(examples, out=report.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("page", ["README.md", "docs/reading.md"])
def test_the_answer_on_a_page_is_what_the_command_prints(page):
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", "")
    command, printed = re.search(r"\n\$ captum-iba (explain .*?)\n(.*?)```", text, re.DOTALL).groups()
    done = run(*shlex.split(command))
    assert done.exit_code == 0 and ApproximateChecker().check_output(printed, done.stdout, 0), done.stdout


@pytest.mark.parametrize("page", TEXTS, ids=page_name)
def test_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]*)[^)]*\)", text)
    missing = [link for link in links if link and ":" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", TEXTS, ids=page_name)
def test_full_names_exist(page):
    text = re.sub(r"^\| old \|.*?\n\n", _new_names, page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    unknown = []
    for name in set(re.findall(r"`(captum_iba(?:\.\w+)+)(?:\(\))?`", text)):
        *parents, last = name.split(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            owner = _resolve(parents)
            if owner is None or not hasattr(owner, last):
                unknown.append(name)
    assert unknown == []


def _new_names(table: re.Match[str]) -> str:
    """The last column of the table of old and new names in the changelog."""
    return "\n".join(line.rsplit("|", 2)[1] for line in table[0].split("\n") if line)


def _resolve(parts: list[str]) -> object:
    """The object of a dotted name: a module, or an attribute of one."""
    for length in range(len(parts), 0, -1):
        try:
            resolved: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            resolved = getattr(resolved, part, None)
        return resolved
    return None


def test_every_method_is_in_the_table_of_algorithms():
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page.partition("\n## ")[0], re.MULTILINE)
    assert sorted(listed) == sorted(methods.method_names())


# Rows forward and backward for a text of 21 ordinary tokens in 20 words; fewer steps and samples than by default.
FEWER = {"iba": {"n_steps": 10, "n_samples": 4}} | {
    name: {"n_samples": 100} for name in ("lime", "captum_lime", "kernel_shap")
}
ROWS = {
    "iba": (50, 40),
    "iba_reranked": (47, 16),
    "iba_paper": (110, 100),
    "iba_as_released": (96, 90),
    "random": (0, 0),
    "lime": (93, 0),
    "ig": (52, 50),  # two give the difference of the output
    "gradient_x_activation": (1, 1),
    "gradient_shap": (50, 50),
    "saliency": (1, 1),
    "captum_lime": (100, 0),
    "kernel_shap": (100, 0),
    "leave_one_out": (24, 0),
    "occlusion": (20, 0),
    "conductance": (56, 52),
    "grad_cam": (1, 1),
    "attention_rollout": (1, 1),
    "attn_lrp": (1, 1),
    "ig_as_released": (12, 10),
    "lime_as_released": (100, 0),
}


def test_rows_of_every_method():
    model, tokenizer = load_classifier(embedded_model_path())
    classifier = Classifier(model, tokenizer)
    statistics = [embedded_statistics(layer) for layer in range(1, 13)]
    text = "Not once did I care about these unlikeable people, and not even the great cast could save it."
    forward, backward = [], []

    def count(module, arguments, output):
        forward.append(len(output.logits))
        if output.logits.requires_grad:
            output.logits.register_hook(lambda gradient: backward.append(len(gradient)))

    model.register_forward_hook(count)
    rows = {}
    for name in methods.method_names():
        forward.clear(), backward.clear()
        methods.attribute(name, classifier, text, target=0, statistics=statistics, **FEWER.get(name, {}))
        rows[name] = (sum(forward), sum(backward))
    assert rows == ROWS


def test_every_public_package_has_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    packages = [
        "captum_iba",
        *(f"captum_iba.{name}" for name in ("text", "vision", "methods", "metrics", "visualization", "compare")),
    ]
    assert [name for name in packages if f"automodule:: {name}\n" not in pages] == []


def test_the_page_on_contributing_is_the_file_of_the_repository():
    page = ROOT / "docs" / "contributing.md"
    included = re.fullmatch(r"```{include} (\S+)\n:relative-docs: docs/\n```\n", page.read_text(encoding="utf-8"))
    assert included is not None
    assert (page.parent / included[1]).resolve() == ROOT / "CONTRIBUTING.md"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md"])
def test_files_that_are_named_exist(name):
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    generated = (".venv/", "dist/", "docs/_build/")
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w.-]+\.(?:md|txt|py|yml|cff))(?=[`\s])", text)
    assert [path for path in paths if not (ROOT / path).exists() and not path.startswith(generated)] == []


def test_the_map_of_the_package_has_every_file():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    drawn = re.findall(r"\w+\.py\b", re.search(r"```\n(captum_iba/.*?)```", text, re.DOTALL)[1])
    there = {path.name for path in (ROOT / "captum_iba").rglob("*.py") if path.parent.name != "cli"}
    assert there - {"__init__.py", "__main__.py", "_version.py"} == {*drawn} - {"common.py"}
