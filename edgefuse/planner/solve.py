"""The choice of columns for a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgefuse.planner.assemble import assemble
from edgefuse.planner.columns import Column, PlanRequest
from edgefuse.planner.problem import Problem, Step
from edgefuse.planner.search import Found, search

__all__ = ["Solution", "solution_of", "solve"]


@dataclass(frozen=True, slots=True)
class Solution:
    """Which columns, conversions and shared scales were taken, and what the search says of itself."""

    columns: tuple[Column, ...]
    steps: tuple[Step, ...]
    scales: tuple[str, ...]
    found: Found


def solve(request: PlanRequest, columns: Sequence[Column]) -> Solution:
    """Return the cheapest plan within the request's limits, as columns.

    Raises UnsupportedError where none exists: a node that nothing can run, or limits that none keeps.
    """
    problem = assemble(request, columns)
    return solution_of(problem, columns, search(problem))


def solution_of(problem: Problem, columns: Sequence[Column], found: Found) -> Solution:
    """Return what was found for `problem`, whose choices are `columns`, in terms of the columns."""
    return Solution(
        columns=tuple(columns[i] for i in found.taken),
        steps=tuple(problem.steps[k] for k in found.price.steps),
        scales=found.price.scales,
        found=found,
    )
