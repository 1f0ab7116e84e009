"""A planning problem written as rows of an integer program.

Variables: x[c] in {0, 1} for each choice; y[t, p, q] in [0, 1] for a change of tensor t from format p to q,
one for each tensor and not for each edge, so that all readers share it; s[g] in [0, 1] for each scale group,
1 = its tensors share a scale; z[a] in {0, 1} for each loss that some choices have alike. y and s come out
whole where x is, so they need no branching. z says nothing new, and is the difference between one node of
branching and thousands: an accuracy row over z has one term a layer and not one a column, so that its covers
cut.

    cover      for each node v:          sum of x[c] over choices that hold v = 1
    supply     for each reader v of t    sum of its x[c] that read t at q
               at q:                     <= sum of x[c] that write t at q + sum over p of y[t, p, q]
    source     for each y[t, p, q]:      y <= sum of x[c] that write t at p  (graph inputs: as they are given)
    sharing    for each (g, v):          sum of x[c] that hold v and need g shared <= s[g]
    risk       for each loss a:          sum of x[c] that have it = z[a]
    accuracy   for each limit k:         sum of loss[a, k] z[a] + sum of loss[g, k] s[g] <= limit[k]
    memory     for each position that    bytes of what is live there <= the memory limit
               could go over it:
    order      for each circle of groups that a solution showed: not all of them (added by the search)
    objective  sum of ms[c] x[c] + sum of ms[t, p, q] y[t, p, q]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from edgefuse.planner.highs import Program
from edgefuse.planner.problem import Problem, given_spans, quotient_cycle, spans, step_span
from edgefuse.plans import Format

__all__ = ["forbid_circle", "keep_surcharge", "surcharges", "write_program"]

Key = tuple[str, Format]


def write_program(problem: Problem) -> Program:
    """Return the program of `problem`; the objective is its cost in ms, scaled to a mean of 1 a choice."""
    costs = [c.cost for c in problem.choices] + [s.cost for s in problem.steps] + [0.0] * len(problem.scales)
    whole = np.arange(len(costs)) < len(problem.choices)
    total = sum(c.cost for c in problem.choices)
    scale = len(problem.choices) / total if total > 0 else 1.0
    program = Program(scale * np.array(costs, dtype=np.float64), whole, scale)
    _cover(problem, program)
    _formats(problem, program)
    _sharing(problem, program)
    _accuracy(problem, program)
    if problem.memory_limit is not None:
        _memory(problem, program, problem.memory_limit)
    return program


def _cover(problem: Problem, program: Program) -> None:
    holders: list[dict[int, float]] = [{} for _ in range(problem.size)]
    for i, choice in enumerate(problem.choices):
        for v in choice.nodes:
            holders[v][i] = 1.0
    for terms in holders:
        program.add(terms, 1.0, 1.0)


def _formats(problem: Problem, program: Program) -> None:
    writers: dict[Key, dict[int, float]] = {}
    reads: dict[tuple[str, Format, int], dict[int, float]] = {}
    kinds: dict[str, dict[Format, None]] = {t: {f: None} for t, f in problem.given.items()}
    readers = {tensor: frozenset(positions) for tensor, positions in problem.readers.items()}
    for tensor, wanted in problem.wanted.items():
        kinds.setdefault(tensor, {})[wanted] = None
    for i, choice in enumerate(problem.choices):
        for tensor, written in choice.writes:
            writers.setdefault((tensor, written), {})[i] = -1.0
            kinds.setdefault(tensor, {})[written] = None
        for tensor, read in choice.reads:
            kinds.setdefault(tensor, {})[read] = None
            for v in choice.nodes:
                if v in readers.get(tensor, ()):
                    reads.setdefault((tensor, read, v), {})[i] = 1.0
    into: dict[Key, dict[int, float]] = {}
    for k, step in enumerate(problem.steps):
        index = len(problem.choices) + k
        into.setdefault((step.tensor, step.target), {})[index] = -1.0
        if problem.given.get(step.tensor) != step.source:
            program.add({index: 1.0, **writers.get((step.tensor, step.source), {})}, -np.inf, 0.0)
    for (tensor, layout, _), terms in reads.items():
        if len(kinds[tensor]) > 1:  # a tensor of one format is always there
            free = 1.0 if problem.given.get(tensor) == layout else 0.0
            key = (tensor, layout)
            program.add({**terms, **writers.get(key, {}), **into.get(key, {})}, -np.inf, free)
    for key in problem.wanted.items():
        if key[0] in problem.producers and len(kinds[key[0]]) > 1:
            program.add({**writers.get(key, {}), **into.get(key, {})}, -np.inf, -1.0)


def _sharing(problem: Problem, program: Program) -> None:
    first = len(problem.choices) + len(problem.steps)
    variable = {name: first + k for k, name in enumerate(problem.scales)}
    needs: dict[tuple[str, int], dict[int, float]] = {}
    for i, choice in enumerate(problem.choices):
        for name in choice.shares:
            for v in choice.nodes:
                needs.setdefault((name, v), {})[i] = 1.0
    for (name, _), terms in needs.items():
        program.add({**terms, variable[name]: -1.0}, -np.inf, 0.0)


def _accuracy(problem: Problem, program: Program) -> None:
    """Write one row a limit, divided by it, since the solver's tolerance is absolute.

    What is over a limit alone is ruled out in a row of its own, so that no coefficient is huge.
    """
    first = len(problem.choices) + len(problem.steps)
    rows = {first + j: row for j, row in enumerate(problem.scales.values())}
    for row, members in _risks(problem):
        variable = program.variable(whole=True)
        rows[variable] = row
        program.add({**dict.fromkeys(members, 1.0), variable: -1.0}, 0.0, 0.0)
    for k, limit in enumerate(problem.limits):
        losses = {variable: row[k] for variable, row in rows.items() if row[k] > 0}
        over = {i: 1.0 for i, loss in losses.items() if loss > limit}
        if over:
            program.add(over, 0.0, 0.0)
        fits = {i: loss / limit for i, loss in losses.items() if i not in over}
        if fits:
            program.add(fits, -np.inf, 1.0)


def _risks(problem: Problem) -> list[tuple[tuple[float, ...], list[int]]]:
    """Return each loss with the choices that have it, of which at most one can be taken."""
    found: dict[tuple[float, ...], list[tuple[frozenset[int], list[int]]]] = {}
    for i, choice in enumerate(problem.choices):
        if not any(loss > 0 for loss in choice.losses):
            continue
        alike = found.setdefault(choice.losses, [])
        for k, (common, members) in enumerate(alike):
            left = common.intersection(choice.nodes)
            if left:
                alike[k] = (left, [*members, i])
                break
        else:
            alike.append((frozenset(choice.nodes), [i]))
    return [(row, members) for row, alike in found.items() for _, members in alike]


def _memory(problem: Problem, program: Program, limit: float) -> None:
    """Write the rows of the positions that some plan could fill over the limit."""
    fixed = np.zeros(problem.size)
    for first, last, count in given_spans(problem):
        fixed[first : last + 1] += count
    live: list[dict[int, float]] = [{} for _ in range(problem.size)]
    for i, choice in enumerate(problem.choices):
        _add_spans(live, i, spans(problem, choice))
    for k, step in enumerate(problem.steps):
        _add_spans(live, len(problem.choices) + k, [step_span(problem, step)])
    for position, terms in enumerate(live):
        if fixed[position] + sum(terms.values()) > limit:
            scaled = {i: count / limit for i, count in terms.items()}
            program.add(scaled, -np.inf, 1.0 - fixed[position] / limit)


def _add_spans(live: list[dict[int, float]], variable: int, found: Iterable[tuple[int, int, float]]) -> None:
    for first, last, count in found:
        for position in range(first, last + 1):
            live[position][variable] = live[position].get(variable, 0.0) + count


def forbid_circle(problem: Problem, program: Program, taken: Sequence[int]) -> bool:
    """Add the row that rules out a circle of groups in `taken`; return whether there was one.

    The row speaks of the groups' nodes, not of their precision and format: all of those wait alike.
    """
    circle = quotient_cycle(problem, taken)
    if not circle:
        return False
    sets = {problem.choices[i].nodes for i in circle}
    terms = {i: 1.0 for i, choice in enumerate(problem.choices) if choice.nodes in sets}
    program.add(terms, -np.inf, len(sets) - 1.0)
    return True


def surcharges(problem: Problem, program: Program) -> np.ndarray:
    """Return the first objective, what is made small before cost: one value a variable, largest = 1."""
    found = np.zeros(len(program.costs))
    found[: len(problem.choices)] = [c.surcharge for c in problem.choices]
    top = float(found.max(initial=0.0))
    return found / top if top > 0 else found


def keep_surcharge(program: Program, weights: np.ndarray, best: float) -> None:
    """Add the row that holds the first objective at its best value."""
    terms: Mapping[int, float] = {int(i): float(weights[i]) for i in np.flatnonzero(weights)}
    program.add(dict(terms), -np.inf, best * (1 + 1e-9) + 1e-9)
