"""Removal of operators that hand their input through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    attribute,
    constant,
    dims,
    input_value,
    remove_node,
    replace_value,
    scalar,
    static_shape,
)
from edgefuse.passes.contract import PassResult

__all__ = ["remove_identity"]

# No dimension is as long; exporters write "to the end" of a Slice as 10**9, 2**31 - 1, 2**63 - 1 and others.
_TO_THE_END = 10**9
# What an exporter writes for a size that it does not know: two of them are not the same size.
_NAMELESS = ("", "?", "-1", "None")


def remove_identity(model: Model) -> PassResult:
    """Remove nodes whose output is their input, value for value, in place.

    Takes: 1. Identity.  2. Dropout outside training, its mask unread.  3. Cast and CastLike to the type that
    is there.  4. Reshape, Squeeze, Unsqueeze, Flatten, Expand to the shape that is there.  5. Transpose in
    the order that is there.  6. Pad by nothing.  7. Slice of everything.  8. Concat, Sum, Mean, Max, Min of
    one; Split into one.  9. Expand and Tile by ones.  10. Resize by scales of one.  11. adding or subtracting
    0, multiplying or dividing by 1, Pow by 1, where the constant does not broaden the shape.  12. ReduceMean,
    -Sum, -Max, -Min, -Prod over dimensions of size one that are kept.  13. MaxPool and AveragePool with a 1x1
    window. 14. Clip without bounds, DepthToSpace and SpaceToDepth by 1.
    Where the output is a graph output
    and the input a graph input, a constant or another graph output, an Identity stays in the node's place.
    Leaves: 15. all of these where the shapes that decide it are not known.  16. Slice with a step of -1,
    Resize whose coordinates move at scale one (tf_half_pixel_for_nn, tf_crop_and_resize).  17. Dropout with
    an unknown or true training flag.  18. nodes inside bodies of If, Loop, Scan.
    """
    removed = 0
    for node in list(model.graph):
        if node.domain not in ("", "ai.onnx"):
            continue
        rule = _RULES.get(node.op_type)
        if rule is None or not rule(node):
            continue
        source = input_value(node, 1 if _takes_second(node) else 0)
        if source is None or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            continue
        removed += _pass_through(node, source)
    notes = (f"{removed} nodes that changed nothing removed",) if removed else ()
    return PassResult("remove_identity", removed, notes)


def _pass_through(node: Node, source: Value) -> bool:
    """Let the readers of the node read `source`; returns whether anything changed."""
    output = node.outputs[0]
    anchored = output.is_graph_output() and (
        source.is_graph_input() or source.is_initializer() or source.is_graph_output()
    )
    if anchored and node.op_type == "Identity":
        return False
    if source.shape is None and output.shape is not None:
        source.shape = output.shape.copy()
    replace_value(output, source)
    remove_node(node)
    return True


def _takes_second(node: Node) -> bool:
    """Return whether the node hands its second operand through (0 + x, 1 * x)."""
    return node.op_type in ("Add", "Mul") and _neutral(node.inputs[0], node.inputs[1], node.op_type)


def same_dims(one: Value | None, other: Value | None) -> bool:
    """Return whether two values surely have the same shape; symbols count by name."""
    a, b = dims(one), dims(other)
    if a is None or b is None or len(a) != len(b):
        return False
    return all(x == y and x is not None and x not in _NAMELESS for x, y in zip(a, b, strict=True))


def _same_but_one(node: Node) -> bool:
    """Return whether a node that keeps the number of elements keeps the shape.

    Where all dimensions but one are equal numbers, the last one is equal too, whatever its name.
    """
    a, b = dims(node.inputs[0]), dims(node.outputs[0])
    if a is None or b is None or len(a) != len(b):
        return False
    differ = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not (isinstance(x, int) and x == y)]
    if not differ:
        return True
    if len(differ) == 1 and not (isinstance(a[differ[0]], int) and isinstance(b[differ[0]], int)):
        return 0 not in a and 0 not in b
    return same_dims(node.inputs[0], node.outputs[0])


def _keeps_shape(node: Node) -> bool:
    """Return whether input and output surely have one static shape.

    The declared shape of a graph output is the user's word, which a computed size may contradict.
    """
    if node.outputs[0].is_graph_output() and any(
        v is not None and constant(v) is None for v in node.inputs[1:]
    ):
        return False
    shape = static_shape(node.inputs[0])
    return shape is not None and shape == static_shape(node.outputs[0])


def _identity(node: Node) -> bool:
    return True


def _dropout(node: Node) -> bool:
    training = input_value(node, 2)
    return training is None or scalar(training) == 0.0


def _cast(node: Node) -> bool:
    source, wanted = node.inputs[0], attribute(node, "to")
    return source is not None and source.dtype is not None and int(source.dtype) == int(wanted)


def _cast_like(node: Node) -> bool:
    source, like = node.inputs[0], node.inputs[1]
    if source is None or like is None or source.dtype is None:
        return False
    return bool(source.dtype == like.dtype)


def _transpose(node: Node) -> bool:
    perm = attribute(node, "perm")
    if perm is None:
        rank = dims(node.inputs[0])
        return rank is not None and len(rank) <= 1
    return tuple(perm) == tuple(range(len(perm)))


def _pad(node: Node) -> bool:
    pads = constant(input_value(node, 1))
    return pads is not None and not np.any(pads)


def _slice(node: Node) -> bool:
    steps = constant(input_value(node, 4))
    if input_value(node, 4) is not None and (steps is None or np.any(steps != 1)):
        return False
    if _keeps_shape(node):
        return True
    starts, ends = constant(input_value(node, 1)), constant(input_value(node, 2))
    axes_value = input_value(node, 3)
    axes = constant(axes_value) if axes_value is not None else None
    if starts is None or ends is None or (axes_value is not None and axes is None) or np.any(starts):
        return False
    found = dims(node.inputs[0])
    chosen = range(ends.size) if axes is None else [int(a) for a in axes]
    return all(_reaches_end(int(end), found, axis) for end, axis in zip(ends, chosen, strict=True))


def _reaches_end(end: int, shape: tuple[int | str | None, ...] | None, axis: int) -> bool:
    size = shape[axis] if shape is not None else None
    return end >= (size if isinstance(size, int) else _TO_THE_END)


def _of_one(node: Node) -> bool:
    return len(node.inputs) == 1


def _split(node: Node) -> bool:
    return len(node.outputs) == 1


def _expand(node: Node) -> bool:
    target, shape = constant(input_value(node, 1)), dims(node.inputs[0])
    if target is None or shape is None:
        return _keeps_shape(node)
    if target.size > len(shape):
        return False
    tail = shape[len(shape) - target.size :]
    return all(n == 1 or n == d for n, d in zip(target.tolist(), tail, strict=True))


def _tile(node: Node) -> bool:
    repeats = constant(input_value(node, 1))
    return repeats is not None and bool(np.all(repeats == 1))


def _resize(node: Node) -> bool:
    moves = ("tf_half_pixel_for_nn", "tf_crop_and_resize")
    if attribute(node, "coordinate_transformation_mode", "half_pixel") in moves:
        return False
    scales = constant(input_value(node, 2))
    if scales is not None and scales.size:
        return bool(np.all(scales == 1.0))
    return input_value(node, 3) is not None and _keeps_shape(node)


def _neutral(number: Value | None, other: Value | None, op_type: str) -> bool:
    """Return whether the constant `number` leaves `other` as it is, in value and in shape."""
    array = constant(number)
    if array is None or array.dtype.kind not in "fiu" or array.size == 0 or constant(other) is not None:
        return False
    if not np.all(array == (0 if op_type in ("Add", "Sub") else 1)):
        return False
    shape = dims(other)
    if shape is None:
        return array.ndim == 0
    if array.ndim > len(shape):
        return False
    tail = shape[len(shape) - array.ndim :]
    return all(n == 1 or n == d for n, d in zip(array.shape, tail, strict=True))


def _commutative(node: Node) -> bool:
    left, right = node.inputs[0], node.inputs[1]
    return _neutral(right, left, node.op_type) or _neutral(left, right, node.op_type)


def _right_neutral(node: Node) -> bool:
    return _neutral(node.inputs[1], node.inputs[0], node.op_type)


def _reduce(node: Node) -> bool:
    shape = static_shape(node.inputs[0])
    return shape is not None and _keeps_shape(node) and _reduces_only_ones(node, shape)


def _reduces_only_ones(node: Node, shape: tuple[int, ...]) -> bool:
    if attribute(node, "keepdims", 1) != 1:
        return False
    if input_value(node, 1) is None and attribute(node, "axes") is None:
        return all(d == 1 for d in shape)
    axes = constant(input_value(node, 1))
    chosen = axes.reshape(-1).tolist() if axes is not None else attribute(node, "axes")
    return bool(chosen) and all(shape[int(axis)] == 1 for axis in chosen)


def _pool(node: Node) -> bool:
    kernel = attribute(node, "kernel_shape", ())
    strides = attribute(node, "strides", (1,))
    pads = attribute(node, "pads", (0,))
    return (
        bool(kernel)
        and all(k == 1 for k in kernel)
        and all(s == 1 for s in strides)
        and not any(pads)
        and len(node.outputs) == 1
    )


def _clip(node: Node) -> bool:
    return all(v is None for v in node.inputs[1:])


def _block_of_one(node: Node) -> bool:
    return bool(attribute(node, "blocksize") == 1)


_RULES: dict[str, Callable[[Node], bool]] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Reshape": _same_but_one,
    "Squeeze": _same_but_one,
    "Unsqueeze": _same_but_one,
    "Flatten": _same_but_one,
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Concat": _of_one,
    "Sum": _of_one,
    "Mean": _of_one,
    "Max": _of_one,
    "Min": _of_one,
    "Split": _split,
    "Expand": _expand,
    "Tile": _tile,
    "Resize": _resize,
    "Add": _commutative,
    "Mul": _commutative,
    "Sub": _right_neutral,
    "Div": _right_neutral,
    "Pow": _right_neutral,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "ReduceMax": _reduce,
    "ReduceMin": _reduce,
    "ReduceProd": _reduce,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "Clip": _clip,
    "DepthToSpace": _block_of_one,
    "SpaceToDepth": _block_of_one,
}
