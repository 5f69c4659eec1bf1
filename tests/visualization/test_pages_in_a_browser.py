"""The pages as a browser shows them: Chromium, driven by Playwright."""

import shutil

import pytest

from captum_iba._files import write_text
from captum_iba.compare import prepare, write_report
from captum_iba.visualization import method_map, method_page, token_map, token_page
from tests.compare.conftest import config_of, data_file, model_folder, own_cache, write_lines  # noqa: F401
from tests.text.conftest import bert, wordpiece  # noqa: F401
from tests.visualization.examples import attribution, scores

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install 'captum-iba[dev]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (Debian: apt install chromium)")

# The tiny model of the report reads 40 tokens of a text at most, so each of these is a text of its own there.
EVILS = (
    "<script>window.ran=1</script>",
    '<img src=x onerror="window.ran=1">',
    '"onmouseover=window.ran=1',
    "\u05d6\u05d4 👩\u200d🚀 film",
)
EVIL = " ".join(EVILS)
LONG = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen" * 4
NARROW, WIDE = 390, 1400
PAGES = ["demo", "tokens", "one", "methods", "notebook", "report"]


def layers(text, target="positive", probability=0.75):
    changes = {"target_label": target, "target_probability": probability}
    bits = [float(9 * number) for number in range(len(text.split(" ")))]
    return [attribution(text, bits, layer=n, **changes) for n in (1, 2, 3)]


def methods(text):
    count = len(text.split(" "))
    return [
        scores(text, [(-1.0) ** k for k in range(count)], method="ig"),
        scores(text, [float(k) for k in range(count)], method="saliency", signed=False),
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory, model_folder, data_file):  # noqa: F811
    """The report of a comparison on texts that would be markup."""
    from captum_iba.compare import ComparisonConfig

    folder = tmp_path_factory.mktemp("report")
    rows = [{"text": text, "label": 0} for text in (*EVILS, "not unbelievable film")]
    data = write_lines(folder / "texts.jsonl", rows)
    out = folder / "out"
    compared = [{"method": "iba", "n_steps": 2}, "leave_one_out", "saliency", "random"]
    config = ComparisonConfig(str(data), str(model_folder), compared, statistics_from=str(data), random_seeds=1)
    for _ in prepare(config, out).run():
        pass
    write_report(out)
    return out / "report.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory, report):
    """Where each page lies, by name."""
    folder = tmp_path_factory.mktemp("pages")
    texts = [EVIL, f"a {LONG} film", "the plot"]
    probabilities = [0.5, 0.9, 0.7]
    sections = [
        layers(text, f"class {i}", probability)
        for i, (text, probability) in enumerate(zip(texts, probabilities, strict=True))
    ]
    columns = [methods(text) for text in texts]
    firsts = [section[0] for section in sections]
    notebook = [token_map(firsts[0]), method_map(columns[0]), token_map(columns[1][0])]
    made = {
        "demo": token_page(firsts, EVIL, EVIL, columns, sections),
        "tokens": token_page(firsts, EVIL),
        "one": token_page(firsts[:1]),
        "methods": method_page(columns, EVIL, EVIL, labels=[EVIL, EVIL]),
        "notebook": "<!DOCTYPE html><title>notebook</title>" + "".join(notebook),
    }
    return {"report": report, **{name: write_text(folder / f"{name}.html", page) for name, page in made.items()}}


@pytest.fixture(scope="module")
def browser():
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=quiet, timeout=120_000)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, pages):
    """Opens a page by name; in the end it must have said nothing on its console and fetched nothing."""
    heard, fetched, tabs = [], [], []

    def visit(name, width=WIDE, scheme="light"):
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab.set_default_timeout(60_000)  # a busy machine is no failure
        tab.on("console", lambda message: heard.append(message.text))
        tab.on("pageerror", lambda error: heard.append(str(error)))
        tab.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: fetched.append(request.url))
        tab.goto(pages[name].as_uri())
        tabs.append(tab)
        return tab

    yield visit
    for tab in tabs:
        tab.close()
    assert heard == []
    assert len(fetched) == len(tabs) and all(url.startswith("file://") for url in fetched)


def column(tab, number):
    """The cells of a column, from top to bottom, as they sort."""
    return tab.evaluate(
        "n => [...document.querySelector('table').tBodies[0].rows].map(row => row.cells[n].dataset.value)", number
    )


