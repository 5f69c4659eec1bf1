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
    from captum_iba.visualization import plot_tokens, save_figure

    figure, _ = plot_tokens(explain_first_text())
    print(save_figure(figure, Path(__file__).parent / "_static" / "first.svg"))
