"""Are the words that an explanation names the ones that the model needs? By removal, by bits, by single deletions.

    python -m benchmarks.leading_words --model DIR --data test.jsonl.gz --statistics-from train.jsonl.gz

For every text the leading words of ``TextExplainer.explain`` are deleted, at most half of all, as its check does. The
same number of words is deleted in two other orders: by their bits (``rerank=0``), and by what their deletion alone
changes (leave one out, in a row for each word). The last row is the bound of any rule: of all sets of as many measured
words the one that lowers the probability most. The table has the mean decrease in the probability of the predicted
class, and the paired difference to the leading words. The rule was chosen on train files.

With ``--check`` the words are those of an explanation with its check, which measures more words where the first ones
leave most of the probability; the leading words without it are beside them, and there is no row of all sets.
"""

from __future__ import annotations

import argparse
import random
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from benchmarks.degradation import read_texts
from benchmarks.page import RESULTS, keep, machine, table_of_decreases
from captum_iba._reading.order import ranking, ranking_by_bits
from captum_iba._reading.words import ranked_words
from captum_iba.demo import embedded_model_path
from captum_iba.text import TextAttribution, TextExplainer
from captum_iba.text.encoding import EncodedText
from captum_iba.text.word_removal import TextRemoval

BATCH_SIZE = 32
_ROWS = ("the leading words", "as many by bits", "as many by leave one out")
_BEST, _UNCHECKED = "the best set of as many measured words", "the leading words without a check"


def decreases(
    explainer: TextExplainer, result: TextAttribution, text: EncodedText, unchecked: TextAttribution | None
) -> list[float] | None:
    """Number of leading words, and the decrease without them and as many others; None where no word leads.

    The last is the decrease without the best set, or without the leading words of ``unchecked``.
    """
    n_words = len(result.words)
    count = min(len(ranked_words(result)[0]), n_words // 2)
    if not count:
        return None
    every = set(range(n_words))
    removal = TextRemoval(explainer.classifier, text, BATCH_SIZE)

    def without(words: list[list[int]]) -> np.ndarray:
        kept = [every - set(some) for some in words]
        return removal.probabilities(kept)[:, result.target].numpy()

    alone = without([[word] for word in range(n_words)])
    orders = [ranking(result), ranking_by_bits(result), np.argsort(alone, kind="stable").tolist()]
    whole, *left = without([[], *(order[:count] for order in orders)])
    if unchecked is not None:
        n_leading = min(len(ranked_words(unchecked)[0]), n_words // 2)
        left += without([ranking(unchecked)[:n_leading]]).tolist()
        return [float(count), *(float(whole - value) for value in left)]
    measured = [word for word, effect in enumerate(result.effects) if effect is not None]
    best = without(list(map(list, combinations(measured, count)))).min() if measured else left[0]
    return [float(count), *(float(whole - value) for value in (*left, best))]


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, and write it with the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leading_words", description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="folder of a classifier (default: the embedded one)")
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, gzipped or not")
    parser.add_argument("--statistics-from", type=Path, help="JSON lines; 300 of its texts (default: neutral texts)")
    parser.add_argument("--columns", nargs="+", default=["text"], help="of the text, and of the second text of a pair")
    parser.add_argument("--examples", type=int, default=96)
    parser.add_argument("--max-length", type=int, help="where texts are truncated, in tokens")
    parser.add_argument("--check", action="store_true", help="explain with the check (default: without)")
    parser.add_argument("--out", type=Path, default=RESULTS / "leading_words", help="without suffix: .json and .md")
    options = parser.parse_args(arguments)
    explainer = TextExplainer.from_pretrained(options.model or embedded_model_path(), max_length=options.max_length)
    torch.set_num_threads(min(2, torch.get_num_threads()))

    def read(path: Path, count: int) -> tuple[list[str], list[str] | None]:
        rows = list(zip(*read_texts(path, 10**6, options.columns), strict=True))  # files may be sorted by their labels
        first, second = zip(*random.Random(0).sample(rows, min(count, len(rows))), strict=True)
        return list(first), None if None in second else [str(text) for text in second]

    if options.statistics_from is not None:
        explainer.estimate_statistics(*read(options.statistics_from, 300))
    first, second = read(options.data, options.examples)
    encoded = explainer.classifier.encode(first, second or [None] * len(first))
    results = explainer.explain(first, second)
    unchecked: list[TextAttribution | None] = [None] * len(results)
    if options.check:
        unchecked, results = results, explainer.explain(first, second, check=True)
    found = [decreases(explainer, *each) for each in zip(results, encoded, unchecked, strict=True)]
    rows = np.array([row for row in found if row is not None])
    n_none = len(found) - len(rows)
    body = f"{len(rows)} texts, {rows[:, 0].mean():.1f} words each; in {n_none} more no word leads.\n\n"
    body += table_of_decreases(rows[:, 1:], (*_ROWS, _UNCHECKED if options.check else _BEST), "words deleted")
    print(body)
    keep(options.out, "leading_words", arguments, "Leading words", machine(), body, rows=rows.tolist())


if __name__ == "__main__":
    main()
