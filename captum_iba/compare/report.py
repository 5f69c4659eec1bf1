"""The report of a comparison: its curves, and one HTML page that fetches nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from captum_iba._files import write_text
from captum_iba._reading.wording import format_number
from captum_iba.compare.records import Results, read_results, read_scores
from captum_iba.compare.tables import (
    COLUMNS,
    MARKS,
    Table,
    best,
    describe,
    doubtful_labels,
    failures,
    findings,
    make_table,
    notes,
    say,
    truncations,
    write_tables,
)
from captum_iba.metrics import Degradation, mean_over_seeds
from captum_iba.text.encoding import WordSpan, join_words, scores_per_word
from captum_iba.visualization import plot_degradation, save_figure
from captum_iba.visualization.figures import svg
from captum_iba.visualization.html import render_template, sorting

_TEXTS_DRAWN = 20
_TOP_WORDS = 6


@dataclass(frozen=True)
class Summary:
    """What a comparison came to.

    Attributes:
        files (list of Path): All that was written, the page last.
        lines (list of str): One sentence per metric with its finding, then truncated texts, doubtful
            labels and failures.
    """

    files: list[Path]
    lines: list[str]


def write_report(folder: Path) -> Summary:
    """Write tables, curves and page of a finished comparison from its records; nothing is computed by the model.

    Args:
        folder (Path): Where the comparison lies; the files go there too.

    Returns:
        Summary: files and findings.

    Raises:
        ValueError: There is no comparison, it is not finished, or every method failed.
        OSError: The disk is full.
    """
    results = read_results(folder)
    table = make_table(results)
    drawing: Any = plot_degradation(make_curves(results))[0]
    files = write_tables(table, results, folder)
    files += [save_figure(drawing, folder / f"curves.{kind}") for kind in ("svg", "png")]
    files.append(write_text(folder / "report.html", _page(results, table, svg(drawing))))
    lines = [f"{title}: {finding}" for title, finding in findings(table, results)]
    lines += truncations(results) + doubtful_labels(results) + failures(results)
    if results.left_out:
        lines.append(f"Not finished, and left out: {', '.join(results.left_out)}; compare with them again to go on.")
    return Summary(files, lines)


def make_curves(results: Results) -> dict[str, Degradation]:
    """The degradation of every row that has one, most relevant first: the mean over its seeds.

    The fractions removed are means, too: short texts have no ninths.
    """
    return {
        row.name: row.outcomes[0].morf._replace(
            probability=_mean([outcome.morf.probability for outcome in row.outcomes]),
            fraction=_mean([outcome.morf.fraction for outcome in row.outcomes]),
        )
        for row in results.rows
        if row.outcomes
    }


def _mean(runs: list[Tensor]) -> Tensor:
    return torch.stack([mean_over_seeds([run[:, step] for run in runs]) for step in range(runs[0].shape[1])], 1)


def _page(results: Results, table: Table, drawing: str) -> str:
    texts = _texts(results)
    return render_template(
        "report.html.jinja",
        package="captum_iba.compare",
        breakable=_breakable,
        title="Which words decide? Methods compared",
        description=describe(results),
        findings=findings(table, results, numbers=False),
        failures=failures(results),
        columns=COLUMNS,
        table=table,
        best=best(table, results),
        marks=MARKS,
        say=say,
        notes=notes(table, results),
        # matplotlib has escaped the names in it; they hold no markup to begin with.
        curves=Markup(drawing),
        methods=[{"name": row.name, "signed": row.about["signed"]} for row in results.rows if row.outcomes],
        texts=texts,
        strange=any(piece.get("strange") for text in texts for piece in text["pieces"]),
        provenance=results.provenance,
        sorting=sorting(),
    )


def _breakable(name: str) -> Markup:
    """A name that a narrow column can break where a reader would."""
    return Markup("<wbr>").join(re.split(r"(?<=[_@,])", name))


def _texts(results: Results) -> list[dict[str, Any]]:
    """Some of the texts, evenly spaced over the sample, ready to draw."""
    count = min(_TEXTS_DRAWN, len(results.common))
    indices = [i * len(results.common) // count for i in range(count)]
    numbers = [results.common[i] for i in indices]
    text_rows = {text["example"]: text for text in results.texts}
    rows = [row for row in results.rows if row.outcomes]
    scores = {row.name: read_scores(results.folder, row.about["runs"][0], numbers) for row in rows}
    labels = results.provenance["labels"]
    curve = rows[0].outcomes[0].morf
    texts = []
    for i, number in zip(indices, numbers, strict=True):
        text = text_rows[number]
        spans = list(zip(text["starts"], text["ends"], strict=True))
        words = join_words(text["words"], spans, text["sequences"])
        word_scores = {
            row.name: scores_per_word(words, scores[row.name][number], row.about["word_level"]) for row in rows
        }
        texts.append(
            {
                "number": number,
                "target": labels[results.targets[number]],
                "probability": float(curve.probability[i, 0]),
                "predicted": labels[int(curve.decision[i, 0])],
                "gold": None if text["gold"] is None else labels[text["gold"]],
                "truncated": text["truncated"],
                "pieces": _pieces(text, words, word_scores),
                "tops": [
                    (name, [(_spelling(text, words[k]), format_number(values[k], "score")) for k in _top(values)])
                    for name, values in word_scores.items()
                ],
            }
        )
    return texts


def _spelling(row: dict[str, Any], word: WordSpan) -> str:
    """A word as it is spelled in the text or the pair."""
    source: str = row["pair"] if word.sequence else row["text"]
    return source[word.start : word.end]


def _top(scores: Sequence[float]) -> list[int]:
    finite = [i for i, score in enumerate(scores) if math.isfinite(score)]
    return sorted(finite, key=lambda i: -scores[i])[:_TOP_WORDS]


def _pieces(row: dict[str, Any], words: Sequence[WordSpan], by_method: dict[str, list[float]]) -> list[dict[str, str]]:
    """Words with the depth of their color by each method, and what is between them."""
    largest = [
        max((abs(score) for score in scores if math.isfinite(score)), default=0.0) for scores in by_method.values()
    ]
    pieces = []
    ends = {0: 0, 1: 0}
    in_pair = False
    for i, word in enumerate(words):
        if word.sequence and not in_pair:
            pieces.append({"kind": "break"})
            in_pair = True
        source = row["pair"] if word.sequence else row["text"]
        if gap := source[ends[word.sequence] : word.start]:
            pieces.append({"kind": "gap", "text": gap})
        ends[word.sequence] = max(ends[word.sequence], word.end)
        scores = [values[i] for values in by_method.values()]
        depths = [_depth(score, top) for score, top in zip(scores, largest, strict=True)]
        pieces.append(
            {
                "kind": "word",
                "text": source[word.start : word.end],
                "style": ";".join(f"--m{k}:{depth:.2f}" for k, depth in enumerate(depths) if abs(depth) >= 0.005),
                "strange": "".join(f" x{k}" for k, score in enumerate(scores) if not math.isfinite(score)),
                "title": "\n".join(
                    f"{name}: {format_number(score, 'score')}" for name, score in zip(by_method, scores, strict=True)
                ),
            }
        )
    return pieces


def _depth(score: float, most: float) -> float:
    """-1 to 1."""
    return score / most if math.isfinite(score) and most > 0 else 0.0
