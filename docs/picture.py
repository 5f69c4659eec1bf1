"""The first explanation of the documentation, as a picture for the README: ``python docs/picture.py``."""

from pathlib import Path

from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.text import TextAttribution, TextExplainer

TEXT = (
    "The photography is stunning and the score is lovely. Sadly the story is a boring mess, and I cannot recommend it."
)


def explain_first_text() -> TextAttribution:
    """The result that docs/start.md shows, by the code that stands there."""
    statistics = [embedded_statistics(layer) for layer in range(1, 13)]
    return TextExplainer.from_pretrained(embedded_model_path(), statistics=statistics).explain(TEXT)


if __name__ == "__main__":
    from captum_iba.methods import attribute
    from captum_iba.text import Classifier
    from captum_iba.text.classifier import load_classifier
    from captum_iba.visualization import plot_tokens, save_figure
    from captum_iba.visualization.figures import new_figure

    classifier = Classifier(*load_classifier(embedded_model_path()))
    rows = {"Information bottleneck": explain_first_text()}
    for title, method in (("Integrated Gradients", "ig"), ("LIME", "lime")):
        rows[title] = attribute(method, classifier, TEXT)[0]
    figure = new_figure(6.7, 3.9)
    figure.set_layout_engine("none")
    for number, (title, row) in enumerate(rows.items()):
        axes = figure.add_axes((0.01, (2.0 - number) / 3, 0.98, 0.27))
        plot_tokens(row, axes)
        axes.set_title(f"Why {classifier.labels[0]}? {title}", loc="left", fontsize=10, fontweight="bold")
    print(save_figure(figure, Path(__file__).parent / "_static" / "first.svg"))
