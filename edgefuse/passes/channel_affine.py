"""Multiplying and adding per-channel constants: how a pass reads them off a node and folds them away.

A `ChannelAffine` is what one node does to a tensor: y = scale * x + shift, constants along one axis. The two
directions of folding are into_producer.py (the Conv, ConvTranspose, Gemm or MatMul that writes x takes it
into its weights) and into_consumer.py (the one that reads y does). All arithmetic is float64 and rounds once,
to the dtype of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgefuse.graph import (
    Graph,
    Model,
    Node,
    Value,
    add_constant,
    constant,
    dims,
    input_value,
    is_float,
    source_name,
)
from edgefuse.graph.access import SOURCE_KEY

__all__ = [
    "ChannelAffine",
    "affine_of_node",
    "drop_unused",
    "matmul_weight",
    "note_sources",
    "rounded",
    "set_gemm",
    "swap_constant",
]


@dataclass(frozen=True, slots=True)
class ChannelAffine:
    """y = scale * x + shift, constants along one axis of x.

    node: computes y from `value` (= x).  scale, shift: float64, both [C] or both [1].  axis: the axis of x
    that they run along, counted from 0; None where they are one number for the whole tensor.
    rank: of x; None where it is unknown (then axis is None).
    """

    node: Node
    value: Value
    scale: np.ndarray
    shift: np.ndarray
    axis: int | None
    rank: int | None

    @property
    def scales(self) -> bool:
        """Whether the scale is anything but one."""
        return bool((self.scale != 1.0).any())

    @property
    def shifts(self) -> bool:
        """Whether the shift is anything but zero."""
        return bool((self.shift != 0.0).any())

    def along(self, axis: int, size: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return scale and shift as [size] arrays along `axis`, or None where they run along another."""
        if self.axis is None:
            return np.broadcast_to(self.scale, size), np.broadcast_to(self.shift, size)
        if self.axis != axis or self.scale.size != size:
            return None
        return self.scale, self.shift


def affine_of_node(node: Node) -> ChannelAffine | None:
    """Return what a Mul, Add, Sum of two, Sub or Div with a finite constant does, or None.

    None for: both inputs computed; a constant that varies along two axes or has more axes than x (it would
    raise the rank); Div by a constant that holds 0, or of a constant; integers; unknown rank and no scalar.
    """
    if node.op_type not in ("Mul", "Add", "Sum", "Sub", "Div") or node.domain or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    known = [constant(left), constant(right)]
    if (known[0] is None) == (known[1] is None) or left is None or right is None:
        return None
    value, array = (left, known[1]) if known[0] is None else (right, known[0])
    if array is None or array.size == 0 or not (is_float(value) and is_float(node.outputs[0])):
        return None
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        return None
    one, zero = np.ones_like(numbers), np.zeros_like(numbers)
    constant_left = known[0] is not None
    if node.op_type == "Mul":
        scale, shift = numbers, zero
    elif node.op_type in ("Add", "Sum"):
        scale, shift = one, numbers
    elif node.op_type == "Sub":
        scale, shift = (-one, numbers) if constant_left else (one, -numbers)
    elif constant_left or (numbers == 0).any():
        return None
    else:
        scale, shift = one / numbers, zero
    return _placed(node, value, scale, shift)


def _placed(node: Node, value: Value, scale: np.ndarray, shift: np.ndarray) -> ChannelAffine | None:
    """Return the affine with its axis found, or None where the constant is no per-channel one."""
    found = dims(value)
    rank = None if found is None else len(found)
    if scale.ndim > (0 if rank is None else rank):
        return None
    long = [axis for axis, size in enumerate(scale.shape) if size != 1]
    if len(long) > 1:
        return None
    axis = None if not long or rank is None else long[0] + rank - scale.ndim
    if axis is not None and found is not None and found[axis] == 1:
        return None  # the constant would stretch x along this axis
    return ChannelAffine(node, value, scale.reshape(-1), shift.reshape(-1), axis, rank)


def rounded(array: np.ndarray, like: np.ndarray) -> np.ndarray | None:
    """Return `array` (float64) in the dtype of `like`, or None where a finite number would overflow."""
    with np.errstate(over="ignore", under="ignore"):
        result = array.astype(like.dtype)
    return result if np.isfinite(result.astype(np.float64)).all() else None


def drop_unused(graph: Graph, value: Value | None) -> None:
    """Remove an initializer that nobody reads any more."""
    if value is None or not value.is_initializer() or value.is_graph_output() or value.is_graph_input():
        return
    if not value.uses() and value.graph is not None:
        value.graph.initializers.pop(value.name or "", None)


def swap_constant(model: Model, node: Node, index: int, array: np.ndarray, stem: str) -> None:
    """Let input `index` of `node` read a new constant; the old one is kept for its other readers."""
    old = input_value(node, index)
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, add_constant(model.graph, array, (old.name if old else None) or stem))
    drop_unused(model.graph, old)


def note_sources(node: Node, *others: Node) -> None:
    """Record that `node` now stands for `others` too, by the names that the user knows."""
    names = [part for n in (node, *others) for part in source_name(n).split(" + ") if part]
    node.metadata_props[SOURCE_KEY] = " + ".join(dict.fromkeys(names))


def set_gemm(model: Model, gemm: Node, weight: np.ndarray, wide: np.ndarray | None, bias: np.ndarray) -> bool:
    """Give a Gemm a new weight (None: the old one) and a bias that beta does not scale any more."""
    new_weight = rounded(wide, weight) if wide is not None else weight
    new_bias = rounded(bias, weight)
    if new_weight is None or new_bias is None:
        return False
    if wide is not None:
        swap_constant(model, gemm, 1, new_weight, "weight")
    if input_value(gemm, 2) is not None or (bias != 0).any():
        swap_constant(model, gemm, 2, new_bias, f"{gemm.name}_bias")
        gemm.attributes.pop("beta", None)
    return True


def matmul_weight(node: Node) -> np.ndarray | None:
    """Return the constant right-hand operand of a MatMul, at least 2-D, or None."""
    weight = constant(input_value(node, 1))
    return weight if weight is not None and weight.ndim >= 2 else None
