"""Draws the picture of the README: ``python docs/picture.py``."""

from pathlib import Path

from captum_iba.demo import embedded_model_path, embedded_statistics
from captum_iba.text import TextExplainer
from captum_iba.visualization import plot_tokens, save_figure

explainer = TextExplainer.from_pretrained(
    embedded_model_path(), statistics=[embedded_statistics(layer) for layer in range(1, 13)]
)
result = explainer.explain(
    "The photography is stunning and the score is lovely. Sadly the story is a boring mess, and I cannot recommend it."
)
fig, _ = plot_tokens(result)
print(save_figure(fig, Path(__file__).parent / "_static" / "first.svg"))
