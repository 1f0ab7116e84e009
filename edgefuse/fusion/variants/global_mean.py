"""A pool over the whole map as a mean."""

from __future__ import annotations

import numpy as np

from edgefuse.fusion.match import Match
from edgefuse.graph import Model, Node, add_constant, add_node, dims, replace_node

__all__ = ["global_mean"]


def global_mean(model: Model, nodes: list[Node], match: Match) -> bool:
    """Write each GlobalAveragePool of the group as ReduceMean over the spatial axes, in place.

    For runtimes that have an int8 mean and no int8 average pool. False where there is none, or where the rank
    is not known. Exact.
    """
    found = [n for n in nodes if n.op_type == "GlobalAveragePool" and dims(n.inputs[0]) is not None]
    for node in found:
        rank = len(dims(node.inputs[0]) or ())
        axes = add_constant(model.graph, np.arange(2, rank, dtype=np.int64), "spatial")
        mean = add_node(node, "ReduceMean", [node.inputs[0], axes], {"keepdims": 1}, like=node.outputs[0])
        replace_node(node, [mean.outputs[0]])
    return bool(found)
