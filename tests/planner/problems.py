"""Random planning problems, small enough to try every plan, and the search that tries them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from edgefuse.planner.problem import Choice, Price, Problem, Step, price, within
from edgefuse.plans import Format

FORMATS = (
    Format("float32"),
    Format("int8"),
    Format("float16", "channels-last"),
    Format("int8", place="other"),
)


def random_problem(
    seed: int,
    size: int = 5,
    formats: int = 3,
    limits: int = 2,
    memory: bool = False,
    scales: int = 1,
    horizontal: bool = True,
) -> Problem:
    """Return a random graph of `size` nodes with groups of one to three nodes, convex or not."""
    rng = np.random.default_rng(seed)
    kinds = FORMATS[:formats]
    parents = [
        sorted({int(p) for p in rng.integers(max(0, v - 3), v, size=rng.integers(1, 3))}) if v else []
        for v in range(size)
    ]
    readers: dict[str, list[int]] = {"x": [0]}
    for v, above in enumerate(parents):
        for p in above:
            readers.setdefault(f"t{p}", []).append(v)
    last = f"t{size - 1}"
    wanted = {f"t{v}": FORMATS[0] for v in range(size) if f"t{v}" not in readers} | {last: FORMATS[0]}
    names = [f"s{k}" for k in range(scales)]
    choices = []
    for nodes in _groups(size, parents, horizontal):
        for kind in kinds:
            if len(nodes) > 1 and rng.random() < 0.4:
                continue
            inside = set(nodes)
            reads = {f"t{p}": kind for v in nodes for p in parents[v] if p not in inside}
            if 0 in inside:
                reads["x"] = kind
            leaves = [v for v in nodes if f"t{v}" in wanted or set(readers.get(f"t{v}", ())) - inside]
            written = kinds[int(rng.integers(len(kinds)))] if rng.random() < 0.3 else kind
            low = kind.dtype == "int8"
            shares = tuple(n for n in names if low and rng.random() < 0.3)
            choices.append(
                Choice(
                    nodes=nodes,
                    reads=tuple(sorted(reads.items())),
                    writes=tuple((f"t{v}", written) for v in leaves),
                    cost=float(rng.uniform(0.5, 3.0)) * len(nodes) ** 0.7 * (0.5 if low else 1.0),
                    losses=tuple(float(rng.uniform(0, 1)) * low for _ in range(limits)),
                    shares=shares,
                    workspace=float(rng.integers(0, 3)),
                )
            )
    tensors = ["x", *(f"t{v}" for v in range(size))]
    return Problem(
        size=size,
        choices=tuple(choices),
        steps=tuple(
            Step(t, a, b, float(rng.uniform(0.1, 0.6)))
            for t in tensors
            for a, b in itertools.permutations(kinds, 2)
        ),
        edges=tuple((p, v) for v, above in enumerate(parents) for p in above),
        producers={f"t{v}": v for v in range(size)},
        readers={t: tuple(vs) for t, vs in readers.items()},
        given={"x": FORMATS[0]},
        wanted=wanted,
        limits=tuple(float(rng.uniform(0.3, 0.5 * size)) for _ in range(limits)),
        scales={n: tuple(float(rng.uniform(0, 0.5)) for _ in range(limits)) for n in names},
        memory_limit=float(rng.uniform(12, 30)) if memory else None,
        sizes={(t, f): float(rng.integers(1, 9)) for t in tensors for f in kinds},
    )


def _groups(size: int, parents: list[list[int]], horizontal: bool) -> Iterator[tuple[int, ...]]:
    for v in range(size):
        yield (v,)
        for p in parents[v]:
            yield (p, v)
            for q in parents[p]:
                yield (q, p, v)
        if horizontal and v >= 2:
            yield (v - 2, v)


def every_plan(problem: Problem) -> Iterator[tuple[tuple[int, ...], Price]]:
    """Yield every set of choices that is a plan, with its price; limits are not judged."""
    at: list[list[int]] = [[] for _ in range(problem.size)]
    for i, choice in enumerate(problem.choices):
        at[choice.nodes[0]].append(i)

    def extend(position: int, done: frozenset[int], taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        while position in done:
            position += 1
        if position == problem.size:
            yield taken
            return
        for i in at[position]:
            nodes = frozenset(problem.choices[i].nodes)
            if not nodes & done:
                yield from extend(position + 1, done | nodes, (*taken, i))

    for taken in extend(0, frozenset(), ()):
        found = price(problem, taken)
        if found is not None:
            yield taken, found


def best_plan(problem: Problem) -> Price | None:
    """Return the price of the best plan within the limits (surcharge first, then cost), or None."""
    prices = [p for _, p in every_plan(problem) if within(problem, p, 1e-9)]
    return min(prices, key=lambda p: (round(p.surcharge, 9), p.cost), default=None)
