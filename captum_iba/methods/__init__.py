"""Methods to attribute a classifier's decision to tokens and words, all behind one signature.

::

    >>> from captum_iba.methods import attribute, names
    >>> scores = attribute("ig", classifier, ["A wonderful film."], target="positive")
    >>> scores[0].words

An own method is a function and a call of :func:`register`. What several methods can be compared by is in
:mod:`captum_iba.metrics`.
"""

from captum_iba.methods.ablation import leave_one_out, occlusion
from captum_iba.methods.attribution import attribute, scores_of
from captum_iba.methods.bottleneck import information_bottleneck
from captum_iba.methods.chance import by_chance
from captum_iba.methods.gradients import (
    gradient_shap,
    gradient_x_activation,
    ig_as_released,
    integrated_gradients,
    saliency,
)
from captum_iba.methods.hidden import conductance, grad_cam
from captum_iba.methods.lime_text import lime, lime_as_released
from captum_iba.methods.registry import Method, find, names, register
from captum_iba.methods.surrogates import captum_lime, kernel_shap
from captum_iba.methods.task import Scores, Task

__all__ = ["Method", "Scores", "Task", "attribute", "find", "names", "register", "scores_of"]

register("iba", information_bottleneck, signed=False, description="Information bottleneck, at its best settings.")
register("iba_paper", information_bottleneck, signed=False, description="IBA, the paper's equations.", preset="paper")
register(
    "iba_as_released",
    information_bottleneck,
    signed=False,
    description="IBA as the paper's code computes it, with noise from the text itself.",
    preset="as_released",
)
register("random", by_chance, signed=False, description="By chance.")
register("lime", lime, signed=True, of_words=True, description="LIME, by the lime package.")
register("ig", integrated_gradients, signed=True, description="Integrated gradients at the word embeddings.")
register("gradient_x_activation", gradient_x_activation, signed=True, description="Gradient times word embedding.")
register("gradient_shap", gradient_shap, signed=True, description="Expected gradients at the word embeddings.")
register("saliency", saliency, signed=False, description="Length of the gradient at the word embeddings.")
register(
    "captum_lime", captum_lime, signed=True, of_words=True, description="LIME with words replaced by [MASK], by Captum."
)
register(
    "kernel_shap", kernel_shap, signed=True, of_words=True, description="Shapley values with words replaced by [MASK]."
)
register("leave_one_out", leave_one_out, signed=True, description="Each token replaced by [MASK].")
register("occlusion", occlusion, signed=True, description="Neighbouring tokens replaced by [MASK] together.")
register("conductance", conductance, signed=True, description="Integrated gradients through a layer.")
register("grad_cam", grad_cam, signed=True, description="A layer's features weighed by their mean gradient.")
register("ig_as_released", ig_as_released, signed=True, description="IG as in the paper's code: class 0, 10 steps.")
register(
    "lime_as_released",
    lime_as_released,
    signed=True,
    description="LIME as in the paper's code: class 1, 100 samples, the highest score for unmatched tokens.",
)
