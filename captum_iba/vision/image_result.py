"""The result of explaining an image: bits per cell of a layer, and per pixel and region of the image."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from captum_iba._explain.json_result import JsonResult, json_safe
from captum_iba._files import write_text
from captum_iba._reading.check_sentences import CONFIRMING, CheckSentences
from captum_iba._reading.codes import image_findings
from captum_iba._reading.decision import is_predicted
from captum_iba._reading.image_sentences import check_answer, check_sentences, decision, remark, unchecked_answer
from captum_iba._reading.legend import Legend, check_legend, legend_lines, region_legend, verdict_legend
from captum_iba._reading.order import COVERED, importance_of, leading_of
from captum_iba._reading.removal_check import ImageCheck
from captum_iba._reading.rows import ListedPart
from captum_iba._reading.thresholds import LARGE_DROP, is_little, is_lost
from captum_iba._reading.wording import format_number, format_probability, printable
from captum_iba.metrics.part_removal import first_to_cover
from captum_iba.vision.grids import resize_map
from captum_iba.vision.images import Pixels, pixels_of_png, png_bytes
from captum_iba.vision.layer_map import LayerMap
from captum_iba.vision.region_rows import (
    bar_meaning,
    further_terms,
    leading_rows,
    ninth_of,
    other_rows,
    rectangle_of,
    region_records,
)
from captum_iba.vision.regions import Regions, sum_per_region
from captum_iba.visualization.terminal import check_lines, row_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_FORMAT = "captum-iba image/4"
_LEAST = 1e-5  # of a probability: a smaller decrease is rounding
_NEAR_FLOOR, _CLOSED = 3.0, 20.0  # of the bits of a cell that is not needed; with fewer steps the mask has not closed


@dataclass(frozen=True, eq=False)
class ImageAttribution(JsonResult):
    """The attribution of a decision on an image to its pixels and regions.

    A notebook shows the heat map over the image.

    Attributes:
        image (array): The image as the model saw it, (H, W, 3), 8-bit.
        layers (tuple of LayerMap): The bits of each layer.
        regions (array): Number of the region of each pixel, (H, W).
        values (tuple of float): Banzhaf value of each region, the mean decrease in the probability without it where
            half of the regions are removed (:func:`captum_iba.metrics.banzhaf_values`). Empty where none was removed.
        measured (tuple of int): Numbers of the regions that were removed alone, those with the largest values, in the
            order that this gives (:func:`captum_iba.vision.order_by_removal`).
        effects (tuple of float): Decreases in the probability by which they were ordered: of the first ``n_in_turn``
            when they are removed one after the other, of the others their values.
        n_in_turn (int): How many of the first were removed one after the other, at least two if they lower it.
        effects_alone (tuple of float): Decreases in the probability when each of them alone is removed.
        target (int), target_label (str), target_probability (float): The class that was explained.
        predicted (int), predicted_label (str), predicted_probability (float): The most probable class.
        preset (str): Name of the settings.
        settings (dict): Settings of the bottleneck, and the seed.
        statistics (str): Origin of the noise's mean and standard deviation.
        name (str): Name of the image's file, without a path; empty where it is not known.
        model (str): Name of the model, without a path.
        check (ImageCheck or None): With ``check``, the probability without the leading regions.
        provenance (dict): Versions of the libraries, device and precision, fingerprints of the model and statistics.
        other_labels (tuple): Of a multi-label model the other labels of at least 0.5, (label, probability).
        original_size (tuple of int or None): Rows and columns of the image before the transform, (H, W).
        transparent (bool): Whether the image has transparent pixels, which lie on white for the model.
        multi_label (bool): Whether each label has a probability of its own, so that several or none are predicted.

    Examples::

        >>> explained.heat_map.shape, explained.layers[0].bits.shape
        ((8, 8), (2, 2))
        >>> attributions, image = explained.to_captum()  # for captum.attr.visualization.visualize_image_attr
        >>> attributions.shape, image.shape
        ((8, 8, 1), (8, 8, 3))
    """

    image: Pixels
    layers: tuple[LayerMap, ...]
    regions: Regions
    measured: tuple[int, ...]
    effects: tuple[float, ...]
    target: int
    target_label: str
    target_probability: float
    predicted: int
    predicted_label: str
    predicted_probability: float
    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    statistics: str = ""
    name: str = ""
    model: str = ""
    check: ImageCheck | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    effects_alone: tuple[float, ...] = ()
    n_in_turn: int = 0
    values: tuple[float, ...] = ()
    other_labels: tuple[tuple[str, float], ...] = ()
    multi_label: bool = False
    original_size: tuple[int, int] | None = None
    transparent: bool = False

    @cached_property
    def bits(self) -> npt.NDArray[np.float64]:
        """Bits per pixel, (H, W), which sum to :attr:`total_bits`; the mean of the layers."""
        return self._mean_map([layer.bits for layer in self.layers])

    @cached_property
    def pixel_shares(self) -> npt.NDArray[np.float64]:
        """Share of each pixel of the bits above the floor, (H, W), the mean of the layers; they sum to 1, or are 0."""
        mean = self._mean_map([layer.shares for layer in self.layers])
        total = mean.sum()  # of layers without any bits above the floor there is no share
        return mean / total if total > 0 else mean

    @cached_property
    def shares(self) -> npt.NDArray[np.float64]:
        """:attr:`pixel_shares` summed over each region, (R,)."""
        return sum_per_region(self.pixel_shares, self.regions)

    @cached_property
    def importance(self) -> npt.NDArray[np.float64]:
        """What is drawn of each region, (R,), from 0 to 1.

        It is the decrease in the probability that a region is ranked by, relative to the largest, at least that of the
        next one in their order, and 0 where the removal raises it. Where no removal lowers the probability, or none was
        tried, all go by their shares.
        """
        at_least = np.maximum.accumulate([*self._decreases.values()][::-1])[::-1].tolist()
        levels = dict(zip(self._decreases, at_least, strict=True))
        return importance_of(self.shares, [levels[region] for region in sorted(levels)])

    @cached_property
    def heat_map(self) -> npt.NDArray[np.float64]:
        """The map that is drawn, (H, W), from 0 on, which sums to 1 or is 0.

        Each region has its :attr:`importance`, spread over its pixels by their :attr:`shares`. Without measured regions
        it is :attr:`shares`.
        """
        if not self._decreases:
            return self.pixel_shares
        n_pixels = sum_per_region(np.ones(self.regions.shape), self.regions)
        of_region = self.shares
        within = np.where(
            of_region[self.regions] > 0,
            self.pixel_shares / np.where(of_region > 0, of_region, 1.0)[self.regions],
            1.0 / n_pixels[self.regions],
        )
        heat = self.importance[self.regions] * within
        total = heat.sum()
        return heat / total if total > 0 else heat

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        """Number of regions that are ranked below each, (R,), as scores for metrics of the ranking."""
        scores = np.empty(self.n_regions)
        scores[list(self.ranked)] = np.arange(self.n_regions)[::-1]
        return scores

    @property
    def n_regions(self) -> int:
        """Number of regions, R."""
        return int(self.regions.max()) + 1

    def probability_without(self, region: int) -> float | None:
        """Probability of the target without a region, with all others; None where neither this nor a check tried it."""
        if self.check is not None and self.check.without_each:
            return self.check.without_each[region]
        alone = dict(zip(self.measured, self.effects_alone, strict=True)).get(region)
        return None if alone is None else self.target_probability - alone

    def decrease_of(self, region: int) -> float | None:
        """The decrease in the probability that a region is ranked by: its effect, or its value; None without one."""
        return self._decreases.get(region)

    @property
    def leading(self) -> list[int]:
        """The most important regions, by number.

        Without a check they are the first of those that were removed in turn, up to 90% of the decrease without all of
        these; where none was, those that hold 80% of the sum of :attr:`importance`. With a check they are as few as are
        enough, in the order of their removal (:func:`captum_iba.vision.leading_by_removal`); none leads where their
        removal does not change the image.
        """
        if self.check is not None and not self.check.changes_pixels:
            return []
        if self.check is not None and self.check.leading:
            return list(self.check.leading)
        if self._decreases and self.n_in_turn:
            decreases = torch.tensor(self.effects[: self.n_in_turn]).cumsum(0)
            return list(self.measured[: first_to_cover(decreases)])
        return leading_of(self._order, self.importance, COVERED)

    @property
    def rows(self) -> list[ListedPart]:
        """The leading regions, as terminals and pages list them."""
        return leading_rows(self)

    @property
    def other_rows(self) -> list[ListedPart]:
        """Other regions that a check found to matter alone, or to speak against the class, as they are listed."""
        return other_rows(self)

    @property
    def total_bits(self) -> float:
        """Sum of the bits of all cells, the mean of the layers."""
        return float(np.mean([layer.total_bits for layer in self.layers]))

    @property
    def masked_probability(self) -> float:
        """Probability of the target through the final mask, the mean of the layers."""
        return float(np.mean([layer.masked_probability for layer in self.layers]))

    @property
    def closed_probability(self) -> float:
        """Probability of the target through a closed mask, the mean of the layers."""
        return float(np.mean([layer.closed_probability for layer in self.layers]))

    def top_mask(self, count: int | None = None) -> npt.NDArray[np.bool_]:
        """True at the pixels of the most important regions, (H, W).

        Args:
            count (int, optional): Number of regions. Default: those of :attr:`leading`.

        Examples::

            >>> int(explained.top_mask(1).sum())
            16
        """
        chosen = self.leading if count is None else self.ranked[:count]
        mask: npt.NDArray[np.bool_] = np.isin(self.regions, chosen)
        return mask

    def to_captum(self) -> tuple[npt.NDArray[np.float64], Pixels]:
        """Heat map (H, W, 1) and image (H, W, 3), the first arguments of Captum's ``visualize_image_attr``."""
        return self.heat_map[..., None], self.image

    def __repr__(self) -> str:
        height, width = self.regions.shape
        return (
            f"ImageAttribution({height} x {width} pixels, target={self.target} "
            f"({self.target_label} {self.target_probability:.3f}), {len(self.leading)} of {self.n_regions} regions)"
        )

    @property
    def verdict(self) -> str:
        """What the check says: "confirmed", "weakly confirmed" or "not confirmed"; empty where it says nothing.

        It is about the probability without the leading regions (:attr:`check`).
        """
        return "" if self.check is None else check_sentences(self, self.check).verdict

    def legend(self, details: bool = False) -> Legend:
        """What the columns and bars of :meth:`to_text` are, by their names."""
        found = region_legend(self.rows, bar_meaning(self), self.is_pale, details, self.other_rows)
        found |= further_terms(self) | (
            verdict_legend(self.verdict, noun="region") if self.verdict in CONFIRMING else {}
        )
        return found | check_legend(self.checked, "region", found)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, legend: bool = True, details: bool = False) -> str:
        """What ``print`` shows: the decision, the answer, the leading regions, the check, and the legend of the list.

        Args:
            legend (bool): Whether the legend is the last of it; of several results one is enough. Default: True.
            details (bool): Whether it has the bits, the layers and the settings, too. Bits are shown in any case where
                no region was removed. Default: False.
        """
        lines = [self.headline(), *filter(None, [self.answer])]
        rows = self.rows
        if not self.leading:
            lines.append("no region has bits above the floor")
        others = self.other_rows
        titles = (f"leading region{'s' * (len(rows) > 1)}", f"other region{'s' * (len(others) > 1)}")
        lines += row_lines(rows, others, (), self.is_pale, details, titles)
        lines += ["Not checked against other regions."] if self.checked is None else check_lines(self.checked)
        lines += filter(None, [self.remark()])
        if details or (rows and not any(row.is_measured for row in rows)):
            lines.append(self.setting())
        return "\n".join([*lines, *legend_lines([self.legend(details)] if legend else [])])

    def headline(self) -> str:
        """One line: image, class, probability and model."""
        return " · ".join(filter(None, [self._named(), printable(decision(self)), printable(self.model)]))

    def _named(self) -> str:
        """The name of the image, with its size before the transform if that is another one."""
        height, width = self.original_size or self.regions.shape
        is_resized = self.name and (height, width) != self.regions.shape
        return printable(self.name) + f" ({width} x {height} pixels)" * bool(is_resized)

    def setting(self) -> str:
        """One line: layers, preset, statistics and bits."""
        names = [layer.layer for layer in self.layers]
        to = "and" if len(names) == 2 else "to"
        layers = names[0] if len(names) == 1 else f"{len(names)} layers, {names[0]} {to} {names[-1]}"
        return (
            f"{printable(layers)} · {self.preset}, statistics of {self.statistics} · "
            f"{format_number(self.total_bits)} bits; with the information in the bits alone "
            f"{format_probability(self.masked_probability)}, with none of it "
            f"{format_probability(self.closed_probability)}"
            f"{f' (means of {len(names)} layers by themselves)' if len(names) > 1 else ''}"
        )

    @property
    def lost_prediction(self) -> bool:
        """Whether the final mask has lost the prediction.

        That is so by the rule for texts (``captum_iba._reading.thresholds.is_lost``), and where no cell has
        clearly more bits than one that is not needed, and the probability falls by more than 0.1.
        """
        if is_lost(self.target_probability, self.masked_probability, self.closed_probability):
            return True
        return self._is_near_floor and self.masked_probability < self.target_probability - LARGE_DROP

    @property
    def needs_no_cell(self) -> bool:
        """Whether no cell has clearly more bits than one that is not needed, and the prediction is kept."""
        return self._is_near_floor and not self.lost_prediction

    @property
    def _is_near_floor(self) -> bool:
        return all(
            layer.bits.max() <= _NEAR_FLOOR * layer.unneeded_bits and layer.open_bits >= _CLOSED * layer.unneeded_bits
            for layer in self.layers
        )

    def remark(self) -> str:
        """A sentence where the mask lost the prediction or needs no cell, or the image adds little; else empty."""
        return remark(self, self.verdict in CONFIRMING)

    @property
    def ranked(self) -> tuple[int, ...]:
        """Numbers of the regions, the most important one first: the leading ones, and the others by importance."""
        leading = self.leading
        return (*leading, *(i for i in self._order.tolist() if i not in leading))

    @property
    def answer(self) -> str:
        """The probability without the leading regions, in words; without a check where they were removed together."""
        return unchecked_answer(self, self.rows) if self.check is None else check_answer(self, self.check)

    @property
    def sentences(self) -> list[str]:
        """What the page and ``print`` say: the answer first, then the numbers of the check, and on the mask."""
        comparison = "" if self.checked is None else self.checked.comparison
        return list(filter(None, [self.answer, comparison, self.remark()]))

    @property
    def findings(self) -> list[str]:
        """Codes of what :attr:`sentences` say, such as "not_confirmed", which do not change with their wording."""
        return image_findings(self)

    @property
    def checked(self) -> CheckSentences | None:
        """The check by removal in words; None without a check."""
        return None if self.check is None else check_sentences(self, self.check)

    @property
    def is_improbable(self) -> bool:
        """Whether the target has so little probability that there is little to explain."""
        return is_little(self.target_probability, is_predicted(self))

    @property
    def is_pale(self) -> bool:
        """Whether bars are pale: the check does not confirm the leading regions, or the target is improbable."""
        has_verdict = self.check is None or self.verdict in CONFIRMING
        return self.is_improbable or not has_verdict

    def name_of(self, region: int) -> str:
        """Where the center of a region is, in ninths of the image: "top left", "center"."""
        return ninth_of(self.regions == region)

    def place_of(self, region: int) -> str:
        """Where a region is, in pixels from 0: "rows 8 to 15, columns 0 to 7", or "41 pixels within rows ..."."""
        return rectangle_of(self.regions == region)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain Python for JSON, with a record of each region, and sentences.

        The image is a PNG in base 64, and ``region_map`` has the number of the region of each pixel.
        """
        content = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        content["image"] = base64.b64encode(png_bytes(self.image)).decode()
        content["layers"] = [{**dataclasses.asdict(layer), "bits": layer.bits.tolist()} for layer in self.layers]
        content["region_map"], content["regions"] = self.regions.tolist(), region_records(self)
        content["settings"], content["provenance"] = dict(self.settings), dict(self.provenance)
        if self.check is not None:
            content["check"] = self.check.to_dict()
        content["shares"] = self.shares.tolist()
        content["total_bits"] = self.total_bits
        content["leading"] = self.leading
        content |= {"answer": self.answer, "verdict": self.verdict}
        content |= {"findings": self.findings, "sentences": self.sentences}
        return {"format": _FORMAT, **json_safe(content)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ImageAttribution:
        """A result from :meth:`to_dict`.

        Raises:
            ValueError: The content is not such a dictionary.
        """
        found = content.get("format") if isinstance(content, Mapping) else None
        if found != _FORMAT:
            raise ValueError(f"content has the format {found!r}, expected {_FORMAT!r} of to_dict")
        try:
            values = {item.name: content[item.name] for item in dataclasses.fields(cls) if item.name in content}
            values["image"] = pixels_of_png(base64.b64decode(values["image"]))
            values["layers"] = tuple(
                LayerMap(**{**layer, "bits": np.array(layer["bits"], dtype=np.float64)}) for layer in values["layers"]
            )
            values["regions"] = np.array(content["region_map"], dtype=np.int64)
            for name in ("values", "measured", "effects", "effects_alone"):
                values[name] = tuple(values[name])
            values["other_labels"] = tuple(map(tuple, content.get("other_labels", ())))
            values["original_size"] = tuple(content.get("original_size") or ()) or None
            values["check"] = None if values["check"] is None else ImageCheck.from_dict(values["check"])
            return cls(**values)
        except (KeyError, TypeError, OSError) as error:
            raise ValueError(f"content is not a whole attribution, {error} is missing or wrong") from error

    def plot(self, ax: Axes | None = None, count: int | None = None) -> tuple[Figure | SubFigure, Axes]:
        """The heat map over the image, with the outline of the most important regions.

        With a check of up to 64 regions the map is what the removal of each region does.

        Args:
            ax (matplotlib.axes.Axes, optional): Axes to draw on. Default: those of a new figure.
            count (int, optional): Number of regions that are outlined. Default: those of :attr:`leading`.
        """
        from captum_iba.visualization.image_figures import plot_image

        return plot_image(self, ax, count)

    def save_figure(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`plot` to a ``.png``, ``.svg`` or ``.pdf`` file, atomically; returns its path."""
        from captum_iba.visualization.figures import save_figure

        figure: Any = self.plot()[0]
        return save_figure(figure, path)

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained page with image, heat map and leading regions, atomically; returns its path."""
        from captum_iba.visualization.image_page import image_page

        return write_text(path, image_page([self]))

    def _repr_html_(self) -> str:
        from captum_iba.visualization.image_page import image_map

        return image_map(self)

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        if self._decreases:
            return np.array([*self._decreases], dtype=np.intp)
        return np.lexsort((-sum_per_region(self.bits, self.regions), -self.shares))

    @cached_property
    def _decreases(self) -> dict[int, float]:
        """The decrease that each region is ranked by, in their order: those removed in turn, then all by their values.

        Empty where no region was removed, or no removal lowers the probability.
        """
        if not self.values:
            return {}
        found = dict(zip(self.measured[: self.n_in_turn], self.effects, strict=False))
        others = sorted((i for i in range(self.n_regions) if i not in found), key=lambda i: -self.values[i])
        found |= {i: self.values[i] for i in others}
        return found if max(found.values()) >= _LEAST else {}

    def _mean_map(self, maps: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        height, width = self.regions.shape
        resized = [resize_map(torch.from_numpy(values)[None], (height, width))[0].numpy() for values in maps]
        mean: npt.NDArray[np.float64] = np.mean(resized, axis=0)
        return mean
