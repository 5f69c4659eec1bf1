"""Evaluate attributions: the degradation test, scores read off it, confidence intervals and sanity checks.

Needs torch and captum only; intervals and rank correlations need scipy, ``captum-iba[plot]``.
"""

from captum_iba._bootstrap import Interval, mean_over_seeds, paired_bootstrap
from captum_iba.metrics.banzhaf import banzhaf_values
from captum_iba.metrics.degradation import Degradation, degradation, degradation_both
from captum_iba.metrics.image_baselines import blurred, mean_color, tiles
from captum_iba.metrics.image_metrics import (
    InsertionDeletion,
    bounding_box_ratio,
    insertion_deletion,
    pointing_game,
    sensitivity_n,
)
from captum_iba.metrics.layer_metrics import layer_infidelity, layer_sensitivity_max
from captum_iba.metrics.part_removal import (
    RemovalEffects,
    RemovalSequence,
    removal_effects,
    removal_sequence,
)
from captum_iba.metrics.perturbations import BaselineValue, Delete, MaskOut, Perturbation, ReplaceToken
from captum_iba.metrics.prompt_removal import (
    PromptDegradation,
    linear_datamodeling_score,
    prompt_degradation,
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
    deletion_area,
    insertion_area,
    log_odds,
    normalized_area_between,
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
    "InsertionDeletion",
    "Interval",
    "MaskOut",
    "Metric",
    "Perturbation",
    "PromptDegradation",
    "Randomization",
    "RemovalEffects",
    "RemovalSequence",
    "ReplaceToken",
    "aopc",
    "area_between",
    "banzhaf_values",
    "blurred",
    "bounding_box_ratio",
    "cascading_randomization",
    "comprehensiveness",
    "decision_flip_rate",
    "degradation",
    "degradation_both",
    "degraded_floor",
    "deletion_area",
    "ground_truth_precision",
    "insertion_area",
    "insertion_deletion",
    "layer_infidelity",
    "layer_sensitivity_max",
    "linear_datamodeling_score",
    "log_odds",
    "mean_color",
    "mean_over_seeds",
    "normalized_area_between",
    "normalized_curve",
    "paired_bootstrap",
    "pointing_game",
    "probability_drop",
    "prompt_degradation",
    "rank_correlation",
    "removal_effects",
    "removal_sequence",
    "sensitivity_n",
    "sufficiency",
    "tiles",
]
