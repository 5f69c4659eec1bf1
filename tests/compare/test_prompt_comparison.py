"""Methods compared on prompts: metrics, costs, the rows in a folder, and errors."""

import json

import pytest
import torch

from captum_iba.compare.prompt_comparison import PromptComparison, PromptRow, compare_prompts
from captum_iba.methods.prompt_methods import PROMPT_METHODS, information_bottleneck_of_prompt
from captum_iba.text import GenerationExplainer
from tests.text.conftest import llama, wordpiece  # noqa: F401

PROMPTS = ["the film was not good . a dull plot !", "a bad plot", [{"role": "user", "content": "the film"}]]
RESPONSES = ["a bad film", None, "good"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }} . {% endfor %}"


@pytest.fixture
def explainer(llama, wordpiece):  # noqa: F811
    before, wordpiece.chat_template = wordpiece.chat_template, TEMPLATE
    yield GenerationExplainer(llama, wordpiece)
    wordpiece.chat_template = before


def quick(task):
    return information_bottleneck_of_prompt(task, n_steps=2)


def words_by_length(task):
    return torch.tensor([float(len(name)) for name in task.prompt.names])


def test_a_row_has_what_is_lost_and_what_it_costs(explainer):
    result = compare_prompts(explainer, PROMPTS, RESPONSES, {"iba": quick, "leave_one_out": _leave_one_out()})
    assert [(row.prompt, row.method) for row in result.rows] == [
        (number, method) for number in range(3) for method in ("iba", "leave_one_out")
    ]
    first, second = result.rows[:2]
    explained = explainer.explain(PROMPTS[0], RESPONSES[0], n_steps=2)
    assert first.parts == tuple(part.text for part in explained.parts)
    assert first.scores == pytest.approx(explained.scores)
    removal = explainer.removal(PROMPTS[0], RESPONSES[0])
    n_parts = len(first.parts)
    without = ~torch.eye(n_parts, dtype=torch.bool)
    full = float(removal(torch.ones(1, n_parts, dtype=torch.bool)))
    assert second.scores == pytest.approx((full - removal(without)).tolist(), abs=1e-5)
    assert second.values["drop@1"] == pytest.approx(max(second.scores), abs=1e-5)
    assert second.values["passes"] == n_parts + 1
    # 2 steps forward and back; one pass without a mask, through the final one and through a closed one; the removals.
    n_measured = sum(part.effect is not None for part in explained.parts)
    assert first.values["passes"] == 2 * 2 + 3 + 2 * n_measured + (2 if n_measured < n_parts else 1)
    order = torch.tensor(second.scores).argsort(descending=True)
    kept = torch.ones(1, n_parts, dtype=torch.bool)
    kept[0, order[:3]] = False
    assert second.values["drop@3"] == pytest.approx(full - float(removal(kept)), abs=1e-5)


def test_where_all_parts_are_removed_there_is_no_value(explainer):
    """All methods lose the same there: drop@5 of a prompt of three words said nothing of them."""
    result = compare_prompts(explainer, PROMPTS, ["a bad film", "bad", "good"], {"a": words_by_length})
    assert [len(row.parts) for row in result.rows] == [10, 3, 2]
    known = [[row.values[f"drop@{count}"] is not None for count in (1, 3, 5)] for row in result.rows]
    assert known == [[True] * 3, [True, False, False], [True, False, False]]
    assert result.values("a", "drop@3").isnan().tolist() == [False, True, True]
    assert result.values("a", "aopc").isfinite().all()
    column = result.to_markdown().split("\n")[2].split("|")[3].strip()
    assert column == f"{result.rows[0].values['drop@3']:.2f}"  # the mean of those that have a value
    assert "of prompts with more than k parts" in str(result)
    few = compare_prompts(explainer, ["a plot"], ["bad"], {"a": words_by_length, "b": words_by_length})
    assert "nan" in str(few) and few.difference("b", "drop@5") is None


def _leave_one_out():
    return PROMPT_METHODS["leave_one_out"]


def test_responses_are_generated_once(explainer):
    text = explainer.explain(PROMPTS[1]).response
    seen = []

    def look(task):
        seen.append(task.response)
        return words_by_length(task)

    compare_prompts(explainer, [PROMPTS[1]], methods={"a": look, "b": look})
    assert seen[0] == seen[1] and explainer.tokenizer.decode(seen[0]) == text


def test_a_sampled_response_is_that_of_all_methods(explainer, tmp_path):
    asked = {"gen_args": {"do_sample": True, "max_new_tokens": 4}, "folder": tmp_path}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        compare_prompts(explainer, PROMPTS[1:], methods={"a": words_by_length}, **asked)
        torch.manual_seed(1)
        both = compare_prompts(explainer, PROMPTS[1:], methods={"a": words_by_length, "b": words_by_length}, **asked)
    for column in ("drop@1", "aopc", "lds"):
        assert both.values("a", column) == pytest.approx(both.values("b", column), abs=1e-6, nan_ok=True)
    assert [row.response for row in both.rows[::2]] == [row.response for row in both.rows[1::2]]


