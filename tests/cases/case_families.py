"""The four families' schemes on small models: planned, repaired, settled, and run in exact integers.

A family without int8 payloads of its own yet is planned with `SchemeBackend`: every product with constant
weights may be int8 unless the device file says no, with what follows it pointwise in the same group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgefuse.analysis import summarize
from edgefuse.backend import YES, Backend, Candidate, Lowered, Probe, Readback, Verdict
from edgefuse.compose.channel_limit import channel_errors, refuse_spoilers
from edgefuse.compose.planning import (
    Int8Tables,
    float_plan,
    int8_plan,
    measure_tables,
    repair_prepared,
    round_prepared,
)
from edgefuse.compose.prepare import Prepared, PreparedFeeds, prepare
from edgefuse.compose.reversion import revert_failing
from edgefuse.compose.simulate import exact_call
from edgefuse.device import Target, resolve_target
from edgefuse.errors import InternalError
from edgefuse.fusion import POINTWISE
from edgefuse.graph import Model, Node, clone_model, constant, input_value
from edgefuse.lowering.float16_range import float16_fault
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quant import repair_after
from edgefuse.quantized import Quantized
from edgefuse.targets.openvino.backend import FamilyBackend as OpenVino
from edgefuse.targets.tensorrt.backend import FamilyBackend as TensorRt
from edgefuse.verification import OutputError

Array = np.ndarray
Feeds = Mapping[str, Array]
Sampler = Callable[[np.random.Generator], dict[str, Array]]

TARGETS = ("x86-avx2", "jetson-orin-nano", "raspberry-pi-4", "raspberry-pi-5", "kunlun-r200")
LEAST_DB = 25.0
CALIBRATION, EVALUATION = 24, 8
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class SchemeBackend(Backend):
    """A family by its device file and scheme alone; operators are prepared as `family_backend` does."""

    def __init__(self, family: str, family_backend: Backend | None = None) -> None:
        self.family = family
        self._own = family_backend

    def probe(self) -> Probe:
        return Probe(False, install="nothing: plans only")

    def _legal(
        self, candidate: Candidate, variant: str, precision: Precision, output: Format, target: Target
    ) -> Verdict:
        for node in candidate.nodes:
            support = target.support(_kind(node), "fp32" if node is not candidate.anchor else precision)
            if not support.allowed:
                return Verdict(False, f"{node.op_type}: {support.reason}")
            fault = float16_fault(node) if precision == "fp16" else ""
            if fault:
                return Verdict(False, fault)
        if output.dtype == "int8" and candidate.anchor.op_type not in PRODUCTS:
            return Verdict(False, "only products write int8")
        return _int8(candidate) if precision == "int8" else YES

    def _prepare(self, model: Model, target: Target) -> Model:
        return self._own.prepare(model, target) if self._own is not None else model

    def _lower(self, model: Model, plan: Plan, quantized: Quantized, target: Target) -> Lowered:
        raise InternalError("plans only")

    def _readback(self, engine: object, plan: Plan) -> Readback:
        raise InternalError("plans only")


def _kind(node: Node) -> str:
    """Return the operator as device files know it: with constant weights a MatMul is fully connected."""
    weights = constant(input_value(node, 1))
    return "Gemm" if node.op_type == "MatMul" and weights is not None and weights.ndim == 2 else node.op_type


def _int8(candidate: Candidate) -> Verdict:
    anchor = candidate.anchor
    weights = constant(input_value(anchor, 1))
    if anchor.op_type not in PRODUCTS:
        return Verdict(False, "only products run in int8")
    if weights is None or constant(input_value(anchor, 0)) is not None:
        return Verdict(False, "both operands are computed")
    if weights.dtype.kind != "f" or (anchor.op_type in ("Gemm", "MatMul") and weights.ndim != 2):
        return Verdict(False, "the weights are no float matrix")
    for node in candidate.nodes[1:]:
        if node.op_type not in POINTWISE:
            return Verdict(False, f"{node.op_type} is no epilogue")
        if sum(v is not None and constant(v) is None for v in node.inputs) > 1:
            return Verdict(False, "a sum of two branches is a kernel of its own")
    return YES


def backend_for(target: Target) -> Backend:
    if target.family == "openvino":
        return OpenVino()
    return SchemeBackend(target.family, TensorRt() if target.family == "tensorrt" else None)


@dataclass
class Settled:
    """One model for one target as a build would leave it, and what was found about it."""

    prepared: Prepared
    plan: Plan
    quantized: Quantized
    tables: Int8Tables
    refused: Mapping[str, str]
    errors: Sequence[OutputError]
    macs: int
    int8_macs: int
    in_float: Mapping[str, str] = field(default_factory=dict)

    @property
    def worst_db(self) -> float:
        return min((row.worst_group_sqnr_db for row in self.errors), default=float("inf"))

    @property
    def worst_group(self) -> str:
        return min(self.errors, key=lambda row: row.worst_group_sqnr_db).worst_group if self.errors else ""


def decibel_limit(least_db: float) -> float:
    return float(10 ** (-least_db / 20))


def samples_of(sampler: Sampler, count: int, first: int) -> list[dict[str, Array]]:
    return [sampler(np.random.default_rng(first + i)) for i in range(count)]


def ready(original: Model, name: str, sampler: Sampler) -> Prepared:
    target = resolve_target(name)
    sizes = {key: array.shape for key, array in sampler(np.random.default_rng(0)).items()}
    return prepare(clone_model(original), target, sizes, backend=backend_for(target))


def settle(original: Model, name: str, sampler: Sampler) -> Settled:
    """Return the int8 plan of a model for a target, as a build finds it, judged in exact integers."""
    prepared = ready(original, name, sampler)
    calibration = PreparedFeeds(prepared.model, samples_of(sampler, CALIBRATION, 1000))
    own = prepared.imported is not None
    prepared = round_prepared(prepared) if own else repair_prepared(prepared, calibration, _quiet)[0]
    tables = measure_tables(prepared, calibration, _quiet)
    refused, _ = revert_failing(prepared, tables, "int8", 1, calibration, False)
    refused, _ = refuse_spoilers(prepared, tables, "int8", 1, calibration, refused, decibel_limit(LEAST_DB))
    plan, quantized = int8_plan(prepared, tables, "int8", 1, None, refused=refused)
    if not own and quantized:
        quantized, _ = repair_after(prepared.model, plan, quantized, calibration, tables.scheme)
    errors = channel_errors(
        prepared.original,
        exact_call(prepared.model, plan, quantized, tables.scheme if quantized else None),
        samples_of(sampler, EVALUATION, 9000),
    )
    macs, inside, left = _shares(prepared, plan, quantized)
    return Settled(prepared, plan, quantized, tables, refused, errors, macs, inside, left)


def _shares(prepared: Prepared, plan: Plan, quantized: Quantized) -> tuple[int, int, dict[str, str]]:
    """Return (MACs, MACs in int8, name -> reason of every node with MACs that is not in int8)."""
    total = inside = 0
    left = {}
    for node in summarize(prepared.costed).nodes:
        group = plan.group_of(node.name)
        total += node.cost.macs
        if (node.name, 1) in quantized.weights:
            inside += node.cost.macs
        elif node.cost.macs and group is not None:
            left[f"{node.op_type} {node.source}"] = group.reason
    return total, inside, left


def _quiet(what: str, done: int, of: int) -> None:
    return None


def float_errors(original: Model, name: str, sampler: Sampler, precision: str) -> list[OutputError]:
    """Return the errors of the plan without int8, float16 groups with all of their tensors rounded to it."""
    prepared = ready(original, name, sampler)
    call = exact_call(prepared.model, float_plan(prepared, precision, 1), Quantized(), None)
    reference = prepared.unrounded if prepared.unrounded is not None else prepared.original
    return list(channel_errors(reference, call, samples_of(sampler, 2, 9000)))
