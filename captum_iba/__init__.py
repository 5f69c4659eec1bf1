"""Attribution by information bottlenecks, for Captum: how many bits of each token a prediction needs."""

from captum_iba._version import __version__
from captum_iba.attr import BottleneckTrace, FeatureStatistics, InformationBottleneckAttribution

__all__ = ["BottleneckTrace", "FeatureStatistics", "InformationBottleneckAttribution", "__version__"]
