"""Why a node is planned as it is: every alternative priced by planning again with it forced in.

A reduced cost of the linear relaxation would be free and wrong: most are 0 where the true price is hundreds
of microseconds, since other choices are tied. So each figure here is the difference of two plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgefuse.errors import InputError, UnsupportedError, did_you_mean
from edgefuse.graph import source_name
from edgefuse.planner.assemble import assemble, limit_names
from edgefuse.planner.columns import Column, PlanRequest, make_columns
from edgefuse.planner.plan import write_plan
from edgefuse.planner.problem import Problem
from edgefuse.planner.search import search, unlimited
from edgefuse.planner.solve import solution_of
from edgefuse.plans import Group, Plan, Precision

__all__ = ["MEMORY", "Alternative", "Explanation", "Limit", "explain_choice"]

# So many alternatives are priced; each is a plan of its own.
MOST = 12
# Both plans of a difference are proven to this share of their time, so smaller differences say nothing.
GAP = 1e-4
MORE = 0.1
MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to run the node: these nodes as one group, in this variant and precision.

    extra_ms: what the best plan with it takes more than the plan, >= 0; None where no plan within the limits
    holds it.
    """

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    rule: str
    variant: str
    precision: Precision
    extra_ms: float | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of the plan: how much of it is used, and what the plan would gain.

    used, limit: in losses, or bytes for "memory".  without_ms: ms saved if the limit were not there; 0 = it
    does not bind.
    """

    name: str
    used: float
    limit: float
    without_ms: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What decided about one node.

    group: as planned.  left_out: how many further alternatives were not priced.  more: by which share all
    accuracy limits were raised for `more_ms`, the ms saved then.  resolution_ms: smaller differences than
    this are within the proven gaps.
    """

    node: str
    plan: Plan
    group: Group
    alternatives: tuple[Alternative, ...]
    left_out: int
    refused: tuple[tuple[str, str], ...]
    limits: tuple[Limit, ...]
    more: float
    more_ms: float
    resolution_ms: float


def explain_choice(request: PlanRequest, node: str, *, more: float = MORE, most: int = MOST) -> Explanation:
    """Return why the plan of `request` runs `node` as it does.

    node: the user's name, the internal one, or a tensor that it writes.  more: the share by which accuracy
    limits are raised to see what that buys.  most: how many alternatives are priced.
    Raises InputError with a suggestion where there is no such node, UnsupportedError where there is no plan.
    """
    columns, refusals = make_columns(request)
    position, name = _find(request, node)
    problem = assemble(request, columns)
    found = search(problem, gap=GAP)
    plan = write_plan(request, columns, refusals, solution_of(problem, columns, found))
    group = plan.group_of(name)
    assert group is not None, "every node is in one group"
    ways = _ways(problem, columns, position)
    chosen = next(i for i in found.taken if position in problem.choices[i].nodes)
    ways.pop(_way(problem, columns, chosen))
    ranked = sorted(ways, key=lambda way: _rank(way, problem.choices[chosen].nodes))
    cost = found.price.cost
    priced = [_alternative(problem, columns, ways[way], position, cost) for way in ranked[:most]]
    return Explanation(
        node=node,
        plan=plan,
        group=group,
        alternatives=tuple(sorted(priced, key=_by_price)),
        left_out=max(len(ranked) - most, 0),
        refused=tuple((p, reason) for (where, p), reason in refusals.items() if where == name),
        limits=_limits(problem, limit_names(request), found.price.losses, found.price.peak, cost),
        more=more,
        more_ms=_gain(_raised(problem, more), cost) if problem.limits else 0.0,
        resolution_ms=2 * GAP * cost,
    )


def _find(request: PlanRequest, node: str) -> tuple[int, str]:
    """Return position and internal name of the node that the user means."""
    nodes = list(request.model.graph)
    for matches in (
        [i for i, n in enumerate(nodes) if n.name == node],
        [i for i, n in enumerate(nodes) if source_name(n) == node],
        [i for i, n in enumerate(nodes) if node in [v.name for v in n.outputs]],
    ):
        if matches:
            return matches[0], nodes[matches[0]].name or ""
    known = [
        name for n in nodes for name in (source_name(n), n.name or "", *(v.name or "" for v in n.outputs))
    ]
    raise InputError(f"the plan has no node {node!r}{did_you_mean(node, known)}")


Way = tuple[tuple[int, ...], str, str]


def _way(problem: Problem, columns: Sequence[Column], index: int) -> Way:
    return problem.choices[index].nodes, columns[index].variant, columns[index].precision


def _ways(problem: Problem, columns: Sequence[Column], position: int) -> dict[Way, list[int]]:
    """Return the choices that hold the node, by nodes, variant and precision: formats are the solver's."""
    found: dict[Way, list[int]] = {}
    for i, choice in enumerate(problem.choices):
        if position in choice.nodes:
            found.setdefault(_way(problem, columns, i), []).append(i)
    return found


def _rank(way: Way, chosen: tuple[int, ...]) -> tuple[int, int, Way]:
    """Return the order in which alternatives are priced: the same group, the node alone, then the nearest."""
    kind = 0 if way[0] == chosen else 1 if len(way[0]) == 1 else 2
    return kind, len(set(way[0]) ^ set(chosen)), way


def _alternative(
    problem: Problem, columns: Sequence[Column], forced: Sequence[int], position: int, cost: float
) -> Alternative:
    kept = set(forced)
    choices = tuple(c for i, c in enumerate(problem.choices) if i in kept or position not in c.nodes)
    column = columns[forced[0]]
    extra: float | None
    try:
        extra = max(search(replace(problem, choices=choices), gap=GAP).price.cost - cost, 0.0)
    except UnsupportedError:
        extra = None
    return Alternative(
        nodes=tuple(source_name(node) for node in column.candidate.nodes),
        operators=column.candidate.operators,
        rule=column.candidate.rule,
        variant=column.variant,
        precision=column.precision,
        extra_ms=extra,
    )


def _by_price(alternative: Alternative) -> tuple[float, tuple[str, ...], str, str]:
    extra = alternative.extra_ms
    price = float("inf") if extra is None else extra
    return price, alternative.nodes, alternative.precision, alternative.variant


def _limits(
    problem: Problem, names: Sequence[str], losses: Sequence[float], peak: float, cost: float
) -> tuple[Limit, ...]:
    rows = range(len(problem.limits))
    found = []
    free = _gain(unlimited(problem), cost) > 2 * GAP * cost
    for k in rows:
        rest = replace(unlimited(problem, [j for j in rows if j != k]), memory_limit=problem.memory_limit)
        gain = _gain(rest, cost) if free else 0.0
        found.append(Limit(names[k], losses[k], problem.limits[k], gain))
    if problem.memory_limit is not None:
        gain = _gain(unlimited(problem, list(rows)), cost) if free else 0.0
        found.append(Limit(MEMORY, peak, problem.memory_limit, gain))
    return tuple(found)


def _raised(problem: Problem, share: float) -> Problem:
    return replace(problem, limits=tuple(limit * (1 + share) for limit in problem.limits))


def _gain(problem: Problem, cost: float) -> float:
    return max(cost - search(problem, gap=GAP).price.cost, 0.0)
