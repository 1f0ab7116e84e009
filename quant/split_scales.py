"""Tensors whose parts differ in range by decades: each part keeps a scale of its own.

A Concat of boxes in [0, 640] and scores in [0, 1] under one int8 scale has scores of 0.0 dB (the most
reported failure of int8 detectors). Where a convolution reads the Concat, its weights fall apart by input
channel: conv(concat(a, b)) = conv_a(a) + conv_b(b), and a and b are rounded each on its own grid. Where
nothing but the graph's output or an operator without weights reads it, the Concat must stay float.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    is_float,
    remove_node,
    replace_node,
)
from edgefuse.quant.calibrate import Range, collect_ranges

__all__ = ["split_scales", "uneven_joins"]

# Parts within this factor share a scale: the smaller one still has 5 of 8 bits.
_RATIO = 8.0


def uneven_joins(model: Model, ranges: Mapping[str, Range], ratio: float = _RATIO) -> dict[str, str]:
    """Return the Concat nodes that must not have one int8 scale, with the reason that the user reads.

    ranges: of the parts, by value name (a part without one is not judged).  ratio: of the largest to the
    smallest part's largest absolute value, from which on they are uneven.
    """
    found = {}
    for node in model.graph:
        if node.op_type != "Concat" or not is_float(node.outputs[0]):
            continue
        sizes = [(v.name or "", _largest(ranges.get(v.name or ""))) for v in node.inputs if v is not None]
        known = [(name, size) for name, size in sizes if size]
        if len(known) < 2:
            continue
        (small, low), (large, high) = min(known, key=lambda k: k[1]), max(known, key=lambda k: k[1])
        if high > ratio * low:
            found[node.name or ""] = (
                f"its parts differ in range ({large!r} to {high:.3g}, {small!r} to {low:.3g}): one int8 "
                f"scale would leave the small part {max(0.0, 8 - np.log2(high / low)):.1f} bits"
            )
    return found


def _largest(found: Range | None) -> float:
    return max(-found.low, found.high) if found is not None else 0.0


def split_scales(
    model: Model, samples: Iterable[Mapping[str, np.ndarray]], int8: frozenset[str], ratio: float = _RATIO
) -> list[str]:
    """Split every int8 layer that reads an uneven Concat into one for each part, in place; a line for each.

    int8: names of the nodes that will run in int8. Cases: Conv (one group) behind a Concat of channels,
    MatMul and Gemm behind a Concat of the axis that they sum over. The first part keeps the layer's name and
    bias. Left alone: Concats that others read too or that are graph outputs; parts of unknown size; grouped
    layers.
    """
    joins = [node for node in model.graph if node.op_type == "Concat" and _reader(node, int8) is not None]
    names = [v.name or "" for node in joins for v in node.inputs if v is not None and constant(v) is None]
    if not names:
        return []
    uneven = uneven_joins(model, collect_ranges(model, names, samples), ratio)
    done = []
    for join in joins:
        layer = _reader(join, int8)
        if join.name in uneven and layer is not None:
            _split(model, join, layer)
            done.append(f"{layer.name}: one product for each of the {len(join.inputs)} parts of {join.name}")
    return done


def _reader(join: Node, int8: frozenset[str]) -> Node | None:
    """Return the one int8 layer that sums over the axis of a Concat, or None."""
    value = join.outputs[0]
    uses = tuple(value.uses())
    shape = dims(value)
    if len(uses) != 1 or uses[0].idx != 0 or value.is_graph_output() or shape is None:
        return None
    layer = uses[0].node
    if layer.name not in int8 or layer.graph is not join.graph or constant(input_value(layer, 1)) is None:
        return None
    axis = int(attribute(join, "axis", 0)) % len(shape)
    parts = [(dims(v) or ())[axis : axis + 1] for v in join.inputs]
    if not all(part and isinstance(part[0], int) for part in parts):
        return None
    if any(constant(v) is not None for v in join.inputs):
        return None
    return layer if axis == _summed_axis(layer, len(shape)) else None


def _summed_axis(layer: Node, rank: int) -> int:
    if layer.op_type == "Conv":
        return 1 if int(attribute(layer, "group", 1)) == 1 else -1
    if layer.op_type == "Gemm":
        return 1 if not attribute(layer, "transA", 0) else -1
    weight = constant(input_value(layer, 1))
    return rank - 1 if layer.op_type == "MatMul" and weight is not None and weight.ndim == 2 else -1


def _split(model: Model, join: Node, layer: Node) -> None:
    weight = constant(layer.inputs[1])
    assert weight is not None
    axis = 1 if layer.op_type == "Conv" or attribute(layer, "transB", 0) else 0
    sizes = [_size(join, value) for value in join.inputs]
    places = np.cumsum([0, *sizes])
    made: list[Value] = []
    for index, value in enumerate(join.inputs):
        part = np.take(weight, range(places[index], places[index + 1]), axis=axis)
        held = add_constant(model.graph, part, f"{layer.inputs[1].name}_part")  # type: ignore[union-attr]
        bias = [input_value(layer, 2)] if index == 0 and input_value(layer, 2) is not None else []
        own = {key: attribute(layer, key) for key in layer.attributes}
        step = add_node(
            layer,
            layer.op_type,
            [value, held, *bias],
            own,
            like=layer.outputs[0],
            stem=f"{layer.name}_part{index}",
            sources=[layer],
        )
        made.append(step.outputs[0])
    total = made[0]
    for index, value in enumerate(made[1:], start=1):
        stem = f"{layer.name}_sum{index}"
        total = add_node(
            layer, "Add", [total, value], like=layer.outputs[0], stem=stem, sources=[layer]
        ).outputs[0]
    name = layer.name or ""
    first = made[0].producer()
    replace_node(layer, [total])
    remove_node(join)
    assert first is not None
    first.name = name


def _size(join: Node, value: Value | None) -> int:
    shape, rank = dims(value), len(dims(join.outputs[0]) or ())
    assert shape is not None
    size = shape[int(attribute(join, "axis", 0)) % rank]
    assert isinstance(size, int)
    return size
