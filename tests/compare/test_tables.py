import csv
import io
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from captum_iba.compare.records import Outcome, Results, Row, read_records, read_results
from captum_iba.compare.report import make_curves
from captum_iba.compare.tables import COLUMNS, comma_separated, findings, make_table, markdown, tex
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
    expected = f"the same leading token: random (3 seeds) in {np.mean(same):.0%} of the examples"
    assert expected in (finished / "table.md").read_text(encoding="utf-8")


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
    assert said["drop at 1/9"] == "IBA 0.050 [0.050, 0.050] is clearly better than bad; clearly worse than good."
    assert said["s/example"] == "IBA 0.500, good 0.500, bad 0.500."


def test_findings_where_the_reference_is_first():
    first, last = [falling(0.9, 0.08)], [falling(0.9, 0.01)]
    some = made({"iba": first, "ig": first, "lime": first, "random": last, "leave_one_out": last})
    own = "IBA 0.080 [0.080, 0.080] is"
    assert findings(make_table(some), some)[0][1] == (
        f"{own} clearly better than random and leave-one-out; level with IG and LIME."
    )
    alone = made({"iba": first, "same": first})
    assert findings(make_table(alone), alone)[0][1] == f"{own} level with same."
    without = made({"ig": first, "lime": last})
    assert findings(make_table(without), without)[0][1] == "IG is first with 0.080 [0.080, 0.080]."


def test_those_counted_as_released_are_not_ranked_with_the_fair():
    rows = {"iba": [falling(0.9, 0.05)], "ig_as_released": [falling(0.9, 0.09)]}
    results = made(rows, released=["ig_as_released"])
    table = make_table(results)
    assert findings(table, results)[0][1].startswith("IBA is first")
    assert "comparable with the rest: ig_as_released" in markdown(table, results)


def test_markdown_and_tex_hold_the_numbers():
    results = made({"iba": [falling(0.9, 0.05)], "leave_one_out": [falling(0.9, 0.08)]})
    table = make_table(results)
    text, paper = markdown(table, results), tex(table)
    assert "| leave_one_out | 0.080 [0.080, 0.080] ▲ |" in text and "| **iba** | 0.050 [0.050, 0.050] |" in text
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
    said = dict(findings(table, few))["AOPC"]
    assert said.startswith("IBA 0.") and said.endswith(f"; {count} examples are too few to tell methods apart.")
