"""The public API is one list of names and signatures: ``docs/api/public.txt``.

A change that is meant is written into it by ``python tests/test_public_api.py``.
"""

import importlib
import inspect
from pathlib import Path

LIST = Path(__file__).parents[1] / "docs" / "api" / "public.txt"
MODULES = ("", ".attr", ".metrics", ".text", ".methods", ".compare", ".visualization", ".demo")


def signature(function):
    """Names, kinds and defaults of the parameters; annotations are for type checkers."""
    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))


def public_api():
    """A line for every public name, and for every public method of a class."""
    lines = []
    for suffix in MODULES:
        module = importlib.import_module(f"captum_iba{suffix}")
        for name in module.__all__:
            thing, full = getattr(module, name), f"captum_iba{suffix}.{name}"
            if inspect.isclass(thing):
                lines.append(f"class {full}{signature(thing)}")
                for method, member in sorted(inspect.getmembers(thing)):
                    inherited = not any(
                        method in vars(base) for base in thing.__mro__ if base.__module__.startswith("captum_iba")
                    )
                    if method.startswith("_") or inherited:
                        continue
                    kind = f"{signature(member)}" if callable(member) else ""
                    lines.append(f"    {full}.{method}{kind}")
            else:
                lines.append(f"{full}{signature(thing) if callable(thing) else ''}")
    return "\n".join(lines) + "\n"


def test_the_public_api_is_the_list():
    assert public_api().splitlines() == LIST.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    LIST.write_text(public_api(), encoding="utf-8")
