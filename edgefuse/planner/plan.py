"""From the chosen columns to a plan that a user can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefuse.fusion import compute_nodes
from edgefuse.graph import source_name
from edgefuse.planner.columns import Column, PlanRequest, make_columns
from edgefuse.planner.solve import solve
from edgefuse.plans import Conversion, Format, Group, Plan, Rejection
from edgefuse.units import format_ms

__all__ = ["make_plan"]


def make_plan(request: PlanRequest) -> Plan:
    """Return the cheapest plan within the request's limits; the same request gives the same plan.

    Raises UnsupportedError where some node cannot run on the target, or no plan keeps the budget.
    """
    columns, refusals = make_columns(request)
    solution = solve(request, columns)
    order = {node.name: i for i, node in enumerate(request.model.graph)}
    chosen = sorted(solution.columns, key=lambda c: order[c.candidate.names[0]])
    singles = _cheapest_singles(columns)
    groups = tuple(_group(i, c, singles, refusals, request) for i, c in enumerate(chosen))
    conversions = tuple(
        Conversion(tensor=t, source=Format(a), target=Format(b), cost=cost)
        for t, a, b, cost in solution.conversions
    )
    return Plan(
        model=request.model_digest,
        target=request.target.string,
        requested=request.requested,
        groups=groups,
        conversions=conversions,
        rejected=_rejections(refusals),
        predicted_ms=round(sum(g.predicted_ms for g in groups) + sum(c.cost.ms for c in conversions), 9),
        budget=request.budget,
        budget_used=round(sum(g.loss for g in groups), 12),
        status=solution.status,
        gap=solution.gap,
        solver=solution.solver,
        fit=request.cost.fit,
    )


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
