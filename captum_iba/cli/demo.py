"""``captum-iba demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from captum_iba.cli.common import check_output, loading, note, one_thread, plain_errors, progress_bar

_METHODS = ("iba", "ig", "lime", "leave_one_out")


def demo(
    out: Annotated[Path, typer.Option(help="File to write the page to.")] = Path("captum-iba-demo.html"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page.")] = False,
) -> None:
    """Explain a few film reviews at all 12 layers of the embedded model, beside other methods, and write a page."""
    with plain_errors(quiet):
        check_output("--out", out)
        from captum_iba._files import write_text
        from captum_iba.demo import demo_texts, embedded_model_path, embedded_statistics
        from captum_iba.methods import attribute
        from captum_iba.text import Classifier, TextExplainer, explain_layers, find_blocks
        from captum_iba.text.classifier import load_classifier
        from captum_iba.visualization import layer_page

        note("loading the embedded model", quiet)
        with loading():
            model, tokenizer = load_classifier(embedded_model_path())
        depth = len(find_blocks(model))
        texts = demo_texts()
        with one_thread(), progress_bar(quiet, MofNCompleteColumn()) as bar:
            task = bar.add_task("layers and methods", total=depth + len(_METHODS))
            rows = explain_layers(
                (TextExplainer(model, tokenizer, layer, embedded_statistics(layer)) for layer in range(1, depth + 1)),
                texts,
                on_layer=lambda: bar.advance(task),
                beta=1.0,  # less strict than the default, so that more of a text is coloured
            )
            columns = []
            classifier = Classifier(model, tokenizer)
            for name in _METHODS:
                columns.append(
                    attribute(name, classifier, texts, statistics=lambda block: embedded_statistics(block.index))
                )
                bar.advance(task)
        page = layer_page(
            rows,
            title="Where the words are needed: five film reviews, layer by layer",
            introduction="A 12-layer BERT for film reviews, embedded in captum_iba, decided on each text below. It "
            "keeps what it reads in the words up to layer 8; then it gathers the decision in [CLS], which passes "
            "untouched. Below the layers of each text stand the bits over all layers at once (iba), and what other "
            "methods say of it.",
            methods=list(zip(*columns, strict=True)),
        )
        typer.echo(f"{'' if quiet else 'The report is at '}{write_text(out, page)}")
