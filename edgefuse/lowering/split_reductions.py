"""Sums over many elements, written in two stages: the error of a sum grows with its length.

A kernel with one accumulator loses about n/2 roundings of the final sum; two stages of sqrt(n) lose sqrt(n)
(Higham 1993, section 3). In float16 a plain sum of 65536 equal numbers stops growing at 2048 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from edgefuse.graph import (
    DataType,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    infer_shapes,
    input_value,
    is_float,
    replace_node,
    static_shape,
)

__all__ = ["LONG", "LongReduction", "long_reductions", "split_reduction", "summed_elements"]

# From here on a plain sum in float32 can be off by more than 1e-5 (measured; docs/verification.md).
LONG = 16384

_REDUCTIONS = frozenset({"ReduceSum", "ReduceMean"})
_POOLS = frozenset({"GlobalAveragePool"})
_NORMALIZATIONS = frozenset({"LayerNormalization"})


@dataclass(frozen=True, slots=True)
class LongReduction:
    """A node that adds up many elements. axes: sorted, not negative.  elements: summed into one result."""

    node: Node
    axes: tuple[int, ...]
    elements: int


def long_reductions(model: Model, least: int = LONG) -> list[LongReduction]:
    """Return the float reductions of the main graph over at least `least` elements, in graph order.

    ReduceSum, ReduceMean, GlobalAveragePool, LayerNormalization. Left out: sizes or axes that are not known.
    """
    rows = (_found(node) for node in model.graph)
    return [row for row in rows if row is not None and row.elements >= least]


def summed_elements(node: Node) -> int:
    """Return how many elements the node adds up into one result; 0 where it is no reduction or not known."""
    found = _found(node)
    return 0 if found is None else found.elements


def _found(node: Node) -> LongReduction | None:
    value = input_value(node, 0)
    if node.domain not in ("", "ai.onnx") or value is None or not is_float(value):
        return None
    shape = static_shape(value)
    axes = _axes(node, shape) if shape is not None else None
    if not axes or shape is None:
        return None
    return LongReduction(node, axes, prod(shape[i] for i in axes))


def _axes(node: Node, shape: Sequence[int]) -> tuple[int, ...] | None:
    rank = len(shape)
    if node.op_type in _POOLS:
        return tuple(range(2, rank))
    if node.op_type in _NORMALIZATIONS:
        return tuple(range(int(attribute(node, "axis", -1)) % rank, rank))
    if node.op_type not in _REDUCTIONS:
        return None
    given = input_value(node, 1)
    named = attribute(node, "axes") if given is None else constant(given)
    if given is not None and named is None:
        return None
    axes = [] if named is None else np.asarray(named).reshape(-1).tolist()
    if not axes:
        return () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({int(axis) % rank for axis in axes}))


def split_reduction(model: Model, found: LongReduction) -> bool:
    """Write the node in two stages, in place; return False where its sizes cannot be split.

    1. several axes: one after the other.  2. one axis of n = a*b elements: reshaped to [a, b], b first.
    3. LayerNormalization: written out with two-stage means (first output only).
    Left: one axis whose length is prime, LayerNormalization whose mean is read, another stash type.
    Equal in real arithmetic; a mean of equal parts is the mean.
    """
    node = found.node
    value = input_value(node, 0)
    shape = static_shape(value)
    if value is None or shape is None:
        return False
    if _parts(found, shape) is None:
        return False
    if node.op_type in _NORMALIZATIONS:
        new = _layer_norm(node, value, found, shape)
    else:
        kind = "ReduceSum" if node.op_type == "ReduceSum" else "ReduceMean"
        keep = node.op_type in _POOLS or bool(attribute(node, "keepdims", 1))
        new = _reduced(node, value, kind, found, shape, keep)
    if new is None:
        return False
    replace_node(node, [new])
    infer_shapes(model)
    return True


def _parts(found: LongReduction, shape: Sequence[int]) -> tuple[int, int] | None:
    """Return (a, b) with a*b = n for one axis, near sqrt(n); (0, 0) for several axes; None: prime."""
    wide = [axis for axis in found.axes if shape[axis] > 1]
    if len(wide) > 1:
        return 0, 0
    count = shape[wide[0]]
    a = next(n for n in range(int(count**0.5), 0, -1) if count % n == 0)
    return None if a == 1 else (a, count // a)


def _reduced(
    node: Node, value: Value, kind: str, found: LongReduction, shape: Sequence[int], keep: bool
) -> Value:
    """Return `value` reduced over the axes of `found` in stages."""
    wide = [axis for axis in found.axes if shape[axis] > 1]
    parts = _parts(found, shape)
    assert parts is not None
    if len(wide) > 1:
        for axis in reversed(wide):
            value = _reduce(node, value, kind, axis)
    else:
        a, b = parts
        axis = wide[0]
        value = _reshape(node, value, (*shape[:axis], a, b, *shape[axis + 1 :]))
        value = _reduce(node, value, kind, axis + 1)
        value = _reduce(node, value, kind, axis)
    sizes = [1 if i in found.axes else n for i, n in enumerate(shape)]
    if not keep:
        sizes = [n for i, n in enumerate(sizes) if i not in found.axes]
    if keep and len(wide) > 1:
        return value
    return _reshape(node, value, sizes)


def _reduce(node: Node, value: Value, kind: str, axis: int) -> Value:
    graph = node.graph
    assert graph is not None
    axes = add_constant(graph, np.array([axis], np.int64), f"{node.name}_axis")
    made = add_node(node, kind, [value, axes], {"keepdims": 1}, stem=f"{node.name}_stage", sources=[node])
    made.outputs[0].type = value.type
    return made.outputs[0]


def _reshape(node: Node, value: Value, sizes: Sequence[int]) -> Value:
    graph = node.graph
    assert graph is not None
    shape = add_constant(graph, np.array(sizes, np.int64), f"{node.name}_sizes")
    made = add_node(node, "Reshape", [value, shape], stem=f"{node.name}_parts", sources=[node])
    made.outputs[0].type = value.type
    return made.outputs[0]


def _layer_norm(node: Node, value: Value, found: LongReduction, shape: Sequence[int]) -> Value | None:
    graph = node.graph
    assert graph is not None
    stash = int(attribute(node, "stash_type", 1))
    if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]) or value.dtype is None:
        return None
    if stash != DataType.FLOAT.value or value.dtype != DataType.FLOAT:
        return None

    def step(op: str, *inputs: Value) -> Value:
        made = add_node(node, op, list(inputs), stem=f"{node.name}_{op.lower()}", sources=[node])
        made.outputs[0].type = value.type
        return made.outputs[0]

    epsilon = add_constant(graph, np.array(attribute(node, "epsilon", 1e-5), np.float32), f"{node.name}_eps")
    away = step("Sub", value, _reduced(node, value, "ReduceMean", found, shape, keep=True))
    spread = _reduced(node, step("Mul", away, away), "ReduceMean", found, shape, keep=True)
    result = step("Div", away, step("Sqrt", step("Add", spread, epsilon)))
    for op, index in (("Mul", 1), ("Add", 2)):
        factor = input_value(node, index)
        if factor is not None:
            result = step(op, result, factor)
    return result
