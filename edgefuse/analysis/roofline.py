"""Where a node or a model stands under a device's roofline: an estimate, with its source.

Roofline model (Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009):
time >= max(FLOPs / peak, bytes / bandwidth); here a kernel's dispatch is added. Each node counts as one
kernel, so a fused model does better; no efficiency below the peaks is assumed, so a real one does worse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from edgefuse.analysis.flops import OpCost
from edgefuse.analysis.summary import Summary
from edgefuse.device import Confidence, Device, Precision
from edgefuse.errors import UnsupportedError

__all__ = ["Bound", "Roofline", "roofline"]

Bound = Literal["compute", "memory", "overhead"]
_WORST_LAST: tuple[Confidence, ...] = ("measured", "published", "recalled", "guess")


@dataclass(frozen=True, slots=True)
class Roofline:
    """What bounds the work, and how long it would take at the roof. Always an estimate.

    bound: the largest of the three times below.  compute_ms, memory_ms: time at the peak and at the DRAM
    bandwidth; for a model, of the nodes that each bounds.  overhead_ms: dispatch of `kernels` kernels.
    ms_estimate: for a node max(compute, memory) + overhead; for a model the sum over its nodes.
    intensity: FLOPs per byte at this precision.  ridge: the intensity from which the peak is the limit.
    confidence: the weakest of the device's figures that were used.  source: those figures in words.
    """

    bound: Bound
    ms_estimate: float
    ridge: float
    intensity: float
    compute_ms: float
    memory_ms: float
    overhead_ms: float
    kernels: int
    confidence: Confidence
    source: str
    provenance: Literal["estimate"] = "estimate"


def roofline(
    work: OpCost | Summary, device: Device, precision: Precision = "fp32", threads: int = 1
) -> Roofline:
    """Return where `work` stands on `device` when its floats are stored and computed in `precision`.

    threads: cores used, where the device's peaks are of one core (its bandwidth is that of the device).
    Raises UnsupportedError where the device has no such arithmetic, or the node's cost is unknown.
    """
    peak = device.peak_gops(precision, threads)
    if peak is None or precision not in device.precisions:
        reason = device.int8_reason if precision == "int8" and device.int8_reason else "no such arithmetic"
        raise UnsupportedError(f"{device.name} has no {precision} roofline: {reason}")
    if isinstance(work, OpCost) and work.unknown:
        raise UnsupportedError(f"no roofline for a node of unknown cost: {work.unknown}")
    costs = [work] if isinstance(work, OpCost) else [node.cost for node in work.nodes]
    bandwidth, launch = device.dram_bandwidth_gb_s, device.kernel_overhead_us
    figures = (peak, bandwidth, launch)
    flops = sum(cost.flops for cost in costs)
    traffic = sum(cost.traffic_at(precision) for cost in costs)
    compute_ms, memory_ms, kernels = _times(costs, precision, peak.value, bandwidth.value)
    overhead_ms = kernels * launch.value / 1e3
    times: dict[Bound, float] = {"compute": compute_ms, "memory": memory_ms, "overhead": overhead_ms}
    if isinstance(work, OpCost):
        total = max(compute_ms, memory_ms) + overhead_ms
    else:
        total = compute_ms + memory_ms + overhead_ms
    return Roofline(
        bound=max(times, key=lambda name: times[name]),
        ms_estimate=total,
        ridge=peak.value / bandwidth.value,
        intensity=flops / traffic if traffic else 0.0,
        compute_ms=compute_ms,
        memory_ms=memory_ms,
        overhead_ms=overhead_ms,
        kernels=kernels,
        confidence=max((figure.confidence for figure in figures), key=_WORST_LAST.index),
        source="; ".join(figure.source for figure in figures),
    )


def _times(
    costs: list[OpCost], precision: Precision, peak: float, bandwidth: float
) -> tuple[float, float, int]:
    """Return (compute ms, memory ms, kernels). Of several nodes, each counts on the side that bounds it."""
    pairs = [(cost.flops / peak / 1e6, cost.traffic_at(precision) / bandwidth / 1e6) for cost in costs]
    kernels = sum(1 for compute, memory in pairs if compute or memory)
    if len(pairs) == 1:
        return (*pairs[0], kernels)
    compute_ms = sum(compute for compute, memory in pairs if compute > memory)
    return compute_ms, sum(_memory_bound(pairs)), kernels


def _memory_bound(pairs: Iterable[tuple[float, float]]) -> Iterable[float]:
    return (memory for compute, memory in pairs if memory >= compute)
