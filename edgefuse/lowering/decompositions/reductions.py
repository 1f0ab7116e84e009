"""Reductions and global pools by sums, means and maxima."""

from __future__ import annotations

from edgefuse.graph import Node, Value, attribute, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.decompositions import Decomposition


def _reduce(node: Node, make: Builder, op_type: str, x: Value, keepdims: int | None = None) -> Value:
    keep = attribute(node, "keepdims", 1) if keepdims is None else keepdims
    return make.op(
        op_type,
        x,
        input_value(node, 1),
        dtype=make.dtype(node.inputs[0]),
        keepdims=keep,
        noop_with_empty_axes=attribute(node, "noop_with_empty_axes", 0),
    )


def _l1(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    return [_reduce(node, make, "ReduceSum", make.op("Abs", x, like=x))]


def _sum_square(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    return [_reduce(node, make, "ReduceSum", make.op("Mul", x, x, like=x))]


def _l2(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    total = _reduce(node, make, "ReduceSum", make.op("Mul", x, x, like=x))
    return [make.op("Sqrt", total, like=node.outputs[0])]


def _log_sum(node: Node, make: Builder) -> list[Value]:
    return [make.op("Log", _reduce(node, make, "ReduceSum", make.input(0)), like=node.outputs[0])]


def _log_sum_exp(node: Node, make: Builder) -> list[Value]:
    """m + log(sum(exp(x - m))) with m the maximum: no overflow."""
    x = make.input(0)
    top = _reduce(node, make, "ReduceMax", x, keepdims=1)
    moved = make.op("Exp", make.op("Sub", x, top, like=x), like=x)
    total = make.op("Log", _reduce(node, make, "ReduceSum", moved), like=node.outputs[0])
    if not attribute(node, "keepdims", 1):
        top = _reduce(node, make, "ReduceMax", x)
    return [make.op("Add", total, top, like=node.outputs[0])]


def _spatial(make: Builder, x: Value) -> Value:
    return make.integers(*range(2, make.rank(x)))


def _global_average_pool(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    return [make.op("ReduceMean", x, _spatial(make, x), like=node.outputs[0], keepdims=1)]


def _global_max_pool(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    return [make.op("ReduceMax", x, _spatial(make, x), like=node.outputs[0], keepdims=1)]


def _global_lp_pool(node: Node, make: Builder) -> list[Value]:
    """(sum |x|^p)^(1/p) over the spatial axes."""
    x, p, out = make.input(0), attribute(node, "p", 2), node.outputs[0]
    size = make.op("Abs", x, like=x)
    if p == 1:
        return [make.op("ReduceSum", size, _spatial(make, x), like=out, keepdims=1)]
    powered = make.op("Mul", x, x, like=x) if p == 2 else make.op("Pow", size, make.number(p), like=x)
    total = make.op("ReduceSum", powered, _spatial(make, x), like=out, keepdims=1)
    if p == 2:
        return [make.op("Sqrt", total, like=out)]
    return [make.op("Pow", total, make.number(1.0 / p), like=out)]


DECOMPOSITIONS = (
    Decomposition("ReduceL1", ("Abs", "ReduceSum"), _l1),
    Decomposition("ReduceL2", ("Mul", "ReduceSum", "Sqrt"), _l2),
    Decomposition("ReduceSumSquare", ("Mul", "ReduceSum"), _sum_square),
    Decomposition("ReduceLogSum", ("ReduceSum", "Log"), _log_sum),
    Decomposition("ReduceLogSumExp", ("ReduceMax", "Sub", "Exp", "ReduceSum", "Log", "Add"), _log_sum_exp),
    Decomposition("GlobalAveragePool", ("ReduceMean",), _global_average_pool),
    Decomposition("GlobalMaxPool", ("ReduceMax",), _global_max_pool),
    Decomposition("GlobalLpPool", ("Abs", "Mul", "Pow", "ReduceSum", "Sqrt"), _global_lp_pool),
)
