"""``captum-iba demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from captum_iba.cli.common import check_output, loading, note, one_thread, plain_errors, print_result, progress_bar

_RIVALS = ("ig", "lime", "leave_one_out")


def demo(
    out: Annotated[Path, typer.Option(help="File to write the page to.")] = Path("captum-iba-demo.html"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page.")] = False,
) -> None:
    """Explain a few film reviews with the embedded model, beside other methods and layer by layer, and write a page."""
    with plain_errors(quiet):
        check_output("--out", out)
        from captum_iba._files import write_text
        from captum_iba.attr.settings import PRESETS
        from captum_iba.demo import demo_texts, embedded_model_path, embedded_statistics
        from captum_iba.methods import attribute
        from captum_iba.text import TextExplainer
        from captum_iba.text.classifier import load_classifier
        from captum_iba.visualization import token_page

        note("loading the embedded model", quiet)
        with loading():
            model, tokenizer = load_classifier(embedded_model_path())
        statistics = [embedded_statistics(layer) for layer in range(1, model.config.num_hidden_layers + 1)]
        texts = demo_texts()
        note(f"explaining {len(texts)} reviews", quiet)
        with one_thread(), progress_bar(quiet, MofNCompleteColumn()) as bar:
            task = bar.add_task("methods and layers", total=1 + len(_RIVALS) + len(statistics))
            explainer = TextExplainer(model, tokenizer, statistics=statistics)
            results = explainer.explain(texts, check=True)
            bar.advance(task)
            scores, layers, beta = [], [], PRESETS["default"].beta  # one for all layers
            for name in _RIVALS:
                scores.append(attribute(name, explainer.classifier, texts))
                bar.advance(task)
            for layer, layer_statistics in enumerate(statistics, 1):
                layers.append(
                    TextExplainer(model, tokenizer, layer, layer_statistics).explain(texts, beta=beta, rerank=0)
                )
                bar.advance(task)
        page = token_page(
            results,
            introduction=f"{len(texts)} film reviews, and the words that a small BERT needs to decide on each, by the "
            f"default settings: beta {results[0].settings['beta']:g}, one mask for all {len(statistics)} layers.",
            methods=list(zip(*scores, strict=True)),
            layers=list(zip(*layers, strict=True)),
        )
        if not quiet:
            print_result(results[0])
            typer.echo()
        typer.echo(f"{'' if quiet else 'The report is at '}{write_text(out, page)}")
