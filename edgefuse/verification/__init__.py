"""Verification: metrics, the comparison with the float model, and the artifact's self-test vectors."""

from edgefuse.verification.compare import Comparison, compare, compare_all
from edgefuse.verification.end_to_end import VerificationReport, judge, verify_end_to_end
from edgefuse.verification.fidelity import OutputError, channel_groups
from edgefuse.verification.metric import Call, Metric
from edgefuse.verification.metrics import METRICS, default_metric, make_metric
from edgefuse.verification.vectors import Vector, make_self_test

__all__ = [
    "METRICS",
    "Call",
    "Comparison",
    "Metric",
    "OutputError",
    "Vector",
    "VerificationReport",
    "channel_groups",
    "compare",
    "compare_all",
    "default_metric",
    "judge",
    "make_metric",
    "make_self_test",
    "verify_end_to_end",
]
