"""How stable methods are: does another seed, or do other texts for the statistics, name another leading word?

    python -m benchmarks.stability --model DIR --data train.jsonl.gz --columns premise hypothesis --examples 40

Each method explains the same texts with five seeds, the bottleneck also with the statistics of five disjoint draws of
texts. Of every two results of a text three numbers are compared, and the table has their means: whether the word with
the highest score is the same, the fraction of the three highest that both name, and Spearman's rank correlation of
the words. A method without random numbers is 1 by construction, and runs once.

Row "explain" is the order of the words in the list of ``TextExplainer``, the first ones by removal. Of its explanations
by bits alone (``rerank=0``), with the statistics of each draw, the last lines say in how many texts the leading word is
nearly tied with others, as pages say, and how often the draws agree with that taken into account.

With ``--groups`` the leading words of explanations with a check are compared in place of all this: those with the
statistics of the neutral texts of the package, and of two draws of texts.
"""

from __future__ import annotations

import argparse
import random
import warnings
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.degradation import read_texts
from benchmarks.page import RESULTS, keep, machine
from captum_iba._reading.order import nearly_tied
from captum_iba.demo import embedded_model_path
from captum_iba.methods import attribute
from captum_iba.methods.task import FloatArray
from captum_iba.text import TextAttribution, TextExplainer

SEEDS = DRAWS = 5
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "iba": ("iba", {}),
    "iba, one noise sample per step": ("iba", {"n_samples": 1}),
    "ig": ("ig", {}),
    "lime, 100 samples": ("lime", {"n_samples": 100}),
    "gradient_shap": ("gradient_shap", {}),
    "leave_one_out": ("leave_one_out", {}),
    "random": ("random", {}),
}
RANDOM = ("iba, one noise sample per step", "lime, 100 samples", "gradient_shap", "random")


def agreement(results: list[list[FloatArray]]) -> list[float]:
    """Means over texts and pairs of results: same leading word, common ones of the first three, rank correlation."""
    rows = []
    for one, other in combinations(results, 2):
        for a, b in zip(one, other, strict=True):
            k = min(3, len(a))
            common = len(set(np.argsort(-a)[:k]) & set(np.argsort(-b)[:k])) / k
            # Of one word, or of words that all have one score, there is no order.
            rho = spearmanr(a, b).statistic if len(a) > 1 and np.ptp(a) and np.ptp(b) else np.nan
            rows.append([float(a.argmax() == b.argmax()), common, rho])
    return [float(mean) for mean in np.nanmean(np.array(rows), 0)]


def _scores(result: TextAttribution) -> FloatArray:
    """Number of words that are listed below each."""
    place = {id(word): rank for rank, word in enumerate(result.ranked)}
    return np.array([float(len(place) - place[id(word)]) for word in result.words])


def near_ties(explanations: list[list[TextAttribution]]) -> list[float]:
    """Fraction of texts without a near tie, how often these have the same leading word, and how often the leading word
    of other statistics is among those that are nearly tied."""
    alone, same, among = [], [], []
    for one, other in permutations(explanations, 2):
        for a, b in zip(one, other, strict=True):
            named, leading = nearly_tied(a), nearly_tied(b)
            if len(a.words) < 2 or not named or not leading:
                continue
            alone.append(len(named) == 1)
            among.append(leading[0] in named)
            if len(named) == 1:
                same.append(leading[0] == named[0])
    return [float(np.mean(values)) for values in (alone, same, among)]


