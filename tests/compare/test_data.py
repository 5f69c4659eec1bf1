import bz2
import gzip
import json
import lzma
import math

import datasets
import pytest

from captum_iba.cli.text_files import has_columns, read_columns
from captum_iba.compare import table_files
from captum_iba.compare.data import Columns, find_columns, fingerprint, load_data, names_of_labels, open_table
from tests.compare.conftest import LABELS, rows_of_texts, write_lines

ROWS = [{"text": "the film", "label": 2}, {"text": "a plot", "label": 0}]


def texts(data):
    return [(example.number, example.text, example.pair, example.gold) for example in data.examples]


@pytest.mark.parametrize(
    "ending", [".jsonl", ".json", ".jsonl.gz", ".jsonl.bz2", ".jsonl.xz", ".csv", ".tsv", ".parquet"]
)
def test_kinds_of_files(tmp_path, ending):
    path = tmp_path / f"data{ending}"
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    table = datasets.Dataset.from_list(ROWS)
    if ending == ".parquet":
        table.to_parquet(path)
    elif ending in (".csv", ".tsv"):
        table.to_csv(path, sep="," if ending == ".csv" else "\t")
    else:
        packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
        path.write_bytes(packers.get(path.suffix, bytes)(lines))
    data = load_data(str(path), LABELS)
    assert texts(data) == [(0, "the film", None, 2), (1, "a plot", None, 0)]
    assert (data.rows, data.split, data.columns) == (2, None, Columns("text", None, "label"))


def test_names_of_columns_in_any_case():
    assert find_columns(["id", "Review", "Label"]) == Columns("Review", None, "Label")
    assert find_columns(["text", "hypothesis"]) == Columns("text", "hypothesis", None)
    assert find_columns(["TEXT", "text", "LABEL"]) == Columns("TEXT", None, "LABEL")
    with pytest.raises(ValueError, match=r"--text-column.*--label-column.*'Words'"):
        find_columns(["Words"])


@pytest.mark.parametrize("packed", table_files.OPENERS)
def test_the_command_line_knows_the_same_tables(packed):
    found = {ending for ending in (*table_files.READERS, ".doc", "") if has_columns(f"texts{ending}{packed}")}
    assert found == set(table_files.READERS) - {".txt"}


def test_a_text_a_line(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the film\na plot\n", encoding="utf-8")
    assert texts(load_data(str(path), None)) == [(0, "the film", None, None), (1, "a plot", None, None)]


def test_a_folder_has_parts(tmp_path):
    write_lines(tmp_path / "train.jsonl", ROWS)
    write_lines(tmp_path / "test.jsonl", ROWS[:1])
    assert load_data(str(tmp_path), LABELS).split == "test"
    assert load_data(str(tmp_path), LABELS, split="train").rows == 2
    with pytest.raises(ValueError, match="no part 'dev'; there are train, test"):
        load_data(str(tmp_path), LABELS, split="dev")


def test_classes_of_the_data_in_another_order(tmp_path):
    names = datasets.ClassLabel(names=["Positive", "Negative", "Neutral"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    datasets.Dataset.from_list(ROWS, features=features).to_parquet(tmp_path / "data.parquet")
    data = load_data(str(tmp_path / "data.parquet"), LABELS)
    assert [example.gold for example in data.examples] == [LABELS.index("neutral"), LABELS.index("positive")]


def test_labels_by_name_and_as_digits(tmp_path):
    path = write_lines(tmp_path / "data.jsonl", [{"text": "a", "label": "POSITIVE"}, {"text": "b", "label": "1"}])
    assert [example.gold for example in load_data(str(path), LABELS).examples] == [2, 1]


def test_without_labels(tmp_path):
    path = write_lines(tmp_path / "data.jsonl", [{"text": "a"}])
    assert texts(load_data(str(path), LABELS)) == [(0, "a", None, None)]


def test_a_missing_text_is_an_empty_one(tmp_path):
    path = write_lines(tmp_path / "data.jsonl", [{"text": None, "label": 0}, {"text": "a", "label": 1}])
    assert [example.text for example in load_data(str(path), LABELS).examples] == ["", "a"]


def test_samples(tmp_path):
    path = str(write_lines(tmp_path / "data.jsonl", rows_of_texts(40)))
    first, again, other = (load_data(path, LABELS, examples=10, others=8, seed=seed) for seed in (0, 0, 1))
    assert first == again and texts(first) != texts(other)
    numbers = [example.number for example in first.examples]
    outside = [example.number for example in first.others]
    assert len(numbers) == 10 and numbers == sorted(numbers) and len(outside) == 8
    assert not set(numbers) & set(outside)
    assert {example.gold for example in first.others} == {None}
    assert fingerprint(first.examples) == fingerprint(again.examples) != fingerprint(other.examples)
    everything = load_data(path, LABELS, examples=99, others=8)
    assert len(everything.examples) == 40 and everything.others == ()


@pytest.mark.parametrize(
    ("names", "given", "found"),
    [
        (["premise", "hypothesis", "label"], {}, ("premise", "hypothesis", "label")),
        (["sentence1", "sentence2", "labels"], {}, ("sentence1", "sentence2", "labels")),
        (["idx", "sentence"], {}, ("sentence", None, None)),
        (["text", "title"], {"pair": "title"}, ("text", "title", None)),
        (["premise", "hypothesis"], {"text": "premise"}, ("premise", None, None)),
        (["a", "b", "c"], {"text": "a", "pair": "b", "label": "c"}, ("a", "b", "c")),
    ],
)
def test_columns(names, given, found):
    assert find_columns(names, **given) == Columns(*found)


@pytest.mark.parametrize(
    ("content", "settings", "says"),
    [
        (b"", {}, "is empty"),
        (b"\n\n", {}, "has no rows|cannot be read"),
        (b'{"text": "a", "label": 0}\n{"text": "b"\n', {}, "line 2 is not JSON"),
        (b'{"text": "a", "label": 0}\n\n[1, 2]\n', {}, "line 3 is no object"),
        (b'{"text": "\xff", "label": 0}\n', {}, "line 1 is not JSON|not UTF-8"),
        (b'{"words": "a", "label": 0}\n', {}, "the columns are 'words', 'label'"),
        (b'{"text": "a", "label": 0}\n', {"text_column": "body"}, "no column 'body' for the text; .*'text', 'label'"),
        (b'{"text": "a", "label": 0}\n', {"label_column": "y"}, "no column 'y' for the label"),
        (b'{"text": 3, "label": 0}\n', {}, "'text' holds .*int64.*, expected texts"),
        (b'{"text": "a", "label": 3}\n', {}, r"line 1 has the label 3 .*0 \(negative\), 1 \(neutral\), 2 \(positive\)"),
        (b'{"text": "a", "label": "great"}\n', {}, "line 1 has the label 'great'"),
        (b'{"text": "a", "label": 0.5}\n', {}, "line 1 has the label 0.5"),
        (b'{"text": "a", "label": 0}\n{"text": "a"}\n', {}, "line 2 has no label"),
        (b'{"text": "a", "label": 0}\n', {"split": "test"}, "has no parts"),
        (b'{"text": "a", "label": 0}\n', {"examples": 0}, "examples: expected at least 1, got 0"),
    ],
)
def test_bad_files(tmp_path, content, settings, says):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        load_data(str(path), LABELS, **settings)


def test_the_broken_line_of_a_packed_file(tmp_path):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 2000 + b"nonsense\n"))
    with pytest.raises(ValueError, match="line 2001 is not JSON"):
        load_data(str(path), LABELS)


@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.parquet"])
def test_a_file_that_is_not_what_its_name_says(tmp_path, name):
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="cannot be read"):
        load_data(str(tmp_path / name), LABELS)


