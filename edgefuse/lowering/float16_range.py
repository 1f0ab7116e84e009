"""Which nodes a float16 cannot carry, whatever the data: squares, sums, exponentials, large constants.

float16 ends at 65504 and its smallest number is 6e-8 (IEEE 754 binary16). A node found here stays in float32
and the user reads why; what depends on the data (a large activation) is measured, not guessed here.
"""

from __future__ import annotations

import numpy as np

from edgefuse.graph import Node, Value, attribute, constant, input_value, is_float, scalar
from edgefuse.lowering.split_reductions import LONG, summed_elements

__all__ = ["float16_fault"]

_LARGEST = 65504.0
_SMALLEST = 2.0**-24

_SQUARING = frozenset({"ReduceSumSquare", "ReduceL2", "ReduceProd", "LpNormalization"})
_ADDING = frozenset({"ReduceSum", "ReduceL1", "ReduceLogSum", "ReduceLogSumExp", "CumSum"})
_NORMALIZING = frozenset({"LayerNormalization", "RMSNormalization", "MeanVarianceNormalization"})
_COORDINATES = frozenset({"GridSample", "RoiAlign", "NonMaxSuppression", "Range"})

# Operators that hand large numbers on; others bound them (Sqrt, Tanh, Softmax) or mix them (Conv, MatMul).
_CARRYING = frozenset(
    {
        "Abs",
        "Add",
        "Clip",
        "Concat",
        "Div",
        "Expand",
        "Flatten",
        "Identity",
        "Max",
        "Mean",
        "Min",
        "Mul",
        "Neg",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Sum",
        "Transpose",
        "Unsqueeze",
        "Where",
    }
)


def float16_fault(node: Node) -> str:
    """Return why the node must not run in float16, as the user reads it, or "".

    1. integers: there is nothing to narrow.  2. a square, a product or a sum over a tensor, an exponential of
    something that is not known to be <= 0.  3. a reader of such a result.  4. a scalar constant that float16
    cannot hold, or any constant beyond its end.  5. normalizations and coordinates.  6. a mean over so many
    elements that float16 stops adding (see split_reductions).
    """
    if not any(is_float(value) for value in node.outputs):
        return "it works on integers, which have no float16 form"
    own = _own_fault(node)
    if own:
        return own
    memo: dict[Value, bool] = {}
    for value in node.inputs:
        if value is None:
            continue
        fault = _constant_fault(value)
        if fault:
            return fault
        if _large(value, memo):
            return (
                f"it reads {value.name!r}, which carries squares or sums that pass the end of float16 (65504)"
            )
    return ""


def _own_fault(node: Node) -> str:
    if _squares(node):
        return "it squares its input: above 255 the square passes the end of float16 (65504)"
    if node.op_type in _ADDING:
        return "it adds up a whole axis, and the sum can pass the end of float16 (65504)"
    count = summed_elements(node)
    if count >= LONG:
        return f"it adds up {count} elements: a sum in float16 stops growing at 2048 of equal size"
    if node.op_type in _NORMALIZING:
        return "it squares its input inside: above 255 the square passes the end of float16 (65504)"
    if node.op_type in _COORDINATES:
        return "it works on coordinates, which float16 rounds to 1/16 from 64 on"
    if node.op_type == "Exp" and not _not_positive(node.inputs[0]):
        return "the exponential of a number above 11.09 passes the end of float16 (65504)"
    return ""


def _squares(node: Node) -> bool:
    if node.op_type in _SQUARING:
        return True
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type in ("LpPool", "GlobalLpPool"):
        return int(attribute(node, "p", 2)) > 1
    if node.op_type == "Pow":
        exponent = scalar(input_value(node, 1))
        return exponent is None or exponent > 1.0
    return False


def _not_positive(value: Value | None) -> bool:
    """Return whether the value is <= 0 by how it is made: -|x|, min(x, 0), x - max(x)."""
    producer = value.producer() if value is not None else None
    if producer is None:
        return False
    first = producer.inputs[0].producer() if producer.inputs and producer.inputs[0] is not None else None
    if producer.op_type == "Neg":
        return first is not None and first.op_type in ("Abs", "Relu", "Softplus", "Sigmoid")
    if producer.op_type == "Min":
        return any(found is not None and found <= 0.0 for found in map(scalar, producer.inputs))
    if producer.op_type == "Sub":
        second = producer.inputs[1].producer() if producer.inputs[1] is not None else None
        return second is not None and second.op_type == "ReduceMax" and second.inputs[0] is producer.inputs[0]
    return False


def _constant_fault(value: Value) -> str:
    array = constant(value)
    if array is None or array.dtype.kind != "f" or not array.size:
        return ""
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    if finite.size and float(finite.max()) > _LARGEST:
        return (
            f"its constant {value.name!r} reaches {float(finite.max()):.3g}, past the end of float16 (65504)"
        )
    if array.size == 1 and finite.size and 0.0 < float(finite.max()) < _SMALLEST:
        return f"its constant {value.name!r} ({float(finite.max()):.3g}) is 0 in float16"
    return ""


def _large(value: Value, memo: dict[Value, bool]) -> bool:
    """Return whether the value is, or is carried on from, a square or a sum over an axis."""
    stack = [value]
    while stack:
        current = stack.pop()
        if current in memo:
            continue
        memo[current] = True
        producer = current.producer()
        if producer is None:
            continue
        if _squares(producer) or producer.op_type in ("ReduceSum", "CumSum"):
            return True
        if producer.op_type in _CARRYING:
            stack.extend(v for v in producer.inputs if v is not None)
    return False
