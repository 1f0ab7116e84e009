"""Normalizations by means, squares and roots.

The squares are the reason why these stay in float32 where the rest of a model is float16: above |x| = 255 a
square does not fit (edgefuse.lowering.ranges).
"""

from __future__ import annotations

import numpy as np

from edgefuse.graph import Node, Value, attribute, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.decompositions import Decomposition


def _trailing_axes(node: Node, make: Builder, x: Value) -> tuple[int, ...]:
    rank = make.rank(x)
    return tuple(range(attribute(node, "axis", -1) % rank, rank))


def _mean(make: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    return make.op("ReduceMean", x, make.integers(*axes), dtype=make.dtype(x), keepdims=1)


def _affine(node: Node, make: Builder, normal: Value, x: Value) -> Value:
    for op_type, index in (("Mul", 1), ("Add", 2)):
        operand = input_value(node, index)
        if operand is not None:
            normal = make.op(op_type, normal, operand, like=x)
    return normal


def _layer_normalization(node: Node, make: Builder) -> list[Value | None]:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias over the axes from `axis` on."""
    x = make.input(0)
    axes = _trailing_axes(node, make, x)
    mean = _mean(make, x, axes)
    centred = make.op("Sub", x, mean, like=x)
    variance = _mean(make, make.op("Mul", centred, centred, like=x), axes)
    padded = make.op("Add", variance, make.number(attribute(node, "epsilon", 1e-5)), dtype=make.dtype(x))
    deviation = make.op("Sqrt", padded, dtype=make.dtype(x))
    normal = _affine(node, make, make.op("Div", centred, deviation, like=x), x)
    outputs: list[Value | None] = [normal]
    if len(node.outputs) > 1:
        outputs.append(make.op("Identity", mean, like=node.outputs[1]))
    if len(node.outputs) > 2:
        outputs.append(make.op("Div", make.number(1.0), deviation, like=node.outputs[2]))
    return outputs


def _rms_normalization(node: Node, make: Builder) -> list[Value]:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on."""
    x = make.input(0)
    mean = _mean(make, make.op("Mul", x, x, like=x), _trailing_axes(node, make, x))
    padded = make.op("Add", mean, make.number(attribute(node, "epsilon", 1e-5)), dtype=make.dtype(x))
    normal = make.op("Div", x, make.op("Sqrt", padded, dtype=make.dtype(x)), like=x)
    return [_affine(node, make, normal, x)]


def _per_channel(make: Builder, value: Value, rank: int) -> Value:
    return make.op("Reshape", value, make.integers(-1, *([1] * (rank - 2))), dtype=make.dtype(value))


def _group_normalization(node: Node, make: Builder) -> list[Value]:
    """Instance normalization of [N, groups, rest] with the scale and bias of each channel after it."""
    x = make.input(0)
    rank, groups = make.rank(x), int(attribute(node, "num_groups"))
    flat = make.op("Reshape", x, make.integers(0, groups, -1), dtype=make.dtype(x))
    ones = make.constant(np.ones(groups), make.dtype(x))
    zeros = make.constant(np.zeros(groups), make.dtype(x))
    normal = make.op(
        "InstanceNormalization",
        flat,
        ones,
        zeros,
        dtype=make.dtype(x),
        epsilon=attribute(node, "epsilon", 1e-5),
    )
    normal = make.op("Reshape", normal, make.shape_of(x), like=x)
    for op_type, index in (("Mul", 1), ("Add", 2)):
        operand = _per_channel(make, make.input(index), rank)
        normal = make.op(op_type, normal, operand, like=x)
    return [normal]


def _instance_normalization(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    rank = make.rank(x)
    axes = tuple(range(2, rank))
    centred = make.op("Sub", x, _mean(make, x, axes), like=x)
    variance = _mean(make, make.op("Mul", centred, centred, like=x), axes)
    padded = make.op("Add", variance, make.number(attribute(node, "epsilon", 1e-5)), dtype=make.dtype(x))
    normal = make.op("Div", centred, make.op("Sqrt", padded, dtype=make.dtype(x)), like=x)
    scale, bias = (_per_channel(make, make.input(index), rank) for index in (1, 2))
    return [make.op("Add", make.op("Mul", normal, scale, like=x), bias, like=x)]


def _mean_variance_normalization(node: Node, make: Builder) -> list[Value]:
    """(x - mean) / (sqrt(mean((x - mean)^2)) + 1e-9), the ONNX function with its variance centred first."""
    x = make.input(0)
    rank = make.rank(x)
    axes = tuple(axis % rank for axis in attribute(node, "axes", (0, 2, 3)))
    centred = make.op("Sub", x, _mean(make, x, axes), like=x)
    variance = _mean(make, make.op("Mul", centred, centred, like=x), axes)
    deviation = make.op("Sqrt", variance, dtype=make.dtype(x))
    return [
        make.op("Div", centred, make.op("Add", deviation, make.number(1e-9), dtype=make.dtype(x)), like=x)
    ]


def _lp_normalization(node: Node, make: Builder) -> list[Value]:
    """x / norm along `axis`; 0 where the norm is 0, as ONNX Runtime gives."""
    x = make.input(0)
    op_type = "ReduceL1" if attribute(node, "p", 2) == 1 else "ReduceL2"
    axes = make.integers(attribute(node, "axis", -1) % make.rank(x))
    norm = make.op(op_type, x, axes, dtype=make.dtype(x), keepdims=1)
    tiny = make.number(float(np.finfo(np.float32).tiny) if make.dtype(x).bitwidth > 16 else 6e-8)
    return [make.op("Div", x, make.op("Max", norm, tiny, dtype=make.dtype(x)), like=x)]


_BY_MEAN = ("ReduceMean", "Sub", "Mul", "Add", "Sqrt", "Div")

DECOMPOSITIONS = (
    Decomposition("LayerNormalization", _BY_MEAN, _layer_normalization),
    Decomposition("RMSNormalization", ("ReduceMean", "Mul", "Add", "Sqrt", "Div"), _rms_normalization),
    Decomposition(
        "GroupNormalization", ("Reshape", "InstanceNormalization", "Mul", "Add"), _group_normalization
    ),
    Decomposition("InstanceNormalization", (*_BY_MEAN, "Reshape"), _instance_normalization),
    Decomposition("MeanVarianceNormalization", _BY_MEAN, _mean_variance_normalization),
    Decomposition("LpNormalization", ("ReduceL1", "ReduceL2", "Max", "Div"), _lp_normalization),
)
