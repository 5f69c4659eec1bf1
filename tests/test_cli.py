"""The command line with the embedded model: everything runs, nothing stands in."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from datasets import ClassLabel, Dataset, Features, Value
from typer.testing import CliRunner

from captum_iba import __version__, cli
from captum_iba.demo import demo_texts, embedded_model_path
from captum_iba.methods import attribute
from captum_iba.text import Classifier, TextAttribution
from captum_iba.text.classifier import load_classifier
from tests.text.conftest import bert, wordpiece  # noqa: F401

ROOT = Path(__file__).parents[1]
GOOD, DULL = "A wonderful film, beautifully acted.", "Dull, and not even funny."
QUICK = ["--steps", "2", "--samples", "1", "--layer", "9"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAPTUM_IBA_CACHE", str(tmp_path / "cache"))


def run(*arguments, texts=None):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=texts)


def start(*arguments, folder):
    """Python itself, as a process with captum_iba to import."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def test_explains_a_text_with_the_embedded_model():
    done = run("explain", *QUICK, GOOD)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("positive 99.1% · imdb_bert\n" + GOOD + "\n") and "wonderful" in done.stdout
    detailed = run("explain", *QUICK, "--details", GOOD).stdout
    for of_details in ("layer 9 (bert.encoder.layer.8)", "of the bits", "with the information in the bits alone"):
        assert (of_details in done.stdout.lower(), of_details in detailed.lower()) == (False, True)
    assert "\x1b" not in done.output
    assert "statistics: those of the embedded model" in done.stderr


def test_several_texts_in_order_and_files(tmp_path):
    done = run("explain", *QUICK, "--html", "out.html", "--json", "out.json", GOOD, DULL)
    assert done.exit_code == 0, done.output
    results = [TextAttribution.from_dict(item) for item in json.loads(Path("out.json").read_text("utf-8"))]
    assert [result.text for result in results] == [GOOD, DULL]
    assert results[0].settings["n_steps"] == 2 and results[0].settings["n_samples"] == 1
    assert "wonderful" in Path("out.html").read_text("utf-8")
    assert f"wrote {tmp_path / 'out.html'}" in done.stderr


def test_several_texts_have_one_legend():
    details = ("explain", "--details")
    one, both = run(*details, DULL).stdout, run(*details, DULL, GOOD).stdout
    setting = next(line for line in one.splitlines() if "layers with one mask" in line)
    legend = one[one.index(setting) + len(setting) + 1 :]
    terms = {line.split("  ")[0] for line in legend.splitlines()}
    assert {"without it", "bar", "of the bits"} <= terms
    # That of both has the terms of each, and a text ends with its setting.
    first, last, of_both = both.split("\n\n")
    assert first.splitlines()[-1] == setting and "layers with one mask" in last.splitlines()[-1]
    assert terms <= {line.split("  ")[0] for line in of_both.splitlines()} and both.count("hatched, ") == 1
    assert run(*details, "--quiet", DULL).stdout == one[: one.index(legend)]
    assert "hatched, " not in run("explain", "--quiet", DULL, GOOD).stdout


def test_rows_without_a_text_are_left_out_and_counted():
    Path("gap.csv").write_text(f'id,text,label\n1,"{GOOD}",positive\n2,,positive\n3,"{DULL}",positive\n', "utf-8")
    done = run("explain", *QUICK, "--file", "gap.csv", "--json", "gap.json")
    assert done.exit_code == 0 and "gap.csv: left out, because the text is blank: line 3" in done.stderr
    # What is handed over has it, too, and so has a quiet command.
    quiet = run("explain", *QUICK, "-q", "--file", "gap.csv", "--html", "gap.html")
    assert "left out, because the text is blank: line 3" in quiet.stderr
    assert "Left out, because the text is blank: line 3." in Path("gap.html").read_text("utf-8")
    of_file = run("explain", *QUICK, "--statistics-from", "gap.csv", GOOD)
    assert "gap.csv: left out, because the text is blank: line 3" in of_file.stderr, of_file.output
    assert "The gold label is not predicted for 1 of 2 texts." in done.stderr
    found = json.loads(Path("gap.json").read_text("utf-8"))
    assert [(one["id"], one["text"], one["gold_label"]) for one in found] == [
        ("1", GOOD, "positive"),
        ("3", DULL, "positive"),
    ]


def test_texts_from_a_file_and_from_standard_input(tmp_path):
    Path("texts.txt").write_bytes(f"\ufeff{GOOD}\r\n{DULL}\n\n".encode())
    from_file = run("explain", *QUICK, "--quiet", "--file", "texts.txt")
    from_input = run("explain", *QUICK, "-q", "--file", "-", texts=f"{GOOD}\n{DULL}\n")
    piped = run("explain", *QUICK, "-q", texts=f"{GOOD}\n{DULL}\n")
    assert from_file.exit_code == 0, from_file.output
    assert from_file.stdout == from_input.stdout == piped.stdout
    assert GOOD in piped.stdout and DULL in piped.stdout
    assert piped.stderr == ""


