"""Warnings that point at the line of the user."""

from __future__ import annotations

import sys
import warnings

# Whose frames are skipped: this package, and what stands between it and the user.
_BETWEEN = ("captum_iba", "captum", "torch", "contextlib")


class LostPredictionWarning(UserWarning):
    """The mask of a text or image removed so much that the model no longer makes the prediction that is explained.

    It is a category for ``warnings.filterwarnings``.
    """


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package, however deep inside of it the reason is found."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
