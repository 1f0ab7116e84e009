"""Repairs of a quantized network, each kept only where it gains.

Before probing, on the float model: masks clipped, uneven joins split, channels equalized, biases absorbed,
outliers smoothed or split off; on the ranges: room above what was seen. After planning, on the integers:
biases corrected, weights rounded together. None of them is on because it sounds good: each is tried on top of
those kept before it, in float simulation, on calibration samples that it has not seen, and the log says what
it gained and whether it stayed. What adds operators must gain more, by what they cost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefuse.errors import EdgefuseError
from edgefuse.graph import Model, Node, clone_model, constant, is_float
from edgefuse.plans import Format, Group, Plan
from edgefuse.quant.absorb_bias import absorb_bias
from edgefuse.quant.adaround import adaround
from edgefuse.quant.bias_correct import bias_correct
from edgefuse.quant.calibrate import collect_ranges
from edgefuse.quant.clip_masks import clip_masks
from edgefuse.quant.equalize import equalize
from edgefuse.quant.integer_bias import with_integer_biases
from edgefuse.quant.quantize import quantize_plan
from edgefuse.quant.scheme import Scheme
from edgefuse.quant.smooth import smooth
from edgefuse.quant.split_outliers import split_outliers
from edgefuse.quant.split_scales import split_scales
from edgefuse.quant.trials import Split, Trials, split_samples
from edgefuse.quantized import Quantized

__all__ = ["LEAST_GAIN_DB", "Repair", "RepairLog", "all_int8", "joined", "repair_after", "repair_before"]

Feeds = Mapping[str, np.ndarray]
Change = Callable[[Model, Sequence[Feeds]], list[str]]

# Below this a gain is noise of the held-out samples.
LEAST_GAIN_DB = 0.1
# What is added to that for each per cent of predicted time, and the most that is asked: decibels are had for
# time by layers that stay float too (EfficientNet-Lite0: 4.5 dB for about 10 %), but not without end.
DB_A_PER_CENT = 0.1
MOST_ASKED_DB = 3.0
# How many samples a trial before planning sees, and how many a walk through both networks holds in memory.
TRIAL_SAMPLES = 16
WALK_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair that was tried.

    gain_db: on held-out calibration samples, on top of the repairs kept before it; None where it found
    nothing to do or could not run (`detail` says why).  detail: what it did, a line for each tensor.
    """

    name: str
    kept: bool
    gain_db: float | None
    detail: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain values for the report."""
        gain = self.gain_db if self.gain_db is not None and np.isfinite(self.gain_db) else None
        return {
            "name": self.name,
            "kept": self.kept,
            "gain_db": None if gain is None else round(gain, 3),
            "detail": list(self.detail),
        }


@dataclass(frozen=True, slots=True)
class RepairLog:
    """The repairs tried, in order; before_db and after_db: held-out samples without and with those kept."""

    repairs: tuple[Repair, ...] = ()
    before_db: float = float("nan")
    after_db: float = float("nan")

    def as_json(self) -> dict[str, Any]:
        """Return plain values for the report."""
        ends = [round(db, 3) if np.isfinite(db) else None for db in (self.before_db, self.after_db)]
        return {
            "before_db": ends[0],
            "after_db": ends[1],
            "measured": "float simulation, held-out calibration samples",
            "tried": [repair.as_json() for repair in self.repairs],
        }

    def kept(self) -> tuple[str, ...]:
        """Return the names of the repairs that stayed."""
        return tuple(repair.name for repair in self.repairs if repair.kept)


def repair_before(
    model: Model,
    samples: Sequence[Feeds],
    scheme: Scheme,
    nodes: Iterable[str],
    *,
    price: Callable[[Model], float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Model, RepairLog]:
    """Return a repaired copy of the float model and what was tried.

    samples: calibration data; every third is held out.  nodes: names of those that can run in int8; each
    trial has all of them in int8, ranges by min-max, biases corrected.  price: the predicted milliseconds of
    a model, asked where a repair adds operators; None = they cost nothing.  progress: (tried, of).
    The float meaning is kept, but for absorbed biases below the shift. `model` itself is not changed.
    """
    names = tuple(nodes)
    split = split_samples(samples)
    trials = Trials(model, split.held_out)
    if not names or not trials:
        return model, RepairLog()
    log: list[Repair] = []
    base = _Before(scheme, names, split, trials, price)
    current = model
    before = best = base.decibels(current)
    todo = _changes(scheme, frozenset(names))
    for position, (name, change) in enumerate(todo):
        if any(made.kept and made.name.split(" ")[0] == name.split(" ")[0] for made in log):
            continue  # a milder form of a repair that stayed
        if name.endswith(" again") and not log[-1].kept:
            continue  # nothing has changed since it was tried
        made, current, best = base.attempt(name, change, current, best)
        log.append(made)
        if progress is not None:
            progress(position + 1, len(todo))
    return current, RepairLog(tuple(log), before, best)


def _changes(scheme: Scheme, int8: frozenset[str]) -> list[tuple[str, Change]]:
    return [
        ("clip_masks", clip_masks),
        ("equalize", lambda m, s: equalize(m, s, scheme, int8)),
        ("equalize by half", lambda m, s: equalize(m, s, scheme, int8, strength=0.5)),
        ("equalize_clips", lambda m, s: equalize(m, s, scheme, int8, clips="split")),
        ("absorb_bias", lambda m, s: absorb_bias(m, s, int8)),
        ("smooth", lambda m, s: smooth(m, s, scheme, int8)),
        ("smooth_by_mul", lambda m, s: smooth(m, s, scheme, int8, insert=True)),
        ("split_outliers", lambda m, s: split_outliers(m, s, scheme, int8)),
        ("smooth_by_mul again", lambda m, s: smooth(m, s, scheme, int8, insert=True)),
        ("split_scales", lambda m, s: split_scales(m, s, int8)),
    ]


@dataclass(slots=True)
class _Before:
    scheme: Scheme
    names: tuple[str, ...]
    split: Split
    trials: Trials
    price: Callable[[Model], float] | None = None

    def attempt(self, name: str, change: Change, current: Model, best: float) -> tuple[Repair, Model, float]:
        """Return what came of one repair, and the model and decibels to go on with."""
        copy = clone_model(current)
        try:
            done = change(copy, self.split.some(TRIAL_SAMPLES))
        except EdgefuseError as error:
            return Repair(name, False, None, (error.message,)), current, best
        if not done:
            return Repair(name, False, None, ("nothing to do",)), current, best
        found = self.decibels(copy)
        gain = found - best if np.isfinite(best) or np.isfinite(found) else 0.0
        if gain < LEAST_GAIN_DB:
            return Repair(name, False, gain, tuple(done)), current, best
        wanted, costs = self._wanted(current, copy)
        done = [*done, *costs]
        if gain < wanted:
            return Repair(name, False, gain, tuple(done)), current, best
        return Repair(name, True, gain, tuple(done)), copy, found

    def _wanted(self, current: Model, repaired: Model) -> tuple[float, list[str]]:
        """Return the least gain in dB for what the repair adds in time, and a line that says so."""
        if self.price is None or len(tuple(repaired.graph)) <= len(tuple(current.graph)):
            return LEAST_GAIN_DB, []
        before, after = self.price(current), self.price(repaired)
        extra = 100.0 * max(0.0, after / before - 1.0) if before > 0 else 0.0
        wanted = min(LEAST_GAIN_DB + DB_A_PER_CENT * extra, MOST_ASKED_DB)
        return wanted, [f"predicted time + {extra:.1f} %, for which it must gain {wanted:.1f} dB"]

    def decibels(self, model: Model) -> float:
        plan = all_int8(model, self.names)
        names = [v.name or "" for n in model.graph if n.name in set(self.names) for v in _reads(n)]
        try:
            ranges = collect_ranges(model, list(dict.fromkeys(names)), self.split.some(TRIAL_SAMPLES))
            quantized = quantize_plan(model, plan, ranges, self.scheme)
        except EdgefuseError:
            return float("-inf")
        with contextlib.suppress(EdgefuseError):  # a model with branches is judged without
            quantized = bias_correct(model, plan, quantized, self.split.some(WALK_SAMPLES // 2))
        return self.trials.decibels(model, plan, quantized)


def _reads(node: Node) -> list[Any]:
    return [v for v in node.inputs if v is not None and constant(v) is None and is_float(v)]


def all_int8(model: Model, names: Sequence[str]) -> Plan:
    """Return a plan with each named node an int8 group of its own, for trials before there is a plan."""
    wanted = set(names)
    groups = tuple(
        Group(
            id=f"g{position}",
            nodes=(node.name or "",),
            sources=(),
            operators=(node.op_type,),
            writes=(),
            rule="trial",
            variant="plain",
            precision="int8" if node.name in wanted else "fp32",
            output=Format(),
            cost=(),
            loss=0.0,
            compute_nodes=1,
            reason="trial",
        )
        for position, node in enumerate(model.graph)
    )
    return Plan(model="", target="", requested="int8", groups=groups)


def repair_after(
    model: Model,
    plan: Plan,
    quantized: Quantized,
    samples: Sequence[Feeds],
    scheme: Scheme,
    *,
    rounding: bool = True,
) -> tuple[Quantized, RepairLog]:
    """Return `quantized` with corrected biases and rounding where they gain, and what was tried.

    model: as planned.  samples: calibration data; every third is held out.  rounding: whether weights are
    rounded together too, which takes as long as everything else. Integer biases are made anew.
    """
    split = split_samples(samples)
    trials = Trials(model, split.held_out)
    if not quantized or not trials:
        return quantized, RepairLog()
    fit = list(split.some(WALK_SAMPLES))
    before = best = trials.decibels(model, plan, quantized)
    todo: list[tuple[str, Callable[[Quantized], Quantized]]] = [
        ("bias_correct", lambda q: bias_correct(model, plan, q, fit))
    ]
    if rounding:
        todo.append(("adaround", lambda q: adaround(model, plan, q, fit, scheme)))
    log = []
    for name, change in todo:
        try:
            made = change(quantized)
        except EdgefuseError as error:
            log.append(Repair(name, False, None, (error.message,)))
            continue
        found = trials.decibels(model, plan, made)
        kept = found - best >= LEAST_GAIN_DB
        log.append(Repair(name, kept, found - best, (f"{len(made.biases)} layers",)))
        if kept:
            quantized, best = made, found
    quantized = with_integer_biases(model, quantized, scheme)
    return quantized, RepairLog(tuple(log), before, best)


def joined(first: RepairLog, second: RepairLog) -> RepairLog:
    """Return one log of two stages of repairs; decibels are those of the second, where it has any."""
    last = second if not np.isnan(second.before_db) else first
    return replace(last, repairs=(*first.repairs, *second.repairs))
