"""Multiplying and adding per-channel constants: how a pass reads them off a node and folds them away.

A `ChannelAffine` is what one node does to a tensor: y = scale * x + shift, constants along one axis. The two
directions are `fold_into_producer` (the Conv, ConvTranspose, Gemm or MatMul that writes x takes it into its
weights) and `fold_into_consumer` (the one that reads y does). All arithmetic is float64 and rounds once, to
the dtype of the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgefuse.graph import (
    Graph,
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    dims,
    input_value,
    is_float,
    remove_node,
    replace_node,
    sole_reader,
    source_name,
)
from edgefuse.graph.access import SOURCE_KEY

__all__ = [
    "ChannelAffine",
    "affine_of_node",
    "drop_unused",
    "fold_into_consumer",
    "fold_into_producer",
    "note_sources",
    "rounded",
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
    """Return what a Mul, Add, Sub or Div with a finite constant does, or None.

    None for: both inputs computed; a constant that varies along two axes or has more axes than x (it would
    raise the rank); Div by a constant that holds 0, or of a constant; integers; unknown rank and no scalar.
    """
    if node.op_type not in ("Mul", "Add", "Sub", "Div") or node.domain or len(node.inputs) != 2:
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
    elif node.op_type == "Add":
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


# --- into the producer ------------------------------------------------------------------------------------


def fold_into_producer(model: Model, affine: ChannelAffine) -> bool:
    """Fold y = scale * x + shift into the weights of what writes x, and remove its node; return whether.

    Taken: Conv (a shift needs no constant weight), ConvTranspose (grouped too), Gemm, MatMul, and Add of a
    constant to one of them; a shift onto MatMul becomes its Add. Left: x is read elsewhere or is a graph
    output; computed weights or bias; a constant along another axis; a result that overflows its dtype.
    """
    producer = affine.value.producer()
    if producer is None or producer.domain or sole_reader(affine.value) is not affine.node:
        return False
    if producer.graph is not affine.node.graph:
        return False
    if not affine.scales and not affine.shifts:
        return False  # a no-op: removing it is not this pass's job
    handler = _PRODUCERS.get(producer.op_type)
    if handler is None or not handler(model, producer, affine):
        return False
    return True


def _take_over(affine: ChannelAffine, producer: Node) -> bool:
    """Let the producer's output stand for the affine's, and remove the affine node."""
    dead = list(affine.node.inputs)
    note_sources(producer, affine.node)
    replace_node(affine.node, [producer.outputs[0]])
    for value in dead:
        if value is not None and value.graph is not None:
            drop_unused(value.graph, value)
    return True


def _conv_after(model: Model, conv: Node, affine: ChannelAffine) -> bool:
    return _weighted_after(model, conv, affine, 0, lambda w, s: w * s.reshape(-1, *[1] * (w.ndim - 1)))


def _transposed_after(model: Model, conv: Node, affine: ChannelAffine) -> bool:
    groups = int(attribute(conv, "group", 1))

    def scale(weight: np.ndarray, s: np.ndarray) -> np.ndarray:
        # [C_in, C_out/g, ...]: output channel j of group i is weight[i * C_in/g : (i+1) * C_in/g, j]
        split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        factor = s.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
        return (split * factor).reshape(weight.shape)

    return _weighted_after(model, conv, affine, 1, scale, groups)


def _weighted_after(
    model: Model,
    conv: Node,
    affine: ChannelAffine,
    axis: int,
    scale_weight: Callable[[np.ndarray, np.ndarray], np.ndarray],
    groups: int = 1,
) -> bool:
    """Fold into a convolution whose weight counts its output channels along `axis` (times groups)."""
    kernel, bias_value = input_value(conv, 1), input_value(conv, 2)
    shape, bias = dims(kernel), constant(bias_value)
    if kernel is None or shape is None or not isinstance(shape[axis], int):
        return False
    if affine.rank is not None and affine.rank != len(shape):
        return False
    placed = affine.along(1, int(shape[axis]) * groups)  # type: ignore[arg-type]
    if placed is None or (bias_value is not None and bias is None):
        return False
    weight = constant(kernel)
    if weight is None and (affine.scales or kernel.dtype != affine.node.outputs[0].dtype):
        return False
    scale, shift = placed
    new_weight: np.ndarray | None = None
    if weight is not None and affine.scales:
        new_weight = rounded(scale_weight(weight.astype(np.float64), scale), weight)
        if new_weight is None:
            return False
    new_bias = (bias.astype(np.float64) * scale if bias is not None else 0.0) + shift
    like = bias if bias is not None else weight
    target = rounded(new_bias, like) if like is not None else new_bias.astype(_numpy_dtype(kernel))
    if target is None:
        return False
    if new_weight is not None:
        swap_constant(model, conv, 1, new_weight, "weight")
    if affine.shifts or (bias is not None and affine.scales):
        swap_constant(model, conv, 2, target, f"{conv.name}_bias")
    return _take_over(affine, conv)


def _numpy_dtype(value: Value) -> np.dtype:
    if value.dtype is None:
        raise ValueError(f"value {value.name!r} has no element type")
    return value.dtype.numpy()


def _gemm_after(model: Model, gemm: Node, affine: ChannelAffine) -> bool:
    weight, bias_value = constant(input_value(gemm, 1)), input_value(gemm, 2)
    bias = constant(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    transposed = bool(attribute(gemm, "transB", 0))
    placed = affine.along(1, weight.shape[0 if transposed else 1])
    if placed is None:
        return False
    scale, shift = placed
    beta = float(attribute(gemm, "beta", 1.0))
    wide = weight.astype(np.float64) * (scale[:, None] if transposed else scale)
    new_bias = (beta * bias.astype(np.float64) * scale if bias is not None else 0.0) + shift
    return _set_gemm(model, gemm, weight, wide if affine.scales else None, new_bias) and _take_over(
        affine, gemm
    )


def _set_gemm(
    model: Model, gemm: Node, weight: np.ndarray, wide: np.ndarray | None, bias: np.ndarray
) -> bool:
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


def _matmul_weight(node: Node) -> np.ndarray | None:
    """Return the constant right-hand operand of a MatMul, at least 2-D, or None."""
    weight = constant(input_value(node, 1))
    return weight if weight is not None and weight.ndim >= 2 else None


def _matmul_after(model: Model, matmul: Node, affine: ChannelAffine) -> bool:
    weight = _matmul_weight(matmul)
    if weight is None or (affine.rank is None and affine.axis is not None):
        return False
    placed = affine.along((affine.rank or 0) - 1, weight.shape[-1])
    if placed is None or not affine.scales:
        return False  # a pure shift is the MatMul's bias already
    scale, shift = placed
    new_weight = rounded(weight.astype(np.float64) * scale, weight)
    new_shift = rounded(shift if affine.axis is not None else shift[:1].reshape(()), weight)
    if new_weight is None or new_shift is None:
        return False
    swap_constant(model, matmul, 1, new_weight, "weight")
    if not affine.shifts:
        return _take_over(affine, matmul)
    node = affine.node
    bias = add_constant(model.graph, new_shift, f"{matmul.name}_bias")
    add = add_node(node, "Add", [matmul.outputs[0], bias], like=node.outputs[0], sources=[node])
    replace_node(node, [add.outputs[0]])
    return True


def _add_after(model: Model, add: Node, affine: ChannelAffine) -> bool:
    """scale * (x + b) + shift, x from something foldable: b * scale + shift stays, the scale goes on to x."""
    inner = affine_of_node(add)
    if inner is None or inner.scales or inner.rank is None or affine.rank != inner.rank:
        return False
    source = inner.value.producer()
    if source is None or source.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return False
    index = 0 if inner.value is add.inputs[0] else 1
    old = constant(add.inputs[1 - index])
    size = max(inner.shift.size, affine.scale.size)
    axis = affine.axis if affine.axis is not None else inner.axis
    if old is None or (inner.axis is not None and affine.axis is not None and inner.axis != affine.axis):
        return False
    bias = rounded(_spread(inner.shift * affine.scale + affine.shift, size, axis, inner.rank), old)
    if bias is None:
        return False
    if affine.scales:
        scale_only = ChannelAffine(
            add, inner.value, affine.scale, np.zeros_like(affine.scale), affine.axis, affine.rank
        )
        if not _scale_weight_only(model, source, scale_only):
            return False
    swap_constant(model, add, 1 - index, bias, "bias")
    return _take_over(affine, add)


def _spread(array: np.ndarray, size: int, axis: int | None, rank: int) -> np.ndarray:
    """Return a [size] array shaped to run along `axis` of a rank-`rank` tensor."""
    if axis is None:
        return np.broadcast_to(array, size).reshape(())
    return np.broadcast_to(array, size).reshape(size, *[1] * (rank - 1 - axis))


def _scale_weight_only(model: Model, source: Node, affine: ChannelAffine) -> bool:
    """Fold a pure scale into `source`, whose reader (affine.node) stays."""
    if sole_reader(affine.value) is not affine.node:
        return False
    before = source.outputs[0]
    probe = add_node(affine.node, "Identity", [before], like=before, sources=[source])
    index = 0 if affine.node.inputs[0] is before else 1
    affine.node.replace_input_with(index, probe.outputs[0])
    step = ChannelAffine(probe, before, affine.scale, affine.shift, affine.axis, affine.rank)
    if fold_into_producer(model, step):
        return True
    affine.node.replace_input_with(index, before)
    remove_node(probe)
    return False


_PRODUCERS: dict[str, Callable[[Model, Node, ChannelAffine], bool]] = {
    "Conv": _conv_after,
    "ConvTranspose": _transposed_after,
    "Gemm": _gemm_after,
    "MatMul": _matmul_after,
    "Add": _add_after,
}

# --- into the consumer ------------------------------------------------------------------------------------


def fold_into_consumer(model: Model, affine: ChannelAffine) -> bool:
    """Fold y = scale * x + shift into the weights of what reads y, and remove its node; return whether.

    Taken: Conv, ConvTranspose, Gemm (the constant operand B), MatMul (a shift becomes an Add after it).
    Left: y is read elsewhere or is a graph output; a shift where zero padding follows (the padding would
    have been shifted too), and into any ConvTranspose (its border pixels collect fewer terms); computed
    weights or bias; a constant along another axis than the one summed over; overflow.
    """
    result = affine.node.outputs[0]
    consumer = sole_reader(result)
    if consumer is None or consumer.domain or consumer.graph is not affine.node.graph:
        return False
    if not affine.scales and not affine.shifts:
        return False
    handler = _CONSUMERS.get(consumer.op_type)
    if handler is None or consumer.inputs[0] is not result or not handler(model, consumer, affine):
        return False
    return True


def _bypass(affine: ChannelAffine, consumer: Node) -> bool:
    """Let the consumer read x, and remove the affine node."""
    dead = list(affine.node.inputs)
    note_sources(consumer, affine.node)
    consumer.replace_input_with(0, affine.value)
    remove_node(affine.node)
    for value in dead:
        if value is not None and value.graph is not None:
            drop_unused(value.graph, value)
    return True


def has_padding(conv: Node) -> bool:
    """Return whether a Conv may read zeros outside its input.

    A 1x1 kernel (dilation or not) reads none under auto_pad SAME_*; every other SAME_* counts as padding.
    """
    pads = attribute(conv, "pads", ())
    automatic = attribute(conv, "auto_pad", "NOTSET")
    automatic = automatic.decode() if isinstance(automatic, bytes) else automatic
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        shape = dims(input_value(conv, 1))
        return shape is None or any(size != 1 for size in shape[2:])
    return automatic != "VALID" and any(p != 0 for p in pads)


def _conv_before(model: Model, conv: Node, affine: ChannelAffine) -> bool:
    weight, bias_value = constant(input_value(conv, 1)), input_value(conv, 2)
    bias = constant(bias_value)
    if weight is None or (affine.shifts and (has_padding(conv) or (bias_value is not None and bias is None))):
        return False
    if affine.rank is not None and affine.rank != weight.ndim:
        return False
    groups = int(attribute(conv, "group", 1))
    placed = affine.along(1, weight.shape[1] * groups)
    if placed is None:
        return False
    # [M, C/g, ...]: filter m of group i reads the input channels i * C/g to (i+1) * C/g
    split = weight.astype(np.float64).reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    scale, shift = (part.reshape(groups, 1, weight.shape[1], 1) for part in placed)
    new_weight = rounded((split * scale).reshape(weight.shape), weight)
    new_bias = (split * shift).sum(axis=(2, 3)).reshape(-1)
    if bias is not None:
        new_bias = new_bias + bias.astype(np.float64)
    target = rounded(new_bias, bias if bias is not None else weight)
    if new_weight is None or target is None:
        return False
    if affine.scales:
        swap_constant(model, conv, 1, new_weight, "weight")
    if affine.shifts:
        swap_constant(model, conv, 2, target, f"{conv.name}_bias")
    return _bypass(affine, conv)


def _transposed_before(model: Model, conv: Node, affine: ChannelAffine) -> bool:
    weight = constant(input_value(conv, 1))
    if weight is None or affine.shifts or (affine.rank is not None and affine.rank != weight.ndim):
        return False
    placed = affine.along(1, weight.shape[0])
    if placed is None:
        return False
    wide = weight.astype(np.float64) * placed[0].reshape(-1, *[1] * (weight.ndim - 1))
    new_weight = rounded(wide, weight)
    if new_weight is None:
        return False
    swap_constant(model, conv, 1, new_weight, "weight")
    return _bypass(affine, conv)


def _gemm_before(model: Model, gemm: Node, affine: ChannelAffine) -> bool:
    weight, bias_value = constant(input_value(gemm, 1)), input_value(gemm, 2)
    bias = constant(bias_value)
    if weight is None or (affine.shifts and bias_value is not None and bias is None):
        return False
    columns = weight.astype(np.float64)
    columns = columns.T if attribute(gemm, "transB", 0) else columns  # [K, N]
    placed = affine.along(0 if attribute(gemm, "transA", 0) else 1, columns.shape[0])
    if placed is None:
        return False
    scale, shift = placed
    alpha, beta = float(attribute(gemm, "alpha", 1.0)), float(attribute(gemm, "beta", 1.0))
    wide = columns * scale[:, None]
    wide = wide.T if attribute(gemm, "transB", 0) else wide
    if not affine.shifts:
        new_weight = rounded(wide, weight)
        if new_weight is None:
            return False
        swap_constant(model, gemm, 1, new_weight, "weight")
        return _bypass(affine, gemm)
    new_bias = alpha * (shift @ columns) + (beta * bias.astype(np.float64) if bias is not None else 0.0)
    return _set_gemm(model, gemm, weight, wide if affine.scales else None, new_bias) and _bypass(affine, gemm)


def _matmul_before(model: Model, matmul: Node, affine: ChannelAffine) -> bool:
    weight = _matmul_weight(matmul)
    if weight is None or affine.rank is None:
        return False
    placed = affine.along(affine.rank - 1, weight.shape[-2])
    if placed is None or (affine.shifts and weight.ndim != 2):
        return False
    scale, shift = placed
    wide = weight.astype(np.float64)
    new_weight = rounded(wide * scale[:, None], weight)
    bias = rounded(shift @ wide, weight) if affine.shifts else None
    if new_weight is None or (affine.shifts and bias is None):
        return False
    if bias is not None:
        result = matmul.outputs[0]
        inner = add_node(matmul, "MatMul", list(matmul.inputs), like=result, sources=[matmul])
        extra = add_constant(model.graph, bias, f"{matmul.name}_bias")
        add = add_node(matmul, "Add", [inner.outputs[0], extra], like=result, sources=[affine.node])
        replace_node(matmul, [add.outputs[0]])
        matmul = inner
    if affine.scales:
        swap_constant(model, matmul, 1, new_weight, "weight")
    return _bypass(affine, matmul)


_CONSUMERS: dict[str, Callable[[Model, Node, ChannelAffine], bool]] = {
    "Conv": _conv_before,
    "ConvTranspose": _transposed_before,
    "Gemm": _gemm_before,
    "MatMul": _matmul_before,
}
