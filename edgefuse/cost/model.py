"""A first cost model: compute + memory + overhead, from the device's own figures.

The sum of the terms predicted single operators better than their maximum (16.6 % against 22 % mean error,
136 operators on one core; roofline models with overlap assume a second engine for the copies). Memory has two
levels: what fits the last-level cache moves at CACHE_SPEEDUP times the speed of DRAM.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources

import msgspec

from edgefuse.analysis import node_cost
from edgefuse.backend import Candidate
from edgefuse.device import Target
from edgefuse.fusion.operators import MOVEMENT
from edgefuse.graph import Node, attribute, constant, is_float, static_shape
from edgefuse.plans import CostTerm, Format, Precision

__all__ = ["CostModel"]

ELEMENT_BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0}
WEIGHT_BYTES: dict[Precision, float] = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0}
CACHE_SPEEDUP = 4.0  # guess; a fit of the device replaces it
SLOW_INT8 = 0.85  # int8 speed relative to fp32 where the descriptor says "slow"


class _OperatorClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    operators: list[str]
    share: float
    source: str


class _Classes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[_OperatorClass] = msgspec.field(name="class")


@functools.cache
def _classes() -> tuple[_OperatorClass, ...]:
    text = resources.files("edgefuse.cost").joinpath("classes.toml").read_text(encoding="utf-8")
    return tuple(msgspec.toml.decode(text, type=_Classes).rows)


def is_depthwise(node: Node) -> bool:
    """Return whether a convolution has one input channel per group (and more than one group)."""
    weight = static_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    return (
        node.op_type == "Conv" and attribute(node, "group", 1) > 1 and weight is not None and weight[1] == 1
    )


def operator_class(node: Node) -> _OperatorClass:
    """Return the class whose share of the peak applies to the node."""
    names = {node.op_type, "*"}
    if is_depthwise(node):
        names = {"Conv:depthwise"}
    return next(row for row in _classes() if names & set(row.operators))


class CostModel:
    """Prices groups for one target. The model's shapes must be numbers; unknown ones cost overhead only.

    threads: how many cores may work (counts where the device's peaks are per core).
    """

    fit = ""  # digest of the fit file; "" = the device file only

    def __init__(self, target: Target, threads: int = 1) -> None:
        self._target = target
        self._threads = threads
        self._source = (
            f"targets/{target.family}/devices/{target.device.name}.toml, edgefuse/cost/classes.toml"
        )
        self._bytes_per_ms = float(target.device.dram_bandwidth_gb_s) * 1e6
        self._cache_bytes = float(target.device.last_level_cache_kb or 0) * 1024

    def group(
        self, candidate: Candidate, precision: Precision, reads: str, output: Format, variant: str = "plain"
    ) -> tuple[CostTerm, ...]:
        """Return the cost terms of a group that reads activations as `reads` and writes `output`.

        variant: the way the candidate is written; this model prices all of them alike.
        """
        compute = sum(self._compute_ms(node, precision) for node in candidate.nodes)
        moved = self._external_bytes(candidate, precision, reads, output)
        overhead = float(self._target.device.kernel_overhead_us) / 1000
        if all(node.op_type in MOVEMENT for node in candidate.nodes) and compute == 0 and moved == 0:
            overhead = 0.0
        return (
            self._term("compute", compute),
            self._term("memory", self._memory_ms(moved)),
            self._term("overhead", overhead),
        )

    def conversion(self, elements: int, source: str, target: str) -> CostTerm:
        """Return the cost of changing the dtype of a tensor of `elements` elements in a pass of its own."""
        moved = elements * (ELEMENT_BYTES[source] + ELEMENT_BYTES[target])
        overhead = float(self._target.device.kernel_overhead_us) / 1000
        return self._term("conversion", self._memory_ms(moved) + overhead)

    def reformat(self, elements: int, source: Format, target: Format) -> CostTerm:
        """Return the cost of bringing a tensor into another layout or place: read once, written once."""
        return self.conversion(elements, source.dtype, target.dtype)

    def _term(self, name: str, ms: float) -> CostTerm:
        return CostTerm(name=name, ms=round(ms, 9), provenance="estimate", source=self._source)

    def _compute_ms(self, node: Node, precision: Precision) -> float:
        cost = node_cost(node)
        if cost is None or not cost.flops:
            return 0.0
        return cost.flops / (self._rate(node, precision) * 1e6)

    def _rate(self, node: Node, precision: Precision) -> float:
        """Return GFLOP/s (or GOP/s) that the node's class reaches."""
        share = operator_class(node).share
        support = self._target.support(node.op_type, precision)
        fp32 = float(self._target.device.fp32_gflops)
        if precision == "int8" and support.level == "slow":
            peak = fp32 * SLOW_INT8 * self._thread_factor()
        else:
            figure = self._target.device.peak_gops(precision, self._threads)
            peak = float(figure) if figure is not None else fp32
        return peak * share

    def _thread_factor(self) -> float:
        figure = self._target.device.peak_gops("fp32", self._threads)
        return float(figure) / float(self._target.device.fp32_gflops) if figure is not None else 1.0

    def _memory_ms(self, moved: float) -> float:
        speed = self._bytes_per_ms * (CACHE_SPEEDUP if moved < self._cache_bytes else 1.0)
        return moved / speed

    def _external_bytes(
        self, candidate: Candidate, precision: Precision, reads: str, output: Format
    ) -> float:
        inside = {id(v) for node in candidate.nodes for v in node.outputs}
        seen: set[int] = set()
        total = 0.0
        for node in candidate.nodes:
            for value in node.inputs:
                if value is None or id(value) in inside or id(value) in seen:
                    continue
                seen.add(id(value))
                if constant(value) is not None:
                    total += _elements(value) * (WEIGHT_BYTES[precision] if is_float(value) else 8.0)
                else:
                    total += _elements(value) * (ELEMENT_BYTES[reads] if is_float(value) else 4.0)
        for value in candidate.outputs:
            total += _elements(value) * (ELEMENT_BYTES[output.dtype] if is_float(value) else 4.0)
        return total


def _elements(value: object) -> int:
    shape: Sequence[int] | None = static_shape(value)  # type: ignore[arg-type]
    count = 1
    for d in shape or (0,):
        count *= d
    return count
