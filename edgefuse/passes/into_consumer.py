"""Scale and shift into the weights of the node that reads the tensor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
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
    drop_unused,
    matmul_weight,
    note_sources,
    rounded,
    set_gemm,
    swap_constant,
)

__all__ = ["fold_into_consumer", "has_padding"]


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
    return handler is not None and consumer.inputs[0] is result and handler(model, consumer, affine)


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
    return set_gemm(model, gemm, weight, wide if affine.scales else None, new_bias) and _bypass(affine, gemm)


def _matmul_before(model: Model, matmul: Node, affine: ChannelAffine) -> bool:
    weight = matmul_weight(matmul)
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
