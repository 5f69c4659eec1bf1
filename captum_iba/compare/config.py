"""What is compared: the configuration that a user writes, the runs it stands for, and what their records depend on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import quote

import torch
import yaml

from captum_iba._checks import check_integer
from captum_iba._files import write_text
from captum_iba.methods import find_method
from captum_iba.metrics.degradation import COUNTINGS

CONFIG_FILE = "comparison.yaml"
"""The configuration, in the folder of a comparison: ``captum-iba compare --config`` takes it."""

PROVENANCE_FILE = "config.json"
"""All that the records of a comparison depend on, in its folder."""

_FORMAT = "captum_iba.compare/1"
_FORMAT_BEFORE_1_0 = "captum_iba.benchmark/"

# The same model or data elsewhere is no change (their fingerprints tell), and neither is another machine. Methods are
# compared one by one, those that both have.
_MAY_DIFFER = ("model", "data", "environment", "asked")

MethodEntry = str | Mapping[str, Any]
LayerChoice = int | str | Sequence[int | str]

DEFAULT_METHODS: tuple[MethodEntry, ...] = ("iba", "ig", "lime", "random")
PAPER_METHODS: tuple[MethodEntry, ...] = (
    *("iba", "iba_paper", "ig", "lime", "random"),
    *("iba_as_released", "ig_as_released", "lime_as_released", {"method": "random", "counting": "as_released"}),
)
"""The rows of the paper's table, first the fair ones, then those of the published code."""

_METHOD = re.compile(r"[A-Za-z]\w*(:\w+)?")
_ROW_NAME = re.compile(r"\w[\w .:@=,+-]*")
_OLD_KEYS = {"preset": "method_set"}
_KIND_NAMES = {str: "a string", int: "an integer", type(None): "nothing"}


