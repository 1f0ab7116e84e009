"""Verification: metrics, the comparison with the float model, and the artifact's self-test vectors."""

from edgefuse.verification.bisect import SPOILED_DB, Bisection, bisect_plan, plan_prefix
from edgefuse.verification.compare import Comparison, compare, compare_all
from edgefuse.verification.cut import Cut, boundary_tensors, cut_between_groups
from edgefuse.verification.end_to_end import VerificationReport, judge, verify_end_to_end
from edgefuse.verification.fidelity import OutputError, OutputErrors, channel_groups
from edgefuse.verification.metric import Call, Metric
from edgefuse.verification.metrics import METRICS, default_metric, make_metric
from edgefuse.verification.regions import (
    Region,
    RegionLimits,
    RegionReport,
    judge_regions,
    measure_regions,
)
from edgefuse.verification.stress import (
    InputRange,
    Stress,
    StressReport,
    judge_stress,
    output_scales,
    run_stress,
    stress_inputs,
)
from edgefuse.verification.vectors import Vector, make_self_test

__all__ = [
    "METRICS",
    "SPOILED_DB",
    "Bisection",
    "Call",
    "Comparison",
    "Cut",
    "InputRange",
    "Metric",
    "OutputError",
    "OutputErrors",
    "Region",
    "RegionLimits",
    "RegionReport",
    "Stress",
    "StressReport",
    "Vector",
    "VerificationReport",
    "bisect_plan",
    "boundary_tensors",
    "channel_groups",
    "compare",
    "compare_all",
    "cut_between_groups",
    "default_metric",
    "judge",
    "judge_regions",
    "judge_stress",
    "make_metric",
    "make_self_test",
    "measure_regions",
    "output_scales",
    "plan_prefix",
    "run_stress",
    "stress_inputs",
    "verify_end_to_end",
]
