import dataclasses
import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from captum.attr import LayerAttribution, visualization

from captum_iba import BottleneckTrace, InformationBottleneckAttribution
from captum_iba.metrics import Degradation, paired_bootstrap
from captum_iba.text import TextTrace
from captum_iba.visualization import (
    plot_before_after,
    plot_degradation,
    plot_layers,
    plot_sweep,
    plot_tokens,
    plot_trace,
    save_figure,
    visualization_records,
)
from captum_iba.visualization.curves import degradation_bands
from captum_iba.visualization.figures import new_figure
from tests.visualization.examples import attribution, scores

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("scipy")


def words_in(ax):
    return [text.get_text() for text in ax.texts]


def boxes(ax):
    """The colors behind the words, in order: white and none are no color."""
    from matplotlib.colors import to_hex

    return [to_hex(patch.get_facecolor(), keep_alpha=True) for patch in ax.patches]


def test_words_stand_on_their_colors():
    fig, ax = plot_tokens(attribution("no some most", bits=[0.0, 9.0, 99.0]))
    assert words_in(ax)[:4] == ["[CLS]", "no", "some", "most"] and words_in(ax)[-1] == "bits above the floor"
    colors = boxes(ax)[:4]
    assert colors[:2] == ["#00000000"] * 2 and colors[3] == "#08306bff" and colors[2] not in colors[:2]
    assert fig is ax.figure


def test_signed_words_stand_on_two_sides():
    _, ax = plot_tokens(scores("for none against", [1.0, 0.0, -1.0]))
    assert boxes(ax)[1:4] == ["#8f4606ff", "#00000000", "#542788ff"]
    assert {"−1", "0", "1", "score"} <= set(words_in(ax))


def test_nan_and_infinity_are_hatched():
    _, ax = plot_tokens(attribution("what is this", bits=[math.nan, math.inf, 2.0]))
    assert [bool(patch.get_hatch()) for patch in ax.patches[:4]] == [False, True, True, False]
    _, ax = plot_layers([attribution("what is this", bits=[math.nan, math.inf, 2.0])])
    assert [patch.get_hatch() for patch in ax.patches] == ["////", "////"]


def test_all_zero_has_no_color():
    _, ax = plot_tokens(scores("nothing here", [0.0, 0.0]))
    assert set(boxes(ax)[:3]) == {"#00000000"}


def test_long_texts_are_broken_into_lines():
    fig, ax = plot_tokens(attribution(" ".join(["word"] * 60) + " " + "x" * 300))
    fig.draw_without_rendering()
    box = ax.get_window_extent()
    for text in ax.texts:
        extent = text.get_window_extent()
        assert box.x0 - 2 <= extent.x0 and extent.x1 <= box.x1 + 2
        assert box.y0 - 2 <= extent.y0 and extent.y1 <= box.y1 + 2


@pytest.mark.parametrize("text", ["$5 and $6", "a_b ^2 \\frac", "<b>bold</b> &amp;", "first\nsecond", "\u202e x"])
def test_texts_are_drawn_as_they_are(text):
    text = text.replace("\n", " ")
    one = attribution(text)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        for fig, ax in (plot_tokens(one), plot_layers([one])):
            fig.draw_without_rendering()
            drawn = words_in(ax) or [label.get_text() for label in ax.get_xticklabels()]
            assert all(word in drawn for word in text.split(" "))


def test_layers_are_rows():
    rows = [attribution("a film", bits=[3.0 * n, 99.0], layer=n) for n in (1, 2, 3)]
    _, ax = plot_layers(rows)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2", "3"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["[CLS]", "a", "film"]
    drawn = ax.images[0].get_array()
    assert drawn.shape == (3, 3)
    np.testing.assert_allclose(drawn[:, 1], np.array([3.0, 6.0, 9.0]) / 99)
    with pytest.raises(ValueError, match="one text"):
        plot_layers([rows[0], attribution("other")])
    with pytest.raises(ValueError, match="at least one"):
        plot_layers([])


def test_layers_of_several_classes_or_pairs_are_refused():
    one = attribution("a film", pair="good")
    for changes in ({"target": 0}, {"pair": "dull"}):
        other = dataclasses.replace(one, **changes)
        for plot in (lambda of: plot_layers(of), lambda of: plot_before_after([of])):
            with pytest.raises(
                ValueError, match=r"(attributions|pairs) has attributions of (the classes|several texts)"
            ):
                plot((one, other))