@dataclass(frozen=True)
class ComparisonConfig:
    """What to compare. The same fields, by the same names, are the keys of a YAML file (:meth:`from_yaml`).

    Args:
        data (str): File, folder, or name on the hub, as for :func:`captum_iba.compare.data.open_table`.
        model (str, optional): Folder or name of a classifier; None is the embedded one. Default: None.
        methods (str or sequence, optional): Methods, each a name (``"iba"``; ``"ig:abs"`` by magnitude), or a mapping
            with the key ``method`` and settings: ``name`` (row of the tables), ``layer`` (block number from 1 or
            module name; a list has one mask) for methods that look at a layer, ``seed`` and ``seeds`` (number of
            seeds whose mean is the row) for those that are random, ``counting`` (``"removable"`` or
            ``"as_released"``), and the options of the method. A string holds names with commas between them.
            Default: ``["iba", "ig", "lime", "random"]``.
        method_set (str, optional): ``"paper"``, in place of ``methods``: the rows of the paper's table, fair and as
            released. Default: None.
        layers (sequence, optional): Layers for ``iba``, which then runs once for each: a block number or module
            name, a list of them with one mask, or ``"all"`` for its default. Default: none.
        betas (sequence of float, optional): Values of beta for ``iba``, which then runs once for each, at each of the
            layers. Default: none.
        examples (int, optional): Number of examples in the sample; None takes all rows. Default: None.
        subset, split, text_column, pair_column, label_column (str, optional): As for
            :func:`captum_iba.compare.data.load_data`. Default: None.
        target (str, optional): Explained class, ``"gold"`` or ``"predicted"``; None is gold where there are labels.
            Default: None.
        statistics_from (str, optional): Data whose texts give the statistics of layers; None takes rows outside the
            sample (all rows, where there are fewer than 50 outside), or those that come with the embedded model.
            Default: None.
        seed (int, optional): Seed of the sample and of the methods. Default: 0.
        random_seeds (int, optional): Number of seeds of the method ``random``. Default: 5.
        chunk_size (int, optional): Number of examples that are scored together. Default: 16.
        batch_size (int, optional): Largest number of rows in a forward pass. Default: 32.
        max_length (int, optional): Length in tokens to which texts are truncated; None is what the model allows.
            Default: None.
        device (str, optional): Device of the model; None is the CPU. Default: None.
        dtype (str, optional): Precision of the model, by its name in torch. Default: ``"float32"``.

    Raises:
        TypeError: A field of another type; the message names it.
        ValueError: A field out of range; the message names it.

    Examples::

        >>> config = ComparisonConfig("test.csv", methods=["iba", {"method": "lime", "n_samples": 100}])
        >>> [run.name for run in config.runs()]
        ['iba', 'lime@n_samples=100']
    """

    data: str
    model: str | None = None
    methods: str | Sequence[MethodEntry] | None = None
    method_set: str | None = None
    layers: Sequence[LayerChoice] = ()
    betas: Sequence[float] = ()
    examples: int | None = None
    subset: str | None = None
    split: str | None = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    target: str | None = None
    statistics_from: str | None = None
    seed: int = 0
    random_seeds: int = 5
    chunk_size: int = 16
    batch_size: int = 32
    max_length: int | None = None
    device: str | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, kinds = getattr(self, name), get_args(hint) or (hint,)
            if name in ("methods", "layers", "betas"):
                if not (isinstance(value, (list, tuple)) or (name == "methods" and isinstance(value, str | None))):
                    raise TypeError(f"{name} is {value!r}, expected a list.")
            elif not isinstance(value, kinds) or isinstance(value, bool):
                expected = " or ".join(_KIND_NAMES[kind] for kind in kinds)
                raise TypeError(f"{name} is {value!r}, expected {expected}.")
        for name in ("examples", "random_seeds", "chunk_size", "batch_size", "max_length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1.")
        for name, choices in (("method_set", ("paper",)), ("target", ("gold", "predicted"))):
            if (value := getattr(self, name)) not in (None, *choices):
                raise ValueError(f"{name} is {value!r}, expected {' or '.join(choices)}.")
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"dtype is {self.dtype!r}, expected the name of a type of torch, such as float32.")

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **overrides: Any) -> ComparisonConfig:
        """Read a YAML file whose keys are the fields.

        Args:
            path (path): The file; relative paths in it are relative to the current folder.
            **overrides: Fields that replace those of the file; ``methods`` and ``method_set`` replace each other.

        Raises:
            ValueError: No such YAML file, or a key that is no field; and as the class.
        """
        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"config: {path} is no YAML file: {' '.join(str(error).split())}") from None
        names = [field.name for field in fields(cls)]
        if not isinstance(content, dict):
            raise ValueError(f"config: {path} holds {type(content).__name__}, expected keys among {', '.join(names)}.")
        content = {_OLD_KEYS.get(key, key): _with_floats(value) for key, value in content.items()}
        for key in content:
            if key not in names:
                raise ValueError(f"config: {path} has the key {key!r}, expected one of {', '.join(names)}.")
        if overrides.keys() & {"methods", "method_set"}:
            content = {key: value for key, value in content.items() if key not in ("methods", "method_set")}
        content |= overrides
        if "data" not in content:
            raise ValueError(f"config: {path} does not name the data, expected a key data (or --data).")
        return cls(**content)

    def to_yaml(self) -> str:
        """The configuration as a YAML file that :meth:`from_yaml` reads, with paths that hold in every folder."""
        content = {name: _plain(value) for name, value in asdict(self).items()}
        for name in ("data", "model", "statistics_from"):
            if content[name] is not None and Path(content[name]).exists():
                content[name] = str(Path(content[name]).absolute())
        head = f"# Compute this comparison again: captum-iba compare --config {CONFIG_FILE} --out ANOTHER_FOLDER\n"
        text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        return head + text

    def runs(self) -> tuple[MethodRun, ...]:
        """What the methods, layers and betas stand for, in their order.

        Methods whose name ends in ``_as_released`` are counted as in the published code, all others fairly, unless
        ``counting`` says otherwise.

        Raises:
            TypeError: An option that a method does not have.
            ValueError: A method that cannot be read, that is unknown or there twice, or layers or betas without
                ``iba``.
        """
        if self.method_set is not None and self.methods is not None:
            raise ValueError("methods and method_set are both given, expected one of them.")
        entries: Sequence[Any] = PAPER_METHODS if self.method_set else DEFAULT_METHODS
        if isinstance(self.methods, str):
            entries = [name.strip() for name in self.methods.split(",") if name.strip()]
        elif self.methods is not None:
            entries = self.methods
        if not entries:
            raise ValueError("methods is empty, expected at least one.")
        expanded = [variant for entry in entries for variant in self._variants(entry)]
        if (self.layers or self.betas) and not any(map(_is_plain_iba, entries)):
            raise ValueError("layers and betas are for the method iba without settings, which is not among methods.")
        rows = [_runs(entry, self.seed, self.random_seeds) for entry in expanded]
        for names in ([row[0].row for row in rows], [run.name for row in rows for run in row]):
            folders = [folder_name(name).casefold() for name in names]  # some file systems do not tell case apart
            if repeated := {name for name, folder in zip(names, folders, strict=True) if folders.count(folder) > 1}:
                raise ValueError(f"methods: {', '.join(sorted(repeated))} is there more than once.")
        return tuple(run for row in rows for run in row)

    def _variants(self, entry: MethodEntry) -> Iterator[MethodEntry]:
        """The entry, or if it is plain iba one for each layer and beta."""
        if not (self.layers or self.betas) or not _is_plain_iba(entry):
            yield entry
            return
        for layer in self.layers or ("all",):
            for beta in self.betas or (None,):
                if isinstance(beta, bool) or not isinstance(beta, int | float | None):
                    raise TypeError(f"betas has {beta!r}, expected numbers.")
                settings = {"layer": None if layer == "all" else layer, "beta": beta}
                yield {"method": "iba", **{key: value for key, value in settings.items() if value is not None}}


