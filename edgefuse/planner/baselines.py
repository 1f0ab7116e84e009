"""What planning in stages gives: the same columns and limits, decided in another order.

Each stage is solved to its end, so that a difference to the joint plan comes from the order and from nothing
else. All three are plans within the request's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from edgefuse.fusion import ANCHORS
from edgefuse.planner.assemble import assemble
from edgefuse.planner.columns import Column, PlanRequest, make_columns
from edgefuse.planner.plan import write_plan
from edgefuse.planner.problem import Price, Problem, price, within
from edgefuse.planner.search import Found, search
from edgefuse.planner.solve import Solution, solution_of, solve
from edgefuse.plans import Plan

__all__ = ["BASELINES", "baseline_plans", "fuse_first", "greedy", "precision_first"]

Refusals = Mapping[tuple[str, str], str]
# Passes over all groups until greedy stops; it has always stopped by itself after a few.
_MOST_PASSES = 20


def fuse_first(request: PlanRequest) -> Plan:
    """Return the plan whose groups are the best ones in float; then the best precision and format of each."""
    columns, refusals = make_columns(request)
    groups = _float_groups(request, columns)
    kept = [c for c in columns if c.candidate.names in groups]
    return write_plan(request, columns, refusals, solve(request, kept))


def precision_first(request: PlanRequest) -> Plan:
    """Return the plan whose layers have the precision that is best without fusion; then the best groups.

    Fixed are the convolutions and matrix products; what lies between goes with the groups.
    """
    columns, refusals = make_columns(request)
    alone = solve(request, [c for c in columns if len(c.candidate.nodes) == 1])
    fixed = {
        node.name or "": column.precision
        for column in alone.columns
        for node in column.candidate.nodes
        if node.op_type in ANCHORS
    }
    kept = [
        c for c in columns if all(fixed.get(name, c.precision) == c.precision for name in c.candidate.names)
    ]
    return write_plan(request, columns, refusals, solve(request, kept))


def greedy(request: PlanRequest) -> Plan:
    """Return the plan that begins with the best float groups and takes what gains at once, one after another.

    Groups come in the order of ms saved for each unit of loss. A group changes its precision and format where
    that makes the whole plan faster, conversions included, within the limits, until no single change does.
    """
    columns, refusals = make_columns(request)
    start = _float_plan(request, columns)
    groups = {c.candidate.names for c in start}
    kept = [c for c in columns if c.candidate.names in groups]
    problem = assemble(request, kept)
    taken = [kept.index(c) for c in start]
    solution = solution_of(problem, kept, _local_search(problem, taken))
    return write_plan(request, columns, refusals, solution)


BASELINES: Mapping[str, Callable[[PlanRequest], Plan]] = {
    "fuse-first": fuse_first,
    "precision-first": precision_first,
    "greedy": greedy,
}


def baseline_plans(request: PlanRequest) -> dict[str, Plan]:
    """Return name -> plan of each staged order.

    Raises UnsupportedError as `make_plan` does, and where a stage leaves nothing within the limits.
    """
    return {name: make(request) for name, make in BASELINES.items()}


def _float_plan(request: PlanRequest, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of the best plan without int8."""
    floats = tuple(p for p in request.precisions if p != "int8") or request.precisions
    chosen = [c for c in columns if c.precision in floats]
    plain = replace(request, precisions=floats, prefer_int8=False)
    return _solve(plain, chosen).columns


def _solve(request: PlanRequest, columns: Sequence[Column]) -> Solution:
    problem = assemble(request, columns)
    return solution_of(problem, columns, search(problem))


def _float_groups(request: PlanRequest, columns: Sequence[Column]) -> set[tuple[str, ...]]:
    return {c.candidate.names for c in _float_plan(request, columns)}


def _local_search(problem: Problem, taken: list[int]) -> Found:
    """Return the plan that single changes of precision and format lead to from `taken`."""
    ways: dict[tuple[int, ...], list[int]] = {}
    for i, choice in enumerate(problem.choices):
        ways.setdefault(choice.nodes, []).append(i)
    order = sorted(range(len(taken)), key=lambda k: _promise(problem, taken[k], ways))
    best = _priced(problem, taken)
    for _ in range(_MOST_PASSES):
        before = best.cost
        for k in order:
            for other in ways[problem.choices[taken[k]].nodes]:
                changed = [*taken[:k], other, *taken[k + 1 :]]
                found = price(problem, changed)
                if found is not None and within(problem, found) and found.cost < best.cost - 1e-12:
                    best, taken = found, changed
        if best.cost == before:
            break
    return Found(tuple(taken), best, "feasible", 1.0, "greedy")


def _priced(problem: Problem, taken: Sequence[int]) -> Price:
    found = price(problem, taken)
    assert found is not None, "the float plan is a plan of the larger problem"
    return found


def _promise(problem: Problem, now: int, ways: Mapping[tuple[int, ...], Sequence[int]]) -> float:
    """Return the sort key of a group: minus the most ms saved for a unit of loss, conversions left aside."""
    here = problem.choices[now]
    saved = [
        (here.cost - c.cost) / (sum(c.losses) + 1e-12) for c in (problem.choices[i] for i in ways[here.nodes])
    ]
    return -max(saved)
