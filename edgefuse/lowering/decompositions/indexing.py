"""Operators that choose elements, by comparisons with constants and by Gather."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import DataType, Node, Value, attribute, constant, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.decompositions import Decomposition
from edgefuse.lowering.reader import refusal


def _along(size: int, axis: int, rank: int) -> np.ndarray:
    """Return 0..size-1 as int64, shaped to broadcast along `axis` of a tensor of `rank` dimensions."""
    shape = [1] * rank
    shape[axis % rank] = size
    return np.arange(size, dtype=np.int64).reshape(shape)


def _one_hot(node: Node, make: Builder) -> list[Value]:
    """`on` where the index equals the place along the new axis; negative indices count from the end."""
    indices, values = make.input(0), input_value(node, 2)
    depth_array = make.constant_input(1, "depth")
    if depth_array is None or values is None:
        raise refusal(node, "depth or values are missing")
    depth, rank = int(depth_array.reshape(-1)[0]), make.rank(indices) + 1
    axis = attribute(node, "axis", -1) % rank
    whole = make.cast(indices, DataType.INT64)
    wide = make.op("Unsqueeze", whole, make.integers(axis), dtype=DataType.INT64)
    places = _along(depth, axis, rank)
    hit = make.op("Equal", wide, make.constant(places), dtype=DataType.BOOL)
    from_end = make.op("Equal", wide, make.constant(places - depth), dtype=DataType.BOOL)
    chosen = make.op("Or", hit, from_end, dtype=DataType.BOOL)
    off, on = _pair(node, make, values)
    return [make.op("Where", chosen, on, off, like=node.outputs[0])]


def _pair(node: Node, make: Builder, values: Value) -> tuple[Value, Value]:
    array = constant(values)
    if array is not None:
        return make.constant(array.reshape(-1)[0]), make.constant(array.reshape(-1)[1])
    parts = [
        make.op("Gather", values, make.constant(np.array(i, np.int64)), dtype=make.dtype(values), axis=0)
        for i in (0, 1)
    ]
    return parts[0], parts[1]


def _hardmax(node: Node, make: Builder) -> list[Value]:
    """1 at the first maximum along `axis`, 0 elsewhere."""
    x = make.input(0)
    rank = make.rank(x)
    axis = attribute(node, "axis", -1) % rank
    places = make.constant(_along(make.size(x, axis), axis, rank))
    first = make.op("ArgMax", x, dtype=DataType.INT64, axis=axis, keepdims=1)
    hit = make.op("Equal", first, places, dtype=DataType.BOOL)
    return [make.op("Cast", hit, like=x, to=int(make.dtype(x)))]


def _trilu(node: Node, make: Builder) -> list[Value]:
    """The upper or lower triangle; 0 elsewhere, whatever stood there (infinities too)."""
    x = make.input(0)
    shift = make.constant_input(1, "diagonal")
    k = int(shift.reshape(-1)[0]) if shift is not None else 0
    rows, columns = make.size(x, -2), make.size(x, -1)
    ones = np.ones((rows, columns), dtype=bool)
    keep = np.triu(ones, k) if attribute(node, "upper", 1) else np.tril(ones, k)
    return [make.op("Where", make.constant(keep), x, make.number(0), like=x)]


def _compress(node: Node, make: Builder) -> list[Value]:
    """Gather of the places where a constant condition holds."""
    x, axis = make.input(0), attribute(node, "axis")
    condition = make.constant_input(1, "condition")
    if condition is None:
        raise refusal(node, "its condition is missing")
    places = make.constant(np.flatnonzero(condition).astype(np.int64))
    if axis is None:
        x, axis = make.op("Reshape", x, make.integers(-1), dtype=make.dtype(x)), 0
    return [make.op("Gather", x, places, like=node.outputs[0], axis=axis)]


def _eye_like(node: Node, make: Builder) -> list[Value]:
    x = make.input(0)
    rows, columns = make.sizes(x)
    to = attribute(node, "dtype")
    dtype = make.dtype(x) if to is None else DataType(to)
    eye = make.constant(np.eye(rows, columns, attribute(node, "k", 0)), dtype)
    return [make.op("Identity", eye, like=node.outputs[0])]


DECOMPOSITIONS = (
    Decomposition("OneHot", ("Cast", "Unsqueeze", "Equal", "Or", "Where"), _one_hot),
    Decomposition("Hardmax", ("ArgMax", "Equal", "Cast"), _hardmax),
    Decomposition("Trilu", ("Where",), _trilu),
    Decomposition("Compress", ("Gather", "Reshape"), _compress),
    Decomposition("EyeLike", ("Identity",), _eye_like),
)
