"""Finished batches of texts on disk, so that a long run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from captum_iba._files import write_text
from captum_iba.attr.settings import preset_values
from captum_iba.engines.versions import versions
from captum_iba.text.explainer import TextExplainer
from captum_iba.text.result import TextAttribution
from captum_iba.text.statistics import add_part


class KeptBatches:
    """A folder with one file for every finished batch.

    A file is named by the digest of all that its results depend on: model, layers, statistics, device, versions of
    the libraries, presets, settings, texts. What was computed with anything else is not found, so nothing ever mixes.

    Args:
        folder (path): It is made if it is not there.
        explainer (TextExplainer): What explains.
        device (str or None): Where its model runs; None: where it is.
        settings (dict): Of :meth:`~captum_iba.text.TextExplainer.explain`.

    Raises:
        NotADirectoryError: A file lies where the folder is wanted.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        explainer: TextExplainer,
        device: str | None,
        settings: dict[str, Any],
    ) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"keep: {self.folder} is a file, expected a folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._same = hashlib.sha256()
        parts = [
            explainer.fingerprint(),
            *explainer.classifier.labels,
            str(explainer.classifier.multi_label),
            *(block.key for block in explainer.layers),
            str(explainer.classifier.max_length),
            device or str(next(iter(explainer.classifier.model.parameters())).device),
            json.dumps([versions(), preset_values(), settings], sort_keys=True, default=str),
        ]
        for part in parts:
            add_part(self._same, part)
        for statistics in explainer.statistics or ():
            for tensor in (statistics.mean, statistics.std):
                self._same.update(tensor.cpu().contiguous().numpy().tobytes())

    def path(self, texts: list[str], pairs: list[str] | None, targets: list[int | None]) -> Path:
        """Where the results of a batch lie, or would."""
        digest = self._same.copy()
        for part in (json.dumps([pairs is None, targets]), *texts, *(pairs or ())):
            add_part(digest, part)
        return self.folder / f"{digest.hexdigest()[:32]}.json"

    def read(self, path: Path, count: int) -> list[TextAttribution] | None:
        """The results of a batch of ``count`` texts; None where there are none, or a damaged file."""
        try:
            found = [TextAttribution.from_dict(one) for one in json.loads(path.read_text(encoding="utf-8"))]
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return found if len(found) == count else None

    def write(self, path: Path, results: list[TextAttribution]) -> None:
        """Keep the results of a batch."""
        write_text(path, json.dumps([one.to_dict() for one in results], ensure_ascii=False, allow_nan=False))
