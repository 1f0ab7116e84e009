"""Observers: what the range of a tensor is, seen sample by sample in fixed memory.

| name | range |
|---|---|
| minmax | smallest and largest value |
| average | exponential average of each update's smallest and largest; `average@0.9` keeps 0.9 of the old |
| percentile | all but 0.01 % of the values at either end; `percentile@99.9` sets another |
| entropy | smallest KL divergence between the values and their quantized distribution |
| mse | smallest sum of squared errors of the grid; `mse@2.4` another power |

All but `average` give the same range for the same values in any order and any batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgefuse.errors import InputError, UsageError, did_you_mean
from edgefuse.quant.clipping import entropy_range, mse_range, percentile_range
from edgefuse.quant.histogram import BINS, Histogram
from edgefuse.quant.scheme import Scheme

__all__ = [
    "OBSERVERS",
    "ChannelObserver",
    "ChannelRange",
    "HistogramObserver",
    "MinMax",
    "MovingAverage",
    "Observer",
    "Range",
    "make_observer",
    "range_of",
]

# The parameter that each takes where the name holds none; None = it takes no parameter.
OBSERVERS: dict[str, float | None] = {
    "minmax": None,
    "average": 0.9,
    "percentile": 99.99,
    "entropy": None,
    "mse": 2.0,
}
_AFFINE = Scheme(0, 255, symmetric=False, weight_bits=8, per_channel=True)
_CHANNEL_BINS = BINS // 2


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and largest value that a tensor's integers stand for; both finite, low <= high."""

    low: float
    high: float

    def including_zero(self) -> Range:
        """Return the range widened to hold 0, which padding and zero points need to be exact."""
        return Range(min(self.low, 0.0), max(self.high, 0.0))


@dataclass(frozen=True, slots=True)
class ChannelRange:
    """One range for each channel: low, high float64 [channels]."""

    low: np.ndarray
    high: np.ndarray


class Observer(Protocol):
    """Sees arrays of finite values, one after another, and then says a range; its memory does not grow."""

    def update(self, array: np.ndarray) -> None:
        """Take in one array of any shape; an empty one changes nothing."""

    def range(self) -> Range:
        """Return the range of all that was seen; raises InputError where that is nothing."""


class MinMax:
    """The smallest and largest value."""

    def __init__(self) -> None:
        self._low = math.inf
        self._high = -math.inf

    def update(self, array: np.ndarray) -> None:
        """Take in one array."""
        if array.size:
            self._low = min(self._low, float(array.min()))
            self._high = max(self._high, float(array.max()))

    def range(self) -> Range:
        """Return [min, max] of all values."""
        return _checked(self._low, self._high)


class MovingAverage:
    """The exponential average of the updates' extremes: new = keep * old + (1 - keep) * seen.

    It depends on the order; the first update counts whole (Krishnamoorthi 2018, arXiv 1806.08342, 3.1).
    """

    def __init__(self, keep: float = 0.9) -> None:
        self._keep = keep
        self._low = math.inf
        self._high = -math.inf

    def update(self, array: np.ndarray) -> None:
        """Take in one array, a sample or a batch."""
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        if self._low > self._high:
            self._low, self._high = low, high
            return
        self._low = self._keep * self._low + (1 - self._keep) * low
        self._high = self._keep * self._high + (1 - self._keep) * high

    def range(self) -> Range:
        """Return the averages of the smallest and of the largest values."""
        return _checked(self._low, self._high)


class HistogramObserver:
    """A range chosen from a histogram; kind: "percentile", "entropy", "mse" or "minmax" as in `range_of`."""

    def __init__(self, name: str, scheme: Scheme = _AFFINE, bins: int = BINS) -> None:
        _parsed(name)
        self._name = name
        self._scheme = scheme
        self.histogram = Histogram(bins)

    def update(self, array: np.ndarray) -> None:
        """Take in one array."""
        self.histogram.update(array)

    def range(self) -> Range:
        """Return the chosen range."""
        return range_of(self.histogram, self._name, self._scheme)


