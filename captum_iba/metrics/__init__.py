"""Evaluate attributions: the degradation test, scores read off it, confidence intervals and sanity checks.

Needs torch and captum only; intervals and rank correlations need scipy, ``captum-iba[plot]``.
"""

from captum_iba._bootstrap import Interval, mean_over_seeds, paired_bootstrap
from captum_iba.metrics.degradation import Degradation, degradation, degradation_both
from captum_iba.metrics.layer_metrics import layer_infidelity, layer_sensitivity_max
from captum_iba.metrics.perturbations import BaselineValue, Delete, MaskOut, Perturbation, ReplaceToken
from captum_iba.metrics.prompt_removal import (
    PromptDegradation,
    linear_datamodeling_score,
    prompt_degradation,
    removal_effects,
)
from captum_iba.metrics.removal import NINTHS
from captum_iba.metrics.sanity_checks import (
    Randomization,
    cascading_randomization,
    ground_truth_precision,
    rank_correlation,
)
from captum_iba.metrics.scores import (
    METRICS,
    Metric,
    aopc,
    area_between,
    comprehensiveness,
    decision_flip_rate,
    degraded_floor,
    log_odds,
    normalized_curve,
    probability_drop,
    sufficiency,
)

__all__ = [
    "METRICS",
    "NINTHS",
    "BaselineValue",
    "Degradation",
    "Delete",
    "Interval",
    "MaskOut",
    "Metric",
    "Perturbation",
    "PromptDegradation",
    "Randomization",
    "ReplaceToken",
    "aopc",
    "area_between",
    "cascading_randomization",
    "comprehensiveness",
    "decision_flip_rate",
    "degradation",
    "degradation_both",
    "degraded_floor",
    "ground_truth_precision",
    "layer_infidelity",
    "layer_sensitivity_max",
    "linear_datamodeling_score",
    "log_odds",
    "mean_over_seeds",
    "normalized_curve",
    "paired_bootstrap",
    "probability_drop",
    "prompt_degradation",
    "rank_correlation",
    "removal_effects",
    "sufficiency",
]
