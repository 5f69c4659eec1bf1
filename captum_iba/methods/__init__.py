"""Methods that attribute a classifier's decision to tokens and words, all with one signature.

::

    >>> from captum_iba.methods import attribute, method_names
    >>> scores = attribute("ig", classifier, ["A wonderful film."], target="positive")
    >>> scores[0].words

To add a method, write a function and call :func:`register_method`. :mod:`captum_iba.metrics` compares methods.
"""

from captum_iba.methods.gradient_methods import (
    conductance,
    grad_cam,
    gradient_shap,
    gradient_x_activation,
    ig_as_released,
    integrated_gradients,
    saliency,
)
from captum_iba.methods.iba import information_bottleneck
from captum_iba.methods.lime import lime, lime_as_released
from captum_iba.methods.perturbation_methods import captum_lime, kernel_shap, leave_one_out, occlusion
from captum_iba.methods.registry import Method, attribute, find_method, method_names, register_method, score
from captum_iba.methods.task import AttributionTask, Scores, random_baseline

__all__ = [
    "AttributionTask",
    "Method",
    "Scores",
    "attribute",
    "find_method",
    "method_names",
    "register_method",
    "score",
]

register_method(
    "iba", information_bottleneck, signed=False, description="Information bottleneck, at its best settings."
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
register_method(
    "random", random_baseline, signed=False, uses_layer=False, description="Random scores, the baseline of all methods."
)
register_method("lime", lime, signed=True, word_level=True, uses_layer=False, description="LIME, by the lime package.")
register_method(
    "ig",
    integrated_gradients,
    signed=True,
    uses_layer=False,
    uses_seed=False,
    description="Integrated gradients at the word embeddings.",
)
register_method(
    "gradient_x_activation",
    gradient_x_activation,
    signed=True,
    uses_layer=False,
    uses_seed=False,
    description="Gradient times word embedding.",
)
register_method(
    "gradient_shap",
    gradient_shap,
    signed=True,
    uses_layer=False,
    description="Expected gradients at the word embeddings.",
)
register_method(
    "saliency",
    saliency,
    signed=False,
    uses_layer=False,
    uses_seed=False,
    description="Norm of the gradient at the word embeddings.",
)
register_method(
    "captum_lime",
    captum_lime,
    signed=True,
    word_level=True,
    uses_layer=False,
    description="LIME with words replaced by [MASK], by Captum.",
)
register_method(
    "kernel_shap",
    kernel_shap,
    signed=True,
    word_level=True,
    uses_layer=False,
    description="Shapley values with words replaced by [MASK].",
)
register_method(
    "leave_one_out",
    leave_one_out,
    signed=True,
    uses_layer=False,
    uses_seed=False,
    description="Each token replaced by [MASK].",
)
register_method(
    "occlusion",
    occlusion,
    signed=True,
    uses_layer=False,
    uses_seed=False,
    description="Neighbouring tokens replaced by [MASK] together.",
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
register_method(
    "ig_as_released",
    ig_as_released,
    signed=True,
    uses_layer=False,
    uses_seed=False,
    description="IG as in the paper's code: class 0, 10 steps.",
)
register_method(
    "lime_as_released",
    lime_as_released,
    signed=True,
    uses_layer=False,
    description="LIME as in the paper's code: class 1, 100 samples, the highest score for unmatched tokens.",
)
