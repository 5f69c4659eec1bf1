"""The commands for language models, ``explain-response`` and ``compare-responses``, with a tiny model."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

from captum_iba import cli
from captum_iba.cli.common import Failures
from captum_iba.compare.explain_many import explain_prompts
from captum_iba.compare.parallel import LocalExecutor
from captum_iba.text import GenerationAttribution, GenerationExplainer
from tests.test_cli import own_folders, run  # noqa: F401
from tests.text.conftest import wordpiece  # noqa: F401


@pytest.fixture
def language_model(wordpiece):  # noqa: F811
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=110, initializer_range=0.3, eos_token_id=3, **size)
    transformers.LlamaForCausalLM(config).save_pretrained("llama")
    wordpiece.save_pretrained("llama")
    return ["explain-response", "--model", "llama", "--steps", "2"]


def test_explain_response(language_model):
    done = run(*language_model, "the film was good . a dull plot !", "--response", "a good film", "--by", "sentence")
    assert done.exit_code == 0, done.stderr
    assert "a good film" in done.stdout and "\nCheck of the leading part" in done.stdout
    of_file = ["the film was good . a dull plot !", "--response", "a good film", "--by", "sentence", "--details"]
    assert " bits in 2 parts (sentence)\n" in run(*language_model, *of_file).stdout
    assert "bits" not in done.stdout.replace("with the fewest bits", "")
    Path("prompt.txt").write_bytes(b"\xef\xbb\xbfthe film\r\nwas good .\r\n\r\n")
    files = ["--file", "prompt.txt", "--html", "page.html", "--json", "result.json"]
    done = run(*language_model, *files, "--max-new-tokens", "3", "--per-token")
    assert done.exit_code == 0 and "page.html" in done.stderr, done.stderr
    result = GenerationAttribution.load("result.json")
    assert result.prompt == "the film\r\nwas good .\r\n" and result.token_bits.shape == (len(result.tokens), 5)
    assert Path("page.html").read_text("utf-8").count('type="radio"') == 1 + len(result.tokens)
    contrast = run(*language_model, "the film", "--response", "a film", "--contrast", "a plot", "--json", "-")
    assert [found["contrast"] for found in json.loads(contrast.stdout)] == ["a plot"]
    contrast = run(*language_model, "the film", "--response", "a film", "--contrast", "a plot")
    said = "decrease in the log-odds of the choice without this part"
    assert said in contrast.stdout


def test_explain_responses_of_a_table(language_model, monkeypatch):
    rows = [
        {"prompt": "the film was good", "response": "a good film"},
        {"prompt": "a dull plot", "response": ""},
        {"prompt": "the film was bad", "response": "bad"},
    ]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = [*language_model, "--file", "prompts.jsonl", "--keep", "kept", "--max-new-tokens", "2"]
    real, explained = GenerationExplainer.explain, []

    def stopped(self, prompt, *rest, **settings):
        explained.append(prompt)
        if len(explained) == 3:
            raise KeyboardInterrupt
        return real(self, prompt, *rest, **settings)

    monkeypatch.setattr(GenerationExplainer, "explain", stopped)
    done = run(*command)
    assert done.exit_code == 130 and "2 of 3 prompts are kept in kept, and the same command goes on" in done.stderr
    done = run(*command, "--json", "results.json", "--html", "page.html", "--per-token")  # other settings: all anew
    assert done.exit_code == 0 and len(explained) == 6, done.stderr
    done = run(*command, "--json", "-")
    assert done.exit_code == 0 and explained[6:] == ["the film was bad"], done.stderr
    results = [GenerationAttribution.from_dict(entry) for entry in json.loads(done.stdout)]
    assert [result.prompt for result in results] == [row["prompt"] for row in rows]
    assert results[0].response == "a good film" and len(results[1].tokens) <= 2
    alone = GenerationExplainer.from_pretrained("llama").explain(
        rows[0]["prompt"], "a good film", check=True, n_steps=2
    )
    assert alone.parts == results[0].parts and alone.check == results[0].check
    page = Path("page.html").read_text("utf-8")
    assert page.count('<details class="response-of"') == 3 and page.count('id="r2t0"') == 1
    assert "1. <bdi>the film was good</bdi> → <b><bdi>a good film" in page


def test_rows_of_a_table_have_their_ids(language_model):
    rows = [{"id": "a", "prompt": "the film was good", "response": "yes"}]
    rows += [{"id": "b", "prompt": "a dull plot", "response": "yes"}]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = [*language_model, "--file", "prompts.jsonl", "--no-check", "--rerank", "0"]
    done = run(*command, "--json", "out.json", "--html", "out.html")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("a. the film was good\n") and "\n\nb. a dull plot\n" in done.stdout
    assert [entry["id"] for entry in json.loads(Path("out.json").read_text("utf-8"))] == ["a", "b"]
    page = Path("out.html").read_text("utf-8")
    assert "<summary>a. <bdi>the film was good</bdi>" in page and "<summary>b. <bdi>a dull plot</bdi>" in page
    checked = run(*language_model, "--file", "prompts.jsonl", "--json", "checked.json", "--rerank", "2")
    assert re.search(r"(?:Check of|No verdict for) \d (?:more )?prompts?: ", checked.stderr)
    assert all("findings" in entry for entry in json.loads(Path("checked.json").read_text("utf-8")))
    # Lines of both kinds in one file.
    mixed = [rows[0], {"messages": [{"role": "user", "content": "a dull plot"}], "response": "yes"}]
    Path("mixed.jsonl").write_text("\n".join(map(json.dumps, mixed)), encoding="utf-8")
    done_mixed = run(*language_model, "--file", "mixed.jsonl", "--no-check", "--rerank", "0")
    assert "no chat template" in done_mixed.stderr  # the second line was read as messages


def test_prompts_without_the_span_are_named_and_the_others_explained(language_model):
    """The first row without it was the end of all, after minutes."""
    rows = [
        {"id": name, "prompt": f"the {name} film", "response": f"a {name} plot"} for name in ("good", "bad", "dull")
    ]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = [*language_model, "--file", "prompts.jsonl", "--span", "bad", "--no-check", "--rerank", "0"]
    for size in ("1", "2"):
        done = run(*command, "--prompts-per-batch", size, "--json", "out.json", "--html", "out.html", "--keep", "kept")
        assert done.exit_code == 1, done.stderr
        said = (
            "error: prompts.jsonl: line {} is not explained: --span is 'bad', which is not in the response 'a {} plot'"
        )
        assert said.format(1, "good") in done.stderr and said.format(3, "dull") in done.stderr
        assert done.stderr.splitlines()[-1] == "captum-iba: error: 2 of 3 prompts are not explained"
        assert done.stdout.startswith("bad. the bad film\n")
        assert [entry["id"] for entry in json.loads(Path("out.json").read_text("utf-8"))] == ["bad"]
        page = Path("out.html").read_text("utf-8")
        assert "the good film" not in page and "line 3 is not explained" in page
    assert len(list(Path("kept").iterdir())) == 1
    done = run(*command[:-4], "no", "--json", "none.json")
    assert done.exit_code == 1 and "3 of 3 prompts are not explained" in done.stderr and not Path("none.json").exists()
    explainer = GenerationExplainer.from_pretrained("llama")
    prompts, responses = ([row[name] for row in rows] for name in ("prompt", "response"))
    with pytest.raises(ValueError, match=re.escape("prompts[0]: span is 'bad', which is not in the response")):
        explain_prompts(LocalExecutor(), explainer, prompts, responses, span="bad", n_steps=2)


@pytest.mark.parametrize(
    ("rows", "arguments", "says"),
    [
        ([{"text": "a"}], [], "has no column 'prompt' or 'messages'; name it by --prompt-column: 'text'"),
        ([{"prompt": "a"}], ["--prompt-column", "q"], "--prompt-column: prompts.jsonl has no column 'q'"),
        ([{"prompt": "a"}, {"prompt": 7}, {"prompt": [8]}], [], "line 2 has a value of type int, expected a text"),
        ([{"prompt": 7}, {"prompt": 8}], [], "chat messages; line 2 cannot be read either."),
        ([{"prompt": 7}], [], "line 1 has a value of type int, expected a text, or a list of chat messages"),
        ([{"prompt": " "}], [], "--file: prompts.jsonl has empty prompts alone, expected prompts"),
        ([{"prompt": "a", "response": "b"}], ["--response", "c"], "--response: the responses are in the file already"),
        ([{"messages": [{"role": "user", "content": 7}]}], [], "the content of message 0 is an int, expected a string"),
    ],
)
def test_tables_of_prompts_that_cannot_be_read(language_model, rows, arguments, says):
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = run(*language_model, "--file", "prompts.jsonl", *arguments)
    assert done.exit_code and says in " ".join(done.stderr.split())


def test_rows_without_a_prompt_and_columns_that_are_not_read_are_told(language_model):
    rows = [{"prompt": "the film"}, {"prompt": ""}, {"prompt": "a plot", "span": "bad", "source": "x"}]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = run(*language_model, "--file", "prompts.jsonl", "--json", "found.json")
    assert done.exit_code == 0, done.output
    assert "prompts.jsonl: left out, because the prompt is empty: line 2" in done.stderr
    assert "columns that are not read: span, source; --span is for all rows" in done.stderr
    assert [one["id"] for one in json.loads(Path("found.json").read_text("utf-8"))] == ["1", "3"]


def test_a_damaged_table_is_named_by_its_option(language_model):
    Path("prompts.jsonl").write_text("{bad", encoding="utf-8")
    done = run(*language_model, "--file", "prompts.jsonl")
    assert done.exit_code == 1 and "--file: prompts.jsonl cannot be read: line 1 is not JSON" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "PROMPT and --file: expected one of them"),
        (["the film", "--prompt-column", "prompt"], "--prompt-column is for a table"),
        (["the film", "--file", "-"], "PROMPT and --file: expected one of them"),
        (["the film", "--chat"], "--chat: the tokenizer has no chat template"),
        (["the film", "--response", "a film", "--span", "plot"], "span is 'plot', which is not in the response"),
        (["--file", "nowhere.txt"], "nowhere.txt does not exist"),
        (["the film", "--response", ""], "response is '', without any token"),
        ([""], "PROMPT is empty, expected a prompt."),
        (["the film", "--html", "-"], "--html: expected a file"),
        (["the film", "--device", "gpu"], "--device is gpu"),
    ],
)
def test_explain_response_errors_are_one_line(language_model, arguments, says, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([*language_model, *arguments])
    told = capsys.readouterr()
    assert left.value.code and says in told.err.strip().splitlines()[-1] and not told.out


def test_a_language_model_is_no_classifier(language_model):
    done = run("explain", "--model", "llama", "the film")
    assert done.exit_code == 1 and "explain-response` explain what language models generate" in done.stderr


@pytest.mark.parametrize("column", ["messages", "chat"])
def test_messages_in_a_csv_are_messages(language_model, column):
    """In JSON, in any column; what Python spells otherwise is refused, and was explained as text."""
    talk = [{"role": "user", "content": "the film"}, {"role": "assistant", "content": "a plot"}]
    options = ["--prompt-column", column, "--file", "talks.csv", "--json", "out.json"]
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer = transformers.AutoTokenizer.from_pretrained("llama")
    tokenizer.chat_template = template
    tokenizer.save_pretrained("llama")
    cell = json.dumps(talk).replace('"', '""')
    Path("talks.csv").write_text(f'{column}\n"{cell}"\n', encoding="utf-8")
    done = run(*language_model, *options)
    assert done.exit_code == 0, done.stderr
    (result,) = json.loads(Path("out.json").read_text("utf-8"))
    assert result["response"] == "a plot" and [part["text"] for part in result["parts"]] == ["the", "film"]
    Path("talks.csv").write_text(f'{column}\n"{talk}"\n', encoding="utf-8")
    done = run(*language_model, *options)
    assert done.exit_code == 1 and f"in the column '{column}', expected chat messages as a JSON list" in done.stderr


@pytest.fixture
def compared(language_model):
    rows = [{"prompt": "the film was good .", "response": "a good film"}, {"prompt": "a dull plot !", "response": ""}]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = ["--methods", "leave_one_out,random", "--max-new-tokens", "3"]
    return ["compare-responses", "--model", "llama", "--file", "prompts.jsonl", "--out", "out", *options]


def test_compare_responses(compared):
    done = run(*compared)
    assert done.exit_code == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    assert table[0] == ["drop@1", "drop@3", "drop@5", "aopc", "lds", "passes", "seconds"]
    assert [row[0] for row in table[1:3]] == ["leave_one_out", "random"] and float(table[1][1]) >= float(table[2][1])
    assert "2 of 2 prompts, 2 methods" in done.stderr and "wrote out/table.md" in done.stderr
    rows = [json.loads(line) for line in Path("out/rows.jsonl").read_text("utf-8").splitlines()]
    expected = [(i, method) for i in (0, 1) for method in ("leave_one_out", "random")]
    assert [(row["prompt"], row["method"]) for row in rows] == expected
    # The same command computes nothing anew.
    before = Path("out/rows.jsonl").read_bytes()
    assert run(*compared).stdout == done.stdout and Path("out/rows.jsonl").read_bytes() == before
    other = run(*compared, "--by", "sentence")
    assert other.exit_code == 1 and "out has a comparison with another prompts" in other.stderr


def test_a_row_that_cannot_be_explained_is_named_and_left_out(compared):
    rows = [{"prompt": "the film was good ."}, {"prompt": "a dull plot !"}, {"prompt": "the film " * 1500}]
    Path("prompts.jsonl").write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = run(*compared)
    assert done.exit_code == 0, done.stderr
    assert "prompts.jsonl: line 5 is left out: prompt and response have 3003 tokens, expected at most" in done.stderr
    assert "Left out, because a method failed: 1 prompt" in done.stdout
    done = run("explain-response", "--model", "llama", "--file", "prompts.jsonl", "--steps", "2")
    assert done.exit_code == 1 and "line 5 is not explained: prompt and response have 3003 tokens" in done.stderr
    assert done.stdout.count("\nllama: ") == 2


def test_a_sample_of_prompts_is_the_same_each_time(compared):
    for number in range(2):
        done = run(*compared[:-6], "--out", f"out{number}", "--methods", "random", "--examples", "1", "--seed", "3")
        assert done.exit_code == 0 and "1 of 2 prompts, 1 method" in done.stderr, done.stderr
    first, second = (json.loads(Path(f"out{number}/rows.jsonl").read_text("utf-8")) for number in range(2))
    assert first["scores"] == second["scores"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "iba,best"], "--methods: there is no method 'best', expected some of iba, iba_bits"),
        (["--file", "prompts.txt"], "--file: prompts.txt is no table, expected CSV, JSON lines or parquet"),
        (["--file", "nowhere.csv"], "nowhere.csv does not exist"),
        (["--chat"], "--chat: the tokenizer has no chat template"),
        (["--out", "prompts.txt"], "prompts.txt is a file, expected a folder"),
        (["--device", "gpu"], "--device is gpu"),
    ],
)
def test_compare_responses_errors_are_one_line(compared, arguments, says, capsys):
    Path("prompts.txt").write_text("a film", encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        cli.main([*compared, *arguments])
    told = capsys.readouterr()
    assert left.value.code and says in told.err.strip().splitlines()[-1] and not told.out


def test_rows_without_a_prompt_are_told_by_quiet_commands_and_pages(language_model):
    """A row was in no output, and a quiet command did not say so."""
    rows = [{"prompt": "the good film", "response": "a plot"}, {"prompt": " ", "response": "x"}]
    Path("some.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = run(*language_model, "--file", "some.jsonl", "-q", "--no-check", "--rerank", "0", "--html", "some.html")
    assert done.exit_code == 0 and "some.jsonl: left out, because the prompt is empty: line 2" in done.stderr
    assert "Left out, because the prompt is empty: line 2." in Path("some.html").read_text("utf-8")


def test_a_file_of_one_row_that_cannot_be_explained_is_named(language_model):
    Path("one.jsonl").write_text(json.dumps({"prompt": "the good film", "response": "a plot"}), encoding="utf-8")
    done = run(*language_model, "--file", "one.jsonl", "--span", "bad", "--no-check", "--rerank", "0")
    assert done.exit_code == 1 and "one.jsonl: line 1 is not explained: --span is 'bad', which is not" in done.stderr


def test_pages_name_some_of_what_is_not_explained():
    failures = Failures("prompts")
    assert failures.introduction == ""
    for number in range(7):
        failures.tell(number, f"line {number}", ValueError("prompt is <b>,\n expected another."))
    told = failures.introduction
    assert told.startswith("line 0 is not explained: prompt is <b>, expected another. line 1")
    assert told.endswith("2 more of the prompts are not explained.") and "line 5" not in told
