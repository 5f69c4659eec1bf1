import gzip
import json

import pytest

from benchmarks.degradation import main


@pytest.mark.parametrize("pairs", [False, True])
def test_both_procedures_agree_and_the_table_is_written(tmp_path, capsys, pairs):
    rows = [
        {"text": "A wonderful film.", "second": "Yes."},
        {"text": "Dull, and far too long to bear.", "second": "No."},
    ]
    with gzip.open(tmp_path / "data.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows * 2)
    out, columns = tmp_path / "times", ["text", "second"][: 1 + pairs]
    main([f"--data={tmp_path / 'data.jsonl.gz'}", "--columns", *columns, "--examples=3", "--repeats=2", "--rows", "4",
          f"--out={out}"])  # fmt: skip
    written = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert written["machine"]["texts"] == 3
    assert [timing["rows_a_pass"] for timing in written["timings"]] == [None, 4]
    for timing in written["timings"]:
        assert timing["difference"] < 1e-5
        ratios = [a / b for a, b in zip(timing["seconds_one_at_a_time"], timing["seconds"], strict=True)]
        assert timing["times_less"] == pytest.approx(ratios)
        assert timing["operations"] > 1e6 and len(timing["rate"]) == 2
    assert out.with_suffix(".md").read_text(encoding="utf-8") in capsys.readouterr().out
