"""The comparison of records that the tests of engines use lets nothing through but rounding."""

import copy
import math

import pytest

from tests.compare.agreement import assert_agree

RECORDS = {
    "records/a/00000.parquet": [
        {"example": 4, "target": 1, "scores": [0.0, 0.25, -3.0], "decision": [1, 0], "error": None},
        {"example": 2, "target": 0, "scores": None, "decision": None, "error": "ValueError: no"},
    ]
}


def changed(row, **values):
    records = copy.deepcopy(RECORDS)
    records["records/a/00000.parquet"][row].update(values)
    return records


def test_rounding_passes():
    assert_agree(RECORDS, RECORDS)
    assert_agree(changed(0, scores=[1e-6, 0.25 - 2e-5, -3.00002]), RECORDS)  # of 3


@pytest.mark.parametrize(
    "found",
    [
        changed(0, scores=[0.0, 0.2501, -3.0]),
        changed(0, scores=[0.0, math.nan, -3.0]),
        changed(0, scores=[0.0, 0.25, -math.inf]),
        changed(0, scores=[0.0, 0.25]),
        changed(0, scores=None),
        changed(0, decision=[1, 1]),
        changed(0, target=1.0),
        changed(0, example=2),
        changed(1, scores=[0.0]),
        changed(1, error="ValueError: yes"),
        changed(1, new=1),
        {"records/a/00000.parquet": RECORDS["records/a/00000.parquet"][::-1]},
        {"records/b/00000.parquet": RECORDS["records/a/00000.parquet"]},
        {},
    ],
)
def test_all_else_does_not(found):
    with pytest.raises(AssertionError):
        assert_agree(found, RECORDS)
