import csv
import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from captum_iba.compare.records import (
    Outcome,
    Record,
    Results,
    Row,
    _same_leading,
    chunk_path,
    read_records,
    read_results,
    write_records,
)
from captum_iba.compare.report import make_curves
from captum_iba.compare.tables import (
    COLUMNS,
    comma_separated,
    doubtful_labels,
    findings,
    make_table,
    markdown,
    notes,
    tex,
)
from captum_iba.metrics import NINTHS, Degradation
from captum_iba.visualization import plot_degradation
from captum_iba.visualization.figures import svg

SHARE = torch.tensor([0.0, *NINTHS])


@pytest.fixture(scope="module")
def results(finished):
    return read_results(finished)


def by_hand(folder, runs):
    """The metrics of each example, from the parquet files and the papers' formulas; the mean over the runs."""
    columns = {column.name: [] for column in COLUMNS}
    for run in runs:
        records = {r.example: r for path in (folder / "records" / run).glob("*.parquet") for r in read_records(path)}
        rows = [records[example] for example in sorted(records)]
        morf, lerf = (np.array([getattr(r, f"{order}_probability") for r in rows]) for order in ("morf", "lerf"))
        share = np.array([r.fraction for r in rows])
        widths = np.diff(share, axis=1)
        area = [((curve[:, 1:] + curve[:, :-1]) / 2 * widths).sum(1) for curve in (lerf, morf)]
        columns["probability_drop"].append(morf[:, 0] - morf[:, 1])
        columns["aopc"].append(sum(morf[:, 0] - morf[:, k] for k in range(10)) / 10)
        columns["comprehensiveness"].append(sum(morf[:, 0] - morf[:, k] for k in (1, 2, 3, 4)) / 4)
        # The top k/9 kept is the lowest 1 - k/9 removed.
        columns["sufficiency"].append(sum(lerf[:, 0] - lerf[:, 9 - k] for k in (1, 2, 3, 4)) / 4)
        columns["area_between"].append(area[0] - area[1])
        columns["seconds"].append(np.array([r.seconds for r in rows]))
    return {name: np.mean(values, axis=0) for name, values in columns.items()}


def test_every_number_of_the_table_from_the_records(finished, results):
    table = make_table(results)
    assert table.reference == "iba@n_steps=3" and table.examples == 12
    expected = {row: by_hand(finished, about["runs"]) for row, about in results.provenance["methods"].items()}
    assert list(table.rows) == list(expected) == ["iba@n_steps=3", "leave_one_out", "saliency", "random"]
    lines = {(line["method"], line["measure"]): line for line in csv.DictReader(io.StringIO(comma_separated(table)))}
    assert len(lines) == 4 * len(COLUMNS)
    for name, cells in table.rows.items():
        for column, cell in zip(COLUMNS, cells, strict=True):
            values = expected[name][column.name]
            assert cell.interval.mean == pytest.approx(values.mean(), abs=1e-6)
            line = lines[name, column.name]
            if column.name == "seconds":  # of chunks: no interval, and no difference
                assert (line["low"], line["reference_minus_method_mean"], line["mark"], cell.mark) == ("", "", "", "")
                continue
            assert cell.interval.low <= cell.interval.mean <= cell.interval.high
            assert [float(line[part]) for part in ("mean", "low", "high")] == list(cell.interval)
            if name == table.reference:
                assert cell.difference is None and cell.mark == "" and line["reference_minus_method_mean"] == ""
                continue
            difference = expected[table.reference][column.name] - values
            assert cell.difference.mean == pytest.approx(difference.mean(), abs=1e-6)
            own = stats.bootstrap((difference,), np.mean, n_resamples=9999, rng=np.random.default_rng(0))
            tolerance = 0.1 * (own.confidence_interval.high - own.confidence_interval.low) + 1e-6
            assert cell.difference.low == pytest.approx(own.confidence_interval.low, abs=tolerance)
            assert cell.difference.high == pytest.approx(own.confidence_interval.high, abs=tolerance)
            assert cell.mark == line["mark"] == ""  # twelve examples are too few


def test_accuracy_targets_and_seeds(finished, results):
    records = [r for path in (finished / "records" / "saliency").glob("*.parquet") for r in read_records(path)]
    assert results.accuracy == np.mean([record.morf_decision[0] == record.gold for record in records])
    assert results.targets == {record.example: record.gold for record in records}
    assert [len(row.outcomes) for row in results.rows] == [1, 1, 1, 3]
    assert [row.same_leading for row in results.rows[:3]] == [None] * 3
    leading = [
        {
            record.example: int(np.argmax(record.scores))
            for path in (finished / "records" / f"random@seed={seed}").glob("*.parquet")
            for record in read_records(path)
        }
        for seed in range(3)
    ]
    same = [one[number] == other[number] for one, other in itertools.combinations(leading, 2) for number in one]
    assert len(same) == 36 and results.rows[3].same_leading == pytest.approx(np.mean(same))
    text = (finished / "table.md").read_text(encoding="utf-8")
    assert "Means over seeds: random (3 seeds)." in text and "same leading token" not in text  # by chance only
    lime = Row("lime", {**results.rows[3].about, "method": "lime"}, results.rows[3].outcomes, 0, None, 0.25)
    said = notes(make_table(results), replace(results, rows=(lime,)))
    assert "Examples in which two seeds have the same leading token: lime 25%." in said


