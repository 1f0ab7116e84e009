"""The integer grids that a model brings with it: what its Q/DQ nodes say. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Grid", "ImportedWeight"]


@dataclass(frozen=True, slots=True)
class Grid:
    """How a model quantizes one tensor: q = clamp(round_half_even(x / scale) + zero_point, low, high).

    scale: > 0.  zero_point: in [low, high].  low, high: the limits of the integer type, (0, 255) for uint8.

    >>> Grid(0.5, 2, 0, 255).minimum, Grid(0.5, 2, 0, 255).maximum
    (-1.0, 126.5)
    """

    scale: float
    zero_point: int
    low: int
    high: int

    @property
    def minimum(self) -> float:
        """Return the smallest number that an integer stands for."""
        return (self.low - self.zero_point) * self.scale

    @property
    def maximum(self) -> float:
        """Return the largest number that an integer stands for."""
        return (self.high - self.zero_point) * self.scale


@dataclass(frozen=True, slots=True)
class ImportedWeight:
    """A weight as the model quantizes it.

    values: int32, the integers less their zero points.  scale: float32 [channels] along `axis`, or [1] with
    axis None.  name: by which the user knows the node that dequantizes it.
    """

    values: np.ndarray
    scale: np.ndarray
    axis: int | None
    name: str

    def spread_scale(self) -> np.ndarray:
        """Return the scale as float32 in a shape that broadcasts over `values`."""
        shape = [1] * self.values.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        return self.scale.reshape(shape)

    def dequantized(self) -> np.ndarray:
        """Return values * scale as float32, rounded as DequantizeLinear rounds."""
        real: np.ndarray = self.values.astype(np.float32) * self.spread_scale()
        return real
