"""Payloads that can be opened here: lowered files, an engine, what the runtime made of the plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgefuse.analysis import node_cost
from edgefuse.backend import Lowered, Readback
from edgefuse.benchmark import Race, race
from edgefuse.compose.prepare import Prepared
from edgefuse.device import probe_host
from edgefuse.errors import EdgefuseError
from edgefuse.graph import Model
from edgefuse.plans import Plan
from edgefuse.quantized import Quantized
from edgefuse.runtime import Engine
from edgefuse.runtime.engine import open_engine

__all__ = ["Built", "lower_payload", "mac_shares", "open_built", "race_payloads", "read_back", "runs_here"]

Feeds = Mapping[str, np.ndarray]

# A race ends at whichever comes first: 2,000 timed calls of each payload say what more of them would.
RACE_SECONDS = 4.0
ALONE_SECONDS = 1.0  # one payload decides nothing: its time is only told
RACE_ROUNDS = 1000


@dataclass(slots=True)
class Built:
    """One payload of a build: its plan, its integers (empty for float), its files, and what was found.

    model: the one that was lowered: as prepared, or repaired.  repairs: what was tried to keep accuracy.
    readback: None where it cannot be opened here.  ms: measured median process CPU time, or None.
    accuracy: the Comparison with the reference, or None.
    regions: level 1, or None where it was not run.  reverted: regions that failed it in int8 and are float.
    mac_shares: group id -> its share of the model's multiply-accumulates; only groups that have any.
    """

    id: str
    plan: Plan
    quantized: Quantized
    lowered: Lowered
    model: Model | None = None
    repairs: Any = None
    readback: Readback | None = None
    ms: float | None = None
    accuracy: Any = None
    self_test: Sequence[Any] = ()
    regions: Any = None
    reverted: Sequence[Any] = ()
    mac_shares: Mapping[str, float] = field(default_factory=dict)

    def lowered_model(self, prepared: Prepared) -> Model:
        """Return the model that the plan and the integers are of."""
        return self.model if self.model is not None else prepared.model

    @property
    def precision(self) -> str:
        """Return "fp32", "fp16" or "int8" where all compute groups agree, else "mixed"."""
        used = {g.precision for g in self.plan.groups if g.compute_nodes}
        return next(iter(used)) if len(used) == 1 else "mixed"

    @property
    def int8_share(self) -> float:
        """Return the share of the multiply-accumulates that runs in int8."""
        return sum(self.mac_shares.get(g.id, 0.0) for g in self.plan.groups if g.precision == "int8")

    @property
    def honoured(self) -> float | None:
        """Return the share of planned fusions that the runtime confirmed, or None where it was not asked."""
        return self.readback.honoured(self.plan) if self.readback is not None else None

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(len(data) for data in self.lowered.files.values())


def runs_here(prepared: Prepared) -> bool:
    """Return whether this machine is the target, so that a payload can be run and timed here."""
    if not prepared.backend.probe().available:
        return False
    try:
        return probe_host().device.name == prepared.target.device.name
    except EdgefuseError:
        return False


def lower_payload(name: str, prepared: Prepared, plan: Plan, quantized: Quantized) -> Built:
    """Return the payload for a plan."""
    return Built(
        name,
        plan,
        quantized,
        prepared.backend.lower(prepared.model, plan, quantized, prepared.target),
        prepared.model,
        mac_shares=mac_shares(prepared, plan),
    )


def mac_shares(prepared: Prepared, plan: Plan) -> dict[str, float]:
    """Return group id -> share of all multiply-accumulates; groups without any are left out."""
    macs = {node.name: cost.macs for node in prepared.costed.graph if (cost := node_cost(node)) is not None}
    total = sum(macs.values())
    found = {group.id: sum(macs.get(name, 0) for name in group.nodes) for group in plan.groups}
    return {name: count / total for name, count in found.items() if count}


def open_built(built: Built, prepared: Prepared, threads: int | None, profile: bool = False) -> Engine:
    """Return an engine of the payload on this machine."""
    options: dict[str, Any] = dict(built.lowered.options)
    if threads is not None:
        options["threads"] = threads
    if profile:
        options["profile"] = True
    return open_engine(
        prepared.target.family,
        built.lowered.files,
        built.lowered.entry,
        options,
        prepared.target.runtime.requirements,
    )


def read_back(built: Built, prepared: Prepared, feeds: Feeds, threads: int) -> Readback:
    """Return what the runtime runs for the payload, with the time of each kernel (fastest of a few runs)."""
    engine = open_built(built, prepared, threads, profile=True)
    try:
        for _ in range(3):
            engine.run(feeds)
        return prepared.backend.readback(engine, built.plan)
    finally:
        engine.close()


def race_payloads(payloads: Sequence[Built], prepared: Prepared, feeds: Feeds, threads: int) -> Race:
    """Return all payloads timed in one interleaved race on this machine; each gets its median in `ms`."""
    engines = {built.id: open_built(built, prepared, threads) for built in payloads}
    try:
        calls: dict[str, Callable[[], object]] = {
            name: functools.partial(engine.run, feeds) for name, engine in engines.items()
        }
        seconds = RACE_SECONDS if len(calls) > 1 else ALONE_SECONDS
        result = race(calls, rounds=RACE_ROUNDS, seconds=seconds)
    finally:
        for engine in engines.values():
            engine.close()
    for built in payloads:
        built.ms = result.timings[built.id].cpu_p50_ms
    return result
