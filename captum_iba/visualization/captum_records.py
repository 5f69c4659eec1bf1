"""Handing attributions to Captum's own drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from captum.attr._utils.visualization import VisualizationDataRecord

    from captum_iba.text import TextAttribution


def visualization_records(attributions: Sequence[TextAttribution]) -> list[VisualizationDataRecord]:
    """Records for ``captum.attr.visualization.visualize_text``, one a text.

    Words and labels are escaped and NaN becomes 0, since Captum does neither; see
    :meth:`captum_iba.text.TextAttribution.to_captum_record`.

    Args:
        attributions (sequence of TextAttribution): The texts.

    Returns:
        list of VisualizationDataRecord: in their order.

    Examples::

        >>> from captum.attr import visualization
        >>> visualization.visualize_text(visualization_records(results))
    """
    return [attribution.to_captum_record() for attribution in attributions]
