"""What a repair gains: loss in float simulation, on samples that no repair has seen.

Decibels are 10 log10(signal / noise) at the float outputs, before a Softmax: relative squared errors of all
outputs, over all held-out samples, averaged so that each output counts the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from edgefuse.graph import Model, is_float, model_to_bytes
from edgefuse.graph.reference import judge_session
from edgefuse.plans import Plan
from edgefuse.quant.fake_quant import simulated_graph
from edgefuse.quant.loss_outputs import before_softmax
from edgefuse.quantized import Quantized

__all__ = ["Split", "Trials", "split_samples"]

Feeds = Mapping[str, np.ndarray]


class _Picked(Sequence[Feeds]):
    """Some of the samples, read when they are asked for."""

    def __init__(self, samples: Sequence[Feeds], places: Sequence[int]) -> None:
        self._samples = samples
        self._places = list(places)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Feeds: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Feeds]: ...
    def __getitem__(self, index: int | slice) -> Feeds | Sequence[Feeds]:
        if isinstance(index, slice):
            return _Picked(self._samples, self._places[index])
        return self._samples[self._places[index]]

    def __iter__(self) -> Iterator[Feeds]:
        return (self._samples[place] for place in self._places)


@dataclass(frozen=True, slots=True)
class Split:
    """Calibration samples in two: `fit` for what a repair reads, `held_out` for what decides on it."""

    fit: Sequence[Feeds]
    held_out: Sequence[Feeds]

    def some(self, count: int) -> Sequence[Feeds]:
        """Return at most `count` of the samples to fit, spread evenly: files often lie sorted by class."""
        size = len(self.fit)
        if size <= count:
            return self.fit
        return _Picked(self.fit, [int((i + 0.5) * size / count) for i in range(count)])


def split_samples(samples: Sequence[Feeds], held_out: int = 16) -> Split:
    """Return every third sample, at most `held_out` of them spread evenly, held out and all others to fit.

    A single sample serves as both: there is nothing to hold out.
    """
    count = len(samples)
    if count < 2:
        return Split(samples, samples)
    kept = min(held_out, max(1, count // 3))
    places = sorted({int((i + 0.5) * count / kept) for i in range(kept)})
    rest = [i for i in range(count) if i not in set(places)]
    return Split(_Picked(samples, rest), _Picked(samples, places))


class Trials:
    """The float network's outputs on the held-out samples, and how far simulated plans are from them."""

    def __init__(self, model: Model, samples: Sequence[Feeds]) -> None:
        self._samples = samples
        self._outputs = [i for i, v in enumerate(before_softmax(model).graph.outputs) if is_float(v)]
        self._clean = self._run(model) if self._outputs else []

    def __bool__(self) -> bool:
        """Return whether there is anything to measure: a float output and a sample."""
        return bool(self._outputs and self._clean)

    def _run(self, model: Model) -> list[list[np.ndarray]]:
        cut = before_softmax(model)
        session = judge_session(model_to_bytes(cut))
        # By place: a repair may put a node of another name before a Softmax.
        names = [cut.graph.outputs[place].name or "" for place in self._outputs]
        return [session.run(names, dict(feeds)) for feeds in self._samples]

    def decibels(self, model: Model, plan: Plan, quantized: Quantized) -> float:
        """Return the signal-to-noise ratio of the simulated plan in dB; -inf where it is not finite."""
        noisy = self._run(simulated_graph(model, plan, quantized))
        total = 0.0
        for k in range(len(self._outputs)):
            error = power = 0.0
            for clean, found in zip(self._clean, noisy, strict=True):
                if clean[k].shape != found[k].shape:
                    continue  # an output whose size depends on the data (boxes that were kept)
                wide = clean[k].astype(np.float64)
                error += float(np.square(found[k].astype(np.float64) - wide).sum())
                power += float(np.square(wide).sum())
            total += error / power if power else 0.0
        if not np.isfinite(total):
            return float("-inf")
        return -10.0 * float(np.log10(total / len(self._outputs))) if total else float("inf")
