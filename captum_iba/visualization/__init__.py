"""Drawing attributions: self-contained HTML pages, and terminals (needs ``captum-iba[text]``)."""

from captum_iba.visualization.html import layer_page, token_map, token_page
from captum_iba.visualization.terminal import terminal_text

__all__ = ["layer_page", "terminal_text", "token_map", "token_page"]
