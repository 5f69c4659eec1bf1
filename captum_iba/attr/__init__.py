"""Attribution by information bottlenecks; needs torch and captum only."""

from captum_iba.attr.information_bottleneck import InformationBottleneckAttribution
from captum_iba.attr.presets import PRESETS, Settings, settings
from captum_iba.attr.run import BottleneckTrace
from captum_iba.attr.statistics import FeatureStatistics

__all__ = [
    "PRESETS",
    "BottleneckTrace",
    "FeatureStatistics",
    "InformationBottleneckAttribution",
    "Settings",
    "settings",
]
