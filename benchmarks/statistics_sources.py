"""What statistics of other texts cost: faithfulness, and the leading word, beside those of 400 texts of the same kind.

    python -m benchmarks.statistics_sources --model DIR --data train.jsonl.gz --other other.jsonl.gz --examples 60

The default explains the same texts with statistics of each source: 400 other texts of the same file, 32 of them, the
texts that are explained, the neutral sentences of the package, and 200 texts of another dataset. The degradation test
deletes tokens; differences to the 400 texts are paired. The last column compares the words' scores with those of the
400 texts: same leading word, common ones of the first three, Spearman's rank correlation.
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.degradation import read_texts
from benchmarks.page import RESULTS, keep, machine
from benchmarks.stability import agreement
from captum_iba.demo import embedded_model_path
from captum_iba.methods import Scores, attribute
from captum_iba.metrics import Delete, aopc, degradation, paired_bootstrap, probability_drop
from captum_iba.text import TextExplainer
from captum_iba.text.encoding import per_token

Texts = tuple[list[str], list[str] | None]
REFERENCE = "400 texts like them"


def faithfulness(explainer: TextExplainer, scores: list[Scores]) -> tuple[Tensor, Tensor]:
    """Drop at 1/9 and AOPC of each text, (B,) each."""
    classifier = explainer.classifier
    ids, *others = classifier.tensors([item.encoded for item in scores]).values()
    attributions = torch.zeros(ids.shape, dtype=torch.float64)
    for row, item in enumerate(scores):
        attributions[row, : len(item.tokens)] = torch.from_numpy(item.tokens)
    curves = degradation(
        classifier.logits,
        ids,
        attributions,
        torch.tensor([item.target for item in scores]),
        tuple(others),
        removable_mask=per_token([item.encoded.removable for item in scores], False, ids.device, ids.shape[1]),
        perturbation=Delete(classifier.pad_id),
    )
    return probability_drop(curves), aopc(curves)


def measure(explainer: TextExplainer, explained: Texts, sources: dict[str, Texts | None]) -> dict[str, Any]:
    """Of each source the metrics with intervals, and the agreement with the first one."""
    figures: dict[str, Any] = {}
    reference: tuple[list[Scores], Tensor, Tensor] | None = None
    for name, texts in sources.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few positions
            if texts is None:
                statistics = explainer.use_neutral_statistics(explained[1] is not None)
            else:
                statistics = explainer.estimate_statistics(*texts)
        scores = attribute("iba", explainer.classifier, *explained, statistics=statistics)
        drop, area = faithfulness(explainer, scores)
        reference = reference or (scores, drop, area)
        figures[name] = {
            "drop at 1/9": paired_bootstrap(drop),
            "AOPC": paired_bootstrap(area),
            "difference at 1/9": paired_bootstrap(drop, reference[1]),
            "difference of AOPC": paired_bootstrap(area, reference[2]),
            "agreement": agreement([[item.words for item in scores], [item.words for item in reference[0]]]),
        }
        print(name, figures[name], flush=True)
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures as a markdown table."""
    lines = [
        "| statistics of | drop at 1/9 | difference | AOPC | difference | agreement |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in figures.items():
        same = name == REFERENCE
        agree = "–" if same else " / ".join(f"{number:.2f}" for number in found["agreement"])
        cells = [
            name,
            f"{found['drop at 1/9'].mean:.3f}",
            "–" if same else "{0.mean:+.3f} [{0.low:+.3f}, {0.high:+.3f}]".format(found["difference at 1/9"]),
            f"{found['AOPC'].mean:.3f}",
            "–" if same else "{0.mean:+.3f} [{0.low:+.3f}, {0.high:+.3f}]".format(found["difference of AOPC"]),
            agree,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics_sources", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a classifier (default: the embedded one)")
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, gzipped or not")
    parser.add_argument("--columns", nargs="+", default=["text"], help="of the text, and of the second text of a pair")
    parser.add_argument("--other", type=Path, required=True, help="another dataset, in the same form")
    parser.add_argument("--other-columns", nargs="+", default=["text"], help="of the other dataset")
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--max-length", type=int, help="where texts are truncated, in tokens")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "statistics_sources", help="without suffix: .json and .md"
    )
    options = parser.parse_args(arguments)
    explainer = TextExplainer.from_pretrained(options.model or embedded_model_path(), max_length=options.max_length)

    def texts(path: Path, columns: list[str], count: int) -> list[tuple[str, str | None]]:
        rows = list(zip(*read_texts(path, 4 * count, columns), strict=True))
        random.Random(0).shuffle(rows)
        return rows[:count]

    def columns(rows: list[tuple[str, str | None]]) -> Texts:
        first, second = zip(*rows, strict=True)
        return list(first), None if None in second else list(second)

    rows = texts(options.data, options.columns, options.examples + 400)
    explained, others = rows[: options.examples], rows[options.examples :]
    sources = {
        REFERENCE: columns(others),
        "32 texts like them": columns(others[:32]),
        "the texts themselves": columns(explained),
        "neutral sentences": None,
        "200 texts of another dataset": columns(texts(options.other, options.other_columns, 200)),
    }
    figures = measure(explainer, columns(explained), sources)
    body = f"{options.examples} texts; differences to the first row, with 95% intervals.\n\n{table(figures)}"
    keep(options.out, "statistics_sources", arguments, "Statistics of other texts", machine(), body, sources=figures)


if __name__ == "__main__":
    main()
