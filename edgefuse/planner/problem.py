"""The planning problem as numbers alone, and what a choice of columns costs: the model that solvers agree on.

Nothing here knows graphs, devices or solvers. `price` is the meaning of a plan: the integer program
(program.py) is a way to write it down, and tests hold the two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from edgefuse.plans import Format

__all__ = ["Choice", "Price", "Problem", "Step", "price", "quotient_cycle"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One column: a set of nodes run as one kernel.

    nodes: their positions in the fixed topological order, ascending.  reads, writes: (tensor, format) of what
    comes in and what leaves.  cost: ms.  losses: one for each of `Problem.limits`.  shares: names of scale
    groups that must share their scale for it.  workspace: bytes that it holds while it runs.
    surcharge: what is made small before cost is looked at.
    """

    nodes: tuple[int, ...]
    reads: tuple[tuple[str, Format], ...]
    writes: tuple[tuple[str, Format], ...]
    cost: float
    losses: tuple[float, ...] = ()
    shares: tuple[str, ...] = ()
    workspace: float = 0.0
    surcharge: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A change of format of one tensor, for all its readers at once; cost in ms."""

    tensor: str
    source: Format
    target: Format
    cost: float


@dataclass(frozen=True)
class Problem:
    """Everything that a plan is chosen from.

    size: number of nodes, positions 0..size-1 in topological order.  edges: (producer, reader) positions.
    producers: tensor -> position (absent: a graph input).  readers: tensor -> positions.
    given, wanted: formats of graph inputs and outputs.  limits: upper bounds of the sums of losses.
    scales: name -> losses of sharing that scale, one for each limit.  memory_limit: bytes of live tensors, or
    None.  sizes: (tensor, format) -> bytes; needed where there is a memory limit.
    """

    size: int
    choices: tuple[Choice, ...]
    steps: tuple[Step, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    producers: Mapping[str, int] = field(default_factory=dict)
    readers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    given: Mapping[str, Format] = field(default_factory=dict)
    wanted: Mapping[str, Format] = field(default_factory=dict)
    limits: tuple[float, ...] = ()
    scales: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    memory_limit: float | None = None
    sizes: Mapping[tuple[str, Format], float] = field(default_factory=dict)

    @cached_property
    def last_use(self) -> Mapping[str, int]:
        """Return for each tensor the last position that needs it (graph outputs: the end)."""
        last = {tensor: max(positions, default=-1) for tensor, positions in self.readers.items()}
        last |= dict.fromkeys(self.wanted, self.size - 1)
        for tensor, position in self.producers.items():
            last[tensor] = max(last.get(tensor, position), position)
        return last

    @cached_property
    def step_costs(self) -> Mapping[tuple[str, Format, Format], int]:
        """Return the index in `steps` of each (tensor, source, target)."""
        return {(s.tensor, s.source, s.target): k for k, s in enumerate(self.steps)}


@dataclass(frozen=True, slots=True)
class Price:
    """What a set of choices comes to: ms with conversions, the steps needed, the sums, the peak in bytes."""

    cost: float
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    scales: tuple[str, ...]
    peak: float
    surcharge: float


def price(problem: Problem, taken: Sequence[int]) -> Price | None:
    """Return what the choices `taken` cost, or None where they are no plan.

    They are none where a node is covered twice or not at all, a reader's format cannot be made, or the groups
    wait for each other in a circle. Limits are not judged here.
    """
    chosen = [problem.choices[i] for i in taken]
    positions = [v for choice in chosen for v in choice.nodes]
    if len(positions) != problem.size or len(set(positions)) != problem.size:
        return None
    if quotient_cycle(problem, taken):
        return None
    written = dict(problem.given)
    written |= {t: f for choice in chosen for t, f in choice.writes}
    needs = dict.fromkeys((t, f) for choice in chosen for t, f in choice.reads)
    needs |= dict.fromkeys((t, f) for t, f in problem.wanted.items() if t in problem.producers)
    steps = []
    for tensor, target in needs:
        if tensor not in written or written[tensor] != target:
            key = (tensor, written.get(tensor, target), target)
            if key not in problem.step_costs:
                return None
            steps.append(problem.step_costs[key])
    scales = tuple(sorted({name for choice in chosen for name in choice.shares}))
    losses = [
        sum(choice.losses[k] for choice in chosen) + sum(problem.scales[name][k] for name in scales)
        for k in range(len(problem.limits))
    ]
    cost = sum(choice.cost for choice in chosen) + sum(problem.steps[k].cost for k in steps)
    peak = max(_live_bytes(problem, taken, steps), default=0.0)
    surcharge = sum(choice.surcharge for choice in chosen)
    return Price(cost, tuple(sorted(steps)), tuple(losses), scales, peak, surcharge)


def within(problem: Problem, found: Price, tolerance: float = 1e-6) -> bool:
    """Return whether the price keeps all limits, with a relative tolerance."""
    sums = all(
        used <= limit * (1 + tolerance) for used, limit in zip(found.losses, problem.limits, strict=True)
    )
    room = math.inf if problem.memory_limit is None else problem.memory_limit * (1 + tolerance)
    return sums and found.peak <= room


def spans(problem: Problem, choice: Choice) -> list[tuple[int, int, float]]:
    """Return (first, last, bytes) of what a choice keeps in memory, positions inclusive.

    A group works from its first node's position to its last one's. What it writes is live from its first
    position to the last use; what it reads is live while it works, also after the position of the tensor's
    last reader. Both are upper bounds, which is what a limit needs. Tensors inside the group are not there.
    """
    if problem.memory_limit is None:
        return []
    first, last = choice.nodes[0], choice.nodes[-1]
    found = [(first, max(problem.last_use.get(t, last), last), problem.sizes[t, f]) for t, f in choice.writes]
    for tensor, layout in choice.reads:
        until = problem.last_use.get(tensor, last)
        if until < last:
            found.append((until + 1, last, problem.sizes[tensor, layout]))
    if choice.workspace:
        found.append((first, last, choice.workspace))
    return found


def step_span(problem: Problem, step: Step) -> tuple[int, int, float]:
    """Return (first, last, bytes) of what a conversion keeps in memory."""
    first = problem.producers.get(step.tensor, 0)
    return first, problem.last_use.get(step.tensor, first), problem.sizes[step.tensor, step.target]


def given_spans(problem: Problem) -> list[tuple[int, int, float]]:
    """Return (first, last, bytes) of the graph inputs, which are there whatever is chosen."""
    return [(0, problem.last_use.get(t, 0), problem.sizes[t, f]) for t, f in problem.given.items()]


def _live_bytes(problem: Problem, taken: Iterable[int], steps: Iterable[int]) -> list[float]:
    if problem.memory_limit is None:
        return []
    live = [0.0] * problem.size
    pieces = given_spans(problem)
    for i in taken:
        pieces += spans(problem, problem.choices[i])
    pieces += [step_span(problem, problem.steps[k]) for k in steps]
    for first, last, count in pieces:
        for position in range(first, last + 1):
            live[position] += count
    return live


def quotient_cycle(problem: Problem, taken: Sequence[int]) -> tuple[int, ...]:
    """Return choices of `taken` that wait for each other in a circle, the shortest from its start, or ().

    Each group may be fine alone: two kernels that each need a result of the other cannot be ordered.
    """
    owner = {v: i for i in taken for v in problem.choices[i].nodes}
    after: dict[int, dict[int, None]] = {i: {} for i in taken}
    waits = dict.fromkeys(taken, 0)
    for a, b in problem.edges:
        before, behind = owner.get(a), owner.get(b)
        if before is not None and behind is not None and before != behind and behind not in after[before]:
            after[before][behind] = None
            waits[behind] += 1
    free = [i for i in taken if not waits[i]]
    while free:
        for behind in after[free.pop()]:
            waits[behind] -= 1
            if not waits[behind]:
                free.append(behind)
    stuck = [i for i in taken if waits[i] > 0]
    return min((_circle(start, after) for start in stuck), key=_by_length, default=())


def _by_length(circle: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return (len(circle) or 1 << 30, circle)


def _circle(start: int, after: Mapping[int, Mapping[int, None]]) -> tuple[int, ...]:
    """Return the shortest way from `start` back to it, or ()."""
    came: dict[int, int] = {}
    line = [start]
    for here in line:
        for there in after[here]:
            if there == start:
                path = [here]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return tuple(reversed(path))
            if there not in came:
                came[there] = here
                line.append(there)
    return ()