def test_before_and_after_share_a_scale():
    pairs = [(attribution("a film", bits=[99.0, 99.0], layer=n), attribution("a film", layer=n)) for n in (1, 2)]
    fig, (before, after) = plot_before_after(pairs)
    assert before.images[0].get_array().max() == 1.0
    assert after.images[0].get_array().max() == pytest.approx(1 / 99)
    assert before.get_title() and after.get_title() and len(fig.axes) == 3


def curve(falls, count=6):
    return torch.tensor([[0.9 + 0.01 * i - falls * k for k in range(10)] for i in range(count)], dtype=torch.float64)


def degraded(probability, share):
    share = torch.tensor(share).expand(len(probability), -1)
    return Degradation(probability, probability, torch.zeros(probability.shape, dtype=torch.int64), share)


def test_degradation_is_means_and_intervals():
    values = curve(0.05)
    _, ax = plot_degradation({"a": values, "b": degraded(values[:, :3], [0.0, 0.25, 0.5])})
    a, b = ax.get_lines()[:2]
    np.testing.assert_allclose(a.get_ydata(), values.mean(0))
    np.testing.assert_allclose(a.get_xdata(), [k / 9 for k in range(10)])
    np.testing.assert_allclose(b.get_xdata(), [0.0, 0.25, 0.5])
    _, low, high = paired_bootstrap(values[:, 0], n_resamples=999)
    band = ax.collections[0].get_paths()[0].vertices
    assert {low, high} <= set(band[band[:, 0] == 0][:, 1])


def test_normalized_curves_run_from_1_to_0():
    _, ax = plot_degradation({"a": curve(0.08), "b": curve(0.03)}, normalized=True)
    a, b = (line.get_ydata() for line in ax.get_lines()[:2])
    np.testing.assert_allclose(a, [1 - k / 9 for k in range(10)])
    np.testing.assert_allclose(b, [1 - 0.03 * k / 0.72 for k in range(10)])
    with pytest.raises(ValueError, match="normalized"):
        plot_degradation({"a": curve(-0.01)}, normalized=True)


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(0, 4), torch.full((2, 3), math.nan)])
def test_wrong_curves_are_an_error(wrong):
    with pytest.raises(ValueError, match=r"'a'|NaN"):
        plot_degradation({"a": wrong})
    with pytest.raises(ValueError, match="curves"):
        plot_degradation({})


def test_sweep():
    points = {0.1: [0.2, 0.4], 10: [0.5, 0.7], 1: torch.tensor([0.3, 0.5])}
    _, ax = plot_sweep(points, "beta", log=True, reference={"ig": [0.1, 0.3]})
    line = ax.get_lines()[0]
    np.testing.assert_allclose(line.get_xdata(), [0.1, 1, 10])
    np.testing.assert_allclose(line.get_ydata(), [0.3, 0.4, 0.6])
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "beta" and ax.get_ylabel() == "drop at 1/9"
    np.testing.assert_allclose(ax.get_lines()[1].get_ydata(), 0.2)
    with pytest.raises(ValueError, match="logarithmic"):
        plot_sweep({0: [1.0]}, "beta", log=True)
    with pytest.raises(ValueError, match="at least one"):
        plot_sweep({}, "beta")


def test_trace():
    _, ax = plot_trace(TextTrace((1.0, 0.5), (9.0, 3.5), (0.5, 0.8)))
    right = ax.figure.axes[1]
    assert ax.get_lines()[0].get_ydata().tolist() == [9.0, 3.5]
    assert right.get_lines()[0].get_ydata().tolist() == [0.5, 0.8]
    rows = BottleneckTrace(*(torch.rand(2, 4) for _ in range(4)))
    _, ax = plot_trace(BottleneckTrace(*(part[1] for part in rows)))
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), rows.information[1])
    with pytest.raises(ValueError, match="one example"):
        plot_trace(rows)


def every_figure(ax=None):
    one = attribution("a film")
    return [
        plot_tokens(one, ax),
        plot_layers([one], ax),
        plot_degradation({"a": curve(0.05)}, ax),
        plot_sweep({1: [0.2, 0.4], 2: [0.5, 0.7]}, "layer", ax, reference={"ig": [0.1, 0.3]}),
        plot_trace(TextTrace((1.0, 0.5), (9.0, 3.5), (0.5, 0.8)), ax),
    ]