def test_other_places(tmp_path):
    (tmp_path / "data.doc").write_text("a\n")
    with pytest.raises(ValueError, match="none of the endings .jsonl"):
        load_data(str(tmp_path / "data.doc"), LABELS)
    for missing in (str(tmp_path / "nowhere"), "nowhere.csv"):
        with pytest.raises(FileNotFoundError, match="no file"):
            load_data(missing, LABELS)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", 'text,label\n"two\nlines",0\n\nlast,9\n', "line 5 has the label '9'"),
        ("a.csv", 'text,label\ngood,0\n"open,1\n', "line 3 is not CSV"),
        ("a.csv", '"text";"label"\n"good";"0"\n', "line 1 is not CSV .* between the names there are commas"),
        ("a.csv", 'text,label\n"a "fine" film",1\n', "line 2 is not CSV .*quotation mark in quotes is doubled"),
        ("a.jsonl", '{"text": "good", "label": 0}\n\n{"text": "bad", "label": 9}\n', "line 3 has the label 9"),
        ("a.json", '[{"text": "good", "label": 0},\n {"text": "bad", "label": 9}]', "row 2 has the label 9"),
        ("a.json", '[{"text": "good", "label": 0},\n 7]', "row 2 is no object"),
        ("a.jsonl", '{"text": ["good"], "label": 0}\n', "'text' holds lists or objects, expected texts"),
    ],
)
def test_errors_name_the_line_of_the_file(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        load_data(str(path), LABELS)


def test_names_of_columns_that_are_there_twice_or_missing(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("\n,text,text\n1,a,b\n2,c\n", encoding="utf-8")
    table, _ = open_table(str(path))
    assert table.column_names == ["Unnamed: 0", "text", "text.1"]
    assert (table["text"], table["text.1"], table.lines) == (["a", "c"], ["b", None], [3, 4])


def test_a_carriage_return_alone_parts_neither_rows_nor_texts(tmp_path):
    """As pandas writes it, without quotation marks: half of a text was one, and a label was a text."""
    path = tmp_path / "data.csv"
    path.write_bytes(b",text,label\n0,fine,1\n1,It is dull.\rI liked nothing.,0\n")
    with pytest.raises(ValueError, match="line 3 is not CSV .* a line break in a field needs quotation marks"):
        load_data(str(path), LABELS)
    path.write_bytes(b'text,label\r\n"It is dull.\rI liked nothing.",0\r\n')
    assert [example.text for example in load_data(str(path), LABELS).examples] == ["It is dull.\rI liked nothing."]
    path.write_bytes(b"text,label\rfine,1\rdull,0\r")  # of an old Mac
    assert [example.text for example in load_data(str(path), LABELS).examples] == ["fine", "dull"]
    for content, texts in [(b"a\rb\nc\n", ["a\rb", "c"]), (b"a\rb\r", ["a", "b"]), (b"a\r\nb", ["a", "b"])]:
        lines = tmp_path / "lines.txt"
        lines.write_bytes(content)
        assert [example.text for example in load_data(str(lines), None).examples] == texts
        assert read_columns(str(lines), None, None)[:2] == (texts, None)


def test_rows_without_a_label_are_explained_by_their_predicted_class(tmp_path):
    rows = [{"text": "a", "label": label} for label in (2, -1, 0, -1, None)]
    path = str(write_lines(tmp_path / "data.jsonl", rows))
    with pytest.raises(
        ValueError, match=r"line 2 has no label .* \(it holds -1\), nor do 2 others of 5 rows; .*predicted"
    ):
        load_data(path, ["negative", "positive", "neutral"])
    data = load_data(path, ["negative", "positive", "neutral"], labels_required=False)
    assert [example.gold for example in data.examples] == [2, None, 0, None, None] and data.unread is None


@pytest.mark.parametrize("values", [["horror", "drama"], [0.5, 0.1], [["a"], ["b"]]])
def test_an_unrelated_column_is_no_error_where_no_labels_are_needed(tmp_path, values):
    path = str(write_lines(tmp_path / "data.jsonl", [{"text": "a", "class": value} for value in values]))
    with pytest.raises(ValueError, match="line 1 has the label"):
        load_data(path, LABELS)
    data = load_data(path, LABELS, labels_required=False)
    assert [example.gold for example in data.examples] == [None, None] and data.columns.label is None
    assert "line 1 has the label" in data.unread
    with pytest.raises(ValueError, match="line 1 has the label"):
        load_data(path, LABELS, label_column="class", labels_required=False)


def test_other_separators_and_encodings_are_named(tmp_path):
    (tmp_path / "semicolon.csv").write_text("text;label\nA film, and a good one;1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1 has ';' between the names, expected commas"):
        open_table(str(tmp_path / "semicolon.csv"))
    (tmp_path / "wide.csv").write_text("text,label\nA film,1\n", encoding="utf-16")
    with pytest.raises(ValueError, match="wide.csv cannot be read: it is UTF-16, as of a spreadsheet; expected UTF-8"):
        open_table(str(tmp_path / "wide.csv"))


def test_labels_that_are_classes_by_number_and_by_name_stay_as_they_are():
    """Stars 0 to 4 in the table, "1" to "5" in the model: 0 was taken for a number, and the others for names."""
    column = {"text": ["a film"] * 5, "label": ["0", "1", "2", "3", "4"]}
    table = table_files.FileTable(column, None)
    names, problem, are_classes = names_of_labels(table, "label", ["1", "2", "3", "4", "5"])
    assert names == ["0", "1", "2", "3", "4"] and "'label'" in problem and not are_classes
    assert names_of_labels(table, "label", list("abcde")) == (list("abcde"), "", True)


def test_labels_with_a_fraction_of_zero_are_read_as_without():
    """As pandas writes a column with an empty cell: 1 went by name, and 1.0 by number, one class off."""
    names = ["1", "2", "3", "4", "5"]
    for column in (["1.0", "2.0", "4.0", ""], [1.0, 2.0, 4.0, None], [1.0, 2.0, 4.0, math.nan], [1, 2, 4, None]):
        table = table_files.FileTable({"text": ["a"] * 4, "label": column}, None)
        assert names_of_labels(table, "label", names) == (["1", "2", "4", ""], "", True)
    table = table_files.FileTable({"text": ["a"] * 2, "label": ["1.0", "2.0"]}, None)
    assert names_of_labels(table, "label", ["2.0", "1.0"]) == (["1.0", "2.0"], "", True)
    assert names_of_labels(table, "label", ["bad", "good", "fine"]) == (["good", "fine"], "", True)


def test_labels_that_are_no_classes_do_not_keep_others_from_being_compared():
    """One "mixed" among positive and negative; of numbers, one that is no class says that all may be others."""
    classes = ["negative", "positive"]
    table = table_files.FileTable({"text": ["a film"] * 4, "label": ["Negative", "mixed", "positive", ""]}, None)
    names, problem, are_classes = names_of_labels(table, "label", classes)
    assert names == ["negative", "mixed", "positive", ""] and "'mixed'" in problem and are_classes
    for column in (["1", "2", "2"], ["positive", "2", "positive"], ["mixed", "unclear", ""]):
        table = table_files.FileTable({"text": ["a film"] * 3, "label": column}, None)
        names, problem, are_classes = names_of_labels(table, "label", classes)
        assert names == column and problem and not are_classes
