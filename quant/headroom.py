"""Room above what calibration saw, for tensors whose tail goes on.

A range from a few dozen samples ends where those samples happened to end; what the field brings beyond is
clipped, and clipping is the largest error that a grid makes. How far a tensor may get is told by how its
largest value differs from sample to sample: maxima of blocks follow a Gumbel law (Gumbel 1958, section
5.2.6), and by its moments the largest of N samples is expected at mean + sqrt(6) / pi * deviation * ln N.
Wider is coarser too, so that a tensor is widened only where its error falls in the halves of the samples that
made no range. Which end a handful of held-out samples exceeds is chance; over many halves it is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgefuse.graph import Model, Node, Value, constant, input_value
from edgefuse.quant.channel_scaling import by_input_channel
from edgefuse.quant.observers import Range
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.value_bounds import value_bounds

__all__ = ["Blocks", "Extremes", "choose_horizons", "widen", "widened"]

# Fewer samples say nothing of a deviation.
LEAST_SAMPLES = 10
# For how many times the samples that were seen the range is made.
HORIZONS = (4.0, 16.0, 64.0)
# A tensor is widened where its error on the other halves falls below this share.
_ENOUGH = 0.9
_HALVES = 16


@dataclass(frozen=True, slots=True)
class Extremes:
    """The smallest and largest value of one tensor in each sample, and its size.

    low, high: float64 [samples].  size: mean number of elements in a sample.
    """

    low: np.ndarray
    high: np.ndarray
    size: float = 1.0

    def range(self) -> Range:
        """Return the smallest and largest value of all samples."""
        return Range(float(self.low.min()), float(self.high.max()))

    def of(self, places: np.ndarray | Sequence[int]) -> Extremes:
        """Return those of the samples at `places`."""
        index = np.asarray(places)
        return Extremes(self.low[index], self.high[index], self.size)


class Blocks:
    """An observer that keeps the two extremes of each array that it sees: 16 bytes a sample."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self._elements = 0

    def update(self, array: np.ndarray) -> None:
        """Take in one sample; an empty one changes nothing."""
        if array.size:
            self.low.append(float(array.min()))
            self.high.append(float(array.max()))
            self._elements += array.size

    def extremes(self) -> Extremes:
        """Return what was seen; it may be nothing."""
        return Extremes(np.array(self.low), np.array(self.high), self._elements / max(1, len(self.low)))


def widened(extremes: Extremes, horizon: float, bounds: tuple[float, float] = (-math.inf, math.inf)) -> Range:
    """Return the range that `horizon` times as many samples are expected to need.

    Never narrower than what was seen, and nothing beyond `bounds` (what the tensor can hold at all).
    """
    seen = extremes.range()
    count = math.log(horizon * len(extremes.high))
    reach = math.sqrt(6.0) / math.pi * count
    low = float(extremes.low.mean() - reach * extremes.low.std())
    high = float(extremes.high.mean() + reach * extremes.high.std())
    return Range(
        min(seen.low, max(low, bounds[0])) if seen.low < 0 else seen.low,
        max(seen.high, min(high, bounds[1])) if seen.high > 0 else seen.high,
    )


def widen(model: Model, extremes: Mapping[str, Extremes], horizons: Mapping[str, float]) -> dict[str, Range]:
    """Return the wider range of each tensor in `horizons`."""
    values = _read_values(model)
    return {n: widened(extremes[n], horizon, value_bounds(values[n])) for n, horizon in horizons.items()}


def choose_horizons(
    model: Model, nodes: Sequence[str], extremes: Mapping[str, Extremes], scheme: Scheme
) -> dict[str, float]:
    """Return the horizon of each tensor whose error on unseen samples is predicted to fall if it is wider.

    nodes: those that run in int8; what they read is judged. Most promising first. Each of some random halves
    of the samples (seeded) makes a range, and the other half is held against it: what its extremes lose by
    clipping, and the step's uniform noise on every element. The extremes may lie in the channel that counts
    most, so that clipping is weighed as that channel is against the mean of all.
    """
    wanted = set(nodes)
    heaviest: dict[str, float] = {}
    for node in model.graph:
        name = (node.inputs[0].name or "") if node.name in wanted and node.inputs[0] is not None else ""
        if name in extremes and len(extremes[name].high) >= LEAST_SAMPLES:
            heaviest[name] = max(heaviest.get(name, 1.0), _heaviest_channel(node))
    values = _read_values(model)
    found: dict[str, tuple[float, float]] = {}
    for name, weight in heaviest.items():
        clipped, rounded = _errors(extremes[name], value_bounds(values[name]), scheme)
        errors = weight * clipped + rounded
        best = int(np.argmin(errors))
        if best and errors[best] < _ENOUGH * errors[0]:
            found[name] = (float(errors[best] / errors[0]), HORIZONS[best - 1])
    return {name: found[name][1] for name in sorted(found, key=found.__getitem__)}


def _heaviest_channel(node: Node) -> float:
    """Return the square of the weights that read the heaviest input channel over the mean of all channels."""
    if constant(input_value(node, 1)) is None:
        return 1.0
    squares = np.square(by_input_channel(node)).sum(axis=(1, 3))
    mean = float(squares.mean())
    return float(squares.max()) / mean if mean > 0 else 1.0


def _errors(seen: Extremes, bounds: tuple[float, float], scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Return what clipping and rounding cost in the other halves, for the plain range and each horizon."""
    rng = np.random.default_rng(0)
    count = len(seen.high)
    clipped, rounded = np.zeros(1 + len(HORIZONS)), np.zeros(1 + len(HORIZONS))
    for _ in range(_HALVES):
        order = rng.permutation(count)
        fit, other = seen.of(order[: count // 2]), seen.of(order[count // 2 :])
        tried = [fit.range(), *(widened(fit, horizon, bounds) for horizon in HORIZONS)]
        for index, made in enumerate(tried):
            wide = made.including_zero()
            step = float(scheme.grid(wide.low, wide.high)[0])
            over = np.maximum(other.high - wide.high, 0.0), np.maximum(wide.low - other.low, 0.0)
            clipped[index] += np.square(over[0]).sum() + np.square(over[1]).sum()
            rounded[index] += len(other.high) * seen.size * step**2 / 12
    return clipped, rounded


def _read_values(model: Model) -> dict[str, Value]:
    return {v.name or "": v for node in model.graph for v in node.inputs if v is not None}
