"""What is known of the numbers in a tensor without running anything: an interval that holds them all."""

from __future__ import annotations

import math
from collections.abc import Callable

from edgefuse.graph import Node, Value, attribute, constant, input_value, scalar

__all__ = ["MOVES_VALUES", "value_bounds"]

Bounds = tuple[float, float]

_ALL: Bounds = (-math.inf, math.inf)
# Far enough for a chain of reshapes behind an activation; sums of sums say nothing useful.
_DEPTH = 12

# Their result holds numbers of the input and nothing else.
MOVES_VALUES = frozenset(
    """
    DepthToSpace Expand Flatten Gather GatherElements GatherND Identity MaxPool Reshape Slice SpaceToDepth
    Split Squeeze Tile Transpose Unsqueeze
    """.split()
)
_MEANS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin"})
_UNIT = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})


def value_bounds(value: Value | None, depth: int = _DEPTH) -> Bounds:
    """Return (low, high) that every finite element of `value` lies in; infinite where nothing is known.

    Takes constants, ReLU, Clip, Sigmoid, HardSigmoid, Softmax, Tanh, sums, differences and products of
    bounded tensors, and what moves, selects or averages values. Rounding of float arithmetic is not counted.
    """
    if value is None or depth == 0:
        return _ALL
    array = constant(value)
    if array is not None:
        if not array.size or array.dtype.kind not in "fiu":
            return _ALL
        return float(array.min()), float(array.max())
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return _ALL
    if node.op_type in MOVES_VALUES or node.op_type in _MEANS:
        return value_bounds(node.inputs[0], depth - 1)
    if node.op_type in _UNIT:
        return 0.0, 1.0
    rule = _RULES.get(node.op_type)
    return _ALL if rule is None else rule(node, depth - 1)


def _relu(node: Node, depth: int) -> Bounds:
    low, high = value_bounds(node.inputs[0], depth)
    return max(low, 0.0), max(high, 0.0)


def _clip(node: Node, depth: int) -> Bounds:
    low, high = value_bounds(node.inputs[0], depth)
    for index in (1, 2):
        limit = input_value(node, index)
        number = scalar(limit)
        if limit is None:
            continue
        if number is None:
            return _ALL
        low, high = (
            (max(low, number), max(high, number)) if index == 1 else (min(low, number), min(high, number))
        )
    return low, high


def _average(node: Node, depth: int) -> Bounds:
    low, high = value_bounds(node.inputs[0], depth)
    return (min(low, 0.0), max(high, 0.0)) if attribute(node, "count_include_pad", 0) else (low, high)


def _pad(node: Node, depth: int) -> Bounds:
    low, high = value_bounds(node.inputs[0], depth)
    if attribute(node, "mode", "constant") != "constant":
        return low, high
    filler = input_value(node, 2)
    number = 0.0 if filler is None else scalar(filler)
    return _ALL if number is None else (min(low, number), max(high, number))


def _resize(node: Node, depth: int) -> Bounds:
    """Nearest and linear weights are between 0 and 1; cubic ones overshoot."""
    plain = attribute(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
    if plain and attribute(node, "mode", "nearest") in ("nearest", "linear"):
        return value_bounds(node.inputs[0], depth)
    return _ALL


def _concat(node: Node, depth: int) -> Bounds:
    parts = [value_bounds(value, depth) for value in node.inputs]
    return min(low for low, _ in parts), max(high for _, high in parts)


def _tanh(node: Node, depth: int) -> Bounds:
    return -1.0, 1.0


def _add(node: Node, depth: int) -> Bounds:
    (a, b), (c, d) = (value_bounds(value, depth) for value in node.inputs)
    return a + c, b + d


def _sub(node: Node, depth: int) -> Bounds:
    (a, b), (c, d) = (value_bounds(value, depth) for value in node.inputs)
    return a - d, b - c


def _mul(node: Node, depth: int) -> Bounds:
    (a, b), (c, d) = (value_bounds(value, depth) for value in node.inputs)
    if not all(map(math.isfinite, (a, b, c, d))):
        return (0.0, math.inf) if a >= 0 and c >= 0 else _ALL
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)


_RULES: dict[str, Callable[[Node, int], Bounds]] = {
    "Add": _add,
    "AveragePool": _average,
    "Clip": _clip,
    "Concat": _concat,
    "Mul": _mul,
    "Pad": _pad,
    "Relu": _relu,
    "Resize": _resize,
    "Sub": _sub,
    "Tanh": _tanh,
}