def test_blank_lines_of_a_file_are_named_and_the_others_keep_their_numbers(tmp_path):
    """An entry of JSON was found in the file by its place, which blank lines had shifted."""
    Path("gaps.txt").write_text(f"{GOOD}\n\n \n{DULL}\n", encoding="utf-8")
    done = run("explain", *QUICK, "--file", "gaps.txt", "--json", "gaps.json")
    assert done.exit_code == 0 and "left out, because the text is blank: line 2 and line 3" in done.stderr
    assert [item["id"] for item in json.loads(Path("gaps.json").read_text(encoding="utf-8"))] == ["line 1", "line 4"]


def test_json_on_standard_output_is_nothing_but_json():
    done = run("explain", *QUICK, "--json", "-", "--target", "NEGATIVE", GOOD)
    assert [item["target_label"] for item in json.loads(done.stdout)] == ["negative"]


def test_settings_arrive():
    options = ["--target", "1", "--preset", "paper", "--granularity", "word", "--beta", "0.5", "--seed", "3"]
    done = run("explain", *QUICK, *options, "--pair", DULL, "--json", "-", GOOD)
    assert done.exit_code == 0, done.output
    (item,) = json.loads(done.stdout)
    assert (item["target"], item["preset"], item["granularity"], item["pair"]) == (1, "paper", "word", DULL)
    assert (item["settings"]["beta"], item["settings"]["seed"], item["layer_index"]) == (0.5, 3, 9)


def test_a_mask_that_removed_too_much_is_told_once():
    """A note beside the sentence of a single text said the same in other words."""
    texts = ("A dull film.", "Nothing in it works, and nothing is funny.")
    command = ("explain", "--beta", "30", "--device", "cpu")
    one, two = (run(*command, "--no-check", *texts[:count]) for count in (1, 2))
    said = "The mask removed too much, so the bits are not shown as percentages: with the information in the bits alone"
    assert said in one.stdout and "note" not in one.stderr
    assert "note: the mask removed too much of a text, 'A dull film.', and 1 more." in two.stderr
    # Where a check confirms the words by their deletion, it is said beside the bits alone.
    one, detailed = (run(*command, *option, texts[0]) for option in ((), ("--details",)))
    assert ": confirmed" in one.stdout and said not in one.stdout and said in detailed.stdout
    assert "removed too much" not in run(*command, texts[0], texts[0]).stderr


