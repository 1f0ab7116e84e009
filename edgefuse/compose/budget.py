"""The largest int8 plan within --max-drop.

Predicted losses rank plans and do not say what a metric loses, so each plan is built and measured: the budget
of losses shrinks until a plan holds, then grows again halfway back to the smallest that did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgefuse.compose.decisions import within
from edgefuse.compose.payloads import Built
from edgefuse.plans import Plan
from edgefuse.quantized import Quantized

__all__ = ["ROUNDS", "BudgetSearch"]

# How many plans are built and measured at most, and how many of these after one has held.
ROUNDS = 8
_ROUNDS_BACK = 3
# Between a budget that holds and one this much larger that does not, there is hardly a plan.
_CLOSE = 1.2
# How a drop grows with the loss, as a power: noise / signal and, at first, flipped answers with its root; a
# cosine with the loss itself. Two plans that were measured say it better.
_POWER, _POWER_OF_COSINE = 0.5, 1.0
_POWERS = (0.2, 1.5)
_LEAST_STEP, _LARGEST_STEP = 0.05, 0.7


@dataclass(slots=True)
class BudgetSearch:
    """One search.

    plan_at: budget of losses (None = no limit) -> plan and integers.  build: payload of a plan, with its
    accuracy.  max_drop: of `metric`.  notes: what the user should know of plans that did not hold.
    """

    plan_at: Callable[[float | None], tuple[Plan, Quantized]]
    build: Callable[[Plan, Quantized], Built]
    max_drop: float
    metric: str
    progress: Callable[[int, int], None]
    notes: list[str] = field(default_factory=list)

    def run(self) -> Built | None:
        """Return the payload of the largest budget found that is within the drop, or None."""
        held: Built | None = None
        held_plan: tuple[object, ...] = ()
        holds, fails, back = 0.0, math.inf, 0
        failed: list[tuple[float, float]] = []
        budget: float | None = None
        for attempt in range(ROUNDS):
            plan, quantized = self.plan_at(budget)
            if not quantized:
                break
            back += held is not None
            if _shape(plan) == held_plan:
                holds = budget or holds
            else:
                built = self.build(plan, quantized)
                self.progress(attempt + 1, ROUNDS)
                if within(built.accuracy.drop, self.max_drop):
                    held, held_plan, holds = built, _shape(plan), budget or plan.budget_used
                else:
                    fails = min(fails, plan.budget_used)
                    failed.append((plan.budget_used, built.accuracy.drop))
                    self._say(built)
            if held is None and fails <= 0.0:
                break
            if held is not None and (fails < holds * _CLOSE or fails == math.inf or back >= _ROUNDS_BACK):
                break
            budget = fails * self._step(failed) if held is None else math.sqrt(holds * fails)
        if held is None and not self.notes:
            self.notes.append("no int8: nothing in int8 is both faster (estimate) and within the budget")
        elif held is None:
            self.notes.append(f"no int8: no plan was within --max-drop after {len(self.notes)} rounds")
        return held

    def _step(self, failed: Sequence[tuple[float, float]]) -> float:
        """Return what the budget is multiplied by; failed: budget and drop of the plans that did not hold."""
        used, drop = failed[-1]
        if not (math.isfinite(drop) and drop > 0 and self.max_drop > 0):
            return _LEAST_STEP
        power = _POWER_OF_COSINE if self.metric == "cosine" else _POWER
        if len(failed) > 1:
            used_before, before = failed[-2]
            slope = math.log(before / drop) / math.log(used_before / used) if math.isfinite(before) else power
            power = min(max(slope, _POWERS[0]), _POWERS[1])
        return float(min(max((self.max_drop / drop) ** (1 / power), _LEAST_STEP), _LARGEST_STEP))

    def _say(self, built: Built) -> None:
        self.notes.append(
            f"an int8 plan with {built.plan.count('int8')} int8 groups lost {built.accuracy.drop:.4g} "
            f"of {self.metric} (allowed {self.max_drop:g}); planned again with less"
        )


def _shape(plan: Plan) -> tuple[object, ...]:
    """Return what makes two plans compute the same."""
    return tuple((group.nodes, group.precision, group.output.dtype) for group in plan.groups)