def test_special_tokens_lead_in_no_seed(tmp_path):
    """Their scores are 0, the highest where a signed method finds only words that speak against the class."""
    for run, scores in (("lime@seed=0", [0.0, -1.0, -2.0, 0.0]), ("lime@seed=1", [0.0, -2.0, -1.0, 0.0])):
        write_records(chunk_path(tmp_path, run, 0), [Record(0, run, 1, 1, scores), Record(1, run, 1, 1, [0.0, -1.0])])
    words = {0: [None, 0, 1, None], 1: [None, 0]}
    assert _same_leading(tmp_path, ["lime@seed=0", "lime@seed=1"], words) == 0.5
    assert _same_leading(tmp_path, ["lime@seed=0"], words) is None


def made(rows, target="gold", released=()):
    """Results of made-up probabilities: row -> one list of seeds of (B, 10) for MoRF; LeRF stays at the start."""

    def outcome(morf):
        morf = torch.tensor(morf)
        share = SHARE.expand_as(morf)
        decision = (morf < 0.5).long()
        lerf = morf[:, :1].expand_as(morf)
        return Outcome(
            Degradation(morf, morf, decision, share), Degradation(lerf, lerf, decision, share), np.full(len(morf), 0.5)
        )

    def about(name):
        counting = "as_released" if name in released else "removable"
        return {"method": name.partition("@")[0], "counting": counting}

    outcomes = {name: tuple(outcome(seed) for seed in seeds) for name, seeds in rows.items()}
    count = len(next(iter(rows.values()))[0])
    record = {"target": target}
    return Results(
        None,
        record,
        [{"example": number, "truncated": 0} for number in range(count)],
        tuple(Row(name, about(name), found, 0, None) for name, found in outcomes.items()),
        list(range(count)),
        {},
        None,
    )


def falling(start, step, count=20):
    """Examples that start a little apart, and fall by a step each ninth."""
    return [[start + 0.01 * i - step * k for k in range(10)] for i in range(count)]


def test_marks_and_findings():
    table = make_table(made({"iba": [falling(0.9, 0.05)], "good": [falling(0.9, 0.08)], "bad": [falling(0.9, 0.01)]}))
    drop = {name: cells[0] for name, cells in table.rows.items()}
    assert drop["iba"].interval == pytest.approx((0.05, 0.05, 0.05), abs=1e-6)
    assert drop["good"].difference == pytest.approx((-0.03, -0.03, -0.03), abs=1e-6)
    assert {name: cell.mark for name, cell in drop.items()} == {"iba": "", "good": "better", "bad": "worse"}
    assert {name: cells[5].mark for name, cells in table.rows.items()} == {"iba": "", "good": "", "bad": ""}
    area = table.rows["good"][4].interval.mean
    assert area == pytest.approx(0.08 * 9 / 2, abs=1e-6)  # the triangle under the level LeRF curve
    said = dict(findings(table, made({"iba": [falling(0.9, 0.05)]})))
    assert said["drop at 1/9"] == "iba is clearly better than bad; clearly worse than good (0.050 [0.050, 0.050])."
    assert said["seconds per example"] == "iba 0.500, good 0.500, bad 0.500."
    said = dict(findings(table, made({"iba": [falling(0.9, 0.05)]}), numbers=False))
    assert said["drop at 1/9"] == "iba is clearly better than bad; clearly worse than good." and len(said) == 5


def test_findings_where_the_reference_is_first():
    first, last = [falling(0.9, 0.08)], [falling(0.9, 0.01)]
    some = made({"iba": first, "ig": first, "lime": first, "random": last, "leave_one_out": last})
    own = "(0.080 [0.080, 0.080])."
    assert findings(make_table(some), some)[0][1] == (
        f"iba is clearly better than random and leave_one_out; level with ig and lime {own}"
    )
    alone = made({"iba": first, "same": first})
    assert findings(make_table(alone), alone)[0][1] == f"iba is level with same {own}"
    without = made({"ig": first, "lime": last})
    assert findings(make_table(without), without)[0][1] == f"ig is first {own}"


def test_those_counted_as_released_are_not_ranked_with_the_fair():
    rows = {"iba": [falling(0.9, 0.05)], "ig_as_released": [falling(0.9, 0.09)]}
    results = made(rows, released=["ig_as_released"])
    table = make_table(results)
    assert findings(table, results)[0][1].startswith("iba is first")
    assert "comparable with the rest: ig_as_released" in markdown(table, results)


