"""What each channel of an activation looks like on calibration data: extremes, mean, mean square."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from edgefuse.errors import InputError
from edgefuse.graph import Model, clone_model, model_to_bytes
from edgefuse.graph.reference import judge_session

__all__ = ["ChannelStatistics", "collect_channels"]


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Of one tensor, over all samples and positions; float64 [channels] each.

    low, high: extremes.  mean.  mean_square: of the values themselves, not around the mean.
    """

    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    mean_square: np.ndarray

    @property
    def largest(self) -> np.ndarray:
        """Return max|x| of each channel."""
        found: np.ndarray = np.maximum(self.high, -self.low)
        return found

    @property
    def deviation(self) -> np.ndarray:
        """Return the standard deviation of each channel."""
        found: np.ndarray = np.sqrt(np.maximum(self.mean_square - self.mean**2, 0.0))
        return found


def collect_channels(
    model: Model, axes: Mapping[str, int], samples: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, ChannelStatistics]:
    """Return the statistics of each named value along its channel axis (counted from 0), streaming.

    samples: feeds by input name. Runs in ONNX Runtime, optimiser off. A value that is empty on every sample
    has no entry. Raises InputError for a value that is not finite.
    """
    copy = clone_model(model)
    inputs = {v.name for v in copy.graph.inputs}
    known = {v.name for v in copy.graph.outputs} | inputs
    for value in [v for node in copy.graph for v in node.outputs]:
        if value.name in axes and value.name not in known:
            copy.graph.outputs.append(value)
    fetched = [name for name in axes if name not in inputs]
    session = judge_session(model_to_bytes(copy))
    sums: dict[str, _Sums] = {name: _Sums() for name in axes}
    for feeds in samples:
        arrays = dict(zip(fetched, session.run(fetched, dict(feeds)) if fetched else [], strict=True))
        for name, axis in axes.items():
            sums[name].add(name, np.asarray(arrays.get(name, feeds.get(name))), axis)
    return {name: found.result() for name, found in sums.items() if found.count}


class _Sums:
    def __init__(self) -> None:
        self.count = 0

    def add(self, name: str, array: np.ndarray, axis: int) -> None:
        if not array.size:
            return
        rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        low, high = rows.min(axis=1).astype(np.float64), rows.max(axis=1).astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise InputError(f"tensor {name!r} is not finite on a calibration sample")
        total = rows.sum(axis=1, dtype=np.float64)
        squares = np.einsum("cn,cn->c", rows, rows, dtype=np.float64)
        if not self.count:
            self.low, self.high, self.total, self.squares = low, high, total, squares
        else:
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
            self.total, self.squares = self.total + total, self.squares + squares
        self.count += rows.shape[1]

    def result(self) -> ChannelStatistics:
        return ChannelStatistics(self.low, self.high, self.total / self.count, self.squares / self.count)
