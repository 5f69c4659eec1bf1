"""The figure that all drawings are made on; importing this needs matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A matplotlib figure that a notebook shows by itself.

    Not pyplot's, which would choose a window system, keep every figure, and show it a second time.
    """

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=144, facecolor="white")
        return content.getvalue()