def test_line_separators_in_a_part_end_no_line_of_the_folder(explainer, tmp_path):
    asked = {"methods": {"a": words_by_length}, "granularity": "paragraph", "n_removals": 2, "folder": tmp_path}
    first, second = (compare_prompts(explainer, ["the film\u2028was good"], ["bad"], **asked) for _ in range(2))
    assert first.rows == second.rows and "\u2028" in first.rows[0].parts[0]


def test_a_line_that_was_cut_in_a_character_is_not_there(explainer, tmp_path):
    given = (explainer, ["the film é", "a plot é"], ["good", "bad"], ["random"])
    compare_prompts(*given, folder=tmp_path)
    rows = tmp_path / "rows.jsonl"
    content = rows.read_bytes()
    rows.write_bytes(content[: content.rindex("é".encode()) + 1])
    assert len(compare_prompts(*given, folder=tmp_path).rows) == 2
    assert [json.loads(line)["prompt"] for line in rows.read_text(encoding="utf-8").splitlines()] == [0, 1]


def test_scores_that_are_not_finite_are_a_failure_of_the_method(explainer):
    def broken(task):
        return torch.full((task.n_parts,), float("nan" if task.n_parts == 3 else "1"))

    rows = compare_prompts(explainer, PROMPTS, RESPONSES, {"broken": broken}).rows
    assert [row.error is None for row in rows] == [True, False, True]
    assert "expected one finite number per part" in str(rows[1].error)


def test_copies_of_a_generated_response_are_warned_of(explainer):
    with pytest.warns(UserWarning, match="prompts has a prompt twice, both with a generated response"):
        compare_prompts(explainer, ["the film", "the film"], None, ["random"])


def test_what_failed_is_tried_again(explainer, tmp_path):
    def fragile(task):
        if not (tmp_path / "enough").exists():
            raise RuntimeError("out of memory")
        return words_by_length(task)

    first = compare_prompts(explainer, PROMPTS[1:2], methods={"a": fragile}, folder=tmp_path / "rows")
    assert first.rows[0].error == "RuntimeError: out of memory"
    (tmp_path / "enough").touch()
    for _ in range(2):
        again = compare_prompts(explainer, PROMPTS[1:2], methods={"a": fragile}, folder=tmp_path / "rows")
        assert [row.error for row in again.rows] == [None]


def test_a_comparison_goes_on_and_grows(explainer, tmp_path):
    counted = []
    first = compare_prompts(explainer, PROMPTS[:2], methods={"length": words_by_length}, folder=tmp_path)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"prompt": 1, "met')  # killed in the middle of a line
    grown = compare_prompts(
        explainer,
        PROMPTS[:2],
        methods={"length": words_by_length, "random": PROMPT_METHODS["random"]},
        folder=tmp_path,
        on_row=counted.append,
    )
    assert counted == [3, 4] and grown.rows[::2] == first.rows
    assert (tmp_path / "table.md").read_text("utf-8").count("\n| ") == 2
    assert len((tmp_path / "rows.jsonl").read_text("utf-8").splitlines()) == 4
    # Another function of this name is another method.
    other = compare_prompts(
        explainer, PROMPTS[:2], methods={"length": lambda task: -words_by_length(task)}, folder=tmp_path
    )
    assert other.rows[0].scores == tuple(-score for score in first.rows[0].scores)
    with pytest.raises(ValueError, match="has a comparison with another seed .was 0, is 1"):
        compare_prompts(explainer, PROMPTS[:2], methods=["random"], folder=tmp_path, seed=1)
    with pytest.raises(ValueError, match="has a comparison with another prompts"):
        compare_prompts(explainer, PROMPTS[1:], methods=["random"], folder=tmp_path)
    with torch.no_grad():
        explainer.model.lm_head.weight[0] += 1
    with pytest.raises(ValueError, match="has a comparison with another model"):
        compare_prompts(explainer, PROMPTS[:2], methods=["random"], folder=tmp_path)


def test_a_method_that_fails_is_recorded(explainer):
    def fails(task):
        if len(task.prompt.names) < 5:
            raise ValueError("too few")
        return words_by_length(task)

    result = compare_prompts(explainer, PROMPTS[:2], methods={"length": words_by_length, "fails": fails})
    assert [row.error for row in result.rows] == [None, None, None, "ValueError: too few"]
    assert len(result.values("length", "aopc")) == len(result.values("fails", "aopc")) == 1
    assert (
        "Left out, because a method failed: 1 prompt; the first, fails by ValueError: too few" in result.to_markdown()
    )


