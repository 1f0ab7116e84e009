"""From the chosen columns to a plan that a user can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefuse.fusion import compute_nodes
from edgefuse.graph import source_name
from edgefuse.planner.assemble import scale_name, step_term
from edgefuse.planner.columns import Column, PlanRequest, make_columns
from edgefuse.planner.solve import Solution, solve
from edgefuse.plans import Conversion, Group, Plan, Rejection, ScaleGroup
from edgefuse.units import format_ms

__all__ = ["make_plan", "write_plan"]


def make_plan(request: PlanRequest) -> Plan:
    """Return the cheapest plan within the request's limits; the same request gives the same plan.

    Raises UnsupportedError where some node cannot run on the target, or no plan keeps the budget.
    """
    columns, refusals = make_columns(request)
    return write_plan(request, columns, refusals, solve(request, columns))


def write_plan(
    request: PlanRequest,
    columns: Sequence[Column],
    refusals: Mapping[tuple[str, str], str],
    solution: Solution,
) -> Plan:
    """Return the plan that a solution means; columns: all that were to choose from."""
    order = {node.name: i for i, node in enumerate(request.model.graph)}
    chosen = sorted(solution.columns, key=lambda c: order[c.candidate.names[0]])
    singles = _cheapest_singles(columns)
    groups = tuple(_group(i, c, singles, refusals, request) for i, c in enumerate(chosen))
    conversions = _conversions(request, solution)
    found = solution.found
    return Plan(
        model=request.model_digest,
        target=request.target.string,
        requested=request.requested,
        groups=groups,
        conversions=conversions,
        scale_groups=_scale_groups(request, solution),
        rejected=_rejections(refusals),
        predicted_ms=round(sum(g.predicted_ms for g in groups) + sum(c.cost.ms for c in conversions), 9),
        budget=request.budget,
        budget_used=_budget_used(request, solution),
        status=found.status,
        gap=found.gap,
        solver=found.solver,
        fit=request.cost.fit,
    )


def _conversions(request: PlanRequest, solution: Solution) -> tuple[Conversion, ...]:
    graph = request.model.graph
    values = {v.name: v for v in graph.inputs} | {v.name: v for node in graph for v in node.outputs}
    return tuple(
        Conversion(s.tensor, s.source, s.target, step_term(request, values[s.tensor], s.source, s.target))
        for s in solution.steps
    )


def _scale_groups(request: PlanRequest, solution: Solution) -> tuple[ScaleGroup, ...]:
    shared = set(solution.scales)
    return tuple(ScaleGroup(s.tensors, s.reason) for s in request.scales if scale_name(s) in shared)


def _budget_used(request: PlanRequest, solution: Solution) -> float:
    shared = set(solution.scales)
    scales = sum(s.loss for s in request.scales if scale_name(s) in shared)
    return round(sum(c.loss for c in solution.columns) + scales, 12)


def _cheapest_singles(columns: Sequence[Column]) -> dict[tuple[str, str], float]:
    """Return the cheapest time of each node alone, by (node, precision)."""
    best: dict[tuple[str, str], float] = {}
    for column in columns:
        if len(column.candidate.nodes) == 1:
            key = (column.candidate.names[0], column.precision)
            best[key] = min(best.get(key, float("inf")), column.ms)
    return best


def _group(
    index: int,
    column: Column,
    singles: Mapping[tuple[str, str], float],
    refusals: Mapping[tuple[str, str], str],
    request: PlanRequest,
) -> Group:
    candidate = column.candidate
    return Group(
        id=f"g{index:03d}",
        nodes=candidate.names,
        sources=tuple(source_name(node) for node in candidate.nodes),
        operators=candidate.operators,
        writes=tuple(value.name or "" for value in candidate.outputs),
        rule=candidate.rule,
        variant=column.variant,
        precision=column.precision,
        output=column.output,
        cost=column.cost,
        loss=column.loss,
        compute_nodes=compute_nodes(candidate.nodes),
        reason=f"{_why_fused(column, singles)}; {_why_precision(column, singles, refusals, request)}",
    )


def _why_fused(column: Column, singles: Mapping[tuple[str, str], float]) -> str:
    names = column.candidate.names
    if len(names) == 1:
        return "alone"
    apart = sum(singles.get((name, column.precision), singles.get((name, "fp32"), 0.0)) for name in names)
    saved = max(apart - column.ms, 0.0)
    return (
        f"one kernel for {len(names)} nodes saves about {format_ms(saved)} (estimate): {column.candidate.why}"
    )


def _why_precision(
    column: Column,
    singles: Mapping[tuple[str, str], float],
    refusals: Mapping[tuple[str, str], str],
    request: PlanRequest,
) -> str:
    precision = column.precision
    if len(request.precisions) == 1:
        return f"{precision} was asked for" if request.requested != "auto" else f"{precision} is all there is"
    anchor = column.candidate.anchor.name or ""
    other = singles.get((anchor, "fp32" if precision != "fp32" else request.precisions[-1]))
    here = singles.get((anchor, precision))
    if precision == "int8":
        times = f"about {format_ms(here)} against {format_ms(other)} in fp32" if here and other else ""
        return f"int8: {times} (estimate), adds {column.loss:.2g} relative error"
    for name in column.candidate.names:
        for wanted in request.precisions:
            if wanted != precision and (name, wanted) in refusals:
                return f"{precision}: {wanted} is not possible: {refusals[(name, wanted)]}"
    if precision == "fp16":
        return "fp16: half the bytes and twice the arithmetic of fp32 (estimate)"
    return f"{precision}: nothing narrower is faster here, with its conversions, within the budget"


def _rejections(refusals: Mapping[tuple[str, str], str]) -> tuple[Rejection, ...]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (node, precision), reason in refusals.items():
        by_reason.setdefault((precision, reason), []).append(node)
    return tuple(
        Rejection(nodes=tuple(nodes), what=precision, reason=reason)
        for (precision, reason), nodes in sorted(by_reason.items())
    )
