"""What a model costs (FLOPs, bytes, parameters), where it stands under a roofline, what memory it needs.

Nothing here changes a model. Symbolic dimensions are bound by the caller (`binding`) or reported as unknown.
"""

from edgefuse.analysis.binding import bound_model
from edgefuse.analysis.constants import foldable_values
from edgefuse.analysis.flops import OpCost, node_cost
from edgefuse.analysis.liveness import Lifetime, Liveness, liveness
from edgefuse.analysis.memory import (
    ALIGNMENT_BYTES,
    MemoryPlan,
    Placed,
    check_plan,
    memory_plan,
    plan_lifetimes,
)
from edgefuse.analysis.roofline import Roofline, roofline
from edgefuse.analysis.summary import NodeCost, OperatorShare, Summary, summarize

__all__ = [
    "ALIGNMENT_BYTES",
    "Lifetime",
    "Liveness",
    "MemoryPlan",
    "NodeCost",
    "OpCost",
    "OperatorShare",
    "Placed",
    "Roofline",
    "Summary",
    "bound_model",
    "check_plan",
    "foldable_values",
    "liveness",
    "memory_plan",
    "node_cost",
    "plan_lifetimes",
    "roofline",
    "summarize",
]
