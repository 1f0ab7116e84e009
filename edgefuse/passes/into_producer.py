"""Scale and shift into the weights of the node that writes the tensor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    attribute,
    constant,
    dims,
    input_value,
    remove_node,
    replace_node,
    sole_reader,
)
from edgefuse.passes.channel_affine import (
    ChannelAffine,
    affine_of_node,
    drop_unused,
    matmul_weight,
    note_sources,
    rounded,
    set_gemm,
    swap_constant,
)

__all__ = ["fold_into_producer"]


def fold_into_producer(model: Model, affine: ChannelAffine) -> bool:
    """Fold y = scale * x + shift into the weights of what writes x, and remove its node; return whether.

    Taken: Conv (a shift needs no constant weight), ConvTranspose (grouped too), Gemm, MatMul, and Add of a
    constant to one of them; a shift onto MatMul becomes its Add; the scale and bias of LayerNormalization,
    RMSNormalization (no shift), InstanceNormalization and GroupNormalization. Left: x is read elsewhere or is
    a graph output; computed weights or bias; a constant along another axis; results that overflow.
    """
    producer = affine.value.producer()
    if producer is None or producer.domain or sole_reader(affine.value) is not affine.node:
        return False
    if producer.graph is not affine.node.graph:
        return False
    if not affine.scales and not affine.shifts:
        return False  # a no-op: removing it is not this pass's job
    handler = _PRODUCERS.get(producer.op_type)
    return handler is not None and handler(model, producer, affine)


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
        scaled: np.ndarray = (split * factor).reshape(weight.shape)
        return scaled

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
    return np.dtype(value.dtype.numpy())


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
    return set_gemm(model, gemm, weight, wide if affine.scales else None, new_bias) and _take_over(
        affine, gemm
    )


def _matmul_after(model: Model, matmul: Node, affine: ChannelAffine) -> bool:
    weight = matmul_weight(matmul)
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
    """scale * (x + b) + shift, x from something foldable: b * scale + shift stays, the scale goes on to x.

    x - b is the same with the number's sign turned.
    """
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
    sign = -1.0 if add.op_type == "Sub" else 1.0
    total = sign * (inner.shift * affine.scale + affine.shift)
    bias = rounded(_spread(total, size, axis, inner.rank), old)
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


def _norm_after(model: Model, norm: Node, affine: ChannelAffine) -> bool:
    """Fold into a normalisation whose scale runs along the last axis (Layer, RMS) or axis 1."""
    gain_value, bias_value = input_value(norm, 1), input_value(norm, 2)
    gain, bias = constant(gain_value), constant(bias_value)
    if gain is None or gain.ndim != 1 or (bias_value is not None and bias is None) or affine.rank is None:
        return False
    if norm.op_type == "RMSNormalization" and affine.shifts:
        return False
    last = norm.op_type in ("LayerNormalization", "RMSNormalization")
    placed = affine.along(affine.rank - 1 if last else 1, gain.size)
    if placed is None:
        return False
    new_gain = rounded(gain.astype(np.float64) * placed[0], gain)
    new_bias = (bias.astype(np.float64) * placed[0] if bias is not None else 0.0) + placed[1]
    target = rounded(new_bias, bias if bias is not None else gain)
    if new_gain is None or target is None:
        return False
    if affine.scales:
        swap_constant(model, norm, 1, new_gain, "scale")
    if affine.shifts or (bias is not None and affine.scales):
        swap_constant(model, norm, 2, target, f"{norm.name}_bias")
    return _take_over(affine, norm)


_PRODUCERS: dict[str, Callable[[Model, Node, ChannelAffine], bool]] = {
    "Conv": _conv_after,
    "ConvTranspose": _transposed_after,
    "Gemm": _gemm_after,
    "MatMul": _matmul_after,
    "Add": _add_after,
    "Sub": _add_after,
    "LayerNormalization": _norm_after,
    "RMSNormalization": _norm_after,
    "InstanceNormalization": _norm_after,
    "GroupNormalization": _norm_after,
}
