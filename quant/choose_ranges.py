"""Which rule makes ranges out of calibration data: the one under which the network loses least.

Min-max holds every value that was seen, and a single outlier makes the steps of all others coarse (a detector
on street scenes: 9.3 dB with min-max, 13.9 dB with least squares); cutting outliers off costs a network that
needs them. Neither is right by itself, so each rule is tried on samples that made no range. Where min-max is
best, single tensors may still need room above what was seen (`edgefuse.quant.headroom`): tried likewise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefuse.errors import EdgefuseError
from edgefuse.graph import Model
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quant.calibrate import observe
from edgefuse.quant.headroom import Blocks, Extremes, choose_horizons, widen
from edgefuse.quant.histogram import Histogram
from edgefuse.quant.observers import Range, range_of
from edgefuse.quant.quantize import quantize_plan
from edgefuse.quant.repair import LEAST_GAIN_DB, Repair, all_int8
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.trials import Split, Trials, split_samples

__all__ = ["RULES", "choose_ranges"]

Feeds = Mapping[str, np.ndarray]

# The first stands where no other gains; see `observers.range_of`.
RULES = ("minmax", "mse", "mse@2.4", "percentile@99.999")
# Fewer samples than this say nothing about what is rare.
_FEWEST = 8
_CORRECTION_SAMPLES = 8
_HALF_SAMPLES = 12
# A rule that gains less than this does not rule out that single tensors need more room.
_LITTLE_DB = 1.0


def choose_ranges(
    model: Model,
    values: Sequence[str],
    samples: Sequence[Feeds],
    scheme: Scheme,
    nodes: Sequence[str],
    progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, Range], tuple[Repair, ...]]:
    """Return the range of each named value by the rule that loses least, and what was tried.

    nodes: those that can run in int8; each trial has all of them in int8 with corrected biases, ranges of two
    thirds of the samples or more, and is judged on the rest. The ranges returned are of all samples. Values
    that are always empty are left out.  progress: called with the number of samples read.
    Raises InputError for no samples, or a value that is not finite.
    """
    split = split_samples(samples)
    histograms = {name: Histogram() for name in values}
    blocks = {name: Blocks() for name in values}
    alone = len(samples) < _FEWEST or not nodes
    done = _Done(progress)
    sinks = {name: _Each(histograms[name], blocks[name]) for name in values}
    seen = observe(model, sinks, samples if alone else split.fit, done)

    def ranges(rule: str) -> dict[str, Range]:
        return {name: range_of(histograms[name], rule, scheme) for name in histograms if name in seen}

    if alone:
        return ranges(RULES[0]), ()
    judge = _Judge(model, nodes, scheme, Trials(model, split.held_out), split.some(_CORRECTION_SAMPLES))
    found = {rule: judge.decibels(ranges(rule)) for rule in RULES} if judge.trials else {}
    best = max(found, key=found.__getitem__, default=RULES[0])
    if not found or not found[best] - found[RULES[0]] >= LEAST_GAIN_DB:
        best = RULES[0]
    seen |= observe(model, sinks, split.held_out, done)
    advantage = found[best] - found[RULES[0]] if best != RULES[0] else 0.0
    room: tuple[Repair, ...] = ()
    if found and advantage < _LITTLE_DB:  # more says that tails are better cut off
        extremes = {name: block.extremes() for name, block in blocks.items()}
        plain = ranges(RULES[0])
        wide, row = _with_room(judge, split.fit, plain, extremes, len(samples), advantage + LEAST_GAIN_DB)
        if row.kept:
            rows = [_row(rule, False, found) for rule in RULES[1:]]
            return {**plain, **wide}, (*rows, row)
        room = (row,)
    rows = [_row(rule, rule == best, found) for rule in RULES[1:] if rule in found]
    return ranges(best), (*rows, *room)


def _with_room(
    judge: _Judge,
    fit: Sequence[Feeds],
    chosen: Mapping[str, Range],
    extremes: Mapping[str, Extremes],
    count: int,
    least_gain: float,
) -> tuple[dict[str, Range], Repair]:
    """Return wider ranges for the tensors that seem to need them, and whether the outputs gain.

    fit: the samples that `extremes` begin with, of `count`.  least_gain: in dB. All promising tensors are
    tried together, then the most promising one alone.
    """
    whole = {name: held for name, held in extremes.items() if len(held.high) == count}
    horizons = choose_horizons(judge.model, judge.nodes, whole, judge.scheme)
    if not horizons:
        return {}, Repair("headroom", False, None, ("nothing to do",))
    gain = _gain_of_room(judge, fit, chosen, whole, horizons)
    if gain < least_gain and len(horizons) > 1:
        horizons = dict(list(horizons.items())[:1])
        gain = _gain_of_room(judge, fit, chosen, whole, horizons)
    made = widen(judge.model, whole, horizons)
    lines = tuple(f"{n}: {_shown(chosen[n])} seen, {_shown(made[n])} with room" for n in made)
    return made, Repair("headroom", gain >= least_gain, gain, lines)


def _gain_of_room(
    judge: _Judge,
    fit: Sequence[Feeds],
    chosen: Mapping[str, Range],
    whole: Mapping[str, Extremes],
    horizons: Mapping[str, float],
) -> float:
    """Return how many dB the outputs gain in the halves of `fit` that made no range.

    Each half makes ranges that the other is run in: which of them holds the largest values is no matter then.
    """
    noise = [0.0, 0.0]
    for first in (0, 1):
        half = range(first, len(fit), 2)
        parts = {name: held.of(half) for name, held in whole.items()}
        plain = {**chosen, **{name: held.range() for name, held in parts.items()}}
        others = Split(fit[1 - first :: 2], ()).some(_HALF_SAMPLES)
        mine = Split(fit[first::2], ()).some(_CORRECTION_SAMPLES)
        half_judge = replace(judge, trials=Trials(judge.model, others), fit=mine)
        for index, ranges in enumerate((plain, {**plain, **widen(judge.model, parts, horizons)})):
            noise[index] += 10 ** (-half_judge.decibels(ranges) / 10)
    return 10 * float(np.log10(noise[0] / noise[1])) if all(0 < n < np.inf for n in noise) else 0.0


def _shown(found: Range) -> str:
    return f"{found.low:.4g} to {found.high:.4g}"


class _Each:
    """Shows each array to several observers."""

    def __init__(self, *sinks: Histogram | Blocks) -> None:
        self._sinks = sinks

    def update(self, array: np.ndarray) -> None:
        for sink in self._sinks:
            sink.update(array)


class _Done:
    """Counts samples over both passes."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self._progress = progress
        self._count = 0

    def __call__(self, _: int) -> None:
        self._count += 1
        if self._progress is not None:
            self._progress(self._count)


def _row(rule: str, kept: bool, found: Mapping[str, float]) -> Repair:
    gain = found[rule] - found[RULES[0]]
    return Repair(f"ranges by {rule}", kept, gain if np.isfinite(gain) else None, (f"against {RULES[0]}",))


@dataclass(frozen=True, slots=True)
class _Judge:
    """What ranges are tried with: all nodes in int8, biases corrected on `fit`, judged on other samples."""

    model: Model
    nodes: Sequence[str]
    scheme: Scheme
    trials: Trials
    fit: Sequence[Feeds]

    def decibels(self, ranges: Mapping[str, Range]) -> float:
        plan = all_int8(self.model, self.nodes)
        try:
            quantized = quantize_plan(self.model, plan, ranges, self.scheme)
        except EdgefuseError:  # a tensor that no sample of the fit reached
            return float("-inf")
        with contextlib.suppress(EdgefuseError):  # a model with branches is judged without
            quantized = bias_correct(self.model, plan, quantized, self.fit)
        return self.trials.decibels(self.model, plan, quantized)
