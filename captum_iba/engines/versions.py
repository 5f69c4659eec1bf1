"""The libraries whose versions can change a digit."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from captum_iba._version import __version__


def versions() -> dict[str, str]:
    """The versions of this package and of the libraries that compute, as far as they are installed."""
    found = {"captum_iba": __version__}
    for name in ("torch", "captum", "transformers", "tokenizers", "lime", "numpy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
