"""What a method computes, as a digest: records of its old code and of its new code are not those of one method."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

_PACKAGE = __name__.partition(".")[0]
_SCALARS = (str, bytes, int, float, complex, type(None))


def code_digest(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """A digest of a function's code and of the options that it gets, the same in every process of one Python version.

    The code is the bytecode, with constants, defaults, enclosed values, and the functions and plain values that it
    uses of its own module. Functions of this package go by their names: its version says the rest. What it imports
    from elsewhere, and what objects of other kinds hold, is not seen.
    """
    digest = hashlib.sha256()
    for part in _parts((function, dict(options)), set()):
        digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()[:16]


def _parts(value: Any, seen: set[int]) -> Iterator[bytes]:
    """What a value is made of, in an order that is always the same."""
    yield type(value).__qualname__.encode()
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, _SCALARS):
        yield repr(value).encode()
    elif isinstance(value, np.ndarray | Tensor):
        array = value if isinstance(value, np.ndarray) else value.detach().cpu().double().numpy()
        yield f"{array.dtype}{array.shape}".encode() + array.tobytes()
    elif isinstance(value, Mapping):
        yield from _parts([*value.items()], seen)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(b"".join(_parts(item, seen)) for item in value)
    elif isinstance(value, CodeType):
        yield value.co_code
        yield from _parts((value.co_names, value.co_consts), seen)
    elif isinstance(value, type):
        yield value.__qualname__.encode()
    elif id(value) not in seen:  # a function may call itself
        seen.add(id(value))
        yield from _parts(_contents(value), seen)


def _contents(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if not isinstance(value, FunctionType):  # an object, with the functions of its class
        functions = {name: item for name, item in vars(type(value)).items() if isinstance(item, FunctionType)}
        cached = getattr(type(value), "_CACHED", ())
        content = getattr(value, "__dict__", {}).items()
        plain = {key: item for key, item in content if _is_plain(item) and key not in cached}
        return getattr(value, "__qualname__", ""), functions, plain
    held = [cell.cell_contents for cell in value.__closure__ or ()], value.__defaults__, value.__kwdefaults__
    if str(value.__module__).partition(".")[0] == _PACKAGE:
        return value.__qualname__, held
    used = {name: value.__globals__.get(name) for name in sorted(_names(value.__code__))}
    own = {
        name: item
        for name, item in used.items()
        if _is_plain(item) or (isinstance(item, FunctionType) and item.__module__ == value.__module__)
    }
    return value.__code__, held, own


def _is_plain(value: Any) -> bool:
    return isinstance(value, (*_SCALARS, tuple, list, dict, set, frozenset, np.ndarray, Tensor, nn.Module))


def _names(code: CodeType) -> set[str]:
    """Names that a function and those in it use."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
