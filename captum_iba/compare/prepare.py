"""From what a user asks for to a comparison that can go on, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.compare.configuration import Configuration, claim_folder
from captum_iba.compare.data import Data, Example, fingerprint, load_data
from captum_iba.compare.runner import Comparison
from captum_iba.compare.runs import PAPER, Run, parse_runs
from captum_iba.compare.statistics import LayerStatistics
from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.engines import Engine
from captum_iba.methods import find_method
from captum_iba.metrics import NINTHS
from captum_iba.text.classifier import Classifier, load_classifier
from captum_iba.text.statistics import classifier_fingerprint

DEFAULT_METHODS = "iba,ig,lime,random"
STATISTICS_TEXTS = 500
"""How many texts the statistics of a layer are estimated from."""

FEWEST_OTHERS = 50
"""With fewer rows outside the sample, those in the sample count, too; statistics do not look at labels."""


@dataclass(frozen=True)
class Request:
    """What to compare.

    Attributes:
        data (str): A file, folder or name on the hub (:func:`captum_iba.compare.files.open_table`).
        model (str or None): Folder or name of a classifier; None is the embedded one. Default: None.
        methods (str or None): As for :func:`captum_iba.compare.runs.parse_runs`; None is those of the preset, or
            ``"iba,ig,lime,random"``. Default: None.
        preset (str or None): ``"paper"``: the rows of the paper's table, fair and as released. Default: None.
        layers, betas (str or None): Variants of ``iba``, as for ``parse_runs``. Default: None.
        examples (int or None): Size of the sample; None takes all rows. Default: None.
        subset, split, text_column, pair_column, label_column (str or None): As for
            :func:`captum_iba.compare.data.load_data`. Default: None.
        target (str or None): ``"gold"`` or ``"predicted"``; None is gold where there are labels. Default: None.
        statistics_from (str or None): Data whose texts give the statistics of layers; None takes rows outside the
            sample (all rows, where there are fewer than 50 outside), or for the embedded model those that come with it.
            Default: None.
        seed (int): Of the sample, and of the methods. Default: 0.
        random_seeds (int): How many times ``random`` runs. Default: 5.
        chunk_size (int): Examples that are scored together. Default: 16.
        batch_size (int): Rows of one pass of the model. Default: 32.
        max_length (int or None): Where texts are cut, in tokens; None takes what the model allows. Default: None.
        device (str or None): Where the model runs; None is the CPU. Default: None.
        dtype (str): Precision of the model, by its name in torch. Default: ``"float32"``.
    """

    data: str
    model: str | None = None
    methods: str | None = None
    preset: str | None = None
    layers: str | None = None
    betas: str | None = None
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


def prepare(
    request: Request,
    out: Path,
    note: Callable[[str], None] = lambda message: None,
    engine: Engine | None = None,
) -> Comparison:
    """Load model and data, and claim the folder.

    Args:
        request (Request): What to compare.
        out (Path): The folder of the comparison: new, empty, or with the same comparison begun.
        note (callable): Gets lines about what happens. Default: nobody.
        engine (Engine or None): Where the work is done (:mod:`captum_iba.engines`); None does it here. Which one it is
            changes no record, so a comparison can go on by another. Default: None.

    Returns:
        Comparison: what is left to compute of it is computed by :meth:`Comparison.go`.

    Raises:
        TypeError: An option that a method does not have.
        ValueError: Unknown methods, columns, labels or settings, an option out of range; another comparison in the
            folder (names the differences); a directory that is no model, data that cannot be read.
        OSError: There is no such model or file, or the folder cannot be written.
    """
    runs = _runs(request)
    note("loading the model" if request.model else "loading the embedded model")
    # Workers elsewhere have devices of their own; here the model then only reads texts.
    here = None if engine is not None and engine.apart else request.device
    model, tokenizer = load_classifier(request.model or embedded_model_path(), here, getattr(torch, request.dtype))
    classifier = Classifier(model, tokenizer, request.max_length)
    data = load_data(
        request.data,
        classifier.labels,
        subset=request.subset,
        split=request.split,
        text_column=request.text_column,
        pair_column=request.pair_column,
        label_column=request.label_column,
        examples=request.examples,
        others=STATISTICS_TEXTS,
        seed=request.seed,
    )
    target = request.target or ("predicted" if data.columns.label is None else "gold")
    known, texts, origin = _statistics(request, data)
    comparison = Comparison(
        classifier,
        data.examples,
        runs,
        LayerStatistics(classifier, out / "statistics", texts, known, request.batch_size),
        out,
        target,
        request.chunk_size,
        request.batch_size,
        engine,
        request.device,
    )
    # Last, so that a mistake above leaves no folder behind.
    resumed = claim_folder(out, _configuration(request, comparison, data, origin))
    read = ", ".join(f"{what} in {name!r}" for what, name in asdict(data.columns).items() if name is not None)
    note(f"columns: {read}; explained: the {target} class; statistics: {origin}")
    note(f"{len(data.examples)} of {data.rows} examples, {len(runs)} runs{', going on' if resumed else ''}")
    return comparison


def _configuration(request: Request, comparison: Comparison, data: Data, statistics: str) -> Configuration:
    classifier, runs = comparison.classifier, comparison.runs
    return Configuration(
        model=classifier.name if request.model else "the embedded model",
        model_fingerprint=classifier_fingerprint(classifier),
        labels=classifier.labels,
        max_length=classifier.max_length,
        device=_device(comparison),
        dtype=str(next(classifier.model.parameters()).dtype).removeprefix("torch."),
        data=request.data,
        split=data.split,
        columns=asdict(data.columns),
        rows=data.rows,
        examples=len(data.examples),
        data_fingerprint=fingerprint(data.examples),
        target=comparison.target,
        methods={row: [run.name for run in runs if run.row == row] for row in dict.fromkeys(run.row for run in runs)},
        signed=list(dict.fromkeys(run.row for run in runs if find_method(run.method).signed)),
        counted_as_released=list(dict.fromkeys(run.row for run in runs if run.counting == "as_released")),
        seed=request.seed,
        shares=list(NINTHS),
        chunk_size=request.chunk_size,
        batch_size=request.batch_size,
        statistics=statistics,
    )


def _device(comparison: Comparison) -> str:
    """Where the records are computed; each worker elsewhere sees one accelerator, the first."""
    if not comparison.engine.apart or comparison.device is None:
        return str(comparison.classifier.device)
    kind = torch.device(comparison.device).type
    return kind if kind == "cpu" else f"{kind}:0"


def _runs(request: Request) -> tuple[Run, ...]:
    if request.preset not in (None, "paper"):
        raise ValueError(f"preset: expected paper, got {request.preset!r}.")
    if request.preset is not None and request.methods is not None:
        raise ValueError("methods and preset: expected one of them, got both.")
    methods = request.methods or (PAPER if request.preset else DEFAULT_METHODS)
    runs = parse_runs(methods, request.layers, request.betas, request.seed, request.random_seeds)
    for run in runs:
        # What is unknown is said before anything is loaded.
        find_method(run.method).check_options(name for name, _ in run.options)
    return runs


def _statistics(
    request: Request, data: Data
) -> tuple[Callable[[int], FeatureStatistics] | None, Sequence[Example], str]:
    """Statistics that are known, texts to estimate others from, and where they come from, in words."""
    if request.statistics_from is not None:
        found = load_data(
            request.statistics_from,
            None,
            text_column=request.text_column,
            pair_column=request.pair_column,
            examples=STATISTICS_TEXTS,
            seed=request.seed,
        ).examples
        place = "another data set"
    elif request.model is None:
        return embedded_statistics, (), "those of the embedded model"
    elif len(data.others) >= FEWEST_OTHERS:
        found, place = data.others, "rows outside the sample"
    else:
        found, place = (*data.others, *data.examples)[:STATISTICS_TEXTS], "the data, the sample included"
    texts = [text for text in found if text.text.strip() and (text.pair is None or text.pair.strip())]
    if (data.columns.pair is not None) != any(text.pair is not None for text in texts) and texts:
        raise ValueError("statistics_from: expected pairs as in the data (or single texts as in the data).")
    return None, texts, f"{len(texts)} texts of {place} ({fingerprint(texts)[:16]})"
