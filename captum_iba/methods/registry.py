"""The methods by name."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from captum_iba.methods.task import FloatArray, Task

MethodFunction = Callable[..., list[FloatArray]]
"""``function(task, **options)``: for each text of the task one score a token, (T,)."""

_BY_MAGNITUDE = ":abs"


@dataclass(frozen=True)
class Method:
    """A method to attribute a decision to tokens.

    Attributes:
        name (str): What it is called.
        function (callable): ``function(task, **options)`` gives for each text one score a token.
        signed (bool): Whether its scores have a sign that means something.
        description (str): One line for users.
        of_words (bool): Whether it scores words, and each token of a word has the word's score.
        options (mapping): Options that ``function`` always gets, unless a caller gives others.
    """

    name: str
    function: MethodFunction
    signed: bool
    description: str
    of_words: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, task: Task, **options: Any) -> list[FloatArray]:
        """Run it; TypeError as :meth:`check_options`."""
        self.check_options(options)
        return self.function(task, **{**self.options, **options})

    def check_options(self, names: Iterable[str]) -> None:
        """Whether the function takes options of these names; one that takes ``**options`` takes any.

        Raises:
            TypeError: It does not; names the first of them, and those that there are.
        """
        _, *taken = inspect.signature(self.function).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
            return
        known = [parameter.name for parameter in taken]
        for name in names:
            if name not in known:
                listed = f"its options are {', '.join(known)}" if known else "it has none"
                raise TypeError(f"method: {self.name!r} has no option {name!r}; {listed}.")


_methods: dict[str, Method] = {}


def register(
    name: str, function: MethodFunction, *, signed: bool, description: str, of_words: bool = False, **options: Any
) -> Method:
    """Make a method known under a name.

    Args:
        name (str): Letters, digits and underscores.
        function (callable): ``function(task, **options)``; gets a :class:`Task` and gives, for each of its texts,
            one number a token. What it says of special tokens is not used. Before it looks at texts it should check
            its options: a comparison lets it do so on a task without any, of which it gives an empty list.
        signed (bool): Whether negative scores mean something. The scores of such a method can also be read by
            magnitude, as ``"name:abs"``.
        description (str): One line for users.
        of_words (bool): Whether it scores words, and each token of a word has the word's score. Default: False.
        **options: Options that ``function`` always gets, unless a caller gives others.

    Returns:
        Method: as :func:`find` gives it from now on.

    Raises:
        ValueError: The name is taken, or has other characters.

    Examples::

        >>> def longest(task):
        ...     return [np.array([len(token) for token in text.tokens]) for text in task.encoded]
        >>> register("longest", longest, signed=False, description="Long tokens first.")
    """
    if not re.fullmatch(r"\w+", name, re.ASCII):
        raise ValueError(f"name: expected letters, digits and underscores, got {name!r}.")
    if name in _methods:
        raise ValueError(f"name: there is a method {name!r} already.")
    _methods[name] = Method(name, function, signed, description, of_words, options)
    return _methods[name]


def names() -> list[str]:
    """The names of all methods, in the order in which they were registered."""
    return list(_methods)


def find(name: str) -> Method:
    """A method by its name.

    Args:
        name (str): As in :func:`names`; with ``:abs`` behind it, a signed method is read by magnitude.

    Raises:
        ValueError: There is no such method (the message lists them), or it has no sign to drop.
    """
    base, by_magnitude = name.removesuffix(_BY_MAGNITUDE), name.endswith(_BY_MAGNITUDE)
    method = _methods.get(base)
    if method is None:
        raise ValueError(f"method: there is no {base!r}; the methods are {', '.join(_methods)}.")
    if not by_magnitude:
        return method
    if not method.signed:
        raise ValueError(f"method: {base!r} has no signs that {name!r} could drop.")
    return replace(
        method,
        name=name,
        function=_magnitudes(method.function),
        signed=False,
        description=f"{method.description} By magnitude.",
    )


def _magnitudes(function: MethodFunction) -> MethodFunction:
    @functools.wraps(function)  # its options are to be seen
    def by_magnitude(task: Task, **options: Any) -> list[FloatArray]:
        return [np.abs(scores) for scores in function(task, **options)]

    return by_magnitude
