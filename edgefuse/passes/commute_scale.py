"""Scalar factors moved to where they can be folded: past a shift, and past operators that only move data."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import (
    Model,
    Node,
    Value,
    add_constant,
    add_node,
    constant,
    dims,
    input_value,
    replace_node,
    sole_reader,
)
from edgefuse.passes.channel_affine import (
    ChannelAffine,
    affine_of_node,
    drop_unused,
    note_sources,
    rounded,
    swap_constant,
)
from edgefuse.passes.into_consumer import fold_into_consumer
from edgefuse.passes.into_producer import fold_into_producer

__all__ = ["fold_scale_behind_shift", "fold_scale_past_layout"]

# They move elements or average them, so that one factor for all passes through; Pad fills with zeros here.
_LAYOUT = frozenset(
    ["Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "GlobalAveragePool", "AveragePool"]
)
_PRODUCERS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])
# t / s must not lose digits that s * x + t had
_SANE = (1e-3, 1e3)


def fold_scale_behind_shift(model: Model, shift: ChannelAffine) -> bool:
    """Fold the s of s * x + t into the padded Conv that reads it, and leave x + t / s; return whether.

    Taken where s is one number (so that the ranges of the channels keep their proportions), t is constant,
    and neither tensor is read elsewhere. Zero padding stays right, since s * 0 = 0.
    """
    mul = shift.value.producer()
    scale = affine_of_node(mul) if mul is not None and shift.shifts and not shift.scales else None
    consumer = sole_reader(shift.node.outputs[0])
    if scale is None or scale.shifts or scale.scale.size != 1 or sole_reader(shift.value) is not shift.node:
        return False
    if consumer is None or consumer.domain or consumer.op_type not in ("Conv", "ConvTranspose"):
        return False
    factor, weight = float(scale.scale[0]), constant(input_value(consumer, 1))
    index = 1 if shift.node.inputs[0] is shift.value else 0
    number = constant(shift.node.inputs[index])
    if weight is None or number is None or not _SANE[0] <= abs(factor) <= _SANE[1]:
        return False
    if consumer.inputs[0] is not shift.node.outputs[0] or consumer.graph is not scale.node.graph:
        return False
    new_weight = rounded(weight.astype(np.float64) * factor, weight)
    new_number = rounded(number.astype(np.float64) / factor, number)
    if new_weight is None or new_number is None:
        return False
    swap_constant(model, consumer, 1, new_weight, "weight")
    swap_constant(model, shift.node, index, new_number, "shift")
    note_sources(consumer, scale.node)
    _take_out(scale)
    return True


def fold_scale_past_layout(model: Model, affine: ChannelAffine) -> bool:
    """Fold x * s, s one number, into weights behind Reshape, Transpose and the like; return whether.

    The operators in between only move or average elements, and each tensor on the way has one reader.
    """
    if (
        affine.shifts
        or not affine.scales
        or affine.scale.size != 1
        or affine.node.op_type not in ("Mul", "Div")
    ):
        return False
    return _backward(model, affine) or _forward(model, affine)


def _backward(model: Model, affine: ChannelAffine) -> bool:
    value, first = affine.value, None
    while sole_reader(value) is not None:
        node = value.producer()
        if node is None or node.domain or node.op_type not in _LAYOUT or node.graph is not affine.node.graph:
            break
        source = node.inputs[0]
        if source is None:
            return False
        value, first = source, node
    if first is None or sole_reader(value) is not first or not _foldable(value.producer(), affine):
        return False
    moved = _moved(model, affine, value, first)
    return moved is not None and fold_into_producer(model, moved)


def _foldable(node: Node | None, affine: ChannelAffine) -> bool:
    """Return whether a scale of this node's output ends in constant weights that can hold the product."""
    if node is None or node.domain:
        return False
    if node.op_type == "Add":
        inner = affine_of_node(node)
        source = inner.value.producer() if inner is not None else None
        return source is not None and _foldable(source, affine)
    bias = input_value(node, 2) if node.op_type != "MatMul" else None
    if node.op_type not in _PRODUCERS or not _holds(input_value(node, 1), affine):
        return False
    return bias is None or _holds(bias, affine)


def _holds(value: Value | None, affine: ChannelAffine) -> bool:
    array = constant(value)
    return array is not None and rounded(array.astype(np.float64) * affine.scale[0], array) is not None


def _forward(model: Model, affine: ChannelAffine) -> bool:
    value = affine.node.outputs[0]
    passed = False
    while (reader := sole_reader(value)) is not None and not reader.domain and reader.inputs[0] is value:
        if reader.graph is not affine.node.graph:
            return False
        if reader.op_type in _PRODUCERS:
            break
        if reader.op_type not in _LAYOUT:
            return False
        value, passed = reader.outputs[0], True
    if reader is None or not passed or reader.inputs[0] is not value or dims(value) is None:
        return False
    if not _holds(input_value(reader, 1), affine):
        return False
    moved = _moved(model, affine, value, reader)
    return moved is not None and fold_into_consumer(model, moved)


def _moved(model: Model, affine: ChannelAffine, value: Value, reader: Node) -> ChannelAffine | None:
    """Put the factor between `value` and its reader instead, and return it there."""
    if value.dtype is None:
        return None
    # without dimensions, since a constant of more dimensions than `value` would raise its rank
    number = np.array(affine.scale[0], value.dtype.numpy())
    factor = add_constant(model.graph, number, f"{affine.node.name}_scale")
    new = add_node(reader, "Mul", [value, factor], like=value, sources=[affine.node])
    reader.replace_input_with(0, new.outputs[0])
    _take_out(affine)
    return affine_of_node(new)


def _take_out(affine: ChannelAffine) -> None:
    """Let the readers of a node read what it read."""
    dead = list(affine.node.inputs)
    replace_node(affine.node, [affine.value])
    for value in dead:
        if value is not None and value.graph is not None:
            drop_unused(value.graph, value)
