"""The public API is one list of names and signatures: ``docs/api/public.txt``.

A change that is meant is written into it by ``python tests/test_public_api.py``.
"""

import importlib
import inspect
import re
from pathlib import Path

LIST = Path(__file__).parents[1] / "docs" / "api" / "public.txt"
MODULES = ("", ".attr", ".metrics", ".text", ".vision", ".methods", ".compare", ".visualization", ".demo")


def signature(function):
    """Names, kinds and defaults of the parameters; annotations are for type checkers."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a subclass of a built-in type
        return ""
    text = str(inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters]))
    return re.sub(r"<function ([^ ]+) at 0x\w+>", r"\1", text)


def members(cls):
    """Public methods and properties of a class of the package; its fields are in its signature."""
    fields = {*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "_fields", ())}
    for name, member in sorted(inspect.getmembers(cls)):
        own = any(name in vars(base) for base in cls.__mro__ if base.__module__.startswith("captum_iba"))
        if own and not name.startswith("_") and name not in fields:
            yield f"{name}{signature(member) if callable(member) else ''}"


def public_api():
    """A line for every public name, and for every public method of a class."""
    lines, listed = [], set()
    for suffix in MODULES:
        module = importlib.import_module(f"captum_iba{suffix}")
        for name in module.__all__:
            thing, full = getattr(module, name), f"captum_iba{suffix}.{name}"
            if not inspect.isclass(thing):
                lines.append(f"{full}{signature(thing) if callable(thing) else ''}")
                continue
            lines.append(f"class {full}{signature(thing)}")
            if thing not in listed:
                listed.add(thing)
                lines += [f"    {full}.{member}" for member in members(thing)]
    return "\n".join(lines) + "\n"


def test_the_public_api_is_the_list():
    assert public_api().splitlines() == LIST.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    LIST.write_text(public_api(), encoding="utf-8")
