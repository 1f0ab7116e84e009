"""Float plans and int8 plans for one prepared model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgefuse.compose.imported import own_ranges, plan_imported
from edgefuse.compose.prepare import Prepared
from edgefuse.compose.sizes import with_all_sizes
from edgefuse.cost import CostModel
from edgefuse.fusion import ANCHORS, fusion_candidates, vertical_candidates
from edgefuse.graph import (
    Model,
    Node,
    Value,
    clone_model,
    constant,
    input_value,
    is_float,
    model_to_bytes,
    static_shape,
)
from edgefuse.planner import PlanRequest, SharedScale, make_plan
from edgefuse.plans import Format, Plan, Precision
from edgefuse.quant import (
    Range,
    Repair,
    RepairLog,
    Scheme,
    choose_ranges,
    quantize_plan,
    repair_before,
    scheme_of,
)
from edgefuse.quant.calibration_cache import (
    cache_folder,
    cached_losses,
    cached_ranges,
    calibration_key,
    samples_digest,
)
from edgefuse.quant.join_losses import join_parts, measure_join_losses
from edgefuse.quant.keep_rounding import keep_rounding
from edgefuse.quant.sensitivity import measure_all_losses
from edgefuse.quant.split_outliers import outlier_products
from edgefuse.quant.split_scales import uneven_joins
from edgefuse.quant.unshare import differing_readers, unshare
from edgefuse.quantized import Quantized

__all__ = [
    "Int8Tables",
    "float_plan",
    "float_request",
    "int8_anchors",
    "int8_plan",
    "int8_request",
    "measure_tables",
    "repair_prepared",
    "round_prepared",
]

Feeds = Mapping[str, np.ndarray]

# Samples for the loss sweep: eight give a stable order of nodes where an output has hundreds of numbers. With
# two, eight samples rank random plans at .74 (Spearman, sum of losses against measured), 32 at .91.
PROBE_SAMPLES = 8
_MOST_PROBES = 32
_ENOUGH_NUMBERS = 2048


@dataclass(frozen=True, slots=True)
class Int8Tables:
    """What int8 planning needs beside the model: ranges and losses, measured on calibration data.

    losses: by node.  group_losses: by node and output channel group.  tried: the rules that could have made
    the ranges, as rows for the log of repairs.  notes: what the user should know of the calibration cache.
    scales: joins of unlike parts that the target can run in int8 under one scale, with what that loses.
    """

    scheme: Scheme
    ranges: Mapping[str, Range]
    losses: Mapping[str, float] = field(default_factory=dict)
    tried: tuple[Repair, ...] = ()
    group_losses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    scales: tuple[SharedScale, ...] = ()

    def group_budget(self, whole: Plan, budget: float) -> float | None:
        """Return the limit for each output channel group that goes with `budget`; None where there is none.

        whole: the plan without a limit. No group may lose more than the share that `budget` is of the plan's
        loss, taken of the group that the plan hurts most: a mean over outputs hides its dead parts.
        """
        totals: dict[str, float] = {}
        for name in (name for group in whole.groups if group.precision == "int8" for name in group.nodes):
            for channel, loss in self.group_losses.get(name, {}).items():
                totals[channel] = totals.get(channel, 0.0) + loss
        if not totals or not whole.budget_used:
            return None
        return max(totals.values()) * budget / whole.budget_used


def float_precisions(prepared: Prepared, precision: str) -> tuple[Precision, ...]:
    """Return the float precisions that a plan may use: fp16 where the device has it and it is wanted."""
    has_fp16 = "fp16" in prepared.target.device.precisions
    if precision == "fp32" or not has_fp16:
        return ("fp32",)
    return ("fp16", "fp32")


def float_request(prepared: Prepared, precision: str, threads: int) -> PlanRequest:
    """Return what the plan without int8 is made from."""
    return _request(prepared, float_precisions(prepared, precision), precision, threads)


def float_plan(prepared: Prepared, precision: str, threads: int) -> Plan:
    """Return the cheapest plan without int8."""
    return make_plan(float_request(prepared, precision, threads))


def int8_request(
    prepared: Prepared,
    tables: Int8Tables,
    precision: str,
    threads: int,
    budget: float | None,
    *,
    group_budget: float | None = None,
    refused: Mapping[str, str] | None = None,
) -> PlanRequest:
    """Return what the plan with int8 is made from; the arguments are those of `int8_plan`."""
    precisions: tuple[Precision, ...] = ("int8", *float_precisions(prepared, precision))
    return _request(
        prepared,
        precisions,
        precision,
        threads,
        losses=tables.losses,
        group_losses=tables.group_losses,
        budget=budget,
        group_budget=group_budget,
        scales=tables.scales,
        prefer_int8=precision == "int8",
        refused=refused,
    )


def int8_plan(
    prepared: Prepared,
    tables: Int8Tables,
    precision: str,
    threads: int,
    budget: float | None,
    *,
    group_budget: float | None = None,
    refused: Mapping[str, str] | None = None,
) -> tuple[Plan, Quantized]:
    """Return the plan with int8 under `budget` (in units of the losses; None = none), and its integers.

    group_budget: likewise for the loss of each output channel group.  refused: node name -> why it must stay
    float.
    """
    request = int8_request(
        prepared, tables, precision, threads, budget, group_budget=group_budget, refused=refused
    )
    if prepared.imported is not None:
        return plan_imported(request, prepared, tables.ranges, tables.scheme)
    plan = make_plan(request)
    return plan, quantize_plan(prepared.model, plan, tables.ranges, tables.scheme)


def repair_prepared(
    prepared: Prepared, samples: Sequence[Feeds], progress: Callable[[str, int, int], None]
) -> tuple[Prepared, RepairLog]:
    """Return `prepared` with the repairs of the float model that int8 gains from, and what was tried.

    A weight whose readers need different integers is copied for each. int8 tables, plans and payloads are
    made of it; the float payload stays with the model as it was.
    """

    def price(model: Model) -> float:
        changed = _with_model(prepared, model)
        precisions: tuple[Precision, ...] = ("int8", *float_precisions(changed, "int8"))
        anchors = dict.fromkeys(int8_anchors(changed), 0.0)
        return make_plan(
            _request(changed, precisions, "int8", 1, losses=anchors, prefer_int8=True)
        ).predicted_ms

    model, log = repair_before(
        prepared.model,
        samples,
        scheme_of(prepared.target),
        int8_anchors(prepared),
        price=price,
        progress=lambda done, total: progress("repairs", done, total),
    )
    prepared = _with_model(prepared, model) if log.kept() else prepared
    shared = differing_readers(prepared.model, int8_anchors(prepared), scheme_of(prepared.target))
    if shared:
        model = clone_model(prepared.model)
        unshare(model, shared)
        prepared = _with_model(prepared, model)
    return prepared, log


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
    notes: list[str] = []
    digests = _Digests(prepared.model, samples)
    if names and not made_up:
        nodes = anchors if prepared.imported is None else []
        names = list(dict.fromkeys(names))
        (observed, tried), more = cached_ranges(
            digests.key(f"ranges for {json.dumps(nodes)}", scheme, names),
            lambda: choose_ranges(
                prepared.model,
                names,
                samples,
                scheme,
                nodes,
                progress=lambda done: progress("ranges", done, len(samples)),
            ),
        )
        ranges |= observed
        notes += more
    count = _probes(prepared)
    probe = samples[:: max(1, len(samples) // count)][:count]
    held = json.dumps({name: [float(r.low), float(r.high)] for name, r in sorted(ranges.items())})
    losses, more = cached_losses(
        digests.key(f"losses on {len(probe)} samples in {held}", scheme, anchors),
        lambda: measure_all_losses(
            prepared.model,
            anchors,
            ranges,
            scheme,
            probe,
            progress=lambda done: progress("losses", done, len(anchors)),
        ),
    )
    scales = _shared_scales(prepared, scheme, ranges, probe)
    return Int8Tables(scheme, ranges, losses.total, tried, losses.groups, (*notes, *more), scales)


def _shared_scales(
    prepared: Prepared, scheme: Scheme, ranges: Mapping[str, Range], probe: Sequence[Feeds]
) -> tuple[SharedScale, ...]:
    """Return the uneven joins that the target can run in int8 under one scale, with the measured loss."""
    uneven = uneven_joins(prepared.model, ranges) if "Concat" in scheme.same_scale else {}
    needs: dict[str, tuple[tuple[str, str], ...]] = {}
    for candidate in vertical_candidates(prepared.costed) if uneven else ():
        name = candidate.anchor.name or ""
        legal = [
            variant
            for variant in candidate.variants
            if prepared.backend.legal(candidate, variant, "int8", Format("int8"), prepared.target)
        ]
        if len(candidate.nodes) == 1 and name in uneven and legal:
            needs[name] = tuple((name, variant) for variant in legal)
    if not needs:
        return ()
    losses = measure_join_losses(prepared.model, list(needs), ranges, scheme, probe)
    nodes = {node.name or "": node for node in prepared.model.graph}
    return tuple(
        SharedScale(join_parts(nodes[name]), needs[name], loss, uneven[name], losses.groups[name])
        for name, loss in losses.total.items()
    )


def _probes(prepared: Prepared) -> int:
    """Return how many samples the loss sweep needs: more where a sample has few numbers at the outputs."""
    sizes = [
        int(np.prod(static_shape(v) or (_ENOUGH_NUMBERS,)))
        for v in prepared.costed.graph.outputs
        if is_float(v)
    ]
    return min(max(PROBE_SAMPLES, _ENOUGH_NUMBERS // max(1, sum(sizes))), _MOST_PROBES)


class _Digests:
    """Keys of the calibration cache for one model and its samples; nothing is read where the cache is off."""

    def __init__(self, model: Model, samples: Sequence[Feeds]) -> None:
        on = cache_folder() is not None
        self._model = hashlib.sha256(model_to_bytes(model)).hexdigest() if on else ""
        self._samples = samples_digest(samples) if on else ""

    def key(self, kind: str, scheme: Scheme, names: Sequence[str]) -> str:
        return calibration_key(kind, model=self._model, samples=self._samples, scheme=scheme, names=names)


def _float_reads(node: Node) -> list[Value]:
    """Return the activations of an anchor or of a node that may be its epilogue."""
    return [v for v in node.inputs if v is not None and constant(v) is None and is_float(v)]


def int8_anchors(prepared: Prepared) -> list[str]:
    """Return the nodes that the target can run in int8 when alone, without what was taken out of int8."""
    found, apart = [], outlier_products(prepared.model)
    for candidate in vertical_candidates(prepared.costed):
        node = candidate.anchor
        if len(candidate.nodes) > 1 or node.op_type not in ANCHORS:
            continue
        if constant(input_value(node, 1)) is None or node.name in apart:
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
    group_losses: Mapping[str, Mapping[str, float]] | None = None,
    budget: float | None = None,
    group_budget: float | None = None,
    scales: Sequence[SharedScale] = (),
    prefer_int8: bool = False,
    refused: Mapping[str, str] | None = None,
) -> PlanRequest:
    return PlanRequest(
        model=prepared.costed,
        target=prepared.target,
        backend=prepared.backend,
        cost=CostModel(prepared.target, threads),
        candidates=fusion_candidates(prepared.costed),
        precisions=precisions,
        requested=requested,
        losses=losses or {},
        group_losses=group_losses or {},
        budget=budget,
        group_budget=group_budget,
        scales=scales,
        prefer_int8=prefer_int8,
        refused={**outlier_products(prepared.model), **(refused or {})},
        model_digest=prepared.digest,
    )
