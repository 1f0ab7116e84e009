"""Candidates and tables in, a plan out. This room knows neither quant/ nor targets/."""

from edgefuse.planner.baselines import BASELINES, baseline_plans
from edgefuse.planner.columns import Column, PlanRequest, SharedScale, make_columns
from edgefuse.planner.explain import MEMORY, Alternative, Explanation, Limit, explain_choice
from edgefuse.planner.plan import make_plan

__all__ = [
    "BASELINES",
    "MEMORY",
    "Alternative",
    "Column",
    "Explanation",
    "Limit",
    "PlanRequest",
    "SharedScale",
    "baseline_plans",
    "explain_choice",
    "make_columns",
    "make_plan",
]
