"""QLinearConv and QLinearMatMul as the Q/DQ pairs around a float operator that they stand for."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    input_value,
    replace_node,
)

__all__ = ["open_integer_operators"]

_FLOAT_FORM = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul"}


def open_integer_operators(model: Model) -> int:
    """Write each as DequantizeLinear, the float operator and QuantizeLinear, in place.

    Returns how many. Exact in real arithmetic: each rounds once, where the QuantizeLinear stands. Leaves
    nodes whose weight, scales or bias are not constant, and those inside bodies.
    """
    found = [node for node in model.graph if node.op_type in _FLOAT_FORM and node.domain in ("", "ai.onnx")]
    return sum(_open(node) for node in found)


def _open(node: Node) -> bool:
    graph, parts = node.graph, [input_value(node, index) for index in range(9)]
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = parts
    needed = (x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero)
    if graph is None or any(constant(value) is None for value in needed):
        return False
    if bias is not None and constant(bias) is None:
        return False
    name = node.name or node.op_type
    inputs = [_dequantized(node, x, x_scale, x_zero, f"{name}_x")]
    inputs.append(_dequantized(node, w, w_scale, w_zero, f"{name}_w"))
    if bias is not None:
        left, right, steps = constant(x_scale), constant(w_scale), constant(bias)
        assert left is not None
        assert right is not None
        assert steps is not None
        real = steps.astype(np.float64) * (left.astype(np.float64) * right.astype(np.float64)).reshape(-1)
        inputs.append(add_constant(graph, real.astype(np.float32), f"{name}_bias"))
    kept = {key: attribute(node, key) for key in node.attributes}
    product = add_node(node, _FLOAT_FORM[node.op_type], inputs, kept, stem=name, sources=[node])
    product.outputs[0].type = inputs[0].type
    product.outputs[0].shape = node.outputs[0].shape
    out = add_node(
        node,
        "QuantizeLinear",
        [product.outputs[0], y_scale, y_zero],
        like=node.outputs[0],
        stem=f"{name}_y",
        sources=[node],
    )
    replace_node(node, out.outputs)
    return True


def _dequantized(
    node: Node, value: Value | None, scale: Value | None, zero: Value | None, stem: str
) -> Value:
    array = constant(scale)
    assert array is not None
    attributes = {}
    if array.size > 1:  # one a filter of a convolution, one a column of a matrix
        rank = len(value.shape) if value is not None and value.shape is not None else 2
        attributes["axis"] = 0 if node.op_type == "QLinearConv" else rank - 1
    made = add_node(
        node, "DequantizeLinear", [value, scale, zero], attributes, stem=f"{stem}_dq", sources=[node]
    ).outputs[0]
    made.type = scale.type if scale is not None else None
    made.shape = value.shape if value is not None else None
    return made
