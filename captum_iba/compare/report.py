"""The page of a comparison: one HTML file that fetches nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from captum_iba._files import write_text
from captum_iba.compare.curves import Curves, draw_curves, make_curves, write_curves
from captum_iba.compare.measures import MEASURES
from captum_iba.compare.results import Results, read_results, read_scores
from captum_iba.compare.summary import describe, failures, findings
from captum_iba.compare.tables import MARKS, Table, make_table, notes, say, write_tables
from captum_iba.methods import find_method, method_names
from captum_iba.visualization.figures import svg
from captum_iba.visualization.html import render_template, sorting
from captum_iba.visualization.pieces import format_number

TEXTS_DRAWN = 20
_TOP_WORDS = 6


@dataclass(frozen=True)
class Summary:
    """What a comparison came to.

    Attributes:
        files (list of Path): All that was written, the page last.
        lines (list of str): The findings in sentences, a measure each, then failures.
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
    curves = make_curves(results)
    figure, _ = draw_curves(curves)
    files = [*write_tables(table, results, folder), *write_curves(figure, folder)]
    files.append(write_text(folder / "report.html", _page(results, table, curves, svg(figure))))
    return Summary(files, [f"{title}: {said}" for title, said in findings(table, results)] + failures(results))


def _page(results: Results, table: Table, curves: Curves, drawing: str) -> str:
    texts = _texts(results)
    return render_template(
        "report.html.jinja",
        package="captum_iba.compare",
        breakable=_breakable,
        title="Which words decide? Methods compared",
        description=describe(results),
        findings=findings(table, results),
        failures=failures(results),
        measures=MEASURES,
        table=table,
        marks=MARKS,
        say=say,
        notes=notes(table, results),
        # matplotlib has escaped the names in it; they hold no markup to begin with.
        curves=Markup(drawing),
        normalised=curves.normalised,
        methods=_methods(results),
        texts=texts,
        strange=any(piece.get("strange") for text in texts for piece in text["pieces"]),
        configuration=results.configuration,
        sorting=sorting(),
    )


def _breakable(name: str) -> Markup:
    """A name that a narrow column can break where a reader would."""
    return Markup("<wbr>").join(re.split(r"(?<=[_@,])", name))


def _methods(results: Results) -> list[dict[str, Any]]:
    signed = results.configuration["signed"]
    return [{"name": row.name, "signed": row.name in signed} for row in results.rows if row.outcomes]


def _texts(results: Results) -> list[dict[str, Any]]:
    """Some of the texts, evenly spaced over the sample, ready to draw."""
    count = min(TEXTS_DRAWN, len(results.common))
    places = [i * len(results.common) // count for i in range(count)]
    numbers = [results.common[place] for place in places]
    rows = {text["example"]: text for text in results.texts}
    usable = [row for row in results.rows if row.outcomes]
    runs = {row.name: results.configuration["methods"][row.name][0] for row in usable}
    scores = {name: read_scores(results.folder, run, numbers) for name, run in runs.items()}
    alike = {name: _scores_words(run) for name, run in runs.items()}
    labels = results.configuration["labels"]
    texts = []
    for place, number in zip(places, numbers, strict=True):
        row, curve = rows[number], usable[0].outcomes[0].morf
        words = _words(row)
        by_method = [_word_scores(row, len(words), scores[name][number], alike[name]) for name in runs]
        texts.append(
            {
                "number": number,
                "target": labels[results.targets[number]],
                "probability": float(curve.probability[place, 0]),
                "predicted": labels[int(curve.decision[place, 0])],
                "gold": None if row["gold"] is None else labels[row["gold"]],
                "cut": row["cut"],
                "pieces": _pieces(row, words, dict(zip(runs, by_method, strict=True))),
                "tops": [
                    (name, [words[i].text for i in _top(found)]) for name, found in zip(runs, by_method, strict=True)
                ],
            }
        )
    return texts


@dataclass(frozen=True)
class _Word:
    text: str
    sequence: int
    start: int
    end: int


def _words(row: dict[str, Any]) -> list[_Word]:
    """The words of a text and its pair, as they are spelled there."""
    spans: dict[int, tuple[int, int, int]] = {}
    for word, sequence, start, end in zip(row["words"], row["sequences"], row["starts"], row["ends"], strict=True):
        if word is not None:
            _, first, last = spans.get(word, (sequence, start, end))
            spans[word] = (sequence, min(first, start), max(last, end))
    return [
        _Word((row["pair"] if sequence else row["text"])[start:end], sequence, start, end)
        for _, (sequence, start, end) in sorted(spans.items())
    ]


def _scores_words(run: str) -> bool:
    """Whether the method of a run gives all tokens of a word the word's score; an own method may be unknown by now."""
    method = run.partition("@")[0]
    return method.partition(":")[0] in method_names() and find_method(method).word_level


def _word_scores(row: dict[str, Any], count: int, scores: Sequence[float], alike: bool) -> list[float]:
    """The sums over the tokens of each word, or their common score if they are ``alike``."""
    sums, tokens = [0.0] * count, [0] * count
    for word, score in zip(row["words"], scores, strict=True):
        if word is not None:
            sums[word] += score
            tokens[word] += 1
    return [total / number for total, number in zip(sums, tokens, strict=True)] if alike else sums


def _top(scores: Sequence[float]) -> list[int]:
    finite = [i for i, score in enumerate(scores) if math.isfinite(score)]
    return sorted(finite, key=lambda i: -scores[i])[:_TOP_WORDS]


def _pieces(row: dict[str, Any], words: Sequence[_Word], by_method: dict[str, list[float]]) -> list[dict[str, str]]:
    """Words with the depth of their colour by each method, and what is between them."""
    most = [max((abs(score) for score in scores if math.isfinite(score)), default=0.0) for scores in by_method.values()]
    pieces = []
    ends = {0: 0, 1: 0}
    for i, word in enumerate(words):
        if word.sequence and not ends[1] and ends[0] >= 0:
            pieces.append({"kind": "break"})
            ends[0] = -1
        source = row["pair"] if word.sequence else row["text"]
        if gap := source[max(0, ends[word.sequence]) : word.start]:
            pieces.append({"kind": "gap", "text": gap})
        ends[word.sequence] = max(ends[word.sequence], word.end)
        scores = [of_words[i] for of_words in by_method.values()]
        depths = [_depth(score, top) for score, top in zip(scores, most, strict=True)]
        pieces.append(
            {
                "kind": "word",
                "text": word.text,
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
