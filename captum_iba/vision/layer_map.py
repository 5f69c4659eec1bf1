"""The bits of the cells of one layer of an image classifier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_iba._reading.order import shares_above_floor
from captum_iba.attr.optimizer import AT_FLOOR


@dataclass(frozen=True, eq=False)
class LayerMap:
    """The bits of the cells of one layer.

    Attributes:
        layer (str): Name of the module; for layers that share a mask their number, and the names of the first and last.
        bits (array): Bits per cell, summed over features, (h, w).
        unneeded_bits (float): Bits that a cell ends with if the prediction does not need it.
        masked_probability (float), closed_probability (float): Probability of the target through the final mask, and
            through a closed one, which lets no information through.
        open_bits (float): Bits of an average cell before the optimization; 0 where that is not known.
        smoothing (float): Standard deviation of the mask's smoothing, in cells; 0 for tokens and where the grid is too
            small.
    """

    layer: str
    bits: npt.NDArray[np.float64]
    unneeded_bits: float
    masked_probability: float
    closed_probability: float
    open_bits: float = 0.0
    smoothing: float = 0.0

    @property
    def total_bits(self) -> float:
        """Sum of the bits of all cells."""
        return float(self.bits.sum())

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Share of each cell of the bits above the floor, (h, w); they sum to 1, or are 0 if none is above it."""
        return shares_above_floor(self.bits, np.full_like(self.bits, self.unneeded_bits), AT_FLOOR)

    @property
    def tensor(self) -> Tensor:
        """The bits as ``captum.attr.LayerAttribution.interpolate`` takes them, (1, 1, h, w)."""
        return torch.from_numpy(self.bits)[None, None]
