"""What decided about one node, as people and other programs read it."""

from __future__ import annotations

from typing import Any

import msgspec

from edgefuse.planner import MEMORY, Alternative, Explanation, Limit
from edgefuse.report.plan import explain_node
from edgefuse.units import format_bytes, format_ms

__all__ = ["explanation_json"]


def explanation_json(found: Explanation) -> dict[str, Any]:
    """Return the explanation as plain JSON values; `text` holds it as lines for a reader."""
    body = explain_node(found.plan, found.group.nodes[0])
    refused = [f"{precision} alone: {reason}" for precision, reason in found.refused]
    lines = [
        body["text"].replace(f"{found.group.nodes[0]}:", f"{found.node}:", 1),
        *(line for line in (f"not {text}" for text in refused) if line not in body["text"]),
        *_alternatives(found),
        *_limits(found),
    ]
    return {
        **body,
        "node": found.node,
        "alternatives": [_alternative_json(a) for a in found.alternatives],
        "alternatives_left_out": found.left_out,
        "limits": [msgspec.to_builtins(limit) for limit in found.limits],
        "binding": [limit.name for limit in found.limits if limit.without_ms > found.resolution_ms],
        "more_budget": {"share": found.more, "saves_ms": found.more_ms},
        "resolution_ms": found.resolution_ms,
        "text": "\n".join(lines),
    }


def _alternative_json(alternative: Alternative) -> dict[str, Any]:
    return {**msgspec.to_builtins(alternative), "possible": alternative.extra_ms is not None}


def _alternatives(found: Explanation) -> list[str]:
    if not found.alternatives:
        return ["alternatives: none is legal here"]
    more = f"; {found.left_out} more were not priced" if found.left_out else ""
    lines = [f"alternatives, each planned again with it forced in (estimates){more}:"]
    return lines + [f"  {_price(a, found.resolution_ms):>24}  {_told(a)}" for a in found.alternatives]


def _told(alternative: Alternative) -> str:
    nodes = " + ".join(alternative.nodes)
    variant = "" if alternative.variant == "plain" else f", {alternative.variant}"
    return f"{alternative.precision}{variant}: {nodes}"


def _price(alternative: Alternative, resolution: float) -> str:
    if alternative.extra_ms is None:
        return "over the limits"
    if alternative.extra_ms <= resolution:
        return f"within {format_ms(resolution)}"
    return f"{format_ms(alternative.extra_ms)} slower"


def _limits(found: Explanation) -> list[str]:
    if not found.limits:
        return ["limits: no accuracy budget and no memory limit were set, so time alone decided"]
    binding = [limit for limit in found.limits if limit.without_ms > found.resolution_ms]
    lines = [f"binding: {_limit(limit)}" for limit in binding]
    if not lines:
        lines = ["binding: no limit; without all of them the plan would be as it is"]
    if any(limit.name != MEMORY for limit in found.limits):
        lines.append(
            f"{found.more:.0%} more accuracy budget would save {format_ms(found.more_ms)} (estimate)"
        )
    return lines


def _limit(limit: Limit) -> str:
    if limit.name == MEMORY:
        used, most = format_bytes(limit.used), format_bytes(limit.limit)
    else:
        used, most = f"{limit.used:.3g}", f"{limit.limit:.3g}"
    return f"{limit.name}, {used} of {most} used; without it {format_ms(limit.without_ms)} faster"