def test_statistics_are_estimated_once_and_found_again(tmp_path):
    Path("reviews.txt").write_text(f"{GOOD}\n{DULL}\n", encoding="utf-8")
    first, second = (run("explain", *QUICK, "--statistics-from", "reviews.txt", GOOD) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert f"statistics of reviews.txt estimated and kept at {tmp_path / 'cache'}" in first.stderr
    assert "statistics of reviews.txt found at" in second.stderr
    assert first.stdout == second.stdout
    lines = first.stderr.splitlines()
    assert lines[0] == "captum-iba: loading the embedded model"
    assert lines[1].startswith("captum-iba: statistics of the 2 texts of reviews.txt")
    (file,) = (tmp_path / "cache").iterdir()
    of_file = run("explain", *QUICK, "--statistics", file, GOOD).stdout
    assert of_file == first.stdout.replace("2 texts of reviews.txt", "a dataset")


def test_another_model_without_statistics_says_what_it_did():
    done = run("explain", *QUICK, "--details", "--model", embedded_model_path(), GOOD)
    assert done.exit_code == 0, done.output
    assert "statistics: of neutral texts in the package" in done.stderr
    assert "statistics of neutral texts (" in done.stdout


def test_texts_and_statistics_of_a_table():
    lines("reviews.jsonl", *REVIEWS)
    Path("reviews.csv").write_text(f'id,Review\n1,"{GOOD}"\n2,"{DULL}"\n', encoding="utf-8")
    read = run("explain", *QUICK, "--file", "reviews.jsonl", "--json", "a.json")
    assert read.exit_code == 0, read.output
    assert [one["text"] for one in json.loads(Path("a.json").read_text("utf-8"))] == [row["text"] for row in REVIEWS]
    model = ["--model", embedded_model_path(), "--statistics-from", "reviews.jsonl"]
    read = run("explain", *QUICK, *model, "--file", "reviews.csv", "--json", "b.json")
    assert read.exit_code == 0, read.output
    found = json.loads(Path("b.json").read_text("utf-8"))
    assert [entry.pop("id") for entry in found] == ["1", "2"]
    Path("lines.txt").write_text("".join(row["text"] + "\n" for row in REVIEWS), encoding="utf-8")
    model[-1] = "lines.txt"
    run("explain", *QUICK, *model, GOOD, DULL, "--json", "c.json")
    of_lines = json.loads(Path("c.json").read_text("utf-8"))
    for entry, name in ((found[0], "reviews.jsonl"), (of_lines[0], "lines.txt")):
        assert entry["statistics"].startswith(f"{len(REVIEWS)} texts of {name} (")
    for entry in (*found, *of_lines):
        entry.pop("statistics")
    assert found == of_lines  # the same texts, in whatever file


def test_pairs_of_a_table(tmp_path, bert, wordpiece):  # noqa: F811
    bert.save_pretrained("pairs")
    wordpiece.save_pretrained("pairs")
    lines("pairs.jsonl", {"premise": "the film", "hypothesis": "a good plot"}, {"premise": "dull", "hypothesis": ""})
    settings = ["--model", "./pairs", "--steps", "2", "--statistics-from", "pairs.jsonl"]
    done = run("explain", *settings, "--file", "pairs.jsonl", "--json", "out.json")
    assert done.exit_code == 0, done.output
    first, second = json.loads(Path("out.json").read_text("utf-8"))
    assert (first["pair"], second["pair"]) == ("a good plot", "")
    done = run("explain", *settings, "--file", "pairs.jsonl", "--pair", "other", "--pair", "other")
    assert done.exit_code == 2 and "in the file already" in done.stderr


def test_several_layers_in_either_spelling():
    found = {}
    for layers in ("7,8,9", "7..9", "7+8+9"):
        done = run("explain", *QUICK[:4], "--details", "--layer", layers, GOOD)
        assert done.exit_code == 0, done.output
        found[layers] = done.stdout
    assert len(set(found.values())) == 1 and "3 layers with one mask" in done.stdout


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--layer", "13"], "layer is 13, expected a block from 1 to 12"),
        (["--target", "negativ"], "0 (negative), 1 (pos"),
    ],
)
def test_layer_and_target_are_checked_before_the_weights_are_loaded(asked, says, monkeypatch):
    monkeypatch.setattr("captum_iba.text.TextExplainer.from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    done = run("explain", *asked, GOOD)
    assert done.exit_code == 1 and says in done.stderr


def test_a_text_may_be_called_false_after_a_double_dash():
    done = run("explain", *QUICK, "--no-check", "--", "false")
    assert done.exit_code == 0 and "\nfalse\n" in done.stdout, done.output


def test_all_layers_can_be_asked_for():
    done, default = (run("explain", "--steps", "2", "--details", *layer, GOOD) for layer in (["--layer", "all"], []))
    assert done.exit_code == 0 and done.stdout == default.stdout and "12 layers with one mask" in done.stdout


def test_signs_of_other_methods_are_told():
    said = "above 0 a word speaks for what is explained, below 0 against it."
    asked = ["explain", "--steps", "2", "--rerank", "0", "--no-check", GOOD, "--methods"]
    assert said in run(*asked, "ig").stdout and said not in run(*asked, "saliency").stdout


def test_another_bottleneck_uses_the_layer_that_is_asked_for():
    done = run("explain", "--steps", "2", "--layer", "1", "--methods", "iba_paper, iba", "--json", "out.json", GOOD)
    assert done.exit_code == 0, done.output
    assert len(json.loads(Path("out.json").read_text("utf-8"))[0]["methods"]["iba_paper"]) == 7


def test_labels_and_ids_of_a_table_are_kept():
    Path("r.csv").write_text(f'ID,text,label\na,"{GOOD}",pos\nb,"{DULL}",\n', encoding="utf-8")
    done = run("explain", *QUICK, "--file", "r.csv", "--json", "out.json", "--html", "out.html")
    assert done.exit_code == 0, done.output
    entries = json.loads(Path("out.json").read_text("utf-8"))
    assert [(entry["id"], entry["label"]) for entry in entries] == [("a", "pos"), ("b", "")]
    assert [TextAttribution.from_dict(entry).text for entry in entries] == [GOOD, DULL]
    assert "a, label pos\n" in done.stdout and "\nb, label \n" in done.stdout
    page = Path("out.html").read_text("utf-8")
    assert ">gold label</button>" in page and 'data-head="gold label" data-value="pos"' in page
    Path("r.csv").write_text(f'text,label\n"{GOOD}",1\n"{DULL}",POSITIVE\n', encoding="utf-8")
    done = run("explain", *QUICK, "--file", "r.csv", "--json", "out.json", "--html", "out.html")
    entries = json.loads(Path("out.json").read_text("utf-8"))
    assert [(entry["label"], entry["gold_label"]) for entry in entries] == [("1", "positive"), ("POSITIVE", "positive")]
    page = Path("out.html").read_text("utf-8")
    assert (
        page.count(" (not predicted)</mark>") == 1 and page.count('data-head="gold label" data-value="positive"') == 2
    )
    # Labels that count from 1 are no numbers of classes, so that all stay as they are.
    Path("r.csv").write_text(f'text,label\n"{GOOD}",2\n"{DULL}",1\n', encoding="utf-8")
    done = run("explain", *QUICK, "--file", "r.csv", "--html", "out.html")
    page = Path("out.html").read_text("utf-8")
    assert " (not predicted)</mark>" not in page and 'data-head="gold label" data-value="2"' in page
    assert "labels are shown as they are, and not compared with the predicted classes: line 2 has" in done.stderr
    Path("r.csv").write_text(f'text,label\n"{GOOD}",1.0\n"{DULL}",-1\n"{DULL}",0\n', encoding="utf-8")
    done = run("explain", *QUICK, "--file", "r.csv", "--html", "out.html")
    page = Path("out.html").read_text("utf-8")
    assert " (not predicted)</mark>" not in page and 'data-head="gold label" data-value="positive"' in page
    # A parquet file names its own numbers, which need not be the model's.
    labels = Features({"text": Value("string"), "label": ClassLabel(names=["positive", "negative"])})
    Dataset.from_dict({"text": [GOOD, DULL], "label": [0, 1]}, features=labels).to_parquet("r.parquet")
    done = run("explain", *QUICK, "--file", "r.parquet", "--html", "out.html")
    page = Path("out.html").read_text("utf-8")
    assert re.findall('data-head="gold label" data-value="(.*?)"', page) == ["positive", "negative"], done.stderr
    assert " (not predicted)</mark>" not in page
    done = run("explain", *QUICK, "--html", "out.html", "--json", "out.json", GOOD, DULL)
    assert "gold label" not in Path("out.html").read_text("utf-8")
    assert "label" not in json.loads(Path("out.json").read_text("utf-8"))[0]


def test_a_folder_that_is_not_there_is_no_file():
    """`demo --out folder/` wrote a file without a suffix, which no browser opens."""
    for arguments, option in ((("demo", "--out", "new/"), "--out"), (("explain", GOOD, "--json", "new/"), "--json")):
        done = run(*arguments)
        assert done.exit_code == 2 and f"{option}: new has no suffix, expected a file" in done.stderr
        assert not Path("new").exists()


def test_no_command_shows_the_help(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([])
    said = capsys.readouterr()
    assert left.value.code == 2 and "explain" in said.out + said.err and "error" not in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["explain"], 2, "no text"),
        (["explain", "--html", "-", GOOD], 2, "--html: expected a file"),
        (["explain", "--html", "o", "--json", "./o", GOOD], 2, "--html and --json: both are o"),
        (["explain", "--file", "x.txt", "--text-column", "body"], 1, "x.txt is read line by line and has no columns"),
        (["explain", "--file", "x.txt", GOOD], 2, "TEXT and --file"),
        (["explain", "--preset", "best", GOOD], 2, "best"),
        (["explain", "--method", "lime", GOOD], 2, "--method"),
        (["explain", "--beta", "-1", GOOD], 2, "beta"),
        (["explain", "--samples", "-1", GOOD], 2, "samples"),
        (["explain", "--pair", "one", "--pair", "two", GOOD], 2, "--pair"),
        (["explain", "--statistics", "a", "--statistics-from", "b", GOOD], 2, "--statistics-from"),
        (["explain", "--nonsense", GOOD], 2, "nonsense"),
        (["explain", "--preset", "as_released", "--statistics", "a", GOOD], 2, "--statistics: the preset as_released"),
        (["explain", "--preset", "as_released", "--statistics-from", "a", GOOD], 2, "--statistics-from: the preset"),
        (
            ["explain", "--text-column", "body", GOOD],
            2,
            "--text-column is for a table (--file), the texts are arguments",
        ),
        (["explain", "--pair-column", "body", "--statistics-from", "a.txt", GOOD], 2, "--pair-column is for a table"),
        (["nonsense"], 2, "nonsense"),
        (["explain", "--layer", "13", GOOD], 1, "layer is 13, expected a block from 1 to 12"),
        (["explain", "--layer", "bert.nowhere", GOOD], 1, "bert.nowhere"),
        (["explain", "--target", "great", GOOD], 1, "0 (negative), 1 (positive)"),
        (["explain", "--target", "7", GOOD], 1, "target is 7, expected 0 to 1"),
        (["explain", "--target=--1", GOOD], 1, "--1"),
        (["explain", " "], 1, "TEXT 1 is only white space"),
        (["explain", GOOD, "[PAD]"], 1, "TEXT 2 is '[PAD]', which has nothing to attribute"),
        (["explain", GOOD, "--check", "false"], 2, "--check takes no value, got false; expected --check or --no-check"),
        (["explain", "--quiet", "True", GOOD], 2, "--quiet takes no value, got True; expected --quiet or -q alone"),
        (
            ["explain", "--methods", "ig,lim", GOOD],
            2,
            "--methods: there is no 'lim' (did you mean 'lime'?); the methods",
        ),
        (["explain", "--methods", "iba_as_released", "--layer", "1,2", GOOD], 2, "--methods: iba_as_released has one"),
        (
            ["explain", "--model", "my/classifier", GOOD],
            1,
            "--model is my/classifier, which is no folder here, and not ",
        ),
        (["explain", "--device", "cuda:99", GOOD], 1, "--device is cuda:99, which torch does not find here, expected"),
        (["explain", "--file", "gaps.csv"], 1, "gaps.csv: every text in text is empty, expected at least one text."),
        (["explain", "--file", "half.jsonl"], 1, "half.jsonl: line 2 has a text that has half of a surrogate pair"),
        (["explain", "[SEP]"], 1, "nothing to attribute"),
        (["explain", "--model", "./nowhere", GOOD], 1, "no folder ./nowhere"),
        (["explain", "--file", "nowhere.txt"], 1, "nowhere.txt"),
        (["explain", "--statistics", "nowhere", GOOD], 1, "--statistics: nowhere does not exist, expected a file of"),
        (["explain", "--statistics-from", "nowhere", GOOD], 1, "nowhere does not exist, expected a file of texts"),
        (["explain", "--file", "."], 1, "--file: . is a folder, expected a file of texts"),
        (["explain", "--html", ".", GOOD], 2, "--html: . is a folder, expected a file"),
        (["explain", "--keep", os.devnull, GOOD], 2, "--keep: /dev/null is a file, expected a folder"),
        (["explain", "--json", "/proc/self/out.json", GOOD], 2, "--json: /proc/self/out.json cannot be written"),
        (["explain", "--preset", "best"], 2, "(captum-iba explain --help says more)"),
        (["explain", "--response", "x", "a"], 2, "--response is an option of explain-response (captum-iba explain"),
        (["nonsense"], 2, "(captum-iba --help says more)"),
        (["explain", "--device", "nonsense", GOOD], 1, "nonsense"),
        (["explain", *QUICK, "--html", "no/folder.html", GOOD], 2, "--html: there is no folder no"),
        (["explain", "gap.csv"], 2, "TEXT: gap.csv is a file or folder, expected a text, or --file gap.csv."),
        (["explain", "./", GOOD], 2, "TEXT: ./ is a file or folder, expected a text, or --model ./."),
    ],
)
def test_errors_are_one_line(arguments, code, says, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    Path("x.txt").write_text(GOOD, "utf-8")
    Path("gap.csv").write_text(f'id,text\n1,"{GOOD}"\n2,"{DULL}"\n3,\n', "utf-8")
    Path("gaps.csv").write_text("id,text\n1,\n2,\n", "utf-8")
    Path("half.jsonl").write_text('{"text": "good"}\n{"text": "bad \\ud83d"}\n', "utf-8")
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    lines = capsys.readouterr().err.strip().splitlines()
    assert left.value.code == code
    assert lines[-1].startswith("captum-iba: error: ") and says in lines[-1]
    assert [line for line in lines if "error" in line.lower() or "Traceback" in line] == lines[-1:]


@pytest.mark.parametrize("bad", [["--html", "no/page.html"], ["--file", "no.csv"], ["--statistics", "no"]])
def test_paths_are_checked_before_anything_is_loaded(tmp_path, bad):
    code = f"""import sys
from captum_iba import cli
try:
    cli.main({["explain", *bad]})
finally:
    print({{"torch", "transformers"}} & set(sys.modules))"""
    out, err = start("-c", code, folder=tmp_path).communicate(timeout=400)
    assert err.startswith("captum-iba: error: ") and out == "set()\n"


def test_files_are_written_before_anything_is_printed(tmp_path):
    files = ["--html", "out.html", "--json", "out.json"]
    code = f"from captum_iba import cli; cli.main({['explain', *QUICK, '-q', *files, GOOD]})"
    process = start("-c", code, folder=tmp_path)
    process.stdout.close()  # as `| head -1` does when it has its line
    assert process.wait(timeout=400) != 0
    assert (tmp_path / "out.html").is_file() and json.loads((tmp_path / "out.json").read_text("utf-8"))


def test_a_file_that_is_no_text():
    Path("binary").write_bytes(b"\x89PNG\xfe\x00")
    done = run("explain", "--file", "binary")
    assert done.exit_code == 1 and "it has zero bytes, and is no text; expected UTF-8" in done.stderr
    Path("latin").write_bytes("Ein schöner Film.".encode("latin-1"))
    assert "it is not UTF-8 (" in run("explain", "--file", "latin").stderr


def test_a_file_is_named_by_its_option():
    Path("texts.csv").write_text("words\nA film.\n", encoding="utf-8")
    Path("empty.csv").write_text("", encoding="utf-8")
    assert "error: --file: no column has a name known for texts" in run("explain", "--file", "texts.csv").stderr
    done = run("explain", GOOD, "--statistics-from", "empty.csv")
    assert "error: --statistics-from: empty.csv is empty" in done.stderr


def test_what_was_kept_before_is_told():
    Path("texts.txt").write_text(f"{GOOD}\n{DULL}\n", encoding="utf-8")
    first, second = (run("explain", *QUICK, "--file", "texts.txt", "--keep", "kept") for _ in range(2))
    assert first.stdout == second.stdout and "already" not in first.stderr
    assert "2 of 2 texts are explained already, in kept" in second.stderr


def test_columns_that_are_not_read_are_told():
    """A column of gold labels with another name was passed over in silence."""
    Path("films.csv").write_text("review,verdict\nA dull film.,negative\n", encoding="utf-8")
    said = "columns: review (text); none has a name known for gold labels (--label-column); not read: verdict"
    assert said in run("explain", "--file", "films.csv", *QUICK).stderr
    assert "not read" not in run("explain", "--file", "films.csv", "--label-column", "verdict", *QUICK).stderr
    Path("films.csv").write_text("review,sentiment\nA dull film.,positive\n", encoding="utf-8")
    assert "label positive (not predicted)" in run("explain", "--file", "films.csv", *QUICK).stdout


def test_other_methods_look_at_the_layer_that_is_asked_for():
    """--layer was the bottleneck's alone, and nothing said so."""
    classifier = Classifier(*load_classifier(embedded_model_path()))
    asked = ["explain", GOOD, "--steps", "1", "--no-check", "--methods", "conductance,saliency", "--json", "-"]
    for layers, own in (("1", 1), ("1,2", None)):
        done = run(*asked, "--layer", layers)
        scores = attribute("conductance", classifier, GOOD, layer=own)[0].words
        assert json.loads(done.stdout)[0]["methods"]["conductance"] == pytest.approx(scores.tolist())
        said = "at its default layer: it takes one, and --layer names several" if own is None else "at layer 1"
        assert f"conductance: 1 text, {said}" in done.stderr and "saliency: 1 text\n" in done.stderr


def test_version_and_help():
    assert run("--version").stdout == f"captum-iba {__version__}\n"
    assert "--statistics-from" in run("explain", "--help").stdout
    of_compare = " ".join(run("compare", "--help").stdout.replace("│", " ").split())
    assert "--statistics-from" in of_compare and "lime 1000 forward passes" in of_compare
    assert all(command in run("--help").stdout for command in ("explain", "compare", "report", "demo"))


def test_the_help_has_the_options_of_every_command_in_sections():
    for command in typer.main.get_command(cli.app).commands:
        said = run(command, "--help").stdout
        assert "\nExecution:\n" in said and "\nOptions:\n" not in said, command
    said = run("explain", "--help").stdout
    sections = ["Arguments", "Input", "What is explained", "Models with other heads", "Methods", "Results", "Execution"]
    assert sorted(sections, key=said.index) == sections
    assert said.index("\nResults:") < said.index("  --json ") < said.index("\nExecution:") < said.index("  --help ")


def test_examples_of_the_help_are_options():
    for command in ("explain", "explain-response", "compare", "compare-responses"):
        options, _, examples = run(command, "--help").stdout.partition("Examples:\n")
        lines = [shlex.split(line) for line in examples.splitlines() if line.strip()]
        assert len(lines) > 1 and all(line[:2] == ["captum-iba", command] for line in lines)
        named = {word for line in lines for word in line if word.startswith("--")}
        assert named and all(f"  {option} " in options or f"  {option}," in options for option in named)


def test_demo_answers_first_and_folds_the_layers(monkeypatch):
    reviews = demo_texts()[:1]  # of five, which .ci/run explains
    monkeypatch.setattr("captum_iba.demo.demo_texts", lambda: reviews)
    done = run("demo")
    assert done.exit_code == 0, done.output
    first, _, report = done.stdout.rpartition("\n\n")
    assert (
        first.startswith("negative 88.7%")
        and "boring" in first
        and "\nCheck of the leading words: confirmed\n" in first
    )
    path = Path(report.split()[-1])
    assert path == Path("captum-iba-demo.html").resolve()
    page = path.read_text(encoding="utf-8")
    assert page.count("<section>") == 1 and page.count('class="method m') == 3 and page.count("<dt ") == 12
    assert page.index('class="decision"') < page.index("<bdi>boring</bdi>") < page.index("LIME") < page.index("<dt ")
    assert page.index("by the default settings: beta 10, one mask for all 12 layers") < page.index("<section>")
    assert "<script" not in page and "n/a" not in page and str(embedded_model_path().parent) not in page


def lines(path, *rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


REVIEWS = [{"text": GOOD, "label": 1}, {"text": DULL, "label": "negative"}, {"text": "Wonderful.", "label": 1}]


def test_compare_and_report(tmp_path):
    asked = ["compare", "--data", lines("reviews.jsonl", *REVIEWS), "--methods", "iba,saliency,random", "--out", "out"]
    done = run(*asked)
    assert done.exit_code == 0, done.output
    assert (
        "3 of 3 examples, 3 methods in 7 runs" in done.stderr
        and f"wrote {tmp_path / 'out' / 'table.md'}" in done.stderr
    )
    findings = done.stdout.splitlines()
    assert findings[0].startswith("drop at 1/9: ") and findings[-1] == f"The report is at {tmp_path}/out/report.html"
    before = Path("out/report.html").read_bytes()
    Path("out/report.html").unlink()
    drawn = run("report", "out", "--quiet")
    assert (drawn.exit_code, drawn.stdout, drawn.stderr) == (0, done.stdout, "")
    assert Path("out/report.html").read_bytes() == before
    again = run(*asked, "-q")
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    other = run(*asked, "--seed", "1")
    assert other.exit_code == 1 and "seed: was 0, is 1" in other.stderr
    from_file = run("compare", "--config", "out/comparison.yaml", "--methods", "saliency", "--out", "second", "-q")
    assert from_file.exit_code == 0 and "The report is at" in from_file.stdout, from_file.output
    assert [path.name for path in Path("second/records").iterdir()] == ["saliency"]


def test_compare_variants_of_iba():
    options = [
        "--layer",
        "1",
        "--layer",
        "9",
        "--beta",
        "0.1",
        "--beta",
        "1",
        "--methods",
        "iba",
        "--target",
        "predicted",
        "--max-length",
        "16",
    ]
    done = run("compare", "--data", lines("reviews.jsonl", *REVIEWS[:1]), *options, "--out", "out")
    assert done.exit_code == 0, done.output
    rows = [line for line in Path("out/table.md").read_text("utf-8").splitlines() if "| " in line][2:]
    assert ["iba@layer=1,beta=0.1" in rows[0], "iba@layer=9,beta=1 " in rows[3], len(rows)] == [True, True, 4]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["compare", "--out", "o"], 2, "--data"),
        (["compare", "--data", "good.jsonl"], 2, "--out"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--examples", "0"], 2, "--examples"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--method-set", "best"], 2, "best"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--methods", "magic"], 1, "no 'magic'; the methods are iba"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--methods", "iba@beta=1"], 1, "(--config) also a mapping"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--methods", "iba", "--layer", "99"], 1, "from 1 to"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--methods", "ig", "--layer", "1"], 1, "for the method iba"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--text-column", "body"], 1, "the columns are 'text'"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--model", "./o"], 1, "no folder ./o"),
        (["compare", "--data", "good.jsonl", "--out", "o", "--model", "."], 1, "config.json"),
        (["compare", "--data", "good.jsonl", "--out", "good.jsonl"], 2, "good.jsonl is a file, expected a folder"),
        (["compare", "--data", "good.jsonl", "--out", "."], 1, "holds no comparison"),
        (["compare", "--data", "label.jsonl", "--out", "o"], 1, "label 2 in the column 'label', which the model does"),
        (["compare", "--data", "broken.jsonl", "--out", "o"], 1, "line 2 is not JSON"),
        (["compare", "--data", "empty.jsonl", "--out", "o"], 1, "empty.jsonl is empty"),
        (
            ["compare", "--data", "nowhere.jsonl", "--out", "o"],
            1,
            "nowhere.jsonl does not exist, expected a file",
        ),
        (["compare", "--data", "nowhere.txt", "--out", "o"], 1, "--data: nowhere.txt does not exist, expected a file"),
        (["compare", "--config", "bad.yaml", "--out", "o"], 1, "bad.yaml has the key 'dta', expected one of data"),
        (["compare", "--config", "nowhere.yaml", "--out", "o"], 1, "nowhere.yaml does not exist, expected a YAML file"),
        (["report", "."], 1, "holds no comparison"),
        (["report"], 2, "DIR"),
    ],
)
def test_compare_errors_are_one_line(arguments, code, says, capsys):
    lines("good.jsonl", *REVIEWS)
    lines("label.jsonl", *REVIEWS, {"text": "Odd.", "label": 2})
    Path("broken.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b",\n')
    Path("empty.jsonl").touch()
    Path("bad.yaml").write_text("dta: good.jsonl", "utf-8")
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    said = capsys.readouterr().err.strip().splitlines()
    assert left.value.code == code
    assert said[-1].startswith("captum-iba: error: ") and says in said[-1]
    assert not Path("o").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_compare_after_ctrl_c(tmp_path):
    data = lines("reviews.jsonl", *REVIEWS)
    Path("config.yaml").write_text("methods: [random, {method: iba, n_steps: 100000}]", "utf-8")
    asked = ["-m", "captum_iba", "compare", "--data", data, "--config", "config.yaml", "--out", "out"]
    process = start(*asked, folder=tmp_path)
    first = tmp_path / "out" / "records" / "random@seed=4" / "00000.parquet"
    while not first.is_file() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=400)
    assert (process.returncode, out) == (130, ""), err
    assert err.strip().splitlines()[-1].endswith("the same command goes on where it stopped")
    assert len(list((tmp_path / "out").rglob("0*.parquet"))) == 5


