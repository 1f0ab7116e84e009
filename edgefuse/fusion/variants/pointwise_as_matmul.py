"""A 1x1 convolution as a matrix product."""

from __future__ import annotations

import numpy as np

from edgefuse.fusion.match import Match
from edgefuse.graph import (
    Model,
    Node,
    add_constant,
    add_node,
    attribute,
    constant,
    input_value,
    replace_node,
    static_shape,
)

__all__ = ["pointwise_as_matmul"]


def pointwise_as_matmul(model: Model, nodes: list[Node], match: Match) -> bool:
    """Write each 1x1 convolution of the group as weights [O,C] times the map [N,C,H*W], in place.

    For devices whose matrix kernels beat their convolutions on small maps. Takes one group, strides of one,
    no padding, constant weights, shapes that are numbers; False where no convolution of the group is such.
    Exact.
    """
    found = [node for node in nodes if node.op_type == "Conv" and _is_pointwise(node)]
    for node in found:
        _rewrite(model, node)
    return bool(found)


def _is_pointwise(node: Node) -> bool:
    weight = constant(input_value(node, 1))
    ones = all(v == 1 for name in ("strides", "dilations") for v in attribute(node, name, (1,)))
    plain = (
        ones and not any(attribute(node, "pads", (0,))) and attribute(node, "auto_pad", "NOTSET") == "NOTSET"
    )
    shapes = static_shape(node.inputs[0]) is not None and static_shape(node.outputs[0]) is not None
    return (
        weight is not None
        and set(weight.shape[2:]) == {1}
        and attribute(node, "group", 1) == 1
        and plain
        and shapes
    )


def _rewrite(model: Model, node: Node) -> None:
    source, result = static_shape(node.inputs[0]) or (), static_shape(node.outputs[0]) or ()
    weight, bias = constant(input_value(node, 1)), input_value(node, 2)
    if weight is None:
        return
    graph, name = model.graph, node.name or "pointwise"
    matrix = add_constant(graph, weight.reshape(weight.shape[:2]), f"{name}_matrix")
    flat = add_constant(graph, np.array([source[0], source[1], -1], np.int64), f"{name}_flat")
    back = add_constant(graph, np.array(result, np.int64), f"{name}_shape")
    columns = add_node(node, "Reshape", [node.inputs[0], flat], sources=[node]).outputs[0]
    product = add_node(node, "MatMul", [matrix, columns], sources=[node]).outputs[0]
    if bias is not None:
        shape = add_constant(graph, np.array([-1, 1], np.int64), f"{name}_column")
        column = add_node(node, "Reshape", [bias, shape], sources=[node]).outputs[0]
        product = add_node(node, "Add", [product, column], sources=[node]).outputs[0]
    shaped = add_node(node, "Reshape", [product, back], like=node.outputs[0], sources=[node])
    replace_node(node, [shaped.outputs[0]])
