"""Float plans and int8 plans for one prepared model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgefuse.compose.imported import own_ranges, plan_imported
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.sizes import with_all_sizes
from edgefuse.cost import CostModel
from edgefuse.fusion import ANCHORS, vertical_candidates
from edgefuse.graph import Model, Node, Value, constant, input_value, is_float, static_shape
from edgefuse.planner import PlanRequest, make_plan
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quant import (
    Range,
    Repair,
    RepairLog,
    Scheme,
    choose_ranges,
    measure_losses,
    quantize_plan,
    repair_before,
    scheme_of,
)
from edgefuse.quant.keep_rounding import keep_rounding
from edgefuse.quantized import Quantized

__all__ = [
    "Int8Tables",
    "float_plan",
    "int8_anchors",
    "int8_plan",
    "measure_tables",
    "repair_prepared",
    "round_prepared",
]

Feeds = Mapping[str, np.ndarray]

# Samples for the loss sweep: eight give a stable order of nodes (measured, 54 operators).
PROBE_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Int8Tables:
    """What int8 planning needs beside the model: ranges and losses, measured on calibration data.

    tried: the rules that could have made the ranges, as rows for the log of repairs.
    """

    scheme: Scheme
    ranges: Mapping[str, Range]
    losses: Mapping[str, float] = field(default_factory=dict)
    tried: tuple[Repair, ...] = ()


def float_precisions(prepared: Prepared, precision: str) -> tuple[Precision, ...]:
    """Return the float precisions that a plan may use: fp16 where the device has it and it is wanted."""
    has_fp16 = "fp16" in prepared.target.device.precisions
    if precision == "fp32" or not has_fp16:
        return ("fp32",)
    return ("fp16", "fp32")


def float_plan(prepared: Prepared, precision: str, threads: int) -> Plan:
    """Return the cheapest plan without int8."""
    return make_plan(_request(prepared, float_precisions(prepared, precision), precision, threads))


def int8_plan(
    prepared: Prepared,
    tables: Int8Tables,
    precision: str,
    threads: int,
    budget: float | None,
    *,
    refused: Mapping[str, str] | None = None,
) -> tuple[Plan, Quantized]:
    """Return the plan with int8 under `budget` (in units of the losses; None = none), and its integers.

    refused: node name -> why it must stay float.
    """
    precisions: tuple[Precision, ...] = ("int8", *float_precisions(prepared, precision))
    request = _request(
        prepared,
        precisions,
        precision,
        threads,
        losses=tables.losses,
        budget=budget,
        prefer_int8=precision == "int8",
        refused=refused,
    )
    if prepared.imported is not None:
        return plan_imported(request, prepared, tables.ranges, tables.scheme)
    plan = make_plan(request)
    return plan, quantize_plan(prepared.model, plan, tables.ranges, tables.scheme)


def repair_prepared(
    prepared: Prepared, samples: Sequence[Feeds], progress: Callable[[str, int, int], None]
) -> tuple[Prepared, RepairLog]:
    """Return `prepared` with the repairs of the float model that int8 gains from, and what was tried.

    int8 tables, plans and payloads are made of it; the float payload stays with the model as it was.
    """
    model, log = repair_before(
        prepared.model,
        samples,
        scheme_of(prepared.target),
        int8_anchors(prepared),
        progress=lambda done, total: progress("repairs", done, total),
    )
    if not log.kept():
        return prepared, log
    return _with_model(prepared, model), log


def _with_model(prepared: Prepared, model: Model) -> Prepared:
    sizes = {value.name or "": static_shape(value) or () for value in prepared.costed.graph.inputs}
    costed, _ = with_all_sizes(prepared.original, model, sizes)
    return replace(prepared, model=model, costed=costed)


def round_prepared(prepared: Prepared) -> Prepared:
    """Return `prepared` with the user's Q/DQ pairs around what the target runs in int8 (none: unchanged).

    For models that bring their own quantization; int8 payloads are made of it, the float payload is not.
    """
    imported = prepared.imported
    if imported is None:
        return prepared
    reads = {node.name or "": node.inputs[0] for node in prepared.model.graph if node.inputs}
    anchors = [
        name
        for name in int8_anchors(prepared)
        if (value := reads[name]) is not None and value.name in imported.ranges
    ]
    model, count = keep_rounding(prepared.model, imported, anchors, scheme_of(prepared.target))
    return _with_model(prepared, model) if count else prepared


def measure_tables(
    prepared: Prepared,
    samples: Sequence[Feeds],
    progress: Callable[[str, int, int], None],
    *,
    made_up: bool = False,
) -> Int8Tables:
    """Return ranges and losses measured on `samples`; progress gets (what, done, of).

    Ranges that the model brings with it stand. made_up: the samples are no calibration data, so that they
    give no range; losses are measured on them all the same.
    """
    scheme = scheme_of(prepared.target)
    anchors = int8_anchors(prepared)
    tried: tuple[Repair, ...] = ()
    ranges = own_ranges(prepared, scheme)
    names = [v.name or "" for node in prepared.model.graph for v in _float_reads(node)]
    names = [name for name in names if name not in ranges]
    if names and not made_up:
        observed, tried = choose_ranges(
            prepared.model,
            list(dict.fromkeys(names)),
            samples,
            scheme,
            anchors if prepared.imported is None else (),
            progress=lambda done: progress("ranges", done, len(samples)),
        )
        ranges |= observed
    probe = samples[:: max(1, len(samples) // PROBE_SAMPLES)][:PROBE_SAMPLES]
    losses = measure_losses(
        prepared.model,
        anchors,
        ranges,
        scheme,
        probe,
        progress=lambda done: progress("losses", done, len(anchors)),
    )
    return Int8Tables(scheme, ranges, losses, tried)


def _float_reads(node: Node) -> list[Value]:
    """Return the activations of an anchor or of a node that may be its epilogue."""
    return [v for v in node.inputs if v is not None and constant(v) is None and is_float(v)]


def int8_anchors(prepared: Prepared) -> list[str]:
    """Return the nodes that the target can run in int8 when alone."""
    found = []
    for candidate in vertical_candidates(prepared.costed):
        node = candidate.anchor
        if len(candidate.nodes) > 1 or node.op_type not in ANCHORS:
            continue
        if constant(input_value(node, 1)) is None:
            continue
        if prepared.backend.legal(candidate, "plain", "int8", Format("float32"), prepared.target):
            found.append(node.name or "")
    return found


def _request(
    prepared: Prepared,
    precisions: tuple[Precision, ...],
    requested: str,
    threads: int,
    *,
    losses: Mapping[str, float] | None = None,
    budget: float | None = None,
    prefer_int8: bool = False,
    refused: Mapping[str, str] | None = None,
) -> PlanRequest:
    return PlanRequest(
        model=prepared.costed,
        target=prepared.target,
        backend=prepared.backend,
        cost=CostModel(prepared.target, threads),
        candidates=vertical_candidates(prepared.costed),
        precisions=precisions,
        requested=requested,
        losses=losses or {},
        budget=budget,
        prefer_int8=prefer_int8,
        refused=refused or {},
        model_digest=prepared.digest,
    )
