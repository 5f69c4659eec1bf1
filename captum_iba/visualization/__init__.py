"""Draw attributions: self-contained HTML pages, figures, and terminals.

HTML and terminals need ``captum-iba[text]``, figures ``captum-iba[plot]``. Figures are matplotlib's: every function
returns ``(fig, ax)``, takes an ``ax`` to draw on, and shows nothing by itself.
"""

from captum_iba.visualization.curves import plot_degradation, plot_sweep, plot_trace
from captum_iba.visualization.figures import plot_before_after, plot_layers, plot_tokens, save_figure
from captum_iba.visualization.generation_page import generation_map, generation_page
from captum_iba.visualization.html import (
    Html,
    method_map,
    method_page,
    save_token_page,
    token_map,
    token_page,
    visualization_records,
)
from captum_iba.visualization.image_figures import plot_image
from captum_iba.visualization.image_page import image_map, image_page
from captum_iba.visualization.printed_text import terminal_text

__all__ = [
    "Html",
    "generation_map",
    "generation_page",
    "image_map",
    "image_page",
    "method_map",
    "method_page",
    "plot_before_after",
    "plot_degradation",
    "plot_image",
    "plot_layers",
    "plot_sweep",
    "plot_tokens",
    "plot_trace",
    "save_figure",
    "save_token_page",
    "terminal_text",
    "token_map",
    "token_page",
    "visualization_records",
]