def test_prompts_that_cannot_be_explained_are_left_out(explainer, tmp_path, monkeypatch):
    prompts, names = ["the film was good", " ", "a dull plot", "ends"], ["one", "two", "three", "four"]
    generated = type(explainer.model).generate

    def ends_at_once(self, ids, **arguments):
        return ids if ids[0].tolist() == ends else generated(self, ids, **arguments)

    ends = explainer.read("ends").ids
    monkeypatch.setattr(type(explainer.model), "generate", ends_at_once)
    arguments = {"methods": ["random", "leave_one_out"], "folder": tmp_path, "gen_args": {"max_new_tokens": 2}}
    with pytest.warns(UserWarning) as caught:
        result = compare_prompts(explainer, prompts, names=names, **arguments)
    assert [str(warning.message) for warning in caught] == [
        "two is left out: prompt is ' ', without any word, expected a prompt",
        "four is left out: response is None, and generation ended at once; expected a response to explain",
    ]
    failed = {row.prompt: row.error for row in result.rows if row.error is not None}
    assert failed.keys() == {1, 3} and failed[1] == "ValueError: prompt is ' ', without any word, expected a prompt"
    assert len(result.values("random", "aopc")) == 2 and "Left out, because a method failed: 2 prompts" in str(result)
    monkeypatch.undo()  # what failed is tried again, and the others are kept
    with pytest.warns(UserWarning, match="two is left out"):
        again = compare_prompts(explainer, prompts, names=names, **arguments)
    assert {row.prompt for row in again.rows if row.error is not None} == {1}
    assert [row for row in again.rows if row.prompt in (0, 2)] == [row for row in result.rows if row.prompt in (0, 2)]


def test_intervals_of_paired_differences():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(30, generator=generator).tolist()
    columns = PromptComparison(("iba",), ()).columns

    def rows(method, shift):
        return [
            PromptRow(
                i, method, ("a",), (1.0,), {**dict.fromkeys(columns, 1.0), "aopc": noise[i] + shift * (1 + i % 3)}
            )
            for i in range(30)
        ]

    result = PromptComparison(("iba", "less"), (*rows("iba", 0.5), *rows("less", 0.0)))
    interval = result.difference("less", "aopc")
    assert interval.mean == pytest.approx(1.0) and 0.8 < interval.low < 1 < interval.high < 1.2
    assert "(+1.00 [" in result.to_markdown() and "▼" in result.to_markdown()
    assert str(result).splitlines()[1].startswith("iba ")
    few = PromptComparison(("iba", "less"), tuple(row for row in result.rows if row.prompt < 19))
    assert few.difference("less", "aopc") is None
    assert "There are no intervals for fewer than 20 prompts" in few.to_markdown()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"prompts": "a film"}, TypeError, "prompts is one prompt"),
        ({"prompts": []}, ValueError, "prompts is empty"),
        ({"prompts": ["  ", " "]}, ValueError, r"prompts\[0\]: prompt is '  '"),
        ({"names": ["first"]}, ValueError, "names has 1, expected one for each of the 2 prompts"),
        ({"responses": ["a"]}, ValueError, "responses has 1, expected one for each of the 2 prompts"),
        ({"methods": ["iba", "best"]}, ValueError, "methods has 'best', expected names among iba, iba_bits, random"),
        ({"methods": ["iba", "iba"]}, ValueError, "expected each once"),
        ({"methods": []}, ValueError, "methods is empty"),
        ({"granularity": "line"}, ValueError, r"prompts\[0\]: granularity is 'line'"),
        ({"granularity": [[(0, 3)]]}, ValueError, "granularity has 1, expected one for each of the 2 prompts"),
        ({"n_removals": 1}, ValueError, "n_removals is 1"),
        ({"seed": 0.5}, ValueError, "seed is 0.5"),
    ],
)
def test_bad_input(explainer, change, error, says):
    with pytest.raises(error, match=says):
        compare_prompts(explainer, **{"prompts": ["a film", "a plot"], "methods": ["random"], **change})


def test_parts_by_spans(explainer):
    result = compare_prompts(
        explainer, [PROMPTS[0]], ["a bad film"], {"length": words_by_length}, granularity=[[(4, 8), (31, 35)]]
    )
    assert result.rows[0].parts == ("film", "plot")


def test_the_model_is_left_as_it_was(explainer):
    before = {name: value.clone() for name, value in explainer.model.state_dict().items()}
    state = torch.get_rng_state()
    compare_prompts(explainer, PROMPTS[:1], methods=list(PROMPT_METHODS))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in explainer.model.state_dict().items())
    assert not explainer.model._forward_pre_hooks and explainer.model.config._attn_implementation == "sdpa"
    assert all(parameter.requires_grad and parameter.grad is None for parameter in explainer.model.parameters())


def test_rows_are_json(explainer, tmp_path):
    compare_prompts(explainer, PROMPTS[:1], methods=["random"], folder=tmp_path / "new")
    row = json.loads((tmp_path / "new" / "rows.jsonl").read_text("utf-8"))
    assert row["method"] == "random" and len(row["scores"]) == len(row["parts"]) == 10
    with pytest.raises(NotADirectoryError, match="is a file, expected a folder"):
        compare_prompts(explainer, PROMPTS[:1], methods=["random"], folder=tmp_path / "new" / "rows.jsonl")
