"""Candidates and tables in, a plan out. This room knows neither quant/ nor targets/."""

from edgefuse.planner.columns import Column, PlanRequest, make_columns
from edgefuse.planner.plan import make_plan

__all__ = ["Column", "PlanRequest", "make_columns", "make_plan"]
