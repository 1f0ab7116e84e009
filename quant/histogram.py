"""A histogram that grows with its data, in fixed memory and one pass.

Bins are [i * w, (i + 1) * w) with w a power of two. Where new data would need more than the allowed bins,
w is doubled and neighbours merge, which is exact: the same data in any order and in any batches gives the
same bins.
Exact zeros are counted apart too, since every quantization grid holds zero exactly.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["BINS", "Histogram"]

# Between 2048 and 4096 bins are in use once the data spreads: at least 8 for each of 256 levels.
BINS = 4096
# Values far from zero and close together: an index is at most 2^25.
_FRACTION_BITS = 24
_SMALLEST_EXPONENT = -1000
_CHUNK = 1 << 16


class Histogram:
    """Counts of finite values. low, high: the extremes; total: how many; zeros: how many of them are 0."""

    __slots__ = ("_counts", "_exponent", "_first", "bins", "high", "low", "total", "zeros")

    def __init__(self, bins: int = BINS) -> None:
        self.bins = bins
        self.low = math.inf
        self.high = -math.inf
        self.total = 0
        self.zeros = 0
        self._exponent = _SMALLEST_EXPONENT
        self._first = 0
        self._counts = np.zeros(0, np.int64)

    @property
    def width(self) -> float:
        """Return the width of a bin, a power of two."""
        return math.ldexp(1.0, self._exponent)

    def update(self, array: np.ndarray) -> None:
        """Count the values of an array of any shape; they must be finite."""
        if not array.size:
            return
        self._cover(float(array.min()), float(array.max()))
        flat = array.reshape(-1)
        self.total += flat.size
        self.zeros += flat.size - int(np.count_nonzero(flat))
        for start in range(0, flat.size, _CHUNK):
            found = self._indices(flat[start : start + _CHUNK]) - self._first
            self._counts += np.bincount(found, minlength=len(self._counts))

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (lower edges float64, counts int64) of the bins in use, zeros included."""
        first = self._first + np.arange(len(self._counts))
        return first * self.width, self._counts.copy()

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (values, counts), both float64: the middle of each bin that holds a value other than zero.

        The middle is moved into [low, high]. Values are off by at most half a bin.
        """
        edges, counts = self.counts()
        if self.zeros:
            counts[-self._first] -= self.zeros
        held = counts > 0
        middles = np.clip(edges[held] + self.width / 2, self.low, self.high)
        return middles, counts[held].astype(np.float64)

    def _indices(self, values: np.ndarray) -> np.ndarray:
        # A power of two >= 1 neither rounds a float32 nor takes it to zero; other factors need float64.
        exact = values.dtype == np.float32 and -120 <= self._exponent <= 0
        kind = np.float32 if exact else np.float64
        scaled = values.astype(kind) * kind(math.ldexp(1.0, -self._exponent))
        indices: np.ndarray = np.floor(scaled, out=scaled).astype(np.int64)
        return indices

    def _cover(self, low: float, high: float) -> None:
        """Widen the bins, then add empty ones at the ends, until [low, high] is covered."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        needed = self._needed_exponent()
        if needed > self._exponent:
            self._merge(needed - self._exponent)
            self._exponent = needed
        ends = self._indices(np.array([self.low, self.high], np.float64))
        first, last = int(ends[0]), int(ends[1])
        counts = np.zeros(last - first + 1, np.int64)
        held = len(self._counts)
        if held:
            counts[self._first - first : self._first - first + held] = self._counts
        self._first, self._counts = first, counts

    def _needed_exponent(self) -> int:
        """Return the smallest exponent whose bins hold [low, high]: it depends on these two alone."""
        largest = max(-self.low, self.high)
        # Zeros alone fit in bins of any width, and what follows them may be tiny.
        exponent = math.frexp(largest)[1] - _FRACTION_BITS if largest else _SMALLEST_EXPONENT
        exponent = max(exponent, _SMALLEST_EXPONENT)
        span = self.high - self.low
        if span > 0:
            exponent = max(exponent, math.frexp(span / self.bins)[1] - 1)
        while self._span(exponent) > self.bins:
            exponent += 1
        return exponent

    def _span(self, exponent: int) -> int:
        low, high = (math.floor(math.ldexp(x, -exponent)) for x in (self.low, self.high))
        return high - low + 1

    def _merge(self, doublings: int) -> None:
        if not len(self._counts):
            return
        index = (self._first + np.arange(len(self._counts))) >> min(doublings, 62)
        first = int(index[0])
        merged = np.zeros(int(index[-1]) - first + 1, np.int64)
        np.add.at(merged, index - first, self._counts)
        self._first, self._counts = first, merged
