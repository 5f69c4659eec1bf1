"""Attribution by information bottlenecks, for Captum: how many bits of each token a prediction needs."""

from typing import TYPE_CHECKING

from captum_iba._version import __version__
from captum_iba._warnings import LostPredictionWarning

if TYPE_CHECKING:
    from captum_iba.attr import BottleneckTrace, FeatureStatistics, InformationBottleneckAttribution

__all__ = [
    "BottleneckTrace",
    "FeatureStatistics",
    "InformationBottleneckAttribution",
    "LostPredictionWarning",
    "__version__",
]


def __getattr__(name: str) -> object:
    # Captum's own import loads matplotlib.pyplot, which takes longer than all of this package: not before it is needed.
    if name in __all__:
        from captum_iba import attr

        return getattr(attr, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
