"""Activations by arithmetic, Sigmoid, Tanh, Erf and comparisons."""

from __future__ import annotations

import math

from edgefuse.graph import DataType, Node, Value, attribute, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.decompositions import Decomposition


def _hardswish_by_hardsigmoid(node: Node, make: Builder) -> list[Value]:
    """x * max(0, min(1, x/6 + 1/2)), as ONNX HardSwish-14 defines it."""
    x = make.input(0)
    gate = make.op("HardSigmoid", x, like=x, alpha=1.0 / 6.0, beta=0.5)
    return [make.op("Mul", x, gate, like=x)]


def _hardswish_by_clip(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    shifted = make.op("Add", x, make.number(3.0), like=x)
    gate = make.op("Clip", shifted, make.number(0.0), make.number(6.0), like=x)
    return [make.op("Div", make.op("Mul", x, gate, like=x), make.number(6.0), like=x)]


def _hardsigmoid(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    scaled = make.op("Mul", x, make.number(attribute(node, "alpha", 0.2)), like=x)
    shifted = make.op("Add", scaled, make.number(attribute(node, "beta", 0.5)), like=x)
    return [make.op("Clip", shifted, make.number(0.0), make.number(1.0), like=x)]


def _swish(node: Node, make: Builder) -> list[Value]:
    """x * sigmoid(alpha x)."""
    x, alpha = make.input(0), attribute(node, "alpha", 1.0)
    inner = x if alpha == 1.0 else make.op("Mul", x, make.number(alpha), like=x)
    return [make.op("Mul", x, make.op("Sigmoid", inner, like=x), like=x)]


def _gelu(node: Node, make: Builder) -> list[Value]:
    """x (1 + erf(x / sqrt 2)) / 2, or the tanh form; both as ONNX Gelu-20 defines them."""
    x = make.input(0)
    if attribute(node, "approximate", "none") == "tanh":
        squared = make.op("Mul", x, x, like=x)
        # x (1 + 0.044715 x^2) rather than x + 0.044715 x^3: one step less towards the end of a narrow range
        poly = make.op(
            "Add", make.op("Mul", squared, make.number(0.044715), like=x), make.number(1.0), like=x
        )
        inner = make.op("Mul", make.op("Mul", x, poly, like=x), make.number(math.sqrt(2.0 / math.pi)), like=x)
        bounded = make.op("Tanh", inner, like=x)
    else:
        bounded = make.op("Erf", make.op("Mul", x, make.number(math.sqrt(0.5)), like=x), like=x)
    half = make.op("Mul", x, make.number(0.5), like=x)
    return [make.op("Mul", half, make.op("Add", bounded, make.number(1.0), like=x), like=x)]


def _mish(node: Node, make: Builder) -> list[Value]:
    """x * tanh(softplus(x))."""
    x = make.input(0)
    return [make.op("Mul", x, make.op("Tanh", make.op("Softplus", x, like=x), like=x), like=x)]


def _softplus(node: Node, make: Builder) -> list[Value]:
    """max(x, 0) + log(1 + exp(-|x|)): log(1 + exp x) without its overflow."""
    x = make.input(0)
    small = make.op("Exp", make.op("Neg", make.op("Abs", x, like=x), like=x), like=x)
    tail = make.op("Log", make.op("Add", small, make.number(1.0), like=x), like=x)
    return [make.op("Add", make.op("Relu", x, like=x), tail, like=x)]


def _softsign(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    return [make.op("Div", x, make.op("Add", make.op("Abs", x, like=x), make.number(1.0), like=x), like=x)]


def _celu(node: Node, make: Builder) -> list[Value]:
    """alpha * elu(x / alpha)."""
    x, alpha = make.input(0), make.number(attribute(node, "alpha", 1.0))
    return [make.op("Mul", make.op("Elu", make.op("Div", x, alpha, like=x), like=x), alpha, like=x)]


def _elu(node: Node, make: Builder) -> list[Value]:
    """relu(x) + alpha (exp(min(x, 0)) - 1)."""
    x = make.input(0)
    low = make.op("Exp", make.op("Min", x, make.number(0.0), like=x), like=x)
    tail = make.op("Sub", low, make.number(1.0), like=x)
    tail = make.op("Mul", tail, make.number(attribute(node, "alpha", 1.0)), like=x)
    return [make.op("Add", make.op("Relu", x, like=x), tail, like=x)]


def _thresholded_relu(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    above = make.op("Greater", x, make.number(attribute(node, "alpha", 1.0)), dtype=DataType.BOOL)
    return [make.op("Where", above, x, make.number(0.0), like=x)]


def _shrink(node: Node, make: Builder) -> list[Value]:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    x = make.input(0)
    lambd, bias = attribute(node, "lambd", 0.5), attribute(node, "bias", 0.0)
    above = make.op("Greater", x, make.number(lambd), dtype=DataType.BOOL)
    below = make.op("Less", x, make.number(-lambd), dtype=DataType.BOOL)
    low = make.op("Add", x, make.number(bias), like=x)
    high = make.op("Sub", x, make.number(bias), like=x)
    rest = make.op("Where", below, low, make.number(0.0), like=x)
    return [make.op("Where", above, high, rest, like=x)]


def _prelu(node: Node, make: Builder) -> list[Value]:
    """max(x, 0) + slope * min(x, 0)."""
    x = make.input(0)
    low = make.op("Min", x, make.number(0.0), like=x)
    return [make.op("Add", make.op("Relu", x, like=x), make.op("Mul", low, node.inputs[1], like=x), like=x)]


def _clip(node: Node, make: Builder) -> list[Value]:
    """min(max(x, low), high): ONNX says that `high` wins where low > high."""
    result = make.input(0)
    for op_type, index in (("Max", 1), ("Min", 2)):
        bound = input_value(node, index)
        if bound is not None:
            result = make.op(op_type, result, bound, like=node.inputs[0])
    return [result]


DECOMPOSITIONS = (
    Decomposition("HardSwish", ("HardSigmoid", "Mul"), _hardswish_by_hardsigmoid),
    Decomposition("HardSwish", ("Add", "Clip", "Mul", "Div"), _hardswish_by_clip),
    Decomposition("HardSigmoid", ("Mul", "Add", "Clip"), _hardsigmoid),
    Decomposition("Swish", ("Sigmoid", "Mul"), _swish),
    Decomposition("Gelu", ("Erf", "Tanh", "Mul", "Add"), _gelu),
    Decomposition("Mish", ("Softplus", "Tanh", "Mul"), _mish),
    Decomposition("Softplus", ("Abs", "Neg", "Exp", "Add", "Log", "Relu"), _softplus),
    Decomposition("Softsign", ("Abs", "Add", "Div"), _softsign),
    Decomposition("Celu", ("Div", "Elu", "Mul"), _celu),
    Decomposition("Elu", ("Min", "Exp", "Sub", "Mul", "Relu", "Add"), _elu),
    Decomposition("ThresholdedRelu", ("Greater", "Where"), _thresholded_relu),
    Decomposition("Shrink", ("Greater", "Less", "Add", "Sub", "Where"), _shrink),
    Decomposition("PRelu", ("Relu", "Min", "Mul", "Add"), _prelu),
    Decomposition("Clip", ("Min", "Max"), _clip),
)
