"""Quantize-and-dequantize written in plain ONNX operators, for sweeps and for devices that are not here.

QuantizeLinear would fix the integer range to its type's; here the clamp is written out, so that any range
(7 bits, [-127, 127]) is exact. Run with an optimiser that is off: a fused int8 kernel is another arithmetic.
"""

from __future__ import annotations

import numpy as np

from edgefuse.graph import (
    DataType,
    Model,
    Node,
    TensorType,
    Value,
    add_constant,
    add_node,
    clone_model,
    constant,
)
from edgefuse.lowering import apply_biases
from edgefuse.plans import Plan
from edgefuse.quantized import Quantized, QuantizedActivation

__all__ = ["cast", "fake_quantize", "simulated_graph"]


def fake_quantize(before: Node, value: Value, parameters: QuantizedActivation, stem: str) -> Value:
    """Return a value that holds `value` rounded to the grid of `parameters`; its nodes stand before `before`.

    clamp(round_half_even(x / scale), low - zero point, high - zero point) * scale, in float32; the result has
    the dtype of `value`.
    """
    graph = before.graph
    assert graph is not None
    narrow = value.dtype is not None and value.dtype != DataType.FLOAT
    wide = cast(before, value, DataType.FLOAT, stem) if narrow else value

    def const(number: float, what: str) -> Value:
        return add_constant(graph, np.array(number, np.float32), f"{stem}_{what}")

    def step(op: str, *inputs: Value) -> Value:
        return add_node(before, op, inputs, like=wide, stem=f"{stem}_{op.lower()}").outputs[0]

    scale = const(parameters.scale, "scale")
    low = const(parameters.low - parameters.zero_point, "low")
    high = const(parameters.high - parameters.zero_point, "high")
    rounded = step("Mul", step("Clip", step("Round", step("Div", wide, scale)), low, high), scale)
    return cast(before, rounded, value.dtype, stem) if narrow and value.dtype is not None else rounded


def cast(before: Node, value: Value, dtype: DataType, stem: str) -> Value:
    """Return `value` in another dtype; the Cast stands before `before`."""
    made = add_node(before, "Cast", [value], {"to": int(dtype)}, like=value, stem=f"{stem}_cast").outputs[0]
    made.type = TensorType(dtype)
    return made


def simulated_graph(model: Model, plan: Plan, quantized: Quantized) -> Model:
    """Return a float graph that computes what the plan's int8 groups compute, without any runtime's kernels.

    Weights are the numbers that their integers stand for; each activation that an int8 group reads is rounded
    to its grid. Sums are float32: the int32 accumulators of a device are exact where these round.
    """
    copy = clone_model(model)
    nodes = {node.name: node for node in copy.graph}
    order = {node.name: i for i, node in enumerate(copy.graph)}
    shared: dict[int, Value] = {}
    int8 = [group for group in plan.groups if group.precision == "int8"]
    for group in sorted(int8, key=lambda g: order[g.nodes[0]]):
        inside = {id(v) for name in group.nodes for v in nodes[name].outputs}
        for name in group.nodes:
            _round_inputs(nodes[name], inside, quantized, shared)
    apply_biases(copy, quantized.biases)
    return copy


def _round_inputs(node: Node, inside: set[int], quantized: Quantized, shared: dict[int, Value]) -> None:
    graph = node.graph
    assert graph is not None
    for index, value in enumerate(node.inputs):
        if value is None or id(value) in inside:
            continue
        weight = quantized.weights.get((node.name or "", index))
        if weight is not None:
            held, real = constant(value), weight.dequantized()
            real = real if held is None else real.astype(held.dtype)
            made = add_constant(graph, real, f"{value.name}_rounded")
            node.replace_input_with(index, made)
            continue
        parameters = quantized.activations.get(value.name or "")
        if parameters is None or value.const_value is not None:
            continue
        if id(value) not in shared:
            shared[id(value)] = fake_quantize(_earliest(value, node), value, parameters, f"{value.name}_grid")
        node.replace_input_with(index, shared[id(value)])


def _earliest(value: Value, reader: Node) -> Node:
    """Return the first node that reads `value`, so that every later reader may share the grid."""
    readers = {id(use.node) for use in value.uses()}
    return next((node for node in reader.graph or () if id(node) in readers), reader)
