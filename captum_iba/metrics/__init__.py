"""Which attribution can be trusted: the degradation test and what is read off it; needs torch and captum only."""

from captum_iba.metrics.bootstrap import Interval, mean_over_seeds, paired_bootstrap
from captum_iba.metrics.degradation import Degradation, degradation, degradation_both
from captum_iba.metrics.derived import (
    METRICS,
    Metric,
    aopc,
    area_between,
    comprehensiveness,
    decision_flip_rate,
    degraded_floor,
    log_odds,
    normalised_curve,
    probability_drop,
    sufficiency,
)
from captum_iba.metrics.layer import infidelity, sensitivity_max
from captum_iba.metrics.operators import BaselineValue, Delete, MaskOut, Operator, ReplaceToken
from captum_iba.metrics.planted import planted_token_precision
from captum_iba.metrics.randomisation import Randomisation, cascading_randomisation, rank_correlation
from captum_iba.metrics.ranking import NINTHS

__all__ = [
    "METRICS",
    "NINTHS",
    "BaselineValue",
    "Degradation",
    "Delete",
    "Interval",
    "MaskOut",
    "Metric",
    "Operator",
    "Randomisation",
    "ReplaceToken",
    "aopc",
    "area_between",
    "cascading_randomisation",
    "comprehensiveness",
    "decision_flip_rate",
    "degradation",
    "degradation_both",
    "degraded_floor",
    "infidelity",
    "log_odds",
    "mean_over_seeds",
    "normalised_curve",
    "paired_bootstrap",
    "planted_token_precision",
    "probability_drop",
    "rank_correlation",
    "sensitivity_max",
    "sufficiency",
]
