"""Methods that attribute a classifier's decision to tokens and words, all with one signature.

::

    >>> from captum_iba.methods import attribute, method_names
    >>> scores = attribute("ig", classifier, ["A wonderful film."], target="positive")
    >>> scores[0].words

To add a method, write a function and call :func:`register_method`. :mod:`captum_iba.metrics` compares methods.
"""

from functools import partial

from captum_iba.methods.attention import attention_rollout
from captum_iba.methods.gradient_methods import (
    conductance,
    grad_cam,
    gradient_shap,
    gradient_x_activation,
    ig_as_released,
    integrated_gradients,
    saliency,
)
from captum_iba.methods.iba import information_bottleneck, reranked_bottleneck
from captum_iba.methods.iba_of_images import iba_of_images
from captum_iba.methods.image_methods import attribute_images, register_image_method
from captum_iba.methods.lime import lime, lime_as_released
from captum_iba.methods.perturbation_methods import (
    captum_lime,
    kernel_shap,
    leave_one_out,
    leave_one_word_out,
    occlusion,
)
from captum_iba.methods.registry import (
    Method,
    attribute,
    attribution_task,
    find_method,
    method_names,
    register_method,
    score,
)
from captum_iba.methods.relevance import attn_lrp
from captum_iba.methods.task import AttributionTask, Scores, random_baseline

__all__ = [
    "AttributionTask",
    "Method",
    "Scores",
    "attribute",
    "attribute_images",
    "attribution_task",
    "find_method",
    "method_names",
    "register_image_method",
    "register_method",
    "score",
]

register_image_method("iba", iba_of_images, "Information bottleneck; the regions with the most bits, by removal.")

_without_layer = partial(register_method, uses_layer=False)
_without_layer_or_seed = partial(register_method, uses_layer=False, uses_seed=False)

register_method(
    "iba", information_bottleneck, signed=False, description="Information bottleneck, at its best settings."
)
register_method(
    "iba_reranked",
    reranked_bottleneck,
    signed=False,
    description="Information bottleneck, the words with the most bits in the order of their removal.",
)
register_method(
    "iba_paper", information_bottleneck, signed=False, description="IBA, the paper's equations.", preset="paper"
)
register_method(
    "iba_as_released",
    information_bottleneck,
    signed=False,
    description="IBA as the paper's code computes it, with noise from the text itself.",
    preset="as_released",
)
_without_layer("random", random_baseline, signed=False, description="Random scores, the baseline of all methods.")
_without_layer("lime", lime, signed=True, word_level=True, description="LIME, by the lime package.")
_without_layer_or_seed(
    "ig", integrated_gradients, signed=True, description="Integrated gradients at the word embeddings."
)
_without_layer_or_seed(
    "gradient_x_activation", gradient_x_activation, signed=True, description="Gradient times word embedding."
)
_without_layer("gradient_shap", gradient_shap, signed=True, description="Expected gradients at the word embeddings.")
_without_layer_or_seed("saliency", saliency, signed=False, description="Norm of the gradient at the word embeddings.")
_without_layer(
    "captum_lime",
    captum_lime,
    signed=True,
    word_level=True,
    description="LIME with words replaced by [MASK], by Captum.",
)
_without_layer(
    "kernel_shap",
    kernel_shap,
    signed=True,
    word_level=True,
    description="Shapley values with words replaced by [MASK].",
)
_without_layer_or_seed(
    "leave_one_out",
    leave_one_out,
    signed=True,
    score_words=leave_one_word_out,
    description="Each token deleted; of words, each word.",
)
_without_layer_or_seed(
    "occlusion", occlusion, signed=True, description="Neighboring tokens replaced by [MASK] together."
)
register_method(
    "conductance", conductance, signed=True, uses_seed=False, description="Integrated gradients through a layer."
)
register_method(
    "grad_cam",
    grad_cam,
    signed=True,
    uses_seed=False,
    description="A layer's activations weighted by their mean gradient.",
)
_without_layer_or_seed(
    "attention_rollout",
    attention_rollout,
    signed=False,
    description="Attention weights multiplied through all blocks.",
)
_without_layer_or_seed(
    "attn_lrp", attn_lrp, signed=True, description="Layer-wise relevance propagation with rules for attention."
)
_without_layer_or_seed(
    "ig_as_released", ig_as_released, signed=True, description="IG as in the paper's code: class 0, 10 steps."
)
_without_layer(
    "lime_as_released",
    lime_as_released,
    signed=True,
    description="LIME as in the paper's code: class 1, 100 samples, the highest score for unmatched tokens.",
)
