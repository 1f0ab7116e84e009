"""The search against trying every plan: formats, places, limits, memory, scales, circles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgefuse.errors import InternalError, UnsupportedError
from edgefuse.planner import search as search_module
from edgefuse.planner.highs import Program, run
from edgefuse.planner.problem import Choice, Problem, Step, price, quotient_cycle, within
from edgefuse.planner.search import search, unlimited
from edgefuse.plans import Format
from tests.planner.problems import FORMATS, best_plan, random_problem

pytestmark = pytest.mark.slow

FLOAT, INT8 = FORMATS[0], FORMATS[1]


def _agree(problem: Problem) -> bool:
    """Assert that the search finds what trying everything finds; return whether there was a plan."""
    best = best_plan(problem)
    if best is None:
        with pytest.raises(UnsupportedError, match="no plan fulfils all limits"):
            search(problem, gap=1e-7)
        return False
    found = search(problem, gap=1e-7)
    assert found.price.cost == pytest.approx(best.cost, rel=1e-6)
    assert within(problem, found.price)
    assert found.gap <= 1e-6
    return True


@pytest.mark.parametrize("large", [False, True])
def test_the_search_finds_what_trying_everything_finds(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:  # the way of large problems, on small ones
        monkeypatch.setattr(search_module, "SMALL", 0)
    outcomes = [_agree(random_problem(seed, size=4, memory=seed % 2 == 0)) for seed in range(16)]
    assert any(outcomes)
    assert not all(outcomes), "some of the problems must have no plan, or limits are not tested"


def test_all_formats_layouts_and_places_count() -> None:
    assert all(_agree(random_problem(seed, size=4, formats=4, limits=1)) for seed in (1, 3, 5))


def _entangled() -> Problem:
    """Return a problem whose cheapest cover is two kernels that each wait for the other.

    a -> d and c -> b; {a, b} in one kernel and {c, d} in one kernel would each need the other's result.
    """

    def choice(nodes: tuple[int, ...], cost: float) -> Choice:
        reads = {0: "x", 1: "x", 2: "t1", 3: "t0"}
        inside = {f"t{v}" for v in nodes}
        return Choice(
            nodes,
            tuple((reads[v], FLOAT) for v in nodes if reads[v] not in inside),
            tuple((f"t{v}", FLOAT) for v in nodes),
            cost,
        )

    # positions: a = 0, c = 1, b = 2 (reads c's t1), d = 3 (reads a's t0)
    return Problem(
        size=4,
        choices=(*(choice((v,), 2.0) for v in range(4)), choice((0, 2), 1.0), choice((1, 3), 1.0)),
        edges=((0, 3), (1, 2)),
        producers={f"t{v}": v for v in range(4)},
        readers={"x": (0, 1), "t0": (3,), "t1": (2,)},
        given={"x": FLOAT},
        wanted={"t2": FLOAT, "t3": FLOAT},
    )


def test_kernels_that_wait_for_each_other_are_forbidden() -> None:
    problem = _entangled()
    assert quotient_cycle(problem, (4, 5)) in ((4, 5), (5, 4))
    assert price(problem, (4, 5)) is None
    found = search(problem)
    assert found.circles == 1, "the cheapest cover is a circle, so that a row against it was needed"
    assert found.price.cost == 5.0
    without = replace(problem, edges=())
    assert search(without).price.cost == 2.0, "without the dependences both kernels are taken"


def test_a_row_against_a_circle_speaks_of_all_precisions() -> None:
    problem = _entangled()
    cheaper = tuple(replace(problem.choices[i], cost=1.0 + k / 10) for i in (4, 5) for k in (1, 2, 3))
    found = search(replace(problem, choices=(*problem.choices, *cheaper)))
    assert (found.circles, found.price.cost) == (1, 5.0)


def _chain(count: int = 3, memory: float | None = None) -> Problem:
    """Return a chain of nodes that run in float or int8, alone or (the first two) as one."""
    choices = []
    for v in range(count):
        for kind, cost in ((FLOAT, 2.0), (INT8, 1.0)):
            choices.append(
                Choice((v,), ((f"t{v}", kind),), ((f"t{v + 1}", kind),), cost, (float(kind is INT8),))
            )
    choices.append(Choice((0, 1), (("t0", FLOAT),), (("t2", FLOAT),), 4.2, (0.0,)))
    return Problem(
        size=count,
        choices=tuple(choices),
        steps=tuple(
            Step(f"t{v}", a, b, 0.3) for v in range(count + 1) for a, b in ((FLOAT, INT8), (INT8, FLOAT))
        ),
        edges=tuple((v, v + 1) for v in range(count - 1)),
        producers={f"t{v + 1}": v for v in range(count)},
        readers={f"t{v}": (v,) for v in range(count)},
        given={"t0": FLOAT},
        wanted={f"t{count}": FLOAT},
        limits=(float(count),),
        memory_limit=memory,
        sizes={(f"t{v}", kind): n for v in range(count + 1) for kind, n in ((FLOAT, 8.0), (INT8, 2.0))},
    )


def test_one_conversion_serves_all_readers() -> None:
    reads = (("t", INT8),)
    choices = (
        Choice((0,), (), (("t", FLOAT),), 1.0),
        Choice((1,), reads, (("a", FLOAT),), 1.0),
        Choice((2,), reads, (("b", FLOAT),), 1.0),
    )
    problem = Problem(
        size=3,
        choices=choices,
        steps=(Step("t", FLOAT, INT8, 0.5),),
        producers={"t": 0, "a": 1, "b": 2},
        readers={"t": (1, 2)},
        wanted={"a": FLOAT, "b": FLOAT},
    )
    assert search(problem).price.cost == 3.5


def test_a_memory_limit_changes_the_plan() -> None:
    free = search(_chain())
    assert (free.price.cost, free.price.steps) == (pytest.approx(3.6), (0, 7)), "int8 from end to end"
    held = search(replace(_chain(memory=100.0), limits=(0.0,)))
    assert held.price.cost == pytest.approx(6.0)
    assert held.price.peak == 16.0
    tight = search(replace(_chain(memory=14.0), limits=(3.0,)))
    assert tight.price.peak <= 14.0
    with pytest.raises(UnsupportedError):
        search(replace(_chain(memory=9.0), limits=(0.0,)))


def test_what_a_fused_group_keeps_inside_takes_no_memory() -> None:
    problem = _chain()
    alone = replace(problem, memory_limit=17.0, limits=(0.0,))
    wide = {**alone.sizes, ("t1", FLOAT): 100.0}
    assert search(replace(alone, sizes=wide)).price.cost == pytest.approx(6.2), "the dearer group has no t1"


def test_a_shared_scale_is_taken_where_it_pays_and_the_budget_allows() -> None:
    problem = _chain(2)
    joined = Choice((0, 1), (("t0", INT8),), (("t2", INT8),), 0.5, (0.0,), shares=("s",))
    problem = replace(problem, choices=(*problem.choices, joined), scales={"s": (1.5,)}, limits=(1.6,))
    found = search(problem)
    assert (found.price.scales, found.price.losses) == (("s",), (1.5,))
    dear = search(replace(problem, scales={"s": (1.7,)}))
    assert dear.price.scales == ()
    assert dear.price.cost > found.price.cost


def test_the_surcharge_comes_first_and_cost_second() -> None:
    problem = replace(_chain(), limits=(2.0,))
    choices = tuple(
        replace(
            c,
            cost=c.cost + (9.0 if c.losses[0] else 0.0),
            surcharge=0.0 if c.losses[0] else float(len(c.nodes)),
        )
        for c in problem.choices
    )
    problem = replace(problem, choices=choices)
    best = best_plan(problem)
    found = search(problem)
    assert best is not None
    assert (found.price.surcharge, found.price.cost) == (1.0, pytest.approx(best.cost))


def test_limits_can_be_taken_away_one_by_one() -> None:
    problem = random_problem(4, limits=2, memory=True)
    assert unlimited(problem).limits == ()
    kept = unlimited(problem, [1])
    assert kept.limits == problem.limits[1:]
    assert kept.memory_limit is None
    assert search(kept).price.cost >= search(unlimited(problem)).price.cost - 1e-9


@pytest.mark.parametrize(
    "change",
    [
        {"size": 4},
        {"steps": ()},
        {"given": {"t0": INT8}, "steps": ()},
    ],
)
def test_what_is_no_plan_has_no_price(change: dict[str, object]) -> None:
    problem = _chain()
    assert price(problem, (1, 3, 5)) is not None
    assert price(replace(problem, **change), (1, 3, 5)) is None  # type: ignore[arg-type]
    assert price(problem, (0, 1, 3, 5)) is None, "a node twice"


def test_an_answer_that_breaks_the_problem_is_never_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = search_module.run

    def careless(program: Program, **options: object) -> object:
        answer = honest(program, **options)  # type: ignore[arg-type]
        values = np.zeros_like(answer.values)
        values[[1, 3, 5]] = 1.0
        return replace(answer, values=values)

    monkeypatch.setattr(search_module, "run", careless)
    with pytest.raises(InternalError, match="breaks a limit"):
        search(replace(_chain(), limits=(2.0,)))


def test_the_solver_runs_on_one_thread_and_refuses_nonsense() -> None:
    program = Program(np.array([1.0, 2.0]), np.array([True, True]))
    program.add({0: 1.0, 1: 1.0}, 1.0, 1.0)
    assert list(run(program, whole=True).values) == [1.0, 0.0]
    assert run(program, whole=True, allowed=np.array([False, True])).objective == 2.0
    program.add({0: 1.0, 1: 1.0}, 2.0, 2.0)
    assert run(program, whole=True).status == "infeasible"


def test_a_node_limit_gives_a_plan_with_its_gap() -> None:
    program = Program(np.array([-5.0, -4.0, -3.0, -7.0]), np.ones(4, dtype=bool))
    program.add({0: 0.7, 1: 0.5, 2: 0.4, 3: 0.9}, -np.inf, 1.3)
    stopped = run(program, whole=True, start=np.array([0.0, 0.0, 0.0, 1.0]), node_limit=0)
    assert stopped.status in ("optimal", "feasible")
    assert stopped.bound <= stopped.objective <= -7.0


def test_the_same_problem_gives_the_same_plan() -> None:
    problems = [random_problem(seed, size=6) for seed in (8, 8)]
    first, second = (search(replace(p, limits=(9.0, 9.0))) for p in problems)
    assert first == second
    assert Format("int8", place="other") in FORMATS
