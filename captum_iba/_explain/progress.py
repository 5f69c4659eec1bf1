"""The progress bar over inputs that run without some of their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from captum_iba._compat import progress


@contextmanager
def removal_progress(shown: bool, unit: str) -> Iterator[Callable[[int], object] | None]:
    """A function that is called with the number of rows of each forward pass, or None if no bar is shown.

    The bar has no end: what is removed later depends on what the model says without the first parts.

    Examples::

        >>> with removal_progress(False, "texts") as on_rows:
        ...     print(on_rows)
        None
    """
    if not shown:
        yield None
        return
    with progress(desc="Removal", unit=f" {unit}") as bar:
        yield bar.update
