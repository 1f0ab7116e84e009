"""Arithmetic, logic and tests of numbers by the most common operators."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import DataType, Node, Value, attribute, is_float
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.decompositions import Decomposition
from edgefuse.lowering.reader import refusal


def _inputs(node: Node) -> list[Value]:
    return [value for value in node.inputs if value is not None]


def _reciprocal(node: Node, make: Builder) -> list[Value]:
    (x,) = _inputs(node)
    return [make.op("Div", make.number(1.0), x, like=x)]


def _remainder(make: Builder, a: Value, b: Value, like: Value) -> Value:
    """a - trunc(a / b) * b: ONNX divides integers towards zero."""
    quotient = make.op("Div", a, b, like=like)
    return make.op("Sub", a, make.op("Mul", quotient, b, like=like), like=like)


def _mod(node: Node, make: Builder) -> list[Value]:
    """Integers: the remainder with the sign of b (fmod=0) or of a (fmod=1).

    Floats: a - trunc(a / b) b, or with floor for fmod=0; the quotient rounds, so that the result is off by up
    to |a| 2^-24.
    """
    a, b = _inputs(node)
    out = node.outputs[0]
    if is_float(a):
        quotient = make.op("Div", a, b, like=out)
        if attribute(node, "fmod", 0):
            size = make.op("Floor", make.op("Abs", quotient, like=out), like=out)
            whole = make.op("Mul", size, make.op("Sign", quotient, like=out), like=out)
        else:
            whole = make.op("Floor", quotient, like=out)
        whole = make.op("Mul", whole, b, like=out)
        return [make.op("Sub", a, whole, like=out)]
    if make.dtype(a).name.startswith("U"):
        return [_remainder(make, a, b, out)]
    rest = _remainder(make, a, b, out)
    if attribute(node, "fmod", 0) == 0:  # once more around b moves it to b's side of zero
        rest = _remainder(make, make.op("Add", rest, b, like=out), b, out)
    return [rest]


def _xor(node: Node, make: Builder) -> list[Value]:
    a, b = _inputs(node)
    out = node.outputs[0]
    both = make.op("Not", make.op("And", a, b, like=out), like=out)
    return [make.op("And", make.op("Or", a, b, like=out), both, like=out)]


def _is_inf(node: Node, make: Builder) -> list[Value]:
    """Beyond the largest finite number, on the sides asked for."""
    (x,) = _inputs(node)
    out = node.outputs[0]
    largest = float(np.finfo(np.float32).max) if make.dtype(x).bitwidth > 16 else 65504.0
    if make.dtype(x) == DataType.BFLOAT16:
        raise refusal(node, "its input is bfloat16")
    positive = bool(attribute(node, "detect_positive", 1))
    negative = bool(attribute(node, "detect_negative", 1))
    if positive and negative:
        return [make.op("Greater", make.op("Abs", x, like=x), make.number(largest), like=out)]
    if positive:
        return [make.op("Greater", x, make.number(largest), like=out)]
    if negative:
        return [make.op("Less", x, make.number(-largest), like=out)]
    never = make.op("Greater", make.op("Abs", x, like=x), make.number(largest), like=out)
    return [make.op("And", never, make.op("Not", never, like=out), like=out)]


def _is_nan(node: Node, make: Builder) -> list[Value]:
    (x,) = _inputs(node)
    return [make.op("Not", make.op("Equal", x, x, like=node.outputs[0]), like=node.outputs[0])]


def _cast_like(node: Node, make: Builder) -> list[Value]:
    x, model = _inputs(node)
    return [make.op("Cast", x, like=node.outputs[0], to=int(make.dtype(model)))]


def _sum(node: Node, make: Builder) -> list[Value]:
    values = _inputs(node)
    if len(values) == 1:
        return [make.op("Identity", values[0], like=node.outputs[0])]
    return [make.chain("Add", values, like=node.outputs[0])]


def _mean(node: Node, make: Builder) -> list[Value]:
    values = _inputs(node)
    total = make.chain("Add", values, like=node.outputs[0])
    return [make.op("Mul", total, make.number(1.0 / len(values)), like=node.outputs[0])]


def _or_equal(node: Node, make: Builder) -> list[Value]:
    a, b = _inputs(node)
    out = node.outputs[0]
    strict = make.op(node.op_type.removesuffix("OrEqual"), a, b, like=out)
    return [make.op("Or", strict, make.op("Equal", a, b, like=out), like=out)]


def _equal_bool(node: Node, make: Builder) -> list[Value]:
    a, b = _inputs(node)
    out = node.outputs[0]
    if make.dtype(a) != DataType.BOOL:
        raise refusal(node, f"it compares {make.dtype(a).name}")
    both = make.op("And", a, b, like=out)
    neither = make.op("Not", make.op("Or", a, b, like=out), like=out)
    return [make.op("Or", both, neither, like=out)]


def _sign(node: Node, make: Builder) -> list[Value]:
    (x,) = _inputs(node)
    positive = make.cast(make.op("Greater", x, make.number(0), dtype=DataType.BOOL), make.dtype(x))
    negative = make.cast(make.op("Less", x, make.number(0), dtype=DataType.BOOL), make.dtype(x))
    return [make.op("Sub", positive, negative, like=x)]


DECOMPOSITIONS = (
    Decomposition("Reciprocal", ("Div",), _reciprocal),
    Decomposition("Mod", ("Div", "Mul", "Sub", "Add", "Floor", "Abs", "Sign"), _mod),
    Decomposition("Xor", ("And", "Or", "Not"), _xor),
    Decomposition("IsInf", ("Abs", "Greater", "Less", "And", "Not"), _is_inf),
    Decomposition("IsNaN", ("Equal", "Not"), _is_nan),
    Decomposition("CastLike", ("Cast",), _cast_like),
    Decomposition("Sum", ("Add",), _sum),
    Decomposition("Mean", ("Add", "Mul"), _mean),
    Decomposition("GreaterOrEqual", ("Greater", "Equal", "Or"), _or_equal),
    Decomposition("LessOrEqual", ("Less", "Equal", "Or"), _or_equal),
    Decomposition("Equal", ("And", "Or", "Not"), _equal_bool),
    Decomposition("Sign", ("Greater", "Less", "Cast", "Sub"), _sign),
)
