"""BatchNormalization (inference) into the weights beside it, or into one Mul and one Add."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgefuse.errors import InputError
from edgefuse.graph import (
    Model,
    Node,
    add_constant,
    add_node,
    all_nodes,
    attribute,
    constant,
    dims,
    is_float,
    replace_node,
    source_name,
)
from edgefuse.passes.channel_affine import ChannelAffine, drop_unused, rounded
from edgefuse.passes.contract import PassResult
from edgefuse.passes.into_consumer import fold_into_consumer
from edgefuse.passes.into_producer import fold_into_producer

__all__ = ["batchnorm_scale_shift", "fold_batchnorm"]


def fold_batchnorm(model: Model) -> PassResult:
    """Fold every BatchNormalization with constant statistics away, in place.

    With s = scale / sqrt(var + eps) and t = bias - mean * s it computes s * x + t. Taken, in this order:

    1. x is written by Conv, ConvTranspose (grouped too), Gemm or MatMul (rank 2) with constant weights, by
       Add(MatMul, constant) or by a normalisation, and nobody else reads it: W * s and b * s + t; a missing
       bias is made.
    2. its result is read by one such node only: W * s, and W.t onto the bias; the shift only where no zero
       padding follows, since the padding would have to be shifted too; a pure scale passes padding.
    3. what is left becomes Mul by s and Add of t, shaped [C, 1, ...], so that pointwise groups can take it
       (an Add of zeros or a Mul by ones is left out).

    Left: training mode, statistics that are computed or not finite, a second output that is read, unknown
    rank where neither 1 nor 2 applies, s or t that overflow the dtype of x. Shared weights are copied, never
    changed for their other readers. Exact in real arithmetic; computed in float64 and rounded once: float32
    weights differ by half an ulp (relative 6e-8 per weight), float16 by 5e-4.
    Raises InputError naming the node where var + eps <= 0: the export or the training is broken.
    """
    nodes = [n for n in all_nodes(model) if n.op_type == "BatchNormalization" and not n.domain]
    notes: list[str] = []
    left: list[ChannelAffine] = []
    changed = 0
    for node in nodes:
        read = batchnorm_scale_shift(node)
        if isinstance(read, str):
            notes.append(f"BatchNormalization {source_name(node)!r} is kept: {read}")
        elif fold_into_producer(model, read):
            changed += 1
        else:
            left.append(read)
    for affine in reversed(left):
        affine = _current(affine)
        if fold_into_consumer(model, affine) or _write_out(model, affine):
            changed += 1
        else:
            notes.append(
                f"BatchNormalization {source_name(affine.node)!r} is kept: rank or range does not allow it"
            )
    return PassResult("fold_batchnorm", changed, tuple(notes))


def batchnorm_scale_shift(node: Node) -> ChannelAffine | str:
    """Return s and t (float64 [C], along axis 1) of a BatchNormalization, or why it has none.

    Raises InputError naming the node where var + eps <= 0.
    """
    if attribute(node, "training_mode", 0):
        return "it is in training mode"
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "its statistics are read"
    value = node.inputs[0]
    arrays = [constant(v) for v in node.inputs[1:5]]
    if value is None or not is_float(value) or len(arrays) != 4:
        return "its input is not a float tensor"
    known = [a.astype(np.float64).reshape(-1) for a in arrays if a is not None]
    if len(known) != 4:
        return "its statistics are computed"
    scale, bias, mean, variance = known
    spread = variance + float(attribute(node, "epsilon", 1e-5))
    if (spread <= 0).any():
        channel = int(np.argmax(spread <= 0))
        raise InputError(
            f"node {source_name(node)!r} (BatchNormalization): channel {channel} has no positive variance",
            expected="variance + epsilon > 0",
            got=f"{spread[channel]:g}",
            hint="the export or the training is broken; check the running statistics of this layer",
        )
    s = scale / np.sqrt(spread)
    t = bias - mean * s
    if not (np.isfinite(s).all() and np.isfinite(t).all()):
        return "its statistics are not finite"
    found = dims(value)
    return ChannelAffine(node, value, s, t, 1, None if found is None else len(found))


def _current(affine: ChannelAffine) -> ChannelAffine:
    """Return the affine with the value that its node reads now (an earlier fold may have replaced it)."""
    return replace(affine, value=affine.node.inputs[0] or affine.value)


def _write_out(model: Model, affine: ChannelAffine) -> bool:
    """Replace the node by Mul and Add with [C, 1, ...] constants; return whether that was possible."""
    node, value = affine.node, affine.value
    if affine.rank is None or affine.rank < 2 or value.dtype is None:
        return False
    like = np.empty(0, value.dtype.numpy())
    shape = (affine.scale.size, *[1] * (affine.rank - 2))
    scale, shift = rounded(affine.scale, like), rounded(affine.shift, like)
    if scale is None or shift is None:
        return False
    old = list(node.inputs[1:])
    stem = node.name or "batchnorm"
    current = value
    for op_type, array, needed in (("Mul", scale, affine.scales), ("Add", shift, affine.shifts)):
        if needed:
            factor = add_constant(model.graph, array.reshape(shape), f"{stem}_{op_type.lower()}")
            current = add_node(
                node,
                op_type,
                [current, factor],
                like=node.outputs[0],
                stem=f"{stem}_{op_type}",
                sources=[node],
            ).outputs[0]
    for extra in node.outputs[1:]:
        extra.name = None
    node.resize_outputs(1)
    replace_node(node, [current])
    for constant_value in old:
        if constant_value is not None and constant_value.graph is not None:
            drop_unused(constant_value.graph, constant_value)
    return True