def group_agreement(
    explainer: TextExplainer,
    texts: list[str],
    pairs: list[str] | None,
    draws: list[tuple[list[str], list[str] | None]],
) -> dict[str, list[float]]:
    """Share of texts with the same leading words, mean Jaccard index of these, and share with the same first one."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few positions
        explainer.use_neutral_statistics(pairs is not None)
        found.append([result.removal_order for result in explainer.explain(texts, pairs, check=True)])
        for of_draw in draws:
            explainer.estimate_statistics(*of_draw)
            found.append([result.removal_order for result in explainer.explain(texts, pairs, check=True)])
    compared = {"neutral texts, texts like them": (0, 1), "two draws of texts like them": (1, 2)}
    figures = {}
    for title, (one, other) in compared.items():
        couples = [(a, b) for a, b in zip(found[one], found[other], strict=True) if a or b]
        overlap = [len({*a} & {*b}) / len({*a} | {*b}) for a, b in couples]
        first = [a[:1] == b[:1] for a, b in couples]
        figures[title] = [float(np.mean(values)) for values in ([x == 1 for x in overlap], overlap, first)]
        print(title, figures[title], flush=True)
    return figures


def measure(
    explainer: TextExplainer,
    texts: list[str],
    pairs: list[str] | None,
    draws: list[tuple[list[str], list[str] | None]],
    methods: list[str],
) -> tuple[dict[str, list[list[float] | None]], list[float]]:
    """For every method the agreement over seeds, and over the statistics of several draws of texts; the near ties."""
    statistics, explanations, lists = [], [], []
    for of_draw in draws:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few positions
            statistics.append(explainer.estimate_statistics(*of_draw))
            explanations.append(explainer.explain(texts, pairs, rerank=0))
            lists.append([_scores(result) for result in explainer.explain(texts, pairs)])
    ties = near_ties(explanations)
    print("near ties", ties, flush=True)
    # The default has no random numbers.
    found: dict[str, list[list[float] | None]] = {"explain": [[1.0, 1.0, 1.0], agreement(lists)]}
    print("explain", found["explain"], flush=True)
    for title in methods:
        name, options = METHODS[title]

        def words(seed: int, number: int, name: str = name, options: dict[str, Any] = options) -> list[FloatArray]:
            used = {"statistics": statistics[number]} if name == "iba" else {}
            scores = attribute(name, explainer.classifier, texts, pairs, seed=seed, **used, **options)
            return [item.words for item in scores]

        over_seeds = agreement([words(seed, 0) for seed in range(SEEDS)]) if title in RANDOM else [1.0, 1.0, 1.0]
        over_draws = agreement([words(0, number) for number in range(len(draws))]) if name == "iba" else None
        found[title] = [over_seeds, over_draws]
        print(title, found[title], flush=True)
    return found, ties


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stability", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a classifier (default: the embedded one)")
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, gzipped or not")
    parser.add_argument("--columns", nargs="+", default=["text"], help="of the text, and of the second text of a pair")
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--statistics", type=int, default=300, help="number of texts per draw")
    parser.add_argument("--max-length", type=int, help="where texts are truncated, in tokens")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument(
        "--groups", action="store_true", help="compare the leading words with a check, and nothing else"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "stability", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    explainer = TextExplainer.from_pretrained(options.model or embedded_model_path(), max_length=options.max_length)
    count = options.examples + DRAWS * options.statistics
    rows = list(zip(*read_texts(options.data, 4 * count, options.columns), strict=True))
    random.Random(0).shuffle(rows)

    def part(start: int, stop: int) -> tuple[list[str], list[str] | None]:
        first, second = zip(*rows[start:stop], strict=True)
        return list(first), None if None in second else list(second)

    starts = range(options.examples, count, options.statistics)
    draws = [part(start, start + options.statistics) for start in starts]
    torch.set_num_threads(min(2, torch.get_num_threads()))
    if options.groups:
        figures = group_agreement(explainer, *part(0, options.examples), draws[:2])
        lines = ["| statistics of | same leading words | Jaccard index | same first word |", "|---|---|---|---|"]
        lines += [f"| {' | '.join([title, *(f'{x:.2f}' for x in values)])} |" for title, values in figures.items()]
        body = f"{options.examples} texts, explained with a check.\n\n" + "\n".join(lines)
        keep(
            options.out,
            "stability",
            arguments,
            "Leading words with other statistics",
            machine(),
            body,
            agreement=figures,
        )
        return
    found, ties = measure(explainer, *part(0, options.examples), draws, options.methods)
    lines = ["| method | over seeds | over the texts of the statistics |", "|---|---|---|"]
    for title, values in found.items():
        cells = ["–" if value is None else " / ".join(f"{number:.2f}" for number in value) for value in values]
        lines.append(f"| {' | '.join([title, *cells])} |")
    body = (
        f"{options.examples} texts: same leading word / common ones of the first three / Spearman's rank correlation, "
        f"over {SEEDS} seeds, and over {DRAWS} draws of {options.statistics} texts.\n\n" + "\n".join(lines)
    )
    body += (
        f"\n\nNo other word is nearly tied with the leading one in {ties[0]:.2f} of texts; of these another draw has "
        f"the same leading word in {ties[1]:.2f}. Of all texts its leading word is the leading one, or nearly tied "
        f"with it, in {ties[2]:.2f}."
    )
    keep(options.out, "stability", arguments, "Stability", machine(), body, agreement=found, near_ties=ties)


if __name__ == "__main__":
    main()
