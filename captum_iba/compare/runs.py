"""Which methods are compared, with which settings: ``iba``, ``lime@n_samples=100``, ``random`` over five seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

_NAME = re.compile(r"(?P<method>[A-Za-z]\w*(:\w+)?)(@(?P<settings>.+))?")
_SETTING = re.compile(r"(?P<key>[A-Za-z]\w*)=(?P<value>[\w.+:-]+)")

_COUNTINGS = ("removable", "as_released")

PAPER = "iba,iba_paper,ig,lime,random,iba_as_released,ig_as_released,lime_as_released,random@counting=as_released"
"""The rows of the paper's table, first the fair ones, then those of the published code."""


@dataclass(frozen=True)
class Run:
    """One method with its settings and one seed.

    Attributes:
        row (str): The row of the tables; runs that differ only in the seed share one, which is their mean.
        name (str): Of this run.
        method (str): Name of the method, as :func:`captum_iba.methods.names` has it.
        layer (int, str, tuple of them, or None): Block or module that it looks at, where it looks at one; several have
            one mask; None: its default.
        seed (int): Of its random numbers.
        counting (str): How the degradation test counts tokens, ``"removable"`` or ``"as_released"``.
        options (tuple of pairs): Further settings of the method.
    """

    row: str
    name: str
    method: str
    layer: int | str | tuple[int | str, ...] | None
    seed: int
    counting: str
    options: tuple[tuple[str, Any], ...]


def folder_name(run: str) -> str:
    """The name of a run as that of a folder, on every system."""
    return quote(run, safe="@=,+")


def parse_runs(
    methods: str,
    layers: str | None = None,
    betas: str | None = None,
    seed: int = 0,
    random_seeds: int = 5,
) -> tuple[Run, ...]:
    """Read a list of methods.

    A method is ``NAME``, ``NAME:abs`` or either with settings: ``NAME@key=value,key=value``. The settings ``layer``,
    ``seed`` and ``counting`` are for any method, all others are its own; ``layer=1+3`` is several layers with one
    mask, for ``iba``. Methods whose name ends in
    ``_as_released`` are counted as in the published code, all others fairly, unless ``counting`` says otherwise.

    Args:
        methods (str): Methods, with commas between them.
        layers (str or None): Blocks such as ``"1..12"`` or ``"all,1,3,6+9"``; ``iba`` runs once for each, with one
            mask for those with a plus between them, and for ``all`` as it does without layers. Default: None.
        betas (str or None): Numbers with commas between them; ``iba`` runs once for each, and layer. Default: None.
        seed (int): For methods whose settings name none. Default: 0.
        random_seeds (int): How many times ``random`` runs, with ``seed`` and the numbers after it. Default: 5.

    Returns:
        tuple of Run: in the order given.

    Raises:
        ValueError: A piece that cannot be read, a method given twice, or layers or betas without ``iba``.

    Examples::

        >>> [run.name for run in parse_runs("iba,ig", layers="1..2", betas="0.1")]
        ['iba@layer=1,beta=0.1', 'iba@layer=2,beta=0.1', 'ig']
    """
    if random_seeds < 1:
        raise ValueError(f"random_seeds: expected at least 1, got {random_seeds}.")
    names = [name for given in _split(methods) for name in _variants(given, _layers(layers), _numbers(betas))]
    if (layers or betas) and "iba" not in _split(methods):
        raise ValueError(f"layers and betas are of the method iba without settings, which is not among {methods!r}.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"methods: {', '.join(twice)} is there more than once.")
    return tuple(run for name in names for run in _runs(name, seed, random_seeds))


def reference(rows: Iterable[str]) -> str | None:
    """The row that others are compared with: ``iba``, else the first of its variants, else none."""
    listed = list(rows)
    if "iba" in listed:
        return "iba"
    return next((row for row in listed if re.match(r"iba\b", row)), None)


def _split(methods: str) -> list[str]:
    """At the commas between methods, not at those between the settings of one."""
    found: list[str] = []
    for piece in (piece.strip() for piece in methods.split(",")):
        if found and "=" in piece and "@" not in piece:
            found[-1] += f",{piece}"
        elif piece:
            found.append(piece)
    if not found:
        raise ValueError("methods: expected at least one, got none.")
    return found


def _variants(name: str, layers: Sequence[str | None], betas: Sequence[str | None]) -> list[str]:
    if name != "iba":
        return [name]
    found = []
    for layer in layers:
        for beta in betas:
            settings = [f"{key}={value}" for key, value in (("layer", layer), ("beta", beta)) if value is not None]
            found.append(f"iba@{','.join(settings)}" if settings else "iba")
    return found


def _runs(name: str, seed: int, random_seeds: int) -> list[Run]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"methods: {name!r} is not of the form NAME, NAME:abs or NAME@key=value,key=value.")
    settings: dict[str, Any] = {}
    for piece in (match["settings"] or "").split(",") if match["settings"] else []:
        setting = _SETTING.fullmatch(piece)
        if setting is None or setting["key"] in settings:
            raise ValueError(f"methods: {piece!r} in {name!r} is no setting of the form key=value, or is there twice.")
        read = _layer if setting["key"] == "layer" else _value
        settings[setting["key"]] = read(setting["value"])
    method = match["method"]
    layer = settings.pop("layer", None)
    counting = settings.pop("counting", "as_released" if method.endswith("_as_released") else "removable")
    if counting not in _COUNTINGS:
        raise ValueError(f"methods: counting in {name!r} is {counting!r}, expected one of {', '.join(_COUNTINGS)}.")
    own_seed = settings.pop("seed", None)
    if own_seed is not None and not isinstance(own_seed, int):
        raise ValueError(f"methods: seed in {name!r} is {own_seed!r}, expected an integer.")
    options = tuple(settings.items())
    if method == "random" and own_seed is None:
        joint = "," if match["settings"] else "@"
        numbers = range(seed, seed + random_seeds)
        return [
            Run(name, f"{name}{joint}seed={number}", method, layer, number, counting, options) for number in numbers
        ]
    return [Run(name, name, method, layer, seed if own_seed is None else own_seed, counting, options)]


def _layer(text: str) -> int | str | tuple[int | str, ...]:
    layers = tuple(int(piece) if re.fullmatch(r"-?\d+", piece) else piece for piece in text.split("+"))
    return layers if len(layers) > 1 else layers[0]


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _layers(given: str | None) -> list[str | None]:
    if not given:
        return [None]
    found: list[str | None] = []
    for piece in (piece.strip() for piece in given.split(",")):
        if piece == "all":
            found.append(None)
            continue
        if "+" in piece and all(part.isdecimal() for part in piece.split("+")):
            found.append(piece)
            continue
        first, dots, last = piece.partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()) or (dots and int(first) > int(last)):
            raise ValueError(
                f"layers: {piece!r} is neither a block's number, a range such as 1..12, several as 1+3, nor all."
            )
        found += [str(number) for number in range(int(first), int(last or first) + 1)]
    return found


def _numbers(given: str | None) -> list[str | None]:
    if not given:
        return [None]
    pieces: list[str | None] = []
    for piece in (piece.strip() for piece in given.split(",")):
        try:
            float(piece)
        except ValueError:
            raise ValueError(f"betas: {piece!r} is not a number.") from None
        pieces.append(piece)
    return pieces
