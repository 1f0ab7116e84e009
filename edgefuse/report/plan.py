"""A plan as people and other programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from edgefuse.errors import InputError, did_you_mean
from edgefuse.plans import Plan
from edgefuse.report.tables import print_table
from edgefuse.units import format_ms

__all__ = ["explain_node", "plan_json", "print_plan"]


def plan_json(plan: Plan, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the plan as plain JSON values, with its digest and notes."""
    body: dict[str, Any] = msgspec.to_builtins(plan)
    body["digest"] = plan.digest
    body["notes"] = list(notes)
    return body


def print_plan(plan: Plan, notes: Sequence[str] = ()) -> None:
    """Print one row a group that computes, the totals, and the notes."""
    rows = [
        [
            group.id,
            " + ".join(group.operators)[:44],
            group.precision,
            group.output.dtype,
            format_ms(group.predicted_ms),
            (group.sources[0] or group.nodes[0])[:40],
        ]
        for group in plan.groups
        if group.compute_nodes
    ]
    print_table(["group", "operators", "precision", "writes", "predicted", "first node"], rows, right=[4])
    fused = sum(g.compute_nodes > 1 for g in plan.groups)
    print(
        f"{len(plan.groups)} groups ({fused} fused, {plan.count('int8')} int8, {plan.count('fp16')} fp16), "
        f"{len(plan.conversions)} conversions; {format_ms(plan.predicted_ms)} (estimate) on {plan.target}; "
        f"solver: {plan.status}, gap {plan.gap:.2g}"
    )
    for note in notes:
        print(f"note: {note}")
    print("`edgefuse plan --explain NODE` says why")


def explain_node(plan: Plan, node: str) -> dict[str, Any]:
    """Return what decided about a node: its group, the cost terms with their source, and what was refused.

    node: the user's name or the internal one. Raises InputError with a suggestion where there is none.
    """
    group = plan.group_of(node)
    if group is None:
        known = [name for g in plan.groups for name in (*g.sources, *g.nodes, *g.writes)]
        raise InputError(f"the plan has no node {node!r}{did_you_mean(node, known)}")
    refused = [r for r in plan.rejected if set(r.nodes) & set(group.nodes)]
    operators = " + ".join(group.operators)
    # A repair may have split the node that the user named: what reads here as one may be several groups.
    others = [g for g in plan.groups if g is not group and node in (*g.sources, *g.nodes)]
    lines = [
        f"{node}: group {group.id}, {operators}, {group.precision}, writes {group.output.dtype}",
        f"why: {group.reason}",
        "cost: "
        + ", ".join(f"{t.name} {format_ms(t.ms)} ({t.provenance})" for t in group.cost)
        + f"; from {group.cost[0].source}",
        *(f"not {r.what}: {r.reason}" for r in refused),
        *(f"also in group {g.id}, {' + '.join(g.operators)}, {g.precision}: {g.reason}" for g in others),
    ]
    return {
        "node": node,
        "group": msgspec.to_builtins(group),
        "refused": [msgspec.to_builtins(r) for r in refused],
        "others": [g.id for g in others],
        "text": "\n".join(lines),
    }
