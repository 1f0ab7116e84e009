"""The budget search ends at the largest plan that holds, builds few, and says what did not hold."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from edgefuse.compose.budget import ROUNDS, BudgetSearch
from edgefuse.compose.decisions import within

Losses = dict[str, float]


class _Build:
    """A build in which a plan takes nodes in order of loss, and loses what `drop` makes of their sum."""

    def __init__(self, losses: Losses, drop: Callable[[float], float]) -> None:
        self.losses, self.drop = losses, drop
        self.budgets: list[float | None] = []
        self.built: list[float] = []

    def plan_at(self, budget: float | None) -> tuple[Any, Any]:
        self.budgets.append(budget)
        taken, used = [], 0.0
        for name, loss in sorted(self.losses.items(), key=lambda row: row[1]):
            if budget is None or used + loss <= budget:
                taken.append(name)
                used += loss
        groups = [
            SimpleNamespace(nodes=(name,), precision="int8", output=SimpleNamespace(dtype="int8"))
            for name in taken
        ]
        return SimpleNamespace(groups=groups, budget_used=used, count=lambda _: len(taken)), taken

    def build(self, plan: Any, quantized: Any) -> Any:
        self.built.append(plan.budget_used)
        accuracy = SimpleNamespace(drop=self.drop(plan.budget_used))
        return SimpleNamespace(plan=plan, quantized=quantized, accuracy=accuracy)

    def search(self, max_drop: float, metric: str = "snr") -> tuple[Any, list[str]]:
        search = BudgetSearch(self.plan_at, self.build, max_drop, metric, lambda done, of: None)
        return search.run(), search.notes


EVEN = {f"n{i}": 0.01 * 1.1**i for i in range(40)}


def test_a_plan_that_holds_at_once_is_the_only_one_built() -> None:
    work = _Build(EVEN, lambda used: 0.0)
    found, notes = work.search(0.01)
    assert len(found.quantized) == 40
    assert work.budgets == [None]
    assert notes == []


@pytest.mark.parametrize("max_drop", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("metric", ["snr", "cosine"])
def test_what_is_left_of_the_budget_is_spent(max_drop: float, metric: str) -> None:
    work = _Build(EVEN, lambda used: (used if metric == "cosine" else used**0.5) * 0.7)
    found, notes = work.search(max_drop, metric)
    best = max_drop / 0.7 if metric == "cosine" else (max_drop / 0.7) ** 2
    if best < min(EVEN.values()):
        assert found is None
        assert "no plan was within" in notes[-1] or "nothing in int8" in notes[-1]
        return
    assert within(found.accuracy.drop, max_drop)
    largest = _Build(EVEN, work.drop).plan_at(best)[0].budget_used
    assert found.plan.budget_used >= largest / 1.6, "within a step of the largest that holds"
    assert len(work.built) <= ROUNDS
    assert len(notes) == sum(not within(work.drop(used), max_drop) for used in work.built)


def test_a_metric_that_falls_off_a_cliff_is_followed_down() -> None:
    work = _Build(EVEN, lambda used: 0.5 if used > 0.05 else 0.0)
    found, _ = work.search(0.01)
    assert 0.0 < found.plan.budget_used <= 0.05


def test_no_plan_is_an_answer() -> None:
    found, notes = _Build(EVEN, lambda used: float("nan")).search(0.01)
    assert found is None
    assert "no int8" in notes[-1]
    found, notes = _Build({}, lambda used: 0.0).search(0.01)
    assert found is None
    assert "nothing in int8" in notes[-1]


def test_a_drop_of_one_point_is_within_one_point() -> None:
    work = _Build(EVEN, lambda used: 1 - 0.99)
    found, _ = work.search(0.01)
    assert len(found.quantized) == 40
