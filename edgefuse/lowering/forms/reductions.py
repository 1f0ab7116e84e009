"""Reductions with their axes as an attribute, as operator sets before 18 have them (ReduceSum: before 13)."""

from __future__ import annotations

from edgefuse.graph import Node, Value, attribute, constant, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import Step
from edgefuse.lowering.reader import refusal

_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)


def _reduce(node: Node, make: Builder) -> list[Value] | None:
    x, axes_value = make.input(0), input_value(node, 1)
    axes: tuple[int, ...] = ()
    if axes_value is not None:
        found = constant(axes_value)
        if found is None:
            raise refusal(
                node,
                f"axes computed at run time ({axes_value.name}) are not in operator set {make.reader.opset}",
            )
        axes = tuple(int(axis) for axis in found.reshape(-1))
    if not axes and attribute(node, "noop_with_empty_axes", 0):
        # An empty list keeps every axis; what is left of the operator is its elementwise part.
        whole = _elementwise(node, make, x)
        return [make.op("Identity", x, like=x) if whole is None else whole]
    node.attributes.pop("noop_with_empty_axes", None)
    node.resize_inputs(1)
    if axes:
        node.attributes.add(make.ints("axes", axes))
    return None


def _elementwise(node: Node, make: Builder, x: Value) -> Value | None:
    if node.op_type in ("ReduceL1", "ReduceL2"):
        return make.op("Abs", x, like=x)
    if node.op_type == "ReduceSumSquare":
        return make.op("Mul", x, x, like=x)
    if node.op_type == "ReduceLogSum":
        return make.op("Log", x, like=x)
    return None


STEPS = tuple(Step(op_type, 18, _reduce) for op_type in _REDUCTIONS)
