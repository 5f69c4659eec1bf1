"""The statistics of ``captum-iba explain``: of the texts of a file, or those in the package."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from captum_iba.cli.common import note
from captum_iba.cli.text_files import has_columns, note_blank, read_columns

if TYPE_CHECKING:
    from captum_iba.text import TextExplainer

_TEXTS_OF_STATISTICS = 500  # as compare takes


def find_statistics(
    explainer: TextExplainer,
    model: str | None,
    source: Path | None,
    columns: tuple[str | None, str | None],
    quiet: bool,
) -> None:
    """Give the explainer its statistics, and say which: of a file, those in the package, or none yet."""
    from captum_iba.demo import embedded_statistics
    from captum_iba.text import cached_statistics
    from captum_iba.text.statistics import source_of

    if source is not None:
        # The columns are those of --file, if this file has columns at all.
        columns = columns if has_columns(str(source)) else (None, None)
        read = read_columns(str(source), *columns, option="--statistics-from")
        note_blank(read, str(source))
        texts, pairs = read.first, read.second
        count = len(texts)
        if count > _TEXTS_OF_STATISTICS:
            chosen = sorted(random.Random(0).sample(range(count), _TEXTS_OF_STATISTICS))
            texts, pairs = [texts[i] for i in chosen], None if pairs is None else [pairs[i] for i in chosen]
        of_all = "" if len(texts) == count else f"{len(texts)} of "
        note(f"statistics of {of_all}the {count} text{'s' * (count != 1)} of {source}", quiet)
        named = f"{source_of(texts)} of {source.name}"
        path, was_cached = cached_statistics(
            explainer, texts, pairs=pairs, source=named, show_progress=not quiet and sys.stderr.isatty()
        )
        note(f"statistics of {source} {'found' if was_cached else 'estimated and kept'} at {path}", quiet)
    elif model is None and all(block.index is not None for block in explainer.layers):
        explainer.statistics = tuple(embedded_statistics(block.index or 0) for block in explainer.layers)
        note("statistics: those of the embedded model, over film reviews", quiet)
    else:
        note("statistics: of neutral texts in the package; --statistics-from FILE estimates them from yours", quiet)
