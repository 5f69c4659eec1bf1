"""Text classifiers explained, in three lines (needs ``captum-iba[text]``).

::

    >>> from captum_iba.text import TextExplainer
    >>> explainer = TextExplainer.from_pretrained("my/classifier", layer=9, statistics="layer-09.safetensors")
    >>> print(explainer.explain("A wonderful film."))
"""

from captum_iba.text.cache import cache_folder, cached_statistics
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.layers import Block, default_layer, find_blocks, find_layer, find_layers
from captum_iba.text.result import TextAttribution, Token, Trace, Word
from captum_iba.text.sweep import explain_layers

__all__ = [
    "Block",
    "Classifier",
    "EncodedText",
    "TextAttribution",
    "TextExplainer",
    "Token",
    "Trace",
    "Word",
    "cache_folder",
    "cached_statistics",
    "default_layer",
    "explain_layers",
    "find_blocks",
    "find_layer",
    "find_layers",
]
