"""Package metadata. Settings of the tools (ruff, mypy, pytest) are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def read_version() -> str:
    """Read the version as text: importing the package would need torch at build time."""
    text = (HERE / "captum_iba" / "_version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('captum_iba/_version.py must hold one line __version__ = "..."')
    return match[1]


TEXT = [
    "transformers>=5",
    "lime>=0.2",
    "jinja2>=3.1",
    "platformdirs>=4",
    "rich>=13",
    "typer>=0.12",
]
PLOT = [
    "matplotlib>=3.8",
    "scipy>=1.11",  # intervals of curves
]
VISION = [
    *TEXT,  # classifiers of transformers, pages and the command line
    *PLOT,
    "pillow>=10",
    "scikit-image>=0.22",  # superpixels; lime needs it, too
]
COMPARE = [
    *PLOT,
    "datasets>=4",
    "pyarrow>=15",
    "pyyaml>=6",  # the configuration of a comparison
]
RAY = [
    "ray>=2.48",
]
DOCS = [
    "sphinx>=7.4",
    "myst-nb>=1.1",
    "furo>=2024.8",
]
# Not torchvision, which the Makefile puts into a folder of its own: see tests/attr/vision_models.py.
DEV = [
    "accelerate>=1.2",
    "build>=1.2",
    "hypothesis>=6.100",
    "ipykernel>=6.29",  # runs the tutorials
    "mypy>=1.15",
    "nbmake>=1.5",
    "peft>=0.15",
    "playwright>=1.50",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.9",
]

setup(
    name="captum-iba",
    version=read_version(),
    description="Information-bottleneck attribution for Captum: how many bits of each token a model uses",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    keywords=[
        "interpretability",
        "attribution",
        "information bottleneck",
        "captum",
        "pytorch",
        "transformers",
    ],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["captum_iba", "captum_iba.*"]),
    package_data={"captum_iba": ["py.typed", "assets/**", "visualization/templates/*", "compare/templates/*"]},
    # No upper bound: one on a released version only makes installers pick an older release without it.
    python_requires=">=3.10",
    install_requires=[
        # The first torch with wheels for every Python from 3.10 to 3.13.
        "torch>=2.6",
        # Private names are imported in captum_iba/_compat.py, so a new minor version may need a look there.
        "captum>=0.9",
        # Saves FeatureStatistics; under 1 MB and without dependencies of its own, so not worth an extra.
        "safetensors>=0.4.3",
    ],
    extras_require={
        "text": TEXT,
        "plot": PLOT,
        "vision": VISION,
        "compare": TEXT + COMPARE,
        "ray": TEXT + RAY,
        "docs": DOCS,
        "dev": DEV,
        "all": TEXT + VISION + COMPARE + RAY + DOCS + DEV,
    },
    entry_points={"console_scripts": ["captum-iba = captum_iba.cli:main"]},
)