@pytest.mark.parametrize("name", ["datasets", "pyarrow", "scipy", "yaml"])
def test_compare_without_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    done = run("report", ".")
    assert done.exit_code == 1 and f'{name} is not installed; run: pip install "captum-iba[compare]"' in done.stderr


def test_as_a_process_that_has_no_extra_but_text(tmp_path):
    missing = ["datasets", "pandas", "pyarrow", "ray"]
    (tmp_path / "texts.csv").write_text(f'id,text\n1,"{GOOD}"\n', encoding="utf-8")
    lines(tmp_path / "train.jsonl", *REVIEWS)
    tables = ["--file", "texts.csv", "--statistics-from", "train.jsonl"]
    command = ["captum-iba", "explain", *QUICK, "--keep", "kept", *tables]
    code = f"""if True:
        import runpy, sys
        sys.modules.update(dict.fromkeys({missing}))
        sys.argv[:] = {command}
        runpy.run_module("captum_iba", run_name="__main__")"""
    process = start("-c", code, folder=tmp_path)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert f"\n{GOOD}\n" in out and "\x1b" not in out + err
    assert len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_ctrl_c(tmp_path):
    process = start("-m", "captum_iba", "explain", "--steps", "100000", GOOD, folder=tmp_path)
    assert "loading" in process.stderr.readline()
    assert "statistics" in process.stderr.readline()  # now it is at work
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=400)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "captum-iba: error: interrupted"


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize(
    ("losing", "printed"),
    [
        ("Deleted()", ""),
        ("swallow()", ""),
        ("clean()", "cleaned\n"),  # the cleaning takes longer than until the interrupt is raised again
    ],
)
def test_ctrl_c_that_a_library_loses(losing, printed):
    code = f"""if True:
        import time
        from signal import SIGINT, raise_signal
        from captum_iba import cli
        from captum_iba.cli.common import plain_errors

        class Deleted:
            def __del__(self):
                raise_signal(SIGINT)

        def swallow():
            try:
                raise_signal(SIGINT)
            except:
                pass

        def clean():
            try:
                raise_signal(SIGINT)
            finally:
                time.sleep(2.5)
                print("cleaned", flush=True)

        @cli.app.command()
        def wait():
            with plain_errors(quiet=False):
                {losing}
                while True:
                    time.sleep(0.1)

        cli.main(["wait"])
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, printed, "captum-iba: error: interrupted")


@pytest.mark.parametrize("name", ["typer", "rich", "jinja2", "transformers"])
def test_a_missing_extra_is_said(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    spec = importlib.util.spec_from_file_location("cli_anew", cli.__file__)
    with pytest.raises(SystemExit, match=rf'needs {name}, .*; run: pip install "captum-iba\[text\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_statistics_are_those_of_at_most_500_texts():
    Path("texts.txt").write_text("\n".join(f"A film number {i}." for i in range(510)), "utf-8")
    done = run("explain", *QUICK, "--statistics-from", "texts.txt", GOOD)
    assert done.exit_code == 0 and "statistics of 500 of the 510 texts of texts.txt" in done.stderr
