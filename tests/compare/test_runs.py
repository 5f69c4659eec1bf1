import pytest

from captum_iba.compare.runs import PAPER, folder_name, parse_runs, reference
from captum_iba.methods import find_method


def names(*arguments, **settings):
    return [run.name for run in parse_runs(*arguments, **settings)]


def test_commas_between_methods_and_between_settings():
    runs = parse_runs("iba@layer=3,beta=0.1, ig:abs,lime@n_samples=100,layer=bert.encoder")
    assert [run.name for run in runs] == ["iba@layer=3,beta=0.1", "ig:abs", "lime@n_samples=100,layer=bert.encoder"]
    assert [run.method for run in runs] == ["iba", "ig:abs", "lime"]
    assert [run.layer for run in runs] == [3, None, "bert.encoder"]
    assert [run.options for run in runs] == [(("beta", 0.1),), (), (("n_samples", 100),)]


def test_several_layers_with_one_mask():
    runs = parse_runs("iba@layer=1+3+6,beta=1e+2,iba@layer=bert.pooler+2", layers=None)
    assert [(run.name, run.layer) for run in runs] == [
        ("iba@layer=1+3+6,beta=1e+2", (1, 3, 6)),
        ("iba@layer=bert.pooler+2", ("bert.pooler", 2)),
    ]
    assert runs[0].options == (("beta", 100.0),)
    assert names("iba", layers="2,1+3") == ["iba@layer=2", "iba@layer=1+3"]


def test_yes_and_no():
    assert [parse_runs(f"lime@bow={value}")[0].options for value in ("False", "true")] == [
        (("bow", False),),
        (("bow", True),),
    ]


def test_variants_of_iba():
    assert names("iba", layers="all") == ["iba"]
    assert names("iba,ig", layers="1..3") == ["iba@layer=1", "iba@layer=2", "iba@layer=3", "ig"]
    assert names("iba", layers="all,2") == ["iba", "iba@layer=2"]
    assert names("ig,iba", layers="1,3", betas="0.1,1e-5") == [
        "ig",
        *(f"iba@layer={layer},beta={beta}" for layer in (1, 3) for beta in ("0.1", "1e-5")),
    ]


def test_random_runs_with_several_seeds_and_has_one_row():
    runs = parse_runs("random", seed=4, random_seeds=3)
    assert [(run.row, run.name, run.seed) for run in runs] == [("random", f"random@seed={i}", i) for i in (4, 5, 6)]
    (one,) = parse_runs("random@seed=9")
    assert (one.row, one.seed) == ("random@seed=9", 9)


def test_the_rows_of_the_paper():
    runs = parse_runs(PAPER, random_seeds=5)
    assert {run.counting for run in runs if run.row in ("iba", "iba_paper", "ig", "lime", "random")} == {"removable"}
    released = ["iba_as_released", "ig_as_released", "lime_as_released", "random@counting=as_released"]
    assert list(dict.fromkeys(run.row for run in runs if run.counting == "as_released")) == released
    assert len(runs) == 7 + 2 * 5
    for run in runs:
        find_method(run.method)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (["ig", "iba@layer=1", "iba"], "iba"),
        (["ig", "iba@layer=1", "iba@layer=2"], "iba@layer=1"),
        (["ig", "random"], None),
        (["iba_paper"], None),
    ],
)
def test_reference(rows, found):
    assert reference(rows) == found


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        (" , ", {}, "at least one"),
        ("ig,ig", {}, "ig is there more than once"),
        ("i g", {}, "not of the form NAME"),
        ("ig@", {}, "not of the form NAME"),
        ("ig@steps", {}, "no setting of the form key=value"),
        ("ig@steps=1,steps=2", {}, "is there twice"),
        ("ig@counting=best", {}, "counting"),
        ("ig@seed=x", {}, "seed"),
        ("ig", {"layers": "1"}, "which is not among 'ig'"),
        ("iba@n_steps=3", {"layers": "1"}, "which is not among 'iba@n_steps=3'"),
        ("iba", {"layers": "3..1"}, "'3..1' is neither"),
        ("iba", {"layers": "1+"}, "'1\\+' is neither"),
        ("iba", {"layers": "one"}, "'one' is neither"),
        ("iba", {"betas": "much"}, "'much' is not a number"),
        ("random", {"random_seeds": 0}, "at least 1, got 0"),
    ],
)
def test_what_cannot_be_read(arguments, settings, says):
    with pytest.raises(ValueError, match=says):
        parse_runs(arguments, **settings)


def test_folders_suit_every_system_and_differ():
    given = ["ig:abs", "ig", "iba@layer=3,beta=0.1", "iba@layer=bert.encoder.0"]
    folders = [folder_name(name) for name in given]
    assert len(set(folders)) == 4 and not any(letter in folder for folder in folders for letter in ':/\\*?"<>|')
