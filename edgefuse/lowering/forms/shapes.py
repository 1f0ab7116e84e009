"""Shape, Reshape, Split and Pad as operator set 13 has them."""

from __future__ import annotations

import numpy as np

from edgefuse.graph import DataType, Node, Value, attribute, constant, dims, input_value
from edgefuse.lowering.builder import Builder
from edgefuse.lowering.forms import Step
from edgefuse.lowering.reader import refusal


def _reshape(node: Node, make: Builder) -> None:
    """allowzero=1 says that a 0 in the target means a size of 0; without zeros it says nothing."""
    if attribute(node, "allowzero", 0):
        target = constant(input_value(node, 1))
        if target is None or (target == 0).any():
            raise refusal(
                node, f"allowzero=1 with a 0 in the target shape is not in operator set {make.reader.opset}"
            )
        del node.attributes["allowzero"]


def _shape(node: Node, make: Builder) -> list[Value] | None:
    """start and end: those sizes as a constant where they are fixed, else a Slice of the whole shape."""
    if "start" not in node.attributes and "end" not in node.attributes:
        return None
    x = make.input(0)
    rank = make.rank(x)
    start, end = (
        _within(attribute(node, key, default), rank) for key, default in (("start", 0), ("end", rank))
    )
    found = (dims(x) or ())[start:end]
    numbers = [size for size in found if isinstance(size, int)]
    if len(numbers) == len(found):
        return [make.op("Identity", make.integers(*numbers), like=node.outputs[0])]
    whole = make.op("Shape", x, dtype=DataType.INT64)
    return [
        make.op("Slice", whole, make.integers(start), make.integers(max(start, end)), like=node.outputs[0])
    ]


def _within(place: int, rank: int) -> int:
    return min(max(place + rank if place < 0 else place, 0), rank)


def _split(node: Node, make: Builder) -> None:
    """num_outputs: sizes of ceil(size / n) and a smaller last one, written out."""
    count = attribute(node, "num_outputs")
    if count is None:
        return
    x = make.input(0)
    axis = attribute(node, "axis", 0)
    size = make.size(x, axis)
    chunk = -(-size // count)
    parts = [chunk] * (count - 1) + [size - chunk * (count - 1)]
    if min(parts) < 0:
        raise refusal(node, f"{size} elements do not go into {count} outputs of {chunk}")
    node.resize_inputs(2)
    node.replace_input_with(1, make.integers(*parts))
    del node.attributes["num_outputs"]


def _pad(node: Node, make: Builder) -> None:
    """axes: pads for all axes, 0 for those not named."""
    if attribute(node, "mode", "constant") == "wrap":
        raise refusal(node, f"mode=wrap is not in operator set {make.reader.opset}")
    if input_value(node, 3) is None:
        node.resize_inputs(min(len(node.inputs), 3))
        return
    rank = make.rank(make.input(0))
    axes = make.constant_input(3, "axes")
    pads = make.constant_input(1, "pads")
    if axes is None or pads is None:
        raise refusal(node, "its pads are missing")
    full = np.zeros((2, rank), dtype=np.int64)
    full[:, [int(axis) % rank for axis in axes]] = pads.reshape(2, -1)
    node.replace_input_with(1, make.constant(full.reshape(-1)))
    node.resize_inputs(3)


STEPS = (
    Step("Reshape", 14, _reshape),
    Step("Shape", 15, _shape),
    Step("Split", 18, _split),
    Step("Pad", 18, _pad),
)
