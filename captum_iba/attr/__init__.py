"""Attribution by information bottlenecks; needs torch and captum only."""

from captum_iba.attr.execution import BottleneckTrace
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.information_bottleneck import InformationBottleneckAttribution
from captum_iba.attr.settings import PRESETS, BottleneckSettings, resolve_settings

__all__ = [
    "PRESETS",
    "BottleneckSettings",
    "BottleneckTrace",
    "FeatureStatistics",
    "InformationBottleneckAttribution",
    "resolve_settings",
]
