"""From a planning problem to the best choice, with a gap that is proven for the whole model.

Small programs go to the solver as they are. For large ones:

1. the linear relaxation gives a lower bound for the whole model and a reduced cost for each variable. On
   these programs it is nearly whole: a few groups around each binding limit are split;
2. with everything whole held fixed, a small integer program over the groups around the split ones gives a
   plan, and one over what is nearly as good as the relaxation's choices a better one;
3. no plan better than that one holds a choice whose reduced cost is more than plan - bound, so those choices
   are dropped (exactly, not as a guess), and the integer program over the rest closes the gap. Its bound
   holds for the whole model.

Steps 1 and 2 grow with the model about linearly, and step 3 with what is left. A circle of groups in a
solution is forbidden by one more row, and the search begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.planner.highs import NODE_LIMIT, Answer, Program, run
from edgefuse.planner.problem import Price, Problem, price, within
from edgefuse.planner.program import forbid_circle, keep_surcharge, surcharges, write_program

__all__ = ["Found", "search"]

# Programs up to this many choices are solved to the end, without the steps that make large ones fast.
SMALL = 400
# Asked for is .1 % (a cost model is off by more than a hundred times that).
RELATIVE_GAP = 9e-4
# Step 2: the share of the first plan's gap that a reduced cost may be, and branches (it is only a beginning).
NEAR, NEAR_NODES = 0.05, 200
# Rounds of forbidden circles before it must be our mistake: each round removes one family of plans.
MAX_CIRCLES = 200


@dataclass(frozen=True, slots=True)
class Found:
    """The choices taken (indices), what they come to, and the solver's word for it.

    gap: (cost - bound) / cost, proven for the whole problem.  circles: rows that were added against circles.
    rows, variables: size of the program.  nodes: branches that the solver looked at.
    """

    taken: tuple[int, ...]
    price: Price
    status: str
    gap: float
    solver: str
    circles: int = 0
    rows: int = 0
    variables: int = 0
    nodes: int = 0


def search(problem: Problem, *, gap: float = RELATIVE_GAP, node_limit: int = NODE_LIMIT) -> Found:
    """Return the cheapest plan within the limits; the same problem gives the same plan.

    Raises UnsupportedError where no plan keeps the limits.
    """
    program = write_program(problem)
    weights = surcharges(problem, program)
    circles = 0
    if weights.any():
        costs, program.costs = program.costs, weights
        found, circles = _without_circles(problem, program, gap, node_limit)
        best = float(weights[list(_taken(problem, found.values))].sum())
        program.costs = costs
        keep_surcharge(program, weights, best)
        found, more = _without_circles(problem, program, gap, node_limit, start=found.values)
        circles += more
    else:
        found, circles = _without_circles(problem, program, gap, node_limit)
    return _checked(problem, program, found, circles, gap)


def _without_circles(
    problem: Problem, program: Program, gap: float, node_limit: int, start: np.ndarray | None = None
) -> tuple[Answer, int]:
    for circles in range(MAX_CIRCLES):
        answer = _minimise(problem, program, gap, node_limit, start)
        if not forbid_circle(problem, program, _taken(problem, answer.values)):
            return answer, circles
        start = None
    raise InternalError(f"the planner still meets circles of groups after {MAX_CIRCLES} rounds")


def _taken(problem: Problem, values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.flatnonzero(values[: len(problem.choices)] > 0.5))


def _minimise(
    problem: Problem, program: Program, gap: float, node_limit: int, start: np.ndarray | None
) -> Answer:
    if len(problem.choices) <= SMALL:
        return _feasible(run(program, whole=True, start=start, node_limit=node_limit))
    relaxed = _feasible(run(program, whole=False))
    kept = _around_split(problem, relaxed.values)
    if start is not None:
        kept[start > 0.5] = True
    plan = run(program, whole=True, gap=gap / 4, allowed=kept, start=start, node_limit=node_limit)
    if plan.status == "infeasible":  # the fixed part left no room: nothing may be fixed
        return _bounded(run(program, whole=True, gap=gap, node_limit=node_limit), relaxed)
    if _gap(plan.objective, relaxed.objective) <= gap:
        return replace(plan, bound=relaxed.objective, status="optimal")
    near = _within_reach(plan, relaxed, NEAR)
    plan = run(program, whole=True, gap=gap / 2, allowed=near, start=plan.values, node_limit=NEAR_NODES)
    if _gap(plan.objective, relaxed.objective) <= gap:
        return replace(plan, bound=relaxed.objective, status="optimal")
    useful = _within_reach(plan, relaxed, 1.0)
    # Without a start: bounds of runs with one are not trusted (highs.py).
    closed = run(program, whole=True, gap=gap, allowed=useful, node_limit=node_limit)
    return _bounded(closed, relaxed)


def _within_reach(plan: Answer, relaxed: Answer, share: float) -> np.ndarray:
    """Return the variables of the plan, and those whose reduced cost is at most `share` of its gap."""
    room = share * (plan.objective - relaxed.objective)
    return np.asarray((relaxed.reduced <= room * (1 + 1e-6) + 1e-9) | (plan.values > 0.5))


def _feasible(answer: Answer) -> Answer:
    if answer.status == "infeasible":
        raise UnsupportedError(
            "no plan fulfils all limits", hint="raise --max-drop or the memory limit, or --precision auto"
        )
    return answer


def _bounded(answer: Answer, relaxed: Answer) -> Answer:
    return replace(_feasible(answer), bound=max(answer.bound, relaxed.objective))


def _around_split(problem: Problem, values: np.ndarray) -> np.ndarray:
    """Return which variables stay free: those in use, and all choices at nodes whose cover is split."""
    kept = values > 1e-7
    kept[len(problem.choices) :] = True
    split = np.zeros(problem.size, dtype=bool)
    between = (values > 1e-6) & (values < 1 - 1e-6)
    for i, choice in enumerate(problem.choices):
        if between[i]:
            split[list(choice.nodes)] = True
    for i, choice in enumerate(problem.choices):
        if not kept[i] and split[list(choice.nodes)].any():
            kept[i] = True
    return kept


def _gap(objective: float, bound: float) -> float:
    return max(objective - bound, 0.0) / max(abs(objective), 1e-12)


def _checked(problem: Problem, program: Program, answer: Answer, circles: int, gap: float) -> Found:
    """Return the answer as a plan, priced without the program; raises InternalError where they differ.

    The solver's numbers are whole and its rows kept to 1e-6 only, so that its cost is a little low. The gap
    is told from the plan's own price.
    """
    taken = _taken(problem, answer.values)
    found = price(problem, taken)
    if found is None or not within(problem, found):
        raise InternalError("the solver's answer breaks a limit of the problem that it was given")
    told, proven = answer.objective / program.scale, _gap(found.cost, answer.bound / program.scale)
    if found.cost > told * (1 + 1e-5) + 1e-9 and proven > gap:
        raise InternalError(
            "the solver's answer costs more than it says",
            expected=f"{told:.9g} ms",
            got=f"{found.cost:.9g} ms",
        )
    return Found(
        taken=taken,
        price=found,
        status=answer.status,
        gap=round(proven, 9),
        solver=answer.version,
        circles=circles,
        rows=len(program.lower),
        variables=len(program.costs),
        nodes=answer.nodes,
    )


def unlimited(problem: Problem, kept: Sequence[int] = ()) -> Problem:
    """Return the problem with the limits at positions `kept` only, and no memory limit."""
    choices = tuple(
        replace(c, losses=tuple(c.losses[k] for k in kept)) if c.losses else c for c in problem.choices
    )
    scales = {name: tuple(row[k] for k in kept) for name, row in problem.scales.items()}
    limits = tuple(problem.limits[k] for k in kept)
    return replace(problem, choices=choices, scales=scales, limits=limits, memory_limit=None)