class ChannelObserver:
    """One range for each index of an axis, by the rule that `make_observer` takes under this name."""

    def __init__(self, name: str, axis: int, scheme: Scheme = _AFFINE) -> None:
        """axis: of the channels; negative counts from the end.  scheme: as `make_observer`."""
        kind, keep = _parsed(name)
        self._name, self._axis, self._scheme = name, axis, scheme
        # The extremes need no observer for each channel: one vector holds them all.
        self._keep = keep if kind == "average" else None
        self._extremes = kind in ("minmax", "average")
        self._low: np.ndarray | None = None
        self._high: np.ndarray | None = None
        self._parts: list[Observer] = []

    def update(self, array: np.ndarray) -> None:
        """Take in one array; raises InputError where it has another number of channels than the first."""
        rows = np.moveaxis(array, self._axis, 0).reshape(array.shape[self._axis], -1)
        if not rows.size:
            return
        self._check(len(rows))
        if self._extremes:
            self._widen(rows.min(axis=1).astype(np.float64), rows.max(axis=1).astype(np.float64))
            return
        if not self._parts:
            self._parts = [make_observer(self._name, self._scheme, bins=_CHANNEL_BINS) for _ in rows]
        for part, row in zip(self._parts, rows, strict=True):
            part.update(row)

    def channel_range(self) -> ChannelRange:
        """Return each channel's range; raises InputError where nothing was seen."""
        if self._low is not None and self._high is not None:
            return ChannelRange(self._low, self._high)
        if not self._parts:
            raise InputError("no value was observed", hint="calibration data must reach every tensor")
        found = [part.range() for part in self._parts]
        return ChannelRange(np.array([r.low for r in found]), np.array([r.high for r in found]))

    def _widen(self, low: np.ndarray, high: np.ndarray) -> None:
        if self._low is None or self._high is None:
            self._low, self._high = low, high
        elif self._keep is None:
            self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)
        else:
            self._low = self._keep * self._low + (1 - self._keep) * low
            self._high = self._keep * self._high + (1 - self._keep) * high

    def _check(self, channels: int) -> None:
        held = len(self._parts) if self._low is None else len(self._low)
        if held and channels != held:
            raise InputError(
                "calibration samples differ in their number of channels",
                expected=str(held),
                got=str(channels),
            )


def make_observer(name: str, scheme: Scheme | None = None, *, bins: int = BINS) -> Observer:
    """Return a new observer: "minmax", "average", "percentile", "entropy", "mse", perhaps with "@PARAMETER".

    scheme: the grid that "entropy" and "mse" choose for (8-bit affine where left out).
    Raises UsageError for an unknown name or a parameter out of range.
    """
    kind, parameter = _parsed(name)
    if kind == "minmax":
        return MinMax()
    if kind == "average":
        return MovingAverage(parameter)
    return HistogramObserver(name, scheme or _AFFINE, bins)


def range_of(histogram: Histogram, name: str, scheme: Scheme) -> Range:
    """Return the range that the observer `name` (any but "average") gives for counted values.

    Several rules can so be compared after one pass over the data. With 16-bit activations "entropy" and "mse"
    give min-max: the bins are wider than the levels. Raises InputError where nothing was counted.
    """
    kind, parameter = _parsed(name)
    if kind == "average":
        raise UsageError("a histogram does not know the order that a moving average needs")
    whole = _checked(histogram.low, histogram.high)
    if kind == "percentile":
        return Range(*percentile_range(histogram, parameter))
    if kind == "minmax" or scheme.activation_bits == 16 or histogram.zeros == histogram.total:
        return whole
    if kind == "entropy":
        return Range(*entropy_range(histogram, scheme))
    return Range(*mse_range(histogram, scheme, parameter))


def _parsed(name: str) -> tuple[str, float]:
    kind, at, text = name.partition("@")
    if kind not in OBSERVERS:
        raise UsageError(
            f"unknown observer {kind!r}{did_you_mean(kind, list(OBSERVERS))}", expected=", ".join(OBSERVERS)
        )
    default = OBSERVERS[kind]
    if not at:
        return kind, default or 0.0
    if default is None:
        raise UsageError(f"the observer {kind} takes no parameter", got=name)
    low, high = {"average": (0.0, 1.0), "percentile": (50.0, 100.0), "mse": (0.0, 16.0)}[kind]
    try:
        parameter = float(text)
    except ValueError:
        parameter = math.nan
    inside = low < parameter <= high if kind == "percentile" else low < parameter < high
    if not inside:
        raise UsageError(f"bad parameter of the observer {kind}", expected=f"{low:g} to {high:g}", got=text)
    return kind, parameter


def _checked(low: float, high: float) -> Range:
    if low > high:
        raise InputError("no value was observed", hint="calibration data must reach every tensor")
    return Range(low, high)
