"""Text classifiers explained, in three lines (needs ``captum-iba[text]``).

::

    >>> from captum_iba.text import TextExplainer
    >>> explainer = TextExplainer.from_pretrained("my/classifier", layer=9, statistics="layer-09.safetensors")
    >>> print(explainer.explain("A wonderful film."))
"""

from captum_iba._reading.removal_check import DeletionCheck, PredictionChange, PromptCheck, RemovalCheck
from captum_iba.text.classifier import Classifier, load_classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.generation import LLMInformationBottleneckAttribution
from captum_iba.text.generation_explainer import GenerationExplainer
from captum_iba.text.generation_result import GenerationAttribution, ResponseToken
from captum_iba.text.layers import Block, default_layer, find_blocks, find_layer, find_layers
from captum_iba.text.many_layers import cached_statistics, explain_layers
from captum_iba.text.prompt_parts import PromptPart
from captum_iba.text.result import TextAttribution
from captum_iba.text.statistics import cache_folder
from captum_iba.text.target import TextTarget
from captum_iba.text.tokens import TextTrace, Token, Word

__all__ = [
    "Block",
    "Classifier",
    "DeletionCheck",
    "EncodedText",
    "GenerationAttribution",
    "GenerationExplainer",
    "LLMInformationBottleneckAttribution",
    "PredictionChange",
    "PromptCheck",
    "PromptPart",
    "RemovalCheck",
    "ResponseToken",
    "TextAttribution",
    "TextExplainer",
    "TextTarget",
    "TextTrace",
    "Token",
    "Word",
    "cache_folder",
    "cached_statistics",
    "default_layer",
    "explain_layers",
    "find_blocks",
    "find_layer",
    "find_layers",
    "load_classifier",
]
