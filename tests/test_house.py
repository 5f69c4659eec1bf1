"""The structure of the package: imports go one way, and a name is used once."""

import ast
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "captum_iba"

# A package imports from those before it, and from itself.
ORDER = (
    "_version",
    "_warnings",
    "_checks",
    "_compat",
    "_files",
    "_bootstrap",
    "attr",
    "metrics",
    "_reading",
    "visualization",
    "_explain",
    "text",
    "vision",
    "demo",
    "methods",
    "compare",
    "cli",
)


def modules():
    """The syntax tree of every module, by its dotted name."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports():
    """The modules of the package that each imports, also inside functions and for type checkers."""
    trees = modules()
    graph = {}
    for name, tree in trees.items():
        targets = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("captum_iba"):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    targets.add(full if full in trees else node.module)
            elif isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names if alias.name in trees)
        graph[name] = targets - {name, "captum_iba"}
    return graph


def test_there_are_modules():
    assert len(modules()) > 30
    assert "captum_iba.attr.feature_statistics" in imports()["captum_iba.attr.information_bottleneck"]


def test_imports_have_no_circles():
    graph, finished, open_ = imports(), set(), []

    def visit(name):
        if name in open_:
            pytest.fail(f"a circle of imports: {' > '.join([*open_[open_.index(name) :], name])}")
        if name not in finished:
            open_.append(name)
            for other in sorted(graph[name]):
                visit(other)
            open_.pop()
            finished.add(name)

    for name in graph:
        visit(name)


def test_imports_go_one_way():
    rank = {name: number for number, name in enumerate(ORDER)}
    backwards = [
        f"{name} imports {other}"
        for name, targets in imports().items()
        for other in targets
        if name.split(".")[1:] and name.split(".")[1] in rank and rank[name.split(".")[1]] < rank[other.split(".")[1]]
    ]
    assert backwards == []


def test_names_are_used_once():
    classes = Counter(
        node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    files = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
    allowed = {"demo.py"}  # a command and what it shows
    assert [name for name, count in (classes + files).items() if count > 1 and name not in allowed] == []


def test_files_have_one_idea_of_at_most_500_lines():
    long = [path.name for path in PACKAGE.rglob("*.py") if len(path.read_text(encoding="utf-8").splitlines()) > 500]
    assert long == []