@dataclass(frozen=True)
class MethodRun:
    """One method with its settings and one seed.

    Attributes:
        row (str): Row of the tables; runs that differ only in the seed share one, which is their mean.
        name (str): Name of this run.
        method (str): Name of the method, with ``:abs`` behind it by magnitude.
        layer (int, str, tuple of them, or None): Block number or module name of the layer; several have one mask;
            None is the method's default.
        seed (int): Seed of the method's random numbers.
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


def _is_plain_iba(entry: Any) -> bool:
    return entry in ("iba", {"method": "iba"})


def _runs(entry: Any, seed: int, random_seeds: int) -> list[MethodRun]:
    """The runs of one entry of the methods: several if it has several seeds."""
    settings = dict(entry) if isinstance(entry, Mapping) else {"method": entry}
    method = settings.pop("method", None)
    if not isinstance(method, str) or not _METHOD.fullmatch(method):
        raise ValueError(
            f"methods has {entry!r}, expected NAME, NAME:abs, or in a YAML file (--config) also a mapping such as "
            "{method: lime, n_samples: 100}."
        )
    for key, value in settings.items():
        if not isinstance(key, str) or not (key == "layer" or isinstance(value, str | int | float | None)):
            raise TypeError(f"methods: {key} of {method!r} is {value!r}, expected a number, a text, true or false.")
    common = ("name", "layer", "seed", "seeds", "counting")
    registered = find_method(method)
    registered.check_options(key for key in settings if key not in common)
    name, count = settings.pop("name", None), settings.pop("seeds", None)
    if count is None and method == "random" and "seed" not in settings:
        count = random_seeds
    for key, value in (("seed", settings.get("seed")), ("seeds", count)):
        if value is not None and not registered.uses_seed:
            raise ValueError(f"methods: {key} of {method!r} is {value!r}, expected none: nothing is random in it.")
    if count is not None:
        seed = settings.pop("seed", seed)
        check_integer(f"methods: seeds of {method!r}", count, at_least=1)
    row = f"{method}@{','.join(f'{key}={_label(value)}' for key, value in settings.items())}".removesuffix("@")
    if name is not None:
        if not isinstance(name, str) or not _ROW_NAME.fullmatch(name):
            raise ValueError(f"methods: name of {method!r} is {name!r}, expected letters, digits and .:@=,+-_")
        row = name
    seed, layer = settings.pop("seed", seed), _layer(settings.pop("layer", None), method)
    check_integer(f"methods: seed of {method!r}", seed)
    registered.check_layer(layer)
    counting = settings.pop("counting", "as_released" if method.endswith("_as_released") else "removable")
    if counting not in COUNTINGS:
        raise ValueError(f"methods: counting of {method!r} is {counting!r}, expected {' or '.join(COUNTINGS)}.")
    options = tuple(settings.items())
    if count is None:
        return [MethodRun(row, row, method, layer, seed, counting, options)]
    joint = "," if "@" in row else "@"
    return [
        MethodRun(row, f"{row}{joint}seed={number}", method, layer, number, counting, options)
        for number in range(seed, seed + count)
    ]


def _layer(layer: Any, method: str) -> int | str | tuple[int | str, ...] | None:
    layers = tuple(layer) if isinstance(layer, (list, tuple)) else (layer,)
    if layer is None:
        return None
    if not layers or not all(isinstance(item, int | str) and not isinstance(item, bool) for item in layers):
        raise ValueError(
            f"methods: layer of {method!r} is {layer!r}, expected a block number, a module name, or a list."
        )
    return layers if len(layers) > 1 else layers[0]


def _label(value: Any) -> str:
    """A setting in the name of a row: ``1`` for 1.0, ``3+6`` for a list."""
    if isinstance(value, (list, tuple)):
        return "+".join(map(_label, value))
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _with_floats(value: Any) -> Any:
    """With numbers such as 1e-5, which YAML 1.1 takes for texts."""
    if isinstance(value, dict):
        return {key: _with_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) else value


def _plain(value: Any) -> Any:
    """As YAML can hold it."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def claim_folder(folder: Path, provenance: dict[str, Any], config: ComparisonConfig) -> bool:
    """Make a folder that of a comparison; whether it held this comparison already, which then goes on.

    ``provenance`` is all that the records depend on, kept beside them, so that records of two settings never mix.
    Methods that the folder does not have are added to those that it has.

    Raises:
        ValueError: Another comparison is in the folder, with every difference; or it holds other files.
    """
    resumed = (folder / PROVENANCE_FILE).is_file()
    rows = provenance["methods"]
    asked = {**provenance, "asked": list(rows)}
    if resumed:
        before = read_provenance(folder)
        own = {**before, "methods": {row: about for row, about in before["methods"].items() if row in rows}}
        known = {**provenance, "methods": {row: about for row, about in rows.items() if row in before["methods"]}}
        different = differences(own, json.loads(json.dumps(known)))
        spelled = {folder_name(row).casefold(): row for row in before["methods"]}
        different += [
            f"methods: was {there}, is {row}"
            for row in rows
            if (there := spelled.get(folder_name(row).casefold(), row)) != row
        ]
        run_rows = {
            folder_name(run).casefold(): row for row, about in before["methods"].items() for run in about["runs"]
        }
        different += [
            f"methods: {run} was a run of {there}, is one of {row}"
            for row, about in rows.items()
            for run in about["runs"]
            if (there := run_rows.get(folder_name(run).casefold(), row)) != row and there.casefold() != row.casefold()
        ]
        if different:
            raise ValueError(
                f"out: {folder} holds a comparison with other settings: {'; '.join(different)}. "
                "Choose another folder, or the same settings."
            )
        asked = {**before, "methods": {**before["methods"], **rows}, "asked": list(rows)}
        if before["methods"].keys() - rows.keys():
            entries = [_entry(row, about) for row, about in asked["methods"].items()]
            config = replace(config, methods=entries, method_set=None, layers=(), betas=())
    elif folder.exists() and (not folder.is_dir() or any(not path.name.startswith(".") for path in folder.iterdir())):
        raise ValueError(f"out: {folder} is not empty and holds no comparison; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"format": _FORMAT, **asked}, indent=1, ensure_ascii=False)
    write_text(folder / PROVENANCE_FILE, f"{content}\n")
    write_text(folder / CONFIG_FILE, config.to_yaml())
    return resumed


def _entry(row: str, about: Mapping[str, Any]) -> MethodEntry:
    """The entry of a configuration that gives a row of the provenance."""
    seeds = {"seed": about["seeds"][0]} if find_method(about["method"]).uses_seed else {}
    if about["runs"] != [row]:
        seeds["seeds"] = len(about["seeds"])
    layer = {} if about["layer"] is None else {"layer": about["layer"]}
    named = {"method": about["method"], "name": row, "counting": about["counting"]}
    return {**named, **layer, **seeds, **about["options"]}


def read_provenance(folder: Path) -> dict[str, Any]:
    """What the records of a folder were computed with; ValueError without any, or for one of another format."""
    path = folder / PROVENANCE_FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no comparison: there is no {PROVENANCE_FILE} in it.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not the record of a comparison: {error}.") from None
    kind = content.pop("format", None) if isinstance(content, dict) else None
    if str(kind).startswith(_FORMAT_BEFORE_1_0):
        raise ValueError(
            f"{folder} holds a comparison made before captum_iba 1.0, which this version cannot continue or draw: "
            "compute it again in another folder, or use the version that made it."
        )
    if kind != _FORMAT:
        raise ValueError(f"{path} is not the record of a comparison of this version: expected the format {_FORMAT!r}.")
    provenance: dict[str, Any] = content
    return provenance


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What changed from one provenance to another, as ``"name: was X, is Y"``."""
    changes: list[str] = []
    for name in dict.fromkeys([*before, *now]):
        if not prefix and name in _MAY_DIFFER:
            continue
        was, is_now = before.get(name), now.get(name)
        if isinstance(was, dict) and isinstance(is_now, dict):
            changes += differences(was, is_now, f"{prefix}{name}.")
        elif was != is_now:
            changes.append(f"{prefix}{name}: was {_short(was)}, is {_short(is_now)}")
    return changes


def _short(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_short(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return ",".join(map(_short, value))
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return value[:12]  # of a fingerprint
    return str(value) if not isinstance(value, float) else f"{value:.4g}"