def visible(tab, selector):
    return tab.locator(selector).filter(visible=True).count()


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("name", PAGES)
def test_fits_the_window(opened, name, width):
    tab = opened(name, width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    # Nothing is cut off either, outside of what scrolls by itself.
    cut = "e => !e.closest('.wide, .sr, svg') && e.getBoundingClientRect().right > innerWidth + 1"
    outside = tab.evaluate(f"[...document.querySelectorAll('body *')].filter({cut}).map(e => e.outerHTML.slice(0, 80))")
    assert outside == []


@pytest.mark.parametrize("name", PAGES)
def test_a_text_is_never_run(opened, name):
    tab = opened(name)
    tab.mouse.move(300, 300)
    assert tab.evaluate("window.ran") is None
    assert tab.evaluate("document.images.length") == 0
    assert tab.evaluate("document.scripts.length") == (1 if name in ("tokens", "report") else 0)
    assert tab.evaluate("document.querySelectorAll('[onerror], [onmouseover]').length") == 0
    shown = "".join(tab.evaluate("document.body.textContent").split())
    assert all(word in shown for word in ("onerror=", "👩\u200d🚀", "\u05d6\u05d4"))


@pytest.mark.parametrize("name", ["demo", "tokens", "methods", "report"])
def test_is_dark_where_the_reader_wants_it(opened, name):
    background = "getComputedStyle(document.body).backgroundColor"
    assert opened(name).evaluate(background) == "rgb(255, 255, 255)"
    assert opened(name, scheme="dark").evaluate(background) == "rgb(21, 24, 29)"


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_sorts_by_mouse_and_by_keyboard(opened, width):
    tab = opened("tokens", width)
    assert column(tab, 0) == ["1", "2", "3"]
    head = tab.get_by_role("button", name="probability", exact=True)
    head.click()
    assert column(tab, 2) == ["0.9", "0.7", "0.5"] and column(tab, 0) == ["2", "3", "1"]
    head.press("Enter")
    assert column(tab, 2) == ["0.5", "0.7", "0.9"]
    assert tab.locator("th[aria-sort]").count() == 1
    tab.get_by_role("button", name="texts in the order given", exact=True).press(" ")
    assert column(tab, 0) == ["1", "2", "3"]


def test_the_report_sorts_by_mouse_and_by_keyboard(opened):
    tab = opened("report")
    assert column(tab, 0) == ["iba@n_steps=2", "leave_one_out", "saliency", "random"]
    head = tab.get_by_role("button", name="drop at 1/9")
    head.click()
    best_first = list(map(float, column(tab, 1)))
    assert best_first == sorted(best_first, reverse=True)
    head.press("Enter")
    assert list(map(float, column(tab, 1))) == best_first[::-1]
    tab.get_by_role("button", name="method").press("Enter")
    assert column(tab, 0) == ["iba@n_steps=2", "leave_one_out", "random", "saliency"]


def test_what_can_be_pressed_can_be_reached_by_tab(opened):
    tab = opened("demo")
    reached = set()
    for _ in range(12):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.textContent"))
    assert {"by other methods", "Layer by layer", "How to read this, and how it was computed"} <= reached


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_methods_of_the_first_text_are_seen_and_the_rest_unfolds(opened, width):
    tab = opened("demo", width)
    assert (visible(tab, ".method"), visible(tab, ".layers .map")) == (2, 0)
    tab.locator("summary", has_text="Layer by layer").press("Enter")
    assert visible(tab, ".layers .map") == 9
    for summary in tab.locator("summary").all():
        if "layer" not in summary.inner_text():
            summary.click()
    assert visible(tab, ".method") == 6
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_numbers_are_read_without_a_mouse(opened):
    tab = opened("one", NARROW)
    assert visible(tab, "table.words tbody tr") > 0
    assert "bits" in tab.locator("table.words thead").first.inner_text()
    assert any(character.isdigit() for character in tab.locator("table.words td.n").first.inner_text())


def test_methods_are_selected(opened):
    tab = opened("methods", NARROW)
    tab.get_by_label("saliency").click()
    assert (visible(tab, ".method.m0"), visible(tab, ".method.m1")) == (3, 0)
    tab.keyboard.press(" ")
    assert (visible(tab, ".method.m0"), visible(tab, ".method.m1")) == (3, 3)


def test_the_report_colors_by_the_selected_method(opened):
    tab = opened("report")
    colors = "[...document.querySelectorAll('.w')].map(e => getComputedStyle(e).backgroundColor)"
    tab.get_by_label("leave_one_out").check()
    by_first = tab.evaluate(colors)
    assert len(set(by_first)) > 1 and visible(tab, ".against") == 1
    tab.get_by_label("saliency").check()
    by_second = tab.evaluate(colors)
    assert by_second != by_first and visible(tab, ".against") == 0
    tab.keyboard.press("ArrowUp")
    assert tab.evaluate(colors) == by_first and visible(tab, ".against") == 1