def test_own_axes_are_drawn_on():
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    for fig, drawn in every_figure(ax):
        assert drawn is ax and fig is ax.figure


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_the_same_figure_is_the_same_file(tmp_path, kind):
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    for number, ((first, _), (second, _)) in enumerate(zip(every_figure(), every_figure(), strict=True)):
        path = save_figure(first, tmp_path / f"{number}.{kind}")
        assert path.read_bytes().startswith(starts[kind])
        assert save_figure(second, tmp_path / f"again.{kind}").read_bytes() == path.read_bytes()


def test_saving_says_what_is_wrong(tmp_path):
    fig, _ = plot_tokens(attribution("a film"))
    with pytest.raises(ValueError, match=r"path is 'film.gif', expected .*\.svg, \.png or \.pdf"):
        save_figure(fig, "film.gif")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        save_figure(fig, tmp_path / "no" / "film.svg")
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_a_figure():
    assert new_figure(2, 1)._repr_png_().startswith(b"\x89PNG")


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=400
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_is_light():
    heavy = ["transformers", "lime", "scipy", "matplotlib", "jinja2", "rich"]
    code = f"import sys, captum_iba.visualization; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(code) == "[]"


def test_nothing_of_the_rooms_above_is_imported():
    """Neither at run time nor for types: protocols say what is drawn."""
    package = Path(__file__).parents[2] / "captum_iba" / "visualization"
    imports = set(
        re.findall(r"^ *(?:from|import) captum_iba\.?(\w*)", "".join(map(Path.read_text, package.glob("*.py"))), re.M)
    )
    assert imports == {"_bootstrap", "_files", "_reading", "visualization"}


def test_without_matplotlib_it_says_what_to_install():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from captum_iba.visualization import plot_sweep, plot_trace\n"
        "from types import SimpleNamespace as S\n"
        "try: plot_trace(S(information=(1.0, 2.0), probability=(0.5, 0.5)))\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert "pip install 'captum-iba[plot]'" in run_python(code)


def test_records_for_captum(capsys):
    one = attribution("<b>a</b> film", bits=[math.nan, 2.0])
    records = visualization_records([one, dataclasses.replace(one, target_label="<i>")])
    assert [record.word_attributions.tolist() for record in records] == [[0.0, 1.0]] * 2
    page = visualization.visualize_text(records).data
    assert "&lt;b&gt;a&lt;/b&gt;" in page and "<b>a" not in page and "<i>" not in page


def test_bits_of_a_convolution_go_through_captums_drawing_of_images():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 4 * 4, 2),
    ).eval()
    images = torch.rand(2, 1, 8, 8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no statistics given")
        bits = InformationBottleneckAttribution(model, model[0]).attribute(images, target=1)
    assert bits.shape == (2, 4, 4, 4)
    large = LayerAttribution.interpolate(bits.sum(1, keepdim=True), (8, 8))
    fig, ax = visualization.visualize_image_attr(
        large[0].permute(1, 2, 0).numpy(),
        images[0].permute(1, 2, 0).numpy(),
        method="heat_map",
        sign="positive",
        use_pyplot=False,
    )
    drawn = ax.images[0].get_array()
    assert drawn.shape == (8, 8) and float(drawn.max()) > 0
    assert fig is ax.figure


def test_bands_of_probabilities_are_at_evenly_spaced_fractions():
    bands = degradation_bands({"iba": torch.tensor([[0.9, 0.5, 0.1], [0.9, 0.7, 0.3]])})
    assert bands["iba"].x == [0.0, 0.5, 1.0]
    assert bands["iba"].mean == pytest.approx([0.9, 0.6, 0.2])


@pytest.mark.parametrize("own_axes", [True, False])
def test_a_curve_whose_name_begins_with_an_underscore_is_in_the_legend(own_axes):
    from matplotlib.figure import Figure

    ax = Figure().subplots() if own_axes else None
    if own_axes:
        ax.plot([0, 1], [0, 1], label="there before")
    curves = {name: torch.tensor([[0.9, 0.5, 0.1], [0.8, 0.4, 0.1]]) for name in ("_mine", "ig", "$x_1$")}
    figure, ax = plot_degradation(curves, ax)
    legend = ax.get_legend() if own_axes else figure.legends[0]
    names = [text.get_text() for text in legend.get_texts()]
    assert names == (["there before"] if own_axes else []) + ["_mine", "ig", "$x_1$"]
    figure, _ = plot_sweep({1: [0.1, 0.3], 2: [0.4, 0.5]}, "layer", reference={"_mine": [0.2, 0.3]})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_mine"]