def test_markdown_and_tex_hold_the_numbers():
    results = made({"iba": [falling(0.9, 0.05)], "leave_one_out": [falling(0.9, 0.08)]})
    table = make_table(results)
    text, paper = markdown(table, results), tex(table)
    assert "| leave_one_out | **0.080 [0.080, 0.080]** ▲ |" in text and "| iba | 0.050 [0.050, 0.050] |" in text
    assert r"leave\_one\_out & 0.080 [0.080, 0.080]$^{+}$ &" in paper and paper.count(r"\\") == 3
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {len(COLUMNS) + 2}


@pytest.mark.parametrize(
    ("names", "reference"),
    [
        (["ig", "iba@layer=1", "iba"], "iba"),
        (["ig", "iba@layer=1", "iba@layer=2"], "iba@layer=1"),
        (["ig", "random"], None),
        (["iba_paper"], None),
    ],
)
def test_the_reference_is_iba_or_its_first_variant(names, reference):
    assert make_table(made({name: [falling(0.9, 0.05)] for name in names})).reference == reference


def test_curves_are_mean_probabilities():
    curves = make_curves(made({"a": [falling(0.9, 0.08)], "b": [falling(0.9, 0.02), falling(0.9, 0.04)]}))
    figure, axes = plot_degradation(curves)
    a, b = axes.get_lines()[:2]
    assert (a.get_label(), b.get_label()) == ("a", "b")
    np.testing.assert_allclose(a.get_ydata(), [0.995 - 0.08 * k for k in range(10)], atol=1e-5)
    np.testing.assert_allclose(b.get_ydata(), [0.995 - 0.03 * k for k in range(10)], atol=1e-5)
    np.testing.assert_allclose(a.get_xdata(), SHARE)
    assert axes.get_ylabel() == "mean probability"
    assert svg(figure) == svg(plot_degradation(curves)[0])


@pytest.mark.parametrize("count", [1, 4, 19])
def test_a_few_examples_mark_nothing(count):
    few = made({"iba": [falling(0.9, 0.08, count)], "ig": [falling(0.9, 0.01, count)]})
    table = make_table(few)
    assert table.rows["ig"][0].difference.mean == pytest.approx(0.07)
    assert [cell.mark for cell in table.rows["ig"]] == len(COLUMNS) * [""]
    assert f"{count} examples are too few to tell methods apart: nothing is marked." in markdown(table, few)
    said = dict(findings(table, few))
    assert said["AOPC"].startswith("iba 0.") and ", ig 0." in said["AOPC"]
    assert [line for line in said.items() if "too few" in line[1]] == [
        ("Examples", f"{count}, too few to tell methods apart.")
    ]
    assert "**" not in markdown(table, few)
    assert [title for title, _ in findings(table, few, numbers=False)] == ["Examples"]


def test_the_best_mean_of_a_column_is_bold_and_not_the_reference():
    few = {"iba": [falling(0.9, 0.04, 20)], "lime": [falling(0.9, 0.08, 20)], "ig": [falling(0.9, 0.08, 20)]}
    results = made({**few, "lime_as_released": [falling(0.9, 0.09, 20)]}, released=["lime_as_released"])
    rows = [line.split(" | ") for line in markdown(make_table(results), results).splitlines()]
    bold = {row[0].strip("| "): [cell.startswith("**") for cell in row[1:]] for row in rows if len(row) == 7}
    # All have the same sufficiency, and there is no contest of seconds.
    assert bold["lime"] == bold["ig"] == [True, True, True, False, True, False]
    assert not any(bold["iba"] + bold["lime_as_released"])


@pytest.mark.parametrize(
    ("gold", "decided", "doubtful"),
    [
        ([0, 1] * 20, [2, 3] * 20, True),  # classes of another task
        ([0, 1] * 20, [1, 0] * 20, True),  # counted the other way round
        ([0, 1] * 20, [0] * 40, True),
        ([0, 1] * 10, [2, 3] * 10, False),  # too few to say
        ([0, 1] * 20, [0, 1] * 20, False),
        ([1] * 40, [1] * 35 + [0] * 5, False),
        ([1] * 34 + [0] * 6, [1] * 29 + [0] * 11, False),  # below the most frequent label, but not by chance
    ],
)
def test_labels_that_are_of_another_model_are_doubted(gold, decided, doubtful):
    results = made({"iba": [falling(0.9, 0.05, len(gold))], "ig": [falling(0.9, 0.01, len(gold))]})
    for row in results.rows:
        row.outcomes[0].morf.decision[:, 0] = torch.tensor(decided)
    results.provenance["labels"] = ["World", "Sports", "Business", "Sci/Tech"]
    texts = [{**text, "gold": label} for text, label in zip(results.texts, gold, strict=True)]
    accuracy = float(np.mean(np.equal(gold, decided)))
    results = replace(results, texts=texts, accuracy=accuracy)
    said = f"Warning: the model is right for {accuracy:.1%} of the examples, and "
    assert (said in markdown(make_table(results), results)) == doubtful
    assert doubtful == any("read as 0 (World), 1 (Sports)." in line for line in doubtful_labels(results))
