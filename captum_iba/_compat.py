"""Every name that this package takes from Captum's private modules, in one place.

Captum promises nothing for these; a release that moves one breaks this file and nothing else.
"""

from captum._utils.common import (
    ExpansionTypes,
    _expand_target,
    _format_additional_forward_args,
    _format_output,
    _run_forward,
    _select_targets,
)
from captum._utils.progress import progress
from captum._utils.typing import ModuleOrModuleList, TargetType
from captum.attr import LayerAttribution, NoiseTunnel
from captum.log import log_usage

__all__ = [
    "ExpansionTypes",
    "LayerAttribution",
    "ModuleOrModuleList",
    "NoiseTunnel",
    "TargetType",
    "_expand_target",
    "_format_additional_forward_args",
    "_format_output",
    "_run_forward",
    "_select_targets",
    "log_usage",
    "progress",
]
