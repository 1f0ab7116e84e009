"""Where to clip: the range that a histogram of values gives under each rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgefuse.quant.histogram import Histogram
from edgefuse.quant.scheme import Scheme

__all__ = ["entropy_range", "grid_error", "mse_range", "percentile_range"]

# Candidates keep this share of the min-max range, widest first: where two are equally good the wider one is
# taken.
_SHARES = np.linspace(1.0, 0.05, 96)
# A second look around the best share.
_NEAR = np.linspace(1.0 + 0.01, 1.0 - 0.01, 21)
# What stands for an empty bin of the quantized distribution where the original has mass.
_LEAST = 1e-9

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


def percentile_range(histogram: Histogram, percentile: float) -> tuple[float, float]:
    """Return the range outside of which at most (100 - percentile) % of the values lie, at either end.

    percentile: in (50, 100]; 100 gives min and max exactly. Else the ends are edges of bins.
    """
    edges, counts = histogram.counts()
    allowed = (1.0 - percentile / 100.0) * histogram.total
    below = np.concatenate([[0], np.cumsum(counts)])  # below[i]: values under the lower edge of bin i
    above = histogram.total - below[1:]  # above[i]: values over the upper edge of bin i
    first = int(np.flatnonzero(below[:-1] <= allowed)[-1])
    last = int(np.flatnonzero(above <= allowed)[0])
    low = max(histogram.low, float(edges[first]))
    high = min(histogram.high, float(edges[last]) + histogram.width)
    return low, high


def mse_range(histogram: Histogram, scheme: Scheme, power: float) -> tuple[float, float]:
    """Return the range whose grid has the smallest `grid_error`; never worse than min-max in that measure.

    Powers of 2 and 2.4 are usual (Nagel et al. 2021, arXiv 2106.08295, eq. 8 for 2; 2.4 weighs large errors
    more).
    """
    values, counts = histogram.points()
    return _search(histogram, scheme, lambda low, high: grid_error(values, counts, low, high, scheme, power))


def grid_error(
    values: np.ndarray,
    counts: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    scheme: Scheme,
    power: float,
) -> np.ndarray:
    """Return sum of counts * |q(v) - v| ** power for each candidate range [low, high] that holds 0.

    values, counts: float64 [n].  low, high: float64 [k].  Result: float64 [k].
    """
    scale, zero = (x[:, None] for x in scheme.grid(low, high))
    steps = np.rint(values / scale)
    np.clip(steps, scheme.activation_low - zero, scheme.activation_high - zero, out=steps)
    errors = np.abs(steps * scale - values)
    total: np.ndarray = (np.square(errors) if power == 2 else errors**power) @ counts
    return total


def entropy_range(histogram: Histogram, scheme: Scheme) -> tuple[float, float]:
    """Return the range whose quantized distribution is nearest to the clipped one (smallest KL divergence).

    The reference holds the clipped values at its ends; the quantized one spreads each level's mass evenly
    over the level's bins that are not empty (Migacz, "8-bit inference with TensorRT", GTC 2017). Exact zeros
    are left out of both: every grid holds them.
    """
    values, counts = histogram.points()

    def score(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        scale, zero = scheme.grid(low, high)
        return np.array([_divergence(values, counts, s, z, scheme) for s, z in zip(scale, zero, strict=True)])

    return _search(histogram, scheme, score)


def _divergence(values: np.ndarray, counts: np.ndarray, scale: float, zero: float, scheme: Scheme) -> float:
    steps = np.rint(values / scale).astype(np.int64)
    first = int(np.searchsorted(steps, scheme.activation_low - int(zero), side="left"))
    last = int(np.searchsorted(steps, scheme.activation_high - int(zero), side="right"))
    if first >= last:
        return np.inf
    original = counts[first:last].copy()
    level = steps[first:last] - steps[first]
    mass = np.bincount(level, weights=original) / np.maximum(np.bincount(level), 1)
    spread = mass[level] / original.sum()
    original[0] += counts[:first].sum()
    original[-1] += counts[last:].sum()
    original /= original.sum()
    return float((original * np.log(original / np.maximum(spread, _LEAST))).sum())


def _search(histogram: Histogram, scheme: Scheme, score: Score) -> tuple[float, float]:
    """Return the best range by coordinate descent over shares of the min-max range that hold 0.

    Both ends together, then the upper end, then the lower one, then both again closely. Each step keeps what
    it has where nothing is better.
    """
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    best = np.array([1.0, 1.0])
    one = np.ones(1)
    both = [np.array([1.0, 1.0])]
    if not scheme.symmetric and low < 0 < high:
        both += [np.array([0.0, 1.0]), np.array([1.0, 0.0])]
    lowest = score(low * one, high * one)[0]
    for moving in both:
        for shares in (_SHARES, None):
            tried = _candidates(best, moving, shares)
            scores = score(low * tried[:, 0], high * tried[:, 1])
            index = int(np.argmin(scores))
            if scores[index] < lowest:
                lowest, best = scores[index], tried[index]
    kept_low, kept_high = low * best[0], high * best[1]
    return float(max(kept_low, histogram.low)), float(min(kept_high, histogram.high))


def _candidates(best: np.ndarray, moving: np.ndarray, shares: np.ndarray | None) -> np.ndarray:
    """Return [k, 2] shares of (low, high): the moving ends take `shares`, or values near their best."""
    rows = (best * _NEAR[:, None]) if shares is None else np.repeat(shares[:, None], 2, axis=1)
    return np.minimum(np.where(moving > 0, rows, best), 1.0)
