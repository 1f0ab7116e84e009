"""Which nodes might run as one kernel."""

from edgefuse.fusion.operators import ANCHORS, MOVEMENT, POINTWISE, compute_nodes
from edgefuse.fusion.vertical import vertical_candidates

__all__ = ["ANCHORS", "MOVEMENT", "POINTWISE", "compute_nodes", "vertical_candidates"]
