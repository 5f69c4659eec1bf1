import re
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

import captum_iba

ROOT = Path(__file__).parents[1]
HEAVY = ["transformers", "lime", "matplotlib.pyplot", "datasets", "typer"]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("captum-iba")
    except metadata.PackageNotFoundError:
        pytest.skip("captum-iba is not installed, only importable")


def test_import_is_light():
    loaded = run_python(f"import captum_iba, sys; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded == "[]"


def test_using_the_core_loads_no_text_libraries():
    names = ["transformers", "lime", "datasets", "typer"]
    code = (
        "import sys\n"
        "from captum_iba import *\n"
        "from captum_iba import FeatureStatistics, InformationBottleneckAttribution\n"
        f"print([name for name in {names} if name in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_import_prints_and_warns_nothing():
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:captum_iba", "-c", "import captum_iba"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=400,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_public_names_exist():
    assert {"InformationBottleneckAttribution", "FeatureStatistics", "BottleneckTrace"} <= set(captum_iba.__all__)
    for name in captum_iba.__all__:
        assert getattr(captum_iba, name) is not None, name
    assert set(captum_iba.__all__) <= set(dir(captum_iba))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        captum_iba.no_such_name  # noqa: B018


def test_version_is_the_installed_one(distribution):
    assert captum_iba.__version__ == distribution.version


def test_version_is_readable_without_the_package():
    text = (ROOT / "captum_iba" / "_version.py").read_text(encoding="utf-8")
    assert re.fullmatch(r'__version__ = "\d+\.\d+\.\d+(\.dev\d+|rc\d+)?"\n', text)


def test_is_marked_as_typed():
    assert files("captum_iba").joinpath("py.typed").is_file()


def test_command_is_an_entry_point(distribution):
    commands = {point.name: point.value for point in distribution.entry_points if point.group == "console_scripts"}
    assert commands == {"captum-iba": "captum_iba.cli:main"}


def test_extras(distribution):
    assert set(distribution.metadata.get_all("Provides-Extra")) == {
        "text",
        "plot",
        "vision",
        "compare",
        "ray",
        "docs",
        "dev",
        "all",
    }
    core = {re.split(r"[^\w-]", line)[0] for line in distribution.requires or [] if "extra ==" not in line}
    assert core == {"torch", "captum", "safetensors"}


def test_every_direct_dependency_is_pinned(distribution):
    pinned = {
        line.split("==")[0]
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line and not line.startswith("#")
    }
    needed = {re.split(r"[^\w-]", line)[0].lower() for line in distribution.requires or []}
    assert needed <= pinned


def read_yaml(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture
def supported() -> list[str]:
    """The Python versions that the classifiers name."""
    versions = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "setup.py").read_text(encoding="utf-8")
    )
    assert versions
    return versions


def test_supported_versions_are_tested(supported):
    jobs = read_yaml(".github/workflows/test.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python-version"] == supported
    assert [step["run"] for step in jobs["test"]["steps"] if "run" in step] == ["make test"]
    chosen = [
        step["with"]["python-version"] for step in jobs["build"]["steps"] if "setup-python" in step.get("uses", "")
    ]
    assert set(chosen) <= set(supported)


def test_supported_versions_are_said_alike(supported):
    said = f"Python {supported[0]} to {supported[-1]}"
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    ruff = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert said in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f'python_requires=">={supported[0]}"' in setup
    assert f'target-version = "py{supported[0].replace(".", "")}"' in ruff


def test_the_documentation_is_built_alike_everywhere(supported):
    settings = read_yaml(".readthedocs.yaml")
    assert settings["build"]["tools"]["python"] in supported
    assert (ROOT / settings["sphinx"]["configuration"]).is_file()
    (command,) = settings["build"]["jobs"]["install"]
    extras = re.search(r"--editable '\.(\[.*?\])'", command)
    recipe = re.search(r"^\$\(VENV\)/\.docs:.*?'\.(\[.*?\])'", (ROOT / "Makefile").read_text("utf-8"), re.DOTALL | re.M)
    assert extras is not None and recipe is not None and extras[1] == recipe[1]


def test_citation():
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == captum_iba.__version__
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert f'license="{citation["license"]}"' in setup
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(reference["url"] in readme for reference in citation["references"])


@pytest.mark.parametrize("name", ["bug_report", "feature_request"])
def test_fields_of_issue_templates(name):
    template = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert template["name"] and template["description"]
    fields = [field for field in template["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
